"""Benchmark of the COM+ Queued Components decoder: message bodies per second and core, by column and one by one.

One kind of body has two dispatch calls (a number, a text, a boolean, a date; one call in a SMTH header) and one call of
another interface. The other kind has one dispatch call. Both decoders make all columns of silver.comqc_calls; the
column decoder makes Arrow arrays. Run from the project's folder: ``python -m bench.comqc [messages]``.
"""

import struct
import sys
import time

import pyarrow as pa

from bench.measure import Measure, format_report
from comqc.single_body import decode_body
from udfs.comqc.body_decoder import decode_bodies, explode_calls

ROWS = 20_000
SINGLE_ROWS = 1_000
IDISPATCH = bytes.fromhex("0004020000000000c000000000000046")
CLSID = bytes(range(16))


def build_variant(vt, data):
    return struct.pack("<IIHHHHI", 3, 0, vt, 0, 0, 0, vt) + data


def build_text_variant(value):
    raw = value.encode("utf-16-le")
    units = len(raw) // 2
    return build_variant(8, struct.pack("<IIII", 0x72657355, units, len(raw), units) + raw)


def build_invoke_data(number):
    arguments = [
        build_variant(3, struct.pack("<i", number)),
        build_text_variant(f"order {number:08d}"),
        build_variant(0xB, struct.pack("<H", 0xFFFF * (number % 2))),
        build_variant(7, struct.pack("<Id", 0, 40000 + number / 1000)),
    ]
    data = struct.pack("<i16sIIIIII", number % 7, bytes(16), 0x409, 1, 0x20000, 0, len(arguments), 0)
    data += struct.pack("<I", len(arguments)) + struct.pack("<I", 0x72657355) * len(arguments)
    for argument in arguments:
        data += bytes(-len(data) % 8) + argument
    return data + bytes(-len(data) % 4) + struct.pack("<III", 0, 0, 0)


def build_method_header(data, iid=None):
    body = data + bytes(-len(data) % 8)
    fixed = 48 if iid else 32
    name = 0x4854454D if iid else 0x48544D53
    return struct.pack("<8I", name, fixed + len(body), 6, 0x10, 0x1000, len(data), 1, 0) + (iid or b"") + body


def build_message_body(*methods):
    target = bytes.fromhex("c6afabec197fd211978e0000f8757e2a") + CLSID
    string = "{03020100-0504-0706-0809-0a0b0c0d0e0f}\0".encode("utf-16-le")
    target += struct.pack("<I", len(string)) + string
    target += bytes(-len(target) % 8)
    secd = struct.pack("<IIII", 0x44434553, 24, 8, 0) + struct.pack("<HHHH", 1, 1, 0, 0)
    rest = target + secd + b"".join(methods)
    head = struct.pack("<II", 0x52444843, 80 + len(target)) + bytes.fromhex("83dbbb7141fcd011b7640080c7ec3fc1")
    return (
        head + struct.pack("<III", 1, 1, 80 + len(rest)) + bytes(32) + struct.pack("<I", len(target)) + bytes(8) + rest
    )


def build_three_call_body(number):
    return build_message_body(
        build_method_header(build_invoke_data(number), IDISPATCH),
        build_method_header(build_invoke_data(number + 1)),
        build_method_header(b"x" * 40, CLSID),
    )


def build_one_call_body(number):
    return build_message_body(build_method_header(build_invoke_data(number), IDISPATCH))


def column_rate(bodies):
    begin = time.process_time()
    for place in range(0, len(bodies), 10_000):  # as in Spark's Arrow batches
        explode_calls(decode_bodies(bodies.slice(place, 10_000)))
    return len(bodies) / (time.process_time() - begin)


def single_rate(bodies):
    begin = time.process_time()
    for body in bodies:
        decode_body(body)
    return len(bodies) / (time.process_time() - begin)


def measure(rows=ROWS, repeat=3):
    """Measure bodies per second and core of the column decoder, and its speed relative to the single decoder."""
    out = []
    for name, make, calls in (
        ("three calls, two dispatch", build_three_call_body, 3),
        ("one dispatch call", build_one_call_body, 1),
    ):
        made = [make(number) for number in range(rows)]
        bodies = pa.array(made, pa.binary())
        decoded = decode_bodies(bodies)
        assert decoded.column("comqc_rejected").null_count == rows
        assert explode_calls(decoded)[1].num_rows == rows * calls
        assert not any(explode_calls(decoded)[1].column("errors").value_lengths().to_numpy())
        fast = max(column_rate(bodies) for _ in range(repeat))
        slow = single_rate(made[:SINGLE_ROWS])
        out += [
            Measure(f"COMQC of {len(made[0])} bytes, {name}", fast / 1000, "k/s"),
            Measure("  against the single-value reader", fast / slow, "x"),
        ]
    return out


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
