"""Record socket traffic as a capture: a relay on loopback in front of a server records all sends with their times."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field

from pcapgen import containers
from pcapgen import conversation as t

CLIENT, SERVER = t.CLIENT, t.SERVER


@dataclass
class RelayedConnection:
    """One connection: its sends in order, with their times in ns since 1970."""

    index: int
    sends: list[tuple[int, bytes, int]] = field(default_factory=list)

    @property
    def flow(self) -> t.Flow:
        return t.Flow(client_port=49200 + self.index, isn=(1000 * self.index, 0xFFFFFF00 + self.index))  # wraps soon

    def segments(self, *, mss: int = 1460) -> list[t.Segment]:
        script, last = t.Script(), t.START_NS
        for side, data, at in self.sends:
            script.send(side, data, max(at - last, 1))
            last = max(at, last)
        return t.segments(script, mss=mss)


class Tap:
    """Relays connections to a server's port on loopback."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.heard: list[RelayedConnection] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._begin = time.monotonic_ns()

    def __enter__(self) -> Tap:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                heard = RelayedConnection(len(self.heard))
                self.heard.append(heard)
                for side, source, target in ((CLIENT, client, server), (SERVER, server, client)):
                    thread = threading.Thread(target=self._relay, args=(heard, side, source, target), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _relay(self, heard: RelayedConnection, side: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    heard.sends.append((side, data, t.START_NS + time.monotonic_ns() - self._begin))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def segments(self, **options: int) -> list[tuple[t.Flow, t.Segment]]:
        """All connections' segments by time."""
        found = [(each.flow, part) for each in self.heard for part in each.segments(**options)]
        return sorted(found, key=lambda pair: pair[1].time_ns)

    def capture(self, **options: int) -> bytes:
        """Return a capture of all traffic."""
        return capture_of(self.segments(**options))


def capture_of(parts: list[tuple[t.Flow, t.Segment]]) -> bytes:
    """Return a capture of the given segments."""
    records = [record for flow, part in parts for record in t.records(flow, [part])]
    return containers.pcap(records).data


def one_frame_each(heard: RelayedConnection) -> list[tuple[t.Flow, t.Segment]]:
    """Return a connection with one PDU per frame, as dissectors that list frames need it."""
    parts, sent, rest, now = t.handshake(), [0, 0], [b"", b""], t.START_NS + 1_000_000
    for side, data, _ in heard.sends:
        rest[side] += data
        while len(rest[side]) >= 16:
            order = "little" if rest[side][4] & 0x10 else "big"
            size = int.from_bytes(rest[side][8:10], order)
            if len(rest[side]) < size:
                break
            payload, rest[side] = rest[side][:size], rest[side][size:]
            now += 10_000
            parts.append(t.Segment(now, side, sent[side], sent[1 - side], 0x18, payload))
            sent[side] += size
    return [(heard.flow, part) for part in parts]
