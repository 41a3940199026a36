"""``python -m bench``: the measures of this project's reader in one run; see ``--help``."""

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

from bench import collector, runs
from bench.measure import Measure, report, say
from bench.traffic import generate

LEAST_BOUNDED = 200_000_000  # bytes; below, Delta's fixed cost for a commit is all there is to see
SMALL = 500_000_000  # bytes
PARTS = ("decoders", "sealed", "gold", "findings", "spark", "captures", "runs", "files", "collector")
FIELDS = ("frame.number", "tcp.stream", "dcerpc.pkt_type", "dcerpc.cn_call_id", "dcerpc.opnum", "dcerpc.cn_frag_len")


def size(text: str) -> int:
    """``200M`` -> bytes (decimal)."""
    units = {"K": 10**3, "M": 10**6, "G": 10**9}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def tshark(files: Sequence[Path]) -> tuple[float, int]:
    """Seconds tshark takes to list the RPC PDUs, file after file, and the lines it gives."""
    begin = time.perf_counter()
    lines = 0
    for path in files:
        command = ["tshark", "-n", "-r", str(path), "-Y", "dcerpc", "-T", "fields"]
        for field in FIELDS:
            command += ["-e", field]
        lines += subprocess.run(command, capture_output=True, check=True).stdout.count(b"\n")
    return time.perf_counter() - begin, lines


def reader(files: Sequence[Path]) -> None:
    """The reader alone on one core, without Spark: MB/s for each file."""
    from udfs.capture.reader import capture_batches  # noqa: PLC0415 (generate needs no reader)
    from udfs.files.sources import Source  # noqa: PLC0415

    for path in files:
        begin = time.perf_counter()
        rows = sum(batch.num_rows for kind, batch in capture_batches(Source.of_path(str(path))) if kind == "rpc_calls")
        seconds = time.perf_counter() - begin
        megabytes = path.stat().st_size / 1e6
        print(f"{path}: {rows} calls, {seconds:.2f} s, {megabytes / seconds:.0f} MB/s")


