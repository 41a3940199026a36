"""Counts packets whose network protocol is not read and may carry IP, by its number, and looks for TCP behind it."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from udfs.array_types import Bools, Octets
from udfs.tcp.link_layers import PROTOCOL_NAMES, protocol_name
from udfs.tcp.octets import gather_bytes, u16
from udfs.tcp.tunnels import Packets

WITH_TCP: Final = ", with TCP behind it"
"""Ends what is said of packets behind whose unknown header an IP header with TCP stands."""
_SEARCHED_BYTES: Final = 32  # behind the number, where an IP header may begin
_IP_BYTES: Final = 20  # of an IP header that are looked at
_MAX_PADDING_BYTES: Final = 64  # behind an IP packet: of the smallest frame, and trailers
_TCP: Final = 6
_LITTLE: Final = 0.01  # of a capture's packets: so many of an unknown protocol are nothing to warn of


def may_hide_msmq(what: str, packets: int, *, of: int) -> bool:
    """Whether packets that are not read (``capture_files.packets_not_read``) are worth a warning, ``of`` all packets.

    Those of unknown protocols are where they are many, or have TCP in them; all others always are.
    """
    return packets > _LITTLE * of or what.endswith(WITH_TCP) or not what.startswith(PROTOCOL_NAMES)


class UnreadPackets:
    """Counts of the packets of one capture that are not read, by what they are."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, octets: Octets, packets: Packets) -> None:
        """Count packets; each is where what its number says begins."""
        has_tcp = _has_tcp_behind(octets, packets)
        for number in np.unique(packets.protocol).tolist():
            ours = packets.protocol == number
            for rows, suffix in ((ours & ~has_tcp, ""), (ours & has_tcp, WITH_TCP)):
                if rows.any():
                    self.counts[protocol_name(number) + suffix] += int(packets.weight[rows].sum())


def _has_tcp_behind(octets: Octets, packets: Packets) -> Bools:
    """Whether an IP header of TCP begins within 32 bytes, whose length is that of what follows it."""
    window = gather_bytes(octets, packets.at, _SEARCHED_BYTES + _IP_BYTES)
    found = np.zeros(len(packets.at), bool)
    for place in range(_SEARCHED_BYTES + 1):
        header = window[:, place:]
        left = packets.stop - packets.at - place
        four = (header[:, 0] >> 4 == 4) & (header[:, 0] & 0x0F >= 5) & (header[:, 9] == _TCP)
        six = (header[:, 0] >> 4 == 6) & (header[:, 6] == _TCP)
        size = np.where(four, u16(header, 2), u16(header, 4) + 40)
        fits = (size >= 40) & (size <= left) & (size + _MAX_PADDING_BYTES >= left)
        found |= (four | six) & fits & (packets.at + place + _IP_BYTES <= packets.end)
    return found
