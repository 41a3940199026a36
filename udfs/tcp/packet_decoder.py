"""Decoder of packet records to TCP segments: link, IPv4, IPv6 and TCP headers of a whole block at once.

Each record gets exactly one class: TCP segment, damaged (its headers cannot be decoded), or other (another protocol,
link type or tunnel; a fragment of an incomplete datagram). IP fragments are reassembled. The segment then has the
number of the packet that completed the datagram, and its ``record_count`` is the number of fragments.

Sources: LINKTYPE registry of tcpdump.org, IEEE 802.1Q, RFC 791, RFC 8200, RFC 2675 (jumbograms), RFC 9293.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.array_types import Bools, Ints, Octets
from udfs.files.capture_file import BUFFER_PADDING_BYTES, UNKNOWN_LINK_TYPE, RecordBlock

LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_SLL, LINK_IPV4, LINK_IPV6, LINK_SLL2 = 0, 1, 108, 113, 228, 229, 276
RAW_IP_LINK_TYPES: Final = (12, 14, 101)  # raw IP; the number depends on the system that wrote the file
ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
_VLAN_TYPES: Final = (0x8100, 0x88A8, 0x9100, 0x9200)
_MAX_VLAN_TAGS: Final = 8
# Address families of BSD loopback; the number of IPv6 depends on the system.
_AF_INET, _AF_INET6 = 2, (10, 24, 28, 30)

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
# Additional flags of segments from a remainder (open_connections.py): bytes that were framed before, up to a PDU's end;
# bytes skipped before, not up to a PDU's end; the start of a direction without its SYN.
FRAMED_BEFORE, SKIPPED_BEFORE, STREAM_START = 0x1000, 0x2000, 0x4000

_TCP, _FRAGMENT = 6, 44
_MAX_EXTENSIONS: Final = 16
_IP_HEADER_BYTES: Final = 60  # bytes gathered per IP header: the longest IPv4 header
_MAX_INCOMPLETE_DATAGRAMS: Final = 4096  # incomplete datagrams kept at once
_MAX_FRAGMENTS: Final = 2048  # per datagram: 64 KiB at the smallest MTU (68, RFC 791) need 1366
_FRAGMENT_LIFETIME_NS: Final = 30_000_000_000  # RFC 791 3.2: at least 15 s; systems keep 30 s

RECORD_OTHER, RECORD_DAMAGED, RECORD_SEGMENT = 0, 1, 2


@dataclass(slots=True)
class TcpSegments:
    """The TCP segments of a block in the order of the capture, as arrays with one element per segment.

    ``record_index``: in the block's records. ``packet_number``, ``time_ns``: of the packet. ``source_address`` and
    ``target_address``: 16 bytes each, IPv4 (``ip_version`` 4) in the first four. ``payload_start``: in ``buffer``.
    ``file_offset``: of the payload in the decompressed file; of the last fragment for a reassembled datagram.
    ``captured_length`` and ``payload_length``: bytes of the payload; the first is smaller if the capture truncated the
    packet. ``record_count``: records that the segment consists of. ``buffer``: the block's buffer, followed by
    reassembled datagrams. ``record_classes``: one element per record of the block (``RECORD_*``). ``header_bytes``: of
    the TCP header in front of the payload; 0 if it is not in ``buffer``.
    """

    buffer: bytearray
    record_index: Ints
    packet_number: Ints
    time_ns: Ints
    ip_version: Ints
    source_address: Octets
    target_address: Octets
    source_port: Ints
    target_port: Ints
    sequence: Ints
    acknowledgement: Ints
    tcp_flags: Ints
    payload_start: Ints
    file_offset: Ints
    captured_length: Ints
    payload_length: Ints
    record_count: Ints
    record_classes: npt.NDArray[np.int8]
    header_bytes: Ints


@dataclass(slots=True)
class _IpPayloads:
    """IP payloads as columns: record index, IP version, addresses, offset in the buffer, captured and true length."""

    record: Ints
    version: Ints
    source: Octets
    target: Octets
    start: Ints
    captured: Ints
    length: Ints
    weight: Ints


@dataclass(slots=True)
class _FragmentedDatagram:
    """The fragments of one IP datagram received so far."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    total: int | None = None
    since: int = 0
    size: int = 0


