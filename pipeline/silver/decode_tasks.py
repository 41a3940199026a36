"""Decode ``bronze.rpc_calls`` in Spark tasks to staging files, in one folder for each silver table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.call_observer import ObservedWrite
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import event_date_column
from pipeline.lake.staging_files import (
    Batches,
    StagingWriter,
    count_staged_rows,
    plan_tasks,
    staged_files,
    staged_rows,
    task_number,
)
from pipeline.silver.decode import (
    DECODED_TABLES,
    INPUT_COLUMNS,
    INTERFACES_BY_TABLE,
    OPTIONAL_INPUT_COLUMNS,
    PASSED_THROUGH_COLUMNS,
    DecodeFailure,
    decode_calls_safely,
    remote_read_columns,
)
from schemas.calls import REMOTE_READ_CALLS
from schemas.table import Table
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, Declarations

_DECODED_INTERFACES: Final = sorted(set(chain(*INTERFACES_BY_TABLE.values())))
_FOLDER_NAMES: Final = {str(table): table.name for table in DECODED_TABLES}
_FAILURES: Final = "failures"  # the folder of the rows at which decoding failed
_FAILURES_SCHEMA: Final = pa.schema({name: pa.string() for name in DecodeFailure._fields})


def decode_remote_read_calls(calls: DataFrame, *, keep_packets: bool = False) -> DataFrame:
    """Decode qm2qm and RemoteRead calls of ``bronze.rpc_calls`` to rows of ``silver.remote_read_calls``.

    Every such call gives one row, whatever its outcome; other calls give none. ``keep_packets`` is the setting
    store.packets. The rows keep the ``run_id`` of their calls.
    """
    schema = REMOTE_READ_CALLS.struct()
    names = REMOTE_READ_CALLS.names

    def decoded(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = remote_read_columns(batch, keep_packets=keep_packets)
            yield pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))

    return _input_rows(calls, INTERFACES_BY_TABLE[REMOTE_READ_CALLS]).mapInArrow(decoded, schema)


@dataclass(frozen=True, slots=True)
class CallDecoder:
    """Decodes rows of ``bronze.rpc_calls`` to staging files ``<staging_folder>/<table>/*.parquet``.

    Each task writes one file for each table, named by its number, so that a repeated task overwrites its own files.
    """

    staging_folder: str
    keep_packets: bool  # the setting store.packets
    keep_bodies: bool  # store.bodies
    declarations: Declarations = NO_DECLARATIONS  # of the file of comqc.interfaces

    def record_and_pass(self, batches: Batches, task: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged and decode them; ``task`` names the staging files."""
        staging = StagingWriter(self.staging_folder, task)
        failures: list[DecodeFailure] = []
        for batch in batches:
            calls = batch.select(_input_columns(batch.schema.names))  # filtering copies these columns alone
            for decoded in decode_calls_safely(
                calls, failures, self.declarations, keep_packets=self.keep_packets, keep_bodies=self.keep_bodies
            ):
                for name, rows in decoded.items():
                    staging.add(_FOLDER_NAMES[name], rows)
            yield batch
        stage_failures(staging, failures)
        staging.close()

    def decode_in_spark(self, calls: DataFrame) -> None:
        """Decode rows of ``bronze.rpc_calls`` in one Spark job."""

        def decode(batches: Batches) -> Iterator[pa.RecordBatch]:
            for batch in self.record_and_pass(batches, task_number()):
                yield batch.slice(0, 0).select(["call_key"])

        _input_rows(calls, _DECODED_INTERFACES).mapInArrow(decode, "call_key string").collect()

    def failures(self) -> dict[str, str]:
        """Return by capture_id why decoding one of its calls failed."""
        found = staged_failures(self.staging_folder)
        return {failure.source: f"decoding call {failure.row_key}: {failure.error}" for failure in found}

    def row_counts(self) -> dict[str, int]:
        """Return the number of decoded rows by full table name."""
        folder = LakePath(self.staging_folder)
        return {table: count_staged_rows(staged_files(folder / name)) for table, name in _FOLDER_NAMES.items()}

    def decoded_rows(self, table: Table) -> PartitionedRows:
        """Return the decoded rows of a table."""
        return staged_rows(LakePath(self.staging_folder) / table.name, table)


def stage_failures(staging: StagingWriter, failures: Sequence[DecodeFailure]) -> None:
    """Write the failures of a decoding task to a staging file."""
    rows = [failure._asdict() for failure in failures]
    staging.add(_FAILURES, pa.RecordBatch.from_pylist(rows, _FAILURES_SCHEMA))


def staged_failures(staging_folder: str) -> list[DecodeFailure]:
    """Return the failures of all decoding tasks of a staging folder."""
    parts = chain.from_iterable(plan_tasks(staged_files(LakePath(staging_folder) / _FAILURES)))
    return [DecodeFailure(**row) for part in parts for batch in part.read() for row in batch.to_pylist()]


@dataclass(frozen=True, slots=True)
class DecodedWrite:
    """A commit of ``bronze.rpc_calls`` whose added calls were all decoded while they were written."""

    decoder: CallDecoder
    write: ObservedWrite

    @staticmethod
    def from_recorded(decoder: CallDecoder | None, write: ObservedWrite | None) -> DecodedWrite | None:
        """Combine a decoder with the commit that it observed; None without a decoder, or if it missed added calls."""
        return None if decoder is None or write is None else DecodedWrite(decoder, write)


def _input_rows(calls: DataFrame, interfaces: Collection[str]) -> DataFrame:
    """Return the calls of some interfaces, with the columns that decoding reads."""
    return calls.where(F.col("interface_name").isin(*interfaces)).select(*_input_columns(calls.columns))


def _input_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that decoding reads, of those that there are."""
    return [*INPUT_COLUMNS, *(name for name in OPTIONAL_INPUT_COLUMNS if name in columns)]


def has_silver_table() -> Column:
    """Return a condition on ``bronze.rpc_calls``: the call's interface has a table in silver."""
    return F.col("interface_name").isin(*_DECODED_INTERFACES)


def silver_event_dates() -> tuple[Column, ...]:
    """Return the event dates that a call's rows in silver can have, as columns over ``bronze.rpc_calls``."""
    return event_date_column("request_at"), event_date_column("response_at")


def has_no_stubs() -> Column:
    """Return a condition on ``bronze.rpc_calls``: the call has no stubs, because none was seen or they were removed."""
    return F.col("request_stub").isNull() & F.col("response_stub").isNull()


def keep_decoded_columns(table: Table, rows: DataFrame, keys: DataFrame, before: DataFrame) -> DataFrame:
    """Give rows of some calls the decoded columns of an earlier version of the table, which has one row for each call.

    Used for calls whose stubs were removed (setting store.stubs), so that they cannot be decoded again. ``keys`` has
    their ``call_key``; ``before`` is the earlier version. Rows that it does not have stay as they are.
    """
    decoded = [name for name in table.names if name not in PASSED_THROUGH_COLUMNS]
    kept = before.join(keys, "call_key", "left_semi").select("call_key", F.struct(*decoded).alias("_before"))
    joined = rows.join(kept, "call_key", "left")
    has_earlier = F.col("_before").isNotNull()
    columns = {name: F.when(has_earlier, F.col(f"_before.{name}")).otherwise(F.col(name)) for name in decoded}
    return joined.withColumns(columns).drop("_before")
