"""Dashboard data of known content, as a lake would give it, without a lake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from pipeline.alerts.entries import find_entries
from pipeline.dashboards.dashboard_data import DashboardData, DatasetRows, Stories
from pipeline.dashboards.datasets import DATASETS, PACKET_TABLES
from pipeline.dashboards.stories import build_stories
from pipeline.reports.queue_verdict.causes import Cause
from pipeline.reports.queue_verdict.inputs import QueueRows
from pipeline.reports.queue_verdict.verdict import QueueVerdict
from pipeline.reports.trace.events import TimelineEvent
from pipeline.reports.trace.timeline import MessageTimeline
from pipeline.reports.trace.verdict import Verdict
from pipeline.silver.machines import Machines

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def data(rows, **fields):
    """A dataset of rows with equal columns. Further arguments are fields of ``DatasetRows``."""
    names = list(rows[0]) if rows else []
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        kind = TIME if any(isinstance(value, datetime) for value in values) else None
        if all(value is None for value in values):
            kind = TIME if name.endswith(("_at", "_since")) else pa.string()
        columns[name] = pa.array(values, kind)
    table = pa.table(columns)
    return DatasetRows(table, fields.pop("total_rows", len(rows)), fields.pop("query", "SELECT 1"), **fields)


def evidence(*keys):
    return {"confidence": "complete", "missing": [], "evidence": list(keys), "evidence_count": len(keys)}


def call(key, number, **more):
    return {
        "call_key": key, "connection_id": "c", "interface_name": "RemoteRead", "method": "R_StartReceive", "opnum": 7,
        "client_address": "10.0.0.2", "client_port": 50000, "server_address": "10.0.0.1", "server_port": 2103,
        "request_at": at(number), "response_at": at(number + 0.25), "response_ms": 250.0, "outcome": "ok",
        "fault_status": None, "hresult_name": "MQ_OK", "result": "MQ_OK", "failed": False, "sealed": False,
        "opened_by": None, "closed_reason": None, "capture": "/captures/one.pcap", "request_packet": 10 + number,
        "response_capture": "/captures/one.pcap", "response_packet": 11 + number, **more,
    }  # fmt: skip


def queue(name, number, **more):
    return {
        "queue": name, "queue_manager": "srv1", "queue_format_name": f"DIRECT=OS:{name}",
        "interval_key": f"i{number}", "state": "LOCAL CONNECTION", "known_until": at(1500), "reported_at": at(600),
        "message_count": number, "bytes": 1000 * number, "journal_count": 0,
        "journal_bytes": 0, "paused": False, "sources": "collector", **evidence(f"s{number}"), **more,
    }  # fmt: skip


def interval(name, number, begin, end, **more):
    return {
        "queue": name, "queue_manager": "srv1", "queue_format_name": f"DIRECT=OS:{name}", "interval_key": f"i{number}",
        "valid_from": at(begin), "valid_to": at(end), "state": "LOCAL CONNECTION", "message_count": 5, "bytes": 100,
        "journal_count": 0, "journal_bytes": 0, "received": 0, "peeked": 0, "nacked": 0, "arrived": 0, "departed": 0,
        "arrivals_seen": False, "moved_in": 0, "moved_out": 0,
        "purged": 0, "paused": False, "expected_message_count": 5, "unexplained_change": None, "source": "collector",
        "reported_at": at(begin), **evidence(f"s{number}"), **more,
    }  # fmt: skip


def transfer(name, number, **more):
    return {
        "queue": name, "queue_manager": "srv1", "queue_format_name": f"DIRECT=OS:{name}", "snapshot_id": f"s{number}",
        "sources": "collector", "observed_at": at(600), "sequence_id": Decimal(2**63 + 1), "last_acked_number": 15,
        "first_unacked_number": 16, "last_unacked_number": 27, "next_number": 28, "unacked_count": 12,
        "unread_count": 0, "last_ack_at": at(500), "resend_count": 7, "resend_interval_s": 60,
        "next_resend_at": at(700), "ladder_step": 3, "ladder_interval_s": 1800.0, "acked_per_s": 0.0,
        "sent_per_s": 0.5, "in_flight_s": 100.0, "stalled_since": at(300), "sequence_reset": False,
        "condition": "stalled", **evidence(f"s{number}"), **more,
    }  # fmt: skip


def attempt(name, number, **more):
    return {
        "attempt_key": f"a{number}", "protocol": "RemoteRead", "queue": name, "inferred_queue": None,
        "server_address": "10.0.0.1", "server_port": 2103, "client_address": "10.0.0.2", "client_port": 50000,
        "action_name": "MQ_ACTION_RECEIVE", "is_receive": True, "transactional": False, "started_at": at(number),
        "returned_at": at(number + 1), "ended_at": at(number + 2), "wait_ms": 1000.0, "hold_ms": 1000.0,
        "timeout_ms": 0, "lookup_id": Decimal(2**56 - number), "message_key": f"m{number}", "message_bytes": 100,
        "start_hresult": 0, "end_hresult": 0, "outcome": "acked", "ack_refused": False, "ack_unanswered": False,
        **evidence(f"k{number}"), **more,
    }  # fmt: skip


def sequence(name, number, **more):
    return {
        "sequence_key": f"q{number}", "queue": name, "inferred_queue": None, "server_address": None,
        "lookup_id": Decimal(number), "message_key": f"m{number}", "attempts": 2, "peeks": 0,
        "outcomes": ["nacked", "acked"], "readers": ["10.0.0.2"], "first_attempt_at": at(number),
        "settled_at": at(number + 2), "fate": "consumed", "redelivered": True, "loss_risk": "read_twice",
        "moved_to": None, "removed_at": None, "attempt_keys": [f"a{number}"], **evidence(f"k{number}"), **more,
    }  # fmt: skip


def finding(number, **more):
    return {
        "finding_key": f"f{number}", "rule_id": "R14", "source": "MS-MQRR 3.2.4.13", "severity": "error",
        "subject": "client 10.0.0.2", "server_address": "10.0.0.1", "scope": "association", "observed_at": at(number),
        "message": "never closed", "expected": "closed", "actual": "not closed", "call_key": f"k{number}",
        **evidence(f"k{number}"), **more,
    }  # fmt: skip


def comqc(name, number, **more):
    return {
        "sighting_key": f"g{number}", "call_index": 0, "message_key": f"m{number}", "call_key": f"k{number}",
        "seen_at": at(number), "queue": name, "inferred_queue": None, "label": name, "message_id": "guid\\1",
        "source_queue_manager": None, "header": "METH", "target_clsid": "clsid", "target_text": name,
        "partition_id": None, "interface_id": "iid", "is_dispatch": True, "opnum": 6, "dispatch_id": 3,
        "dispatch_flags": 1, "marshaled_bytes": 80,
        "arguments": [{"vt": 8, "vt_name": "VT_BSTR", "value": name}], "errors": [], **more,
    }  # fmt: skip


def alert(name, number, **more):
    return {
        "alert_key": f"e{number}", "condition": "transfer_stalled", "severity": "error", "subject": name, "queue": name,
        "queue_manager": "srv1", "since": at(300), "until": None, "last_seen_at": at(600), "message": f"{name} stalls",
        "suggestion": "look at the next hop", **evidence(f"s{number}"), **more,
    }  # fmt: skip


def host(number, **more):
    return {
        "host_key": f"h{number}", "queue_manager_id": "6b29fc40", "host_name": f"srv{number}",
        "address": "10.0.0.1", "source": "format_name", "first_seen_at": at(1), "last_seen_at": at(2), "sightings": 3,
        **more,
    }  # fmt: skip


def quality(name, number, **more):
    return {
        "result_key": f"r{number}", "run_at": at(2000), "run_id": "run", "table": "bronze.rpc_calls",
        "suite": "rpc_calls", "expectation": name, "description": "No call appears twice.",
        "limits": "call_key: no value twice", "severity": "error", "success": True, "evaluated": 10, "unexpected": 0,
        "observed": None, "unit": None, "scope": "all", "key_column": "call_key", "failed_keys": [], **more,
    }  # fmt: skip


def machine(name, number, **more):
    return {
        "queue_manager": name, "interval_key": f"g{number}", "state": "CONNECTED", "since": at(0),
        "known_until": at(9000), "reported_at": at(600), "bytes_in_all_queues": 1000 * number, "active_queues": 2,
        "private_queues": None, "directory_server": None, "sources": "collector", **evidence(f"s{number}"), **more,
    }  # fmt: skip


def action(name, number):
    return {
        "call_key": f"k{number}", "action": "PAUSE", "object_type": "queue", "queue_manager": "srv1", "queue": name,
        "queue_format_name": f"DIRECT=OS:{name}", "client_address": "10.0.0.9", "requested_at": at(300),
        "auth_level_name": "RPC_C_AUTHN_LEVEL_NONE", "responded_at": at(301), "outcome": "done", "result": "MQ_OK",
        "state_before": "CONNECTED", "state_after": "ONHOLD", "state_after_at": at(310), **evidence(f"k{number}"),
    }  # fmt: skip


GUIDS = ("6b29fc40-ca47-1067-b31d-00dd010662da", "7c29fc40-ca47-1067-b31d-00dd010662db")


def hop(**more):
    return {
        "sender_queue_manager": GUIDS[0], "receiver_queue_manager": GUIDS[1], "sender_address": "10.0.0.1",
        "receiver_address": "10.0.0.7", **more,
    }  # fmt: skip


def message_transfer(name, number, **more):
    return {
        "transfer_key": f"t{number}", "message_key": f"m{number}", "message_id": f"{GUIDS[0]}\\{number}",
        "message_kind": "application", "class_name": "MQMSG_CLASS_NORMAL", "source_queue_manager": GUIDS[0],
        "queue": name, "destination_queue": f"direct=os:{name}", "delivery": "recoverable", "transactional": True,
        "body_bytes": 100, "journaling": 0, "hop_count": 0, **hop(), "sequence_key": "z1",
        "transaction_number": number, "sent_at": at(number), "expires_at": None, "packet_bytes": 1224,
        "resent_bytes": 0, "sendings": 1, "sessions": 1, "acknowledged_sendings": 1, "first_sent_at": at(number),
        "last_sent_at": at(number), "session_acked_at": at(number + 1), "order_acked_at": at(number + 2),
        "final_acked_at": None, "final_class_name": None, "arrival_acked_at": None, "arrival_class_name": None,
        "receive_acked_at": None, "receive_class_name": None, "transmit_ms": 0.5, "session_ack_ms": 1000.0,
        "store_ms": None, "order_ack_ms": 2000.0, "final_ack_ms": None, "dead_letter_class": None,
        "outcome": "delivered", "refused": False, "not_delivered": None, **evidence(f"p{number}"), **more,
    }  # fmt: skip


def latency(number, stage, ms, **more):
    return {
        "transfer_key": f"t{number}", "first_sent_at": at(number), **hop(), "queue": "srv1\\private$\\orders",
        "destination_queue": "direct=os:srv1", "message_kind": "application", "stage": stage, "latency_ms": ms, **more,
    }  # fmt: skip


def transfer_sequence(name, number, **more):
    return {
        "sequence_key": f"z{number}", "source_queue_manager": GUIDS[0], "queue": name,
        "destination_queue": f"direct=os:{name}", "transaction_sequence_id": Decimal(2**63 + number),
        "sequence_ordinal": number, **hop(), "condition": "stalled", "waiting": 2, "first_waiting_number": 2,
        "acknowledged_number": 1, "acknowledged_at": at(3), "messages": 3, "sendings": 5, "sent_bytes": 6000,
        "resends": 2, "resent_bytes": 2400, "first_number": 1, "last_number": 4, "first_sent_at": at(0),
        "last_sent_at": at(60), "missing_numbers": 1, "out_of_order": 0, "refusals": 0, "order_acks": 1,
        "gaps": [{"first": 3, "last": 3, "bridged": False}],
        "stalls": [{"began_at": at(3), "ended_at": None, "first_number": 2, "waiting": 2, "sendings": 4}],
        "stall_count": 1, "longest_stall_s": 997.0, "stalled_since": at(3), "began": "first",
        "previous_sequence_id": None, **evidence("p1", "p2"), **more,
    }  # fmt: skip


def point(number, seconds, event, key="z1"):
    packet = f"p{number}" if event == "sent" else f"{event}{number}-{seconds}"
    return {
        "sequence_key": key, "packet_key": packet, "observed_at": at(seconds), "number": number, "event": event,
        "evidence": [packet],
    }  # fmt: skip


def session(number, **more):
    return {
        "connection_id": f"c{number}", "initiator_queue_manager": GUIDS[0], "acceptor_queue_manager": GUIDS[1],
        "client_address": "10.0.0.1", "client_port": 50000 + number, "server_address": "10.0.0.7", "server_port": 1801,
        "first_packet_at": at(0), "last_packet_at": at(100), "closed_at": at(100), "session_outcome": "open",
        "not_established": None,
        "session_end": "closed", "by_direct_name": True, "pinged": False, "round_trip_ms": 2.0,
        "ack_timeout_ms": 20000, "recoverable_ack_timeout_ms": 500, "client_window": 64, "server_window": 64,
        "messages": 3, "message_bytes": 6000, "unacknowledged": 0, "client_window_full_ms": 1500,
        "server_window_full_ms": 0, "decode_errors": 0, "evidence": ["p1"], **more,
    }  # fmt: skip


def packet(number, **more):
    return {
        "packet_key": f"p{number}", "client_address": "10.0.0.1", "client_port": 50001, "server_address": "10.0.0.7",
        "server_port": 1801, "sent_by": "client", "kind": "user_message", "sent_at": at(number), "length_bytes": 1224,
        "complete": True, "capture": "/captures/wire.pcap", "packet_number": 20 + number, **more,
    }  # fmt: skip


def nothing_on_tcp_1801():
    """The datasets of the binary protocol where its tables are there and have no rows."""
    names = ("message_transfers", "transfer_latencies", "transfer_sequences", "sequence_points", "sessions", "packets")
    return {name: data([]) for name in names}


SEEN = (
    ("rpc", "calls", 100),
    ("rpc", "sealed", 3),
    ("rpc", "calls_half_seen", 2),
    ("transport", "bytes_missing", 1460),
)


def stored_alert(name, number, **more):
    """An alert as gold.alerts has it."""
    shown = {column: value for column, value in alert(name, number).items() if column != "evidence_count"}
    machines = {"from_machine": "10.0.0.1", "to_machine": "10.0.0.7", "cause": None, "subject_text": None}
    return {**shown, **machines, "evidence": [f"p{number}"], **more}


def message_timeline(name, number):
    """What is known of a message that does not arrive."""
    event = TimelineEvent(at(number), "sent", f"by 10.0.0.1 to {name}", packet_key=f"p{number}")
    verdict = Verdict("on_its_way", f"on its way to {name}", complete=False)
    return MessageTimeline(f"m{number}", f"{GUIDS[0]}\\{number}", verdict, [], {}, {}, [], [], [], [event], [name])


def trouble(*names, **more):
    """The stories of queues of these names: the first alert is the cause of the second, each other one of its own."""
    names = names or ("srv1\\private$\\orders", "far\\private$\\out")
    alerts = [stored_alert(name, number, **more) for number, name in enumerate(names, 1)]
    alerts.append(stored_alert(names[0], len(names) + 1, condition="messages_unacknowledged", severity="warning"))
    machines = Machines([{"queue_manager_id": GUIDS[1], "host_name": "far", "address": "10.0.0.7"}], {})
    entries = find_entries(alerts, machines)
    verdicts = []
    for number, entry in enumerate(entries, 1):
        name = entry.leading["queue"]
        reports = [{**queue(name, number), "state_since": at(100), "unacked_count": 3, "resend_count": 1,
                    "next_resend_at": at(700)}]  # fmt: skip
        senders = [{"queue": name, "sender_address": "10.0.0.1", "receiver_address": "10.0.0.7", "messages": 9,
                    "last_sent_at": at(50), "waiting": 3, "taken": 0, "waiting_since": at(10),
                    "last_delivered_at": at(9), "last_received_at": at(9), "packet_key": "p1"}]  # fmt: skip
        facts = QueueRows(name, at(1000), reports=reports, senders=senders)
        cause = Cause("stalled", f"{name} stalls", "look at the next hop", at(300), (f"p{number}",))
        keys = {"packet": [f"p{number}"]}
        verdicts.append(QueueVerdict(facts, (entry,), cause, machines, keys))
    timelines = [message_timeline(name, number) for number, name in enumerate(names, 1)]
    return build_stories(verdicts, verdicts, timelines, machines, "--lake /lake")


def site(names=("srv1\\private$\\orders", "far\\private$\\out"), stories=None, **replaced):
    """Dashboard data with a row or two of each dataset, about queues of these names."""
    each = list(enumerate(names, 1))
    made = {
        "queues": data([queue(name, number) for number, name in each]),
        "intervals": data(
            [interval(name, 2 * n + side, 900 * side, 900 * side + 900) for n, name in each for side in (0, 1)]
        ),
        "machines": data([machine("srv1", 1), machine("relay", 2, known_until=at(10))]),
        "actions": data([action(name, number) for number, name in each]),
        "transfers": data([transfer(name, number) for number, name in each]),
        "transfer_points": data([transfer(name, number, source="collector") for number, name in each]),
        "sources": data([]),
        "message_transfers": data([message_transfer(name, number) for number, name in each]),
        "transfer_latencies": data(
            [
                latency(number, stage, ms * number)
                for number, _ in each
                for stage, ms in (("on the wire", 0.5), ("session ack", 1000.0), ("order ack", 2000.0))
            ]
        ),
        "transfer_sequences": data([transfer_sequence(name, number) for number, name in each]),
        "sequence_points": data(
            [
                *(point(number, number, "sent") for number in (1, 2, 4)),
                point(1, 3, "acknowledged"),
                point(2, 30, "resent"),
                point(4, 60, "resent"),
            ]
        ),
        "sessions": data([session(number) for number, _ in each]),
        "packets": data([packet(number) for number, _ in each]),
        "queue_manager_names": data([{"queue_manager_id": GUIDS[0], "host_name": "relay1"}]),
        "attempts": data([attempt(name, number) for number, name in each]),
        "sequences": data([sequence(name, number) for number, name in each]),
        "operations": data([]),
        "opens": data([]),
        "calls": data([call(f"k{number}", number) for number, _ in each]),
        "comqc": data([comqc(name, number) for number, name in each]),
        "findings": data([finding(number) for number, _ in each]),
        "alerts": data([alert(name, number) for number, name in each]),
        "quality": DatasetRows(None, note="not computed: the lake has no gold.quality_results"),
        "quality_history": DatasetRows(None, note="not computed: the lake has no gold.quality_results"),
        "coverage": data(
            [
                {"hour": NOON, "server_address": "10.0.0.1", "layer": layer, "measure": measure, "value": value}
                for layer, measure, value in SEEN
            ]
        ),
        "captures": data([{"capture_id": "one", "path": "/captures/one.pcap", "status": "complete"}]),
        "labels": data([{"message_key": f"m{number}", "label": name} for number, name in each]),
        "snapshots": data(
            [
                {
                    "snapshot_id": f"s{number}", "queue_manager": "srv1", "object_type": "queue",
                    "format_name": f"DIRECT=OS:{name}", "asked_at": at(600), "error": None,
                    "source_path": "/snapshots/day.jsonl", "source_line": number,
                }
                for number, name in each
            ]
        ),
        **replaced,
    }  # fmt: skip
    assert {dataset.name for dataset in DATASETS} <= made.keys()
    sources = {("captures", "/data/ring"): at(900), ("snapshots", "srv1"): at(1000)}
    comments = {"queues": {"message_count": "messages in the queue"}}
    return DashboardData(
        "/lake",
        "--lake /lake",
        at(1000),
        at(5000),
        made,
        comments,
        stories=stories or Stories(),
        newest_by_source=sources,
        packet_tables=PACKET_TABLES,
    )
