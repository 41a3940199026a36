"""A lake in memory made of literal rows: columns that are not given are null. Times are minutes; "now" is ``NOW``."""

from __future__ import annotations

import pyarrow as pa

from engines import shared_sql
from pipeline.arrow_rows import rows_to_table
from pipeline.lake.queries.inputs import FilteredTable, QueryAnswers, values_array
from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import QueueNames, QueueSettings
from schemas.bronze import CAPTURE_FILES
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import TIMESTAMP, Table
from udfs.keys import key

NAMES = QueueNames(QueueManagerNames(names_by_guid={"a1": ["relay"]}), {})
SETTINGS = QueueSettings()
NOW = 240
US = 60_000_000


def rows(table, *given, **shared):
    """Rows of a table; times in minutes."""
    times = {column.name for column in table.columns if column.type == TIMESTAMP}
    whole = [dict.fromkeys(table.names) | shared | each for each in given]
    for row in whole:
        row |= {name: round(row[name] * US) for name in times if row[name] is not None}
        for name in ("errors", "evidence", "missing"):
            if name in row and row[name] is None:
                row[name] = []
    return rows_to_table(whole, table.schema())


def call(table, name, requested, took_ms=1.0, **more):
    """A call whose response comes ``took_ms`` later; None: it has no response."""
    responded = None if took_ms is None else requested + took_ms / 60_000
    found = {"call_key": key(name), "requested_at": requested, "responded_at": responded, "server_address": "10.0.0.1"}
    return rows(table, found | {"client_address": "10.0.0.9"} | more)


def history_tables(snapshots):
    """The tables of queue states and transfers that follow from snapshots of queues."""
    observed = queue_rows.snapshot_observations(snapshots)
    outgoing = queue_rows.eod_transfer_rows(observed, SETTINGS)
    incoming = queue_rows.eod_source_rows(queue_rows.with_sender_queues(observed, NAMES), outgoing, NAMES, SETTINGS)
    made = {QUEUE_HISTORY: queue_rows.history_rows(snapshots, SETTINGS), EOD_TRANSFERS: outgoing, EOD_SOURCES: incoming}
    return {table: queue_rows.to_gold_table(table, found, "run") for table, found in made.items()}


class InMemoryLake:
    """The read interface of ``Lake``: tables by their declarations, and the provenance of their commits."""

    catalog = None

    def __init__(self, spark, tables, provenance=None):
        self.spark, self.tables, self._provenance = spark, tables, provenance or {}
        now = rows(CAPTURE_FILES, {"capture_id": "c", "last_packet_at": NOW})
        self.tables.setdefault(CAPTURE_FILES, now)

    def read(self, table):
        return self.spark.createDataFrame(self._input(table), table.struct())

    def query(self, sql, /, **of):
        return shared_sql().answer(sql, {name: self._input(each) for name, each in of.items()})

    query_shared = query

    def select(self, table, where, columns=(), /, **of):
        return self.query(f"SELECT {', '.join(columns or table.names)} FROM {{rows}} WHERE {where}", rows=table, **of)

    def map_few_groups(self, query):
        parts = {name: self.query(part.sql, **part.inputs) for name, part in query.parts.items()}
        return pa.concat_tables(query.function(QueryAnswers(parts)))

    def _input(self, source):
        if isinstance(source, Table):
            return self.tables.get(source, source.schema().empty_table())
        if isinstance(source, FilteredTable):
            sql = f"SELECT {', '.join(source.column_names)} FROM {{rows}} WHERE {source.where}"
            return shared_sql().answer(sql, {"rows": self._input(source.table)})
        return source if isinstance(source, pa.Table) else values_array(source)

    def exists(self, table):
        return table in self.tables

    @property
    def versions(self):
        return self

    def provenance(self, table):
        return self._provenance.get(table, {})
