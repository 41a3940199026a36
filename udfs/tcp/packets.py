"""Records of a capture -> TCP segments: link, IPv4, IPv6 and TCP headers of a whole block at once.

Every record ends in exactly one class: a TCP segment, damaged (its headers cannot be decoded), or other (another
protocol, link type or tunnel; a fragment that waits for the rest of its datagram). Fragments are put together here; the
segment counts as the packet that completed it, with the fragments' number as its ``weight``.

Sources: LINKTYPE registry of tcpdump.org, IEEE 802.1Q, RFC 791, RFC 8200, RFC 2675 (jumbograms), RFC 9293.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.files.container import PAD, UNKNOWN_LINK, Ints, Records

Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_SLL, LINK_IPV4, LINK_IPV6, LINK_SLL2 = 0, 1, 108, 113, 228, 229, 276
LINKS_RAW: Final = (12, 14, 101)  # raw IP, under the numbers that systems wrote
ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
_VLAN_TYPES: Final = (0x8100, 0x88A8, 0x9100, 0x9200)
_MAX_VLAN_TAGS: Final = 8
# Address families of BSD loopback: IPv6 has a number of its own on each system.
_AF_INET, _AF_INET6 = 2, (10, 24, 28, 30)

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
# Of segments made from a remainder (``remainder.py``) alone, above TCP's own flags: bytes that were cut before, up to a
# PDU's end; bytes passed over before, with no PDU's end behind them; where a direction without its SYN begins.
CUT_BEFORE, PASSED_OVER, BEGINS = 0x1000, 0x2000, 0x4000

_TCP, _FRAGMENT = 6, 44
_MAX_EXTENSIONS: Final = 16
_WINDOW: Final = 60  # bytes of an IP header gathered at once: the longest IPv4 header
_MAX_DATAGRAMS: Final = 4096  # fragments' datagrams kept at once
_MAX_PIECES: Final = 2048  # fragments of one datagram: at the smallest MTU (RFC 791: 68) 64 KiB need 1366
_FRAGMENT_LIFETIME_NS: Final = 30_000_000_000  # RFC 791 3.2: at least 15 s; systems keep 30 s

OTHER, DAMAGED, SEGMENT = 0, 1, 2


@dataclass(slots=True)
class Segments:
    """TCP segments of a block, in the order of the capture; arrays of one length.

    ``record`` (index in the block's records), ``number`` (packet number), ``time`` (ns), ``source`` and ``target``
    (addresses: 16 octets each, IPv4 as the first four of them with ``version`` 4), ``source_port``, ``target_port``,
    ``sequence``, ``acknowledgement``, ``flags``, ``start`` (of the payload in ``data``), ``file_offset`` (of the
    payload in the decompressed file; of the completing fragment for a reassembled datagram), ``captured`` and
    ``length`` of the payload (captured is less where the capture cut the packet), ``weight`` (records that make it up).
    ``data`` is the block's buffer, longer than the block when it has reassembled datagrams.
    ``classes`` says for each record of the block what became of it.
    """

    data: bytearray
    record: Ints
    number: Ints
    time: Ints
    version: Ints
    source: Octets
    target: Octets
    source_port: Ints
    target_port: Ints
    sequence: Ints
    acknowledgement: Ints
    flags: Ints
    start: Ints
    file_offset: Ints
    captured: Ints
    length: Ints
    weight: Ints
    classes: npt.NDArray[np.int8]


@dataclass(slots=True)
class _Datagrams:
    """IP payloads that begin at ``start``: version, addresses, captured and true length. Indexes refer to records."""

    record: Ints
    version: Ints
    source: Octets
    target: Octets
    start: Ints
    captured: Ints
    length: Ints
    weight: Ints


@dataclass(slots=True)
class _Partial:
    """The fragments of one datagram that have come so far."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    total: int | None = None
    since: int = 0
    size: int = 0


class PacketDecoder:
    """Decodes blocks of one capture in turn; keeps the fragments that wait between them."""

    def __init__(self) -> None:
        self._partial: dict[tuple[bytes, bytes, int, int], _Partial] = {}

    def decode(self, records: Records) -> Segments:
        """Return the block's TCP segments and the class of each of its records."""
        octets = np.frombuffer(records.data, np.uint8)
        classes = np.zeros(len(records.start), np.int8)
        at, version, truncated = _network_layer(octets, records)
        classes[truncated] = DAMAGED
        parts = []
        extra = bytearray()
        base = len(records.data)
        for wanted, decode in ((4, self._ipv4), (6, self._ipv6)):
            rows = np.nonzero(version == wanted)[0]
            if len(rows):
                parts.append(decode(octets, records, rows, at[rows], classes, extra, base))
        data = records.data
        if extra:
            data = data + extra + bytes(PAD)
            octets = np.frombuffer(data, np.uint8)
        return _tcp(data, octets, records, parts, classes)

    def _ipv4(
        self, octets: Octets, records: Records, rows: Ints, at: Ints, classes: npt.NDArray[np.int8],
        extra: bytearray, base: int,
    ) -> _Datagrams:  # fmt: skip
        end = records.start[rows] + records.captured[rows]
        header = _rows(octets, at, _WINDOW)
        size = (header[:, 0] & 0x0F).astype(np.int64) * 4
        total = _u16(header, 2)
        good = (at + 20 <= end) & (header[:, 0] >> 4 == 4) & (size >= 20)
        good &= (total == 0) | (total >= size)
        classes[rows[~good]] = DAMAGED
        # Total length 0: the sending machine's segmentation offload left it to the card (kernel captures).
        length = np.where(total == 0, records.original[rows] - (at - records.start[rows]), total) - size
        fragment = _u16(header, 6) & 0x3FFF
        tcp = good & (header[:, 9] == _TCP)
        whole = np.nonzero(tcp & (fragment == 0))[0]
        found = _Datagrams(
            rows[whole],
            np.full(len(whole), 4, np.int64),
            _addresses(header[whole, 12:16]),
            _addresses(header[whole, 16:20]),
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
                    self._join(names, piece, offset, more, int(length[row]), int(records.time[rows[row]])),
                )
            )
        return _with_reassembled(found, done, extra, base)

    def _ipv6(
        self, octets: Octets, records: Records, rows: Ints, at: Ints, classes: npt.NDArray[np.int8],
        extra: bytearray, base: int,
    ) -> _Datagrams:  # fmt: skip
        end = records.start[rows] + records.captured[rows]
        header = _rows(octets, at, 40)
        good = (at + 40 <= end) & (header[:, 0] >> 4 == 6)
        classes[rows[~good]] = DAMAGED
        payload = _u16(header, 4)
        follows = header[:, 6].astype(np.int64)
        start = at + 40
        # Payload length 0: a jumbogram, or offload; the frame's length tells.
        stop = np.where(payload == 0, records.start[rows] + records.original[rows], start + payload)
        done = []
        for row in np.nonzero(good & (follows != _TCP))[0].tolist():
            found = _extensions(octets, int(start[row]), int(end[row]), int(follows[row]))
            if found is None:
                classes[rows[row]] = DAMAGED
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
                    (int(rows[row]), names, self._join(names, piece, offset, more, size, int(records.time[rows[row]])))
                )
        whole = np.nonzero(good & (follows == _TCP))[0]
        length = (stop - start)[whole]
        found_rows = _Datagrams(
            rows[whole],
            np.full(len(whole), 6, np.int64),
            np.ascontiguousarray(header[whole, 8:24]),
            np.ascontiguousarray(header[whole, 24:40]),
            start[whole],
            np.minimum(length, (end - start)[whole]),
            length,
            np.ones(len(whole), np.int64),
        )
        return _with_reassembled(found_rows, done, extra, base)

    def _join(
        self, names: tuple[bytes, bytes, int, int], piece: bytes, offset: int, more: int, length: int, time: int
    ) -> tuple[bytes, int] | None:
        """Add a fragment; return the payload and the number of its records when the datagram is whole."""
        if len(piece) < length or offset + length > 0xFFFF + 40:
            return None  # cut by the capture, or beyond what a datagram can hold
        known = self._partial.get(names)
        if known is None or time - known.since > _FRAGMENT_LIFETIME_NS:
            if len(self._partial) >= _MAX_DATAGRAMS:
                del self._partial[next(iter(self._partial))]
            known = self._partial[names] = _Partial(since=time)
        known.pieces.append((offset, piece))
        known.size += len(piece)
        if len(known.pieces) > _MAX_PIECES:
            del self._partial[names]
            return None
        if not more:
            known.total = offset + length
        if known.total is None or known.size < known.total:
            return None
        joined = bytearray(known.total)
        filled = 0
        for begin, part in sorted(known.pieces, key=lambda entry: entry[0]):  # stable: the first to come wins
            if begin > filled:
                return None
            if begin + len(part) > filled:
                joined[filled : begin + len(part)] = part[filled - begin :]
                filled = begin + len(part)
        del self._partial[names]
        return bytes(joined[: known.total]), len(known.pieces)


