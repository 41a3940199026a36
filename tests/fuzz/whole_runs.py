"""Whole runs over mutated and scaled input: ``python -m fuzz.whole_runs``, or ``make fuzz FUZZ=run_all``.

Each round puts captures and snapshot files that were changed at random into folders, beside one capture that was not,
and starts ``run_all`` in a process of its own: twice, with pages. A round fails if

* the process takes more memory, disk or time than the limits below, is killed, or ends with an unforeseen error,
* a file is missing from the ledgers, or the capture that was not changed has not all of its calls,
* the second run reads calls again,
* standard output or error contains what a terminal would obey.

The seed of a round is printed, and chooses the same input again. The input of a round that failed is kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CAPTURES = (PROJECT / "data" / "sample", PROJECT / "data" / "estate" / "wire")
SNAPSHOTS = PROJECT / "data" / "estate" / "snapshots"
CLEAN, CLEAN_CALLS = "01-remoteread-ndr.pcap", 54
SAMPLE_SERVER, CLEAN_SERVER = bytes([10, 77, 0, 1]), bytes([192, 0, 2, 77])

MAX_SECONDS = 600  # of both runs, on a machine that does other work too
MAX_MEMORY = 6 << 30  # of all processes; Spark's Java alone may take 3 GB
MAX_DISK = 2 << 30  # of the lake, the pages and temporary files
MAX_SCALED = 16 << 20  # bytes of a capture that is repeated
ALLOWED_CODES = {0, 1, 3}

# The process of a round. Its last line tells what is in the lake.
CHILD = """
import json, sys
from jobs import run_all
from jobs.session import get_spark_session
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES
codes = [run_all.main(sys.argv[1:]), run_all.main(sys.argv[1:])]
lake = Lake(get_spark_session("fuzz"), sys.argv[sys.argv.index("--lake") + 1])
files = sum(lake.read(ledger).count() for ledger in (CAPTURE_FILES, SNAPSHOT_FILES) if lake.exists(ledger))
clean = lake.read(RPC_CALLS).where("server_address = '192.0.2.77'").count() if lake.exists(RPC_CALLS) else 0
print(json.dumps({"codes": codes, "files": files, "clean": clean}))
"""

HOSTILE = [
    "${spark.sql.variable.substitute}", "${env:HOME}", "{{}}", "'; DROP TABLE x; --", '"\\"', "`",
    "</script><svg onload=x>", "\u202egnp.exe", "\x1b]0;x\x07", "\0", "\ud800", "%s%n", "=cmd|'/c x'!A1", "../../x",
    "a" * 300,
]  # fmt: skip
FAR_TIMES = ["9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2105-01-01T00:00:00+14:00"]


class RoundError(AssertionError):
    """A round that failed; the message says why."""


# --- mutations of bytes -----------------------------------------------------------------------------------------------


def flip(data, rng):
    """Change some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 10, 200])):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def cut(data, rng):
    """Keep the beginning or the end, or lose a part in the middle."""
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    return rng.choice([data[:first], data[first:], data[:first] + data[second:]])


