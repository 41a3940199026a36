"""Rows of gold's queue tables from events that bronze, silver and gold tables report.

``EVENT_QUERIES`` read all events, ``to_uniform_rows`` gives them one form, ``with_canonical_names`` the names of queues
and queue managers in gold. ``history_rows``, ``eod_transfer_rows`` and ``eod_source_rows`` then make the rows of gold
for any set of queues, in memory or in a Spark task. Times are microseconds since the epoch (UTC).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.arrow_rows import epoch_day, rows_to_table, table_to_rows
from pipeline.queues import eod_sources, eod_transfers, history
from pipeline.queues.captured_transfers import NOT_CAPTURED, CapturedTransfers
from pipeline.queues.history import QueueEvent, ResumePoint
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.settings import EodConfig, HistoryConfig, TimersConfig
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, RUN_ID, Table
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.keys import key
from udfs.queues.alias_groups import canonical_queue_name
from udfs.queues.normal_form import normalize_queue_name
from udfs.rows import RowDict
from udfs.times import datetime_to_us, timedelta_to_us

QueueKey = tuple[str | None, str]  # queue manager, queue
HistoryKey = tuple[str | None, str, str | None]  # and format name

_VALUES: Final = {  # columns of the history: the properties that report them
    "state": "state",
    "message_count": "message_count",
    "bytes": "bytes_in_queue",
    "journal_count": "journal_message_count",
    "journal_bytes": "bytes_in_journal",
}
_SEQUENCES: Final = ("eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq")
_PLAIN: Final = (
    "location", "xact", *_VALUES.values(), "eod_last_ack_count", "eod_no_read_count", "eod_no_ack_count",
    "eod_resend_count", "eod_resend_interval",
)  # fmt: skip
_REPORTED: Final = (*_PLAIN, *_SEQUENCES, "eod_source_info", "property_states")  # in silver.queue_snapshots
_REPORTED_TIMES: Final = ("eod_last_ack_time", "eod_resend_time")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of the queue tables; ``configured_names`` are the collector's machines, names by address."""

    max_gap: timedelta = HistoryConfig.max_gap
    resend_rise: int = EodConfig.resend_rise
    resend_ladder: tuple[timedelta, ...] = EodConfig.resend_ladder
    cleanup_interval: timedelta = TimersConfig.cleanup
    configured_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def max_gap_us(self) -> int:
        """The time for which an observation stays valid, in microseconds."""
        return timedelta_to_us(self.max_gap)

    def as_provenance(self) -> dict[str, Any]:
        """Return the settings as JSON values for the provenance in a commit."""
        return {
            "max_gap_us": self.max_gap_us,
            "resend_rise": self.resend_rise,
            "ladder_s": [each.total_seconds() for each in self.resend_ladder],
            "cleanup_us": timedelta_to_us(self.cleanup_interval),
            "machines": dict(sorted(self.configured_names.items())),
        }


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The names of queues and queue managers in gold; ``canonical_texts`` maps normal forms of queue names."""

    queue_managers: QueueManagerNames
    canonical_texts: Mapping[str, str]

    def canonical_queue(self, text: str | None) -> str | None:
        """Return the canonical name of a queue in normal form."""
        return canonical_queue_name(text, self.canonical_texts)

    def as_table(self, texts: Iterable[str | None]) -> pa.Table:
        """Return normal forms (``queue``) and their canonical names (``canonical_queue``) as an Arrow table.

        Canonical names are there as normal forms too: tables of gold have them.
        """
        known = {text: self.canonical_queue(text) for text in texts if text is not None}
        known |= {name: name for name in known.values() if name is not None and name not in known}
        columns = {"queue": list(known), "canonical_queue": list(known.values())}
        return pa.table(columns, pa.schema(dict.fromkeys(columns, pa.string())))


class EventQuery(NamedTuple):
    """A query for the events of queues in a table; ``{rows}`` in its SQL stands for the table's rows.

    ``build_sql`` takes the settings, the earliest time in microseconds and a further condition in SQL. ``queue_column``
    is the column of the table that names the queue.
    """

    table: Table
    build_sql: Callable[[QueueSettings, int, str], str]
    queue_column: str = "queue"


def since_sql(at: int, *times: str) -> str:
    """Return the SQL condition that one of the times is at or after ``at``, microseconds; it lets files be skipped."""
    return f"({' OR '.join(f'{name} >= timestamp_micros({max(at, 0)})' for name in times)})"


def _snapshot_events_sql(_: QueueSettings, since: int, where: str) -> str:
    """Return the SQL for successful snapshots; a failed one is no evidence."""
    times = (f"unix_micros({name}) AS {name}" for name in _REPORTED_TIMES)
    recent = since_sql(since, "observed_at")
    return f"""
