"""Update stored rows that captures made alone: their connections, what their contexts mean, the clocks of their calls.

Tasks do it where they are many, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts, is_in
from pipeline.bronze.across_captures.merge_changes import CHANGES_STORED, Dates, MergeChanges
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery, RowsOfDates, Values
from pipeline.lake.schema_enforcement import changed_keys, select_fields
from schemas.bronze import QUARANTINE, RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table
from udfs.capture import call_relabelling
from udfs.capture.clock_steps import ClockSteps
from udfs.sessions.packet_sightings import MOVED_COLUMNS, move_packets

_DELETED: Final = "_deleted"
_PART: Final = "_part"  # of rows that are updated together: the first digits of their keys
_CLOCK_COLUMNS: Final = (
    "capture_id", "response_capture_id", "request_packet", "response_packet", "request_at", "response_at", "sightings",
    "clocks",
)  # fmt: skip


def relabel_stored_rows(lake: Lake, changes: MergeChanges) -> None:
    """Update stored calls, packets and quarantined bytes whose connection, or the meaning of whose context, changed."""
    labels, meanings, moves = (
        each.filter(each[CHANGES_STORED]).combine_chunks() for each in (changes.labels, changes.meanings, changes.moves)
    )
    if moves.num_rows:
        batch = one_batch(moves)
        _update_stored_rows(
            lake, SESSION_PACKETS, changes.dates, distinct_texts(moves["was_connection_id"]),
            ("capture_id", *MOVED_COLUMNS), MOVED_COLUMNS, lambda rows: move_packets(rows, batch),
        )  # fmt: skip
    if not labels.num_rows:
        return
    of_labels, of_meanings = one_batch(labels), one_batch(meanings)
    renamed = labels.filter(pc.not_equal(labels["was_connection_id"], labels["connection_id"]))
    _update_stored_rows(
        lake, RPC_CALLS, changes.dates, distinct_texts(labels["was_connection_id"]),
        call_relabelling.RELABEL_INPUT_COLUMNS, call_relabelling.RELABELLED_COLUMNS,
        lambda calls: call_relabelling.relabel_calls(calls, of_labels, of_meanings),
    )  # fmt: skip
    _update_stored_rows(
        lake, QUARANTINE, changes.dates, distinct_texts(renamed["was_connection_id"]), ("capture_id", "connection_id"),
        ("connection_id",), lambda rows: call_relabelling.relabel_connection_ids(rows, of_labels),
    )  # fmt: skip


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return rows as one batch."""
    batches = rows.combine_chunks().to_batches()
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], rows.schema)


def _update_stored_rows(
    lake: Lake, table: Table, dates: Dates, connections: Values, input_columns: Sequence[str],
    updated_columns: Sequence[str], update: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:  # fmt: skip
    """Apply ``update`` to a table's rows of some connections; rows that it drops are deleted.

    ``update`` takes ``input_columns``, the connection among them, of which it may change ``updated_columns``. It looks
    at each row by itself: those of one connection may be many, and are shared by tasks.
    """
    _update_rows(lake, table, "connection_id IN {names}", connections, dates, input_columns, updated_columns, update)


def renumber_clocks(lake: Lake, captures: Collection[str], steps: ClockSteps) -> None:
    """Update the column ``clocks`` of stored calls of some captures: other places are known where clocks were set."""

    def update(calls: pa.RecordBatch) -> pa.RecordBatch:
        clocks = pa.array([steps.renumbered(row) for row in calls.to_pylist()], calls.schema.field("clocks").type)
        return calls.set_column(calls.schema.get_field_index("clocks"), calls.schema.field("clocks"), clocks)

    where = "capture_id IN {names} OR response_capture_id IN {names}"
    _update_rows(lake, RPC_CALLS, where, captures, None, _CLOCK_COLUMNS, ("clocks",), update)


def _update_rows(
    lake: Lake, table: Table, where: str, names: Values, dates: Dates | None, input_columns: Sequence[str],
    updated_columns: Sequence[str], update: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:  # fmt: skip
    """Apply ``update`` to rows that meet a condition, which has ``names`` in braces; None: on any date."""
    if not len(names) or not lake.exists(table):
        return
    (key,) = table.key
    columns = (key, *input_columns)
    stored = BoundQuery(
        f"SELECT {', '.join(columns)}, left({key}, 2) AS {_PART} FROM {{rows}} WHERE {where}",
        {"rows": RowsOfDates(table, dates), "names": names},
    )
    schema = StructType([table.struct()[name] for name in (key, *updated_columns)]).add(_DELETED, "boolean")

    def changes(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        rows = parts["rows"].select(columns).cast(select_fields(table.schema(), columns))
        found = [_row_changes(batch, update(batch), key, updated_columns) for batch in rows.to_batches()]
        yield from found or [to_arrow_schema(schema).empty_table()]

    with lake.map_groups(GroupedQuery({"rows": stored}, (_PART,), changes, schema)) as rows:
        changed = lake.collect(rows, schema) if isinstance(rows, PartitionedRows) else rows
        if not isinstance(changed, pa.Table) or changed.num_rows:
            lake.update_columns(table, changed, dates=dates, deleted=_DELETED)


def _row_changes(before: pa.RecordBatch, after: pa.RecordBatch, key: str, updated_columns: Sequence[str]) -> pa.Table:
    """Return key and updated columns of the rows that differ, and of those that are gone; ``_DELETED`` marks these."""
    old, new = (pa.Table.from_batches([rows]) for rows in (before, after))
    fresh, stale = changed_keys(new, old, key)
    parts = []
    for rows, keys, deleted in ((new, fresh, False), (old, stale.filter(pc.invert(pc.is_in(stale, fresh))), True)):
        found = rows.filter(is_in(rows, key, keys)).select([key, *updated_columns])
        parts.append(found.append_column(_DELETED, pa.repeat(deleted, found.num_rows)))
    return pa.concat_tables(parts)
