"""What a fuzzer calls: any bytes, given to a decoder down both roads. Nothing but an answer may come of them.

A harness returns when the column reader gave a row for each row, equal to what the single-value reader gives, without
an exception and without more memory than a multiple of the bytes; else it raises. ``make fuzz`` (``run.py``) lets
atheris choose the bytes; ``test_fuzz.py`` takes the seeds and the inputs that once failed (``crashes/``).
"""

import itertools
import json
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from bench.messages import packet as bench_packet
from comqc import helpers as comqc
from comqc.test_bad_input import ARGUMENTS, REFERENCES
from messages import reading as messages
from messages.building import Packet, overlay, sid, trailing, wide
from messages.test_published import FRAME
from properties import test_observations as observed
from queues.test_normal_form import NAMES
from stubs import helpers as stubs
from udfs.comqc.calls import decode_comqc, explode
from udfs.messages import names
from udfs.messages.packets import decode_messages
from udfs.properties.observations import properties
from udfs.properties.snapshots import machine_snapshots, queue_snapshots
from udfs.queues.format_names import QueueFormat, format_name
from udfs.queues.normal_form import normal_form, normal_text, parent
from udfs.stubs.decode import decode
from udfs.stubs.methods import ALL

LEAST, TIMES = 2 << 20, 64  # bytes of memory that a decoder may take: so many, and so many for each byte it is given
ERRORS = ("truncated", "malformed", "unsupported")
PROTOCOLS = ("RemoteRead", "qm2qm", "binary_protocol")


class UnfitError(AssertionError):
    """A decoder gave what it must not give."""


@dataclass(frozen=True)
class Harness:
    """A decoder to be fuzzed: what takes the bytes, and bytes to begin with."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def demand(holds, *facts):
    if not holds:
        raise UnfitError(*facts)


def bounded(size, run, *arguments, **options):
    """Return what ``run`` gives; it may take memory, numpy's and Arrow's, by the bytes it is given alone."""
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
    return [(method, way) for method in ALL[interface].values() for way in ("request", "response")]


def _stub_harness(interface):
    targets = _targets(interface)

    def run(data):
        if len(data) < 2:
            return
        method, direction = targets[data[0] % len(targets)]
        ndr64, big, stub = bool(data[1] & 1), bool(data[1] & 2), data[2:]
        # One stub in a column of its own kind: neighbours of other lengths, and none, must not matter.
        given = [stub, None, stub[: len(stub) // 2], stub] if data[1] & 4 else [stub]
        column = pa.array(given, pa.binary())
        found = bounded(
            len(data) * len(given), decode, method, direction, column, ndr64=ndr64, big_endian=big, packets=True
        )
        for one, (values, errors) in zip(given, stubs.rows_of(found), strict=True):
            expected, wrong = ({}, []) if one is None else stubs.single(method, direction, one, ndr64=ndr64, big=big)
            check_errors(errors)
            if wrong:  # how much of a broken packet was seen is not a value
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
    said = {"name": "OS:h\\q", "guid": Packet().source, "number": 7}
    for kinds in itertools.product((0, 3, 5, 7), (0, 2, 6), (1, 4, 7)):
        yield b"\0\0\0" + Packet(queues=tuple((kind, said) for kind in kinds)).bytes()


# --- COMQC bodies: a byte (what the body is wrapped in), and the rest -------------------------------------------------


def run_comqc(data):
    if not data:
        return
    kind, raw = data[0] % 4, data[1:]
    if kind == 0:
        body, size = raw, None
    elif kind == 1:
        body, size = raw[: len(raw) // 2], len(raw)
    elif kind == 2:  # a call's Marshaled Data
        body, size = comqc.message(comqc.chdr(), comqc.secd(), comqc.method(raw)), None
    else:  # an argument of a dispatch call
        body = comqc.invoke([lambda ndr: ndr.align(8).raw(raw), comqc.value(3, "i", 1)])
        body, size = comqc.message(comqc.chdr(), comqc.secd(), comqc.method(body)), None
    given = [body, None, body] if data[0] & 0x80 else [body]
    column, sizes = pa.array(given, pa.binary()), pa.array([size] * len(given), pa.int64())
    found = bounded(column.nbytes, decode_comqc, column, None, sizes, marshaled=True)
    found.validate(full=True)
    explode(found)
    expected = comqc.single(body, size)
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
    rows = bounded(len(data), properties, found)
    demand(rows.num_rows == sum(n is not None for n, _, _ in held), rows.num_rows)
    for table in (queue_snapshots, machine_snapshots):
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
    normal = bounded(len(data), normal_text, text)
    demand(normal is None or (isinstance(normal, str) and normal), text)
    demand(normal_form(pa.array([text, None, text])).to_pylist() == [normal, None, normal], text)
    demand(normal is None or "".join(parent(normal)) == normal, normal)
    direct = names.direct_queue(raw)
    demand(direct is None or isinstance(direct, str), raw)
    for read in (names.sid, names.queue_manager):
        read(raw)
    if len(raw) >= 21:
        names.numbered_queue(raw[:21])
        names.address(raw[:17])
    named = QueueFormat(data[0] >> 1 & 15, raw[0] if raw else 0, None, len(raw), 80, text)
    called = format_name(named)
    demand(called is not None or normal_text(called) is None, named)


def name_seeds():
    for name, _ in NAMES:
        for head in (1, 1 | 3 << 1, 1 | 6 << 1, 1 | 8 << 1):
            yield bytes([head]) + (name or "").encode()
        yield b"\0" + (name or "").encode("utf-16-le")
    yield b"\0" + sid(21, 1, 2, 3)
    yield b"\0" + bytes([6, *range(20)])


HARNESSES = {
    **{interface: _stub_harness(interface) for interface in ALL},
    "messages": Harness(run_messages, message_seeds),
    "comqc": Harness(run_comqc, comqc_seeds),
    "properties": Harness(run_properties, property_seeds),
    "names": Harness(run_names, name_seeds),
}
