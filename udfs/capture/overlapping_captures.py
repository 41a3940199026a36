"""Overlays captures that saw one connection at the same time: two capturing machines, or overlapping files.

The remainders of such captures are aligned by sequence number, as if one capture had seen what any of them saw. Of
bytes that several captures have, the earliest is taken. Since clocks may differ, sequence numbers and bytes decide
which captures overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, starmap
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from udfs.capture.disjoint_sets import DisjointSets
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.pdu_headers import read_frag_length, walk_pdus
from udfs.files.capture_file import BUFFER_PADDING_BYTES
from udfs.rows import RowDict
from udfs.tcp.connections import MAX_SEQUENCE_JUMP, sequence_difference
from udfs.tcp.packet_decoder import ACK, FIN, FRAMED_BEFORE, RST, SKIPPED_BEFORE, STREAM_START, SYN
from udfs.tcp.tunnels import NO_IDENTIFIER

_AFTER_SYN: Final = range(1, MAX_SEQUENCE_JUMP)  # bytes; a connection that comes later has larger numbers
_MAX_REPEATED_BYTES: Final = 64 << 10  # bytes; more is not sent again at once
MAX_AT_ONCE: Final = 32  # remainders of a four-tuple at the same time or bytes, that are compared with each other
WHOLE_PDU: Final = 0x8000  # flag of segments in a remainder: they belong to a PDU that is complete


_Begin = TypeVar("_Begin", bound=tuple[Any, ...])  # a sequence number, and what begins there


class CapturedSegment(NamedTuple):
    """A segment of a remainder, and the capture that it comes from."""

    segment: RowDict
    capture_id: str


class Span(NamedTuple):
    """What a capture has of one direction of a connection."""

    syn: int | None
    low: int | None  # sequence number of the first byte
    size: int  # bytes from the first to the last one
    pieces: tuple[tuple[int, int], ...] = ()  # what it has in between, relative to the first byte, in order, disjoint

    @property
    def begin(self) -> int | None:
        """The sequence number of the first byte, that of the stream if its SYN is here."""
        return self.low if self.syn is None else self.syn + 1

    @property
    def end(self) -> int | None:
        """The sequence number behind the last byte; of a SYN alone that of the first one."""
        return self.begin if self.low is None else self.low + self.size


@dataclass(frozen=True)
class Captured:
    """A remainder, and what is compared of it: computed once, because it is compared with many others."""

    row: RowDict

    @cached_property
    def spans(self) -> tuple[Span, Span]:
        """The range of sequence numbers of both directions."""
        return _captured_span(self.row, 0), _captured_span(self.row, 1)

    @cached_property
    def size(self) -> int:
        """The number of bytes of both directions, each once."""
        return sum(high - low for span in self.spans for low, high in span.pieces)

    @cached_property
    def packets(self) -> dict[tuple[int, int], bytes]:
        """The bytes that it kept of packets, by side and sequence number."""
        return {(s["side"], s["sequence"]): s["data"] for s in self.row["segments"] if s["data"]}

    @cached_property
    def times(self) -> dict[tuple[int, int, int], int]:
        """The earliest time of each packet that it kept, in ns, by side, sequence number and SYN."""
        found: dict[tuple[int, int, int], int] = {}
        for segment in self.row["segments"]:
            is_timed = segment["time_ns"] != NO_TIME
            if is_timed and (segment["flags"] & SYN or segment["data"]):  # the time of others is that of their end
                place = segment["side"], segment["sequence"], segment["flags"] & SYN
                found[place] = min(segment["time_ns"], found.get(place, segment["time_ns"]))
        return found

    def acknowledged(self, side: int) -> tuple[int, int] | None:
        """Return the lowest number of a side that the other side acknowledges, and how far it acknowledges from there.

        None where it acknowledges nothing.
        """
        own = [s for s in self.row["segments"] if s["side"] != side and s["flags"] & (ACK | RST) == ACK]
        numbers = [s["acknowledgement"] for s in own if s["acknowledgement"]]
        if not numbers:
            return None
        places = [sequence_difference(number - numbers[0]) for number in numbers]
        return (numbers[0] + min(places)) & 0xFFFFFFFF, max(places) - min(places)


_LEAST_ACKNOWLEDGED: Final = 3  # packets with payload that show that they were captured on another clock
Pair = tuple[int, int]  # indexes of two remainders of a four-tuple, the earlier one first


class Overlaps(NamedTuple):
    """The pairs of remainders of a four-tuple whose times overlap, and those whose bytes of any direction do.

    ``in_numbers``: of a direction, one has bytes, and the other, without any, acknowledges such bytes.
    A remainder is ``over_limit`` if more than ``MAX_AT_ONCE`` others, which are earlier, are at the same time or the
    same bytes: it is not compared with all of them.
    """

    in_time: set[Pair]
    in_bytes: set[Pair]
    over_limit: set[int]
    in_numbers: set[Pair]


def find_overlaps(captured: Sequence[Captured]) -> Overlaps:
    """Find the remainders that may belong together; ``captured`` are those of a four-tuple, sorted by time."""
    over_limit: set[int] = set()
    times = [(one.row["first_time_ns"], one.row["last_time_ns"], index) for index, one in enumerate(captured)]
    in_time = set(_sweep(times, over_limit))
    in_bytes: set[Pair] = set()
    in_numbers: set[Pair] = set()
    for side in (0, 1):
        spans = ((one.spans[side], index) for index, one in enumerate(captured))
        ranges = sorted((span.low, span.low + span.size, index) for span, index in spans if span.low is not None)
        # Sequence numbers wrap around: in the second turn all ranges that contain a number are known.
        turns = [(low + turn, high + turn, index) for turn in (0, 1 << 32) for low, high, index in ranges]
        in_bytes |= set(_sweep(turns, over_limit))
        lacking = [index for index, one in enumerate(captured) if one.spans[side].low is None]
        if lacking and ranges:
            acknowledged = ((captured[index].acknowledged(side), index) for index in lacking)
            turns += [
                (found[0] + turn, found[0] + turn + found[1], index)
                for found, index in acknowledged if found is not None for turn in (0, 1 << 32)
            ]  # fmt: skip
            pairs, without = set(_sweep(sorted(turns), set())), {*lacking}
            in_numbers |= {pair for pair in pairs if (pair[0] in without) != (pair[1] in without)}
    return Overlaps(in_time, in_bytes, over_limit, in_numbers)


def _sweep(ranges: Iterable[tuple[int, int, int]], over_limit: set[int]) -> Iterator[Pair]:
    """Yield the pairs of indexes of ranges that overlap: (beginning, end, index), sorted.

    Where more than ``MAX_AT_ONCE`` ranges overlap, those with the largest indexes are added to ``over_limit``, and the
    ranges behind are not compared with them.
    """
    current: list[tuple[int, int]] = []
    for begin, end, index in ranges:
        current = [other for other in current if other[0] > begin]
        yield from ((min(index, other), max(index, other)) for _, other in current if other != index)
        if index in over_limit:
            continue
        current.append((end, index))
        if len(current) > MAX_AT_ONCE:
            last = max(current, key=itemgetter(1))
            current.remove(last)
            over_limit.add(last[1])


def nearest_before(begins: Sequence[_Begin], sequence: int) -> Iterator[tuple[int, _Begin]]:
    """Yield up to ``MAX_AT_ONCE`` of ``begins`` at a sequence number or before it, the nearest first, with distances.

    ``begins`` are sorted. Sequence numbers wrap around.
    """
    place = bisect_right(begins, sequence, key=itemgetter(0))
    for step in range(1, min(len(begins), MAX_AT_ONCE) + 1):
        begin = begins[place - step]
        yield (sequence - begin[0]) & 0xFFFFFFFF, begin


def conversations(captured: Sequence[Captured], overlaps: Overlaps, max_clock_skew_ns: int) -> list[int]:
    """Return the number of the conversation that each remainder of a four-tuple belongs to, from 0.

    ``captured`` are sorted by time, ``overlaps`` their ``find_overlaps``. Most have one conversation. A replay has the
    same numbers and bytes as another, at times that differ by more than clocks do; a connection with the same numbers
    may have other bytes. Two tenants have tunnels with different identifiers, and numbers that do not fit.
    """
    replays: dict[int, set[int]] = defaultdict(set)
    for earlier, later in overlaps.in_bytes:
        two = captured[earlier], captured[later]
        if _is_seen_again(*two) and (_clock_difference(*two) > max_clock_skew_ns or _have_other_bytes(*two)):
            replays[later].add(earlier)
    tunnels = [one.row["tunnel_identifier"] for one in captured]
    nearby = _nearby_in_other_tunnels(tunnels, overlaps)
    found: list[int] = []
    of_tunnel: dict[int | None, list[int]] = defaultdict(list)  # numbers of conversations, sorted
    unused = 0
    for index, tunnel in enumerate(tunnels):
        fitting = {other for other in nearby[index] if _is_same_tenant(captured[other], captured[index])}
        others = {found[other] for other in replays[index] | (nearby[index] - fitting)}
        possible = {found[other] for other in fitting}.union(of_tunnel[tunnel][: len(others) + 1]) - others
        is_alone = not possible or (index in overlaps.over_limit and replays[index])
        number = unused if is_alone else min(possible)
        unused += number == unused
        found.append(number)
        place = bisect_left(of_tunnel[tunnel], number)
        if of_tunnel[tunnel][place : place + 1] != [number]:
            of_tunnel[tunnel].insert(place, number)
    return found


def _nearby_in_other_tunnels(tunnels: Sequence[int | None], overlaps: Overlaps) -> dict[int, set[int]]:
    """Return, for each remainder, those before it that came through another tunnel and may show its connection."""
    nearby: dict[int, set[int]] = defaultdict(set)
    if len(set(tunnels)) > 1:
        last = (
            (earlier, later) for later in range(len(tunnels)) for earlier in range(max(later - MAX_AT_ONCE, 0), later)
        )
        for earlier, later in chain(overlaps.in_time, overlaps.in_bytes, last):
            if tunnels[earlier] != tunnels[later]:
                nearby[later].add(earlier)
    return nearby


def tunnel_identifier(row: RowDict) -> int:
    """Return the identifier of the tunnel that tells a remainder's connection from others of its four-tuple."""
    return NO_IDENTIFIER if row["tunnel_identifier"] is None else int(row["tunnel_identifier"])


