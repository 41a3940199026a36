"""What msmq.lua does besides: filters, other ports, preferences, one pass, links, sealed calls, Lua 5.4."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace

import pytest

from pcapgen.containers import pcap
from pcapgen.exchanges import recorded, tap
from tools.write_dissector import tables
from wireshark.shown import DISSECTOR, LUA_ERROR, run_tshark, trees


@pytest.fixture
def recording(project):
    def find(name):
        (path,) = (project / "data").glob(f"*/{name}*.pcap*")
        return path

    return find


@pytest.mark.tool("luac5.4")
def test_lua_5_4_parses_it():
    subprocess.run(["luac5.4", "-p", str(DISSECTOR)], check=True)


def test_it_uses_nothing_that_lua_5_2_or_5_4_lacks():
    code = "\n".join(line.partition("--")[0] for line in DISSECTOR.read_text(encoding="ascii").splitlines())
    for name in ("bit32", "bit.", "unpack(", "setfenv", "loadstring", "utf8.", "math.pow", "<const>", " >> ", " << "):
        assert name not in code, name


@pytest.mark.tool("tshark")
@pytest.mark.parametrize(
    ("name", "condition", "frames"),
    [
        ("01-handshakes", 'msmq.label == "by name"', 1),
        ("01-handshakes", 'msmq.kind == "establish_connection"', 13),
        ("01-remoteread", "msmq.hresult == 0xc00e001b", 3),
        ("01-remoteread", r'msmq.queue == "srv1\\private$\\empty"', 20),
        ("04-administration", "msmq.class & 0x8000", 19),
        ("07-faults", 'msmq.fault_name == "nca_s_op_rng_error"', 1),
    ],
)
def test_filters_have_the_names_of_columns(recording, name, condition, frames):
    shown = run_tshark(recording(name), "-Y", condition, "-T", "fields", "-e", "frame.number").split()
    assert len(shown) == frames


def test_every_filter_is_declared_once():
    names = [row["abbr"] for row in tables()["fields"]]
    assert len(names) == len(set(names)) > 200
    assert all(name == name.lower() and name.startswith("msmq.") for name in names)


@pytest.mark.tool("tshark")
def test_sessions_on_other_ports_are_found_by_their_first_packet(recording, tmp_path):
    talks = recorded(recording("03-transactions"))
    path = tmp_path / "other.pcap"
    path.write_bytes(
        pcap(tap([replace(each, flow=replace(each.flow, server_port=4000)) for each in talks]).records).data
    )
    expected = Counter(tree.one("kind") for tree in trees(recording("03-transactions")))
    assert Counter(tree.one("kind") for tree in trees(path)) == expected


@pytest.mark.tool("tshark")
def test_ports_and_calls_are_preferences(recording, tmp_path):
    talks = recorded(recording("10-mid-stream"))
    path = tmp_path / "other.pcap"
    path.write_bytes(
        pcap(tap([replace(each, flow=replace(each.flow, server_port=4000)) for each in talks]).records).data
    )
    begun_before = len(trees(recording("10-mid-stream")))
    found_by_first_packet = len(trees(path))
    assert found_by_first_packet < begun_before == len(trees(path, ("-o", "msmq.tcp_ports:4000")))
    assert trees(recording("01-remoteread"), ("-o", "msmq.rpc:FALSE")) == []


@pytest.mark.tool("tshark")
def test_one_pass_shows_the_same_without_links_to_later_packets(recording):
    path = recording("03-transactions")
    command = ["tshark", "-n", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), "-Y", "msmq", "-T", "fields"]
    fields = [item for name in ("msmq.kind", "msmq.label", "msmq.session_number") for item in ("-e", name)]
    once = subprocess.run([*command, *fields], capture_output=True, text=True, check=True).stdout
    assert once == run_tshark(path, "-Y", "msmq", "-T", "fields", *fields)
    links = subprocess.run([*command, "-e", "msmq.session_acked_by"], capture_output=True, text=True, check=True).stdout
    assert links.split() == []


@pytest.mark.tool("tshark")
def test_acknowledgements_are_linked_to_messages(recording):
    found = trees(recording("03-transactions"))
    by_frame = {tree.frame: tree for tree in found if tree.one("kind")}
    acks = [tree for tree in found if tree.one("kind") in {"order_ack", "final_ack"}]
    linked = 0
    for ack in acks:
        for frame in ack.values.get("msmq.message_packet", []):
            message = by_frame[int(frame)]
            assert str(ack.frame) in message.values["msmq.acknowledgement_packet"]
            assert message.one("transaction_sequence_id") == ack.one("transaction_sequence_id")
            numbers = int(message.one("transaction_number")), int(ack.one("transaction_number"))
            assert numbers[0] == numbers[1] or (ack.one("kind") == "order_ack" and numbers[0] < numbers[1])
            linked += 1
    assert linked >= len(acks) > 10


@pytest.mark.tool("tshark")
def test_of_sealed_calls_interface_and_method_are_shown_and_no_parameters(recording):
    names = ("msmq.method", "msmq.outcome", "msmq.hresult", "msmq.message_id", "msmq.packet_bytes")
    fields = [item for name in names for item in ("-e", name)]
    lines = run_tshark(recording("05-sealed"), "-Y", "msmq.expert.sealed", "-T", "fields", *fields).splitlines()
    assert len(lines) > 30
    for line in lines:
        method, outcome, *parameters = line.split("\t")
        assert method != ""
        assert outcome in {"", "encrypted"}
        assert set(parameters) == {""}


@pytest.mark.tool("tshark")
@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.long)])
def test_other_traffic_is_not_taken_for_message_queuing(captures, step):
    """97 captures of others, of which none has MSMQ; some are damaged, so that tshark ends with an error."""
    paths = sorted(path for path in captures.glob("*/*") if path.is_file())
    assert len(paths) >= 97
    for path in paths[::step]:
        command = [
            "tshark",
            "-n",
            "-2",
            "-X",
            f"lua_script:{DISSECTOR}",
            "-r",
            str(path),
            "-Y",
            "msmq || _ws.lua.error",
        ]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.stdout == b"", path
        assert LUA_ERROR.encode() not in done.stderr, path
