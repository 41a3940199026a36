"""Suites of expectations on the tables, read from the YAML files in ``conf/quality`` and validated.

A suite is about one table. ``expectations`` are those of Great Expectations, by type and arguments, each with a unique
name and a severity. They apply to the columns of the table and to derived columns (``columns``: SQL over a row). Rows
where such a column is null are not evaluated. ``lookups`` look up rows of other tables by a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, Final, Literal, get_args

import yaml

from pipeline.local_paths import bundled_folder
from schemas import catalog
from schemas.table import Table, quoted

VALUES_BETWEEN: Final = "expect_column_values_to_be_between"
ExpectationSeverity = Literal["error", "warning", "info"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_TYPE: Final = re.compile(r"expect_[a-z_]+")
_SUITE_KEYS: Final = {
    "table",
    "about",
    "key",
    "clock_dependent",
    "rows",
    "lookups",
    "columns",
    "expectations",
}
_LOOKUP_KEYS: Final = {
    "table",
    "key_column",
    "key_sql",
    "applies",
    "where",
    "count_distinct",
    "sum",
    "same_dates",
    "spans",
}
_EXPECTATION_KEYS: Final = {"name", "about", "type", "kwargs", "unit", "severity"}
# Arguments that follow from the rule that a null is not evaluated.
_DEFAULT_KWARGS: Final = {"expect_column_pair_": {"ignore_row_if": "either_value_is_missing"}}


class SuiteError(Exception):
    """An invalid suite; the message has the file, the place in it, and the reason."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: its type and ``kwargs`` in Great Expectations, its severity, and a description.

    ``unit`` is that of the values, if they have one.
    """

    name: str
    type: str
    kwargs: Mapping[str, Any]
    severity: ExpectationSeverity
    description: str
    unit: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it refers to."""
        named = (self.kwargs.get(name) for name in ("column", "column_A", "column_B"))
        return tuple(name for name in (*named, *self.kwargs.get("column_list", ())) if name is not None)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup of rows in another table by a key (``lookups`` in the YAML file).

    The column ``<name>_rows`` is the number of its rows with the key, 0 without any. ``key_column`` is its key column,
    ``key_sql`` the key as SQL over our columns. ``applies_sql`` says which of our rows have a
    key; for the others, and for those without a value, the column is null. ``where_sql`` filters its rows.
    ``distinct_column`` and ``sum_column`` add the columns ``<name>_distinct`` (number of different values) and
    ``<name>_sum``. If few of our rows are checked, the lookup reads only the same event dates (``same_dates``), the
    dates of a time span (``time_span_sql``: SQL over our columns, from and to), or else all.
    """

    name: str
    table: Table
    key_column: str
    key_sql: str
    applies_sql: str | None = None
    where_sql: str | None = None
    distinct_column: str | None = None
    sum_column: str | None = None
    same_dates: bool = False
    time_span_sql: tuple[str, str] | None = None

    @property
    def count_expressions(self) -> dict[str, str]:
        """The aggregate expressions of the lookup, by the names of the columns that they make."""
        expressions = {f"{self.name}_rows": "count(*)"}
        if self.distinct_column is not None:
            expressions[f"{self.name}_distinct"] = f"count(DISTINCT {quoted(self.distinct_column)})"
        if self.sum_column is not None:
            expressions[f"{self.name}_sum"] = f"coalesce(sum({quoted(self.sum_column)}), 0)"
        return expressions


@dataclass(frozen=True, slots=True)
class Suite:
    """The expectations on one table.

    ``key`` is the column by which changed rows are found: a check covers all rows that share a value of it with a
    changed row, on the dates that changed. ``rows_sql`` derives other rows from the table; ``{table}``, ``{now}`` and
    ``{machines}`` (the configured ones) are replaced in it. A suite that is ``clock_dependent`` is also checked when
    nothing changed.
    """

    name: str
    table: Table
    description: str
    key: str
    clock_dependent: bool
    rows_sql: str | None
    lookups: tuple[Lookup, ...]
    derived_columns: Mapping[str, str]
    expectations: tuple[Expectation, ...]

    @property
    def row_key(self) -> str:
        """The column that names a row: the first one of the table's key, or ``key`` of rows that SQL derives."""
        return self.table.key[0] if self.rows_sql is None else self.key

    @property
    def source_tables(self) -> tuple[Table, ...]:
        """The tables that the suite reads."""
        return tuple(dict.fromkeys((self.table, *(each.table for each in self.lookups))))

    @property
    def checked_columns(self) -> tuple[str, ...]:
        """The columns that expectations refer to, each once."""
        return tuple(dict.fromkeys(name for each in self.expectations for name in each.columns))


def bundled_suites() -> Traversable:
    """Return the folder of the project's suites: ``conf/quality``, or its copy in an installed package or archive."""
    return bundled_folder("quality", "suites")


def read_suites(folder: Traversable) -> tuple[Suite, ...]:
    """Read the suites of a folder, in order of name; raises SuiteError if there is none or one is invalid."""
    files = [file for file in folder.iterdir() if file.name.endswith(".yml")] if folder.is_dir() else []
    if not files:
        raise SuiteError(f"{folder}: no suites of expectations (*.yml); quality.suites names their folder")
    return tuple(_parse_suite(file) for file in sorted(files, key=lambda file: file.name))


