"""Packets that several captures saw: one row for each, and which captures it was made of.

Where one capture alone has a packet whole, the row's place and times are that capture's, of several the one with the
earliest first byte. Only where none has it whole, the row is put together from the bytes of all.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from udfs.columns.absent import NO_TIME
from udfs.columns.tuples import iter_tuples, tuples_to_table
from udfs.keys import key
from udfs.rows import RowDict
from udfs.sessions.packet_rows import PACKET_SIGHTING_TYPE
from udfs.times import EPOCH, datetime_to_us, us_to_datetime

MOVED_COLUMNS: Final = (
    "connection_id", "client_address", "client_port", "server_address", "server_port", "sent_by", "stream_offset"
)  # fmt: skip
"""The columns that ``move_packets`` may change."""
PACKET_MOVES_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        ("was_connection_id", pa.string()),
        ("connection_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("client_shift", pa.int64()),
        ("server_shift", pa.int64()),
    ]
)
"""Where the packets of a capture's connection belong, with bytes to add to the stream offsets of each side."""
_PLACE: Final = tuple(field.name for field in PACKET_SIGHTING_TYPE)


class KeptBytes(NamedTuple):
    """Bytes of a side that a remainder keeps, with the captured packet that they are of.

    ``capture_id``; stream offsets of the first byte and behind the last one; time in ns, packet number, file offset.
    """

    capture_id: str
    begin: int
    end: int
    time_ns: int
    packet_number: int
    file_offset: int


COVERAGE_SCHEMA: Final = pa.schema(
    [
        ("connection_id", pa.string()),
        ("side", pa.string()),
        ("capture_id", pa.string()),
        *((name, pa.int64()) for name in KeptBytes._fields[1:]),
    ]
)
"""Bytes of a side that a capture has; of kept ones with their places, too."""


class PacketCoverage:
    """Which bytes of both sides of a connection which captures have, by stream offsets of the connection's rows.

    ``ranges``: by ``client`` or ``server``, (capture, first offset, offset behind the last one). ``kept``: of these,
    the bytes that the captures did not cut into packets for good.
    """

    def __init__(
        self, ranges: Mapping[str, Iterable[tuple[str, int, int]]], kept: Mapping[str, Iterable[KeptBytes]]
    ) -> None:
        self._ranges = {side: _CapturedRanges(found) for side, found in ranges.items()}
        self._kept: dict[tuple[str, str], list[KeptBytes]] = defaultdict(list)
        for side, found in kept.items():
            for piece in sorted(found):
                self._kept[side, piece.capture_id].append(piece)

    def table(self, connection_id: str) -> pa.Table:
        """Return the bytes as rows (``COVERAGE_SCHEMA``)."""
        ranges = ((side, name, low, high) for side, found in self._ranges.items() for low, high, name in found.parts)
        rows: list[tuple[Any, ...]] = [(connection_id, *each, None, None, None) for each in ranges]
        rows += [(connection_id, side, *piece) for (side, _), pieces in self._kept.items() for piece in pieces]
        return tuples_to_table(rows, COVERAGE_SCHEMA)

    @staticmethod
    def from_table(rows: pa.Table) -> dict[str, PacketCoverage]:
        """Return what ``table`` made rows of, by connection_id."""
        ranges: dict[str, dict[str, list[tuple[str, int, int]]]] = defaultdict(lambda: defaultdict(list))
        kept: dict[str, dict[str, list[KeptBytes]]] = defaultdict(lambda: defaultdict(list))
        for name, side, *piece in iter_tuples(rows, COVERAGE_SCHEMA.names):
            capture_id, low, high, *place = piece
            if None in place:
                ranges[name][side].append((capture_id, low, high))
            else:
                kept[name][side].append(KeptBytes(*piece))
        return {name: PacketCoverage(found, kept[name]) for name, found in ranges.items()}

    def captures_with(self, side: str, offset: int, size: int) -> set[str]:
        """Return the captures that have any of ``size`` bytes of a side from ``offset`` on."""
        return self._ranges[side].captures_with(offset, offset + size) if side in self._ranges else set()

    def whole_sightings(self, side: str, offset: int, size: int) -> Iterator[RowDict]:
        """Yield the places of a packet in the captures that keep all bytes of it."""
        for capture_id in self.captures_with(side, offset, size):
            if carriers := _carriers(self._kept.get((side, capture_id), []), offset, offset + size):
                first = carriers[0]
                times = [piece.time_ns for piece in carriers]
                yield {
                    "capture_id": capture_id,
                    "packet_number": first.packet_number,
                    "byte_offset": first.file_offset + offset - first.begin,
                    "sent_at": _ns_to_datetime(first.time_ns),
                    "sent_done_at": None if NO_TIME in times else _ns_to_datetime(max(times)),
                }

    def is_shared(self) -> bool:
        """Whether several captures have the same byte."""
        return any(ranges.overlap() for ranges in self._ranges.values())


