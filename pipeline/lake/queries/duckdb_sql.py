"""SQL over data files and Arrow tables, answered by DuckDB in this process.

A run with little new makes a hundred queries. To plan one takes Spark a quarter of a second and more in a process that
has just begun, and DuckDB a few milliseconds. Queries are written once, in Spark's dialect: functions that DuckDB names
otherwise have Spark's names here (``_MACROS``).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final, NamedTuple, TypeAlias, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from pipeline.lake.date_filters import Dates, DateSpan
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import UnknownSqlError, named_columns
from pipeline.lake.queries.remote_files import remote_dataset

_SETTINGS: Final = ("SET GLOBAL TimeZone = 'UTC'", "SET GLOBAL parquet_metadata_cache = true",
                    "SET autoinstall_known_extensions = false", "SET GLOBAL dynamic_or_filter_threshold = 1000",
                    "SET GLOBAL default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'")  # fmt: skip
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
    "slice(list, first, count) AS array_slice(list, first, first + count - 1)",
    "sequence(first, last) AS generate_series(first, last)",
    "sha2(bytes, bits) AS sha256(bytes)",
    "to_binary(text, format) AS encode(text)",  # format: 'utf-8'
    "count_if(condition) AS count(CASE WHEN condition THEN 1 END)",  # DuckDB's own is null where all are null
    "regexp_like(text, pattern) AS regexp_matches(text, pattern)",
    "startswith(text, beginning) AS starts_with(text, beginning)",
    "endswith(text, ending) AS ends_with(text, ending)",
    "array_join(list, separator) AS array_to_string(list, separator)",
    "collect_list(value) AS coalesce(array_agg(value) FILTER (WHERE value IS NOT NULL), [])",
    "explode_outer(list) AS unnest(CASE WHEN len(list) > 0 THEN list ELSE [NULL] END)",
    "transform(list, function) AS list_transform(list, function)",
)
_SPELLINGS: Final = (  # what no macro can stand for: keywords, aggregates with a filter, lambdas
    (re.compile(r"\barray\("), "list_value("),
    (re.compile(r"\bstruct\("), "struct_pack("),  # of columns, which name the fields; nulls in them sort last
    (re.compile(r"\b(max|min)_by\("), r"arg_\1_null("),  # DuckDB's own leave out rows without the value
    (re.compile(r"\b(\w+) -> "), r"lambda \1: "),
)
_MEMORY_MB: Final = 2048  # of all queries: what is more goes to files and comes back, for several times the seconds
_BATCH_ROWS: Final = 2048  # of an answer that is read bit by bit: DuckDB computes so many at once
_LARGE_BATCH_ROWS: Final = 65_536  # of one that is read as a whole, without stubs and bodies
_EPOCH: Final = date(1970, 1, 1).toordinal()
_PATTERN_SIGNS: Final = re.compile(r"([\[*?])")
FILE_NAME: Final = "filename"
"""The column of ``DataFiles`` that tells the file of each row; no table has such a column."""
_FILE_COLUMNS_SQL: Final = """
SELECT file_name, md5(string_agg(concat_ws(' ', name, type, num_children), ',' ORDER BY column_id))
FROM parquet_schema({files}) GROUP BY file_name"""


Result = TypeVar("Result")
Register: TypeAlias = Callable[[pa.Table | pads.Dataset], str]
"""Gives rows a name for a query."""
ReadFiles: TypeAlias = "Callable[[DataFiles], Sequence[str]]"
"""Gives queries that together are the rows of files of this machine."""


class FileDates(NamedTuple):
    """Between which dates the rows of a file are, as days since 1970; whether some may be without a date."""

    first: int
    last: int
    has_undated: bool


def _may_have_rows_of(dates: Dates) -> Callable[[FileDates], bool]:
    """Return whether a file with rows between some dates may have some of ``dates``."""
    if isinstance(dates, DateSpan):
        first, last = dates.first.toordinal() - _EPOCH, dates.last.toordinal() - _EPOCH
        return lambda known: known.first <= last and known.last >= first
    days = sorted(day.toordinal() - _EPOCH for day in dates if day is not None)

    def may_have(known: FileDates) -> bool:
        return (known.has_undated and None in dates) or bisect_left(days, known.first) < bisect_right(days, known.last)

    return may_have


class DataFiles(NamedTuple):
    """The rows of data files, each with its bytes; columns of ``schema`` that files do not have are null.

    ``dates``: those of the files of which they are known. ``names``: the columns that are read, all by default; among
    them those of ``where``. Of files of this machine ``schema`` may have ``FILE_NAME``.
    """

    schema: pa.Schema
    files: Mapping[LakePath, int]
    where: str | None = None
    dates: Mapping[LakePath, FileDates] = {}
    names: Sequence[str] | None = None

    @property
    def column_names(self) -> Sequence[str]:
        """The names of the columns that are read."""
        return self.schema.names if self.names is None else self.names

    def for_query(self, sql: str) -> DataFiles:
        """Return the same with the columns that a query names: to plan it takes longer, the more columns there are."""
        names = self.column_names
        return self._replace(names=named_columns(f"{sql} {self.where}", names) or names[:1])

    def of_dates(self, dates: Dates) -> DataFiles:
        """Return the files that may have rows of some dates (None among them: without one)."""
        may_have = _may_have_rows_of(dates)
        known = self.dates
        return self._replace(
            files={file: size for file, size in self.files.items() if file not in known or may_have(known[file])}
        )

    def sql(self, register: Register, read: ReadFiles) -> str:
        """Return a query of the rows. DuckDB reads files of this machine; pyarrow reads others, as DuckDB asks."""
        columns = _column_list(self.column_names)
        if any(file.is_remote for file in self.files):
            rows = f"SELECT {columns} FROM {register(remote_dataset([*self.files], self.schema))}"
        else:
            rows = " UNION ALL ".join(read(self))
        return f"({rows})" if self.where is None else f"(SELECT {columns} FROM ({rows}) WHERE {self.where})"


Given: TypeAlias = DataFiles | pa.Table | pa.Array | str
"""What a name in a query stands for: rows, values that a column may be ``IN``, or one text."""


def _text(given: Given, register: Register, read: ReadFiles) -> str:
    """Return what stands for rows or values in a query."""
    if isinstance(given, DataFiles):
        return given.sql(register, read)
    if isinstance(given, pa.Table):
        return register(given)
    if isinstance(given, str):
        given = pa.array([given])
    return f"(SELECT value FROM {register(pa.table({'value': given}))})"


class DuckDbSql:
    """DuckDB in this process; threads may query side by side.

    What does not fit in memory goes to ``overflow_folder``, by default a private one that ends with this object.
    """

    def __init__(self, overflow_folder: Path | None = None) -> None:
        self._overflow_folder = overflow_folder
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._own_folder: TemporaryDirectory[str] | None = None
        self._without_rows: dict[pa.Schema, str] = {}  # tables by their columns
        self._file_columns: dict[str, str] = {}  # by file, what is equal for files with the same columns
        self._column_names: dict[str, frozenset[str]] = {}  # by that, the columns
        self._lock = Lock()
        self._alone = Lock()  # held by a query that has more memory than others

    def answer(self, sql: str, of: Mapping[str, Given]) -> pa.Table:
        """Return the answer to a query, in which names in braces stand for what is given; UnknownSqlError."""
        with self._asked(sql, of) as found:
            # Rows found here and there come in chunks of a few, for which all that is done with them would pay.
            return found.to_arrow_table().combine_chunks()

    @contextmanager
    def read_answer(self, sql: str, of: Mapping[str, Given]) -> Iterator[pa.RecordBatchReader]:
        """Yield the answer in batches, which are computed as they are read."""
        with self._asked(sql, of) as found:
            has_bytes = "BLOB" in map(str, found.types)
            yield found.to_arrow_reader(_BATCH_ROWS if has_bytes else _LARGE_BATCH_ROWS)

    def answer_at_most(self, sql: str, of: Mapping[str, Given], max_rows: int, max_bytes: int) -> pa.Table | None:
        """Return the same; None where it has more rows or bytes, as soon as so many are read."""
        with self._asked(f"{sql} LIMIT {max_rows + 1}", of) as found:
            reader = found.to_arrow_reader(_BATCH_ROWS)
            batches, size = [], 0
            for batch in reader:
                batches.append(batch)
                size += batch.nbytes
                if size > max_bytes:
                    return None
            rows = pa.Table.from_batches(batches, reader.schema)
            return rows.combine_chunks() if rows.num_rows <= max_rows else None

    def with_enough_memory(self, ask: Callable[[], Result]) -> Result:
        """Return what asking gives.

        Where the memory of all queries is too little, as for very long values, or for joins of very many rows beside
        one another, it is asked once more with what DuckDB takes of a machine. One query at a time has so much.
        """
        try:
            return ask()
        except (duckdb.OutOfMemoryException, OSError) as error:
            if "Out of Memory" not in str(error):
                raise
        with self._alone:
            self._limit_memory(None)
            try:
                return ask()
            finally:
                with suppress(duckdb.OutOfMemoryException):  # others use more at this moment
                    self._limit_memory(_MEMORY_MB)

    def _limit_memory(self, megabytes: int | None) -> None:
        """Limit the memory of all queries; None: to DuckDB's own limit, four fifths of the machine's."""
        with self._cursor() as cursor:
            cursor.execute("RESET memory_limit" if megabytes is None else f"SET memory_limit = '{megabytes}MiB'")

    @contextmanager
    def _asked(self, sql: str, of: Mapping[str, Given]) -> Iterator[duckdb.DuckDBPyRelation]:
        """Yield the answer to a query, which is computed as it is read."""
        cursor = self._cursor()
        count = 0

        def register(rows: pa.Table | pads.Dataset) -> str:
            nonlocal count
            count += 1
            cursor.register(f"given{count}", rows)
            return f"given{count}"

        read = partial(self._read_files, cursor)
        try:
            for ours, here in _SPELLINGS:
                sql = ours.sub(here, sql)
            yield cursor.sql(sql.format(**{name: _text(each, register, read) for name, each in of.items()}))
        except duckdb.ProgrammingError as error:
            raise UnknownSqlError(" ".join(str(error).split())) from error
        finally:
            cursor.close()

    def _table_without_rows(self, schema: pa.Schema, cursor: duckdb.DuckDBPyConnection) -> str:
        """Return the name of a table that never has rows: DuckDB leaves it out of plans, but not an Arrow table."""
        with self._lock:
            if schema not in self._without_rows:
                name = f"without_rows{len(self._without_rows)}"
                cursor.register("columns", schema.empty_table())
                cursor.execute(f"CREATE TABLE {name} AS SELECT * FROM columns")
                self._without_rows[schema] = name
            return self._without_rows[schema]

    def _read_files(self, cursor: duckdb.DuckDBPyConnection, given: DataFiles) -> list[str]:
        """Return queries of the rows of files, of those with the same columns together.

        Where columns may differ DuckDB would open all files again for each query, to look what they are.
        """
        files, columns = [file.location for file in given.files], given.column_names
        if new := [file for file in files if file not in self._file_columns]:
            self._file_columns |= dict(cursor.execute(_FILE_COLUMNS_SQL.format(files=_path_literals(new))).fetchall())
        alike: dict[str, list[str]] = {}
        for file in files:
            alike.setdefault(self._file_columns[file], []).append(file)
        queries, has_types = list[str](), bool(alike)
        for kind, each in alike.items():
            if kind not in self._column_names:
                self._column_names[kind] = frozenset((*pq.read_schema(each[0]).names, FILE_NAME))
            missing = set(columns) - self._column_names[kind]
            has_types &= not missing
            queries.append(f"SELECT {_column_list(columns, missing)} FROM read_parquet({_path_literals(each)})")
        if not has_types:
            without_rows = self._table_without_rows(given.schema, cursor)
            queries.append(f"SELECT {_column_list(columns)} FROM {without_rows}")
        return queries

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._connection is None:
                if self._overflow_folder is None:
                    self._own_folder = TemporaryDirectory(prefix="msmq-")  # DuckDB's default is the working directory
                    self._overflow_folder = Path(self._own_folder.name)
                self._connection = duckdb.connect(config={"temp_directory": str(self._overflow_folder)})
                for setting in (*_SETTINGS, f"SET memory_limit = '{_MEMORY_MB}MiB'"):
                    self._connection.execute(setting)
                for macro in _MACROS:
                    self._connection.execute(f"CREATE MACRO {macro}")
            return self._connection.cursor()


def _column_list(names: Iterable[str], missing: Collection[str] = ()) -> str:
    """Return columns for ``SELECT``, those that are missing as null."""
    quoted = ((name, quoted_for_duckdb(name)) for name in names)
    return ", ".join(f"NULL AS {each}" if name in missing else each for name, each in quoted)


def _path_literals(paths: Iterable[str]) -> str:
    """Return the paths of files as a list in SQL."""
    return f"[{', '.join(map(_path_literal, paths))}]"


@lru_cache(maxsize=100_000)
def _path_literal(path: str) -> str:
    """Return the path of a file in SQL; DuckDB takes it for a pattern."""
    quoted = _PATTERN_SIGNS.sub(r"[\1]", path).replace("'", "''")
    return f"'{quoted}'"


def quoted_for_duckdb(name: str) -> str:
    """Return a column's name as DuckDB and delta-rs take it."""
    return '"' + name.replace('"', '""') + '"'
