"""Decoder of packet records to TCP segments: link, tunnel, IPv4, IPv6 and TCP headers of a whole block at once.

Each record gets exactly one class: TCP segment, damaged (its headers cannot be decoded), or other (another protocol or
link type; a fragment of an incomplete datagram; nested too deep). IP fragments are reassembled. The segment then has
the number of the packet that completed the datagram, and its ``record_count`` is the number of fragments.

Sources: RFC 791, RFC 8200, RFC 2675 (jumbograms), RFC 9293; ``link_layers`` and ``tunnels`` for what is around IP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from udfs.array_types import Bools, Ints, Octets
from udfs.columns.absent import NEVER_NS, NO_TIME
from udfs.files.capture_file import BUFFER_PADDING_BYTES, UNKNOWN_LINK_TYPE, RecordBlock
from udfs.tcp.datagrams import UDP_HEADER_BYTES, UdpDatagram, has_port
from udfs.tcp.link_layers import ETHERTYPE_IPV4, ETHERTYPE_IPV6, UNKNOWN_ETHERTYPE, find_network_headers
from udfs.tcp.octets import gather_bytes, u16, u32
from udfs.tcp.time_limits import elapsed_ns
from udfs.tcp.tunnels import (
    IP_GRE,
    IP_IN_IP,
    IP_MPLS,
    IP_UDP,
    MAX_DEPTH,
    TUNNEL_IP_PROTOCOLS,
    TUNNEL_PORTS,
    Packets,
    TunnelTable,
    read_gre,
    read_ip_in_ip,
    read_labels_and_sessions,
    read_mpls,
    read_udp,
)
from udfs.tcp.unread_packets import UnreadPackets

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
# Additional flags of segments from a remainder (open_connections.py): bytes that were framed before, up to a PDU's end;
# bytes skipped before, not up to a PDU's end; the start of a direction without its SYN.
FRAMED_BEFORE, SKIPPED_BEFORE, STREAM_START = 0x1000, 0x2000, 0x4000

_TCP, _FRAGMENT = 6, 44
_MAX_EXTENSIONS: Final = 16
_IP_HEADER_BYTES: Final = 60  # bytes gathered per IP header: the longest IPv4 header
_MAX_INCOMPLETE_DATAGRAMS: Final = 4096  # incomplete datagrams kept at once
_MAX_HEARD: Final = 10_000  # target addresses of packets that are no TCP
_MAX_FRAGMENTS: Final = 2048  # per datagram: 64 KiB at the smallest MTU (68, RFC 791) need 1366
_FRAGMENT_LIFETIME_NS: Final = 30_000_000_000  # RFC 791 3.2: at least 15 s; systems keep 30 s

RECORD_OTHER, RECORD_DAMAGED, RECORD_SEGMENT = 0, 1, 2


@dataclass(slots=True)
class TcpSegments:
    """The TCP segments of a block in the order of the capture, as arrays with one element per segment.

    ``record_index``: in the block's records. ``packet_number``, ``time_ns``: of the packet. ``source_address`` and
    ``target_address``: 16 bytes each, IPv4 (``ip_version`` 4) in the first four. ``payload_start``: in ``buffer``.
    ``file_offset``: of the payload in the decompressed file; of the last fragment for a reassembled datagram.
    ``captured_length`` and ``payload_length``: bytes of the payload, none of an RST's; the first is smaller if the
    capture truncated the packet. ``record_count``: records that the segment consists of. ``buffer``: the block's
    buffer, followed by reassembled datagrams. ``record_classes``: one element per record of the block (``RECORD_*``).
    ``header_bytes``: of the TCP header in front of the payload; 0 if it is not in ``buffer``. ``tunnel``: index of the
    innermost tunnel that is around the packet (``PacketDecoder.tunnels``), 0 for none; ``tunnel_identifier``: what
    tells connections with equal endpoints apart, ``NO_IDENTIFIER`` for nothing.
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
    tunnel: Ints
    tunnel_identifier: Ints

    def take(self, rows: Ints) -> TcpSegments:
        """Return some of the segments, with the same buffer."""
        whole = ("buffer", "record_classes")
        return TcpSegments(
            **{name: getattr(self, name) if name in whole else getattr(self, name)[rows] for name in self.__slots__}
        )


