"""Tests of the test helpers: cutting and joining keeps every byte, comparison finds each difference."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture.merge.comparing import OF_FILES, PLACES, differences, equal, same
from capture.merge.cutting import cut, elsewhere, evenly, glue, layout, padded, plain, records
from capture.merge.traffic import captures, plans, stories
from example_counts import examples
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.frames import checksum
from pcapgen.record import sample_captures
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture
from udfs.files.capture_file import CaptureFileReader

FILE, TRUTH = capture_dialogue(remote_read_dialogue())
RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
WRITERS = {
    "pcap": c.pcap(FILE.records),
    "pcap, big-endian": c.pcap(FILE.records, order=">"),
    "pcap, nanoseconds": c.pcap(FILE.records, magic=c.NANOSECONDS),
    "pcap, modified": c.pcap(FILE.records, magic=c.MODIFIED),
    "pcapng": c.pcapng(FILE.records),
    "pcapng, big-endian, offset": c.pcapng(FILE.records, order=">", tsresol=9, tsoffset=3600),
}


def sections() -> tuple[c.CaptureFile, list[c.Record]]:
    """Two sections of different byte orders, a second interface in the middle, statistics at the end."""
    one, two = list(FILE.records[:9]), list(FILE.records[9:])
    blocks: list[bytes | tuple[bytes, int]] = [c.section(), c.interface(tsresol=9)]
    blocks += [c.enhanced(record, tsresol=9) for record in one[:4]]
    blocks += [c.interface(tsresol=6), *(c.enhanced(record, number=1) for record in one[4:])]
    blocks += [c.section(">", length=4096), c.interface(">", tsresol=9)]
    blocks += [c.enhanced(record, ">", tsresol=9) for record in two]
    blocks += [c.statistics(">", drops=3)]
    return c.assemble(blocks, [*one, *two]), [*one, *two]


def frames(capture: bytes) -> list[tuple]:
    """Return times, lengths and link types of the records, as the reader gives them."""
    out = []
    for block in CaptureFileReader(io.BytesIO(capture), 1 << 20).read_blocks():
        for start, size, original, time, link in zip(
            block.packet_start,
            block.captured_length,
            block.original_length,
            block.time_ns,
            block.link_type,
            strict=True,
        ):
            out.append((int(time), int(link), int(original), bytes(block.buffer[start : start + size])))
    return out


@pytest.mark.parametrize("name", WRITERS)
def test_every_cut_and_its_concatenation_is_identity(name):
    data = WRITERS[name].data
    whole = frames(data)
    assert records(data) == len(whole) == len(FILE.records)
    for place in range(1, len(whole)):
        pieces = cut(data, [place])
        assert [len(frames(piece)) for piece in pieces] == [place, len(whole) - place]
        assert [frame for piece in pieces for frame in frames(piece)] == whole
        assert glue(pieces) == data
    assert cut(data, []) == [data]


@pytest.mark.parametrize("place", range(1, len(FILE.records)))
def test_a_piece_of_pcapng_has_the_section_and_interfaces_in_force(place):
    file, _ = sections()
    whole = frames(file.data)
    pieces = cut(file.data, [place])
    assert [frame for piece in pieces for frame in frames(piece)] == whole
    assert glue(pieces).endswith(file.data[file.frame_offsets[place] - 28 :])


def test_what_follows_the_last_record_stays_at_the_end():
    data = FILE.data + b"\x01\x02\x03"
    first, second = cut(data, [4])
    assert second.endswith(b"\x01\x02\x03")
    assert glue([first, second]) == data


@RELAXED
@given(st.data())
def test_any_cut_of_any_capture_glues_together(data):
    capture = data.draw(captures()).capture
    plan = data.draw(plans(records(capture)))
    pieces = cut(capture, plan.places)
    assert sorted(index for run in plan.runs for index in run) == list(range(len(pieces)))
    assert glue(pieces) == capture
    assert len({piece[:200] for piece in pieces}) == len(pieces)  # each has an identity of its own


@pytest.mark.parametrize("name", stories())
def test_every_story_is_five_files_of_distinct_records(name):
    story = stories()[name]()
    pieces = cut(story.capture, story.places)
    assert len(pieces) == 5
    units = [unit.data for unit in layout(story.capture).units]
    assert len(set(units)) == len(units)
    assert glue(pieces) == story.capture


@pytest.mark.parametrize("path", sample_captures(), ids=lambda path: path.name)
def test_the_sample_can_be_cut(path):
    capture = plain(path)
    pieces = cut(capture, evenly(capture))
    assert len(pieces) == 5
    assert glue(pieces) == capture
    assert sum(records(piece) for piece in pieces) == records(capture)


def _ends_of(tables: dict[str, pa.Table]) -> set[str]:
    calls = tables["rpc_calls"]
    return {*calls["client_address"].to_pylist(), *calls["server_address"].to_pylist()}


def _tcp_of(frame: bytes) -> tuple[bytes, bytes]:
    """Return the IPv4 header of an Ethernet frame, and everything that TCP's checksum covers."""
    header, size = frame[14:34], struct.unpack_from(">H", frame, 16)[0] - 20
    return header, header[12:20] + struct.pack(">HH", 6, size) + frame[34 : 34 + size]


