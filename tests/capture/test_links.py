"""Link types and IP variants: they do not change the rows, and other packets are counted."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter

import pytest

from pcapgen import containers as c
from pcapgen import frames, links
from pcapgen.conversation import packet, records, segments
from pcapgen.model import ExpectedRows, make_flow
from pcapgen.reading import calls, capture_files_row, read_rows, sort_rows
from pcapgen.scenarios import remote_read_dialogue
from udfs.capture.bronze_rows import not_read_rows
from udfs.capture.capture_reader import read_capture

DIALOGUE = remote_read_dialogue()
PARTS = segments(DIALOGUE.script)
SIX = remote_read_dialogue(make_flow(client="fe80::9", server="2001:db8::1"))


def _in_vlan(packet, ethertype, tag):
    return frames.tagged(struct.pack(">H", 5) + links.ethertype(packet) + packet, ethertype, tag, inner=0x8100)


def _llc(packet, header):
    return bytes.fromhex("020000000002020000000001") + struct.pack(">H", len(header) + len(packet)) + header + packet


LINKS = {
    "ethernet": (c.ETHERNET, frames.ethernet),
    "vlan": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x8100, 12),))),
    "qinq": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x88A8, 12), (0x8100, 13)))),
    "old qinq": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x9100, 12), (0x8100, 13)))),
    "qinq 9200": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x9200, 12), (0x8100, 13)))),
    "qinq 9300": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x9300, 12), (0x8100, 13)))),
    "qinq 8200": (c.ETHERNET, lambda p: frames.ethernet(p, vlans=((0x8200, 12), (0x8100, 13)))),
    "vn-tag": (c.ETHERNET, lambda p: frames.tagged(p, 0x8926, b"\x80\x0a\x00\x07")),
    "vn-tag and vlan": (c.ETHERNET, lambda p: _in_vlan(p, 0x8926, b"\x80\x0a\x00\x07")),
    "cisco metadata": (c.ETHERNET, lambda p: frames.tagged(p, 0x8909, b"\x01\x01\x00\x01\x00\x64")),
    "802.1ah": (c.ETHERNET, lambda p: frames.tagged(p, 0x88E7, b"\x00\x00\x12\x34" + bytes(range(12)))),
    "802.1ah behind a b-tag": (
        c.ETHERNET,
        lambda p: frames.tagged(p, 0x88A8, b"\x00\x05\x88\xe7\x00\x00\x12\x34" + bytes(range(12))),
    ),
    "hsr": (c.ETHERNET, lambda p: frames.tagged(p, 0x892F, struct.pack(">HH", len(p) + 6, 9))),
    "sll": (c.SLL, frames.sll),
    "sll2": (c.SLL2, frames.sll2),
    "raw": (c.RAW, lambda p: p),
    "raw 12": (c.RAW_OLD, lambda p: p),
    "null little": (c.NULL, frames.loopback),
    "null big": (c.NULL, lambda p: frames.loopback(p, ">")),
    "loop": (c.LOOP, lambda p: frames.loopback(p, ">")),
    "sll2 vlan": (c.SLL2, lambda p: b"\x81\x00" + frames.sll2(p)[2:20] + b"\0\x07" + links.ethertype(p) + p),
    "ppp": (links.PPP, links.ppp),
    "ppp framed": (links.PPP, lambda p: links.ppp(p, framed=True)),
    "hdlc": (links.HDLC, lambda p: links.ppp(p, framed=True)),
    "hdlc of Cisco": (links.HDLC, links.cisco_hdlc),
    "ppp with direction": (links.PPP_DIRECTION, lambda p: b"\x01" + links.ppp(p, framed=True)),
    "pppoe": (links.PPPOE, links.pppoe),
    "cisco hdlc": (links.CHDLC, links.cisco_hdlc),
    "802.11": (links.WLAN, links.wlan),
    "802.11 with quality of service": (links.WLAN, lambda p: links.wlan(p, quality=True)),
    "802.11 between access points": (links.WLAN, lambda p: links.wlan(p, four=True)),
    "radiotap": (links.RADIOTAP, links.radiotap),
    "radiotap, padded": (links.RADIOTAP, lambda p: links.radiotap(p, padded=True)),
    "radiotap, extended": (links.RADIOTAP, links.radiotap_extended),
    "ppi": (links.PPI, links.ppi),
    "pktap": (links.PKTAP, links.pktap),
    "nflog": (links.NFLOG, links.nflog),
    "nflog big": (links.NFLOG, lambda p: links.nflog(p, ">")),
    "juniper": (links.JUNIPER_ETHER, links.juniper),
    "juniper, extended": (links.JUNIPER_ETHER, lambda p: links.juniper(p, extended=True)),
}
NOT_OF_TSHARK = {
    "nflog big", "ppp with direction",  # it takes the order of this machine; and reads no direction here
    "qinq 9200", "qinq 9300", "qinq 8200",  # they are preferences there
}  # fmt: skip


@pytest.mark.parametrize("dialogue", [DIALOGUE, SIX], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("name", LINKS)
def test_every_link_gives_the_same_calls(name, dialogue):
    number, link = LINKS[name]
    file, truth = _captured(dialogue, number, link)
    tables = read_rows(file)
    assert calls(tables) == truth.calls()
    assert tables["connections"] == [truth.connection()]
    row = capture_files_row(tables)
    assert (row["link_types"], row["packets_used"]) == ([number], len(PARTS))


def _captured(dialogue, number, link):
    parts = segments(dialogue.script)
    file = c.pcap(records(dialogue.flow, parts, link), link=number)
    return file, ExpectedRows(dialogue, parts, file, link=link)


@pytest.mark.parametrize("number", [c.IPV4, c.IPV6])
def test_raw_links_of_one_version(number):
    dialogue = SIX if number == c.IPV6 else DIALOGUE
    file, truth = _captured(dialogue, number, lambda p: p)
    assert calls(read_rows(file)) == truth.calls()


@pytest.mark.parametrize("family", [10, 24, 28, 30])
def test_loopback_families_of_ipv6(family):
    file, truth = _captured(SIX, c.NULL, lambda p: frames.loopback(p, "<", family))
    assert calls(read_rows(file)) == truth.calls()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dialogue", [DIALOGUE, SIX], ids=["ipv4", "ipv6"])
def test_an_ethertype_in_the_place_of_the_loopback_family(dialogue, order):
    """As tshark reads it: a number above 1500 is an EtherType."""
    ethertype = 0x86DD if dialogue is SIX else 0x0800
    file, truth = _captured(dialogue, c.NULL, lambda p: frames.loopback(p, order, ethertype))
    assert calls(read_rows(file)) == truth.calls()


@pytest.mark.tool("tshark")
@pytest.mark.parametrize("name", [name for name in LINKS if name not in NOT_OF_TSHARK])
def test_tshark_finds_as_many_segments(name, tmp_path):
    number, link = LINKS[name]
    path = tmp_path / "link.pcap"
    path.write_bytes(_captured(DIALOGUE, number, link)[0].data)
    command = ["tshark", "-n", "-r", str(path), "-Y", "tcp", "-T", "fields", "-e", "frame.number"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(shown.stdout.split()) == len(PARTS)


@pytest.mark.parametrize("number", [147, 249, 65000])
def test_other_links_are_counted_as_not_ours(number):
    taken = records(DIALOGUE.flow, PARTS)
    tables = read_rows(c.pcap(taken, link=number))
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_other"], row["status"]) == (len(taken), len(taken), "complete")
    shown = read_capture(c.pcap(taken, link=number).data)["capture_files"]["packets_not_read"][0].as_py()
    assert shown == [{"what": f"link type {number}", "packets": len(taken)}]
    assert tables["rpc_calls"] == []


def _not_read(file):
    return read_capture(file.data)["capture_files"]["packets_not_read"][0].as_py()


UNKNOWN = {
    "EtherType 0x88e5": (c.ETHERNET, lambda p: frames.tagged(bytes(len(p)), 0x88E5, bytes(6), inner=0)),
    "EtherType 0x88e5, with TCP behind it": (c.ETHERNET, lambda p: frames.tagged(p, 0x88E5, bytes(12))),
    "EtherType 0x22f3, with TCP behind it": (  # TRILL: an Ethernet frame inside
        c.ETHERNET, lambda p: frames.tagged(frames.ethernet(p)[2:], 0x22F3, bytes(6), inner=0x0200),
    ),
    "EtherType 0x9999, with TCP behind it": (  # as far behind as is looked, and in front of padding
        c.ETHERNET, lambda p: frames.tagged(p, 0x9999, bytes(30), trailer=bytes(18)),
    ),
    "EtherType 0x9998": (c.ETHERNET, lambda p: frames.tagged(p, 0x9998, bytes(31))),
    "EtherType 0x9997": (c.ETHERNET, lambda p: frames.tagged(p[:9] + b"\x11" + p[10:], 0x9997, bytes(4))),
    "EtherType 0x9996, with TCP behind it": (c.SLL, lambda p: frames.sll(p)[:14] + b"\x99\x96" + bytes(4) + p),
    "PPP protocol 0x00fd": (links.PPP, lambda p: b"\xff\x03\x00\xfd" + bytes(len(p))),
    "802.11 frames that are encrypted, aggregated or fragments": (
        links.WLAN, lambda p: bytes([0x08, 0x41]) + links.wlan(p)[2:24] + bytes(len(p)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_read_is_named(what):
    number, link = UNKNOWN[what]
    file = c.pcap(records(DIALOGUE.flow, PARTS, link), link=number)
    row = capture_files_row(read_rows(file))
    assert (row["packets_other"], row["packets_damaged"]) == (len(PARTS), 0)
    assert _not_read(file) == [{"what": what, "packets": len(PARTS)}]


NO_IP = {
    "arp": bytes.fromhex("ffffffffffff0200000000010806") + bytes(46),
    "lldp": bytes.fromhex("0180c200000e02000000000188cc") + bytes(46),
    "spanning tree": bytes.fromhex("0180c2000000020000000001") + b"\x00\x26\x42\x42\x03" + bytes(43),
    "cdp": bytes.fromhex("01000ccccccc020000000001") + b"\x00\x26\xaa\xaa\x03\x00\x00\x0c\x20\x00" + bytes(38),
    "spanning tree of Cisco": (
        bytes.fromhex("01000ccccccd020000000001") + b"\x00\x32\xaa\xaa\x03\x00\x00\x0c\x01\x0b" + bytes(42)
    ),
    "ptp": bytes.fromhex("011b1900000002000000000188f7") + bytes(46),
    "lacp": bytes.fromhex("0180c20000020200000000018809") + bytes(46),
    "eapol": bytes.fromhex("0180c2000003020000000001888e") + bytes(46),
}


@pytest.mark.parametrize("name", NO_IP)
def test_what_never_carries_ip_is_other_traffic(name):
    file = c.pcap([c.Record(part.time_ns, NO_IP[name]) for part in PARTS])
    assert capture_files_row(read_rows(file))["packets_other"] == len(PARTS)
    assert _not_read(file) is None


@pytest.mark.parametrize(
    "header", [b"\xaa\xaa\x03\x00\x00\x00\x08\x00", b"\xaa\xaa\x03\x00\x00\xf8\x08\x00", b"\x06\x06\x03"]
)
def test_ip_behind_llc_is_read(header):
    """As tshark reads it, by SNAP or directly: the service access point of IP is 6."""
    file = c.pcap(records(DIALOGUE.flow, segments(DIALOGUE.script, mss=536), lambda p: _llc(p, header)))
    assert _stubs(calls(read_rows(file))) == _expected()


@pytest.mark.parametrize("name", ["vlan", "vn-tag", "cisco metadata", "802.1ah", "hsr"])
def test_a_tag_that_is_cut_off_is_damage(name):
    number, link = LINKS[name]
    head = records(DIALOGUE.flow, PARTS, link)[3].frame
    for size in (15, 17):
        file = c.pcap([c.Record(PARTS[3].time_ns, head[:size], len(head))], link=number)
        assert capture_files_row(read_rows(file))["packets_damaged"] == 1
        assert _not_read(file) is None


def test_an_unknown_protocol_inside_of_a_tunnel_is_named_too():
    inner = lambda p: frames.tagged(p, 0x88E5, bytes(6))  # noqa: E731
    wrap = lambda p: frames.ethernet(frames.ipv4("10.9.0.1", "10.9.0.2", b"\0\0\x65\x58" + inner(p), protocol=47))  # noqa: E731
    assert _not_read(c.pcap(records(DIALOGUE.flow, PARTS, wrap))) == [
        {"what": "EtherType 0x88e5, with TCP behind it", "packets": len(PARTS)}
    ]


def test_kinds_of_packets_that_are_not_read_are_bounded():
    """The lowest names are kept, so that a capture's parts add up to what the whole shows."""
    frame = lambda number: bytes(12) + struct.pack(">H", number) + bytes(46)  # noqa: E731
    taken = [c.Record(PARTS[0].time_ns + n, frame(0xA000 + n % 1500)) for n in range(3000)]
    whole, one, two = (_not_read(c.pcap(part)) for part in (taken, taken[:1200], taken[1200:]))
    assert (len(whole), whole[0], whole[-1]) == (
        1001, {"what": "EtherType 0xa000", "packets": 2}, {"what": "of further kinds", "packets": 1000},
    )  # fmt: skip
    counts = Counter()
    for part in (one, two):
        counts.update({each["what"]: each["packets"] for each in part})
    assert not_read_rows(counts) == whole


