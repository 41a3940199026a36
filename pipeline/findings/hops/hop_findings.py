"""Rules over several sessions: T21, T23, T26, T28 of a hop (from one queue manager to another), O07 -> gold.findings.

What they look at crosses connections: a rule is evaluated for the sequences, messages and queues that changed sessions
are about, over all sessions of the last transfers.wait. Queries find the few rows that break a rule. What goes from one
queue manager to another is one hop, from whatever address (``hop_key`` of the transfers); so it is from one address to
another where there is no transfer. Clocks of captures may differ: which of two packets was sent first must be certain
(``PacketOrder``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import epoch_day, is_in, rows_to_table, table_to_rows
from pipeline.findings.hops.cloned_machines import HandshakeRequest, find_clones
from pipeline.findings.rules.registry import ALL_RULES, hop_rule
from pipeline.lake.lake import Lake
from pipeline.transfers.hops.hop_keys import CLONE_SUBJECT, HOP_COLUMNS
from pipeline.transfers.hops.missing_packets import HopHoles, read_holes
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.packet_order import CLOCKS_APART_US, PacketOrder
from pipeline.transfers.sequences.sequence_inputs import CLOCK_SLACK_US
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SESSION_PACKETS, SESSIONS
from schemas.table import Table
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.array_types import Bools
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE, NEGATIVE_CLASS_BIT, RECEIVE_CLASS_BIT
from udfs.columns.absent import BEFORE_ALL
from udfs.keys import key
from udfs.rows import RowDict
from udfs.sessions.packet_layouts import MIN_MESSAGE_BYTES
from udfs.times import DAY_US, SECOND_US

HOP_SCOPE: Final = "hop"
FALLING_RULES: Final = ("T21", "T23")
"""The rules on a number that is lower than an earlier one."""
_EXPIRY_SLACK_S: Final = 5
_FINDINGS_SCHEMA: Final = FINDINGS.schema()
# Messages of the binary protocol as they were sent: on which hop, by which end's queue manager.
_SENDINGS: Final = """
SELECT m.packet_key, m.connection_id, m.seen_at, m.sender_address, s.client_address, s.server_address, m.message_key,
  m.source_queue_manager, m.destination_queue, m.transaction_sequence_id, m.sent_at, m.time_to_reach_queue_s,
  m.message_kind, m.class, m.correlation_id,
  CASE WHEN m.sender_address = s.client_address THEN 'client' ELSE 'server' END AS sent_by,
  CASE WHEN m.sender_address = s.client_address THEN s.server_address ELSE s.client_address END AS receiver_address,
  CASE WHEN m.sender_address = s.client_address THEN s.initiator_queue_manager ELSE s.acceptor_queue_manager END
    AS sender_queue_manager,
  CASE WHEN m.sender_address = s.client_address THEN s.acceptor_queue_manager ELSE s.initiator_queue_manager END
    AS receiver_queue_manager
