"""Data quality checks: run the suites of ``conf/quality`` on changed rows and append results to gold.quality_results.

The provenance in the table's newest commit has the versions of the checked tables, the suites, and the suites that
failed. A failed suite is checked on all rows until it passes, so the quality gate stays shut until the fault is gone.
If nothing changed and nothing failed there is no work, except for suites that depend on the clock (if requested).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState
from pipeline.lake.lake import Lake
from pipeline.quality.batches import (
    MAX_ROWS_IN_MEMORY,
    BatchOptions,
    CheckBatch,
    add_lookup_columns,
    read_column_changes,
    select_batch,
)
from pipeline.quality.gx_checks import ExpectationResult, SuiteValidator
from pipeline.quality.limits import describe_limits
from pipeline.quality.suites import Suite
from pipeline.text import escape_unprintable
from schemas.quality import QUALITY_RESULTS
from schemas.table import EVENT_DATE
from udfs.keys import key

_SCHEMA: Final = QUALITY_RESULTS.schema()
_CODE_VERSION: Final = "1"  # raised when all suites are to be checked on all rows again


@dataclass(frozen=True, slots=True)
class _KeptSuites(KeptState):
    """By suite a hash of what it checks; and the suites that failed."""

    suites: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of a quality check.

    ``run_at`` is clock time, ``now`` the time that freshness refers to, ``machines`` the configured queue managers.
    ``all_rows`` checks all suites on all rows. ``include_clock_suites`` checks suites that depend on the clock even if
    nothing changed. Suites with more than ``max_rows_in_memory`` rows are checked in Spark.
    """

    run_id: str
    run_at: datetime
    now: datetime
    machines: Sequence[str] = ()
    all_rows: bool = False
    include_clock_suites: bool = False
    max_rows_in_memory: int = MAX_ROWS_IN_MEMORY


@dataclass(slots=True)
class CheckResult:
    """The results of a check: rows of gold.quality_results."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def failed_rows(self, *severities: str) -> list[dict[str, Any]]:
        """Return the rows of failed expectations with one of these severities (all by default)."""
        return [row for row in self.rows if not row["success"] and (not severities or row["severity"] in severities)]

    @property
    def gate_failed(self) -> bool:
        """Whether an expectation of severity error failed."""
        return bool(self.failed_rows("error"))

    def summary_lines(self) -> list[str]:
        """Return lines for the terminal: how many expectations hold, and those that failed."""
        if not self.rows:
            return []
        failed = self.failed_rows()
        lines = [f"quality   {len(self.rows) - len(failed)} of {len(self.rows)} expectations hold"]
        return lines + [
            f"  {row['severity']:<8} {row['table']} {row['expectation']} ({row['suite']}): "
            + escape_unprintable("; for example ".join([row["observed"] or "", *row["failed_keys"][:1]]))
            for row in failed
        ]


def check_suites(lake: Lake, suites: Sequence[Suite], options: CheckOptions) -> CheckResult:
    """Check the suites on rows that changed since the last check, and append the results to gold.quality_results."""
    followed = (suite for suite in suites if not suite.clock_dependent)
    inputs = tuple(dict.fromkeys(table for suite in followed for table in suite.source_tables))
    hashes = {suite.name: key(repr(suite)) for suite in suites}
    step = DerivedTable(QUALITY_RESULTS, inputs, _CODE_VERSION).compare(lake, also={"suites": hashes})
    before = (step.same_code_and_settings and _KeptSuites.of(step.provenance_before)) or _KeptSuites()
    same = step.is_current() and not before.failed
    due = [suite for suite in suites if suite.clock_dependent] if same and not options.all_rows else list(suites)
    skip = same and not (options.include_clock_suites or options.all_rows)
    if skip or not any(lake.exists(table) for suite in due for table in suite.source_tables):
        return CheckResult()
    with ThreadPoolExecutor(1) as pool:
        validator = pool.submit(SuiteValidator)  # loading Great Expectations takes as long as reading the rows
        to_check_whole = {name for name in hashes if before.suites.get(name) != hashes[name] or name in before.failed}
        batches = _batches(step, due, options, to_check_whole)
        found = _validate(batches, due, validator.result(), options)
    step.keep(_KeptSuites(hashes, sorted({row["suite"] for row in found.failed_rows("error")})))
    if found.rows:
        step.append(results_table(found.rows))
    elif not same:
        step.note_provenance()
    return found


def _batches(
    step: IncrementalUpdate, suites: Sequence[Suite], options: CheckOptions, to_check_whole: Collection[str]
) -> dict[str, CheckBatch]:
    """Return the rows that each suite is checked on, by its name; suites without a change are left out.

    Of the suites ``to_check_whole`` these are all rows.
    """
    lake = step.lake
    followed = [suite for suite in suites if suite.rows_sql is None]
    changes = {} if options.all_rows else read_column_changes(step.feeds, followed)

    def select(suite: Suite) -> CheckBatch | None:
        all_rows = options.all_rows or suite.name in to_check_whole
        batch_options = BatchOptions(all_rows, options.now, options.machines, options.max_rows_in_memory)
        return select_batch(lake, suite, changes, batch_options)

    found = run_concurrently({suite.name: partial(select, suite) for suite in suites})
    batches = {name: each for name, each in found.items() if each is not None}
    whole = {
        each.suite.table: each.rows
        for each in batches.values()
        if each.selection is None and each.suite.rows_sql is None and isinstance(each.rows, pa.Table)
    }
    return run_concurrently({name: partial(add_lookup_columns, lake, each, whole) for name, each in batches.items()})


def _validate(
    batches: Mapping[str, CheckBatch], suites: Sequence[Suite], validator: SuiteValidator, options: CheckOptions
) -> CheckResult:
    found = CheckResult()
    for suite in suites:
        batch = batches.get(suite.name)
        if batch is None or (isinstance(batch.rows, pa.Table) and not batch.rows.num_rows):
            continue
        results = validator.validate(suite, batch.rows)
        found.rows += [_result_row(suite, each, batch.scope, options) for each in results]
    return found


def _result_row(suite: Suite, result: ExpectationResult, scope: str, options: CheckOptions) -> dict[str, Any]:
    return {
        "result_key": key(options.run_id, suite.name, result.expectation.name),
        "table": str(suite.table),
        "suite": suite.name,
        "expectation": result.expectation.name,
        "description": result.expectation.description,
        "limits": describe_limits(suite, result.expectation),
        "severity": result.expectation.severity,
        "success": result.success,
        "evaluated": result.evaluated,
        "unexpected": result.unexpected,
        "observed": result.observed,
        "unit": result.expectation.unit,
        "key_column": suite.row_key,
        "failed_keys": result.failed_keys,
        "run_at": options.run_at,
        "scope": scope,
        EVENT_DATE: options.run_at.date(),
        "run_id": options.run_id,
    }


def results_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return result rows as an Arrow table with the schema of gold.quality_results."""
    return pa.Table.from_pylist(list(rows), schema=_SCHEMA)
