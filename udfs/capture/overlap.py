"""Captures that saw one connection at the same time: two machines that listened, or files that overlap.

Remainders of such captures are laid over each other by sequence number, as if one capture had seen what any of them
saw: its clock is that of the earliest. Clocks may differ, so it is the bytes that tell which captures these are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from udfs.dcerpc.pdu import frag_length, walk
from udfs.files.container import PAD
from udfs.tcp.flows import JUMP, signed
from udfs.tcp.packets import ACK, BEGINS, CUT_BEFORE, FIN, PASSED_OVER, RST, SYN

Row = dict[str, Any]
_REPEATED: Final = 64 << 10  # more than that is not sent again at once
WHOLE: Final = 0x8000  # flag of a remainder's segments: of a PDU that is there from its first byte to its last


class Part(NamedTuple):
    """A segment of a remainder, and the capture that it is of."""

    segment: Row
    capture_id: str


class Observer(NamedTuple):
    """Bytes of one side that a capture saw too, besides the one that they are taken from."""

    side: int
    sequence: int
    size: int
    capture_id: str
    time_ns: int
    number: int


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Put remainders of one four-tuple, in order of time, into groups that saw one connection at the same time."""
    spans = [_spans(row) for row in rows]
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for earlier, later in _near(rows, spans):
        if root(earlier) != root(later) and _together(rows[earlier], rows[later], spans[earlier], spans[later]):
            parent[root(later)] = root(earlier)
    found: dict[int, list[Row]] = defaultdict(list)
    for index, row in enumerate(rows):
        found[root(index)].append(row)
    return list(found.values())


