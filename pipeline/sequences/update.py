"""gold.ack_sequences follows gold.receive_attempts and gold.queue_operations: what changed there is made anew here.

Its commit says of which versions of these it was made, and with which settings. A change touches the messages that the
changed attempts and moves are about, as they were and are; those that reads without a lookup identifier bind to them;
of a queue with a changed purge those that were given back or are held, or that a purge took; and the same of any queue
where calls of other readers can have been missed until another time than before (``capture_gaps``). Their rows are
made of all reads of these messages, however old: here where they are few, in Spark where they are many or not known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.attempts import capture_gaps
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.queries import Names
from pipeline.lake.settings import unmeasured
from pipeline.sequences.message_fates import Place, Read, Removal
from pipeline.sequences.sequence_rows import (
    DONE,
    HANDLE,
    KNOWN,
    READ_COLUMNS,
    REMOVAL_COLUMNS,
    SCHEMA,
    number_of,
    place_of,
    read_rows,
    removal_rows,
    sequences_of,
)
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.table import EVENT_DATE, Table

MOST: Final = 100_000  # reads, or changes, that are brought to the driver; if there are more, all is made in Spark
_MADE_BY: Final = 3  # another number when sequences are made in another way: all are made anew
_GROUPS: Final = 200  # of messages, in Spark; each is made by one call of Python
_MOST_QUEUES: Final = 1000  # that a condition on operations names
_FOLLOWED: Final = (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS)
_NAMES: Final = ("queue", "server_address", "lookup_id", "message_key")  # of a message, with its handle
_NOT_TAKEN: Final = "fate IN ('returned', 'held', 'purged')"  # by a reader; what a purge can take, or took
_SEALED: Final = (  # of attempts: reads of which nobody can tell what they brought
    "array_contains(missing, 'sealed') AND lookup_id IS NULL AND message_key IS NULL AND coalesce(is_receive, TRUE)"
)
# Which messages attempts are at, and whether one is of a message that nobody can tell (no name).
_MESSAGES_OF: Final = (
    f"SELECT {', '.join((*_NAMES, HANDLE))}, coalesce({_SEALED}, FALSE) AS sealed"
    f" FROM {{feed}} WHERE {KNOWN} OR {_SEALED}"
)
# What was done, or may have been, to which messages, or whole queues.
_DONE: Final = f"SELECT queue, server_address, lookup_id, {HANDLE}, target_queue, operation FROM {{feed}} WHERE {DONE}"
_UNSEEN: Final = "unseen"  # what a commit says of calls that can have been missed: ``unseen.Unseen``


def ack_sequences(lake: Lake, *, lost_after: timedelta, poison_after: int) -> int:
    """Bring what changed to gold.ack_sequences; returns how many rows were written.

    ``lost_after`` and ``poison_after`` are the settings of reads; with others all rows are made anew.
    """
    newest = lake.newest(*_FOLLOWED, ACK_SEQUENCES)
    if RECEIVE_ATTEMPTS not in newest:
        return 0
    made = newest[ACK_SEQUENCES].made() if ACK_SEQUENCES in newest else {}
    settings = {"lost_after_s": lost_after.total_seconds(), "poison_after": poison_after, "made_by": _MADE_BY}
    rests_on = {**versions_of(newest, _FOLLOWED), **settings}
    if rests_on == {name: made.get(name) for name in rests_on}:
        return 0
    work = _Work(lake, made, rests_on, lost=newest[RECEIVE_ATTEMPTS].made().get("lost", {}))
    touched = work.touched() if {name: made.get(name) for name in settings} == settings else None
    return work.anew() if touched is None else work.bring(touched)


@dataclass(slots=True)
class _Touched:
    """Messages, by place and lookup identifier or message_key.

    ``bound``: the keys, with their places, that reads without a lookup identifier have or had.
    """

    lookups: set[tuple[Place, int]] = field(default_factory=set)
    keys: set[tuple[Place, str]] = field(default_factory=set)
    bound: set[tuple[Place, str]] = field(default_factory=set)

    def add(self, place: Place, lookup_id: int | None, message_key: str | None) -> None:
        """Add a message, as one read tells of it."""
        if lookup_id is not None:
            self.lookups.add((place, lookup_id))
        if message_key is not None:
            self.keys.add((place, message_key))
            if lookup_id is None:
                self.bound.add((place, message_key))

    def spread(self, reads: Iterable[Read]) -> None:
        """Add what reads bind to these messages, as often as something comes of it."""
        before = -1
        while before != (before := len(self.lookups) + len(self.keys) + len(self.bound)):
            for read in reads:
                if self.has(*_named(read)):
                    self.add(*_named(read))

    def has(self, place: Place, lookup_id: int | None, message_key: str | None) -> bool:
        """Tell whether a read, or a row, is of one of these messages."""
        by_key = None if message_key is None else (place, message_key)
        if lookup_id is None:
            return by_key in self.keys
        return (place, lookup_id) in self.lookups or by_key in self.bound


@dataclass(slots=True)
class _Work:
    """One run's work: what the table's last commit said, and what this one's will say."""

    lake: Lake
    made: dict[str, Any]
    rests_on: dict[str, Any]
    lost: dict[str, int]  # as ``unseen.lost`` found it when the attempts were made

    def touched(self) -> _Touched | None:
        """Return what changed since; None when that cannot be told, or is too much."""
        found = gather({table: partial(self._changes, table) for table in _FOLLOWED})
        attempts, operations = (found[table] for table in _FOLLOWED)
        if attempts is None or operations is None:
            return None
        touched = _Touched()
        for row in attempts:
            touched.add(*_message(row))
        for row in operations:
            places = {place_of(row), Place(row["target_queue"])} - {Place(None)}
            if row["lookup_id"] is not None:
                touched.lookups |= {(place, int(row["lookup_id"])) for place in places}
        purged = {place_of(row) for row in operations if row["operation"] == "purge"}
        there = self._can_be_purged(purged) if purged else []
        since = self._unseen_otherwise(sealed=any(row["sealed"] for row in attempts))
        if since is not None:
            there += self._not_taken_since(since)
        for row in there:
            touched.add(*_message(row))
        return None if len(there) > MOST else touched

    def _unseen_otherwise(self, *, sealed: bool) -> int | None:
        """Say until when calls can have been missed; return the time since which that is otherwise than before.

        ``sealed``: among the changes are reads of which nobody can tell what they brought.
        """
        before = self.made.get(_UNSEEN, {})
        now = self._say_unseen(_sealed_until(self.lake) if sealed else before.get("sealed", {}))
        return capture_gaps.changed_since(before, now)

    def _say_unseen(self, sealed: dict[str, int]) -> capture_gaps.Unseen:
        """Say until when calls can have been missed, ``sealed`` until when for being sealed; return it."""
        now: capture_gaps.Unseen = {"capture_loss": self.lost, "sealed": sealed}
        self.rests_on[_UNSEEN] = now
        return now

    def _changes(self, table: Table) -> list[dict[str, Any]] | None:
        """Return the messages, and purges, of a table's feed since this table's commit."""
        ask = _MESSAGES_OF if table is RECEIVE_ATTEMPTS else _DONE
        return Feeds(self.lake, self.made, self.rests_on).rows(table, ask, MOST)

    def _can_be_purged(self, places: Collection[Place]) -> list[dict[str, Any]]:
        """Return the rows of places that a purge can have taken, or had taken."""
        where, of = _at("queue", queues={place.queue for place in places})
        return [row for row in self._messages(where, **of) if place_of(row) in places]

    def _not_taken_since(self, at: int) -> list[dict[str, Any]]:
        """Return the rows that nobody is known to have taken since a time, microseconds, or may be."""
        return self._messages(f"(settled_at IS NULL OR unix_micros(settled_at) >= {at})")

    def _messages(self, where: str, **of: Names) -> list[dict[str, Any]]:
        """Return the messages of rows of this table that nobody took; of too many as many as tell it."""
        columns = f"SELECT {', '.join((*_NAMES, 'handle'))} FROM {{rows}}"
        sql = f"{columns} WHERE {_NOT_TAKEN} AND {where} LIMIT {MOST + 1}"
        rows: list[dict[str, Any]] = self.lake.query(sql, rows=ACK_SEQUENCES, **of).to_pylist()
        return rows

    def bring(self, touched: _Touched) -> int:
        """Make the rows of messages anew that changes touch."""
        lake, says = self.lake, json.dumps(self.rests_on)
        if not touched.lookups and not touched.keys:
            lake.stamp(ACK_SEQUENCES, says)
            return 0
        reads: dict[str, Read] = {}
        there: dict[str, dict[str, Any]] = {}
        removals: list[Removal] = []
        asked = _Touched()
        while asked != touched:  # nearly always once: what reads bind together has been read together
            found = self._ask(touched, asked, removals=not asked.lookups and not asked.keys)
            asked = _Touched(set(touched.lookups), set(touched.keys), set(touched.bound))
            reads |= {read.attempt_key: read for read in read_rows(found["reads"])}
            there |= {row["sequence_key"]: row for row in found["there"].to_pylist()}
            removals += removal_rows(found["removals"]) if "removals" in found else []
            if len(reads) > MOST:
                return self.anew()
            touched.spread(list(reads.values()))
        rows = self._made([read for read in reads.values() if touched.has(*_named(read))], removals)
        ours = [row for row in there.values() if touched.has(*_message(row))]
        before = pa.Table.from_pylist(ours, schema=SCHEMA)
        dates = set(before[EVENT_DATE].to_pylist())
        was = json.dumps(self.made)
        return lake.put(ACK_SEQUENCES, rows, before, dates=dates, made_of=says, was_made_of=was)

    def _ask(self, touched: _Touched, asked: _Touched, *, removals: bool) -> dict[str, pa.Table]:
        """Ask for the reads and rows of messages that were not asked for, and what was done to their places."""
        lake = self.lake
        numbers = {lookup_id for _, lookup_id in touched.lookups - asked.lookups}
        keys = {name for _, name in touched.keys - asked.keys}
        about = "(lookup_id IN {numbers} OR message_key IN {keys})"
        reads = f"SELECT {', '.join(READ_COLUMNS)} FROM {{attempts}} WHERE {KNOWN} AND {about} LIMIT {MOST + 1}"
        questions: dict[str, Callable[[], pa.Table]] = {
            "reads": lambda: lake.query(reads, attempts=RECEIVE_ATTEMPTS, numbers=numbers, keys=keys),
            "there": lambda: lake.select(ACK_SEQUENCES, about, numbers=numbers, keys=keys),
        }
        if removals:
            queues = {place.queue for place, _ in (*touched.lookups, *touched.keys)}
            where, of = _at("queue", "target_queue", queues=queues)
            done = f"SELECT {', '.join(REMOVAL_COLUMNS)} FROM {{operations}} WHERE {DONE} AND {where}"
            questions["removals"] = lambda: lake.query(done, operations=QUEUE_OPERATIONS, **of)
        return gather(questions)

    def _made(self, reads: list[Read], removals: list[Removal]) -> pa.Table:
        return sequences_of(reads, removals, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        """What else sequences are made of."""
        lost_after_us = round(self.rests_on["lost_after_s"] * 1e6)
        told = {"poison_after": self.rests_on["poison_after"], "unseen": self.rests_on[_UNSEEN]}
        return {"lost_after_us": lost_after_us, **told}

    def anew(self) -> int:
        """Make all rows of all there is."""
        lake = self.lake
        self._say_unseen(_sealed_until(lake))
        says = json.dumps(self.rests_on)
        done = f"SELECT {', '.join(REMOVAL_COLUMNS)} FROM {{operations}} WHERE {DONE}"
        removals = removal_rows(lake.query(done, operations=QUEUE_OPERATIONS))
        reads = f"SELECT {', '.join(READ_COLUMNS)} FROM {{attempts}} WHERE {KNOWN} LIMIT {MOST + 1}"
        few = lake.query(reads, attempts=RECEIVE_ATTEMPTS)
        rows: DataFrame | pa.Table
        if few.num_rows <= MOST:
            rows = self._made(read_rows(few), removals)
        else:
            every = lake.read(RECEIVE_ATTEMPTS).where(KNOWN).selectExpr(*READ_COLUMNS)
            rows = in_spark(every, removals, **self._settings)
        with unmeasured(lake.spark):
            lake.replace(ACK_SEQUENCES, rows, made_of=says)
        written: int = lake.rows_written(ACK_SEQUENCES)
        return written


def in_spark(reads: DataFrame, removals: Sequence[Removal], **settings: Any) -> DataFrame:  # noqa: ANN401
    """Return gold.ack_sequences of attempts as they are read, made in groups of whole messages by ``sequences_of``.

    Those of a place go by their lookup identifier or message_key; where some have only the one and some the other, all
    of the place are one group.
    """
    place = [F.coalesce("queue", "server_address", F.lit("")), F.when(F.col("queue").isNull(), F.col("handle"))]
    unnumbered = F.max(F.col("lookup_id").isNull())
    mixed = reads.groupBy(F.xxhash64(*place)).agg(unnumbered, F.max(F.col("lookup_id").isNotNull())).toDF("p", "k", "l")
    together = [row[0] for row in mixed.where("k AND l").select("p").collect()]
    message = F.when(~F.xxhash64(*place).isin(together), F.coalesce(F.col("lookup_id").cast("string"), "message_key"))
    group = F.pmod(F.xxhash64(*place, message), F.lit(_GROUPS))
    done = list(removals)

    def made(rows: pa.Table) -> pa.Table:
        ours = rows.drop_columns(["_group"])
        return sequences_of(read_rows(ours), done, **settings)

    return reads.withColumn("_group", group).groupBy("_group").applyInArrow(made, ACK_SEQUENCES.struct())


def _message(row: Mapping[str, Any]) -> tuple[Place, int | None, str | None]:
    """Return the message that an attempt, or a row of this table, is of."""
    return place_of(row), number_of(row["lookup_id"]), row["message_key"]


def _sealed_until(lake: Lake) -> dict[str, int]:
    """Return until when reads at each server were sealed, microseconds."""
    newest = "max(unix_micros(coalesce(ended_at, returned_at, started_at))) AS newest"
    sql = f"SELECT server_address, {newest} FROM {{attempts}} WHERE {_SEALED} GROUP BY server_address"
    rows = lake.query(sql, attempts=RECEIVE_ATTEMPTS)
    return capture_gaps.latest(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _named(read: Read) -> tuple[Place, int | None, str | None]:
    return read.place, read.lookup_id, read.message_key


def _at(*columns: str, queues: Collection[str | None]) -> tuple[str, dict[str, Names]]:
    """Return the condition of rows at one of these queues, and what its names stand for.

    With None those at no known queue too; too many are not told apart.
    """
    if len(queues) > _MOST_QUEUES:
        return "TRUE", {}
    none = "queue IS NULL OR " if None in queues else ""
    theirs = " OR ".join(f"{column} IN {{queues}}" for column in columns)
    return f"({none}{theirs})", {"queues": {queue for queue in queues if queue is not None}}
