"""SQL queries with named inputs in braces: tables, changes of tables, Arrow tables, values.

Who answers them: ``pipeline.lake.queries.answer``.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from pipeline.lake.date_filters import Dates
from pipeline.lake.lake_path import LakePath
from schemas.table import BINARY, Table, literal

CHANGE_COLUMNS: Final = ("_change_type", "_commit_version")  # what the change feed adds to a table's columns
CHANGE_FIELDS: Final = (pa.field(CHANGE_COLUMNS[0], pa.string()), pa.field(CHANGE_COLUMNS[1], pa.int64()))
PRE_IMAGES: Final = ("delete", "update_preimage")  # change types of a row before the change
POST_IMAGES: Final = ("insert", "update_postimage")  # and after it
MORE_ROWS_SQL: Final = f"sum(CASE WHEN _change_type IN {POST_IMAGES} THEN 1 ELSE -1 END)"
"""SQL over a change feed: how many more rows there are than before; a row and its copy cancel each other."""
_ALL_COLUMNS: Final = re.compile(r"(SELECT|DISTINCT|\.|,)\s*\*")
MAX_IN_LIST: Final = 5000  # values in an IN list; more are joined
MAX_ROWS_IN_MEMORY: Final = 50_000  # of one query; of more, rows are computed by tasks
MAX_COLUMN_ROWS_IN_MEMORY: Final = 500_000  # where a row costs about as much as to hand it over to a task
MAX_BYTES_IN_MEMORY: Final = 256 << 20  # of the same rows as Arrow tables, of all queries together: texts can be long


class ChangeFeedError(Exception):
    """The table has no such version: its changes since then are not known."""


class UnknownSqlError(Exception):
    """SQL that DuckDB does not know, or that does not fit the inputs; Spark may know it."""


# What asking for changes ends with where nothing can tell them any more: PySpark translates not all that Java says.
CHANGE_FEED_ERRORS: Final = (ChangeFeedError, PySparkException, Py4JJavaError)


class ChangesSince(NamedTuple):
    """An input: the rows of a table that changed after version ``since``, up to ``until``."""

    table: Table
    since: int
    until: int


class RowsOfDates(NamedTuple):
    """An input: the rows of a table on some dates (None among them: without a date); None: all rows.

    Files that have no row of these dates are not opened.
    """

    table: Table
    dates: Dates | None


class RowsOfFiles(NamedTuple):
    """An input: the rows of Parquet files, each with its bytes; columns that they do not have are null."""

    schema: pa.Schema
    files: Mapping[LakePath, int]


class FilteredTable(NamedTuple):
    """An input: the rows of a table that meet a condition, in SQL over its columns; without its binary columns.

    ``is_shared``: they are few, and several queries of a run ask for them, so that a store may keep them in memory.
    """

    table: Table
    where: str
    is_shared: bool = False

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in the table's order."""
        return tuple(column.name for column in self.table.columns if column.type != BINARY)


Values: TypeAlias = Collection[str] | Collection[int] | pa.Array | str
"""What a column may be ``IN``, without null, of many as an Arrow array; or one text."""

QueryInput: TypeAlias = Table | ChangesSince | RowsOfDates | RowsOfFiles | FilteredTable | pa.Table | Values
"""What a name in a question stands for: rows, or values."""


class BoundQuery(NamedTuple):
    """A query with its inputs by name."""

    sql: str
    inputs: Mapping[str, QueryInput]

    def wrap(self, sql: str) -> BoundQuery:
        """Return a query over this one's answer, which ``{answer}`` stands for."""
        return self._replace(sql=sql.replace("{answer}", f"({self.sql})"))


class QueryAnswers(UserDict[str, pa.Table]):
    """The answers to queries, by the name of the query, as functions of groups take them."""

    def select(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of an answer."""
        return self[name].select(list(columns))

    def iter_column_chunks(self, name: str) -> Iterator[pa.Table]:
        """Yield all columns of an answer, as many at a time as may be in memory."""
        yield self[name]


GroupFunction: TypeAlias = Callable[[QueryAnswers], Iterable[pa.Table]]
"""Makes rows of the answers to queries."""


class GroupedQuery(NamedTuple):
    """Queries, and a function of the groups of their answers, as ``Lake.map_groups`` takes them.

    The function yields tables, one at least; of very many rows some at a time, so that not all are in memory.
    ``distinct_texts``: the function also takes texts as dictionaries (``encode_texts``), but for these columns, whose
    rows have a text of their own each. ``as_columns``: it computes whole columns, so that a row costs little, and
    ``MAX_COLUMN_ROWS_IN_MEMORY`` are few.
    """

    parts: Mapping[str, BoundQuery]
    keys: Sequence[str]
    function: GroupFunction
    schema: StructType
    distinct_texts: Collection[str] | None = None
    as_columns: bool = False


class MemoryLimits(NamedTuple):
    """How many rows the answer to each of some queries may have in memory, and how many bytes all of them together."""

    rows: int
    bytes: int


def values_array(names: Values) -> pa.Array | str:
    """Return values as an array, sorted unless they are one; one text as it is."""
    return names if isinstance(names, str | pa.Array) else pa.array(sorted(names))


def sql_list(names: Values) -> str:
    """Return values as a SQL list of literals; one text as a literal."""
    if isinstance(names, str):
        return literal(names)
    values = sorted(names.to_pylist() if isinstance(names, pa.Array) else names)
    spelled = (literal(each) if isinstance(each, str) else str(each) for each in values)
    return f"({', '.join(spelled) or 'NULL'})"


def named_columns(sql: str, names: Sequence[str]) -> Sequence[str]:
    """Return those of some columns that a query names, all where it names those of some input at once.

    ``count(*)`` names none.
    """
    return names if _ALL_COLUMNS.search(sql) else tuple(name for name in names if name in sql)


def double_braces(text: str) -> str:
    """Return text for SQL that is formatted: ``SparkSession.sql`` with frames takes braces for names of inputs."""
    return text.replace("{", "{{").replace("}", "}}")
