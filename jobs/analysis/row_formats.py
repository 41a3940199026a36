"""Rows as text at a terminal, CSV, JSON lines and Parquet, written as they are read.

In CSV, lists, structures and maps are JSON. Bytes are hexadecimal digits, times are ISO 8601 in UTC. The text at a
terminal is shorter: cells of at most 60 characters, times to the second.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from io import StringIO
from itertools import islice
from math import isfinite
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from pipeline.text import format_table, json_default

_FORMULA_BEGIN: Final = r"\A(\s*[=+\-@\t\r])"
_PAGE_ROWS: Final = 100  # of a table at a terminal; more follow in another one


def text_parts(rows: Iterable[pa.Table], names: list[str], width: int | None) -> Iterator[str]:
    """Yield console tables of some rows each; columns that do not fit into ``width`` follow below."""
    cells = ([_cell(value) for value in row.values()] for row in _plain_rows(rows))
    number = 1
    while (page := list(islice(cells, _PAGE_ROWS))) or number == 1:
        lines = format_table(names, page, width, number) if page else ["(no row)"]
        yield "\n" * (number > 1) + "\n".join(lines) + "\n"
        number += max(len(page), 1)


def json_parts(rows: Iterable[pa.Table]) -> Iterator[str]:
    """Yield JSON objects, one a line."""
    yield from (f"{_json(row)}\n" for row in _plain_rows(rows))


def csv_parts(rows: Iterable[pa.Table], names: list[str], line_end: str) -> Iterator[str]:
    """Yield lines of CSV (RFC 4180): the names of the columns first. Null and an empty text look the same."""
    yield _csv_line(names, line_end)
    yield from (_csv_line(map(_csv_value, row.values()), line_end) for row in _plain_rows(rows))


def without_formulas(rows: pa.Table) -> pa.Table:
    """Return rows whose texts no spreadsheet computes: an apostrophe stands before what would begin a formula."""
    columns = [
        pc.replace_substring_regex(column, _FORMULA_BEGIN, r"'\1") if types.is_string(column.type) else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def write_parquet(rows: Iterable[pa.Table], schema: pa.Schema, out: BinaryIO) -> None:
    """Write a Parquet file, with the types of the columns."""
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for some in rows:
            writer.write_table(some)


def _plain_rows(rows: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    """Yield rows whose values are those of JSON, or times, dates and decimals."""
    for some in rows:
        columns = [map(_converter(some.schema.field(name).type), some[name].to_pylist()) for name in some.column_names]
        yield from (dict(zip(some.column_names, values, strict=True)) for values in zip(*columns, strict=True))


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes a plain value of one of a type, which may be null."""
    convert = _converter_of_values(kind)
    return lambda value: None if value is None else convert(value)


def _converter_of_values(kind: pa.DataType) -> Callable[[Any], Any]:
    if types.is_binary(kind):
        return bytes.hex
    if types.is_floating(kind):
        return lambda value: value if isfinite(value) else str(value)
    if types.is_list(kind):
        item = _converter(kind.value_type)
        return lambda values: [*map(item, values)]
    if types.is_map(kind):
        item = _converter(kind.item_type)
        return lambda pairs: {key: item(value) for key, value in pairs}
    if types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda values: {name: convert(values[name]) for name, convert in fields.items()}
    return lambda value: value


def _json(value: object) -> str:
    return json.dumps(value, default=json_default)


def _csv_line(values: Iterable[object], line_end: str) -> str:
    line = StringIO()
    csv.writer(line, lineterminator=line_end).writerow(values)
    return line.getvalue()


def _csv_value(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    return json_default(value) if isinstance(value, date | datetime) else _json(value)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return [_cell(each) for each in value]
    return _json(value) if isinstance(value, dict) else value