class _CapturedRanges:
    """The bytes of a side that captures have: ranges in the order of their first bytes."""

    def __init__(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        own: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for capture_id, low, high in sorted(ranges):  # those of one capture are joined where they meet
            found = own[capture_id]
            if found and low <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], high)
            else:
                found.append((low, high))
        self.parts = sorted((low, high, name) for name, found in own.items() for low, high in found)
        self._reached = [*accumulate((high for _, high, _ in self.parts), max)]

    def captures_with(self, low: int, high: int) -> set[str]:
        """Return the captures that have any byte of ``[low, high)``."""
        place, found = bisect_left(self.parts, high, key=itemgetter(0)), set()
        while place and self._reached[place - 1] > low:
            place -= 1
            if self.parts[place][1] > low:
                found.add(self.parts[place][2])
        return found

    def overlap(self) -> bool:
        """Whether two ranges have a byte in common: they are of two captures."""
        return any(low < reached for (low, _, _), reached in zip(self.parts[1:], self._reached, strict=False))


def _carriers(pieces: list[KeptBytes], begin: int, end: int) -> list[KeptBytes]:
    """Return the pieces that together have all bytes of ``[begin, end)``; none if some are missing."""
    place = bisect_right(pieces, begin, key=itemgetter(1)) - 1
    if place < 0:
        return []
    found = []
    while begin < end:
        if place == len(pieces) or not pieces[place].begin <= begin < pieces[place].end:
            return []
        found.append(pieces[place])
        begin = pieces[place].end
        place += 1
    return found


