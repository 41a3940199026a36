"""Names of addresses in name resolution blocks of pcapng files: all are read, in whatever parts, and no bad one."""

from __future__ import annotations

import json
import struct

import pytest

from pcapgen import containers as c
from pcapgen.conversation import records, segments
from pcapgen.reading import capture_files_row, read_rows
from pcapgen.scenarios import remote_read_dialogue
from pipeline.bronze.capture_parts import join_rows_of_parts
from udfs.capture.capture_reader import CaptureReadRequest, read_capture
from udfs.files.capture_file import MAX_HOST_NAMES

DIALOGUE = remote_read_dialogue()
TAKEN = records(DIALOGUE.flow, segments(DIALOGUE.script))


def capture(*blocks, order="<", behind=()):
    packets = [c.enhanced(record, order) for record in TAKEN]
    return c.assemble([c.section(order), c.interface(order), *blocks, *packets, *behind], TAKEN)


def names(data):
    row = capture_files_row(read_rows(data))
    assert (row["status"], row["packets"]) == ("complete", len(TAKEN))
    return row["host_names"] and [(each["address"], each["name"]) for each in row["host_names"]]


@pytest.mark.parametrize("order", "<>")
def test_names_of_all_blocks_of_a_file(order):
    first = c.host_names(order, ("10.0.0.2", b"srv2"), ("10.0.0.1", b"srv1.example.com\0srv1"), ("fd00::7", b"srv7"))
    last = c.host_names(order, ("10.0.0.1", b"srv1"), ("10.0.0.1", b"till"))
    assert names(capture(first, order=order, behind=[last])) == [
        ("10.0.0.1", "srv1"), ("10.0.0.1", "srv1.example.com"), ("10.0.0.1", "till"), ("10.0.0.2", "srv2"),
        ("fd00::7", "srv7"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(4),
        struct.pack("<HH", 1, 4) + bytes([10, 0, 0, 1]),  # no name
        struct.pack("<HH", 1, 5) + bytes([10, 0, 0, 1, 0, 0, 0, 0]),  # an empty one
        struct.pack("<HH", 1, 400) + bytes([10, 0, 0, 1]) + b"srv1",  # longer than the block
        struct.pack("<HH", 3, 8) + b"\0\0\0\0\0\1ab",  # of an Ethernet address
        struct.pack("<HH", 1, 260) + bytes([10, 0, 0, 1]) + b"n" * 256,  # longer than a name of a host can be
    ],
)
def test_what_is_no_name_is_not_read(body):
    assert names(capture(c.block("<", 4, body))) is None


def test_a_name_that_is_not_utf_8():
    assert names(capture(c.host_names("<", ("10.0.0.1", b"srv\xff")))) == [("10.0.0.1", "srv\ufffd")]


def test_of_very_many_names_the_first_in_their_order_stay():
    every = [(f"10.0.{number >> 8}.{number & 255}", b"srv") for number in range(3000)]
    expected = [(address, "srv") for address in sorted(address for address, _ in every)[:MAX_HOST_NAMES]]
    assert names(capture(c.host_names("<", *every))) == expected
    assert names(capture(*(c.host_names("<", each) for each in every[::-1]))) == expected


def test_the_names_of_parts_are_those_of_the_whole():
    blocks = [c.host_names("<", ("10.0.0.1", b"srv1"))], [c.host_names("<", ("10.0.0.2", b"srv2"))]
    whole = capture(*blocks[0], behind=blocks[1])
    end = len(whole.data) - len(blocks[1][0])
    first = read_capture(whole.data, request=CaptureReadRequest(end_offset=end))["capture_files"].to_pylist()[0]
    assert json.loads(first["resume"])["offset"] == end
    request = CaptureReadRequest(first["capture_id"], first["resume"])
    rest = read_capture(whole.data, request=request)["capture_files"].to_pylist()[0]
    assert [each["name"] for each in rest["host_names"]] == ["srv2"]
    assert join_rows_of_parts([first, rest])["host_names"] == capture_files_row(read_rows(whole))["host_names"]
