"""Whether Spark compiles its queries: for few rows that takes longer than it saves.

A scheduled run asks a hundred different questions of small tables. To make Java code of each, and to compile that, is a
third of its time; interpreted they are answered at once. Where much is read it is the other way round, be it new or
what a lake holds of before: the layers above look for what a change touches in whole tables. A local session begins
without; a session that somebody else made is left as it is.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

COMPILED_FROM: Final = 64 << 20  # bytes read; measured: 20 MB are read sooner without, 400 MB sooner with it
HELD_FROM: Final = 1 << 30  # bytes of captures in a lake; 50 MB more of 5 GB: 189 s without, 126 s with it
INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}  # the defaults


def expect(spark: SparkSession, size: int, held: int = 0) -> None:
    """Have queries compiled from here on if so many bytes are to go through them, and they are interpreted so far.

    ``held``: bytes of the captures that the lake was made of before.
    """
    if (size >= COMPILED_FROM or held >= HELD_FROM) and _is_interpreted(spark):
        _set(spark, _COMPILED)


def like(spark: SparkSession, other: SparkSession) -> None:
    """Do as another session does: a new one has the settings that the first one began with."""
    if _is_interpreted(spark) and not _is_interpreted(other):
        _set(spark, _COMPILED)


def _is_interpreted(spark: SparkSession) -> bool:
    return all(spark.conf.get(name, None) == value for name, value in INTERPRETED.items())


def _set(spark: SparkSession, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)
