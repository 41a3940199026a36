"""Failed messages and who sends which type, by the headers of applications: the views on rows with known answers."""

import datetime as dt

import pytest

from pipeline.reports.views.catalog import LakeViews
from reports.questions.both_engines import answers_of, quick_session
from reports.questions.in_memory_lake import InMemoryLake, rows
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.transfers import MESSAGE_TRANSFERS

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
QUEUE, LOCAL, RECEIVED = "srv1\\private$\\orders", "LOCAL CONNECTION", 0x4000
OTHER_NAME = "10.0.0.1\\private$\\orders"
TYPE = "Sales.OrderPlaced, Sales, Version=1.0.0.0, Culture=neutral"
FAILED = {"failed_queue": "billing@srv2", "processing_endpoint": "Billing", "exception_type": "System.TimeoutException"}


def seen(name, at, **more):
    """A message of NServiceBus, peeked in a queue that is not called error."""
    return {
        "message_key": name, "sighting_key": f"{name} {at}", "seen_at": at, "queue": QUEUE, "framework": "NServiceBus",
        "message_kind": "application", "source_queue_manager": "a1", "originating_endpoint": "Sales",
        "intent": "Publish", "sent_types": [TYPE, "Sales.IOrder, Sales"], "body_bytes": 100,
    } | more  # fmt: skip


def sent(name, at, **more):
    """A message of NServiceBus on TCP 1801."""
    packet = f"{name} packet {at}"
    return seen(name, at, queue=None, packet_key=packet, sighting_key=packet, destination_queue=QUEUE) | more


def fate(name, what, **more):
    return {ACK_SEQUENCES: [{"message_key": name, "queue": QUEUE, "fate": what} | more]}


def transfer(name, **more):
    return {MESSAGE_TRANSFERS: [{"message_key": name, "transfer_key": name, "destination_queue": QUEUE,
                                 "last_sent_at": 10} | more]}  # fmt: skip


def report(at, count, **more):
    values = {"queue": QUEUE, "valid_from": at, "reported_at": at, "message_count": count, "state": LOCAL}
    return {QUEUE_HISTORY: [values | more]}


SAME_QUEUE = {QUEUE_ALIASES: [{"queue": OTHER_NAME, "canonical_queue": QUEUE, "evidence": "call"}]}
PURGED_LATER = {QUEUE_OPERATIONS: [{"operation": "purge", "outcome": "done", "queue": QUEUE, "responded_at": 15}]}


def lake(*parts, spark=None):
    """A lake of the rows of several tables."""
    tables = {}
    for part in parts:
        for table, found in part.items():
            tables.setdefault(table, []).extend(found)
    return InMemoryLake(spark, {table: rows(table, *found) for table, found in tables.items()})


def ask(name, *parts):
    found = LakeViews(lake(*parts)).answer(name).to_pylist()
    for row in found:
        times = {name for name, value in row.items() if isinstance(value, dt.datetime)}
        row |= {name: (row[name] - EPOCH).total_seconds() / 60 for name in times}
    return found


def messages(*given):
    return {MESSAGES: list(given)}


@pytest.mark.parametrize(
    ("expected", "parts"),
    [
        ("still_there", [report(20, 1)]),
        ("still_there", [report(20, 1), fate("m", "returned")]),
        ("still_there", [report(20, 1), fate("m", "held")]),
        ("still_there", [report(20, 1), fate("other", "consumed")]),
        ("still_there", [report(20, 1), fate("m", "moved", queue="srv1\\private$\\before")]),
        ("still_there", [report(20, 1), transfer("m", outcome="delivered")]),
        ("still_there", [report(5, 0), report(20, 1)]),
        ("not_known", []),
        ("not_known", [report(5, 1)]),
        ("not_known", [report(20, None)]),
        ("not_known", [report(20, 1, state="CONNECTED")]),
        ("not_known", [report(20, 1, queue="srv1\\private$\\other")]),
        ("not_known", [report(20, 1), fate("m", "unknown")]),
        ("not_known", [report(20, 1), transfer("m", outcome="in_flight")]),
        ("gone", [report(20, 1), fate("m", "consumed")]),
        ("gone", [report(20, 1), fate("m", "moved")]),
        ("gone", [report(20, 1), fate("m", "purged", queue=None, inferred_queue=QUEUE)]),
        ("gone", [report(20, 1), transfer("m", outcome="received")]),
        ("gone", [report(20, 1), transfer("m", outcome="rejected", destination_queue=OTHER_NAME), SAME_QUEUE]),
        ("gone", [report(20, 1), transfer("m", outcome="delivered", receive_class=RECEIVED | 0x8000)]),
        ("gone", [report(5, 1), report(20, 0)]),
        ("gone", [report(20, 0), report(30, 2)]),
        ("gone", [report(5, 1), PURGED_LATER]),
    ],
)
def test_a_failed_message_is_still_there_only_where_nothing_took_it_and_a_later_report_is_above_0(expected, parts):
    (row,) = ask("failed_messages", messages(seen("m", 10, **FAILED)), *parts)
    places = {each: row[each] for each in ("still_there", "gone", "not_known")}
    assert places == dict.fromkeys(places, 0) | {expected: 1}


