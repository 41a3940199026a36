"""A capture read in parts gives the same records as one read: numbers, offsets, times, lengths, link types."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples, one_in
from pcapgen import containers as c
from pcapgen.model import key
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import TAIL_BYTES, CaptureFileReader, NotACaptureError, resume_read_offset
from udfs.files.capture_fingerprint import (
    FirstPacketHash,
    capture_key,
    compute_tail_key,
    fingerprint_content,
    read_capture_start,
)
from udfs.files.file_source import ExpansionLimitError, FileSource

RECORDS = [
    c.Record(1_700_000_000_123_456_789 + number * 1_000_003, bytes([number]) * (7 * number % 60), 80)
    for number in range(9)
]


def every_kind_of_block(order: str) -> c.CaptureFile:
    """A pcapng file: sections in both byte orders, late interfaces, drop counts, blocks of every kind."""
    other = "<>".replace(order, "")
    first, second, third = RECORDS[:3], RECORDS[3:6], RECORDS[6:]
    blocks = [
        c.section(order, options=c.option(order, 4, b"builder") + bytes(4)),
        c.interface(order, tsresol=9, snaplen=40),
        *(c.enhanced(r, order, tsresol=9, options=c.option(order, 4, struct.pack(order + "Q", 3))) for r in first[:2]),
        c.interface(order, link=c.RAW, tsresol=3, tsoffset=1_600_000_000),
        c.statistics(order, drops=2),
        *(c.enhanced(r, order, number=1, tsresol=3, tsoffset=1_600_000_000) for r in first[2:]),
        c.statistics(order, number=1, drops=1),
        c.block(order, 0x0BAD, b"\x01\x02\x03\x04"),
        c.section(other),
        c.interface(other, link=c.SLL, tsresol=0x94, snaplen=30),
        *(c.enhanced(r, other, tsresol=0x94) for r in second[:2]),
        *(c.simple(replace(r, frame=r.frame[:20], wire_size=len(r.frame[:20])), other) for r in second[2:]),
        c.statistics(other, drops=5),
        c.section(other),
        c.interface(other),
        *(c.obsolete(r, other) for r in third),
        c.statistics(other, drops=7),
        c.statistics(other, drops=9),
    ]
    return c.assemble(blocks, RECORDS)


FILES = {
    "microseconds": c.pcap(RECORDS),
    "microseconds, big-endian": c.pcap(RECORDS, order=">", link=c.RAW),
    "nanoseconds": c.pcap(RECORDS, magic=c.NANOSECONDS),
    "nanoseconds, big-endian": c.pcap(RECORDS, order=">", magic=c.NANOSECONDS),
    "modified": c.pcap(RECORDS, magic=c.MODIFIED),
    "pcapng": every_kind_of_block("<"),
    "pcapng, big-endian first": every_kind_of_block(">"),
}


def rows(container: CaptureFileReader) -> list[tuple[object, ...]]:
    """Return number, file offset, lengths, time, link type and bytes of each record."""
    found: list[tuple[object, ...]] = []
    for records in container.read_blocks():
        for index, start in enumerate(records.packet_start.tolist()):
            captured = int(records.captured_length[index])
            found.append((
                int(records.packet_number[index]), int(records.packet_offset[index]), captured,
                int(records.original_length[index]), int(records.time_ns[index]), int(records.link_type[index]),
                bytes(records.buffer[start : start + captured]),
            ))  # fmt: skip
    return found


def facts(container: CaptureFileReader) -> dict[str, object]:
    return {
        name: getattr(container, name)
        for name in (
            "format",
            "bytes_parsed",
            "packet_count",
            "dropped_packets",
            "first_record_end",
            "content_bytes",
            "tail_key",
        )
    } | {"damage": container.damage and container.damage.kind, "state": container.resume_state()}


def read(
    data: bytes, state: dict[str, object] | None, block_bytes: int
) -> tuple[CaptureFileReader, list[tuple[object, ...]]]:
    stream = io.BytesIO(data)
    stream.seek(resume_read_offset(state) if state else 0)
    container = CaptureFileReader(stream, block_bytes, resume_from=state)
    try:
        return container, rows(container)
    except NotACaptureError:
        return container, []


@pytest.mark.parametrize("block_bytes", one_in(2, [1, 150, 1 << 20]))
@pytest.mark.parametrize("name", FILES)
def test_cut_anywhere_and_read_on(name, block_bytes):
    data = FILES[name].data
    whole, expected = read(data, None, block_bytes)
    assert len(expected) == len(RECORDS)
    for cut in range(len(data) + 1):
        first, got = read(data[:cut], None, block_bytes)
        state = json.loads(json.dumps(first.resume_state()))
        assert (state is None) == (not got)
        if state is None:
            continue
        second, rest = read(data, state, block_bytes)
        assert got + rest == expected
        assert facts(second) == facts(whole)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_read_on_many_times(data):
    content = FILES[data.draw(st.sampled_from(sorted(FILES)))].data
    whole, expected = read(content, None, 1 << 20)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    state, got, last = None, [], None
    for cut in [*cuts, len(content)]:
        last, more = read(content[:cut], state, data.draw(st.integers(1, 300)))
        if last.resume_state() is not None:
            state = json.loads(json.dumps(last.resume_state()))
            got += more
    assert got == expected
    assert last is not None
    assert facts(last) == facts(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_state_is_small(name):
    container, _ = read(FILES[name].data, None, 1 << 20)
    assert len(json.dumps(container.resume_state())) < 400


def test_a_capture_longer_than_its_tail():
    """The tail key is right, and reading resumes, where the capture is longer than the tail that is kept."""
    long = c.pcap([c.Record(number, bytes([number % 251]) * 1400) for number in range(400)]).data
    for cut in (TAIL_BYTES, TAIL_BYTES + 1, 5 * TAIL_BYTES + 77, len(long) - 1):
        for block_bytes in (1000, 1 << 16, 1 << 20):
            first, got = read(long[:cut], None, block_bytes)
            assert first.content_bytes == cut
            assert (
                first.tail_key
                == key(long[:cut][-TAIL_BYTES:])
                == compute_tail_key(FileSource.from_bytes(long, "x"), cut)
            )
            second, rest = read(long, first.resume_state(), block_bytes)
            assert len(got) + len(rest) == 400
            assert second.tail_key == key(long[-TAIL_BYTES:])


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_source_opened_inside(compress):
    data = FILES["nanoseconds"].data
    source = FileSource.from_bytes(compress(data), "x")
    for start in (0, 1, 24, len(data) - 1, len(data), len(data) + 9):
        with source.open_decompressed(1100, 1 << 30, start) as stream:
            buffer, got = bytearray(4096), b""
            while count := stream.readinto(memoryview(buffer)):
                got += buffer[:count]
        assert got == data[start:]
    content = fingerprint_content(source)
    assert content is not None
    assert (content.size_bytes, content.tail_key) == (len(data), key(data))
    assert compute_tail_key(source, 30) == key(data[:30])
    assert compute_tail_key(source, len(data) + 1) is None


@pytest.mark.parametrize("damage", ["cut", "changed"])
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_damaged_compressed_stream_ends_where_it_ends_for_everyone(compress, damage):
    """The size of reads does not matter. Nothing behind the damage is read, and little before it is lost."""
    data = c.pcap([c.Record(n, hashlib.sha256(b"%d" % n).digest() * 30) for n in range(900)]).data
    packed = bytearray(compress(data))
    if damage == "cut":
        del packed[-100:]
    else:
        packed[-2000:-1000] = bytes(1000)
    source = FileSource.from_bytes(bytes(packed), "x")
    read = set()
    for step in (1 << 10, 100_001, 1 << 24):
        got, buffer = b"", bytearray(step)
        with source.open_decompressed(1100, 1 << 30) as stream:
            while count := stream.readinto(memoryview(buffer)):
                got += buffer[:count]
            assert not stream.readinto(memoryview(buffer))
        read.add(got)
    assert len(read) == 1
    if damage == "cut":
        assert data.startswith(got)
        assert len(data) - 400_000 < len(got) < len(data)
    content = fingerprint_content(source)
    assert content is not None
    assert (content.size_bytes, content.tail_key) == (len(got), key(got[-TAIL_BYTES:]))
    assert compute_tail_key(source, content.size_bytes) == content.tail_key
    assert compute_tail_key(source, content.size_bytes + 1) is None


def test_what_is_passed_over_counts_against_the_bound():
    source = FileSource.from_bytes(gzip.compress(bytes(100_000)), "x")
    with pytest.raises(ExpansionLimitError):
        source.open_decompressed(1100, 50_000, 60_000)
    assert fingerprint_content(source, 1100, 50_000) is None


def test_damage_inside_leaves_no_state_and_no_content():
    data = bytearray(FILES["microseconds"].data)
    at = FILES["microseconds"].frame_offsets[6] - 8
    data[at : at + 4] = b"\xff\xff\xff\xff"
    container, got = read(bytes(data), None, 1 << 20)
    assert len(got) == 6
    assert (container.resume_state(), container.content_bytes, container.tail_key) == (None, None, None)


def test_interfaces_without_end_leave_no_state():
    blocks = [c.section(), *(c.interface() for _ in range(300)), *(c.enhanced(record) for record in RECORDS)]
    container, got = read(c.assemble(blocks, RECORDS).data, None, 1 << 20)
    assert (len(got), container.resume_state()) == (len(RECORDS), None)


@pytest.mark.parametrize(
    "state",
    [
        {"offset": 100},
        {"offset": 100, "version": 0},
        {"offset": 100, "version": 1, "format": "pcap", "packets": 3, "first_record_end": 40},
        {"offset": 100, "version": 1, "format": "pcap", "packets": 3, "first_record_end": 40, "magic": "00", "link": 1},
    ],
)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="state"):
        read(FILES["microseconds"].data, state, 100)


def test_a_file_that_became_shorter_is_refused():
    data = FILES["microseconds"].data
    container, _ = read(data, None, 100)
    with pytest.raises(ValueError, match="ends"):
        read(data[:-50], container.resume_state(), 100)


@pytest.mark.parametrize("between", [0, 1])
def test_interfaces_without_end_take_no_more_than_their_share(between):
    """Time and memory grow linearly with the number of interface blocks, also with packets between them."""
    count = 30_000
    packet, _ = c.enhanced(c.Record(0, b""), number=count - 1)
    data = c.section() + (c.interface(tsresol=9) + packet * between) * count + packet * 3
    container = CaptureFileReader(io.BytesIO(data), len(data) + 1)
    (records,) = container.read_blocks()
    assert len(records.packet_start) == between * count + 3
    assert records.link_type[-4:].tolist() == ([1] * 4 if between else [1] * 3)
    assert set(records.link_type[:-4].tolist()) <= {-1}


@pytest.mark.parametrize("block_bytes", [1, 150, 1 << 20])
def test_a_packet_uses_what_was_described_before_it_alone(block_bytes):
    early, late = RECORDS[1], RECORDS[2]
    blocks = [
        c.section(), c.enhanced(early, tsresol=9), c.simple(early), c.interface(tsresol=9, snaplen=5, link=c.RAW),
        c.enhanced(late, number=1), c.enhanced(late, tsresol=9), c.interface(), c.enhanced(late, number=1),
    ]  # fmt: skip
    _, got = read(c.assemble(blocks, [early, early, late, late, late]).data, None, block_bytes)
    micro = late.time_ns // 1000 * 1000
    unknown = got[2][
        4
    ]  # read with another interface's resolution: the packet has no link type, and its time is not used
    assert [(row[4], row[5]) for row in got] == [
        (NO_TIME, -1), (NO_TIME, -1), (unknown, -1), (late.time_ns, c.RAW), (micro, c.ETHERNET),
    ]  # fmt: skip


# -- identity of every container --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("name", FILES)
def test_the_identity_of_every_container_cut_anywhere(name, compress):
    file = FILES[name]
    end = file.first_record_end
    for cut in {0, 3, 23, 24, 30, end - 1, end, end + 1, len(file.data)}:
        source = FileSource.from_bytes(compress(file.data[:cut]), "/c/1")
        assert capture_key(source) == (key(file.data[:end]) if cut >= end else key("/c/1"))


def test_the_first_packet_behind_much_else():
    blocks = [c.section(), c.interface(), c.block("<", 4, bytes(200_000)), *(c.enhanced(r) for r in RECORDS)]
    file = c.assemble(blocks, RECORDS)
    begun = read_capture_start(FileSource.from_bytes(file.data, "/c/1"))
    assert begun.key == key(file.data[: file.first_record_end])
    assert begun.first_packet_ns == RECORDS[0].time_ns // 1000 * 1000
    assert begun.first_packet_hash is not None
    assert begun.first_packet_hash.key_with_fields("/c/1") == key(file.data[: file.first_record_end], "/c/1")


def test_a_prefix_without_a_packet_has_no_key():
    with pytest.raises(ValueError, match="first packet"):
        FirstPacketHash().key_with_fields("/c/1")


def test_a_packet_without_a_time():
    file = c.assemble([c.section(), c.interface(snaplen=99), c.simple(RECORDS[1])], RECORDS[1:2])
    begun = read_capture_start(FileSource.from_bytes(file.data, "/c/1"))
    assert (begun.first_packet_ns, begun.key) == (None, key(file.data[: file.first_record_end]))
