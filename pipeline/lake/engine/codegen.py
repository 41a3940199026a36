"""Whether Spark compiles its queries to Java code: for few rows that takes longer than it saves.

A run that Spark stores has some hundred small queries and commits. A local session begins without; a session that
somebody else made is left as it is. Measured with captures of 200 MB: 35 s without, 38 s with it; of 1 GB: 73 and 63 s.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from pipeline.lake.engine import session_settings

MIN_READ_BYTES: Final = 512 << 20  # of captures that a run reads: where it reads more, queries are compiled
OFF_SETTINGS: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_DEFAULTS: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def is_off(spark: SparkSession) -> bool:
    """Whether a session has these settings off."""
    return all(session_settings.read(spark, name) == value for name, value in OFF_SETTINGS.items())


def enable(spark: SparkSession) -> None:
    """Enable compiled queries, unless somebody else made the session."""
    if is_off(spark):
        for name, value in _DEFAULTS.items():
            session_settings.try_to_set(spark, name, value)
