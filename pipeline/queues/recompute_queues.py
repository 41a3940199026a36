"""Gold's states of some queues from a time on: what is there, and what comes in its place, made on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import schema_of
from pipeline.queues import eod_transfers, queue_rows
from pipeline.queues.history import Cut
from pipeline.queues.queue_rows import Names, Row, Series, Settings
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
    """Add to ``made`` what the tables say of queues, canonical texts, from a time on, and what they are to say.

    Called again for other queues, what was made first counts for what is made then; of a row made twice the last.
    """
    states_since(Reader(lake, names, settings), frozenset(queues), since, made)


def states_since(reader: Reader, queues: frozenset[str], since: int, made: Made) -> None:
    """Do what ``make`` does, by what a reader reads."""
    _Queues(reader, queues, since, made).make()


@dataclass(frozen=True, slots=True)
class Reader:
    """What is read of the lake; times in microseconds, tables as they are there."""

    lake: Lake
    names: Names
    settings: Settings

    def told(self, queues: Collection[str], since: int) -> list[Row]:
        """Return what is told of queues since a time, but for what was read from them."""
        return self._told(queues, since, [each for each in queue_rows.TELLING if each != queue_rows.READS])

    def reads(self, queues: Collection[str], since: int) -> list[Row]:
        """Return what is told of reads since a time."""
        return self._told(queues, since, [queue_rows.READS])

    def counted(self, queues: Collection[str], since: int) -> list[Row]:
        """Return what of that is counted alone: reads, moves and purges."""
        return self._told(queues, since, [each for each in queue_rows.TELLING if each.table in queue_rows.OF_GOLD])

    def _told(self, queues: Collection[str], since: int, telling: Sequence[queue_rows.Told]) -> list[Row]:
        raw = texts_of(queues, self.names)

        def ask(told: queue_rows.Told) -> pa.Table:
            sql = told.sql(self.settings, max(since, 0), f"{told.queue} IN {{queues}}")
            of = queues if told.table in queue_rows.OF_GOLD else raw
            return self.lake.query(f"{sql} LIMIT {MOST + 1}", rows=told.table, queues=of)

        found = gather({place: partial(ask, each) for place, each in enumerate(telling)})
        if sum(rows.num_rows for rows in found.values()) > MOST:
            raise TooManyError
        every = chain.from_iterable(rows.to_pylist() for rows in found.values())
        return [row for row in queue_rows.named(queue_rows.as_told(every), self.names) if row["queue"] in queues]

    def since(self, table: Table, queues: Collection[str], since: int, column: str = "queue") -> pa.Table:
        """Return the rows of some queues that reach up to a time, or are of a later one."""
        at = "valid_to" if table == QUEUE_HISTORY else "observed_at"
        return self.lake.select(table, f"{column} IN {{queues}} AND {at} >= timestamp_micros({since})", queues=queues)

    def ended(self, queues: Collection[str]) -> dict[Series, int]:
        """Return when each history of some queues ends."""
        series = ", ".join(_SERIES)
        sql = f"SELECT {series}, unix_micros(max(valid_to)) AS ends FROM {{rows}} WHERE queue IN {{queues}}"
        last = self.lake.query(f"{sql} GROUP BY {series}", rows=QUEUE_HISTORY, queues=queues).to_pylist()
        return {(row["queue_manager"], row["queue"], row["queue_format_name"]): row["ends"] for row in last}

    def last_transfers(self, queues: Collection[str], before: int) -> pa.Table:
        """Return the last row of each series of some queues before a time."""
        newest = f"""
SELECT *,
  row_number() OVER (PARTITION BY {", ".join(eod_transfers.SERIES)} ORDER BY observed_at DESC, snapshot_id DESC)
    AS place
