"""Files most of whose rows leave: each is replaced as a whole, by its rows that stay and those that come.

A merge by delta-rs takes a tenth of a second for a few rows. For many rows it takes four times as long as to write
them, since it writes what changes once more, for the change feed. Of a file that is replaced the feed has all rows, as
deleted, and all rows in its place, as inserted. So this is done where at least half of a file's rows leave.
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


class ReplacedFiles(NamedTuple):
    """Files that are replaced: their bytes by name, all of their rows, and the keys of those that leave."""

    sizes: Mapping[str, int]
    rows: DataFiles
    keys: pa.Table

    def remove_actions(self, now_ms: int) -> list[RemoveAction]:
        """Return what the log is to say of the files, at a time in milliseconds: their rows are deleted."""
        return [
            RemoveAction(name, data_change=True, deletion_timestamp=now_ms, size=size, partition_values={})
            for name, size in self.sizes.items()
        ]


def find_replaced_files(
    sql: DuckDbSql, table: Table, delta: DeltaTable, files: DataFiles, gone: RowsGone, leaving: pa.Table
) -> ReplacedFiles | None:
    """Return the files of which at least half of the rows leave; None where there are none.

    ``files`` are those of a version of the table, ``leaving`` the rows that ``gone`` finds in it. Files of an object
    store are left to merges: to look into each of them takes longer.
    """
    if EVENT_DATE in gone.compared:
        files = files.of_dates(distinct_dates(leaving))
    known = pa.table(delta.get_add_actions())
    known = known.filter(pc.less_equal(known["num_records"], 2 * leaving.num_rows))
    sizes = dict(zip(map(unquote, known["path"].to_pylist()), known["size_bytes"].to_pylist(), strict=True))
    row_counts = dict(zip(sizes, known["num_records"].to_pylist(), strict=True))
    names = {file.location: file.name for file in files.files if file.name in sizes and not file.is_remote}
    if not names:
        return None
    values: dict[str, Given] = {name: values_array(each) for name, each in gone.values.items()}
    schema = table.schema().append(pa.field(FILE_NAME, pa.string()))

    def ask(columns: str, then: str = "") -> pa.Table:
        rows = DataFiles(schema, {file: size for file, size in files.files.items() if file.location in names})
        return sql.answer(f"SELECT {columns} FROM {{_files}} WHERE {gone.condition} {then}", {**values, "_files": rows})

    counted = ask(f"{FILE_NAME}, count(*) AS leaving", f"GROUP BY {FILE_NAME}").to_pylist()
    most = {row[FILE_NAME] for row in counted if 2 * row["leaving"] >= row_counts[names[row[FILE_NAME]]]}
    names = {location: name for location, name in names.items() if location in most}
    if not names:
        return None
    rows = DataFiles(table.schema(), {file: size for file, size in files.files.items() if file.location in names})
    return ReplacedFiles(
        {name: sizes[name] for name in names.values()}, rows, ask(", ".join(map(quoted_for_duckdb, table.key)))
    )
