"""Evaluation of the rules on packets and sessions of the binary protocol -> rows of gold.findings. No Spark session.

A finding is of one packet: ``packet_key`` and ``evidence`` are keys of bronze.session_packets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import epoch_day, rows_to_table, table_to_rows
from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.findings.columns.captured_rows import plain_columns
from pipeline.findings.rules import session_packets
from pipeline.findings.rules.registry import ALL_RULES, PACKET_CHECKS, SESSION_CHECKS, RuleCheck
from pipeline.findings.rules.session_facts import PacketFacts, PacketViolation, SessionFacts, whole_sides
from pipeline.findings.session_checkpoints import EvaluatedSpan
from pipeline.transfers.connection_packets import (
    CONNECTION_PARAMETERS,
    ESTABLISH_CONNECTION,
    FINAL_ACK,
    ORDER_ACK,
    SIDES,
    ConnectionPackets,
)
from schemas.findings import FINDINGS
from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME, NONE
from udfs.columns.arrays import to_ints
from udfs.keys import key
from udfs.sessions.acknowledgement_bodies import order_ack_columns
from udfs.sessions.fixed_records import FixedRecords
from udfs.sessions.handshake_packets import (
    connection_parameters_columns,
    establish_connection_columns,
    internal_header_columns,
)

SESSION_SCOPE: Final = "session"
RULE_MODULES: Final = (session_packets,)
"""The modules whose import registers the checks."""
FINDING_MESSAGE_COLUMNS: Final = (
    "packet_key", "source_queue_manager", "destination_queue", "transaction_sequence_id", "class", "message_kind",
    "priority", "delivery", "hop_count", "transactional", "transaction_number", "previous_transaction_number",
    "time_to_reach_queue_s", "time_to_be_received_s", "acknowledgement_requested", "journaling", "privacy_level",
    "errors",
)  # fmt: skip
"""The columns of silver.messages that rules use."""
_CONDITIONS: Final = [check.messages for check in (*PACKET_CHECKS, *SESSION_CHECKS) if check.messages is not None]
EVALUATED_MESSAGES_SQL: Final = f"packet_key IS NOT NULL AND ({' OR '.join(dict.fromkeys(_CONDITIONS))})"
"""The condition of messages that any rule looks at: most express messages are none."""
FINDING_CONNECTION_COLUMNS: Final = (
    "connection_id", "client_address", "client_port", "server_address", "server_port", "tunnel_identifier",
    "first_packet_at", "last_packet_at", "closed_at", "syn_seen", "client_bytes", "server_bytes", "missing_bytes",
    "client_missing_bytes", "server_missing_bytes", "uncaptured_side",
)  # fmt: skip
PACKET_COLUMNS: Final = ("packet_key", "flags", "packet_size", "seen_bytes", "reach", "user_flags", "packet")
"""The columns of bronze.session_packets that rules use beside those of ``arrange_packets``.

