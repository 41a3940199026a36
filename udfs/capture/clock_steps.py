"""Places where a capture's clock was set, as the ledger has them: which times of calls were taken on which clock.

Behind such a place the times of a capture are those of another clock. So a call's halves are of two clocks if it lies
between them (column ``clocks`` of ``rpc_calls``): they give no duration, and less what the clocks are ahead the order
of events. Where a clock was set back, the times behind the place count as later; where it was set forward, those before
it do: then they fit to the times at which captures and connections end.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from udfs.capture.record_order import CLOCK_SET, MAX_STEPS
from udfs.keys import key
from udfs.rows import RowDict
from udfs.rpc.call_schema import HALVES

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US: Final = dt.timedelta(microseconds=1)
_CAPTURES: Final = ("capture_id", "response_capture_id")
CLOCK_OF_TAP: Final = 1000  # a tap's number is raised by this times the number of the clock (``SetClock.clock``)
_CLOCK_NUMBERS: Final = 2000  # captures whose clocks were set have numbers apart; all fit into 32 bits
NOT_KNOWN: Final = 1 + _CLOCK_NUMBERS * (MAX_STEPS + 1)  # number of a clock that may have been set in another capture


class SetClock(NamedTuple):
    """Which clock a capture's packet was captured by, and what its time lacks to be that of one clock, in us.

    ``clock`` is 0 in a capture whose clock was never set, and another one behind each place where it was.
    """

    clock: int
    us: int


_NEVER: Final = SetClock(0, 0)


class ClockSteps:
    """Where the clocks of captures were set."""

    def __init__(self, ledger_rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """``ledger_rows``: rows of ``bronze.capture_files``, or their capture_id and times_go_back."""
        self._packets: dict[str, list[int]] = {}
        self._lacks: dict[str, list[int]] = {}
        self._shown_twice: list[tuple[str, int, int]] = []
        self._skipped: list[tuple[str, int, int]] = []
        for row in ledger_rows:
            steps = [step for step in row["times_go_back"] or () if step["cause"] == CLOCK_SET]
            if steps:
                name, back = row["capture_id"], [step["back_us"] for step in steps]
                forward = sum(-us for us in back if us < 0)
                self._packets[name] = [step["packet"] for step in steps]
                self._lacks[name] = [*accumulate(back, initial=forward)]
                for step, us in zip(steps, back, strict=True):
                    at = step["at"] if isinstance(step["at"], int) else (step["at"] - _EPOCH) // _US
                    (self._shown_twice if us > 0 else self._skipped).append((name, *sorted((at, at + us))))

    def spans(self) -> list[tuple[str, int, int]]:
        """Return between which times the clock of a capture was set: capture_id, beginning and end, us.

        Where it was set back, these are the times that it showed twice; forward, the time behind the place, and the
        microsecond before. Times of which one is not later than the end, and one not earlier than the beginning, may
        be of two clocks.
        """
        return [*self._shown_twice, *((name, end, end - 1) for name, _, end in self._skipped)]

    def skipped(self) -> list[tuple[str, int, int]]:
        """Return the spans of time that a capture's clock left out: capture_id, beginning, and time behind it, us."""
        return self._skipped

    def set_by(self) -> list[tuple[str, int, int]]:
        """Return the spans that a capture's clock showed twice or left out, as ``skipped`` does."""
        return [*self._shown_twice, *self._skipped]

    def fingerprint(self) -> str | None:
        """Return a key of all places; None without one."""
        return key(*map(str, sorted(self.set_by()))) if self else None

    def skipped_us(self, capture_id: str) -> int:
        """Return how much time a capture's clock left out, in all, us."""
        return sum(end - begin for name, begin, end in self._skipped if name == capture_id)

    def __bool__(self) -> bool:
        """Whether any clock was set."""
        return bool(self._packets)

    def before(self, capture_id: str | None, packet: int | None) -> SetClock:
        """Return the clock of a capture at a packet, and what its time lacks to be that of one clock."""
        known = self._packets.get(capture_id or "")
        if known is None or packet is None:
            return _NEVER
        place, name = bisect_right(known, packet), capture_id or ""
        first = 1 + crc32(name.encode()) % _CLOCK_NUMBERS * (MAX_STEPS + 1)
        return SetClock(first + place, self._lacks[name][place])

    def clocks(self, call: RowDict) -> RowDict | None:
        """Return the column ``clocks`` of a call that no taps saw; None where its captures' clocks were never set."""
        places = {half: (call[name], call[f"{half}_packet"]) for half, name in zip(HALVES, _CAPTURES, strict=True)}
        seen = {half: self.before(*place) for half, place in places.items()}
        if self.lies_between(call):
            seen["response"] = SetClock(NOT_KNOWN, 0)
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
        if one == other or None in (one, other) or one in self._packets or other in self._packets:
            return False
        begin, end = call["request_at"], call["response_at"]
        if not self or begin is None or end is None:
            return False
        low, high = sorted((each - _EPOCH) // _US for each in (begin, end))
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


NO_STEPS: Final = ClockSteps()
"""No capture's clock was set."""
