"""Damaged, truncated, empty and foreign files: a ledger row with status and reason, and no other row is lost."""

from __future__ import annotations

import gzip
import struct

import pytest
import zstandard

from pcapgen import containers as c
from pcapgen.conversation import records, segments
from pcapgen.reading import calls, capture_files_row, read_rows
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture

DIALOGUE = remote_read_dialogue()
PARTS = segments(DIALOGUE.script)
FILE, TRUTH = capture_dialogue(DIALOGUE)
NG = c.pcapng(records(DIALOGUE.flow, PARTS))
COUNT = len(PARTS)


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"not a capture at all, but a text of some length\n" * 20,
        b"\xd4\xc3\xb2\xa1",
        FILE.data[:23],
        NG.data[:20],
        b"\x1f\x8b",
        gzip.compress(b""),
        gzip.compress(b"hello"),
        gzip.compress(FILE.data)[:12],
        zstandard.ZstdCompressor().compress(b"hello"),
        zstandard.ZstdCompressor().compress(FILE.data)[:9],
        b"\x28\xb5\x2f\xfd" + bytes(50),
        struct.pack("<II", 0x0A0D0D0A, 0xFFFFFFFC) + struct.pack("<I", 0x1A2B3C4D) + bytes(16),
        struct.pack("<II", 0x0A0D0D0A, 0) + struct.pack("<I", 0x1A2B3C4D) + bytes(16),
        FILE.data[:24] + b"\xff" * 16,
    ],
    ids=lambda data: f"{len(data)}-{data[:4].hex()}",
)
def test_a_file_without_a_record_is_unreadable_and_says_why(data):
    tables = read_rows(data)
    row = capture_files_row(tables)
    assert (row["status"], row["packets"], row["path"]) == ("unreadable", 0, "memory.pcap")
    assert row["error"]
    assert row["size_bytes"] == len(data)
    assert [name for name, rows in tables.items() if rows] == ["capture_files"]


def test_a_file_of_0_bytes_is_empty():
    row = capture_files_row(read_rows(b""))
    assert (row["status"], row["error"], row["packets"]) == ("empty", "the file has 0 bytes so far", 0)


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"PK\x03\x04", "a zip archive: unpack it first"),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive: unpack it first"),
        (b"GMBU", "a Network Monitor capture: convert it with editcap"),
        (b"RTSS", "a Network Monitor capture: convert it with editcap"),
        (b"snoop\0\0\0", "a snoop capture: convert it with editcap"),
        (b"\xac\x01\0\x1c", "an IXIA capture: convert it with editcap"),
        (struct.pack("<I", 65_536) + bytes(68) + b"\x02\0\x02\xc0", "an ETL trace: convert it with etl2pcapng"),
        (struct.pack("<I", 65_536) + bytes(68) + b"\x02\0\x01\xc0", "an ETL trace: convert it with etl2pcapng"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_formats_of_others_are_named_with_what_to_do(head, error, compress):
    row = capture_files_row(read_rows(compress(head + bytes(range(1, 100)))))
    assert (row["status"], row["error"][: len(error)]) == ("unreadable", error)


@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
@pytest.mark.parametrize("zeros", [16, 4096, (1 << 20) + 5])
@pytest.mark.parametrize("data", [FILE.data, NG.data], ids=["pcap", "pcapng"])
def test_zeros_at_the_end_are_damage_where_they_begin(data, zeros, block_bytes):
    rows = read_rows(data + bytes(zeros), block_bytes=block_bytes)
    row = capture_files_row(rows)
    assert (row["status"], row["packets"]) == ("partial", COUNT)
    assert f"zero bytes from the record at byte {len(data)} on" in row["error"]
    whole = read_rows(data)
    for name in ("first_packet_at", "last_packet_at", "packets_used"):
        assert row[name] == capture_files_row(whole)[name]
    assert calls(rows) == calls(whole)
    (ledger,) = read_capture(data + bytes(zeros))["capture_files"].to_pylist()
    assert (ledger["damage"], ledger["content_bytes"], ledger["resume"]) == ("zero_tail", len(data), None)


def test_zeros_between_records_are_packets_without_bytes():
    """As tshark counts them."""
    at = FILE.frame_offsets[6] - 16
    row = capture_files_row(read_rows(FILE.data[:at] + bytes(48) + FILE.data[at:]))
    assert (row["packets"], row["status"]) == (COUNT + 3, "complete")


def test_a_block_that_was_written_in_part_before_zeros():
    at = NG.frame_offsets[5] - 28
    row = capture_files_row(read_rows(NG.data[: at + 50] + bytes(len(NG.data) - at - 50)))
    assert (row["packets"], row["status"]) == (5, "partial")
    assert f"zero bytes from the record at byte {at} on" in row["error"]


def test_a_file_of_zeros_alone_says_so():
    row = capture_files_row(read_rows(bytes(5000)))
    assert (row["status"], row["error"]) == (
        "unreadable", "its first 24 bytes are zero: nothing was written to it so far"
    )  # fmt: skip


@pytest.mark.parametrize(
    "data", [c.pcap([]).data, c.section() + c.interface(), c.section()], ids=["pcap", "idb", "shb"]
)
def test_a_capture_of_no_packets_is_known_by_its_path(data):
    row = capture_files_row(read_rows(data))
    assert row["packets"] == 0
    assert row["first_packet_at"] is None


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 60])
def test_a_last_record_cut_short_is_partial_and_the_others_stand(cut):
    """The last packet is the client's ACK of the FIN, so that no call is affected."""
    end = FILE.frame_offsets[-1] - 16
    tables = read_rows(FILE.data[: min(end + cut, len(FILE.data) - 1)])
    row = capture_files_row(tables)
    assert (row["status"], row["packets"], row["capture_id"]) == ("partial", COUNT - 1, TRUTH.capture_id)
    assert row["error"]
    assert calls(tables) == TRUTH.calls()