``reach`` are the 4 bytes of TimeToReachQueue; ``packet`` is only of packets that are no user messages.
"""
_NUMBER: Final = np.dtype([("value", "<u4")])
_FINDINGS_SCHEMA: Final = FINDINGS.schema()
_ESTABLISH_FIELDS: Final = ("release", "padding_is_5a", "uptime_ms", "pinged")
_PARAMETER_FIELDS: Final = ("recoverable_ack_timeout_ms", "ack_timeout_ms")
_ACK_FIELDS: Final = {
    "requested": "acknowledgement_requested", "body_type": "body_type", "body_bytes": "body_bytes",
    "number": "transaction_number", "previous": "previous_transaction_number", "class": "class",
}  # fmt: skip


def packet_facts(found: ConnectionPackets, messages: pa.Table) -> PacketFacts:
    """Return what rules look at; ``messages``: of the packets, with ``FINDING_MESSAGE_COLUMNS``."""
    table, rows = found.table, len(found.packets)
    fields = {name: to_ints(table[name], NONE) for name in ("flags", "packet_size", "tcp_sequence")}
    for name, column in (("time_to_reach_queue", "reach"), ("user_flags", "user_flags")):
        read = FixedRecords.read(table[column].combine_chunks(), _NUMBER)
        fields[name] = np.where(read.has("value"), read.records["value"].astype(np.int64), NONE)
    internal = fields["flags"] & 8 != 0
    fields |= _decoded(found, np.flatnonzero(internal), internal_header_columns, {"packet_type": "packet_type"})
    refused = _decoded(found, np.flatnonzero(internal), internal_header_columns, {"refused": "refused"})
    establishing = np.flatnonzero(found.is_kind(ESTABLISH_CONNECTION))
    guids = establish_connection_columns(_packets(found, establishing))
    place = np.full(rows, -1, np.int64)
    place[establishing] = np.arange(len(establishing))
    index = pa.array(place, mask=place < 0)
    texts = {name: guids[name].take(index) for name in ("client_guid", "server_guid")}
    named = dict(zip(_ESTABLISH_FIELDS, _ESTABLISH_FIELDS, strict=True))
    fields |= _decoded(found, establishing, establish_connection_columns, named) | refused
    named = dict(zip(_PARAMETER_FIELDS, _PARAMETER_FIELDS, strict=True))
    fields |= _decoded(
        found, np.flatnonzero(found.is_kind(CONNECTION_PARAMETERS)), connection_parameters_columns, named
    )
    fields |= _decoded(found, np.flatnonzero(found.is_kind(ORDER_ACK, FINAL_ACK)), order_ack_columns, _ACK_FIELDS)
    at = pc.index_in(messages["packet_key"], table["packet_key"].combine_chunks())
    ours = plain_columns(messages.select(list(FINDING_MESSAGE_COLUMNS)).filter(at.is_valid())).combine_chunks()
    by_row = dict(zip(at.drop_null().to_pylist(), ours.to_pylist(), strict=True))
    names = ["message_errors" if name == "errors" else name for name in ours.column_names]
    columns = AssociationCallColumns(ours.rename_columns(names), np.zeros(len(ours), np.int64))
    return PacketFacts(found, fields, texts, by_row, columns)


def _packets(found: ConnectionPackets, rows: Ints) -> pa.Array:
    return found.table["packet"].take(pa.array(rows, pa.int64())).combine_chunks()


def _decoded(found: ConnectionPackets, rows: Ints, decode: Any, names: Mapping[str, str]) -> dict[str, Ints]:  # noqa: ANN401 - a decoder of columns
    """Return decoded fields of some rows as numbers over all rows, by their names here."""
    columns = decode(_packets(found, rows))
    out = {}
    for name, column in names.items():
        values = np.full(len(found.packets), NONE, np.int64)
        values[rows] = to_ints(columns[column], NONE)
        out[name] = values
    return out


def read_facts(
    found: ConnectionPackets, connections: pa.Table, sessions: pa.Table, messages: pa.Table,
    capture_ends: Mapping[str, int], not_packets: pa.Table | None = None,
) -> tuple[PacketFacts, list[SessionFacts]]:  # fmt: skip
    """Return what the rules look at: packets, and sessions in the order of ``connections``.

    ``found`` has ``PACKET_COLUMNS`` too. ``connections`` and ``sessions`` have one row for each of its connections.
    ``capture_ends``: by server address, microseconds. ``not_packets``: connection_id, quarantine_key and seen_at of the
    connections' rows of bronze.quarantine with reason not_a_packet.
    """
    stray: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for row in [] if not_packets is None else table_to_rows(not_packets):
        stray[row["connection_id"]].append((row["quarantine_key"], row["seen_at"] or 0))
    facts = packet_facts(found, messages)
    by_id = {row["connection_id"]: row for row in table_to_rows(sessions)}
    seen_bytes = to_ints(found.table["seen_bytes"], NONE)
    out = []
    for row in table_to_rows(connections.select(list(FINDING_CONNECTION_COLUMNS))):
        name = row["connection_id"]
        place = bisect_left(found.connection_ids, name)
        sides = (found.rows_of(place, 0), found.rows_of(place, 1))
        end = max(capture_ends.get(row["server_address"], 0), row["last_packet_at"] or 0)
        whole = whole_sides(found, place, row, seen_bytes)
        out.append(SessionFacts(facts, row, by_id[name], sides, whole, end, stray[name], place))
    return facts, out


def evaluate_sessions(
    facts: PacketFacts, sessions: Iterable[SessionFacts], evaluated: EvaluatedSpan, run_id: str
) -> pa.Table:
    """Evaluate the rules on packets and sessions; return rows of gold.findings, those that are ``evaluated``."""
    violations = [(check, each) for check in PACKET_CHECKS for each in check.check(facts)]
    for session in sessions:
        violations += [(check, each) for check in SESSION_CHECKS for each in check.check(session)]
    found, side = facts.found, facts.found.packets.side
    now = [
        (check, each)
        for check, each in violations
        if evaluated.has(found.connection_ids[side[each.row] // 2], check.rule_id, int(found.packets.sent_at[each.row]))
    ]
    return rows_to_table([*session_finding_rows(found, now, run_id)], _FINDINGS_SCHEMA)


def session_finding_rows(
    found: ConnectionPackets, violations: Iterable[tuple[RuleCheck, PacketViolation]], run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield one row for each rule and packet, the first of several."""
    table, shown_at, done = found.table, found.shown_at, set()
    for check, violation in violations:
        rule, row = ALL_RULES[check.rule_id], violation.row
        keys = [table["packet_key"][each].as_py() for each in (violation.evidence or (row,))]
        packet_key = table["packet_key"][row].as_py()
        finding_key = key(rule.rule_id, packet_key)
        if finding_key in done:
            continue
        done.add(finding_key)
        side = SIDES[int(found.packets.side[row]) % 2]
        subject = f"{side} {table[f'{side}_address'][row].as_py()}"
        sent = int(shown_at[row])
        at = None if sent == NO_TIME else sent
        yield {
            "finding_key": finding_key, "rule_id": rule.rule_id, "source": violation.source or rule.source_for(),
            "severity": rule.severity, "subject": subject, "call_key": None, "packet_key": packet_key,
            "observed_at": at, "message": f"{subject}: {violation.actual}", "expected": rule.requirement,
            "actual": violation.actual, "evidence": list(dict.fromkeys(keys)), "confidence": "complete", "missing": [],
            "errors": [], "connection_id": table["connection_id"][row].as_py(),
            "server_address": table["server_address"][row].as_py(), "scope": SESSION_SCOPE, "queue": None,
            "event_date": epoch_day(at), "run_id": run_id,
        }  # fmt: skip
