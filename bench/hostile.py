"""Benchmark of hostile input: CPU time and peak memory of each case; ``python -m bench.hostile [CASE ...]``.

Each case is generated and read in a separate process. The case ``floor`` is an empty capture, for comparison. The
resulting limits are in docs/reference/limits.md.
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
from pathlib import Path
from typing import Any

from bench import hostile_sessions
from bench.hostile_frames import ethernet_frame, one_connection, pcap
from bench.traffic import ACK, EPOCH_US, NDR, PCAP_HEADER, PUSH, REMOTE_READ, SYN, build_pdu, pcap_record

MILLION = 1_000_000
CaseResult = dict[str, Any]


def half_open_connections(count: int) -> bytes:
    """A SYN from each of ``count`` clients, without answers."""
    return pcap(ethernet_frame(number + 1024, number, SYN) for number in range(count))


def plausible_first_bytes(count: int) -> bytes:
    """A packet without SYN from each of ``count`` clients, whose payload begins like a request that continues."""
    begin = build_pdu(0, 1, struct.pack("<IHH", 1400, 0, 7) + bytes(1400))[:24]
    return pcap(ethernet_frame(number + 1024, number, ACK | PUSH, begin, port=5000) for number in range(count))


def plausible_first_bytes_packed(count: int) -> bytes:
    """The same, compressed: a small file of many connections."""
    return gzip.compress(plausible_first_bytes(count), mtime=0)


def calls_without_bind(count: int, packet_bytes: int = 64_000) -> bytes:
    """One connection without SYN and bind, with ``count`` requests that are not answered."""
    return one_connection(map(cursor_request, range(count)), syn=False, packet_bytes=packet_bytes)


def cursor_request(call_id: int) -> bytes:
    """Return the request of an R_CreateCursor (RemoteRead, opnum 4), whose size shows the interface without a bind."""
    return build_pdu(0, call_id, struct.pack("<IHH", 20, 0, 4) + bytes(20))


def _bind(call_id: int, contexts: int) -> bytes:
    items = b"".join(struct.pack("<HBx", number, 1) + REMOTE_READ + NDR for number in range(contexts))
    return build_pdu(11, call_id, struct.pack("<HHIB3x", 5840, 5840, 0, contexts) + items)


def large_binds(count: int) -> bytes:
    """One connection whose client sends binds of 255 contexts, ``count`` contexts together."""
    return one_connection((_bind(number, 255) for number in range(count // 255)), syn=True)


def auth3_behind_binds(count: int) -> bytes:
    """One connection with 4,096 binds, and ``count`` auth3 PDUs behind them."""
    token = b"NTLMSSP\0" + struct.pack("<I", 3) + bytes(8)

    def pdus() -> Iterator[bytes]:
        yield from (_bind(number, 1) for number in range(4096))
        yield from (build_pdu(16, number % 5000, bytes(4), token=token) for number in range(count))

    return one_connection(pdus(), syn=True)


def calls_behind_binds(count: int) -> bytes:
    """The same with requests of the same size in the place of the auth3 PDUs, for comparison."""
    token = b"NTLMSSP\0" + struct.pack("<I", 3) + bytes(4)

    def pdus() -> Iterator[bytes]:
        yield from (_bind(number, 1) for number in range(4096))
        yield from (build_pdu(0, n, struct.pack("<IHH", 0, 0, 7), token=token) for n in range(count))

    return one_connection(pdus(), syn=True)


def _rpc_stream(count: int) -> bytes:
    bind = struct.pack("<HHIB3xHBx", 5840, 5840, 0, 1, 0, 1) + REMOTE_READ + NDR
    first = build_pdu(11, 1, bind)
    calls = []
    size = len(first)
    number = 2
    while size < count:
        calls.append(build_pdu(0, number, struct.pack("<IHH", 1400, 0, 7) + bytes(1400)))
        size += len(calls[-1])
        number += 1
    return first + b"".join(calls)


def one_byte_segments(count: int) -> bytes:
    """One connection whose client sends its PDUs in segments of one byte."""
    stream = _rpc_stream(count)[:count]

    def frames() -> Iterator[bytes]:
        yield ethernet_frame(1024, 99, SYN)
        for place in range(len(stream)):
            yield ethernet_frame(1024, 100 + place, ACK | PUSH, stream[place : place + 1])

    return pcap(frames())


def reversed_one_byte_segments(count: int) -> bytes:
    """Segments of one byte in reversed order, so that all wait for the one that comes last."""
    stream = _rpc_stream(count)[:count]

    def frames() -> Iterator[bytes]:
        yield ethernet_frame(1024, 99, SYN)
        for place in reversed(range(len(stream))):
            yield ethernet_frame(1024, 100 + place, ACK | PUSH, stream[place : place + 1])

    return pcap(frames())


def gzip_bomb(count: int) -> bytes:
    """A gzip file with a gigabyte of meaningless records per megabyte."""
    frame = bytes(60_000)
    one = pcap_record(EPOCH_US, frame)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed:
        packed.write(PCAP_HEADER)
        for _ in range(count * 1000 // len(one)):
            packed.write(one)
    return out.getvalue()


def nested_gzip_bomb(count: int) -> bytes:
    """A gzip bomb that is compressed again: the decompressed content is not a capture."""
    return gzip.compress(gzip_bomb(count), mtime=0)


def oversized_pcap_records(count: int) -> bytes:
    """A pcap file with a record that claims 4 GB."""
    whole = pcap(iter([ethernet_frame(1024, 1, SYN)]))
    return whole + struct.pack("<IIII", 1, 0, 0xFFFFFFFF, 0xFFFFFFFF) + bytes(count)


def oversized_pcapng_blocks(count: int) -> bytes:
    """A pcapng file with a block that claims 4 GB."""
    header = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 1, 0, 0, 20)
    return header + interface + struct.pack("<II", 6, 0xFFFFFFFC) + bytes(count)


def _read_capture(data: bytes) -> CaseResult:
    from udfs.capture.capture_reader import read_capture_batches  # noqa: PLC0415 (imported by the process that is measured)
    from udfs.files.file_source import FileSource  # noqa: PLC0415

    result: CaseResult = {"input": len(data)}
    rows: dict[str, int] = {}
    for kind, batch in read_capture_batches(FileSource.from_bytes(data, "hostile")):
        rows[kind] = rows.get(kind, 0) + batch.num_rows
        if kind == "capture_files":
            result |= {
                name: batch.column(name)[0].as_py() for name in ("status", "damage", "packets", "packets_not_read")
            }
    return {**result, "rows": rows}


def _decode_hostile_stubs(count: int) -> CaseResult:
    """Decode stubs of every method that claim arrays of 4 GB and more, in NDR and NDR64."""
    import pyarrow as pa  # noqa: PLC0415

    from udfs.stubs.method_registry import ALL_METHODS  # noqa: PLC0415
    from udfs.stubs.stub_decoder import decode_stubs  # noqa: PLC0415

    rows = 0
    for methods in ALL_METHODS.values():
        for method in methods.values():
            for direction in ("request", "response"):
                for filler in (b"\xff", b"\xfe\xff\xff\x7f", b"\0\0\0\x80"):
                    stub = (filler * 2048)[:2048]
                    column = pa.array([stub] * max(count // 10_000, 1), pa.binary())
                    for ndr64 in (False, True):
                        decode_stubs(method, direction, column, ndr64=ndr64, big_endian=False, packets=True)
                        rows += len(column)
    return {"input": rows * 2048, "rows": {"stubs": rows}}


def _decode_nested_variants(count: int) -> CaseResult:
    """Decode deeply nested variants: of [MS-OAUT] in message bodies, and in snapshot lines."""
    import pyarrow as pa  # noqa: PLC0415

    from udfs.comqc.body_decoder import decode_bodies  # noqa: PLC0415
    from udfs.properties import snapshot_lines  # noqa: PLC0415

    deep = struct.pack("<IIHHHHQ", 5, 0, 0x400C, 0, 0, 0, 0x20000) * (count // 100)
    body = pa.array([b"CHDR" + deep, b"METH" + deep, deep], pa.binary())
    decode_bodies(body, None, pa.array([None] * 3, pa.int64()), marshaled=True)
    nested = b"[" * count + b"]" * count
    line = b'{"version":1,"properties":[{"property_id":1,"vt":12,"value_json":' + json.dumps(nested.decode()).encode()
    lines = list(snapshot_lines.read_snapshot_rows(io.BytesIO(nested + b"\n" + line + b"}]}\n"), "hostile"))
    return {"input": len(deep) * 3 + 2 * len(nested), "rows": {"lines": len(lines)}}


def _read_empty_capture(_: int) -> CaseResult:
    return _read_capture(pcap(iter([])))


def _capture_case(make: Callable[[int], bytes]) -> Callable[[int], CaseResult]:
    return lambda count: _read_capture(make(count))


CASES: dict[str, Callable[[int], CaseResult]] = {
    "floor": _read_empty_capture,
    "half_open": _capture_case(half_open_connections),
    "first_bytes": _capture_case(plausible_first_bytes),
    "first_bytes_packed": _capture_case(plausible_first_bytes_packed),
    "calls_without_bind": _capture_case(calls_without_bind),
    "large_binds": _capture_case(large_binds),
    "auth3": _capture_case(auth3_behind_binds),
    "calls_behind_binds": _capture_case(calls_behind_binds),
    "one_byte_segments": _capture_case(one_byte_segments),
    "one_byte_backwards": _capture_case(reversed_one_byte_segments),
    "bomb": _capture_case(gzip_bomb),
    "bomb_in_bomb": _capture_case(nested_gzip_bomb),
    "long_records": _capture_case(oversized_pcap_records),
    "long_blocks": _capture_case(oversized_pcapng_blocks),
    **{name: _capture_case(make) for name, make in hostile_sessions.CAPTURES.items()},
    "stubs": _decode_hostile_stubs,
    "variants": _decode_nested_variants,
}


def measure_case(name: str, count: int) -> CaseResult:
    """Run one case in this process; return its result with CPU seconds, peak memory and temporary files in MB."""
    begin, written = time.process_time(), _written_bytes()
    result = CASES[name](count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "case": name,
        "cpu_s": round(time.process_time() - begin, 2),
        "peak_mb": round(peak / 1e6),
        "written_mb": round((_written_bytes() - written) / 1e6, 1),
        **result,
    }


def _written_bytes() -> int:
    """Return the bytes that this process wrote so far: to temporary files; 0 where the system does not say it."""
    io_counts = Path("/proc/self/io")
    return int(io_counts.read_text().split("wchar:")[1].split()[0]) if io_counts.exists() else 0


def main() -> int:
    """Run the chosen cases, each in a separate process, and print one JSON line for each."""
    top = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    top.add_argument("case", nargs="*", help=f"cases to run, of {', '.join(CASES)} (default: all)")
    top.add_argument(
        "--count", type=int, default=MILLION, help="number of connections, segments, bytes, ... (default: 1000000)"
    )
    top.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = top.parse_args()
    if unknown := set(arguments.case) - {*CASES}:
        top.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    count = arguments.count
    if arguments.inside:
        print(json.dumps(measure_case(arguments.case[0], count)))
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
