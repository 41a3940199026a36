"""Update of gold.ack_sequences from gold.receive_attempts and gold.queue_operations.

A change of the inputs affects messages: those that the changed attempts and moves are about, before and after; those
that attempts without a lookup identifier bind to them; in a queue with a changed purge those that were given back,
are held, or were taken by a purge; and the same in all queues where calls of other readers may have been missed until
another time than before (``capture_gaps``). The rows of affected messages are recomputed from all attempts at them,
however old. Which attempts these are is known only while they are read, so a few are computed where they were read;
many by the grouped query for all rows, with a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts import capture_gaps
from pipeline.attempts.attempts_state import AttemptsState
from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MAX_ROWS_IN_MEMORY, BoundQuery, GroupedQuery, QueryInput
from pipeline.sequences.message_fates import Removal
from pipeline.sequences.sequence_rows import (
    ACK_SEQUENCES_SCHEMA,
    HANDLE_SQL,
    MESSAGE_KNOWN_SQL,
    NOT_REFUSED_SQL,
    REMOVALS_SQL,
    ack_sequence_rows,
    read_attempts_sql,
    to_read_attempts,
    to_removals,
)
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from udfs.times import timedelta_to_us

_SEQUENCES: Final = DerivedTable(
    ACK_SEQUENCES, (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS), code_version="7", needs=(RECEIVE_ATTEMPTS,)
)
_NOT_TAKEN: Final = "fate IN ('returned', 'held', 'purged')"  # by a reader; a purge can take, or took, such a message
_SEALED: Final = (  # attempts that may have brought any message: their answer is encrypted
    "array_contains(missing, 'sealed') AND lookup_id IS NULL AND message_key IS NULL AND coalesce(is_receive, TRUE)"
)
# A queue and its subqueues are one place: moves keep the identifier. Null: the queue is not known.
_QUEUE: Final = "split_part(queue, ';', 1)"
_PLACE: Final = f"coalesce({_QUEUE}, concat_ws(' ', server_address, handle))"
_MESSAGE: Final = f"{_QUEUE} AS place, lookup_id, message_key"
# The messages of changed attempts, and whether the message of one is not known.
_CHANGED_ATTEMPTS: Final = f"""
SELECT DISTINCT {_MESSAGE}, coalesce({_SEALED}, FALSE) AS sealed FROM {{feed}} WHERE {MESSAGE_KNOWN_SQL} OR {_SEALED}"""
# The messages that changed operations moved, or may have moved, from one place or to another.
_CHANGED_MOVES: Final = f"""
SELECT DISTINCT {_QUEUE} AS place, lookup_id FROM (
  SELECT queue, lookup_id FROM {{feed}} WHERE {NOT_REFUSED_SQL}
  UNION ALL SELECT target_queue AS queue, lookup_id FROM {{feed}} WHERE {NOT_REFUSED_SQL} AND target_queue IS NOT NULL
) WHERE lookup_id IS NOT NULL"""
_CHANGED_PURGES: Final = f"""
SELECT DISTINCT {_PLACE} AS place FROM (
  SELECT queue, server_address, {HANDLE_SQL} FROM {{feed}} WHERE {NOT_REFUSED_SQL} AND operation = 'purge'
)"""
# Rows beside the messages ``_AffectedMessages`` that they are about. One at an unknown queue may be at any queue.
_WITH_MESSAGES: Final = f"""{{rows}} AS every
LEFT JOIN {{numbers}} AS numbered ON numbered.place = {_QUEUE} AND numbered.lookup_id = every.lookup_id
LEFT JOIN {{keys}} AS keyed ON keyed.place = {_QUEUE} AND keyed.message_key = every.message_key
LEFT JOIN (SELECT lookup_id FROM {{numbers}} WHERE place IS NULL) AS numbered_anywhere
  ON numbered_anywhere.lookup_id = every.lookup_id
