"""The clock of an exchange: timers wait until the script lets time pass, which then jumps from one to the next.

So timers have the values of the specification (20 s, 30 s, 5 min) and a recording takes seconds. Between two jumps time
passes as everywhere; a recorded packet's time is that of its capture plus all jumps before (`Clock.moved`).
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import itertools
import time
from collections.abc import Callable

SECOND = 1_000_000_000  # nanoseconds


class Timer:
    """One call that is due at a time, unless it is stopped."""

    def __init__(self, at_ns: int, call: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.call: Callable[[], None] | None = call

    def stop(self) -> None:
        self.call = None

    @property
    def running(self) -> bool:
        return self.call is not None


class Clock:
    """Nanoseconds since 1970; begins at ``begin`` (seconds), or now.

    ``quiet_s``: for how long there must be no traffic before a jump. Recordings take more than the 40 ms by which Linux
    delays an acknowledgement of TCP, so that none is on the wrong side of a jump.
    """

    def __init__(self, begin: float | None = None, quiet_s: float = 0.002) -> None:
        self.quiet_s = quiet_s
        real = time.time_ns()
        self._jumps_at = [0]  # real time of each jump
        self._offsets = [0 if begin is None else round(begin * SECOND) - real]
        self._timers: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self.in_flight: Callable[[], bool] = lambda: False  # whether bytes are on their way

    def now(self) -> int:
        return time.time_ns() + self._offsets[-1]

    def moved(self, real_ns: int) -> int:
        """Time of the exchange at a real time."""
        return real_ns + self._offsets[max(bisect.bisect_right(self._jumps_at, real_ns) - 1, 0)]

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call in so many seconds."""
        timer = Timer(self.now() + round(seconds * SECOND), call)
        heapq.heappush(self._timers, (timer.at_ns, next(self._order), timer))
        return timer

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: timers that are due are called in their order, each after the traffic of those before."""
        end = self.now() + round(seconds * SECOND)
        await self.settle()
        while self._timers and self._timers[0][0] <= end:
            _, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._jump_to(timer.at_ns)
                call, timer.call = timer.call, None
                call()
                await self.settle()
        self._jump_to(end)

    async def settle(self) -> None:
        """Wait until nothing has been on its way for a while."""
        quiet = 0
        step = self.quiet_s / 4
        for _ in range(20_000):
            await asyncio.sleep(step)
            quiet = 0 if self.in_flight() else quiet + 1
            if quiet == 4:
                return
        raise RuntimeError("the traffic does not come to rest")

    def _jump_to(self, at_ns: int) -> None:
        ahead = at_ns - self.now()
        if ahead > 0:
            self._jumps_at.append(time.time_ns())
            self._offsets.append(self._offsets[-1] + ahead)
