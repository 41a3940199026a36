"""The verdict for a queue: planted situations, from packets and snapshots on, and one in which all is well."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engines import without_spark
from pipeline.alerts.conditions import CONNECTION_SUGGESTIONS, Thresholds
from pipeline.alerts.entries import Entry
from pipeline.lake.lake import Lake
from pipeline.reports.queue_verdict.causes import Cause
from pipeline.reports.queue_verdict.formatting import format_verdict, verdict_to_json
from pipeline.reports.queue_verdict.inputs import QueueRows
from pipeline.reports.queue_verdict.verdict import QueueVerdict, find_verdicts
from pipeline.silver.machine_names import NameSighting, NameSource
from pipeline.silver.machines import Machines
from pipeline.transfers import update as sessions_update
from pipeline.transfers.messages import update_messages
from pipeline.transfers.sequences import update_sequences
from pipeline.transfers.session_rows import SessionSettings
from queue_states.queue_events import snapshot
from reports.questions.in_memory_lake import history_tables
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from transfers.conversations import (
    CLIENT,
    INITIATOR,
    SEQUENCE,
    SERVER,
    START,
    Conversation,
    acknowledgement,
    bronze,
    refused_for_ever,
    session_ack,
    table_of,
    transactional,
)

LIMITS = Thresholds()
ENDS_AT = 4000
EPOCH = START.timestamp()
LOCAL = "srv1\\private$\\orders"
FAR = "far\\private$\\q"
READER = "10.0.0.77"


def reported(minute, count, **more):
    """A snapshot of a queue at its own machine, so many minutes after the start."""
    return snapshot(EPOCH + minute * 60, state="LOCAL CONNECTION", message_count=count, **more)


def outgoing(minute, state, count, manager=CLIENT):
    return snapshot(
        EPOCH + minute * 60, queue=FAR, name="DIRECT=OS:" + FAR, manager=manager, state=state, message_count=count
    )


def failed_connections(cause, times):
    """Connections from the machine that sends to the one with the queue, which were not established."""
    talks = [Conversation(f"failed{at}", 41_000 + place) for place, at in enumerate(times)]
    rows = []
    for talk, at in zip(talks, times, strict=True):
        moment = START + dt.timedelta(seconds=at)
        rows.append(talk.connection() | {
            "first_packet_at": moment, "last_packet_at": moment + dt.timedelta(seconds=9), "not_established": cause,
            "closed_at": None, "client_bytes": 0, "server_bytes": 0,
        })  # fmt: skip
    return rows


@pytest.fixture
def verdicts(tmp_path):
    """Returns the verdicts for a queue in a lake of conversations, snapshots and rows."""

    def find(name, *conversations, snapshots=(), failures=(), tables=None, ends_at=ENDS_AT, limits=LIMITS):
        lake = Lake(without_spark(), str(tmp_path / "lake"))
        found = dict(bronze(conversations, ends_at))
        if failures:
            every = found[CONNECTIONS].to_pylist() + list(failures)
            found[CONNECTIONS] = table_of(CONNECTIONS, every)
        found |= history_tables(list(snapshots)) | (tables or {})
        for table, rows in found.items():
            dates = set(rows["event_date"].to_pylist()) if "event_date" in rows.column_names else None
            lake.replace_changed(table, rows, rows.slice(0, 0), dates=dates)
        sessions_update.update(lake, "run", SessionSettings())
        update_messages.update(lake, "run")
        update_sequences.update(lake, "run")
        answer = find_verdicts(lake, name, limits)
        for verdict in answer.verdicts:
            lines = format_verdict(verdict, "--lake /data/lake")
            assert len(lines) <= 40
            assert [line for line in lines if len(line) > 100 and not line.startswith("  packets ")] == []
            assert verdict_to_json(verdict, "--lake /data/lake")["trouble"] is verdict.is_in_trouble
        return answer

    return find


def only(answer):
    (verdict,) = answer.verdicts
    return verdict


def cause_of(answer):
    verdict = only(answer)
    assert verdict.cause is not None
    return SimpleNamespace(**verdict.cause._asdict(), entries=verdict.entries, verdict=verdict)


def flowing(kind=None):
    """A session in which transactional messages are sent and arrive; ``kind``: the class of a final acknowledgement."""
    talk = Conversation().handshake()
    for number in (1, 2):
        talk.say("client", "user_message", transactional(number), 10 * number)
        talk.say("server", "session_ack", session_ack(ack=number), 10 * number + 1)
        if kind is None:
            talk.say("server", "order_ack", acknowledgement(SEQUENCE, number), 10 * number + 1)
        else:
            final = acknowledgement(SEQUENCE, number, kind=kind, of=(INITIATOR, number))
            talk.say("server", "final_ack", final, 10 * number + 1)
    return talk


def rejected_in_silence():
    """A session in which the receiver takes a message again and again, and does not put it in the queue."""
    talk = Conversation().handshake()
    for place, at in enumerate((10, 41, 71)):
        talk.say("client", "user_message", transactional(1), at)
        talk.say("server", "session_ack", session_ack(ack=place + 1), at + 1)
    return talk


@pytest.mark.parametrize("ends_at", [100, ENDS_AT])
def test_all_is_well(verdicts, ends_at):
    """Also long after the last message: nothing waits."""
    answer = verdicts("ORDERS", flowing(), ends_at=ends_at)
    verdict = only(answer)
    assert not verdict.is_in_trouble
    assert (verdict.entries, verdict.keys) == ((), {})
    assert (verdict.facts.senders[0]["waiting"], verdict.facts.senders[0]["taken"]) == (0, 0)
    assert verdict.facts.rejections == []
    text = " ".join(format_verdict(verdict, "--lake /data/lake"))
    assert "no trouble is seen" in text
    assert all(word not in text for word in ("TROUBLE", "taken", "not sent", "acknowledged since"))


@pytest.mark.parametrize(
    ("cause", "text"),
    [("no_answer", "no answer (network or host)"),
     ("reset", "reset (service not running, or a firewall that rejects)")],
)  # fmt: skip
def test_a_machine_that_cannot_be_reached(verdicts, cause, text):
    hosts = table_of(HOSTS, [
        {"host_key": "far", "host_name": "far", "address": SERVER, "source": "message", "event_date": START.date(),
         "first_seen_at": START, "last_seen_at": START, "sightings": 1},
    ])  # fmt: skip
    answer = verdicts(
        "FAR\\", snapshots=[outgoing(minute, "WAITING", 12) for minute in range(0, 66, 5)],
        failures=failed_connections(cause, [600, 1200, 1800, 2400, 3000, 3600]), tables={HOSTS: hosts},
    )  # fmt: skip
    found = cause_of(answer)
    assert found.code == cause
    assert found.text == f"{CLIENT} cannot connect to far: {text}"
    (entry,) = found.entries
    assert entry.leading["condition"] == "sessions_refused"
    assert [row["condition"] for row in entry.others] == ["queue_disconnected"]
    assert found.suggestion == CONNECTION_SUGGESTIONS[cause]


def test_a_queue_that_is_paused_at_its_sender(verdicts):
    paused = [outgoing(minute, "ONHOLD", 12) for minute in range(0, 66, 5)]
    found = cause_of(verdicts("FAR\\", snapshots=paused))
    assert found.code == "paused"
    assert found.text.startswith(f"the queue is paused at {CLIENT}: ")


def test_machines_have_their_names_and_readers_too(verdicts):
    reads = table_of(RECEIVE_ATTEMPTS, [{
        "attempt_key": "one", "queue": FAR, "client_address": READER, "server_address": SERVER, "is_receive": True,
        "started_at": START, "ended_at": START, "outcome": "acked", "evidence": ["call"], "missing": [],
        "event_date": START.date(), "run_id": "run",
    }])  # fmt: skip
    names = {CLIENT: "Till 7", READER: "Office\x1b"}
    seen = tuple(NameSighting(NameSource.DECLARED, address, name=name) for address, name in names.items())
    answer = verdicts(
        "FAR\\", snapshots=[outgoing(minute, "WAITING", 12) for minute in range(0, 66, 5)],
        tables={RECEIVE_ATTEMPTS: reads}, limits=replace(LIMITS, machine_names=seen),
    )  # fmt: skip
    verdict = only(answer)
    lines = "\n".join(format_verdict(verdict, "--lake /data/lake"))
    assert "TROUBLE since 2026-03-01 09:00:00: Till 7 has no connection for it: WAITING" in lines
    assert "  transfers at Till 7: WAITING" in lines
    assert "  readers   Office\\x1b: 1 received" in lines
    assert verdict_to_json(verdict, "--lake /data/lake")["machines"] == names
    assert verdict.facts.readers[0]["client_address"] == READER


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [(0x8000, "queue_missing", "its queue does not exist"), (0x8003, "queue_full", "its queue is full"),
     (0x8004, "access_refused", "its sender may not write")],
)  # fmt: skip
def test_a_receiver_that_says_why_it_rejects(verdicts, kind, code, reason):
    found = cause_of(verdicts("ORDERS", flowing(kind), ends_at=100))
    assert found.code == code
    assert "2 messages rejected" in found.text
    assert reason in found.text
    assert found.verdict.keys["packet"]


def test_a_receiver_that_does_not_say_why(verdicts):
    """As is Windows' default, whether the queue is missing or full, or access is refused: packets are the same."""
    found = cause_of(verdicts("ORDERS", rejected_in_silence(), ends_at=300))
    assert found.code == "reason_not_sent"
    assert found.text.startswith("taken by the receiver, not in its queue, reason not sent: 1 message.")
    reasons = ["is missing", "not transactional", "is full", "may not write"]
    places = [found.text.index(reason) for reason in reasons]
    assert places == sorted(places)
    (entry,) = found.entries
    assert entry.leading["condition"] == "order_acks_stalled"
    assert found.verdict.keys["packet"]


