"""Update of gold.ack_sequences from gold.receive_attempts and gold.queue_operations.

A change of the inputs affects messages: those that the changed attempts and moves are about, before and after; those
that attempts without a lookup identifier bind to them; in a queue with a changed purge those that were given back,
are held, or were taken by a purge; and the same in all queues where calls of other readers may have been missed until
another time than before (``capture_gaps``). The rows of affected messages are recomputed from all attempts at them,
however old. Which attempts these are is known only while they are read, so a few are computed where they were read;
many by the grouped query for all rows, with a condition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pipeline.attempts import capture_gaps
from pipeline.attempts.attempts_state import AttemptsState
from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MAX_ROWS_IN_MEMORY, BoundQuery, GroupedQuery, Values
from pipeline.sequences.message_fates import QueueRef, ReadAttempt, Removal, queue_family
from pipeline.sequences.sequence_rows import (
    ACK_SEQUENCES_SCHEMA,
    HANDLE_SQL,
    MESSAGE_KNOWN_SQL,
    NOT_REFUSED_SQL,
    REMOVALS_SQL,
    ack_sequence_rows,
    decimal_to_int,
    queue_ref_of,
    read_attempts_sql,
    to_read_attempts,
    to_removals,
)
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from udfs.rows import RowDict
from udfs.times import timedelta_to_us

_SEQUENCES: Final = DerivedTable(
    ACK_SEQUENCES, (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS), code_version="7", needs=(RECEIVE_ATTEMPTS,)
)
_MESSAGE_COLUMNS: Final = ("queue", "server_address", "lookup_id", "message_key")  # which message, with its handle
_NOT_TAKEN: Final = "fate IN ('returned', 'held', 'purged')"  # by a reader; a purge can take, or took, such a message
_SEALED: Final = (  # attempts that may have brought any message: their answer is encrypted
    "array_contains(missing, 'sealed') AND lookup_id IS NULL AND message_key IS NULL AND coalesce(is_receive, TRUE)"
)
# The messages of changed attempts, and whether the message of one is not known.
_CHANGED_ATTEMPTS: Final = (
    f"SELECT {', '.join((*_MESSAGE_COLUMNS, HANDLE_SQL))}, coalesce({_SEALED}, FALSE) AS sealed"
    f" FROM {{feed}} WHERE {MESSAGE_KNOWN_SQL} OR {_SEALED}"
)
# What changed operations did, or may have done, to messages or whole queues.
_CHANGED_OPERATIONS: Final = (
    f"SELECT queue, server_address, lookup_id, {HANDLE_SQL}, target_queue, operation FROM {{feed}}"
    f" WHERE {NOT_REFUSED_SQL}"
)
_MESSAGES: Final = f"SELECT DISTINCT {', '.join((*_MESSAGE_COLUMNS, HANDLE_SQL))} FROM {{attempts}}"
# Rows that may be of some messages (``_AffectedMessages.values``).
_ABOUT: Final = """(lookup_id IN {numbers} AND (queue IS NULL OR queue IN {queues})
  OR lookup_id IN {unplaced_numbers} OR message_key IN {keys})"""
_GROUP: Final = "message_group"
# A queue and its subqueues are one place: moves keep the identifier.
_PLACE: Final = "coalesce(split_part(queue, ';', 1), concat_ws(' ', server_address, handle))"
# All attempts with the group that each belongs to, of 256: messages are not split. The messages of a place are told
# apart by lookup identifier or message_key; where some attempts have only the one and some only the other, all messages
# of the place are in one group.
_GROUPED_ATTEMPTS: Final = f"""
SELECT every.*,
  left(md5(concat_ws(' ', {_PLACE}, CASE WHEN mixed.place IS NULL
    THEN coalesce(CAST(lookup_id AS string), message_key) END)), 2) AS {_GROUP}
