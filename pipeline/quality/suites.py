"""What is expected of the tables, as declared in ``conf/quality``: one YAML file for each suite, checked when read.

A suite is about one table. ``expectations`` are those of Great Expectations, by type and arguments, each with a name
of its own and a severity. They are asked of the table's columns and of ``columns``, facts made of a row by SQL; where
such a fact is null the expectation does not apply to the row. ``beside`` looks rows of other tables up, by a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml

from schemas import catalog
from schemas.table import Table, quoted

Severity = Literal["error", "warning", "info"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_TYPE: Final = re.compile(r"expect_[a-z_]+")
_SUITE: Final = {"table", "about", "unique", "key", "always", "rows", "beside", "columns", "expectations"}
_BESIDE: Final = {"table", "theirs", "ours", "applies", "where", "count_distinct", "sum", "same_dates", "spans"}
_EXPECTATION: Final = {"name", "about", "type", "kwargs", "severity"}


class SuiteError(Exception):
    """A suite that cannot be used: says which file, where in it, and why."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: ``kwargs`` are Great Expectations' own, ``about`` a sentence for people."""

    name: str
    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    about: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it asks about."""
        named = (self.kwargs.get(name) for name in ("column", "column_A", "column_B"))
        return tuple(name for name in (*named, *self.kwargs.get("column_list", ())) if name is not None)


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows of another table with a key: how many there are is the column ``<name>_rows``, 0 without any.

    ``theirs`` is their column, ``ours`` SQL over our columns, ``applies`` SQL that tells which of our rows are to have
    any: of the others the column is null, as of those without a value. ``where`` chooses among their rows. Their
    different values of ``count_distinct``, or the ``sum`` of a column, are the columns ``<name>_distinct`` and
    ``<name>_sum``. Where few of our rows are looked at, theirs are sought on the same event dates (``same_dates``), on
    those of a stretch of time (``spans``, SQL over our columns: from, to), else on all.
    """

    name: str
    table: Table
    theirs: str
    ours: str
    applies: str | None = None
    where: str | None = None
    count_distinct: str | None = None
    sum: str | None = None
    same_dates: bool = False
    spans: tuple[str, str] | None = None

    @property
    def counts(self) -> dict[str, str]:
        """The columns that it makes, with the SQL that makes them of their rows."""
        made = {f"{self.name}_rows": "count(*)"}
        if self.count_distinct is not None:
            made[f"{self.name}_distinct"] = f"count(DISTINCT {quoted(self.count_distinct)})"
        if self.sum is not None:
            made[f"{self.name}_sum"] = f"coalesce(sum({quoted(self.sum)}), 0)"
        return made


@dataclass(frozen=True, slots=True)
class Suite:
    """What is expected of one table.

    ``unique`` are columns that no two rows may share, the table's key by default: the column ``copies`` counts those
    that do. ``key`` is the column by which changed rows are found: with all rows that share its value with one that
    changed, on the dates that did. ``rows`` is SQL that makes other rows of the table's, with ``{table}``, ``{now}``
    and ``{machines}`` (the configured ones) put in; ``always``: it is asked when nothing changed too, for time goes by.
    """

    name: str
    table: Table
    about: str
    unique: tuple[str, ...]
    key: str
    always: bool
    rows: str | None
    beside: tuple[Beside, ...]
    columns: Mapping[str, str]
    expectations: tuple[Expectation, ...]

    @property
    def rests_on(self) -> tuple[Table, ...]:
        """The tables that it reads."""
        return tuple(dict.fromkeys((self.table, *(each.table for each in self.beside))))

    @property
    def asked(self) -> tuple[str, ...]:
        """The columns that expectations ask about, each once."""
        return tuple(dict.fromkeys(name for each in self.expectations for name in each.columns))


def shipped() -> Traversable:
    """Return the folder of the project's own suites: ``conf/quality``, or the copy in an installed package or archive.

    ``pyproject.toml`` and ``tools/build_pyfiles.py`` put it there.
    """
    package = resources.files("pipeline")
    installed = package / "suites"
    return installed if installed.is_dir() else Path(str(package)).parent / "conf" / "quality"


def load(folder: Traversable) -> tuple[Suite, ...]:
    """Return the suites of a folder, by name. SuiteError for a folder without any, and for what cannot be used."""
    files = [file for file in folder.iterdir() if file.name.endswith(".yml")] if folder.is_dir() else []
    if not files:
        raise SuiteError(f"{folder}: no suites of expectations (*.yml); quality.suites names their folder")
    return tuple(_suite(file) for file in sorted(files, key=lambda file: file.name))


