"""Every view on rows with known answers, in one Spark session over one lake in memory."""

import datetime as dt
import json
import time
from dataclasses import replace
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest

from example_counts import one_in
from hostile import TEXTS
from jobs import ask
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import COVERAGE_VIEW, QUESTIONS, VIEWS_BY_NAME, LakeViews, views_of_question
from pipeline.reports.views.scope import Scope
from pipeline.text import format_table
from queue_states.queue_events import FAR, MINUTE, incoming, outgoing, read, snapshot
from reports.questions.both_engines import answers_of, quick_session, select
from reports.questions.in_memory_lake import NAMES, NOW, InMemoryLake, call, history_tables, rows
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPENS, QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MACHINE_HISTORY, MANAGEMENT_ACTIONS, QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.keys import key

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LOCAL = "LOCAL CONNECTION"
S, R, G = (f"srv1\\private$\\{name}" for name in ("stuck", "read", "grow"))
DEAD, QUEUE = "srv1\\system$;deadletter", "srv1\\private$\\orders"


def shot(at, queue, count, *, size=None, state=LOCAL, **more):
    values = {"message_count": count, "bytes": 100 * count if size is None else size}
    return snapshot(at * MINUTE, f"{queue} {at}", state=state, queue=queue, name=queue, **values, **more)


def queues():
    snapshots = []
    for at in range(0, NOW + 1, 10):
        snapshots += [
            shot(at, S, 5),
            shot(at, R, 5),
            shot(at, G, at, journal_count=10 + at, journal_bytes=10 * at),
            shot(at, DEAD, 2 + (at >= 120)),
            shot(at, "far\\private$\\down", 3, state="WAITING" if 100 <= at <= 160 else "CONNECTED", manager="relay"),
        ]
    snapshots.append(read(125 * MINUTE, queue=R))
    for at, waiting in enumerate((4, 4, 4, 2)):
        ack_at = -60 if waiting == 4 else 200
        acked = 10 if waiting == 4 else 12
        snapshots.append(
            outgoing(at * MINUTE, acked, waiting, ack_at=ack_at, resends=2 * at * (waiting == 4), unread=1)
        )
    snapshots.append(outgoing(5 * MINUTE, 0, 1, stamp=8, previous=0))
    snapshots += [incoming(at * MINUTE, ("a1", 7, 9, {"reject_count": at})) for at in range(3)]
    return [row | {"queue": NAMES.canonical_queue(row["queue"])} for row in snapshots]


def attempt(
    name, started, *, wait_ms=1.0, hold_ms=None, queue=QUEUE, client="10.0.0.9", outcome="acked", message=None, **more
):
    """A receive of a message; ``name`` is of its Start's call."""
    returned = None if wait_ms is None else started + wait_ms / 60_000
    ended = None if hold_ms is None else returned + hold_ms / 60_000
    row = {
        "attempt_key": key(key(name)), "queue": queue, "server_address": "10.0.0.1", "client_address": client,
        "started_at": started, "returned_at": returned, "ended_at": ended, "wait_ms": wait_ms, "hold_ms": hold_ms,
        "protocol": "RemoteRead", "action_name": "MQ_ACTION_RECEIVE", "timeout_ms": 60_000, "is_receive": True,
        "start_hresult": 0, "outcome": outcome, "message_key": message, "confidence": "complete",
    }  # fmt: skip
    return row | more


def message(name, seen, *, queue=QUEUE, sent=0.0, arrived=1.0, code=0, kind="MQMSG_CLASS_NORMAL", **more):
    row = {
        "message_key": name, "sighting_key": f"{name}{seen}", "call_key": key(f"{name}{seen}"), "seen_at": seen,
        "seen_in": "RemoteRead", "queue": queue, "sent_at": sent, "arrived_at": arrived, "class": code,
        "class_name": kind, "is_comqc": False,
        "source_queue_manager": "a1", "message_id": f"a1\\{name}",
    }  # fmt: skip
    return row | more


