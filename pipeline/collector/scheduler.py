"""Many machines, round after round: who is asked when, so many at once, until all is done or it is to stop.

Each machine has its own times: one that answers slowly misses rounds of its own and holds up nobody else's.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.collector.client import Credentials
from pipeline.collector.output_files import land
from pipeline.collector.plan import Wanted
from pipeline.collector.round import Patience, Report, Round
from pipeline.collector.transport import Clock

_LOOK_S = 0.25  # how often it is looked whether to stop


@dataclass(frozen=True, slots=True)
class Schedule:
    """``rounds`` of every machine, 0 for ever, ``every_s`` seconds from one's beginning to the next's."""

    every_s: float
    rounds: int = 1


@dataclass(order=True, slots=True)
class _Due:
    at: float
    place: int
    round: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Landed:
    """A round at a machine that is over: its report and its file, None when nothing was asked."""

    report: Report
    path: Path | None


class Collector:
    """Collects snapshots of machines into a folder; ``stop`` may be called from a signal handler."""

    def __init__(
        self, machines: Sequence[Wanted], credentials: Credentials, folder: Path, *, patience: Patience,
        schedule: Schedule, at_once: int,
    ) -> None:  # fmt: skip
        self._machines = machines
        self._credentials = credentials
        self._folder = folder
        self._patience = patience
        self._schedule = schedule
        self._at_once = at_once
        self._clock = Clock()
        self._illegal: list[dict[str, set[int]]] = [{} for _ in machines]

    def stop(self) -> None:
        """End soon: no round begins any more, those under way land what they have."""
        self._clock.stopping = True

    def run(self) -> Iterator[Landed]:
        """Yield each round at each machine when it has landed; raises OSError where it cannot land."""
        begun = time.monotonic()
        due = [_Due(begun, place) for place in range(len(self._machines))]
        heapq.heapify(due)
        done: queue.SimpleQueue[tuple[_Due, Future[Landed]]] = queue.SimpleQueue()
        running = 0
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="collector") as pool:
            try:
                while running or (due and not self._clock.stopping):
                    now = time.monotonic()
                    while due and due[0].at <= now and running < self._at_once and not self._clock.stopping:
                        self._start(pool, heapq.heappop(due), done)
                        running += 1
                    try:
                        each, future = done.get(timeout=self._wait_s(due, running))
                    except queue.Empty:
                        continue
                    running -= 1
                    if (following := self._following(each)) is not None:
                        heapq.heappush(due, following)
                    yield future.result()
            finally:
                self.stop()

    def _wait_s(self, due: list[_Due], running: int) -> float:
        if not due or running >= self._at_once:
            return _LOOK_S
        return min(max(due[0].at - time.monotonic(), 0.0), _LOOK_S)

    def _start(
        self, pool: ThreadPoolExecutor, each: _Due, done: queue.SimpleQueue[tuple[_Due, Future[Landed]]]
    ) -> None:
        def tell(future: Future[Landed]) -> None:
            done.put((each, future))

        pool.submit(self._collect, each).add_done_callback(tell)

    def _collect(self, each: _Due) -> Landed:
        wanted = self._machines[each.place]
        this = Round(
            wanted, self._credentials, self._patience, self._clock, number=each.round, illegal=self._illegal[each.place]
        )
        snapshots = list(this.snapshots())
        return Landed(this.report, land(self._folder, wanted.name, snapshots))

    def _following(self, each: _Due) -> _Due | None:
        """Return the machine's next round; one that took longer than its time leaves rounds out, not two at once."""
        if self._schedule.rounds and each.round >= self._schedule.rounds:
            return None
        every, now = self._schedule.every_s, time.monotonic()
        at = each.at + every
        if at < now and every > 0:
            at += ((now - at) // every) * every
        return _Due(max(at, each.at), each.place, each.round + 1)
