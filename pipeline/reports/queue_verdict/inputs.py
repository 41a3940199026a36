"""What the tables know of queues: their reports, who sends to them, who reads them, what waits, what was rejected.

Each query answers for all queues that are asked for: how many there are does not change how many queries Spark gets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.queues.ended_receives import RECEIVED_AT_SQL
from pipeline.queues.history import STATE_LOCAL, STATE_UNKNOWN
from pipeline.queues.last_reports import LAST_QUEUE_REPORTS_SQL, LAST_TRANSFERS_SQL, max_gap_s
from pipeline.reports.views.scope import timestamp_sql
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import hop_rows_sql
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.eod import EOD_TRANSFERS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import Table, literal
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.codes import NEGATIVE_CLASS_BIT
from udfs.rows import RowDict

_HISTORY: Final = "(SELECT * FROM {every} WHERE queue IN {queues} AND valid_from <= {now})"
_TRANSFERS: Final = "(SELECT * FROM {eod_transfers} WHERE queue IN {queues} AND observed_at <= {now})"
_NAME: Final = "queue, queue_manager, lower(queue_format_name)"
_OF_NAME: Final = f"PARTITION BY {_NAME}"
_IS_SAME_NAME: Final = """{0}.queue = last.queue AND {0}.queue_manager IS NOT DISTINCT FROM last.queue_manager
      AND {0}.name IS NOT DISTINCT FROM lower(last.queue_format_name)"""
_LAST_REPORTS: Final = LAST_QUEUE_REPORTS_SQL.replace("{queue_history}", _HISTORY)
_LAST_TRANSFERS: Final = LAST_TRANSFERS_SQL.replace("{eod_transfers}", _TRANSFERS)
_STATES_SQL: Final = f"""
SELECT queue, queue_manager, lower(queue_format_name) AS name,
  min(CASE WHEN run = last_run THEN valid_from END) AS state_since
FROM (
  SELECT *, max(run) OVER ({_OF_NAME}) AS last_run FROM (
    SELECT *, sum(CAST(changed AS int)) OVER ({_OF_NAME} ORDER BY valid_from) AS run FROM (
      SELECT *, coalesce(state <> lag(state) OVER ({_OF_NAME} ORDER BY valid_from), TRUE) AS changed
      FROM {_HISTORY} AS history WHERE state <> {literal(STATE_UNKNOWN)}
    ) AS compared
  ) AS numbered
) AS runs GROUP BY {_NAME}"""
_REPORTS_SQL: Final = f"""
SELECT last.*, state_since, unacked_count, resend_count, next_resend_at
FROM ({_LAST_REPORTS}) AS last
  LEFT JOIN ({_STATES_SQL}) AS states ON {_IS_SAME_NAME.format("states")}
  LEFT JOIN (
    SELECT queue, queue_manager, lower(queue_format_name) AS name, max(unacked_count) AS unacked_count,
      max(resend_count) AS resend_count, max(next_resend_at) AS next_resend_at
    FROM ({_LAST_TRANSFERS}) AS every GROUP BY {_NAME}
  ) AS transfers ON {_IS_SAME_NAME.format("transfers")}
ORDER BY reported_at DESC NULLS LAST, last.queue_manager, last.queue_format_name"""

_NAMED: Final = with_canonical_queues("{transfers}", {"queue": "rows.destination_queue"}, "rows.*", "{aliases}")
_OF_QUEUES: Final = f"(SELECT * FROM {_NAMED} AS named WHERE queue IN {{queues}} AND first_sent_at <= {{now}})"
_COLUMNS: Final = (
    "queue, message_kind, transactional, outcome, sender_address, receiver_address, first_sent_at, last_sent_at, "
    "session_acked_at, order_acked_at, final_class, final_acked_at, arrival_acked_at, receive_class, receive_acked_at, "
    "evidence"
)
_IS_TAKEN: Final = "outcome = 'transferred' AND transactional"  # by the receiver, and not known to be in its queue
_WAITS: Final = f"(outcome IN ('unacknowledged', 'in_flight') OR ({_IS_TAKEN}))"
_SENDERS_SQL: Final = f"""
SELECT queue, sender_address, receiver_address, count(*) AS messages, max(last_sent_at) AS last_sent_at,
  count_if({_WAITS}) AS waiting, count_if({_IS_TAKEN}) AS taken,
  min(CASE WHEN {_WAITS} THEN first_sent_at END) AS waiting_since,
  max(CASE WHEN outcome IN ('delivered', 'received') THEN coalesce(order_acked_at, arrival_acked_at, session_acked_at)
    END) AS last_delivered_at,
  max(CASE WHEN outcome = 'received' THEN {RECEIVED_AT_SQL} END) AS last_received_at,
  min_by(try_element_at(evidence, 1), first_sent_at) FILTER (WHERE {_WAITS}) AS packet_key
