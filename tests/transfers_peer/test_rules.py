"""The recordings keep the rules of the protocol, but for two that a script breaks: findings that there must be."""

from collections import defaultdict

import pytest

from peer.transfers import layouts as p
from transfers_peer.reading import CAPTURES, account_lines, messages, of

NAMES = [path.name.split(".")[0] for path in CAPTURES]
SOON_NS = 25_000_000_000


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_messages_keep_the_rules(path):
    """T04, T19, T20, T22, T24, T25 of the contract of transfers."""
    for packet in messages(path):
        base, message = p.BaseHeader.decode(packet), p.UserMessage.decode(packet)
        transaction = message.transaction
        if message.kind != "user_message":
            assert base.flags & ~0x17 == 0
            assert base.time_to_reach == p.NEVER
            assert (message.admin, message.response, message.security, message.acknowledge) == (None, None, None, 0)
            body = p.OrderBody.decode(message.body)
            assert (message.body_type, len(message.body), body.previous < body.number) == (0, 36, True)
            assert (message.kind == "final_ack" and message.recoverable) or body.previous == body.number - 1
        if transaction is not None:
            assert transaction.previous < transaction.number
            assert (message.priority, message.recoverable) == (0, True)
        assert message.hops <= 0x1D


@pytest.mark.parametrize("name", NAMES)
def test_sessions_begin_with_their_handshake(name):
    """T12, T16: EstablishConnection, ConnectionParameters, then the others; acknowledged counts never fall."""
    order = defaultdict(list)
    for packet in of(account_lines(name), "packet"):
        order[packet["session"], packet["sent_by"]].append(packet)
    for packets in order.values():
        kinds = [packet["kind"] for packet in packets]
        first = ["establish_connection", "connection_parameters"]
        assert kinds[:2] == first[: len(kinds)]
        assert not set(kinds[2:]) & set(first)
        counts = [each["session_header"]["ack_sequence_number"] for each in packets if "session_header" in each]
        assert counts == sorted(counts)


def order_acks_that_fall(name):
    """T21: of a lower number than an earlier one of the same sequence and hop."""
    highest, found = defaultdict(int), []
    for packet in of(account_lines(name), "packet"):
        if packet["kind"] == "order_ack":
            key = packet["transaction_sequence_id"], packet["session"]
            if packet["transaction_number"] < highest[key]:
                found.append(packet["packet"])
            highest[key] = max(highest[key], packet["transaction_number"])
    return found


def numbers_sent_again_soon(name):
    """T29: by the same side of a connection, less than 25 s after the last time."""
    last, found = {}, []
    for packet in of(account_lines(name), "packet"):
        if packet["kind"] == "user_message" and "transaction_number" in packet:
            side = packet["session"], packet["sent_by"]
            key = *side, packet["transaction_sequence_id"], packet["transaction_number"]
            if packet["sent_at"] - last.get(key, -SOON_NS) < SOON_NS:
                found.append(packet["packet"])
            last[key] = packet["sent_at"]
    return found


def test_the_broken_rules_are_those_of_the_stall():
    """A receiver restored from a backup (T21); one timer for all that waits sends a later message again early (T29)."""
    fallen = {name: found for name in NAMES if (found := order_acks_that_fall(name))}
    early = {name: found for name in NAMES if (found := numbers_sent_again_soon(name))}
    assert {name: len(found) for name, found in fallen.items()} == {"08-stall": 3}
    assert {name: len(found) for name, found in early.items()} == {"08-stall": 1}
