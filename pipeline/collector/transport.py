"""impacket's transport over TCP with what a collector needs: whole PDUs, deadlines, an end on request.

impacket's own reads for ever where a peer closes in mid-answer, and for one ``recv`` longer than any time-out where it
sends a byte now and then. Here a PDU is read whole before impacket sees it, by a deadline for all of an exchange.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from impacket.dcerpc.v5.transport import TCPTransport

HEADER: Final = 16  # of every connection-oriented PDU, [C706] 12.6.3.1
FAULT: Final = 3
RESPONSE: Final = 2
MOST_BYTES: Final = 64 << 20  # of one answer; the largest real ones are lists of some thousand queues
_SLICE_S: Final = 0.25  # how soon a wait notices that it is to stop


class CutError(ConnectionError):
    """The peer ended the connection where an answer was due."""


class ProtocolError(ConnectionError):
    """What came is not a PDU, or is more than any answer."""


class StoppedError(Exception):
    """The collector is to end: what is under way is given up."""


class Clock:
    """Whether the collector is to stop, and how long it has waited for others."""

    def __init__(self) -> None:
        self.stopping = False
        self.waited_s = 0.0

    def check(self) -> None:
        """Raise StoppedError when it is to stop."""
        if self.stopping:
            raise StoppedError

    def pause(self, seconds: float) -> None:
        """Wait, or raise StoppedError as soon as it is to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, _SLICE_S))


class Transport(TCPTransport):  # type: ignore[misc]  # impacket has no types
    """One TCP connection. ``begin`` starts the time of an exchange; everything in it ends by then."""

    def __init__(self, host: str, port: int, *, timeout_s: float, clock: Clock) -> None:
        super().__init__(host, port)
        self._place = (host, port)
        self._timeout_s = timeout_s
        self._clock = clock
        self._socket: socket.socket | None = None
        self._deadline = 0.0
        self._bytes = 0
        self._unread = b""
        self.pdu = b""  # the last one that came
        self.waited_s = 0.0

    def begin(self) -> None:
        """Start the time of an exchange anew."""
        self._deadline = time.monotonic() + self._timeout_s
        self._bytes = 0

    @property
    def peer_address(self) -> str | None:
        """The IP address at the other end; None when there is no connection."""
        try:
            return str(self._socket.getpeername()[0]) if self._socket is not None else None
        except OSError:
            return None

    def connect(self) -> int:
        """Connect; OSError (TimeoutError among them) when that fails."""
        self.begin()
        self._clock.check()
        begun = time.monotonic()
        try:
            self._socket = socket.create_connection(self._place, self._timeout_s)
        finally:
            self.waited_s += time.monotonic() - begun
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return 1

    def disconnect(self) -> int:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return 1

    def send(self, data: bytes, forceWriteAndx: int = 0, forceRecv: int = 0) -> None:  # noqa: N803, ARG002 - impacket's
        """Send a PDU."""
        connected = self._connected()
        connected.settimeout(max(self._deadline - time.monotonic(), 0.001))
        connected.sendall(data)

    def recv(self, forceRecv: int = 0, count: int = 0) -> bytes:  # noqa: N803, ARG002 - impacket's
        """Return the next bytes of a PDU, ``count`` at most or (0) all; a PDU is read whole before any of it."""
        if not self._unread:
            self.pdu = self._unread = self._read_pdu()
        count = count or len(self._unread)
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def get_socket(self) -> socket.socket | None:
        """Return the connection's socket."""
        return self._socket

    def _read_pdu(self) -> bytes:
        head = self._exactly(HEADER)
        size = struct.unpack_from("<H" if head[4] & 0x10 else ">H", head, 8)[0]
        if head[0] != 5 or size < HEADER:
            raise ProtocolError("what answered does not speak RPC")
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise ProtocolError(f"an answer of more than {MOST_BYTES} bytes")
        return head + self._exactly(size - HEADER)

    def _exactly(self, size: int) -> bytes:
        connected, out = self._connected(), bytearray()
        while len(out) < size:
            self._clock.check()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            connected.settimeout(min(left, _SLICE_S))
            begun = time.monotonic()
            try:
                data = connected.recv(size - len(out))
            except TimeoutError:
                continue
            finally:
                self.waited_s += time.monotonic() - begun
            if not data:
                raise CutError("the connection ended before the answer did")
            out += data
        return bytes(out)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise CutError("not connected")
        return self._socket


def fault_status(pdu: bytes) -> int | None:
    """Return the status of a fault PDU ([C706] 12.6.4.7); None when it is none."""
    if len(pdu) < 28 or pdu[2] != FAULT:
        return None
    status: int = struct.unpack_from("<I" if pdu[4] & 0x10 else ">I", pdu, 24)[0]
    return status