@dataclass(slots=True)
class _IpPayloads:
    """IP payloads as columns: record index, IP version, addresses, offset in the buffer, captured and true length.

    ``protocol`` is IP's number of what they are, ``tunnel`` the index of the innermost tunnel around them.
    """

    record: Ints
    version: Ints
    source: Octets
    target: Octets
    start: Ints
    captured: Ints
    length: Ints
    weight: Ints
    protocol: Ints
    tunnel: Ints

    def take(self, rows: Ints) -> _IpPayloads:
        """Return some of the payloads."""
        return _IpPayloads(*(getattr(self, name)[rows] for name in self.__slots__))


class _DatagramName(NamedTuple):
    """What the fragments of a datagram have in common."""

    source: bytes
    target: bytes
    version: int
    protocol: int
    identification: int
    tunnel: int


_Reassembled = tuple[int, _DatagramName, tuple[bytes, int] | None]  # record; payload, number of fragments


@dataclass(slots=True)
class _FragmentedDatagram:
    """The fragments of one IP datagram received so far."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    total: int | None = None
    since: int = 0
    size: int = 0


class PacketDecoder:
    """Decodes the blocks of one capture in order; keeps IP fragments of incomplete datagrams between blocks.

    ``tunnels`` are those that packets came through so far. ``unread_link_types``: packets by link type, of those that
    are not read; ``unread``: of other protocols that are not; ``nested_too_deep``: packets in more tunnels than are
    read. ``datagrams``: of the last block, those from or to one of ``datagram_ports``. ``heard``: by target address,
    packed, the times in ns of the first and last IP packet that is no TCP, for the first ``_MAX_HEARD`` addresses.
    """

    def __init__(
        self, tunnel_ports: Mapping[int, str] = TUNNEL_PORTS, datagram_ports: frozenset[int] = frozenset()
    ) -> None:
        self.datagrams: list[UdpDatagram] = []
        self._datagram_ports = datagram_ports
        self.tunnels = TunnelTable()
        self.unread_link_types: Counter[int] = Counter()
        self.unread = UnreadPackets()
        self.nested_too_deep = 0
        self.heard: dict[bytes, tuple[int, int]] = {}
        self._tunnel_ports = tunnel_ports
        # Those that may carry packets are apart: other traffic of UDP does not displace fragments of TCP.
        self._incomplete: dict[bool, dict[_DatagramName, _FragmentedDatagram]] = {True: {}, False: {}}

    def decode_block(self, records: RecordBlock) -> TcpSegments:
        """Return the TCP segments of a block, and the class of each of its records."""
        octets, data = np.frombuffer(records.buffer, np.uint8), records.buffer
        classes = np.zeros(len(records.packet_start), np.int8)
        packets = self._find_network_packets(octets, records, classes)
        parts: list[_IpPayloads] = []
        extra = bytearray()
        self.datagrams = []
        for depth in range(MAX_DEPTH + 1):
            packets, nested, unread = read_labels_and_sessions(octets, packets, self.tunnels)
            self.nested_too_deep += len(nested.record)
            if len(unread.record):
                self.unread.add(octets, unread)
            found = []
            for ethertype, decode in ((ETHERTYPE_IPV4, self._decode_ipv4), (ETHERTYPE_IPV6, self._decode_ipv6)):
                rows = np.nonzero(packets.protocol == ethertype)[0]
                if len(rows):
                    found.append(decode(octets, records, packets.take(rows), classes, extra))
            if extra:  # reassembled datagrams
                data = records.buffer + extra + bytes(BUFFER_PADDING_BYTES)
                octets = np.frombuffer(data, np.uint8)
            parts += [payloads.take(np.nonzero(payloads.protocol == _TCP)[0]) for payloads in found]
            for payloads in found:
                self._add_datagrams(octets, payloads, records)
            inner = [self._open_tunnels(octets, payloads) for payloads in found]
            packets = Packets.concatenate([each for each in inner if each is not None])
            if not len(packets.record):
                break
            if depth == MAX_DEPTH:
                self.nested_too_deep += len(packets.record)
        return _decode_tcp_headers(data, octets, records, parts, classes, self.tunnels.identifiers)

    def _find_network_packets(self, octets: Octets, records: RecordBlock, classes: npt.NDArray[np.int8]) -> Packets:
        """Return the network packet of each record. Records whose link header is cut off are damaged."""
        start, end = records.packet_start, records.packet_start + records.captured_length
        count = len(start)
        at, protocol = start.copy(), np.full(count, UNKNOWN_ETHERTYPE, np.int64)
        links = np.unique(records.link_type).tolist()
        for link in links:
            rows = np.arange(count) if len(links) == 1 else np.nonzero(records.link_type == link)[0]
            headers = find_network_headers(octets, link, start[rows], end[rows])
            if headers is not None:
                at[rows], protocol[rows] = headers.at, headers.protocol
                classes[rows[headers.cut_off]] = RECORD_DAMAGED
            elif link == UNKNOWN_LINK_TYPE:
                classes[rows] = RECORD_DAMAGED
            else:
                self.unread_link_types[link] += len(rows)
        stop = start + records.original_length
        return Packets(np.arange(count), at, end, stop, protocol, np.zeros(count, np.int64), np.ones(count, np.int64))

    def _open_tunnels(self, octets: Octets, payloads: _IpPayloads) -> Packets | None:
        """Return the packets inside of IP payloads; None if there are none."""
        rows = np.nonzero(payloads.protocol != _TCP)[0]
        if not len(rows):
            return None
        outer = payloads.take(rows)
        ends = np.concatenate([outer.version.astype(np.uint8)[:, None], outer.source, outer.target], axis=1)
        packets = Packets(
            outer.record, outer.start, outer.start + outer.captured, outer.start + outer.length, outer.protocol,
            outer.tunnel, outer.weight,
        )  # fmt: skip
        inner = []
        for protocols in ((IP_UDP,), (IP_GRE,), (IP_MPLS,), IP_IN_IP):
            rows = np.nonzero(np.isin(outer.protocol, protocols))[0]
            if not len(rows):
                continue
            chosen, around = packets.take(rows), ends[rows]
            if protocols == (IP_UDP,):
                inner.append(read_udp(octets, chosen, around, self.tunnels, self._tunnel_ports))
            elif protocols == (IP_GRE,):
                inner.append(read_gre(octets, chosen, around, self.tunnels))
            elif protocols == (IP_MPLS,):
                inner.append(read_mpls(octets, chosen, around, self.tunnels))
            else:
                inner.append(read_ip_in_ip(chosen, around, outer.protocol[rows], self.tunnels))
        return Packets.concatenate(inner)

    def _decode_ipv4(
        self, octets: Octets, records: RecordBlock, packets: Packets, classes: npt.NDArray[np.int8], extra: bytearray
    ) -> _IpPayloads:
        at, end = packets.at, packets.end
        header = gather_bytes(octets, at, _IP_HEADER_BYTES)
        size = (header[:, 0] & 0x0F).astype(np.int64) * 4
        total = u16(header, 2)
        good = (at + 20 <= end) & (header[:, 0] >> 4 == 4) & (size >= 20)
        good &= (total == 0) | (total >= size)
        classes[packets.record[~good]] = RECORD_DAMAGED
        # Total length 0: segmentation offload; the packet was captured before the network card set it.
        length = np.where(total == 0, packets.stop - at, total) - size
        fragment = u16(header, 6) & 0x3FFF
        protocol = header[:, 9].astype(np.int64)
        self._note_heard(header[:, 16:20], np.nonzero(good & (protocol != _TCP))[0], records.time_ns[packets.record])
        wanted = good & ((protocol == _TCP) | self._may_be_tunnel(octets, protocol, at + size, fragment))
        whole = np.nonzero(wanted & (fragment == 0))[0]
        found = _IpPayloads(
            packets.record[whole],
            np.full(len(whole), 4, np.int64),
            _widen_addresses(header[whole, 12:16]),
            _widen_addresses(header[whole, 16:20]),
            (at + size)[whole],
            np.minimum(length, end - at - size)[whole],
            length[whole],
            packets.weight[whole],
            protocol[whole],
            packets.tunnel[whole],
        )
        done: list[_Reassembled] = []
        for row in np.nonzero(wanted & (fragment != 0))[0].tolist():
            start, offset = int(at[row] + size[row]), int(fragment[row] & 0x1FFF) * 8
            name = _DatagramName(
                header[row, 12:16].tobytes(),
                header[row, 16:20].tobytes(),
                4,
                int(protocol[row]),
                int(u16(header[row : row + 1], 4)[0]),
                int(packets.tunnel[row]),
            )
            piece = bytes(octets[start : min(start + int(length[row]), int(end[row]))])
            more, time = bool(fragment[row] & 0x2000), int(records.time_ns[packets.record[row]])
            whole_datagram = self._add_fragment(name, piece, offset, more, int(length[row]), time)
            done.append((int(packets.record[row]), name, whole_datagram))
        return _append_reassembled(found, done, extra, len(records.buffer))

    def _may_be_tunnel(self, octets: Octets, protocol: Ints, start: Ints, fragment: Ints) -> Bools:
        """Whether payloads may be of use: of UDP, by its ports, which the first fragment alone has."""
        may_be = np.isin(protocol, TUNNEL_IP_PROTOCOLS)
        datagrams = np.nonzero((protocol == IP_UDP) & (fragment & 0x1FFF == 0))[0]
        if len(datagrams):
            port = u16(gather_bytes(octets, start[datagrams], 4), 2)
            may_be[datagrams] = np.isin(port, list(self._tunnel_ports))
            if self._datagram_ports:
                may_be[datagrams] |= has_port(octets, start[datagrams], self._datagram_ports)
        return may_be

    def _add_datagrams(self, octets: Octets, payloads: _IpPayloads, records: RecordBlock) -> None:
        """Note the UDP datagrams of the ports that were asked for."""
        rows = np.nonzero((payloads.protocol == IP_UDP) & (payloads.captured >= UDP_HEADER_BYTES))[0]
        if not len(rows) or not self._datagram_ports:
            return
        for row in rows[has_port(octets, payloads.start[rows], self._datagram_ports)].tolist():
            start, record = int(payloads.start[row]), int(payloads.record[row])
            header = bytes(octets[start : start + UDP_HEADER_BYTES])
            source, target, size = (int.from_bytes(header[at : at + 2], "big") for at in (0, 2, 4))
            end = start + min(int(payloads.captured[row]), max(size, UDP_HEADER_BYTES))
            width = 4 if payloads.version[row] == 4 else 16
            self.datagrams.append(
                UdpDatagram(
                    int(records.time_ns[record]), int(records.packet_number[record]),
                    payloads.source[row].tobytes()[:width], source, payloads.target[row].tobytes()[:width], target,
                    bytes(octets[start + UDP_HEADER_BYTES : end]), int(payloads.weight[row]),
                )
            )  # fmt: skip

    def _note_heard(self, targets: Octets, rows: Ints, times: Ints) -> None:
        """Note the target addresses of some packets, which are no TCP, with their times in ns."""
        if not len(rows):
            return
        addresses = np.ascontiguousarray(targets[rows]).view(f"V{targets.shape[1]}").ravel()
        names, place = np.unique(addresses, return_inverse=True)
        first, last = np.full(len(names), NEVER_NS), np.full(len(names), NO_TIME)
        np.minimum.at(first, place, times[rows])
        np.maximum.at(last, place, times[rows])
        for name, begin, end in zip(names.tolist(), first.tolist(), last.tolist(), strict=True):
            known = self.heard.get(name)
            if known is not None or len(self.heard) < _MAX_HEARD:
                self.heard[name] = (begin, end) if known is None else (min(known[0], begin), max(known[1], end))

    def _decode_ipv6(
        self, octets: Octets, records: RecordBlock, packets: Packets, classes: npt.NDArray[np.int8], extra: bytearray
    ) -> _IpPayloads:
        at, end = packets.at, packets.end
        header = gather_bytes(octets, at, 40)
        good = (at + 40 <= end) & (header[:, 0] >> 4 == 6)
        classes[packets.record[~good]] = RECORD_DAMAGED
        payload = u16(header, 4)
        follows = header[:, 6].astype(np.int64)
        start = at + 40
        # Payload length 0: a jumbogram or offload; the frame length is used instead.
        stop = np.where(payload == 0, packets.stop, start + payload)
        done: list[_Reassembled] = []
        for row in np.nonzero(good & (follows != _TCP))[0].tolist():
            found = _skip_extension_headers(octets, int(start[row]), int(end[row]), int(follows[row]))
            if found is None:
                classes[packets.record[row]] = RECORD_DAMAGED
                follows[row] = -1
                continue
            follows[row], start[row], fragment = found
            if fragment is not None:
                first, offset, more, identification = fragment
                follows[row] = -1
                if first != _TCP and first not in TUNNEL_IP_PROTOCOLS:
                    continue
                addresses = header[row, 8:24].tobytes(), header[row, 24:40].tobytes()
                name = _DatagramName(*addresses, 6, first, identification, int(packets.tunnel[row]))
                piece = bytes(octets[int(start[row]) : min(int(stop[row]), int(end[row]))])
                size, time = int(stop[row] - start[row]), int(records.time_ns[packets.record[row]])
                whole_datagram = self._add_fragment(name, piece, offset, more, size, time)
                done.append((int(packets.record[row]), name, whole_datagram))
        self._note_heard(header[:, 24:40], np.nonzero(good & (follows != _TCP))[0], records.time_ns[packets.record])
        no_fragment = np.zeros(len(at), np.int64)
        wanted = good & ((follows == _TCP) | self._may_be_tunnel(octets, follows, start, no_fragment))
        whole = np.nonzero(wanted)[0]
        length = (stop - start)[whole]
        found_rows = _IpPayloads(
            packets.record[whole],
            np.full(len(whole), 6, np.int64),
            np.ascontiguousarray(header[whole, 8:24]),
            np.ascontiguousarray(header[whole, 24:40]),
            start[whole],
            np.minimum(length, (end - start)[whole]),
            length,
            packets.weight[whole],
            follows[whole],
            packets.tunnel[whole],
        )
        return _append_reassembled(found_rows, done, extra, len(records.buffer))

    def _add_fragment(
        self, names: _DatagramName, piece: bytes, offset: int, more: int, length: int, time: int
    ) -> tuple[bytes, int] | None:
        """Add a fragment; return the payload and the number of fragments if the datagram is complete now."""
        if len(piece) < length or offset + length > 0xFFFF + 40:
            return None  # truncated by the capture, or beyond the maximum datagram size
        incomplete = self._incomplete[names.protocol == _TCP]
        known = incomplete.get(names)
        if known is None or elapsed_ns(known.since, time) > _FRAGMENT_LIFETIME_NS:
            if len(incomplete) >= _MAX_INCOMPLETE_DATAGRAMS:
                del incomplete[next(iter(incomplete))]
            known = incomplete[names] = _FragmentedDatagram(since=time)
        known.pieces.append((offset, piece))
        known.size += len(piece)
        if len(known.pieces) > _MAX_FRAGMENTS:
            del incomplete[names]
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
        del incomplete[names]
        return bytes(joined[: known.total]), len(known.pieces)


def _widen_addresses(four: Octets) -> Octets:
    wide = np.zeros((len(four), 16), np.uint8)
    wide[:, :4] = four
    return wide


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
    done: list[_Reassembled],
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
        np.append(found.version, np.array([names.version for _, names, _ in rows], np.int64)),
        np.concatenate([found.source, source]),
        np.concatenate([found.target, target]),
        np.append(found.start, np.array(starts, np.int64)),
        np.append(found.captured, sizes),
        np.append(found.length, sizes),
        np.append(found.weight, np.array([count for _, _, (_, count) in rows], np.int64)),
        np.append(found.protocol, np.array([names.protocol for _, names, _ in rows], np.int64)),
        np.append(found.tunnel, np.array([names.tunnel for _, names, _ in rows], np.int64)),
    )


def _decode_tcp_headers(
    data: bytearray, octets: Octets, records: RecordBlock, parts: list[_IpPayloads], classes: npt.NDArray[np.int8],
    tunnel_identifiers: Ints,
) -> TcpSegments:  # fmt: skip
    """Decode the TCP headers of IP payloads and sort the segments into the order of the capture."""

    def column(name: str) -> npt.NDArray[np.int64]:
        arrays = [getattr(part, name) for part in parts]
        joined: Ints = arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return joined

    record, start, captured, length = column("record"), column("start"), column("captured"), column("length")
    header = gather_bytes(octets, start, 20) if len(start) else np.zeros((0, 20), np.uint8)
    size = (header[:, 12] >> 4).astype(np.int64) * 4
    good = (captured >= 20) & (size >= 20) & (size <= length)
    classes[record[~good]] = RECORD_DAMAGED
    keep = np.nonzero(good)[0]
    if len(parts) > 1 or (len(keep) and (np.diff(record[keep]) < 0).any()):
        keep = keep[np.argsort(record[keep], kind="stable")]
    record, header, size = record[keep], header[keep], size[keep]
    classes[record] = RECORD_SEGMENT
    payload, tunnel = start[keep] + size, column("tunnel")[keep]
    in_stream = (header[:, 13] & RST) == 0  # what an RST carries is a text about it (RFC 1122 4.2.2.12)
    empty = np.zeros((0, 16), np.uint8)
    source = np.concatenate([part.source for part in parts])[keep] if parts else empty
    target = np.concatenate([part.target for part in parts])[keep] if parts else empty
    return TcpSegments(
        data,
        record,
        records.packet_number[record],
        records.time_ns[record],
        column("version")[keep],
        source,
        target,
        u16(header, 0),
        u16(header, 2),
        u32(header, 4),
        u32(header, 8),
        header[:, 13].astype(np.int64),
        payload,
        records.packet_offset[record]
        + np.where(payload < len(records.buffer), payload - records.packet_start[record], 0),
        np.maximum(captured[keep] - size, 0) * in_stream,
        (length[keep] - size) * in_stream,
        column("weight")[keep],
        classes,
        size,
        tunnel,
        tunnel_identifiers[tunnel],
    )
