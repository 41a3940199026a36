"""The rows of a table or a view, as a query: some columns of those that meet a condition, in an order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyarrow import types

from pipeline.lake.queries.conditions import RowCondition, kind_of
from pipeline.lake.queries.inputs import BoundQuery
from pipeline.reports.views.catalog import VIEWS_BY_NAME, LakeViews
from pipeline.text import similar_names
from schemas.catalog import ALL_TABLES
from schemas.table import BIGINT, Column, Table, list_of, quoted

_WITHOUT_ORDER = ("list", "structure", "map")


class UnknownNameError(ValueError):
    """There is no such table, view or column, or it has no order; the message says what is similar."""


class SortColumn(NamedTuple):
    """A column by which rows are ordered."""

    name: str
    descending: bool = False

    @property
    def sql(self) -> str:
        """The column as it stands behind ORDER BY; nulls come first, and last where it is descending."""
        return f"{quoted(self.name)} {'DESC' if self.descending else 'ASC'}"


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view: what one row is, the query for its rows, and its columns.

    ``key``: the columns that tell a row of a table from all others; a view has none, but an order of its own.
    """

    name: str
    row_meaning: str
    query: BoundQuery
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def schema(self, names: Sequence[str] = ()) -> pa.Schema:
        """Return the Arrow schema of some columns, all by default; UnknownNameError for a column that it has not."""
        every = {column.name: column.type for column in self.columns}
        self._check(names, every, "no column")
        return pa.schema([(name, every[name]) for name in names or every])

    def select(
        self, columns: Sequence[str], condition: RowCondition | None, order: Sequence[SortColumn], limit: int | None
    ) -> BoundQuery:
        """Return the query for some columns of the rows that meet a condition, at most ``limit`` of them.

        Rows with equal values in the columns of ``order`` are ordered by the key, in views by all columns, so that each
        store gives the same first rows. Without ``order`` the first rows of a table are those by its key, and all rows
        come as they are stored; rows of a view come in its own order. UnknownNameError for columns that it has not.
        """
        sortable = [column.name for column in self.columns if kind_of(column.type) not in _WITHOUT_ORDER]
        self._check([each.name for each in order], sortable, "no column with an order")
        by = [each.sql for each in order]
        if order or (limit is not None and self.key):
            given = {each.name for each in order}
            by += [SortColumn(name).sql for name in self.key or sortable if name not in given]
        sql = f"SELECT {', '.join(map(quoted, self.schema(columns).names))} FROM {{answer}} AS answer"
        sql += "" if condition is None else f" WHERE {condition.sql}"
        sql += f" ORDER BY {', '.join(by)}" if by else ""
        sql += "" if limit is None else f" LIMIT {limit}"
        return self._wrap(sql, condition)

    def count(self, condition: RowCondition | None) -> BoundQuery:
        """Return the query for how many rows meet a condition."""
        where = "" if condition is None else f" WHERE {condition.sql}"
        return self._wrap(f"SELECT count(*) AS number FROM {{answer}} AS answer{where}", condition)

    def _wrap(self, sql: str, condition: RowCondition | None) -> BoundQuery:
        inputs = {} if condition is None else condition.inputs
        return self.query.wrap(sql)._replace(inputs={**self.query.inputs, **inputs})

    def _check(self, names: Collection[str], among: Collection[str], lacking: str) -> None:
        for name in names:
            if name not in among:
                raise UnknownNameError(f"{self.name}: {lacking} {name}{similar_names(name, among)}")


def row_meanings() -> Iterator[tuple[str, str]]:
    """Yield the name of each table and view, and what one row of it is."""
    yield from ((str(table), table.comment) for table in ALL_TABLES)
    yield from ((name, view.row_meaning) for name, view in VIEWS_BY_NAME.items())


def find_relation(views: LakeViews, name: str) -> Relation:
    """Return the table (``layer.table``, or its name alone) or view of a name; UnknownNameError if there is none."""
    tables = {each: table for table in ALL_TABLES for each in (str(table), table.name)}
    if name in tables:
        return _table(tables[name])
    if name not in VIEWS_BY_NAME:
        raise UnknownNameError(f"no table or view {name}{similar_names(name, [*tables, *VIEWS_BY_NAME])}")
    query = views.bound_query(name)
    empty = views.lake.query(f"SELECT * FROM ({query.sql}) AS answer LIMIT 0", **query.inputs)
    columns = tuple(Column(field.name, _common_type(field.type), "") for field in empty.schema)
    return Relation(name, VIEWS_BY_NAME[name].row_meaning, query, columns)


def _table(table: Table) -> Relation:
    query = BoundQuery("SELECT * FROM {rows}", {"rows": table})
    return Relation(str(table), table.comment, query, table.columns, table.key)


def _common_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a computed column in either store: they differ in the width of sums."""
    if types.is_integer(kind) or (types.is_decimal(kind) and (kind.precision, kind.scale) == (38, 0)):
        return BIGINT
    return list_of(_common_type(kind.value_type)) if types.is_list(kind) else kind
