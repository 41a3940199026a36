"""bronze.rpc_calls -> silver: decoded facts, by Arrow functions of ``udfs`` over whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake import event_date
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE
from udfs.stubs.calls import METHODS, decode_calls

# What the decoders need beside what is handed through under another name.
_READ: Final = (
    "interface_name", "opnum", "transfer_syntax", "byte_order", "outcome", "sealed", "opened_by", "request_stub",
    "response_stub", "call_key", "connection_id", "call_id", "client_address", "client_port", "server_address",
    "server_port", "request_at", "response_at", "event_date", "run_id",
)  # fmt: skip
_THROUGH: Final = (
    "call_key", "protocol", "opnum", "connection_id", "call_id", "client_address", "client_port", "server_address",
    "server_port", "requested_at", "responded_at", "event_date", "run_id",
)  # fmt: skip
_READ_IF_THERE: Final = ("response_byte_order",)
_RENAMED: Final = {"protocol": "interface_name", "requested_at": "request_at", "responded_at": "response_at"}


def remote_read_calls(calls: DataFrame, *, keep_packets: bool = False) -> DataFrame:
    """Return ``silver.remote_read_calls`` of rows of ``bronze.rpc_calls``; those of other interfaces are left out.

    One row per qm2qm or RemoteRead call, whatever its outcome. ``keep_packets`` keeps the message packets that came
    back (the setting store.packets). The rows keep the ``run_id`` of their calls.
    """
    schema = REMOTE_READ_CALLS.struct()
    read = (*_READ, *(name for name in _READ_IF_THERE if name in calls.columns))
    ours = calls.where(F.col("interface_name").isin(*METHODS)).select(*(_column(name) for name in read))
    return ours.mapInArrow(_decoder(tuple(schema.fieldNames()), keep_packets=keep_packets), schema)


def silver_date() -> Column:
    """Return the event_date in silver of a row of ``bronze.rpc_calls``."""
    return event_date("request_at", "response_at")


def without_stubs() -> Column:
    """Tell of rows of ``bronze.rpc_calls`` whether they hold no stub: none was seen, or they were emptied."""
    return F.col("request_stub").isNull() & F.col("response_stub").isNull()


def as_decoded_before(reads: DataFrame, keys: DataFrame, before: DataFrame) -> DataFrame:
    """Return rows of ``silver.remote_read_calls``, those with some keys with the parameters of an earlier version.

    For calls whose stubs were emptied (the setting store.stubs): what was decoded of them is all there is left.
    ``keys`` has ``call_key``; ``before`` are the rows as they were. A row that was not there stays as it is.
    """
    decoded = [name for name in REMOTE_READ_CALLS.names if name not in _THROUGH]
    kept = before.join(keys, "call_key", "left_semi").select("call_key", F.struct(*decoded).alias("_before"))
    rows = reads.join(kept, "call_key", "left")
    known = F.col("_before").isNotNull()
    was = {name: F.when(known, F.col(f"_before.{name}")).otherwise(F.col(name)) for name in decoded}
    return rows.withColumns(was).drop("_before")


def _column(name: str) -> Column:
    return silver_date().alias(name) if name == EVENT_DATE else F.col(name)


def _decoder(
    names: tuple[str, ...], *, keep_packets: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            decoded = decode_calls(batch, packets=keep_packets)
            yield pa.RecordBatch.from_arrays(
                [decoded[name] if name in decoded else batch.column(_RENAMED.get(name, name)) for name in names],
                names=list(names),
            )

    return decode
