"""What computes in tests: this process where a test does not ask, since Spark takes seconds to start.

DuckDB starts once for many lakes: it takes as long as twenty queries of a few rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pytest

from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.queries.duckdb_sql import DuckDbSql

LOCAL: Final = ("--set", "run.engine=local")
shared_sql: Final = lru_cache(4)(DuckDbSql)  # by the folder for what does not fit in memory


def without_spark() -> LazySession:
    """Return a session of the engine ``local``, which fails the test if anything needs Spark."""
    return LazySession(lambda: pytest.fail("Spark is not needed"), engine="local")
