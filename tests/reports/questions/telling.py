"""A lake in memory, of rows told by hand: what is not told is null. Times are minutes of a story that ends at NOW."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import TimestampType

from alerts.telling import NAMES, SETTINGS
from pipeline.lake.arrow_rows import table_of
from pipeline.lake.local import row_cache
from pipeline.lake.local.local_sql import LocalSql
from pipeline.lake.queries import Standing, values_of
from pipeline.lake.schema_enforcement import schema_of
from pipeline.queues import queue_rows
from schemas.bronze import CAPTURE_FILES
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table
from udfs.keys import key

NOW = 240
US = 60_000_000


def rows(table, *told, **shared):
    """Rows of a table; times in minutes."""
    times = {column.name for column in table.columns if isinstance(column.type, TimestampType)}
    whole = [dict.fromkeys(table.names) | shared | each for each in told]
    for row in whole:
        row |= {name: round(row[name] * US) for name in times if row[name] is not None}
        for name in ("errors", "evidence", "missing"):
            if name in row and row[name] is None:
                row[name] = []
    return table_of(whole, to_arrow_schema(table.struct()))


def call(table, name, requested, took_ms=1.0, **more):
    """A call that is answered so many milliseconds later; None: it is not."""
    responded = None if took_ms is None else requested + took_ms / 60_000
    found = {"call_key": key(name), "requested_at": requested, "responded_at": responded, "server_address": "10.0.0.1"}
    return rows(table, found | {"client_address": "10.0.0.9"} | more)


def history(told):
    """The tables of gold that ``states`` makes of what is told of queues (``states.telling``)."""
    observed = queue_rows.observations(told)
    outgoing = queue_rows.transfer_rows(observed, SETTINGS)
    incoming = queue_rows.source_rows(queue_rows.with_senders(observed, NAMES), outgoing, NAMES, SETTINGS)
    made = {QUEUE_HISTORY: queue_rows.history_rows(told, SETTINGS), EOD_TRANSFERS: outgoing, EOD_SOURCES: incoming}
    return {table: queue_rows.table_of(table, found, "run") for table, found in made.items()}


class Told:
    """What ``Lake`` is to those who only read: tables by their declarations, and what their commits say."""

    def __init__(self, spark, tables, made=None):
        self.spark, self.tables, self._made = spark, tables, made or {}
        now = rows(CAPTURE_FILES, {"capture_id": "c", "last_packet_at": NOW})
        self.tables.setdefault(CAPTURE_FILES, now)

    def read(self, table):
        if table not in self.tables:
            return self.spark.createDataFrame([], table.struct())
        return self.spark.createDataFrame(self.tables[table])

    def query(self, sql, /, **of):
        return LocalSql().answer(sql, {name: self._given(each) for name, each in of.items()})

    def _given(self, source):
        if isinstance(source, Table):
            return self.tables.get(source, schema_of(source).empty_table())
        if isinstance(source, Standing):
            return LocalSql().answer(row_cache.all_of_them(source), {"rows": self._given(source.table)})
        return source if isinstance(source, pa.Table) else values_of(source)

    def exists(self, table):
        return table in self.tables

    def made(self, table):
        return self._made.get(table, {})
