"""Which messages the site counts as not delivered: each message of an application once, by all that is known of it."""

import pytest

from engines import shared_sql
from pipeline.dashboards.transfer_datasets import TRANSFER_DATASETS
from reports.questions.in_memory_lake import rows
from reports.questions.test_transfer_views import B, C, sequence, transfer
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

TIMED_OUT_IN_QUEUE, PURGED, BAD_QUEUE, REACHED = 0xC002, 0xC001, 0x8000, 0x0002
OF_SEQUENCE = {"sequence_key": "s1", "transaction_number": 5}
NEVER, UNREAD = "never_arrived", "not_read"


def judged(*sent):
    (dataset,) = [each for each in TRANSFER_DATASETS if each.name == "message_transfers"]
    tables = {
        "message_transfers": rows(MESSAGE_TRANSFERS, *sent), "queue_aliases": rows(QUEUE_ALIASES),
        "transfer_sequences": rows(TRANSFER_SEQUENCES, sequence(1, 4, 6, 2, condition="refused")),
        "eod_transfers": rows(EOD_TRANSFERS), "eod_sources": rows(EOD_SOURCES),
    }  # fmt: skip
    found = shared_sql().answer(dataset.rows_sql, tables).to_pylist()
    return sorted((row["message_key"], row["not_delivered"]) for row in found if row["not_delivered"])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"outcome": "unacknowledged"}, NEVER), ({"outcome": "expired"}, NEVER),
        ({"outcome": "rejected", "arrival_class": BAD_QUEUE}, NEVER),
        ({"outcome": "rejected", "final_class": BAD_QUEUE, "order_acked_at": 11}, NEVER),
        ({"outcome": "transferred"} | OF_SEQUENCE, NEVER), ({"outcome": "transferred"}, None),
        ({"outcome": "rejected", "receive_class": TIMED_OUT_IN_QUEUE}, UNREAD),
        ({"outcome": "rejected", "arrival_class": REACHED, "receive_class": PURGED}, UNREAD),
        ({"outcome": "rejected", "receive_class": 0xC003}, NEVER),
        ({"outcome": "rejected", "receive_class": 0xC003, "order_acked_at": 11}, UNREAD),
        ({"outcome": "rejected", "final_class": PURGED}, UNREAD), ({"outcome": "delivered"}, None),
        ({"outcome": "rejected", "receive_class": PURGED, "message_kind": "report"}, None),
    ],
)  # fmt: skip
def test_what_never_reached_its_queue_is_apart_from_what_was_not_read(more, expected):
    assert judged(transfer("m", **more)) == ([] if expected is None else [("m", expected)])


def test_a_message_counts_once_over_its_hops():
    lost = {"outcome": "rejected", "arrival_class": BAD_QUEUE}
    assert judged(transfer("m", **lost), transfer("m", 11, hop=(B, C), **lost)) == [("m", NEVER)]
    assert judged(transfer("m"), transfer("m", 11, hop=(B, C), outcome="unacknowledged")) == [("m", NEVER)]


def test_what_another_row_shows_to_have_arrived_is_not_lost():
    """Planted: the first sending was not acknowledged; the message went on from another address of its sender."""
    first = transfer("m", outcome="unacknowledged")
    assert judged(first, transfer("m", 12, hop=(C, B))) == []
    assert judged(first, transfer("m", 12, hop=(C, B), outcome="delivered")) == []
    assert judged(transfer("m", 20, outcome="unacknowledged"), transfer("m", 12, hop=(C, B), outcome="received")) == []
