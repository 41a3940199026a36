"""Parts of an export: sorting in pieces, names of machines at a time, what the writer of pcapng can say."""

from __future__ import annotations

import subprocess

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import TEXTS
from memory_lake import MemoryLake
from pipeline.reports.packet_export import sorted_packets
from pipeline.reports.packet_export.captured_packets import CapturedPacket
from pipeline.reports.packet_export.comments import describe_call, describe_packet
from pipeline.reports.packet_export.host_names import NamesAtTime, find_names
from pipeline.reports.packet_export.pcapng_file import ExportLimits, write_packets
from pipeline.reports.packet_export.plan import ExportPlan
from pipeline.reports.packet_export.sorted_packets import PacketSorter
from schemas.hosts import HOSTS
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import CaptureFileReader, HostName
from udfs.files.pcapng_writer import PcapngWriter
from udfs.times import us_to_datetime

PACKETS = st.builds(
    CapturedPacket,
    st.sampled_from([NO_TIME, 0, 1, 2, 3 << 60]), st.sampled_from("ab"), st.integers(1, 9), st.just(1), st.just(0),
    st.binary(max_size=9), st.text(st.characters(codec="utf-8"), max_size=3),
)  # fmt: skip


@given(packets=st.lists(PACKETS, max_size=60), most=st.none() | st.integers(1, 40), files=st.integers(2, 5))
def test_sorted_in_pieces_as_at_once(tmp_path_factory, packets, most, files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_packets, "_MAX_FILES", files)
        patch.setattr(sorted_packets, "_BATCH_BYTES", 1000)
        folder = tmp_path_factory.mktemp("pieces")
        sorter = PacketSorter(folder, most, piece_bytes=1500)
        sorter.add(packets)
        assert list(sorter.packets()) == sorted(packets)[:most]
        assert sorter.count == len(packets)
        assert len(list(folder.iterdir())) <= files


def named(*rows):
    """Return a lake in which addresses have names, each from one time to another, in microseconds."""
    names = ("address", "host_name", "first_seen_at", "last_seen_at")
    times = [(address, name, us_to_datetime(first), us_to_datetime(last)) for address, name, first, last in rows]
    return MemoryLake(
        {HOSTS: pa.table({name: list(column) for name, column in zip(names, zip(*times, strict=True), strict=True)})}
    )


@pytest.mark.parametrize(
    ("since", "until", "names"),
    [
        (0, 5, ["one"]),  # the first name holds before it was seen
        (15, 25, ["one"]),
        (45, 45, ["one"]),  # until the next one is seen
        (55, 60, ["two"]),
        (99, 999, ["two"]),
        (20, 60, ["one", "two"]),
    ],
)
def test_the_name_of_an_address_at_a_time(since, until, names):
    lake = named(("10.0.0.1", "ONE", 10, 20), ("10.0.0.1", "one", 12, 30), ("10.0.0.1", "two", 50, 60))
    found = find_names(lake, ["10.0.0.1", "10.0.0.2"], since, until)
    assert found.names == ([HostName("10.0.0.1", names[0])] if len(names) == 1 else [])
    assert found.doubtful == ({"10.0.0.1": names} if len(names) > 1 else {})


def test_names_seen_in_turns_are_in_doubt():
    lake = named(("10.0.0.1", "one", 10, 40), ("10.0.0.1", "two", 20, 60))
    assert find_names(lake, ["10.0.0.1"], 45, 50).doubtful == {"10.0.0.1": ["one", "two"]}


@pytest.mark.tool("tshark", "capinfos")
def test_names_and_comments_in_a_file(tmp_path):
    path = tmp_path / "out.pcapng"
    with path.open("wb") as out:
        writer = PcapngWriter(out, "test", "10.0.0.3 is one or two")
        writer.write_names([HostName("10.0.0.1", "srv1"), HostName("fd00::1", "srv6")])
        writer.write_names([])
        packet = bytes.fromhex("45000028000000004006000000000000") + bytes([10, 0, 0, 1]) + bytes(20)
        writer.write_packet(
            101, 10**18, packet[:12] + bytes([10, 0, 0, 2, 10, 0, 0, 1]) + bytes(20), 40, "\u00e4" * 40_000
        )
    with path.open("rb") as stream:
        reader = CaptureFileReader(stream, 1 << 20)
        assert sum(len(block.time_ns) for block in reader.read_blocks()) == 1
    assert reader.host_names == {HostName("10.0.0.1", "srv1"), HostName("fd00::1", "srv6")}
    command = ["tshark", "-N", "n", "-r", path, "-T", "fields", "-e", "ip.dst_host", "-e", "frame.comment"]
    host, comment = subprocess.run(command, capture_output=True, check=True).stdout.decode().rstrip("\n").split("\t")
    assert host == "srv1"
    assert comment == "\u00e4" * 32_767  # 65,534 bytes
    assert (
        "10.0.0.3 is one or two" in subprocess.run(["capinfos", path], capture_output=True, check=True).stdout.decode()
    )


@pytest.mark.parametrize("text", TEXTS)
def test_comments_have_no_text_of_the_wire_as_it_is(text):
    """What a terminal obeys is escaped, and what is long is cut."""
    names = ("object", "queue", "action", "timeout_ms", "request_id", "lookup_id", "ack", "label", "hresult_name")
    call = dict.fromkeys((*names, "fault_name", "opnum", "interface_name", "method", "outcome"))
    said = describe_call({**call, "call_key": "k", "queue": text * 99, "label": text})
    assert said.startswith("unknown interface unknown method(queue=")
    assert said.endswith("; call k")
    assert said.isprintable()
    packet = dict.fromkeys(("queue", "message_id", "session_number", "transaction_number", "class_name"))
    said = describe_packet(
        {**packet, "kind": "user_message", "label": text, "is_acknowledged": False, "packet_key": "p"}
    )
    assert said.startswith("user_message(label=")
    assert said.endswith(" -> not acknowledged; packet p")
    assert said.isprintable()


@pytest.mark.tool("capinfos")
def test_an_address_with_two_names_is_a_comment_and_no_name(tmp_path):
    hosts = NamesAtTime([HostName("10.0.0.1", "srv1")], {"10.0.0.3": ["one", "two"]})
    plan = ExportPlan({}, {}, names=set(), unknown=[], without_packets=[], hosts=hosts)
    with (tmp_path / "out.pcapng").open("wb") as out:
        write_packets(plan, out, ExportLimits(1, 1), tmp_path)
    with (tmp_path / "out.pcapng").open("rb") as stream:
        reader = CaptureFileReader(stream, 1 << 20)
        assert sum(len(block.time_ns) for block in reader.read_blocks()) == 0
    assert reader.host_names == {HostName("10.0.0.1", "srv1")}
    shown = subprocess.run(["capinfos", tmp_path / "out.pcapng"], capture_output=True, check=True).stdout.decode()
    assert "Addresses with several names at that time: 10.0.0.3 is one or two" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["out.pcapng"]  # nothing is left of what was sorted