def extreme(data, rng):
    """Write extreme numbers over lengths, counts, times and whatever else is there."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 20, 300])):
        at = rng.randrange(max(len(out) - 8, 1))
        value = rng.choice(
            [b"\xff" * 4, b"\xff\xff\xff\x7f", bytes(4), b"\0\0\0\x80", b"\xff\xff", b"\0\0", b"\1\0\0\x40"]
        )
        out[at : at + len(value)] = value
    return bytes(out)


def repeat_piece(data, rng):
    """Repeat a part many times."""
    at, size = rng.randrange(len(data)), rng.choice([16, 400, 9000])
    return data[:at] + data[at : at + size] * rng.choice([2, 50, 1000]) + data[at:]


def hostile_names(data, rng):
    """Write hostile texts over names of queues and machines, at the same length."""
    for name in rng.sample(["orders", "srv1", "parcels", "private$", "order "], 3):
        text = (rng.choice(HOSTILE) * len(name))[: len(name)]
        data = data.replace(name.encode("utf-16-le"), text.encode("utf-16-le", "surrogatepass"))
    return data


def _gzip(data):
    return gzip.compress(data, 1, mtime=0)


def packed(data, rng):
    """Compress it: well, cut, with more behind it, in two members, or many times."""
    whole = _gzip(data)
    return rng.choice(
        [
            whole,
            whole[: len(whole) // 2],
            whole + rng.randbytes(50),
            whole + _gzip(data),
            _gzip(whole),
        ]
    )


def joined(data, _rng):
    """Two files in one: a second section of pcapng, garbage behind pcap."""
    return data + data


# --- mutations of packets of pcap -------------------------------------------------------------------------------------


def packets_of(data):
    """Return the byte order of a pcap file and its packets, header included; none for other formats."""
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
    order = order.get(data[:4])
    packets, at = [], 24
    while order and at + 16 <= len(data):
        size = struct.unpack_from(f"{order}I", data, at + 8)[0]
        packets.append(data[at : at + 16 + size])
        at += 16 + size
    return order, packets


def shuffled(data, rng):
    """Another order of packets, some lost, some twice, some at another time."""
    order, packets = packets_of(data)
    if not packets:
        return data
    if rng.random() < 0.5:
        rng.shuffle(packets)
    times = [0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(1 << 32)]
    out = []
    for packet in packets:
        luck = rng.random()
        if luck < 0.02:
            continue
        if luck < 0.04:
            packet = struct.pack(f"{order}I", rng.choice(times)) + packet[4:]  # noqa: PLW2901
        out += [packet] * (2 if luck > 0.97 else 1)
    return data[:24] + b"".join(out)


def scaled(data, rng):
    """The same traffic again and again: of the same connections, of other clients, or of other ports."""
    order, packets = packets_of(data)
    if not packets:
        return data
    kind, out, size, turn = rng.choice(["same", "clients", "ports"]), [], 0, 0
    wanted = rng.choice([1, 4, 16]) * MAX_SCALED // 16
    while size < wanted:
        turn += 1
        for packet in packets:
            seconds = (struct.unpack_from(f"{order}I", packet)[0] + (turn if rng.random() < 0.99 else 0)) & 0xFFFFFFFF
            again = struct.pack(f"{order}I", seconds) + packet[4:]
            if kind == "clients":
                again = again.replace(b"\x0a\x4d\0\2", bytes([10, 78, turn >> 8 & 255, turn & 255]))
            elif kind == "ports":
                again = (
                    again[:50] + again[50:54].translate(bytes((each + turn) & 255 for each in range(256))) + again[54:]
                )
            out.append(again)
            size += len(again)
    return data[:24] + b"".join(out)


BYTE_MUTATIONS = (flip, cut, extreme, repeat_piece, hostile_names, packed, joined)
MUTATIONS = (*BYTE_MUTATIONS, shuffled, shuffled, scaled)


def hostile_lines(data, rng):
    """Snapshots with extreme times, hostile names and values, and many properties."""
    lines = [json.loads(line) for line in data.splitlines()]
    for line in rng.sample(lines, max(len(lines) // 2, 1)):
        text, far = rng.choice(HOSTILE), rng.choice(FAR_TIMES)
        change = rng.choice([
            {"asked_at": far}, {"collected_at": far}, {"queue_manager": text}, {"server_address": text},
            {"error": text}, {"collector_version": text}, {"hresult": rng.choice([-1, 1 << 31, 1 << 40])},
            {"format_name": f"DIRECT=OS:{text}\\private$\\{text}"}, {"properties": line["properties"] * 500},
            {"properties": [each | {"value_json": json.dumps(text)} for each in line["properties"]]},
            {"properties": [each | {"vt": rng.randrange(1 << 16)} for each in line["properties"]]},
            {"properties": [each | {"value_json": "[" * 5000} for each in line["properties"]]},
        ])  # fmt: skip
        line.update({name: value for name, value in change.items() if name != "format_name" or line["format_name"]})
    return "\n".join(map(json.dumps, lines)).encode()


def mutated(data, rng, mutations):
    """Apply up to three mutations."""
    for change in rng.choices(mutations, k=rng.choice([1, 1, 2, 3])):
        data = change(data, rng) or b"\0"
    return data


def write_input(folder, rng):
    """Write the captures and the snapshot files of a round; return how many there are."""
    captures, snapshots = folder / "captures", folder / "snapshots"
    captures.mkdir(parents=True)
    snapshots.mkdir()
    samples = sorted(path for place in CAPTURES for path in place.iterdir() if ".pcap" in path.name)
    for number, path in enumerate(rng.sample(samples, 8)):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        (captures / f"{number}.pcap").write_bytes(mutated(data, rng, MUTATIONS))
    for number, path in enumerate(rng.sample(sorted(SNAPSHOTS.iterdir()), 4)):
        lines = path.read_bytes()
        changed = hostile_lines(lines, rng) if number else mutated(lines, rng, BYTE_MUTATIONS)
        (snapshots / f"{number}.jsonl").write_bytes(changed)
    clean = next(path for path in samples if path.name == CLEAN).read_bytes()
    (captures / "clean.pcap").write_bytes(clean.replace(SAMPLE_SERVER, CLEAN_SERVER))
    return sum(1 for path in folder.rglob("*") if path.is_file())


# --- a round ----------------------------------------------------------------------------------------------------------


def memory_of(session):
    """Return the resident bytes of all processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if int(fields[3]) == session else 0
    return total


