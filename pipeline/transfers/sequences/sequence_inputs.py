"""Reads sendings and order acks of sequences, by groups of sequences. Sequence ids are texts here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import Dates, DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from pipeline.lake.stage_groups import bucket_sql
from pipeline.transfers.hops.address_queue_managers import read_handshakes
from pipeline.transfers.hops.missing_packets import HopHoles, read_holes
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.sequences.order_ack_matches import acknowledged_groups
from pipeline.transfers.sequences.sequence_context import SequenceContext, SequenceSettings
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.columns.arrays import to_ints
from udfs.times import DAY_US, timedelta_to_us

CLOCK_SLACK_US: Final = 5_000_000  # SentTime has whole seconds, of the source's clock
MAX_SENDINGS: Final = 1_000_000  # of sequences that are recomputed together; those of one group may have more
ID_SQL: Final = "CAST(transaction_sequence_id AS string)"
IS_TRANSACTIONAL_SQL: Final = "(packet_key IS NOT NULL AND transaction_sequence_id IS NOT NULL)"
"""The condition of messages of the binary protocol with a TransactionHeader."""
_FLOW: Final = "concat_ws(' ', coalesce(source_queue_manager, ''), coalesce(destination_queue, ''))"
_GROUP: Final = bucket_sql(_FLOW, digits=4)
_GROUPED_SEQUENCES: Final = f"""
SELECT id, source_queue_manager, bucket, sum(n) AS n, min(first_at) AS first_at, max(last_at) AS last_at,
  min(made_at) AS made_at FROM (
  SELECT {ID_SQL} AS id, source_queue_manager, {_GROUP}, count(*) AS n, min(seen_at) AS first_at,
    max(seen_at) AS last_at, min(sent_at) AS made_at
  FROM {{messages}} WHERE {IS_TRANSACTIONAL_SQL} AND {{scope}}
  GROUP BY transaction_sequence_id, source_queue_manager, destination_queue
) GROUP BY id, source_queue_manager, bucket"""
"""SQL over silver.messages: the groups of sequences whose messages meet the condition ``{scope}``, and how many these
are. What one source sends to one queue is in one group."""
_SENDINGS: Final = f"""
SELECT s.packet_key, s.connection_id, s.capture_id, s.stream_offset, s.sent_at, s.server_address, s.sender_address,
  s.receiver_address, s.sender_queue_manager, s.receiver_queue_manager, s.length_bytes, s.complete,
  (s.session_acked_at IS NOT NULL OR s.surely_acknowledged) AS acknowledged, m.source_queue_manager,
  m.destination_queue, m.destination_queue_manager, m.hop_count, m.message_sent_at, m.id AS sequence_id,
  NOT s.handshake_seen AND coalesce(
    unix_micros(m.message_sent_at) - {CLOCK_SLACK_US} < unix_micros(e.first_packet_at), TRUE
  ) AS begun_unseen,
  coalesce(e.overlapping_captures IS NOT NULL AND array_contains(e.missing, 'clock_step'), FALSE) AS of_several_clocks,
  m.transaction_number AS number, m.previous_transaction_number AS previous, m.bucket
FROM (
  SELECT packet_key, source_queue_manager, destination_queue, destination_queue_manager, hop_count,
    transaction_number, sent_at AS message_sent_at, previous_transaction_number, {ID_SQL} AS id, {_GROUP}
  FROM {{messages}} WHERE {IS_TRANSACTIONAL_SQL}
) AS m JOIN (SELECT DISTINCT id, bucket FROM {{grouped}}) AS g ON g.id = m.id AND g.bucket = m.bucket
JOIN (SELECT * FROM {{sendings}} WHERE sent_at IS NOT NULL) AS s ON s.packet_key = m.packet_key
LEFT JOIN (SELECT connection_id, first_packet_at, overlapping_captures, missing FROM {{existing}} AS sessions) AS e
  ON e.connection_id = s.connection_id"""
_ACKS: Final = f"""
SELECT a.packet_key, {ID_SQL} AS sequence_id, a.transaction_number AS number, a.capture_id, a.sent_at, a.queue_manager,
  a.acknowledged_queue_manager,
  CASE WHEN sent_by = 'client' THEN a.client_address ELSE a.server_address END AS sender_address,
  CASE WHEN sent_by = 'client' THEN a.server_address ELSE a.client_address END AS receiver_address,
  CASE WHEN sent_by = 'client' THEN initiator_queue_manager ELSE acceptor_queue_manager END AS sender_queue_manager,
  CASE WHEN sent_by = 'client' THEN acceptor_queue_manager ELSE initiator_queue_manager END AS receiver_queue_manager,
  g.bucket
