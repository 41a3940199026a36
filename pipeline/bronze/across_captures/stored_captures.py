"""Stored captures: they get other keys, or what they saw is taken out of the rows that they share with others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pipeline.arrow_rows import NO_TEXTS
from pipeline.bronze.across_captures.merge_changes import Dates
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers, RowsOfDates
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import StagingWriter
from schemas.bronze import RPC_CALLS
from schemas.table import Table, literal
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.rows import RowDict

RowOfOthers: TypeAlias = Callable[[RowDict], RowDict | None]
"""Returns a row as the captures show it that stay; None where none of them does."""

_CAPTURE_COLUMNS: Final = ("capture_id", "response_capture_id")
_CAPTURES_IN_LISTS: Final = frozenset((*_CAPTURE_COLUMNS, "other_capture_id"))
_SIGHTINGS: Final = "sightings"
_LISTS: Final = (_SIGHTINGS, "tap_steps")
_NO_SUMMARY: Final = StructType().add("nothing", "string")
# Calls of taps are merged again, whichever captures they name.
_OF_TAPS: Final = {RPC_CALLS: "(clocks IS NOT NULL AND connection_id IN {connections})"}


def stage_rows_of_others(
    lake: Lake, folder: LakePath, table: Table, captures: Collection[str], row_of_others: RowOfOthers, *,
    dates: Dates, connections: Collection[str | None],
) -> pa.Array:  # fmt: skip
    """Stage the rows that captures share with others, as these show them; return the keys of the stored rows.

    In tasks where they are many. ``dates`` and ``connections`` are those of the captures.
    """
    (key,) = table.key
    of_taps = _OF_TAPS.get(table, "FALSE")
    shared = lake.query(
        f"SELECT {key}, {_SIGHTINGS}, {of_taps} AS of_taps FROM {{rows}} WHERE {_SIGHTINGS} IS NOT NULL OR {of_taps}",
        rows=RowsOfDates(table, dates), connections=connections,
    )  # fmt: skip
    is_named = _names_any(shared[_SIGHTINGS], captures)
    keys: pa.Array = shared.filter(pc.or_(shared["of_taps"], is_named))[key].combine_chunks()
    if len(keys):
        rows = f"SELECT *, {bucket_sql(key)} FROM {{rows}} WHERE {key} IN {{keys}}"
        query = BoundQuery(rows, {"rows": RowsOfDates(table, dates), "keys": keys})
        stage_groups(lake, folder, {"rows": query}, _stage_function(table, row_of_others), _NO_SUMMARY)
    return keys


def _stage_function(table: Table, row_of_others: RowOfOthers) -> Callable[[QueryAnswers, StagingWriter], pa.Table]:
    schema = BRONZE_SCHEMAS[table.name]

    def stage(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        rows = map(row_of_others, parts["rows"].select(schema.names).cast(schema).to_pylist())
        staging.add_table(table.name, pa.Table.from_pylist([row for row in rows if row is not None], schema))
        return pa.table({"nothing": NO_TEXTS})

    return stage


def rename_captures(lake: Lake, table: Table, renamed: Mapping[str, str]) -> None:
    """Give captures their new keys in a table, all at once: two captures may swap keys.

    Sightings, and places that captures show of one another, name them too.
    """
    rename_rows(lake, table, renamed)
    for column in _LISTS:
        if column in table.names and lake.exists(table):
            stored = lake.select(table, f"{column} IS NOT NULL", (*table.key, column))
            rows = stored.filter(_names_any(stored[column], renamed))
            if rows.num_rows:
                lists = _with_new_names(rows[column].combine_chunks(), renamed)
                lake.update_columns(table, rows.set_column(len(table.key), column, lists), dates=None)


def rename_rows(lake: Lake, table: Table, renamed: Mapping[str, str]) -> None:
    """Give captures new keys in the rows of a table, but for lists in them."""
    if not renamed:
        return
    cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in sorted(renamed.items()))
    names = ", ".join(literal(name) for name in sorted(renamed))
    columns = [name for name in _CAPTURE_COLUMNS if name in table.names]
    where = " OR ".join(f"{column} IN ({names})" for column in columns)
    lake.update(table, {column: f"CASE {column} {cases} ELSE {column} END" for column in columns}, where)


def _names_any(lists: pa.ChunkedArray, captures: Collection[str]) -> pa.Array:
    """Return which lists of structs name one of the captures, as a boolean array."""
    whole = lists.combine_chunks()
    each, names = pc.list_flatten(whole), pa.array(sorted(captures), pa.string())
    columns = [field.name for field in each.type if field.name in _CAPTURES_IN_LISTS]
    is_named = reduce(pc.or_, [pc.is_in(pc.struct_field(each, name), names) for name in columns])
    places = pc.list_parent_indices(whole).filter(is_named)
    return pc.is_in(pa.array(range(len(whole)), pa.int64()), places)


def _with_new_names(lists: pa.ListArray, renamed: Mapping[str, str]) -> pa.ListArray:
    """Return lists of structs, none of them null, with the new keys of captures."""
    each, old = pc.list_flatten(lists), pa.array(renamed.keys(), pa.string())
    new = pa.array(renamed.values(), pa.string())
    columns = {field.name: pc.struct_field(each, field.name) for field in each.type}
    for name in columns.keys() & _CAPTURES_IN_LISTS:
        columns[name] = pc.coalesce(new.take(pc.index_in(columns[name], old)), columns[name])
    structs = pa.StructArray.from_arrays([*columns.values()], fields=[*each.type])
    ends = np.cumsum(pc.list_value_length(lists))
    return pa.ListArray.from_arrays(np.concatenate(([0], ends)).astype(np.int32), structs)
