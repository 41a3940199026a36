"""What silver and gold tell of queues, in one form of rows, and the rows of gold that are made of it.

``TELLING`` asks for everything that histories and transfers are made of, ``named`` gives its rows their queue managers
and canonical queues, ``as_told`` their form; ``history_rows``, ``transfer_rows`` and ``source_rows`` make gold's of
them, whatever queues they hold: here or in a task of Spark. Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.lake.arrow_rows import day_of, microseconds, us, us_of
from pipeline.lake.arrow_rows import table_of as as_arrow
from pipeline.queues import eod_sources, eod_transfers, history
from pipeline.queues.history import Cut, Event
from pipeline.queues.queue_managers import Machines
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.codes import MQ_OK
from udfs.keys import key
from udfs.queues.aliases import canonical_text
from udfs.queues.normal_form import normal_text

Row = dict[str, Any]
Place = tuple[str | None, str]  # queue manager, queue
Series = tuple[str | None, str, str | None]  # and format name

_VALUES: Final = {  # of the history, by the properties that report them
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
_REPORTED: Final = (*_PLAIN, *_SEQUENCES, "eod_source_info", "property_states")  # as the table has them
_REPORTED_TIMES: Final = ("eod_last_ack_time", "eod_resend_time")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that gold's states rest on; ``declared`` are the collector's machines, names by address."""

    max_gap: timedelta = timedelta(minutes=15)
    resend_rise: int = 1
    ladder: tuple[timedelta, ...] = tuple(timedelta(seconds=each) for each in eod_transfers.LADDER_S)
    cleanup: timedelta = timedelta(minutes=5)
    declared: Mapping[str, str] = field(default_factory=dict)

    @property
    def gap_us(self) -> int:
        """How long an observation holds, microseconds."""
        return us(self.max_gap)

    def said(self) -> dict[str, Any]:
        """Return them as a commit tells what rows are made of."""
        return {
            "max_gap_us": self.gap_us,
            "resend_rise": self.resend_rise,
            "ladder_s": [each.total_seconds() for each in self.ladder],
            "cleanup_us": us(self.cleanup),
            "machines": dict(sorted(self.declared.items())),
        }


@dataclass(frozen=True, slots=True)
class Names:
    """What queues and queue managers are called in gold."""

    machines: Machines
    texts: Mapping[str, str]  # the canonical text of each normal form

    def queue(self, text: str | None) -> str | None:
        """Return the canonical text of a normal form."""
        return canonical_text(text, self.texts)


class Told(NamedTuple):
    """What is told of queues by a table: a question, in which ``{rows}`` stands for its rows.

    It is made of the settings, a time, microseconds, and a further condition; ``queue`` is the column that names them.
    """

    table: Table
    sql: Callable[[Settings, int, str], str]
    queue: str = "queue"


def _since(at: int, *times: str) -> str:
    """Return the condition that one of some times is not before another; files that hold none are not read."""
    return f"({' OR '.join(f'{name} >= timestamp_micros({max(at, 0)})' for name in times)})"


def _snapshots(_: Settings, since: int, where: str) -> str:
    """Ask for successful snapshots; a failed one is no evidence."""
    times = (f"unix_micros({name}) AS {name}" for name in _REPORTED_TIMES)
    return f"""
SELECT 'snapshot' AS kind, queue_manager, queue, unix_micros(observed_at) AS `at`, snapshot_id AS key,
  queue_format_name AS name, source, errors, {", ".join((*_REPORTED, *times))}
FROM {{rows}}
WHERE hresult = 0 AND queue IS NOT NULL AND observed_at IS NOT NULL AND {_since(since, "observed_at")} AND {where}"""


def attempts_told(settings: Settings, since: int, where: str) -> str:
    """Ask what attempts did to their queues, and for those of which that is not known."""
    began = "coalesce(returned_at, started_at)"
    expired = f"timestamp_micros(unix_micros(returned_at) + {us(settings.cleanup)})"
    taken, given_back = "(outcome = 'acked' AND ended_at IS NOT NULL)", "outcome IN ('nacked', 'rundown', 'expired')"
    wide = since - us(settings.cleanup)  # a message that expired counts later than any of the row's times says
    told = f"""
SELECT CASE WHEN {taken} THEN 'received' WHEN outcome = 'peeked' THEN 'peeked' WHEN {given_back} THEN 'nacked'
    WHEN outcome IN ('acked', 'rejected', 'unknown') THEN 'doubt'
    WHEN outcome = 'in_flight' AND returned_at IS NOT NULL THEN 'doubt' END AS kind,
  server_address AS queue_manager, queue,
  unix_micros(CASE WHEN {taken} THEN ended_at
    WHEN {given_back} THEN coalesce(ended_at, CASE WHEN outcome = 'expired' THEN {expired} END, {began})
    WHEN outcome = 'rejected' THEN coalesce(ended_at, {began}) ELSE {began} END) AS `at`,
  try_element_at(evidence, -1) AS key, 'wire' AS source, unix_micros(returned_at) AS held_since, missing
FROM {{rows}}
WHERE queue IS NOT NULL AND (is_receive IS NULL OR is_receive OR outcome = 'peeked')
  AND {_since(wide, "started_at", "returned_at", "ended_at")} AND {where}"""
    return f"SELECT * FROM ({told}) WHERE kind IS NOT NULL AND `at` >= {since}"