def _suite(path: Traversable) -> Suite:
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SuiteError(f"{path}: {' '.join(str(error).split())}") from error
    place = str(path)
    given = _only(given, _SUITE, place)
    table = _table(given, place)
    beside = tuple(_beside(name, each, place) for name, each in _mapping(given, "beside", place).items())
    columns = {str(name): _text(sql, f"{place}: columns.{name}") for name, sql in
               _mapping(given, "columns", place).items()}  # fmt: skip
    rows = given.get("rows")
    key = given.get("key", table.key[0])
    if key not in table.names:
        raise SuiteError(f"{place}: key: {table} has no column {key}")
    unique = given.get("unique", list(table.key))
    if not isinstance(unique, list) or not set(unique) <= set(table.names):
        raise SuiteError(f"{place}: unique: expected columns of {table}, not {unique!r}")
    expectations = tuple(_expectations(given.get("expectations"), place))
    known = {*table.names, *columns, "copies", *(name for each in beside for name in each.counts)}
    for each in expectations:
        if rows is None and (unknown := set(each.columns) - known):
            raise SuiteError(f"{place}: {each.name}: no such column: {', '.join(sorted(unknown))}")
    names = [each.name for each in expectations]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SuiteError(f"{place}: two expectations of the name {', '.join(sorted(twice))}")
    return Suite(
        name=path.name.removesuffix(".yml"),
        table=table,
        about=_text(given.get("about", ""), f"{place}: about"),
        unique=tuple(unique),
        key=key,
        always=given.get("always", False) is True,
        rows=None if rows is None else _text(rows, f"{place}: rows"),
        beside=beside,
        columns=columns,
        expectations=expectations,
    )


def _expectations(given: object, place: str) -> Iterator[Expectation]:
    if not isinstance(given, list) or not given:
        raise SuiteError(f"{place}: expectations: expected a list of them")
    for number, each in enumerate(given):
        where = f"{place}: expectations[{number}]"
        one = _only(each, _EXPECTATION, where)
        name, kind, severity = one.get("name"), one.get("type"), one.get("severity", "error")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SuiteError(f"{where}: name: expected small letters, digits and _, not {name!r}")
        where = f"{place}: {name}"
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise SuiteError(f"{where}: type: expected one of Great Expectations (expect_...), not {kind!r}")
        if severity not in get_args(Severity):
            raise SuiteError(f"{where}: severity: expected {', '.join(get_args(Severity))}, not {severity!r}")
        yield Expectation(name, kind, _mapping(one, "kwargs", where), severity, _text(one.get("about", ""), where))


def _beside(name: str, given: object, place: str) -> Beside:
    where = f"{place}: beside.{name}"
    if not _NAME.fullmatch(str(name)):
        raise SuiteError(f"{where}: expected a name of small letters, digits and _")
    given = _only(given, _BESIDE, where)
    table = _table(given, where)
    theirs = given.get("theirs")
    if theirs not in table.names:
        raise SuiteError(f"{where}: theirs: {table} has no column {theirs!r}")
    spans = given.get("spans")
    if spans is not None and not (
        isinstance(spans, list) and len(spans) == 2 and all(isinstance(s, str) for s in spans)
    ):
        raise SuiteError(f"{where}: spans: expected two texts, from and to, not {spans!r}")
    sql = {name: given[name] for name in ("ours", "applies", "where") if given.get(name) is not None}
    measures = {name: given[name] for name in ("count_distinct", "sum") if given.get(name) is not None}
    for what, text in sql.items():
        _text(text, f"{where}: {what}")
    for what, column in measures.items():
        if column not in table.names:
            raise SuiteError(f"{where}: {what}: {table} has no column {column!r}")
    return Beside(
        name=name,
        table=table,
        theirs=theirs,
        **{"ours": theirs, **sql, **measures},
        same_dates=given.get("same_dates", False) is True,
        spans=None if spans is None else (spans[0], spans[1]),
    )


def _table(given: Mapping[str, Any], place: str) -> Table:
    try:
        return catalog.table(given.get("table", ""))
    except KeyError:
        raise SuiteError(f"{place}: table: there is no table {given.get('table')!r}") from None


def _only(given: object, known: set[str], place: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SuiteError(f"{place}: expected a mapping with {', '.join(sorted(known))}")
    if unknown := sorted(map(str, given.keys() - known)):
        raise SuiteError(f"{place}: unknown key {unknown[0]} (there are {', '.join(sorted(known))})")
    return given


def _mapping(given: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = given.get(name) or {}
    if not isinstance(found, dict):
        raise SuiteError(f"{place}: {name}: expected a mapping, not {found!r}")
    return found


def _text(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise SuiteError(f"{place}: expected text, not {given!r}")
    return given
