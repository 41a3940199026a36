"""Checkpoints of long sessions: what their packets up to some time come to. No Spark.

A session stays open for weeks. What its packets up to ``counted_until`` come to is kept, and a later run goes on from
there: it reads the packets behind, and a few *kept* ones. That holds as long as no packet up to ``settled_until``
changes or is added; where one is, all of the session is computed anew. Two steps keep their own: silver's tables of
sessions in silver.session_checkpoints, the findings on sessions in gold.finding_checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import pyarrow as pa

from pipeline.arrow_rows import epoch_day, rows_to_table, table_to_rows
from pipeline.lake.lake import Lake
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE


@dataclass(frozen=True, slots=True)
class NotStored:
    """A recoverable packet of which no SessionHeader said so far that it is stored."""

    packet_key: str
    recoverable_number: int
    sent_at_us: int


@dataclass(frozen=True, slots=True)
class SideCheckpoint:
    """What the packets of one side up to the checkpoint come to. Offsets are bytes in its stream.

    ``end_offset`` lies behind the last of them, ``settled_offset`` behind the last one up to ``settled_until``.
    ``session_number`` and ``recoverable_number`` say how many were sent until then, as packets are numbered,
    ``NONE`` for a side without a packet. From ``messages`` to ``piggybacked``, and ``stored``: as in
    silver.sessions; all counted packets are numbered and acknowledged. ``recoverable_sent``: counted packets with DM =
    1. ``seen_bytes``: captured ones of packets; ``bytes_between``: bytes before and between packets; ``bytes_cut``:
    missing ones inside of packets, but of the last. ``window``: the latest WindowSize. ``in_flight``: when packets that
    were not acknowledged at ``counted_until`` were, microseconds. ``last_ack``: how many of the other side's packets
    its last SessionHeader acknowledges, counted on from its first one; ``highest_ack``: the most that any did.
    """

    packets: int = 0
    end_offset: int = 0
    settled_offset: int = 0
    session_number: int = NONE
    recoverable_number: int = NONE
    messages: int = 0
    bytes: int = 0
    recoverable: int = 0
    transactional: int = 0
    order_acks: int = 0
    final_acks: int = 0
    session_acks: int = 0
    piggybacked: int = 0
    recoverable_sent: int = 0
    stored: int = 0
    seen_bytes: int = 0
    bytes_between: int = 0
    bytes_cut: int = 0
    window: int = NONE
    window_full_us: int = 0
    last_ack: int = NONE
    highest_ack: int = NONE
    in_flight: tuple[int, ...] = ()
    not_stored: tuple[NotStored, ...] = ()

    @property
    def counted(self) -> int:
        """How many counted packets there were; all are numbered and acknowledged."""
        return self.messages + self.order_acks + self.final_acks

    @property
    def numbered(self) -> int:
        """As in silver.sessions."""
        return self.counted

    @property
    def acknowledged(self) -> int:
        """As in silver.sessions."""
        return self.counted

    @property
    def unacknowledged(self) -> int:
        """As in silver.sessions."""
        return 0


@dataclass(frozen=True, slots=True)
class CaptureSpan:
    """From when to when a capture saw packets of a connection, microseconds."""

    capture_id: str
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class KeptPacket:
    """A packet up to the checkpoint that is read again, and when it was sent."""

    packet_key: str
    sent_at_us: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a side may have sent a packet that was not captured: from when to when, and how many bytes it may have.

    ``is_gap``: it lies between packets, and counts if bytes between packets are missing. Else it is a packet of which
    it is not known what it is.
    """

    since_us: int
    until_us: int
    size_bytes: int
    is_gap: bool


