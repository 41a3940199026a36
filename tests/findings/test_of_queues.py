"""Rules on the reported state of queues, and on messages that several readers of a queue received.

Each has a story that breaks it, and others that do not: all reasons for which a snapshot may differ from traffic.
Times are seconds of the story, which begins at noon.
"""

import datetime as dt

import pytest

from pipeline.findings.evaluate_queues import FACT_PARTS, evaluate_queues
from pipeline.findings.rules.queue_facts import DEFAULT_LIMITS
from pipeline.findings.rules.registry import ALL_RULES, OPERATIONAL_RULES, QUEUE_CHECKS
from udfs.keys import key

US = 1_000_000
NOON = 1_714_564_800 * US
HOUR, DAY = 3600, 86400
ORDERS, SERVER = "srv1\\private$\\orders", "10.0.0.1"
DEAD = "srv1\\system$;deadletter"


def us(seconds):
    return None if seconds is None else NOON + round(seconds * US)


class World:
    """Facts of the queues of one queue manager."""

    def __init__(self):
        self.rows = {name: [] for name in FACT_PARTS}

    def count(self, at, number=None, *, journal=None, queue=ORDERS):
        self.rows["counts"].append({
            "queue_manager": SERVER, "queue": queue, "observed_at": us(at), "snapshot_id": f"s{at}",
            "message_count": number, "journal_message_count": journal,
        })  # fmt: skip
        return self

    def counts(self, *numbers, every=HOUR, **more):
        for place, number in enumerate(numbers):
            self.count(place * every, number, **more)
        return self

    def journal(self, *numbers, every=HOUR):
        for place, number in enumerate(numbers):
            self.count(place * every, journal=number)
        return self

    def report(self, at, number, *, capture="one", asked=None, subqueues=None):
        self.rows["reports"].append({
            "queue_manager": SERVER, "queue": ORDERS, "observed_at": us(at), "snapshot_id": f"s{at}",
            "asked_at": us(at if asked is None else asked), "message_count": number, "subqueue_count": subqueues,
            "capture_id": capture,
        })  # fmt: skip
        return self

    def read(self, at, outcome="peeked", *, message=5, returned=None, ended=None, arrived=-100, capture="one",
             client="10.0.0.2", began=-50, group=None, connection=None, **more):  # fmt: skip
        """A read: a peek that is answered at once by default; without a message where ``message`` is None."""
        start, end = f"start {client} {at}", f"end {client} {at}"
        receive = outcome != "peeked"
        returned = at + 0.001 if returned is None else returned
        brought = message is not None
        connection = connection or f"connection {client}"
        self.rows["reads"].append({
            "queue_manager": SERVER, "queue": ORDERS, "attempt_key": key(start), "protocol": "RemoteRead",
            "server_address": SERVER, "client_address": client, "connection_id": connection, "run_id": "r",
            "action_name": "MQ_ACTION_RECEIVE" if receive else "MQ_ACTION_PEEK_CURRENT", "is_receive": receive,
            "transactional": False, "started_at": us(at), "returned_at": us(returned), "ended_at": us(ended),
            "lookup_id": message, "message_key": f"m{message}" if brought else None,
            "start_hresult": 0 if brought else 0xC00E001B, "outcome": outcome, "ack_refused": False,
            "ack_unanswered": False, "evidence": [start, end] if ended is not None else [start], "missing": [],
            "errors": [], "first_packet_at": us(began), "association_group_id": group,
        } | more)  # fmt: skip
        for name in (start, end) if ended is not None else (start,):
            brings = name == start and brought
            self.rows["calls"].append({
                "call_key": name, "capture_id": capture, "request_at": us(at), "cursor_handle": 0,
                "arrived_at": us(arrived) if brings else None,
            })  # fmt: skip
        return self

    def receive(self, at, outcome="acked", **more):
        return self.read(at, outcome, **({"ended": at + 2} | more))

    def waits(self, at, until, outcome="timed_out", **more):
        return self.read(at, outcome, message=None, returned=until, **more)

    def source(self, at, how, *, sender="5ba1e0aa"):
        self.rows["sources"].append({
            "queue_manager": SERVER, "queue": ORDERS, "observed_at": us(at), "source_key": f"k{at}",
            "sender_queue_manager": sender, "disagrees_with_sender": how, "evidence": [f"r{at}", f"s{at}"],
        })  # fmt: skip
        return self

    def kind(self, at, xact):
        self.rows["kinds"].append({
            "queue_manager": SERVER, "queue": ORDERS, "observed_at": us(at), "snapshot_id": f"s{at}", "xact": xact,
        })  # fmt: skip
        return self

    def use(self, at, operation, transaction, **more):
        start = f"{operation} {at}"
        receive = operation == "receive"
        self.rows["uses"].append({
            "queue_manager": SERVER, "queue": ORDERS, "operation": operation, "call_key": None if receive else start,
            "attempt_key": key(start) if receive else None, "at": us(at), "transaction_id": transaction,
            "lookup_id": 5, "client_address": "10.0.0.2", "server_address": SERVER, "connection_id": "c",
            "evidence": ["open", start, "end"], "run_id": "r",
        } | more)  # fmt: skip
        return self

    def found(self, limits=DEFAULT_LIMITS):
        """The findings, which do not depend on the order of rows."""
        rows = evaluate_queues(self.rows, limits).to_pylist()
        again = evaluate_queues({name: list(reversed(each)) for name, each in self.rows.items()}, limits).to_pylist()
        assert sorted(rows, key=str) == sorted(again, key=str)
        assert len({row["finding_key"] for row in rows}) == len(rows)
        return sorted(rows, key=lambda row: (row["rule_id"], row["observed_at"]))

    def broken(self):
        return [(row["rule_id"], row["severity"]) for row in self.found()]


