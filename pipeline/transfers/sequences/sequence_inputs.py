"""Reads sendings and order acks of sequences from the lake. Sequence ids are texts here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates
from pipeline.transfers.hops.address_queue_managers import HANDSHAKES_SQL, AddressQueueManagers
from pipeline.transfers.hops.missing_packets import HOLES_SQL, HopHoles
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS

CLOCK_SLACK_US: Final = 5_000_000  # SentTime has whole seconds, of the source's clock
MAX_SENDINGS: Final = 1_000_000  # of sequences that are recomputed together; one sequence may have more
ID_SQL: Final = "CAST(transaction_sequence_id AS string)"
IS_TRANSACTIONAL_SQL: Final = "(packet_key IS NOT NULL AND transaction_sequence_id IS NOT NULL)"
"""The condition of messages of the binary protocol with a TransactionHeader."""
_SIZES: Final = f"""
SELECT {ID_SQL} AS id, count(*) AS n, min(unix_micros(seen_at)) AS since
FROM {{messages}} WHERE {IS_TRANSACTIONAL_SQL}"""
_SENDINGS: Final = f"""
SELECT s.packet_key, s.connection_id, s.capture_id, s.stream_offset, s.sent_at, s.server_address, s.sender_address,
  s.receiver_address, s.sender_queue_manager, s.receiver_queue_manager, s.length_bytes, s.complete,
  (s.session_acked_at IS NOT NULL OR s.surely_acknowledged) AS acknowledged, m.source_queue_manager,
  m.destination_queue, m.destination_queue_manager, m.hop_count, m.message_sent_at, m.id AS sequence_id,
  NOT s.handshake_seen AND coalesce(
    unix_micros(m.message_sent_at) - {CLOCK_SLACK_US} < unix_micros(e.first_packet_at), TRUE
  ) AS begun_unseen,
  coalesce(e.overlapping_captures IS NOT NULL AND array_contains(e.missing, 'clock_step'), FALSE) AS of_several_clocks,
  m.transaction_number AS number, m.previous_transaction_number AS previous
FROM (
  SELECT packet_key, source_queue_manager, destination_queue, destination_queue_manager, hop_count,
    transaction_number, sent_at AS message_sent_at, previous_transaction_number, {ID_SQL} AS id
  FROM {{messages}} WHERE {IS_TRANSACTIONAL_SQL}
) AS m JOIN (SELECT * FROM {{sendings}} WHERE sent_at IS NOT NULL) AS s ON s.packet_key = m.packet_key
LEFT JOIN (SELECT connection_id, first_packet_at, overlapping_captures, missing FROM {{sessions}}) AS e
  ON e.connection_id = s.connection_id
WHERE m.id IN {{ids}}"""
_ORDER_ACKS: Final = f"""
SELECT a.packet_key, a.sequence_id, a.transaction_number AS number, a.capture_id, a.sent_at, a.queue_manager,
  a.acknowledged_queue_manager,
  CASE WHEN sent_by = 'client' THEN client_address ELSE server_address END AS sender_address,
  CASE WHEN sent_by = 'client' THEN server_address ELSE client_address END AS receiver_address,
  CASE WHEN sent_by = 'client' THEN initiator_queue_manager ELSE acceptor_queue_manager END AS sender_queue_manager,
  CASE WHEN sent_by = 'client' THEN acceptor_queue_manager ELSE initiator_queue_manager END AS receiver_queue_manager
