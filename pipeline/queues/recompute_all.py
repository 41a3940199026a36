"""Recompute gold's queue tables in Spark, for more events than fit in the driver: one group per queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from pipeline.lake.lake import Lake
from pipeline.lake.spark.settings import fixed_row_batches
from pipeline.queues import queue_rows
from pipeline.queues.queue_rows import QueueNames, QueueSettings
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table

_QUEUE: Final = "_to"  # internal column: the canonical queue that a row is grouped by


def recompute_in_spark(
    lake: Lake, names: QueueNames, settings: QueueSettings, run_id: str, provenance: str
) -> dict[str, int]:
    """Replace all rows of the three tables and return their numbers; the history's commit has the provenance."""
    with fixed_row_batches(lake.spark):
        parts = [lake.frame(each.build_sql(settings, 0, "TRUE"), rows=each.table) for each in queue_rows.EVENT_QUERIES]
        events = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
        named = _named(events, names)
        lake.replace(EOD_TRANSFERS, named.where("kind = 'snapshot'").groupBy(_QUEUE).applyInArrow(
            _row_maker(EOD_TRANSFERS, settings, run_id), EOD_TRANSFERS.struct()
        ))  # fmt: skip
        receivers = named.where("kind = 'snapshot' AND size(eod_source_info) > 0")
        senders = _repeat_per_receiver(lake.read(EOD_TRANSFERS), receivers, names)
        lake.replace(EOD_SOURCES, receivers.groupBy(_QUEUE).cogroup(senders.groupBy(_QUEUE)).applyInArrow(
            _source_row_maker(names, settings, run_id), EOD_SOURCES.struct()
        ))  # fmt: skip
        history = named.groupBy(_QUEUE).applyInArrow(
            _row_maker(QUEUE_HISTORY, settings, run_id), QUEUE_HISTORY.struct()
        )
        lake.replace(QUEUE_HISTORY, history, provenance=provenance)
    return {str(table): lake.count_rows_written(table) for table in (EOD_TRANSFERS, EOD_SOURCES, QUEUE_HISTORY)}


def _with_queue(rows: DataFrame) -> StructType:
    return StructType([*rows.schema.fields]).add(_QUEUE, StringType())


def _named(events: DataFrame, names: QueueNames) -> DataFrame:
    """Return events with the names of queue managers and queues in gold."""
    schema = _with_queue(events)
    arrow = to_arrow_schema(schema)

    def rename(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = queue_rows.with_canonical_names(batch.to_pylist(), names)
            yield pa.RecordBatch.from_pylist([row | {_QUEUE: row["queue"]} for row in rows], schema=arrow)

    return events.mapInArrow(rename, schema)


def _repeat_per_receiver(senders: DataFrame, receivers: DataFrame, names: QueueNames) -> DataFrame:
    """Repeat senders' rows for each queue whose receivers they are compared with: their own, and those that name it."""

    def pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = {
                (queue_rows.sender_queue(each, names), row[_QUEUE])
                for row in batch.to_pylist()
                for each in row["eod_source_info"]
            }
            rows = [{"sends": sends, _QUEUE: to} for sends, to in found if sends not in (None, to)]
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema({"sends": pa.string(), _QUEUE: pa.string()}))

    named_by = receivers.mapInArrow(pairs, f"sends string, {_QUEUE} string").distinct()
    others = senders.join(named_by, senders["queue"] == named_by["sends"]).drop("sends")
    return senders.withColumn(_QUEUE, senders["queue"]).unionByName(others)


def _row_maker(table: Table, settings: QueueSettings, run_id: str) -> Callable[[pa.Table], pa.Table]:
    """Return the function that makes a table's rows from the events of one queue."""

    def make_rows(events: pa.Table) -> pa.Table:
        rows = list(queue_rows.to_uniform_rows(events.to_pylist()))
        if table == QUEUE_HISTORY:
            made = queue_rows.history_rows(rows, settings)
        else:
            made = queue_rows.eod_transfer_rows(queue_rows.snapshot_observations(rows), settings)
        return queue_rows.to_gold_table(table, made, run_id)

    return make_rows


def _source_row_maker(
    names: QueueNames, settings: QueueSettings, run_id: str
) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Return the function that compares incoming sequences of one queue with the transfer rows of their senders."""

    def make_rows(receivers: pa.Table, senders: pa.Table) -> pa.Table:
        observed = queue_rows.snapshot_observations(queue_rows.to_uniform_rows(receivers.to_pylist()))
        sequences = queue_rows.with_sender_queues(observed, names)
        made = queue_rows.eod_source_rows(sequences, queue_rows.from_gold_table(senders), names, settings)
        return queue_rows.to_gold_table(EOD_SOURCES, made, run_id)

    return make_rows
