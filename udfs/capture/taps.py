"""Taps: which captures of a connection were recorded side by side, and what each tap shows of a call.

A tap is a machine or port at which a connection was captured, with one clock. Its captures (files of a ring) follow one
another; captures of different taps show the same bytes at the times of different clocks. TCP positions and bytes decide
which is which. Both halves of a call are taken from one tap wherever it has both (tables.md, rpc_calls).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from udfs.capture.disjoint_sets import DisjointSets
from udfs.capture.overlapping_captures import (
    MAX_AT_ONCE,
    Captured,
    IntervalSet,
    Pair,
    Span,
    captured_size,
    is_payload,
)
from udfs.columns.absent import NO_TIME
from udfs.columns.tuples import iter_tuples, tuples_to_table
from udfs.dcerpc.pdu_headers import PDU_HEADER_BYTES, read_frag_length
from udfs.rows import RowDict
from udfs.rpc.call_schema import GIVEN_UP_COLUMNS, HALVES, IN_PART, NOT_SEEN, WHOLE, has_whole_half
from udfs.tcp.connections import MAX_SEQUENCE_JUMP, sequence_difference
from udfs.times import datetime_to_us


def assign_taps(captured: Sequence[Captured], numbers: Sequence[int], side_by_side: Iterable[Pair]) -> list[int]:
    """Return the number of the tap that each capture of a connection belongs to, from 0 in each conversation.

    ``captured`` are remainders of a four-tuple in the order of time, ``numbers`` those of their conversations;
    ``side_by_side`` are the pairs of indexes of those that overlap, which are of different taps. The others are of one
    tap, first those whose end and beginning are nearest, in bytes, then in time: a file of a ring begins where the one
    before it ends.
    """
    overlapping: dict[int, set[int]] = defaultdict(set)
    for one, two in side_by_side:
        overlapping[one].add(two)
        overlapping[two].add(one)
    by_conversation: dict[int, list[int]] = defaultdict(list)
    for index, number in enumerate(numbers):
        by_conversation[number].append(index)
    taps, sets = [0] * len(captured), DisjointSets(len(captured))
    for indexes in by_conversation.values():
        if any(index in overlapping for index in indexes):
            _assign_taps_of_conversation(captured, indexes, overlapping, sets, taps)
    return taps


def _assign_taps_of_conversation(
    captured: Sequence[Captured], indexes: Sequence[int], overlapping: Mapping[int, set[int]], sets: DisjointSets,
    taps: list[int],
) -> None:  # fmt: skip
    candidates = []
    for place, later in enumerate(indexes):
        beside = overlapping.get(later, ())
        before = (indexes[earlier] for earlier in range(place - 1, -1, -1) if indexes[earlier] not in beside)
        for earlier in islice(before, MAX_AT_ONCE):
            apart = captured[later].row["first_time_ns"] - captured[earlier].row["last_time_ns"]
            candidates.append((_distance(captured[earlier].spans, captured[later].spans), abs(apart), earlier, later))
    others = {index: set(overlapping.get(index, ())) for index in indexes}  # of each tap: the taps it overlaps

    for _, _, earlier, later in sorted(candidates):
        one, two = sorted((sets.root(earlier), sets.root(later)), key=lambda tap: len(others[tap]))
        if one == two or one in others[two]:
            continue
        sets.join(one, two)
        for other in others[one]:
            others[other].remove(one)
            others[other].add(two)
        others[two] |= others.pop(one)
    found: dict[int, int] = {}
    for index in indexes:
        taps[index] = found.setdefault(sets.root(index), len(found))


def _distance(earlier: tuple[Span, Span], later: tuple[Span, Span]) -> int:
    """Return the number of bytes, of both directions, between the end of a capture and the beginning of another.

    Many, if no direction can be compared.
    """
    found = [
        abs(sequence_difference(two.begin - one.end))
        for one, two in zip(earlier, later, strict=True)
        if one.end is not None and two.begin is not None
    ]
    return sum(found) if found else MAX_SEQUENCE_JUMP


class _Piece(NamedTuple):
    """Bytes of one direction, relative to the first sequence number that the tap has of it."""

    start: int
    end: int
    data: bytes  # empty: they belong to PDUs that the capture finished with
    time_ns: int
    packet_number: int
    file_offset: int
    capture_id: str


_NO_PIECE: Final = (None,) * (len(_Piece._fields) - 1)
TAPS_SCHEMA: Final = pa.schema(
    [
        ("connection_id", pa.string()),
        *((name, pa.int64()) for name in ("client_side", "tap", "side", "lead", "start", "end")),
        ("data", pa.binary()),
        *((name, pa.int64()) for name in ("time_ns", "packet_number", "file_offset")),
        ("capture_id", pa.string()),
    ]
)
"""Bytes of one side that a tap has: ``lead``, and a ``_Piece``."""


class _TapDirection:
    """The bytes of one direction that the remainders of one tap have."""

    def __init__(self, lead: int, pieces: Iterable[_Piece]) -> None:
        self.lead, self.pieces = lead, sorted(pieces)
        self._starts = [piece.start for piece in self.pieces]
        self.times_us = {piece.time_ns // 1000 for piece in self.pieces if piece.data}
        self._ends = list(accumulate((piece.end for piece in self.pieces), max))  # the largest end so far

    @staticmethod
    def from_segments(segments: Sequence[tuple[RowDict, str]]) -> _TapDirection:
        """``segments``: of remainders, each with its capture."""
        lead = segments[0][0]["sequence"] if segments else 0
        pieces = []
        for segment, capture_id in segments:
            start = sequence_difference(segment["sequence"] - lead)
            place = segment["time_ns"], segment["number"], segment["file_offset"], capture_id
            pieces.append(_Piece(start, start + captured_size(segment), segment["data"] or b"", *place))
        return _TapDirection(lead, pieces)

    def between(self, low: int, high: int) -> list[_Piece]:
        """Return the pieces that have any byte of a range, the first copies first."""
        found = self.pieces[bisect_right(self._ends, low) : bisect_left(self._starts, high)]
        return sorted(
            (piece for piece in found if piece.end > low), key=lambda piece: (piece.time_ns, piece.capture_id)
        )

    def header(self, offset: int) -> bytes | None:
        """Return the first bytes of the PDU that begins at an offset; None if not all of them are there."""
        found = b""
        for piece in sorted(self.between(offset, offset + PDU_HEADER_BYTES)):
            begin = offset + len(found) - piece.start
            if piece.data and begin >= 0:
                found += piece.data[begin : begin + PDU_HEADER_BYTES - len(found)]
        return found if len(found) == PDU_HEADER_BYTES else None


class TapView:
    """The bytes of a connection that the remainders of one tap have."""

    def __init__(self, directions: tuple[_TapDirection, _TapDirection]) -> None:
        self.directions = directions

    @staticmethod
    def from_remainders(remainders: Iterable[RowDict]) -> TapView:
        """Collect the bytes of remainders."""
        segments: tuple[list[tuple[RowDict, str]], list[tuple[RowDict, str]]] = ([], [])
        for row in remainders:
            for segment in filter(is_payload, row["segments"]):
                segments[segment["side"]].append((segment, row["capture_id"]))
        return TapView((_TapDirection.from_segments(segments[0]), _TapDirection.from_segments(segments[1])))

    def half(self, side: int, fragments: Sequence[tuple[int, int]], *, is_known: bool) -> RowDict | None:
        """Return how much there is of a request or response, where and when (in us); None for nothing of it.

        ``fragments`` are the sequence number and size of each; ``is_known``: they are all that there are, and not only
        what was captured. Without the first byte it is not known when the half began: ``at`` is null.
        """
        direction = self.directions[side]
        covered, done_ns, is_whole = IntervalSet(), None, is_known
        first: tuple[int, _Piece] | None = None
        for sequence, size in fragments:
            low = sequence_difference(sequence - direction.lead)
            for piece in direction.between(low, low + size):
                begin, end = max(piece.start, low), min(piece.end, low + size)
                if piece.data and (first is None or begin < first[0]):
                    first = begin, piece
                if covered.add(begin, end) and piece.data:
                    done_ns = piece.time_ns if done_ns is None else max(done_ns, piece.time_ns)
            is_whole &= not covered.add(low, low + size)
        if first is None or done_ns is None:
            return None
        begin, piece = first
        low = sequence_difference(fragments[0][0] - direction.lead)
        has_first_byte = begin == low
        return {
            "seen": WHOLE if is_whole and has_first_byte else IN_PART,
            "capture_id": piece.capture_id,
            "packet": piece.packet_number,
            "byte_offset": piece.file_offset + begin - piece.start,
            "at": _ns_to_us(piece.time_ns) if has_first_byte else None,
            "done_at": _ns_to_us(done_ns),
        }


def _ns_to_us(time_ns: int) -> int | None:
    """Return a time in us; None for a packet without one."""
    return None if time_ns == NO_TIME else time_ns // 1000


class ConnectionTaps(NamedTuple):
    """What the taps of a connection show of its calls."""

    client_side: int
    views: list[TapView]
    tap_of: Mapping[str, int]  # by capture_id: the index of its view

    @staticmethod
    def from_remainders(client_side: int, remainders: Iterable[tuple[int, RowDict]]) -> ConnectionTaps:
        """Collect the remainders of a connection, each with the number of its tap."""
        by_tap: dict[int, list[RowDict]] = defaultdict(list)
        for tap, row in remainders:
            by_tap[tap].append(row)
        views = [rows for _, rows in sorted(by_tap.items())]
        tap_of = {row["capture_id"]: index for index, rows in enumerate(views) for row in rows}
        return ConnectionTaps(client_side, [TapView.from_remainders(rows) for rows in views], tap_of)

    def table(self, connection_id: str) -> pa.Table:
        """Return the bytes of the taps as rows (``TAPS_SCHEMA``); each capture has one without bytes, too."""
        known = connection_id, self.client_side
        rows: list[tuple[Any, ...]] = [(*known, tap, None, None, *_NO_PIECE, name) for name, tap in self.tap_of.items()]
        for tap, view in enumerate(self.views):
            for side, direction in enumerate(view.directions):
                rows += [(*known, tap, side, direction.lead, *piece) for piece in direction.pieces]
        return tuples_to_table(rows, TAPS_SCHEMA)

    @staticmethod
    def from_table(rows: pa.Table) -> dict[str, ConnectionTaps]:
        """Return what ``table`` made rows of, by connection_id."""
        client_sides: dict[str, int] = {}
        tap_of: dict[str, dict[str, int]] = defaultdict(dict)
        directions: dict[tuple[str, int, int], tuple[int, list[_Piece]]] = {}
        for name, client_side, tap, side, lead, *values in iter_tuples(rows, TAPS_SCHEMA.names):
            piece = _Piece(*values)
            if side is None:
                client_sides[name], tap_of[name][piece.capture_id] = client_side, tap
            else:
                directions.setdefault((name, tap, side), (lead, []))[1].append(piece)

        def view(name: str, tap: int) -> TapView:
            one, two = (_TapDirection(*directions.get((name, tap, side), (0, ()))) for side in (0, 1))
            return TapView((one, two))

        return {
            name: ConnectionTaps(client_sides[name], [view(name, tap) for tap in range(max(taps.values()) + 1)], taps)
            for name, taps in tap_of.items()
        }

    def sightings(self, row: RowDict) -> list[RowDict]:
        """Return what each tap shows of a call (structs of ``rpc_calls.sightings``), ``row`` is that of the call.

        There is none of a tap of which a capture finished the call alone: it kept none of its bytes.
        """
        sides = self.client_side, self.client_side ^ 1
        fragments = {half: self._fragments(row, half, side) for half, side in zip(HALVES, sides, strict=True)}
        given_up = {name: datetime_to_us(row[name]) for name in GIVEN_UP_COLUMNS}
        found = []
        for view in self.views:
            times_us = view.directions[self.client_side].times_us
            request, response = (
                view.half(side, fragments[half], is_known=has_whole_half(row, half)) if fragments[half] else None
                for half, side in zip(HALVES, sides, strict=True)
            )
            first = request or response
            if first is not None:
                found.append(
                    {
                        "capture_id": first["capture_id"],
                        "request_packet": request and request["packet"],
                        "response_capture_id": response and response["capture_id"],
                        "response_packet": response and response["packet"],
                        "byte_offset": first["byte_offset"],
                        "request_at": request and request["at"],
                        "request_done_at": request and request["done_at"],
                        "response_at": response and response["at"],
                        "response_done_at": response and response["done_at"],
                        **{name: at if at in times_us else None for name, at in given_up.items()},
                        "request": request["seen"] if request else NOT_SEEN,
                        "response": response["seen"] if response else NOT_SEEN,
                        "finished": False,
                    }
                )
        return found

    def _fragments(self, row: RowDict, half: str, side: int) -> list[tuple[int, int]]:
        """Return sequence number and size of the fragments of a request or response; PDUs of other calls lie between.

        All is one fragment where no tap has the headers.
        """
        first, span = row[f"{half}_sequence"], row[f"{half}_span"]
        if first is None or span is None:
            return []
        found, offset = [], 0
        while row[f"{half}_fragments"] > 1 and offset < span:
            header = self._header(side, first + offset)
            if header is None or (size := read_frag_length(header, 0)) < PDU_HEADER_BYTES:
                return [(first, span)]
            if int.from_bytes(header[12:16], "little" if header[4] & 0x10 else "big") == row["call_id"]:
                found.append((first + offset, min(size, span - offset)))
            offset += size
        return found or [(first, span)]

    def _header(self, side: int, sequence: int) -> bytes | None:
        """Return the first bytes of the PDU that begins at a sequence number, from any tap that has them."""
        directions = (view.directions[side] for view in self.views)
        found = (each.header(sequence_difference(sequence - each.lead)) for each in directions)
        return next((header for header in found if header is not None), None)