def twice(first=None, second=None):
    """Two readers that receive one message, the first of which acknowledges it."""
    return World().receive(1, **(first or {})).receive(10, client="10.0.0.3", **(second or {}))


STORIES = {
    "O03": (World().counts(0, 3, queue=DEAD), World().counts(3, 3, 2, queue=DEAD)),
    "O04": (World().journal(10, 500, 1500), World().journal(1500, 1500, 0, 100)),
    "O05": (World().source(0, "gap: ..."), World()),
    "O06": (World().read(0).report(10, 0).read(20), World().read(0).report(10, 1).read(20)),
    "Q22": (
        twice(second={"protocol": "qm2qm"}),
        twice({"outcome": "nacked"}, {"protocol": "qm2qm"}),
    ),
    "Q24": (
        twice({"ended": 60}, {"protocol": "qm2qm"}),
        twice({"ended": 60, "outcome": "rundown"}, {"protocol": "qm2qm"}),
    ),
    "R53": (twice(), twice({"outcome": "nacked"})),
    "R59": (World().kind(0, "NO").use(10, "move", "t"), World().kind(0, "YES").use(10, "move", "t")),
    "R66": (World().kind(0, "NO").use(10, "receive", "t"), World().kind(0, "YES").use(10, "receive", "t")),
}


def test_every_rule_on_queues_has_a_story():
    assert set(STORIES) == {check.rule_id for check in QUEUE_CHECKS}
    elsewhere = {"O01", "O02", "O07", "O08"}  # in test_operation; O07, O08 in tests/transfers
    assert set(OPERATIONAL_RULES) - elsewhere <= set(STORIES)


@pytest.mark.parametrize("rule", STORIES)
def test_the_violating_story_is_found_and_the_innocent_one_is_not(rule):
    violating, innocent = STORIES[rule]
    assert {row["rule_id"] for row in violating.found()} == {rule}
    assert innocent.found() == []
    for row in violating.found():
        assert row["scope"] == "queue"
        assert row["queue"] in (ORDERS, DEAD)
        assert row["evidence"]
        assert row["expected"] == ALL_RULES[rule].requirement


def test_growth_is_told_once_a_day_with_what_it_came_to():
    (row,) = World().counts(2, 2, 5, 4, 9, queue=DEAD).found()
    assert row["subject"] == f"queue {DEAD} at {SERVER}"
    assert row["observed_at"] == dt.datetime(2024, 5, 1, 14, tzinfo=dt.UTC)
    assert row["actual"] == "9 at 2024-05-01 16:00:00, 7 dead letters more than at 2024-05-01 13:00:00"
    assert row["evidence"] == ["s3600", "s14400"]
    days = World().counts(0, 1, 1, 1, 4, 4, every=DAY / 2, queue=DEAD).found()
    assert [row["observed_at"].day for row in days] == [2, 3]


def test_a_journal_that_only_rises_is_told_as_info_and_many_messages_as_a_warning():
    assert World().journal(0, 2, 4).broken() == [("O04", "info")]
    assert World().journal(0, 2).broken() == []
    assert World().journal(0, 2, 0, 2).broken() == []
    assert World().journal(0, 500, 1000).broken() == [("O04", "warning")]
    assert World().counts(0, 2, 4, queue=f"{ORDERS};journal").broken() == [("O04", "info")]
    assert World().counts(0, 2, 4, 1000).broken() == []  # a queue may grow


