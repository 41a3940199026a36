"""Arrow tables of calls, connections and binds as rows of Python. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.arrow_rows import table_to_rows, times_to_us
from pipeline.findings.columns.call_history import CapturedCall


def iter_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries without nulls; times are microseconds since the epoch."""
    for nullable in table_to_rows(without_null_columns(table)):
        yield {name: value for name, value in nullable.items() if value is not None}


def captured_calls(table: pa.Table) -> Iterator[CapturedCall]:
    """Yield the calls of rows with ``CALL_COLUMNS`` and what silver decoded (``join_by_call_key``)."""
    plain = plain_columns(without_null_columns(table))
    columns = {name: _values(plain[name]) for name in plain.column_names}
    if "header_sizes" in columns:
        columns["header_sizes"] = [sizes and dict(sizes) for sizes in columns["header_sizes"]]
    for row in zip(*columns.values(), strict=True):
        call = CapturedCall(zip(columns, row, strict=True))
        if call["action_text"] is not None:
            call["action"] = call["action_text"]
        yield call


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; equal texts of a dictionary are one object."""
    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    texts = column.combine_chunks()
    known = [*texts.dictionary.to_pylist(), None]
    return [known[place] for place in texts.indices.fill_null(-1).to_pylist()]


def plain_columns(table: pa.Table) -> pa.Table:
    """Return rows with their times in microseconds since the epoch, and 64-bit numbers without a sign as integers."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, times_to_us(table.column(place)))
        elif pa.types.is_decimal(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.uint64()))
    return table


def without_null_columns(table: pa.Table, *kept: str) -> pa.Table:
    """Return rows without the columns that have no value, but for those to keep; all columns where there is no row."""
    names = (name for name in table.column_names if name in kept or table[name].null_count < max(table.num_rows, 1))
    return table.select(list(names))
