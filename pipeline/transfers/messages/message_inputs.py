"""Reads what rows of gold.message_transfers are made of: sendings with their messages, acknowledgements, reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput
from pipeline.transfers.hops.address_queue_managers import HANDSHAKES_SQL
from pipeline.transfers.hops.missing_packets import HOLES_SQL
from pipeline.transfers.inputs import read_set_by
from pipeline.transfers.messages.sender_clocks import read_clocks
from pipeline.transfers.packet_order import PacketOrder
from schemas.bronze import RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from udfs.columns.codes import row_codes

APPLICATION_IDS: Final = ("application_message_id", "conversation_id", "sent_types")
"""What the application's headers say of a message, by which people look for it."""
MESSAGE_INPUTS: Final = (
    "message_key", "message_id", "message_ordinal", "message_kind", "class", "class_name", "source_queue_manager",
    "destination_queue", "destination_queue_manager", "delivery", "transactional", "body_bytes",
    "acknowledgement_requested", "journaling", "hop_count", "transaction_number", "time_to_reach_queue_s",
    "final_acknowledgement_requested", "admin_queue", *APPLICATION_IDS,
)  # fmt: skip
_SENDING_COLUMNS: Final = (
    "packet_key", "connection_id", "capture_id", "server_address", "sender_address", "receiver_address",
    "sender_queue_manager", "receiver_queue_manager", "sent_at", "transmit_ms", "length_bytes", "complete",
    "session_number", "session_acked_at", "session_acked_by", "session_acked_in", "stored_at", "stored_by", "stored_in",
    "surely_acknowledged", "acknowledgement_may_be_missing", "unnumbered_by_loss", "handshake_seen",
)  # fmt: skip
_SENDINGS: Final = f"""
SELECT {", ".join(f"s.{name}" for name in _SENDING_COLUMNS)}, {", ".join(f"m.{name}" for name in MESSAGE_INPUTS)},
  CAST(m.transaction_sequence_id AS string) AS sequence_id, m.sent_at AS message_sent_at,
  size(m.errors) > 0 AS has_errors, coalesce(size(m.destination_list) > 1, FALSE) AS names_copies,
  e.ended IS NULL AND e.connection_id IS NOT NULL AS is_open, e.last_packet_at
FROM {{sendings}} AS s JOIN {{messages}} AS m ON m.packet_key = s.packet_key
LEFT JOIN {{sessions}} AS e ON e.connection_id = s.connection_id
WHERE m.message_key IS NOT NULL AND m.message_id IS NOT NULL AND {{scope}}
ORDER BY m.message_key, m.destination_queue, s.sender_address, s.receiver_address, s.sent_at IS NULL, s.sent_at,
  s.packet_key"""
_ORDER_ACKS: Final = """
SELECT packet_key, connection_id, capture_id, sent_at AS seen_at, kind, class, class_name, queue_manager,
  acknowledged_queue_manager, CAST(transaction_sequence_id AS string) AS sequence_id, transaction_number,
  acknowledged_message_id AS message_id, packet_key AS seen_by,
  CASE WHEN sent_by = 'client' THEN client_address ELSE server_address END AS sender_address,
  CASE WHEN sent_by = 'client' THEN server_address ELSE client_address END AS receiver_address
FROM {acks}
WHERE sent_at IS NOT NULL AND ((kind = 'order_ack' AND transaction_number IS NOT NULL
  AND CAST(transaction_sequence_id AS string) IN (SELECT value FROM {sequences}))
  OR (kind = 'final_ack' AND acknowledged_message_id IN (SELECT value FROM {ids})))
ORDER BY sent_at, packet_key"""
_ADMINISTRATION_ACKS: Final = """
SELECT m.call_key, m.packet_key, coalesce(m.packet_key, m.call_key) AS seen_by, m.connection_id, m.seen_at, m.class,
  m.class_name, m.correlation_id AS message_id, m.response_queue, s.capture_id
FROM (
  SELECT * FROM {messages} WHERE message_kind = 'administration_ack' AND seen_at IS NOT NULL
    AND correlation_id IN (SELECT value FROM {ids})
) AS m LEFT JOIN {sendings} AS s ON s.packet_key = m.packet_key
ORDER BY m.seen_at, seen_by"""
_REPORTS: Final = """
SELECT prefix, ordinal, hop_count, next_hop, seen_at, queue_manager, seen_by FROM (
  SELECT report.source_prefix AS prefix, CAST(report.message_ordinal AS string) AS ordinal,
    report.hop_count AS hop_count, report.next_hop AS next_hop, seen_at, source_queue_manager AS queue_manager,
    coalesce(packet_key, call_key) AS seen_by, row_number() OVER (
      PARTITION BY coalesce(message_key, sighting_key), report.source_prefix, report.message_ordinal
      ORDER BY seen_at, coalesce(packet_key, call_key)
    ) AS place
  FROM {messages} WHERE report IS NOT NULL AND seen_at IS NOT NULL
    AND report.message_ordinal IN (SELECT value FROM {ordinals})
) WHERE place = 1 ORDER BY seen_at, seen_by"""
_HANDSHAKES: Final = (
    f"SELECT * FROM ({HANDSHAKES_SQL}) WHERE queue_manager IS NOT NULL AND shown_at IS NOT NULL"
    " AND address IN (SELECT value FROM {addresses})"
)
_OVERLAPS: Final = """
SELECT connection_id, overlapping_captures, array_contains(missing, 'clock_step') AS clocks_differ FROM {rows}
WHERE overlapping_captures IS NOT NULL"""
_CALL_CAPTURES: Final = "SELECT call_key, response_capture_id FROM {calls} WHERE call_key IN {keys}"


