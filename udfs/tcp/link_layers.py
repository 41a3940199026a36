"""Finds the network header behind the link header of packets, for all link types that are read.

Link types are those of tcpdump.org's registry (LINKTYPE_...). Headers are decoded for many packets at once.

What is not read, and may carry IP, has a number: an EtherType, or one above those (``protocol_name``).

Sources: IEEE 802.3, 802.1Q, 802.1ad, 802.1ah, 802.11; IEC 62439-3 (HSR, PRP); RFC 1661, 1662 (PPP), 2516 (PPPoE); the
registry's pages on SLL, SLL2, NULL, NFLOG, PKTAP, PPI, C-HDLC and Juniper; radiotap.org; for VN-Tag and Cisco metadata,
which nobody specifies in public, Wireshark's packet-vntag.c and packet-cisco-metadata.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Bools, Ints, Octets
from udfs.tcp.octets import gather_bytes, u16, u16_little, u32, u32_little

LINK_ETHERNET: Final = 1
ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
ETHERTYPE_MPLS: Final = (0x8847, 0x8848)
ETHERTYPE_PPPOE: Final = 0x8864
UNKNOWN_ETHERTYPE: Final = 0  # EtherType of what carries no IP, or cannot be told
# Numbers of what has no EtherType: PPP's protocols are added to the first one.
_FIRST_OF_PPP: Final = 0x10000
_UNREAD_WLAN: Final = 0x20000
PROTOCOL_NUMBERS: Final = _UNREAD_WLAN + 1
_CISCO_METADATA: Final = 0x8909
# Tags in front of an EtherType that is their last two bytes: their sizes in bytes.
_TAGS: Final = {
    0x8100: 4, 0x88A8: 4, 0x9100: 4, 0x9200: 4, 0x9300: 4, 0x8200: 4,  # VLAN
    0x8926: 6,  # VN-Tag
    0x892F: 6,  # HSR
    0x88E7: 18,  # 802.1ah: the service, and the addresses of the frame inside
    _CISCO_METADATA: 8,  # its size is in the tag; this is the least one
}  # fmt: skip
_TAG_BYTES: Final = np.zeros(PROTOCOL_NUMBERS, np.int64)
_TAG_BYTES[list(_TAGS)] = list(_TAGS.values())
_MAX_TAGS: Final = 8
_LAST_LENGTH, _FIRST_ETHERTYPE = 1500, 0x0600  # IEEE 802.3 3.2.6: what is below is a length
_IP_SAP: Final = 0x06
_SNAP_OUIS: Final = (0x000000, 0x0000F8)  # of those whose numbers are EtherTypes (RFC 1042, IEEE 802.1H)
NEVER_IP: Final = (
    0x0806, 0x8035, 0x80F3,  # ARP, RARP, AppleTalk ARP
    0x0842, 0x9000, 0x886F,  # Wake on LAN, loopback tests, heartbeats of NLB
    0x88CC, 0x8809, 0x88F5, 0x88F6, 0x22EA, 0x8902, 0x8940, 0x2000,  # LLDP, LACP, MVRP, MMRP, SRP, CFM, ECP, CDP
    0x888E, 0x88C7, 0x8863, 0x890D, 0x893A,  # EAPOL, pre-authentication, discovery of PPPoE, TDLS, IEEE 1905
    0x88F7, 0x22F0, 0x88FB, 0x88E3,  # PTP, AVTP, supervision of PRP, MRP
    0x8892, 0x88A4, 0x88AB, 0x88B8, 0x88B9, 0x88BA, 0x88CD, 0x8819,  # PROFINET, EtherCAT, POWERLINK, IEC 61850, SERCOS
    0x88A2, 0x8906, 0x8914,  # storage: AoE, FCoE, FIP
    0x6002, 0x6003, 0x6004, 0x6007, 0x809B, 0x8137, 0x8138, 0x80D5,  # DEC, AppleTalk, IPX, SNA
    0x2001, 0xFEFE, 0x88E1, 0x8912, 0x88F8,  # NHRP (in GRE), ISO (in HDLC), HomePlug, NC-SI
)  # fmt: skip
"""EtherTypes that never carry IP. Every other one that is not read may."""
# Address families of BSD loopback; the number of IPv6 depends on the system.
_AF_INET, _AF_INET6 = 2, (10, 24, 28, 30)
_NFLOG_PAYLOAD: Final = 9
_MAX_NFLOG_ATTRIBUTES: Final = 32
_MAX_RADIOTAP_WORDS: Final = 32
_PPP_ETHERTYPES: Final = {0x0021: ETHERTYPE_IPV4, 0x0057: ETHERTYPE_IPV6, 0x0281: 0x8847, 0x0283: 0x8848}


IS_UNREAD: Final = np.zeros(PROTOCOL_NUMBERS, bool)
"""Whether packets of a number are not read, and may carry IP."""
IS_UNREAD[_FIRST_ETHERTYPE:] = True
IS_UNREAD[[ETHERTYPE_IPV4, ETHERTYPE_IPV6, *ETHERTYPE_MPLS, ETHERTYPE_PPPOE, *NEVER_IP]] = False


_ETHERTYPE_NAME, _PPP_NAME, _WLAN_NAME = "EtherType", "PPP protocol", "802.11 frames"
PROTOCOL_NAMES: Final = (_ETHERTYPE_NAME, _PPP_NAME, _WLAN_NAME)
"""What names of protocols begin with."""


def protocol_name(number: int) -> str:
    """Return what packets of a number that is not read are, for ``capture_files.packets_not_read``."""
    if number == _UNREAD_WLAN:
        return f"{_WLAN_NAME} that are encrypted, aggregated or fragments"
    if number >= _FIRST_OF_PPP:
        return f"{_PPP_NAME} 0x{number - _FIRST_OF_PPP:04x}"
    return f"{_ETHERTYPE_NAME} 0x{number:04x}"


class NetworkHeaders(NamedTuple):
    """Where the network headers of packets are, which they are (EtherType), and whether the link header is cut off."""

    at: Ints
    protocol: Ints
    cut_off: Bools


LinkDecoder = Callable[[Octets, Ints, Ints], NetworkHeaders]


def find_network_headers(octets: Octets, link: int, start: Ints, end: Ints) -> NetworkHeaders | None:
    """Return the network headers of packets of a link type; None for a link type that is not read.

    ``start`` and ``end`` are those of the captured bytes of each packet in ``octets``.
    """
    decode = _DECODERS.get(link)
    return None if decode is None else decode(octets, start, end)


def _ethernet(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _after_ethertype(octets, start, end, size=14, where=12)


def _after_ethertype(octets: Octets, start: Ints, end: Ints, *, size: int, where: int) -> NetworkHeaders:
    """Read headers of a fixed size with an EtherType at an offset; VLAN tags may follow."""
    cut_off = end - start < size
    protocol = np.where(cut_off, UNKNOWN_ETHERTYPE, u16(gather_bytes(octets, start + where, 2), 0))
    return _skip_tags(octets, NetworkHeaders(start + size, protocol, cut_off), end)


def _skip_tags(octets: Octets, headers: NetworkHeaders, end: Ints) -> NetworkHeaders:
    """Skip LLC headers and tags; ``headers``: those behind the link header. Returns those of what follows."""
    at, protocol, cut_off = headers.at.copy(), headers.protocol.copy(), headers.cut_off
    lengths = np.nonzero((protocol > 0) & (protocol < _FIRST_ETHERTYPE))[0]
    if len(lengths):
        _read_llc(octets, at, end, protocol, lengths)
    for _ in range(_MAX_TAGS):
        size = _TAG_BYTES[protocol]
        rows = np.nonzero(size)[0]
        if not len(rows):
            return NetworkHeaders(at, protocol, cut_off)
        size = size[rows]
        of_cisco = np.nonzero(protocol[rows] == _CISCO_METADATA)[0]
        if len(of_cisco):  # version, length in words of 4 bytes, options, EtherType
            size[of_cisco] = 4 + 4 * gather_bytes(octets, at[rows[of_cisco]] + 1, 1)[:, 0].astype(np.int64)
        short = at[rows] + size > end[rows]
        if short.any():
            cut_off = cut_off.copy()
            cut_off[rows[short]], protocol[rows[short]] = True, UNKNOWN_ETHERTYPE
            rows, size = rows[~short], size[~short]
        at[rows] += size
        protocol[rows] = u16(gather_bytes(octets, at[rows] - 2, 2), 0)
    return NetworkHeaders(at, protocol, cut_off)


def _read_llc(octets: Octets, at: Ints, end: Ints, protocol: Ints, rows: Ints) -> None:
    """Set place and EtherType of frames with a length in its place: what SNAP says, or IP's; else there is none."""
    kept = (protocol[rows] <= _LAST_LENGTH) & (at[rows] + 8 <= end[rows])
    protocol[rows[~kept]] = UNKNOWN_ETHERTYPE
    rows = rows[kept]
    header = gather_bytes(octets, at[rows], 8)
    has_ip = (header[:, 0] == _IP_SAP) & (header[:, 1] == _IP_SAP) & (header[:, 2] == 3)
    has_snap = _is_snap(header) & np.isin(u32(header, 2) & 0xFFFFFF, _SNAP_OUIS)
    protocol[rows] = np.where(has_snap, u16(header, 6), np.where(has_ip, ETHERTYPE_IPV4, UNKNOWN_ETHERTYPE))
    at[rows] += np.where(has_snap, 8, np.where(has_ip, 3, 0))