def _is_same_tenant(one: Captured, two: Captured) -> bool:
    """Whether the numbers of two remainders of different tunnels show one connection."""
    known = all(
        span.begin is not None and other.begin is not None for span, other in zip(one.spans, two.spans, strict=True)
    )
    return known and _may_be_one_connection(one, two)


def _have_other_bytes(one: Captured, two: Captured) -> bool:
    """Whether a good part of the packets that two remainders kept of the same places is not equal.

    A single one of many may have been damaged on its way to one of the machines.
    """
    common = one.packets.keys() & two.packets.keys()
    sizes = {place: min(len(one.packets[place]), len(two.packets[place])) for place in common}
    other = sum(one.packets[place][:size] != two.packets[place][:size] for place, size in sizes.items())
    return bool(other) and 4 * other >= len(common)


def _clock_difference(one: Captured, two: Captured) -> int:
    """Return by how much the times of two remainders with common bytes differ, in ns; 0 if that is not known."""
    rows = one.row, two.row
    if NO_TIME in (row[name] for row in rows for name in ("first_time_ns", "last_time_ns")):
        return 0
    apart = max(rows[0]["first_time_ns"] - rows[1]["last_time_ns"], rows[1]["first_time_ns"] - rows[0]["last_time_ns"])
    return min(map(abs, _time_differences(one, two)), default=max(apart, 0))