FROM ({read_attempts_sql()}) AS every LEFT JOIN (
  SELECT {_PLACE} AS place FROM (SELECT queue, server_address, lookup_id, {HANDLE_SQL}
    FROM {{attempts}} WHERE {MESSAGE_KNOWN_SQL}) AS placed GROUP BY 1
  HAVING bool_or(lookup_id IS NULL) AND bool_or(lookup_id IS NOT NULL)
) AS mixed ON mixed.place = {_PLACE}"""
MessageKey = tuple[QueueRef, int | None, str | None]
"""A message: where it is, its lookup identifier, its message_key."""


@dataclass(frozen=True, slots=True)
class _PossibleLoss(KeptState):
    """By server, until when calls may have been missed (``capture_gaps.PossibleLoss``), microseconds."""

    capture_loss: dict[str, int]
    sealed: dict[str, int]


def update(lake: Lake, *, lost_after: timedelta, poison_after: int) -> int:
    """Update the sequences that changes of attempts and operations affect; return how many rows are written.

    ``lost_after`` and ``poison_after`` are the settings ``reads.*``.
    """
    attempts = AttemptsState.read(lake)
    capture_loss = {} if attempts is None else attempts.lost
    settings = {"lost_after_s": lost_after.total_seconds(), "poison_after": poison_after}
    step = _SEQUENCES.begin(lake, settings, {"capture_loss": capture_loss})
    if step is None:
        return 0
    work = _ReceiveSequencesUpdate(step, lost_after, poison_after, capture_loss)
    return step.recompute(work.find_affected, work.recompute)


@dataclass(slots=True)
class _AffectedMessages:
    """Messages, by place and lookup identifier (``lookups``) or message_key (``keys``).

    ``bound``: the keys, with their places, of attempts without a lookup identifier. ``families``: the keys with the
    queues, without their subqueues, where reads of the one may show what became of the message in the other.
    ``unplaced_numbers`` and ``unplaced_keys`` are those at unknown queues: their messages may be at any queue.
    """

    lookups: set[tuple[QueueRef, int]] = field(default_factory=set)
    keys: set[tuple[QueueRef, str]] = field(default_factory=set)
    bound: set[tuple[QueueRef, str]] = field(default_factory=set)
    families: set[tuple[str, str]] = field(default_factory=set)
    unplaced_numbers: set[int] = field(default_factory=set)
    unplaced_keys: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.lookups or self.keys)

    @property
    def queues(self) -> set[str | None]:
        """The queues where the messages are; None for those that are not known."""
        return {place.queue for place, _ in (*self.lookups, *self.keys)}

    def values(self) -> dict[str, Values]:
        """Return the values of ``_ABOUT``."""
        return {
            "numbers": {lookup_id for _, lookup_id in self.lookups},
            "queues": {place.queue for place, _ in self.lookups if place.queue is not None},
            "unplaced_numbers": self.unplaced_numbers,
            "keys": {name for _, name in self.keys},
        }

    def add(self, place: QueueRef, lookup_id: int | None, message_key: str | None) -> None:
        """Add the message of one attempt or row."""
        if lookup_id is not None:
            self.lookups.add((place, lookup_id))
            if place.queue is None:
                self.unplaced_numbers.add(lookup_id)
        if message_key is not None:
            if place.queue is None:
                self.unplaced_keys.add(message_key)
            self.keys.add((place, message_key))
            if lookup_id is None:
                self.bound.add((place, message_key))
            if (family := queue_family(place, message_key)) is not None:
                self.families.add(family)

    def add_bound(self, messages: Collection[MessageKey]) -> bool:
        """Add the messages that attempts bind to these, until no more come; return whether any came."""
        begin, before = self._size(), -1
        while before != (before := self._size()):
            for message in messages:
                if self.contains(*message):
                    self.add(*message)
        return before > begin

    def _size(self) -> int:
        return len(self.lookups) + len(self.keys) + len(self.bound) + len(self.families)

    def contains(self, place: QueueRef, lookup_id: int | None, message_key: str | None) -> bool:
        """Whether an attempt, or a row, is of one of these messages."""
        if message_key in self.unplaced_keys or lookup_id in self.unplaced_numbers:
            return True
        if queue_family(place, message_key) in self.families:
            return True
        by_key = None if message_key is None else (place, message_key)
        if lookup_id is None:
            return by_key in self.keys
        return (place, lookup_id) in self.lookups or by_key in self.bound

    def select(self, rows: pa.Table) -> pa.Table:
        """Return those of some rows that are of these messages."""
        messages = map(_message_of_row, rows.select([*_MESSAGE_COLUMNS, "handle"]).to_pylist())
        return rows.filter(pa.array([self.contains(*each) for each in messages], pa.bool_()))


@dataclass(slots=True)
class _ReceiveSequencesUpdate:
    """One update of the sequences."""

    step: IncrementalUpdate
    lost_after: timedelta
    poison_after: int
    capture_loss: dict[str, int]  # until when calls at each server may have been lost, as the attempts found it
    possible_loss: _PossibleLoss = _PossibleLoss({}, {})

    @property
    def lake(self) -> Lake:
        return self.step.lake

    # What changed

    def find_affected(self) -> _AffectedMessages:
        """Return the messages that changes affect; UnknownChangesError."""
        queries = {RECEIVE_ATTEMPTS: _CHANGED_ATTEMPTS, QUEUE_OPERATIONS: _CHANGED_OPERATIONS}
        found = run_concurrently({table: partial(self.step.changes, table, sql) for table, sql in queries.items()})
        attempts, operations = found[RECEIVE_ATTEMPTS], found[QUEUE_OPERATIONS]
        affected = _AffectedMessages()
        for row in attempts:
            affected.add(*_message_of_row(row))
        for row in operations:
            places = {queue_ref_of(row), QueueRef(row["target_queue"])} - {QueueRef(None)}
            if row["lookup_id"] is not None:
                affected.lookups |= {(place, int(row["lookup_id"])) for place in places}
        purged = {queue_ref_of(row) for row in operations if row["operation"] == "purge"}
        rows = self._purgeable_messages(purged) if purged else []
        since = self._loss_changed_since(sealed=any(row["sealed"] for row in attempts))
        if since is not None:
            rows += self._messages_not_taken(f"(settled_at IS NULL OR unix_micros(settled_at) >= {since})")
        for row in rows:
            affected.add(*_message_of_row(row))
        return affected

    def _loss_changed_since(self, *, sealed: bool) -> int | None:
        """Return since when calls may have been missed otherwise than before, microseconds; None where as before.

        ``sealed``: among the changed attempts are some whose message is not known.
        """
        before = self.step.kept(_PossibleLoss)
        self._set_possible_loss(_sealed_until(self.lake) if sealed else before.sealed)
        return capture_gaps.loss_changed_since(before.as_provenance(), self.possible_loss.as_provenance())

    def _set_possible_loss(self, sealed: dict[str, int]) -> None:
        """Set until when calls may have been missed, and have the provenance keep it."""
        self.possible_loss = _PossibleLoss(self.capture_loss, sealed)
        self.step.keep(self.possible_loss)

    def _purgeable_messages(self, places: Collection[QueueRef]) -> list[RowDict]:
        """Return the messages at places that a purge can have taken, or took."""
        where, inputs = _queues_condition("queue", queues={place.queue for place in places})
        return [row for row in self._messages_not_taken(where, **inputs) if queue_ref_of(row) in places]

    def _messages_not_taken(self, where: str, **inputs: Values) -> list[RowDict]:
        """Return the messages of rows that no reader took."""
        columns = f"SELECT {', '.join((*_MESSAGE_COLUMNS, 'handle'))} FROM {{rows}}"
        sql = f"{columns} WHERE {_NOT_TAKEN} AND {where}"
        rows: list[RowDict] = self.lake.query(sql, rows=ACK_SEQUENCES, **inputs).to_pylist()
        return rows

    # Some messages, or all

    def recompute(self, affected: _AffectedMessages | None) -> int:
        """Recompute the rows of messages, or all."""
        return self._recompute_all() if affected is None else self._recompute_affected(affected)

    def _recompute_affected(self, affected: _AffectedMessages) -> int:
        """Recompute the rows of messages, and replace those that differ."""
        lake, reads = self.lake, self._read_attempts(affected)
        where, inputs = _queues_condition("queue", "target_queue", queues=affected.queues)
        found = run_concurrently(
            {
                "current": partial(lake.select, ACK_SEQUENCES, _ABOUT, **affected.values()),
                "removals": partial(self._read_removals, where, **inputs),
            }
        )
        if reads is None:
            rows = lake.map_few_groups(self._sequences(found["removals"], affected)).cast(ACK_SEQUENCES_SCHEMA)
        else:
            rows = ack_sequence_rows(reads, found["removals"], **self._settings)
        return self.step.replace_changed(affected.select(rows), affected.select(found["current"]))

    def _read_attempts(self, affected: _AffectedMessages) -> list[ReadAttempt] | None:
        """Add the messages that attempts bind to these; return the attempts at them, None if they are many."""
        while True:  # nearly always once: what attempts bind together has been read together
            values: dict[str, Any] = {"attempts": RECEIVE_ATTEMPTS, **affected.values()}
            few = self.lake.query_at_most(read_attempts_sql(_ABOUT), MAX_ROWS_IN_MEMORY, **values)
            reads = None if few is None else to_read_attempts(few)
            if reads is not None:
                messages = [*map(_message_of_attempt, reads)]
            else:
                rows = self.lake.query(f"{_MESSAGES} WHERE {MESSAGE_KNOWN_SQL} AND {_ABOUT}", **values)
                messages = [*map(_message_of_row, rows.to_pylist())]
            if not affected.add_bound(messages):
                return reads

    def _read_removals(self, where: str, **inputs: Values) -> list[Removal]:
        return to_removals(self.lake.query(f"{REMOVALS_SQL} AND {where}", operations=QUEUE_OPERATIONS, **inputs))

    def _sequences(self, removals: list[Removal], affected: _AffectedMessages | None = None) -> GroupedQuery:
        """Return the query for all rows, or for those that may be of some messages."""
        settings = self._settings

        def compute(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
            yield ack_sequence_rows(to_read_attempts(parts["reads"].drop_columns([_GROUP])), removals, **settings)

        sql, values = _GROUPED_ATTEMPTS, {}
        if affected is not None:
            sql = sql.replace("{attempts}", f"(SELECT * FROM {{attempts}} WHERE {_ABOUT})")
            values = affected.values()
        reads = BoundQuery(sql, {"attempts": RECEIVE_ATTEMPTS, **values})
        return GroupedQuery({"reads": reads}, (_GROUP,), compute, ACK_SEQUENCES.struct())

    @property
    def _settings(self) -> dict[str, Any]:
        """What sequences are computed with, beside attempts and removals."""
        return {
            "lost_after_us": timedelta_to_us(self.lost_after),
            "poison_after": self.poison_after,
            "possible_loss": self.possible_loss.as_provenance(),
        }

    def _recompute_all(self) -> int:
        """Recompute all rows, of all attempts at each message."""
        lake = self.lake
        self._set_possible_loss(_sealed_until(lake))
        with lake.map_groups(self._sequences(self._read_removals("TRUE"))) as rows:
            return self.step.replace_all(rows)


def _message_of_row(row: Mapping[str, Any]) -> MessageKey:
    return queue_ref_of(row), decimal_to_int(row["lookup_id"]), row["message_key"]


def _message_of_attempt(read: ReadAttempt) -> MessageKey:
    return read.queue_ref, read.lookup_id, read.message_key


def _sealed_until(lake: Lake) -> dict[str, int]:
    """Return until when attempts at each server were encrypted, microseconds."""
    newest = "max(unix_micros(coalesce(ended_at, returned_at, started_at))) AS newest"
    sql = f"SELECT server_address, {newest} FROM {{attempts}} WHERE {_SEALED} GROUP BY server_address"
    rows = lake.query(sql, attempts=RECEIVE_ATTEMPTS)
    return capture_gaps.latest_by_server(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _queues_condition(*columns: str, queues: Collection[str | None]) -> tuple[str, dict[str, Values]]:
    """Return the SQL condition that one of the columns names one of these queues, and the values that it names.

    With None among the queues also rows without a queue.
    """
    none = "queue IS NULL OR " if None in queues else ""
    some = " OR ".join(f"{column} IN {{queues}}" for column in columns)
    return f"({none}{some})", {"queues": {queue for queue in queues if queue is not None}}
