"""What hostile input costs: ``python -m bench.hostile [CASE ...]``, seconds of the processor and peak memory of each.

Each case is made and read in a process of its own; what it is compared with is what the same process needs for nothing
(``floor``). The bounds that come of it stand in docs/limits.md.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.traffic import ACK, EPOCH_US, HEADER, NDR, PUSH, REMOTE_READ, SYN, pdu, record

MILLION = 1_000_000
Told = dict[str, Any]


def _frame(client: int, sequence: int, flags: int, data: bytes = b"") -> bytes:
    """An Ethernet frame to a queue manager's port 2103; ``client`` is its address and port, checksums are left out."""
    addresses = struct.pack(">BBHBBH", 10, 1, client >> 16, 10, 2, 1)
    tcp = struct.pack(">HHIIBBHHH", client & 0xFFFF, 2103, sequence & 0xFFFFFFFF, 1, 0x50, flags, 8192, 0, 0)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0) + addresses
    return bytes(12) + b"\x08\x00" + ip + tcp + data


def _pcap(frames: Iterator[bytes]) -> bytes:
    out = io.BytesIO()
    out.write(HEADER)
    for number, frame in enumerate(frames):
        out.write(record(EPOCH_US + number, frame))
    return out.getvalue()


def half_open(count: int) -> bytes:
    """A SYN of each of a million clients, and never an answer."""
    return _pcap(_frame(number + 1024, number, SYN) for number in range(count))


def _stream(count: int) -> bytes:
    bind = struct.pack("<HHIB3xHBx", 5840, 5840, 0, 1, 0, 1) + REMOTE_READ + NDR
    first = pdu(11, 1, bind)
    calls = []
    size = len(first)
    number = 2
    while size < count:
        calls.append(pdu(0, number, struct.pack("<IHH", 1400, 0, 7) + bytes(1400)))
        size += len(calls[-1])
        number += 1
    return first + b"".join(calls)


def one_byte_segments(count: int) -> bytes:
    """One connection whose client sends its PDUs a byte at a time."""
    stream = _stream(count)[:count]

    def frames() -> Iterator[bytes]:
        yield _frame(1024, 99, SYN)
        for place in range(len(stream)):
            yield _frame(1024, 100 + place, ACK | PUSH, stream[place : place + 1])

    return _pcap(frames())


def one_byte_backwards(count: int) -> bytes:
    """The same, each segment before the one that it follows: all of them wait for the first."""
    stream = _stream(count)[:count]

    def frames() -> Iterator[bytes]:
        yield _frame(1024, 99, SYN)
        for place in reversed(range(len(stream))):
            yield _frame(1024, 100 + place, ACK | PUSH, stream[place : place + 1])

    return _pcap(frames())


def bomb(count: int) -> bytes:
    """A gzip file of a megabyte for each gigabyte of records without meaning."""
    frame = bytes(60_000)
    one = record(EPOCH_US, frame)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed:
        packed.write(HEADER)
        for _ in range(count * 1000 // len(one)):
            packed.write(one)
    return out.getvalue()


def bomb_in_bomb(count: int) -> bytes:
    """A bomb packed twice: what is inside is no capture."""
    return gzip.compress(bomb(count), mtime=0)


def long_records(count: int) -> bytes:
    """Records, blocks and fragments that claim 4 GB."""
    whole = _pcap(iter([_frame(1024, 1, SYN)]))
    return whole + struct.pack("<IIII", 1, 0, 0xFFFFFFFF, 0xFFFFFFFF) + bytes(count)


def long_blocks(count: int) -> bytes:
    """A pcapng file with a block of 4 GB."""
    header = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 1, 0, 0, 20)
    return header + interface + struct.pack("<II", 6, 0xFFFFFFFC) + bytes(count)


