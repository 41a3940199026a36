"""Settings of a session for as long as something is done with them.

Threads that ask side by side (``gather``) share a session: settings are made around them, not by one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from pyspark.sql import SparkSession

# Spark asks after each row whether the batch that it makes for Python has become too large, and to answer that it walks
# through each list column that is null since its last value: with few lists the time goes with the square of the rows.
# Measured with 200,000 rows of five groups and seven such columns: 39 s, and 0.9 s without the question.
_UNMEASURED: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
_SHORT: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have the session these settings within, and behind it what it had."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def unmeasured(spark: SparkSession) -> AbstractContextManager[None]:
    """Within, batches for Python are as large as their number of rows says, whatever is in them.

    For groups of rows, which Python has as a whole anyway. Where a session does not let itself be told, nothing is set.
    """
    return having(spark, _allowed(spark, _UNMEASURED))


def short_batches(spark: SparkSession) -> AbstractContextManager[None]:
    """Within, batches for Python have few rows: for wide rows with lists and long values, whose size must be asked."""
    return having(spark, _allowed(spark, _SHORT))


def _allowed(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if spark.conf.isModifiable(name)}
