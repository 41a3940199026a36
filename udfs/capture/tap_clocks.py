"""Relates the clocks of the taps of a connection, so that its events can be ordered (tables.md, rpc_calls).

The beginning of a request or response that two taps saw has a time of each clock. The taps lie on one path: whatever
byte the difference is taken from, it differs from that of the clocks by less than the way between the taps, so that
times which are reduced by it still show a request before its response, and a response before the request that it
brought about. Taps that have nothing in common may have the two directions: no response comes before its request, and
the quickest one shows how far ahead a clock can be at most. TCP positions overrule all this: what is sent first in a
direction comes first.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median_low
from typing import Final

from udfs.capture.clock_steps import CLOCK_OF_TAP, NO_STEPS, NOT_KNOWN, ClockSteps, SetClock
from udfs.rows import RowDict
from udfs.rpc.call_schema import GIVEN_UP_COLUMNS, HALVES
from udfs.tcp.connections import sequence_difference

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NEAREST: Final = 9  # differences whose median is taken: clocks drift, and single segments are lost and sent again


def to_us(time: dt.datetime | None) -> int | None:
    """Return a time in us since the epoch."""
    return None if time is None else (time - _EPOCH) // dt.timedelta(microseconds=1)


def to_time(us: int | None) -> dt.datetime | None:
    """Return us since the epoch as a time."""
    return None if us is None else _EPOCH + dt.timedelta(microseconds=us)


@dataclass(slots=True)
class _Event:
    """The first byte of a half of a call: when each tap saw it, and which of them the row shows; times in us.

    The times are as if no clock had been set; ``set_clock`` is that of the tap that is shown.
    """

    row: RowDict
    half: str
    tap: int
    times: dict[int, int]
    set_clock: SetClock
    order_at: int = 0  # on the clock of the reference tap

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
        event.order_at = event.at - clocks.ahead(event.tap, event.at)
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
            seen_on["response_tap"] += NOT_KNOWN * CLOCK_OF_TAP
    for row, name in ((row, name) for row in rows for name in GIVEN_UP_COLUMNS if row[name] is not None):
        seen = next((seen for seen in row["sightings"] if seen[name] is not None), None)
        if seen is None:
            continue
        seen_by, request_tap = tap_of.get(seen["capture_id"]), row["clocks"]["request_tap"]
        if seen_by is not None and request_tap is not None and seen_by != request_tap % CLOCK_OF_TAP:
            row[name] = to_time(seen[name] - clocks.ahead(seen_by, seen[name]) + row["clocks"]["request_ahead_us"])


def _events(row: RowDict, half: str, tap_of: Mapping[str, int], steps: ClockSteps) -> Iterable[_Event]:
    """Yield the event of a half, if its first byte was seen."""
    capture = "capture_id" if half == "request" else "response_capture_id"
    times: dict[int, int] = {}
    for seen in row["sightings"]:
        tap, at = tap_of.get(seen[capture]), seen[f"{half}_at"]
        if seen[half] and at is not None and tap is not None:
            at += steps.before(seen[capture], seen[f"{half}_packet"]).us
            times[tap] = min(at, times.get(tap, at))
    shown = tap_of.get(row[capture])
    if shown in times:
        yield _Event(row, half, shown, times, steps.before(row[capture], row[f"{half}_packet"]))


class _TapClocks:
    """How far the clocks of taps are ahead of that of the ``reference``, which is the one that is behind all others."""

    def __init__(self, events: Sequence[_Event]) -> None:
        differences: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        taps: set[int] = set()
        for event in events:
            taps |= event.times.keys()
            for one, two in combinations(sorted(event.times), 2):
                difference = event.times[one] - event.times[two]
                differences[one, two].append((event.times[one], difference))
                differences[two, one].append((event.times[two], -difference))
        for pair, difference in _differences_of_directions(events, differences.keys()):
            differences[pair].append((0, difference))
        self._differences = {pair: sorted(found) for pair, found in differences.items()}
        ahead = self._usually_ahead(sorted(taps))
        self.reference = min(ahead, key=lambda tap: (ahead[tap], tap), default=0)
        self._usual = {tap: value - ahead[self.reference] for tap, value in ahead.items()}

    def _usually_ahead(self, taps: Sequence[int]) -> dict[int, int]:
        """Return by how much each tap is ahead of the first one, through the pairs that have most in common.

        A tap that has nothing in common with another is taken to have the clock of the first one.
        """
        ahead: dict[int, int] = {}
        pairs = sorted(self._differences, key=lambda pair: (-len(self._differences[pair]), pair))
        for tap in taps:
            ahead.setdefault(tap, 0)
            while (pair := next((p for p in pairs if p[0] not in ahead and p[1] in ahead), None)) is not None:
                ahead[pair[0]] = ahead[pair[1]] + median_low(value for _, value in self._differences[pair])
        return ahead

    def ahead(self, tap: int, at: int) -> int:
        """Return by how much a tap's clock is ahead of that of the reference when it shows a time; in us."""
        found = self._differences.get((tap, self.reference))
        if tap == self.reference or found is None:
            return self._usual.get(tap, 0)
        place = bisect_left(found, (at,))
        first = max(0, min(place - _NEAREST // 2, len(found) - _NEAREST))
        return median_low(value for _, value in found[first : first + _NEAREST])


def _differences_of_directions(
    events: Sequence[_Event], known: Collection[tuple[int, int]]
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


def _order_by_position(events: Iterable[_Event], reference: int) -> None:
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


def _order_halves(events: Iterable[_Event], reference: int) -> None:
    """Move a half that the reference tap did not see, so that no request comes after its response."""
    requests = {id(event.row): event for event in events if event.half == "request"}
    for response in (event for event in events if event.half == "response"):
        request = requests.get(id(response.row))
        if request is not None and request.order_at > response.order_at:
            if response.tap != reference:
                response.order_at = request.order_at
            else:
                request.order_at = response.order_at