ACTION: Final = "(object_type = 'queue' AND upper(action) IN ('PAUSE', 'RESUME'))"
"""The condition of calls of silver.management_calls that pause or resume a queue ([MS-MQMR] 3.1.4.2)."""


def _actions(_: Settings, since: int, where: str) -> str:
    """Ask for pauses and resumes; in doubt is what was not answered, or cannot be read."""
    codes = {
        "decode_error": "size(errors) > 0",
        "no_request": "requested_at IS NULL",
        "no_response": "responded_at IS NULL",
    }
    missing = ", ".join(f"CASE WHEN {holds} THEN '{code}' END" for code, holds in codes.items())
    done = f"{ACTION} AND {_since(since, 'responded_at', 'requested_at')} AND queue IS NOT NULL"
    return _done(
        "CASE WHEN hresult IS NULL THEN 'doubt' ELSE lower(action) END",
        "queue",
        f"array({missing})",
        f"{done} AND (hresult IS NULL OR hresult = {MQ_OK}) AND {where}",
    )


def _operations(queue: str, moved: str) -> Callable[[Settings, int, str], str]:
    """Ask for purges and moves by one of the queues; in doubt is what was not answered, or cannot be read."""

    def ask(_: Settings, since: int, where: str) -> str:
        kind = f"CASE WHEN outcome = 'unknown' THEN 'doubt' WHEN operation = 'move' THEN '{moved}' ELSE operation END"
        known = f"outcome <> 'failed' AND {queue} IS NOT NULL AND {_since(since, 'responded_at', 'requested_at')}"
        return _done(kind, queue, "missing", f"{known} AND {where}")

    return ask


def _done(kind: str, queue: str, missing: str, where: str) -> str:
    """Ask for calls that did something to a queue: from their answer on it counts."""
    at = "coalesce(responded_at, requested_at)"
    return f"""
SELECT {kind} AS kind, server_address AS queue_manager, {queue} AS queue, unix_micros({at}) AS `at`, call_key AS key,
  queue_format_name AS name, '{history.OPERATIONS}' AS source, {missing} AS missing, errors
FROM {{rows}} WHERE {at} IS NOT NULL AND {where}"""


READS: Final = Told(RECEIVE_ATTEMPTS, attempts_told)
"""What reads did: it is counted, and begins no history."""
TELLING: Final = (
    Told(QUEUE_SNAPSHOTS, _snapshots),
    READS,
    Told(MANAGEMENT_CALLS, _actions),
    Told(QUEUE_OPERATIONS, _operations("queue", "moved_out")),
    Told(QUEUE_OPERATIONS, _operations("target_queue", "moved_in"), "target_queue"),
)
"""Everything that is told of queues."""
OF_GOLD: Final = (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS)  # whose queues are canonical texts


