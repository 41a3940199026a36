"""Overlays captures that saw one connection at the same time: two capturing machines, or overlapping files.

The remainders of such captures are aligned by sequence number, as if one capture had seen what any of them saw. Of
bytes that several captures have, the earliest is taken. Since clocks may differ, sequence numbers and bytes decide
which captures overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, starmap
from typing import Any, Final, NamedTuple

from udfs.dcerpc.pdu_headers import read_frag_length, walk_pdus
from udfs.files.capture_file import BUFFER_PADDING_BYTES, NO_TIME
from udfs.rows import RowDict
from udfs.tcp.connections import MAX_SEQUENCE_JUMP, sequence_difference
from udfs.tcp.packet_decoder import ACK, FIN, FRAMED_BEFORE, RST, SKIPPED_BEFORE, STREAM_START, SYN
from udfs.tcp.tunnels import NO_IDENTIFIER

_AFTER_SYN: Final = range(1, MAX_SEQUENCE_JUMP)  # bytes; a connection that comes later has larger numbers
_MAX_REPEATED_BYTES: Final = 64 << 10  # bytes; more is not sent again at once
WHOLE_PDU: Final = 0x8000  # flag of segments in a remainder: they belong to a PDU that is complete


class CapturedSegment(NamedTuple):
    """A segment of a remainder, and the capture that it comes from."""

    segment: RowDict
    capture_id: str


def conversations(rows: Sequence[RowDict], spans: Sequence[tuple[Span, Span]], max_clock_skew_ns: int) -> list[int]:
    """Return the number of the conversation that each remainder of a four-tuple belongs to, from 0.

    ``rows`` are rows of ``bronze.pending``, sorted by time; ``spans`` their ``captured_spans``. Most have one. A replay
    has the same numbers and bytes as another, at times that differ by more than clocks do; a connection with the same
    numbers may have other bytes. Two tenants have tunnels with different identifiers, and numbers that do not fit.
    """
    replays: dict[int, set[int]] = defaultdict(set)
    for side in (0, 1):
        for earlier, later in _pairs_with_common_bytes(spans, side):
            two = rows[earlier], rows[later]
            if _is_seen_again(two, (spans[earlier], spans[later])) and (
                _clock_difference(*two) > max_clock_skew_ns or _have_other_bytes(*two)
            ):
                replays[later].add(earlier)
    several_tunnels = len({row["tunnel_identifier"] for row in rows}) > 1
    found: list[int] = []
    for index in range(len(rows)):
        others = {found[earlier] for earlier in replays[index]}
        if several_tunnels:
            others |= {found[earlier] for earlier in range(index) if _are_tenants(rows, spans, earlier, index)}
        found.append(next(number for number in count() if number not in others))
    return found


def tunnel_identifier(row: RowDict) -> int:
    """Return the identifier of the tunnel that tells a remainder's connection from others of its four-tuple."""
    return NO_IDENTIFIER if row["tunnel_identifier"] is None else int(row["tunnel_identifier"])


def _are_tenants(rows: Sequence[RowDict], spans: Sequence[tuple[Span, Span]], one: int, two: int) -> bool:
    """Whether two remainders are of different tunnels, and their numbers do not show one connection."""
    if rows[one]["tunnel_identifier"] == rows[two]["tunnel_identifier"]:
        return False
    known = all(
        span.begin is not None and other.begin is not None for span, other in zip(spans[one], spans[two], strict=True)
    )
    return not (known and _may_be_one_connection(spans[one], spans[two]))


def _have_other_bytes(one: RowDict, two: RowDict) -> bool:
    """Whether a good part of the packets that two remainders kept of the same places is not equal.

    A single one of many may have been damaged on its way to one of the machines.
    """
    kept = [{(s["side"], s["sequence"]): s["data"] for s in row["segments"] if s["data"]} for row in (one, two)]
    common = kept[0].keys() & kept[1].keys()
    sizes = {place: min(len(kept[0][place]), len(kept[1][place])) for place in common}
    other = sum(kept[0][place][:size] != kept[1][place][:size] for place, size in sizes.items())
    return bool(other) and 4 * other >= len(common)