def _parse_suite(path: Traversable) -> Suite:
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SuiteError(f"{path}: {' '.join(str(error).split())}") from error
    place = str(path)
    given = _checked_mapping(given, _SUITE_KEYS, place)
    table = _table(given, place)
    lookups = tuple(_parse_lookup(name, each, place) for name, each in _mapping_at(given, "lookups", place).items())
    columns = {str(name): _checked_text(sql, f"{place}: columns.{name}") for name, sql in
               _mapping_at(given, "columns", place).items()}  # fmt: skip
    rows = given.get("rows")
    key = given.get("key", table.key[0])
    if key not in table.names:
        raise SuiteError(f"{place}: key: {table} has no column {key}")
    expectations = tuple(_parse_expectations(given.get("expectations"), place))
    known = {*table.names, *columns, *(name for each in lookups for name in each.count_expressions)}
    for each in expectations:
        if rows is None and (unknown := set(each.columns) - known):
            raise SuiteError(f"{place}: {each.name}: no such column: {', '.join(sorted(unknown))}")
    names = [each.name for each in expectations]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise SuiteError(f"{place}: two expectations of the name {', '.join(sorted(duplicates))}")
    return Suite(
        name=path.name.removesuffix(".yml"),
        table=table,
        description=_checked_text(given.get("about", ""), f"{place}: about"),
        key=key,
        clock_dependent=given.get("clock_dependent", False) is True,
        rows_sql=None if rows is None else _checked_text(rows, f"{place}: rows"),
        lookups=lookups,
        derived_columns=columns,
        expectations=expectations,
    )


def _parse_expectations(given: object, place: str) -> Iterator[Expectation]:
    if not isinstance(given, list) or not given:
        raise SuiteError(f"{place}: expectations: expected a list of them")
    for number, each in enumerate(given):
        where = f"{place}: expectations[{number}]"
        one = _checked_mapping(each, _EXPECTATION_KEYS, where)
        name, kind, severity = one.get("name"), one.get("type"), one.get("severity", "error")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SuiteError(f"{where}: name: expected small letters, digits and _, not {name!r}")
        where = f"{place}: {name}"
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise SuiteError(f"{where}: type: expected one of Great Expectations (expect_...), not {kind!r}")
        if severity not in get_args(ExpectationSeverity):
            raise SuiteError(
                f"{where}: severity: expected {', '.join(get_args(ExpectationSeverity))}, not {severity!r}"
            )
        kwargs = _mapping_at(one, "kwargs", where)
        for prefix, defaults in _DEFAULT_KWARGS.items():
            kwargs = {**defaults, **kwargs} if kind.startswith(prefix) else kwargs
        unit = one.get("unit")
        yield Expectation(
            name,
            kind,
            kwargs,
            severity,
            _checked_text(one.get("about", ""), where),
            None if unit is None else _checked_text(unit, f"{where}: unit"),
        )


def _parse_lookup(name: str, given: object, place: str) -> Lookup:
    where = f"{place}: lookups.{name}"
    if not _NAME.fullmatch(str(name)):
        raise SuiteError(f"{where}: expected a name of small letters, digits and _")
    given = _checked_mapping(given, _LOOKUP_KEYS, where)
    table = _table(given, where)
    key_column = given.get("key_column")
    if key_column not in table.names:
        raise SuiteError(f"{where}: key_column: {table} has no column {key_column!r}")
    spans = given.get("spans")
    if spans is not None and not (
        isinstance(spans, list) and len(spans) == 2 and all(isinstance(s, str) for s in spans)
    ):
        raise SuiteError(f"{where}: spans: expected two texts, from and to, not {spans!r}")
    for what in ("ours", "applies", "where"):
        if given.get(what) is not None:
            _checked_text(given[what], f"{where}: {what}")
    for what in ("count_distinct", "sum"):
        if given.get(what) is not None and given[what] not in table.names:
            raise SuiteError(f"{where}: {what}: {table} has no column {given[what]!r}")
    return Lookup(
        name=name,
        table=table,
        key_column=key_column,
        key_sql=key_column if given.get("key_sql") is None else given["key_sql"],
        applies_sql=given.get("applies"),
        where_sql=given.get("where"),
        distinct_column=given.get("count_distinct"),
        sum_column=given.get("sum"),
        same_dates=given.get("same_dates", False) is True,
        time_span_sql=None if spans is None else (spans[0], spans[1]),
    )


def _table(given: Mapping[str, Any], place: str) -> Table:
    try:
        return catalog.table(given.get("table", ""))
    except KeyError:
        raise SuiteError(f"{place}: table: there is no table {given.get('table')!r}") from None


def _checked_mapping(given: object, known: set[str], place: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SuiteError(f"{place}: expected a mapping with {', '.join(sorted(known))}")
    if unknown := sorted(map(str, given.keys() - known)):
        raise SuiteError(f"{place}: unknown key {unknown[0]} (there are {', '.join(sorted(known))})")
    return given


def _mapping_at(given: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = given.get(name) or {}
    if not isinstance(found, dict):
        raise SuiteError(f"{place}: {name}: expected a mapping, not {found!r}")
    return found


def _checked_text(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise SuiteError(f"{place}: expected text, not {given!r}")
    return given
