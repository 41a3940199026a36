"""Rows of gold.receive_attempts and gold.queue_operations -> rows of gold.ack_sequences, as Arrow tables."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts.calls import Error
from pipeline.attempts.capture_gaps import NOTHING, Unseen
from pipeline.lake.arrow_rows import day_of, microseconds, table_of
from pipeline.sequences.message_fates import History, Message, Place, Read, Removal, ack_sequences
from schemas.ack_sequences import ACK_SEQUENCES
from udfs.keys import key

SCHEMA: Final = to_arrow_schema(ACK_SEQUENCES.struct())
_READ: Final = (
    "attempt_key", "queue", "server_address", "lookup_id", "message_key", "is_receive", "outcome", "client_address",
    "started_at", "returned_at", "ended_at", "ack_refused", "ack_unanswered", "reader_gone_at", "inferred_queue",
    "gaps", "evidence", "missing", "errors", "run_id",
)  # fmt: skip
_REMOVAL: Final = (
    "call_key", "queue", "server_address", "lookup_id", "target_queue", "outcome", "evidence", "missing", "errors",
)  # fmt: skip
_TIMES: Final = frozenset({"started_at", "returned_at", "ended_at", "reader_gone_at", "at"})

Row = Any  # of Spark or of Arrow: something that gives values by their columns' names


HANDLE: Final = "coalesce(context_handle, CAST(queue_handle AS string)) AS handle"
"""What stands for a queue that is not known: its context handle, or its number."""

KNOWN: Final = "(lookup_id IS NOT NULL OR message_key IS NOT NULL)"
"""The condition of attempts of gold.receive_attempts whose message is known."""
READ_COLUMNS: Final = (*_READ, HANDLE)
"""What is read of them."""

DONE: Final = "outcome <> 'failed'"
"""The condition of operations of gold.queue_operations that were done, or may have been."""
REMOVAL_COLUMNS: Final = (*_REMOVAL, HANDLE, "coalesce(requested_at, responded_at) AS `at`")
"""What is read of them."""


def place_of(row: Row) -> Place:
    """Return the place of an attempt or operation; ``row`` has queue, server_address and handle."""
    if row["queue"] is not None:
        return Place(row["queue"])
    return Place(None, row["server_address"], row["handle"])


def read_rows(rows: pa.Table) -> list[Read]:
    """Return attempts as they are read (``READ_COLUMNS``)."""
    return [_read(row) for row in _plain(rows)]


def removal_rows(rows: pa.Table) -> list[Removal]:
    """Return operations as they are read (``REMOVAL_COLUMNS``)."""
    return [
        Removal(
            row["call_key"],
            place_of(row),
            row["at"] or 0,
            number_of(row["lookup_id"]),
            row["target_queue"],
            row["outcome"] == "done",
            tuple(row["evidence"] or ()),
            tuple(row["missing"] or ()),
            _errors(row),
        )
        for row in _plain(rows)
    ]


def sequences_of(
    reads: list[Read], removals: list[Removal], *, lost_after_us: int, poison_after: int, unseen: Unseen = NOTHING
) -> pa.Table:
    """Return rows of gold.ack_sequences; the parameters are those of ``message_fates.ack_sequences``."""
    found = ack_sequences(reads, removals, lost_after_us=lost_after_us, poison_after=poison_after, unseen=unseen)
    return table_of([_row(history) for history in found], SCHEMA)


def sequence_key(message: Message) -> str:
    """Return the key of a message's row."""
    return key(*message.place, message.lookup_id, message.message_key)


def number_of(value: Any) -> int | None:  # noqa: ANN401 - a decimal, as Arrow and Spark give it
    """Return a decimal as a whole number."""
    return None if value is None else int(value)


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries, times as microseconds."""
    columns = [microseconds(rows[name]) if name in _TIMES else rows[name] for name in rows.column_names]
    plain: list[dict[str, Any]] = pa.Table.from_arrays(columns, names=rows.column_names).to_pylist()
    return plain


def _errors(row: Row) -> tuple[Error, ...]:
    return tuple((error["code"], error["field"], error["offset"]) for error in row["errors"] or ())


def _read(row: Row) -> Read:
    return Read(
        row["attempt_key"],
        place_of(row),
        number_of(row["lookup_id"]),
        row["message_key"],
        row["is_receive"],
        row["outcome"],
        row["client_address"],
        row["server_address"],
        row["started_at"],
        row["returned_at"],
        row["ended_at"],
        bool(row["ack_refused"]),
        bool(row["ack_unanswered"]),
        row["reader_gone_at"],
        row["inferred_queue"],
        tuple(row["evidence"] or ()),
        tuple(row["missing"] or ()),
        _errors(row),
        row["run_id"],
        bool(row["gaps"]),
    )


def _row(history: History) -> dict[str, Any]:
    message, removal = history.message, history.removal
    first, last = history.receives[0], history.last
    return {
        "sequence_key": sequence_key(message),
        **message.place._asdict(),
        "inferred_queue": history.inferred_queue,
        "lookup_id": message.lookup_id,
        "message_key": message.message_key,
        "attempts": len(history.receives),
        "peeks": history.peeks,
        "outcomes": [read.outcome for read in history.receives],
        "readers": history.readers,
        "first_attempt_at": first.started_at,
        "settled_at": last.ended_at,
        "fate": history.fate,
        "redelivered": len(history.receives) > 1,
        "loss_risk": history.loss_risk,
        "moved_to": None if removal is None else removal.target,
        "removed_at": None if removal is None else removal.at,
        "attempt_keys": [read.attempt_key for read in history.receives],
        "evidence": history.evidence,
        "confidence": history.confidence,
        "missing": history.missing,
        "errors": [dict(zip(("code", "field", "offset"), error, strict=True)) for error in history.errors],
        "event_date": day_of(first.started_at, last.ended_at),
        "run_id": last.run_id,
    }