def _with(wrap, dialogue=DIALOGUE):
    """Wrap each segment of the dialogue by another IP function, and check the calls."""
    parts = segments(dialogue.script)
    taken = [c.Record(part.time_ns, frames.ethernet(packet(dialogue.flow, part, wrap))) for part in parts]
    file = c.pcap(taken)
    return read_rows(file), file, parts


def _stubs(rows):
    return [(row["call_id"], row["request_stub"], row["response_stub"], row["outcome"]) for row in rows]


def _expected(dialogue=DIALOGUE):
    return [
        (call.call_id, call.request.stub, call.response.stub, "ok" if call.fault is None else "fault")
        for call in dialogue.calls
    ]


def test_ipv4_options():
    tables, _, parts = _with(lambda s, t, p: frames.ipv4(s, t, p, options=b"\x94\x04\0\0\x01"))
    assert _stubs(calls(tables)) == _expected()
    assert capture_files_row(tables)["packets_used"] == len(parts)


def test_total_length_zero_is_segmentation_offload():
    tables, _, parts = _with(lambda s, t, p: frames.ipv4(s, t, p, total=0))
    assert _stubs(calls(tables)) == _expected()
    assert capture_files_row(tables)["packets_used"] == len(parts)


@pytest.mark.parametrize("trailer", [b"\xee" * 9, b"\x00\x07\xa5\xe2\x88\xfb"], ids=["padding", "of prp"])
def test_ethernet_padding_is_no_payload(trailer):
    parts = segments(DIALOGUE.script)
    taken = [c.Record(part.time_ns, frames.ethernet(packet(DIALOGUE.flow, part), trailer=trailer)) for part in parts]
    tables = read_rows(c.pcap(taken))
    assert _stubs(calls(tables)) == _expected()
    assert tables["connections"][0]["retransmitted_bytes"] == 0


