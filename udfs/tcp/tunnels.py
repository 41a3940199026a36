"""Takes packets out of tunnels and mirrors: VXLAN, Geneve, GRE, NVGRE, ERSPAN, IP in IP, MPLS, PPPoE.

Sources: RFC 7348 and draft-ietf-nvo3-vxlan-gpe (VXLAN), RFC 8926 (Geneve), RFC 2784 and 2890 (GRE), RFC 2637 (its
version 1), RFC 7637 (NVGRE), draft-foschiano-erspan (ERSPAN), RFC 2003, 4213 and 2473 (IP in IP), RFC 3032 and 4385
(MPLS), RFC 4023 (MPLS in IP), RFC 2516 (PPPoE). Headers are decoded for many packets at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from udfs.array_types import Ints, Octets
from udfs.tcp.link_layers import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_MPLS,
    ETHERTYPE_PPPOE,
    IS_UNREAD,
    LINK_ETHERNET,
    UNKNOWN_ETHERTYPE,
    find_network_headers,
    ip_ethertypes,
    read_ppp,
    read_pppoe,
)
from udfs.tcp.octets import gather_bytes, u16, u32

MAX_DEPTH: Final = 4  # tunnels around a packet that are read
TUNNEL_PORTS: Final[Mapping[int, str]] = {4789: "vxlan", 8472: "vxlan", 4790: "vxlan_gpe", 6081: "geneve"}
"""The UDP ports of tunnels, with their kinds."""
_MAX_TUNNELS: Final = 1 << 16  # of one capture; connections in further ones are not told apart by them
NO_IDENTIFIER: Final = -1
_MAX_LABELS: Final = 16  # of an MPLS stack
_ETHERNET_BRIDGING: Final = 0x6558
_ERSPAN_1_OR_2, _ERSPAN_3 = 0x88BE, 0x22EB
_PPP_IN_GRE: Final = 0x880B
_NSH: Final = 0x894F  # RFC 8300
_WCCP: Final = 0x883E  # redirected IPv4 packets, behind four bytes in its version 2
_IP_PROTOCOL_KINDS: Final = {4: (ETHERTYPE_IPV4, "ipip"), 41: (ETHERTYPE_IPV6, "6in4")}
IP_IN_IP: Final = tuple(_IP_PROTOCOL_KINDS)
IP_MPLS, IP_GRE, IP_UDP = 137, 47, 17
TUNNEL_IP_PROTOCOLS: Final = (*IP_IN_IP, IP_MPLS, IP_GRE, IP_UDP)
"""The protocols of IP that may carry packets."""


class Tunnel(NamedTuple):
    """A tunnel that packets came through, with the addresses of its ends, as text, and its VNI, key, label or session.

    ``identity`` is the identifier that tells connections in it apart: its own, else that of the tunnel around it.
    """

    kind: str
    source: str | None
    destination: str | None
    identifier: int | None
    identity: int | None


@dataclass(slots=True)
class Packets:
    """Network packets as columns: where each header is, and which (EtherType).

    ``record``: index of the record; ``end``: of the bytes that were captured; ``stop``: of those that were sent;
    ``tunnel``: index of the innermost tunnel around it (``TunnelTable``), 0 for none; ``weight``: records.
    """

    record: Ints
    at: Ints
    end: Ints
    stop: Ints
    protocol: Ints
    tunnel: Ints
    weight: Ints

    def take(self, rows: Ints) -> Packets:
        """Return some of the packets."""
        return Packets(*(getattr(self, name)[rows] for name in self.__slots__))

    @staticmethod
    def concatenate(parts: list[Packets]) -> Packets:
        """Return all packets of several parts."""
        if not parts:
            return Packets(*(np.zeros(0, np.int64) for _ in Packets.__slots__))
        return Packets(*(np.concatenate([getattr(part, name) for part in parts]) for name in Packets.__slots__))


@dataclass(slots=True)
class TunnelTable:
    """The tunnels of a capture, by index; index 0 stands for none."""

    tunnels: list[Tunnel | None] = field(default_factory=lambda: [None])
    identifiers: Ints = field(default_factory=lambda: np.array([NO_IDENTIFIER]))  # what tells connections apart
    _index: dict[tuple[object, ...], int] = field(default_factory=dict)

    def enter(self, kind: str, outer: Ints, ends: Octets | None, identifier: Ints | None) -> Ints:
        """Return the index of the tunnel of each packet.

        ``outer`` are the indexes of the tunnels around it; ``ends`` its addresses, as bytes of IP version, source and
        target (33); None: a tunnel without. ``identifier`` is negative for a packet without one.
        """
        count = len(outer)
        numbers = np.full(count, -1) if identifier is None else identifier.astype(np.int64)
        names = np.zeros((count, 56), np.uint8)
        names[:, :33] = 0 if ends is None else ends
        words = names.view(np.uint64)
        words[:, 5], words[:, 6] = outer, numbers.view(np.uint64)
        first, inverse = _distinct_rows(words)
        found = []
        for row in first.tolist():
            key = kind, names[row].tobytes()
            if key not in self._index and len(self.tunnels) < _MAX_TUNNELS:
                around = self.tunnels[int(outer[row])]
                own = None if numbers[row] < 0 else int(numbers[row])
                identity = own if own is not None else around and around.identity
                source, destination = (None, None) if ends is None else _addresses(ends[row])
                self._index[key] = len(self.tunnels)
                self.tunnels.append(Tunnel(kind, source, destination, own, identity))
            found.append(self._index.get(key, 0))
        known = len(self.identifiers)
        if len(self.tunnels) > known:
            added = [
                NO_IDENTIFIER if one is None or one.identity is None else one.identity for one in self.tunnels[known:]
            ]
            self.identifiers = np.append(self.identifiers, np.array(added, np.int64))
        return np.array(found, np.int64)[inverse]


def _distinct_rows(words: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Return the index of a row of each kind, and the kind of each row.

    The numbers that rows are hashed with are chosen anew until no two kinds have one hash.
    """
    while True:
        factors = np.array([secrets.randbits(64) | 1 for _ in range(words.shape[1])], np.uint64)
        hashes = (words * factors).sum(axis=1, dtype=np.uint64)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if (words[first[inverse]] == words).all():
            return first, inverse


