"""Answers about certain hours, machines and queues: the rows of the whole answer that belong to them, and no others."""

import csv
import datetime as dt
import io
import json
import re
import sys
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest

from engines import without_spark
from jobs import ask, run_all
from jobs.command_line.answers import Answer, csv_text
from pipeline.lake.lake import Lake
from pipeline.reports.views import evidence as ev
from pipeline.reports.views.catalog import VIEWS_BY_NAME, LakeViews
from pipeline.reports.views.scope import Scope, without_scope
from pipeline.text import format_table
from queue_states.queue_events import MINUTE, incoming, outgoing
from reports.questions.in_memory_lake import NOW, InMemoryLake, call, history_tables, rows
from reports.questions.test_contradictions import EPOCH, plain, shot
from reports.questions.test_transfer_views import RAW, A, B, transfer
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.keys import key

GUID = "5f0c2b1a-9d3e-4c77-8a10-000000000001"
# Columns of the scope, and the column of the answer that has the same.
OUTPUT = {
    "of_queue": "queue", "coalesce(read_from, queue)": "queue", "lacking.admin_queue": "admin_queue",
    "refused.requested_at": "refused_at", "held.client_address": "holder_address",
}  # fmt: skip


def minute(at):
    return EPOCH + dt.timedelta(minutes=at)


@pytest.fixture(scope="module")
def recorded(project, tmp_path_factory):
    """The views over a lake of recorded reads, calls, transfers and snapshots."""
    root = tmp_path_factory.mktemp("scope") / "lake"
    sample, transfers = project / "data" / "sample", project / "data" / "transfers"
    captures = [
        sample / "04-qmmgmt.pcapng", sample / "07-faults-cancels-groups.pcap", sample / "11-queued-components.pcap",
        transfers / "03-transactions.pcapng", transfers / "05-resends.pcap", transfers / "06-two-hops.pcapng",
        transfers / "11-conversation.pcap",
    ]  # fmt: skip
    arguments = ["--captures", *captures, "--snapshots", project / "data" / "estate" / "snapshots"]
    assert run_all.main(["--lake", str(root), "--set", "run.engine=local", *map(str, arguments)]) == 0
    return LakeViews(Lake(without_spark(), str(root)))


@pytest.fixture(scope="module")
def whole(recorded):
    """The whole answer of a view."""
    return cache(recorded.answer)


def columns_of(expressions, answer):
    """The columns of an answer that have what a scope looks at; None where one of them is in no column."""
    plain_names = [OUTPUT.get(each, each.rpartition(".")[2]) for each in expressions]
    return plain_names if plain_names and set(plain_names) <= set(answer.column_names) else None


@pytest.mark.parametrize("name", VIEWS_BY_NAME)
def test_an_answer_of_machines_or_queues_has_their_rows_of_the_whole_answer(recorded, whole, name):
    view, answer = VIEWS_BY_NAME[name], whole(name)
    left_out = {"share"} if name == "failures" else set()  # it is a share of the calls that are asked for
    for option, expressions in (("machines", view.scope.machines), ("queues", view.scope.queues)):
        columns = columns_of(expressions, answer)
        if columns is None:
            continue
        every = answer.to_pylist()
        values = {value for row in every for column in columns for value in (row[column],) if value is not None}
        for value in sorted(values)[:2]:
            scope = Scope(**{option: {value}})
            found = replace(recorded, scope=scope).answer(name).to_pylist()
            of_value = [
                row for row in every
                if value in (own := [row[column] for column in columns])
                or (view.scope.everywhere and option == "machines" and own == [None])
            ]  # fmt: skip
            assert found
            for row in (*found, *of_value):
                for column in left_out:
                    row[column] = None
            assert found == of_value, value
        if not view.scope.everywhere:
            assert not replace(recorded, scope=Scope(**{option: {"none of them"}})).answer(name).num_rows


def test_the_recordings_have_rows_for_most_views(whole):
    for option in ("machines", "queues"):
        compared = [
            view for view in VIEWS_BY_NAME.values() if columns_of(getattr(view.scope, option), whole(view.name))
        ]
        assert sum(whole(view.name).num_rows > 0 for view in compared) >= 13, option