def test_ipv6_extension_headers():
    def wrap(source, target, payload):
        chain = frames.extension(43, 1) + frames.extension(60) + frames.extension(6, 2)
        return frames.ipv6(source, target, chain + payload, following=0)

    tables, _, parts = _with(wrap, SIX)
    assert _stubs(calls(tables)) == _expected(SIX)
    assert capture_files_row(tables)["packets_used"] == len(parts)


def test_ipv6_payload_length_zero_is_segmentation_offload():
    tables, _, _ = _with(lambda s, t, p: frames.ipv6(s, t, p, length=0), SIX)
    assert _stubs(calls(tables)) == _expected(SIX)


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("dialogue", [DIALOGUE, SIX], ids=["ipv4", "ipv6"])
def test_fragments_are_put_together(dialogue, order):
    flow = dialogue.flow
    taken = []
    for number, part in enumerate(segments(dialogue.script)):

        def cut(source, target, payload, ident=number):
            split = frames.ipv6_fragments if ":" in source else frames.ipv4_fragments
            pieces = split(source, target, payload, 512, ident=ident)
            return pieces if order == "forward" else pieces[::-1]

        taken += [c.Record(part.time_ns, frames.ethernet(piece)) for piece in packet(flow, part, cut)]
    tables = read_rows(c.pcap(taken))
    assert _stubs(calls(tables)) == _expected(dialogue)
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"], row["packets_damaged"]) == (len(taken), len(taken), 0)