SELECT 'snapshot' AS kind, queue_manager, queue, unix_micros(observed_at) AS `at`, snapshot_id AS key,
  queue_format_name AS name, source, errors, {", ".join((*_REPORTED, *times))}
FROM {{rows}}
WHERE {QMMGMT_SUCCEEDED_SQL} AND queue IS NOT NULL AND observed_at IS NOT NULL AND {recent} AND {where}"""


def attempt_events_sql(settings: QueueSettings, since: int, where: str) -> str:
    """Return the SQL for the effects of receive attempts on their queues; unknown effects are of kind ``doubt``."""
    began = "coalesce(returned_at, started_at)"
    expired = f"timestamp_micros(unix_micros(returned_at) + {timedelta_to_us(settings.cleanup_interval)})"
    taken, given_back = "(outcome = 'acked' AND ended_at IS NOT NULL)", "outcome IN ('nacked', 'rundown', 'expired')"
    wide = since - timedelta_to_us(
        settings.cleanup_interval
    )  # an expired attempt counts later than all times of its row
    events = f"""
SELECT CASE WHEN {taken} THEN 'received' WHEN outcome = 'peeked' THEN 'peeked' WHEN {given_back} THEN 'nacked'
    WHEN outcome IN ('acked', 'rejected', 'unknown') THEN 'doubt'
    WHEN outcome = 'in_flight' AND returned_at IS NOT NULL THEN 'doubt' END AS kind,
  server_address AS queue_manager, queue,
  unix_micros(CASE WHEN {taken} THEN ended_at
    WHEN {given_back} THEN coalesce(ended_at, CASE WHEN outcome = 'expired' THEN {expired} END, {began})
    WHEN outcome = 'rejected' THEN coalesce(ended_at, {began}) ELSE {began} END) AS `at`,
  try_element_at(evidence, -1) AS key, 'wire' AS source, unix_micros(returned_at) AS handed_out_at, missing
FROM {{rows}}
WHERE queue IS NOT NULL AND (is_receive IS NULL OR is_receive OR outcome = 'peeked')
  AND {since_sql(wide, "started_at", "returned_at", "ended_at")} AND {where}"""
    return f"SELECT * FROM ({events}) WHERE kind IS NOT NULL AND `at` >= {since}"


def transfer_events_sql(_: QueueSettings, since: int, where: str) -> str:
    """Return the SQL for messages that queue managers handed on: each arrives at one and departs from the other.

    They count from their session acknowledgement on; those without one, that were surely acknowledged, from their last
    sending on; once for each hop, whatever addresses it has. Those of which the acknowledgement may be missing are of
    kind ``doubt``.
    """
    return f"""
SELECT CASE WHEN outcome = 'unknown' THEN 'doubt' ELSE `end` END AS kind,
  CASE WHEN `end` = 'arrived' THEN receiver_address ELSE sender_address END AS queue_manager,
  destination_queue AS queue, unix_micros(coalesce(session_acked_at, last_sent_at)) AS `at`,
  try_element_at(evidence, 1) AS key, 'wire' AS source,
  CASE WHEN outcome = 'unknown' THEN missing END AS missing
FROM (SELECT *, explode(array('arrived', 'departed')) AS `end` FROM {{rows}})
WHERE outcome IN ('transferred', 'delivered', 'received', 'unknown') AND destination_queue IS NOT NULL
  AND counts_on_hop AND {since_sql(since, "session_acked_at", "last_sent_at")} AND {where}"""


PAUSE_OR_RESUME_SQL: Final = "(object_type = 'queue' AND upper(action) IN ('PAUSE', 'RESUME'))"
"""The SQL condition of calls in silver.management_calls that pause or resume a queue ([MS-MQMR] 3.1.4.2)."""


def _pause_events_sql(_: QueueSettings, since: int, where: str) -> str:
    """Return the SQL for pauses and resumes; those without an answer or with a decode error are in doubt."""
    codes = {
        "decode_error": "size(errors) > 0",
        "no_request": "requested_at IS NULL",
        "no_response": "responded_at IS NULL",
    }
    missing = ", ".join(f"CASE WHEN {holds} THEN '{code}' END" for code, holds in codes.items())
    done = f"{PAUSE_OR_RESUME_SQL} AND {since_sql(since, 'responded_at', 'requested_at')} AND queue IS NOT NULL"
    return _call_events_sql(
        "CASE WHEN hresult IS NULL THEN 'doubt' ELSE lower(action) END",
        "queue",
        f"array({missing})",
        f"{done} AND (hresult IS NULL OR {QMMGMT_SUCCEEDED_SQL}) AND {where}",
    )


def _operation_events_sql(queue: str, moved: str) -> Callable[[QueueSettings, int, str], str]:
    """Return a function that builds the SQL for purges and moves of a queue column; unanswered ones are in doubt."""

    def build(_: QueueSettings, since: int, where: str) -> str:
        kind = f"CASE WHEN outcome = 'unknown' THEN 'doubt' WHEN operation = 'move' THEN '{moved}' ELSE operation END"
        known = f"outcome <> 'failed' AND {queue} IS NOT NULL AND {since_sql(since, 'responded_at', 'requested_at')}"
        return _call_events_sql(kind, queue, "missing", f"{known} AND {where}")

    return build


def _call_events_sql(kind: str, queue: str, missing: str, where: str) -> str:
    """Return the SQL for calls that changed a queue; their effect counts from the time of the answer."""
    at = "coalesce(responded_at, requested_at)"
    return f"""
