"""Rows of Parquet files of tables by their numbers, read by Arrow: only the row groups that hold one are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.local.deletion_vectors import Ints


def rows_at(path: Path, numbers: Ints, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file that have these numbers, from 0, in their order, with the columns of ``schema``.

    Columns that the file does not have are null.
    """
    wanted = np.sort(numbers)
    # Times of tables that were made before they were microseconds: INT96, of which Spark writes only UTC.
    with pq.ParquetFile(path, page_checksum_verification=True, coerce_int96_timestamp_unit="us") as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        begins = np.cumsum([0, *sizes])
        groups = np.searchsorted(begins, wanted, side="right") - 1
        there = [name for name in schema.names if name in file.schema_arrow.names]
        parts = [schema.empty_table()]
        for group in np.unique(groups):
            rows = file.read_row_group(int(group), columns=there).take(wanted[groups == group] - begins[group])
            parts.append(_with_columns(rows, schema))
    return pa.concat_tables(parts)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, null where they have none."""
    there = set(rows.column_names)
    columns = [
        rows[field.name].cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