def test_what_was_seen_too_long_ago_is_no_growth():
    assert World().counts(0, 5, every=2 * DAY, queue=DEAD).broken() == []


def test_ends_that_disagree_are_told_once_a_day_and_sender():
    world = World().source(0, "gap: 1").source(HOUR, "gap: 2").source(HOUR, "gap: 2", sender="other").source(DAY, "x")
    found = world.found()
    assert [(row["subject"].split()[2], row["actual"], row["observed_at"].day) for row in found] == [
        ("5ba1e0aa", "gap: 2", 1), ("other", "gap: 2", 1), ("5ba1e0aa", "x", 2),
    ]  # fmt: skip


# Whether a queue is transactional


def test_who_breaks_the_rules_on_transactions():
    (row,) = World().kind(0, "NO").use(10, "move", "t").found()
    assert (row["subject"], row["call_key"], row["evidence"]) == (f"server {SERVER}", "move 10", ["move 10", "s0"])
    (row,) = World().kind(0, "YES").use(10, "move", None).found()
    assert (row["rule_id"], row["subject"]) == ("R59", "client 10.0.0.2")
    (row,) = World().kind(-HOUR, "NO").kind(20, "NO").use(10, "receive", "t").found()
    assert (row["call_key"], row["evidence"]) == ("receive 10", ["receive 10", "s20"])  # the nearest, also a later one


NOT_TOLD = {
    "no snapshot tells it": World().use(10, "move", "t").use(20, "receive", "t"),
    "another queue had the name, or has it now": World().kind(0, "NO").kind(20, "YES").use(10, "receive", "t"),
    "the snapshot is older than a day": World().kind(0, "NO").use(DAY + 1, "receive", "t"),
    "the snapshot is later than a day": World().kind(DAY + 11, "NO").use(10, "move", "t"),
    "a move without a transaction of messages without": World().kind(0, "NO").use(10, "move", None),
    "another queue manager's": World().kind(0, "NO").use(10, "receive", "t", queue_manager="10.0.0.9"),
}


@pytest.mark.parametrize("why", NOT_TOLD)
def test_what_may_be_right_about_transactions_is_not_told(why):
    assert NOT_TOLD[why].broken() == []


# Snapshots beside traffic


def test_more_was_there_than_was_reported():
    world = World().read(0, message=5).read(1, message=6).report(10, 1).read(20, message=5).read(21, message=6)
    (row,) = world.found()
    assert row["severity"] == "warning"
    assert row["subject"] == f"queue {ORDERS} at {SERVER}"
    assert row["actual"] == "1 message reported, 2 seen before and read after it"
    assert row["evidence"][0] == "s10"
    assert set(row["evidence"][1:]) == {f"start 10.0.0.2 {at}" for at in (0, 1, 20, 21)}


def test_a_message_that_was_given_back_is_there():
    assert World().receive(0, "nacked").report(10, 0).read(20).broken() == [("O06", "warning")]


def test_a_message_that_had_arrived_is_there_by_the_shortest_way_that_any_took():
    waited = {"message": 9, "arrived": 50, "returned": 50.2}
    assert World().report(10, 0).read(20, arrived=-100).broken() == []  # the clocks may differ by as much
    assert World().report(10, 0).read(20, arrived=-100).read(40, **waited).broken() == [("O06", "warning")]
    assert World().report(10, 0).read(20, arrived=9.5).read(40, **waited).broken() == []