FROM {{rows}} WHERE queue IN {{queues}} AND unix_micros(observed_at) < {before}"""
        sql = f"SELECT {', '.join(EOD_TRANSFERS.names)} FROM ({newest}) WHERE place = 1"
        found = self.lake.query(sql, rows=EOD_TRANSFERS, queues=queues)
        return found.cast(schema_of(EOD_TRANSFERS))


@dataclass(slots=True)
class _Queues:
    reader: Reader
    queues: frozenset[str]
    since: int
    made: Made

    @property
    def gap(self) -> int:
        """How long an observation holds."""
        return self.reader.settings.gap_us

    def make(self) -> None:
        """Ask for all of it side by side, then for what that shows to be needed besides."""
        read, queues, gap = self.reader, self.queues, self.gap
        asked: dict[str, Callable[[], Any]] = {
            "told": partial(read.told, queues, self.since - 3 * gap),
            "history": partial(read.since, QUEUE_HISTORY, queues, self.since),
            "transfers": partial(read.since, EOD_TRANSFERS, queues, self.since - 2 * gap),
            "sources": partial(read.since, EOD_SOURCES, queues, self.since - gap),
            "receivers": partial(read.since, EOD_SOURCES, queues, self.since - gap, "sender_queue"),
        }
        found = gather(asked)
        told: list[Row] = found["told"]
        self._history(told, found["history"])
        observed = queue_rows.observations(told)
        new, earlier = self._transfers(observed, found["transfers"])
        others = set(found["receivers"].column("queue").to_pylist())
        others |= {row["queue"] for row in self.made[EOD_SOURCES].rows if row["sender_queue"] in queues}
        self._sources(observed, [*earlier, *new], found["sources"], others - queues)

    # Histories

    def _history(self, told: list[Row], there: pa.Table) -> None:
        """Make the intervals again from the first one on that the time lies in."""
        cuts: dict[Series, Cut] = {}
        for row in sorted(queue_rows.rows_of(there), key=lambda row: row["valid_from"]):
            series = _series(row, row["queue_format_name"])
            if series not in cuts:
                gone = row["valid_from"] if row["source"] is None else None
                cuts[series] = Cut(min(row["valid_from"], self.since) if gone is None else gone, gone)
        fresh = {
            _series(row, row["name"]) for row in told if row["kind"] in _CUTTING and row["at"] >= self.since
        } - cuts.keys()
        cuts |= {series: Cut(end, end) for series, end in self._ended(fresh).items()}
        wanted = cuts.keys() | fresh
        theirs = {queue for _, queue, _ in wanted}  # most queues that are read from have no history: nobody asked
        begin = min((cut.since for cut in cuts.values()), default=self.since)
        known_since = self.since - 3 * self.gap
        if theirs:
            told = [*told, *self.reader.reads(theirs, known_since)]
        if begin < known_since:  # what is counted in a time of which nothing else is known
            told = [*told, *(row for row in self.reader.counted(theirs, begin) if row["at"] < known_since)]
        whole = known_since + self.gap  # of an earlier purge it cannot be told which names something was known of
        told = [row | {"kind": "purged"} if row["kind"] == "purge" and row["at"] < whole else row for row in told]
        rows = queue_rows.history_rows(told, self.reader.settings, cuts)
        self.made[QUEUE_HISTORY].rows += [row for row in rows if _series(row, row["queue_format_name"]) in wanted]
        self.made[QUEUE_HISTORY].there.append(there)

    def _ended(self, series: Collection[Series]) -> dict[Series, int]:
        """Return when the histories ended that were known before; all of them did before the time."""
        if not series:
            return {}
        ends = self.reader.ended({queue for _, queue, _ in series})
        return {each: ends[each] for each in series if each in ends}

    # Exactly-once delivery

    def _transfers(self, observed: list[Row], there: pa.Table) -> tuple[list[Row], list[Row]]:
        """Return the rows of the observations since the time, and those before them."""
        rows = queue_rows.rows_of(there)
        earlier = [row for row in rows if row["observed_at"] < self.since]
        recent = [row for row in observed if row["observed_at"] >= self.since and eod_transfers.is_transfer(row)]
        earlier += self._before(recent, earlier)
        new = queue_rows.transfer_rows(recent, self.reader.settings, earlier)
        self.made[EOD_TRANSFERS].rows += new
        late = pc.greater_equal(
            there.column("observed_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64()), self.since
        )
        self.made[EOD_TRANSFERS].there.append(there.filter(late))
        return new, earlier

    def _before(self, recent: list[Row], earlier: list[Row]) -> list[Row]:
        """Return what must be known besides: the last row of each series, and those since its oldest was in flight."""
        known: defaultdict[eod_transfers.Series, list[Row]] = defaultdict(list)
        for row in earlier:
            known[eod_transfers.series_of(row)].append(row)
        oldest: defaultdict[eod_transfers.Series, set[int | None]] = defaultdict(set)
        for row in recent:
            oldest[eod_transfers.series_of(row)].add(_oldest(row))
        found: list[Row] = []
        if unknown := {series for series in oldest if series not in known}:
            last = self.reader.last_transfers(_queues(unknown), self.since)
            found += [row for row in queue_rows.rows_of(last) if eod_transfers.series_of(row) in unknown]
            for row in found:
                known[eod_transfers.series_of(row)].append(row)
        need = {}
        for series, numbers in oldest.items():
            last_known = max(known[series], key=eod_transfers.order, default=None)
            if last_known is not None and numbers - {last_known["first_unacked_number"], None}:
                since = eod_transfers.needs_since(last_known)
                if since < min(row["observed_at"] for row in known[series]):
                    need[series] = since
        if need:
            more = queue_rows.rows_of(self.reader.since(EOD_TRANSFERS, _queues(need), min(need.values())))
            seen = {row["snapshot_id"] for row in (*earlier, *found)}
            more = [row for row in more if row["observed_at"] < self.since and row["snapshot_id"] not in seen]
            found += [row for row in more if eod_transfers.series_of(row) in need]
        return found

    def _sources(self, observed: list[Row], senders: list[Row], there: pa.Table, others: set[str]) -> None:
        """Compare the receivers among the queues, and the others that these are the senders' queues of."""
        read, since = self.reader, self.since - self.gap
        if others:
            observed = observed + queue_rows.observations(read.told(others, since))
            self.made[EOD_SOURCES].there.append(read.since(EOD_SOURCES, others, since))
        receivers = queue_rows.with_senders((row for row in observed if row["observed_at"] >= since), read.names)
        away = {each["sender_queue"] for row in receivers for each in row["eod_source_info"]}
        away = (away | {row["queue"] for row in receivers}) - self.queues - {None}
        if away:
            senders = senders + self._away(away, since - self.gap)
        self.made[EOD_SOURCES].rows += queue_rows.source_rows(receivers, senders, read.names, read.settings)
        self.made[EOD_SOURCES].there.append(there)

    def _away(self, queues: set[str], since: int) -> list[Row]:
        """Return the transfers of other queues since a time, those that were made before these in this run as made."""
        rows = queue_rows.rows_of(self.reader.since(EOD_TRANSFERS, queues, since))
        gone = {name for there in self.made[EOD_TRANSFERS].there for name in there.column("snapshot_id").to_pylist()}
        made = [row for row in self.made[EOD_TRANSFERS].rows if row["queue"] in queues and row["observed_at"] >= since]
        return [*(row for row in rows if row["snapshot_id"] not in gone), *made]


def _queues(series: Iterable[eod_transfers.Series]) -> set[str]:
    return {queue for _, queue, _, _ in series if queue is not None}


def _series(row: Mapping[str, Any], name: str | None) -> Series:
    return row["queue_manager"], row["queue"], name


def _oldest(row: Mapping[str, Any]) -> int | None:
    first = row["eod_first_non_ack"]
    return None if first is None else first["sequence_number"]


def texts_of(queues: Collection[str], names: Names) -> set[str]:
    """Return all normal forms whose canonical text is one of these; a journal's or subqueue's are its queue's."""
    of: defaultdict[str, set[str]] = defaultdict(set)
    for text, canonical in names.texts.items():
        of[canonical].add(text)
    found = set(queues)
    for queue in queues:
        base, suffix = parent(queue)
        found |= of[queue] | {text + suffix for text in of[base]}
    return found
