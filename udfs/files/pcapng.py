"""Writing pcapng, for the excerpts that people open in Wireshark (IETF opsawg "PCAP Next Generation")."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from udfs.files.container import NO_TIME

_SECTION, _INTERFACE, _ENHANCED = 0x0A0D0D0A, 1, 6
_OPT_COMMENT, _IF_TSRESOL, _SHB_USERAPPL = 1, 9, 4


class PcapngWriter:
    """Writes packets with nanosecond times, one interface for each link type."""

    def __init__(self, stream: BinaryIO, application: str) -> None:
        self._stream = stream
        self._interfaces: dict[int, int] = {}
        body = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _option(_SHB_USERAPPL, application.encode())
        self._block(_SECTION, body + _END)

    def write(self, link: int, time: int, data: bytes, original: int, comment: str | None = None) -> None:
        """Add a packet: its LINKTYPE, time in ns since 1970, bytes, length on the wire, and a comment."""
        number = self._interfaces.get(link)
        if number is None:
            number = self._interfaces[link] = len(self._interfaces)
            self._block(_INTERFACE, struct.pack("<HHI", link, 0, 0) + _option(_IF_TSRESOL, b"\x09") + _END)
        ticks = 0 if time == NO_TIME else max(time, 0)
        head = struct.pack("<IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), original)
        options = b"" if comment is None else _option(_OPT_COMMENT, comment.encode()) + _END
        self._block(_ENHANCED, head + _padded(data) + options)

    def _block(self, kind: int, body: bytes) -> None:
        length = len(body) + 12
        self._stream.write(struct.pack("<II", kind, length) + body + struct.pack("<I", length))


_END: Final = bytes(4)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)