def test_nobody_reads(verdicts):
    found = cause_of(verdicts("orders", snapshots=[reported(minute, 12) for minute in range(0, 66, 5)]))
    assert found.code == "nobody_reads"
    assert "12 messages" in found.text
    assert found.verdict.facts.local[0]["state_since"] is not None


def test_a_message_that_comes_back_again_and_again(verdicts):
    poison = table_of(ACK_SEQUENCES, [{
        "sequence_key": "one", "queue": LOCAL, "lookup_id": 1, "attempts": 6, "peeks": 0, "outcomes": ["nacked"] * 6,
        "first_attempt_at": START, "settled_at": START + dt.timedelta(minutes=50), "fate": "returned",
        "redelivered": True, "loss_risk": "poison", "evidence": ["call"], "confidence": "complete", "missing": [],
        "event_date": START.date(), "run_id": "run",
    }])  # fmt: skip
    stuck = [reported(minute, 12) for minute in range(0, 66, 5)]
    found = cause_of(verdicts("orders", snapshots=stuck, tables={ACK_SEQUENCES: poison}))
    assert found.code == "given_back"
    assert found.text == "a reader gives 1 message back again and again (poison), 6 times at most"


def test_a_sequence_that_is_refused(verdicts):
    found = cause_of(verdicts("ORDERS", refused_for_ever(), ends_at=300))
    assert found.code == "sequence_refused"
    (entry,) = found.entries
    assert entry.leading["condition"] == "sequence_refused"
    assert [row["condition"] for row in entry.others] == ["order_acks_stalled"]