def _clock_difference(one: RowDict, two: RowDict) -> int:
    """Return by how much the times of two remainders with common bytes differ, in ns; 0 if that is not known."""
    if NO_TIME in (row[name] for row in (one, two) for name in ("first_time_ns", "last_time_ns")):
        return 0
    apart = max(one["first_time_ns"] - two["last_time_ns"], two["first_time_ns"] - one["last_time_ns"], 0)
    return min(map(abs, _time_differences(one, two)), default=apart)


def _time_differences(one: RowDict, two: RowDict) -> list[int]:
    """Return by how much later each packet that both remainders kept is in the second one, in ns."""
    times: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
    for row, found in zip((one, two), times, strict=True):
        for segment in row["segments"]:
            if segment["time_ns"] == NO_TIME:
                continue
            if segment["flags"] & SYN or segment["data"]:  # the time of others is that of their end
                place = segment["side"], segment["sequence"], segment["flags"] & SYN
                found[place] = min(segment["time_ns"], found.get(place, segment["time_ns"]))
    return [times[1][place] - times[0][place] for place in times[0].keys() & times[1].keys()]


def side_by_side_pairs(rows: Sequence[RowDict], spans: Sequence[tuple[Span, Span]]) -> list[tuple[int, int]]:
    """Return the pairs of remainders of a four-tuple, as indexes, that overlap in one connection.

    ``rows`` are rows of ``bronze.pending``, sorted by time; ``spans`` their ``captured_spans``.
    """
    return [
        (earlier, later)
        for earlier, later in sorted(set(_candidate_pairs(rows, spans)))  # their times and their bytes may overlap
        if _do_overlap(rows[earlier], rows[later], spans[earlier], spans[later])
    ]


