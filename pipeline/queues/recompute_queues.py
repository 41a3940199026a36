"""Recompute the rows of some queues from a time on, in memory: the existing rows and those that replace them.

Not the queries of ``recompute_all`` with a condition: from a time on, a history rests on its own stored rows before
that (``history.ResumePoint``), and only the events since are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.queues import eod_transfers, queue_rows
from pipeline.queues.captured_transfers import NOT_CAPTURED, CapturedTransfers
from pipeline.queues.history import ResumePoint
from pipeline.queues.queue_rows import HistoryKey, QueueNames, QueueSettings
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table
from udfs.queues.normal_form import split_queue_suffix
from udfs.rows import RowDict

MAX_EVENTS_IN_MEMORY: Final = 300_000  # of queues that are recomputed together; one queue may have more
_INTERVAL_KINDS: Final = frozenset({"snapshot", "pause", "resume", "purge"})  # events that begin an interval
_SERIES: Final = ("queue_manager", "queue", "queue_format_name")


@dataclass(slots=True)
class RowDelta:
    """A change of a table: ``rows`` replace the ``existing`` ones."""

    rows: list[RowDict] = field(default_factory=list)
    existing: list[pa.Table] = field(default_factory=list)


RowDeltas = dict[Table, RowDelta]


def recompute(reader: QueueStateReader, queues: Collection[str], since: int, deltas: RowDeltas) -> None:
    """Recompute the rows of some queues (canonical names) from a time on, and add the changes to ``deltas``.

    A later call for other queues takes the earlier changes into account. Of rows with the same key the last one counts.
    Of queues with many events some are recomputed after the others.
    """
    before = {table: (len(delta.rows), len(delta.existing)) for table, delta in deltas.items()}
    try:
        _QueueRecompute(reader, frozenset(queues), since, deltas).run()
    except TooManyEventsError:
        for table, (rows, existing) in before.items():
            del deltas[table].rows[rows:], deltas[table].existing[existing:]
        names, half = sorted(queues), len(queues) // 2
        if not half:
            recompute(replace(reader, is_limited=False), names, since, deltas)
            return
        for some in (names[:half], names[half:]):
            recompute(reader, some, since, deltas)


class TooManyEventsError(Exception):
    """Queues have more events than are read together."""


@dataclass(frozen=True, slots=True)
class QueueStateReader:
    """Reads events and gold rows of queues from the lake. Times are microseconds; gold rows come as Arrow tables.

    ``is_limited``: of queues with more than ``MAX_EVENTS_IN_MEMORY`` events none are read, TooManyEventsError.
    """

    lake: Lake
    names: QueueNames
    settings: QueueSettings
    captured: CapturedTransfers = NOT_CAPTURED
    is_limited: bool = True

    def read_queue_events(self, queues: Collection[str], since: int) -> list[RowDict]:
        """Return the events of queues since a time, without the messages that come and go."""
        queries = [each for each in queue_rows.EVENT_QUERIES if each not in queue_rows.TRAFFIC_EVENT_QUERIES]
        return self._read_events(queues, since, queries)

    def read_traffic_events(self, queues: Collection[str], since: int) -> list[RowDict]:
        """Return the messages that come to queues and go from them since a time."""
        return self._read_events(queues, since, queue_rows.TRAFFIC_EVENT_QUERIES)

    def read_counted_events(self, queues: Collection[str], since: int) -> list[RowDict]:
        """Return the events since a time that are counted: reads, transfers, moves and purges."""
        queries = [each for each in queue_rows.EVENT_QUERIES if each.table in queue_rows.COUNTED_TABLES]
        return self._read_events(queues, since, queries)

    def _read_events(
        self, queues: Collection[str], since: int, queries: Sequence[queue_rows.EventQuery]
    ) -> list[RowDict]:
        raw = queue_name_variants(queues, self.names)

        def read(query: queue_rows.EventQuery) -> pa.Table:
            sql = query.build_sql(self.settings, max(since, 0), f"{query.queue_column} IN {{queues}}")
            names = queues if query.table in queue_rows.CANONICAL_QUEUE_TABLES else raw
            most = f" LIMIT {MAX_EVENTS_IN_MEMORY + 1}" if self.is_limited else ""
            return self.lake.query(f"{sql}{most}", rows=query.table, queues=names)

        found = run_concurrently({place: partial(read, query) for place, query in enumerate(queries)})
        if self.is_limited and sum(rows.num_rows for rows in found.values()) > MAX_EVENTS_IN_MEMORY:
            raise TooManyEventsError
        every = queue_rows.to_uniform_rows(chain.from_iterable(rows.to_pylist() for rows in found.values()))
        return [row for row in queue_rows.with_canonical_names(every, self.names) if row["queue"] in queues]

    def read_rows_since(self, table: Table, queues: Collection[str], since: int, column: str = "queue") -> pa.Table:
        """Return the gold rows of some queues from a time on: intervals that end then or later, later observations."""
        at = "valid_to" if table == QUEUE_HISTORY else "observed_at"
        return self.lake.select(table, f"{column} IN {{queues}} AND {at} >= timestamp_micros({since})", queues=queues)

    def read_history_ends(self, queues: Collection[str]) -> dict[HistoryKey, int]:
        """Return the time at which each history of some queues ends."""
        series = ", ".join(_SERIES)
        sql = f"SELECT {series}, unix_micros(max(valid_to)) AS ends FROM {{rows}} WHERE queue IN {{queues}}"
        last = self.lake.query(f"{sql} GROUP BY {series}", rows=QUEUE_HISTORY, queues=queues).to_pylist()
        return {(row["queue_manager"], row["queue"], row["queue_format_name"]): row["ends"] for row in last}

    def read_last_transfers(self, queues: Collection[str], before: int) -> pa.Table:
        """Return the last row of gold.eod_transfers before a time, of each series of some queues."""
        newest = f"""
