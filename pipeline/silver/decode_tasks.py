"""Decode ``bronze.rpc_calls`` in tasks to staging files, in one folder for each silver table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.bronze.row_observers import ObservedWrite
from pipeline.lake.date_filters import utc_date_sql
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import (
    Batches,
    StagingWriter,
    count_staged_rows,
    plan_tasks,
    staged_files,
    staged_rows,
)
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.decode import (
    BRONZE_NAMES,
    CALL_INPUT_COLUMNS,
    DECODED_TABLES,
    DEFAULT_SETTINGS,
    INTERFACES_BY_TABLE,
    OPTIONAL_INPUT_COLUMNS,
    PASSED_THROUGH_COLUMNS,
    ROW_PER_CALL_TABLES,
    DecodeFailure,
    DecodeSettings,
    decode_calls_safely,
)
from schemas.bronze import RPC_CALLS
from schemas.table import EVENT_DATE, Table, quoted

_DECODED_INTERFACES: Final = sorted(set(chain(*INTERFACES_BY_TABLE.values())))
_FOLDER_NAMES: Final = {str(table): table.name for table in DECODED_TABLES}
_FAILURES: Final = "failures"  # the folder of the rows at which decoding failed
_FAILURES_SCHEMA: Final = pa.schema({name: pa.string() for name in DecodeFailure._fields})
_STORED_SCHEMA: Final = select_fields(RPC_CALLS.schema(), (*CALL_INPUT_COLUMNS, *OPTIONAL_INPUT_COLUMNS))
_COUNTS: Final = StructType().add("table", "string").add("rows", "long")  # rows that were decoded
_BATCH_ROWS: Final = 4096  # of calls that are decoded at once


NO_STUBS_SQL: Final = "request_stub IS NULL AND response_stub IS NULL"  # none was seen, or they were removed
HAS_SILVER_TABLE_SQL: Final = f"interface_name IN ({', '.join(map(repr, _DECODED_INTERFACES))})"
# Rows of tables of silver that do not come from calls, and what tells them apart.
_OTHER_SOURCES: Final = {
    "source": ("source = 'collector'", "snapshot_id"),
    "packet_key": ("packet_key IS NOT NULL", "packet_key"),
}


@dataclass(frozen=True, slots=True)
class CallDecoder:
    """Decodes rows of ``bronze.rpc_calls`` to staging files ``<staging_folder>/<table>/*.parquet``.

    Each task writes one file for each table, named by its number, so that a repeated task overwrites its own files.
    """

    staging_folder: str
    settings: DecodeSettings = DEFAULT_SETTINGS

    @staticmethod
    def of(lake: Lake, settings: DecodeSettings = DEFAULT_SETTINGS) -> CallDecoder:
        """Return a decoder for calls while a run writes them to bronze; files of an earlier one are deleted."""
        folder = RunMarkers.of(lake).root / "decoded"
        folder.remove_folder()
        return CallDecoder(str(folder), settings)

    def record_and_pass(self, batches: Batches, task: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged and decode them; ``task`` names the staging files."""
        staging = StagingWriter(self.staging_folder, task)
        failures: list[DecodeFailure] = []
        for batch in batches:
            for name, rows in self._decode(batch, failures):
                staging.add(_FOLDER_NAMES[name], rows)
            yield batch
        stage_failures(staging, failures)
        staging.close()

    def decode_stored(self, lake: Lake, calls: BoundQuery, kept: Mapping[Table, BoundQuery]) -> dict[str, int]:
        """Decode calls (``stored_calls_sql``); return the number of decoded rows by full table name.

        ``kept`` are rows of silver's tables (``kept_rows_sql``) that are written beside them, and in the place of those
        that the same calls would give.
        """
        tables = tuple(kept)

        def decode(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
            stay = {str(table): parts[table.name].select(table.names).cast(table.schema()) for table in tables}
            failures: list[DecodeFailure] = []
            counts: Counter[str] = Counter()
            stored = parts["calls"].select(_STORED_SCHEMA.names).cast(_STORED_SCHEMA)
            for batch in stored.to_batches(max_chunksize=_BATCH_ROWS):
                for name, rows in self._decode(batch, failures):
                    counts[name] += rows.num_rows
                    known = stay[name]["call_key"] if name in stay else pa.array([], pa.string())
                    staging.add(_FOLDER_NAMES[name], rows.filter(pc.invert(pc.is_in(rows["call_key"], known))))
            for name, others in stay.items():
                for batch in others.to_batches():
                    staging.add(_FOLDER_NAMES[name], batch)
            stage_failures(staging, failures)
            return pa.table([[*counts.keys()], [*counts.values()]], to_arrow_schema(_COUNTS))

        queries = {"calls": calls, **{table.name: query for table, query in kept.items()}}
        written = dict.fromkeys(_FOLDER_NAMES, 0)
        for row in stage_groups(lake, LakePath(self.staging_folder), queries, decode, _COUNTS).to_pylist():
            written[row["table"]] += row["rows"]
        return written

    def _decode(self, batch: pa.RecordBatch, failures: list[DecodeFailure]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows that calls give, with the full names of their tables."""
        calls = batch.select(_input_columns(batch.schema.names))  # filtering copies these columns alone
        for decoded in decode_calls_safely(calls, failures, self.settings):
            yield from decoded.items()

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


def _input_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that decoding reads, of those that there are."""
    return [*CALL_INPUT_COLUMNS, *(name for name in OPTIONAL_INPUT_COLUMNS if name in columns)]


def stored_calls_sql(where: str) -> str:
    """Return the SQL of the calls to decode (``CallDecoder.decode_stored``) of ``{calls}`` that meet a condition."""
    columns = f"{', '.join(_STORED_SCHEMA.names)}, {bucket_sql('call_key')}"
    return f"SELECT {columns} FROM {{calls}} WHERE {HAS_SILVER_TABLE_SQL} AND {where}"


def kept_rows_sql(table: Table, *, emptied: bool) -> str | None:
    """Return the SQL of the rows of a table, ``{rows}``, that stay when all calls are decoded; None where none does.

    Those of other sources, and with ``emptied`` those of the calls of ``{calls}`` whose stubs were removed (setting
    store.stubs), so that they cannot be decoded again: the columns that are not decoded are as the calls have them now.
    """
    if table in ROW_PER_CALL_TABLES:
        copied = copied_columns_sql(table)
        columns = ", ".join(f"{copied.get(name, f'kept.{quoted(name)}')} AS {quoted(name)}" for name in table.names)
        of_table = f"calls.interface_name IN ({', '.join(map(repr, INTERFACES_BY_TABLE[table]))})"
        sql = (
            f"SELECT {columns}, {bucket_sql('kept.call_key')} FROM {{rows}} AS kept JOIN {{calls}} AS calls"
            f" ON calls.call_key = kept.call_key WHERE {of_table} AND {NO_STUBS_SQL}"
        )
        return sql if emptied else None
    condition, key = next(found for name, found in _OTHER_SOURCES.items() if name in table.names)
    if emptied:
        condition += f" OR call_key IN (SELECT call_key FROM {{calls}} WHERE {NO_STUBS_SQL})"
    columns = f"{', '.join(map(quoted, table.names))}, {bucket_sql(f'coalesce(call_key, {key})')}"
    return f"SELECT {columns} FROM {{rows}} WHERE {condition}"


def copied_columns_sql(table: Table) -> dict[str, str]:
    """Return by name the SQL of a table's columns that are copied from the call, over ``bronze.rpc_calls AS calls``."""
    other = {
        **{name: f"calls.{theirs}" for name, theirs in BRONZE_NAMES.items()},
        EVENT_DATE: utc_date_sql("coalesce(calls.request_at, calls.response_at)"),
        "queue_manager": "calls.server_address",
    }
    return {name: other.get(name, f"calls.{name}") for name in table.names if name in PASSED_THROUGH_COLUMNS}
