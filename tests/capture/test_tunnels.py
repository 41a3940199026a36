"""Packets in tunnels and mirrors: what is inside counts once, as if it had been captured plain."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import OF_THE_RUN, PLACES, differences, equal
from capture.merge.cutting import cut, evenly
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames, tunnels
from pcapgen.model import Dialogue
from pcapgen.scenarios import remote_read_dialogue
from udfs.capture.capture_reader import read_capture
from udfs.tcp.tunnels import MAX_DEPTH

FOUR = remote_read_dialogue(size=3000)
SIX = remote_read_dialogue(t.Flow(client="fe80::9", server="2001:db8::1"), size=3000)
Wrap = Callable[[bytes], bytes]


def on_ethernet(wrap: Wrap) -> Wrap:
    return lambda packet: frames.ethernet(wrap(packet))


KINDS: dict[str, tuple[Wrap, str, int | None]] = {
    "vxlan": (on_ethernet(tunnels.vxlan), "vxlan", 77),
    "vxlan of Linux": (on_ethernet(lambda packet: tunnels.vxlan(packet, port=8472)), "vxlan", 77),
    "vxlan over IPv6": (on_ethernet(lambda packet: tunnels.vxlan(packet, six=True)), "vxlan", 77),
    "vxlan behind a VLAN": (lambda packet: frames.ethernet(tunnels.vxlan(packet), vlans=((0x8100, 5),)), "vxlan", 77),
    "vxlan with a VLAN inside": (
        on_ethernet(lambda packet: tunnels.vxlan(packet, vlans=((0x88A8, 3), (0x8100, 4)))),
        "vxlan",
        77,
    ),
    "vxlan gpe": (on_ethernet(tunnels.vxlan_gpe), "vxlan_gpe", 78),
    "geneve": (on_ethernet(tunnels.geneve), "geneve", 79),
    "geneve without options": (on_ethernet(lambda packet: tunnels.geneve(packet, options=b"")), "geneve", 79),
    "gre": (on_ethernet(tunnels.gre), "gre", None),
    "gre with all": (on_ethernet(lambda packet: tunnels.gre(packet, key=9, number=4, checksum=True)), "gre", 9),
    "nvgre": (on_ethernet(tunnels.nvgre), "nvgre", 5001),
    "erspan 1": (on_ethernet(lambda packet: tunnels.erspan(packet, 1)), "erspan1", None),
    "erspan 2": (on_ethernet(lambda packet: tunnels.erspan(packet, 2)), "erspan2", 100),
    "erspan 3": (on_ethernet(lambda packet: tunnels.erspan(packet, 3)), "erspan3", 100),
    "mpls": (lambda packet: tunnels.mpls(packet, 16, 17), "mpls", 17),
    "mpls pseudowire": (lambda packet: tunnels.mpls(packet, 18, wire=True), "mpls", 18),
    "pppoe": (tunnels.pppoe, "pppoe", 12),
}


def capture(dialogue: Dialogue, wrap: Wrap) -> c.CaptureFile:
    return c.pcap(t.records(dialogue.flow, t.segments(dialogue.script), link=wrap))


def plain(dialogue: Dialogue) -> dict:
    return read_capture(c.pcap(t.records(dialogue.flow, t.segments(dialogue.script))).data)


def same_facts(tables: dict, others: dict, *, left_out: frozenset[str] = frozenset()) -> None:
    """Check that connections, binds and calls are equal; the identifier of a tunnel is in their keys."""
    keys = {"connection_id", "call_key", "bind_key", "tunnel_identifier", "pending_key"}
    lines = differences(
        tables, others, left_out=PLACES | OF_THE_RUN | keys | left_out, not_compared={"capture_files", "pending"}
    )
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("dialogue", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_inside_is_read(name, dialogue):
    wrap, kind, identifier = KINDS[name]
    found = read_capture(capture(dialogue, wrap).data)
    same_facts(found, plain(dialogue))
    assert found["connections"]["tunnel_identifier"].to_pylist() == [identifier]
    (row,) = found["capture_files"].to_pylist()
    assert {(each["kind"], each["identifier"]) for each in row["tunnels"]} == {(kind, identifier)}
    ends = {(each["source"], each["destination"]) for each in row["tunnels"]}
    assert ends <= {tunnels.OUTER, tunnels.OUTER6, (None, None)}
    keys = [set(tables["rpc_calls"]["call_key"].to_pylist()) for tables in (found, plain(dialogue))]
    assert (keys[0] == keys[1]) == (identifier is None)


@pytest.mark.parametrize(("dialogue", "six", "kind"), [
    (FOUR, False, "ipip"), (FOUR, True, "ipip"), (SIX, False, "6in4"), (SIX, True, "ipip"),
])  # fmt: skip
def test_ip_in_ip(dialogue, six, kind):
    found = read_capture(capture(dialogue, on_ethernet(lambda packet: tunnels.ip_in_ip(packet, six=six))).data)
    same_facts(found, plain(dialogue))
    assert {each["kind"] for each in found["capture_files"]["tunnels"][0].as_py()} == {kind}


def nested(depth: int) -> Wrap:
    """Wrap a packet in tunnels of different kinds, the first one innermost."""
    kinds = (tunnels.gre, tunnels.vxlan, tunnels.ip_in_ip, lambda packet: tunnels.geneve(packet, vni=4), tunnels.gre)

    def wrap(packet: bytes) -> bytes:
        for kind in kinds[:depth]:
            packet = kind(packet)
        return frames.ethernet(packet)

    return wrap


@pytest.mark.parametrize("depth", range(1, MAX_DEPTH + 1))
def test_nested_tunnels(depth):
    found = read_capture(capture(FOUR, nested(depth)).data)
    same_facts(found, plain(FOUR))
    assert len(found["capture_files"]["tunnels"][0]) == depth
    # GRE has no key: the identifier is that of the tunnel around it.
    assert found["connections"]["tunnel_identifier"].to_pylist() == [None if depth == 1 else 77]


def test_deeper_tunnels_are_not_read_and_it_is_said():
    file = capture(FOUR, nested(MAX_DEPTH + 1))
    found = read_capture(file.data)
    assert not found["rpc_calls"].num_rows
    (row,) = found["capture_files"].to_pylist()
    assert row["packets_not_read"] == [{"what": "in more than 4 tunnels", "packets": len(file.records)}]
    assert row["packets_other"] == row["packets"]


@pytest.mark.parametrize("name", ["vxlan", "gre", "erspan 2"])
def test_a_packet_inside_and_plain_counts_once(name):
    """A mirror and the machine's own traffic in one capture, packet by packet, in either order."""
    wrap, *_ = KINDS[name]
    parts = t.segments(FOUR.script, mss=536)
    for links in ((frames.ethernet, wrap), (wrap, frames.ethernet)):
        both = [t.records(FOUR.flow, parts, link=link) for link in links]
        records = [
            c.Record(record.time_ns + index * 300, record.frame)
            for pair in zip(*both, strict=True)
            for index, record in enumerate(pair)
        ]
        found = read_capture(c.pcap(records, magic=c.NANOSECONDS).data)
        same_facts(
            found,
            read_capture(c.pcap(t.records(FOUR.flow, parts)).data),
            left_out=frozenset({"last_packet_at", "round_trip_ms", "packets"}),
        )
        assert found["connections"]["retransmitted_bytes"].to_pylist() == [0]


