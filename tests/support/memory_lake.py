"""A lake in memory, for reading alone: the queries of the pipeline, answered over Arrow tables in milliseconds."""

import pyarrow as pa

from engines import shared_sql
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.queries.inputs import FilteredTable, RowsOfDates, named_columns, values_array
from pipeline.lake.schema_enforcement import select_fields
from schemas.table import Table


def conformed(table, rows):
    """Rows with the columns and types of a declared table; columns that they do not have are null."""
    arrays = [
        rows[each.name].cast(each.type) if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
        for each in table.schema()
    ]
    return pa.Table.from_arrays(arrays, schema=table.schema())


class MemoryLake:
    """The tables of a lake, by declaration; those that were not given are empty."""

    def __init__(self, tables=None):
        self.tables = {}
        for table, rows in (tables or {}).items():
            self.put(table, rows)

    def put(self, table, rows):
        """Set the rows of a table."""
        self.tables[table] = conformed(table, rows)

    def exists(self, table):
        return table in self.tables

    def rows(self, table):
        return self.tables.get(table, table.schema().empty_table())

    def query(self, sql, /, **of):
        return shared_sql().answer(sql, {name: self._given(each, sql) for name, each in of.items()})

    query_shared = query

    def select(self, table, where, columns=(), dates=None, /, **of):
        names = columns or table.names
        selected = ", ".join(f'"{name}"' for name in names)
        found = self.query(f"SELECT {selected} FROM {{rows}} WHERE {where}", rows=RowsOfDates(table, dates), **of)
        return found.cast(select_fields(table.schema(), names))

    def _given(self, source, sql):
        if isinstance(source, Table):
            rows = self.rows(source)
            return rows.select(named_columns(sql, rows.column_names) or rows.column_names[:1])
        if isinstance(source, FilteredTable):
            return self.query(f"SELECT * FROM {{rows}} WHERE {source.where}", rows=source.table)
        if isinstance(source, RowsOfDates):
            if source.dates is None:
                return self._given(source.table, sql)
            return self.query(f"SELECT * FROM {{rows}} WHERE {dates_condition(source.dates)}", rows=source.table)
        return source if isinstance(source, pa.Table) else values_array(source)