ATTEMPTS = [
    attempt("there", 20, wait_ms=2.0, hold_ms=100.0, message="m1"),
    attempt("meanwhile", 20, wait_ms=60_000.0, hold_ms=50.0, message="m2"),
    attempt("poll", 30, timeout_ms=0, outcome="empty", start_hresult=0xC00E001B),
    attempt("vain", 30, wait_ms=5000.0, outcome="timed_out", start_hresult=0xC00E001B, client="10.0.0.8"),
    attempt("held", 100, outcome="in_flight", message="m3", lookup_id=3),
    attempt("gone", 110, hold_ms=9.0, outcome="rundown", message="m4", client="10.0.0.8"),
    attempt("refused", 120, hold_ms=9.0, outcome="failed", message="m5", end_hresult=0xC00E0088),
    attempt("peeked", 125, outcome="peeked", is_receive=False, message="m6"),
    attempt("peeked early", 60, outcome="peeked", is_receive=False, message="m7"),
    attempt("waits", 200, wait_ms=None, outcome="in_flight"),
]
SEQUENCES = [
    {"message_key": "m1", "fate": "consumed", "attempts": 2, "redelivered": True, "loss_risk": "read_twice"},
    {"message_key": "m2", "fate": "consumed", "attempts": 1, "redelivered": False},
    {"message_key": "m3", "fate": "held", "attempts": 1, "redelivered": False},
    {"message_key": "m4", "fate": "returned", "attempts": 3, "redelivered": True, "loss_risk": "poison"},
    {"message_key": "m5", "fate": "unknown", "attempts": 1, "redelivered": False},
]
MACHINES = {"rule_id": "O01", "subject": "queue manager g", "actual": "machines a, b", "observed_at": 3}
COMQC = {"is_comqc": True, "sent": 50.0}
MESSAGES_SEEN = [
    message("m1", 20, arrived=1.0), message("m2", 21, arrived=20.5), message("m3", 100, sent=90.0, arrived=91.0),
    message("m4", 110, sent=80.0, arrived=85.0), message("m6", 125, sent=100.0, arrived=97.0),
    message("m7", 60, sent=50.0, arrived=55.0),
    message("n1", 130, queue="srv1\\private$\\admin", code=0x8000, kind="NACK", correlation_id="a1\\m1"),
    message("n1", 131, queue="srv1\\private$\\admin", code=0x8000, kind="NACK", correlation_id="a1\\m1"),
    message("n2", 132, queue="srv1\\private$\\admin", code=0x8000, kind="NACK", correlation_id="a1\\none"),
    message("w1", 20, acknowledgement_requested=3, admin_queue="srv1\\private$\\admin"),
    message("w2", 20, acknowledgement_requested=3, admin_queue=QUEUE),
    message("w3", 20, acknowledgement_requested=3, admin_queue=QUEUE),
    message("k3", 22, code=2, kind="ACK", correlation_id="a1\\w3"),
    message("d1", 200, queue=DEAD, sent=40.0, kind="MQMSG_CLASS_NACK_RECEIVE_TIMEOUT", code=0xC002),
    message("d2", 200, queue=DEAD, sent=60.0, kind="MQMSG_CLASS_NACK_RECEIVE_TIMEOUT", code=0xC002),
    message("q1", 50, queue="srv1\\private$\\app", **COMQC), message("q1", 60, queue="srv1\\private$\\app_0", **COMQC),
    message("q1", 70, queue="srv1\\private$\\app_deadqueue", **COMQC),
    message("q2", 55, queue="srv1\\private$\\app", **COMQC),
]  # fmt: skip


def recorded(name, seen, index, opnum):
    return {"message_key": name, "sighting_key": f"{name}{seen}", "call_index": index, "interface_id": "i",
            "opnum": opnum, "seen_at": seen, "method": "Place" if seen == 60 else None}  # fmt: skip


def coverage(hour, measures, server="10.0.0.1"):
    return [
        {"hour": hour * 60, "server_address": server, "layer": layer, "measure": measure, "value": value}
        for (layer, measure), value in measures.items()
    ]


def connection(server, size, again, kind="rpc"):
    return {"server_address": server, "kind": kind, "client_bytes": size, "server_bytes": 0,
            "retransmitted_bytes": again, "first_packet_at": 10, "last_packet_at": 20}  # fmt: skip


def calls():
    """RemoteRead opens and Starts with known times, and a qmmgmt call that was not answered."""
    read_call = partial(call, REMOTE_READ_CALLS, protocol="RemoteRead")
    reads = [read_call(f"o{ms}", 20, ms, method="R_OpenQueue", opnum=2, queue=QUEUE) for ms in range(1, 101)]
    fault = {"method": "R_OpenQueue", "opnum": 2, "fault_name": "MQ_ERROR_ACCESS_DENIED"}
    reads += [read_call(f"d{at}", at, 3.0, **fault) for at in (30, 200)]
    port = {"method": "R_GetServerPort", "opnum": 0, "returned_port": 0}
    reads += [read_call("port", 31, 1.0, **port)]
    failed = {"hresult": 0xC00E001B, "hresult_name": "MQ_ERROR_IO_TIMEOUT", "opnum": 7, "method": "R_StartReceive"}
    reads += [read_call("vain", 30, 5000.0, **failed)]
    reads += [read_call(f"{name}{at}", at, 1.0) for name, at in (("m1", 20), ("m6", 125))]
    ends = [{"call_key": key(f"o{ms}"), "outcome": "ok"} for ms in range(1, 101)]
    ends += [{"call_key": key(f"d{at}"), "outcome": "fault", "fault_status": 0xC00E0025} for at in (30, 200)]
    ends += [{"call_key": key(name), "outcome": "ok"} for name in ("vain", "port", "win32")]
    ends += [{"call_key": key("half"), "outcome": "no_response"}]
    half = call(MANAGEMENT_CALLS, "half", 40, None, method="R_QMMgmtGetInfo", opnum=0)
    denied = {"method": "R_QMMgmtAction", "opnum": 1, "hresult": 5, "hresult_name": "ERROR_ACCESS_DENIED"}
    managed = pa.concat_tables([half, call(MANAGEMENT_CALLS, "win32", 32, 1.0, **denied)])
    return {REMOTE_READ_CALLS: pa.concat_tables(reads), MANAGEMENT_CALLS: managed, RPC_CALLS: rows(RPC_CALLS, *ends)}