FROM {hop_rows_sql(_OF_QUEUES, _COLUMNS)} AS sent WHERE message_kind = 'application'
GROUP BY queue, sender_address, receiver_address ORDER BY last_sent_at DESC, sender_address, receiver_address"""


def _rejections_by(ack: str) -> str:
    return (
        f"SELECT queue, {ack}_class AS class, {ack}_class_name AS class_name, {ack}_acked_at AS `at`, message_key, "
        f"try_element_at(evidence, -1) AS packet_key FROM {_OF_QUEUES} AS sent "
        f"WHERE {ack}_class & {NEGATIVE_CLASS_BIT} <> 0 AND {ack}_acked_at <= {{now}}"
    )


_REJECTIONS_SQL: Final = f"""
SELECT queue, class_name, max(class) AS class, count(DISTINCT message_key) AS messages, min(`at`) AS since,
  max(`at`) AS last_at, max_by(packet_key, `at`) AS packet_key
FROM ({" UNION ALL ".join(map(_rejections_by, ("final", "arrival", "receive")))}) AS every
GROUP BY queue, class_name ORDER BY last_at DESC, class_name"""
_ERROR_COLUMNS: Final = "rows.queue_manager, rows.observed_at, rows.hresult, rows.hresult_name"
_OF_CALLS: Final = """
  (SELECT *, coalesce(queue, inferred_queue) AS known_queue FROM {calls}
   WHERE coalesce(queue, inferred_queue) IN {queues})"""
_READERS_SQL: Final = f"""
SELECT known_queue AS queue, client_address, max(CASE WHEN outcome = 'acked' THEN ended_at END) AS last_read_at,
  max(started_at) AS last_asked_at, count_if(outcome = 'acked') AS read, count_if(NOT is_receive) AS peeked,
  count_if(outcome IN ('nacked', 'rejected', 'rundown', 'expired')) AS given_back,
  max_by(try_element_at(evidence, 1), started_at) AS call_key
FROM {_OF_CALLS} AS attempts WHERE started_at <= {{now}}
GROUP BY known_queue, client_address ORDER BY last_asked_at DESC, client_address"""
_POISON_SQL: Final = f"""
SELECT known_queue AS queue, count(*) AS messages, min(first_attempt_at) AS since, max(settled_at) AS last_at,
  max(attempts) AS attempts, max_by(try_element_at(evidence, -1), settled_at) AS call_key
