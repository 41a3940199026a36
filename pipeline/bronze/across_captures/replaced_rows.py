"""Merged rows in place of stored ones: those that differ are staged, in tasks where they are many."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.arrow_rows import is_in
from pipeline.bronze.across_captures.merge_changes import Dates
from pipeline.lake.change import leaving_columns
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers, RowsOfDates, RowsOfFiles
from pipeline.lake.schema_enforcement import cast_to, changed_keys
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import StagingWriter
from schemas.table import Table

_MERGED, _STORED = "merged", "stored"


def stage_replacing_rows(
    lake: Lake, folder: LakePath, table: Table, merged: RowsOfFiles, values: pa.Array, dates: Dates, *,
    column: str | None = None, columns: Sequence[str] = (),
) -> pa.Table:  # fmt: skip
    """Stage the merged rows that no stored row equals, of those that they replace; return these, as far as they go.

    Replaced are the stored rows on ``dates`` that have one of some values in a column, the key by default. They are
    returned with ``leaving_columns`` and ``columns``.
    """
    (key,) = table.key
    names, known = merged.schema.names, [*dict.fromkeys((*leaving_columns(table), *columns))]

    def stage(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        fresh, stored = (cast_to(table, parts[name], names) for name in (_MERGED, _STORED))
        written, gone = changed_keys(fresh, stored, key)
        staging.add_table(table.name, fresh.filter(is_in(fresh, key, written)))
        return stored.filter(is_in(stored, key, gone)).select(known)

    rows = f"SELECT {', '.join(names)}, {bucket_sql(key)} FROM {{rows}}"
    queries = {
        _MERGED: BoundQuery(rows, {"rows": merged}),
        _STORED: BoundQuery(
            f"{rows} WHERE {column or key} IN {{values}}", {"rows": RowsOfDates(table, dates), "values": values}
        ),
    }
    return stage_groups(lake, folder, queries, stage, StructType([table.struct()[name] for name in known]))
