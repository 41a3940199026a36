"""Arrow rows of gold.ack_sequences, from Arrow rows of gold.receive_attempts and gold.queue_operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.arrow_rows import columns_to_table, epoch_day, table_to_rows, times_to_us
from pipeline.attempts.calls.decoded_call import DecodeErrorFields
from pipeline.attempts.capture_gaps import NO_LOSS, PossibleLoss
from pipeline.attempts.evidence import confidence_level
from pipeline.sequences.message_fates import (
    MessageHistory,
    QueueRef,
    ReadAttempt,
    Removal,
    build_message_histories,
)
from schemas.ack_sequences import ACK_SEQUENCES
from udfs.keys import key

ACK_SEQUENCES_SCHEMA: Final = ACK_SEQUENCES.schema()

HANDLE_SQL: Final = "coalesce(context_handle, CAST(queue_handle AS string)) AS handle"
"""The SQL of the handle that stands for an unknown queue: its context handle, else its number."""

MESSAGE_KNOWN_SQL: Final = "(lookup_id IS NOT NULL OR message_key IS NOT NULL)"
"""The SQL condition of rows of gold.receive_attempts whose message is known."""
_READ_ATTEMPT_COLUMNS: Final = (
    "attempt_key", "queue", "server_address", "lookup_id", "message_key", "is_receive", "outcome", "client_address",
    "started_at", "returned_at", "ended_at", "ack_refused", "ack_unanswered", "reader_gone_at", "inferred_queue",
    "gaps", "evidence", "missing", "errors", "run_id", "abort_count", "started_ahead_us", "returned_ahead_us",
    "ended_ahead_us", HANDLE_SQL,
)  # fmt: skip
# Reads whose queue is not known, which may be of the same message: no key and no identifier contradicts that.
_SAME_MESSAGE: Final = (
    "other.message_key = known.message_key AND coalesce(other.lookup_id = known.lookup_id, TRUE)",
    """other.lookup_id = known.lookup_id AND other.server_address = known.server_address
    AND (other.message_key IS NULL OR known.message_key IS NULL)""",
)

NOT_REFUSED_SQL: Final = "outcome <> 'failed'"
"""The SQL condition of rows of gold.queue_operations that were done, or may have been."""
_REMOVAL_COLUMNS: Final = (
    "call_key", "queue", "server_address", "lookup_id", "target_queue", "outcome", "evidence", "missing", "errors",
    "requested_ahead_us", HANDLE_SQL, "coalesce(requested_at, responded_at) AS `at`",
)  # fmt: skip
REMOVALS_SQL: Final = f"SELECT {', '.join(_REMOVAL_COLUMNS)} FROM {{operations}} WHERE {NOT_REFUSED_SQL}"
"""The SQL of what ``to_removals`` needs of the ``{operations}``."""


def read_attempts_sql(attempts_sql: str = "SELECT * FROM {attempts}") -> str:
    """Return the SQL of what ``to_read_attempts`` needs of attempts whose message is known.

    ``read_at_unknown_queue`` of an attempt says whether one at an unknown queue, of all ``{attempts}``, may be of its
    message.
    """
    others = (
        f"(SELECT server_address, lookup_id, message_key FROM {{attempts}} WHERE {MESSAGE_KNOWN_SQL} AND queue IS NULL)"
        " AS other"
    )
    exist = " OR ".join(f"EXISTS (SELECT 1 FROM {others} WHERE {same})" for same in _SAME_MESSAGE)
    return (
        f"SELECT known.*, known.queue IS NOT NULL AND ({exist}) AS read_at_unknown_queue"
        f" FROM (SELECT {', '.join(_READ_ATTEMPT_COLUMNS)} FROM ({attempts_sql}) AS attempts"
        f" WHERE {MESSAGE_KNOWN_SQL}) AS known"
    )


def _queue_ref(queue: str | None, server_address: str | None, handle: str | None) -> QueueRef:
    return QueueRef(queue) if queue is not None else QueueRef(None, server_address, handle)


def to_read_attempts(rows: pa.Table) -> list[ReadAttempt]:
    """Return rows of ``read_attempts_sql`` as objects."""
    times = (name for name in rows.column_names if pa.types.is_timestamp(rows.schema.field(name).type))
    of = {name: times_to_us(rows[name]) for name in times}
    values = {name: of.get(name, rows[name]).to_pylist() for name in rows.column_names}
    values["queue_ref"] = [*map(_queue_ref, *(values[name] for name in ("queue", "server_address", "handle")))]
    values["lookup_id"] = [*map(_decimal_to_int, values["lookup_id"])]
    values["has_capture_gaps"] = values["gaps"]
    for name in ("ack_refused", "ack_unanswered", "has_capture_gaps"):
        values[name] = [*map(bool, values[name])]
    for name in ("evidence", "missing"):
        values[name] = [tuple(each or ()) for each in values[name]]
    for name in ("started_ahead_us", "returned_ahead_us", "ended_ahead_us"):
        values[name] = [each or 0 for each in values[name]]
    values["errors"] = [*map(_errors, values["errors"])]
    return [*map(ReadAttempt, *(values[name] for name in ReadAttempt._fields))]


def to_removals(rows: pa.Table) -> list[Removal]:
    """Return rows of ``REMOVALS_SQL`` as objects."""
    return [
        Removal(
            row["call_key"],
            _queue_ref(row["queue"], row["server_address"], row["handle"]),
            row["at"] or 0,
            _decimal_to_int(row["lookup_id"]),
            row["target_queue"],
            row["outcome"] == "done",
            tuple(row["evidence"] or ()),
            tuple(row["missing"] or ()),
            _errors(row["errors"]),
            row["requested_ahead_us"] or 0,
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
    return columns_to_table(_columns(found), ACK_SEQUENCES_SCHEMA)


def _decimal_to_int(value: Any) -> int | None:  # noqa: ANN401 - a decimal, as Arrow and Spark give it
    """Return a decimal as an int; None stays None."""
    return None if value is None else int(value)


def _errors(errors: Sequence[Mapping[str, Any]] | None) -> tuple[DecodeErrorFields, ...]:
    return tuple((error["code"], error["field"], error["offset"]) for error in errors or ())


def _columns(found: Sequence[MessageHistory]) -> dict[str, list[Any]]:
    """Return the columns of the rows of messages."""
    messages, firsts = [each.message for each in found], [each.receives[0] for each in found]
    lasts, removals = [each.last_settled for each in found], [each.removal for each in found]
    inferred, missing = [each.inferred_queue for each in found], [each.missing for each in found]
    return {
        "sequence_key": [key(*each.queue_ref, each.lookup_id, each.message_key) for each in messages],
        **{name: [getattr(each.queue_ref, name) for each in messages] for name in QueueRef._fields},
        "inferred_queue": inferred,
        "lookup_id": [each.lookup_id for each in messages],
        "message_key": [each.message_key for each in messages],
        "attempts": [len(each.receives) for each in found],
        "peeks": [each.peeks for each in found],
        "outcomes": [[read.outcome for read in each.receives] for each in found],
        "readers": [each.readers for each in found],
        "first_attempt_at": [each.started_at for each in firsts],
        "settled_at": [each.ended_at for each in lasts],
        "fate": [each.fate for each in found],
        "redelivered": [len(each.receives) > 1 for each in found],
        "loss_risk": [each.loss_risk for each in found],
        "moved_to": [
            each.seen_in_queue if removal is None else removal.target_queue
            for each, removal in zip(found, removals, strict=True)
        ],
        "removed_at": [None if each is None else each.removed_at for each in removals],
        "attempt_keys": [[read.attempt_key for read in each.receives] for each in found],
        "evidence": [each.evidence for each in found],
        "confidence": [
            confidence_level(codes, guessed=queue is not None) for codes, queue in zip(missing, inferred, strict=True)
        ],
        "missing": missing,
        "errors": [
            [dict(zip(("code", "field", "offset"), error, strict=True)) for error in each.errors] for each in found
        ],
        "event_date": [epoch_day(first.started_at, last.ended_at) for first, last in zip(firsts, lasts, strict=True)],
        "run_id": [each.run_id for each in lasts],
    }