SILENT = {
    "it is read before and after, and was put there in between": World().report(10, 0).read(20, arrived=12),
    "more was sent by ways that nobody captures": World().read(0).report(10, 9).read(20).report(30, 20),
    "local readers took what was there": World().read(0).report(10, 0).report(20, 0),
    "it expired": World().read(0).report(10, 1).report(400, 0),
    "a reader holds it": World().receive(0, ended=30, outcome="nacked").report(10, 0).read(40),
    "a reader that nobody saw end holds it": World().receive(0, "in_flight", ended=None).report(10, 0).read(40),
    "it was held when the question came": World().receive(0, "nacked", ended=5).report(9, 0, asked=4).read(40),
    "it was put there while the question was answered": World().read(5).report(10, 0, asked=4).read(20),
    "another message has its number": World().read(0).report(10, 0).read(20, message_key="other"),
    "a queue manager that was set up anew sent it again": World().read(0).report(10, 0).read(20, arrived=15),
    "the message's header was not whole": World().read(0).report(10, 0).read(20, message_key=None),
    "the collector's clock may differ by a few seconds": World().read(8).report(10, 0, capture=None).read(20),
    "two captures may": World().read(8).report(10, 0, capture="two").read(20),
    "its subqueues hold it meanwhile": World().read(0).report(10, 0, subqueues=1).read(20),
    "it was read long before": World().read(-2000).report(10, 0).read(20),
    "a sealed call tells nothing": World().read(0, missing=["sealed"]).report(10, 0).read(20, missing=["sealed"]),
    "a receive waits, a reader holds the message": World().receive(0, ended=60).waits(5, 40).report(10, 1),
    "a receive waits, a sealed one may hold it": World().receive(0, is_receive=None, ended=None).waits(5, 40)
    .report(10, 1),
    "a receive of a cursor waits": World().waits(5, 40, "peeked").report(10, 1),
    "nothing is there and a receive waits": World().waits(5, 40).report(10, 0),
    "a receive began to wait while the question was answered": World().waits(5, 40).report(10, 1, asked=4),
}  # fmt: skip


@pytest.mark.parametrize("why", SILENT)
def test_a_snapshot_may_differ_from_traffic(why):
    assert SILENT[why].broken() == []


def test_a_message_that_nobody_holds_beside_a_receive_that_waits_is_told_as_info():
    (row,) = World().waits(5, 40).report(10, 2).found()
    assert (row["rule_id"], row["severity"]) == ("O06", "info")
    assert row["actual"] == "2 messages reported, 0 in readers' hands, while a receive waits in vain"
    held = World().receive(0, ended=60).waits(5, 40).report(10, 2)
    assert held.broken() == [("O06", "info")]
    cursor = World().waits(5, 40).report(10, 2)
    cursor.rows["calls"][0]["cursor_handle"] = 3
    assert cursor.broken() == []


# Two readers


def test_a_message_that_comes_back_to_another_reader_is_the_servers_error():
    (row,) = twice().found()
    assert (row["rule_id"], row["severity"], row["subject"]) == ("R53", "error", f"server {SERVER}")
    assert row["call_key"] == "start 10.0.0.3 10"
    assert row["actual"] == f"message 5 of {ORDERS} was acknowledged by 10.0.0.2"
    assert row["evidence"] == ["start 10.0.0.2 1", "end 10.0.0.2 1", "start 10.0.0.3 10"]
    assert twice(second={"protocol": "qm2qm"}).broken() == [("Q22", "error")]
    held = twice({"ended": 60}, {"protocol": "qm2qm"})
    assert held.broken() == [("Q24", "info")]
    assert "is held by" in held.found()[0]["actual"]


UNSURE = {
    "in a transaction, which may have been aborted": twice({"transactional": True}),
    "the acknowledgement was refused": twice({"ack_refused": True}),
    "the acknowledgement was not answered": twice({"ack_unanswered": True}),
    "calls of the first reader are missing": twice({"missing": ["capture_loss"]}),
    "it was given up before, after five minutes": twice({"ended": 400}, {"ended": 500}),
    "the queue manager may have been started anew": twice(second={"began": 5}),
    "two captures, whose clocks differ": twice({"capture": "two"}),
    "a part of the first one's calls was captured elsewhere": twice({"capture": None}),
    "another message has its number": twice(second={"message_key": "other"}),
    "the queue manager was set up anew": twice(second={"arrived": 5}),
    "the second reader asked before the first had its answer": World().receive(5).receive(1, client="10.0.0.3",
                                                                                          returned=9, ended=11),
    "it is rejected, not acknowledged": twice({"outcome": "rejected"}),
    "the second one only peeks": World().receive(1).read(10, client="10.0.0.3"),
    "one association, which has rules of its own": twice(second={"connection": "connection 10.0.0.2"}),
    "more than a day between": twice(second={"returned": 2 * DAY, "ended": 2 * DAY + 1}),
}  # fmt: skip


@pytest.mark.parametrize("why", UNSURE)
def test_what_is_not_sure_of_two_readers_is_not_told(why):
    assert UNSURE[why].broken() == []


def test_two_associations_of_one_host_are_told_apart_by_their_groups():
    host = {"client": "10.0.0.2", "connection": "other"}
    for groups, found in (((7, 8), ["R53"]), ((7, 7), []), ((7, None), [])):
        world = World().receive(1, group=groups[0]).receive(10, group=groups[1], **host)
        assert [rule for rule, _ in world.broken()] == found