def _rows(octets: Octets, at: Ints, width: int) -> Octets:
    """Return ``width`` octets from each offset, as a matrix; offsets near the end read what is there, then zeros."""
    windows = np.lib.stride_tricks.sliding_window_view(octets, width)
    return windows[np.minimum(at, len(windows) - 1)]


def _u16(header: Octets, column: int) -> Ints:
    return (header[:, column].astype(np.int64) << 8) | header[:, column + 1]


def _u32(header: Octets, column: int) -> Ints:
    return (_u16(header, column) << 16) | _u16(header, column + 2)


def _addresses(four: Octets) -> Octets:
    wide = np.zeros((len(four), 16), np.uint8)
    wide[:, :4] = four
    return wide


def _network_layer(octets: Octets, records: Records) -> tuple[Ints, npt.NDArray[np.int8], Flags]:
    """Return where each record's IP header begins, its version (0: not IP), and which link headers are cut off."""
    count = len(records.start)
    at = np.zeros(count, np.int64)
    version = np.zeros(count, np.int8)
    short = np.zeros(count, bool)
    for link in np.unique(records.link).tolist():
        rows = np.nonzero(records.link == link)[0]
        start, captured = records.start[rows], records.captured[rows]
        if link == UNKNOWN_LINK:
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
            version[rows] = np.where(captured < 4, 0, _loopback(octets, start))
            at[rows] = start + 4
            continue
        elif link in (LINK_IPV4, LINK_IPV6):
            at[rows], version[rows] = start, (4 if link == LINK_IPV4 else 6)
            continue
        elif link in LINKS_RAW:
            nibble = octets[start] >> 4
            short[rows] = captured < 1
            version[rows] = np.where((captured > 0) & ((nibble == 4) | (nibble == 6)), nibble, 0)
            at[rows] = start
            continue
        else:
            continue
        enough = captured >= size
        short[rows] = ~enough
        protocol = np.where(enough, _u16(_rows(octets, start + where, 2), 0), 0)
        at[rows], version[rows] = _ethertype(octets, start + size, start + captured, protocol)
    return at, version, short