def test_two_machines_with_one_identifier(verdicts):
    identifier = "5ba1e0aa-0000-4000-8000-00000000c10e"
    hosts = table_of(HOSTS, [
        {"host_key": name, "host_name": name, "queue_manager_id": identifier, "source": "snapshot",
         "event_date": START.date(), "first_seen_at": START, "last_seen_at": START, "sightings": 1}
        for name in ("srv1", "srv2")
    ])  # fmt: skip
    finding = table_of(FINDINGS, [{
        "finding_key": "one", "rule_id": "O01", "severity": "error", "subject": f"queue manager {identifier}",
        "actual": "machines srv1, srv2", "observed_at": START, "evidence": ["snapshot"], "missing": [],
        "event_date": START.date(), "run_id": "run",
    }])  # fmt: skip
    answer = verdicts("orders", snapshots=[reported(0, 0)], tables={HOSTS: hosts, FINDINGS: finding})
    assert cause_of(answer).code == "duplicate_identifier"


def test_what_was_not_captured_is_said(verdicts):
    answer = verdicts("nothing", flowing(), ends_at=100)
    assert answer.verdicts == ()
    verdict = only(verdicts("ORDERS", flowing(), ends_at=100))
    assert any("no report of the machine" in text for text in verdict.not_known)
    assert any("no receive was captured" in text for text in verdict.not_known)


def test_a_verdict_of_which_much_is_known_is_a_screen_too():
    """Of long lists the first items, and how many more there are; names are escaped."""
    at, nine = START, range(9)
    long = "a machine of a long name " * 3
    facts = QueueRows(
        "srv1\\private$\\x\x1b[2J", at,
        reports=[
            {"queue_manager": f"{long}{n}", "state": state, "state_since": at, "paused": True, "message_count": n,
             "bytes": n, "journal_count": n, "unacked_count": 5, "resend_count": 2, "next_resend_at": at,
             "reported_at": at, "known_until": at}
            for n in nine for state in ("LOCAL CONNECTION", "WAITING")
        ],
        senders=[
            {"sender_address": f"10.0.0.{n}", "receiver_address": "10.1.0.1", "messages": 2, "last_sent_at": at,
             "last_delivered_at": at, "waiting": 1, "waiting_since": at, "last_received_at": at, "packet_key": None}
            for n in nine
        ],
        readers=[
            {"client_address": f"10.0.0.{n}", "read": 1, "last_read_at": None, "last_asked_at": at, "given_back": 1,
             "peeked": 1, "call_key": None}
            for n in nine
        ],
        errors=[{"queue_manager": long, "hresult_name": "MQ_ERROR_QUEUE_NOT_FOUND"} for _ in nine],
    )  # fmt: skip
    alert = {
        "condition": "queue_stuck",
        "severity": "error",
        "since": at,
        "message": "messages wait " * 20,
        "missing": [],
    }
    cause = Cause("nobody_reads", "nobody reads " * 20, "Look at the reader. " * 20, at)
    verdict = QueueVerdict(facts, (Entry(alert, (alert,) * 9),), cause, Machines([], {}))
    lines = format_verdict(verdict, "--lake /data/lake")
    assert 30 < len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[0] == "srv1\\private$\\x\\x1b[2J"
    for name in ("do", "where", "state", "error", "transfers", "senders", "readers", "alerts", "not known"):
        assert any(line.startswith(f"  {name} ") for line in lines)
    assert any(line.strip().startswith("and ") and line.endswith(" more") for line in lines)
