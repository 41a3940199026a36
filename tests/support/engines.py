"""What computes in tests: this process where a test does not ask, since Spark takes seconds to start.

DuckDB starts once for many lakes: it takes as long as twenty queries of a few rows. It has one thread:
to share a few rows among threads takes a twentieth of the time of a test.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.queries.duckdb_sql import DuckDbSql

LOCAL: Final = ("--set", "run.engine=local")


@lru_cache(4)
def shared_sql(overflow_folder: Path | None = None) -> DuckDbSql:
    """Return the database of this process, by the folder for what does not fit in memory."""
    sql = DuckDbSql(overflow_folder)
    with sql._cursor() as cursor:
        cursor.execute("SET threads = 1")
    return sql


def without_spark() -> LazySession:
    """Return a session of the engine ``local``, which fails the test if anything needs Spark."""
    return LazySession(lambda: pytest.fail("Spark is not needed"), engine="local")