@pytest.fixture(scope="module")
def views(spark):
    """The views in a session of their own."""
    quick = quick_session(spark)
    hours = coverage(0, {("transport", "bytes"): 1000, ("transport", "bytes_missing"): 7, ("rpc", "sealed"): 2})
    hours += coverage(1, {("rpc", "calls"): 5, ("stub", "undecoded"): 1, ("message", "undecoded"): 2})
    hours += coverage(0, {("capture", "packets_dropped"): 3}, None) + coverage(0, {("rpc", "calls"): 9}, "10.0.0.7")
    why = {"status_name": "MQCONN_CONNECTION_FAILED", "changed_at": None, "error": 1, "error_name": "REFUSED"}
    why |= {"status": 1, "addresses": None}
    snapshots = {"snapshot_id": "far\\private$\\down 160", "nexthops": ["TCP:10.0.0.5"], "connection_history": [why]}
    last = {"snapshot_id": f"s{5 * MINUTE}", "message_count": 4}
    lake = InMemoryLake(
        quick,
        history_tables(queues()) | calls() | {
            RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *ATTEMPTS),
            ACK_SEQUENCES: rows(ACK_SEQUENCES, *SEQUENCES, queue=QUEUE, confidence="complete"),
            QUEUE_OPERATIONS: rows(
                QUEUE_OPERATIONS, {"operation": "purge", "outcome": "done", "queue": QUEUE, "responded_at": 90}
            ),
            QUEUE_OPENS: rows(QUEUE_OPENS, *OPENS, queue=QUEUE),
            MESSAGES: rows(MESSAGES, *MESSAGES_SEEN),
            COMQC_CALLS: rows(
                COMQC_CALLS, recorded("q1", 50, 0, 7), recorded("q1", 50, 1, 8), recorded("q1", 60, 0, 7),
                recorded("q2", 55, 0, 7),
            ),
            QUEUE_SNAPSHOTS: rows(QUEUE_SNAPSHOTS, snapshots, last),
            COVERAGE: rows(COVERAGE, *hours),
            CONNECTIONS: rows(
                CONNECTIONS, connection("10.0.0.1", 300, 100), connection("10.0.0.1", 500, 100),
                connection("10.0.0.1", 50, 0, "binary_protocol"),
            ),
            FINDINGS: rows(
                FINDINGS, MACHINES,
                {"rule_id": "R01", "subject": "client", "actual": "x", "observed_at": 3},
            ),
            MACHINE_HISTORY: rows(MACHINE_HISTORY, *machine_intervals(), source="collector", confidence="complete"),
            MANAGEMENT_ACTIONS: rows(MANAGEMENT_ACTIONS, *actions(), queue_manager="relay", action="PAUSE"),
            HOSTS: rows(
                HOSTS, {"host_name": "a", "address": "10.0.0.1", "first_seen_at": 1, "last_seen_at": 9},
                {"host_name": "b", "address": "10.0.0.2", "first_seen_at": 3, "last_seen_at": 5}, queue_manager_id="g",
            ),
        },
        {QUEUE_HISTORY: {"names": {"10.0.0.1": "srv1"}}},
    )  # fmt: skip
    quotas = {G: (30_000, 9_000)} | dict.fromkeys(TEXTS, (1, 1))
    machine_quotas = {"srv1": 1000} | dict.fromkeys(TEXTS, 1)
    return LakeViews(lake, None, None, None, quotas, machine_quotas=machine_quotas)


def machine_intervals():
    states = (("CONNECTED", 100), ("UNKNOWN", None), ("CONNECTED", 200), ("DISCONNECTED", 250), ("DISCONNECTED", 300))
    for place, (state, size) in enumerate(states):
        begin = NOW - 50 + 10 * place
        yield {
            "queue_manager": "srv1", "interval_key": key(begin), "state": state, "bytes_in_all_queues": size,
            "valid_from": begin, "valid_to": begin + 10, "reported_at": None if size is None else begin,
        }  # fmt: skip
    lost = {"queue_manager": "relay", "interval_key": key("lost"), "state": "CONNECTED", "reported_at": 1}
    yield lost | {"valid_from": 1, "valid_to": 16, "bytes_in_all_queues": 5}


def actions():
    yield {"call_key": "a1", "requested_at": 1, "auth_level": 1, "outcome": "done", "hresult_name": "MQ_OK"}
    yield {"call_key": "a2", "requested_at": 2, "auth_level": 6, "outcome": "failed", "fault_name": "nca_s_fault_ndr"}
    yield {"call_key": "a3", "responded_at": 3, "outcome": "unknown"}


def minutes(value):
    if isinstance(value, dt.datetime):
        return round((value - EPOCH).total_seconds() / 60, 3)
    return round(value, 3) if isinstance(value, float) else value


