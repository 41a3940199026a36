"""Validation of rows with Great Expectations: the result of each expectation of a suite.

Few rows are validated in memory, because each query of Great Expectations to Spark is a job of its own. Many rows are
validated in Spark: first whether each expectation holds, in few jobs, then those that do not, to get the values and
rows seen. Great Expectations sends no analytics and stores nothing: no project folder, no persisted frames.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.quality.suites import VALUES_BETWEEN, Expectation, Suite, SuiteError

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult

MAX_FAILED_KEYS: Final = 20
_MAX_VALUES: Final = 3  # unexpected ones that are shown
_MAX_CHARACTERS: Final = 80  # of one value or key
_EXACT: Final = 1 << 53  # whole numbers below are exact as floats
_SEVERITY: Final = {"error": "critical", "warning": "warning", "info": "info"}


class ExpectationResult(NamedTuple):
    """The result of an expectation.

    ``evaluated`` and ``unexpected`` are numbers of rows, ``observed`` what was seen instead, ``failed_keys`` which rows
    these are, by ``Suite.row_key``; of both some.
    """

    expectation: Expectation
    success: bool
    evaluated: int
    unexpected: int
    observed: str | None
    failed_keys: list[str]


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
        self._spark: Any = None
        self._assets = 0

    def validate(self, suite: Suite, rows: pa.Table | DataFrame) -> list[ExpectationResult]:
        """Return the result of each expectation; raises SuiteError for one that cannot be evaluated on these rows."""
        if isinstance(rows, DataFrame):
            return self._validate_in_spark(suite, rows)
        asset = self._pandas.add_dataframe_asset(self._asset_name(suite))
        batch = asset.add_batch_definition_whole_dataframe("rows").get_batch({"dataframe": rows.to_pandas()})
        results = _validated(batch, suite, suite.expectations, "SUMMARY")
        extents = {name: tuple(pc.min_max(rows[name]).as_py().values()) for name in _bounded_columns(suite)}
        return [_expectation_result(suite, each, results[each.name], None, extents) for each in suite.expectations]

    def _spark_source(self) -> Any:  # noqa: ANN401 - of Great Expectations
        """Return the data source of frames, made when there is one: it starts Spark if nobody did."""
        if self._spark is None:
            self._spark = self._context.data_sources.add_spark("spark", persist=False)
        return self._spark

    def _asset_name(self, suite: Suite) -> str:
        """Return a unique name for rows of a suite."""
        self._assets += 1
        return f"{suite.name} {self._assets}"

    def _validate_in_spark(self, suite: Suite, rows: DataFrame) -> list[ExpectationResult]:
        asset = self._spark_source().add_dataframe_asset(self._asset_name(suite))
        batch = asset.add_batch_definition_whole_dataframe("rows").get_batch({"dataframe": rows})
        results = _validated(batch, suite, suite.expectations, "BOOLEAN_ONLY")
        seen = [each for each in suite.expectations if not results[each.name].success or "mostly" in each.kwargs]
        if seen:
            results |= _validated(batch, suite, seen, "SUMMARY")
        held = [each for each in suite.expectations if each not in seen]
        bounded = _bounded_columns(suite)
        counts = {each.name: F.count_if(_is_evaluated(each)) for each in held}
        ranges = {name: F.array(F.min(name), F.max(name)) for name in bounded}
        found = rows.agg(  # one job for all
            F.count("*"),
            *(count.alias(f"rows of {name}") for name, count in counts.items()),
            *(ends.alias(f"range of {name}") for name, ends in ranges.items()),
        ).collect()[0]
        evaluated = {name: found[f"rows of {name}"] for name in counts}
        extents = {name: tuple(found[f"range of {name}"]) for name in bounded}
        return [
            _expectation_result(suite, each, results[each.name], evaluated.get(each.name), extents)
            for each in suite.expectations
        ]


def _bounded_columns(suite: Suite) -> list[str]:
    """Return the columns that have limits: of these the smallest and the largest value are observed."""
    return list(dict.fromkeys(each.columns[0] for each in suite.expectations if each.type == VALUES_BETWEEN))


def _is_evaluated(each: Expectation) -> Column:
    """Return the condition of rows that an expectation evaluates: all that have values, or all if it is about nulls."""
    names = () if "_null" in each.type else each.columns
    return reduce(and_, (F.col(name).isNotNull() for name in names), F.lit(True))  # noqa: FBT003


def _validated(
    batch: Any,  # noqa: ANN401 - of Great Expectations
    suite: Suite,
    expectations: Sequence[Expectation],
    result_format: str,
) -> dict[str, ExpectationValidationResult]:
    """Return the results of Great Expectations by name; raises SuiteError for one that could not be evaluated."""
    told = {"result_format": result_format, "partial_unexpected_count": MAX_FAILED_KEYS}
    told |= {"unexpected_index_column_names": [suite.row_key]} if result_format == "SUMMARY" else {}
    found = {}
    for result in batch.validate(_gx_suite(suite, expectations), result_format=told).results:
        name = _name(result)
        if error := _error_of(result.exception_info):
            raise SuiteError(f"suite {suite.name}: {name} cannot be evaluated: {error}")
        found[name] = result
    return found


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
    suite: Suite,
    each: Expectation,
    result: ExpectationValidationResult,
    evaluated: int | None,
    extents: Mapping[str, tuple[Any, Any]],
) -> ExpectationResult:
    """Return a result in our form; ``evaluated`` is given where Great Expectations counted nothing.

    ``extents`` are the smallest and the largest value of the columns that have limits.
    """
    found = result.result or {}
    if evaluated is None:
        evaluated = found.get("element_count", 0) - (found.get("missing_count") or 0)
    unexpected = found.get("unexpected_count") or 0
    observed = None
    if "observed_value" in found:
        observed = _value_text(found["observed_value"], each.unit)
        unexpected = 0 if result.success else evaluated
    elif unexpected:
        values = dict.fromkeys(_value_text(value, each.unit) for value in found.get("partial_unexpected_list") or ())
        shown = ", ".join(list(values)[:_MAX_VALUES])
        observed = f"{unexpected} of {evaluated} rows" + (f": {shown}" if shown not in ("", "False", "None") else "")
    elif each.type == VALUES_BETWEEN and evaluated:
        low, high = (_value_text(value, None) for value in extents[each.columns[0]])
        observed = " ".join([low if low == high else f"{low} to {high}", *([each.unit] if each.unit else [])])
    places = found.get("partial_unexpected_index_list") or ()
    keys = dict.fromkeys(str(place[suite.row_key])[:_MAX_CHARACTERS] for place in places)
    return ExpectationResult(each, bool(result.success), int(evaluated), int(unexpected), observed, list(keys))


def _value_text(value: Any, unit: str | None) -> str:  # noqa: ANN401 - of any column
    """Return a value, or the values of several columns, as text with the unit."""
    if isinstance(value, tuple | list):
        return " / ".join(_value_text(each, unit) for each in value)
    text = f"{value:g}" if isinstance(value, float) and abs(value) < _EXACT else str(value)
    return text[:_MAX_CHARACTERS] + (f" {unit}" if unit is not None else "")