class PacketDecoder:
    """Decodes the blocks of one capture in order; keeps IP fragments of incomplete datagrams between blocks."""

    def __init__(self) -> None:
        self._incomplete: dict[tuple[bytes, bytes, int, int], _FragmentedDatagram] = {}

    def decode_block(self, records: RecordBlock) -> TcpSegments:
        """Return the TCP segments of a block, and the class of each of its records."""
        octets = np.frombuffer(records.buffer, np.uint8)
        classes = np.zeros(len(records.packet_start), np.int8)
        at, version, truncated = _find_ip_headers(octets, records)
        classes[truncated] = RECORD_DAMAGED
        parts = []
        extra = bytearray()
        base = len(records.buffer)
        for wanted, decode in ((4, self._decode_ipv4), (6, self._decode_ipv6)):
            rows = np.nonzero(version == wanted)[0]
            if len(rows):
                parts.append(decode(octets, records, rows, at[rows], classes, extra, base))
        data = records.buffer
        if extra:
            data = data + extra + bytes(BUFFER_PADDING_BYTES)
            octets = np.frombuffer(data, np.uint8)
        return _decode_tcp_headers(data, octets, records, parts, classes)

    def _decode_ipv4(
        self, octets: Octets, records: RecordBlock, rows: Ints, at: Ints, classes: npt.NDArray[np.int8],
        extra: bytearray, base: int,
    ) -> _IpPayloads:  # fmt: skip
        end = records.packet_start[rows] + records.captured_length[rows]
        header = _gather_bytes(octets, at, _IP_HEADER_BYTES)
        size = (header[:, 0] & 0x0F).astype(np.int64) * 4
        total = _u16(header, 2)
        good = (at + 20 <= end) & (header[:, 0] >> 4 == 4) & (size >= 20)
        good &= (total == 0) | (total >= size)
        classes[rows[~good]] = RECORD_DAMAGED
        # Total length 0: segmentation offload; the packet was captured before the network card set it.
        length = np.where(total == 0, records.original_length[rows] - (at - records.packet_start[rows]), total) - size
        fragment = _u16(header, 6) & 0x3FFF
        tcp = good & (header[:, 9] == _TCP)
        whole = np.nonzero(tcp & (fragment == 0))[0]
        found = _IpPayloads(
            rows[whole],
            np.full(len(whole), 4, np.int64),
            _widen_addresses(header[whole, 12:16]),
            _widen_addresses(header[whole, 16:20]),
            (at + size)[whole],
            np.minimum(length, end - at - size)[whole],
            length[whole],
            np.ones(len(whole), np.int64),
        )
        done = []
        for row in np.nonzero(tcp & (fragment != 0))[0].tolist():
            start, offset = int(at[row] + size[row]), int(fragment[row] & 0x1FFF) * 8
            piece = bytes(octets[start : min(start + int(length[row]), int(end[row]))])
            names = (
                header[row, 12:16].tobytes(),
                header[row, 16:20].tobytes(),
                4,
                int(_u16(header[row : row + 1], 4)[0]),
            )
            more = bool(fragment[row] & 0x2000)
            done.append(
                (
                    int(rows[row]),
                    names,
                    self._add_fragment(names, piece, offset, more, int(length[row]), int(records.time_ns[rows[row]])),
                )
            )
        return _append_reassembled(found, done, extra, base)

    def _decode_ipv6(
        self, octets: Octets, records: RecordBlock, rows: Ints, at: Ints, classes: npt.NDArray[np.int8],
        extra: bytearray, base: int,
    ) -> _IpPayloads:  # fmt: skip
        end = records.packet_start[rows] + records.captured_length[rows]
        header = _gather_bytes(octets, at, 40)
        good = (at + 40 <= end) & (header[:, 0] >> 4 == 6)
        classes[rows[~good]] = RECORD_DAMAGED
        payload = _u16(header, 4)
        follows = header[:, 6].astype(np.int64)
        start = at + 40
        # Payload length 0: a jumbogram or offload; the frame length is used instead.
        stop = np.where(payload == 0, records.packet_start[rows] + records.original_length[rows], start + payload)
        done = []
        for row in np.nonzero(good & (follows != _TCP))[0].tolist():
            found = _skip_extension_headers(octets, int(start[row]), int(end[row]), int(follows[row]))
            if found is None:
                classes[rows[row]] = RECORD_DAMAGED
                continue
            follows[row], start[row], fragment = found
            if fragment is not None:
                first, offset, more, identification = fragment
                follows[row] = -1
                names = (header[row, 8:24].tobytes(), header[row, 24:40].tobytes(), 6, identification)
                if first != _TCP:
                    continue
                piece = bytes(octets[int(start[row]) : min(int(stop[row]), int(end[row]))])
                size = int(stop[row] - start[row])
                done.append(
                    (
                        int(rows[row]),
                        names,
                        self._add_fragment(names, piece, offset, more, size, int(records.time_ns[rows[row]])),
                    )
                )
        whole = np.nonzero(good & (follows == _TCP))[0]
        length = (stop - start)[whole]
        found_rows = _IpPayloads(
            rows[whole],
            np.full(len(whole), 6, np.int64),
            np.ascontiguousarray(header[whole, 8:24]),
            np.ascontiguousarray(header[whole, 24:40]),
            start[whole],
            np.minimum(length, (end - start)[whole]),
            length,
            np.ones(len(whole), np.int64),
        )
        return _append_reassembled(found_rows, done, extra, base)

    def _add_fragment(
        self, names: tuple[bytes, bytes, int, int], piece: bytes, offset: int, more: int, length: int, time: int
    ) -> tuple[bytes, int] | None:
        """Add a fragment; return the payload and the number of fragments if the datagram is complete now."""
        if len(piece) < length or offset + length > 0xFFFF + 40:
            return None  # truncated by the capture, or beyond the maximum datagram size
        known = self._incomplete.get(names)
        if known is None or time - known.since > _FRAGMENT_LIFETIME_NS:
            if len(self._incomplete) >= _MAX_INCOMPLETE_DATAGRAMS:
                del self._incomplete[next(iter(self._incomplete))]
            known = self._incomplete[names] = _FragmentedDatagram(since=time)
        known.pieces.append((offset, piece))
        known.size += len(piece)
        if len(known.pieces) > _MAX_FRAGMENTS:
            del self._incomplete[names]
            return None
        if not more:
            known.total = offset + length
        if known.total is None or known.size < known.total:
            return None
        joined = bytearray(known.total)
        filled = 0
        for begin, part in sorted(known.pieces, key=lambda entry: entry[0]):  # stable sort: the first fragment wins
            if begin > filled:
                return None
            if begin + len(part) > filled:
                joined[filled : begin + len(part)] = part[filled - begin :]
                filled = begin + len(part)
        del self._incomplete[names]
        return bytes(joined[: known.total]), len(known.pieces)