@pytest.mark.parametrize("cut", [1, 4, 11, 12, 40])
def test_a_last_block_of_pcapng_cut_short_is_partial(cut):
    tables = read_rows(NG.data[:-cut])
    row = capture_files_row(tables)
    assert (row["status"], row["packets"]) == ("partial", COUNT - 1)
    assert [call["outcome"] for call in calls(tables)] == [row["outcome"] for row in TRUTH.calls()]


@pytest.mark.parametrize("at", range(0, len(FILE.data), 211))
def test_a_pcap_cut_anywhere_keeps_what_came_before(at):
    tables = read_rows(FILE.data[:at])
    row = capture_files_row(tables)
    whole = sum(
        offset + len(record.frame) <= at for offset, record in zip(FILE.frame_offsets, FILE.records, strict=True)
    )
    assert row["packets"] == whole
    at_edge = at == 24 or any(at == o + len(r.frame) for o, r in zip(FILE.frame_offsets, FILE.records, strict=True))
    if whole:
        assert row["status"] == ("complete" if at_edge else "partial")
        assert row["capture_id"] == TRUTH.capture_id


def test_damage_inside_a_pcap_leaves_the_records_before_it():
    """A record header with impossible lengths: the file is damaged inside."""
    at = FILE.frame_offsets[6] - 16
    data = FILE.data[:at] + b"\xff" * 16 + FILE.data[at + 16 :]
    row = capture_files_row(read_rows(data))
    assert row["status"] == "partial"
    assert row["packets"] >= 6
    assert row["error"]


def test_a_pcapng_block_with_a_wrong_trailer_is_damage():
    data = bytearray(NG.data)
    at = NG.frame_offsets[5] - 28
    size = struct.unpack_from("<I", data, at + 4)[0]
    struct.pack_into("<I", data, at + size - 4, size + 4)
    row = capture_files_row(read_rows(bytes(data)))
    assert row["packets"] >= 5
    assert row["status"] == "partial"


def test_a_packet_of_an_interface_that_was_not_described_is_counted():
    taken = records(DIALOGUE.flow, PARTS)
    blocks = [c.section(), c.interface(), *(c.enhanced(r, number=5 if i == 0 else 0) for i, r in enumerate(taken))]
    row = capture_files_row(read_rows(c.assemble(blocks, taken)))
    assert row["packets"] == COUNT
    assert row["packets_used"] < COUNT


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_expansion_is_bounded(compress):
    """A gigabyte of zeros in a megabyte: read in bounded memory, refused or counted."""
    head = c.pcap(records(DIALOGUE.flow, PARTS)).data
    bomb = compress(head + bytes(256 << 20))
    row = capture_files_row(read_rows(bomb))
    assert row["status"] in {"partial", "complete"}
    assert row["packets"] >= COUNT
