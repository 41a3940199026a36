"""Gold's states of some queues from a time on: what is there, and what comes in its place, made on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import eod, states
from pipeline.gather import gather
from pipeline.lake import Lake
from pipeline.queue_history import Cut
from pipeline.states import Names, Row, Series, Settings
from pipeline.touched import only
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table
from udfs.queues.normal_form import parent

MOST: Final = 300_000  # things told of queues that are brought here
_CUTTING: Final = frozenset({"snapshot", "pause", "resume", "purge"})
_SERIES: Final = ("queue_manager", "queue", "queue_format_name")


class TooManyError(Exception):
    """More is told of the queues than is brought to the driver."""


@dataclass(slots=True)
class Place:
    """Rows of a table as they are now, and as they are there."""

    rows: list[Row] = field(default_factory=list)
    there: list[pa.Table] = field(default_factory=list)


Made = dict[Table, Place]


def make(lake: Lake, names: Names, settings: Settings, queues: Collection[str], since: int, made: Made) -> None:
    """Add to ``made`` what the tables say of queues, canonical texts, from a time on, and what they are to say."""
    _Queues(lake, names, settings, frozenset(queues), since, made).make()


@dataclass(slots=True)
class _Queues:
    lake: Lake
    names: Names
    settings: Settings
    queues: frozenset[str]
    since: int
    made: Made

    def make(self) -> None:
        """Ask for all of it side by side, then for what that shows to be needed besides."""
        gap = self.settings.gap_us
        history, transfers, sources = (self.lake.read(table) for table in (QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES))
        asked: dict[str, Callable[[], pa.Table]] = {
            "told": partial(self._told, self.queues, self.since - 3 * gap),
            "history": _from(only(history, "queue", self.queues), "valid_to", self.since).toArrow,
            "transfers": _from(only(transfers, "queue", self.queues), "observed_at", self.since - 2 * gap).toArrow,
            "sources": _from(only(sources, "queue", self.queues), "observed_at", self.since - gap).toArrow,
            "receivers": _from(only(sources, "sender_queue", self.queues), "observed_at", self.since - gap).toArrow,
        }
        found = gather(asked)
        told = self._named(found["told"])
        self._history(told, found["history"])
        observed = states.observations(told)
        new, earlier = self._transfers(observed, found["transfers"])
        receivers = found["receivers"].filter(pc.invert(_is_in(found["receivers"], "queue", self.queues)))
        self._sources(observed, [*earlier, *new], found["sources"], receivers)

    def _told(self, queues: Collection[str], since: int, *, attempts_since: int | None = None) -> pa.Table:
        """Return what is told of queues since a time; of attempts alone, if that is asked for."""
        raw = _texts(queues, self.names)
        rows = states.told(
            self.lake, self.settings, raw=raw, queues=queues, since=max(since, 0),
            attempts_since=max(since if attempts_since is None else attempts_since, 0),
        )  # fmt: skip
        if attempts_since is not None:
            rows = rows.where("source = 'wire' AND kind <> 'snapshot'")
        found: pa.Table = rows.limit(MOST + 1).toArrow()
        if found.num_rows > MOST:
            raise TooManyError
        return found

    def _named(self, told: pa.Table) -> list[Row]:
        rows = states.named(told.to_pylist(), self.names)
        return [row for row in rows if row["queue"] in self.queues]

    # Histories

    def _history(self, told: list[Row], there: pa.Table) -> None:
        """Make the intervals again from the first one on that the time lies in."""
        cuts: dict[Series, Cut] = {}
        for row in sorted(states.rows_of(there), key=lambda row: row["valid_from"]):
            series = _series(row, row["queue_format_name"])
            if series not in cuts:
                gone = row["valid_from"] if row["source"] is None else None
                cuts[series] = Cut(min(row["valid_from"], self.since) if gone is None else gone, gone)
        fresh = {
            _series(row, row["name"]) for row in told if row["kind"] in _CUTTING and row["at"] >= self.since
        } - cuts.keys()
        cuts |= {series: Cut(end, end) for series, end in self._ended(fresh).items()}
        begin = min((cut.since for cut in cuts.values()), default=self.since)
        known_since = self.since - 3 * self.settings.gap_us
        if begin < known_since:  # reads within time of which nothing else is known
            more = self._told(self.queues, self.since, attempts_since=begin)
            told = [*told, *(row for row in self._named(more) if row["at"] < known_since)]
        rows = states.history_rows(told, self.settings, cuts)
        wanted = cuts.keys() | fresh
        self.made[QUEUE_HISTORY].rows += [row for row in rows if _series(row, row["queue_format_name"]) in wanted]
        self.made[QUEUE_HISTORY].there.append(there)

    def _ended(self, series: Collection[Series]) -> dict[Series, int]:
        """Return when the histories ended that were known before; all of them did before the time."""
        if not series:
            return {}
        rows = only(self.lake.read(QUEUE_HISTORY), "queue", {queue for _, queue, _ in series})
        last = rows.groupBy(*_SERIES).agg(F.unix_micros(F.max("valid_to")).alias("end")).collect()
        ends = {(row["queue_manager"], row["queue"], row["queue_format_name"]): row["end"] for row in last}
        return {each: ends[each] for each in series if each in ends}

    # Exactly-once delivery

    def _transfers(self, observed: list[Row], there: pa.Table) -> tuple[list[Row], list[Row]]:
        """Return the rows of the observations since the time, and those before them."""
        rows = states.rows_of(there)
        earlier = [row for row in rows if row["observed_at"] < self.since]
        recent = [row for row in observed if row["observed_at"] >= self.since and eod.is_transfer(row)]
        earlier += self._before(recent, earlier)
        new = states.transfer_rows(recent, self.settings, earlier)
        self.made[EOD_TRANSFERS].rows += new
        late = pc.greater_equal(
            there.column("observed_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64()), self.since
        )
        self.made[EOD_TRANSFERS].there.append(there.filter(late))
        return new, earlier

    def _before(self, recent: list[Row], earlier: list[Row]) -> list[Row]:
        """Return what must be known besides: the last row of each series, and those since its oldest was in flight."""
        known: defaultdict[eod.Series, list[Row]] = defaultdict(list)
        for row in earlier:
            known[eod.series_of(row)].append(row)
        oldest: defaultdict[eod.Series, set[int | None]] = defaultdict(set)
        for row in recent:
            oldest[eod.series_of(row)].add(_oldest(row))
        table = self.lake.read(EOD_TRANSFERS)
        before = F.unix_micros("observed_at") < self.since
        found: list[Row] = []
        if unknown := {series for series in oldest if series not in known}:
            rows = only(table, "queue", {queue for _, queue, _, _ in unknown if queue is not None}).where(before)
            newest = F.max_by(F.struct(*EOD_TRANSFERS.names), F.struct("observed_at", "snapshot_id")).alias("last")
            last = rows.groupBy(*eod.SERIES).agg(newest).select("last.*").toArrow()
            found += [row for row in states.rows_of(last) if eod.series_of(row) in unknown]
            for row in found:
                known[eod.series_of(row)].append(row)
        need = {}
        for series, numbers in oldest.items():
            last_known = max(known[series], key=eod.order, default=None)
            if last_known is not None and numbers - {last_known["first_unacked_number"], None}:
                since = eod.needs_since(last_known)
                if since < min(row["observed_at"] for row in known[series]):
                    need[series] = since
        if need:
            rows = only(table, "queue", {queue for _, queue, _, _ in need if queue is not None}).where(before)
            more = states.rows_of(_from(rows, "observed_at", min(need.values())).toArrow())
            seen = {row["snapshot_id"] for row in (*earlier, *found)}
            found += [row for row in more if eod.series_of(row) in need and row["snapshot_id"] not in seen]
        return found

    def _sources(self, observed: list[Row], senders: list[Row], there: pa.Table, others: pa.Table) -> None:
        """Compare the receivers among the queues, and the others that these are the senders' queues of."""
        since = self.since - self.settings.gap_us
        if others.num_rows:
            queues = set(others.column("queue").to_pylist())
            told = states.named(self._told(queues, since).to_pylist(), self.names)
            observed = observed + states.observations(row for row in told if row["queue"] in queues)
            theirs = _from(only(self.lake.read(EOD_SOURCES), "queue", queues), "observed_at", since)
            self.made[EOD_SOURCES].there.append(theirs.toArrow())
        receivers = states.with_senders((row for row in observed if row["observed_at"] >= since), self.names)
        away = {each["sender_queue"] for row in receivers for each in row["eod_source_info"]}
        away = (away | {row["queue"] for row in receivers}) - self.queues - {None}
        if away:
            rows = only(self.lake.read(EOD_TRANSFERS), "queue", away)
            senders = senders + states.rows_of(_from(rows, "observed_at", since - self.settings.gap_us).toArrow())
        self.made[EOD_SOURCES].rows += states.source_rows(receivers, senders, self.names, self.settings)
        self.made[EOD_SOURCES].there.append(there)


def _series(row: Mapping[str, Any], name: str | None) -> Series:
    return row["queue_manager"], row["queue"], name


def _oldest(row: Mapping[str, Any]) -> int | None:
    first = row["eod_first_non_ack"]
    return None if first is None else first["sequence_number"]


def _from(rows: DataFrame, column: str, since: int) -> DataFrame:
    return rows.where(F.col(column) >= F.timestamp_micros(F.lit(since)))


def _is_in(rows: pa.Table, column: str, values: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(rows.column(column), pa.array(sorted(values), pa.string()))


def _texts(queues: Collection[str], names: Names) -> set[str]:
    """Return all normal forms whose canonical text is one of these; a journal's or subqueue's are its queue's."""
    of: defaultdict[str, set[str]] = defaultdict(set)
    for text, canonical in names.texts.items():
        of[canonical].add(text)
    found = set(queues)
    for queue in queues:
        base, suffix = parent(queue)
        found |= of[queue] | {text + suffix for text in of[base]}
    return found
