"""Tuples as rows of Arrow tables, and rows as tuples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa


def tuples_to_table(rows: Collection[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return tuples, with a value for each column of a schema, as a table."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def iter_tuples(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns of each row."""
    return zip(*(rows[name].to_pylist() for name in columns), strict=True)
