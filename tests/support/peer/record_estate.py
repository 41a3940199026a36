"""Record the estate anew: the collector asks it over a wire that is captured (`python -m peer.record_estate`, as root).

Both roads to one state: the snapshot files that the collector landed, and the packets of its questions.
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


def within(namespace: str, *command: str) -> subprocess.Popen[bytes]:
    """Start this Python with arguments inside a network namespace."""
    enter = ["ip", "netns", "exec", namespace, sys.executable]
    return subprocess.Popen([*enter, *command], stdout=subprocess.DEVNULL, env={"PYTHONPATH": ".:tests/support"})


def record(wire: Wire, work: Path, out: Path, rounds: int) -> str:
    """Run estate, recorder and collector side by side; a line that says what came out."""
    for host in HOSTS:
        ip("-n", wire.server, "addr", "add", f"{host}/24", "dev", wire.interface)
    conf, raw = work / "collector.yml", work / "collector.pcap"
    estate = within(wire.server, "-m", "peer.estate", "--real-ports", "--every", "1", "--conf", str(conf),
                    "--host", *HOSTS)  # fmt: skip
    try:
        while not conf.exists() or not conf.stat().st_size:
            if estate.poll() is not None:
                raise RuntimeError("the estate does not start")
            time.sleep(0.1)
        dump = Tcpdump(wire, raw)
        dump.start()
        settings = [f"collector.rounds={rounds}", "collector.every=1s"]
        arguments = [part for each in settings for part in ("--set", each)]
        landed = work / "snapshots"
        collector = within(wire.client, "-m", "jobs.collect_snapshots", "--conf", str(conf), "--out", str(landed),
                           *arguments)  # fmt: skip
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
    """Record it."""
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
