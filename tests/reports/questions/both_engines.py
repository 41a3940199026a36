"""Answers of views as users get them; Spark gives the same rows in the same order."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from engines import shared_sql
from lake.answers import rows_of


def quick_session(spark):
    """A Spark session that compiles nothing, and analyses a view once: that takes longer than to read a few rows."""
    session = spark.newSession()
    for name, value in {"codegen.wholeStage": "false", "codegen.factoryMode": "NO_CODEGEN", "adaptive.enabled": "false",
                        "shuffle.partitions": "1", "legacy.storeAnalyzedPlanForView": "true"}.items():  # fmt: skip
        session.conf.set(f"spark.sql.{name}", value)
    return session


def answers_of(views, *, in_spark=True):
    """Return what gives the rows of a view by its name: those of ``ask``, and of the temporary view in Spark."""

    @cache
    def answer(name):
        found = views.answer(name)
        if in_spark:
            views.create_temporary([name])
            there = views.lake.spark.table(name).toArrow()
            assert found.column_names == there.column_names
            assert rows_of(found) == rows_of(there), name
        return found

    return answer


def select(found: pa.Table, *columns: str, where: str = "TRUE"):
    """Return columns of an answer's rows, each an expression."""
    named = ", ".join(f"{column} AS column{place}" for place, column in enumerate(columns))
    chosen = shared_sql().answer(f"SELECT {named} FROM {{rows}} WHERE {where}", {"rows": found})
    return [tuple(row.values()) for row in chosen.to_pylist()]