@pytest.mark.parametrize("name", VIEWS_BY_NAME)
def test_all_hours_have_the_whole_answer_and_no_hours_nothing(recorded, whole, name):
    if name == "depth_growth":  # without hours, of the day before now
        return
    first, last = minute(365 * 24 * 60), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    (now,) = recorded._query("SELECT now FROM setting.now")["now"].to_pylist()
    all_hours = replace(recorded, scope=Scope(first, last)).answer(name)
    without_time = [
        row for row in whole(name).to_pylist() if not any(row[time] for time in VIEWS_BY_NAME[name].time_columns)
    ]
    if not without_time:
        assert all_hours == whole(name)
    before = replace(recorded, as_of=minute(400 * 24 * 60), scope=Scope(first, minute(400 * 24 * 60)))
    assert not before.answer(name).num_rows
    after = replace(recorded, scope=Scope(now + dt.timedelta(days=2))).answer(name)
    assert all(row.get("still", row.get("how") == "never" or row.get("fate")) for row in after.to_pylist())


def test_every_view_applies_the_scope_once_and_its_page_has_sql_without():
    for view in VIEWS_BY_NAME.values():
        assert view.sql.count("setting.scope") == 1, view.name
        assert "setting.scope" not in without_scope(view.sql), view.name
        assert view.scope.first
        assert view.scope.last


def test_the_sql_without_the_scope_gives_the_same_rows(recorded, whole):
    for view in VIEWS_BY_NAME.values():
        assert recorded._query(without_scope(view.sql)) == whole(view.name), view.name


def asked(tables, name, *columns, since=None, until=None, **scope):
    """Columns of a view's rows over a lake of these tables, within hours in minutes; times in minutes."""
    since, until = (None if at is None else minute(at) for at in (since, until))
    views = LakeViews(InMemoryLake(None, dict(tables)), until, scope=Scope(since, until, **scope))
    return [tuple(plain(row[column]) for column in columns) for row in views.answer(name).to_pylist()]


def test_time_in_state_counts_within_the_hours_only():
    states = ((0, "CONNECTED"), (100, "WAITING"), (160, "CONNECTED"))
    reports = [
        shot(at, 3, state=[state for begin, state in states if begin <= at][-1]) for at in range(0, NOW + 1, 10)
    ]  # fmt: skip
    history = history_tables(reports)
    columns = ("state", "seconds", "share", "times", "first_at", "last_at")
    assert asked(history, "time_in_state", *columns, since=135, until=185) == [
        ("CONNECTED", 1500, 0.5, 1, 160, 185), ("WAITING", 1500, 0.5, 0, 135, 160),
    ]  # fmt: skip
    assert asked(history, "time_in_state", "state", "times", since=105, until=130) == [("WAITING", 0)]
    assert asked(history, "time_in_state", *columns, since=100, until=130) == [("WAITING", 1800, 1, 1, 100, 130)]
    unknown = history_tables(reports[:5])
    assert asked(unknown, "time_in_state", "state", "seconds", since=120) == [("UNKNOWN", 120 * 60)]


def test_a_period_belongs_to_the_hours_that_it_overlaps_as_it_is():
    states = {at: "WAITING" if 100 <= at <= 160 else "CONNECTED" for at in range(0, NOW + 1, 10)}
    down = history_tables([shot(at, 3, state=state) for at, state in states.items()])
    columns = ("since", "until", "still")
    assert asked(down, "outgoing_not_connected", *columns, since=130) == [(100, 170, False)]
    assert asked(down, "outgoing_not_connected", *columns, since=171) == []
    assert asked(down, "outgoing_not_connected", *columns, until=130) == [(100, 130, True)]
    assert asked(down, "outgoing_not_connected", *columns, until=99) == []
    stuck = history_tables([shot(at, 5) for at in range(0, 101, 10)])
    assert asked(stuck, "stuck_queues", *columns, since=90) == [(0, 100, None)]
    assert asked(stuck, "stuck_queues", *columns, since=110) == [(0, 100, None)]  # the last report is valid then
    assert asked(stuck, "stuck_queues", *columns, since=120) == []
    lasting = history_tables([shot(at, 5) for at in range(0, NOW - 5, 10)])
    assert asked(lasting, "stuck_queues", *columns, since=NOW) == [(0, NOW - 10, True)]


