"""Which evidence of queue aliases is kept, and when changed calls can change the aliases. Without Spark."""

import datetime as dt
import random

import pyarrow as pa
import pytest

from pipeline.silver.queue_aliases import AliasIndex, earliest_evidence
from udfs.queues.alias_groups import ALIAS_EVIDENCE_SCHEMA, canonical_queues

SECOND = 1_000_000
ORDERS, AT_ADDRESS = "srv1\\private$\\orders", "10.0.0.7\\private$\\orders"


def piece(queue, other, second, call="k", named_as="format_name", evidence="open"):
    at = dt.datetime.fromtimestamp(second, dt.UTC)
    return {"queue": queue, "other_queue": other, "named_as": named_as, "evidence": evidence, "call_key": call,
            "observed_at": at}  # fmt: skip


def test_of_the_same_two_texts_the_first_piece_of_each_kind_is_kept_in_any_order():
    rows = [
        piece("a", "b", 5), piece("a", "b", 3, "late"), piece("a", "b", 3, "first"), piece("b", "a", 3, "first"),
        piece("a", "b", 9, "s", "path_name", "snapshot"), piece("a", "c", 7),
    ]  # fmt: skip
    expected = [("a", "b", "open", "first"), ("a", "b", "snapshot", "s"), ("a", "c", "open", "k"),
                ("b", "a", "open", "first")]  # fmt: skip
    for seed in range(5):
        shuffled = random.Random(seed).sample(rows, len(rows))
        kept = earliest_evidence(pa.Table.from_pylist(shuffled, schema=ALIAS_EVIDENCE_SCHEMA))
        names = ("queue", "other_queue", "evidence", "call_key")
        assert list(zip(*(kept[name].to_pylist() for name in names), strict=True)) == expected
        whole = pa.Table.from_pylist(rows, schema=ALIAS_EVIDENCE_SCHEMA)
        assert canonical_queues(kept).to_pylist() == canonical_queues(whole).to_pylist()


def opened(change="insert", second=5, queue=ORDERS, **more):
    row = {
        "_change_type": change, "protocol": "RemoteRead", "opnum": 2, "call_key": "new", "queue": queue,
        "queue_format_name": f"DIRECT=OS:{queue}", "context_handle": "aa", "server_address": "10.0.0.7",
        "observed": second * SECOND,
    }  # fmt: skip
    return row | more


KNOWN = AliasIndex(
    {ORDERS: ORDERS, AT_ADDRESS: ORDERS},
    {(ORDERS, AT_ADDRESS, "open"): 5 * SECOND, (AT_ADDRESS, ORDERS, "open"): 5 * SECOND},
    {"first"},
)


@pytest.mark.parametrize(
    ("opens", "outdated"),
    [
        ([], False),
        ([opened()], False),  # the same two names again
        ([opened(second=4)], True),  # earlier evidence
        ([opened(queue="srv1\\private$\\large")], True),
        ([opened(queue="srv1\\private$\\large", context_handle=None)], False),  # it was refused
        ([opened(queue="a1\\b2", queue_format_name="PUBLIC=x")], False),  # no direct name
        ([opened(server_address="10.0.0.8")], True),
        ([opened("delete")], False),  # a call that is not evidence
        ([opened("delete", call_key="first")], True),
        ([opened("update_preimage", call_key="first"), opened("update_postimage", call_key="first")], True),
    ],
)
def test_a_change_is_looked_at_where_it_can_show_anything_else(opens, outdated):
    assert KNOWN.is_outdated_by(opens) is outdated
