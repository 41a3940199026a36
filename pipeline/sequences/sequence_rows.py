"""Arrow rows of gold.ack_sequences, from Arrow rows of gold.receive_attempts and gold.queue_operations."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts.calls import DecodeErrorFields
from pipeline.attempts.capture_gaps import NO_LOSS, PossibleLoss
from pipeline.lake.arrow_rows import epoch_day, rows_to_table, table_to_rows
from pipeline.sequences.message_fates import (
    MessageHistory,
    QueueRef,
    ReadAttempt,
    Removal,
    build_message_histories,
)
from schemas.ack_sequences import ACK_SEQUENCES
from udfs.keys import key

ACK_SEQUENCES_SCHEMA: Final = to_arrow_schema(ACK_SEQUENCES.struct())

AnyRow = Any  # a row of Spark or a dictionary: values by column name

HANDLE_SQL: Final = "coalesce(context_handle, CAST(queue_handle AS string)) AS handle"
"""The SQL of the handle that stands for an unknown queue: its context handle, else its number."""

MESSAGE_KNOWN_SQL: Final = "(lookup_id IS NOT NULL OR message_key IS NOT NULL)"
"""The SQL condition of rows of gold.receive_attempts whose message is known."""
READ_ATTEMPT_COLUMNS: Final = (
    "attempt_key", "queue", "server_address", "lookup_id", "message_key", "is_receive", "outcome", "client_address",
    "started_at", "returned_at", "ended_at", "ack_refused", "ack_unanswered", "reader_gone_at", "inferred_queue",
    "gaps", "evidence", "missing", "errors", "run_id", "abort_count", HANDLE_SQL,
)  # fmt: skip
"""The columns of gold.receive_attempts that ``to_read_attempts`` needs, as SQL."""

NOT_REFUSED_SQL: Final = "outcome <> 'failed'"
"""The SQL condition of rows of gold.queue_operations that were done, or may have been."""
REMOVAL_COLUMNS: Final = (
    "call_key", "queue", "server_address", "lookup_id", "target_queue", "outcome", "evidence", "missing", "errors",
    HANDLE_SQL, "coalesce(requested_at, responded_at) AS `at`",
)  # fmt: skip
"""The columns of gold.queue_operations that ``to_removals`` needs, as SQL."""


def queue_ref_of(row: AnyRow) -> QueueRef:
    """Return the queue of an attempt or operation, from its columns queue, server_address and handle."""
    if row["queue"] is not None:
        return QueueRef(row["queue"])
    return QueueRef(None, row["server_address"], row["handle"])


def to_read_attempts(rows: pa.Table) -> list[ReadAttempt]:
    """Return rows with ``READ_ATTEMPT_COLUMNS`` as objects."""
    return [_read(row) for row in table_to_rows(rows)]


def to_removals(rows: pa.Table) -> list[Removal]:
    """Return rows with ``REMOVAL_COLUMNS`` as objects."""
    return [
        Removal(
            row["call_key"],
            queue_ref_of(row),
            row["at"] or 0,
            decimal_to_int(row["lookup_id"]),
            row["target_queue"],
            row["outcome"] == "done",
            tuple(row["evidence"] or ()),
            tuple(row["missing"] or ()),
            _errors(row),
        )
        for row in table_to_rows(rows)
    ]


def ack_sequence_rows(
    reads: list[ReadAttempt],
    removals: list[Removal],
    *,
    lost_after_us: int,
    poison_after: int,
    possible_loss: PossibleLoss = NO_LOSS,
) -> pa.Table:
    """Return rows of gold.ack_sequences; the parameters are those of ``build_message_histories``."""
    found = build_message_histories(
        reads, removals, lost_after_us=lost_after_us, poison_after=poison_after, possible_loss=possible_loss
    )
    return rows_to_table([_row(history) for history in found], ACK_SEQUENCES_SCHEMA)


def decimal_to_int(value: Any) -> int | None:  # noqa: ANN401 - a decimal, as Arrow and Spark give it
    """Return a decimal as an int; None stays None."""
    return None if value is None else int(value)


def _errors(row: AnyRow) -> tuple[DecodeErrorFields, ...]:
    return tuple((error["code"], error["field"], error["offset"]) for error in row["errors"] or ())


def _read(row: AnyRow) -> ReadAttempt:
    return ReadAttempt(
        row["attempt_key"],
        queue_ref_of(row),
        decimal_to_int(row["lookup_id"]),
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
        row["abort_count"],
    )


def _row(history: MessageHistory) -> dict[str, Any]:
    message, removal = history.message, history.removal
    first, last = history.receives[0], history.last_settled
    return {
        "sequence_key": key(*message.queue_ref, message.lookup_id, message.message_key),
        **message.queue_ref._asdict(),
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
        "moved_to": history.seen_in_queue if removal is None else removal.target_queue,
        "removed_at": None if removal is None else removal.removed_at,
        "attempt_keys": [read.attempt_key for read in history.receives],
        "evidence": history.evidence,
        "confidence": history.confidence,
        "missing": history.missing,
        "errors": [dict(zip(("code", "field", "offset"), error, strict=True)) for error in history.errors],
        "event_date": epoch_day(first.started_at, last.ended_at),
        "run_id": last.run_id,
    }