LEFT JOIN (SELECT message_key FROM {{keys}} WHERE place IS NULL) AS keyed_anywhere
  ON keyed_anywhere.message_key = every.message_key"""
_IS_ABOUT: Final = """(numbered.lookup_id IS NOT NULL OR keyed.message_key IS NOT NULL
  OR numbered_anywhere.lookup_id IS NOT NULL OR keyed_anywhere.message_key IS NOT NULL)"""
_ABOUT: Final = f"SELECT every.* FROM {_WITH_MESSAGES} WHERE {_IS_ABOUT}"
# The identifiers that attempts at these messages bind to them.
_BOUND: Final = f"""
SELECT DISTINCT {_QUEUE} AS place, every.lookup_id, every.message_key FROM {_WITH_MESSAGES} WHERE {_IS_ABOUT} AND (
  every.lookup_id IS NOT NULL AND numbered.lookup_id IS NULL
  OR every.message_key IS NOT NULL AND keyed.message_key IS NULL)"""
_PLACES: Final = "(SELECT coalesce(place, '') FROM {numbers} UNION SELECT coalesce(place, '') FROM {keys})"
# Moves of these messages, and purges where they are.
_REMOVED: Final = f"""(lookup_id IS NULL OR lookup_id IN (SELECT lookup_id FROM {{numbers}}))
  AND (coalesce({_QUEUE}, '') IN {_PLACES} OR split_part(target_queue, ';', 1) IN {_PLACES})"""
_GROUP: Final = "message_group"
_IDENTIFIERS: Final = pa.schema(
    {"place": pa.string(), **{name: ACK_SEQUENCES_SCHEMA.field(name).type for name in ("lookup_id", "message_key")}}
)


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


class _AffectedMessages(NamedTuple):
    """Messages by ``place`` and lookup_id (``numbers``), and by place and message_key (``keys``), each once."""

    numbers: pa.Table
    keys: pa.Table

    @classmethod
    def of(cls, *rows: pa.Table) -> _AffectedMessages:
        """Return the messages of rows, which have a place, and a lookup_id, a message_key, or both."""
        place, *names = _IDENTIFIERS.names
        every = pa.concat_tables([_IDENTIFIERS.empty_table(), *rows], promote_options="permissive")
        every = every.select([place, *names]).cast(_IDENTIFIERS)
        return cls(*(every.filter(pc.is_valid(every[name])).group_by([place, name]).aggregate([]) for name in names))

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def size(self) -> int:
        """How many numbers and keys there are."""
        return len(self.numbers) + len(self.keys)

    @property
    def fits_in_memory(self) -> bool:
        """Whether the attempts at them may be few: nearly each number or key has one."""
        return max(len(self.numbers), len(self.keys)) <= MAX_ROWS_IN_MEMORY


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
        queries = {
            "attempts": partial(self.step.changed_rows, RECEIVE_ATTEMPTS, _CHANGED_ATTEMPTS),
            "moves": partial(self.step.changed_rows, QUEUE_OPERATIONS, _CHANGED_MOVES),
            "purges": partial(self.step.changed_rows, QUEUE_OPERATIONS, _CHANGED_PURGES),
        }
        found = {name: rows for name, rows in run_concurrently(queries).items() if rows is not None}
        is_sealed = "attempts" in found and pc.any(found["attempts"]["sealed"]).as_py()
        purges = found.pop("purges", None)
        messages = [*found.values()]
        if purges is not None and purges.num_rows:
            messages.append(self._messages_not_taken(f"{_PLACE} IN (SELECT place FROM {{purges}})", purges=purges))
        since = self._loss_changed_since(sealed=bool(is_sealed))
        if since is not None:
            messages.append(self._messages_not_taken(f"(settled_at IS NULL OR unix_micros(settled_at) >= {since})"))
        return _AffectedMessages.of(*messages)

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

    def _messages_not_taken(self, where: str, **inputs: QueryInput) -> pa.Table:
        """Return the messages of rows that no reader took."""
        sql = f"SELECT DISTINCT {_MESSAGE} FROM {{rows}} WHERE {_NOT_TAKEN} AND {where}"
        return self.lake.query(sql, rows=ACK_SEQUENCES, **inputs)

    # Some messages, or all

    def recompute(self, affected: _AffectedMessages | None) -> int:
        """Recompute the rows of messages, or all."""
        return self._recompute_all() if affected is None else self._recompute_affected(affected)

    def _recompute_affected(self, affected: _AffectedMessages) -> int:
        """Recompute the rows of messages, and replace those that differ."""
        messages, reads = self._read_attempts(affected)
        found = run_concurrently(
            {
                "current": partial(self.lake.query, _ABOUT, rows=ACK_SEQUENCES, **messages._asdict()),
                "removals": partial(self._read_removals, _REMOVED, **messages._asdict()),
            }
        )
        if reads is None:
            rows = self.lake.map_few_groups(self._sequences(found["removals"], messages)).cast(ACK_SEQUENCES_SCHEMA)
        else:
            rows = ack_sequence_rows(to_read_attempts(reads), found["removals"], **self._settings)
        return self.step.replace_changed(rows, found["current"].cast(ACK_SEQUENCES_SCHEMA))

    def _read_attempts(self, affected: _AffectedMessages) -> tuple[_AffectedMessages, pa.Table | None]:
        """Return these messages and all that attempts bind to them; and the attempts at them, None if they are many."""
        while True:  # nearly always once: what attempts bind together changed together
            reads: pa.Table | None = None
            if affected.fits_in_memory:
                reads = self.lake.query_at_most(
                    read_attempts_sql(_ABOUT), MAX_ROWS_IN_MEMORY,
                    attempts=RECEIVE_ATTEMPTS, rows=RECEIVE_ATTEMPTS, **affected._asdict(),
                )  # fmt: skip
            rows = RECEIVE_ATTEMPTS if reads is None else reads
            every = _AffectedMessages.of(*affected, self.lake.query(_BOUND, rows=rows, **affected._asdict()))
            if every.size == affected.size:
                return every, reads
            affected = every

    def _read_removals(self, where: str, **inputs: QueryInput) -> list[Removal]:
        return to_removals(self.lake.query(f"{REMOVALS_SQL} AND {where}", operations=QUEUE_OPERATIONS, **inputs))

    def _sequences(self, removals: list[Removal], affected: _AffectedMessages | None = None) -> GroupedQuery:
        """Return the query for all rows, or for those of some messages."""
        settings = self._settings

        def compute(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
            yield ack_sequence_rows(to_read_attempts(parts["reads"].drop_columns([_GROUP])), removals, **settings)

        inputs: dict[str, QueryInput] = {"attempts": RECEIVE_ATTEMPTS}
        if affected is not None:
            inputs |= {"rows": RECEIVE_ATTEMPTS, **affected._asdict()}
        reads = BoundQuery(_grouped_attempts_sql("SELECT * FROM {attempts}" if affected is None else _ABOUT), inputs)
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


def _grouped_attempts_sql(attempts_sql: str) -> str:
    """Return the SQL of some attempts with the group that each belongs to, of 256: messages are not split.

    The messages of a place are told apart by lookup identifier or message_key; where some attempts have only the one
    and some only the other, all messages of the place are in one group.
    """
    return f"""
