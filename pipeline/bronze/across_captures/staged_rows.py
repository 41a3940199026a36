"""Change staged rows of a run on their way to the tables, as merging across captures found."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, is_in
from pipeline.bronze.across_captures.merge_changes import MergeChanges
from pipeline.bronze.across_captures.stored_rows import one_batch
from pipeline.lake.staging_files import Batches, BatchTransform
from udfs.capture import call_relabelling
from udfs.sessions.packet_sightings import move_packets


def apply_connection_ids(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged rows of ``bronze.quarantine``: they get the ids of their merged connections.

    Rows made of remainders are dropped: merging made them again.
    """
    if not changes:
        return iter
    labels = one_batch(changes.labels)
    exclude = exclude_rows("quarantine_key", changes.replaced_quarantine_keys)

    def with_connection_ids(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (call_relabelling.relabel_connection_ids(batch, labels) for batch in exclude(batches))

    return with_connection_ids


def apply_bind_context(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged calls: they get the ids of their merged connections and what their contexts mean.

    Calls made of remainders are dropped: merging made them again.
    """
    if not changes:
        return iter
    labels, meanings, rebuilt = map(one_batch, (changes.labels, changes.meanings, changes.rebuilt_calls))

    def with_bind_context(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield call_relabelling.relabel_calls(call_relabelling.drop_merged_calls(batch, rebuilt), labels, meanings)

    return with_bind_context


def apply_packet_moves(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged packets: they are moved to their merged connections.

    Packets made of remainders are dropped: merging made them again. So are those of shared sessions, which
    ``shared_packets`` stages.
    """
    if not changes.moves.num_rows:
        return iter
    moves = one_batch(changes.moves)
    exclude = exclude_rows("packet_key", distinct_texts(changes.rebuilt_packets["packet_key"]))
    exclude_shared = exclude_rows("connection_id", staged_ids_of_shared(changes))

    def moved(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (move_packets(batch, moves) for batch in exclude(exclude_shared(batches)))

    return moved


def staged_ids_of_shared(changes: MergeChanges) -> pa.Array:
    """Return the connections, as the captures alone saw them, that are parts of shared sessions."""
    moves = changes.moves
    return distinct_texts(moves.filter(is_in(moves, "connection_id", changes.shared_sessions))["was_connection_id"])


def exclude_rows(column: str, keys: pa.Array) -> BatchTransform:
    """Return a transform that drops the rows whose ``column`` has one of these values."""
    if not len(keys):
        return iter

    def filtered(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (batch.filter(pc.invert(pc.is_in(batch[column], keys))) for batch in batches)

    return filtered
