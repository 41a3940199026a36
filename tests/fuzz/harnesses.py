"""Fuzz harnesses: each passes arbitrary bytes to a decoder and checks the result.

A harness returns if the column reader gives one result per row, equal to that of the single-value reader, without an
exception and with memory bounded by the number of bytes. Otherwise it raises. ``make fuzz`` (``run.py``) lets atheris
choose the bytes; ``test_fuzz.py`` uses the seeds and the inputs that failed earlier (``crashes/``).
"""

import bz2
import gzip
import io
import itertools
import json
import lzma
import random
import struct
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import zstandard

import framework_messages
from bench import hostile_sessions
from bench.messages import build_packet as bench_packet
from comqc import helpers as comqc
from comqc.test_bad_input import ARGUMENTS, REFERENCES
from comqc.test_declared import declare
from messages import reading as messages
from messages.building import Packet, overlay, sid, trailing, wide
from messages.test_published import FRAME
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames, links, rpc, tunnels
from pcapgen import sessions as session_packets
from pcapgen.model import Dialogue, make_stub
from properties import test_observations as observed
from queues.test_normal_form import NAMES
from sealed.test_nlmp import AUTHENTICATE, CHALLENGE_V2
from sessions import test_framing as sessions
from stubs import helpers as stubs
from udfs.application.application_message import NativeFacts
from udfs.application.message_reader import read_application_message
from udfs.capture.capture_reader import read_capture
from udfs.capture.connection_merge import merge_connections
from udfs.columns.absent import NO_TIME
from udfs.comqc.body_decoder import decode_bodies, explode_calls
from udfs.comqc.declared_interfaces import NO_DECLARATIONS
from udfs.dcerpc.endpoint_towers import parse_tower_endpoints
from udfs.dcerpc.verification_trailer import strip_verification_trailers
from udfs.files.capture_file import CaptureFileReader, NotACaptureError
from udfs.files.file_source import ExpansionLimitError, FileSource
from udfs.messages import name_columns
from udfs.messages.message_decoder import decode_messages
from udfs.properties import snapshot_lines
from udfs.properties.observations import property_rows
from udfs.properties.snapshot_rows import machine_snapshot_rows, queue_snapshot_rows
from udfs.queues.normal_form import normalize_queue_name, normalize_queue_names, split_queue_suffix
from udfs.queues.queue_format import QueueFormat, build_format_name
from udfs.sealed.decryption_keys import DecryptionKeys, KerberosKey, NtlmKey
from udfs.sealed.security_contexts import build_security_contexts
from udfs.sealed.security_tokens import HandshakeToken
from udfs.sessions.pings import Ping, ping_rows, pings_batch, pings_of_rows
from udfs.stubs.method_registry import ALL_METHODS
from udfs.stubs.stub_decoder import decode_stubs

LEAST, TIMES = 2 << 20, 64  # memory limit of a decoder in bytes: a constant, and a multiple of the input size
ERRORS = ("truncated", "malformed", "unsupported")
PROTOCOLS = ("RemoteRead", "qm2qm", "binary_protocol")


class UnfitError(AssertionError):
    """A decoder returned a wrong result."""