def _read(data: bytes) -> Told:
    from udfs.capture.reader import capture_batches  # noqa: PLC0415 (imported by the process that is measured)
    from udfs.files.sources import Source  # noqa: PLC0415

    told: Told = {"input": len(data)}
    rows: dict[str, int] = {}
    for kind, batch in capture_batches(Source.of_bytes(data, "hostile")):
        rows[kind] = rows.get(kind, 0) + batch.num_rows
        if kind == "capture_files":
            told |= {name: batch.column(name)[0].as_py() for name in ("status", "damage", "packets")}
    return {**told, "rows": rows}


def _stubs(count: int) -> Told:
    """Stubs of every method that claim arrays of 4 GB and more, in both syntaxes."""
    import pyarrow as pa  # noqa: PLC0415

    from udfs.stubs.decode import decode  # noqa: PLC0415
    from udfs.stubs.methods import ALL  # noqa: PLC0415

    rows = 0
    for methods in ALL.values():
        for method in methods.values():
            for direction in ("request", "response"):
                for filler in (b"\xff", b"\xfe\xff\xff\x7f", b"\0\0\0\x80"):
                    stub = (filler * 2048)[:2048]
                    column = pa.array([stub] * max(count // 10_000, 1), pa.binary())
                    for ndr64 in (False, True):
                        decode(method, direction, column, ndr64=ndr64, big_endian=False, packets=True)
                        rows += len(column)
    return {"input": rows * 2048, "rows": {"stubs": rows}}


def _variants(count: int) -> Told:
    """Variants in variants: [MS-OAUT]'s own and a collector's, as deep as the bytes allow."""
    import pyarrow as pa  # noqa: PLC0415

    from udfs.comqc.calls import decode_comqc  # noqa: PLC0415
    from udfs.properties import snapshot_lines  # noqa: PLC0415

    deep = struct.pack("<IIHHHHQ", 5, 0, 0x400C, 0, 0, 0, 0x20000) * (count // 100)
    body = pa.array([b"CHDR" + deep, b"METH" + deep, deep], pa.binary())
    decode_comqc(body, None, pa.array([None] * 3, pa.int64()), marshaled=True)
    nested = b"[" * count + b"]" * count
    line = b'{"version":1,"properties":[{"property_id":1,"vt":12,"value_json":' + json.dumps(nested.decode()).encode()
    lines = list(snapshot_lines.read_lines(io.BytesIO(nested + b"\n" + line + b"}]}\n"), "hostile"))
    return {"input": len(deep) * 3 + 2 * len(nested), "rows": {"lines": len(lines)}}


def _nothing(_: int) -> Told:
    return _read(_pcap(iter([])))


def _of(make: Callable[[int], bytes]) -> Callable[[int], Told]:
    return lambda count: _read(make(count))


CASES: dict[str, Callable[[int], Told]] = {
    "floor": _nothing,
    "half_open": _of(half_open),
    "one_byte_segments": _of(one_byte_segments),
    "one_byte_backwards": _of(one_byte_backwards),
    "bomb": _of(bomb),
    "bomb_in_bomb": _of(bomb_in_bomb),
    "long_records": _of(long_records),
    "long_blocks": _of(long_blocks),
    "stubs": _stubs,
    "variants": _variants,
}


def measured(name: str, count: int) -> Told:
    """Measure one case in this process: what it told, seconds of the processor, peak memory in MB (decimal)."""
    begin = time.process_time()
    told = CASES[name](count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"case": name, "cpu_s": round(time.process_time() - begin, 2), "peak_mb": round(peak / 1e6), **told}


def main() -> int:
    """Measure cases, each in a process of its own."""
    top = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    top.add_argument("case", nargs="*", help=f"of: {', '.join(CASES)} (default: all)")
    top.add_argument("--count", type=int, default=MILLION, help="of connections, segments, ... (a million)")
    top.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = top.parse_args()
    if unknown := set(arguments.case) - {*CASES}:
        top.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    count = arguments.count
    if arguments.inside:
        print(json.dumps(measured(arguments.case[0], count)))
        return 0
    failed = 0
    for name in arguments.case or CASES:
        command = [sys.executable, "-m", "bench.hostile", "--inside", f"--count={count}", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed += done.returncode != 0
        print(done.stdout.strip() or f"{name}: failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
