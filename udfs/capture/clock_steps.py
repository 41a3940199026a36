"""Places where a capture's clock was set, as the ledger has them: which times of packets were taken on which clock.

Behind such a place the times of a capture are those of another clock. So a call's halves are of two clocks if it lies
between them (column ``clocks`` of ``rpc_calls``): they give no duration, and less what the clocks are ahead the order
of events. Where a clock was set back, the times behind the place count as later; where it was set forward, those before
it do: then they fit to the times at which captures and connections end.

Some places only another capture of the same packets shows (``TapStep``): one of both clocks was set, it is not known
which, and somewhere between two packets. Times count as they are, and no duration across such a place is known.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from udfs.capture.record_order import CLOCK_SET, MAX_STEPS, OUT_OF_ORDER
from udfs.keys import key
from udfs.rows import RowDict
from udfs.rpc.call_schema import HALVES
from udfs.times import datetime_to_us, us_to_datetime

_CAPTURES: Final = ("capture_id", "response_capture_id")
CLOCK_OF_TAP: Final = 1000  # a tap's number is raised by this times the number of the clock (``SetClock.clock``)
_CLOCK_NUMBERS: Final = 2000  # captures whose clocks were set have numbers apart; all fit into 32 bits
UNKNOWN_CLOCK: Final = 1 + _CLOCK_NUMBERS * (
    MAX_STEPS + 1
)  # number of a clock that may have been set in another capture
_INSIDE_NUMBERS: Final = 100_000  # behind ``UNKNOWN_CLOCK``: of packets before which a clock may have been set or not


class SetClock(NamedTuple):
    """Which clock a capture's packet was captured by, and what its time lacks to be that of one clock, in us.

    ``clock`` is 0 in a capture whose clock was never set, and another one behind each place where it was.
    """

    clock: int
    us: int


_NEVER: Final = SetClock(0, 0)


class TapStep(NamedTuple):
    """A place where the clock of a capture was set, or that of another capture: both have the packets around it.

    The last packet before and the first one behind that both have, by their numbers and times (us) in this capture.
    ``by_us``: by how much the difference of the clocks changed there.
    """

    other_capture_id: str
    last_packet: int
    last_at: int
    first_packet: int
    first_at: int
    by_us: int

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> TapStep:
        """Return an element of the ledger's column ``tap_steps``."""
        last_at, first_at = (_us(row[name]) for name in ("last_at", "first_at"))
        return TapStep(
            row["other_capture_id"], row["last_packet"], last_at, row["first_packet"], first_at, row["by_us"]
        )

    def row(self) -> RowDict:
        """Return the element of the ledger's column."""
        return {name: us_to_datetime(each) if name.endswith("_at") else each for name, each in self._asdict().items()}

    def overlaps(self, other: TapStep) -> bool:
        """Whether the same other capture shows a place that may be the same."""
        if self.other_capture_id != other.other_capture_id:
            return False
        return self.last_packet < other.first_packet and other.last_packet < self.first_packet

    def joined(self, other: TapStep) -> TapStep:
        """Return a place that covers two."""
        return TapStep(
            self.other_capture_id,
            min(self.last_packet, other.last_packet),
            min(self.last_at, other.last_at),
            max(self.first_packet, other.first_packet),
            max(self.first_at, other.first_at),
            max(self.by_us, other.by_us),
        )


def join_tap_steps(found: Iterable[TapStep]) -> list[TapStep]:
    """Return places in the order of the capture; those that have packets in common are one, as several may show it."""
    out: list[TapStep] = []
    for each in sorted(found, key=lambda step: (step.last_packet, step)):
        if out and each.last_packet < out[-1].first_packet:
            out[-1] = out[-1].joined(each)
        else:
            out.append(each)
    return out


