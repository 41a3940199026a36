"""bronze.rpc_calls -> silver in Spark: decoded facts, by Arrow functions of ``udfs`` over whole batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.write_tap import TappedWrite
from pipeline.lake.schema_enforcement import event_date
from pipeline.lake.staging_files import Batches, SideFiles, number_of_task, rows_in, tasks_of
from pipeline.lake.tasks import Tasks
from pipeline.silver.decode import INTERFACES, READ, READ_IF_THERE, TABLES, THROUGH, decode, remote_reads
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table

_ALL: Final = sorted(set(chain(*INTERFACES.values())))  # interfaces that any table takes calls of
_NAMES: Final = {str(table): table.name for table in TABLES}


def remote_read_calls(calls: DataFrame, *, keep_packets: bool = False) -> DataFrame:
    """Return ``silver.remote_read_calls`` of rows of ``bronze.rpc_calls``; those of other interfaces are left out.

    One row per qm2qm or RemoteRead call, whatever its outcome. ``keep_packets`` keeps the message packets that came
    back (the setting store.packets). The rows keep the ``run_id`` of their calls.
    """
    schema = REMOTE_READ_CALLS.struct()
    names = REMOTE_READ_CALLS.names

    def decoded(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = remote_reads(batch, packets=keep_packets)
            yield pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))

    return _read(calls, INTERFACES[REMOTE_READ_CALLS]).mapInArrow(decoded, schema)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes rows of ``bronze.rpc_calls`` in tasks, to side files ``<folder>/<table's name>/*.parquet``.

    Each task has a file per table, named by its number: a repeated one does no harm.
    """

    folder: str
    keep_packets: bool  # the setting store.packets
    keep_bodies: bool  # store.bodies

    def passing(self, batches: Batches, task: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they are, and decode them; ``task`` names who does."""
        side = SideFiles(self.folder, task)
        for batch in batches:
            calls = batch.select(_needed(batch.schema.names))  # the others need not be copied with calls of one table
            for name, rows in decode(calls, packets=self.keep_packets, bodies=self.keep_bodies).items():
                side.add(_NAMES[name], rows)
            yield batch
        side.close()

    def decode(self, calls: DataFrame) -> None:
        """Decode rows of ``bronze.rpc_calls``, in one job."""

        def through(batches: Batches) -> Iterator[pa.RecordBatch]:
            for batch in self.passing(batches, number_of_task()):
                yield batch.slice(0, 0).select(["call_key"])

        _read(calls, _ALL).mapInArrow(through, "call_key string").collect()

    def written(self) -> dict[str, int]:
        """Return how many rows of each table, by its full name, were decoded."""
        return {name: rows_in(Path(self.folder) / folder) for name, folder in _NAMES.items()}

    def rows(self, table: Table) -> Tasks:
        """Return the rows that were decoded of a table."""
        tasks, names = tasks_of(Path(self.folder) / table.name), list(table.names)

        def rows(number: int) -> Iterator[pa.RecordBatch]:
            return (batch.select(names) for piece in tasks[number] for batch in piece.read())

        return Tasks(len(tasks), sum(piece.size for task in tasks for piece in task), rows)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decoder decoded while it was written: all calls that one commit added to ``bronze.rpc_calls``."""

    by: Decoder
    write: TappedWrite

    @staticmethod
    def of(by: Decoder | None, write: TappedWrite | None) -> Decoded | None:
        """Return what ``by`` decoded of a commit; None where nothing was decoded, or not all that the commit added."""
        return None if by is None or write is None else Decoded(by, write)


def _read(calls: DataFrame, interfaces: Collection[str]) -> DataFrame:
    """Return what is read of the calls of some interfaces."""
    return calls.where(F.col("interface_name").isin(*interfaces)).select(*_needed(calls.columns))


def _needed(columns: Sequence[str]) -> list[str]:
    """Return which of the columns that there are a call is decoded from."""
    return [*READ, *(name for name in READ_IF_THERE if name in columns)]


def followed() -> Column:
    """Tell of rows of ``bronze.rpc_calls`` whether their interface has a table in silver."""
    return F.col("interface_name").isin(*_ALL)


def silver_dates() -> tuple[Column, ...]:
    """Return the event dates that rows of silver made of a row of ``bronze.rpc_calls`` can have."""
    return event_date("request_at"), event_date("response_at")


def without_stubs() -> Column:
    """Tell of rows of ``bronze.rpc_calls`` whether they hold no stub: none was seen, or they were emptied."""
    return F.col("request_stub").isNull() & F.col("response_stub").isNull()


def as_decoded_before(table: Table, rows: DataFrame, keys: DataFrame, before: DataFrame) -> DataFrame:
    """Return rows of a table that has one for each call, those with some keys with an earlier version's parameters.

    For calls whose stubs were emptied (the setting store.stubs): what was decoded of them is all there is left.
    ``keys`` has ``call_key``; ``before`` are the rows as they were. A row that was not there stays as it is.
    """
    decoded = [name for name in table.names if name not in THROUGH]
    kept = before.join(keys, "call_key", "left_semi").select("call_key", F.struct(*decoded).alias("_before"))
    joined = rows.join(kept, "call_key", "left")
    known = F.col("_before").isNotNull()
    was = {name: F.when(known, F.col(f"_before.{name}")).otherwise(F.col(name)) for name in decoded}
    return joined.withColumns(was).drop("_before")