def _addresses(ends: Octets) -> tuple[str, str]:
    size = 4 if ends[0] == 4 else 16
    return str(ip_address(ends[1 : 1 + size].tobytes())), str(ip_address(ends[17 : 17 + size].tobytes()))


class OpenedPackets(NamedTuple):
    """What is in MPLS and PPPoE: packets of IP, those that something else is around, and those that are not read."""

    ip: Packets
    nested: Packets
    unread: Packets


def read_labels_and_sessions(octets: Octets, packets: Packets, table: TunnelTable) -> OpenedPackets:
    """Take packets out of MPLS and PPPoE."""
    ip: list[Packets] = []
    unread: list[Packets] = []
    for _ in range(MAX_DEPTH):
        is_ip = (packets.protocol == ETHERTYPE_IPV4) | (packets.protocol == ETHERTYPE_IPV6)
        ip.append(packets.take(np.nonzero(is_ip)[0]))
        packets = packets.take(np.nonzero(~is_ip)[0])
        if not len(packets.record):
            break
        unread.append(packets.take(np.nonzero(IS_UNREAD[packets.protocol])[0]))
        inner = []
        labelled = packets.take(np.nonzero(np.isin(packets.protocol, ETHERTYPE_MPLS))[0])
        if len(labelled.record):
            inner.append(read_mpls(octets, labelled, None, table))
        sessions = packets.take(np.nonzero(packets.protocol == ETHERTYPE_PPPOE)[0])
        if len(sessions.record):
            found, session = read_pppoe(octets, sessions.at, sessions.end)
            sessions.tunnel = table.enter("pppoe", sessions.tunnel, None, session)
            sessions.at, sessions.protocol = found.at, found.protocol
            inner.append(sessions)
        packets = Packets.concatenate(inner)
    return OpenedPackets(Packets.concatenate(ip), packets, Packets.concatenate(unread))


def read_mpls(octets: Octets, packets: Packets, ends: Octets | None, table: TunnelTable) -> Packets:
    """Take packets out of MPLS: IP by its version, else Ethernet, which a control word may precede (RFC 4385 3)."""
    at, label = packets.at.copy(), np.full(len(packets.at), -1, np.int64)
    open_rows = np.arange(len(at))
    for _ in range(_MAX_LABELS):
        open_rows = open_rows[at[open_rows] + 4 <= packets.end[open_rows]]
        if not len(open_rows):
            break
        entry = u32(gather_bytes(octets, at[open_rows], 4), 0)
        at[open_rows] += 4
        bottom = entry & 0x100 != 0
        label[open_rows[bottom]] = entry[bottom] >> 12
        open_rows = open_rows[~bottom]
    protocol = np.where(label >= 0, ip_ethertypes(octets, at, packets.end), UNKNOWN_ETHERTYPE)
    packets.tunnel = table.enter("mpls", packets.tunnel, ends, label)
    rows = np.nonzero((label >= 0) & (protocol == UNKNOWN_ETHERTYPE))[0]
    if len(rows):
        control = gather_bytes(octets, at[rows], 1)[:, 0] == 0
        at[rows] += 4 * control
    packets.at, packets.protocol = at, protocol
    return _read_ethernet(octets, packets, rows)