FROM (
  SELECT *, {ID_SQL} AS sequence_id FROM {{acks}}
  WHERE kind = 'order_ack' AND transaction_number IS NOT NULL AND sent_at IS NOT NULL
    AND {ID_SQL} IN {{ids}}
) AS a LEFT JOIN (SELECT connection_id, initiator_queue_manager, acceptor_queue_manager FROM {{sessions}}) AS s
  ON s.connection_id = a.connection_id"""
_HANDSHAKES: Final = f"SELECT * FROM ({HANDSHAKES_SQL}) WHERE address IN {{addresses}}"


def group_sequences(lake: Lake, ids: Collection[str] | None, since_us: int) -> Iterator[tuple[list[str], int]]:
    """Yield ids of sequences together as long as they have few sendings, and the time of their first one.

    ``ids``: of sequences that have no sending before ``since_us``; None for all.
    """
    sql, inputs = _SIZES, dict[str, QueryInput](messages=MESSAGES)
    if ids is not None:
        sql = f"{_SIZES} AND {ID_SQL} IN {{ids}}"
        inputs = {"messages": RowsOfDates(MESSAGES, DateSpan.of_times(since_us)), "ids": ids}
    found = lake.query(f"{sql} GROUP BY {ID_SQL} ORDER BY since, id", **inputs).to_pydict()
    group: list[str] = []
    total = first = 0
    for name, size, since in zip(found["id"], found["n"], found["since"], strict=True):
        if group and total + size > MAX_SENDINGS:
            yield group, first
            group, total = [], 0
        first = first if group else since
        group.append(name)
        total += size
    if group:
        yield group, first


def read_sendings(lake: Lake, ids: Collection[str], since_us: int, capture_ends: Mapping[str, int]) -> pa.Table:
    """Return the sendings of some sequences, with the columns that ``sequence_rows`` needs; their times are known.

    ``since_us``: none is before it. ``capture_ends``: by server, microseconds.
    """
    messages, sendings = (RowsOfDates(table, DateSpan.of_times(since_us)) for table in (MESSAGES, SENDINGS))
    found = lake.query(_SENDINGS, messages=messages, sendings=sendings, sessions=SESSIONS, ids=ids)
    ends = pa.array(capture_ends.values(), pa.int64())
    place = pc.index_in(found["server_address"], pa.array(capture_ends.keys(), pa.string()))
    return found.append_column("capture_end", pc.coalesce(ends.take(place), times_to_us(found["sent_at"])))


def read_order_acks(lake: Lake, ids: Collection[str], since_us: int) -> pa.Table:
    """Return the order acks that name some sequences, from a time on."""
    acks = RowsOfDates(ORDER_ACKS, DateSpan.of_times(since_us))
    return lake.query(_ORDER_ACKS, acks=acks, sessions=SESSIONS, ids=ids)


def read_missing_packets(lake: Lake, clones: Collection[str] = ()) -> HopHoles:
    """Return where packets may be missing, of all sessions; ``clones``: identifiers of two machines."""
    return HopHoles.of(lake.query(HOLES_SQL, rows=SESSIONS), clones)


def fill_queue_managers(lake: Lake, first_sendings: pa.Table, expire_us: int) -> pa.Table:
    """Return sendings with the queue managers of both ends, where their own sessions do not show them.

    These are the ones that all handshakes of the address show at most ``expire_us`` (pending.expire) before or after.
    """
    unknown = {end: first_sendings[f"{end}_queue_manager"].is_null() for end in ("sender", "receiver")}
    addresses = {
        address
        for end, rows in unknown.items()
        for address in pc.unique(first_sendings[f"{end}_address"].filter(rows)).to_pylist()
    }
    if not addresses:
        return first_sendings
    handshakes = lake.query(_HANDSHAKES, rows=SESSIONS, addresses=addresses)
    known = AddressQueueManagers.of(handshakes, expire_us)
    at = np.asarray(times_to_us(first_sendings["sent_at"]).combine_chunks(), np.int64)
    for end in unknown:
        name, addresses_of_end = f"{end}_queue_manager", first_sendings[f"{end}_address"].combine_chunks()
        filled = pc.coalesce(first_sendings[name].combine_chunks(), known.at(addresses_of_end, at))
        first_sendings = first_sendings.set_column(first_sendings.column_names.index(name), name, filled)
    return first_sendings
