"""What rules on the binary protocol look at: packets with their decoded fields, as arrays; sessions. No Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.transfers.checkpoints import SideCheckpoint
from pipeline.transfers.connection_packets import CLIENT, SERVER, SIDES, ConnectionPackets, SideRows
from pipeline.transfers.side_losses import server_began_unseen
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE


class PacketViolation(NamedTuple):
    """A packet that breaks a rule: its row in ``PacketFacts.found``, what was seen, and the rows that prove it.

    ``source`` is the document and section, where the packet's kind decides which one.
    """

    row: int
    actual: str
    evidence: tuple[int, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PacketFacts:
    """All packets of some connections. Arrays have one value per row of ``found``.

    ``fields``: numbers by name, ``NONE`` where not seen: of all packets ``flags``, ``packet_size``,
    ``time_to_reach_queue``, ``user_flags``; of internal ones ``packet_type``, ``refused``; of EstablishConnection
    ``release``, ``padding_is_5a``, ``uptime_ms``, ``pinged``; of ConnectionParameters ``recoverable_ack_timeout_ms``,
    ``ack_timeout_ms``; of order and final acks ``requested``, ``body_type``, ``body_bytes``,
    ``number``, ``previous``, ``class``. ``texts``: columns of GUIDs by name, ``client_guid`` and ``server_guid`` of
    EstablishConnection. ``messages``: rows of silver.messages by row of ``found``; ``message_columns`` are these in
    the same order, named as in calls that return messages.
    """

    found: ConnectionPackets
    fields: Mapping[str, Ints]
    texts: Mapping[str, pa.Array]
    messages: Mapping[int, Mapping[str, Any]]
    message_columns: AssociationCallColumns

    def seen(self, name: str) -> Bools:
        """Return the rows in which a field was seen."""
        return np.asarray(self.fields[name] != NONE, np.bool_)

    def is_kind(self, *kinds: str) -> Bools:
        """Return the rows of some kinds."""
        return self.found.is_kind(*kinds)


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """One connection of ``facts``: its row of bronze.connections, its sides, and until when it can be evaluated.

    ``whole``: by side, whether it was captured from its SYN without a hole or quarantine. ``session`` is its row of
    silver.sessions. ``not_packets``: quarantine_key and time of its runs of bytes that are no packet, in step. Times
    are microseconds. ``place`` is its place in ``facts.found.connection_ids``: with a checkpoint the packets are those
    behind it and a few kept ones, and ``before`` says what all up to it come to; with later packets, those before them.
    """

    facts: PacketFacts
    connection: Mapping[str, Any]
    session: Mapping[str, Any]
    sides: tuple[SideRows, SideRows]
    whole: tuple[bool, bool]
    capture_end: int
    not_packets: Sequence[tuple[str, int]] = ()
    place: int = 0

    def before(self, side: int) -> SideCheckpoint:
        """Return what the packets of a side up to the checkpoint come to; without one there are none."""
        return self.facts.found.side_before(self.place, side)

    def sent(self, side: int) -> int:
        """Return how many counted packets of a side were captured."""
        found = self.facts.found
        read = self.before(side).counted + int(found.packets.counted[self.rows(side)].sum())
        return read + found.side_later(self.place, side).counted

    def ordinals(self, side: int) -> Ints:
        """Return which packet of its side each of a side's is, from 1; 0 for kept ones where that is not known."""
        rows, before = self.rows(side), self.before(side).packets
        kept = int(self.facts.found.kept[rows].sum())
        return np.concatenate(
            [np.arange(1, kept + 1) if kept == before else np.zeros(kept, np.int64),
             np.arange(before + 1, before + 1 + len(rows) - kept)]
        )  # fmt: skip

    def first(self, side: int, kind: str) -> int | None:
        """Return the row of the first packet of a kind that a side sent."""
        rows = self.rows(side, kind)
        return int(rows[0]) if len(rows) else None

    def rows(self, side: int, *kinds: str) -> Ints:
        """Return the rows of a side's packets of some kinds, of all without any, in stream order."""
        first, end = self.sides[side]
        if not kinds:
            return np.arange(first, end)
        return first + np.flatnonzero(self.facts.found.is_kind_in(slice(first, end), *kinds))

    def value(self, name: str, row: int | None) -> int | None:
        """Return a field of a packet; None where it was not seen, or without a packet."""
        found = NONE if row is None else int(self.facts.fields[name][row])
        return None if found == NONE else found

    def text(self, name: str, row: int | None) -> str | None:
        """Return a GUID of a packet; None likewise."""
        return None if row is None else self.facts.texts[name][row].as_py()


def whole_sides(
    found: ConnectionPackets, place: int, connection: Mapping[str, Any], seen_bytes: Ints
) -> tuple[bool, bool]:
    """Return for each side whether it was captured from its SYN on, without a hole, and all of it is packets.

    Where ``bronze.connections`` counts missing bytes of both sides together (in lakes made before), what does not lie
    between or inside packets of the one side may be missing at the end of the other. ``connection`` has
    ``side_losses.LOSS_COLUMNS``; ``place``: its place in ``found.connection_ids``.
    """
    bytes_of = (connection["client_bytes"] or 0, connection["server_bytes"] or 0)
    clean, holes = [], []
    for side in (CLIENT, SERVER):
        rows = slice(*found.rows_of(place, side))
        offset, length = found.packets.offset[rows], found.packets.length[rows]
        later = found.side_later(place, side)
        seen = found.side_before(place, side).seen_bytes + int(seen_bytes[rows][~found.kept[rows]].sum())
        seen += later.seen_bytes
        span = max(int(offset[-1] + length[-1]) if len(offset) else 0, later.end_offset)
        clean.append(seen == bytes_of[side] == span)
        holes.append(max(span - bytes_of[side], 0))
    whole = []
    began_unseen = server_began_unseen(found, place, connection)
    for side in (CLIENT, SERVER):
        own = connection[f"{SIDES[side]}_missing_bytes"]
        missing = (connection["missing_bytes"] or 0) - holes[1 - side] if own is None else own
        known = connection["syn_seen"] and connection["uncaptured_side"] != SIDES[side]
        lacks_beginning = side == SERVER and began_unseen
        whole.append(bool(known) and not lacks_beginning and clean[side] and missing <= 0)
    return whole[CLIENT], whole[SERVER]