SELECT every.*,
  left(md5(concat_ws(' ', {_PLACE}, CASE WHEN mixed.place IS NULL
    THEN coalesce(CAST(lookup_id AS string), message_key) END)), 2) AS {_GROUP}
FROM ({read_attempts_sql(attempts_sql)}) AS every LEFT JOIN (
  SELECT {_PLACE} AS place FROM (SELECT queue, server_address, lookup_id, {HANDLE_SQL}
    FROM ({attempts_sql}) AS attempts WHERE {MESSAGE_KNOWN_SQL}) AS placed GROUP BY 1
  HAVING bool_or(lookup_id IS NULL) AND bool_or(lookup_id IS NOT NULL)
) AS mixed ON mixed.place = {_PLACE}"""


def _sealed_until(lake: Lake) -> dict[str, int]:
    """Return until when attempts at each server were encrypted, microseconds."""
    newest = "max(unix_micros(coalesce(ended_at, returned_at, started_at))) AS newest"
    sql = f"SELECT server_address, {newest} FROM {{attempts}} WHERE {_SEALED} GROUP BY server_address"
    rows = lake.query(sql, attempts=RECEIVE_ATTEMPTS)
    return capture_gaps.latest_by_server(zip(*(column.to_pylist() for column in rows.columns), strict=True))
