"""Great Expectations on rows: what it says of each expectation of a suite.

Few rows are brought here and judged in memory: each of its questions to Spark is a job of its own. Many are judged by
Spark, where the questions of a suite that can be asked together are one job, and those that failed are asked again for
what was seen. It is told to send nothing home, and keeps nothing: no project folder, no persisted frames.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.quality.suites import Expectation, Suite, SuiteError

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult

_SHOWN: Final = 3  # values, or keys of rows, that were not as expected
_LONGEST: Final = 80  # characters of one of them
_SEVERITY: Final = {"error": "critical", "warning": "warning", "info": "info"}


class Verdict(NamedTuple):
    """What came of an expectation: ``evaluated`` rows it applies to, ``unexpected`` ones, and what was ``observed``."""

    expectation: Expectation
    success: bool
    evaluated: int
    unexpected: int
    observed: str | None


class Judged(NamedTuple):
    """What came of a suite, and Great Expectations' own report of it."""

    verdicts: list[Verdict]
    report: ExpectationSuiteValidationResult


class Judge:
    """Great Expectations, set up once for all suites of a check: loading it takes seconds."""

    def __init__(self) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before it is loaded: it would send events home
        import great_expectations  # noqa: PLC0415
        from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415

        self._context = great_expectations.get_context(mode="ephemeral")
        self._context.enable_analytics(False)  # noqa: FBT003
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._here = self._context.data_sources.add_pandas("here")
        self._there = self._context.data_sources.add_spark("there", persist=False)
        self._asked = 0

    def judge(self, suite: Suite, rows: pa.Table | DataFrame) -> Judged:
        """Return what came of each expectation. SuiteError for those that cannot be asked of these rows."""
        if isinstance(rows, DataFrame):
            return self._in_spark(suite, rows)
        source = self._here.add_dataframe_asset(self._named(suite)).add_batch_definition_whole_dataframe("rows")
        batch = source.get_batch({"dataframe": rows.to_pandas()})
        report = batch.validate(_declared(suite, suite.expectations), result_format=_format("BASIC"))
        counts = {name: len(column) - column.null_count for name, column in _columns(rows).items()}
        found = {
            name: _verdict(each, result, counts, rows.num_rows, _keys_here(suite, each, rows))
            for name, (each, result) in _paired(suite, report).items()
        }
        return Judged([found[each.name] for each in suite.expectations], report)

    def _named(self, suite: Suite) -> str:
        """Return a name for rows of a suite: no two may have the same."""
        self._asked += 1
        return f"{suite.name} {self._asked}"

    def _in_spark(self, suite: Suite, rows: DataFrame) -> Judged:
        source = self._there.add_dataframe_asset(self._named(suite)).add_batch_definition_whole_dataframe("rows")
        batch = source.get_batch({"dataframe": rows})
        report = batch.validate(_declared(suite, suite.expectations), result_format=_format("BOOLEAN_ONLY"))
        results = _paired(suite, report)
        wrong = {each.name: sql for each in suite.expectations if (sql := _wrong(each, rows)) is not None}
        counted = rows.agg(
            F.count("*").alias("*"),
            *(F.count(name).alias(name) for name in suite.asked),
            *(F.count_if(F.expr(sql)).alias(f"*{name}") for name, sql in wrong.items()),
        ).first()
        counts = {} if counted is None else counted.asDict()
        # Of what failed, and is not a matter of truth or bounds, the values are asked for: a job for each.
        again = [each for each in suite.expectations if not results[each.name][1].success and each.name not in wrong]
        if again:
            seen = batch.validate(_declared(suite, again), result_format=_format("BASIC"))
            results |= _paired(suite, seen)
            report.results = [results[each.name][1] for each in suite.expectations]
        found = []
        for each in suite.expectations:
            result, keys = results[each.name][1], []
            if each.name in wrong:
                result.result = {**(result.result or {}), "unexpected_count": counts[f"*{each.name}"]}
                if counts[f"*{each.name}"]:
                    some = rows.where(wrong[each.name]).select(_key(suite)).distinct().limit(_SHOWN).collect()
                    keys = [str(row[0])[:_LONGEST] for row in some]
            found.append(_verdict(each, result, counts, counts.get("*", 0), keys))
        return Judged(found, report)


def _format(name: str) -> dict[str, Any]:
    return {"result_format": name, "partial_unexpected_count": _SHOWN}