def _near(rows: Sequence[Row], spans: Sequence[tuple[_Span, _Span]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that may be together: their times overlap, or what they have of side 0.

    Of a connection that lives through thousands of files these are neighbours, not each with each.
    """
    current: list[int] = []
    for later, row in enumerate(rows):
        current = [earlier for earlier in current if rows[earlier]["last_time_ns"] > row["first_time_ns"]]
        yield from ((earlier, later) for earlier in current)
        current.append(later)
    begins = sorted((span.low, index) for index, (span, _) in enumerate(spans) if span.low is not None)
    for place, (low, index) in enumerate(begins):
        for step in range(1, len(begins)):
            other_low, other = begins[(place + step) % len(begins)]  # sequence numbers go round
            if (other_low - low) & 0xFFFFFFFF >= spans[index][0].size:
                break
            yield min(index, other), max(index, other)


class _Span(NamedTuple):
    syn: int | None
    low: int | None  # sequence number of the first byte, and how many octets are from there to the last
    size: int


def _is_body(segment: Row) -> bool:
    return bool(segment["data"]) or bool(segment["flags"] & (CUT_BEFORE | PASSED_OVER))


def _spans(row: Row) -> tuple[_Span, _Span]:
    found = []
    for side in (0, 1):
        own = [segment for segment in row["segments"] if segment["side"] == side]
        syn = next((segment["sequence"] for segment in own if segment["flags"] & SYN), None)
        body = [segment for segment in own if _is_body(segment)]
        if not body:
            found.append(_Span(syn, None, 0))
            continue
        lead = body[0]["sequence"]
        low = min(signed(segment["sequence"] - lead) for segment in body)
        high = max(signed(segment["sequence"] - lead) + segment["size"] for segment in body)
        found.append(_Span(syn, (lead + low) & 0xFFFFFFFF, high - low))
    return found[0], found[1]


def _together(one: Row, two: Row, spans: tuple[_Span, _Span], others: tuple[_Span, _Span]) -> bool:
    """Whether both are of the same time and fit, or have the same bytes of both directions, and not just repeated ones.

    What the end of a file has may be sent again in the next one; but no SYN with all that follows it, and not much.
    """
    if one["capture_id"] == two["capture_id"]:
        return False
    shared = octets = 0
    both_begin = False
    for span, other in zip(spans, others, strict=True):
        if span.syn is not None and other.syn is not None and span.syn != other.syn:
            return False
        both_begin |= span.syn is not None and other.syn is not None
        if span.low is None or other.low is None:
            continue
        ahead = signed(other.low - span.low)
        if not -other.size - JUMP <= ahead <= span.size + JUMP:
            return False
        common = min(span.size, ahead + other.size) - max(0, ahead)
        shared += common > 0
        octets += max(common, 0)
    at_once = one["first_time_ns"] < two["last_time_ns"] and two["first_time_ns"] < one["last_time_ns"]
    return at_once or (shared == 2 and (both_begin or octets > _REPEATED))


def laid_over(rows: Sequence[Row]) -> tuple[list[Part], list[Observer]]:
    """Return the segments of a group as of one capture, and who saw what is taken from another one."""
    begin: list[Part] = []
    bodies: list[Part] = []
    ending: list[tuple[tuple[int, int, int], Part]] = []
    observers: list[Observer] = []
    for side in (0, 1):
        parts = [Part(s, row["capture_id"]) for row in rows for s in row["segments"] if s["side"] == side]
        if not parts:
            continue
        lead = parts[0].segment["sequence"]
        body = [part for part in parts if _is_body(part.segment)]
        union, dropped = _union(body, lead)
        observers += dropped
        bodies += union
        low = min((_at(part, lead) for part in union), default=None)
        high = max((_at(part, lead) + part.segment["size"] for part in union), default=None)
        for part in parts:
            flags, at = part.segment["flags"], _at(part, lead)
            if _is_body(part.segment):
                continue
            order = (at, signed(part.segment["acknowledgement"] - parts[0].segment["acknowledgement"]), 0)
            if flags & SYN or (flags == ACK and (low is None or at <= low)):
                begin.append(part)
            if flags & (FIN | RST) or (not flags & SYN and (high is None or at >= high)):
                ending.append((((1 << 40) if flags & RST else order[0], *order[1:]), part))
    begin.sort(key=lambda part: (not part.segment["flags"] & SYN, part.segment["time_ns"], part.capture_id))
    ending.sort(key=lambda each: (each[0], each[1].segment["time_ns"], each[1].capture_id))
    return begin + bodies + [part for _, part in ending], observers


def _at(part: Part, lead: int) -> int:
    return signed(part.segment["sequence"] - lead)


def _rank(segment: Row) -> int:
    """What counts more where several captures have the same bytes.

    First what others may still need: whole PDUs of unfinished calls. Bytes of no whole PDU come last: what is settled
    elsewhere explains them.
    """
    flags = segment["flags"]
    return 0 if flags & WHOLE else 1 if flags & CUT_BEFORE else 3 if flags & PASSED_OVER else 2


def _union(body: list[Part], lead: int) -> tuple[list[Part], list[Observer]]:
    """One direction's bytes, each once, in order."""
    begins = any(part.segment["flags"] & BEGINS for part in body)
    body = _promoted(body, lead)
    doubts = _doubts(body, lead)
    covered = _Intervals()
    chosen: list[Part] = []
    dropped: list[Observer] = []
    for part in sorted(body, key=lambda p: (_rank(p.segment), p.segment["time_ns"], p.capture_id, _at(p, lead))):
        segment, start = part.segment, _at(part, lead)
        size = segment["size"] if segment["data"] is None else len(segment["data"])
        left = list(covered.take(start, start + size))
        chosen += [Part(_cut(segment, low - start, high - start), part.capture_id) for low, high in left]
        if segment["data"] and left != [(start, start + size)]:
            dropped.append(
                Observer(
                    segment["side"], segment["sequence"], size, part.capture_id, segment["time_ns"], segment["number"]
                )
            )
    chosen.sort(key=lambda part: _at(part, lead))
    found = []
    for index, part in enumerate(chosen):
        segment = dict(part.segment)
        if index + 1 < len(chosen):  # what a capture cut off its packet, another one may have
            segment["size"] = min(segment["size"], _at(chosen[index + 1], lead) - _at(part, lead))
        if segment["flags"] & CUT_BEFORE and doubts.meets(_at(part, lead), _at(part, lead) + segment["size"]):
            segment["flags"] |= PASSED_OVER
        segment["flags"] = segment["flags"] & ~BEGINS | (BEGINS if begins and not index else 0)
        found.append(Part(segment, part.capture_id))
    return found, dropped


def _promoted(body: list[Part], lead: int) -> list[Part]:
    """Mark PDUs as whole of which several captures, say two files of one ring, have all bytes together."""
    loose = [part for part in body if _rank(part.segment) == 2 and part.segment["data"]]
    loose.sort(key=lambda p: (p.segment["time_ns"], p.capture_id, _at(p, lead)))
    seen, pieces = _Intervals(), []
    for part in loose:
        start = _at(part, lead)
        for low, high in seen.take(start, start + len(part.segment["data"])):
            pieces.append((low, part.segment["data"][low - start : high - start]))
    pieces.sort()
    whole = _Intervals()
    index = 0
    while index < len(pieces):
        begin, data = pieces[index]
        index += 1
        while index < len(pieces) and pieces[index][0] == begin + len(data):
            data += pieces[index][1]
            index += 1
        found: list[int] = []
        walk(data + bytes(PAD), 0, len(data), found)
        if found:
            last = found[-1]
            list(whole.take(begin, begin + last + frag_length(data, last)))
    out = []
    for part in body:
        segment, start = part.segment, _at(part, lead)
        size = len(segment["data"] or b"")
        if _rank(segment) != 2 or not whole.meets(start, start + size):
            out.append(part)
            continue
        for low, high, inside in whole.split(start, start + size):
            cut = _cut(segment, low - start, high - start)
            out.append(Part({**cut, "flags": cut["flags"] | (WHOLE if inside else 0)}, part.capture_id))
    return out


def _doubts(body: list[Part], lead: int) -> _Intervals:
    """Return what some capture has not whole, of all between its first byte and its last."""
    good: dict[str, _Intervals] = defaultdict(_Intervals)
    spans: dict[str, tuple[int, int]] = {}
    for part in body:
        start = _at(part, lead)
        end = start + part.segment["size"]
        low, high = spans.get(part.capture_id, (start, end))
        spans[part.capture_id] = min(low, start), max(high, end)
        if _rank(part.segment) < 2:
            list(good[part.capture_id].take(start, end))
    found = _Intervals()
    for capture_id, (low, high) in spans.items():
        for start, end in good[capture_id].take(low, high):
            list(found.take(start, end))
    return found


def _cut(segment: Row, low: int, high: int) -> Row:
    data = segment["data"]
    size = segment["size"] if data is None else len(data)
    lost = segment["size"] - size if high == size else 0
    return {
        **segment,
        "sequence": (segment["sequence"] + low) & 0xFFFFFFFF,
        "file_offset": segment["file_offset"] + low,
        "size": high - low + lost,
        "data": None if data is None else data[low:high],
    }


class _Intervals:
    """A set of numbers, as disjoint intervals in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Add an interval, and return what of it was not in the set."""
        first = bisect_right(self._ends, start)
        at, last, left = start, first, []
        while last < len(self._starts) and self._starts[last] < end:
            if at < self._starts[last]:
                left.append((at, self._starts[last]))
            at = max(at, self._ends[last])
            last += 1
        if at < end:
            left.append((at, end))
        if start < end:
            low = min([start, *self._starts[first:last]])
            high = max([end, *self._ends[first:last]])
            self._starts[first:last], self._ends[first:last] = [low], [high]
        return iter(left)

    def meets(self, start: int, end: int) -> bool:
        """Whether any number of an interval is in the set."""
        first = bisect_right(self._ends, start)
        return first < len(self._starts) and self._starts[first] < end

    def split(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts of an interval in order, each with whether it is in the set."""
        for low, high in zip(self._starts, self._ends, strict=True):
            low, high = max(low, start), min(high, end)  # noqa: PLW2901
            if low < high:
                if start < low:
                    yield start, low, False
                yield low, high, True
                start = high
        if start < end:
            yield start, end, False