def _loopback(octets: Octets, start: Ints) -> npt.NDArray[np.int8]:
    """Return the IP version of BSD loopback records; the family is in the byte order of the capturing machine."""
    header = _rows(octets, start, 4)
    # The family is below 256: it is the first octet or the last, by byte order.
    family = np.where(header[:, 0] != 0, header[:, 0], header[:, 3])
    return np.where(family == _AF_INET, 4, np.where(np.isin(family, _AF_INET6), 6, 0)).astype(np.int8)


def _ethertype(octets: Octets, at: Ints, end: Ints, protocol: Ints) -> tuple[Ints, npt.NDArray[np.int8]]:
    """Walk VLAN tags and SNAP headers; return where the network header begins and its IP version."""
    at, protocol = at.copy(), protocol.copy()
    # IEEE 802.3: up to 1500 it is a length; LLC with SNAP then carries an EtherType.
    rows = np.nonzero((protocol > 0) & (protocol <= 1500) & (at + 8 <= end))[0]
    if len(rows):
        snap = _rows(octets, at[rows], 8)
        rows = rows[(snap[:, 0] == 0xAA) & (snap[:, 1] == 0xAA) & (snap[:, 2] == 3)]
        protocol[rows] = _u16(_rows(octets, at[rows] + 6, 2), 0)
        at[rows] += 8
    for _ in range(_MAX_VLAN_TAGS):
        rows = np.nonzero(np.isin(protocol, _VLAN_TYPES) & (at + 4 <= end))[0]
        if not len(rows):
            break
        protocol[rows] = _u16(_rows(octets, at[rows] + 2, 2), 0)
        at[rows] += 4
    return at, np.where(protocol == ETHERTYPE_IPV4, 4, np.where(protocol == ETHERTYPE_IPV6, 6, 0)).astype(np.int8)