def _is_snap(header: Octets) -> Bools:
    is_snap: Bools = (header[:, 0] == 0xAA) & (header[:, 1] == 0xAA) & (header[:, 2] == 3)
    return is_snap


def _raw_ip(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return NetworkHeaders(start, ip_ethertypes(octets, start, end), end <= start)


def ip_ethertypes(octets: Octets, at: Ints, end: Ints) -> Ints:
    """Return the EtherTypes of IP headers, by their versions."""
    version = np.where(at < end, gather_bytes(octets, at, 1)[:, 0] >> 4, 0)
    return np.where(version == 4, ETHERTYPE_IPV4, np.where(version == 6, ETHERTYPE_IPV6, UNKNOWN_ETHERTYPE))


def _always(ethertype: int) -> LinkDecoder:
    def decode(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:  # noqa: ARG001 - as other link types
        return NetworkHeaders(start, np.full(len(start), ethertype), np.zeros(len(start), bool))

    return decode


def _loopback(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    """Read BSD loopback headers: an address family, or an EtherType, which some writers use.

    The number has the capturing machine's byte order. It is below 65536, which tells the order.
    """
    cut_off = end - start < 4
    header = gather_bytes(octets, start, 4)
    big, little = u32(header, 0), u32_little(header, 0)
    number = np.where(big < 1 << 16, big, little)
    is_ipv4 = (number == _AF_INET) | (number == ETHERTYPE_IPV4)
    is_ipv6 = np.isin(number, _AF_INET6) | (number == ETHERTYPE_IPV6)
    protocol = np.where(is_ipv4, ETHERTYPE_IPV4, np.where(is_ipv6, ETHERTYPE_IPV6, UNKNOWN_ETHERTYPE))
    return NetworkHeaders(start + 4, np.where(cut_off, UNKNOWN_ETHERTYPE, protocol), cut_off)


def _ppp(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    """Read PPP frames, with HDLC framing or without; Cisco's HDLC, which shares a link type, has EtherTypes."""
    header = gather_bytes(octets, start, 4)
    framed = (header[:, 0] == 0xFF) & (header[:, 1] == 0x03)
    cisco = np.isin(header[:, 0], (0x0F, 0x8F)) & (header[:, 1] == 0)
    at, protocol, cut_off = read_ppp(octets, start + 2 * framed, end)
    at = np.where(cisco, start + 4, at)
    return NetworkHeaders(at, np.where(cisco, u16(header, 2), protocol), cut_off | (end - start < 2))


def read_ppp(octets: Octets, at: Ints, end: Ints) -> NetworkHeaders:
    """Read the protocol of PPP packets (RFC 1661 2): two bytes, or one where it is compressed to an odd number."""
    header = gather_bytes(octets, at, 2)
    compressed = header[:, 0] & 1 == 1
    number = np.where(compressed, header[:, 0].astype(np.int64), u16(header, 0))
    # RFC 1661 2: from 0x8000 on protocols control the link; those below carry packets, some compressed or encrypted.
    protocol = np.where(number < 0x8000, _FIRST_OF_PPP + number, UNKNOWN_ETHERTYPE)
    for name, ethertype in _PPP_ETHERTYPES.items():
        protocol[number == name] = ethertype
    size = np.where(compressed, 1, 2)
    cut_off = at + size > end
    return NetworkHeaders(at + size, np.where(cut_off, UNKNOWN_ETHERTYPE, protocol), cut_off)


def _ppp_with_direction(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _ppp(octets, start + 1, end)


def read_pppoe(octets: Octets, at: Ints, end: Ints) -> tuple[NetworkHeaders, Ints]:
    """Read PPPoE session packets (RFC 2516 4); return the network headers, and the session ids."""
    header = gather_bytes(octets, at, 6)
    is_session = (header[:, 0] == 0x11) & (header[:, 1] == 0)
    found = read_ppp(octets, at + 6, end)
    protocol = np.where(is_session, found.protocol, UNKNOWN_ETHERTYPE)
    return NetworkHeaders(found.at, protocol, found.cut_off & is_session), u16(header, 2)


def _pppoe(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return read_pppoe(octets, start, end)[0]


def _cisco_hdlc(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _after_ethertype(octets, start, end, size=4, where=2)


def _sll(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _after_ethertype(octets, start, end, size=16, where=14)


def _sll2(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _after_ethertype(octets, start, end, size=20, where=0)


def _infiniband(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _after_ethertype(octets, start, end, size=44, where=40)


def _nflog(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    """Read packets of Linux's netfilter log: attributes in the capturing machine's order, mostly little endian."""
    family = gather_bytes(octets, start, 1)[:, 0]
    protocol = np.where(family == _AF_INET, ETHERTYPE_IPV4, np.where(family == 10, ETHERTYPE_IPV6, UNKNOWN_ETHERTYPE))
    at, payload = start + 4, np.full(len(start), -1, np.int64)
    for _ in range(_MAX_NFLOG_ATTRIBUTES):
        rows = np.nonzero((payload < 0) & (at + 4 <= end))[0]
        if not len(rows):
            break
        header = gather_bytes(octets, at[rows], 4)
        size, kind = u16_little(header, 0), u16_little(header, 2)
        swapped = size > end[rows] - at[rows]  # of a big-endian machine
        size, kind = np.where(swapped, u16(header, 0), size), np.where(swapped, u16(header, 2), kind)
        found = (kind == _NFLOG_PAYLOAD) & (size >= 4)
        payload[rows[found]] = at[rows[found]] + 4
        at[rows] = np.where(size >= 4, at[rows] + (size + 3 & ~3), end[rows])
    there = payload >= 0
    return NetworkHeaders(np.where(there, payload, end), np.where(there, protocol, UNKNOWN_ETHERTYPE), end - start < 4)


def _by_inner_link(octets: Octets, start: Ints, end: Ints, size: Ints, link: Ints) -> NetworkHeaders:
    """Read packets whose pseudo-header names the link type of what follows it."""
    at, protocol = end.copy(), np.full(len(start), UNKNOWN_ETHERTYPE, np.int64)
    cut_off = (start + size > end) | (size < 8)
    for each in np.unique(link[~cut_off]).tolist():
        decode = None if each in _WITH_INNER_LINK else _DECODERS.get(each)
        rows = np.nonzero(~cut_off & (link == each))[0]
        if decode is not None:
            at[rows], protocol[rows], cut_off[rows] = decode(octets, (start + size)[rows], end[rows])
    return NetworkHeaders(at, protocol, cut_off)


def _ppi(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    header = gather_bytes(octets, start, 8)
    return _by_inner_link(octets, start, end, u16_little(header, 2), u32_little(header, 4))


def _pktap(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    header = gather_bytes(octets, start, 12)
    return _by_inner_link(octets, start, end, u32_little(header, 0), u32_little(header, 8))


def _radiotap(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    """Skip radiotap headers; their flags tell whether the 802.11 header is padded to 4 bytes."""
    header = gather_bytes(octets, start, 8)
    size, present = u16_little(header, 2), u32_little(header, 4)
    words, more = np.ones(len(start), np.int64), present >> 31
    for _ in range(_MAX_RADIOTAP_WORDS):
        rows = np.nonzero(more)[0]
        if not len(rows):
            break
        following = u32_little(gather_bytes(octets, (start + 4 + 4 * words)[rows], 4), 0)
        words[rows] += 1
        more[rows] = following >> 31
    first = 4 + 4 * words  # offset of the first field
    flags_at = np.where(present & 1, (first + 7 & ~7) + 8, first)  # behind a time of 8 bytes, aligned to 8
    has_flags = (present & 2 != 0) & (flags_at < size)
    flags = np.where(has_flags, gather_bytes(octets, start + flags_at, 1)[:, 0], 0)
    found = _wlan_frames(octets, np.minimum(start + size, end), end, padded=flags & 0x20 != 0)
    return found._replace(cut_off=found.cut_off | (end - start < 8))


def _wlan(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
    return _wlan_frames(octets, start, end, padded=np.zeros(len(start), bool))


def _wlan_frames(octets: Octets, start: Ints, end: Ints, *, padded: Bools) -> NetworkHeaders:
    """Read 802.11 data frames in clear that are neither fragments nor aggregated."""
    header = gather_bytes(octets, start, 24)
    kind, flags = header[:, 0], header[:, 1]
    is_data = (kind & 0x0F == 0x08) & (kind & 0x40 == 0)
    quality = is_data & (kind & 0x80 != 0)
    four_addresses = flags & 0x03 == 0x03
    size = 24 + 6 * four_addresses + np.where(quality, np.where(flags & 0x80, 6, 2), 0)
    aggregated = quality & (gather_bytes(octets, start + 24 + 6 * four_addresses, 1)[:, 0] & 0x80 != 0)
    fragment = (flags & 0x04 != 0) | (header[:, 22] & 0x0F != 0)
    clear = is_data & (flags & 0x40 == 0) & ~aggregated & ~fragment
    at = start + np.where(padded, size + 3 & ~3, size)
    cut_off = clear & (at + 8 > end)
    unread = is_data & ~clear
    header = gather_bytes(octets, at, 8)
    clear &= ~cut_off & _is_snap(header)
    protocol = np.select([clear, unread], [u16(header, 6), _UNREAD_WLAN], UNKNOWN_ETHERTYPE)
    return _skip_tags(octets, NetworkHeaders(at + 8, protocol, cut_off), end)


def _juniper(follows: LinkDecoder) -> LinkDecoder:
    """Return the decoder of a Juniper link type: a magic number, flags and, if they say so, extensions."""

    def decode(octets: Octets, start: Ints, end: Ints) -> NetworkHeaders:
        header = gather_bytes(octets, start, 6)
        is_juniper = u32(header, 0) >> 8 == 0x4D4743
        extended, without_link = header[:, 3] & 0x80 != 0, header[:, 3] & 0x02 != 0
        at = start + np.where(extended, 6 + u16(header, 4), 4)
        found = follows(octets, np.minimum(at, end), end)
        raw = _raw_ip(octets, np.minimum(at + 4, end), end)  # behind the address family
        chosen = (np.where(without_link, two, one) for one, two in zip(found, raw, strict=True))
        after, protocol, cut_off = chosen
        return NetworkHeaders(
            after, np.where(is_juniper, protocol, UNKNOWN_ETHERTYPE), cut_off.astype(bool) & is_juniper
        )

    return decode


_DECODERS: Final[dict[int, LinkDecoder]] = {
    0: _loopback,
    LINK_ETHERNET: _ethernet,
    9: _ppp,
    12: _raw_ip,
    14: _raw_ip,
    50: _ppp,
    51: _pppoe,
    101: _raw_ip,
    104: _cisco_hdlc,
    105: _wlan,
    108: _loopback,
    113: _sll,
    127: _radiotap,
    178: _juniper(_ethernet),
    180: _juniper(_ppp),
    181: _juniper(_cisco_hdlc),
    192: _ppi,
    204: _ppp_with_direction,
    228: _always(ETHERTYPE_IPV4),
    229: _always(ETHERTYPE_IPV6),
    239: _nflog,
    242: _infiniband,
    258: _pktap,
    276: _sll2,
}
_WITH_INNER_LINK: Final = (192, 258)
LINK_TYPES_READ: Final = tuple(_DECODERS)
"""The link types that are read."""
