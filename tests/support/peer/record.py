"""Record the sample traffic again: `python -m peer.record` (needs root, ip, tcpdump, editcap)."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import gzip
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from peer import scenarios_edges, scenarios_messages, scenarios_reading
from peer.netns import Tcpdump, Wire
from peer.server import ServerThread, standard_manager
from peer.world import World

PORTS = {"epm": 135, "remoteread": 2103, "qm2qm": 2105}


@dataclass(frozen=True)
class Sample:
    """A sample capture: name, scenario and file format."""

    name: str
    play: Callable[[World], Awaitable[None]]
    form: str = "pcap"  # pcap, pcapng, pcap.gz
    nanoseconds: bool = False
    late: bool = False  # the scenario itself says when the recorder starts

    @property
    def about(self) -> str:
        return (self.play.__doc__ or "").splitlines()[0]

    @property
    def file(self) -> str:
        return f"{self.name}.{self.form}"


SAMPLES = (
    Sample("01-remoteread-ndr", scenarios_reading.remoteread_ndr),
    Sample("02-remoteread-ndr64-multiplexed", scenarios_reading.remoteread_ndr64, nanoseconds=True),
    Sample("03-qm2qm-dependent-client", scenarios_reading.dependent_client),
    Sample("04-qmmgmt", scenarios_reading.management, "pcapng", nanoseconds=True),
    Sample("05-sealed-ntlm", scenarios_reading.sealed),
    Sample("06-mid-stream", scenarios_edges.mid_stream, late=True),
    Sample("07-faults-cancels-groups", scenarios_edges.faults),
    Sample("08-endpoint-mapper", scenarios_edges.endpoint_mapper),
    Sample("09-transactions-and-moves", scenarios_edges.transactions, "pcapng"),
    Sample("10-many-clients", scenarios_edges.many_clients, "pcap.gz", nanoseconds=True),
    Sample("11-queued-components", scenarios_messages.queued_components),
    Sample("12-lookups", scenarios_messages.lookups, nanoseconds=True),
    Sample("13-kinds-of-messages", scenarios_messages.kinds_of_messages, "pcapng"),
)


def record(sample: Sample, wire: Wire, work: Path, out: Path, truths: Path, shift: int = 0) -> str:
    """Play one scenario on the wire and write capture and truth; returns a line with the result.

    ``shift`` is how many seconds the clocks of the queue manager and of the recorder are ahead.
    """
    raw = work / f"{sample.name}.pcap"
    dump = Tcpdump(wire, raw, *(["--time-stamp-precision=nano"] if sample.nanoseconds else []))
    manager = standard_manager(dict(PORTS), lambda: time.time() + shift)
    server = ServerThread(manager, wire.server_address, wire.into(wire.server))
    truth = truths / f"{sample.name}.truth.json"
    done = threading.Event()
    failure: list[BaseException] = []

    def start() -> None:
        server.do(lambda manager: manager.ledger.mark())
        dump.start()

    def stop() -> None:
        if not done.is_set():
            done.set()
            dump.stop()
            if not failure:
                server.do(lambda manager: manager.ledger.write(truth, sample.file, sample.about))

    world = World(server, wire.server_address, wire.client_addresses, start, stop)

    async def scenario() -> None:
        await sample.play(world)
        await asyncio.sleep(0.5)  # the server sees the last connections end

    def play() -> None:
        try:
            wire.into(wire.client)()
            asyncio.run(scenario())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failure.append(error)

    with server:
        if not sample.late:
            start()
        thread = threading.Thread(target=play, name="peer-client")
        thread.start()
        thread.join()
        stop()
    if failure:
        raise RuntimeError(f"{sample.name}: {failure[0]}") from failure[0]
    if shift:
        moved = raw.with_suffix(".moved")
        form = "nsecpcap" if sample.nanoseconds else "pcap"
        subprocess.run(["editcap", "-F", form, "-t", str(shift), str(raw), str(moved)], check=True)
        raw = moved
    finish(raw, sample.form, out / sample.file)
    return f"{sample.file}: {(out / sample.file).stat().st_size} bytes"


def finish(raw: Path, form: str, target: Path) -> None:
    """Convert the capture to its file format."""
    if form == "pcapng":
        subprocess.run(["editcap", "-F", "pcapng", str(raw), str(target)], check=True)
    elif form == "pcap.gz":
        with raw.open("rb") as source, gzip.GzipFile(target, "wb", mtime=0) as packed:
            shutil.copyfileobj(source, packed)
    else:
        shutil.copyfile(raw, target)


def missing_programs() -> list[str]:
    """Return the programs that recording needs and this machine lacks."""
    return [name for name in ("ip", "tcpdump", "editcap") if shutil.which(name) is None]


def main(argv: list[str] | None = None) -> int:
    """Record all samples, or the named ones."""
    parser = argparse.ArgumentParser(prog="python -m peer.record", description="Record the sample captures anew.")
    parser.add_argument("--out", type=Path, default=Path("data/sample"), help="folder (default %(default)s)")
    parser.add_argument(
        "--truth", type=Path, default=Path("tests/sample/truth"), help="folder of what really happened (%(default)s)"
    )
    parser.add_argument(
        "--begin", type=dt.datetime.fromisoformat, help="set the clocks of all that is recorded: 2026-11-21T05:22:45Z"
    )
    parser.add_argument("names", nargs="*", help="only samples whose name begins with one of these")
    options = parser.parse_args(argv)
    if lacking := missing_programs():
        print(
            f"peer.record: needs {', '.join(lacking)} (packages iproute2, tcpdump, wireshark-common)", file=sys.stderr
        )
        return 2
    for folder in (options.out, options.truth):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        wire = Wire.build()
    except subprocess.CalledProcessError as error:
        print(f"peer.record: cannot make network namespaces: {error.stderr.strip()}", file=sys.stderr)
        return 2
    shift = 0 if options.begin is None else round(options.begin.timestamp() - time.time())
    try:
        with tempfile.TemporaryDirectory() as work:
            for sample in SAMPLES:
                if not options.names or sample.name.startswith(tuple(options.names)):
                    print(record(sample, wire, Path(work), options.out, options.truth, shift), flush=True)
    finally:
        wire.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
