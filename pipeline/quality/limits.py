"""The limits of expectations in words, from their types and arguments, for tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pipeline.quality.suites import VALUES_BETWEEN, Expectation, Suite


def describe_limits(suite: Suite, each: Expectation) -> str:
    """Return what an expectation demands: ``age_s: at most 3600 s``. Derived columns are shown as their SQL.

    Types of Great Expectations without words of their own are shown with their arguments.
    """
    kwargs = {name: value for name, value in each.kwargs.items() if name not in ("mostly", "ignore_row_if")}
    describe = _LIMITS.get(each.type)
    text = describe(kwargs, suite.derived_columns) if describe else f"{each.type}: {_list(kwargs.items())}"
    text += f" {each.unit}" if each.unit is not None and each.type == VALUES_BETWEEN else ""
    share = each.kwargs.get("mostly", 1)
    return text if share == 1 else f"{text}; for at least {100 * share:g} % of the rows"


def _list(values: Any) -> str:  # noqa: ANN401 - of any values
    return ", ".join(f"{each[0]} {each[1]}" if isinstance(each, tuple) else str(each) for each in values)


def _bounds(kwargs: Mapping[str, Any]) -> str:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def _in_set(kwargs: Mapping[str, Any], derived: Mapping[str, str]) -> str:
    name, values = kwargs["column"], kwargs["value_set"]
    if values == [True]:
        return " ".join(derived.get(name, name).split())
    return f"{name}: {_list(values)}"


_Describe = Callable[[Mapping[str, Any], Mapping[str, str]], str]
_LIMITS: Final[dict[str, _Describe]] = {
    VALUES_BETWEEN: lambda kwargs, _: f"{kwargs['column']}: {_bounds(kwargs)}",
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_be_unique": lambda kwargs, _: f"{kwargs['column']}: no value twice",
    "expect_compound_columns_to_be_unique": lambda kwargs, _: f"{_list(kwargs['column_list'])}: no values twice",
    "expect_column_values_to_not_be_null": lambda kwargs, _: f"{kwargs['column']}: not null",
    "expect_column_values_to_be_null": lambda kwargs, _: f"{kwargs['column']}: null",
    "expect_column_values_to_match_regex": lambda kwargs, _: f"{kwargs['column']}: {kwargs['regex']}",
    "expect_column_value_lengths_to_equal": lambda kwargs, _: f"{kwargs['column']}: {kwargs['value']} characters",
    "expect_column_pair_values_to_be_equal": lambda kwargs, _: f"{kwargs['column_A']} = {kwargs['column_B']}",
    "expect_column_pair_values_a_to_be_greater_than_b": lambda kwargs, _: (
        f"{kwargs['column_A']} {'>=' if kwargs.get('or_equal') else '>'} {kwargs['column_B']}"
    ),
}
