"""Benchmarks of the project: ``python -m bench`` measures speed and memory; see ``--help``."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import collector, runs, transfers
from bench.measure import Measure, format_report, log_progress
from bench.traffic import generate_captures

MIN_BOUNDED_BYTES = 200_000_000  # smaller captures have no bounds: Delta's fixed cost per commit dominates their time
SMALL_CAPTURE_BYTES = 500_000_000  # smaller captures are measured twice as often
PARTS = (
    "decoders",
    "sealed",
    "gold",
    "findings",
    "spark",
    "captures",
    "transfers",
    "demo",
    "ring",
    "whole",
    "association",
    "runs",
    "files",
    "collector",
    "scattered",
    "slopes",
    "sessions",
)
TSHARK_FIELDS = (
    "frame.number",
    "tcp.stream",
    "dcerpc.pkt_type",
    "dcerpc.cn_call_id",
    "dcerpc.opnum",
    "dcerpc.cn_frag_len",
)


def parse_size(text: str) -> int:
    """Convert a size like ``200M`` to bytes; the units K, M and G are decimal."""
    units = {"K": 10**3, "M": 10**6, "G": 10**9}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def time_tshark(files: Sequence[Path]) -> tuple[float, int]:
    """Return the seconds that tshark takes to list the RPC PDUs of the files, and the number of lines printed."""
    begin = time.perf_counter()
    lines = 0
    for path in files:
        command = ["tshark", "-n", "-r", str(path), "-Y", "dcerpc", "-T", "fields"]
        for field in TSHARK_FIELDS:
            command += ["-e", field]
        lines += subprocess.run(command, capture_output=True, check=True).stdout.count(b"\n")
    return time.perf_counter() - begin, lines


def print_reader_speed(files: Sequence[Path]) -> None:
    """Read each file with the capture reader, on one core without Spark, and print MB/s."""
    from udfs.capture.capture_reader import read_capture_batches  # noqa: PLC0415 (generate needs no reader)
    from udfs.files.file_source import FileSource  # noqa: PLC0415

    for path in files:
        begin = time.perf_counter()
        rows = sum(
            batch.num_rows
            for kind, batch in read_capture_batches(FileSource.from_path(str(path)))
            if kind == "rpc_calls"
        )
        seconds = time.perf_counter() - begin
        megabytes = path.stat().st_size / 1e6
        print(f"{path}: {rows} calls, {seconds:.2f} s, {megabytes / seconds:.0f} MB/s")


def measure_captures(folder: Path, sizes: Sequence[int], ring: int, memory: int, repeat: int) -> list[Measure]:
    """Measure reading captures into bronze and silver; each measure is the best of ``repeat`` runs.

    Captures smaller than SMALL_CAPTURE_BYTES get twice as many runs, because other work of the machine affects short
    times more. Captures and lakes are made and removed below ``folder``. ``memory`` is the size of a capture with one
    connection, for the peak memory; 0 skips it.
    """
    from bench.lake_speed import LakeBench  # noqa: PLC0415 (Spark, which the other commands do not need)

    have_tshark = shutil.which("tshark") is not None
    out: list[Measure] = []
    log_progress("warm-up: a session, and a small capture")
    bench = LakeBench(folder)
    bench.time_bronze(generate_captures(folder / "warm", 40_000_000, ring=4))
    took: dict[int, float] = {}
    for total in sizes:
        label, runs = f"{total / 1e6:.0f} MB", repeat if total >= SMALL_CAPTURE_BYTES else 2 * repeat
        for kind, count in (("ring", ring), ("single file", 0)):
            where = folder / "captures"
            files = generate_captures(where, total, ring=count)
            name = f"{label} {kind}"
            log_progress(f"{name}: reader")
            written = min((bench.write_rpc_calls(files) for _ in range(runs)), key=lambda run: run.seconds)
            log_progress(f"{name}: the whole of bronze")
            whole = min(bench.time_bronze(files) for _ in range(runs))
            log_progress(f"{name}: captures to silver")
            decoded = min(bench.time_silver(files) for _ in range(runs))
            log_progress(f"{name}: limit of Delta")
            bound = min(bench.time_write_limit(written) for _ in range(runs))
            out += [
                Measure(f"{name}: rows", written.rows, ""),
                Measure(f"{name}: to bronze.rpc_calls", written.seconds, "s"),
                Measure(f"{name}: speed", total / 1e6 / written.seconds, "MB/s"),
                Measure(f"{name}: whole of bronze", whole, "s"),
                Measure(f"{name}: captures to silver", decoded, "s"),
                Measure(f"{name}: limit", bound, "s"),
            ]
            bounded = kind == "ring" and total >= MIN_BOUNDED_BYTES
            floor, goal = (2.0, 1.3) if bounded else (None, None)
            out.append(
                Measure(
                    f"{name}: time against the limit", written.seconds / bound, "x", floor, goal, higher_is_better=False
                )
            )
            if have_tshark:
                log_progress(f"{name}: tshark")
                seconds = min(time_tshark(files)[0] for _ in range(runs))
                floor, goal = (3.0, 6.0) if bounded else (None, None)
                out.append(Measure(f"{name}: tshark", seconds, "s"))
                out.append(Measure(f"{name}: speed against tshark", seconds / written.seconds, "x", floor, goal))
                floor, goal = (1.5, 3.0) if total >= MIN_BOUNDED_BYTES else (None, None)
                out.append(Measure(f"{name}: to silver, against tshark", seconds / decoded, "x", floor, goal))
            if kind == "ring":
                took[total] = written.seconds
            shutil.rmtree(where)
    if len(took) > 1:
        small, large = min(took), max(took)
        ratio = large / small
        floor, goal = (1.1 * ratio, ratio) if small >= MIN_BOUNDED_BYTES else (None, None)
        out.append(
            Measure(f"time at {ratio:.0f}x data", took[large] / took[small], "x", floor, goal, higher_is_better=False)
        )
    if memory:
        # A new session, so that the peak is that of this capture alone.
        bench.stop()
        bench = LakeBench(folder, separate_executor=True)
        log_progress("memory: a very small capture, for the memory of the driver")
        least = bench.write_rpc_calls(generate_captures(folder / "captures", memory // 1000, single=True))
        log_progress(f"memory: one connection of {memory / 1e6:.0f} MB")
        written = bench.write_rpc_calls(generate_captures(folder / "captures", memory, single=True))
        out += [
            Measure("one connection: time", written.seconds, "s"),
            Measure(
                "one connection: Python worker, peak",
                written.worker_peak / 2**20,
                "MiB",
                1024,
                512,
                higher_is_better=False,
            ),
            Measure("a thousandth of it: driver's JVM, peak", least.jvm_peak / 2**20, "MiB"),
            Measure("one connection: driver's JVM, peak", written.jvm_peak / 2**20, "MiB"),
        ]
    bench.stop()
    return out


def measure_decoders(rows: int, repeat: int) -> list[Measure]:
    """Measure the decoders of messages, stubs, COM+ calls and application headers on one core, without Spark."""
    from bench import application, comqc, messages, stubs  # noqa: PLC0415 (impacket, which the others do not need)

    out: list[Measure] = []
    for name, module, count in (
        ("messages", messages, rows), ("stubs", stubs, rows), ("comqc", comqc, rows // 10),
        ("application", application, rows // 10),
    ):  # fmt: skip
        log_progress(f"decoders: {name}")
        out += module.measure(count, repeat)
    return out


def measure_findings(rows: int, repeat: int) -> list[Measure]:
    """Measure the evaluation of conformance rules on one core, without Spark."""
    from bench import findings  # noqa: PLC0415 (the rules, which the others do not need)

    log_progress("findings")
    return findings.measure(rows, repeat)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``python -m bench``."""
    top = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    top.add_argument(
        "--size",
        type=parse_size,
        nargs="*",
        default=[parse_size("200M"), parse_size("1G")],
        help="sizes of the captures (default: 200M 1G)",
    )
    top.add_argument("--ring", type=int, default=20, help="number of files in a ring (default: 20)")
    top.add_argument(
        "--memory",
        type=parse_size,
        default=parse_size("2G"),
        help="size of a capture with one connection (default: 2G; 0: none)",
    )
    top.add_argument(
        "--runs",
        type=parse_size,
        default=parse_size("10G"),
        help="size of a ring of 100 files, for runs that add one (default: 10G; 0: none)",
    )
    top.add_argument(
        "--history", type=int, default=100, help="days of history in the lake of these runs (default: 100; 0: none)"
    )
    top.add_argument(
        "--files", type=int, default=100_000, help="number of small captures to list (default: 100000; 0: none)"
    )
    top.add_argument(
        "--queues", type=int, default=1000, help="number of queues, with 100 snapshots each (default: 1000; 0: none)"
    )
    top.add_argument(
        "--sealed",
        type=parse_size,
        default=parse_size("100M"),
        help="size of a capture with sealed calls (default: 100M; 0: none)",
    )
    top.add_argument(
        "--scattered",
        type=parse_size,
        default=parse_size("10G"),
        help="size of a table of which scattered rows are changed (default: 10G; 0: none)",
    )
    top.add_argument(
        "--rows", type=int, default=200_000, help="number of packets and stubs for the decoders (default: 200000)"
    )
    top.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"run only these of {', '.join(PARTS)}"
    )
    top.add_argument("--repeat", type=int, default=2, help="runs of each measure; the best one counts (default: 2)")
    top.add_argument("--quick", action="store_true", help="small sizes for all parts, to check that they work")
    top.add_argument("--json", type=Path, help="also write the measures to this file")
    top.add_argument(
        "--folder",
        type=Path,
        help="folder for captures and lakes, with room for 4 times the largest size (default: a temporary folder)",
    )
    commands = top.add_subparsers(dest="command")
    alone = commands.add_parser("reader", help="measure the capture reader on one core, without Spark")
    alone.add_argument("files", type=Path, nargs="+")
    large = commands.add_parser(
        "streamed", help="measure peak memory with one capture that is generated while it is read"
    )
    large.add_argument("bytes", type=parse_size)
    made = commands.add_parser("generate", help="generate a capture and keep it")
    made.add_argument("into", type=Path)
    made.add_argument("bytes", type=parse_size)
    made.add_argument("--files", type=int, default=0, help="number of files of a ring")
    made.add_argument("--single", action="store_true", help="one connection for the whole capture")
    made.add_argument("--transfers", action="store_true", help="messages on their way (TCP 1801), not RPC")
    return top