def test_a_lost_fragment_leaves_a_gap_and_is_still_counted():
    flow = DIALOGUE.flow
    parts = segments(DIALOGUE.script)
    taken = []
    for number, part in enumerate(parts):
        pieces = frames.ipv4_fragments(*_ends(flow, part), _tcp(flow, part), 512, ident=number)
        if len(part.payload) == 1460 and parts[number - 1].side == part.side:  # the second of two full segments
            del pieces[1]
        taken += [c.Record(part.time_ns, frames.ethernet(piece)) for piece in pieces]
    tables = read_rows(c.pcap(taken))
    row = capture_files_row(tables)
    assert row["packets"] == len(taken)
    broken = [call for call in calls(tables) if call["outcome"] == "damaged"]
    assert [call["call_id"] for call in broken] == [3]  # the receive, whose answer filled whole segments
    assert tables["connections"][0]["missing_bytes"] > 0


def _ends(flow, part):
    return (flow.client, flow.server) if part.side == 0 else (flow.server, flow.client)


def _tcp(flow, part):
    return packet(flow, part)[20:]


NOT_OURS = {
    "arp": bytes.fromhex("ffffffffffff0200000000010806") + bytes(28),
    "udp": frames.ethernet(frames.ipv4("10.0.0.9", "10.0.0.1", struct.pack(">HHHH", 5, 6, 8, 0), protocol=17)),
    "icmp": frames.ethernet(frames.ipv4("10.0.0.9", "10.0.0.1", bytes(8), protocol=1)),
    "http": frames.ethernet(
        frames.ip("10.0.0.9", "10.0.0.1", frames.tcp("10.0.0.9", "10.0.0.1", 5000, 80, 1, 1, 0x18, b"GET /"))
    ),
    "802.3": bytes.fromhex("010203040506020000000001") + b"\x00\x26" + bytes(38),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_is_not_ours_is_counted_as_other(name):
    taken = records(DIALOGUE.flow, PARTS)
    stranger = c.Record(PARTS[0].time_ns - 1000, NOT_OURS[name])
    tables = read_rows(c.pcap([stranger, *taken]))
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"], row["packets_other"], row["packets_damaged"]) == (
        len(taken) + 1, len(taken), 1, 0,
    )  # fmt: skip
    assert _stubs(calls(tables)) == _expected()
    assert tables["quarantine"] == []