def test_stalls_and_resends_of_the_hours():
    stall = [outgoing(at * MINUTE, 10, 4, ack_at=-60, resends=2 * at, key=f"o{at}") for at in range(6)]
    over = [outgoing(at * MINUTE, 14, 0, ack_at=at * MINUTE, resends=0, key=f"o{at}") for at in (6, 7)]
    history = history_tables([*stall, *over])
    columns = ("since", "last_seen_at", "still", "resend_count")
    assert asked(history, "transfer_stalls", *columns, since=3) == [(0, 5, False, 10)]
    assert asked(history, "transfer_stalls", *columns, since=3, until=4) == [(0, 4, True, 8)]
    assert asked(history, "transfer_stalls", *columns, since=6) == []
    assert asked(history, "resends", "resends") == [(10,)]
    assert asked(history, "resends", "resends", since=2, until=3) == [(4,)]  # each is counted where it is reported
    (newest,) = asked(history, "outgoing_backlog", "observed_at", "unacknowledged", until=4)
    assert newest == (4, 4)
    assert asked(history, "outgoing_backlog", "observed_at", since=8) == []
    rejecting = history_tables([incoming(at * MINUTE, ("a1", 7, 9, {"reject_count": at})) for at in range(3)])
    gaps = ("first_seen_at", "last_seen_at", "rejected", "still")
    assert asked(rejecting, "sequence_gaps", *gaps, since=100) == [(1, 2, 2, True)]
    assert asked(rejecting, "sequence_gaps", *gaps, until=1) == [(1, 1, 1, True)]


def test_depth_and_growth_of_the_hours():
    history = history_tables([shot(at, at) for at in range(0, NOW + 1, 10)])
    depth = ("hour", "least_messages", "most_messages")
    assert asked(history, "depth_over_time", *depth, since=90, until=130) == [(60, 90, 110), (120, 120, 130)]
    growth = ("first_at", "last_at", "last_messages", "messages_per_hour")
    assert asked(history, "depth_growth", *growth, since=60, until=120) == [(60, 120, 120, 60)]
    days = 3 * 24 * 60
    later = {SNAPSHOTS_RAW: rows(SNAPSHOTS_RAW, {"collected_at": days})}
    assert asked(history | later, "depth_growth", *growth) == []
    assert asked(history | later, "depth_growth", *growth, since=0) == [(0, NOW, NOW, 60)]  # in place of one day


def reads(*times, client="10.0.0.9", queue="srv1\\private$\\q", **more):
    return [
        {"attempt_key": f"{client} {at}", "queue": queue, "server_address": "10.0.0.1", "client_address": client,
         "started_at": at, "returned_at": at + 1, "ended_at": at + 2, "wait_ms": 60_000.0, "is_receive": True,
         "outcome": "acked", "message_key": f"m{client}{at}"} | more
        for at in times
    ]  # fmt: skip


def test_shares_of_readers_are_of_all_readers_in_the_hours():
    attempts = rows(RECEIVE_ATTEMPTS, *reads(10, 20, 30), *reads(25, 100, client="10.0.0.8"))
    tables = {RECEIVE_ATTEMPTS: attempts}
    columns = ("client_address", "receives", "share")
    assert asked(tables, "reader_load", *columns, machines={"10.0.0.8"}) == [("10.0.0.8", 2, 0.4)]
    assert asked(tables, "reader_load", *columns, machines={"10.0.0.8"}, since=20, until=90) == [
        ("10.0.0.8", 1, 0.333)
    ]  # fmt: skip
    assert asked(tables, "reader_load", *columns, until=22) == [("10.0.0.9", 2, 1)]
    assert asked(tables, "reader_load", *columns, machines={"10.0.0.7"}) == []