FROM {{acks}} AS a LEFT JOIN {{existing}} AS s ON s.connection_id = a.connection_id
JOIN {{of_acknowledged}}
WHERE a.kind = 'order_ack' AND a.transaction_number IS NOT NULL AND a.sent_at IS NOT NULL"""
_ORDER_ACKS: Final = " UNION ALL ".join(
    _ACKS.replace("{of_acknowledged}", each) for each in acknowledged_groups("{grouped}", "id")
)
_CURRENT: Final = f"""
SELECT {", ".join(TRANSFER_SEQUENCES.names)}, {_GROUP} FROM {{rows}} WHERE {ID_SQL} IN {{ids}}"""
CURRENT: Final = "current"
"""The name of the answer with the rows of gold.transfer_sequences that there are."""


@dataclass(frozen=True, slots=True)
class GroupedSequences:
    """Sequences that are recomputed together, as ``_GROUPED_SEQUENCES`` returns them, of groups within bounds.

    ``ids``: of all that are recomputed, None for all there are.
    """

    grouped: pa.Table
    ids: pa.Array | None
    bounds: tuple[str, str] = ("", "g")

    @staticmethod
    def read(lake: Lake, ids: pa.Array | None = None, since_us: int | None = None) -> GroupedSequences:
        """Return some sequences, none of which has a sending before a time (microseconds); by default all."""
        scope, inputs = "TRUE", dict[str, QueryInput]()
        if ids is not None:
            scope, inputs = f"{ID_SQL} IN {{ids}}", {"ids": ids}
        messages = RowsOfDates(MESSAGES, None if since_us is None else DateSpan.of_times(since_us))
        sql = _GROUPED_SEQUENCES.replace("{scope}", scope)
        return GroupedSequences(lake.query(sql, messages=messages, **inputs), ids)

    def parts(self) -> Iterator[GroupedSequences]:
        """Yield them by groups that have few sendings together: one part at least; one group may have more."""
        buckets, rows = np.unique(np.asarray(self.grouped["bucket"], np.str_), return_inverse=True)
        sizes = np.zeros(len(buckets), np.int64)
        np.add.at(sizes, rows, to_ints(self.grouped["n"]))
        part = (np.cumsum(sizes) - sizes) // MAX_SENDINGS
        begins = buckets[np.flatnonzero(np.diff(part)) + 1].tolist()
        for low, high in zip(["", *begins], [*begins, "g"], strict=True):
            ours = pc.and_(pc.greater_equal(self.grouped["bucket"], low), pc.less(self.grouped["bucket"], high))
            yield GroupedSequences(self.grouped.filter(ours), self.ids, (low, high))

    def queries(self, wait_us: int) -> dict[str, BoundQuery]:
        """Return the queries for sendings and order acks, as ``sequence_rows`` takes them; for ``CURRENT`` of some.

        ``wait_us``: transfers.wait, microseconds.
        """
        given: dict[str, QueryInput] = {"sessions": SESSIONS, "grouped": self.grouped}
        acks = RowsOfDates(ORDER_ACKS, self._dates(wait_us, wait_us))
        existing = self.sent.widened(wait_us + DAY_US, wait_us + DAY_US).sessions_sql("sessions")
        sendings, order_acks = (sql.replace("{existing}", existing) for sql in (_SENDINGS, _ORDER_ACKS))
        queries = {
            "sendings": BoundQuery(sendings, {"messages": self.messages, "sendings": self.sendings, **given}),
            "order_acks": BoundQuery(order_acks, {"acks": acks, **given}),
        }
        if self.ids is not None:
            current = BoundQuery(_CURRENT, {"rows": TRANSFER_SEQUENCES, "ids": self.ids})
            low, high = self.bounds
            queries[CURRENT] = current.wrap(f"SELECT * FROM {{answer}} WHERE bucket >= '{low}' AND bucket < '{high}'")
        return queries

    def read_context(
        self, lake: Lake, settings: SequenceSettings, run_id: str, capture_ends: Mapping[str, int],
        clones: Collection[str] = (),
    ) -> SequenceContext:  # fmt: skip
        """Read what is the same for all of the sequences. ``capture_ends``: by server, microseconds."""
        wait_us, expire_us = timedelta_to_us(settings.wait), timedelta_to_us(settings.expire)
        made_at = self.grouped["made_at"].drop_null()
        since = min(self.sent.since, TimeSpan.of(made_at, made_at).since) - CLOCK_SLACK_US
        holes = HopHoles.of(read_holes(lake, TimeSpan(since, self.sent.until + wait_us)), clones)
        handshakes = read_handshakes(lake, self.sendings, self.sent.widened(expire_us, expire_us))
        return SequenceContext(settings, run_id, capture_ends, holes, handshakes, clones, read_clock_steps(lake))

    @property
    def sent(self) -> TimeSpan:
        """From when to when the sequences' messages were sent."""
        return TimeSpan.of(*(self.grouped[name].drop_null() for name in ("first_at", "last_at")))

    @property
    def messages(self) -> RowsOfDates:
        """Rows of silver.messages, with all of the sequences' messages."""
        return RowsOfDates(MESSAGES, self._dates())

    @property
    def sendings(self) -> RowsOfDates:
        """Rows of silver.sendings, likewise."""
        return RowsOfDates(SENDINGS, self._dates())

    def _dates(self, before_us: int = 0, after_us: int = 0) -> Dates:
        """Return the dates of the sequences' messages, and of what is so much before and after them."""
        first = pc.min(times_to_us(self.grouped["first_at"])).as_py()
        last = pc.max(times_to_us(self.grouped["last_at"])).as_py()
        return () if first is None else DateSpan.of_times(first - before_us, last + after_us)
