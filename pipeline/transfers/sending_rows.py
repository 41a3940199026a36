"""Rows of silver.sendings: each user message as it was sent in a session, and what acknowledged it there. No Spark.

Two things are not exactly known from bronze; the worse of what they can be is taken. ``bronze.session_packets`` does
not say whether bytes between two packets are missing, or were captured and are no packet: where the connection lacks
more bytes than its packets do, all of them count as missing. And missing bytes that no place between packets explains
may lie at the end of either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.transfers.acknowledgements import NO_HEADER
from pipeline.transfers.checkpoints import UNKNOWN, SideCheckpoint
from pipeline.transfers.connection_packets import (
    CLIENT,
    SERVER,
    SESSION_ACK,
    SIDES,
    USER_MESSAGE,
    ConnectionPackets,
    SideRows,
    window_sizes,
)
from pipeline.transfers.flow_control import DEFAULT_WINDOW, surely_acknowledged
from pipeline.transfers.holes import NO_PACKET, Holes, find_holes, may_hold_acknowledgement
from pipeline.transfers.packet_numbers import NO_NUMBER, NO_TIME
from schemas.sessions import SENDINGS
from schemas.table import EVENT_DATE, RUN_ID
from udfs.array_types import Bools, Ints
from udfs.sessions.packet_layouts import DECODER_VERSION

SENDINGS_SCHEMA: Final = to_arrow_schema(SENDINGS.struct())
LOSS_COLUMNS: Final = ("connection_id", "client_bytes", "server_bytes", "missing_bytes", "uncaptured_side")
"""The columns of ``bronze.connections`` that rows of silver.sendings are made of."""
_SESSION_HEADER_FLAG: Final = 16  # SH of BaseHeader.Flags
_FAR: Final = 1 << 62
_US_PER_MS: Final = 1000


def sending_rows(found: ConnectionPackets, connections: pa.Table, sessions: pa.Table, run_id: str | None) -> pa.Table:
    """Return a row of silver.sendings for each user message, behind checkpoints.

    ``connections`` has ``LOSS_COLUMNS``, ``sessions`` are the rows of silver.sessions; both of all connections of
    ``found``.
    """
    facts = _SendingFacts.of(found, connections)
    rows = np.flatnonzero(facts.is_message)
    table = found.table.take(pa.array(rows))
    place = pc.index_in(table["connection_id"], sessions["connection_id"].combine_chunks())
    by_client = pc.equal(table["sent_by"], SIDES[CLIENT])
    ends = {
        "sender": (("client", "server"), ("initiator", "acceptor")),
        "receiver": (("server", "client"), ("acceptor", "initiator")),
    }
    columns: dict[str, Any] = {name: table[name] for name in table.column_names if name in SENDINGS.names}
    for end, (addresses, managers) in ends.items():
        columns[f"{end}_address"] = pc.if_else(by_client, *(table[f"{each}_address"] for each in addresses))
        known = (sessions[f"{each}_queue_manager"].take(place) for each in managers)
        columns[f"{end}_queue_manager"] = pc.if_else(by_client, *known)
    columns |= found.number_columns(rows)
    for name, carriers in (("session_acked", found.acknowledged_by), ("stored", found.stored_by)):
        carrier = pa.array(carriers[rows], mask=carriers[rows] == NO_HEADER)
        columns[f"{name}_at"] = found.table["sent_at"].take(carrier)
        columns[f"{name}_by"] = found.table["packet_key"].take(carrier)
        columns[f"{name}_in"] = found.table["capture_id"].take(carrier)
    columns["transmit_ms"] = _transmit_ms(table, sessions["overlapping_captures"].take(place))
    columns |= {name: pa.array(values[rows]) for name, values in facts.columns().items()}
    columns[EVENT_DATE] = pc.floor_temporal(table["sent_at"], unit="day").cast(pa.timestamp("us"))
    none = pa.array(np.zeros(len(rows) + 1, np.int32)), pa.array([], SENDINGS_SCHEMA.field("errors").type.value_type)
    columns["errors"] = pa.ListArray.from_arrays(*none)
    columns["decoder_version"] = pa.repeat(pa.scalar(DECODER_VERSION), len(rows))
    columns[RUN_ID] = pa.repeat(pa.scalar(run_id, pa.string()), len(rows))
    return pa.table([columns[field.name].cast(field.type) for field in SENDINGS_SCHEMA], SENDINGS_SCHEMA)


def _transmit_ms(table: pa.Table, overlaps: pa.ChunkedArray) -> pa.Array:
    """Return how long packets were on the wire, milliseconds; null unless complete, and where that may be negative.

    A packet that no capture alone has whole has times of several: where captures of its connection ran side by side,
    their clocks may differ.
    """
    took = pc.subtract(_micros(table["sent_done_at"]), _micros(table["sent_at"]))
    unclear = pc.or_(pc.less(took, 0), pc.and_(table["put_together"], overlaps.is_valid()))
    return pc.divide(pc.if_else(unclear, None, took).cast(pa.float64()), float(_US_PER_MS))


def _micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


@dataclass(slots=True)
class _SendingFacts:
    """What each packet's side and the other side show of it, an element for each packet of ``found``."""

    found: ConnectionPackets
    is_message: Bools
    sizes: Ints  # WindowSize that packets say, or -1
    surely_acknowledged: Bools
    may_be_missing: Bools
    unnumbered_by_loss: Bools
    handshake_seen: Bools

    @staticmethod
    def of(found: ConnectionPackets, connections: pa.Table) -> _SendingFacts:
        is_message = found.is_kind(USER_MESSAGE) & ~found.kept
        flags = (np.zeros(len(is_message), np.bool_) for _ in range(4))
        facts = _SendingFacts(found, is_message, window_sizes(found), *flags)
        names = connections["connection_id"].to_pylist()
        losses = connections.select(LOSS_COLUMNS).to_pylist()
        of_connection = dict(zip(names, losses, strict=True))
        for place in np.unique(found.packets.side[is_message] // 2).tolist():
            facts._judge(place, of_connection[found.connection_ids[place]])
        return facts

    def columns(self) -> dict[str, Bools]:
        """Return the columns of the table, by name."""
        return {
            "surely_acknowledged": self.surely_acknowledged,
            "acknowledgement_may_be_missing": self.may_be_missing,
            "unnumbered_by_loss": self.unnumbered_by_loss,
            "handshake_seen": self.handshake_seen,
        }

    def _judge(self, place: int, loss: dict[str, int]) -> None:
        """Fill what is known of the messages of one connection."""
        sides = [_Side.of(self.found, place, side) for side in (CLIENT, SERVER)]
        _find_losses(sides, loss)
        checkpoint = self.found.checkpoint(place)
        both = slice(sides[CLIENT].rows.first, sides[SERVER].rows.end)
        largest = self.sizes[both].max(initial=UNKNOWN if checkpoint is None else checkpoint.largest_window)
        window = max(int(largest), DEFAULT_WINDOW)
        for ours, theirs in (sides, sides[::-1]):
            span = slice(ours.rows.first, ours.rows.end)
            messages = np.flatnonzero(self.is_message[span]) + span.start
            if not len(messages):
                continue
            numbered = self.found.numbers.session[span] != NO_NUMBER
            self.surely_acknowledged[span] = self._surely(ours, theirs, window)
            self.may_be_missing[messages] = _may_be_missing(self.found, messages, theirs)
            self.unnumbered_by_loss[span] = ~numbered & ours.has_loss
            every = self.found.rows_of(place, ours.side)
            self.handshake_seen[span] = bool(self.found.packets.establishes[every.first : every.end].any())

    def _surely(self, ours: _Side, theirs: _Side, window: int) -> Bools:
        """Return which messages without a number are surely acknowledged."""
        packets, span = self.found.packets, slice(ours.rows.first, ours.rows.end)
        counted = span.start + np.flatnonzero(packets.counted[span])
        wanted = self.is_message[counted] & (self.found.numbers.session[counted] == NO_NUMBER)
        out = np.zeros(span.stop - span.start, np.bool_)
        if wanted.any():
            stretch, sent_at = self.found.numbers.stretch[counted], packets.sent_at[counted]
            headers, acks = packets.sent_at[theirs.carriers], packets.ack[theirs.carriers]
            out[counted - span.start] = surely_acknowledged(wanted, stretch, sent_at, headers, acks, window)
        return out


@dataclass(slots=True)
class _Side:
    """One side of a connection: its packets, and the bytes that it lacks.

    With a checkpoint ``rows`` begin with the last packet up to it. ``before``: what all up to it come to; ``captured``:
    bytes of packets; ``between``: bytes before and between its packets; ``cut``: missing ones inside of packets, but
    not inside of the last one. ``has_loss``: it has a hole, or bytes that are no packet.
    """

    side: int
    rows: SideRows
    before: SideCheckpoint
    offset: Ints
    length: Ints
    seen: Ints
    held: Ints
    sent_at: Ints
    may_have_header: Bools
    carriers: Ints  # rows of the packets with a SessionHeader
    captured: int
    between: int
    cut: int
    holes: Holes = field(default_factory=lambda: Holes(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    has_loss: bool = False

    @staticmethod
    def of(found: ConnectionPackets, place: int, side: int) -> _Side:
        before, rows = found.side_before(place, side), found.rows_of(place, side)
        kept = int(found.kept[rows.first : rows.end].sum())  # they come first
        rows = SideRows(rows.first + max(kept - 1, 0), rows.end)
        span = slice(rows.first, rows.end)
        part = found.table.slice(rows.first, rows.end - rows.first)
        offset, length = found.packets.offset[span], found.packets.length[span]
        seen, held = _filled(part["seen_bytes"]), _filled(part["packet_bytes"])
        flags = _filled(part["flags"], _SESSION_HEADER_FLAG)
        may_have_header = (flags & _SESSION_HEADER_FLAG != 0) | found.is_kind_in(span, SESSION_ACK)
        sent_at = np.where(found.packets.sent_at[span] == NO_TIME, _FAR, found.packets.sent_at[span])
        carriers = rows.first + np.flatnonzero(found.packets.has_header[span])
        ends = np.concatenate([[0], (offset + length)[:-1]])
        gaps = np.maximum(offset - ends[: len(offset)], 0)
        behind = min(kept, 1)
        return _Side(
            side, rows, before, offset, length, seen, held, sent_at, may_have_header, carriers,
            captured=before.seen_bytes + int(seen[behind:].sum()),
            between=before.bytes_between + int(gaps[behind:].sum()),
            cut=before.bytes_cut + int((length - seen)[:-1].sum()),
        )  # fmt: skip


def _filled(column: pa.ChunkedArray, absent: int = 0) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), absent).combine_chunks(), np.int64)