FROM {_OF_CALLS} AS sequences
WHERE loss_risk = 'poison' AND fate IN ('returned', 'held') AND first_attempt_at <= {{now}} GROUP BY known_queue"""
_ERRORS_SQL: Final = f"""
SELECT queue, queue_manager, max(observed_at) AS last_at, max_by(hresult_name, observed_at) AS hresult_name
FROM {with_canonical_queues("{snapshots}", {"queue": "rows.queue"}, _ERROR_COLUMNS, "{aliases}")} AS named
WHERE queue IN {{queues}} AND observed_at <= {{now}} GROUP BY queue, queue_manager
HAVING max_by(hresult, observed_at) <> 0 ORDER BY last_at DESC, queue_manager"""
_TRANSFERS_OF_QUEUES: Final[Mapping[str, Table]] = {"transfers": MESSAGE_TRANSFERS, "aliases": QUEUE_ALIASES}
_QUERIES: Final[Mapping[str, tuple[str, Mapping[str, Table]]]] = {
    "reports": (_REPORTS_SQL, {"every": QUEUE_HISTORY, "eod_transfers": EOD_TRANSFERS}),
    "senders": (_SENDERS_SQL, _TRANSFERS_OF_QUEUES),
    "rejections": (_REJECTIONS_SQL, _TRANSFERS_OF_QUEUES),
    "readers": (_READERS_SQL, {"calls": RECEIVE_ATTEMPTS}),
    "poison": (_POISON_SQL, {"calls": ACK_SEQUENCES}),
    "errors": (_ERRORS_SQL, {"snapshots": QUEUE_SNAPSHOTS, "aliases": QUEUE_ALIASES}),
}
QUEUE_TABLES: Final = tuple({table: None for _, tables in _QUERIES.values() for table in tables.values()})
"""The tables that are read."""


@dataclass(frozen=True, slots=True)
class QueueRows:
    """What is known of a queue until ``as_of``, as rows; ``queue`` is its canonical name.

    ``reports``: the last of each machine, and of each format name of an outgoing queue; ``state_since``: when its state
    began. ``senders``: the machines between which its messages go, the last one first; messages ``waiting`` for
    an acknowledgement, of these ``taken``: the receiver has them, nothing says that they are in the queue.
    ``rejections``: negative acknowledgements of its messages by class, the last one first. ``readers``: who asked for
    its messages remotely, to receive or to peek. ``poison``: messages that come back again and again, one row or none.
    ``errors``: machines whose last answer about the queue was an error.
    """

    queue: str
    as_of: datetime
    reports: list[RowDict] = field(default_factory=list)
    senders: list[RowDict] = field(default_factory=list)
    rejections: list[RowDict] = field(default_factory=list)
    readers: list[RowDict] = field(default_factory=list)
    errors: list[RowDict] = field(default_factory=list)
    poison: list[RowDict] = field(default_factory=list)

    @property
    def local(self) -> list[RowDict]:
        """The last reports of the machines that have the queue: one, unless two have the same identifier."""
        return [row for row in self.reports if row["state"] == STATE_LOCAL]

    @property
    def outgoing(self) -> list[RowDict]:
        """The last reports of machines that send to it."""
        return [row for row in self.reports if row["state"] not in (STATE_LOCAL, STATE_UNKNOWN)]

    @property
    def last_received_at(self) -> datetime | None:
        """When an acknowledgement last said that a message of it was received; None where none did."""
        return max((row["last_received_at"] for row in self.senders if row["last_received_at"]), default=None)

    @property
    def last_read_at(self) -> datetime | None:
        """When a message of it was last received, by captured calls or acknowledgements; None where none was."""
        times = [*(row["last_read_at"] for row in self.readers), self.last_received_at]
        return max((at for at in times if at is not None), default=None)

    @property
    def options(self) -> dict[str, str]:
        """The option of ``msmq export_packets`` for each key of a packet or call that its rows name."""
        packets = dict.fromkeys((row["packet_key"] for row in (*self.senders, *self.rejections)), "packet")
        return packets | dict.fromkeys((row["call_key"] for row in (*self.readers, *self.poison)), "call")

    @property
    def is_captured(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.reports or self.senders or self.readers or self.errors)


def read_queue_rows(lake: Lake, queues: Collection[str], as_of: datetime) -> dict[str, QueueRows]:
    """Return what the tables know of queues until a time, by their canonical names."""
    if not queues:
        return {}
    gap, now = repr(max_gap_s(lake)), timestamp_sql(as_of)

    def ask(sql: str, tables: Mapping[str, Table]) -> list[RowDict]:
        text = sql.replace("{now}", now).replace("{max_gap_s}", gap)
        rows: list[RowDict] = lake.query(text, queues=queues, **tables).to_pylist()
        return rows

    found = run_concurrently({name: partial(ask, *query) for name, query in _QUERIES.items()})
    by_queue: dict[str, defaultdict[str, list[RowDict]]] = {queue: defaultdict(list) for queue in queues}
    for name, rows in found.items():
        for row in rows:
            by_queue[row["queue"]][name].append(row)
    return {queue: QueueRows(queue, as_of, **rows) for queue, rows in by_queue.items()}
