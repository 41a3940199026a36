"""The columns of ``rpc_calls`` as the reader makes them (tables.md, bronze)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.files.container import NO_TIME, Ints
from udfs.rpc.calls import NEVER, Flags

TIMESTAMP: Final = pa.timestamp("us", "UTC")
SIGHTING: Final = pa.struct(
    [
        ("capture_id", pa.string()),
        ("request_packet", pa.int64()),
        ("response_capture_id", pa.string()),
        ("response_packet", pa.int64()),
        ("byte_offset", pa.int64()),
        ("request_at", pa.int64()),
        ("request_done_at", pa.int64()),
        ("response_at", pa.int64()),
        ("response_done_at", pa.int64()),
        ("request", pa.int32()),
        ("response", pa.int32()),
        ("settled", pa.bool_()),
    ]
)
CALLS_SCHEMA: Final = pa.schema(
    [
        ("call_key", pa.string()),
        ("connection_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("call_id", pa.int64()),
        ("context_id", pa.int32()),
        ("interface_uuid", pa.string()),
        ("interface_name", pa.string()),
        ("transfer_syntax", pa.string()),
        ("opnum", pa.int32()),
        ("object_uuid", pa.string()),
        ("byte_order", pa.string()),
        ("auth_type", pa.int32()),
        ("auth_level", pa.int32()),
        ("bind_seen", pa.bool_()),
        ("sealed", pa.bool_()),
        ("request_at", TIMESTAMP),
        ("request_done_at", TIMESTAMP),
        ("response_at", TIMESTAMP),
        ("response_done_at", TIMESTAMP),
        ("cancelled_at", TIMESTAMP),
        ("orphaned_at", TIMESTAMP),
        ("request_fragments", pa.int32()),
        ("response_fragments", pa.int32()),
        ("request_stub", pa.binary()),
        ("response_stub", pa.binary()),
        ("fault_status", pa.int64()),
        ("outcome", pa.string()),
        ("capture_id", pa.string()),
        ("request_packet", pa.int64()),
        ("response_capture_id", pa.string()),
        ("response_packet", pa.int64()),
        ("byte_offset", pa.int64()),
        ("observations", pa.int32()),
        ("opened_by", pa.string()),
        ("closed_reason", pa.string()),
        ("verified_by", pa.string()),
        ("response_byte_order", pa.string()),
        ("request_sequence", pa.int64()),
        ("response_sequence", pa.int64()),
        ("sightings", pa.list_(SIGHTING)),
        ("request_pieces", pa.binary()),
        ("response_pieces", pa.binary()),
        ("request_span", pa.int64()),
        ("response_span", pa.int64()),
        ("event_date", pa.date32()),
    ]
)
OUTCOMES: Final = ("no_request", "damaged", "no_response", "fault", "encrypted", "unbound", "ok")


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch; times in them are microseconds, dates are days, both since the epoch."""
    plain = {TIMESTAMP: pa.int64(), pa.date32(): pa.int32()}
    columns = []
    for column in schema:
        values = [row[column.name] for row in rows]
        columns.append(pa.array(values, plain.get(column.type, column.type)).cast(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def times(values: Ints, valid: Flags) -> pa.Array:
    """Return nanoseconds as microseconds, floored; null where not valid or unknown."""
    good = valid & (values != NO_TIME) & (values != NEVER)
    return pa.array(np.where(good, values // 1000, 0), pa.int64(), mask=~good).cast(TIMESTAMP)


def chosen_of(values: Iterable[str], index: npt.NDArray[Any]) -> pa.Array:
    """Return texts by their index in ``values``; null where it is negative."""
    index = np.asarray(index, np.int64)
    return pa.array(list(values), pa.string()).take(pa.array(np.maximum(index, 0), mask=index < 0))