VIOLATION = {"result_name": "MQ_ERROR_SHARING_VIOLATION", "outcome": "refused", "share_mode_name": "MQ_DENY_SHARE"}
OPENS = [
    {"call_key": "o1", "client_address": "c1", "principal": "CORP\\svc", "opened_at": 10, "ended_by": "closed"},
    {"call_key": "o2", "client_address": "c2", "opened_at": 20, "ended_by": "rundown"},
    {"call_key": "o3", "client_address": "c3", "requested_at": 30, "blocked_by": ["o1", "o2"], **VIOLATION},
    {"call_key": "o4", "client_address": "c4", "requested_at": 40, "missing": ["no_open"], **VIOLATION},
]


@pytest.fixture(scope="module")
def answer(views):
    """Reads columns of a view's rows, times in minutes."""
    answer = answers_of(views)

    def ask(name, *columns, where="TRUE"):
        found = select(answer(name), *columns, where=where)
        return [tuple(map(minutes, row)) if len(columns) > 1 else minutes(row[0]) for row in found]

    return ask


@pytest.fixture(scope="module")
def quick_answers_of(request):
    """``answers_of``, which asks Spark too with ``--long`` only: a plain run asks it for each view of ``views``."""
    return partial(answers_of, in_spark=request.config.getoption("--long"))


pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", VIEWS_BY_NAME)
def test_every_view_has_one_answer_in_both_engines(answer, name):
    numbers = {8, 9, 10, 12, 13, 24, 26, 27}
    sessions = {"estate_hours", "estate_coverage", "estate_queue_coverage"}
    elsewhere = name in sessions or VIEWS_BY_NAME[name].question_number in numbers
    assert answer(name, "*") or elsewhere


@pytest.mark.parametrize("name", one_in(10, VIEWS_BY_NAME))
def test_every_view_of_a_scope_has_one_answer_in_both_engines(views, name):
    columns = VIEWS_BY_NAME[name].scope
    scope = Scope(
        EPOCH + dt.timedelta(minutes=30), EPOCH + dt.timedelta(minutes=200),
        {"10.0.0.1", "srv1", "relay", "it's {one}"} if columns.machines else None,
        {QUEUE, R, G, "far\\private$\\down", "it's {one}"} if columns.queues else None,
    )  # fmt: skip
    answers_of(replace(views, scope=scope, as_of=scope.until))(name)


def test_sharing_violations_name_who_held_the_queue(answer):
    columns = ("refused_at", "client_address", "share_mode", "holder_address", "holder_principal", "holder_ended_by")
    assert answer("sharing_violations", *columns) == [
        (40, "c4", "MQ_DENY_SHARE", None, None, None),
        (30, "c3", "MQ_DENY_SHARE", "c1", "CORP\\svc", "closed"),
        (30, "c3", "MQ_DENY_SHARE", "c2", None, "rundown"),
    ]


def test_states_and_depths_of_queues(answer):
    down = answer(
        "outgoing_not_connected", "queue_manager", "state", "since", "until", "still", "message_count", "error"
    )
    assert down == [("relay", "WAITING", 100, 170, False, 3, "REFUSED")]
    (hops,) = answer("outgoing_not_connected", "nexthops")
    assert hops == ["TCP:10.0.0.5"]
    states = answer("time_in_state", "state", "seconds", "times", where="queue LIKE '%down'")
    assert sorted(states) == [("CONNECTED", 170 * 60, 2), ("WAITING", 70 * 60, 1)]
    assert answer("time_in_state", "share", where="queue LIKE '%stuck'") == [1]
    depth = answer(
        "depth_over_time", "hour", "least_messages", "most_messages", "last_bytes", where="queue LIKE '%grow'"
    )
    assert depth[:2] == [(0, 0, 50, 5000), (60, 60, 110, 11_000)]
    received = answer("depth_over_time", "received", "unexplained", where="queue LIKE '%read' AND hour(hour) = 2")
    assert received == [(1, 1)]


def test_growth_and_quotas(answer):
    grown = answer("depth_growth", "messages_per_hour", "bytes_per_hour", "quota_bytes", "hours_until_full",
                   where="queue LIKE '%grow'")  # fmt: skip
    assert grown == [(60, 6000, 30_000, 1)]
    assert answer("depth_growth", "hours_until_full", where="queue LIKE '%stuck'") == [None]
    dead = answer("dead_letter_growth", "queue", "first_messages", "last_messages", "growth", "growth_per_day")
    assert dead == [(DEAD, 2, 3, 1, 6)]
    journal = answer("journal_growth", "queue", "growth", "bytes_per_day", "quota_bytes", "days_until_full")
    assert journal == [(G, 240, 14_400, 9_000, 0.458)]


def test_queue_managers_and_what_administrators_did(answer):
    columns = ("queue_manager", "state", "since", "known_until", "expired", "bytes", "quota_bytes", "used_share")
    assert answer("machines", *columns) == [
        ("srv1", "DISCONNECTED", NOW - 20, NOW, True, 300, 1000, 0.3),
        ("relay", "CONNECTED", 1, 16, True, 5, None, None),
    ]
    assert answer("administrator_actions", "asked_at", "authenticated", "outcome", "result") == [
        (1, False, "done", "MQ_OK"), (2, True, "failed", "nca_s_fault_ndr"), (3, None, "unknown", None),
    ]  # fmt: skip