def _gather_bytes(octets: Octets, at: Ints, width: int) -> Octets:
    """Return ``width`` bytes from each offset as a matrix. Offsets near the end of the buffer are clamped."""
    windows = np.lib.stride_tricks.sliding_window_view(octets, width)
    return windows[np.minimum(at, len(windows) - 1)]


def _u16(header: Octets, column: int) -> Ints:
    return (header[:, column].astype(np.int64) << 8) | header[:, column + 1]


def _u32(header: Octets, column: int) -> Ints:
    return (_u16(header, column) << 16) | _u16(header, column + 2)


def _widen_addresses(four: Octets) -> Octets:
    wide = np.zeros((len(four), 16), np.uint8)
    wide[:, :4] = four
    return wide


def _find_ip_headers(octets: Octets, records: RecordBlock) -> tuple[Ints, npt.NDArray[np.int8], Bools]:
    """Return per record the offset of the IP header, its version (0: not IP), and if the link header is cut off."""
    count = len(records.packet_start)
    at = np.zeros(count, np.int64)
    version = np.zeros(count, np.int8)
    short = np.zeros(count, bool)
    for link in np.unique(records.link_type).tolist():
        rows = np.nonzero(records.link_type == link)[0]
        start, captured = records.packet_start[rows], records.captured_length[rows]
        if link == UNKNOWN_LINK_TYPE:
            short[rows] = True
            continue
        if link == LINK_ETHERNET:
            size, where = 14, 12
        elif link == LINK_SLL:
            size, where = 16, 14
        elif link == LINK_SLL2:
            size, where = 20, 0
        elif link in (LINK_NULL, LINK_LOOP):
            short[rows] = captured < 4
            version[rows] = np.where(captured < 4, 0, _loopback_ip_version(octets, start))
            at[rows] = start + 4
            continue
        elif link in (LINK_IPV4, LINK_IPV6):
            at[rows], version[rows] = start, (4 if link == LINK_IPV4 else 6)
            continue
        elif link in RAW_IP_LINK_TYPES:
            nibble = octets[start] >> 4
            short[rows] = captured < 1
            version[rows] = np.where((captured > 0) & ((nibble == 4) | (nibble == 6)), nibble, 0)
            at[rows] = start
            continue
        else:
            continue
        enough = captured >= size
        short[rows] = ~enough
        protocol = np.where(enough, _u16(_gather_bytes(octets, start + where, 2), 0), 0)
        at[rows], version[rows] = _skip_ethernet_tags(octets, start + size, start + captured, protocol)
    return at, version, short