def read_udp(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, ports: Mapping[int, str]) -> Packets:
    """Take packets out of VXLAN and Geneve; ``packets`` are at UDP headers, whose target port tells."""
    port = u16(gather_bytes(octets, packets.at, 8), 2)
    inner = []
    for kind in sorted(set(ports.values())):
        wanted = np.isin(port, [number for number, name in ports.items() if name == kind])
        rows = np.nonzero(wanted & (packets.at + 16 <= packets.end))[0]
        if len(rows):
            read = _read_geneve if kind == "geneve" else _read_vxlan
            inner.append(read(octets, packets.take(rows), ends[rows], table, kind))
    return Packets.concatenate(inner)


def _read_vxlan(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, kind: str) -> Packets:
    """Take packets out of VXLAN; with the flag P (GPE) the header says what follows, else Ethernet does."""
    header = gather_bytes(octets, packets.at + 8, 8)
    flags, identifier = header[:, 0], u32(header, 4) >> 8
    rows = np.nonzero(flags & 0x08)[0]
    packets, identifier, header = packets.take(rows), identifier[rows], header[rows]
    packets.at = packets.at + 16
    follows = np.where((kind == "vxlan_gpe") & (header[:, 0] & 0x04 != 0), header[:, 3], 3)
    packets.tunnel = table.enter(kind, packets.tunnel, ends[rows], identifier)
    packets.protocol = np.select(
        [follows == 1, follows == 2, follows == 4, follows == 5],
        [ETHERTYPE_IPV4, ETHERTYPE_IPV6, _NSH, ETHERTYPE_MPLS[0]], UNKNOWN_ETHERTYPE,
    )  # fmt: skip
    return _read_ethernet(octets, packets, np.nonzero(follows == 3)[0])


def _read_geneve(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, kind: str) -> Packets:
    header = gather_bytes(octets, packets.at + 8, 8)
    rows = np.nonzero(header[:, 0] >> 6 == 0)[0]
    packets, header = packets.take(rows), header[rows]
    packets.tunnel = table.enter(kind, packets.tunnel, ends[rows], u32(header, 4) >> 8)
    packets.at = packets.at + 16 + (header[:, 0] & 0x3F).astype(np.int64) * 4
    packets.protocol = u16(header, 2)
    return _read_ethernet(octets, packets, np.nonzero(packets.protocol == _ETHERNET_BRIDGING)[0])


def read_gre(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable) -> Packets:
    """Take packets out of GRE and what is built on it: NVGRE, ERSPAN, PPP of version 1."""
    header = gather_bytes(octets, packets.at, 16)
    flags, protocol = u16(header, 0), u16(header, 2)
    version = flags & 7
    key_at = 4 + 4 * (flags >> 15)  # behind the checksum
    has_key, has_sequence = flags & 0x2000 != 0, flags & 0x1000 != 0
    size = key_at + 4 * has_key + 4 * has_sequence + np.where((version == 1) & (flags & 0x80 != 0), 4, 0)
    # Routing (0x4000) is deprecated, and its header has no size of its own.
    good = (flags & 0x4000 == 0) & (packets.at + size <= packets.end)
    good &= (version == 0) | ((version == 1) & (protocol == _PPP_IN_GRE))
    key = np.where(has_key, u32(gather_bytes(octets, packets.at + key_at, 4), 0), -1)
    inner = []
    for wanted, read in (
        (protocol == _ERSPAN_1_OR_2, _read_erspan_1_or_2),
        (protocol == _ERSPAN_3, _read_erspan_3),
        (~np.isin(protocol, (_ERSPAN_1_OR_2, _ERSPAN_3)), _read_plain_gre),
    ):
        rows = np.nonzero(good & wanted)[0]
        if len(rows):
            chosen = packets.take(rows)
            chosen.at, chosen.protocol = chosen.at + size[rows], protocol[rows]
            inner.append(read(octets, chosen, ends[rows], table, _GreFields(flags[rows], key[rows])))
    return Packets.concatenate(inner)


class _GreFields(NamedTuple):
    flags: Ints
    key: Ints  # negative: none


