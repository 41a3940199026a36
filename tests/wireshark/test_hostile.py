"""Damaged packets: no error of Lua, a bounded time, and what is shown is what the decoders say."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from random import Random

import pyarrow as pa
import pytest

from example_counts import seeds
from pcapgen.containers import pcap
from pcapgen.exchanges import recorded, tap
from pipeline.silver.decode import CALL_INPUT_COLUMNS, DecodeSettings, decode_calls
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import read_capture
from udfs.messages.header_layouts import BASE_FLAG_IN, PROTOCOL_BINARY
from udfs.messages.message_decoder import decode_messages
from wireshark.compared import CALL_TABLES, call_value, compare, ends, halves_of, shown_value, turned
from wireshark.shown import run_tshark, trees

pytestmark = pytest.mark.tool("tshark")

PACKETS = 200  # of one capture, each changed
ALL_CAPTURES = 100  # 20,000 packets
SECONDS = 60  # for one capture
RPC_HEADER = 24  # octets of a request or answer before its stub
BINDS = {11, 12, 14, 15}  # PDU types that say the interface
VALUES = (
    b"\0",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\x01\0\0\0",
    b"\0\0\0\x80",
)
SAMPLES = (
    "01-remoteread-ndr",
    "03-qm2qm-dependent-client",
    "04-qmmgmt",
    "09-transactions-and-moves",
    "13-kinds-of-messages",
)


# Columns that are shown of what is damaged too: fields of a header that is no message's, of a stub that does not end
# where it should, of sections that are not whole. The queue of a handle, because connections here share handles. And
# numbers, which a single packet does not have, and counts that are too large for their columns.
NOT_COMPARED = {
    "priority", "traced", "hresult", "hresult_name", "section_types", "section_bytes", "section_allocated_bytes",
    "packet_bytes", "queue_format_type", "queue", "seen_in", "session_number", "recoverable_number",
    "abort_count", "move_count",
}  # fmt: skip


@pytest.fixture(scope="module")
def talks(project):
    """Connections of the recordings, with whether they are RPC."""
    found = [(talk, False) for path in sorted((project / "data" / "transfers").iterdir()) for talk in recorded(path)]
    for path in sorted((project / "data" / "sample").iterdir()):
        if path.name.split(".")[0] in SAMPLES:
            found += [(talk, True) for port in (2103, 2105) for talk in recorded(path, port)]
    return [(talk, is_rpc) for talk, is_rpc in found if talk.sends]


def changed(data, rng, is_rpc):
    """Octets of a segment with some replaced; in RPC those of the stub, so that the PDU is still found."""
    first = RPC_HEADER if is_rpc else rng.choice((0, 12, 16, 60))
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if first < len(data):
            value = rng.choice((*VALUES, rng.randbytes(rng.randrange(1, 9))))
            at = rng.randrange(first, len(data))
            out[at : at + len(value)] = value[: len(out) - at]
    return bytes(out)


def lengths(data):
    """The length of a PDU at the beginning of octets, in either byte order."""
    return {int.from_bytes(data[8:10], order) for order in ("little", "big")}


def mutated_capture(talks, rng, change=changed):
    """A capture of connections with ``PACKETS`` changed segments."""
    found, count = [], 0
    while count < PACKETS:
        talk, is_rpc = rng.choice(talks)
        sends = []
        for time_ns, side, data in talk.sends[:60]:
            if is_rpc and (data[2] in BINDS or len(data) not in lengths(data)):
                sends.append((time_ns, side, data))
            else:
                sends.append((time_ns, side, change(data, rng, is_rpc)))
                count += 1
        flow = replace(talk.flow, client_port=10_000 + len(found))
        found.append(replace(talk, sends=sends, flow=flow))
    return pcap(tap(found).records).data


@pytest.mark.parametrize("seed", seeds(1, ALL_CAPTURES))
def test_changed_packets_raise_no_error_of_lua(talks, tmp_path, seed):
    path = tmp_path / "changed.pcap"
    path.write_bytes(mutated_capture(talks, Random(seed)))
    began = time.monotonic()
    text = run_tshark(path, "-V")
    assert time.monotonic() - began < SECONDS
    assert text.count("Message Queuing (MSMQ)") > PACKETS / 4
    assert any(error in text for error in ("error: malformed", "error: truncated"))


def changed_behind_its_base_header(data, rng, _is_rpc):
    """A segment that begins with a packet of a message, with octets of its headers replaced; as long as it was."""
    out = bytearray(data)
    size = int.from_bytes(data[8:12], "little")
    if data[4:8] != b"LIOR" or data[2] & BASE_FLAG_IN or not 120 <= size <= len(data):
        return data
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, value = rng.randrange(16, min(size - 4, 400)), rng.choice(VALUES)
        if not at - 4 < 60 < at + 4:  # UserHeader.Flags tell whether it is a packet
            out[at : at + len(value)] = value
    return bytes(out)


def silver_of(path):
    """Calls of a capture by key, and the tables of silver by name."""
    calls = read_capture(path)["rpc_calls"].combine_chunks()
    for column in set(CALL_INPUT_COLUMNS) - set(calls.column_names):
        calls = calls.append_column(column, pa.nulls(len(calls), pa.string()))
    (batch,) = calls.select(CALL_INPUT_COLUMNS).to_batches()
    return {row["call_key"]: row for row in calls.to_pylist()}, decode_calls(batch, DecodeSettings(bodies=True))


def differences(table, row, method, value_of):
    """What ``compare`` finds, without texts that are not printable ASCII: tshark writes them in other ways."""
    for found in compare(table, row, method, value_of):
        _, _, name, shown, wanted = found
        texts = [each for each in (shown, wanted) if isinstance(each, str)]
        is_plain = all(text.isascii() and text.isprintable() and "\\x" not in text for text in texts)
        if is_plain and name not in NOT_COMPARED and (shown, wanted) != (None, ""):
            yield found


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_damaged_packets_of_the_binary_protocol_are_shown_as_they_are_decoded(talks, tmp_path, seed):
    path = tmp_path / "changed.pcap"
    ours = [(talk, False) for talk, is_rpc in talks if not is_rpc]
    path.write_bytes(mutated_capture(ours, Random(seed), changed_behind_its_base_header))
    rows, shown, compared, found = defaultdict(list), defaultdict(list), 0, []
    for row in read_capture(path)["session_packets"].to_pylist():
        if row["complete"]:
            rows[ends(row) if row["sent_by"] == "client" else turned(ends(row))].append(row)
    for tree in trees(path):
        if tree.one("kind"):
            shown[tree.ends].append(tree)
    for side, packets in rows.items():
        packets.sort(key=lambda row: row["stream_offset"])
        for row, tree in zip(packets, shown[side], strict=True):
            assert tree.one("kind") == row["kind"]
            if row["kind"] == "user_message":
                decoded = decode_messages(pa.array([row["packet"]]), PROTOCOL_BINARY, bodies=True)
                message = {name: column[0].as_py() for name, column in decoded.items()}
                row_of_table = {name: message.get(name) for name in MESSAGES.schema().names} | {
                    "seen_in": PROTOCOL_BINARY
                }
                found += differences(MESSAGES, row_of_table, None, lambda column, tree=tree: shown_value(tree, column))
                errors = sorted(f"{error['code']}: {error['field']}" for error in message["errors"])
                assert sorted(tree.values.get("msmq.error", [])) == errors
                compared += 1
    assert found == []
    assert compared > 30


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_damaged_calls_and_their_messages_are_shown_as_they_are_decoded(talks, tmp_path, seed):
    path = tmp_path / "changed.pcap"
    path.write_bytes(mutated_capture([each for each in talks if each[1]], Random(seed)))
    calls, silver = silver_of(path)
    halves, compared, found = halves_of(trees(path)), Counter(), []
    for table in (*CALL_TABLES, MESSAGES):
        for row in silver[str(table)].to_pylist():
            call = calls[row["call_key"]]
            shown = halves.get((*ends(call), call["call_id"]), {})
            method = row.get("method")
            if not shown or (table is MESSAGES and "response" not in shown):
                continue
            compared[table.name] += 1
            value_of = partial(shown_value, shown["response"]) if table is MESSAGES else partial(call_value, shown)
            found += differences(table, row, method, value_of)
    assert found == []
    assert compared["remote_read_calls"] > 20
    assert compared["messages"] > 5