class ClockSteps:
    """Where the clocks of captures were set."""

    def __init__(self, ledger_rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """``ledger_rows``: rows of ``bronze.capture_files``, or their capture_id, times_go_back and tap_steps."""
        self._packets: dict[str, list[int]] = {}
        self._lacks: dict[str, list[int]] = {}
        self._shown_twice: list[tuple[str, int, int]] = []
        self._skipped: list[tuple[str, int, int]] = []
        self._by_taps: dict[str, list[TapStep]] = {}
        self._out_of_order: set[str] = set()
        for row in ledger_rows:
            name = row["capture_id"]
            if any(step["cause"] == OUT_OF_ORDER for step in row["times_go_back"] or ()):
                self._out_of_order.add(name)
            if by_taps := join_tap_steps(map(TapStep.from_row, row.get("tap_steps") or ())):
                self._by_taps[name] = by_taps
            steps = [step for step in row["times_go_back"] or () if step["cause"] == CLOCK_SET]
            if steps:
                back = [step["back_us"] for step in steps]
                forward = sum(-us for us in back if us < 0)
                self._packets[name] = [step["packet"] for step in steps]
                self._lacks[name] = [*accumulate(back, initial=forward)]
                for step, us in zip(steps, back, strict=True):
                    at = _us(step["at"])
                    (self._shown_twice if us > 0 else self._skipped).append((name, *sorted((at, at + us))))

    def spans(self) -> list[tuple[str, int, int]]:
        """Return between which times the clock of a capture was set: capture_id, beginning and end, us.

        Where it was set back, these are the times that it showed twice; forward, the time behind the place, and the
        microsecond before; where another capture shows it, those between the packets around it. Times of which one is
        not later than the end, and one not earlier than the beginning, may be of two clocks.
        """
        forward = [(name, end, end - 1) for name, _, end in self._skipped]
        return [*self._shown_twice, *forward, *((name, *_between(step)) for name, step in self._all_by_taps())]

    def skipped(self) -> list[tuple[str, int, int]]:
        """Return the spans of time that a capture's clock left out: capture_id, beginning, and time behind it, us.

        Where another capture shows it, the clock may have left the span out.
        """
        return [*self._skipped, *self.perhaps_skipped()]

    def skipped_alone(self) -> list[tuple[str, int, int]]:
        """Return of ``skipped`` those that the capture shows itself."""
        return self._skipped

    def perhaps_skipped(self) -> list[tuple[str, int, int]]:
        """Return of ``skipped`` those that another capture shows."""
        found = ((name, max(step.last_at, step.first_at - step.by_us), step) for name, step in self._all_by_taps())
        return [(name, begin, step.first_at) for name, begin, step in found if begin < step.first_at]

    def shown_by_taps(self) -> list[tuple[str, int, int]]:
        """Return by how much one of two clocks may be ahead behind a place that both captures show, once: as a span."""
        places = ((name, step) for name, step in self._all_by_taps() if name < step.other_capture_id)
        return [(name, step.first_at - step.by_us, step.first_at) for name, step in places]

    def set_by(self) -> list[tuple[str, int, int]]:
        """Return the spans that a capture's clock showed twice or left out, or may have, as ``skipped`` does."""
        by_taps = [(name, step.first_at - step.by_us, step.first_at) for name, step in self._all_by_taps()]
        return [*self._shown_twice, *self._skipped, *by_taps]

    def _all_by_taps(self) -> Iterable[tuple[str, TapStep]]:
        return ((name, step) for name, steps in self._by_taps.items() for step in steps)

    def places(self) -> dict[str, list[list[int]]]:
        """Return all spans of ``set_by`` and ``spans`` of each capture that has one, in order."""
        places: defaultdict[str, list[list[int]]] = defaultdict(list)
        for name, *place in sorted((*self.set_by(), *self.spans())):
            places[name].append(place)
        return dict(places)

    def fingerprints(self) -> dict[str, str]:
        """Return a key of the ``places`` of each capture that has one."""
        return {name: key(*map(str, found)) for name, found in self.places().items()}

    def skipped_us(self, capture_id: str) -> int:
        """Return how much time a capture's clock left out, or may have, in all, us."""
        return sum(end - begin for name, begin, end in self.skipped() if name == capture_id)

    def __bool__(self) -> bool:
        """Whether any clock was set, or may have been."""
        return bool(self._packets or self._by_taps)

    def is_out_of_order(self, capture_id: str) -> bool:
        """Whether the packets of a capture are not in the order of their numbers."""
        return capture_id in self._out_of_order

    def before(self, capture_id: str | None, packet: int | None) -> SetClock:
        """Return the clock of a capture at a packet, and what its time lacks to be that of one clock."""
        name = capture_id or ""
        by_taps = self._by_taps.get(name, [])
        if packet is None or not (by_taps or name in self._packets):
            return _NEVER
        alone = self.shown_alone(name, packet)
        passed = bisect_left(by_taps, packet, key=_last_packet)
        if passed and packet < by_taps[passed - 1].first_packet:
            return SetClock(UNKNOWN_CLOCK + 1 + packet % _INSIDE_NUMBERS, alone.us)
        first = 1 + crc32(name.encode()) % _CLOCK_NUMBERS * (MAX_STEPS + 1)
        return SetClock(first + (alone.clock + passed) % (MAX_STEPS + 1), alone.us)

    def shown_alone(self, capture_id: str, packet: int) -> SetClock:
        """Return the same as far as the capture shows it itself; its clocks are numbered from 0."""
        place = bisect_right(self._packets.get(capture_id, ()), packet)
        return SetClock(place, self._lacks[capture_id][place] if capture_id in self._lacks else 0)

    def perhaps_set(self, capture_id: str) -> list[tuple[int, int, int]]:
        """Return where another capture shows that a capture's clock may have been set: ``spans``, and how far, us."""
        return [(*_between(step), step.by_us) for step in self._by_taps.get(capture_id, ())]

    def _clocks_of_halves(self, call: RowDict) -> dict[str, SetClock]:
        """Return the clocks of both halves of a call."""
        places = {half: (call[name], call[f"{half}_packet"]) for half, name in zip(HALVES, _CAPTURES, strict=True)}
        seen = {half: self.before(*place) for half, place in places.items()}
        return {**seen, "response": SetClock(UNKNOWN_CLOCK, 0)} if self.lies_between(call) else seen

    def renumbered(self, call: RowDict) -> RowDict | None:
        """Return the column ``clocks`` of a call, taps may have seen it: when other places are known than before."""
        seen, clocks = self._clocks_of_halves(call), call["clocks"]
        if clocks is None or not (call["sightings"] or any(each.clock for each in seen.values())):
            return self.clocks(call)
        tap_of = {half: clocks[f"{half}_tap"] for half in HALVES}
        numbers = {
            f"{half}_tap": tap % CLOCK_OF_TAP + seen[half].clock * CLOCK_OF_TAP
            for half, tap in tap_of.items()
            if tap is not None
        }
        return {**clocks, **numbers}

    def clocks(self, call: RowDict) -> RowDict | None:
        """Return the column ``clocks`` of a call that no taps saw; None where its captures' clocks were never set."""
        seen = self._clocks_of_halves(call)
        if not any(each.clock for each in seen.values()):
            return None
        clocks: RowDict = {}
        for half, each in seen.items():
            is_seen = call[f"{half}_packet"] is not None
            clocks[f"{half}_tap"] = each.clock * CLOCK_OF_TAP if is_seen else None
            clocks[f"{half}_ahead_us"] = -each.us if is_seen else None
        return clocks

    def lies_between(self, call: RowDict) -> bool:
        """Whether the halves of a call are of two captures whose clocks were not set, and one was set between them.

        It may be that of the same machine, if the captures are files of a ring.
        """
        one, other = (call[name] for name in _CAPTURES)
        if one == other or None in (one, other) or not {one, other}.isdisjoint((*self._packets, *self._by_taps)):
            return False
        begin, end = call["request_at"], call["response_at"]
        if not self or begin is None or end is None:
            return False
        low, high = sorted(map(_us, (begin, end)))
        return any(low <= until and since <= high for _, since, until in self.spans())

    def with_clocks(self, calls: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of ``rpc_calls`` that no taps saw with the column ``clocks``."""
        if not self:
            return calls
        names = (*_CAPTURES, *(f"{half}_{name}" for half in HALVES for name in ("packet", "at")))
        clocks = [self.clocks(row) for row in calls.select(names).to_pylist()]
        place = calls.schema.get_field_index("clocks")
        column = pa.array(clocks, calls.schema.field(place).type)
        return calls.set_column(place, calls.schema.field(place), column)


def _us(time: dt.datetime | int) -> int:
    return time if isinstance(time, int) else datetime_to_us(time)


def _last_packet(step: TapStep) -> int:
    return step.last_packet


def _between(step: TapStep) -> tuple[int, int]:
    """Return the times between the packets around a place; those of both where times go back between them."""
    last, first = step.last_at, step.first_at
    return (last + 1, first - 1) if last < first else (first, last)


NO_STEPS: Final = ClockSteps()
"""No capture's clock was set."""