SELECT {kind} AS kind, server_address AS queue_manager, {queue} AS queue, unix_micros({at}) AS `at`, call_key AS key,
  queue_format_name AS name, '{history.SOURCE_OPERATIONS}' AS source, {missing} AS missing, errors
FROM {{rows}} WHERE {at} IS NOT NULL AND {where}"""


SNAPSHOT_EVENT_QUERY: Final = EventQuery(QUEUE_SNAPSHOTS, _snapshot_events_sql)
"""The query for snapshots of queues."""
READ_EVENT_QUERY: Final = EventQuery(RECEIVE_ATTEMPTS, attempt_events_sql)
TRANSFER_EVENT_QUERY: Final = EventQuery(MESSAGE_TRANSFERS, transfer_events_sql, "destination_queue")
TRAFFIC_EVENT_QUERIES: Final = (READ_EVENT_QUERY, TRANSFER_EVENT_QUERY)
"""The queries for messages that come and go. They are counted, and do not begin a history."""
EVENT_QUERIES: Final = (
    SNAPSHOT_EVENT_QUERY,
    *TRAFFIC_EVENT_QUERIES,
    EventQuery(MANAGEMENT_CALLS, _pause_events_sql),
    EventQuery(QUEUE_OPERATIONS, _operation_events_sql("queue", "moved_out")),
    EventQuery(QUEUE_OPERATIONS, _operation_events_sql("target_queue", "moved_in"), "target_queue"),
)
"""The queries for all events of queues."""
CANONICAL_QUEUE_TABLES: Final = (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS)
"""Tables with events in which queue names are canonical."""
COUNTED_TABLES: Final = (*CANONICAL_QUEUE_TABLES, MESSAGE_TRANSFERS)
"""Tables with events that are counted."""


def to_uniform_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[RowDict]:
    """Yield rows of ``EVENT_QUERIES`` with the same columns; what a snapshot reports is one column, ``snapshot``."""
    empty = dict.fromkeys(("name", "handed_out_at", "missing", "errors", "snapshot"))
    for row in rows:
        event = empty | {name: value for name, value in row.items() if name not in _SNAPSHOT_COLUMNS}
        event["missing"] = [code for code in event["missing"] or () if code is not None]
        event["errors"] = event["errors"] or []
        if row["kind"] == "snapshot":
            event["snapshot"] = _reported(row)
        yield event


_SNAPSHOT_COLUMNS: Final = frozenset((*_REPORTED, *_REPORTED_TIMES))


def _reported(row: Mapping[str, Any]) -> RowDict:
    """Return the properties that a snapshot reports, times in microseconds."""
    reported = {name: row[name] for name in _SNAPSHOT_COLUMNS}
    if reported["eod_source_info"] is not None:
        reported["eod_source_info"] = [
            {
                **each,
                "last_access_at": None if each["last_access_at"] is None else datetime_to_us(each["last_access_at"]),
            }
            for each in reported["eod_source_info"]
        ]
    return reported


def with_canonical_names(rows: Iterable[Mapping[str, Any]], names: QueueNames) -> list[RowDict]:
    """Return rows of ``EVENT_QUERIES`` with the names of queue managers and queues in gold."""
    return [
        {
            **row,
            "queue_manager": names.queue_managers.canonical_name(row["source"], row["queue_manager"]),
            "queue": names.canonical_queue(row["queue"]),
        }
        for row in rows
    ]


def events_by_queue(rows: Iterable[Mapping[str, Any]]) -> dict[QueueKey, list[QueueEvent]]:
    """Return uniform rows as events, by queue manager and queue."""
    found: defaultdict[QueueKey, list[QueueEvent]] = defaultdict(list)
    for row in rows:
        found[row["queue_manager"], row["queue"]].append(
            QueueEvent(
                at=row["at"],
                kind=row["kind"],
                key=row["key"],
                format_name=row["name"],
                source=row["source"],
                values=_values(row["snapshot"]) if row["kind"] == "snapshot" else {},
                handed_out_at=row["handed_out_at"],
                missing=tuple(row["missing"] or ()),
                errors=tuple(row["errors"] or ()),
            )
        )
    return found


def _values(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the history values that a snapshot reports, None if not available."""
    states = dict(snapshot["property_states"] or {})
    found = {name: snapshot[column] for name, column in _VALUES.items() if column in states}
    if found.get("state") is not None:
        found["state"] = found["state"].upper()
    return found