def gaps_are_holes(found: ConnectionPackets, place: int, loss: Mapping[str, Any]) -> bool:
    """Whether bytes between packets of a connection count as missing; ``loss``: its row with ``LOSS_COLUMNS``."""
    return _missing_outside([_Side.of(found, place, side) for side in (CLIENT, SERVER)], loss) > 0


def _missing_outside(sides: list[_Side], loss: Mapping[str, Any]) -> int:
    """Return how many bytes are missing between packets of both sides, or at an end."""
    return (loss["missing_bytes"] or 0) - sum(side.cut for side in sides)


def _find_losses(sides: list[_Side], loss: Mapping[str, Any]) -> None:
    """Set the holes of both sides of a connection; ``loss``: its row with ``LOSS_COLUMNS``.

    A side of which no packet was captured may have sent anything, whatever was acknowledged.
    """
    stray = [max((loss[f"{SIDES[side.side]}_bytes"] or 0) - side.captured, 0) for side in sides]  # of no packet
    outside = _missing_outside(sides, loss)
    least = sum(max(side.between - extra, 0) for side, extra in zip(sides, stray, strict=True))
    for side, extra in zip(sides, stray, strict=True):
        at_end, between = outside > least or loss["uncaptured_side"] == SIDES[side.side], outside > 0
        seen = side.seen.copy()
        if len(seen) and not at_end:
            seen[-1] = side.length[-1]  # its capture ends inside of the last packet: nothing tells of more bytes
        holes = find_holes(side.offset, side.length, seen, side.held, at_end=at_end)
        behind = holes.begins >= (side.offset[0] if side.before.packets else 0)  # what is not read is no hole
        side.holes = Holes(holes.begins[behind], holes.inside[behind])
        if not between:
            inside = side.holes.inside != NO_PACKET
            side.holes = Holes(side.holes.begins[inside], side.holes.inside[inside])
        earlier = side.before.bytes_cut > 0 or (between and side.before.bytes_between > 0)
        side.has_loss = extra > 0 or len(side.holes) > 0 or earlier


def _may_be_missing(found: ConnectionPackets, messages: Ints, theirs: _Side) -> Bools:
    """Return for each message whether a hole of the other side may hold its session acknowledgement."""
    carriers = found.acknowledged_by[messages]
    header = np.where(carriers == NO_HEADER, NO_HEADER, np.searchsorted(theirs.carriers, carriers))
    return may_hold_acknowledgement(
        found.packets.sent_at[messages], header, theirs.sent_at, theirs.offset, theirs.length,
        theirs.carriers - theirs.rows.first, theirs.may_have_header, theirs.holes,
    )  # fmt: skip