def as_told(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows of ``TELLING`` in their form: all columns that any has, and what a snapshot reports in one."""
    nothing = dict.fromkeys(("name", "held_since", "missing", "errors", "snapshot"))
    for row in rows:
        told = nothing | {name: value for name, value in row.items() if name not in _OF_SNAPSHOTS}
        told["missing"] = [code for code in told["missing"] or () if code is not None]
        told["errors"] = told["errors"] or []
        if row["kind"] == "snapshot":
            told["snapshot"] = _reported(row)
        yield told


_OF_SNAPSHOTS: Final = frozenset((*_REPORTED, *_REPORTED_TIMES))


def _reported(row: Mapping[str, Any]) -> Row:
    """Return what a snapshot reports, times in microseconds."""
    reported = {name: row[name] for name in _OF_SNAPSHOTS}
    if reported["eod_source_info"] is not None:
        reported["eod_source_info"] = [
            {**each, "last_access_at": None if each["last_access_at"] is None else us_of(each["last_access_at"])}
            for each in reported["eod_source_info"]
        ]
    return reported


def named(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """Return rows of ``TELLING`` with the queue managers and queues that gold knows them by."""
    out = []
    for row in rows:
        found = dict(row)
        found["queue_manager"] = names.machines.name(row["source"], row["queue_manager"])
        found["queue"] = names.queue(row["queue"])
        out.append(found)
    return out


def events(rows: Iterable[Mapping[str, Any]]) -> dict[Place, list[Event]]:
    """Return the events of each queue at each queue manager."""
    found: defaultdict[Place, list[Event]] = defaultdict(list)
    for row in rows:
        found[row["queue_manager"], row["queue"]].append(
            Event(
                at=row["at"],
                kind=row["kind"],
                key=row["key"],
                name=row["name"],
                source=row["source"],
                values=_values(row["snapshot"]) if row["kind"] == "snapshot" else {},
                held_since=row["held_since"],
                missing=tuple(row["missing"] or ()),
                errors=tuple(row["errors"] or ()),
            )
        )
    return found


def _values(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a snapshot reports, None those that were not available."""
    states = dict(snapshot["property_states"] or {})
    found = {name: snapshot[column] for name, column in _VALUES.items() if column in states}
    if found.get("state") is not None:
        found["state"] = found["state"].upper()
    return found


def history_rows(
    rows: Iterable[Mapping[str, Any]], settings: Settings, taken_up: Mapping[Series, Cut] | None = None
) -> list[Row]:
    """Return the rows of gold.queue_history that rows of ``as_told``, named, give; from where each is taken up."""
    by_place = events(rows)
    cuts: defaultdict[Place, dict[str | None, Cut]] = defaultdict(dict)
    for (manager, queue, name), cut in (taken_up or {}).items():
        cuts[manager, queue][name] = cut
        by_place.setdefault((manager, queue), [])
    out = []
    for (manager, queue), found in by_place.items():
        for name, intervals in history.histories(found, settings.gap_us, cuts.get((manager, queue))).items():
            place = {"queue_manager": manager, "queue": queue, "queue_format_name": name}
            out += [
                {"interval_key": key(manager, queue, name, each["valid_from"]), **place, **each} for each in intervals
            ]
    return out


def observations(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the snapshots among rows of ``as_told``, as exactly-once delivery takes them."""
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


def transfer_rows(
    rows: Iterable[Mapping[str, Any]], settings: Settings, earlier: Iterable[Mapping[str, Any]] = ()
) -> list[Row]:
    """Return the rows of gold.eod_transfers that ``observations`` give, after earlier ones of the table."""
    ladder = [each.total_seconds() for each in settings.ladder]
    return eod_transfers.transfers(
        rows, earlier, resend_rise=settings.resend_rise, ladder_s=ladder, max_gap=settings.gap_us
    )


def with_senders(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """Return those of ``observations`` that tell of incoming sequences, each with its sender's queue."""
    out = []
    for row in rows:
        found = [
            {**each, "sequence_id": int(each["sequence_id"]), "sender_queue": sender_queue(each, names)}
            for each in row["eod_source_info"] or ()
        ]
        if found:
            out.append({**row, "eod_source_info": found})
    return out


def sender_queue(told: Mapping[str, Any], names: Names) -> str | None:
    """Return the queue of an incoming sequence as its sender knows it."""
    return names.queue(normal_text(told["sender_format_name"]))


def source_rows(
    rows: Iterable[Mapping[str, Any]], senders: Iterable[Mapping[str, Any]], names: Names, settings: Settings
) -> list[Row]:
    """Return the rows of gold.eod_sources that ``with_senders`` gives, against senders' rows of gold.eod_transfers."""
    found = eod_sources.sources(rows, eod_sources.Senders(senders), names.machines.managers, max_gap=settings.gap_us)
    for row in found:
        row["source_key"] = key(row["snapshot_id"], row.pop("place"))
    return found


def table_of(table: Table, rows: Iterable[Mapping[str, Any]], run_id: str) -> pa.Table:
    """Return rows as a table of gold; times come as microseconds since the epoch."""
    whole = [{**row, EVENT_DATE: day_of(*(row[name] for name in table.dated_by)), RUN_ID: run_id} for row in rows]
    return as_arrow(whole, to_arrow_schema(table.struct()))


def rows_of(table: pa.Table) -> list[Row]:
    """Return a table of gold as such rows: the other way round."""
    for place, each in enumerate(table.schema):
        if pa.types.is_timestamp(each.type):
            table = table.set_column(place, each.name, microseconds(table.column(place)))
    rows: list[Row] = table.to_pylist()
    for row in rows:
        if row.get("sequence_id") is not None:
            row["sequence_id"] = int(row["sequence_id"])
    return rows