def group_simultaneous(count_of_rows: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Group the indexes of the remainders of a four-tuple that overlap; ``pairs`` as ``side_by_side_pairs``."""
    parent = list(range(count_of_rows))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for earlier, later in pairs:
        parent[root(later)] = root(earlier)
    found: dict[int, list[int]] = defaultdict(list)
    for index in range(count_of_rows):
        found[root(index)].append(index)
    return list(found.values())


def pairs_of_taps(spans: Sequence[tuple[Span, Span]], taps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of remainders of different taps, as indexes, that have common bytes of any direction.

    ``taps`` are the numbers of their taps, one for each. Common bytes of one tap were sent again.
    """
    return [
        (one, two)
        for side in (0, 1)
        for one, two in _pairs_with_common_bytes(spans, side)
        if taps[one] != taps[two] and _may_be_one_connection(spans[one], spans[two])
    ]


def _candidate_pairs(rows: Sequence[RowDict], spans: Sequence[tuple[Span, Span]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of row indexes that may belong together: their times overlap, or their bytes.

    For a connection that spans thousands of files these are neighbours only, not all pairs.
    """
    current: list[int] = []
    for later, row in enumerate(rows):
        current = [earlier for earlier in current if rows[earlier]["last_time_ns"] > row["first_time_ns"]]
        yield from ((earlier, later) for earlier in current)
        current.append(later)
    for side in (0, 1):
        yield from _pairs_with_common_bytes(spans, side)


def _pairs_with_common_bytes(spans: Sequence[tuple[Span, Span]], side: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of indexes whose ranges of one direction overlap; the smaller index first."""
    begins = sorted((low, index) for index, both in enumerate(spans) if (low := both[side].low) is not None)
    for place, (low, index) in enumerate(begins):
        for step in range(1, len(begins)):
            other_low, other = begins[(place + step) % len(begins)]  # sequence numbers wrap around
            if (other_low - low) & 0xFFFFFFFF >= spans[index][side].size:
                break
            yield min(index, other), max(index, other)


class Span(NamedTuple):
    """What a capture has of one direction of a connection."""

    syn: int | None
    low: int | None  # sequence number of the first byte
    size: int  # bytes from the first to the last one
    pieces: tuple[tuple[int, int], ...] = ()  # what it has in between, relative to the first byte, in any order

    def add_to(self, captured: IntervalSet, ahead: int = 0) -> int:
        """Add the bytes that it has to a set; return how many were not in it. ``ahead`` is added to their offsets."""
        added = (captured.add(low + ahead, high + ahead) for low, high in self.pieces)
        return sum(end - start for parts in added for start, end in parts)

    @property
    def begin(self) -> int | None:
        """The sequence number of the first byte, that of the stream if its SYN is here."""
        return self.low if self.syn is None else self.syn + 1

    @property
    def end(self) -> int | None:
        """The sequence number behind the last byte; of a SYN alone that of the first one."""
        return self.begin if self.low is None else self.low + self.size


def is_payload(segment: RowDict) -> bool:
    """Whether a segment stands for payload: it has data, or stands for bytes that were framed or skipped before."""
    return bool(segment["data"]) or bool(segment["flags"] & (FRAMED_BEFORE | SKIPPED_BEFORE))


def captured_size(segment: RowDict) -> int:
    """Return how many bytes a segment of a remainder has or, without data, stands for."""
    return int(segment["size"] if segment["data"] is None else len(segment["data"]))


def captured_spans(row: RowDict) -> tuple[Span, Span]:
    """Return the range of sequence numbers of both directions of a remainder."""
    found = []
    for side in (0, 1):
        own = [segment for segment in row["segments"] if segment["side"] == side]
        syn = next((segment["sequence"] for segment in own if segment["flags"] & SYN), None)
        body = [segment for segment in own if is_payload(segment)]
        if not body:
            found.append(Span(syn, None, 0))
            continue
        lead = body[0]["sequence"]
        places = [(sequence_difference(segment["sequence"] - lead), segment) for segment in body]
        low = min(place for place, _ in places)
        high = max(place + segment["size"] for place, segment in places)
        pieces = tuple((place - low, place - low + captured_size(segment)) for place, segment in places)
        found.append(Span(syn, (lead + low) & 0xFFFFFFFF, high - low, pieces))
    return found[0], found[1]


def _do_overlap(one: RowDict, two: RowDict, spans: tuple[Span, Span], others: tuple[Span, Span]) -> bool:
    """Whether two remainders overlap: in time with fitting numbers, or with common bytes of both directions."""
    if one["capture_id"] == two["capture_id"] or not _may_be_one_connection(spans, others):
        return False
    at_once = one["first_time_ns"] < two["last_time_ns"] and two["first_time_ns"] < one["last_time_ns"]
    return at_once or _is_seen_again((one, two), (spans, others))


def _is_seen_again(rows: tuple[RowDict, RowDict], spans: tuple[tuple[Span, Span], tuple[Span, Span]]) -> bool:
    """Whether two remainders, the earlier one first, have so much in common that both captures saw it sent.

    Nobody sends a SYN after the bytes that follow it. Bytes from the end of a file may be sent again in the next file.
    But this is never a SYN with all that follows; it is only little data, less than half of what either file has, not
    in both directions; and packets do not all come equally later.
    """
    if not _may_be_one_connection(*spans):
        return False
    earlier, later = rows
    directions = list(zip(*spans, strict=True))
    if earlier["last_time_ns"] <= later["first_time_ns"] and any(starmap(_has_bytes_after_syn, directions)):
        return True
    common = list(starmap(_common_bytes, directions))
    if not all(common):
        return False
    if any(span.syn is not None and other.syn is not None for span, other in directions):
        return True
    half = min(sum(span.add_to(IntervalSet()) for span in each) for each in spans) // 2
    if sum(common) <= min(half, _MAX_REPEATED_BYTES):
        return False
    differences = _time_differences(*rows)
    return not differences or max(differences) - min(differences) <= min(map(abs, differences)) // 8


def _has_bytes_after_syn(span: Span, other: Span) -> bool:
    """Whether a remainder has bytes that follow the SYN of another one in the same direction."""
    return span.low is not None and other.syn is not None and sequence_difference(span.low - other.syn) in _AFTER_SYN


def _may_be_one_connection(spans: tuple[Span, Span], others: tuple[Span, Span]) -> bool:
    """Whether the sequence numbers of two remainders fit one connection."""
    for span, other in zip(spans, others, strict=True):
        if span.syn is not None and other.syn is not None and span.syn != other.syn:
            return False
        if span.low is not None and other.low is not None:
            ahead = sequence_difference(other.low - span.low)
            if not -other.size - MAX_SEQUENCE_JUMP <= ahead <= span.size + MAX_SEQUENCE_JUMP:
                return False
    return True


def _common_bytes(span: Span, other: Span) -> int:
    """Return the number of bytes that both remainders have of a direction."""
    if span.low is None or other.low is None:
        return 0
    ahead = sequence_difference(other.low - span.low)
    if not -other.size < ahead < span.size:
        return 0
    either = IntervalSet()
    span.add_to(either)
    return other.add_to(IntervalSet()) - other.add_to(either, ahead)


def overlay_segments(rows: Sequence[RowDict]) -> list[CapturedSegment]:
    """Overlay a group of remainders: return their segments as if of one capture."""
    begin: list[CapturedSegment] = []
    bodies: list[CapturedSegment] = []
    ending: list[tuple[tuple[int, int, int], CapturedSegment]] = []
    for side in (0, 1):
        parts = [CapturedSegment(s, row["capture_id"]) for row in rows for s in row["segments"] if s["side"] == side]
        if not parts:
            continue
        lead = parts[0].segment["sequence"]
        body = [part for part in parts if is_payload(part.segment)]
        union = _union_direction(body, lead)
        bodies += union
        low = min((_relative_offset(part, lead) for part in union), default=None)
        high = max((_relative_offset(part, lead) + part.segment["size"] for part in union), default=None)
        for part in parts:
            flags, at = part.segment["flags"], _relative_offset(part, lead)
            if is_payload(part.segment):
                continue
            order = (at, sequence_difference(part.segment["acknowledgement"] - parts[0].segment["acknowledgement"]), 0)
            if flags & SYN or (flags == ACK and (low is None or at <= low)):
                begin.append(part)
            if flags & (FIN | RST) or (not flags & SYN and (high is None or at >= high)):
                ending.append((((1 << 40) if flags & RST else order[0], *order[1:]), part))
    begin.sort(key=lambda part: (not part.segment["flags"] & SYN, part.segment["time_ns"], part.capture_id))
    ending.sort(key=lambda each: (each[0], each[1].segment["time_ns"], each[1].capture_id))
    return begin + bodies + [part for _, part in ending]


def _relative_offset(part: CapturedSegment, lead: int) -> int:
    """Return the offset of a segment relative to the sequence number ``lead``."""
    return sequence_difference(part.segment["sequence"] - lead)


def _priority(segment: RowDict) -> int:
    """Return the priority of a segment where several captures have the same bytes; lower is preferred.

    Whole PDUs of unfinished calls come first, because other captures may need them. Bytes outside of whole PDUs come
    last.
    """
    flags = segment["flags"]
    return 0 if flags & WHOLE_PDU else 1 if flags & FRAMED_BEFORE else 3 if flags & SKIPPED_BEFORE else 2


def _union_direction(body: list[CapturedSegment], lead: int) -> list[CapturedSegment]:
    """Return the bytes of one direction once each, in order."""
    begins = any(part.segment["flags"] & STREAM_START for part in body)
    body = _flag_joined_pdus(body, lead)
    doubts = _incomplete_ranges(body, lead)
    covered = IntervalSet()
    chosen: list[CapturedSegment] = []
    for part in sorted(
        body, key=lambda p: (_priority(p.segment), p.segment["time_ns"], p.capture_id, _relative_offset(p, lead))
    ):
        segment, start = part.segment, _relative_offset(part, lead)
        size = captured_size(segment)
        left = covered.add(start, start + size)
        chosen += [
            CapturedSegment(_slice_segment(segment, low - start, high - start), part.capture_id) for low, high in left
        ]
    chosen.sort(key=lambda part: _relative_offset(part, lead))
    found = []
    for index, part in enumerate(chosen):
        segment = dict(part.segment)
        if index + 1 < len(chosen):  # another capture may have the bytes that this one truncated
            segment["size"] = min(
                segment["size"], _relative_offset(chosen[index + 1], lead) - _relative_offset(part, lead)
            )
        if segment["flags"] & FRAMED_BEFORE and doubts.overlaps(
            _relative_offset(part, lead), _relative_offset(part, lead) + segment["size"]
        ):
            segment["flags"] |= SKIPPED_BEFORE
        segment["flags"] = segment["flags"] & ~STREAM_START | (STREAM_START if begins and not index else 0)
        found.append(CapturedSegment(segment, part.capture_id))
    return found


def _flag_joined_pdus(body: list[CapturedSegment], lead: int) -> list[CapturedSegment]:
    """Flag PDUs as whole that several captures together contain completely, for example two files of one ring."""
    loose = [part for part in body if _priority(part.segment) == 2 and part.segment["data"]]
    loose.sort(key=lambda p: (p.segment["time_ns"], p.capture_id, _relative_offset(p, lead)))
    seen, pieces = IntervalSet(), []
    for part in loose:
        start = _relative_offset(part, lead)
        for low, high in seen.add(start, start + len(part.segment["data"])):
            pieces.append((low, part.segment["data"][low - start : high - start]))
    pieces.sort()
    whole = IntervalSet()
    index = 0
    while index < len(pieces):
        begin, data = pieces[index]
        index += 1
        while index < len(pieces) and pieces[index][0] == begin + len(data):
            data += pieces[index][1]
            index += 1
        found: list[int] = []
        walk_pdus(data + bytes(BUFFER_PADDING_BYTES), 0, len(data), found)
        if found:
            last = found[-1]
            whole.add(begin, begin + last + read_frag_length(data, last))
    out = []
    for part in body:
        segment, start = part.segment, _relative_offset(part, lead)
        size = len(segment["data"] or b"")
        if _priority(segment) != 2 or not whole.overlaps(start, start + size):
            out.append(part)
            continue
        for low, high, inside in whole.split(start, start + size):
            cut = _slice_segment(segment, low - start, high - start)
            out.append(CapturedSegment({**cut, "flags": cut["flags"] | (WHOLE_PDU if inside else 0)}, part.capture_id))
    return out


def _incomplete_ranges(body: list[CapturedSegment], lead: int) -> IntervalSet:
    """Return the ranges that some capture has only in part, between its first and its last byte."""
    good: dict[str, IntervalSet] = defaultdict(IntervalSet)
    spans: dict[str, tuple[int, int]] = {}
    for part in body:
        start = _relative_offset(part, lead)
        end = start + part.segment["size"]
        low, high = spans.get(part.capture_id, (start, end))
        spans[part.capture_id] = min(low, start), max(high, end)
        if _priority(part.segment) < 2:
            good[part.capture_id].add(start, end)
    found = IntervalSet()
    for capture_id, (low, high) in spans.items():
        for start, end in good[capture_id].add(low, high):
            found.add(start, end)
    return found


def _slice_segment(segment: RowDict, low: int, high: int) -> RowDict:
    """Return the bytes ``low`` to ``high`` of a segment as a segment."""
    data, size = segment["data"], captured_size(segment)
    lost = segment["size"] - size if high == size else 0
    return {
        **segment,
        "sequence": (segment["sequence"] + low) & 0xFFFFFFFF,
        "file_offset": segment["file_offset"] + low,
        "size": high - low + lost,
        "data": None if data is None else data[low:high],
    }


class IntervalSet:
    """A set of integers, stored as sorted disjoint intervals."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> list[tuple[int, int]]:
        """Add an interval; return the parts of it that were not in the set."""
        first = bisect_right(self._ends, start)
        at, end_index, added = start, first, []
        while end_index < len(self._starts) and self._starts[end_index] < end:
            if at < self._starts[end_index]:
                added.append((at, self._starts[end_index]))
            at = max(at, self._ends[end_index])
            end_index += 1
        if at < end:
            added.append((at, end))
        if start < end:
            low = min([start, *self._starts[first:end_index]])
            high = max([end, *self._ends[first:end_index]])
            self._starts[first:end_index], self._ends[first:end_index] = [low], [high]
        return added

    def overlaps(self, start: int, end: int) -> bool:
        """Whether the set contains any number of an interval."""
        first = bisect_right(self._ends, start)
        return first < len(self._starts) and self._starts[first] < end

    def split(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts of an interval in order, each with a flag: whether it is in the set."""
        for low, high in zip(self._starts, self._ends, strict=True):
            low, high = max(low, start), min(high, end)  # noqa: PLW2901
            if low < high:
                if start < low:
                    yield start, low, False
                yield low, high, True
                start = high
        if start < end:
            yield start, end, False