def _declared(suite: Suite, expectations: Sequence[Expectation]) -> Any:  # noqa: ANN401
    """Return the expectations as Great Expectations' own suite."""
    from great_expectations.core import ExpectationSuite  # noqa: PLC0415

    declared = [
        {
            "type": each.type,
            "kwargs": dict(each.kwargs),
            "severity": _SEVERITY[each.severity],
            "description": f"{each.name}: {each.about}",
            "meta": {"name": each.name},
        }
        for each in expectations
    ]
    try:
        made = ExpectationSuite(name=suite.name, expectations=declared)
    except Exception as error:  # whatever it makes of arguments that do not fit
        raise SuiteError(f"suite {suite.name}: {' '.join(str(error).split())[:400]}") from error
    # What it does not know it leaves out, with a word in its log.
    taken = {each.meta["name"] for each in made.expectations if each.meta}
    if left := [each for each in expectations if each.name not in taken]:
        raise SuiteError(f"suite {suite.name}: {left[0].name}: no expectation {left[0].type} with these arguments")
    return made


def _paired(
    suite: Suite, report: ExpectationSuiteValidationResult
) -> dict[str, tuple[Expectation, ExpectationValidationResult]]:
    """Return results by the names of their expectations. SuiteError for those that could not be asked."""
    by_name = {each.name: each for each in suite.expectations}
    found = {}
    for result in report.results:
        name = _name(result)
        if trouble := _trouble(result.exception_info):
            raise SuiteError(f"suite {suite.name}: {name} cannot be asked: {trouble}")
        found[name] = by_name[name], result
    return found


def _name(result: ExpectationValidationResult) -> str:
    config = result.expectation_config
    return "" if config is None or config.meta is None else str(config.meta["name"])


def _trouble(info: Mapping[str, Any] | None) -> str | None:
    """Return what went wrong with an expectation; it says so of itself or of each of its metrics."""
    told = [info or {}, *(each for each in (info or {}).values() if isinstance(each, Mapping))]
    for each in told:
        if each.get("raised_exception"):
            return " ".join(str(each.get("exception_message")).split())[:300]
    return None


def _verdict(
    each: Expectation, result: ExpectationValidationResult, counts: Mapping[str, int], rows: int, keys: Sequence[str]
) -> Verdict:
    told = result.result or {}
    evaluated = counts.get(each.columns[0], rows) if len(each.columns) == 1 and "_null" not in each.type else rows
    unexpected = told.get("unexpected_count") or 0
    observed = None
    if "observed_value" in told:
        observed = str(told["observed_value"])[:_LONGEST]
        unexpected = 0 if result.success else evaluated
    elif unexpected:
        seen = list(dict.fromkeys(str(value)[:_LONGEST] for value in told.get("partial_unexpected_list") or ()))
        parts = [f"{unexpected} of {evaluated}"]
        parts += [f"values {', '.join(seen[:_SHOWN])}"] if seen and seen != ["False"] else []
        parts += [f"for example {', '.join(keys)}"] if keys else []
        observed = "; ".join(parts)
    return Verdict(each, bool(result.success), int(evaluated), int(unexpected), observed)


def _columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(rows.column_names, rows.columns, strict=True))


def _keys_here(suite: Suite, each: Expectation, rows: pa.Table) -> list[str]:
    """Return keys of some rows that are not as expected, where truth or bounds say which they are."""
    if (name := _judged(each)) is None:
        return []
    column, low, high = rows[name], each.kwargs.get("min_value"), each.kwargs.get("max_value")
    if pa.types.is_boolean(column.type):
        wrong = pc.invert(column)
    else:
        below = pa.scalar(False) if low is None else pc.less(column, low)  # noqa: FBT003
        wrong = pc.or_(below, pa.scalar(False) if high is None else pc.greater(column, high))  # noqa: FBT003
    found = rows.filter(pc.fill_null(wrong, False))  # noqa: FBT003
    keys = found[_key(suite)].to_pylist()
    return [str(value)[:_LONGEST] for value in dict.fromkeys(keys)][:_SHOWN]


def _wrong(each: Expectation, rows: DataFrame) -> str | None:
    """Return the SQL condition of rows that are not as expected, where truth or bounds say which they are."""
    if (name := _judged(each)) is None:
        return None
    if rows.schema[name].dataType.simpleString() == "boolean":
        return f"NOT `{name}`"
    low, high = each.kwargs.get("min_value"), each.kwargs.get("max_value")
    return " OR ".join([f"`{name}` < {low}"] * (low is not None) + [f"`{name}` > {high}"] * (high is not None))


def _judged(each: Expectation) -> str | None:
    """Return the column that an expectation of truth or of bounds is about."""
    truth = each.type == "expect_column_values_to_be_in_set" and each.kwargs.get("value_set") == [True]
    bounds = each.type == "expect_column_values_to_be_between" and {"min_value", "max_value"} & each.kwargs.keys()
    return each.kwargs["column"] if truth or bounds else None


def _key(suite: Suite) -> str:
    return suite.table.key[0] if suite.rows is None else suite.key
