"""Relates the clocks of the taps of a connection, so that its events can be ordered (tables.md, rpc_calls).

The beginning of a request or response that two taps saw has a time of each clock. The taps lie on one path: whatever
byte the difference is taken from, it differs from that of the clocks by less than the way between the taps, so that
times which are reduced by it still show a request before its response, and a response before the request that it
brought about. Taps that have nothing in common may have the two directions: no response comes before its request, and
the quickest one shows how far ahead a clock can be at most. TCP positions overrule all this: what is sent first in a
direction comes first.

Where the difference of two clocks jumps and stays there, one of them was set; which one is not known. What the clocks
differ by is looked at on each side of such a place alone (``between_jumps``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from operator import itemgetter
from statistics import median_low
from typing import Final, NamedTuple

from udfs.capture.clock_steps import CLOCK_OF_TAP, NO_STEPS, UNKNOWN_CLOCK, ClockSteps, SetClock
from udfs.rows import RowDict
from udfs.rpc.call_schema import GIVEN_UP_COLUMNS, HALVES
from udfs.tcp.connections import sequence_difference
from udfs.times import us_to_datetime

NEAREST: Final = 9  # differences whose median is taken: clocks drift, and single segments are lost and sent again
_LEAST_COMMON: Final = 3  # differences on each side of a place that show that one of the clocks was set there
LEAST_JUMP_US: Final = 1_000_000
_MAX_DRIFT: Final = 2e-4  # of two clocks; a difference that grows by less than that in the time between was not set


class SeenTwice(NamedTuple):
    """When each of two taps saw the same byte, in us, as if no clock had been set that captures show themselves."""

    one: int
    other: int

    @property
    def difference(self) -> int:
        """How far the first clock is ahead, in us."""
        return self.one - self.other


def between_jumps(seen: Iterable[SeenTwice]) -> list[list[SeenTwice]]:
    """Return what two taps saw in the order of time, cut where the difference of their clocks jumps and stays there.

    It jumps where the medians of the nearest differences on both sides, of 3 or more, differ by 1 s or more, and by
    more than clocks drift in that time. What fits to neither side is left out. Times of one of the taps may not be in
    order: its clock may have been set back between two files.
    """
    orders = (sorted(seen, key=itemgetter(place)) for place in (0, 1))
    return _cut_at_jumps(min(orders, key=lambda order: sum(_change(*pair) for pair in pairwise(order))))


def _change(one: SeenTwice, two: SeenTwice) -> int:
    return abs(one.difference - two.difference)


def _cut_at_jumps(seen: Sequence[SeenTwice]) -> list[list[SeenTwice]]:
    differences = [each.difference for each in seen]
    found, begin, last = list[list[SeenTwice]](), 0, 0
    for place, difference in enumerate(differences):
        since, until = max(begin, place - NEAREST), min(place + NEAREST, len(seen))
        if place - begin >= _LEAST_COMMON:
            usual = median_low(differences[since:place])
            passed = min(seen[until - 1].one - seen[since].one, seen[until - 1].other - seen[since].other)
            least = LEAST_JUMP_US + int(_MAX_DRIFT * max(passed, 0))
            if abs(difference - usual) >= least and abs(differences[last] - usual) < least:
                later = median_low(differences[place:until])
                if until - place < _LEAST_COMMON or abs(later - usual) < least:
                    continue  # as before, but for this one
                if abs(difference - later) >= least:
                    continue  # neither as before nor as behind
                found.append([*seen[begin : last + 1]])
                begin = place
        last = place
    return [*found, [*seen[begin:]]]


@dataclass(slots=True)
class _FirstByte:
    """The first byte of a half of a call: when each tap saw it, and which of them the row shows; times in us.

    The times are as if no clock had been set. ``set_clocks`` are those of the taps: where captures show that they were.
    """

    row: RowDict
    half: str
    tap: int
    times: dict[int, int]
    set_clocks: dict[int, SetClock]
    order_at: int = 0  # on the clock of the reference tap (``_TapClocks.order_at``)

    @property
    def set_clock(self) -> SetClock:
        """The clock of the tap that the row shows."""
        return self.set_clocks[self.tap]

    @property
    def at(self) -> int:
        """The time that the row shows, as if the clock had not been set."""
        return self.times[self.tap]

    @property
    def sequence(self) -> int:
        """The TCP sequence number."""
        return int(self.row[f"{self.half}_sequence"])


def set_clocks(rows: Sequence[RowDict], tap_of: Mapping[str, int], steps: ClockSteps = NO_STEPS) -> None:
    """Set the column ``clocks`` of all calls of a connection, whose ``sightings`` are complete.

    ``tap_of`` is the tap of each capture. It is null for a half of a capture that is not among them. The times when
    calls were given up are changed to the clock of the tap that saw the request. ``steps``: where clocks were set.
    """
    events = [event for row in rows for half in HALVES for event in _events(row, half, tap_of, steps)]
    clocks = _TapClocks(events)
    for event in events:
        event.order_at = clocks.order_at(event.tap, event.at)
    for half in HALVES:
        _order_by_position([event for event in events if event.half == half], clocks.reference)
    _order_halves(events, clocks.reference)
    for row in rows:
        row["clocks"] = {f"{half}_{name}": None for half in HALVES for name in ("tap", "ahead_us")}
    for event in events:
        tap = event.tap + event.set_clock.clock * CLOCK_OF_TAP
        ahead = event.at - event.set_clock.us - event.order_at
        event.row["clocks"] |= {f"{event.half}_tap": tap, f"{event.half}_ahead_us": ahead}
    for seen_on in (row["clocks"] for row in rows if steps.lies_between(row)):
        if seen_on["response_tap"] is not None:
            seen_on["response_tap"] = seen_on["response_tap"] % CLOCK_OF_TAP + UNKNOWN_CLOCK * CLOCK_OF_TAP
    for row, name in ((row, name) for row in rows for name in GIVEN_UP_COLUMNS if row[name] is not None):
        seen = next((seen for seen in row["sightings"] if seen[name] is not None), None)
        if seen is None:
            continue
        seen_by, request_tap = tap_of.get(seen["capture_id"]), row["clocks"]["request_tap"]
        if seen_by is not None and request_tap is not None and seen_by != request_tap % CLOCK_OF_TAP:
            row[name] = us_to_datetime(clocks.order_at(seen_by, seen[name]) + row["clocks"]["request_ahead_us"])


def _events(row: RowDict, half: str, tap_of: Mapping[str, int], steps: ClockSteps) -> Iterable[_FirstByte]:
    """Yield the event of a half, if its first byte was seen."""
    capture = "capture_id" if half == "request" else "response_capture_id"
    times: dict[int, int] = {}
    clocks: dict[int, SetClock] = {}
    for seen in row["sightings"]:
        tap, at = tap_of.get(seen[capture]), seen[f"{half}_at"]
        if seen[half] and at is not None and tap is not None:
            clock = steps.before(seen[capture], seen[f"{half}_packet"])
            if at + clock.us < times.get(tap, at + clock.us + 1):
                times[tap], clocks[tap] = at + clock.us, clock
    shown = tap_of.get(row[capture])
    if shown in times:
        clocks[shown] = steps.before(row[capture], row[f"{half}_packet"])
        yield _FirstByte(row, half, shown, times, clocks)


class _Differences:
    """How far one tap is ahead of another one, by its own time, in parts between which one of their clocks was set."""

    def __init__(self, parts: Iterable[Iterable[tuple[int, int]]]) -> None:
        """``parts``: times of the first tap, and how far it is ahead then, us."""
        self._parts = sorted(sorted(part) for part in parts)
        self._begins = [part[0][0] for part in self._parts]
        self._usual = [median_low(value for _, value in part) for part in self._parts]
        self.jumps = len(self._parts) > 1

    def values(self) -> list[int]:
        """Return all differences."""
        return [value for part in self._parts for _, value in part]

    def near(self, at: int) -> int:
        """Return the median of those nearest to a time, with no jump between them."""
        found = self._parts[self._part(at)]
        place = bisect_left(found, (at,))
        first = max(0, min(place - NEAREST // 2, len(found) - NEAREST))
        return median_low(value for _, value in found[first : first + NEAREST])

    def usual(self, at: int) -> int:
        """Return the median of the part that has a time or is nearest to it."""
        return self._usual[self._part(at)]

    def _part(self, at: int) -> int:
        before = max(bisect_right(self._begins, at) - 1, 0)
        behind = min(before + 1, len(self._parts) - 1)
        return before if at - self._parts[before][-1][0] <= self._begins[behind] - at else behind


class _TapClocks:
    """How far the clocks of taps are ahead of that of the ``reference``, which is the one that is behind all others."""

    def __init__(self, events: Sequence[_FirstByte]) -> None:
        seen: defaultdict[tuple[int, int], list[SeenTwice]] = defaultdict(list)
        taps: set[int] = set()
        for event in events:
            taps |= event.times.keys()
            for one, two in combinations(sorted(event.times), 2):
                seen[one, two].append(SeenTwice(event.times[one], event.times[two]))
        self._differences: dict[tuple[int, int], _Differences] = {}
        for (one, two), common in seen.items():
            parts = between_jumps(common)
            self._differences[one, two] = _Differences([(each.one, each.difference) for each in part] for part in parts)
            self._differences[two, one] = _Differences(
                [(each.other, -each.difference) for each in part] for part in parts
            )
        for pair, difference in _differences_of_directions(events, self._differences.keys()):
            self._differences[pair] = _Differences([[(0, difference)]])
        ahead = self._usually_ahead(sorted(taps))
        self.reference = min(ahead, key=lambda tap: (ahead[tap], tap), default=0)
        self._usual = {tap: value - ahead[self.reference] for tap, value in ahead.items()}
        self._jumping = [
            found for (one, _), found in self._differences.items() if one == self.reference and found.jumps
        ]

    def _usually_ahead(self, taps: Sequence[int]) -> dict[int, int]:
        """Return by how much each tap is ahead of the first one, through the pairs that have most in common.

        A tap that has nothing in common with another is taken to have the clock of the first one.
        """
        ahead: dict[int, int] = {}
        found = {pair: differences.values() for pair, differences in self._differences.items()}
        pairs = sorted(found, key=lambda pair: (-len(found[pair]), pair))
        for tap in taps:
            ahead.setdefault(tap, 0)
            while (pair := next((p for p in pairs if p[0] not in ahead and p[1] in ahead), None)) is not None:
                ahead[pair[0]] = ahead[pair[1]] + median_low(found[pair])
        return ahead

    def order_at(self, tap: int, at: int) -> int:
        """Return what the reference shows when a tap shows a time, in us; or what the clock that is behind it shows.

        A clock that was set may be behind all others only before or only behind that place. The other connections of
        the same captures, which may lie wholly on one side of it, are ordered by the clock that is behind there.
        """
        on_reference = at - self._ahead(tap, at)
        return on_reference - max([0, *(found.usual(on_reference) for found in self._jumping)])

    def _ahead(self, tap: int, at: int) -> int:
        """Return by how much a tap's clock is ahead of that of the reference when it shows a time; in us."""
        found = self._differences.get((tap, self.reference))
        return self._usual.get(tap, 0) if tap == self.reference or found is None else found.near(at)