@dataclass(frozen=True, slots=True)
class TransferInputs:
    """What the rows of some messages are made of. Times are timestamps.

    ``sendings`` are in the order of rows: by message_key, destination queue and hop, then of time and packet key; the
    others in order of time. ``overlaps``: connections with the pairs of captures that saw them side by side, and
    whether their clocks are known to differ. ``holes``: of all sessions. ``clocks``: least transits of the messages'
    sources, by day. ``steps``: between which times clocks were set (``ClockSteps.spans``). ``order``: which was sent
    first, of the sendings of a message on a hop whose times are of several captures, or of one whose clock was set.
    """

    sendings: pa.Table
    order_acks: pa.Table
    administration_acks: pa.Table
    reports: pa.Table
    handshakes: pa.Table
    overlaps: pa.Table
    holes: pa.Table
    clocks: pa.Table
    capture_ends: Mapping[str, int]  # by server, microseconds
    steps: Sequence[tuple[str, int, int]] = ()
    set_by: Mapping[str, int] = field(default_factory=dict)  # by server, how far clocks were set, microseconds
    order: PacketOrder = field(default_factory=PacketOrder)


def read_transfer_inputs(
    lake: Lake, capture_ends: Mapping[str, int], scope: str = "TRUE", **values: QueryInput
) -> TransferInputs:
    """Read the sendings of messages that meet a condition on silver.messages, ``m``, and what belongs to them.

    The condition must take all or no sendings of a message_id. ``values`` are what it names in braces.
    """
    sql = _SENDINGS.replace("{scope}", scope)
    sendings = lake.query(sql, sendings=SENDINGS, messages=MESSAGES, sessions=SESSIONS, **values)
    ids, sequences = _values(sendings["message_id"]), _values(sendings["sequence_id"])
    ordinals = pa.table({"value": pc.unique(sendings["message_ordinal"]).drop_null()})
    unknown = [
        sendings[f"{end}_address"].filter(sendings[f"{end}_queue_manager"].is_null()) for end in ("sender", "receiver")
    ]
    addresses = _values(pa.chunked_array([*unknown[0].chunks, *unknown[1].chunks], pa.string()))
    administration_acks = lake.query(_ADMINISTRATION_ACKS, messages=MESSAGES, sendings=SENDINGS, ids=ids)
    overlaps, steps = lake.query(_OVERLAPS, rows=SESSIONS), read_clock_steps(lake)
    if overlaps.num_rows:
        administration_acks = _with_captures_of_calls(lake, administration_acks)
    return TransferInputs(
        sendings,
        lake.query(_ORDER_ACKS, acks=ORDER_ACKS, sequences=sequences, ids=ids),
        administration_acks,
        lake.query(_REPORTS, messages=MESSAGES, ordinals=ordinals),
        lake.query(_HANDSHAKES, rows=SESSIONS, addresses=addresses),
        overlaps,
        lake.query(HOLES_SQL, rows=SESSIONS),
        read_clocks(
            lake, sendings["source_queue_manager"], sendings["sent_at"].cast(pa.timestamp("us")).cast(pa.date32())
        ),
        capture_ends,
        steps.spans(),
        read_set_by(lake),
        PacketOrder.read(lake, _keys_of_several_clocks(sendings, {name for name, _, _ in steps.set_by()})),
    )


def _keys_of_several_clocks(sendings: pa.Table, stepped: Collection[str]) -> set[str]:
    """Return the packets of messages that several captures show to be sent on one hop, or one whose clock was set."""
    found: defaultdict[tuple[Any, ...], list[tuple[str, str]]] = defaultdict(list)
    names = ("packet_key", "capture_id", "message_key", "destination_queue", "sender_address", "receiver_address")
    codes = row_codes(sendings[name] for name in names[2:])
    sendings = sendings.filter(pa.array(np.bincount(codes)[codes] > 1))
    for key, capture, *row in zip(*(sendings[name].to_pylist() for name in names), strict=True):
        found[tuple(row)].append((key, capture))
    unclear = (
        each
        for each in found.values()
        if len({*each}) > 1 and (len({name for _, name in each}) > 1 or each[0][1] in stepped)
    )
    return {key for each in unclear for key, _ in each}


def _values(column: pa.ChunkedArray) -> pa.Table:
    return pa.table({"value": pc.unique(column).drop_null().cast(pa.string())})


def _with_captures_of_calls(lake: Lake, acks: pa.Table) -> pa.Table:
    """Return administration acks with the captures in which the answers of calls brought them."""
    keys = set(acks["call_key"].drop_null().to_pylist())
    if not keys:
        return acks
    calls = lake.query(_CALL_CAPTURES, calls=RPC_CALLS, keys=keys)
    captures: Any = calls["response_capture_id"].take(pc.index_in(acks["call_key"], calls["call_key"].combine_chunks()))
    place = acks.column_names.index("capture_id")
    return acks.set_column(place, "capture_id", pc.coalesce(acks["capture_id"], captures))
