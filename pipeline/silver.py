"""bronze.rpc_calls -> silver: decoded facts, by Arrow functions of ``udfs`` over whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from schemas.silver import REMOTE_READ_CALLS
from udfs.stubs.calls import METHODS, decode_calls

# What the decoders need beside what is handed through under another name.
_READ: Final = (
    "interface_name", "opnum", "transfer_syntax", "byte_order", "outcome", "sealed", "opened_by", "request_stub",
    "response_stub", "call_key", "connection_id", "call_id", "client_address", "client_port", "server_address",
    "server_port", "request_at", "response_at", "event_date", "run_id",
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


def _column(name: str) -> Column:
    if name == "event_date":
        return F.to_date(F.coalesce("request_at", "response_at")).alias(name)
    return F.col(name)


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
