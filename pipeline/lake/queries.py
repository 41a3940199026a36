"""Questions in SQL with names in braces for what they are asked of, and their answers by Spark.

``Lake.query`` answers them in this process where tables are at hand (``local_tables``), and here elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from pipeline.lake.frames import column_of, frame
from schemas.table import Table, literal, quoted

CHANGE: Final = ("_change_type", "_commit_version")  # what the change feed adds to a table's columns
WAS: Final = ("delete", "update_preimage")  # its types of a row as it was before, and
IS: Final = ("insert", "update_postimage")  # as it is now
MOST_NAMED: Final = 5000  # values that a condition names; more of them are joined with


class FeedError(Exception):
    """The changes since a version cannot be told: the table has no such version."""


# What asking for changes ends with where nothing can tell them any more: PySpark translates not all that Java says.
UNTOLD: Final = (FeedError, PySparkException, Py4JJavaError)


class Since(NamedTuple):
    """What changed in a table after a version, up to another."""

    table: Table
    since: int
    until: int


class Standing(NamedTuple):
    """The rows of a table that meet a condition, in SQL over its columns alone, which is always the same.

    Their columns are the table's but those of bytes. They are few, and asked for again and again: where tables are at
    hand they are kept (``standing``), so that not all of the table is looked through for them each time.
    """

    table: Table
    where: str

    @property
    def names(self) -> tuple[str, ...]:
        """Their columns' names, in the table's order."""
        return tuple(column.name for column in self.table.columns if not isinstance(column.type, BinaryType))


Names: TypeAlias = Collection[str] | Collection[int] | str
"""What a column may be ``IN``, without null; or one text."""

Source: TypeAlias = Table | Since | Standing | pa.Table | Names
"""What a name in a question stands for: rows, or values."""


class Question(NamedTuple):
    """A question, and what its names stand for."""

    sql: str
    of: Mapping[str, Source]

    def within(self, sql: str) -> Question:
        """Return a question about this one's answer, whose name is ``{answer}``."""
        return self._replace(sql=sql.replace("{answer}", f"({self.sql})"))


def values_of(names: Names) -> pa.Array | str:
    """Return values as an array, sorted; one text as it is."""
    return names if isinstance(names, str) else pa.array(sorted(names))


def listed(names: Names) -> str:
    """Return values as Spark's SQL lists them; one text as a literal."""
    if isinstance(names, str):
        return literal(names)
    spelled = (literal(each) if isinstance(each, str) else str(each) for each in sorted(names))
    return f"({', '.join(spelled) or 'NULL'})"


def in_spark(spark: SparkSession, sql: str, of: Mapping[str, DataFrame | pa.Table | Names]) -> DataFrame:
    """Return Spark's answer as a frame; of what is asked at least one is rows."""
    frames: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, given in of.items():
        if isinstance(given, DataFrame):
            frames[name] = given
        elif isinstance(given, pa.Table):
            frames[name] = frame(spark, given)
        elif isinstance(given, str) or len(given) <= MOST_NAMED:
            texts[name] = listed(given).replace("{", "{{").replace("}", "}}")
            continue
        else:
            frames[name] = frame(spark, pa.table({"value": values_of(given)}))
            texts[name] = f"(SELECT value FROM {{{name}}})"
            continue
        texts[name] = f"{{{name}}}"
    return spark.sql(sql.format(**texts), **frames)  # which gives frames names of their own, as long as it needs them


def only(rows: DataFrame, column: str, values: Collection[str | None]) -> DataFrame:
    """Return the rows whose column has one of these values: by a condition that names them if they are few."""
    known = sorted(value for value in values if value is not None)
    if len(known) <= MOST_NAMED:
        named = f"{quoted(column)} IN ({', '.join(map(literal, known))})" if known else "FALSE"
        return rows.where(f"({named} OR {quoted(column)} IS NULL)" if None in values else named)
    wanted = column_of(rows.sparkSession, known, "_value")
    met = F.col(column) == F.col("_value")
    return rows.join(F.broadcast(wanted), met | F.col(column).isNull() if None in values else met, "left_semi")