def _ns_to_datetime(time_ns: int) -> dt.datetime | None:
    return us_to_datetime(None if time_ns == NO_TIME else time_ns // 1000)


def move_packets(rows: pa.RecordBatch, moves: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ``session_packets`` with the connections of ``moves`` (``PACKET_MOVES_SCHEMA``).

    Rows of other connections stay as they are. ``rows`` must have ``capture_id`` and ``MOVED_COLUMNS``.
    """
    names = [pc.binary_join_element_wise(each["capture_id"], each[column], "|") for each, column in (
        (rows, "connection_id"), (moves, "was_connection_id"))]  # fmt: skip
    index = pc.index_in(*names)
    if index.null_count == len(index):
        return rows
    move, is_moved = moves.take(index), index.is_valid()
    is_client = pc.equal(rows["sent_by"], "client")
    turned = pc.or_(
        pc.not_equal(move["client_address"], rows["client_address"]),
        pc.not_equal(move["client_port"], rows["client_port"]),
    )
    is_client = pc.xor(is_client, pc.fill_null(turned, False))  # noqa: FBT003
    shift = pc.fill_null(pc.if_else(is_client, move["client_shift"], move["server_shift"]), 0)
    changed = {name: pc.if_else(is_moved, move[name], rows[name]) for name in MOVED_COLUMNS[:5]}
    changed["sent_by"] = pc.if_else(is_client, "client", "server")
    changed["stream_offset"] = pc.add(rows["stream_offset"], shift)
    return pa.RecordBatch.from_arrays([changed.get(name, rows[name]) for name in rows.schema.names], schema=rows.schema)


def merge_packet_sightings(
    rows: Iterable[RowDict], joint: Iterable[RowDict], rebuilt: Collection[tuple[str, str]], coverage: PacketCoverage
) -> list[RowDict]:
    """Return the rows of one connection that several captures saw: one for each packet.

    ``rows``: those of captures alone, and those that earlier merges returned. ``joint``: packets cut from the bytes of
    all captures that none cut whole. ``rebuilt``: capture and key of rows that merging made again: where ``joint`` has
    none, the bytes of another capture show that no packet stands there.
    """
    whole: dict[tuple[str, int], list[RowDict]] = defaultdict(list)
    joint_rows = {(row["sent_by"], row["stream_offset"]): row for row in joint}
    others: dict[tuple[str, int], RowDict] = {}

    def is_rebuilt(row: RowDict) -> bool:
        return (row["capture_id"], row["packet_key"]) in rebuilt

    for row in rows:
        place = row["sent_by"], row["stream_offset"]
        if singles := [one for one in _single_sightings(row) if place in joint_rows or not is_rebuilt(one)]:
            whole[place] += singles
        elif row["observations"] == 1 and not is_rebuilt(row):
            others.setdefault(place, row)
    others |= joint_rows
    merged, behind, last_side = [], 0, ""
    for place in sorted({*whole, *others}):
        side, offset = place
        if side != last_side:
            behind, last_side = offset, side
        if offset < behind:
            continue  # inside of another packet
        any_row = whole[place][0] if place in whole else others[place]
        kept = coverage.whole_sightings(side, offset, any_row["length_bytes"])
        whole[place] += [_at_place(any_row, seen) for seen in kept]
        row = _earliest(whole[place]) if whole[place] else others[place]
        # A remainder may have expired, or have forgotten some of very many holes: its capture still had the packet.
        captures = coverage.captures_with(side, offset, row["length_bytes"])
        captures.update(seen["capture_id"] for seen in row["sightings"] or ())
        row |= {"observations": max(len(captures), 1)}
        if row["observations"] == 1:
            row["sightings"] = None
        merged.append(row)
        behind = offset + row["length_bytes"]
    return merged


def packet_without_captures(row: RowDict, captures: Collection[str]) -> RowDict | None:
    """Return a packet's row without what some captures saw of it; None if no other capture had it whole."""
    left = [one for one in _single_sightings(row) if one["capture_id"] not in captures]
    if not left:
        return None
    found = _earliest(left)
    return found if len(left) > 1 else {**found, "observations": 1, "sightings": None}


def _single_sightings(row: RowDict) -> Iterator[RowDict]:
    """Yield a row for each capture that had a packet whole."""
    if row["sightings"]:
        for seen in row["sightings"]:
            yield _at_place(row, seen)
    elif row["complete"] and row["observations"] == 1:
        yield row


def _at_place(row: RowDict, seen: RowDict) -> RowDict:
    return {**row, **seen, "packet_key": _packet_key(row, seen["sent_at"]), "sightings": None}


def _earliest(rows: list[RowDict]) -> RowDict:
    """Return the row of the capture with the earliest first byte, with the places of all."""
    distinct = {tuple(row[name] for name in _PLACE): row for row in rows}
    ordered = sorted(distinct.values(), key=_order)
    sightings = [{name: row[name] for name in _PLACE} for row in ordered]
    sent_at = ordered[0]["sent_at"]
    return {
        **ordered[0], "sightings": sightings, "event_date": None if sent_at is None else sent_at.date(),
        "observations": len({row["capture_id"] for row in ordered}),
    }  # fmt: skip


def _order(row: RowDict) -> tuple[Any, ...]:
    return (row["sent_at"] is None, row["sent_at"] or EPOCH, row["capture_id"], row["packet_number"])


def _packet_key(row: RowDict, sent_at: dt.datetime | None) -> str:
    client, server = ((row[f"{side}_address"], row[f"{side}_port"]) for side in ("client", "server"))
    ends = (*client, *server) if row["sent_by"] == "client" else (*server, *client)
    tunnel = row["tunnel_identifier"]
    time = datetime_to_us(sent_at)
    return key(*ends, *(() if tunnel is None else (tunnel,)), row["tcp_sequence"], time)