_Fragment = tuple[int, int, bool, int]  # protocol, offset in octets, more to come, identification


def _extensions(octets: Octets, at: int, end: int, follows: int) -> tuple[int, int, _Fragment | None] | None:
    """Walk IPv6 extension headers; return protocol, offset of its header and the fragment header; None if damaged."""
    for _ in range(_MAX_EXTENSIONS):
        if follows == _FRAGMENT:
            if at + 8 > end:
                return None
            head = bytes(octets[at : at + 8])
            field_ = int.from_bytes(head[2:4], "big")
            if field_ & 0xFFF9:
                fragment = (head[0], field_ & 0xFFF8, bool(field_ & 1), int.from_bytes(head[4:8], "big"))
                return -1, at + 8, fragment
            follows, at = head[0], at + 8  # an atomic fragment (RFC 6946) is a whole datagram
        elif follows in (0, 43, 60, 135, 139, 140):
            if at + 8 > end:
                return None
            follows, at = int(octets[at]), at + 8 + int(octets[at + 1]) * 8
        elif follows == 51:  # authentication header: its length counts 4-octet units
            if at + 8 > end:
                return None
            follows, at = int(octets[at]), at + 8 + int(octets[at + 1]) * 4
        else:
            return follows, at, None
    return None


def _with_reassembled(
    found: _Datagrams,
    done: list[tuple[int, tuple[bytes, bytes, int, int], tuple[bytes, int] | None]],
    extra: bytearray,
    base: int,
) -> _Datagrams:
    """Append datagrams made of fragments; their payloads go to ``extra``, which will stand behind the block."""
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
    return _Datagrams(
        np.append(found.record, np.array([record for record, _, _ in rows], np.int64)),
        np.append(found.version, np.array([names[2] for _, names, _ in rows], np.int64)),
        np.concatenate([found.source, source]),
        np.concatenate([found.target, target]),
        np.append(found.start, np.array(starts, np.int64)),
        np.append(found.captured, sizes),
        np.append(found.length, sizes),
        np.append(found.weight, np.array([count for _, _, (_, count) in rows], np.int64)),
    )


def _tcp(
    data: bytearray, octets: Octets, records: Records, parts: list[_Datagrams], classes: npt.NDArray[np.int8]
) -> Segments:
    """Decode the TCP headers of the datagrams and put the segments into the order of the capture."""

    def column(name: str) -> npt.NDArray[np.int64]:
        arrays = [getattr(part, name) for part in parts]
        joined: Ints = arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return joined

    record, start, captured, length = column("record"), column("start"), column("captured"), column("length")
    header = _rows(octets, start, 20) if len(start) else np.zeros((0, 20), np.uint8)
    size = (header[:, 12] >> 4).astype(np.int64) * 4
    good = (captured >= 20) & (size >= 20) & (size <= length)
    classes[record[~good]] = DAMAGED
    keep = np.nonzero(good)[0]
    if len(parts) > 1 or (len(keep) and (np.diff(record[keep]) < 0).any()):
        keep = keep[np.argsort(record[keep], kind="stable")]
    record, header, size = record[keep], header[keep], size[keep]
    classes[record] = SEGMENT
    payload = start[keep] + size
    empty = np.zeros((0, 16), np.uint8)
    source = np.concatenate([part.source for part in parts])[keep] if parts else empty
    target = np.concatenate([part.target for part in parts])[keep] if parts else empty
    return Segments(
        data,
        record,
        records.first_number + record,
        records.time[record],
        column("version")[keep],
        source,
        target,
        _u16(header, 0),
        _u16(header, 2),
        _u32(header, 4),
        _u32(header, 8),
        header[:, 13].astype(np.int64),
        payload,
        records.base + np.where(payload < len(records.data), payload, records.start[record]),
        np.maximum(captured[keep] - size, 0),
        length[keep] - size,
        column("weight")[keep],
        classes,
    )