HEAD = records(DIALOGUE.flow, PARTS)[3].frame
DAMAGED = {
    "ethernet cut": HEAD[:10],
    "ipv4 header cut": HEAD[:20],
    "tcp header cut": HEAD[:40],
    "ipv4 header length below 5": HEAD[:14] + b"\x42" + HEAD[15:],
    "ipv4 version 7": HEAD[:14] + b"\x75" + HEAD[15:],
    "ipv4 total length below its header": HEAD[:16] + b"\0\x10" + HEAD[18:],
    "tcp data offset below 5": HEAD[:46] + b"\x20" + HEAD[47:],
    "tcp data offset beyond the packet": frames.ethernet(
        frames.ip("10.0.0.9", "10.0.0.1", HEAD[34:46] + b"\xf0" + HEAD[47:60])
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_headers_that_cannot_be_decoded_are_damaged_packets(name):
    taken = records(DIALOGUE.flow, PARTS)
    broken = c.Record(PARTS[0].time_ns - 1000, DAMAGED[name])
    tables = read_rows(c.pcap([broken, *taken]))
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_damaged"], row["packets_used"]) == (len(taken) + 1, 1, len(taken))
    assert _stubs(calls(tables)) == _expected()


def test_the_binary_protocol_on_1801_is_counted_and_its_connection_listed():
    flow = make_flow(server_port=1801, client_port=50_000)
    other = remote_read_dialogue(flow)
    taken = ordered_records(records(DIALOGUE.flow, PARTS), records(flow, segments(other.script)))
    tables = read_rows(c.pcap(taken))
    row = capture_files_row(tables)
    assert (row["packets_used"], row["packets_binary_protocol"]) == (len(PARTS), len(PARTS))
    assert _stubs(calls(tables)) == _expected()
    kinds = {(row["kind"], row["server_port"], row["calls"]) for row in tables["connections"]}
    assert kinds == {("rpc", 2103, 5), ("binary_protocol", 1801, 0)}


def ordered_records(*groups):
    return sorted((record for group in groups for record in group), key=lambda record: record.time_ns)


def test_order_of_connections_does_not_matter():
    flows = [make_flow(client_port=port) for port in (50_001, 50_002, 50_003)]
    dialogues = [remote_read_dialogue(flow) for flow in flows]
    groups = [
        records(d.flow, segments(d.script, start_ns=PARTS[0].time_ns + 777_000 * i)) for i, d in enumerate(dialogues)
    ]
    tables = read_rows(c.pcap(ordered_records(*groups)))
    assert _stubs(calls(tables)) == _expected() * 3
    assert [row["client_port"] for row in sort_rows(tables["connections"], "client_port")] == [50_001, 50_002, 50_003]