@dataclass(frozen=True)
class Harness:
    """A decoder to be fuzzed: the function that takes the bytes, and the seeds."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def demand(holds, *facts):
    if not holds:
        raise UnfitError(*facts)


def bounded(size, run, *arguments, **options):
    """Call ``run`` and return its result; fail if it uses more memory (NumPy's and Arrow's) than ``size`` allows."""
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, arrow = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()
    found = run(*arguments, **options)
    peak, kept = tracemalloc.get_traced_memory()[1] - before, pa.total_allocated_bytes() - arrow
    if ours:
        tracemalloc.stop()
    demand(peak + kept <= LEAST + TIMES * size, "memory", peak, kept, size)
    return found


def check_errors(errors):
    for code, field, offset in errors:
        demand(code in ERRORS and isinstance(field, str) and offset >= 0, code, field, offset)


# --- stubs: 2 bytes (method and direction; NDR64, big-endian, how the rest is laid in rows), then the stub ------------


def _targets(interface):
    return [(method, way) for method in ALL_METHODS[interface].values() for way in ("request", "response")]


def _stub_harness(interface):
    targets = _targets(interface)

    def run(data):
        if len(data) < 2:
            return
        method, direction = targets[data[0] % len(targets)]
        ndr64, big, stub = bool(data[1] & 1), bool(data[1] & 2), data[2:]
        # Neighbours of other lengths, and nulls, must not matter.
        given = [stub, None, stub[: len(stub) // 2], stub] if data[1] & 4 else [stub]
        column = pa.array(given, pa.binary())
        found = bounded(
            len(data) * len(given), decode_stubs, method, direction, column, ndr64=ndr64, big_endian=big, packets=True
        )
        for one, (values, errors) in zip(given, stubs.rows_of(found), strict=True):
            expected, wrong = ({}, []) if one is None else stubs.single(method, direction, one, ndr64=ndr64, big=big)
            check_errors(errors)
            if wrong:  # how much of a malformed packet was read is not defined
                values.pop("packet", None)
                expected.pop("packet", None)
            demand((values, errors) == (expected, wrong), method.name, direction, values, errors, expected, wrong)

    def seeds():
        places = {(method.name, way): place for place, (method, way) in enumerate(targets)}
        for vector in [*stubs.VECTORS, *stubs.OTHER_VECTORS]:
            place = places.get((vector["method"], vector["direction"]))
            if place is not None:
                yield bytes([place, vector["syntax"] == "NDR64"]) + bytes.fromhex(vector["hex"])
                if vector["syntax"] == "NDR20":
                    yield from _recoded(vector, place)
        for place in range(len(targets)):
            yield bytes([place, 4]) + bytes(64)

    return Harness(run, seeds)


def _recoded(vector, place):
    """The same values in the other encodings, by the peer's codecs."""
    values = stubs.peer_values(vector["method"], vector["direction"], bytes.fromhex(vector["hex"]))
    for kind, (ndr64, order) in enumerate(((False, ">"), (True, "<"), (True, ">"))):
        stub = stubs.peer_stub(vector["method"], vector["direction"], values, ndr64=ndr64, order=order)
        yield bytes([place, ndr64 | 2 * (order == ">") | 4 * (kind == 1)]) + stub


# --- message packets: a byte (protocol, how it came in sections), and the packet --------------------------------------


def _sections(kind, packet, room):
    first = min(room, len(packet))
    return {
        1: [(0, len(packet), len(packet))],
        2: [(1, first, first + room % 7), (2, len(packet) - first, len(packet) - first)],
        3: [(3, first, first + room % 5), (4, len(packet) - first, len(packet) - first)],
        4: [(1, len(packet), len(packet) + room)],
    }.get(kind)


