"""Gold's states made anew of more than the driver holds: in tasks of Spark, each queue a group, the same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from pipeline.lake.lake import Lake
from pipeline.lake.settings import unmeasured
from pipeline.queues import queue_rows
from pipeline.queues.queue_rows import Names, Settings
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table

_TO: Final = "_to"  # the canonical queue


def make(lake: Lake, names: Names, settings: Settings, run_id: str, says: str) -> dict[str, int]:
    """Make all rows of the three tables; the history's commit says what they are made of. How many there are."""
    with unmeasured(lake.spark):
        parts = [lake.frame(told.sql(settings, 0, "TRUE"), rows=told.table) for told in queue_rows.TELLING]
        every = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
        named = _named(every, names)
        lake.replace(EOD_TRANSFERS, named.where("kind = 'snapshot'").groupBy(_TO).applyInArrow(
            _maker(EOD_TRANSFERS, settings, run_id), EOD_TRANSFERS.struct()
        ))  # fmt: skip
        receivers = named.where("kind = 'snapshot' AND size(eod_source_info) > 0")
        senders = _to_receivers(lake.read(EOD_TRANSFERS), receivers, names)
        lake.replace(EOD_SOURCES, receivers.groupBy(_TO).cogroup(senders.groupBy(_TO)).applyInArrow(
            _confronting(names, settings, run_id), EOD_SOURCES.struct()
        ))  # fmt: skip
        history = named.groupBy(_TO).applyInArrow(_maker(QUEUE_HISTORY, settings, run_id), QUEUE_HISTORY.struct())
        lake.replace(QUEUE_HISTORY, history, made_of=says)
    return {str(table): lake.rows_written(table) for table in (EOD_TRANSFERS, EOD_SOURCES, QUEUE_HISTORY)}


def _with(rows: DataFrame) -> StructType:
    return StructType([*rows.schema.fields]).add(_TO, StringType())


def _named(told: DataFrame, names: Names) -> DataFrame:
    """Return what is told, with what queue managers and queues are called."""
    schema = _with(told)
    arrow = to_arrow_schema(schema)

    def rename(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = queue_rows.named(batch.to_pylist(), names)
            yield pa.RecordBatch.from_pylist([row | {_TO: row["queue"]} for row in rows], schema=arrow)

    return told.mapInArrow(rename, schema)


def _to_receivers(senders: DataFrame, receivers: DataFrame, names: Names) -> DataFrame:
    """Return senders' rows with each queue whose receivers they are laid beside: their own, and those that name it."""

    def pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = {
                (queue_rows.sender_queue(each, names), row[_TO])
                for row in batch.to_pylist()
                for each in row["eod_source_info"]
            }
            rows = [{"sends": sends, _TO: to} for sends, to in found if sends not in (None, to)]
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema({"sends": pa.string(), _TO: pa.string()}))

    told = receivers.mapInArrow(pairs, f"sends string, {_TO} string").distinct()
    others = senders.join(told, senders["queue"] == told["sends"]).drop("sends")
    return senders.withColumn(_TO, senders["queue"]).unionByName(others)


def _maker(table: Table, settings: Settings, run_id: str) -> Callable[[pa.Table], pa.Table]:
    """Return what makes a table's rows of what is told of one queue."""

    def make_rows(told: pa.Table) -> pa.Table:
        rows = list(queue_rows.as_told(told.to_pylist()))
        if table == QUEUE_HISTORY:
            made = queue_rows.history_rows(rows, settings)
        else:
            made = queue_rows.transfer_rows(queue_rows.observations(rows), settings)
        return queue_rows.table_of(table, made, run_id)

    return make_rows


def _confronting(names: Names, settings: Settings, run_id: str) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Return what compares incoming sequences of one queue with what was reported of those that send to it."""

    def confront(receivers: pa.Table, senders: pa.Table) -> pa.Table:
        found = queue_rows.with_senders(queue_rows.observations(queue_rows.as_told(receivers.to_pylist())), names)
        made = queue_rows.source_rows(found, queue_rows.rows_of(senders), names, settings)
        return queue_rows.table_of(EOD_SOURCES, made, run_id)

    return confront
