"""Validation of rows with Great Expectations: the result of each expectation of a suite.

Few rows are validated in memory, because each query of Great Expectations to Spark is a job of its own. Many rows are
validated in Spark: one job for all expectations of a suite that can share it, then one for each that failed, to get the
values seen. Great Expectations sends no analytics and stores nothing: no project folder, no persisted frames.
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

_MAX_EXAMPLES: Final = 3  # unexpected values, or keys of unexpected rows
_MAX_CHARACTERS: Final = 80  # of one example
_SEVERITY: Final = {"error": "critical", "warning": "warning", "info": "info"}


class ExpectationResult(NamedTuple):
    """The result of an expectation: numbers of rows evaluated and unexpected, and what was observed instead."""

    expectation: Expectation
    success: bool
    evaluated: int
    unexpected: int
    observed: str | None


class SuiteResult(NamedTuple):
    """The results of a suite, and the report of Great Expectations."""

    results: list[ExpectationResult]
    report: ExpectationSuiteValidationResult


class SuiteValidator:
    """Validates suites with Great Expectations. Loading that takes seconds, so one instance serves a whole check."""

    def __init__(self) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"  # must be set before the import
        import great_expectations  # noqa: PLC0415
        from great_expectations.data_context.types.base import ProgressBarsConfig  # noqa: PLC0415

        self._context = great_expectations.get_context(mode="ephemeral")
        self._context.enable_analytics(False)  # noqa: FBT003
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._pandas = self._context.data_sources.add_pandas("pandas")
        self._spark = self._context.data_sources.add_spark("spark", persist=False)
        self._assets = 0

    def validate(self, suite: Suite, rows: pa.Table | DataFrame) -> SuiteResult:
        """Return the result of each expectation; raises SuiteError for one that cannot be evaluated on these rows."""
        if isinstance(rows, DataFrame):
            return self._validate_in_spark(suite, rows)
        source = self._pandas.add_dataframe_asset(self._asset_name(suite)).add_batch_definition_whole_dataframe("rows")
        batch = source.get_batch({"dataframe": rows.to_pandas()})
        report = batch.validate(_gx_suite(suite, suite.expectations), result_format=_result_format("BASIC"))
        counts = {name: len(rows[name]) - rows[name].null_count for name in rows.column_names}
        found = {
            name: _expectation_result(each, result, counts, rows.num_rows, _example_keys(suite, each, rows))
            for name, (each, result) in _results_by_name(suite, report).items()
        }
        return SuiteResult([found[each.name] for each in suite.expectations], report)

    def _asset_name(self, suite: Suite) -> str:
        """Return a unique name for rows of a suite."""
        self._assets += 1
        return f"{suite.name} {self._assets}"

    def _validate_in_spark(self, suite: Suite, rows: DataFrame) -> SuiteResult:
        source = self._spark.add_dataframe_asset(self._asset_name(suite)).add_batch_definition_whole_dataframe("rows")
        batch = source.get_batch({"dataframe": rows})
        report = batch.validate(_gx_suite(suite, suite.expectations), result_format=_result_format("BOOLEAN_ONLY"))
        results = _results_by_name(suite, report)
        failure_sql = {each.name: sql for each in suite.expectations if (sql := _failure_sql(each, rows)) is not None}
        counted = rows.agg(
            F.count("*").alias("*"),
            *(F.count(name).alias(name) for name in suite.checked_columns),
            *(F.count_if(F.expr(sql)).alias(f"*{name}") for name, sql in failure_sql.items()),
        ).first()
        counts = {} if counted is None else counted.asDict()
        # The values that other failed expectations saw: one job for each.
        failed = [
            each for each in suite.expectations if not results[each.name][1].success and each.name not in failure_sql
        ]
        if failed:
            seen = batch.validate(_gx_suite(suite, failed), result_format=_result_format("BASIC"))
            results |= _results_by_name(suite, seen)
            report.results = [results[each.name][1] for each in suite.expectations]
        found = []
        for each in suite.expectations:
            result, keys = results[each.name][1], []
            if each.name in failure_sql:
                result.result = {**(result.result or {}), "unexpected_count": counts[f"*{each.name}"]}
                if counts[f"*{each.name}"]:
                    some = (
                        rows.where(failure_sql[each.name]).select(_key(suite)).distinct().limit(_MAX_EXAMPLES).collect()
                    )
                    keys = [str(row[0])[:_MAX_CHARACTERS] for row in some]
            found.append(_expectation_result(each, result, counts, counts.get("*", 0), keys))
        return SuiteResult(found, report)


def _result_format(name: str) -> dict[str, Any]:
    return {"result_format": name, "partial_unexpected_count": _MAX_EXAMPLES}


def _gx_suite(suite: Suite, expectations: Sequence[Expectation]) -> Any:  # noqa: ANN401
    """Return the expectations as a suite of Great Expectations."""
    from great_expectations.core import ExpectationSuite  # noqa: PLC0415

    configurations = [
        {
            "type": each.type,
            "kwargs": dict(each.kwargs),
            "severity": _SEVERITY[each.severity],
            "description": f"{each.name}: {each.description}",
            "meta": {"name": each.name},
        }
        for each in expectations
    ]
    try:
        gx_suite = ExpectationSuite(name=suite.name, expectations=configurations)
    except Exception as error:  # of any type, for invalid arguments
        raise SuiteError(f"suite {suite.name}: {' '.join(str(error).split())[:400]}") from error
    # Great Expectations drops unknown expectations and only logs that.
    known = {each.meta["name"] for each in gx_suite.expectations if each.meta}
    if unknown := [each for each in expectations if each.name not in known]:
        raise SuiteError(
            f"suite {suite.name}: {unknown[0].name}: no expectation {unknown[0].type} with these arguments"
        )
    return gx_suite


def _results_by_name(
    suite: Suite, report: ExpectationSuiteValidationResult
) -> dict[str, tuple[Expectation, ExpectationValidationResult]]:
    """Return the results by expectation name; raises SuiteError for one that could not be evaluated."""
    by_name = {each.name: each for each in suite.expectations}
    found = {}
    for result in report.results:
        name = _name(result)
        if error := _error_of(result.exception_info):
            raise SuiteError(f"suite {suite.name}: {name} cannot be evaluated: {error}")
        found[name] = by_name[name], result
    return found


def _name(result: ExpectationValidationResult) -> str:
    config = result.expectation_config
    return "" if config is None or config.meta is None else str(config.meta["name"])


def _error_of(info: Mapping[str, Any] | None) -> str | None:
    """Return the error of an expectation, reported for itself or for one of its metrics."""
    reports = [info or {}, *(each for each in (info or {}).values() if isinstance(each, Mapping))]
    for each in reports:
        if each.get("raised_exception"):
            return " ".join(str(each.get("exception_message")).split())[:300]
    return None


def _expectation_result(
    each: Expectation, result: ExpectationValidationResult, counts: Mapping[str, int], rows: int, keys: Sequence[str]
) -> ExpectationResult:
    found = result.result or {}
    evaluated = counts.get(each.columns[0], rows) if len(each.columns) == 1 and "_null" not in each.type else rows
    unexpected = found.get("unexpected_count") or 0
    observed = None
    if "observed_value" in found:
        observed = str(found["observed_value"])[:_MAX_CHARACTERS]
        unexpected = 0 if result.success else evaluated
    elif unexpected:
        seen = list(dict.fromkeys(str(value)[:_MAX_CHARACTERS] for value in found.get("partial_unexpected_list") or ()))
        parts = [f"{unexpected} of {evaluated}"]
        parts += [f"values {', '.join(seen[:_MAX_EXAMPLES])}"] if seen and seen != ["False"] else []
        parts += [f"for example {', '.join(keys)}"] if keys else []
        observed = "; ".join(parts)
    return ExpectationResult(each, bool(result.success), int(evaluated), int(unexpected), observed)


def _example_keys(suite: Suite, each: Expectation, rows: pa.Table) -> list[str]:
    """Return keys of some unexpected rows, for expectations that test one column for truth or bounds."""
    if (name := _tested_column(each)) is None:
        return []
    column, low, high = rows[name], each.kwargs.get("min_value"), each.kwargs.get("max_value")
    if pa.types.is_boolean(column.type):
        wrong = pc.invert(column)
    else:
        below = pa.scalar(False) if low is None else pc.less(column, low)  # noqa: FBT003
        wrong = pc.or_(below, pa.scalar(False) if high is None else pc.greater(column, high))  # noqa: FBT003
    found = rows.filter(pc.fill_null(wrong, False))  # noqa: FBT003
    keys = found[_key(suite)].to_pylist()
    return [str(value)[:_MAX_CHARACTERS] for value in dict.fromkeys(keys)][:_MAX_EXAMPLES]


def _failure_sql(each: Expectation, rows: DataFrame) -> str | None:
    """Return the SQL condition of unexpected rows, for expectations that test one column for truth or bounds."""
    if (name := _tested_column(each)) is None:
        return None
    if rows.schema[name].dataType.simpleString() == "boolean":
        return f"NOT `{name}`"
    low, high = each.kwargs.get("min_value"), each.kwargs.get("max_value")
    return " OR ".join([f"`{name}` < {low}"] * (low is not None) + [f"`{name}` > {high}"] * (high is not None))


def _tested_column(each: Expectation) -> str | None:
    """Return the column that an expectation tests for truth or for bounds; None for other expectations."""
    truth = each.type == "expect_column_values_to_be_in_set" and each.kwargs.get("value_set") == [True]
    bounds = each.type == "expect_column_values_to_be_between" and {"min_value", "max_value"} & each.kwargs.keys()
    return each.kwargs["column"] if truth or bounds else None


def _key(suite: Suite) -> str:
    return suite.table.key[0] if suite.rows_sql is None else suite.key