def test_a_failure_is_told_by_its_headers_and_not_by_the_name_of_its_queue():
    found = ask("failed_messages", messages(
        seen("a", 1, failed_queue="billing@srv2"),
        seen("b", 2, exception_type="System.FormatException", queue=None, inferred_queue=QUEUE),
        seen("c", 3, exception_message="No answer"),
        seen("retried", 4, immediate_retries=4, delayed_retries=3, processing_endpoint="Billing"),
        seen("plain", 5, queue="srv1\\private$\\error"),
    ))  # fmt: skip
    found.sort(key=lambda row: row["first_seen_at"])
    assert [(row["endpoint"], row["exception_type"], row["queue"], row["messages"]) for row in found] == [
        ("billing@srv2", None, QUEUE, 1), (None, "System.FormatException", QUEUE, 1), (None, None, QUEUE, 1),
    ]  # fmt: skip


def test_failures_by_endpoint_type_and_exception_with_how_many_and_when():
    found = ask("failed_messages", messages(
        seen("a", 10, **FAILED), seen("a", 30, **FAILED),  # seen twice
        sent("b", 20, **FAILED, delayed_retries=3), sent("b", 21, **FAILED, delayed_retries=3),  # two hops
        seen("c", 5, **FAILED | {"exception_type": "System.FormatException"}),
        seen("d", 6, **FAILED | {"processing_endpoint": None}, sent_types=None, body_format="xml", body_root="Order"),
    ))  # fmt: skip
    columns = ("endpoint", "message_type", "exception_type", "messages", "first_seen_at", "last_seen_at",
               "delayed_retries", "sources")  # fmt: skip
    assert {tuple(row[each] for each in columns) for row in found} == {
        ("Billing", "Sales.OrderPlaced", "System.TimeoutException", 2, 10, 30, 3, "reads, transfers"),
        ("Billing", "Sales.OrderPlaced", "System.FormatException", 1, 5, 5, None, "reads"),
        ("billing@srv2", "Order", "System.TimeoutException", 1, 6, 6, None, "reads"),
    }
    assert {(*row["failed_queues"], *row["source_queue_managers"]) for row in found} == {("billing@srv2", "a1")}


def test_who_sends_which_type_to_whom_how_often_and_how_large():
    found = ask("message_type_flows", messages(
        sent("a", 10), sent("a", 11), seen("a", 50, destination_queue=QUEUE),  # two hops, then peeked
        sent("b", 13, body_bytes=300), sent("c", 16, body_bytes=500),
        sent("reply", 20, originating_endpoint="Billing", intent="Reply", destination_queue="srv2\\private$\\sales",
             sent_types=["System.Collections.Generic.List`1[[Sales.Order, Sales]], mscorlib"]),
        sent("failed", 30, **FAILED), sent("ack", 31, message_kind="administration_ack"),
        sent("untyped", 32, sent_types=None), sent("json", 33, sent_types=None, body_format="json", body_root="id,sum"),
        sent("text", 34, sent_types=None, body_format="VT_BSTR", body_root="id,sum"),
    ))  # fmt: skip
    columns = ("sender", "message_type", "destination_queue", "intent", "messages", "every_s", "body_bytes",
               "mean_body_bytes", "largest_body_bytes", "first_seen_at", "last_seen_at", "sources")  # fmt: skip
    assert [tuple(row[each] for each in columns) for row in found] == [
        ("Sales", "Sales.OrderPlaced", QUEUE, "Publish", 3, 180.0, 900, 300.0, 500, 10, 50, "reads, transfers"),
        ("Billing", "System.Collections.Generic.List`1[[Sales.Order, Sales]], mscorlib", "srv2\\private$\\sales",
         "Reply", 1, None, 100, 100.0, 100, 20, 20, "transfers"),
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("name", ["failed_messages", "message_type_flows"])
def test_both_engines_give_one_answer(spark, name):
    every = lake(
        messages(seen("a", 10, **FAILED), sent("b", 20, **FAILED), seen("c", 30), sent("d", 40), sent("e", 41)),
        messages(seen("f", 50, sent_types=None)), report(60, 1), fate("a", "consumed"),
        transfer("b", outcome="delivered"), spark=quick_session(spark),
    )  # fmt: skip
    assert answers_of(LakeViews(every))(name).num_rows == 1