def test_receives_that_wait_since_before_the_hours_count():
    waiting = reads(10, returned_at=None, ended_at=None, outcome="in_flight", wait_ms=None)
    tables = {RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *waiting, *reads(100))}
    assert asked(tables, "receives_waiting", "most_waiting", "begun", since=90) == [(2, 1)]
    never = reads(10, outcome="in_flight", ended_at=None) + reads(12, outcome="rundown", client="10.0.0.8")
    tables = {RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *never)}
    assert asked(tables, "receives_not_ended", "how", since=100) == [("never",)]


def test_what_contradicts_counts_wherever_it_is():
    """A message is read, before the hours, on another machine: in the hours it is not unread."""
    peek = reads(100, is_receive=False, outcome="peeked", message_key="m")
    tables = {
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *peek),
        MESSAGES: rows(MESSAGES, {"message_key": "m", "sighting_key": "s", "arrived_at": 50, "seen_at": 101}),
    }
    assert asked(tables, "oldest_unread", "messages", since=90, machines={"10.0.0.1"}) == [(1,)]
    received = {"transfer_key": "t", "message_key": "m", "outcome": "received", "first_sent_at": 40, "last_sent_at": 40}
    tables[MESSAGE_TRANSFERS] = rows(MESSAGE_TRANSFERS, received)
    assert asked(tables, "oldest_unread", "messages", since=90, machines={"10.0.0.1"}) == []


def test_the_state_of_a_machine_belongs_to_the_hours_in_which_it_is_known():
    known = {"queue_manager": "srv1", "state": "CONNECTED", "source": "collector"}
    times = [{"interval_key": f"k{at}", "valid_from": at, "valid_to": at + 10, "reported_at": at} for at in (0, 10, 20)]
    tables = {MACHINE_HISTORY: rows(MACHINE_HISTORY, *times, **known)}
    assert asked(tables, "machines", "since", "known_until", since=25) == [(0, 30)]
    assert asked(tables, "machines", "since", "known_until", until=12) == [(0, 20)]
    assert asked(tables, "machines", "since", since=30) == []


def test_transfers_of_a_queue_and_of_hours():
    sent = [transfer("a", 10), transfer("b", 20, destination_queue="other"), transfer("c", 100, sendings=3)]
    tables = {MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent)}
    assert asked(tables, "transfer_latency", "messages", queues={RAW}) == [(2,)]
    assert asked(tables, "transfer_latency", "messages", "first_at", since=15, until=100) == [(2, 20)]
    assert asked(tables, "resent_messages", "messages", "resends", queues={RAW}, since=15) == [(1, 2)]
    assert asked(tables, "resent_messages", "messages", machines={B}) == [(3,)]
    assert asked(tables, "resent_messages", "messages", machines={"10.9.9.9"}) == []


def test_clocks_are_compared_within_the_hours():
    sent = [transfer("a", 10, sent_at=20), transfer("b", 50, sent_at=52)]
    tables = {MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent)}
    columns = ("messages", "sender_ahead_s")
    assert asked(tables, "clock_differences", *columns) == [(2, 600)]
    assert asked(tables, "clock_differences", *columns, since=30) == [(1, 120)]
    assert asked(tables, "clock_differences", *columns, machines={"b2"}) == []


def test_messages_belong_to_the_machine_that_sent_them():
    asks = transfer("asks", acknowledgement_requested=3, message_id=f"{GUID}\\1")
    dead = {"sighting_key": "d", "queue": "x;deadletter", "class_name": "NACK", "class": 0x8000, "seen_at": 10,
            "source_queue_manager": GUID}  # fmt: skip
    tables = {MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, asks), MESSAGES: rows(MESSAGES, dead)}
    for name in ("acknowledgements_missing", "dead_letters", "dead_letter_messages"):
        assert len(asked(tables, name, machines={GUID})) == 1, name
        assert asked(tables, name, machines={"another"}) == [], name
    assert asked(tables, "dead_letters", "queue", "reason", machines={GUID}) == [("x;deadletter", "NACK")]
    read = reads(10, queue="x;deadletter", server_address=B, message_key="d")
    tables |= {MESSAGES: rows(MESSAGES, dead | {"message_key": "d"}), RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *read)}
    for name in (GUID, B):  # a dead letter is also of the machine that it was read from
        found = asked(tables, "dead_letter_messages", "server_address", "queue", machines={name})
        assert found == [(B, "x;deadletter")]