def run_messages(data):
    if len(data) < 3:
        return
    protocol = PROTOCOLS[data[0] % 3]
    packet = data[3:]
    sections = _sections(data[0] >> 4 & 7, packet, int.from_bytes(data[1:3], "little"))
    given = [packet, None, packet[: len(packet) // 2]] if sections is None and data[0] & 0x80 else [packet]
    parts = {}
    if sections is not None:
        columns = ("section_types", "section_bytes", "section_allocated_bytes")
        parts = {name: messages.lists([sections], place) for place, name in enumerate(columns)}
    column = pa.array(given, pa.binary())
    found = bounded(len(data) * len(given), decode_messages, column, protocol, bodies=True, **parts)
    for one, (values, errors) in zip(given, messages.rows_of(found), strict=True):
        check_errors(errors)
        expected = ({}, []) if one is None else messages.single(one, protocol, sections)
        demand((values, errors) == expected, values, errors, expected)


FULL = Packet(
    transaction=(1, 2, 3, 4), transaction_connector=bytes(16), security=(1, (sid(1, 2), b"key", b"sig", b"cert", b"p")),
    connector=bytes(16), debug=bytes(16), envelope="<e/>", compound=(b"POST body", 4, 5), soap=("<h/>", "<b/>"),
    lists=((1, b"\3\0" + wide("OS:a\\b")), (0, b""), (0, b""), b"sign"), manager=overlay(1, 4, bytes([10, 0, 0, 1])),
    trailing=trailing(subqueue="s", dead_letter="h\\dead", address=(4, 1, 0, bytes([10, 0, 0, 1]))),
)  # fmt: skip


def message_seeds():
    pick = random.Random(1)
    whole = [FULL.bytes(), Packet().bytes(), FRAME + b"a\0" * 1000, *(bench_packet(n, pick) for n in range(5))]
    for packet in whole:
        for head in (0x00, 0x81, 0x02, 0x10, 0x20, 0x30, 0x40):
            yield bytes([head]) + struct.pack("<H", len(packet) // 2) + packet
        # Sections that no protocol but RemoteRead has, the first one longer than the packet says it is.
        yield b"\x23" + struct.pack("<H", len(packet) + 8) + packet + bytes(40)
    said = {"name": "OS:h\\q", "guid": Packet().source, "number": 7}
    for kinds in itertools.product((0, 3, 5, 7), (0, 2, 6), (1, 4, 7)):
        yield b"\0\0\0" + Packet(queues=tuple((kind, said) for kind in kinds)).bytes()


# --- COMQC bodies: a byte (what the body is wrapped in), and the rest -------------------------------------------------


DECLARED = declare("VT_I4", "VT_VARIANT", "VT_UI1", "VT_BSTR", "VT_ARRAY|VT_I2", "VT_DECIMAL", "VT_UNKNOWN", "VT_I8")


def run_comqc(data):
    if not data:
        return
    kind, raw, declarations = (data[0] & 0x7F) % 5, data[1:], NO_DECLARATIONS
    if kind == 0:
        body, size = raw, None
    elif kind == 1:
        body, size = raw[: len(raw) // 2], len(raw)
    elif kind == 2:  # a call's Marshaled Data
        body, size = comqc.message(comqc.chdr(), comqc.secd(), comqc.method(raw)), None
    elif kind == 4:  # the Marshaled Data of a declared method
        declarations = DECLARED
        body, size = comqc.message(comqc.chdr(), comqc.secd(), comqc.method(raw, iid=comqc.IID, opnum=3)), None
    else:  # an argument of a dispatch call
        body = comqc.invoke([lambda ndr: ndr.align(8).raw(raw), comqc.value(3, "i", 1)])
        body, size = comqc.message(comqc.chdr(), comqc.secd(), comqc.method(body)), None
    given = [body, None, body] if data[0] & 0x80 else [body]
    column, sizes = pa.array(given, pa.binary()), pa.array([size] * len(given), pa.int64())
    options = {"marshaled": True, "declarations": declarations}
    found = bounded(column.nbytes, decode_bodies, column, None, sizes, **options)
    found.validate(full=True)
    explode_calls(found)
    expected = comqc.single(body, size, declarations)
    for one, row in zip(given, comqc.rows_of(found), strict=True):
        if one is None:
            demand(row["calls"] is None and not row["errors"], row)
            continue
        check_errors(row["errors"])
        for call in row["calls"]:
            check_errors(call["errors"])
        demand(row == expected, row, expected)


def comqc_seeds():
    for argument in [*ARGUMENTS, *REFERENCES]:
        inner = comqc.invoke([argument])
        yield b"\0" + comqc.message(comqc.chdr(), comqc.secd(), comqc.method(inner))
        yield b"\2" + inner
        yield b"\3" + bytes(argument(comqc.Ndr()).out)
        yield b"\4" + bytes(argument(comqc.Ndr().put("II", 7, comqc.USER)).out)
    whole = comqc.message(
        comqc.chdr(), comqc.part(), comqc.secd(), comqc.method(comqc.invoke(ARGUMENTS[:6])), comqc.secr(200),
        comqc.method(b"x", iid=None), comqc.part(),
    )  # fmt: skip
    for head in (0, 0x80, 1):
        yield bytes([head]) + whole


# --- properties: what a collector wrote, JSON {"object": .., "hresult": .., "held": [[number, vt, value], ..]} --------


def run_properties(data):
    try:
        told = json.loads(data)
        kind, hresult, held = told["object"], told["hresult"], [(n, vt, value) for n, vt, value in told["held"]]
        row = {
            "object_type": kind, "hresult": hresult,
            "properties": [{"property_id": n, "vt": vt, "value_json": value} for n, vt, value in held],
        }  # fmt: skip
        pa.Table.from_pylist([row["properties"]] and row["properties"], schema=_HELD)
        demand(isinstance(kind, str) and (hresult is None or isinstance(hresult, int)), "no row")
        row["object_type"].encode()
        pa.array([hresult], pa.int64())
    except Exception:  # noqa: BLE001  (not a row that a table can hold: nothing to decode)
        return
    found = bounded(len(data), observed.collected, kind, {}, **row)
    rows = bounded(len(data), property_rows, found)
    demand(rows.num_rows == sum(n is not None for n, _, _ in held), rows.num_rows)
    for table in (queue_snapshot_rows, machine_snapshot_rows):
        bounded(len(data), table, found).validate(full=True)


_HELD = pa.schema({"property_id": pa.int32(), "vt": pa.int32(), "value_json": pa.string()})


def property_seeds():
    for kind, table in (("queue", observed.QUEUE), ("machine", observed.MACHINE)):
        held = [(n, vt, json.dumps(value)) for n, (vt, value, *_) in table.items()]
        for some in (held, *([one] for one in held)):
            yield json.dumps({"object": kind, "hresult": 0, "held": some}).encode()
        yield json.dumps({"object": kind, "hresult": 0xC00E0003, "held": held}).encode()
    yield json.dumps({"object": "queue", "hresult": None, "held": [[7, None, None], [7, 19, "[["]]}).encode()


# --- names: a byte (what kind of name), and the name ------------------------------------------------------------------


def run_names(data):
    if not data:
        return
    raw = data[1:]
    text = raw.decode("utf-8", "replace") if data[0] & 1 else raw.decode("utf-16-le", "replace")
    normal = bounded(len(data), normalize_queue_name, text)
    demand(normal is None or (isinstance(normal, str) and normal), text)
    demand(normalize_queue_names(pa.array([text, None, text])).to_pylist() == [normal, None, normal], text)
    demand(normal is None or "".join(split_queue_suffix(normal)) == normal, normal)
    direct = name_columns.direct_queue_name(raw)
    demand(direct is None or isinstance(direct, str), raw)
    for read in (name_columns.sid_text, name_columns.queue_manager_guid):
        read(raw)
    if len(raw) >= 21:
        name_columns.numbered_queue_name(raw[:21])
        name_columns.ip_address_text(raw[:17])
    named = QueueFormat(data[0] >> 1 & 15, raw[0] if raw else 0, None, len(raw), 80, text)
    called = build_format_name(named)
    demand(called is not None or normalize_queue_name(called) is None, named)


def name_seeds():
    for name, _ in NAMES:
        for head in (1, 1 | 3 << 1, 1 | 6 << 1, 1 | 8 << 1):
            yield bytes([head]) + (name or "").encode()
        yield b"\0" + (name or "").encode("utf-16-le")
    yield b"\0" + sid(21, 1, 2, 3)
    yield b"\0" + bytes([6, *range(20)])


# --- captures: a file as it lies there, any format, plain or compressed -----------------------------------------------

READER = 24 << 20  # bytes of memory that reading may use in addition: tables of the packets in a block


BLOCKS = (1 << 20, 1 << 10)  # bytes read at once


def run_captures(data):
    """Read a capture: tables must not depend on block edges, counts must add up, pending rows must be mergeable.

    Out-of-order packets across the edge of a block may come too late there. Calls must have their connection
    nevertheless.
    """
    found = [bounded(READER + len(data), read_capture, data, block_bytes=size) for size in BLOCKS]
    for table in found[0].values():
        table.validate(full=True)
    if blocks_in_order(data):
        demand_alike(*found)
    for each in found:
        named = each["connections"]["connection_id"].to_pylist()
        demand({*each["rpc_calls"]["connection_id"].to_pylist()} <= {*named}, "a call without its connection")
    (row,) = found[0]["capture_files"].to_pylist()
    counts = ("packets_used", "packets_binary_protocol", "packets_damaged", "packets_other")
    demand(row["packets"] == sum(row[name] for name in counts), row)
    demand((row["error"] is None) == (row["status"] == "complete"), row)
    for each in found:
        if each["pending"].num_rows:
            merge_connections(each["pending"].to_pylist())


def demand_alike(found, other, *, but=()):
    """Demand that two reads of a capture give the same tables, except how many bytes ``pending`` retains."""
    for kind in found.keys() - but:
        rows, others = (each[kind].drop_columns(kept_by_blocks(kind)).to_pylist() for each in (found, other))
        demand(sorted(map(repr, rows)) == sorted(map(repr, others)), kind)


def kept_by_blocks(kind):
    """Return the columns that depend on block edges: unrecognised bytes are retained block by block."""
    return ["segments", "bytes"] if kind == "pending" else []


def blocks_in_order(data):
    """Return whether no packet is earlier than a packet of a previous (small) block."""
    latest = NO_TIME
    try:
        with FileSource.from_bytes(data, "memory").open_decompressed(1100, 1 << 30) as stream:
            for records in CaptureFileReader(stream, min(BLOCKS)).read_blocks():
                times = records.time_ns[records.time_ns != NO_TIME]
                if len(times) and times.min() < latest:
                    return False
                latest = max([latest, *times])
    except (NotACaptureError, ExpansionLimitError, OSError):
        pass  # the blocks before were checked
    return True


def capture_seeds():
    dialogue = t.Script()
    talk = Dialogue(flow=t.Flow(), script=dialogue)
    talk.bind(rpc.Context(0, rpc.REMOTE_READ))
    for opnum in (7, 9):
        talk.call(opnum, make_stub(opnum, 56), make_stub(20, 40))
    records = t.records(talk.flow, t.segments(talk.script, cuts=(200, 90)))
    for whole in (c.pcap(records).data, c.pcapng(records).data):
        yield whole
        yield whole[: len(whole) * 2 // 3]
        yield gzip.compress(whole, mtime=0)
    yield lzma.compress(whole)
    yield bz2.compress(whole)
    yield struct.pack("<II", 0x184D2A50, 4) + bytes(4) + zstandard.ZstdCompressor().compress(whole)
    yield whole + bytes(300)
    yield c.pcapng(records, tsresol=0x94, tsoffset=3).data
    dialogue.send(t.CLIENT, rpc.fragments(rpc.REQUEST, 90, make_stub(7, 56), opnum=7, obj=str(uuid.UUID(int=7)))[0])
    dialogue.send(t.SERVER, rpc.fault(90, 5))
    records = t.records(talk.flow, t.segments(talk.script))
    yield c.pcap(records).data
    yield c.pcap(records[5:]).data
    yield c.pcap(records[::-1]).data
    yield c.pcap([*records, *records[:9]]).data
    # A packet of a later block, one second before all others, after calls were returned.
    yield c.pcap([*records, *(replace(each, time_ns=records[0].time_ns - 10**9) for each in records[-3:])]).data
    wraps = (
        tunnels.vxlan, tunnels.vxlan_gpe, tunnels.geneve, tunnels.nvgre, tunnels.ip_in_ip,
        lambda packet: tunnels.gre(packet, key=9, number=4, checksum=True), lambda packet: tunnels.erspan(packet, 3),
        lambda packet: tunnels.gre(tunnels.vxlan(tunnels.ip_in_ip(packet))),
    )  # fmt: skip
    parts = t.segments(talk.script)
    for wrap in wraps:
        yield c.pcap(t.records(talk.flow, parts, link=lambda packet, wrap=wrap: frames.ethernet(wrap(packet)))).data
    for number, link in ((c.ETHERNET, lambda packet: tunnels.mpls(packet, 16, 17)), (c.ETHERNET, tunnels.pppoe)):
        yield c.pcap(t.records(talk.flow, parts, link=link), link=number).data
    for number, link in (
        (links.RADIOTAP, links.radiotap), (links.NFLOG, links.nflog), (links.PKTAP, links.pktap),
        (links.PPI, links.ppi),
        (links.JUNIPER_ETHER, lambda packet: links.juniper(packet, extended=True)), (links.PPP, links.ppp),
    ):  # fmt: skip
        yield c.pcap(t.records(talk.flow, parts, link=link), link=number).data
    yield FRAME


# --- sessions: 4 bytes (SYN seen; sizes of segments; which are lost; order), and the stream of a side -----------------


def run_sessions(data):
    """Read a side of the binary protocol: its packets and stray bytes are those of the plain rules, in any blocks."""
    if len(data) < 5:
        return
    syn, sizes, lost, late = bool(data[0] & 1), (data[1] + 1, data[0] + 1), data[2], data[3]
    stream = data[4:]
    parts = sessions.segments_of(stream, sizes, {lost, lost >> 3} if lost else set(), syn)
    if not any(part.payload for part in parts):
        return
    octets, begin, expected = sessions.expected(stream, parts, syn=syn)
    if syn and len(parts) > late + 5:  # behind its SYN a late segment changes nothing
        parts[-2], parts[-1] = (
            replace(parts[-1], time_ns=parts[-2].time_ns),
            replace(parts[-2], time_ns=parts[-1].time_ns),
        )
    capture = c.pcap(t.records(sessions.FLOW, parts)).data
    for size in BLOCKS:
        found = bounded(READER + len(capture), read_capture, capture, block_bytes=size)
        rows, strays = sessions.shown(found)
        cut = sorted((row["stream_offset"] + begin, row["length_bytes"], row["seen_bytes"]) for row in rows)
        demand(cut == expected.packets, size, cut, expected)
        stray = sorted((row["size_bytes"], row["reason"]) for row in strays)
        demand(stray == sorted(each[1:] for each in expected.strays), size, stray, expected)
        seen = sum(row["seen_bytes"] for row in rows) + sum(row["size_bytes"] for row in strays)
        demand(seen == len(octets), size, seen, len(octets))


def session_seeds():
    header, near = hostile_sessions.header(1 << 22), hostile_sessions.near_header(1 << 22)
    packet = session_packets.message(b"body" * 9, header=session_packets.session_header(1))
    talk = b"".join(each for side, each in session_packets.handshake() if side == 0) + packet * 2
    for stream in (
        talk,
        header + bytes(90),
        b"LIOR" * 50,
        near * 40,
        header * 9,
        packet + b"?" + packet * 2,
        packet * 9,
    ):
        for head in (b"\1\xff\0\0", b"\0\xff\0\0", b"\1\x1f\3\0", b"\0\x1f\3\0", b"\1\0\0\xff", b"\0\1\4\0"):
            yield head + stream


# --- pings: for each 8 bytes (times, ends, cookie, kind), as several captures have them -------------------------------


def run_pings(data):
    """Pair pings, and those of their rows again: each key is in one row, and all columns can hold what is found."""
    given = []
    for number, (at, ends, cookie, kind) in enumerate(struct.iter_unpack("<HBBI", data[: len(data) // 8 * 8])):
        port = 3527 if ends & 4 else 50_000 + (ends & 3)
        is_answer = None if ends & 4 else bool(ends & 8)
        time_us = None if kind & 1 else at * 10_000 + number % 100
        name = str(uuid.UUID(int=kind >> 4 & 3))
        given.append(Ping(
            time_us, f"capture{kind >> 1 & 1}", number + 1, f"10.0.0.{ends >> 4 & 1}", port, "10.0.0.1", is_answer,
            cookie, name, bool(kind & 4), bool(kind & 8),
        ))  # fmt: skip
    rows = bounded(16 * len(data), ping_rows, given)
    pings_batch(rows).validate(full=True)
    demand(len({row["ping_key"] for row in rows}) == len(rows) <= len(given), len(rows), len(given))
    again = bounded(16 * len(data), ping_rows, list(pings_of_rows(rows)))
    pings_batch(again).validate(full=True)
    demand(len(again) <= 2 * len(rows), len(again), len(rows))


def ping_seeds():
    for cookies in (range(1), range(9), [7] * 9):
        for ends in (0, 8, 4, 20):
            for kind in (0, 2, 16):
                asked = (struct.pack("<HBBI", n, ends & ~8, cookie, kind) for n, cookie in enumerate(cookies))
                told = (struct.pack("<HBBI", n + 50, ends | 8, cookie, kind) for n, cookie in enumerate(cookies))
                yield b"".join((*asked, *told))


# --- snapshot lines: a file of the collector --------------------------------------------------------------------------


def run_lines(data):
    """Read snapshot lines: each line that is not empty gives a row or a broken line, and rows fit their columns."""
    rows = bounded(len(data), lambda: list(snapshot_lines.read_snapshot_rows(io.BytesIO(data), "f")))
    good = [row for row in rows if "reason" not in row]
    bad = [row for row in rows if "reason" in row]
    pa.RecordBatch.from_pylist(good, schema=snapshot_lines.SNAPSHOT_SCHEMA).validate(full=True)
    pa.RecordBatch.from_pylist(bad, schema=snapshot_lines.BROKEN_LINE_SCHEMA).validate(full=True)
    demand(len(rows) <= len(data), rows)


def line_seeds():
    for name in ("machine", "queue"):
        for error in (None, "timeout"):
            line = {
                "version": 1, "queue_manager": "m", "server_address": "10.0.0.1", "object_type": name,
                "format_name": None if name == "machine" else "DIRECT=OS:m\\q", "asked_at": "2026-01-02T03:04:05.6Z",
                "collected_at": None if error else "2026-01-02T03:04:06Z", "hresult": None if error else 0,
                "error": error, "properties": [{"property_id": 7, "vt": 31, "value_json": '"a"'}],
            }  # fmt: skip
            text = json.dumps(line).encode()
            yield text
            yield text + b"\n" + text[: len(text) // 2] + b"\n\n\xff\n" + text + b"\r\n"
    yield b"{}"


# --- tokens: two bytes for each token (its kind, its length), and the token; and the endpoint mapper's towers ---------


KINDS = (10, 9, 16)  # NTLM, SPNEGO, Kerberos
KEYS = DecryptionKeys((NtlmKey.from_password("*", "Password"),), (KerberosKey("host/srv1", 18, 1, bytes(32)),))


def run_tokens(data):
    """Evaluate handshakes of arbitrary tokens with keys; without a session there must be a failure reason."""
    tokens, at = [], 0
    while at + 2 <= len(data) and len(tokens) < 8:
        kind, size = data[at], data[at + 1] * 4
        token = data[at + 2 : at + 2 + size]
        auth_type = KINDS[(kind >> 1 & 3) % 3]
        tokens.append(HandshakeToken(not kind & 1, len(tokens) * 100, 80, 3, auth_type, 6, kind >> 4, token))
        at += 2 + size
    for found in bounded(len(data), build_security_contexts, tokens, KEYS):
        demand((found.session is None) == (found.failure is not None), found)
    bounded(len(data), parse_tower_endpoints, data)
    strip_verification_trailers(pa.array([data, None, data[:40]], pa.binary()))


def token_seeds():
    def told(kind, token):
        return bytes([kind, -(-len(token) // 4)]) + token.ljust(-(-len(token) // 4) * 4, b"\0")

    negotiate = b"NTLMSSP\0\1\0\0\0" + bytes(20)
    for section, authenticate in AUTHENTICATE.items():
        shake = told(0, negotiate) + told(1, bytes.fromhex(CHALLENGE_V2)) + told(0, bytes.fromhex(authenticate))
        yield shake
        yield shake[: len(shake) // 2]
        yield told(1, bytes.fromhex(CHALLENGE_V2)) + told(int(section[-1]) << 4, bytes.fromhex(authenticate))
    yield told(4, b"\x60\x48\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01\x00\x6e" + bytes(56))
    yield told(2, b"\x60\x76\x06\x06\x2b\x06\x01\x05\x05\x02\xa0\x6c\x30\x6a\xa0\x0e" + bytes(104))
    for interface in (rpc.REMOTE_READ, rpc.QM2QM):
        floor = b"\x13\x00\x0d" + uuid.UUID(interface[0] if isinstance(interface, tuple) else interface).bytes_le
        yield b"\5\0" + floor + b"\1\0\0\0\2\0\0\0\1\0\x07\2\0\x08\x37\1\0\x09\4\0\x0a\0\0\1"


# --- the application's headers and bodies: for some a byte or two that choose, and the extension or the body ----------


KINDS_OF_ENVELOPES = ("json", "xml", "bson", "binary", "other")


def _read_body(data):
    (body_type,) = struct.unpack("<H", data[:2].ljust(2, b"\0"))
    return read_application_message(None, data[2:], body_type, NativeFacts())


def _read_envelope(data):
    extension = framework_messages.mass_transit(KINDS_OF_ENVELOPES[data[0] % 5]) if data else b""
    return read_application_message(extension, data[1:], 0, NativeFacts())


APPLICATION_READERS = {
    "nservicebus": lambda data: read_application_message(b"<ArrayOfHeaderInfo>" + data, b"", 0, NativeFacts()),
    "rebus": lambda data: read_application_message(data, b"", 0, NativeFacts()),
    "mass_transit": _read_envelope,
    "wcf": lambda data: read_application_message(None, b"\0\1\0\1" + data, 0, NativeFacts()),
    "bodies": _read_body,
}


def _application_harness(name, *seeds):
    def run(data):
        message = bounded(len(data), APPLICATION_READERS[name], data)
        for code, field, offset in message.application_errors:
            part = field.partition(".")[0]
            demand(code in (*ERRORS, "too_large") and part in ("extension", "body"), code, field)
            demand(0 <= offset <= len(data) + 32, field, offset, len(data))
        words = (message.framework, message.framework_evidence, message.body_format)  # of this program
        demand(all(each is None or (each.isascii() and len(each) < 40) for each in words), message)

    def all_seeds():
        for seed in seeds:
            yield from {seed[:size] for size in range(0, len(seed), max(len(seed) // 8, 1))}
            yield seed

    return Harness(run, all_seeds)


def application_harnesses():
    written = framework_messages
    items = written.nservicebus(written.NSB_HEADERS | written.NSB_FAILURE).partition(b"<HeaderInfo>")
    head = len(b"\0\1\0\1")
    return {
        "nservicebus": _application_harness("nservicebus", items[1] + items[2]),
        "rebus": _application_harness(
            "rebus", written.json_extension(written.REBUS_HEADERS), written.utf7('{"rebus-msg-id":"7"}')
        ),
        "mass_transit": _application_harness(
            "mass_transit", b"\0" + written.json_envelope(), b"\1" + written.xml_envelope(),
            b"\2" + written.bson(written.ENVELOPE), b"\3" + written.binary_envelope(),
        ),
        "wcf": _application_harness(
            "wcf", written.datagram(3, written.text_envelope().encode())[head:],
            written.datagram(7, written.binary_soap())[head:],
            written.sessiongram(8, written.session_envelope("a", "b"), written.session_envelope())[head:],
        ),
        "bodies": _application_harness(
            "bodies", b"\0\3" + written.order_stream(), b"\0\0" + written.BODY_XML, b'\0\0{"a":[1]}',
            *(struct.pack("<H", code) + body for code, _, body in written.VARIANTS),
        ),
    }  # fmt: skip


HARNESSES = {
    **{interface: _stub_harness(interface) for interface in ALL_METHODS},
    "messages": Harness(run_messages, message_seeds),
    "comqc": Harness(run_comqc, comqc_seeds),
    "properties": Harness(run_properties, property_seeds),
    "names": Harness(run_names, name_seeds),
    "captures": Harness(run_captures, capture_seeds),
    "sessions": Harness(run_sessions, session_seeds),
    "pings": Harness(run_pings, ping_seeds),
    "lines": Harness(run_lines, line_seeds),
    "tokens": Harness(run_tokens, token_seeds),
    **application_harnesses(),
}