@pytest.mark.parametrize("path", sample_captures(), ids=lambda path: path.name)
def test_the_sample_elsewhere_is_the_same_conversation_between_others(path):
    capture = plain(path)
    there = read_capture(capture)
    hosts = [_ends_of(there)]
    for number in (1, 7, 178):
        moved = elsewhere(capture, number)
        for one, other in zip(frames(capture), frames(moved), strict=True):
            assert one[:3] == other[:3]
            if one[3][12:14] == b"\x08\x00":
                (header, was), (new_header, now) = _tcp_of(one[3]), _tcp_of(other[3])
                assert (checksum(new_header), checksum(now)) == (checksum(header), checksum(was))
        found = read_capture(moved)
        hosts.append(_ends_of(found))
        # Keys are of addresses, and the endpoint mapper's towers hold them.
        stubs = [stub and elsewhere(stub, number) for stub in there["rpc_calls"]["response_stub"].to_pylist()]
        calls = there["rpc_calls"].drop(["response_stub"]).append_column("response_stub", pa.array(stubs, pa.binary()))
        left_out = PLACES | {"call_key", "connection_id", "bind_key", "client_address", "server_address"}
        lines = differences(found, there | {"rpc_calls": calls}, left_out=left_out, not_compared=OF_FILES)
        assert not lines, "\n".join(lines)
    assert len(set().union(*hosts)) == sum(map(len, hosts))


def test_a_padded_capture_has_one_packet_more_that_is_nobodys():
    capture = plain(sample_captures()[0])
    more = padded(capture, len(capture) + 1000)
    assert len(more) == len(capture) + 1000
    same(read_capture(more), read_capture(capture))
    one, two = (read_capture(each)["capture_files"].to_pylist()[0] for each in (capture, more))
    assert (two["packets"], two["packets_other"]) == (one["packets"] + 1, one["packets_other"] + 1)
    assert two["last_packet_at"] == one["last_packet_at"]


# -- comparing ---------------------------------------------------------------------------------------------------------


def tables() -> dict[str, pa.Table]:
    return read_capture(FILE.data)


def changed(name: str, column: str, row: int, value) -> dict[str, pa.Table]:
    """Return the tables with one value of one row changed."""
    found = tables()
    table = found[name]
    index = table.column_names.index(column)
    values = table.column(index).to_pylist()
    values[row] = value
    found[name] = table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))
    return found


def test_a_reading_is_the_same_as_itself_in_any_order_of_rows():
    shuffled = {name: table.take(pa.array(range(table.num_rows)[::-1], pa.int64())) for name, table in tables().items()}
    same(tables(), shuffled)
    equal(tables(), shuffled)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rpc_calls", "outcome", "no_response"),
        ("rpc_calls", "response_stub", b"other"),
        ("rpc_calls", "request_stub", None),
        ("rpc_calls", "call_key", "0" * 32),
        ("connections", "retransmitted_bytes", 99),
        ("connections", "connection_id", "0" * 32),
        ("rpc_binds", "transfer_syntaxes_offered", ["NDR64"]),
    ],
)
def test_each_difference_is_found_and_named(table, column, value):
    with pytest.raises(AssertionError, match=rf"{table}.*(?s:.)*{column}"):
        same(tables(), changed(table, column, 0, value))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [("rpc_calls", "capture_id", "x"), ("rpc_calls", "byte_offset", 1), ("rpc_binds", "packet_number", 9)],
)
def test_places_count_between_readings_of_the_same_files_alone(table, column, value):
    other = changed(table, column, 0, value)
    same(tables(), other)
    with pytest.raises(AssertionError, match=column):
        equal(tables(), other)


def test_a_row_missing_or_double_is_found():
    found = tables()
    short = {**found, "rpc_calls": found["rpc_calls"].slice(1)}
    double = {**found, "rpc_calls": pa.concat_tables([found["rpc_calls"], found["rpc_calls"].slice(0, 1)])}
    for other in (short, double):
        with pytest.raises(AssertionError, match=r"rpc_calls: in the (first|second) alone"):
            same(found, other)


def test_a_table_or_column_missing_is_found():
    found = tables()
    with pytest.raises(AssertionError, match="quarantine: a table of the first alone"):
        same(found, {name: table for name, table in found.items() if name != "quarantine"})
    with pytest.raises(AssertionError, match=r"columns of one alone.*closed_by"):
        same(found, {**found, "connections": found["connections"].drop_columns("closed_by")})


def test_files_read_each_for_itself_are_not_the_same():
    """Why a merge is needed: five separate reads have other calls, binds and connections."""
    story = stories()["fragments"]()
    alone = [read_capture(piece) for piece in cut(story.capture, story.places)]
    beside = {name: pa.concat_tables([each[name] for each in alone]) for name in alone[0]}
    with pytest.raises(AssertionError) as failure:
        same(beside, read_capture(story.capture))
    assert "rpc_calls:" in str(failure.value)
    assert "connections:" in str(failure.value)


def test_times_of_trouble_follow_the_capture():
    """Cutting by records is cutting by time: the times of the pieces do not go back."""
    for make in stories().values():
        capture = make().capture
        times = [frame[0] for frame in frames(capture)]
        assert times == sorted(times)


def test_pieces_with_a_section_of_stated_length_have_one_without():
    file, _ = sections()
    (_, second) = cut(file.data, [12])
    assert struct.unpack_from(">q", second, 16) == (-1,)
    assert frames(second)[0][0] >= t.START_NS