def history_rows(
    rows: Iterable[Mapping[str, Any]],
    settings: QueueSettings,
    resume_points: Mapping[HistoryKey, ResumePoint] | None = None,
    captured: CapturedTransfers = NOT_CAPTURED,
) -> list[RowDict]:
    """Return the rows of gold.queue_history from uniform rows; ``resume_points`` says which histories to resume."""
    by_queue = events_by_queue(rows)
    resume: defaultdict[QueueKey, dict[str | None, ResumePoint]] = defaultdict(dict)
    for (manager, queue, name), point in (resume_points or {}).items():
        resume[manager, queue][name] = point
        by_queue.setdefault((manager, queue), [])
    out = []
    for (manager, queue), found in by_queue.items():
        for name, intervals in history.compute_histories(
            found, settings.max_gap_us, resume.get((manager, queue))
        ).items():
            place = {"queue_manager": manager, "queue": queue, "queue_format_name": name}
            out += [
                {
                    "interval_key": key(manager, queue, name, each["valid_from"]),
                    **place,
                    **each,
                    "arrivals_seen": captured.cover(manager, each["valid_from"], each["valid_to"]),
                }
                for each in intervals
            ]
    return out


def snapshot_observations(rows: Iterable[Mapping[str, Any]]) -> list[RowDict]:
    """Return the snapshots among uniform rows, in the form that ``eod_transfers`` and ``eod_sources`` take."""
    return [
        {
            **row["snapshot"],
            **{name: row[name] for name in ("queue_manager", "queue", "source", "errors")},
            "queue_format_name": row["name"],
            "snapshot_id": row["key"],
            "observed_at": row["at"],
        }
        for row in rows
        if row["kind"] == "snapshot"
    ]


def eod_transfer_rows(
    rows: Iterable[Mapping[str, Any]], settings: QueueSettings, earlier_rows: Iterable[Mapping[str, Any]] = ()
) -> list[RowDict]:
    """Return the rows of gold.eod_transfers from ``snapshot_observations``, given earlier rows of the table."""
    ladder = [each.total_seconds() for each in settings.resend_ladder]
    return eod_transfers.compute_transfers(
        rows, earlier_rows, resend_rise=settings.resend_rise, ladder_s=ladder, max_gap=settings.max_gap_us
    )


def with_sender_queues(rows: Iterable[Mapping[str, Any]], names: QueueNames) -> list[RowDict]:
    """Return the ``snapshot_observations`` with incoming sequences, each sequence with its ``sender_queue``."""
    out = []
    for row in rows:
        found = [
            {**each, "sequence_id": int(each["sequence_id"]), "sender_queue": sender_queue(each, names)}
            for each in row["eod_source_info"] or ()
        ]
        if found:
            out.append({**row, "eod_source_info": found})
    return out


def sender_queue(sequence: Mapping[str, Any], names: QueueNames) -> str | None:
    """Return the canonical name of the queue as the sender of an incoming sequence names it."""
    return names.canonical_queue(normalize_queue_name(sequence["sender_format_name"]))


def eod_source_rows(
    rows: Iterable[Mapping[str, Any]], senders: Iterable[Mapping[str, Any]], names: QueueNames, settings: QueueSettings
) -> list[RowDict]:
    """Return the rows of gold.eod_sources from ``with_sender_queues``, compared with the senders' transfer rows."""
    found = eod_sources.compute_sources(
        rows, eod_sources.SenderReports(senders), names.queue_managers.names_by_guid, max_gap=settings.max_gap_us
    )
    for row in found:
        row["source_key"] = key(row["snapshot_id"], row.pop("place"))
    return found


def to_gold_table(table: Table, rows: Iterable[Mapping[str, Any]], run_id: str) -> pa.Table:
    """Return rows with times in microseconds as a table of gold."""
    whole = [
        {**row, EVENT_DATE: epoch_day(*(row[name] for name in table.event_date_columns)), RUN_ID: run_id}
        for row in rows
    ]
    return rows_to_table(whole, table.schema())


def from_gold_table(table: pa.Table) -> list[RowDict]:
    """Return a table of gold as rows with times in microseconds (the inverse of ``to_gold_table``)."""
    rows = table_to_rows(table)
    for row in rows:
        if row.get("sequence_id") is not None:
            row["sequence_id"] = int(row["sequence_id"])
    return rows