def _read_plain_gre(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, gre: _GreFields) -> Packets:
    bridged = packets.protocol == _ETHERNET_BRIDGING
    ppp = packets.protocol == _PPP_IN_GRE
    # NVGRE always has a key: 24 bits are the subnet, the others differ by flow. Of version 1 it is size and call id.
    nvgre = bridged & (gre.key >= 0)
    identifier = np.where(nvgre, gre.key >> 8, np.where(ppp, gre.key & 0xFFFF, gre.key))
    tunnel = packets.tunnel.copy()
    for kind, rows in (("nvgre", np.nonzero(nvgre)[0]), ("gre", np.nonzero(~nvgre)[0])):
        if len(rows):
            tunnel[rows] = table.enter(kind, packets.tunnel[rows], ends[rows], identifier[rows])
    packets.tunnel = tunnel
    redirected = packets.protocol == _WCCP
    is_ip = ip_ethertypes(octets, packets.at, packets.end) == ETHERTYPE_IPV4
    packets.at = packets.at + np.where(redirected & ~is_ip, 4, 0)
    packets.protocol = np.where(redirected, ETHERTYPE_IPV4, packets.protocol)
    rows = np.nonzero(ppp)[0]
    if len(rows):
        framed = u16(gather_bytes(octets, packets.at[rows], 2), 0) == 0xFF03
        found = read_ppp(octets, packets.at[rows] + 2 * framed, packets.end[rows])
        packets.at[rows], packets.protocol[rows] = found.at, found.protocol
    return _read_ethernet(octets, packets, np.nonzero(bridged)[0])


def _read_erspan_1_or_2(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, gre: _GreFields) -> Packets:
    """Take packets out of ERSPAN I, which has no header of its own and no sequence number, and II."""
    second = gre.flags & 0x1000 != 0
    header = gather_bytes(octets, packets.at, 8)
    tunnel = packets.tunnel.copy()
    for kind, rows in (("erspan1", np.nonzero(~second)[0]), ("erspan2", np.nonzero(second)[0])):
        if len(rows):
            session = None if kind == "erspan1" else u16(header, 2)[rows] & 0x03FF
            tunnel[rows] = table.enter(kind, packets.tunnel[rows], ends[rows], session)
    packets.tunnel, packets.at = tunnel, packets.at + 8 * second
    return _read_ethernet(octets, packets, np.arange(len(packets.at)))


def _read_erspan_3(octets: Octets, packets: Packets, ends: Octets, table: TunnelTable, _: _GreFields) -> Packets:
    """Take packets out of ERSPAN III: 12 bytes, 8 more if the flag O is set; frames of Ethernet or IP."""
    header = gather_bytes(octets, packets.at, 12)
    packets.tunnel = table.enter("erspan3", packets.tunnel, ends, u16(header, 2) & 0x03FF)
    packets.at = packets.at + 12 + 8 * (header[:, 11] & 1).astype(np.int64)
    frame_type = u16(header, 10) >> 10 & 0x1F
    is_ip = frame_type == 2
    packets.protocol = np.where(is_ip, ip_ethertypes(octets, packets.at, packets.end), UNKNOWN_ETHERTYPE)
    return _read_ethernet(octets, packets, np.nonzero(frame_type == 0)[0])


def read_ip_in_ip(packets: Packets, ends: Octets, ip_protocol: Ints, table: TunnelTable) -> Packets:
    """Take IP packets out of IP packets; ``ip_protocol`` says of which version the inner ones are."""
    inner = []
    for number, (ethertype, kind) in _IP_PROTOCOL_KINDS.items():
        rows = np.nonzero(ip_protocol == number)[0]
        if len(rows):
            chosen = packets.take(rows)
            tunnel = chosen.tunnel.copy()
            for version in (4, 6):
                of_version = np.nonzero(ends[rows, 0] == version)[0]
                name = kind if version == 4 else "ipip"
                tunnel[of_version] = table.enter(name, tunnel[of_version], ends[rows[of_version]], None)
            chosen.tunnel, chosen.protocol = tunnel, np.full(len(rows), ethertype, np.int64)
            inner.append(chosen)
    return Packets.concatenate(inner)


def _read_ethernet(octets: Octets, packets: Packets, rows: Ints) -> Packets:
    """Set place and protocol of the packets among ``packets`` that are at Ethernet headers."""
    found = find_network_headers(octets, LINK_ETHERNET, np.minimum(packets.at, packets.end)[rows], packets.end[rows])
    if found is not None:
        packets.at[rows], packets.protocol[rows] = found.at, found.protocol
    return packets
