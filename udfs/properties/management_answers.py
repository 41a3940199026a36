"""Decode columns of R_QMMgmtGetInfo stubs into what each queue manager answered ([MS-MQMR] 3.1.4.1)."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.properties.observations import PROPERTY_ROW_SCHEMA, observations_from_calls, property_rows
from udfs.stubs.call_decoder import decode_management_calls

PROPERTY_COLUMNS: Final = (
    "place", "property_id", "property_name", "vt", "vt_name", "state", "value_decimal", "value_text", "value_binary",
    "value_texts", "value_json",
)  # fmt: skip
_ANSWER_COLUMNS: Final = ("object_type", "queue_format_name", "queue", "hresult", "hresult_name")
ANSWERS_SCHEMA: Final = pa.schema(
    {
        **{name: pa.int64() if name == "hresult" else pa.string() for name in _ANSWER_COLUMNS},
        "properties": pa.list_(pa.struct([PROPERTY_ROW_SCHEMA.field(name) for name in PROPERTY_COLUMNS])),
        "errors": PROPERTY_ROW_SCHEMA.field("errors").type,
    }
)


def decode_management_answers(
    request_stubs: pa.Array,
    response_stubs: pa.Array,
    transfer_syntaxes: pa.Array,
    byte_orders: pa.Array,
    response_byte_orders: pa.Array,
) -> pa.RecordBatch:
    """Decode answers: one row of ``ANSWERS_SCHEMA`` per call, with one of ``properties`` for each property asked.

    The arrays are as in ``bronze.rpc_calls``; a null ``response_byte_orders`` is that of the request. Without the
    request it is not known which properties the values are of: ``property_id`` and ``property_name`` are null. Without
    a response ``properties`` is null. ``errors`` is empty if both stubs decode to their last byte.
    """
    count = len(request_stubs)
    no_texts = pa.nulls(count, pa.string())
    batch = pa.record_batch(
        {
            "interface_name": pa.repeat(pa.scalar(QMMGMT_NAME), count),
            "opnum": pa.repeat(pa.scalar(0, pa.int32()), count),
            "transfer_syntax": transfer_syntaxes,
            "byte_order": byte_orders,
            "response_byte_order": response_byte_orders,
            "request_stub": request_stubs,
            "response_stub": response_stubs,
            "sealed": pa.nulls(count, pa.bool_()),
            **dict.fromkeys(("outcome", "opened_by", "server_address"), no_texts),
        }
    )
    columns = decode_management_calls(batch)
    numbers = [
        [None] * len(values) if asked is None and values is not None else asked
        for asked, values in zip(columns["property_ids"].to_pylist(), columns["values"].to_pylist(), strict=True)
    ]
    calls = pa.table(
        {
            **columns,
            "property_ids": pa.array(numbers, columns["property_ids"].type),
            "opnum": batch["opnum"],
            "call_key": pa.array(map(str, range(count)), pa.string()),
            "responded_at": pa.nulls(count, pa.timestamp("us", tz="UTC")),
        }
    )
    rows = property_rows(observations_from_calls(calls)).combine_chunks()
    owner = np.asarray(rows["call_key"].cast(pa.int64()))
    items = pa.StructArray.from_arrays(
        [rows[name].combine_chunks() for name in PROPERTY_COLUMNS],
        fields=list(ANSWERS_SCHEMA.field("properties").type.value_type),
    )
    bounds = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]).astype(np.int32)
    columns["properties"] = pa.ListArray.from_arrays(pa.array(bounds), items, mask=pc.is_null(columns["hresult"]))
    return pa.record_batch([columns[name] for name in ANSWERS_SCHEMA.names], schema=ANSWERS_SCHEMA)
