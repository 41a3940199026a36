"""Record the estate: the collector queries it over a captured wire (`python -m peer.record_estate`, as root).

That gives both sources of the same state: snapshot files of the collector, and packets of its calls.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peer.netns import Tcpdump, Wire, ip
from peer.record import missing_programs

HOSTS = ("10.77.0.11", "10.77.0.12", "10.77.0.13", "10.77.0.14")


def run_in_namespace(namespace: str, *command: str) -> subprocess.Popen[bytes]:
    """Start this Python with arguments inside a network namespace."""
    enter = ["ip", "netns", "exec", namespace, sys.executable]
    return subprocess.Popen([*enter, *command], stdout=subprocess.DEVNULL, env={"PYTHONPATH": ".:tests/support"})


def record(wire: Wire, work: Path, out: Path, rounds: int) -> str:
    """Run estate, recorder and collector side by side; returns a line with the result."""
    for host in HOSTS:
        ip("-n", wire.server, "addr", "add", f"{host}/24", "dev", wire.interface)
    conf, raw = work / "collector.yml", work / "collector.pcap"
    estate = run_in_namespace(wire.server, "-m", "peer.estate", "--real-ports", "--every", "1", "--conf", str(conf),
                    "--host", *HOSTS)  # fmt: skip
    try:
        while not conf.exists() or not conf.stat().st_size:
            if estate.poll() is not None:
                raise RuntimeError("the estate does not start")
            time.sleep(0.1)
        dump = Tcpdump(wire, raw)
        dump.start()
        settings = [f"collector.rounds={rounds}", "collector.interval=1s"]
        arguments = [part for each in settings for part in ("--set", each)]
        landed = work / "snapshots"
        command = ("-m", "jobs.collect_snapshots", "--conf", str(conf), "--out", str(landed), *arguments)
        collector = run_in_namespace(wire.client, *command)
        if collector.wait() != 0:
            raise RuntimeError(f"the collector ended with {collector.returncode}")
        dump.stop()
    finally:
        estate.terminate()
        estate.wait(10)
    shutil.rmtree(out, ignore_errors=True)
    (out / "wire").mkdir(parents=True)
    target = out / "wire" / "collector.pcap.gz"
    with raw.open("rb") as source, gzip.GzipFile(target, "wb", mtime=0) as packed:
        shutil.copyfileobj(source, packed)
    files = sorted(landed.rglob("*.jsonl"))
    (out / "snapshots").mkdir()
    for path in files:
        shutil.copyfile(path, out / "snapshots" / path.name)
    return f"{target}: {target.stat().st_size} bytes; {len(files)} snapshot files"


def main(argv: list[str] | None = None) -> int:
    """Record the estate."""
    parser = argparse.ArgumentParser(prog="python -m peer.record_estate", description="Record the estate anew.")
    parser.add_argument("--out", type=Path, default=Path("data/estate"), help="folder (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds at each machine (default %(default)s)")
    options = parser.parse_args(argv)
    if lacking := [name for name in missing_programs() if name != "editcap"]:
        print(f"peer.record_estate: needs {', '.join(lacking)} (packages iproute2, tcpdump)", file=sys.stderr)
        return 2
    try:
        wire = Wire.build()
    except subprocess.CalledProcessError as error:
        print(f"peer.record_estate: cannot make network namespaces: {error.stderr.strip()}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as work:
            print(record(wire, Path(work), options.out, options.rounds))
    finally:
        wire.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
