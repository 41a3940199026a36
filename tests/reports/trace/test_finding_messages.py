"""Which messages a request means: by parts of labels, senders and queues, in hours, and how many there are."""

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.reports.trace.inputs import TraceRequest, trace_messages
from reports.questions.in_memory_lake import InMemoryLake, rows
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.transfers import MESSAGE_TRANSFERS

SHOP, RELAY, HQ = "10.0.0.1", "10.0.0.2", "10.0.0.3"
RAW, ORDERS, AUDIT = "hq-guid\\00000009", "hq\\private$\\orders", "hq\\private$\\audit"


def sighting(name, at, label=None, queue=RAW, **more):
    """A message as it was captured on TCP 1801, from the first machine."""
    row = {"message_key": name, "sighting_key": f"{name} {at}", "packet_key": f"{name} {at}", "seen_at": at,
           "message_id": f"shop-guid\\{name}", "label": label, "destination_queue": queue, "hop_count": 0,
           "source_queue_manager": "shop-guid", "sender_address": SHOP}  # fmt: skip
    return row | more


def read(name, at, label=None, queue=ORDERS, **more):
    """The same, as it was read."""
    of_read = {"packet_key": None, "call_key": f"{name} {at}", "queue": queue, "hop_count": None}
    return sighting(name, at, label) | {"destination_queue": None} | of_read | more


def attempt(at, message_key=None, number=7, queue=ORDERS, **more):
    row = {"attempt_key": f"{queue} {number} {at}", "message_key": message_key, "lookup_id": number, "queue": queue,
           "server_address": HQ, "context_handle": "aa", "started_at": at, "returned_at": at, "is_receive": False,
           "outcome": "peeked", "client_address": SHOP, "client_port": 5000}  # fmt: skip
    return row | more


LAKE = {
    MESSAGES: rows(
        MESSAGES,
        sighting("one", 10, "Order 4711"), sighting("one", 11, "Order 4711", hop_count=1, sender_address=RELAY),
        read("one", 60, "Order 4711"), sighting("two", 20, "order 4712, ÄRGER", AUDIT),
        sighting("three", 30, "invoice"),
        read("four", 40, "other", AUDIT, source_queue_manager="hq-guid", sender_address=HQ),
        read("five", None, "without time", AUDIT, source_queue_manager=None, sender_address=RELAY),
    ),
    RECEIVE_ATTEMPTS: rows(
        RECEIVE_ATTEMPTS, attempt(60, "one"), attempt(61), attempt(62, number=8), attempt(63, number=8),
        attempt(64, number=9, queue=None), attempt(65, number=9, queue=None, context_handle="bb"),
    ),
    QUEUE_ALIASES: rows(QUEUE_ALIASES, {"queue": RAW, "canonical_queue": ORDERS, "evidence": "snapshot"}),
    HOSTS: rows(
        HOSTS, {"queue_manager_id": "shop-guid", "host_name": "shop1", "address": SHOP},
        {"queue_manager_id": "hq-guid", "host_name": "hq", "address": HQ},
    ),
}  # fmt: skip


def traced(tables=LAKE, **asked):
    return trace_messages(InMemoryLake(None, dict(tables)), TraceRequest(**asked))