def _differences_of_directions(
    events: Sequence[_FirstByte], known: Collection[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield by how much a tap that saw responses is ahead of one that saw their requests, for pairs that are not known.

    That is at most the shortest time between them; where each tap saw responses to requests of the other, at least too.
    """
    at_most: dict[tuple[int, int], int] = {}
    requests = {id(event.row): event for event in events if event.half == "request"}
    for response in (event for event in events if event.half == "response"):
        request = requests.get(id(response.row))
        pair = (response.tap, request.tap) if request is not None else None
        if request is not None and pair is not None and pair[0] != pair[1] and pair not in known:
            at_most[pair] = min(response.at - request.at, at_most.get(pair, response.at - request.at))
    for (one, two), most in at_most.items():
        least = at_most.get((two, one))
        if least is None or one < two:
            difference = most if least is None else (most - least) // 2
            yield (one, two), difference
            yield (two, one), -difference


def _order_by_position(events: Iterable[_FirstByte], reference: int) -> None:
    """Move the events of a direction that the reference tap did not see between those that it saw around them."""
    in_time = sorted(events, key=lambda event: (event.order_at, event.row["call_key"]))
    if not in_time:
        return
    places = [0]  # in the stream: sequence numbers wrap around
    for before, event in pairwise(in_time):
        places.append(places[-1] + sequence_difference(event.sequence - before.sequence))
    in_place = [event for _, event in sorted(zip(places, in_time, strict=True), key=lambda each: each[0])]
    latest = None  # time that the next one may have
    for event in reversed(in_place):
        if event.tap == reference:
            latest = event.order_at
        elif latest is not None:
            event.order_at = min(event.order_at, latest)
    for before, event in pairwise(in_place):
        if event.tap != reference:
            event.order_at = max(event.order_at, before.order_at)


def _order_halves(events: Iterable[_FirstByte], reference: int) -> None:
    """Move a half that the reference tap did not see, so that no request comes after its response."""
    requests = {id(event.row): event for event in events if event.half == "request"}
    for response in (event for event in events if event.half == "response"):
        request = requests.get(id(response.row))
        if request is not None and request.order_at > response.order_at:
            if response.tap != reference:
                response.order_at = request.order_at
            else:
                request.order_at = response.order_at
