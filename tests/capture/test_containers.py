"""Every file format, byte order, time resolution and compression gives the same packets, times and calls."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
import zstandard

from example_counts import one_in
from pcapgen import containers as c
from pcapgen import frames
from pcapgen.conversation import records, segments
from pcapgen.model import ExpectedRows
from pcapgen.reading import binds, calls, capture_files_row, read_rows, sort_rows, tables_to_rows
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture

DIALOGUE = remote_read_dialogue()
PARTS = segments(DIALOGUE.script)
COUNT = len(PARTS)


def check(file: c.CaptureFile, parts=PARTS, **facts) -> None:
    """Compare the whole tables of calls, binds and connections, and the counts of the ledger."""
    truth = ExpectedRows(DIALOGUE, parts, file)
    tables = read_rows(file)
    assert calls(tables) == truth.calls()
    assert tables["connections"] == [truth.connection()]
    assert binds(tables) == truth.binds()
    assert tables["quarantine"] == []
    row = capture_files_row(tables)
    expected = {
        "capture_id": truth.capture_id,
        "path": "memory.pcap",
        "other_paths": None,
        "size_bytes": len(file.data),
        "format": "pcap",
        "compression": None,
        "link_types": [1],
        "packets": COUNT,
        "packets_tcp": COUNT,
        "packets_truncated": 0,
        "packets_used": COUNT,
        "packets_other": 0,
        "packets_damaged": 0,
        "packets_binary_protocol": 0,
        "packets_dropped": None,
        "bytes_read": len(file.data),
        "first_packet_at": min(part.time_ns for part in parts) // 1000,
        "last_packet_at": max(part.time_ns for part in parts) // 1000,
        "status": "complete",
        "error": None,
        **facts,
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", [c.MICROSECONDS, c.NANOSECONDS, c.MODIFIED])
def test_pcap_of_any_byte_order_and_magic(order, magic):
    check(c.pcap(records(DIALOGUE.flow, PARTS), order=order, magic=magic))


def test_times_below_a_microsecond_are_floored():
    parts = [part.shifted(999) for part in PARTS]
    check(c.pcap(records(DIALOGUE.flow, parts), magic=c.NANOSECONDS), parts)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("tsresol", "tsoffset"), [(None, None), (6, None), (9, None), (3, None), (0, None), (0x94, None), (0x9E, 0),
                              (6, 1_600_000_000), (9, -3600), (12, 1_699_999_000)]
)  # fmt: skip
def test_pcapng_of_any_resolution_and_offset(order, tsresol, tsoffset):
    resolution = 6 if tsresol is None else tsresol
    per_second = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    offset = tsoffset or 0
    parts = [
        replace(
            part,
            time_ns=c.units(part.time_ns, resolution, offset) * 1_000_000_000 // per_second + offset * 1_000_000_000,
        )
        for part in PARTS
    ]
    file = c.pcapng(records(DIALOGUE.flow, PARTS), order=order, tsresol=tsresol, tsoffset=tsoffset)
    check(file, parts, format="pcapng")


@pytest.mark.parametrize("tsresol", one_in(7, range(256)))
def test_pcapng_times_that_cannot_be_represented_are_none(tsresol):
    """Every resolution, with offsets and counts up to the largest: a time in range, or none."""
    base = 2 if tsresol & 0x80 else 10
    for offset in (0, 1 << 33, 1 << 40, -(1 << 63), (1 << 63) - 1):
        for ticks in (5, (0x7FFFFFFF << 32) + 5, (1 << 64) - 1):
            packet = c.block("<", 6, struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, 60, 60) + bytes(60))
            data = c.section() + c.interface(tsresol=tsresol, tsoffset=offset) + packet
            row = capture_files_row(read_rows(data))
            time_ns = ticks * 10**9 // base ** (tsresol & 0x7F) + offset * 10**9
            expected = time_ns // 1000 if -(1 << 62) < time_ns < 1 << 62 else None
            assert (row["packets"], row["status"], row["first_packet_at"]) == (1, "complete", expected)


@pytest.mark.parametrize("order", "<>")
def test_pcapng_of_every_kind_of_block(order):
    taken = records(DIALOGUE.flow, PARTS)
    middle = COUNT // 2
    blocks = [
        c.section(order, options=c.option(order, 4, b"builder") + bytes(4)),
        c.interface(order),
        c.block(order, 0x0BAD, b"\x01\x02\x03\x04"),  # custom block, skipped
        c.block(order, 4, bytes(4)),  # name resolution, empty
        *(c.enhanced(record, order, options=c.option(order, 2, b"\0\0\0\x01") + bytes(4)) for record in taken[:middle]),
        c.block(order, 0x40001234, b"local use only!!"),
        *(c.obsolete(record, order) for record in taken[middle:]),
        c.statistics(order, drops=7),
    ]
    check(c.assemble(blocks, taken), format="pcapng", packets_dropped=7)


def test_sections_of_both_byte_orders_and_interfaces_of_several_links_in_one_file():
    linked = [frames.ethernet, frames.sll, lambda packet: packet]
    taken = []
    for index, record in enumerate(records(DIALOGUE.flow, PARTS, lambda packet: packet)):
        taken.append(replace(record, frame=linked[index % 3](record.frame)))
    middle = COUNT // 2

    def interfaces(order):
        return [
            c.interface(order, link=c.ETHERNET, tsresol=9),
            c.interface(order, link=c.SLL),
            c.interface(order, link=c.RAW, tsresol=3, tsoffset=0),
        ]

    resolutions = (9, 6, 3)

    def packet(index, order):
        return c.enhanced(taken[index], order, number=index % 3, tsresol=resolutions[index % 3])

    blocks = [c.section("<"), *interfaces("<"), *(packet(index, "<") for index in range(middle))]
    blocks += [c.section(">"), *interfaces(">"), *(packet(index, ">") for index in range(middle, COUNT))]
    blocks += [c.statistics(">", number=0, drops=2), c.statistics(">", number=1, drops=3)]
    file = c.assemble(blocks, taken)
    parts = [
        replace(part, time_ns=part.time_ns // 1_000_000 * 1_000_000) if index % 3 == 2 else part
        for index, part in enumerate(PARTS)
    ]
    tables = read_rows(file)
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"], row["link_types"]) == (COUNT, COUNT, [1, 101, 113])
    assert row["packets_dropped"] == 5
    got = [(call["call_id"], call["request_stub"], call["response_stub"], call["outcome"]) for call in calls(tables)]
    assert got == [
        (call.call_id, call.request.stub, call.response.stub, "ok" if call.fault is None else "fault")
        for call in DIALOGUE.calls
    ]
    firsts = {part.time_ns // 1000 for part in parts}
    assert {call["request_at"] for call in calls(tables)} <= firsts


def test_statistics_repeated_for_an_interface_count_once():
    taken = records(DIALOGUE.flow, PARTS)
    blocks = [c.section(), c.interface(), *(c.enhanced(record) for record in taken)]
    blocks += [c.statistics(drops=3), c.statistics(drops=9)]
    assert (
        capture_files_row(read_rows(c.assemble(blocks, taken)))["packets_dropped"] == 9
    )  # counters since the capture began


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("drops", "told"), [((0xFFFF, 0xFFFF), None), ((3, 0xFFFF), 3), ((3, 4), 7), ((0, 0), 0), ((0xFFFE, 2), 0x10000)]
)
def test_drops_that_obsolete_packet_blocks_count(order, drops, told):
    taken = records(DIALOGUE.flow, PARTS)
    kinds = [c.obsolete(record, order, drops=drops[0] if n == 2 else 0xFFFF) for n, record in enumerate(taken)]
    kinds[5] = c.obsolete(taken[5], order, drops=drops[1])
    row = capture_files_row(read_rows(c.assemble([c.section(order), c.interface(order), *kinds], taken)))
    assert (row["packets"], row["packets_dropped"]) == (COUNT, told)


def test_simple_packet_blocks_have_no_time_but_their_bytes():
    taken = records(DIALOGUE.flow, PARTS)
    blocks = [c.section(), c.interface(snaplen=65535), *(c.simple(record) for record in taken)]
    tables = read_rows(c.assemble(blocks, taken))
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"], row["first_packet_at"], row["last_packet_at"]) == (
        COUNT,
        COUNT,
        None,
        None,
    )
    assert [(call["call_id"], call["outcome"], call["request_at"]) for call in calls(tables)] == [
        (call.call_id, "ok" if call.fault is None else "fault", None) for call in DIALOGUE.calls
    ]


def test_a_simple_packet_block_is_as_long_as_the_snaplen_allows():
    frame = records(DIALOGUE.flow, PARTS)[3].frame
    cut = c.Record(0, frame[:60], len(frame))
    blocks = [c.section(), c.interface(snaplen=60), c.simple(cut)]
    row = capture_files_row(read_rows(c.assemble(blocks, [cut])))
    assert (row["packets"], row["packets_truncated"], row["status"]) == (1, 1, "complete")


ZSTD = zstandard.ZstdCompressor().compress
SKIPPED = struct.pack("<II", 0x184D2A5A, 70_000) + bytes(70_000)  # a skippable frame, as pzstd writes them


def lz4(data):
    return pa.Codec("lz4").compress(data, asbytes=True)


def _gzip_of(data, size):
    """A member of a size: its header has a comment that fills it up."""
    packed = gzip.compress(data, mtime=0)
    return packed[:3] + b"\x10" + packed[4:10] + b"c" * (size - len(packed) - 1) + b"\0" + packed[10:]


COMPRESSIONS = {
    "gzip": gzip.compress, "zstd": ZSTD, "bzip2": bz2.compress, "xz": lzma.compress, "lz4": lz4,
}  # fmt: skip
SEVERAL_FRAMES = {
    "zstd skippable first": lambda data: SKIPPED + ZSTD(data[:999]) + SKIPPED[:4] + bytes(4) + ZSTD(data[999:]),
    "lz4 skippable first": lambda data: SKIPPED + lz4(data[:999]) + SKIPPED + lz4(data[999:]),
    "gzip streams": lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]),
    "gzip streams across reads": lambda data: _gzip_of(data[:999], (256 << 10) - 1) + gzip.compress(data[999:]),
    "bzip2 streams": lambda data: bz2.compress(data[:999]) + bz2.compress(data[999:]),
    "xz streams": lambda data: lzma.compress(data[:999]) + lzma.compress(data[999:]),
}


@pytest.mark.parametrize("name", [*COMPRESSIONS, *SEVERAL_FRAMES])
def test_compressed_files_are_the_same_capture(name):
    file, truth = capture_dialogue(DIALOGUE)
    packed = (COMPRESSIONS | SEVERAL_FRAMES)[name](file.data)
    tables = read_rows(packed)
    row = capture_files_row(tables)
    assert calls(tables) == truth.calls()
    assert (row["size_bytes"], row["bytes_read"], row["capture_id"]) == (len(packed), len(packed), truth.capture_id)
    assert (row["status"], row["compression"]) == ("complete", name.split()[0])


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_what_is_no_stream_behind_a_stream_is_damage(compress):
    """The streams behind it are not read, and the row says so."""
    file, _ = capture_dialogue(DIALOGUE)
    half = file.frame_offsets[len(file.frame_offsets) // 2] - 16
    row = capture_files_row(read_rows(compress(file.data[:half]) + b"garbage" + compress(file.data[half:])))
    last_chunk_lost = row["compression"] in ("zstd", "lz4")
    assert row["status"] == ("unreadable" if last_chunk_lost else "partial")
    assert row["packets"] == (0 if last_chunk_lost else len(file.frame_offsets) // 2)
    assert row["error"].startswith("the compressed stream: ")


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("zeros", [1, 511, 400_000])
def test_zeros_behind_a_stream_are_padding(name, zeros):
    file, truth = capture_dialogue(DIALOGUE)
    compress = COMPRESSIONS[name]
    tables = read_rows(compress(file.data[:1000]) + bytes(zeros) + compress(file.data[1000:]) + bytes(zeros))
    assert calls(tables) == truth.calls()
    assert capture_files_row(tables)["status"] == "complete"


def test_a_stream_that_asks_for_much_memory_is_damage():
    file, _ = capture_dialogue(DIALOGUE)
    large = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    row = capture_files_row(read_rows(lzma.compress(file.data, filters=large)))
    assert (row["status"], row["error"]) == ("unreadable", "the compressed stream: Memory usage limit exceeded")


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_a_compressed_file_that_ends_early_gives_what_it_has(compress):
    file, truth = capture_dialogue(DIALOGUE)
    packed = compress(file.data)
    tables = read_rows(packed[: len(packed) * 3 // 4])
    row = capture_files_row(tables)
    assert row["status"] in {"partial", "unreadable"}
    assert row["error"].startswith("the compressed stream: ")
    (whole,) = read_capture(packed[: len(packed) * 3 // 4])["capture_files"].to_pylist()
    assert whole["damage"] == "cut_short"
    if row["status"] == "partial":
        assert row["capture_id"] == truth.capture_id


def test_a_file_read_from_disk_says_its_path(tmp_path):
    file, truth = capture_dialogue(DIALOGUE)
    path = tmp_path / "name without suffix"
    path.write_bytes(file.data)
    tables = tables_to_rows(read_capture(str(path), path=str(path)))
    assert calls(tables) == truth.calls()
    assert capture_files_row(tables)["path"] == str(path)


@pytest.mark.parametrize("block_bytes", [1 << 10, 4 << 10, 64 << 10])
def test_the_size_of_a_block_does_not_matter(block_bytes):
    file, _ = capture_dialogue(remote_read_dialogue(size=20_000, cuts=(5816, 5816, 5816)))
    one, many = (_sorted(read_rows(file, all_pdus=True, **options)) for options in ({}, {"block_bytes": block_bytes}))
    assert many == one


def _sorted(tables):
    return {**tables, "rpc_calls": calls(tables), "pdus": sort_rows(tables["pdus"], "packet_number", "call_id")}