def test_what_nobody_reads(answer):
    stuck = answer("stuck_queues", "queue", "since", "still", "minutes", "message_count",
                   where="queue LIKE '%stuck' OR queue LIKE '%read'")  # fmt: skip
    assert sorted(stuck) == [(R, 0, False, 120, 5), (R, 130, True, 110, 5), (S, 0, True, 240, 5)]
    oldest = answer("oldest_unread", "queue", "messages", "since", "message_key", "age_s", where="queue LIKE '%orders'")
    assert oldest == [(QUEUE, 3, 85, "m4", 155 * 60)]  # m7 went with the purge, m1, m2 and m5 are gone


def test_transfers(answer):
    place = ("queue", "sources")
    backlog = answer("outgoing_backlog", *place, "observed_at", "not_sent", "unacknowledged", "unread")
    assert backlog == [(FAR, "collector", 5, 3, 1, 0)]
    stalls = answer(
        "transfer_stalls", "since", "last_seen_at", "still", "unacknowledged", "resend_count", "ladder_step"
    )
    assert stalls == [(0, 2, False, 4, 4, 2)]
    never = answer("never_acknowledged", "what", "from_number", "to_number", "observed_at", "reset_seen_at")
    assert sorted(never) == [("given_up", 13, 14, 3, 5), ("pending", 1, 1, 5, None)]
    gaps = answer("sequence_gaps", "sender_queue_manager", "rejected", "first_seen_at", "last_seen_at", "still")
    assert gaps == [("a1", 2, 0, 2, True)]
    disagree = answer("ends_that_disagree", "how", "first_seen_at", "last_seen_at", "observations")
    assert disagree == [("gap", 0, 2, 3)]
    assert answer("resends", "resends", "sent", "share") == [(4, 0, 1)]
    again = answer("retransmitted", "kind", "connections", "bytes", "retransmitted_bytes", "share")
    assert again == [("rpc", 2, 800, 200, 0.2), ("binary_protocol", 1, 50, 0, 0)]


def test_messages(answer):
    twice = answer("read_twice", "message_key", "read_twice", "loss_risk")
    assert twice == [("m1", True, "read_twice"), ("m4", False, "poison")]
    nacks = answer("negative_acknowledgements", "class_name", "messages", "first_seen_at", "last_seen_at", "source")
    assert nacks == [("NACK", 2, 130, 132, "reads")]  # and not the dead letters
    missing = answer("acknowledgements_missing", "message_key", "wanted", "lacks", "answer", "admin_queue_read")
    assert sorted(missing) == [
        ("w1", 3, "arrival, receive", "missing", False), ("w2", 3, "arrival, receive", "missing", True),
        ("w3", 3, "receive", "missing", True),
    ]  # fmt: skip
    dead = answer("dead_letters", "queue", "reason", "messages", "oldest_sent_at", "age_s", "source",
                  where="reason LIKE 'MQMSG_CLASS_NACK%'")  # fmt: skip
    assert dead == [(DEAD, "MQMSG_CLASS_NACK_RECEIVE_TIMEOUT", 2, 40, 200 * 60, "reads")]
    clocks = answer("clock_differences", "messages", "sender_ahead_s", "owner_ahead_s", "least_transit_s")
    assert clocks == [(2, 180, None, -180)]


def test_recorded_calls(answer):
    methods = answer("comqc_methods", "opnum", "method", "calls", "messages", "retried", "dead", "poison")
    assert sorted(methods) == [(7, "Place", 2, 2, 1, 1, 0), (8, None, 1, 1, 1, 1, 0)]
    paths = answer("comqc_paths", "message_key", "path", "calls", "sightings")
    app = "srv1\\private$\\app"
    assert paths == [("q1", [app, f"{app}_0", f"{app}_deadqueue"], 2, 3), ("q2", [app], 1, 1)]


def test_times_of_calls(answer):
    times = answer(
        "response_times",
        "queue",
        "calls",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "max_ms",
        where="result = 'answered' AND calls > 9",
    )
    assert times == [(QUEUE, 100, 50, 95, 99, 100)]
    others = answer(
        "response_times",
        "interface_name",
        "result",
        "calls",
        "answered",
        "max_ms",
        where="calls < 9 AND method IS NOT NULL",
    )
    assert others == [
        ("RemoteRead", "port 0", 1, 1, 1), ("RemoteRead", "fault MQ_ERROR_ACCESS_DENIED", 2, 2, 3),
        ("RemoteRead", "MQ_ERROR_IO_TIMEOUT", 1, 1, 5000), ("qmmgmt", "ERROR_ACCESS_DENIED", 1, 1, 1),
        ("qmmgmt", "no_response", 1, 0, None),
    ]  # fmt: skip
    (queue,) = answer("response_times", "queue", where="result = 'MQ_ERROR_IO_TIMEOUT'")
    assert queue == QUEUE  # by the attempt of the Start
    failed = answer("failures", "result", "calls", "share", "first_at", "last_at", "still")
    assert failed[0] == ("fault MQ_ERROR_ACCESS_DENIED", 2, 0.02, 30, 200, True)
    assert sorted(failed[1:]) == [
        ("ERROR_ACCESS_DENIED", 1, 1, 32, 32, False), ("MQ_ERROR_IO_TIMEOUT", 1, 1, 30.083, 30.083, False),
        ("port 0", 1, 1, 31, 31, False),
    ]  # fmt: skip


