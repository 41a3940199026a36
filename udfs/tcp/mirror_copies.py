"""Packets that a capture shows more than once: in several tunnels, or inside of one and plain.

A mirror may see a packet at each machine that it passes. A copy has the sequence number, acknowledgement, flags and
length of a packet of another tunnel; what is sent again comes once more in the same one. Copies are left out.

Connections with equal addresses and ports in different tunnels are one if their sequence numbers fit, else of two
tenants, which are told apart by the identifiers of the tunnels.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Ints
from udfs.columns.groups import group_bounds
from udfs.tcp.connections import sequence_difference
from udfs.tcp.four_tuples import PackedEndpoint, group_by_four_tuple, packed_endpoints
from udfs.tcp.packet_decoder import SYN, TcpSegments

_MAX_FOUR_TUPLES: Final = 1 << 13  # known at once, those that were seen last
_MAX_RECENT: Final = 1 << 9  # packets of a conversation that copies are looked for among
_MAX_DISTANCE: Final = 1 << 20  # bytes between packets of one connection that come one after the other
_LAST_LOOKED_AT: Final = 64  # packets of a connection in one tunnel, at the end of a block


class _Packet(NamedTuple):
    """What copies of a packet have in common."""

    side: int
    sequence: int
    acknowledgement: int
    flags: int
    length: int


@dataclass(slots=True)
class _Conversation:
    """Connections of one four-tuple whose numbers fit, in one tunnel or several."""

    identifier: int
    syn: dict[int, int] = field(default_factory=dict)  # by side
    last: dict[int, int] = field(default_factory=dict)  # sequence numbers, by side
    recent: OrderedDict[_Packet, dict[int, int]] = field(default_factory=OrderedDict)  # how often in each tunnel

    def fits(self, packet: _Packet) -> bool:
        """Whether a packet's numbers are those of this conversation."""
        if packet.flags & SYN:
            return self.syn.get(packet.side) == packet.sequence
        near = [
            abs(sequence_difference(number - known)) < _MAX_DISTANCE
            for side, number in ((packet.side, packet.sequence), (packet.side ^ 1, packet.acknowledgement))
            if (known := self.last.get(side)) is not None
        ]
        return bool(near) and all(near)

    def add(self, packet: _Packet, tunnel: int) -> bool:
        """Add a packet; return whether it is a copy of one that came through another tunnel."""
        if packet.flags & SYN:
            self.syn[packet.side] = packet.sequence
        self.last[packet.side] = packet.sequence
        seen = self.recent.setdefault(packet, {})
        if len(self.recent) > _MAX_RECENT:
            self.recent.popitem(last=False)
        seen[tunnel] = seen.get(tunnel, 0) + 1
        return any(count >= seen[tunnel] for other, count in seen.items() if other != tunnel)


@dataclass(slots=True)
class _FourTuple:
    """The conversations of a four-tuple, and the one that each tunnel shows now."""

    conversations: list[_Conversation] = field(default_factory=list)
    of_tunnel: dict[int, _Conversation] = field(default_factory=dict)

    def forget_recent(self) -> None:
        """Forget the packets that copies are looked for among."""
        for conversation in self.conversations:
            conversation.recent.clear()

    def conversation(self, packet: _Packet, tunnel: int, identifier: int) -> _Conversation:
        """Return the conversation that a packet belongs to."""
        known = self.of_tunnel.get(tunnel)
        if known is None or (packet.flags & SYN and packet.side in known.syn and not known.fits(packet)):
            found = next((each for each in self.conversations if each.fits(packet)), None)
            if found is None:
                found = _Conversation(identifier)
                self.conversations = [*self.conversations[-7:], found]
            known = self.of_tunnel[tunnel] = found
        return known


class MirrorCopies:
    """Finds the copies among the packets of one capture, block after block."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[PackedEndpoint, PackedEndpoint], _FourTuple] = OrderedDict()

    def leave_out(self, s: TcpSegments) -> TcpSegments:
        """Return a block's segments without copies, with the identifiers that tell their connections apart."""
        if not s.tunnel.any() and not self._known:
            return s
        pair, side, first = group_by_four_tuple(s, by_tunnel=False)
        order = np.argsort(pair, kind="stable")
        bounds = group_bounds(pair[order], len(first))
        copies, identifiers = np.zeros(len(pair), bool), s.tunnel_identifier.copy()
        for group in np.argsort(first, kind="stable").tolist():
            rows = order[bounds[group] : bounds[group + 1]]
            one, two = packed_endpoints(s, int(rows[0]))
            name = (one, two) if one < two else (two, one)
            if name not in self._known and not s.tunnel[rows].any():
                continue
            known = self._known.setdefault(name, _FourTuple())
            self._known.move_to_end(name)
            if len(self._known) > _MAX_FOUR_TUPLES:
                self._known.popitem(last=False)
            flip = int(side[rows[0]]) ^ int(one > two)
            tunnels = {*np.unique(s.tunnel[rows]).tolist(), *known.of_tunnel}
            # In one tunnel there are no copies: of the last packets there may be some in the next block.
            looked_at = rows if len(tunnels) > 1 else _first_and_last(s, rows)
            if len(tunnels) == 1:
                known.forget_recent()
            for row in looked_at.tolist():
                numbers = s.sequence[row], s.acknowledgement[row], s.tcp_flags[row], s.payload_length[row]
                packet = _Packet(int(side[row]) ^ flip, *map(int, numbers))
                conversation = known.conversation(packet, int(s.tunnel[row]), int(s.tunnel_identifier[row]))
                copies[row] = conversation.add(packet, int(s.tunnel[row]))
                identifiers[row] = conversation.identifier
            if len(tunnels) == 1:
                identifiers[rows] = known.conversations[-1].identifier
        return replace(s, tunnel_identifier=identifiers).take(np.nonzero(~copies)[0])


def _first_and_last(s: TcpSegments, rows: Ints) -> Ints:
    """Return the first of some segments, those with a SYN, and the last ones."""
    opening = rows[(s.tcp_flags[rows] & SYN) != 0]
    return np.unique(np.concatenate([rows[:1], opening, rows[-_LAST_LOOKED_AT:]]))