def _time_differences(one: Captured, two: Captured) -> list[int]:
    """Return by how much later each packet that both remainders kept is in the second one, in ns."""
    return [two.times[place] - one.times[place] for place in one.times.keys() & two.times.keys()]


def side_by_side_pairs(captured: Sequence[Captured], overlaps: Overlaps, numbers: Sequence[int]) -> list[Pair]:
    """Return the pairs of remainders of a four-tuple that overlap in one conversation, sorted.

    ``captured`` are sorted by time, ``overlaps`` their ``find_overlaps``, ``numbers`` their ``conversations``.
    """
    return [
        (earlier, later)
        for earlier, later in sorted(overlaps.in_time | overlaps.in_bytes | overlaps.in_numbers)
        if numbers[earlier] == numbers[later] and _do_overlap(captured[earlier], captured[later])
    ]


def group_simultaneous(count_of_rows: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Group the indexes of the remainders of a four-tuple that overlap; ``pairs`` as ``side_by_side_pairs``."""
    sets = DisjointSets(count_of_rows)
    for earlier, later in pairs:
        sets.join(later, earlier)
    return sets.groups()


def pairs_of_taps(
    captured: Sequence[Captured], overlaps: Overlaps, numbers: Sequence[int], taps: Sequence[int]
) -> list[Pair]:
    """Return the pairs of remainders of one conversation and different taps that have common bytes of any direction.

    ``taps`` are the numbers of their taps, one for each. Common bytes of one tap were sent again.
    """
    return [
        (one, two)
        for one, two in sorted(overlaps.in_bytes)
        if numbers[one] == numbers[two]
        and taps[one] != taps[two]
        and _may_be_one_connection(captured[one], captured[two])
    ]


def is_payload(segment: RowDict) -> bool:
    """Whether a segment stands for payload: it has data, or stands for bytes that were framed or skipped before."""
    return bool(segment["data"]) or bool(segment["flags"] & (FRAMED_BEFORE | SKIPPED_BEFORE))


def captured_size(segment: RowDict) -> int:
    """Return how many bytes a segment of a remainder has or, without data, stands for."""
    return int(segment["size"] if segment["data"] is None else len(segment["data"]))


def captured_ranges(row: RowDict, side: int, end: int) -> Iterator[tuple[int, int, RowDict]]:
    """Yield the ranges of stream offsets that a remainder has of a direction, each with its segment.

    ``end``: the offset up to which the direction was read.

    From one segment to the next the way is short, whatever the size of the stream: sequence numbers wrap around.
    """
    body = [segment for segment in row["segments"] if segment["side"] == side and is_payload(segment)]
    at, last, places = 0, 0, []
    for number, segment in enumerate(body):
        at += sequence_difference(segment["sequence"] - last) if number else 0
        last = segment["sequence"]
        places.append((at, at + captured_size(segment), segment))
    shift = end - at - sequence_difference(row["stream_ends"][side]["sequence"] - last)
    yield from ((low + shift, high + shift, segment) for low, high, segment in places if high > low)


def _captured_span(row: RowDict, side: int) -> Span:
    own = [segment for segment in row["segments"] if segment["side"] == side]
    syn = next((segment["sequence"] for segment in own if segment["flags"] & SYN), None)
    body = [segment for segment in own if is_payload(segment)]
    if not body:
        return Span(syn, None, 0)
    lead = body[0]["sequence"]
    places = [(sequence_difference(segment["sequence"] - lead), segment) for segment in body]
    low = min(place for place, _ in places)
    high = max(place + segment["size"] for place, segment in places)
    pieces = IntervalSet()
    for place, segment in places:
        pieces.add(place - low, place - low + captured_size(segment))
    return Span(syn, (lead + low) & 0xFFFFFFFF, high - low, tuple(pieces))


def _do_overlap(one: Captured, two: Captured) -> bool:
    """Whether two remainders overlap: in time with fitting numbers, in bytes of both directions, or by numbers."""
    if one.row["capture_id"] == two.row["capture_id"] or not _may_be_one_connection(one, two):
        return False
    at_once = one.row["first_time_ns"] < two.row["last_time_ns"] and two.row["first_time_ns"] < one.row["last_time_ns"]
    return at_once or _is_seen_again(one, two) or _is_acknowledged_before(one, two)


def _is_acknowledged_before(earlier: Captured, later: Captured) -> bool:
    """Whether the earlier one of two remainders acknowledges what the later one shows to be sent after it.

    Each has packets of one direction alone, and the earlier one acknowledges most of the bytes of the later one: nobody
    acknowledges what was not sent, so the two are of different clocks. With packets of both directions, or few, it is
    one tap that captured something late, or something that was sent again.
    """
    ours, theirs = earlier.row["segments"], later.row["segments"]
    sides = [{segment["side"] for segment in segments} for segments in (ours, theirs)]
    if [len(each) for each in sides] != [1, 1] or sides[0] == sides[1]:
        return False
    acknowledged = [s["acknowledgement"] for s in ours if s["flags"] & (ACK | RST) == ACK and s["acknowledgement"]]
    if not acknowledged:
        return False
    last = max(acknowledged, key=lambda number: sequence_difference(number - acknowledged[0]))
    sent = {segment["sequence"]: captured_size(segment) for segment in theirs if is_payload(segment)}
    before = [size for sequence, size in sent.items() if sequence_difference(sequence + size - last) <= 0]
    return len(before) >= _LEAST_ACKNOWLEDGED and 2 * sum(before) > sum(sent.values())


def _is_seen_again(earlier: Captured, later: Captured) -> bool:
    """Whether two remainders have so much in common that both captures saw it sent.

    Nobody sends a SYN after the bytes that follow it. Bytes from the end of a file may be sent again in the next file.
    But this is never a SYN with all that follows; it is only little data, less than half of what either file has, not
    in both directions; and packets do not all come equally later.
    """
    if not _may_be_one_connection(earlier, later):
        return False
    directions = list(zip(earlier.spans, later.spans, strict=True))
    in_turn = earlier.row["last_time_ns"] <= later.row["first_time_ns"]
    if in_turn and any(starmap(_has_bytes_after_syn, directions)):
        return True
    common = list(starmap(_common_bytes, directions))
    if not all(common):
        return False
    if any(span.syn is not None and other.syn is not None for span, other in directions):
        return True
    if sum(common) <= min(min(earlier.size, later.size) // 2, _MAX_REPEATED_BYTES):
        return False
    differences = _time_differences(earlier, later)
    return not differences or max(differences) - min(differences) <= min(map(abs, differences)) // 8


def _has_bytes_after_syn(span: Span, other: Span) -> bool:
    """Whether a remainder has bytes that follow the SYN of another one in the same direction."""
    return span.low is not None and other.syn is not None and sequence_difference(span.low - other.syn) in _AFTER_SYN


def _may_be_one_connection(one: Captured, two: Captured) -> bool:
    """Whether the sequence numbers of two remainders fit one connection."""
    for span, other in zip(one.spans, two.spans, strict=True):
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
    found = place = 0
    for low, high in other.pieces:
        while place < len(span.pieces) and span.pieces[place][1] <= low + ahead:
            place += 1
        at = place
        while at < len(span.pieces) and span.pieces[at][0] < high + ahead:
            found += min(high + ahead, span.pieces[at][1]) - max(low + ahead, span.pieces[at][0])
            at += 1
    return found


def overlay_segments(rows: Sequence[RowDict]) -> list[CapturedSegment]:
    """Overlay a group of remainders: return their segments as if of one capture."""
    has_pdus = all(row["kind"] != "binary_protocol" for row in rows)  # the bytes of a message may look like one
    begin: list[CapturedSegment] = []
    bodies: list[CapturedSegment] = []
    ending: list[tuple[tuple[int, int, int], CapturedSegment]] = []
    for side in (0, 1):
        parts = [CapturedSegment(s, row["capture_id"]) for row in rows for s in row["segments"] if s["side"] == side]
        if not parts:
            continue
        lead = parts[0].segment["sequence"]
        body = [part for part in parts if is_payload(part.segment)]
        union = _union_direction(_flag_joined_pdus(body, lead) if has_pdus else body, lead)
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
    sequence: int = part.segment["sequence"]
    return sequence_difference(sequence - lead)


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
        begin, first = pieces[index]
        end, parts = begin + len(first), [first]
        index += 1
        while index < len(pieces) and pieces[index][0] == end:
            parts.append(pieces[index][1])
            end += len(parts[-1])
            index += 1
        data = b"".join(parts)
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

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the intervals in order."""
        return zip(self._starts, self._ends, strict=True)

    def split(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts of an interval in order, each with a flag: whether it is in the set."""
        place = bisect_right(self._ends, start)
        while place < len(self._starts) and self._starts[place] < end:
            low, high = max(self._starts[place], start), min(self._ends[place], end)
            if start < low:
                yield start, low, False
            yield low, high, True
            start = high
            place += 1
        if start < end:
            yield start, end, False