def found(tables=LAKE, **asked):
    """The messages of a request: keys, or numbers of those without."""
    hours = {name: datetime.fromtimestamp(60 * asked.pop(name), UTC) for name in ("since", "until") if name in asked}
    result = traced(tables, **asked, **hours)
    assert result.found == len(result.timelines)
    return {each.message_key or each.locations[0][1] for each in result.timelines}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"label": "ORDER 471"}, {"one", "two"}),
        ({"label": "ärger"}, {"two"}),
        ({"label": "%"}, set()),
        ({"sender": "SHOP"}, {"one", "two", "three"}),
        ({"sender": SHOP}, {"one", "two", "three"}),
        ({"sender": "hq-gu"}, {"four"}),
        ({"sender": RELAY}, {"five"}),  # not the messages that it passed on
        ({"queue": "Orders"}, {"one", "three", 8}),
        ({"queue": "DIRECT=OS:hq\\private$\\orders"}, {"one", "three", 8}),
        ({"queue": RAW}, {"one", "three", 8}),
        ({"queue": "hq\\private$"}, {"one", "two", "three", "four", "five", 8}),
        ({"queue": ORDERS, "lookup_id": 8}, {8}),
        ({"queue": "orders", "lookup_id": 8}, set()),  # no whole name
        ({"label": "order", "queue": "audit"}, {"two"}),
        ({"since": 11, "until": 30}, {"two", "three"}),  # the first one was seen before
        ({"since": 10, "until": 20}, {"one", "two"}),
        ({"since": 62}, {8, 9}),
        ({"label": "without", "since": 0}, set()),
    ],
)
def test_a_message_matches_all_that_is_asked_for(asked, expected):
    assert found(**asked) == expected


def test_numbers_without_a_key_are_messages_by_place_and_none_that_a_key_has():
    result = traced(since=datetime.fromtimestamp(3660, UTC))
    places = sorted(place for each in result.timelines for place in each.locations)
    assert places == [
        (ORDERS, 8), (f"unknown queue at {HQ} (handle aa)", 9), (f"unknown queue at {HQ} (handle bb)", 9),
    ]  # fmt: skip


def test_the_earliest_are_traced_and_all_are_counted():
    result = traced(queue="hq\\private$", max_messages=2)
    assert ({each.message_key for each in result.timelines}, result.found) == ({"one", "two"}, 6)
    everything = traced(queue="hq\\private$", max_messages=None)
    assert (len(everything.timelines), everything.found) == (6, 6)


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ({"label": "ordr 4711"}, {"label": ["Order 4711"]}),
        ({"label": "order 9"}, {"label": ["Order 4711"]}),
        ({"label": "order 471", "since": datetime(2026, 1, 1, tzinfo=UTC)}, {}),  # there are such labels
        ({"label": "zzz"}, {"label": []}),
        ({"queue": "ordres"}, {"queue": [ORDERS]}),
        ({"queue": "hq\\private$\\ordres", "lookup_id": 8}, {"queue": [ORDERS]}),
        ({"queue": ORDERS, "lookup_id": 1}, {}),
        ({"sender": "shopp1", "queue": "ordres"}, {"sender": ["shop1"], "queue": [ORDERS]}),
    ],
)
def test_what_is_called_similarly_where_nothing_was_found(asked, near):
    result = traced(**asked)
    assert (result.timelines, result.found) == ([], 0)
    assert {option: [*texts[:1]] for option, texts in result.near.items()} == near


def test_a_purge_after_a_message_came_to_its_queue_is_in_its_timeline():
    """Planted: its arrival was acknowledged on TCP 1801; nobody read from the queue, which has two names."""
    transfer = {"transfer_key": "t", "message_key": "one", "destination_queue": RAW, "outcome": "delivered",
                "sender_address": SHOP, "receiver_address": HQ, "first_sent_at": 10, "last_sent_at": 10,
                "order_acked_at": 12, "sendings": 1, "sessions": 1, "confidence": "complete"}  # fmt: skip
    purges = [
        {"call_key": f"{at}", "operation": "purge", "queue": ORDERS, "requested_at": at, "outcome": "done"}
        for at in (11, 13)
    ]
    tables = {
        **LAKE,
        MESSAGES: rows(MESSAGES, sighting("one", 10)),
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS),
        MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, transfer),
        QUEUE_OPERATIONS: rows(QUEUE_OPERATIONS, *purges),
    }
    (timeline,) = traced(tables, message_id="shop-guid\\one").timelines
    assert [event.call_key for event in timeline.events if event.kind == "purge"] == ["13"]
    assert (timeline.verdict.code, timeline.verdict.complete) == ("purged", False)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=13)
    assert f"purged with {ORDERS} at {at:%Y-%m-%d %H:%M:%S}" in timeline.verdict.text