def test_readers(answer):
    waits = answer("receive_times", "waited", "attempts", "p50_ms", "hold_max_ms")
    assert sorted(waits) == [
        ("for_a_message", 1, 60_000, 50), ("in_vain", 1, 5000, None), ("message_there", 5, 1, 100),
        ("not_told", 2, 1, 9), ("poll", 1, 1, None),
    ]  # fmt: skip
    unended = answer("receives_not_ended", "how", "client_address", "message_key", "returned_at")
    assert unended == [
        ("never", "10.0.0.9", "m3", 100),
        ("reader_gone", "10.0.0.8", "m4", 110),
        ("refused", "10.0.0.9", "m5", 120),
    ]
    load = answer(
        "reader_load",
        "client_address",
        "receives",
        "peeks",
        "messages",
        "acked",
        "given_back",
        "polls_in_vain",
        "share",
    )
    assert load == [("10.0.0.9", 6, 2, 4, 2, 0, 1, 0.8), ("10.0.0.8", 2, 0, 1, 0, 1, 0, 0.2)]
    assert answer("receives_waiting", "hour", "most_waiting", "begun") == [
        (0, 2, 4),
        (60, 1, 3),
        (120, 1, 2),
        (180, 1, 1),
    ]


def test_machines_and_what_is_not_known(answer):
    assert answer("shared_identifiers", "machines", "names", "addresses") == [
        ("machines a, b", ["a", "b"], ["10.0.0.1", "10.0.0.2"])
    ]
    unknown = answer(COVERAGE_VIEW, "hour", "server_address", "bytes_missing", "packets_dropped", "sealed", "undecoded")
    assert unknown == [
        (0, None, None, 3, None, None), (0, "10.0.0.1", 7, None, 2, None), (0, "10.0.0.7", None, None, None, None),
        (60, "10.0.0.1", None, None, None, 3),
    ]  # fmt: skip


def test_an_answer_is_told_with_what_was_not_seen_of_its_hours_and_servers(views):
    def beside(name, **row):
        found = views.coverage_for({name: [dict.fromkeys(views.answer(name).column_names) | row]})
        return [(row["server_address"], row["bytes_missing"], row["undecoded"]) for row in found.to_pylist()]

    def at(minute):
        return EPOCH + dt.timedelta(minutes=minute)

    server = "10.0.0.1"
    assert beside("response_times", server_address=server, first_at=at(70), last_at=at(80)) == [(server, None, 3)]
    both = beside("response_times", server_address=server, first_at=at(30), last_at=at(80))
    assert both == [(None, None, None), (server, 7, 3)]
    assert beside("stuck_queues", queue_manager="srv1", since=at(70), until=at(100)) == [(server, None, 3)]
    columns = views.answer("stuck_queues").column_names
    everyone = [dict.fromkeys(columns) | {"queue_manager": name} for name in ("srv1", *TEXTS)]
    assert views.coverage_for({"stuck_queues": everyone})["server_address"].to_pylist() == [None, server]
    assert [row[0] for row in beside("negative_acknowledgements")] == [None, server, "10.0.0.7"]  # of all there is