def test_failures_are_shares_of_the_calls_asked_for():
    denied = {"method": "R_OpenQueue", "opnum": 2, "protocol": "RemoteRead", "fault_name": "DENIED"}
    calls = [call(REMOTE_READ_CALLS, f"c{at}", at, **denied) for at in (10, 100)]
    calls += [call(REMOTE_READ_CALLS, "c20", 20, client_address="10.0.0.8", **denied | {"fault_name": None})]
    ends = [{"call_key": key(f"c{at}"), "outcome": "ok" if at == 20 else "fault"} for at in (10, 20, 100)]
    tables = {REMOTE_READ_CALLS: pa.concat_tables(calls), RPC_CALLS: rows(RPC_CALLS, *ends)}
    columns = ("calls", "share", "first_at")
    assert asked(tables, "failures", *columns) == [(2, 0.667, 10)]
    assert asked(tables, "failures", *columns, until=50) == [(1, 0.5, 10)]
    assert asked(tables, "failures", *columns, since=50) == [(1, 1, 100)]
    assert asked(tables, "failures", *columns, machines={"10.0.0.8"}) == []
    assert [row[0] for row in asked(tables, "response_times", "calls", machines={"10.0.0.8"})] == [1]


def test_gaps_of_no_single_server_belong_to_each_machine():
    hours = [
        {"hour": 60 * hour, "server_address": server, "layer": "capture", "measure": "packets_dropped", "value": 1}
        for hour in (0, 1, 2) for server in (A, B, None)
    ]  # fmt: skip
    tables = {COVERAGE: rows(COVERAGE, *hours)}
    found = asked(tables, "not_known", "hour", "server_address", since=70, until=110, machines={A})
    assert found == [(60, None), (60, A)]


def test_the_path_of_a_message_is_whole_wherever_it_is_asked_for():
    seen = [
        {"sighting_key": f"{at}", "message_key": "m", "queue": queue, "seen_at": at, "is_comqc": True}
        for at, queue in ((10, "app"), (50, "app_0"))
    ]
    tables = {MESSAGES: rows(MESSAGES, *seen)}
    assert asked(tables, "comqc_paths", "path", queues={"app_0"}, since=40) == [(["app", "app_0"],)]
    assert asked(tables, "comqc_paths", "path", queues={"app"}, since=40) == []


def test_machines_that_share_an_identifier():
    finding = {"rule_id": "O01", "subject": f"queue manager {GUID}", "actual": "a, b", "observed_at": 3}
    times = {"first_seen_at": 3, "last_seen_at": 50}
    hosts = rows(HOSTS, *({"queue_manager_id": GUID, "host_name": name} | times for name in ("a", "b")))
    tables = {FINDINGS: rows(FINDINGS, finding), HOSTS: hosts}
    assert asked(tables, "shared_identifiers", "names", since=40, machines={GUID}) == [(["a", "b"],)]
    assert asked(tables, "shared_identifiers", "names", since=60) == []
    assert asked(tables, "shared_identifiers", "names", machines={"another"}) == []


def machines(*found):
    names = ("queue_manager_id", "host_name", "address")
    return {HOSTS: rows(HOSTS, *(dict(zip(names, each, strict=True)) for each in found))}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SRV1", {"srv1", "10.0.0.1", "10.0.0.2", GUID}),
        ("10.0.0.2", {"srv1", "10.0.0.1", "10.0.0.2", GUID}),
        ("10.0.0", set()),  # no part of an address
        ("10.0.0.7", {"10.0.0.7", "Till"}),
        ("till", {"10.0.0.7", "Till"}),
        ("r", {"srv1", "10.0.0.1", "10.0.0.2", GUID, "other", "10.0.0.3"}),
        ("other", {"other", "10.0.0.3"}),
        (GUID[:6], {"srv1", "10.0.0.1", "10.0.0.2", GUID}),
    ],
)
def test_a_machine_is_meant_with_all_its_names(text, found):
    hosts = machines((None, "srv1", "10.0.0.1"), (GUID, None, "10.0.0.1"), (GUID, None, "10.0.0.2"),
                     (None, "other", "10.0.0.3"), (None, None, "10.0.0.3"))  # fmt: skip
    lake = InMemoryLake(None, hosts, {QUEUE_HISTORY: {"names": {"10.0.0.7": "Till"}}})
    assert LakeViews(lake).machines_called(text).found == found


