"""Rows of ``bronze.session_packets`` as arrays by connection and side, with numbers and acknowledgements. No Spark."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.decode_packets import PACKET_NUMBERS, USER_MESSAGE
from pipeline.transfers.checkpoints import (
    NO_SIDE,
    NOTHING_LATER,
    Checkpoint,
    LaterOfSide,
    LaterPackets,
    NotStored,
    SideCheckpoint,
)
from pipeline.transfers.numbers.flow_control import times_of
from pipeline.transfers.numbers.packet_clocks import ordered_times
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER, CountBefore, PacketNumbers, SidePackets, number_packets
from pipeline.transfers.numbers.session_acknowledgements import SessionHeaders, acknowledged_by, stored_by
from udfs.array_types import Bools, Ints
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE
from udfs.columns.arrays import from_ints, is_one_of, one_array, to_flags, to_ints, to_times
from udfs.columns.codes import codes_and_values
from udfs.messages.header_layouts import USER_FLAG_TH
from udfs.sessions.fixed_records import FixedRecords
from udfs.sessions.handshake_packets import connection_parameters_columns
from udfs.sessions.packet_rows import SESSION_HEADER_TYPE
from udfs.times import SECOND_US

CLIENT, SERVER = 0, 1
SIDES: Final = ("client", "server")
ORDER_ACK, FINAL_ACK, SESSION_ACK = "order_ack", "final_ack", "session_ack"
ESTABLISH_CONNECTION, CONNECTION_PARAMETERS = "establish_connection", "connection_parameters"
HANDSHAKE_KINDS: Final = (ESTABLISH_CONNECTION, CONNECTION_PARAMETERS)
COUNTED_KINDS: Final = (USER_MESSAGE, ORDER_ACK, FINAL_ACK)
_USER_FLAGS: Final = np.dtype([("Flags", "<u4")])
_LEAST_APART_US: Final = SECOND_US
_DELIVERY_SHIFT: Final = 5  # DM of UserHeader.Flags
Made = TypeVar("Made")
USER_FLAGS_SQL: Final = "substring(packet, 61, 4)"  # UserHeader.Flags, at offset 60 of a packet with IN = 0


class SideRows(NamedTuple):
    """The rows of one side of one connection: ``first`` to ``end``, without ``end``."""

    first: int
    end: int


class NowStored(NamedTuple):
    """A packet up to a checkpoint that a later SessionHeader says is stored, and the row of the packet that does."""

    packet: NotStored
    carrier: int


@dataclass(slots=True)
class ConnectionPackets:
    """The packets of some connections: ``table`` sorted by connection, side and stream offset, and arrays beside it.

    These are all packets of a connection; or, where it has a checkpoint, those behind the checkpoint and its few *kept*
    ones. Kept packets are not counted again: they have no numbers, and ``packets.counted`` is False. Of a connection
    with *later* packets, which are not read yet, those are there that were sent before; rows of tables are made of
    packets ``to_write`` (``end_at``).

    ``connection_ids`` are sorted; side 2 k is the client's, 2 k + 1 the server's of connection k. ``transactional``: TH
    of counted packets, False where not seen. ``acknowledged_by``: the row of the packet whose SessionHeader
    acknowledged a numbered packet first, or ``NONE``; ``acknowledged_at``: its time, or ``AFTER_ALL``; ``stored_by``:
    the row of the first whose SessionHeader says that the packet is on disk. ``shown_at``: the times of the captured
    packets, as tables have them, microseconds or ``NO_TIME``; ``packets.sent_at`` are on one clock (``packet_clocks``).
    """

    table: pa.Table
    connection_ids: Sequence[str]
    packets: SidePackets
    numbers: PacketNumbers
    transactional: Bools
    shown_at: Ints
    acknowledged_by: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    acknowledged_at: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    stored_by: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    later: Mapping[str, LaterPackets] = field(default_factory=dict)
    kept: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    to_write: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    now_stored: dict[int, list[NowStored]] = field(default_factory=dict)  # by number of the side
    _bounds: list[int] = field(init=False)  # of the rows of the sides
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the rows of each side."""
        sides = np.arange(2 * len(self.connection_ids) + 1)
        self._bounds = np.searchsorted(self.packets.side, sides).tolist()

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what ``make`` returns; it is called once for a key."""
        if key not in self._made:
            self._made[key] = make()
        return cast("Made", self._made[key])

    def ints(self, column: str, absent: int = 0) -> Ints:
        """Return a column of ``table`` as numbers; ``absent`` for null."""
        return self.once((column, absent), lambda: to_ints(self.table[column], absent))

    def codes(self, column: str) -> tuple[Ints, list[str]]:
        """Return the codes of a column of texts of ``table``, and the texts in the order of their codes."""
        return self.once(column, lambda: codes_and_values(self.table[column]))

    def checkpoint(self, connection: int) -> Checkpoint | None:
        """Return the checkpoint of a connection, by its place in ``connection_ids``; None where all was read."""
        return self.checkpoints.get(self.connection_ids[connection])

    def side_before(self, connection: int, side: int) -> SideCheckpoint:
        """Return what the packets of a side up to the checkpoint come to."""
        checkpoint = self.checkpoint(connection)
        return NO_SIDE if checkpoint is None else checkpoint.sides[side]

    def later_of(self, connection: int) -> LaterPackets | None:
        """Return what is not read yet of a connection, by its place in ``connection_ids``; None where all is."""
        return self.later.get(self.connection_ids[connection])

    def side_later(self, connection: int, side: int) -> LaterOfSide:
        """Return what is not read yet of a side."""
        later = self.later_of(connection)
        return NOTHING_LATER if later is None else later.sides[side]

    def end_at(self, checkpoints: Mapping[str, Checkpoint]) -> dict[str, int]:
        """Write of connections with later packets only what new checkpoints of them count; return until when, us."""
        until: dict[str, int] = {}
        for name in self.later:
            place = bisect_left(self.connection_ids, name)
            rows = slice(self.rows_of(place, CLIENT).first, self.rows_of(place, SERVER).end)
            made = checkpoints.get(name)
            counted_until, settled_until = (made.counted_until, made.settled_until) if made else (NO_TIME, NO_TIME)
            until[name] = counted_until
            self.to_write[rows] &= self.packets.sent_at[rows] <= counted_until
            for side in (2 * place + CLIENT, 2 * place + SERVER):
                stored = self.now_stored.get(side, [])
                self.now_stored[side] = [each for each in stored if self.packets.sent_at[each.carrier] <= settled_until]
        return until

    def rows_of(self, connection: int, side: int) -> SideRows:
        """Return the rows of a side of a connection, by its place in ``connection_ids``."""
        number = 2 * connection + side
        return SideRows(self._bounds[number], self._bounds[number + 1])

    def captures_of(self, connection: int) -> set[str]:
        """Return the captures that packets of a connection were read from, by its place in ``connection_ids``."""
        checkpoint = self.checkpoint(connection)
        first, end = self.rows_of(connection, CLIENT).first, self.rows_of(connection, SERVER).end
        codes, names = self.codes("capture_id")
        read = (names[each] for each in np.unique(codes[first:end]).tolist() if each != NONE)
        return {*read, *(each.capture_id for each in (checkpoint.captures if checkpoint else ()))}

    def clocks_differ(self, connection: int) -> bool:
        """Whether the packets of a connection have times of several clocks."""
        both = slice(self.rows_of(connection, CLIENT).first, self.rows_of(connection, SERVER).end)
        return bool((self.packets.sent_at[both] != self.shown_at[both]).any())

    def captures_apart_us(self, connection: int) -> int:
        """Return by how much the times of one packet of a connection differ between its captures, microseconds.

        That is the most of all its packets; 0 below a second, and where no packet was captured twice.
        """
        if "sightings" not in self.table.column_names:
            return 0
        first, end = self.rows_of(connection, CLIENT).first, self.rows_of(connection, SERVER).end
        counts = self.once("counts", lambda: to_ints(pc.list_value_length(self.table["sightings"])))
        rows = first + np.flatnonzero(counts[first:end])
        if not len(rows):
            return 0
        seen = self.table["sightings"].take(pa.array(rows)).combine_chunks()
        times = to_times(seen.flatten().field("sent_at"))
        ends = np.cumsum(to_ints(pc.list_value_length(seen)))
        starts = np.append(0, ends[:-1])
        latest = np.maximum.reduceat(times, starts)
        earliest = np.minimum.reduceat(np.where(times == NO_TIME, AFTER_ALL, times), starts)
        apart = int((latest - np.minimum(earliest, latest)).max())
        return apart if apart >= _LEAST_APART_US else 0

    def is_kind(self, *kinds: str) -> Bools:
        """Return which packets are of some kinds."""
        return self.is_kind_in(slice(0, len(self.packets)), *kinds)

    def is_kind_in(self, rows: slice, *kinds: str) -> Bools:
        """Return which packets of a slice of rows are of some kinds."""
        codes, names = self.codes("kind")
        wanted = np.array([*(name in kinds for name in names), False])  # NONE is the last one
        return wanted[codes[rows]]

    def number_columns(self, rows: Ints) -> dict[str, pa.Array]:
        """Return ``session_number`` and ``recoverable_number`` of some rows, null where not known."""
        found = (("session_number", self.numbers.session), ("recoverable_number", self.numbers.recoverable))
        return {name: from_ints(each[rows], NO_NUMBER) for name, each in found}

    def numbers_of(self, rows: Ints) -> pa.Table:
        """Return the numbers of some rows, ``PACKET_NUMBERS``."""
        keys = self.table["packet_key"].take(pa.array(rows))
        return pa.table({"packet_key": keys, **self.number_columns(rows)}, PACKET_NUMBERS)


def arrange_packets(
    packets: pa.Table,
    connection_ids: Sequence[str],
    expire_us: int,
    checkpoints: Mapping[str, Checkpoint] = MappingProxyType({}),
    steps: ClockSteps = NO_STEPS,
) -> ConnectionPackets:
    """Sort packets, number them, and find what acknowledges them.

    ``packets`` are all of some connections, with the columns of ``bronze.session_packets`` that follow: connection_id,
    sent_by, stream_offset, length_bytes, sent_at, kind, session_header; and ``user_flags`` (UserHeader.Flags as up to 4
    bytes), ``delivery`` and ``transactional`` (as decoded before, used where there are no flags). ``connection_ids``:
    theirs, and others without packets. ``expire_us`` is the setting pending.expire. Of connections with a checkpoint
    ``packets`` has those behind it, and the kept ones. ``steps``: where clocks of their captures were set.
    """
    names = sorted(connection_ids)
    place = to_ints(pc.index_in(packets["connection_id"], pa.array(names, pa.string())))
    side = 2 * place + to_flags(pc.equal(packets["sent_by"], SIDES[SERVER]))
    order = np.lexsort((to_ints(packets["stream_offset"]), side))
    table, side = packets.take(pa.array(order)), side[order]
    found = _side_packets(table, side, steps)
    kept = _is_kept(found, names, checkpoints)
    found = replace(found, counted=found.counted & ~kept)
    numbers = _numbered(found, kept, _counts_before(names, checkpoints), expire_us)
    out = ConnectionPackets(table, names, found, numbers, _is_transactional(table), to_times(table["sent_at"]))
    out.checkpoints, out.kept, out.to_write = checkpoints, kept, ~kept
    out.acknowledged_by = np.full(len(found), NONE, np.int64)
    out.stored_by = np.full(len(found), NONE, np.int64)
    for connection in np.unique(side // 2).tolist():
        _acknowledge(out, 2 * connection + CLIENT)
        _acknowledge(out, 2 * connection + SERVER)
    out.acknowledged_at = times_of(out.acknowledged_by, found.sent_at)
    return out


def _is_kept(packets: SidePackets, names: Sequence[str], checkpoints: Mapping[str, Checkpoint]) -> Bools:
    """Return which packets a checkpoint has counted already."""
    ends = [checkpoints[name].counted_until if name in checkpoints else NO_TIME for name in names]
    until = np.array(ends, np.int64)[packets.side // 2]
    kept: Bools = (until != NO_TIME) & (packets.sent_at <= until)
    return kept


def _counts_before(names: Sequence[str], checkpoints: Mapping[str, Checkpoint]) -> CountBefore | None:
    """Return how many packets each side had sent up to its checkpoint; None without a checkpoint."""
    if not checkpoints:
        return None
    sides = [side for name in names for side in (checkpoints[name].sides if name in checkpoints else (NO_SIDE,) * 2)]
    numbers = ((side.end_offset, side.session_number, side.recoverable_number) for side in sides)
    return CountBefore(*np.array([*numbers], np.int64).reshape(-1, 3).T)


def _numbered(packets: SidePackets, kept: Bools, before: CountBefore | None, expire_us: int) -> PacketNumbers:
    """Number packets; kept ones have no number, and are no anchors: what they say is in the checkpoint."""
    if not kept.any():
        return number_packets(packets, expire_us, before)
    behind = np.flatnonzero(~kept)
    numbers = number_packets(
        SidePackets(*(getattr(packets, each.name)[behind] for each in fields(SidePackets))), expire_us, before
    )
    out = PacketNumbers(*(np.full(len(packets), NO_NUMBER, np.int64) for _ in fields(PacketNumbers)))
    for each in fields(PacketNumbers):
        getattr(out, each.name)[behind] = getattr(numbers, each.name)
    return out


def _side_packets(table: pa.Table, side: Ints, steps: ClockSteps) -> SidePackets:
    header = one_array(table["session_header"])
    fields = [to_ints(header.field(each.name)) for each in SESSION_HEADER_TYPE]
    has_header = np.asarray(header.is_valid())
    counted = is_one_of(table["kind"], COUNTED_KINDS)
    establishes = to_flags(pc.equal(table["kind"], ESTABLISH_CONNECTION))
    sent_at = ordered_times(table, side, to_times(table["sent_at"]), steps)
    return SidePackets(
        side, to_ints(table["stream_offset"]), to_ints(table["length_bytes"]), sent_at, counted,
        _recoverable(table), establishes, has_header, *(np.where(has_header, each, 0) for each in fields),
    )  # fmt: skip


def _user_flags(table: pa.Table) -> tuple[Ints, Bools]:
    """Return UserHeader.Flags, and where they were seen."""
    found = FixedRecords.read(one_array(table["user_flags"]), _USER_FLAGS)
    return found.records["Flags"].astype(np.int64), found.has("Flags")


def _recoverable(table: pa.Table) -> Ints:
    """Return 1 for packets with DM = 1, 0 for others, ``NONE`` where that was not seen."""
    flags, seen = _user_flags(table)
    decoded = to_ints(pc.equal(table["delivery"], "recoverable"), NONE)
    return np.where(seen, ((flags >> _DELIVERY_SHIFT) & 3 == 1).astype(np.int64), decoded)


def _is_transactional(table: pa.Table) -> Bools:
    flags, seen = _user_flags(table)
    return np.where(seen, flags & USER_FLAG_TH != 0, to_flags(table["transactional"]))


def headers_of(packets: SidePackets, rows: SideRows) -> tuple[SessionHeaders, Ints]:
    """Return the SessionHeaders of a side, and the rows of the packets that carry them."""
    carriers = rows.first + np.flatnonzero(packets.has_header[rows.first : rows.end])
    found = SessionHeaders(
        packets.sent_at[carriers], packets.ack[carriers], packets.recoverable_ack[carriers],
        packets.recoverable_ack_flags[carriers],
    )  # fmt: skip
    return found, carriers


def _acknowledge(found: ConnectionPackets, side: int) -> None:
    """Set what the headers of the other side acknowledge of one side's packets; sides by their numbers."""
    ours, theirs = (found.rows_of(each // 2, each % 2) for each in (side, side ^ 1))
    headers, carriers = headers_of(found.packets, theirs)
    if not len(headers):
        return
    carrier_of = np.append(carriers, NONE)  # NONE is the last one
    span = slice(ours.first, ours.end)
    numbered = ours.first + np.flatnonzero(found.numbers.session[span] != NO_NUMBER)
    by = acknowledged_by(found.numbers.session[numbered], found.packets.sent_at[numbered], headers)
    found.acknowledged_by[numbered] = carrier_of[by]
    numbered = ours.first + np.flatnonzero(found.numbers.recoverable[span] != NO_NUMBER)
    waiting = found.side_before(side // 2, side % 2).not_stored
    numbers = [np.array([each.recoverable_number for each in waiting], np.int64), found.numbers.recoverable[numbered]]
    sent_at = [np.array([each.sent_at_us for each in waiting], np.int64), found.packets.sent_at[numbered]]
    by = stored_by(np.concatenate(numbers), np.concatenate(sent_at), headers)
    found.stored_by[numbered] = carrier_of[by[len(waiting) :]]
    late = np.flatnonzero(by[: len(waiting)] != NONE).tolist()
    found.now_stored[side] = [NowStored(waiting[each], int(carrier_of[by[each]])) for each in late]


def window_sizes(found: ConnectionPackets) -> Ints:
    """Return the WindowSize that each packet says, of ConnectionParameters or a SessionHeader; -1 in all others.

    They are found once.
    """
    return found.once("windows", lambda: _find_window_sizes(found))


def _find_window_sizes(found: ConnectionPackets) -> Ints:
    sizes = np.where(found.packets.has_header, found.packets.window, NONE)
    rows = np.flatnonzero(found.is_kind(CONNECTION_PARAMETERS))
    packets = one_array(found.table["packet"].take(pa.array(rows, pa.int64())))
    sizes[rows] = to_ints(connection_parameters_columns(packets)["window_size"], NONE)
    return sizes


def first_rows(found: ConnectionPackets, kind: str, side: int) -> dict[int, int]:
    """Return the row of the first packet of a kind that a side sent, by the connection's place."""
    rows = np.flatnonzero(found.is_kind(kind) & (found.packets.side % 2 == side))
    return dict(reversed([*_pairs(found.packets.side[rows] // 2, rows)]))


def _pairs(keys: Ints, rows: Ints) -> Iterator[tuple[Any, Any]]:
    return zip(keys.tolist(), rows.tolist(), strict=True)
