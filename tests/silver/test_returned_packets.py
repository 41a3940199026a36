"""What a read returned is a row of silver.messages, whatever its sections say of themselves."""

import struct

import pyarrow as pa
import pytest

from pipeline.silver.decode import CALL_INPUT_COLUMNS, DecodeSettings, decode_calls
from schemas.calls import REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import read_capture


@pytest.fixture(scope="module")
def received(project):
    """A R_StartReceive with its message, as a row of bronze.rpc_calls; its message in one section, and its stub."""
    calls = read_capture(str(project / "data" / "sample" / "01-remoteread-ndr.pcap"))["rpc_calls"]
    calls = calls.append_column("run_id", pa.nulls(len(calls), pa.string())).select(CALL_INPUT_COLUMNS)
    (batch,) = calls.combine_chunks().to_batches()
    reads = decode_calls(batch, DecodeSettings(packets=True))[str(REMOTE_READ_CALLS)].to_pylist()
    whole = next(
        row for row in reads if row["opnum"] == 7 and row["section_types"] == [0] and row["transaction_id"] is None
    )
    row = calls.to_pylist()[reads.index(whole)]
    assert row["call_key"] == whole["call_key"]
    return calls.schema, row, whole["packet"]


def returned(received, allocated, packet, *, sections=1):
    """The rows of silver that an answer with one section of type 0 gives."""
    schema, row, _ = received
    stub = struct.pack("<IIQII", 1_700_000_000, 0, 5, sections, 0x20000) + struct.pack("<I", sections)
    if sections:
        stub += struct.pack("<HHIII", 0, 0, allocated, len(packet), 0x20004)
        stub += struct.pack("<I", len(packet)) + packet
    stub += bytes(-len(stub) % 4 + 4)
    (batch,) = pa.Table.from_pylist([row | {"response_stub": stub}], schema).to_batches()
    tables = decode_calls(batch)
    (call,) = tables[str(REMOTE_READ_CALLS)].to_pylist()
    assert (call["hresult"], call["errors"]) == (0, [])
    return tables[str(MESSAGES)].to_pylist()


def test_a_packet_whose_allocation_differs_is_read_and_flagged(received):
    packet = received[2]
    (expected,), (row,) = returned(received, len(packet), packet), returned(received, len(packet) + 64, packet)
    assert expected["errors"] == []
    assert row.pop("errors") == [{"code": "malformed", "field": "SectionSizeAlloc", "offset": 0}]
    assert row == {name: value for name, value in expected.items() if name != "errors"}


@pytest.mark.parametrize("sections", [0, 1])
def test_a_success_without_a_byte_of_a_message_is_a_row_with_its_error(received, sections):
    (row,) = returned(received, 0, b"", sections=sections)
    assert row["errors"] == [{"code": "truncated", "field": "BaseHeader", "offset": 0}]
    assert row["message_key"] is None