@dataclass(frozen=True, slots=True)
class FindingFacts:
    """What findings on packets up to a checkpoint rest on beside these packets, as gold.finding_checkpoints has it."""

    client_whole: bool
    server_whole: bool
    time_out_us: int
    not_packets: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the packets of a connection up to ``counted_until`` come to; times are microseconds.

    It rests on packets up to ``settled_until``. ``last_counted_at``: the latest counted packet of both sides, or
    ``NO_TIME``. ``gaps_are_holes``: bytes between packets count as missing. ``holes``: of each side, up to
    ``counted_until``. ``finding_facts``: of checkpoints of findings.
    """

    connection_id: str
    counted_until: int
    settled_until: int
    last_counted_at: int
    largest_window: int
    gaps_are_holes: bool
    sides: tuple[SideCheckpoint, SideCheckpoint]
    captures: tuple[CaptureSpan, ...]
    kept_packets: tuple[KeptPacket, ...]
    holes: tuple[tuple[Hole, ...], tuple[Hole, ...]] = ((), ())
    finding_facts: FindingFacts | None = None


NO_SIDE: Final = SideCheckpoint()
"""Of a connection without a checkpoint."""


@dataclass(frozen=True, slots=True)
class LaterOfSide:
    """What the packets of one side come to that are not read yet. Offsets are bytes in its stream.

    ``counted``: those of kinds that are numbered. ``seen_bytes``: captured ones of packets; ``bytes_cut``: missing ones
    inside of packets, ``last_cut`` in the last one of the stream. They lie from ``first_offset`` to ``end_offset``.
    """

    packets: int = 0
    counted: int = 0
    handshakes: int = 0
    seen_bytes: int = 0
    bytes_cut: int = 0
    first_offset: int = AFTER_ALL
    end_offset: int = NONE
    last_cut: int = 0

    def with_others(self, other: LaterOfSide) -> LaterOfSide:
        """Return what these packets and others of the side come to."""
        last = max(self, other, key=lambda each: each.end_offset)
        return LaterOfSide(
            self.packets + other.packets, self.counted + other.counted, self.handshakes + other.handshakes,
            self.seen_bytes + other.seen_bytes, self.bytes_cut + other.bytes_cut,
            min(self.first_offset, other.first_offset), last.end_offset, last.last_cut,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaterPackets:
    """What the packets of a connection come to that were sent after ``read_until``, microseconds, and are not read yet.

    ``closed_at``: when the connection closed, or ``AFTER_ALL``.
    """

    read_until: int
    closed_at: int
    sides: tuple[LaterOfSide, LaterOfSide]

    @property
    def packets(self) -> int:
        """How many they are."""
        return sum(side.packets for side in self.sides)

    @property
    def has_handshakes(self) -> bool:
        """Whether some are packets of a handshake."""
        return any(side.handshakes for side in self.sides)


NOTHING_LATER: Final = LaterOfSide()
"""Of a connection that is read to its end."""


def read_checkpoints(lake: Lake, table: Table, names: pa.Array) -> dict[str, Checkpoint]:
    """Return the checkpoints of some connections in a table, by connection_id."""
    found = lake.select(table, "connection_id IN {names}", names=names) if len(names) else pa.table({})
    return checkpoints_by_connection(found)


def checkpoints_by_connection(rows: pa.Table) -> dict[str, Checkpoint]:
    """Return the checkpoints that rows of a table are, by connection_id."""
    return {row["connection_id"]: _from_row(row) for row in table_to_rows(rows)}


def _from_row(row: Mapping[str, Any]) -> Checkpoint:
    sides = [
        SideCheckpoint(
            **{each.name: side[each.name] for each in fields(SideCheckpoint)}
            | {
                "in_flight": tuple(side["in_flight"]),
                "not_stored": tuple(NotStored(**each) for each in side["not_stored"]),
            }
        )
        for side in row["sides"]
    ]
    last = row["last_counted_at"]
    finding_facts = {each.name: row[each.name] for each in fields(FindingFacts) if each.name in row}
    return Checkpoint(
        row["connection_id"], row["counted_until"], row["settled_until"], NO_TIME if last is None else last,
        row["largest_window"], row["gaps_are_holes"], (sides[0], sides[1]),
        tuple(CaptureSpan(**each) for each in row["captures"]),
        tuple(KeptPacket(**each) for each in row["kept_packets"]),
        (_holes_of_side(row, 0), _holes_of_side(row, 1)),
        FindingFacts(**finding_facts) if finding_facts else None,
    )  # fmt: skip


def _holes_of_side(row: Mapping[str, Any], side: int) -> tuple[Hole, ...]:
    found = (each for each in row["holes"] or () if each["side"] == side)
    return tuple(Hole(**{each.name: hole[each.name] for each in fields(Hole)}) for hole in found)


def checkpoint_rows(table: Table, checkpoints: Collection[Checkpoint], run_id: str) -> pa.Table:
    """Return the rows of a table of checkpoints."""
    rows = []
    for each in checkpoints:
        row = asdict(each)
        row |= row.pop("finding_facts") or {}
        row["holes"] = [hole | {"side": side} for side, holes in enumerate(row["holes"]) for hole in holes]
        row["last_counted_at"] = None if each.last_counted_at == NO_TIME else each.last_counted_at
        rows.append(row | {EVENT_DATE: epoch_day(each.counted_until), RUN_ID: run_id})
    return rows_to_table(rows, table.schema())