SELECT *,
  row_number() OVER (PARTITION BY {", ".join(eod_transfers.SERIES_COLUMNS)} ORDER BY observed_at DESC, snapshot_id DESC)
    AS place
FROM {{rows}} WHERE queue IN {{queues}} AND unix_micros(observed_at) < {before}"""
        sql = f"SELECT {', '.join(EOD_TRANSFERS.names)} FROM ({newest}) WHERE place = 1"
        found = self.lake.query(sql, rows=EOD_TRANSFERS, queues=queues)
        return found.cast(EOD_TRANSFERS.schema())


@dataclass(slots=True)
class _QueueRecompute:
    """One recomputation of some queues, from ``since`` on."""

    reader: QueueStateReader
    queues: frozenset[str]
    since: int
    deltas: RowDeltas

    @property
    def gap(self) -> int:
        """The time for which an observation stays valid, in microseconds."""
        return self.reader.settings.max_gap_us

    def run(self) -> None:
        """Read the needed rows concurrently, then further rows that depend on these, and add the changes."""
        read, queues, gap = self.reader, self.queues, self.gap
        reads: dict[str, Callable[[], Any]] = {
            "events": partial(read.read_queue_events, queues, self.since - 3 * gap),
            "history": partial(read.read_rows_since, QUEUE_HISTORY, queues, self.since),
            "transfers": partial(read.read_rows_since, EOD_TRANSFERS, queues, self.since - 2 * gap),
            "sources": partial(read.read_rows_since, EOD_SOURCES, queues, self.since - gap),
            "receivers": partial(read.read_rows_since, EOD_SOURCES, queues, self.since - gap, "sender_queue"),
        }
        found = run_concurrently(reads)
        events: list[RowDict] = found["events"]
        self._history(events, found["history"])
        observed = queue_rows.snapshot_observations(events)
        new, earlier = self._transfers(observed, found["transfers"])
        others = set(found["receivers"].column("queue").to_pylist())
        others |= {row["queue"] for row in self.deltas[EOD_SOURCES].rows if row["sender_queue"] in queues}
        self._sources(observed, [*earlier, *new], found["sources"], others - queues)

    # Histories

    def _history(self, events: list[RowDict], existing: pa.Table) -> None:
        """Recompute the intervals from the first one on that contains ``since``."""
        resume: dict[HistoryKey, ResumePoint] = {}
        for row in sorted(queue_rows.from_gold_table(existing), key=lambda row: row["valid_from"]):
            series = _history_key(row, row["queue_format_name"])
            if series not in resume:
                unknown_since = row["valid_from"] if row["source"] is None else None
                since = min(row["valid_from"], self.since) if unknown_since is None else unknown_since
                resume[series] = ResumePoint(since, unknown_since)
        current = [row for row in events if row["kind"] in _INTERVAL_KINDS and row["at"] >= self.since]
        fresh = {_history_key(row, row["name"]) for row in current} - resume.keys()
        resume |= {series: ResumePoint(end, end) for series, end in self._ended(fresh).items()}
        wanted = resume.keys() | fresh
        queues = {queue for _, queue, _ in wanted}  # most queues with traffic have no history
        begin = min((point.since for point in resume.values()), default=self.since)
        events_since = self.since - 3 * self.gap
        if queues:
            events = [*events, *self.reader.read_traffic_events(queues, events_since)]
        if begin < events_since:  # counted in an interval of which nothing else is known
            counted = self.reader.read_counted_events(queues, begin)
            events = [*events, *(row for row in counted if row["at"] < events_since)]
        # Which names had a recent event when an earlier purge came is not known: it is counted only.
        complete_since = events_since + self.gap
        events = [
            row | {"kind": "purged"} if row["kind"] == "purge" and row["at"] < complete_since else row for row in events
        ]
        rows = queue_rows.history_rows(events, self.reader.settings, resume, self.reader.captured)
        delta = self.deltas[QUEUE_HISTORY]
        delta.rows += [row for row in rows if _history_key(row, row["queue_format_name"]) in wanted]
        delta.existing.append(existing)

    def _ended(self, series: Collection[HistoryKey]) -> dict[HistoryKey, int]:
        """Return the ends of those histories that exist; all of them end before ``since``."""
        if not series:
            return {}
        ends = self.reader.read_history_ends({queue for _, queue, _ in series})
        return {each: ends[each] for each in series if each in ends}

    # Exactly-once delivery

    def _transfers(self, observed: list[RowDict], existing: pa.Table) -> tuple[list[RowDict], list[RowDict]]:
        """Recompute the transfer rows from ``since`` on; return them, and the earlier rows that they depend on."""
        rows = queue_rows.from_gold_table(existing)
        earlier = [row for row in rows if row["observed_at"] < self.since]
        recent = [
            row for row in observed if row["observed_at"] >= self.since and eod_transfers.is_transfer_snapshot(row)
        ]
        earlier += self._further_transfers(recent, earlier)
        new = queue_rows.eod_transfer_rows(recent, self.reader.settings, earlier)
        self.deltas[EOD_TRANSFERS].rows += new
        times = times_to_us(existing.column("observed_at"))
        self.deltas[EOD_TRANSFERS].existing.append(existing.filter(pc.greater_equal(times, self.since)))
        return new, earlier

    def _further_transfers(self, recent: list[RowDict], earlier: list[RowDict]) -> list[RowDict]:
        """Return the other earlier rows needed: each series' last one, and those since its oldest number was sent."""
        known: defaultdict[eod_transfers.SeriesKey, list[RowDict]] = defaultdict(list)
        for row in earlier:
            known[eod_transfers.series_key(row)].append(row)
        oldest: defaultdict[eod_transfers.SeriesKey, set[int | None]] = defaultdict(set)
        for row in recent:
            oldest[eod_transfers.series_key(row)].add(_oldest_unacked(row))
        found: list[RowDict] = []
        if unknown := {series for series in oldest if series not in known}:
            last = self.reader.read_last_transfers(_queues(unknown), self.since)
            found += [row for row in queue_rows.from_gold_table(last) if eod_transfers.series_key(row) in unknown]
            for row in found:
                known[eod_transfers.series_key(row)].append(row)
        need = {}
        for series, numbers in oldest.items():
            last_known = max(known[series], key=eod_transfers.observation_order, default=None)
            if last_known is not None and numbers - {last_known["first_unacked_number"], None}:
                since = eod_transfers.number_sent_since(last_known)
                if since < min(row["observed_at"] for row in known[series]):
                    need[series] = since
        if need:
            table = self.reader.read_rows_since(EOD_TRANSFERS, _queues(need), min(need.values()))
            more = queue_rows.from_gold_table(table)
            seen = {row["snapshot_id"] for row in (*earlier, *found)}
            more = [row for row in more if row["observed_at"] < self.since and row["snapshot_id"] not in seen]
            found += [row for row in more if eod_transfers.series_key(row) in need]
        return found

    def _sources(self, observed: list[RowDict], senders: list[RowDict], existing: pa.Table, others: set[str]) -> None:
        """Recompute the source rows of the queues, and of the ``others`` whose senders' queues these are."""
        read, since = self.reader, self.since - self.gap
        delta = self.deltas[EOD_SOURCES]
        if others:
            observed = observed + queue_rows.snapshot_observations(read.read_queue_events(others, since))
            delta.existing.append(read.read_rows_since(EOD_SOURCES, others, since))
        receivers = queue_rows.with_sender_queues((row for row in observed if row["observed_at"] >= since), read.names)
        outside = {each["sender_queue"] for row in receivers for each in row["eod_source_info"]}
        outside = (outside | {row["queue"] for row in receivers}) - self.queues - {None}
        if outside:
            senders = senders + self._other_transfers(outside, since - self.gap)
        delta.rows += queue_rows.eod_source_rows(receivers, senders, read.names, read.settings)
        delta.existing.append(existing)

    def _other_transfers(self, queues: set[str], since: int) -> list[RowDict]:
        """Return the transfer rows of other queues since a time, with the changes of this run applied."""
        delta = self.deltas[EOD_TRANSFERS]
        rows = queue_rows.from_gold_table(self.reader.read_rows_since(EOD_TRANSFERS, queues, since))
        replaced = {name for table in delta.existing for name in table.column("snapshot_id").to_pylist()}
        changed = [row for row in delta.rows if row["queue"] in queues and row["observed_at"] >= since]
        return [*(row for row in rows if row["snapshot_id"] not in replaced), *changed]


def _queues(series: Iterable[eod_transfers.SeriesKey]) -> set[str]:
    return {queue for _, queue, _, _ in series if queue is not None}


def _history_key(row: Mapping[str, Any], name: str | None) -> HistoryKey:
    return row["queue_manager"], row["queue"], name


def _oldest_unacked(row: Mapping[str, Any]) -> int | None:
    first = row["eod_first_non_ack"]
    return None if first is None else first["sequence_number"]


def queue_name_variants(queues: Collection[str], names: QueueNames) -> set[str]:
    """Return all normal forms of queue names whose canonical name is one of ``queues``.

    Those of a journal or subqueue are those of its queue with its suffix.
    """
    variants: defaultdict[str, set[str]] = defaultdict(set)
    for text, canonical in names.canonical_texts.items():
        variants[canonical].add(text)
    found = set(queues)
    for queue in queues:
        base, suffix = split_queue_suffix(queue)
        found |= variants[queue] | {text + suffix for text in variants[base]}
    return found
