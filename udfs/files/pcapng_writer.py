"""Writer of pcapng files, for excerpts to be opened in Wireshark (IETF opsawg "PCAP Next Generation")."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, ip_address
from typing import BinaryIO, Final

from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import HostName

_SECTION, _INTERFACE, _NAMES, _ENHANCED = 0x0A0D0D0A, 1, 4, 6
_OPT_COMMENT, _IF_TSRESOL, _SHB_USERAPPL = 1, 9, 4
_NRB_IPV4, _NRB_IPV6 = 1, 2
_MAX_OPTION_BYTES: Final = 0xFFFF


class PcapngWriter:
    """Writes packets with nanosecond timestamps; one interface description per link type.

    ``comment`` is one on the whole file. Comments of more than 65,535 bytes are cut.
    """

    def __init__(self, stream: BinaryIO, application: str, comment: str | None = None) -> None:
        self._stream = stream
        self._interfaces: dict[int, int] = {}
        body = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _encode_option(_SHB_USERAPPL, application.encode())
        self._write_block(_SECTION, body + _encode_comment(comment) + _END_OF_OPTIONS)

    def write_names(self, names: Iterable[HostName]) -> None:
        """Write a block with the names of IP addresses, if there are any; programs use them for the whole file."""
        records = b""
        for address, name in names:
            ip = ip_address(address)
            records += _encode_option(_NRB_IPV4 if isinstance(ip, IPv4Address) else _NRB_IPV6,
                                      ip.packed + name.encode() + b"\0")  # fmt: skip
        if records:
            self._write_block(_NAMES, records + _END_OF_OPTIONS)

    def write_packet(
        self, link_type: int, time_ns: int, data: bytes, original_length: int, comment: str | None = None
    ) -> None:
        """Write a packet: LINKTYPE, time in ns since 1970, captured bytes, length on the wire in bytes, comment."""
        number = self._interfaces.get(link_type)
        if number is None:
            number = self._interfaces[link_type] = len(self._interfaces)
            self._write_block(
                _INTERFACE,
                struct.pack("<HHI", link_type, 0, 0) + _encode_option(_IF_TSRESOL, b"\x09") + _END_OF_OPTIONS,
            )
        ticks = 0 if time_ns == NO_TIME else max(time_ns, 0)
        head = struct.pack("<IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), original_length)
        options = b"" if comment is None else _encode_comment(comment) + _END_OF_OPTIONS
        self._write_block(_ENHANCED, head + _pad_to_32_bits(data) + options)

    def _write_block(self, kind: int, body: bytes) -> None:
        length = len(body) + 12
        self._stream.write(struct.pack("<II", kind, length) + body + struct.pack("<I", length))


_END_OF_OPTIONS: Final = bytes(4)


def _pad_to_32_bits(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _encode_comment(comment: str | None) -> bytes:
    if comment is None:
        return b""
    return _encode_option(_OPT_COMMENT, comment.encode()[:_MAX_OPTION_BYTES].decode(errors="ignore").encode())


def _encode_option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _pad_to_32_bits(value)
