"""Sessions that refuse settings as Databricks' serverless compute does: all but a documented list.

The list is that of https://docs.databricks.com/spark/conf ("Configure Spark properties for serverless notebooks and
jobs"), read on 2026-11-29. The error is that of databricks-sdk-py's issue 1112, which ``get`` raises too, even with a
default.
"""

from __future__ import annotations

import sys

import pytest
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql.conf import RuntimeConfig

from pipeline.lake.engine import session_settings

TAKEN = frozenset({
    "spark.sql.shuffle.partitions", "spark.sql.ansi.enabled", "spark.sql.session.timeZone",
    "spark.sql.legacy.timeParserPolicy", "spark.sql.files.maxPartitionBytes", "spark.databricks.execution.timeout",
})  # fmt: skip


def refuse_settings(patch: pytest.MonkeyPatch, kind: type = RuntimeConfig) -> list[str]:
    """Have all sessions of a kind refuse settings; return the names that they will have refused, in order."""
    refused: list[str] = []

    def refusing(usual):
        def call(conf, name, *arguments):
            is_pyspark = sys._getframe(1).f_globals["__name__"].startswith("pyspark.")  # which asks for its own
            if name in TAKEN or is_pyspark:
                return usual(conf, name, *arguments)
            refused.append(name)
            message = f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available. SQLSTATE: 42K0I"
            raise AnalysisException(message, errorClass="CONFIG_NOT_AVAILABLE", sql_state="42K0I")

        return call

    for method in ("get", "set", "unset", "isModifiable"):
        patch.setattr(kind, method, refusing(getattr(kind, method)))
    patch.setattr(session_settings, "_REFUSED", set())
    return refused
