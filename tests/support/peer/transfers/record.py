"""Record data/transfers again: `python -m peer.transfers.record` (needs root, ip, tcpdump, editcap).

All queue managers run in one namespace, on addresses of its loopback interface with an MTU of 1500 and offloads off, so
that segments are as on a wire. The clock of an exchange jumps; the packets' times are moved to it afterwards. Each
recording has its own network, queue managers and time, so that its account holds also where all are read together.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from peer.netns import Tcpdump, Wire, disable_offloads, enter, ip
from peer.record import finish, missing_programs
from peer.transfers import scripts
from peer.transfers.clock import SECOND, Clock
from peer.transfers.exchange import Exchange

HOSTS = range(1, 5)
BEGIN = dt.datetime(2026, 11, 21, 9, 0, tzinfo=dt.UTC)
APART = dt.timedelta(minutes=30)  # longer than a script
QUIET_S = 0.06  # longer than TCP delays an acknowledgement
Script = Callable[[Exchange, Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True)
class Recording:
    """A capture of data/transfers: its script and file format."""

    play: Script
    form: str = "pcap"  # pcap, pcapng, pcap.gz
    nanoseconds: bool = False

    @property
    def number(self) -> int:
        return RECORDINGS.index(self) + 1

    @property
    def name(self) -> str:
        return f"{self.number:02d}-{self.play.__name__.replace('_', '-')}"

    @property
    def addresses(self) -> str:
        return f"10.77.{100 + self.number}."


RECORDINGS = (
    Recording(scripts.handshakes),
    Recording(scripts.session_acks, nanoseconds=True),
    Recording(scripts.transactions, "pcapng"),
    Recording(scripts.administration_acks),
    Recording(scripts.resends),
    Recording(scripts.two_hops, "pcapng", nanoseconds=True),
    Recording(scripts.several_queues),
    Recording(scripts.stall, "pcap.gz"),
    Recording(scripts.large_messages, "pcap.gz", nanoseconds=True),
    Recording(scripts.mid_stream),
    Recording(scripts.conversation),
)


def loopback() -> Wire:
    """Make a namespace with the addresses of all queue managers on its loopback interface."""
    name = f"peer-t-{os.getpid():x}"
    wire = Wire(name, name, interface="lo")
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up", "mtu", "1500")
        for recording in RECORDINGS:
            for host in HOSTS:
                ip("-n", name, "addr", "add", f"{recording.addresses}{host}/24", "dev", "lo")
    except BaseException:
        wire.remove()
        raise
    return wire


def move_times(capture: Path, clock: Clock) -> None:
    """Write the clock's times into a pcap of tcpdump, which has real ones."""
    data = bytearray(capture.read_bytes())
    unit = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[struct.unpack_from("<I", data)[0]]
    at, packets = 24, []
    while at < len(data):
        seconds, rest, length = struct.unpack_from("<III", data, at)
        moved = clock.moved(seconds * SECOND + rest * unit)
        struct.pack_into("<II", data, at, moved // SECOND, moved % SECOND // unit)
        packets.append((moved, at + 16))
        at += 16 + length
    move_timestamps(data, packets)
    capture.write_bytes(data)


def move_timestamps(data: bytearray, packets: Iterable[tuple[int, int]]) -> None:
    """Let TCP's timestamps (RFC 7323) of each direction, from its first one on, go on as the packets' times do.

    ``packets`` are the time in ns and the offset of each, Ethernet frames of IPv4. Linux counts milliseconds. Checksums
    stay: the loopback interface computes none.
    """
    first: dict[bytes, tuple[int, int]] = {}
    moved: dict[bytes, dict[int, int]] = defaultdict(dict)
    for time_ns, at in packets:
        ip = at + 14
        tcp = ip + (data[ip] & 15) * 4
        if data[ip + 9] != 6 or (option := _timestamps_option(data, tcp)) is None:
            continue
        source, target = (
            bytes(data[ip + 12 + 4 * n : ip + 16 + 4 * n] + data[tcp + 2 * n : tcp + 2 * n + 2]) for n in (0, 1)
        )
        value, echo = struct.unpack_from(">II", data, option + 2)
        began_ns, began = first.setdefault(source + target, (time_ns, value))
        now = moved[source + target][value] = began + (time_ns - began_ns) // (SECOND // 1000) & 0xFFFFFFFF
        struct.pack_into(">II", data, option + 2, now, moved[target + source].get(echo, echo))


def _timestamps_option(data: bytearray, tcp: int) -> int | None:
    """Return where the timestamps option of a TCP header begins; None where it has none."""
    at, end = tcp + 20, tcp + (data[tcp + 12] >> 4) * 4
    while at < end and data[at] != 8:
        at += 1 if data[at] == 1 else data[at + 1]
    return at if at < end else None


def record(recording: Recording, wire: Wire, work: Path, out: Path, truths: Path) -> str:
    """Play one script and write capture and account; returns a line with the result."""
    raw = work / f"{recording.name}.pcap"
    precision = "nano" if recording.nanoseconds else "micro"
    # In its usual mode tcpdump can lose what arrived within a second before it stops.
    options = ("--immediate-mode", f"--time-stamp-precision={precision}")
    dump = Tcpdump(wire, raw, *options, packets="tcp or udp")
    exchanges: list[Exchange] = []
    failures: list[BaseException] = []

    async def play() -> None:
        begin = BEGIN + (recording.number - 1) * APART
        exchange = Exchange(addresses=recording.addresses, begin=begin.timestamp(), quiet_s=QUIET_S)
        exchanges.append(exchange)

        def start() -> None:
            exchange.account.recorder_starts()
            dump.start()

        async with exchange:
            await recording.play(exchange, start)
            await exchange.clock.settle()
            exchange.account.closed = True
            dump.stop()

    def run() -> None:
        try:
            enter(wire.server)
            disable_offloads(wire.interface)
            asyncio.run(play())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    thread = threading.Thread(target=run, name="peer-transfers")
    thread.start()
    thread.join()
    if failures:
        raise RuntimeError(f"{recording.name}: {failures[0]}") from failures[0]
    move_times(raw, exchanges[0].clock)
    target = out / f"{recording.name}.{recording.form}"
    finish(raw, recording.form, target)
    about = (recording.play.__doc__ or "").splitlines()[0]
    exchanges[0].account.write(truths / f"{recording.name}.account.jsonl", recording.name, about, target.name)
    return f"{target.name}: {target.stat().st_size} bytes"


def main(argv: list[str] | None = None) -> int:
    """Record all, or what is named."""
    parser = argparse.ArgumentParser(prog="python -m peer.transfers.record", description="Record data/transfers anew.")
    parser.add_argument("--out", type=Path, default=Path("data/transfers"), help="folder (default %(default)s)")
    parser.add_argument(
        "--accounts", type=Path, default=Path("tests/transfers_peer/accounts"),
        help="folder of what really happened (%(default)s)",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", help="only recordings whose name begins with one of these")
    options = parser.parse_args(argv)
    if lacking := missing_programs():
        print(f"peer.transfers.record: needs {', '.join(lacking)} (packages iproute2, tcpdump, wireshark-common)",
              file=sys.stderr)  # fmt: skip
        return 2
    for folder in (options.out, options.accounts):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        wire = loopback()
    except subprocess.CalledProcessError as error:
        print(f"peer.transfers.record: cannot make a network namespace: {error.stderr.strip()}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as work:
            for recording in RECORDINGS:
                if not options.names or recording.name.startswith(tuple(options.names)):
                    print(record(recording, wire, Path(work), options.out, options.accounts), flush=True)
    finally:
        wire.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
