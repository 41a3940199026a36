"""Whether Spark compiles its queries to Java code: for few rows that takes longer than it saves.

A scheduled run asks a hundred different queries of small tables. To generate and compile Java code for each is a
third of its time. Where much is read, or the lake is large, compiled queries are faster. A local session begins
without; a session that somebody else made is left as it is.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

MIN_READ_BYTES_FOR_CODEGEN: Final = (
    64 << 20
)  # bytes read; measured: 20 MB are read sooner without, 400 MB sooner with it
MIN_LAKE_BYTES_FOR_CODEGEN: Final = (
    1 << 30
)  # bytes of captures in a lake; 50 MB more of 5 GB: 189 s without, 126 s with it
CODEGEN_OFF_SETTINGS: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}  # the defaults


def is_worth_it(size: int, held: int = 0) -> bool:
    """Whether to compile queries if so many bytes are to be read (``size``), of a lake made from so many (``held``)."""
    return size >= MIN_READ_BYTES_FOR_CODEGEN or held >= MIN_LAKE_BYTES_FOR_CODEGEN


def enable(spark: SparkSession) -> None:
    """Enable compiled queries, unless somebody else made the session."""
    if _is_interpreted(spark):
        _set(spark, _COMPILED)


def copy_codegen_settings(spark: SparkSession, other: SparkSession) -> None:
    """Copy these settings from another session: a new session has those that the first one began with."""
    if _is_interpreted(spark) and not _is_interpreted(other):
        _set(spark, _COMPILED)


def _is_interpreted(spark: SparkSession) -> bool:
    return all(spark.conf.get(name, None) == value for name, value in CODEGEN_OFF_SETTINGS.items())


def _set(spark: SparkSession, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)
