"""Reads what rows of gold.message_transfers are made of: sendings with their messages, acknowledgements, reports.

All is asked for by groups of messages, so that tasks can make the rows of some groups each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import Dates, DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from pipeline.lake.stage_groups import bucket_sql, each_once
from pipeline.transfers.hops.address_queue_managers import read_handshakes
from pipeline.transfers.hops.missing_packets import read_holes
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.inputs import read_set_by
from pipeline.transfers.messages.sender_clocks import read_clocks
from pipeline.transfers.messages.transfer_context import TransferContext, TransferSettings
from pipeline.transfers.packet_order import PacketOrder
from pipeline.transfers.sequences.order_ack_matches import acknowledged_groups
from schemas.bronze import RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.times import timedelta_to_us

_EVENTS: Final = ("order_acks", "administration_acks", "reports")
_ORDER_OF_ROWS: Final = (
    "message_key", "destination_queue", "sender_address", "receiver_address", "sent_at", "packet_key"
)  # fmt: skip
CURRENT: Final = "current"
"""The name of the answer with the rows of gold.message_transfers that there are."""
APPLICATION_IDS: Final = ("application_message_id", "conversation_id", "sent_types")
"""What the application's headers say of a message, by which people look for it."""
_MESSAGE_COLUMNS: Final = (
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
_GROUPED_MESSAGES: Final = f"""
SELECT message_id, message_ordinal, sequence_id, source_queue_manager, first_at, last_at,
  {bucket_sql("coalesce(min(sequence_id) OVER (PARTITION BY message_id), message_id)")}
FROM (
  SELECT message_id, message_ordinal, CAST(transaction_sequence_id AS string) AS sequence_id, source_queue_manager,
    CASE WHEN count(*) = count(seen_at) THEN min(seen_at) END AS first_at, max(seen_at) AS last_at
  FROM {{messages}} AS m
  WHERE packet_key IS NOT NULL AND message_key IS NOT NULL AND message_id IS NOT NULL AND {{scope}}
  GROUP BY message_id, message_ordinal, transaction_sequence_id, source_queue_manager
)"""
"""SQL over silver.messages: the groups of the messages that meet the condition ``{scope}``.

All of a message_id is in one group, and messages of a sequence are in one as far as that allows: each group gets the
order acks of its sequences.
"""
_IN_GROUP: Final = "(SELECT DISTINCT {column}, bucket FROM {{grouped}} WHERE {column} IS NOT NULL)"
_GROUP_OF_MESSAGE, _GROUP_OF_ORDINAL = (_IN_GROUP.format(column=column) for column in ("message_id", "message_ordinal"))
_SENDINGS: Final = f"""
SELECT {", ".join(f"s.{name}" for name in _SENDING_COLUMNS)}, {", ".join(f"m.{name}" for name in _MESSAGE_COLUMNS)},
  CAST(m.transaction_sequence_id AS string) AS sequence_id, m.sent_at AS message_sent_at,
  size(m.errors) > 0 AS has_errors, coalesce(size(m.destination_list) > 1, FALSE) AS names_copies,
  e.ended IS NULL AND e.connection_id IS NOT NULL AS is_open, e.last_packet_at, g.bucket
FROM {{sendings}} AS s JOIN {{messages}} AS m ON m.packet_key = s.packet_key
JOIN {_GROUP_OF_MESSAGE} AS g ON g.message_id = m.message_id
LEFT JOIN {{sessions}} AS e ON e.connection_id = s.connection_id
WHERE m.message_key IS NOT NULL"""
_ACKS: Final = """
SELECT a.packet_key, a.connection_id, a.capture_id, a.sent_at AS seen_at, a.kind, a.class, a.class_name,
  a.queue_manager, a.acknowledged_queue_manager, CAST(a.transaction_sequence_id AS string) AS sequence_id,
  a.transaction_number, a.acknowledged_message_id AS message_id, a.packet_key AS seen_by,
  CASE WHEN a.sent_by = 'client' THEN a.client_address ELSE a.server_address END AS sender_address,
  CASE WHEN a.sent_by = 'client' THEN a.server_address ELSE a.client_address END AS receiver_address, g.bucket
FROM {acks} AS a JOIN {of_acknowledged}
WHERE a.sent_at IS NOT NULL AND {kind}"""
_IS_ORDER_ACK: Final = "a.kind = 'order_ack' AND a.transaction_number IS NOT NULL"
_ORDER_ACKS: Final = " UNION ALL ".join(
    _ACKS.replace("{of_acknowledged}", groups).replace("{kind}", kind)
    for groups, kind in (
        *((each, _IS_ORDER_ACK) for each in acknowledged_groups("{grouped}", "sequence_id")),
        (f"{_GROUP_OF_MESSAGE} AS g ON g.message_id = a.acknowledged_message_id", "a.kind = 'final_ack'"),
    )
)
_ADMINISTRATION_ACKS: Final = f"""
SELECT m.packet_key, coalesce(m.packet_key, m.call_key) AS seen_by, m.connection_id, m.seen_at, m.class, m.class_name,
  m.correlation_id AS message_id, m.response_queue, {{capture}} AS capture_id, g.bucket
FROM {{messages}} AS m JOIN {_GROUP_OF_MESSAGE} AS g ON g.message_id = m.correlation_id
LEFT JOIN {{sendings}} AS s ON s.packet_key = m.packet_key {{more}}
WHERE m.message_kind = 'administration_ack' AND m.seen_at IS NOT NULL"""
_REPORTS: Final = f"""
SELECT prefix, ordinal, hop_count, next_hop, seen_at, queue_manager, seen_by, bucket FROM (
  SELECT report.source_prefix AS prefix, CAST(report.message_ordinal AS string) AS ordinal,
    report.hop_count AS hop_count, report.next_hop AS next_hop, seen_at, source_queue_manager AS queue_manager,
    coalesce(packet_key, call_key) AS seen_by, bucket, row_number() OVER (
      PARTITION BY coalesce(message_key, sighting_key), report.source_prefix, report.message_ordinal, bucket
      ORDER BY seen_at, coalesce(packet_key, call_key)
    ) AS place
  FROM {{messages}} JOIN {_GROUP_OF_ORDINAL} AS g ON g.message_ordinal = report.message_ordinal
  WHERE report IS NOT NULL AND seen_at IS NOT NULL
) WHERE place = 1"""
_OVERLAPS: Final = """
SELECT connection_id, overlapping_captures, array_contains(missing, 'clock_step') AS clocks_differ FROM {rows}
WHERE overlapping_captures IS NOT NULL"""
_OF_SEVERAL_CLOCKS: Final = f"""
SELECT explode(packet_keys) AS packet_key FROM (
  SELECT collect_list(s.packet_key) AS packet_keys
  FROM {{sendings}} AS s JOIN {{messages}} AS m ON m.packet_key = s.packet_key
  JOIN {_GROUP_OF_MESSAGE} AS g ON g.message_id = m.message_id
  WHERE m.message_key IS NOT NULL
  GROUP BY m.message_key, m.destination_queue, s.sender_address, s.receiver_address
  HAVING count(*) > 1 AND (min(s.capture_id) <> max(s.capture_id) OR min(s.capture_id) IN {{stepped}})
)"""

_CURRENT: Final = f"""
SELECT {", ".join(f"m.{name}" for name in MESSAGE_TRANSFERS.names)},
  coalesce(g.bucket, left(md5(m.message_id), 2)) AS bucket
FROM {{rows}} AS m LEFT JOIN {_GROUP_OF_MESSAGE} AS g ON g.message_id = m.message_id WHERE {{scope}}"""


@dataclass(frozen=True, slots=True)
class TransferInputs:
    """What the rows of some messages are made of. Times are timestamps.

    ``sendings`` are in the order of rows: by message_key, destination queue and hop, then of time and packet key; the
    others in order of time.
    """

    sendings: pa.Table
    order_acks: pa.Table
    administration_acks: pa.Table
    reports: pa.Table

    @staticmethod
    def of(parts: Mapping[str, pa.Table]) -> TransferInputs:
        """Bring the answers to the queries of ``GroupedMessages`` in order."""
        sendings = parts["sendings"].sort_by([(name, "ascending") for name in _ORDER_OF_ROWS])
        return TransferInputs(sendings, *(_events(parts[name]) for name in _EVENTS))


def _events(rows: pa.Table) -> pa.Table:
    return each_once(rows.sort_by([("seen_at", "ascending"), ("seen_by", "ascending")]), "seen_by")


@dataclass(frozen=True, slots=True)
class GroupedMessages:
    """Messages that are recomputed together, as ``_GROUPED_MESSAGES`` returns them; and where they are looked up.

    ``messages`` and ``sendings`` have all rows of their packets. ``current``: the query for the table's rows of them.
    """

    grouped: pa.Table
    messages: RowsOfDates
    sendings: RowsOfDates
    current: BoundQuery

    @staticmethod
    def read(lake: Lake, scope: str = "TRUE", **values: QueryInput) -> GroupedMessages:
        """Return the messages that meet a condition on silver.messages, ``m``, of which all or no row of a message_id.

        ``values`` are what the condition names in braces.
        """
        grouped = lake.query(_GROUPED_MESSAGES.replace("{scope}", scope), messages=MESSAGES, **values)
        dates, rows = _dates(grouped), {"rows": MESSAGE_TRANSFERS, "grouped": grouped, **values}
        current = BoundQuery(_CURRENT.replace("{scope}", scope), rows)
        return GroupedMessages(grouped, RowsOfDates(MESSAGES, dates), RowsOfDates(SENDINGS, dates), current)

    def queries(self, *, replaced: bool, captures_of_calls: bool) -> dict[str, BoundQuery]:
        """Return the queries for what ``TransferInputs`` has, by group.

        ``replaced``: also for ``CURRENT``, the rows that there are. ``captures_of_calls``: also of administration acks
        that answers of calls brought the capture is told.
        """
        capture, calls, of_calls = "s.capture_id", "", dict[str, QueryInput]()
        if captures_of_calls:
            capture = "coalesce(s.capture_id, c.response_capture_id)"
            calls, of_calls = "LEFT JOIN {calls} AS c ON c.call_key = m.call_key", {"calls": RPC_CALLS}
        acks = _ADMINISTRATION_ACKS.replace("{capture}", capture).replace("{more}", calls)
        inputs: dict[str, tuple[str, dict[str, QueryInput]]] = {
            "sendings": (_SENDINGS, {"messages": self.messages, "sendings": self.sendings, "sessions": SESSIONS}),
            "order_acks": (_ORDER_ACKS, {"acks": ORDER_ACKS}),
            "administration_acks": (acks, {"messages": MESSAGES, "sendings": SENDINGS, **of_calls}),
            "reports": (_REPORTS, {"messages": MESSAGES}),
        }
        queries = {name: BoundQuery(sql, {**of, "grouped": self.grouped}) for name, (sql, of) in inputs.items()}
        return {**queries, CURRENT: self.current} if replaced else queries

    def read_context(
        self, lake: Lake, settings: TransferSettings, run_id: str, capture_ends: Mapping[str, int],
        clones: Collection[str] = (),
    ) -> TransferContext:  # fmt: skip
        """Read what is the same for all of the messages."""
        steps, sources = read_clock_steps(lake), self.grouped["source_queue_manager"]
        sent = TimeSpan.of(self.grouped["first_at"], self.grouped["last_at"])
        wait_us, expire_us = timedelta_to_us(settings.wait), timedelta_to_us(settings.expire)
        stepped = {name for name, _, _ in steps.set_by()}
        keys = lake.query(
            _OF_SEVERAL_CLOCKS, sendings=self.sendings, messages=self.messages, grouped=self.grouped, stepped=stepped
        )["packet_key"]
        return TransferContext(
            settings, run_id, clones,
            handshakes=read_handshakes(lake, self.sendings, sent.widened(expire_us, expire_us)),
            overlaps=lake.query(_OVERLAPS, rows=SESSIONS),
            holes=read_holes(lake, sent.widened(0, wait_us)),
            clocks=read_clocks(lake, sources, self.messages.dates),
            capture_ends=capture_ends,
            steps=steps.spans(),
            set_by=read_set_by(lake),
            order=PacketOrder.read(lake, {*keys.to_pylist()}),
        )  # fmt: skip


def _dates(grouped: pa.Table) -> Dates | None:
    """Return the dates of the packets of messages; None where the time of one is not known."""
    if not grouped.num_rows:
        return ()
    if grouped["first_at"].null_count:
        return None
    return DateSpan(pc.min(grouped["first_at"]).as_py().date(), pc.max(grouped["last_at"]).as_py().date())
