"""What the tables know of one queue: its reports, who sends to it, who reads it, what waits, what was rejected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput
from pipeline.queues.ended_receives import RECEIVED_AT_SQL
from pipeline.queues.history import STATE_LOCAL, STATE_UNKNOWN
from pipeline.queues.last_reports import LAST_QUEUE_REPORTS_SQL, LAST_TRANSFERS_SQL, max_gap_s
from pipeline.reports.views.scope import timestamp_sql
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import once_per_hop
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.eod import EOD_TRANSFERS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import literal
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.codes import NEGATIVE_CLASS_BIT
from udfs.rows import RowDict

_HISTORY: Final = "(SELECT * FROM {every} WHERE queue = {queue} AND valid_from <= {now})"
_TRANSFERS: Final = "(SELECT * FROM {eod_transfers} WHERE queue = {queue} AND observed_at <= {now})"
_OF_NAME: Final = "PARTITION BY queue_manager, lower(queue_format_name)"
_LAST_REPORTS: Final = LAST_QUEUE_REPORTS_SQL.replace("{queue_history}", _HISTORY)
_LAST_TRANSFERS: Final = LAST_TRANSFERS_SQL.replace("{eod_transfers}", _TRANSFERS)
_STATES_SQL: Final = f"""
SELECT queue_manager, lower(queue_format_name) AS name, min(CASE WHEN run = last_run THEN valid_from END) AS state_since
FROM (
  SELECT *, max(run) OVER ({_OF_NAME}) AS last_run FROM (
    SELECT *, sum(CAST(changed AS int)) OVER ({_OF_NAME} ORDER BY valid_from) AS run FROM (
      SELECT *, coalesce(state <> lag(state) OVER ({_OF_NAME} ORDER BY valid_from), TRUE) AS changed
      FROM {_HISTORY} AS history WHERE state <> {literal(STATE_UNKNOWN)}
    ) AS compared
  ) AS numbered
) AS runs GROUP BY queue_manager, lower(queue_format_name)"""
_REPORTS_SQL: Final = f"""
SELECT last.*, state_since, unacked_count, resend_count, next_resend_at
FROM ({_LAST_REPORTS}) AS last LEFT JOIN ({_STATES_SQL}) AS states
    ON states.queue_manager IS NOT DISTINCT FROM last.queue_manager
      AND states.name IS NOT DISTINCT FROM lower(last.queue_format_name)
  LEFT JOIN (
    SELECT queue_manager, lower(queue_format_name) AS name, max(unacked_count) AS unacked_count,
      max(resend_count) AS resend_count, max(next_resend_at) AS next_resend_at
    FROM ({_LAST_TRANSFERS}) AS every GROUP BY queue_manager, lower(queue_format_name)
  ) AS transfers
    ON transfers.queue_manager IS NOT DISTINCT FROM last.queue_manager
      AND transfers.name IS NOT DISTINCT FROM lower(last.queue_format_name)
ORDER BY reported_at DESC NULLS LAST, last.queue_manager, last.queue_format_name"""

_NAMED: Final = with_canonical_queues("{transfers}", {"queue": "rows.destination_queue"}, "rows.*", "{aliases}")
_OF_QUEUE: Final = f"(SELECT * FROM {_NAMED} AS named WHERE queue = {{queue}} AND first_sent_at <= {{now}})"
_COLUMNS: Final = (
    "message_kind, transactional, outcome, sender_address, receiver_address, first_sent_at, last_sent_at, "
    "session_acked_at, order_acked_at, arrival_acked_at, evidence"
)
_IS_TAKEN: Final = "outcome = 'transferred' AND transactional"  # by the receiver, and not known to be in its queue
_WAITS: Final = f"(outcome IN ('unacknowledged', 'in_flight') OR ({_IS_TAKEN}))"
_SENDERS_SQL: Final = f"""
SELECT sender_address, receiver_address, count(*) AS messages, max(last_sent_at) AS last_sent_at,
  count_if({_WAITS}) AS waiting, count_if({_IS_TAKEN}) AS taken,
  min(CASE WHEN {_WAITS} THEN first_sent_at END) AS waiting_since,
  max(CASE WHEN outcome IN ('delivered', 'received') THEN coalesce(order_acked_at, arrival_acked_at, session_acked_at)
    END) AS last_delivered_at,
  min_by(try_element_at(evidence, 1), first_sent_at) FILTER (WHERE {_WAITS}) AS packet_key
FROM {once_per_hop(_OF_QUEUE, _COLUMNS)} AS sent WHERE message_kind = 'application'
GROUP BY sender_address, receiver_address ORDER BY last_sent_at DESC, sender_address, receiver_address"""


def _rejections_by(ack: str) -> str:
    return (
        f"SELECT {ack}_class AS class, {ack}_class_name AS class_name, {ack}_acked_at AS `at`, message_key, "
        f"try_element_at(evidence, -1) AS packet_key FROM {_OF_QUEUE} AS sent "
        f"WHERE {ack}_class & {NEGATIVE_CLASS_BIT} <> 0 AND {ack}_acked_at <= {{now}}"
    )


_REJECTIONS_SQL: Final = f"""
SELECT class_name, max(class) AS class, count(DISTINCT message_key) AS messages, min(`at`) AS since,
  max(`at`) AS last_at, max_by(packet_key, `at`) AS packet_key