def measure(folder: Path, sizes: Sequence[int], ring: int, memory: int, repeat: int) -> list[Measure]:
    """All measures, the best of ``repeat`` runs each; captures and lakes are made and removed below ``folder``.

    Of captures below ``SMALL`` twice as many: what takes seconds is at the mercy of what else the machine does.
    """
    from bench.lake_speed import Bench  # noqa: PLC0415 (Spark, which the other commands do not need)

    have_tshark = shutil.which("tshark") is not None
    out: list[Measure] = []
    say("warming up: a session, and a small capture through it")
    bench = Bench(folder)
    bench.job(generate(folder / "warm", 40_000_000, ring=4))
    took: dict[int, float] = {}
    for total in sizes:
        label, runs = f"{total / 1e6:.0f} MB", repeat if total >= SMALL else 2 * repeat
        for kind, count in (("ring", ring), ("single file", 0)):
            where = folder / "captures"
            files = generate(where, total, ring=count)
            name = f"{label} {kind}"
            say(f"{name}: reader")
            written = min((bench.calls(files) for _ in range(runs)), key=lambda run: run.seconds)
            say(f"{name}: the whole of bronze")
            whole = min(bench.job(files) for _ in range(runs))
            say(f"{name}: captures to silver")
            decoded = min(bench.silver(files) for _ in range(runs))
            say(f"{name}: limit")
            bound = min(bench.limit(written) for _ in range(runs))
            out += [
                Measure(f"{name}: rows", written.rows, ""),
                Measure(f"{name}: to bronze.rpc_calls", written.seconds, "s"),
                Measure(f"{name}: speed", total / 1e6 / written.seconds, "MB/s"),
                Measure(f"{name}: whole of bronze", whole, "s"),
                Measure(f"{name}: captures to silver", decoded, "s"),
                Measure(f"{name}: limit", bound, "s"),
            ]
            bounded = kind == "ring" and total >= LEAST_BOUNDED
            floor, goal = (2.0, 1.3) if bounded else (None, None)
            out.append(
                Measure(f"{name}: time against the limit", written.seconds / bound, "x", floor, goal, least=False)
            )
            if have_tshark:
                say(f"{name}: tshark")
                seconds = min(tshark(files)[0] for _ in range(runs))
                floor, goal = (3.0, 6.0) if bounded else (None, None)
                out.append(Measure(f"{name}: tshark", seconds, "s"))
                out.append(Measure(f"{name}: speed against tshark", seconds / written.seconds, "x", floor, goal))
                floor, goal = (1.5, 3.0) if total >= LEAST_BOUNDED else (None, None)
                out.append(Measure(f"{name}: to silver, against tshark", seconds / decoded, "x", floor, goal))
            if kind == "ring":
                took[total] = written.seconds
            shutil.rmtree(where)
    if len(took) > 1:
        small, large = min(took), max(took)
        ratio = large / small
        floor, goal = (1.1 * ratio, ratio) if small >= LEAST_BOUNDED else (None, None)
        out.append(Measure(f"time at {ratio:.0f}x data", took[large] / took[small], "x", floor, goal, least=False))
    if memory:
        # A session of its own: the peak is to be of this capture, not of those before.
        bench.stop()
        bench = Bench(folder, apart=True)
        say("memory: the driver, with next to nothing to read")
        least = bench.calls(generate(folder / "captures", memory // 1000, single=True))
        say(f"memory: one connection of {memory / 1e6:.0f} MB")
        written = bench.calls(generate(folder / "captures", memory, single=True))
        out += [
            Measure("one connection: time", written.seconds, "s"),
            Measure("one connection: Python worker, peak", written.worker_peak / 2**20, "MiB", 1024, 512, least=False),
            Measure("a thousandth of it: driver's JVM, peak", least.jvm_peak / 2**20, "MiB"),
            Measure("one connection: driver's JVM, peak", written.jvm_peak / 2**20, "MiB"),
        ]
    bench.stop()
    return out


def decoders(rows: int, repeat: int) -> list[Measure]:
    """The decoders alone, one core, no Spark: message packets, stubs beside impacket, bodies of components."""
    from bench import comqc, messages, stubs  # noqa: PLC0415 (impacket, which the others do not need)

    out: list[Measure] = []
    for name, module, count in (("messages", messages, rows), ("stubs", stubs, rows), ("comqc", comqc, rows // 10)):
        say(f"decoders: {name}")
        out += module.measure(count, repeat)
    return out


def judging(rows: int, repeat: int) -> list[Measure]:
    """What judging calls costs, one core, no Spark."""
    from bench import findings  # noqa: PLC0415 (the rules, which the others do not need)

    say("findings")
    return findings.measure(rows, repeat)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    top.add_argument("--size", type=size, nargs="*", default=[size("200M"), size("1G")], help="captures (200M 1G)")
    top.add_argument("--ring", type=int, default=20, help="files of the ring (20)")
    top.add_argument("--memory", type=size, default=size("2G"), help="capture of one connection (2G; 0: none)")
    top.add_argument("--runs", type=size, default=size("10G"), help="ring of 100 for runs that add one (10G; 0: none)")
    top.add_argument("--history", type=int, default=100, help="days of history for these (100; 0: none)")
    top.add_argument("--files", type=int, default=100_000, help="small captures that are listed (100000; 0: none)")
    top.add_argument("--queues", type=int, default=1000, help="queues x 100 rounds of snapshots (1000; 0: none)")
    top.add_argument("--sealed", type=size, default=size("100M"), help="capture of sealed calls (100M; 0: none)")
    top.add_argument("--rows", type=int, default=200_000, help="packets and stubs for the decoders (200000)")
    top.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of: {', '.join(PARTS)}")
    top.add_argument("--repeat", type=int, default=2, help="runs of each measure, of which the best counts (2)")
    top.add_argument("--quick", action="store_true", help="small sizes of everything: does it work at all")
    top.add_argument("--json", type=Path, help="write the measures to this file too")
    top.add_argument(
        "--folder", type=Path, help="where captures and lakes are made (a temporary folder); needs 4x the size"
    )
    commands = top.add_subparsers(dest="command")
    alone = commands.add_parser("reader", help="the reader alone on one core")
    alone.add_argument("files", type=Path, nargs="+")
    large = commands.add_parser("streamed", help="one capture made while it is read, and never stored: peak memory")
    large.add_argument("bytes", type=size)
    made = commands.add_parser("generate", help="write a capture and keep it")
    made.add_argument("into", type=Path)
    made.add_argument("bytes", type=size)
    made.add_argument("--files", type=int, default=0, help="a ring of so many files")
    made.add_argument("--single", action="store_true", help="one connection")
    return top


def main() -> None:
    arguments = parser().parse_args()
    if arguments.command == "reader":
        reader(arguments.files)
        return
    if arguments.command == "streamed":
        from bench import streamed  # noqa: PLC0415 (the reader, which generate does not need)

        streamed.main(arguments.bytes)
        return
    if arguments.command == "generate":
        for path in generate(arguments.into, arguments.bytes, ring=arguments.files, single=arguments.single):
            print(path)
        return
    sizes, memory, ring, rows = arguments.size, arguments.memory, arguments.runs, arguments.rows
    queues = arguments.queues
    if arguments.quick:
        sizes, memory, ring, rows = [size("20M"), size("100M")], size("100M"), size("50M"), 20_000
        queues = min(queues, 50)
        arguments.files = min(arguments.files, 2_000)
        arguments.sealed = min(arguments.sealed, size("10M"))
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="msmq-bench-", dir=arguments.folder) as folder:
        if "decoders" in arguments.only:
            measures += decoders(rows, arguments.repeat)
        if "gold" in arguments.only:
            from bench import gold  # noqa: PLC0415 (pipeline, which generate does not need)

            measures += gold.measure(rows // 4, arguments.repeat)
        if arguments.sealed and "sealed" in arguments.only:
            from bench import sealed  # noqa: PLC0415 (the tests' own peer)

            measures += sealed.measure(Path(folder) / "sealed", arguments.sealed, arguments.repeat)
        if "spark" in arguments.only:
            from bench import spark_udf  # noqa: PLC0415 (Spark)

            measures += spark_udf.measure(Path(folder) / "udf", rows, max(rows // 20, 1))
        if sizes and "captures" in arguments.only:
            measures += measure(Path(folder), sizes, arguments.ring, memory, arguments.repeat)
        if ring and "runs" in arguments.only:
            measures += runs.measure(Path(folder) / "runs", ring, arguments.history)
        if arguments.files and "files" in arguments.only:
            from bench import many_files  # noqa: PLC0415 (Spark)

            measures += many_files.measure(Path(folder) / "files", arguments.files)
        if "findings" in arguments.only:
            measures += judging(arguments.rows, arguments.repeat)
        if queues and "collector" in arguments.only:
            measures += collector.measure(Path(folder) / "collector", queues, 100)
    print(report(measures))
    facts: list[dict[str, Any]] = [
        {"name": m.name, "value": round(m.value, 3), "unit": m.unit, "floor": m.floor, "goal": m.goal, "met": m.verdict}
        for m in measures
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