@pytest.fixture
def in_tokyo(monkeypatch):
    """A machine whose own time is not UTC."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_the_job_prints_an_answer_or_writes_it_as_json_lines(views, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ask, "open_lake_with_data", lambda _: views.lake)
    out = tmp_path / "answer.jsonl"
    assert ask.main(["--lake", "x", "22", "12", "--json", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "22. Do two machines share one queue-manager identifier?"
    assert lines[1] == "shared_identifiers: one row is an identifier of a queue manager that two machines share"
    head, _, row = lines[3:6]
    assert row[head.index("machines") :].startswith("machines a, b")
    assert row[head.index("addresses") :].startswith("10.0.0.1, 10.0.0.2")
    assert row[head.index("observed_at") :].startswith("1970-01-01 00:03:00")
    assert any(line.startswith("Gaps in coverage (question 25)") for line in lines)
    assert "Cannot be known from what was captured: nothing was seen of TCP 1801." in lines
    summary = json.loads(lines[-1])
    assert summary["rows"] == {"shared_identifiers": 1, "transfer_latency": None}
    assert summary["cannot_be_known"] == ["transfer_latency"]
    (written,) = map(json.loads, out.read_text().splitlines())
    assert (written["view"], written["names"], written["observed_at"]) == (
        "shared_identifiers",
        ["a", "b"],
        "1970-01-01T00:03:00Z",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["29"], "no such question: 29 (1 to 28, or "),
        (["stuck"], "no such question: stuck"),
        (["--define"], "--define: permanent views need a catalog"),
        (["1", "--rows", "-1"], "--rows: must be at least 0, not -1"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments, says, capsys):
    assert ask.main(["--lake", "x", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_without_a_question_they_are_listed(capsys):
    assert ask.main(["--lake", "x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines[:-1:2]] == [f"{number:>3}" for number in QUESTIONS]
    assert lines[23].split() == ["transfer_latency"]


@pytest.mark.long
def test_views_can_be_permanent_in_a_catalog(spark, tmp_path):
    lake = Lake(spark, str(tmp_path / "lake"), catalog="spark_catalog", prefix="asked_")
    lake.append(FINDINGS, spark.createDataFrame(rows(FINDINGS, MACHINES).drop_columns(["event_date"])))
    views = LakeViews(lake, queue_quota_bytes=1000)
    made = dict(zip(VIEWS_BY_NAME, views.create_permanent(), strict=True))
    assert made["shared_identifiers"] == "`spark_catalog`.`asked_gold`.`shared_identifiers`"
    for name, full in made.items():
        answered = spark.table(full).collect()
        assert len(answered) == (1 if name == "shared_identifiers" else 0), name
    assert [row["machines"] for row in spark.table(made["shared_identifiers"]).collect()] == ["machines a, b"]
    assert views.create_permanent(["shared_identifiers"]) == [made["shared_identifiers"]]  # defined again
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {made['stuck_queues']}").collect()
    assert any(row["data_type"].startswith("Question 4: one row is") for row in described)


def test_numbers_are_aligned_right_whatever_their_type():
    assert format_table(["sum"], [[Decimal(5)], [Decimal(10)]])[2:] == ["  5", " 10"]


def test_every_question_is_answered_by_a_view():
    assert list(QUESTIONS) == list(range(1, 29))
    assert all(views_of_question(number) for number in QUESTIONS)
    assert all(view.question_number in QUESTIONS and view.time_columns for view in VIEWS_BY_NAME.values())


@pytest.fixture(scope="module")
def seen_twice(spark, quick_answers_of):
    """Answers about a transfer, its receiver and a queue that captures and collector saw, without any quota."""
    snapshots = []
    for source, late in (("collector", 0.0), ("wire", 0.1)):
        for at in range(6):
            waiting, acked = (4, 10) if at < 4 else (2, 12)
            ack_at, stamp = (-60 if at < 4 else 200), (7 if at < 5 else 8)
            shown = {"key": f"o{source}{at}", "source": source, "ack_at": ack_at, "stamp": stamp}
            snapshots.append(outgoing(at * MINUTE + late, acked, waiting, resends=2 * at * (at < 4), **shown))
            snapshots.append(
                incoming(at * MINUTE + late, ("a1", 7, 9, {"reject_count": at}), key=f"r{source}{at}", source=source)
            )
    for at in (0, 7 / 60):
        more = {"journal_count": round(60 * at), "journal_bytes": round(600 * at)}
        snapshots += [shot(at, G, round(60 * at), **more), shot(at, DEAD, round(60 * at))]
    named = [row | {"queue": NAMES.canonical_queue(row["queue"])} for row in snapshots]
    lake = InMemoryLake(quick_session(spark), history_tables(named))
    answer = quick_answers_of(LakeViews(lake))

    def ask(name, *columns):
        return [tuple(map(minutes, row)) for row in select(answer(name), *columns)]

    return ask


def test_what_captures_and_collector_saw_counts_once(seen_twice):
    both = "collector, wire"
    (backlog,) = seen_twice("outgoing_backlog", "sources", "unacknowledged")
    assert backlog == (both, 2)
    assert seen_twice("transfer_stalls", "sources", "since", "still", "unacknowledged") == [(both, 0, False, 4)]
    never = seen_twice("never_acknowledged", "what", "from_number", "to_number")
    assert sorted(never) == [("given_up", 13, 14), ("pending", 13, 14)]
    assert seen_twice("resends", "sources", "resends", "sent") == [(both, 6, 0)]
    (gap,) = seen_twice("sequence_gaps", "sources", "rejected", "still")
    assert gap == (both, 5, True)
    assert {row[0] for row in seen_twice("ends_that_disagree", "sources")} == {both}
    assert sum(row[0] for row in seen_twice("ends_that_disagree", "observations")) <= 6


def test_without_a_quota_nothing_is_ever_full_and_seconds_give_no_rates(seen_twice):
    growth = seen_twice("depth_growth", "span_s", "messages_per_hour", "bytes_per_hour", "hours_until_full")
    assert [row for row in growth if row[0] == 7] == [(7, None, None, None)] * 2
    journal = seen_twice("journal_growth", "growth", "bytes_per_day", "quota_bytes", "days_until_full")
    assert journal == [(7, None, None, None)]
    assert seen_twice("dead_letter_growth", "growth", "growth_per_day") == [(7, None)]


def test_growth_without_a_quota_gives_no_time_until_full(views, spark, quick_answers_of):
    answer = quick_answers_of(LakeViews(InMemoryLake(spark.newSession(), dict(views.lake.tables))))
    columns = {"depth_growth": "hours_until_full", "journal_growth": "days_until_full"}
    for name, column in columns.items():
        assert select(answer(name), column, where=f"queue = '{G}'") == [(None,)]


def test_a_number_that_was_not_asked_for_is_null_and_not_zero(spark, quick_answers_of):
    made = history_tables([outgoing(at * MINUTE, 10, 4, key=f"o{at}", eod_no_ack_count=None) for at in range(2)])
    last = {"snapshot_id": "o1", "message_count": None}
    lake = InMemoryLake(spark.newSession(), made | {QUEUE_SNAPSHOTS: rows(QUEUE_SNAPSHOTS, last)})
    backlog = quick_answers_of(LakeViews(lake))("outgoing_backlog")
    assert select(backlog, "not_sent", "unacknowledged") == [(None, None)]
    alone = InMemoryLake(spark.newSession(), history_tables([outgoing(0, 10, 4, resends=3)]))
    resends = quick_answers_of(LakeViews(alone))("resends")
    assert select(resends, "resends", "sent", "share") == [(None, None, None)]


def test_answers_name_queues_by_their_canonical_names(spark, quick_answers_of):
    """The same as gold, the site and the summary; a journal, dead-letter queue or retry queue follows its queue."""
    raw, canonical = "shop1\\private$\\orders", "shop2\\private$\\orders"
    nack = {"code": 0x8000, "kind": "NACK", "correlation_id": "a1\\asks"}
    seen = [
        message("asks", 10, queue=raw, destination_queue=raw, admin_queue=raw, acknowledgement_requested=3),
        message("waits", 10, queue=raw, destination_queue=raw, admin_queue=raw, acknowledgement_requested=3),
        message("nack", 11, queue=raw, **nack),
        message("dead", 12, queue=f"{raw};deadletter", destination_queue=raw),
        message("method", 13, queue=raw, is_comqc=True),
    ]
    opened = call(REMOTE_READ_CALLS, "open", 20, protocol="RemoteRead", method="R_OpenQueue", opnum=2, queue=raw,
                  hresult=0xC00E0003, hresult_name="MQ_ERROR_QUEUE_NOT_FOUND")  # fmt: skip
    asked = call(MANAGEMENT_CALLS, "asked", 21, method="R_QMMgmtGetInfo", opnum=0, queue=raw)
    aliases = [{"queue": name, "canonical_queue": canonical, "evidence": "snapshot"} for name in (raw, canonical)]
    lake = InMemoryLake(
        spark.newSession(),
        {
            MESSAGES: rows(MESSAGES, *seen), REMOTE_READ_CALLS: opened, MANAGEMENT_CALLS: asked,
            RPC_CALLS: rows(RPC_CALLS, *({"call_key": key(name), "outcome": "ok"} for name in ("open", "asked"))),
            COMQC_CALLS: rows(COMQC_CALLS, recorded("method", 13, 0, 7)),
            QUEUE_ALIASES: rows(QUEUE_ALIASES, *aliases),
        },
    )  # fmt: skip
    answer = quick_answers_of(LakeViews(lake))
    named = ("negative_acknowledgements", "acknowledgements_missing", "dead_letters", "comqc_paths", "response_times",
             "failures")  # fmt: skip
    for name in named:
        found = str(answer(name).to_pylist())
        assert repr(raw)[1:-1] not in found, name
        assert repr(canonical)[1:-1] in found, name


def test_what_the_lake_contradicts_is_not_called_unread(spark, quick_answers_of):
    """Planted: a queue reported empty later, a receive acknowledged on TCP 1801, a message that its component moved."""
    family = [f"srv1\\private$\\app{suffix}" for suffix in ("", "_0", "_1", "_deadqueue")]
    places = [("emptied", QUEUE), ("received", S), ("there", S), ("later", QUEUE), *(("retried", q) for q in family)]
    peeks = [
        attempt(f"{name} {number}", 30 + number + 100 * (name == "later"), message=name, queue=queue, is_receive=False,
                outcome="peeked")
        for number, (name, queue) in enumerate(places)
    ]  # fmt: skip
    headers = [message(name, 10, is_comqc=name == "retried") for name in dict(places)]
    history = history_tables([shot(at, QUEUE, 1 - (at == 60)) for at in (0, 60, 120)])
    received = rows(MESSAGE_TRANSFERS, {"transfer_key": "t", "message_key": "received", "outcome": "received"})
    tables = {
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *peeks), MESSAGES: rows(MESSAGES, *headers),
        MESSAGE_TRANSFERS: received,
    }  # fmt: skip
    answer = quick_answers_of(LakeViews(InMemoryLake(spark.newSession(), history | tables)))
    assert sorted(select(answer("oldest_unread"), "queue", "messages", "message_key")) == [
        (family[-1], 1, "retried"), (QUEUE, 1, "later"), (S, 1, "there"),
    ]  # fmt: skip
