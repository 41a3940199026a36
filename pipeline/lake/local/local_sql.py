"""SQL over tables whose files lie in folders of this machine, answered by DuckDB in this process.

A run with little new asks its tables a hundred questions. To plan one takes Spark a quarter of a second and more in a
process that has just begun, whatever there is to answer, and DuckDB a few milliseconds. So what is asked in SQL is
asked here where the files are at hand (``docs/internals/decisions``). Texts are Spark's SQL as far as both know it:
functions that DuckDB names otherwise have Spark's names here (``_MACROS``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from threading import Lock
from typing import Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from pipeline.lake.local.table_files import Change, Rows
from pipeline.lake.queries import double_braces

_SETTINGS: Final = ("SET GLOBAL TimeZone = 'UTC'", "SET memory_limit = '2GB'", "SET parquet_metadata_cache = true",
                    "SET autoinstall_known_extensions = false")  # fmt: skip
_MACROS: Final = (
    "unix_micros(moment) AS epoch_us(moment)",
    "timestamp_micros(number) AS make_timestamptz(CAST(number AS BIGINT))",
    "date_from_unix_date(days) AS DATE '1970-01-01' + days",
    "size(list) AS len(list)",
    "substring(bytes, first, count) AS array_slice(bytes, first, first + count - 1)",
    "explode(list) AS unnest(list)",
    "collect_set(value) AS coalesce(array_agg(DISTINCT value) FILTER (WHERE value IS NOT NULL), [])",
    "array_position(list, value) AS CASE WHEN list IS NOT NULL THEN coalesce(list_position(list, value), 0) END",
    "try_element_at(list, place) AS list_extract(list, place)",
    # The same for the same values, whichever question asks; Spark's is another number.
    "xxhash64(a, b) AS CAST(hash(a, b) >> 1 AS BIGINT), (a, b, c) AS CAST(hash(a, b, c) >> 1 AS BIGINT)",
)
_SPELLINGS: Final = (("array(", "list_value("),)  # what no function can be named
_CHANGE: Final = pa.schema([("_kind", pa.string()), ("_change_type", pa.string()), ("_commit_version", pa.int64())])
_PLACE: Final = pa.schema([("_file", pa.string()), ("_row", pa.int64())])
_NOTHING: Final = pa.schema([])
_PATTERN_SIGNS: Final = re.compile(r"([\[*?])")


class Relation:
    """Rows of files as a query, and the Arrow tables that it names beside them."""

    def __init__(self, schema: pa.Schema, more: pa.Schema = _NOTHING) -> None:
        """``schema``: the columns, in order, null where files do not have them; ``more``: those that may be told."""
        self._columns = [_quoted(name) for name in schema.names]
        self._tables: dict[str, pa.Table] = {"none": pa.schema([*schema, *more]).empty_table()}
        self._parts = ["SELECT * FROM {none}"]

    @staticmethod
    def of_rows(schema: pa.Schema, rows: Sequence[Rows], *, numbered: bool = False) -> Relation:
        """Return rows of files; ``numbered``: with their file's path, and their number there from 0."""
        made = Relation(schema, _PLACE if numbered else _NOTHING)
        if numbered:
            made._columns += _PLACE.names
        made._add(rows, "file.filename AS _file, file.file_row_number AS _row" if numbered else None)
        return made

    @staticmethod
    def of_changes(schema: pa.Schema, found: Iterable[Change]) -> Relation:
        """Return what commits brought and took, as Spark tells it: with ``_change_type`` and ``_commit_version``."""
        made = Relation(schema, _CHANGE)
        # Files that an UPDATE wrote have a column _change_type too, which is null.
        made._columns += ["coalesce(_kind, _change_type) AS _change_type", "_commit_version"]
        for change in found:
            told = f"CAST({change.version} AS BIGINT) AS _commit_version"
            made._add(change.rows, told if change.kind is None else f"'{change.kind}' AS _kind, {told}")
        return made

    def _add(self, rows: Sequence[Rows], told: str | None = None) -> None:
        """Add rows of files; ``told``: further columns."""
        more = "" if told is None else f", {told}"
        for (without, only), several in groupby(sorted(rows, key=_chosen), key=_chosen):
            files = list(several)
            paths = double_braces(", ".join(map(_path_literal, files)))
            part = f"SELECT file.*{more} FROM read_parquet([{paths}], union_by_name = true) AS file"
            if without or only:
                name = f"numbers{len(self._tables)}"
                self._tables[name] = _numbers([each.without if without else each.only for each in files])
                part += f" {'ANTI' if without else 'SEMI'} JOIN {{{name}}} AS chosen"
                part += " ON file.file_index = chosen.file AND file.file_row_number = chosen.number"
            self._parts.append(part)

    def sql(self, register: Callable[[pa.Table], str]) -> str:
        """Return it as a query between brackets; ``register`` gives an Arrow table a name."""
        names = {name: register(table) for name, table in self._tables.items()}
        every = " UNION ALL BY NAME ".join(self._parts).format(**names)
        return f"(SELECT {', '.join(self._columns)} FROM ({every}))"


def _chosen(rows: Rows) -> tuple[bool, bool]:
    return rows.without is not None, rows.only is not None


def _numbers(of_files: Sequence[Any]) -> pa.Table:
    """Return row numbers of files, with the files' places in a list."""
    files = np.repeat(np.arange(len(of_files), dtype=np.uint64), [len(numbers) for numbers in of_files])
    return pa.table({"file": files, "number": np.concatenate(of_files)})


Given: TypeAlias = Relation | pa.Table | pa.Array | str
"""What a name in a question stands for: rows, values that a column may be ``IN``, or one text."""


def _text(given: Given, register: Callable[[pa.Table], str]) -> str:
    """Return what stands for rows, or a list of values, in a question; ``register`` gives an Arrow table a name."""
    if isinstance(given, Relation):
        return given.sql(register)
    if isinstance(given, pa.Table):
        return register(given)
    if isinstance(given, str):
        given = pa.array([given])
    return f"(SELECT value FROM {register(pa.table({'value': given}))})"


class LocalSql:
    """DuckDB in this process; threads may ask side by side."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lock = Lock()

    def answer(self, sql: str, of: Mapping[str, Given]) -> pa.Table:
        """Return the answer to a question, in which names in braces stand for what is given."""
        cursor = self._cursor()
        count = 0

        def register(table: pa.Table) -> str:
            nonlocal count
            count += 1
            cursor.register(f"given{count}", table)
            return f"given{count}"

        try:
            for ours, here in _SPELLINGS:
                sql = sql.replace(ours, here)
            asked = sql.format(**{name: _text(each, register) for name, each in of.items()})
            # Rows found here and there come in chunks of a few, for which all that is done with them would pay.
            return cursor.sql(asked).to_arrow_table().combine_chunks()
        finally:
            cursor.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._connection is None:
                self._connection = duckdb.connect()
                for setting in _SETTINGS:
                    self._connection.execute(setting)
                for macro in _MACROS:
                    self._connection.execute(f"CREATE MACRO {macro}")
            return self._connection.cursor()


def _path_literal(rows: Rows) -> str:
    """Return the path of a file as a literal; DuckDB takes it for a pattern."""
    return "'" + _PATTERN_SIGNS.sub(r"[\1]", str(rows.path)).replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
