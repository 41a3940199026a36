"""What tshark shows of recordings and of exports, and the packets that evidence means by the tables of bronze."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from udfs.times import datetime_to_us

_FIELDS = ("frame.number", "frame.time_epoch", "ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", "frame.len")
BIND_ANSWER = timedelta(seconds=1)


def tshark(path: Path, *fields: str, names: bool = False) -> list[list[str]]:
    """Return fields of each frame, as tshark shows them; ``names``: with names in place of addresses."""
    given = [word for field in fields for word in ("-e", field)]
    command = ["tshark", *(["-N", "n"] if names else ["-n"]), "-r", str(path), "-T", "fields", *given]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in shown.splitlines()]


@dataclass(frozen=True, order=True)
class Frame:
    """A frame of TCP: time in ns since 1970, both ends, length."""

    time_ns: int
    source: tuple[str, int]
    target: tuple[str, int]
    length: int


def frames(path: Path) -> list[Frame]:
    """Return the frames of TCP of a capture, in its order."""
    found = []
    for _, time, source, source_port, target, target_port, length in tshark(path, *_FIELDS):
        if source_port:
            seconds, _, fraction = time.partition(".")
            ends = ((source, int(source_port)), (target, int(target_port)))
            found.append(Frame(int(seconds) * 10**9 + int(fraction.ljust(9, "0")), *ends, int(length)))
    return found


class Expected:
    """The frames of recordings that are evidence, told by the rows of bronze and what tshark shows."""

    def __init__(self, tables: dict[str, list[dict[str, Any]]], every: list[Frame]) -> None:
        self.calls = {row["call_key"]: row for row in tables["rpc_calls"]}
        self.packets = {row["packet_key"]: row for row in tables["session_packets"]}
        self.connections = {row["connection_id"]: row for row in tables["connections"]}
        self.binds = tables["rpc_binds"]
        self.every = every
        self.by_ends: dict[frozenset[tuple[str, int]], list[int]] = defaultdict(list)
        for place, frame in enumerate(every):
            self.by_ends[frozenset({frame.source, frame.target})].append(place)

    def of(self, keys: Iterable[str]) -> list[Frame]:
        """Return the frames of calls with their binds, of packets and connections, in order; other keys have none."""
        found = set[int]()
        for key in keys:
            if (row := self.calls.get(key)) is not None:
                found |= self._of_call(row)
            elif (row := self.packets.get(key)) is not None:
                assert row["complete"]
                found |= self._between(row, row["sent_at"], row["sent_done_at"])
            elif (row := self.connections.get(key)) is not None:
                found |= self._between(row, row["first_packet_at"], row["last_packet_at"])
        return sorted(self.every[place] for place in found)

    def _of_call(self, row: dict[str, Any]) -> set[int]:
        names = ("request_at", "request_done_at", "response_at", "response_done_at", "cancelled_at", "orphaned_at")
        times = [row[name] for name in names if row[name] is not None]
        found = self._between(row, min(times), max(times))
        bound = [each["bound_at"] for each in self.binds if each["connection_id"] == row["connection_id"]]
        if bound:
            end = min(max(bound) + BIND_ANSWER, *times)
            found |= self._between(row, self.connections[row["connection_id"]]["first_packet_at"], end)
        return found

    def _between(self, row: dict[str, Any], begin: datetime, end: datetime) -> set[int]:
        """Return the places of the frames of a row's connection in a time, both ends included."""
        ends = frozenset((row[f"{side}_address"], row[f"{side}_port"]) for side in ("client", "server"))
        first, last = datetime_to_us(begin), datetime_to_us(end)
        return {place for place in self.by_ends[ends] if first <= self.every[place].time_ns // 1000 <= last}


def comments_of(path: Path) -> list[str]:
    """Return the comments of packets, from the bytes of the file (pcapng, option 1 of enhanced packet blocks)."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        kind, length = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4))
        if kind == 6:
            captured = int.from_bytes(data[at + 20 : at + 24], "little")
            option = at + 28 + (captured + 3) // 4 * 4
            assert data[option : option + 2] == b"\1\0"
            found.append(
                data[option + 4 : option + 4 + int.from_bytes(data[option + 2 : option + 4], "little")].decode()
            )
        at += length
    return found
