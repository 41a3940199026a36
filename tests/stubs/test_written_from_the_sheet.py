"""Calls encoded independently, from the fact sheet alone (rpc-interfaces.md section 3), without looking at ``udfs``.

Each method in NDR of both byte orders and in NDR64: random values, every arm of QUEUE_FORMAT, max_count above
actual_count, transfer buffers with every pointer set. The expected columns are stored beside the stubs.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from stubs.helpers import plain
from stubs.test_calls import DEFAULT, SCHEMA
from udfs.stubs.call_decoder import decode_client_calls, decode_management_calls, decode_remote_read_calls
from udfs.stubs.method_registry import CLIENT_METHODS, MANAGEMENT_METHODS, REMOTE_READ_METHODS

CALLS = json.loads((Path(__file__).parent / "written_from_the_sheet.json").read_text())
STUBS = ("request_stub", "response_stub")


def _text(value):
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else plain(value)


@pytest.mark.parametrize(
    ("interfaces", "read"),
    [
        (REMOTE_READ_METHODS, lambda batch: decode_remote_read_calls(batch, packets=True)),
        (MANAGEMENT_METHODS, decode_management_calls),
        (CLIENT_METHODS, decode_client_calls),
    ],
)
def test_calls_of_another_encoder(interfaces, read):
    calls = [call for call in CALLS if call["interface_name"] in interfaces]
    rows = [{**DEFAULT, **call, **{side: bytes.fromhex(call[side]) for side in STUBS}} for call in calls]
    schema = SCHEMA.append(pa.field("server_address", pa.string()))
    found = pa.table(read(pa.RecordBatch.from_pylist(rows, schema=schema))).to_pylist()
    assert len(found) == len(calls) > 0
    for call, row in zip(calls, found, strict=True):
        assert row["errors"] == []
        seen = {name: _text(row[name]) for name in call["columns"]}
        if seen.get("queue_format_name"):
            seen["queue_format_name"] = seen["queue_format_name"].lower()
        assert seen == call["columns"], (call["interface_name"], call["opnum"], call["transfer_syntax"])
