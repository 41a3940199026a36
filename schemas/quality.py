"""gold.quality_results: what was expected of the tables, and whether it held."""

from __future__ import annotations

from schemas.table import BIGINT, BOOLEAN, STRING, STRINGS, TIMESTAMP, Column, Table, run_columns

QUALITY_RESULTS = Table(
    "gold",
    "quality_results",
    "One row per expectation per run that evaluated it, on the rows that had changed: of runs, not of captures.",
    key=("result_key",),
    event_date_columns=("run_at",),
    columns=(
        Column("result_key", STRING, "key of run_id, suite and expectation"),
        Column("table", STRING, "layer.table that the expectation is about"),
        Column("suite", STRING, "suite that declares it: a file of conf/quality"),
        Column("expectation", STRING, "its name in that file"),
        Column("description", STRING, "what is expected, in words"),
        Column("limits", STRING, "the same as a rule over columns, with the share of rows for which it must hold"),
        Column("severity", STRING, "error: the gate fails; warning; info"),
        Column("success", BOOLEAN, "it held for these rows"),
        Column("evaluated", BIGINT, "rows that were evaluated: those that changed and to which it applies"),
        Column("unexpected", BIGINT, "how many of them were not as expected"),
        Column(
            "observed",
            STRING,
            "what was seen, with its unit: what is not as expected, a few values; else the range of values with limits",
        ),
        Column("unit", STRING, "unit of the values; null for texts, keys and counts of rows"),
        Column("key_column", STRING, "the column of the table that names its rows in failed_keys"),
        Column("failed_keys", STRINGS, "rows that were not as expected, 20 at most"),
        Column("run_at", TIMESTAMP, "clock time of the run, UTC"),
        Column("scope", STRING, "changed: rows that changed since the last check; all: the whole table"),
        *run_columns("gold", "run_at"),
    ),
)

TABLES = (QUALITY_RESULTS,)
