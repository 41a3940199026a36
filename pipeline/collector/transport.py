"""TCP transport for impacket that reads whole PDUs, keeps deadlines, and stops on request.

impacket's own transport reads forever if the peer closes in the middle of a response, and its time-out does not limit a
response that arrives byte by byte. This one reads a whole PDU before impacket sees it, by one deadline per exchange.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from impacket.dcerpc.v5.transport import TCPTransport

PDU_HEADER_BYTES: Final = 16  # of connection-oriented PDUs, [C706] 12.6.3.1
FAULT_PDU: Final = 3
RESPONSE_PDU: Final = 2
MAX_RESPONSE_BYTES: Final = 16 << 20  # the largest real responses are lists of some thousand queues, below 1 MB
_POLL_S: Final = 0.25  # interval at which waits notice a stop request
ANSWER_LIMIT_CODE: Final = "limit_answer"
OBJECTS_LIMIT_CODE: Final = "limit_objects"
BYTES_LIMIT_CODE: Final = "limit_bytes"
SECONDS_LIMIT_CODE: Final = "limit_seconds"


class ConnectionCutError(ConnectionError):
    """The peer closed the connection before its response was complete."""


class ProtocolError(ConnectionError):
    """The received bytes are not a PDU."""


class AnswerLimitError(ConnectionError):
    """The received bytes are too many for a response."""


class CollectionStoppedError(Exception):
    """The collector was stopped: the running exchange is abandoned."""


class RoundLimitError(Exception):
    """A queue manager has used up what a round may take. ``code`` is the ``error`` of what is not asked any more."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class RoundBudget:
    """The seconds and bytes of answers that a round may still take from one queue manager."""

    def __init__(self, max_seconds: float, max_bytes: int) -> None:
        self._until = time.monotonic() + max_seconds
        self._bytes_left = max_bytes

    @property
    def seconds_left(self) -> float:
        """Seconds until the round must end."""
        return self._until - time.monotonic()

    def raise_if_late(self) -> None:
        """Raise RoundLimitError if the time is over."""
        if self.seconds_left <= 0:
            raise RoundLimitError(SECONDS_LIMIT_CODE)

    def take(self, size: int) -> None:
        """Count received bytes; RoundLimitError if they are more than are left."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise RoundLimitError(BYTES_LIMIT_CODE)


class StopSignal:
    """A stop request that all threads of the collector check."""

    def __init__(self) -> None:
        self.stop_requested = False

    def raise_if_stopped(self) -> None:
        """Raise CollectionStoppedError if a stop was requested."""
        if self.stop_requested:
            raise CollectionStoppedError

    def sleep(self, seconds: float) -> None:
        """Sleep; CollectionStoppedError as soon as a stop is requested."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.raise_if_stopped()
            time.sleep(min(left, _POLL_S))


class DeadlineTransport(TCPTransport):  # type: ignore[misc]  # impacket has no types
    """One TCP connection. ``start_exchange`` sets the deadline of all reads and writes of an exchange.

    ``last_pdu`` is the last received PDU; ``waited_s`` is the time spent waiting for the peer.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float, stop_signal: StopSignal, budget: RoundBudget) -> None:
        super().__init__(host, port)
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._budget = budget
        self._stop_signal = stop_signal
        self._socket: socket.socket | None = None
        self._deadline = 0.0
        self._bytes = 0
        self._unread = b""
        self.last_pdu = b""
        self.waited_s = 0.0

    def start_exchange(self) -> None:
        """Set the deadline of the next exchange; RoundLimitError if the round has no time left."""
        self._budget.raise_if_late()
        self._deadline = time.monotonic() + min(self._timeout_s, self._budget.seconds_left)
        self._bytes = 0

    @property
    def peer_address(self) -> str | None:
        """IP address of the peer; None without a connection."""
        try:
            return str(self._socket.getpeername()[0]) if self._socket is not None else None
        except OSError:
            return None

    def connect(self) -> int:
        """Connect; OSError (including TimeoutError) on failure, RoundLimitError at the end of the round's time."""
        self.start_exchange()
        self._stop_signal.raise_if_stopped()
        begun = time.monotonic()
        try:
            self._socket = socket.create_connection(self._address, max(self._deadline - time.monotonic(), 0.001))
        except TimeoutError:
            self._budget.raise_if_late()
            raise
        finally:
            self.waited_s += time.monotonic() - begun
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return 1

    def disconnect(self) -> int:
        """Close the connection if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return 1

    def send(self, data: bytes, forceWriteAndx: int = 0, forceRecv: int = 0) -> None:  # noqa: N803, ARG002 - impacket's
        """Send a PDU."""
        connected = self._require_socket()
        connected.settimeout(max(self._deadline - time.monotonic(), 0.001))
        connected.sendall(data)

    def recv(self, forceRecv: int = 0, count: int = 0) -> bytes:  # noqa: N803, ARG002 - impacket's
        """Return the next bytes of a PDU, at most ``count`` (0: all). Reads a whole PDU from the socket first."""
        if not self._unread:
            self.last_pdu = self._unread = self._read_pdu()
        count = count or len(self._unread)
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def get_socket(self) -> socket.socket | None:
        """Return the socket of the connection."""
        return self._socket

    def _read_pdu(self) -> bytes:
        head = self._receive_exactly(PDU_HEADER_BYTES)
        size = struct.unpack_from("<H" if head[4] & 0x10 else ">H", head, 8)[0]
        if head[0] != 5 or size < PDU_HEADER_BYTES:
            raise ProtocolError("the peer does not speak RPC")
        self._bytes += size
        self._budget.take(size)
        if self._bytes > MAX_RESPONSE_BYTES:
            raise AnswerLimitError(f"response of more than {MAX_RESPONSE_BYTES} bytes")
        return head + self._receive_exactly(size - PDU_HEADER_BYTES)

    def _receive_exactly(self, size: int) -> bytes:
        connected, out = self._require_socket(), bytearray()
        while len(out) < size:
            self._stop_signal.raise_if_stopped()
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._budget.raise_if_late()
                raise TimeoutError("no answer in time")
            connected.settimeout(min(left, _POLL_S))
            begun = time.monotonic()
            try:
                data = connected.recv(size - len(out))
            except TimeoutError:
                continue
            finally:
                self.waited_s += time.monotonic() - begun
            if not data:
                raise ConnectionCutError("the connection was closed before the response was complete")
            out += data
        return bytes(out)

    def _require_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionCutError("not connected")
        return self._socket


def fault_status(pdu: bytes) -> int | None:
    """Return the status of a fault PDU ([C706] 12.6.4.7); None for other PDUs."""
    if len(pdu) < 28 or pdu[2] != FAULT_PDU:
        return None
    status: int = struct.unpack_from("<I" if pdu[4] & 0x10 else ">I", pdu, 24)[0]
    return status
