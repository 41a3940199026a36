"""gold.quality_results: what is expected of the tables (``conf/quality``), asked of what changed since the last check.

The table's newest commit says of which versions of the tables the last check was made, by which suites, and which of
them failed: these are asked of all rows until they hold, so that a gate stays shut while what shut it is there. Nothing
that changed, nothing that failed: no work, but for suites that look at the clock, when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.frames import frame
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.local.commits import Commit
from pipeline.quality.batches import MOST, Asking, Slice, changes, complete, slice_of
from pipeline.quality.gx_checks import Judge, Judged
from pipeline.quality.suites import Suite
from pipeline.text import shown
from schemas.quality import QUALITY_RESULTS
from schemas.table import EVENT_DATE, Table
from udfs.keys import key

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult

_SCHEMA: Final = to_arrow_schema(QUALITY_RESULTS.struct())
_SUITES, _FAILED = "suites", "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """How a check is made.

    ``run_at`` is clock time, ``now`` what freshness goes by, ``machines`` the configured queue managers. ``everything``
    asks all suites of all rows; ``clock`` asks those that look at the clock though nothing changed.
    """

    run_id: str
    run_at: datetime
    now: datetime
    machines: Sequence[str] = ()
    everything: bool = False
    clock: bool = False
    most: int = MOST  # rows of a table that are judged here; of more, in Spark


@dataclass(slots=True)
class Checked:
    """What a check found: rows of gold.quality_results as dictionaries, and Great Expectations' reports by suite."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[str, ExpectationSuiteValidationResult] = field(default_factory=dict)

    def failed(self, *severities: str) -> list[dict[str, Any]]:
        """Return what did not hold, of these severities; of all by default."""
        return [row for row in self.rows if not row["success"] and (not severities or row["severity"] in severities)]

    @property
    def gate_failed(self) -> bool:
        """Whether an expectation of level error did not hold."""
        return bool(self.failed("error"))

    def lines(self) -> list[str]:
        """Return for people how many expectations held, and each that did not."""
        if not self.rows:
            return []
        wrong = self.failed()
        lines = [f"quality   {len(self.rows) - len(wrong)} of {len(self.rows)} expectations hold"]
        return lines + [
            f"  {row['severity']:<8} {row['table']} {row['expectation']} ({row['suite']}): "
            + shown(row["observed"] or "")
            for row in wrong
        ]


def check(lake: Lake, suites: Sequence[Suite], how: Check) -> Checked:
    """Ask the suites of what changed since the last check, and keep what came of it in gold.quality_results."""
    below = tuple(dict.fromkeys(table for suite in suites for table in suite.rests_on))
    newest = lake.newest(*below, QUALITY_RESULTS)
    made = newest[QUALITY_RESULTS].made() if QUALITY_RESULTS in newest else {}
    rests_on: dict[str, Any] = versions_of(newest, below)
    rests_on[_SUITES] = {suite.name: key(repr(suite)) for suite in suites}
    same = {name: made.get(name) for name in rests_on} == rests_on and not made.get(_FAILED)
    due = [suite for suite in suites if suite.always] if same and not how.everything else list(suites)
    if not due or (same and not (how.clock or how.everything)) or not _anything(newest, due):
        return Checked()
    slices = _slices(lake, due, made, rests_on, how)
    found = _judged(slices, due, how)
    failed = {row["suite"] for row in found.failed("error")}
    says = json.dumps({**rests_on, _FAILED: sorted(failed)})
    if found.rows:
        rows = frame(lake.spark, table_of(found.rows))
        lake.append(QUALITY_RESULTS, rows, made_of=says)
    elif not same:
        lake.stamp(QUALITY_RESULTS, says)
    return found


def _anything(newest: Mapping[Table, Commit], suites: Collection[Suite]) -> bool:
    return any(table in newest for suite in suites for table in suite.rests_on)


def _slices(
    lake: Lake, suites: Sequence[Suite], made: Mapping[str, Any], rests_on: Mapping[str, Any], how: Check
) -> dict[str, Slice]:
    """Return what each suite is asked of; nothing for those that nothing changed for."""
    followed = [suite for suite in suites if suite.rows is None]
    told = {} if how.everything else changes(Feeds(lake, made, rests_on), followed)
    known, failed = made.get(_SUITES) or {}, made.get(_FAILED) or ()

    def rows_of(suite: Suite) -> Slice | None:
        anew = how.everything or suite.name in failed or known.get(suite.name) != rests_on[_SUITES][suite.name]
        return slice_of(lake, suite, told, Asking(anew, how.now, how.machines, how.most))

    found = gather({suite.name: partial(rows_of, suite) for suite in suites})
    slices = {name: each for name, each in found.items() if each is not None}
    whole = {
        each.suite.table: each.rows
        for each in slices.values()
        if each.chosen is None and each.suite.rows is None and isinstance(each.rows, pa.Table)
    }
    return gather({name: partial(complete, lake, each, whole) for name, each in slices.items()})


def _judged(slices: Mapping[str, Slice], suites: Sequence[Suite], how: Check) -> Checked:
    checked, judge = Checked(), None
    for suite in suites:
        found = slices.get(suite.name)
        if found is None or (isinstance(found.rows, pa.Table) and not found.rows.num_rows):
            continue
        judge = judge or Judge()
        judged = judge.judge(suite, found.rows)
        checked.reports[suite.name] = judged.report
        checked.rows += _rows(suite, judged, found.scope, how)
    return checked


def _rows(suite: Suite, judged: Judged, scope: str, how: Check) -> list[dict[str, Any]]:
    return [
        {
            "result_key": key(how.run_id, suite.name, verdict.expectation.name),
            "table": str(suite.table),
            "suite": suite.name,
            "expectation": verdict.expectation.name,
            "severity": verdict.expectation.severity,
            "success": verdict.success,
            "evaluated": verdict.evaluated,
            "unexpected": verdict.unexpected,
            "observed": verdict.observed,
            "run_at": how.run_at,
            "scope": scope,
            EVENT_DATE: how.run_at.date(),
            "run_id": how.run_id,
        }
        for verdict in judged.verdicts
    ]


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as they are written."""
    return pa.Table.from_pylist(list(rows), schema=_SCHEMA)