FROM {messages} AS m JOIN {sessions} AS s ON s.connection_id = m.connection_id
WHERE m.packet_key IS NOT NULL"""
_SENDINGS_OF_HOPS: Final = f"""
SELECT s.*, coalesce(t.hop_key, s.sender_address || ' ' || s.receiver_address) AS hop
FROM ({_SENDINGS} AND {{condition}}) AS s LEFT JOIN (
  SELECT message_key, destination_queue, sender_address, receiver_address, hop_key FROM {{transfers}} AS m
  WHERE {{of_transfers}}
) AS t ON t.message_key = s.message_key AND coalesce(t.destination_queue, '') = coalesce(s.destination_queue, '')
  AND t.sender_address = s.sender_address AND t.receiver_address = s.receiver_address"""
_SEQUENCE_ID: Final = "CAST(transaction_sequence_id AS string)"
_ACKS: Final = f"""
SELECT a.*, coalesce(t.hop_key, a.receiver_address || ' ' || a.sender_address) AS hop FROM (
  SELECT *, CASE WHEN sent_by = 'client' THEN client_address ELSE server_address END AS sender_address,
    CASE WHEN sent_by = 'client' THEN server_address ELSE client_address END AS receiver_address
  FROM {{acks}} WHERE kind = 'order_ack' AND {{near}}
) AS a LEFT JOIN (
  SELECT transaction_sequence_id, sender_address, receiver_address, min(hop_key) AS hop_key FROM {{sequences}}
  WHERE {_SEQUENCE_ID} IN (SELECT name FROM {{spans}})
  GROUP BY transaction_sequence_id, sender_address, receiver_address
) AS t ON t.transaction_sequence_id = a.transaction_sequence_id
  AND t.sender_address = a.receiver_address AND t.receiver_address = a.sender_address"""


class _SeriesSpans(NamedTuple):
    """From when to when changed sessions carried packets of some series: ``name``, ``since``, ``until``, microseconds.

    There is one row for each series. ``first_at``: the earliest time of all.
    """

    rows: pa.Table
    first_at: int

    def near_sql(self, name: str, at: str, before_s: int, after_s: int) -> str:
        """Return the SQL condition of rows with the name of a series, at a time within so many seconds of its span.

        ``{spans}`` stands for ``rows``.
        """
        before_us, after_us = before_s * SECOND_US, after_s * SECOND_US
        return f"""{at} >= timestamp_micros({self.first_at - before_us}) AND EXISTS (
  SELECT 1 FROM {{spans}} AS spans WHERE spans.name = {name}
    AND unix_micros({at}) >= spans.since - {before_us} AND unix_micros({at}) <= spans.until + {after_us})"""


class HopViolation(NamedTuple):
    """A packet that breaks a rule: its row with packet_key, connection_id, sent_by, both addresses and time.

    ``missing``: as in gold.findings.
    """

    row: Mapping[str, Any]
    actual: str
    evidence: tuple[str, ...]
    subject: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HopFacts:
    """What changed sessions are about, and how far back rules look: ``wait_s`` (transfers.wait, seconds).

    ``since_us``: since when packets of these sessions count for ``FALLING_RULES``, microseconds.
    """

    lake: Lake
    connections: pa.Array
    wait_s: int
    since_us: int = BEFORE_ALL

    def query(self, sql: str, **inputs: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - inputs of a query
        """Return the answer to a query over tables of silver and of transfers; times are microseconds."""
        return table_to_rows(self.lake.query(sql, **_tables_in(sql), **inputs))

    def in_order(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows whose packet was certainly sent after the packet ``before``."""
        order = PacketOrder.read(self.lake, {row[name] for row in rows for name in ("packet_key", "before")})
        return [row for row in rows if order.is_certain(row["before"], row["packet_key"])]

    def first_on_hop(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the sendings that were certainly the first captured ones of their messages, queues and hops.

        ``missing`` of each has capture_loss where a hole between the same machines may hold an earlier one.
        """
        keys = {row["message_key"] for row in rows} - {None}
        found = self.query(_sendings_of_hops("m.message_key IN {keys}"), keys=keys) if keys else []
        same: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
        for each in found:
            same[each["message_key"], each["destination_queue"], each["hop"]].append(each["packet_key"])
        of_packet = {name: names for names in same.values() for name in names}
        order = PacketOrder.read(self.lake, {other for row in rows for other in of_packet.get(row["packet_key"], ())})
        first = [
            row
            for row in rows
            if row["message_key"] is not None
            and all(
                order.is_certain(row["packet_key"], other)
                for other in of_packet.get(row["packet_key"], ())
                if other != row["packet_key"]
            )
        ]
        lost = self._may_be_sent_before(first) if first else ()
        return [row | {"missing": ("capture_loss",) if each else ()} for row, each in zip(first, lost, strict=True)]

    def _may_be_sent_before(self, rows: list[dict[str, Any]]) -> Bools:
        """Return for each sending whether a hole may hold an earlier one: behind the time when the message was made."""
        hops = {name: pa.array([row[name] for row in rows], pa.string()) for name in HOP_COLUMNS}
        made_at = np.array([BEFORE_ALL if row["sent_at"] is None else row["sent_at"] for row in rows], np.int64)
        seen_at = np.array([row["seen_at"] for row in rows], np.int64)
        since = np.minimum(made_at - CLOCK_SLACK_US, seen_at)
        holes = HopHoles.of(read_holes(self.lake, TimeSpan(int(since.min()), int(seen_at.max()))))
        return holes.may_hold(hops, np.full(len(rows), MIN_MESSAGE_BYTES), since, seen_at)

    def spans_of(self, packets: str) -> _SeriesSpans | None:
        """Return the spans of the packets of changed sessions, by series; None without any.

        ``packets`` is a query with the ``name`` of the series, ``connection_id`` and ``at``.
        """
        since = f"timestamp_micros({self.since_us})"
        of_sessions = f"name IS NOT NULL AND `at` >= {since} AND connection_id IN {{names}}"
        sql = f"""
SELECT name, unix_micros(min(`at`)) AS since, unix_micros(max(`at`)) AS until FROM ({packets}) AS packets
WHERE {of_sessions} GROUP BY name"""
        rows = self.lake.query(sql, names=self.connections, **_tables_in(sql))
        return _SeriesSpans(rows, pc.min(rows["since"]).as_py()) if rows.num_rows else None

    def spans_with_falls(
        self, packets: str, spans: _SeriesSpans, *, number: str, within: str, at: str
    ) -> _SeriesSpans | None:
        """Return the spans of the series in which a number falls, if only among packets of several hops; None if none.

        They are few, so that only their packets are read with all columns. ``packets`` is a query for the ``name`` of
        the series and the columns of the other parameters, which are those of ``falling``.
        """
        sql = f"SELECT DISTINCT name FROM ({self._with_highest(packets, number, within, at)}) WHERE {number} < highest"
        falls = self.lake.query(sql, spans=spans.rows, **_tables_in(packets))["name"].to_pylist()
        return spans._replace(rows=spans.rows.filter(is_in(spans.rows, "name", falls))) if falls else None

    def falling(
        self, packets: str, spans: _SeriesSpans, *, number: str, within: str, name: str, at: str
    ) -> list[RowDict]:
        """Return the packets with a lower ``number`` than one before, ``within`` the same, as far as rules look back.

        ``packets`` is a query for all packets since transfers.wait before the spans; ``name`` and ``at`` are the SQL of
        their series and time. Rows have the ``highest`` number before, and its packet, ``before``.
        """
        before = f", max_by(packet_key, {number}) OVER earlier AS before"
        sql = f"""
SELECT * FROM ({self._with_highest(packets, number, within, at, before)})
WHERE {number} < highest AND {spans.near_sql(name, at, 0, self.wait_s)}"""
        return self.in_order(self.query(sql, spans=spans.rows))

    def _with_highest(self, packets: str, number: str, within: str, at: str, more: str = "") -> str:
        """Return the query for packets with the ``highest`` number up to each, ``within`` the same.

        ``more``: further columns; their window is ``earlier``.
        """
        frame = f"RANGE BETWEEN INTERVAL {self.wait_s} SECONDS PRECEDING AND CURRENT ROW"
        return f"""
SELECT *, max({number}) OVER earlier AS highest{more} FROM ({packets})
WINDOW earlier AS (PARTITION BY {within} ORDER BY {at} {frame})"""


_TABLES: Final = {
    "messages": MESSAGES, "sessions": SESSIONS, "acks": ORDER_ACKS, "packets": SESSION_PACKETS,
    "transfers": MESSAGE_TRANSFERS, "sequences": TRANSFER_SEQUENCES,
}  # fmt: skip


def _tables_in(sql: str) -> dict[str, Table]:
    """Return the tables that a query names."""
    return {name: table for name, table in _TABLES.items() if f"{{{name}}}" in sql}


def _sendings_of_hops(condition: str, of_transfers: str = "") -> str:
    """Return the query for the sendings of messages ``m`` that meet a condition, each with its hop.

    ``of_transfers``: a condition that the transfers ``m`` of these messages meet, by default the same.
    """
    return _SENDINGS_OF_HOPS.replace("{condition}", condition).replace("{of_transfers}", of_transfers or condition)


@hop_rule("T21", "both order acks were captured, by clocks of which it is known which was sent first")
def order_ack_falls(facts: HopFacts) -> Iterator[HopViolation]:
    """An order ack acknowledges a lower number than an earlier one of the same sequence id and hop."""
    spans = facts.spans_of(f"SELECT {_SEQUENCE_ID} AS name, connection_id, sent_at AS `at` FROM {{acks}}")
    if spans is None:
        return
    acks = _ACKS.replace("{near}", spans.near_sql(_SEQUENCE_ID, "sent_at", facts.wait_s, facts.wait_s))
    series = "transaction_sequence_id, hop"
    for row in facts.falling(acks, spans, number="transaction_number", within=series, name=_SEQUENCE_ID, at="sent_at"):
        actual = f"number {row['transaction_number']} after {row['highest']}"
        yield HopViolation(row, actual, (row["before"], row["packet_key"]))


@hop_rule(
    "T23",
    "both sendings, and the sender's handshake, were captured, by clocks of which it is known which was sent first;"
    " partial where an earlier sending may be missing",
)
def lower_sequence_sent(facts: HopFacts) -> Iterator[HopViolation]:
    """A message is first sent, by its source, in a lower sequence than an earlier one for the same queue and hop."""
    in_sequences = "FROM {messages} AS m WHERE packet_key IS NOT NULL AND transaction_sequence_id IS NOT NULL"
    spans = facts.spans_of(f"SELECT destination_queue AS name, connection_id, seen_at AS `at` {in_sequences}")
    if spans is None:
        return
    number, series = "transaction_sequence_id", "source_queue_manager, destination_queue"
    near = spans.near_sql("m.destination_queue", "m.seen_at", facts.wait_s, facts.wait_s)
    numbers = f"SELECT destination_queue AS name, {series}, {number}, seen_at {in_sequences} AND {near}"
    spans = facts.spans_with_falls(numbers, spans, number=number, within=series, at="seen_at")
    if spans is None:
        return
    sent_since = f"m.last_sent_at >= timestamp_micros({spans.first_at - facts.wait_s * SECOND_US})"
    of_queues = f"{sent_since} AND m.destination_queue IN (SELECT name FROM {{spans}})"
    own = "transaction_sequence_id IS NOT NULL AND sender_queue_manager = source_queue_manager"
    sendings = f"SELECT * FROM ({_sendings_of_hops(near, of_queues)}) WHERE {own}"
    fallen = facts.falling(
        sendings, spans, number=number, within=f"{series}, hop", name="destination_queue", at="seen_at"
    )
    for row in facts.first_on_hop(fallen):
        actual = f"sequence {int(row['transaction_sequence_id'])} after {int(row['highest'])}"
        yield HopViolation(row, actual, (row["before"], row["packet_key"]), missing=row["missing"])


@hop_rule(
    "T26",
    "its first sending on the hop was captured, it is known which of several it is, and the times of its session are of"
    " one clock; partial where an earlier one may be missing",
)
def expired_message_sent(facts: HopFacts) -> Iterator[HopViolation]:
    """A message is first sent on a hop more than 5 s after its time to reach the queue had passed."""
    late = f"""
{_SENDINGS} AND m.time_to_reach_queue_s IS NOT NULL AND NOT coalesce(array_contains(s.missing, 'clock_step'), FALSE)
  AND unix_micros(m.seen_at) > unix_micros(m.sent_at) + (m.time_to_reach_queue_s + {_EXPIRY_SLACK_S}) * 1000000"""
    for row in facts.first_on_hop(facts.query(f"{late} AND m.connection_id IN {{names}}", names=facts.connections)):
        after = (row["seen_at"] - row["sent_at"]) / 1_000_000 - row["time_to_reach_queue_s"]
        actual = f"sent {after:.0f} s after its time was over"
        yield HopViolation(row, actual, (row["packet_key"],), missing=row["missing"])


@hop_rule("T28", "the message was captured before its acknowledgement, by clocks of which it is known that it was")
def acknowledgement_not_asked_for(facts: HopFacts) -> Iterator[HopViolation]:
    """An administration ack is of a kind that its message, seen earlier, did not ask for."""
    sql = f"{_SENDINGS} AND m.message_kind = 'administration_ack' AND m.correlation_id IS NOT NULL"
    acks = facts.query(f"{sql} AND m.seen_at IS NOT NULL AND m.connection_id IN {{names}}", names=facts.connections)
    names = {row["correlation_id"] for row in acks}
    sql = """
SELECT message_id, seen_at, acknowledgement_requested, coalesce(packet_key, call_key) AS seen_by FROM {messages}
WHERE message_id IN {ids} AND acknowledgement_requested IS NOT NULL AND message_kind <> 'administration_ack'"""
    messages: dict[str, list[dict[str, Any]]] = {}
    for row in facts.query(sql, ids=names) if names else ():
        messages.setdefault(row["message_id"], []).append(row)
    every = [row["seen_by"] for rows in messages.values() for row in rows]
    order = PacketOrder.read(facts.lake, {*every, *(row["packet_key"] for row in acks)})

    def certain(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        names = before["seen_by"], after["seen_by"]
        if order.packets.keys() >= {*names}:
            return order.is_certain(*names)
        return bool(before["seen_at"] + CLOCKS_APART_US <= after["seen_at"])  # a call, by whatever clock

    for found in acks:
        ack = found | {"seen_by": found["packet_key"]}
        since, needed = ack["seen_at"] - facts.wait_s * 1_000_000, _needed_flag(ack["class"])
        named = messages.get(ack["correlation_id"], ())
        seen = [row for row in named if row["seen_at"] is not None and row["seen_at"] >= since]
        before = [row for row in seen if certain(row, ack)]
        last = max(before, key=lambda row: (row["seen_at"], row["seen_by"]), default=None)
        if last is None:
            continue
        # Others of its identifier that may have been sent behind it and before the acknowledgement may have asked.
        perhaps = [row for row in seen if not certain(row, last) and not certain(ack, row)]
        perhaps += [row for row in named if row["seen_at"] is None]
        if not any(row["acknowledgement_requested"] & needed for row in (last, *perhaps)):
            actual = f"class 0x{ack['class']:04X}, asked for 0x{last['acknowledgement_requested']:X}"
            yield HopViolation(found, actual, (last["seen_by"], ack["packet_key"]))


def _needed_flag(kind: int) -> int:
    """Return the bit of Properties.Flags that asks for an administration ack of a class ([MS-MQMQ] 2.2.19.3)."""
    if kind & NEGATIVE_CLASS_BIT:
        return 8 if kind & RECEIVE_CLASS_BIT else 4
    return 2 if kind == MQMSG_CLASS_ACK_RECEIVE else 1


_REQUESTS: Final = f"""
SELECT s.connection_id, s.initiator_queue_manager, s.client_address AS sender_address, s.server_address,
  s.initiator_uptime_ms, s.establish_requested_at AS sent_at, s.establish_requested_at AS seen_at, 'client' AS sent_by,
  min(CASE WHEN p.kind = 'establish_connection' AND p.sent_at = s.establish_requested_at THEN p.packet_key END)
    AS packet_key, max(p.sent_at) AS last_sent_at
FROM {{sessions}} AS s JOIN {{packets}} AS p ON p.connection_id = s.connection_id
WHERE s.initiator_queue_manager IN {{ids}} AND s.initiator_uptime_ms IS NOT NULL AND p.sent_by = 'client'
  AND unix_micros(s.last_packet_at) >= {{since}} - {DAY_US}
GROUP BY s.connection_id, s.initiator_queue_manager, s.client_address, s.server_address, s.initiator_uptime_ms,
  s.establish_requested_at"""


@hop_rule("O07", "requests of both were captured")
def cloned_machines(facts: HopFacts) -> Iterator[HopViolation]:
    """Requests with one ClientGuid show two machine starts that take turns, or whose sessions overlap."""
    sql = """
SELECT DISTINCT initiator_queue_manager AS id, unix_micros(establish_requested_at) AS at FROM {sessions}
WHERE connection_id IN {names} AND initiator_uptime_ms IS NOT NULL AND establish_requested_at IS NOT NULL"""
    known = facts.query(sql, names=facts.connections)
    ids = {row["id"] for row in known} - {None}
    sql = _REQUESTS.replace("{since}", str(min((row["at"] for row in known), default=0)))
    rows = [row for row in facts.query(sql, ids=ids) if row["packet_key"] is not None] if ids else []
    order = PacketOrder.read(facts.lake, {row["packet_key"] for row in rows})
    by_identifier: defaultdict[str, dict[str, RowDict]] = defaultdict(dict)
    for row in rows:
        by_identifier[row["initiator_queue_manager"]][row["packet_key"]] = row
    for identifier, ours in sorted(by_identifier.items()):
        requests = [
            HandshakeRequest(name, row["sent_at"], row["initiator_uptime_ms"], row["last_sent_at"] or row["sent_at"])
            for name, row in ours.items()
        ]
        for found in find_clones(requests, order.clocks_apart_us(ours)):
            subject = f"{CLONE_SUBJECT}{identifier}"
            yield HopViolation(ours[found.request.packet_key], found.actual, found.evidence, subject)


HopCheck = Callable[[HopFacts], Iterator[HopViolation]]


def hop_finding_rows(violations: Iterator[tuple[str, HopViolation]], run_id: str) -> pa.Table:
    """Return the rows of gold.findings for violations, each with its rule id."""
    rows = {}
    for rule_id, violation in violations:
        rule, row = ALL_RULES[rule_id], violation.row
        at = row["sent_at"] if rule_id == "T21" else row["seen_at"]
        subject = violation.subject or f"{row['sent_by']} {row['sender_address']}"
        finding = {
            "finding_key": key(rule_id, row["packet_key"]), "rule_id": rule_id, "source": rule.sources[0],
            "severity": rule.severity, "subject": subject, "call_key": None, "packet_key": row["packet_key"],
            "observed_at": at, "message": f"{subject}: {violation.actual}", "expected": rule.requirement,
            "actual": violation.actual, "evidence": list(dict.fromkeys(violation.evidence)),
            "confidence": "partial" if violation.missing else "complete", "missing": [*violation.missing],
            "errors": [], "connection_id": row["connection_id"], "server_address": row["server_address"],
            "scope": HOP_SCOPE, "queue": None, "event_date": epoch_day(at), "run_id": run_id,
        }  # fmt: skip
        rows[finding["finding_key"]] = finding
    return rows_to_table([*rows.values()], _FINDINGS_SCHEMA)