FROM ({" UNION ALL ".join(map(_rejections_by, ("final", "arrival", "receive")))}) AS every
GROUP BY class_name ORDER BY last_at DESC, class_name"""
_RECEIVED_SQL: Final = f"SELECT max({RECEIVED_AT_SQL}) AS last_at FROM {_OF_QUEUE} AS sent WHERE outcome = 'received'"
_READERS_SQL: Final = """
SELECT client_address, max(CASE WHEN outcome = 'acked' THEN ended_at END) AS last_read_at,
  max(started_at) AS last_asked_at, count_if(outcome = 'acked') AS read,
  count_if(outcome IN ('nacked', 'rejected', 'rundown', 'expired')) AS given_back,
  max_by(try_element_at(evidence, 1), started_at) AS call_key
FROM {attempts} WHERE queue = {queue} AND is_receive AND started_at <= {now}
GROUP BY client_address ORDER BY last_asked_at DESC, client_address"""
_POISON_SQL: Final = """
SELECT count(*) AS messages, min(first_attempt_at) AS since, max(settled_at) AS last_at, max(attempts) AS attempts,
  max_by(try_element_at(evidence, -1), settled_at) AS call_key
FROM {sequences}
WHERE queue = {queue} AND loss_risk = 'poison' AND fate IN ('returned', 'held') AND first_attempt_at <= {now}"""
_ERRORS_SQL: Final = """
SELECT queue_manager, max(observed_at) AS last_at, max_by(hresult_name, observed_at) AS hresult_name
FROM {snapshots} WHERE queue IN {names} AND observed_at <= {now} GROUP BY queue_manager
HAVING max_by(hresult, observed_at) <> 0 ORDER BY last_at DESC, queue_manager"""


@dataclass(frozen=True, slots=True)
class QueueRows:
    """What is known of a queue until ``as_of``, as rows.

    ``reports``: the last of each machine, and of each format name of an outgoing queue; ``state_since``: when its state
    began. ``senders``: the machines between which its messages go, the last one first; messages ``waiting`` for
    an acknowledgement, of these ``taken``: the receiver has them, nothing says that they are in the queue.
    ``rejections``: negative acknowledgements of its messages by class, the last one first. ``readers``: who received
    remotely. ``poison``: messages that come back again and again. ``errors``: machines whose last answer about the
    queue was an error.
    """

    queue: str
    as_of: datetime
    reports: list[RowDict] = field(default_factory=list)
    senders: list[RowDict] = field(default_factory=list)
    rejections: list[RowDict] = field(default_factory=list)
    readers: list[RowDict] = field(default_factory=list)
    errors: list[RowDict] = field(default_factory=list)
    poison: Mapping[str, Any] | None = None
    last_received_at: datetime | None = None

    @property
    def local(self) -> RowDict | None:
        """The last report of the machine that has the queue; None without one."""
        return next((row for row in self.reports if row["state"] == STATE_LOCAL), None)

    @property
    def outgoing(self) -> list[RowDict]:
        """The last reports of machines that send to it."""
        return [row for row in self.reports if row["state"] != STATE_LOCAL]

    @property
    def last_read_at(self) -> datetime | None:
        """When a message of it was last received, by captured calls or acknowledgements; None where none was."""
        times = [*(row["last_read_at"] for row in self.readers), self.last_received_at]
        return max((at for at in times if at is not None), default=None)

    @property
    def is_captured(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.reports or self.senders or self.readers or self.errors)


def read_queue_rows(lake: Lake, queue: str, names: Collection[str], as_of: datetime) -> QueueRows:
    """Return what the tables know of a queue until a time; ``queue`` is its canonical name, ``names`` are all."""
    gap = repr(max_gap_s(lake))

    def ask(sql: str, **inputs: QueryInput) -> list[RowDict]:
        found = lake.query(sql.replace("{now}", timestamp_sql(as_of)).replace("{max_gap_s}", gap), **inputs)
        rows: list[RowDict] = found.to_pylist()
        return rows

    transfers: dict[str, QueryInput] = {"transfers": MESSAGE_TRANSFERS, "aliases": QUEUE_ALIASES, "queue": queue}
    (poison,) = ask(_POISON_SQL, sequences=ACK_SEQUENCES, queue=queue)
    (received,) = ask(_RECEIVED_SQL, **transfers)
    return QueueRows(
        queue,
        as_of,
        reports=ask(_REPORTS_SQL, every=QUEUE_HISTORY, eod_transfers=EOD_TRANSFERS, queue=queue),
        senders=ask(_SENDERS_SQL, **transfers),
        rejections=ask(_REJECTIONS_SQL, **transfers),
        readers=ask(_READERS_SQL, attempts=RECEIVE_ATTEMPTS, queue=queue),
        errors=ask(_ERRORS_SQL, snapshots=QUEUE_SNAPSHOTS, names={*names, queue}),
        poison=poison if poison["messages"] else None,
        last_received_at=received["last_at"],
    )
