"""Places where a capture's clock was set back, as the ledger has them: which times of calls were taken on which clock.

Behind such a place the times of a capture are those of another clock. So a call's halves are of two clocks if it lies
between them (column ``clocks`` of ``rpc_calls``): they give no duration, and less what the clocks are ahead the order
of events.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

from udfs.capture.record_order import CLOCK_SET
from udfs.rows import RowDict
from udfs.rpc.call_schema import HALVES

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US: Final = dt.timedelta(microseconds=1)
_CAPTURES: Final = ("capture_id", "response_capture_id")
CLOCK_OF_TAP: Final = 1000  # a tap's number is raised by this at each place where its capture's clock was set back


class SetBack(NamedTuple):
    """Before a packet: how often its capture's clock had been set back, and how far in all, in us."""

    times: int
    us: int


_NEVER: Final = SetBack(0, 0)


class ClockSteps:
    """Where the clocks of captures were set back."""

    def __init__(self, ledger_rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """``ledger_rows``: rows of ``bronze.capture_files``, or their capture_id and times_go_back."""
        self._packets: dict[str, list[int]] = {}
        self._back: dict[str, list[int]] = {}
        self._spans: list[tuple[str, int, int]] = []
        for row in ledger_rows:
            steps = [step for step in row["times_go_back"] or () if step["cause"] == CLOCK_SET]
            if steps:
                self._packets[row["capture_id"]] = [step["packet"] for step in steps]
                self._back[row["capture_id"]] = [*accumulate(step["back_us"] for step in steps)]
                for step in steps:
                    since = step["at"] if isinstance(step["at"], int) else (step["at"] - _EPOCH) // _US
                    self._spans.append((row["capture_id"], since, since + step["back_us"]))

    def spans(self) -> list[tuple[str, int, int]]:
        """Return the spans of time that a capture's clock showed twice: capture_id, beginning and end, us."""
        return self._spans

    def __bool__(self) -> bool:
        """Whether any clock was set back."""
        return bool(self._packets)

    def before(self, capture_id: str | None, packet: int | None) -> SetBack:
        """Return how far the clock of a capture had been set back before a packet."""
        known = self._packets.get(capture_id or "")
        if known is None or packet is None:
            return _NEVER
        times = bisect_right(known, packet)
        return SetBack(times, self._back[capture_id or ""][times - 1]) if times else _NEVER

    def clocks(self, call: RowDict) -> RowDict | None:
        """Return the column ``clocks`` of a call that no taps saw; None where no clock had been set back before it."""
        places = {half: (call[name], call[f"{half}_packet"]) for half, name in zip(HALVES, _CAPTURES, strict=True)}
        back = {half: self.before(*place) for half, place in places.items()}
        if not any(each.times for each in back.values()):
            return None
        clocks: RowDict = {}
        for half, each in back.items():
            is_seen = call[f"{half}_packet"] is not None
            clocks[f"{half}_tap"] = each.times * CLOCK_OF_TAP if is_seen else None
            clocks[f"{half}_ahead_us"] = -each.us if is_seen else None
        return clocks

    def with_clocks(self, calls: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of ``rpc_calls`` that no taps saw with the column ``clocks``."""
        if not self:
            return calls
        names = (*_CAPTURES, "request_packet", "response_packet")
        clocks = [self.clocks(row) for row in calls.select(names).to_pylist()]
        place = calls.schema.get_field_index("clocks")
        column = pa.array(clocks, calls.schema.field(place).type)
        return calls.set_column(place, calls.schema.field(place), column)


NO_STEPS: Final = ClockSteps()
"""No capture's clock was set back."""