def disk_of(folder):
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).lstat().st_size
    return total


def run_limited(command, folder, work):
    """Run a command until it ends or exceeds a limit (RoundError); return its peaks and seconds."""
    begun, memory, disk = time.monotonic(), 0, 0
    environment = {**os.environ, "TMPDIR": str(work / "tmp"), "PYTHONPATH": str(PROJECT)}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment, cwd=work, start_new_session=True
        )
        try:
            while child.poll() is None:
                time.sleep(0.5)
                memory, disk = max(memory, memory_of(child.pid)), max(disk, disk_of(work))
                for what, found, limit in (
                    ("seconds", time.monotonic() - begun, MAX_SECONDS), ("bytes of memory", memory, MAX_MEMORY),
                    ("bytes of disk", disk, MAX_DISK),
                ):  # fmt: skip
                    if found > limit:
                        raise RoundError(f"more than {limit} {what}")
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if child.returncode:
        raise RoundError(f"the process ended with {child.returncode}")
    return memory, disk, time.monotonic() - begun


def check_output(folder, files):
    """Raise RoundError if what the runs said is not as it should be."""
    streams = [(folder / name).read_bytes().decode("utf-8", "surrogateescape") for name in ("stdout", "stderr")]
    for text in streams:
        if wrong := next((line for line in text.split("\n") if not line.isprintable()), None):
            raise RoundError(f"a terminal would obey {wrong!r}")
    objects = [json.loads(line) for line in streams[0].splitlines() if line.startswith("{")]
    found, summaries = objects[-1], [each for each in objects if "job" in each]
    if not set(found["codes"]) <= ALLOWED_CODES:
        raise RoundError(f"exit codes {found['codes']}: {[each.get('error') for each in summaries]}")
    if (found["files"], found["clean"]) != (files, CLEAN_CALLS):
        raise RoundError(f"{found['files']} of {files} files, {found['clean']} of {CLEAN_CALLS} calls")
    if again := summaries[-1]["tables"].get("bronze.rpc_calls", {}).get("rows_out"):
        raise RoundError(f"the second run wrote {again} calls")
    return found["codes"]


def run_round(seed, folder):
    """Make the input of a seed, run over it and check; return a line about it. RoundError if it fails."""
    files = write_input(folder / "input", random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="msmq-fuzz-") as name:
        work = Path(name)
        (work / "tmp").mkdir()
        given = ["--captures", str(folder / "input" / "captures"), "--snapshots", str(folder / "input" / "snapshots")]
        written = ["--lake", str(work / "lake"), "--pages", str(work / "pages")]
        memory, disk, seconds = run_limited([sys.executable, "-c", CHILD, *given, *written], folder, work)
    codes = check_output(folder, files)
    return f"{files} files, exit codes {codes}, {seconds:.0f} s, {memory >> 20} MiB of memory, {disk >> 20} MiB of disk"


def main():
    top = argparse.ArgumentParser(prog="python -m fuzz.whole_runs", description=__doc__)
    top.add_argument("--seconds", type=int, default=60, help="begin rounds for so long (60)")
    top.add_argument("--seed", type=int, help="of the only round")
    top.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="where failed input is kept")
    arguments = top.parse_args()
    until, failed = time.monotonic() + arguments.seconds, 0
    while True:
        seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
        folder = Path(tempfile.mkdtemp(prefix=f"msmq-fuzz-{seed}-", dir=arguments.keep))
        try:
            print(f"fuzz: run_all, seed {seed}: {run_round(seed, folder)}", flush=True)
            shutil.rmtree(folder)
        except RoundError as error:
            failed += 1
            print(f"fuzz: run_all, seed {seed}: FAILED: {error}: see {folder}", flush=True)
        if arguments.seed is not None or time.monotonic() >= until:
            return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