def main() -> None:
    """Run the chosen benchmarks, and print a table and a line of JSON."""
    arguments = build_parser().parse_args()
    if arguments.command == "reader":
        print_reader_speed(arguments.files)
        return
    if arguments.command == "streamed":
        from bench import streamed  # noqa: PLC0415 (the reader, which generate does not need)

        streamed.print_streamed(arguments.bytes)
        return
    if arguments.command == "generate" and arguments.transfers:
        for path in transfers.generate_captures(arguments.into, arguments.bytes, ring=arguments.files or 1):
            print(path)
        return
    if arguments.command == "generate":
        for path in generate_captures(arguments.into, arguments.bytes, ring=arguments.files, single=arguments.single):
            print(path)
        return
    sizes, memory, ring, rows = arguments.size, arguments.memory, arguments.runs, arguments.rows
    queues = arguments.queues
    if arguments.quick:
        sizes, memory, ring, rows = [20_000_000, 100_000_000], 100_000_000, 50_000_000, 20_000
        queues = min(queues, 50)
        arguments.files = min(arguments.files, 2_000)
        arguments.scattered = min(arguments.scattered, parse_size("300M"))
        arguments.sealed = min(arguments.sealed, parse_size("10M"))
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="msmq-bench-", dir=arguments.folder) as folder:
        if "decoders" in arguments.only:
            measures += measure_decoders(rows, arguments.repeat)
        if "gold" in arguments.only:
            from bench import gold, sequences  # noqa: PLC0415 (pipeline, which generate does not need)

            measures += gold.measure(rows // 4, arguments.repeat)
            measures += sequences.measure()
        if arguments.sealed and "sealed" in arguments.only:
            from bench import sealed  # noqa: PLC0415 (the tests' own peer)

            measures += sealed.measure(Path(folder) / "sealed", arguments.sealed, arguments.repeat)
        if "spark" in arguments.only:
            from bench import spark_udf  # noqa: PLC0415 (Spark)

            measures += spark_udf.measure(Path(folder) / "udf", rows, max(rows // 20, 1))
        if sizes and "captures" in arguments.only:
            measures += measure_captures(Path(folder), sizes, arguments.ring, memory, arguments.repeat)
        if sizes and "transfers" in arguments.only:
            from bench import transfer_speed  # noqa: PLC0415 (tshark and Spark)

            measures += transfer_speed.measure(Path(folder) / "transfers", max(sizes), arguments.repeat)
        if "demo" in arguments.only:
            from bench import engines  # noqa: PLC0415 (Spark)

            measures += engines.measure_demo(Path(folder) / "demo", 1 if arguments.quick else arguments.repeat)
        if "ring" in arguments.only and not arguments.quick:
            from bench import engines  # noqa: PLC0415 (Spark)

            measures += engines.measure_ring(Path(folder) / "ring", arguments.repeat)
        if len(sizes) > 1 and "whole" in arguments.only:
            from bench import whole_runs  # noqa: PLC0415 (Spark)

            least = min(sizes) if arguments.quick else max(sizes) // 10
            measures += whole_runs.measure(Path(folder) / "whole", (least, max(sizes)), time_tshark)
        if "association" in arguments.only:
            from bench import large_association  # noqa: PLC0415 (Spark)

            calls = large_association.CALLS // (10 if arguments.quick else 1)
            measures += large_association.measure(Path(folder) / "association", calls)
        if ring and "runs" in arguments.only:
            measures += runs.measure(Path(folder) / "runs", ring, arguments.history)
        if arguments.files and "files" in arguments.only:
            from bench import many_files  # noqa: PLC0415 (Spark)

            measures += many_files.measure(Path(folder) / "files", arguments.files)
        if "findings" in arguments.only:
            measures += measure_findings(arguments.rows, arguments.repeat)
        if queues and "collector" in arguments.only:
            measures += collector.measure(Path(folder) / "collector", queues, 100)
        if arguments.scattered and "scattered" in arguments.only:
            from bench import scattered  # noqa: PLC0415 (pipeline, which generate does not need)

            measures += scattered.measure(Path(folder) / "scattered", arguments.scattered)
        if "slopes" in arguments.only:
            from bench import slopes  # noqa: PLC0415 (the tests' own exchanges)

            measures += slopes.measure()
        if "sessions" in arguments.only:
            from bench import long_sessions  # noqa: PLC0415 (the tests' own packets)

            log_progress("sessions")
            measures += long_sessions.measure() + long_sessions.measure_merge()
    print(format_report(measures))
    facts: list[dict[str, Any]] = [
        {"name": m.name, "value": round(m.value, 3), "unit": m.unit, "floor": m.floor, "goal": m.goal, "met": m.verdict}
        for m in measures
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