def _loopback_ip_version(octets: Octets, start: Ints) -> npt.NDArray[np.int8]:
    """Return the IP version of BSD loopback records: of an address family, or of an EtherType, which some writers use.

    The number has the capturing machine's byte order. It is below 65536, which tells the order.
    """
    header = _gather_bytes(octets, start, 4)
    big, little = _u32(header, 0), _u32(header[:, ::-1], 0)
    number = np.where(big < 1 << 16, big, little)
    is_ipv4 = (number == _AF_INET) | (number == ETHERTYPE_IPV4)
    is_ipv6 = np.isin(number, _AF_INET6) | (number == ETHERTYPE_IPV6)
    return np.where(is_ipv4, 4, np.where(is_ipv6, 6, 0)).astype(np.int8)


def _skip_ethernet_tags(octets: Octets, at: Ints, end: Ints, protocol: Ints) -> tuple[Ints, npt.NDArray[np.int8]]:
    """Skip VLAN tags and SNAP headers; return the offset of the network header and its IP version (0: not IP)."""
    at, protocol = at.copy(), protocol.copy()
    # IEEE 802.3: a value up to 1500 is a length, and LLC with SNAP carries the EtherType.
    rows = np.nonzero((protocol > 0) & (protocol <= 1500) & (at + 8 <= end))[0]
    if len(rows):
        snap = _gather_bytes(octets, at[rows], 8)
        rows = rows[(snap[:, 0] == 0xAA) & (snap[:, 1] == 0xAA) & (snap[:, 2] == 3)]
        protocol[rows] = _u16(_gather_bytes(octets, at[rows] + 6, 2), 0)
        at[rows] += 8
    for _ in range(_MAX_VLAN_TAGS):
        rows = np.nonzero(np.isin(protocol, _VLAN_TYPES) & (at + 4 <= end))[0]
        if not len(rows):
            break
        protocol[rows] = _u16(_gather_bytes(octets, at[rows] + 2, 2), 0)
        at[rows] += 4
    return at, np.where(protocol == ETHERTYPE_IPV4, 4, np.where(protocol == ETHERTYPE_IPV6, 6, 0)).astype(np.int8)


_FragmentHeader = tuple[int, int, bool, int]  # protocol, offset in octets, more to come, identification


