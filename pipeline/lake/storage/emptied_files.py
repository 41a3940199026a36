"""Files all of whose rows leave: a commit removes them as they are.

A merge by delta-rs takes a tenth of a second for a few rows. For many rows it takes four times as long as to write
them, since it writes what changes once more, for the change feed. Of a file that is removed the feed has all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from pipeline.lake.change import RowsGone
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.queries.duckdb_sql import FILE_NAME, DataFiles, DuckDbSql, Given, quoted_for_duckdb
from pipeline.lake.queries.inputs import values_array
from schemas.table import EVENT_DATE, Table


class EmptiedFiles(NamedTuple):
    """Files all of whose rows leave: their bytes by name, and the keys of the rows."""

    sizes: Mapping[str, int]
    keys: pa.Table

    def remove_actions(self, now_ms: int) -> list[RemoveAction]:
        """Return what the log is to say of the files, at a time in milliseconds: their rows are deleted."""
        return [
            RemoveAction(name, data_change=True, deletion_timestamp=now_ms, size=size, partition_values={})
            for name, size in self.sizes.items()
        ]


def find_emptied_files(
    sql: DuckDbSql, table: Table, delta: DeltaTable, files: DataFiles, gone: RowsGone, leaving: pa.Table
) -> EmptiedFiles | None:
    """Return the files all of whose rows leave; None where there are none.

    ``files`` are those of a version of the table, ``leaving`` the rows that ``gone`` finds in it. Files of an object
    store are left to merges: to look into each of them takes longer.
    """
    if EVENT_DATE in gone.compared:
        files = files.of_dates(distinct_dates(leaving))
    known = pa.table(delta.get_add_actions())
    known = known.filter(pc.less_equal(known["num_records"], leaving.num_rows))
    sizes = dict(zip(map(unquote, known["path"].to_pylist()), known["size_bytes"].to_pylist(), strict=True))
    row_counts = dict(zip(sizes, known["num_records"].to_pylist(), strict=True))
    few = {file: size for file, size in files.files.items() if file.name in sizes and not file.is_remote}
    if not few:
        return None
    values: dict[str, Given] = {name: values_array(each) for name, each in gone.values.items()}
    rows = DataFiles(table.schema().append(pa.field(FILE_NAME, pa.string())), few)
    keys = ", ".join(map(quoted_for_duckdb, table.key))
    found = sql.answer(f"SELECT {FILE_NAME}, {keys} FROM {{_files}} WHERE {gone.condition}", {**values, "_files": rows})
    left = {each["values"]: each["counts"] for each in pc.value_counts(found[FILE_NAME]).to_pylist()}
    emptied = [file for file in few if left.get(file.location) == row_counts[file.name]]
    if not emptied:
        return None
    is_in_emptied = pc.is_in(found[FILE_NAME], pa.array([file.location for file in emptied], pa.string()))
    return EmptiedFiles({file.name: sizes[file.name] for file in emptied}, found.filter(is_in_emptied))
