"""Update of gold.alerts from all its sources, in one run and in several, and the output of the job ``alerts``."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from alerts.scenario import LIMITS
from jobs import alerts as job
from pipeline.alerts import by_clock
from pipeline.alerts import update as alerts_update
from pipeline.alerts.conditions import CONDITIONS
from pipeline.alerts.sources import ALERT_SOURCES
from pipeline.alerts.update import current_alerts, update
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.lake.storage.log import TableCommit
from queue_states.queue_events import MINUTE, incoming, outgoing, snapshot
from reports.questions.in_memory_lake import NOW, InMemoryLake, history_tables, rows
from schemas.alerts import ALERTS
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DOWN = "far\\private$\\down"
ERROR_QUEUE = "srv1\\private$\\error"
SERVER = {"server_address": "10.0.0.1"}


def minutes(table):
    """Return (condition, since, until) of each alert, times in minutes, sorted."""

    def at(time):
        return None if time is None else round((time.astimezone(UTC) - EPOCH) / timedelta(minutes=1), 3)

    return sorted((row["condition"], at(row["since"]), at(row["until"])) for row in table.to_pylist())


def queues(begin, end):
    """Return the events of some minutes: from minute 100 on a queue is not connected and a transfer is stalled."""
    events = []
    for at in range(begin, end, 5):
        state = "WAITING" if at >= 100 else "CONNECTED"
        events.append(snapshot(at * MINUTE, f"down{at}", queue=DOWN, state=state, message_count=3, bytes=300))
        events.append(outgoing(at * MINUTE, 10 + min(at, 100), 4, ack_at=min(at, 100) * MINUTE, previous=200))
        events.append(incoming(at * MINUTE, ("a1", 7, 9)))
    return events


def failures(table, count, at, **more):
    calls = [
        {"call_key": f"{table}{at}{number}", "requested_at": at, "responded_at": at + number / 100, **SERVER, **more}
        for number in range(count)
    ]
    return rows(table, *calls)


HOP = {"sender_address": "10.0.0.1", "receiver_address": "10.0.0.2"}


def resent(name, at, sendings):
    """Return the rows of a message that is sent every second from a minute on."""
    packets = [{"packet_key": f"{name}{n}", "sent_at": at + n / 60, **HOP} for n in range(sendings)]
    transfer = {
        "transfer_key": name, "message_key": name, "destination_queue": "q", "hop_key": "h", "sendings": sendings,
        **HOP,
        "first_sent_at": at, "last_sent_at": at + (sendings - 1) / 60, "session_acked_at": at + 2,
        "session_ack_ms": 120_000.0, "evidence": [f"{name}0"],
        "source_queue_manager": "a1", "sent_at": at + 1,
    }  # fmt: skip
    seen = [
        {"message_key": name, "sighting_key": row["packet_key"], "packet_key": row["packet_key"], "class": 0,
         "destination_queue": "q", "seen_at": row["sent_at"]} for row in packets
    ]  # fmt: skip
    return packets, transfer, seen


def traffic():
    """Return tables of what TCP 1801 showed, and rows of messages: of each condition one example, and none beside."""
    ends = {"client_address": "10.0.0.1", "server_address": "10.0.0.2"}
    session = {"first_packet_at": 205, "last_packet_at": 206, "closed_at": 206, "ended": "unopened", **ends}
    sessions = [
        session | {"connection_id": "refused", "outcome": "refused", "ended": "refused"},
        session | {"connection_id": "lost", "outcome": "unanswered", "client_address": "10.0.0.3"},
        session | {"connection_id": "open", "outcome": "unanswered", "client_address": "10.0.0.4", "ended": None,
                   "closed_at": None},
        session | {"connection_id": "full", "outcome": "open", "client_address": "10.0.0.5", "ended": "closed",
                   "server_window_full_ms": 10_000, "client_window_full_ms": 9_999},
    ]  # fmt: skip
    same = ("connection_id", "client_address", "server_address", "first_packet_at", "last_packet_at", "closed_at")
    of_sessions = {"kind": "binary_protocol", "server_port": 1801, "missing_bytes": 0}
    connections = [of_sessions | {name: row[name] for name in same} for row in sessions]
    connections[1]["missing_bytes"] = 64
    stall = {"began_at": 207 * 60_000_000, "ended_at": 209 * 60_000_000, "first_number": 3, "waiting": 2, "sendings": 4}
    sequences = [
        {"sequence_key": "s", "source_queue_manager": "a1", "destination_queue": "q", "transaction_sequence_id": 7,
         "first_sent_at": 206, "last_packet_at": 230, "acknowledged_number": 2, "acknowledged_at": 207, "waiting": 2,
         "first_waiting_number": 3, "stalls": [stall], "longest_stall_s": 120.0, "condition": "refused", **HOP,
         "hop_key": "h"},
    ]  # fmt: skip
    packets, transfer, seen = resent("again", 214, 30)
    ack = {"packet_key": "f", "kind": "final_ack", "class": 0x8000, "class_name": "NACK", "queue_manager": "b2"}
    acks = [{**ack, "sent_at": at, "acknowledged_message_id": "a1\\9"} for at in (216, 217)]
    tables = {
        SESSIONS: rows(SESSIONS, *sessions), CONNECTIONS: rows(CONNECTIONS, *connections),
        TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, *sequences), SENDINGS: rows(SENDINGS, *packets),
        MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, transfer), ORDER_ACKS: rows(ORDER_ACKS, *acks),
    }  # fmt: skip
    nack = {"message_key": "w", "class": 0x8000, "class_name": "NACK", "source_queue_manager": "a1"}
    read = {"sighting_key": "w1", "seen_at": 212, "queue": "srv1\\private$\\admin", "call_key": "w1"}
    on_its_way = {"sighting_key": "w2", "seen_at": 211.5, "packet_key": "w2", "destination_queue": read["queue"]}
    dead = {"sighting_key": "w3", "message_key": "w3", "seen_at": 212, "queue": "srv1\\system$;deadletter"}
    return tables, [*seen, nack | read, nack | on_its_way, nack | dead]


def scenario():
    reason = {"status_name": "MQCONN_CONNECTION_FAILED", "error": 5, "error_name": "MQ_ERROR_X"}
    reason |= {"changed_at": None, "status": 1, "addresses": None}
    attempt = {"attempt_key": "a", "is_receive": True, "returned_at": 230, "started_at": 229, "outcome": "in_flight",
               "client_address": "10.0.0.9", "lookup_id": 1, **SERVER}  # fmt: skip
    hour = {"hour": 180, "layer": "transport", **SERVER}
    found = [
        {"rule_id": "O01", "subject": "queue manager g", "actual": "machines a, b", "observed_at": 3},
        {
            "rule_id": "O02",
            "subject": "clocks of x and y",
            "actual": "x is ahead of y by at least 60 s",
            "observed_at": 5,
        },
        {"rule_id": "O07", "subject": "queue manager h", "actual": "two machine starts", "observed_at": 4},
        {"rule_id": "R01", "subject": "client", "actual": "-", "observed_at": 5},
    ]
    negative = {"class": 0x8000, "class_name": "NACK", "source_queue_manager": "a1", "queue": "srv1\\private$\\admin"}
    negative |= {"message_key": "n", "call_key": "c"}
    sightings = [{"sighting_key": str(at), "seen_at": at, **negative} for at in (210, 211)]
    recorded = {"is_comqc": True, "comqc_rejected": "[MC-COMQC] 2.2: no method call", "message_key": "r"}
    sightings += [{"sighting_key": str(at), "seen_at": at, **recorded} for at in (225, 226)]
    failed = {"message_key": "e", "source_queue_manager": "b2", "processing_endpoint": "Billing",
              "exception_type": "System.TimeoutException"}  # fmt: skip
    sightings += [
        {"sighting_key": "e1", "seen_at": 228, "packet_key": "e1", "destination_queue": ERROR_QUEUE, **failed},
        {"sighting_key": "e2", "seen_at": 229, "call_key": "e2", "queue": ERROR_QUEUE, **failed},
        {"sighting_key": "t", "seen_at": 229, "message_key": "t", "delayed_retries": 1, "queue": ERROR_QUEUE},
    ]
    snapshots = [{"snapshot_id": f"x{n}", "queue_manager": "srv9", "asked_at": 200 + n, "error": "timeout" * n or None}
                 for n in range(3)]  # fmt: skip
    on_the_wire, sent = traffic()
    sightings += sent
    tables = history_tables(queues(0, NOW + 1)) | on_the_wire
    return tables | {
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, attempt),
        MESSAGES: rows(MESSAGES, *sightings),
        REMOTE_READ_CALLS: failures(
            REMOTE_READ_CALLS, 5, 190, protocol="RemoteRead", opnum=7, method="R_StartReceive", hresult=0xC00E0025
        ),
        MANAGEMENT_CALLS: pa.concat_tables([
            failures(MANAGEMENT_CALLS, 9, 190, opnum=0, method="R_QMMgmtGetInfo", hresult=0xC00E0004),
            failures(MANAGEMENT_CALLS, 5, 185, opnum=1, method="R_QMMgmtAction", hresult=5),  # a Win32 code
        ]),
        RPC_CALLS: rows(
            RPC_CALLS,
            *({"call_key": f"f{n}", "interface_name": "qm2qm", "opnum": 9, "outcome": "fault", "fault_status": 0x6F7,
               "request_at": 220, "response_at": 221, **SERVER} for n in range(6)),
        ),
        FINDINGS: rows(FINDINGS, *found),
        MACHINE_HISTORY: rows(
            MACHINE_HISTORY,
            *({"queue_manager": "srv1", "interval_key": f"i{at}", "valid_from": at, "valid_to": at + 30,
               "state": "DISCONNECTED", "bytes_in_all_queues": 100} for at in (200, 230)),
        ),
        COVERAGE: rows(COVERAGE, {"measure": "bytes", "value": 90}, {"measure": "bytes_missing", "value": 10}, **hour),
        SNAPSHOTS_RAW: rows(SNAPSHOTS_RAW, *snapshots),
        QUEUE_SNAPSHOTS: rows(
            QUEUE_SNAPSHOTS, {"snapshot_id": "down240", "nexthops": ["TCP:10.0.0.5"], "connection_history": [reason]}
        ),
    }  # fmt: skip


class Below(InMemoryLake):
    """An in-memory lake whose tables were each written once."""

    def newest_commits(self, *tables):
        return {table: TableCommit(0, json.dumps(self.provenance(table))) for table in tables if table in self.tables}


EXPECTED = [
    ("application_failing", 228.0, None),
    ("calls_failing", 185.0, None), ("calls_failing", 190.0, None), ("calls_failing", 221.0, None),
    ("capture_lost", 180.0, None),
    ("clocks_differ", 5.0, None), ("clocks_differ", 214.0, None),
    ("containers_rejected", 225.0, None), ("duplicate_queue_manager", 3.0, None),
    ("duplicate_queue_manager", 4.0, None), ("ends_disagree", 0.0, None), ("machine_disconnected", 200.0, None),
    ("messages_unacknowledged", 100.0, None), ("negative_acknowledgements", 210.0, None),
    ("negative_acknowledgements", 216.0, None), ("order_acks_stalled", 207.0, 209.0),
    ("queue_disconnected", 100.0, None), ("receives_not_ended", 230.0, None), ("resend_storm", 214.017, 224.483),
    ("sequence_refused", 207.0, None), ("sessions_refused", 205.0, None), ("snapshots_missing", 180.0, None),
    ("transfer_stalled", 100.0, None), ("transfers_slow", 216.0, None), ("window_full", 205.0, 206.0),
]  # fmt: skip


def test_alerts_of_every_source_and_what_is_printed_of_them(spark, monkeypatch, tmp_path, capsys):
    made = {QUEUE_HISTORY: {"names": {"10.0.0.1": "srv1"}}, RECEIVE_ATTEMPTS: {"ends": {"10.0.0.1": NOW * 60_000_000}}}
    lake = Below(spark, scenario(), made)
    found = current_alerts(lake, LIMITS)
    assert minutes(found) == EXPECTED
    by_condition = {row["condition"]: row for row in found.to_pylist()}
    assert by_condition["queue_disconnected"]["message"] == (
        "WAITING: 3 messages (300 bytes) waiting; last MQCONN_CONNECTION_FAILED; error MQ_ERROR_X; "
        "next hops TCP:10.0.0.5"
    )
    assert by_condition["queue_disconnected"]["severity"] == "error"
    assert by_condition["capture_lost"]["queue_manager"] == "srv1"
    nacks = {row["message"] for row in found.to_pylist() if row["condition"] == "negative_acknowledgements"}
    admin = "srv1\\private$\\admin"
    assert nacks == {f"2 messages of class NACK in {admin}", "1 final acknowledgement of class NACK"}
    assert by_condition["sessions_refused"]["message"] == "from srv1 to 10.0.0.2: 1 session refused"
    assert by_condition["sessions_refused"]["subject"] == "sessions from 10.0.0.1 to 10.0.0.2"
    assert by_condition["sessions_refused"]["subject_text"] == "sessions from srv1 to 10.0.0.2"
    assert by_condition["window_full"]["subject"] == "session from 10.0.0.2 to 10.0.0.5"
    assert by_condition["resend_storm"]["message"] == "29 of 30 sendings within 10 min were resends (97%)"
    assert by_condition["resend_storm"]["evidence"] == ["again1", "again29"]
    assert by_condition["transfers_slow"]["message"] == "1 message acknowledged 60 s or more after the first sending"
    assert by_condition["containers_rejected"]["message"].startswith("1 message with lost calls ([MC-COMQC] 2.2: no")
    assert by_condition["receives_not_ended"]["missing"] == ["queue_unknown"]
    failing = by_condition["application_failing"]
    assert failing["message"] == f"1 message not processed (Billing: System.TimeoutException) in {ERROR_QUEUE}"
    assert (failing["queue"], failing["from_machine"], failing["evidence"]) == (ERROR_QUEUE, "b2", ["e1"])
    assert (failing["severity"], failing["cause"]) == ("warning", None)

    monkeypatch.setattr(job, "open_lake_with_data", lambda _: lake)
    monkeypatch.setattr(by_clock, "current_alerts", lambda *_: found)
    out = tmp_path / "alerts.jsonl"
    arguments = ["--lake", "x", "--json", str(out)]
    assert job.main(arguments) == 1
    shown = capsys.readouterr()
    assert f"queue_disconnected  queue {DOWN} at srv1" in shown.out
    assert json.loads(shown.out.splitlines()[-1])["alerts"]["error"] >= 2
    printed = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(printed) == len(EXPECTED)
    assert printed[0]["severity"] == "error"
    assert {"condition", "since", "until", "suggestion", "evidence", "confidence"} <= printed[0].keys()
    assert [row["since"] for row in printed if row["condition"] == "queue_disconnected"] == ["1970-01-01T01:40:00Z"]
    assert job.main([*arguments, "--fail-on", "never"]) == 0
    assert job.main([*arguments, "--condition", "clocks_differ"]) == 0
    assert job.main([*arguments, "--condition", "clocks_differ", "--fail-on", "warning"]) == 1
    told = {}
    monkeypatch.setattr(job, "set_task_value", told.__setitem__)
    assert job.main([*arguments, "--fail-on", "never", "--task-value", "worst_alert"]) == 0
    assert job.main([*arguments, "--condition", "clocks_differ", "--task-value", "of_clocks"]) == 0
    assert job.main([*arguments, "--condition", "journal_growing", "--task-value", "of_none"]) == 0
    assert told == {"worst_alert": "error", "of_clocks": "warning", "of_none": "none"}
    assert job.main([*arguments, "--condition", "clock"]) == 2
    assert "no such condition: clock" in capsys.readouterr().err
    assert job.main(["--lake", "x", "--json", str(tmp_path / "no" / "such")]) == 2


@pytest.mark.long
def test_alerts_follow_run_by_run_as_if_made_anew(spark, tmp_path, monkeypatch):
    lake = Lake(spark, str(tmp_path / "lake"))

    def add(tables, now):
        for table, found in tables.items():
            if found.num_rows:
                lake.append(table, spark.createDataFrame(found.drop_columns(["event_date"])))
        lake.append(CAPTURE_FILES, spark.createDataFrame(
            rows(CAPTURE_FILES, {"capture_id": str(now), "last_packet_at": now}).drop_columns(["event_date"])
        ))  # fmt: skip

    def current():
        return lake.read(ALERTS).drop("run_id").toArrow().sort_by("alert_key")

    whole = scenario()
    others = {
        table: found for table, found in whole.items() if table not in (QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES)
    }
    first = history_tables(queues(0, 121))
    add(first | others, 121)
    assert update(lake, LIMITS, "one") > 0
    before = minutes(current())
    assert ("queue_disconnected", 100.0, None) in before
    versions = lake.version(ALERTS)
    assert update(lake, LIMITS, "again") == 0
    assert lake.version(ALERTS) == versions

    days = 4  # later, when the queue is connected again
    late = [row | {"at": row["at"] + days * 86_400_000_000, "key": f"late{row['key']}"} for row in queues(0, 61)]
    lake.note_provenance(ALERTS, "nothing")
    update(lake, LIMITS, "full")
    first_sequence = whole[TRANSFER_SEQUENCES].to_pylist()[0]
    following = {name: first_sequence[name] for name in ("source_queue_manager", "destination_queue", "hop_key", *HOP)}
    following |= {"sequence_key": "t", "first_sent_at": days * 1440 + 7, "last_packet_at": days * 1440 + 8}
    packets, transfer, seen = resent("later", days * 1440 + 9, 40)
    add(history_tables(late) | {
        TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, following), SENDINGS: rows(SENDINGS, *packets),
        MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, transfer), MESSAGES: rows(MESSAGES, *seen),
    }, days * 1440 + 61)  # fmt: skip
    asked = []
    found = alerts_update._AlertsUpdate._find_affected
    monkeypatch.setattr(
        alerts_update._AlertsUpdate, "_find_affected", lambda self, since: asked.append(since) or found(self, since)
    )
    update(lake, LIMITS, "two")
    assert asked == [0]  # the day of the newest packet before
    followed = current()
    assert ("queue_disconnected", 100.0, days * 1440.0) in minutes(followed)
    assert ("sequence_refused", 207.0, days * 1440.0 + 7) in minutes(followed)
    assert {row[0] for row in minutes(followed) if row[1] > days * 1440} >= {"resend_storm", "transfers_slow"}
    for limit in (lake_module.MAX_ROWS_IN_MEMORY, -1):  # in memory, in Spark
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", limit)
        lake.note_provenance(ALERTS, "nothing")
        update(lake, LIMITS, "full")
        assert current() == followed
    early = current_alerts(lake, LIMITS, EPOCH + timedelta(minutes=121))
    assert [row for row in minutes(early) if row[0] == "queue_disconnected"] == [("queue_disconnected", 100.0, None)]


def test_every_condition_has_its_source_and_its_words():
    named = {name for source in ALERT_SOURCES.values() for name in source.conditions}
    assert sorted(named) == sorted(CONDITIONS)
    assert {condition.question for condition in CONDITIONS.values()} >= {1, 4, 6, 7, 9, 11, 14, 16, 17, 19, 21, 22, 23}


@pytest.mark.parametrize("code", [10061, 0x8007274D])
def test_errors_of_windows_sockets_have_names(code):
    last = {"status_name": "MQCONN_CONNECTION_FAILED", "error": code, "error_name": f"0x{code:08X}"}
    reason = alerts_update._reason({"last": last, "nexthops": []})
    assert reason == "; last MQCONN_CONNECTION_FAILED; error WSAECONNREFUSED"