def test_a_packet_mirrored_at_both_machines_counts_once():
    """The mirrors have identifiers of their own; what is sent again is still seen as that."""
    parts = t.segments(FOUR.script, mss=536)
    data = t.data_indexes(parts)
    parts = t.retransmit(parts, data[4], at=data[4] + 2)
    both = [
        t.records(FOUR.flow, parts, link=on_ethernet(lambda packet, vni=vni: tunnels.vxlan(packet, vni)))
        for vni in (1, 2)
    ]
    records = [record for pair in zip(*both, strict=True) for record in pair]
    found, once = read_capture(c.pcap(records).data), read_capture(c.pcap(both[0]).data)
    same_facts(found, once, left_out=frozenset({"packets"}))
    assert found["connections"]["retransmitted_bytes"][0].as_py() > 0
    assert len(found["capture_files"]["tunnels"][0]) == 2


def tenants(seed: int) -> list[c.Record]:
    """Two conversations with equal addresses and ports at the same time, in two virtual networks."""
    chance = random.Random(seed)
    found = []
    for vni, isn in ((1001, (1000, 2000)), (1002, (4_000_000_000, 77_000_000))):
        dialogue = remote_read_dialogue(t.Flow(isn=isn), size=3000)
        wrap = on_ethernet(lambda packet, vni=vni: tunnels.vxlan(packet, vni))
        found.append(t.records(dialogue.flow, t.segments(dialogue.script, mss=chance.choice([536, 1460])), link=wrap))
    return sorted((record for records in found for record in records), key=lambda record: record.time_ns)


