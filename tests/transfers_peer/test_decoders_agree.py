"""The project's decoder of messages reads what the peer's encoder has written; neither knows the other."""

import ast
from pathlib import Path

import pytest

from messages.reading import one
from peer.transfers import layouts as p
from transfers_peer.reading import CAPTURES, messages
from udfs.queues.normal_form import normalize_queue_name

ROOT = Path(__file__).parents[2]


def queue(name):
    return None if name is None else normalize_queue_name(str(name))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_decoder_and_encoder_agree(path):
    found = 0
    for packet in messages(path):
        found += 1
        message, (row, errors) = p.UserMessage.decode(packet), one(packet)
        assert message.encode() == packet
        assert errors == []
        transaction = message.transaction
        expected = {
            "message_id": message.message_id,
            "priority": message.priority,
            "delivery": "recoverable" if message.recoverable else "express",
            "hop_count": message.hops,
            "class": message.message_class,
            "journaling": message.journaling,
            "acknowledgement_requested": message.acknowledge,
            "destination_queue": queue(message.destination),
            "admin_queue": queue(message.admin),
            "response_queue": queue(message.response),
            "label": message.label or None,
            "body_bytes": len(message.body),
            "transactional": transaction is not None,
            "transaction_sequence_id": transaction and transaction.sequence,
            "transaction_number": transaction and transaction.number,
            "previous_transaction_number": transaction and transaction.previous,
            "traced": message.traced,
        }
        assert {name: row.get(name) for name in expected} == expected
    assert found > 3


def test_the_peer_knows_no_decoder():
    for path in (ROOT / "tests" / "support" / "peer" / "transfers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in {"udfs", "pipeline", "schemas", "jobs"} for name in names), path