def test_machines_behind_one_address_are_told_apart_by_their_names():
    lake = InMemoryLake(None, machines((None, "a", "10.0.0.1"), (None, "b", "10.0.0.1"), (None, "b", "10.0.0.2")))
    assert LakeViews(lake).machines_called("b").found == {"b", "10.0.0.1", "10.0.0.2"}


def test_a_queue_is_meant_with_all_its_names():
    raw, canonical = "guid\\0009", "hq\\private$\\orders"
    alias = {"queue": raw, "canonical_queue": canonical, "evidence": "snapshot"}
    tables = {
        QUEUE_ALIASES: rows(QUEUE_ALIASES, alias),
        MESSAGES: rows(MESSAGES, {"sighting_key": "s", "queue": f"{raw};journal"}, {"sighting_key": "t", "queue": "x"}),
        QUEUE_HISTORY: rows(
            QUEUE_HISTORY, {"queue": "far\\private$\\in", "queue_format_name": "DIRECT=TCP:10.0.0.5\\In"}
        ),
    }  # fmt: skip
    views = LakeViews(InMemoryLake(None, tables))
    assert views.queues_called("ORDERS").found == {raw, canonical, f"{raw};journal", f"{canonical};journal"}
    assert views.queues_called("tcp:10.0.0.5").found == {"far\\private$\\in", "DIRECT=TCP:10.0.0.5\\In"}
    assert views.queues_called("ordesr") == (frozenset(), (canonical,))
    assert views.queues_called("nothing of the kind") == (frozenset(), ())


def evidence(tables, name="stuck_queues", since=None, until=None, **scope):
    since, until = (None if at is None else minute(at) for at in (since, until))
    views = LakeViews(InMemoryLake(None, dict(tables)), until, scope=Scope(since, until, **scope))
    return {sight.kind: sight.subjects for sight in views.evidence(name).sights}


def test_evidence_is_that_of_the_hours_and_machines_asked_for():
    shown = {"observed_at": 100, "hresult": 0, "queue_manager": "srv1", "queue": "q"}
    session = {"connection_id": "c", "kind": "binary_protocol", "server_address": "10.0.0.1",
               "client_address": "10.0.0.2", "first_packet_at": 50, "last_packet_at": 90}  # fmt: skip
    tables = {QUEUE_SNAPSHOTS: rows(QUEUE_SNAPSHOTS, shown), CONNECTIONS: rows(CONNECTIONS, session)}
    both = {ev.QUEUE_REPORTS: 1, ev.SESSIONS_SEEN: 1}
    assert evidence(tables) == evidence(tables, since=90) == evidence(tables, queues={"another"}) == both
    assert evidence(tables, since=91) == {ev.QUEUE_REPORTS: 1}
    assert evidence(tables, until=99) == {ev.SESSIONS_SEEN: 1}
    assert evidence(tables, machines={"srv1"}) == {ev.QUEUE_REPORTS: 1}
    assert evidence(tables, machines={"10.0.0.2"}) == {ev.SESSIONS_SEEN: 1}
    assert evidence(tables, machines={"another"}) == {}
    later = tables | {SNAPSHOTS_RAW: rows(SNAPSHOTS_RAW, {"collected_at": 3 * 24 * 60})}
    assert evidence(later, "depth_growth") == {}
    assert evidence(later, "depth_growth", since=0) == {ev.QUEUE_REPORTS: 1}