@pytest.mark.parametrize("seed", range(3))
def test_two_tenants_with_equal_addresses_stay_two(seed):
    whole = c.pcap(tenants(seed)).data
    found = read_capture(whole)
    assert sorted(found["connections"]["tunnel_identifier"].to_pylist()) == [1001, 1002]
    outcomes = plain(FOUR)["rpc_calls"]["outcome"].to_pylist()
    assert sorted(found["rpc_calls"]["outcome"].to_pylist()) == sorted(2 * outcomes)
    assert found["connections"]["retransmitted_bytes"].to_pylist() == [0, 0]
    pieces = cut(whole, evenly(whole, 4))
    joined = read_captures([pieces[2:], pieces[:2]])
    equal(joined, read_captures([[piece] for piece in pieces]))
    lines = differences(joined, found, left_out=PLACES | OF_THE_RUN, not_compared={"capture_files", "pending"})
    assert not lines, "\n".join(lines)


def test_one_capture_of_a_mirror_beside_a_plain_one():
    """They are two taps of one connection, whose clocks differ."""
    one = c.pcap(t.records(FOUR.flow, t.segments(FOUR.script))).data
    ahead = [
        c.Record(record.time_ns + 200_000_000, record.frame) for record in capture(FOUR, KINDS["vxlan"][0]).records
    ]
    found = read_captures([[one], [c.pcap(ahead).data]])
    assert found["connections"].num_rows == 1
    assert found["connections"]["retransmitted_bytes"].to_pylist() == [0]
    assert set(found["rpc_calls"]["observations"].to_pylist()) == {2}
    equal(found, read_captures([[c.pcap(ahead).data, one]]))


@pytest.mark.parametrize("size", [200, 800])
@pytest.mark.parametrize("shuffled", [False, True])
def test_fragments_of_the_outer_datagram(size, shuffled):
    chance = random.Random(size)
    records = []
    for number, record in enumerate(t.records(FOUR.flow, t.segments(FOUR.script), link=tunnels.vxlan)):
        source, target = tunnels.OUTER
        pieces = frames.ipv4_fragments(source, target, record.frame[20:], size, ident=number, protocol=17)
        if shuffled:
            chance.shuffle(pieces)
        records += [c.Record(record.time_ns + index, frames.ethernet(piece)) for index, piece in enumerate(pieces)]
    found = read_capture(c.pcap(records, magic=c.NANOSECONDS).data)
    same_facts(found, plain(FOUR), left_out=frozenset({"packets"}))
    assert found["capture_files"]["packets_damaged"].to_pylist() == [0]


def test_another_port_can_be_that_of_a_tunnel():
    file = capture(FOUR, on_ethernet(lambda packet: tunnels.vxlan(packet, port=4000)))
    assert not read_capture(file.data)["rpc_calls"].num_rows
    found = read_capture(file.data, tunnel_ports={4000: "vxlan"})
    same_facts(found, plain(FOUR))


def test_hostile_headers_never_stop_the_reader():
    """Any byte of the tunnels may be any other, and a packet may end anywhere."""
    chance = random.Random(41)
    files = [capture(FOUR, wrap) for wrap, *_ in KINDS.values()] + [
        capture(FOUR, nested(depth)) for depth in range(1, 6)
    ]
    for file in files:
        records = []
        for record in file.records:
            frame = bytearray(record.frame)
            for _ in range(chance.randrange(4)):
                frame[chance.randrange(min(len(frame), 120))] = chance.choice(
                    (0, 1, 0x45, 0x88, 0xFF, chance.randrange(256))
                )
            end = chance.randrange(len(frame)) if chance.random() < 0.3 else len(frame)
            records.append(c.Record(record.time_ns, bytes(frame[:end]), len(frame)))
        (row,) = read_capture(c.pcap(records).data)["capture_files"].to_pylist()
        counted = ("packets_used", "packets_other", "packets_damaged", "packets_binary_protocol")
        assert (row["status"], sum(row[name] for name in counted)) == ("complete", row["packets"])


@pytest.mark.tool("tshark")
@pytest.mark.parametrize("name", [*KINDS, "nested"])
def test_tshark_finds_as_many_segments(name, tmp_path):
    file = capture(FOUR, nested(3) if name == "nested" else KINDS[name][0])
    path = tmp_path / "tunnels.pcap"
    path.write_bytes(file.data)
    decode_as = ["-d", "udp.port==8472,vxlan", "-d", "mpls.label==18,pwethcw"]
    command = ["tshark", "-n", *decode_as, "-r", str(path), "-Y", "tcp", "-T", "fields", "-e", "frame.number"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(shown.stdout.split()) == read_capture(file.data)["capture_files"]["packets_tcp"][0].as_py()