def _skip_extension_headers(
    octets: Octets, at: int, end: int, follows: int
) -> tuple[int, int, _FragmentHeader | None] | None:
    """Skip IPv6 extension headers; return protocol, offset of its header, and the fragment header; None if damaged."""
    for _ in range(_MAX_EXTENSIONS):
        if follows == _FRAGMENT:
            if at + 8 > end:
                return None
            head = bytes(octets[at : at + 8])
            field_ = int.from_bytes(head[2:4], "big")
            if field_ & 0xFFF9:
                fragment = (head[0], field_ & 0xFFF8, bool(field_ & 1), int.from_bytes(head[4:8], "big"))
                return -1, at + 8, fragment
            follows, at = head[0], at + 8  # an atomic fragment (RFC 6946) is a complete datagram
        elif follows in (0, 43, 60, 135, 139, 140):
            if at + 8 > end:
                return None
            follows, at = int(octets[at]), at + 8 + int(octets[at + 1]) * 8
        elif follows == 51:  # authentication header: the unit of its length is 4 bytes
            if at + 8 > end:
                return None
            follows, at = int(octets[at]), at + 8 + int(octets[at + 1]) * 4
        else:
            return follows, at, None
    return None


def _append_reassembled(
    found: _IpPayloads,
    done: list[tuple[int, tuple[bytes, bytes, int, int], tuple[bytes, int] | None]],
    extra: bytearray,
    base: int,
) -> _IpPayloads:
    """Append reassembled datagrams; their payloads are added to ``extra``, which follows the block's buffer."""
    rows = [(record, names, whole) for record, names, whole in done if whole is not None]
    if not rows:
        return found
    starts = []
    for _, _, (payload, _) in rows:
        starts.append(base + len(extra))
        extra += payload
    both = [(names[0], names[1]) for _, names, _ in rows]
    sizes = np.array([len(payload) for _, _, (payload, _) in rows], np.int64)
    source, target = (np.array([list(names[side].ljust(16, b"\0")) for names in both], np.uint8) for side in (0, 1))
    return _IpPayloads(
        np.append(found.record, np.array([record for record, _, _ in rows], np.int64)),
        np.append(found.version, np.array([names[2] for _, names, _ in rows], np.int64)),
        np.concatenate([found.source, source]),
        np.concatenate([found.target, target]),
        np.append(found.start, np.array(starts, np.int64)),
        np.append(found.captured, sizes),
        np.append(found.length, sizes),
        np.append(found.weight, np.array([count for _, _, (_, count) in rows], np.int64)),
    )


def _decode_tcp_headers(
    data: bytearray, octets: Octets, records: RecordBlock, parts: list[_IpPayloads], classes: npt.NDArray[np.int8]
) -> TcpSegments:
    """Decode the TCP headers of IP payloads and sort the segments into the order of the capture."""

    def column(name: str) -> npt.NDArray[np.int64]:
        arrays = [getattr(part, name) for part in parts]
        joined: Ints = arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return joined

    record, start, captured, length = column("record"), column("start"), column("captured"), column("length")
    header = _gather_bytes(octets, start, 20) if len(start) else np.zeros((0, 20), np.uint8)
    size = (header[:, 12] >> 4).astype(np.int64) * 4
    good = (captured >= 20) & (size >= 20) & (size <= length)
    classes[record[~good]] = RECORD_DAMAGED
    keep = np.nonzero(good)[0]
    if len(parts) > 1 or (len(keep) and (np.diff(record[keep]) < 0).any()):
        keep = keep[np.argsort(record[keep], kind="stable")]
    record, header, size = record[keep], header[keep], size[keep]
    classes[record] = RECORD_SEGMENT
    payload = start[keep] + size
    empty = np.zeros((0, 16), np.uint8)
    source = np.concatenate([part.source for part in parts])[keep] if parts else empty
    target = np.concatenate([part.target for part in parts])[keep] if parts else empty
    return TcpSegments(
        data,
        record,
        records.first_packet_number + record,
        records.time_ns[record],
        column("version")[keep],
        source,
        target,
        _u16(header, 0),
        _u16(header, 2),
        _u32(header, 4),
        _u32(header, 8),
        header[:, 13].astype(np.int64),
        payload,
        records.file_offset + np.where(payload < len(records.buffer), payload, records.packet_start[record]),
        np.maximum(captured[keep] - size, 0),
        length[keep] - size,
        column("weight")[keep],
        classes,
        size,
    )