def test_coverage_is_that_of_the_hours_and_machines_asked_for():
    hours = [
        {"hour": 60 * hour, "server_address": server, "layer": "transport", "measure": "bytes", "value": 5}
        for hour in range(4) for server in ("10.0.0.1", "10.0.0.2", None)
    ]  # fmt: skip
    row = {"sender_address": "10.0.0.1", "receiver_address": "10.0.0.1", "first_at": minute(10), "last_at": minute(20)}

    def found(answers, **scope):
        views = LakeViews(InMemoryLake(None, {COVERAGE: rows(COVERAGE, *hours)}), scope=Scope(**scope))
        return [(row["server_address"], row["bytes"]) for row in views.coverage_for(answers).to_pylist()]

    assert found({"resent_messages": [row]}) == [(None, 5), ("10.0.0.1", 5)]
    assert found({"resent_messages": [row], "transfer_latency": []}) == [(None, 20), ("10.0.0.1", 20), ("10.0.0.2", 20)]
    late = row | {"sender_address": "10.0.0.2", "last_at": minute(70)}
    assert found({"resent_messages": [row], "transfer_latency": [late]}) == [
        (None, 10), ("10.0.0.1", 10), ("10.0.0.2", 10)
    ]  # fmt: skip
    asked_for = {"since": minute(70), "until": minute(130), "machines": {"10.0.0.2"}}
    assert found({"resent_messages": [row]}, **asked_for) == [(None, 10), ("10.0.0.2", 10)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["24", "--queue", "q"], "--queue: comqc_methods cannot be limited to a queue; of the same question these can"),
        (["retransmitted", "--queue", "q"], "of the same question these can: resends, resent_messages"),
        (["receives_waiting", "reader_load", "--queue", "q"], "of the same question these can: reader_load"),
        (["22", "--queue", "q"], "no view of question 22 can"),
        (["4", "--queue", ""], "--queue: is empty"),
        (["read_twice", "--machine", "m"], "--machine: read_twice cannot be limited to a machine"),
        (["4", "--last", "1d", "--from", "2024-05-01"], "--last: not with --from"),
        (["4", "--to", "2024-05-01", "--as-of", "2024-05-01"], "--to: not with --as-of"),
        (["4", "--from", "2024-05-02", "--to", "2024-05-01"], "--from: 2024-05-02T00:00:00Z is later than"),
        (["4", "--last", "1 day"], "expected a duration like 500ms, 60s, 15m, 12h or 7d, not '1 day'"),
        (["4", "--from", "noon"], "not a time like"),
        (["20", "--csv", "x.csv"], "--csv: has the rows of one view, not of 2: reader_load, receives_waiting"),
        (["--csv", "x.csv"], "--csv: has the rows of one view, not of 0"),
        (["stuck_queues", "--csv", "-", "--json", "-"], "--csv: not - with --json -"),
        (["--define", "--queue", "q", "--set", "lake.catalog=c"], "--define: permanent views are of the whole lake"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(arguments, says, capsys):
    assert ask.main(["--lake", "x", *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_scope_that_a_view_cannot_have_is_no_answer():
    views = LakeViews(InMemoryLake(None, {}), scope=Scope(queues={"q"}))
    with pytest.raises(ValueError, match="cannot be limited"):
        views.answer("comqc_methods")


def said(capsys, recorded, *arguments):
    """What the command prints, and its summary."""
    assert ask.main(["--lake", recorded.lake.root, *arguments]) == 0
    text, _, summary = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return text, json.loads(summary)


def test_the_command_says_what_it_was_asked_for(recorded, capsys):
    text, summary = said(
        capsys, recorded, "stuck_queues", "outgoing_not_connected", "--machine", "SHOP1", "--last", "1h"
    )
    assert re.match(r"Hours asked for: from 2026-11-21 14:18:\d\d\nAsked for --machine SHOP1: .*shop1", text)
    assert text.count("Gaps in coverage (question 25)") == 1
    assert summary["rows"]["stuck_queues"] > 0
    text, summary = said(capsys, recorded, "stuck_queues", "--machine", "shop1", "--to", "2026-11-21T09:00:00")
    within = " until 2026-11-21 09:00:00 at machines called shop1."
    assert f"Cannot be known from what was captured: nothing was seen of reports of queues{within}" in text
    assert summary["cannot_be_known"] == ["stuck_queues"]
    text, _ = said(capsys, recorded, "outgoing_not_connected", "--machine", "orders1")
    assert "(no row) at machines called orders1\nSeen of reports of queues: " in text
    assert "reports of queues: 4 queues at 1 servers" in text


def test_a_name_that_nothing_has_cannot_be_known(recorded, capsys):
    text, summary = said(capsys, recorded, "stuck_queues", "7", "--queue", "gorwing")
    assert text.startswith("Cannot be known: nothing in this lake is called gorwing (--queue); similar names are ")
    assert "orders1\\private$\\growing" in text
    assert summary["rows"] == {"stuck_queues": None, "transfer_stalls": None}
    assert summary["cannot_be_known"] == ["stuck_queues", "transfer_stalls"]
    assert ask.main(["--lake", recorded.lake.root, "stuck_queues", "--queue", "gorwing", "--json", "-"]) == 0
    assert "nothing in this lake is called gorwing" in capsys.readouterr().err


def test_the_rows_of_one_view_as_csv(recorded, tmp_path, capsys):
    out = tmp_path / "answer.csv"
    said(capsys, recorded, "sharing_violations", "--csv", str(out))
    said(capsys, recorded, "message_hops", "--csv", str(out), "--rows", "3")
    answer = recorded.answer("message_hops")
    content = out.read_bytes()
    assert content.count(b"\r\n") == content.count(b"\n") == 4
    header, *found = csv.reader(io.StringIO(content.decode(), newline=""))
    assert header == answer.column_names
    for read, row in zip(found, answer.to_pylist(), strict=False):
        of = dict(zip(header, read, strict=True))
        assert of["first_sent_at"] == row["first_sent_at"].isoformat().replace("+00:00", "Z")
        assert (of["queue"], of["calls"], of["refused"]) == (row["queue"], "", "false")
        assert json.loads(of["missing"]) == row["missing"]
    printed, _ = said(capsys, recorded, "message_hops", "--csv", "-", "--rows", "3")
    assert printed == content.decode().replace("\r\n", "\n").rstrip("\n")


def test_values_that_need_quotes_in_csv():
    found = {"a": 'say "x", y\r\nz', "b": None, "c": [1, None], "d": True}
    answer = Answer(VIEWS_BY_NAME["machines"], list(found), [found], False, None, True)
    assert csv_text(answer) == 'a,b,c,d\r\n"say ""x"", y\r\nz",,"[1, null]",true\r\n'


def test_answers_fit_the_terminal_and_go_whole_where_there_is_none(recorded, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "90")
    text, _ = said(capsys, recorded, "transfer_latency")
    assert max(map(len, tables := text.splitlines()[3:6])) > 90
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text, _ = said(capsys, recorded, "transfer_latency")
    shown = text.splitlines()
    assert max(map(len, shown[3 : shown.index("Limitations: " + VIEWS_BY_NAME["transfer_latency"].limitations)])) <= 90
    assert {word for line in tables for word in line.split()} <= {word for line in shown for word in line.split()}


def test_a_table_that_is_too_wide_goes_on_below():
    names, values = ["first", "second", "n", "x" * 30], [["a", "b" * 9, 10, "y"], ["cc", "d", 5, "z" * 3]]
    assert format_table(names, values, 60) == format_table(names, values)  # it fits
    lines = format_table(names, values, 21)
    assert lines == [
        "row  first  second",
        "---  -----  ---------",
        "  1  a      bbbbbbbbb",
        "  2  cc     d",
        "",
        "row   n",
        "---  --",
        "  1  10",
        "  2   5",
        "",
        "row  " + "x" * 30,
        "---  " + "-" * 30,
        "  1  y",
        "  2  zzz",
    ]
    assert format_table(["wide"], [["w" * 50]], 10) == format_table(["wide"], [["w" * 50]])
