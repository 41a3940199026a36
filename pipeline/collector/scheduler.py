"""Schedules collection rounds of many machines, a limited number in parallel.

Each machine has its own schedule: a slow machine skips rounds of its own and does not delay others.
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
from pipeline.collector.round import DEFAULT_LIMITS, CollectionRound, RetryPolicy, RoundLimits, RoundReport
from pipeline.collector.snapshot_writer import write_snapshot_files
from pipeline.collector.targets import CollectionTarget
from pipeline.collector.transport import StopSignal
from pipeline.settings import CollectorConfig

_STOP_POLL_S = 0.25  # interval at which stop requests are noticed


@dataclass(frozen=True, slots=True)
class CollectionSchedule:
    """Number of rounds per machine (0: endless), and the interval between their starts, in seconds."""

    interval_s: float
    rounds: int = CollectorConfig.rounds


@dataclass(order=True, slots=True)
class _ScheduledRound:
    due_at: float
    target_index: int
    round_number: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class CompletedRound:
    """A completed round: its report, and the paths of its snapshot files."""

    report: RoundReport
    paths: list[Path]


class Collector:
    """Collects snapshots of many machines into a folder. ``stop`` is safe to call from a signal handler."""

    def __init__(
        self, targets: Sequence[CollectionTarget], credentials: Credentials, folder: Path, *, retry_policy: RetryPolicy,
        schedule: CollectionSchedule, max_parallel: int, limits: RoundLimits = DEFAULT_LIMITS,
    ) -> None:  # fmt: skip
        self._targets = targets
        self._credentials = credentials
        self._folder = folder
        self._retry_policy = retry_policy
        self._limits = limits
        self._schedule = schedule
        self._max_parallel = max_parallel
        self._stop_signal = StopSignal()
        self._unsupported_properties: list[dict[str, set[int]]] = [{} for _ in targets]

    def stop(self) -> None:
        """Stop soon: no new round starts; running rounds write the snapshots that they have."""
        self._stop_signal.stop_requested = True

    def run(self) -> Iterator[CompletedRound]:
        """Run all rounds; yield each one when its last file is written. OSError if a file cannot be written."""
        started_at = time.monotonic()
        due = [_ScheduledRound(started_at, index) for index in range(len(self._targets))]
        heapq.heapify(due)
        done: queue.SimpleQueue[tuple[_ScheduledRound, Future[CompletedRound]]] = queue.SimpleQueue()
        running = 0
        with ThreadPoolExecutor(self._max_parallel, thread_name_prefix="collector") as pool:
            try:
                while running or (due and not self._stop_signal.stop_requested):
                    now = time.monotonic()
                    while (
                        due
                        and due[0].due_at <= now
                        and running < self._max_parallel
                        and not self._stop_signal.stop_requested
                    ):
                        self._start(pool, heapq.heappop(due), done)
                        running += 1
                    try:
                        scheduled, future = done.get(timeout=self._wait_s(due, running))
                    except queue.Empty:
                        continue
                    running -= 1
                    if (next_round := self._next_round(scheduled)) is not None:
                        heapq.heappush(due, next_round)
                    yield future.result()
            finally:
                self.stop()

    def _wait_s(self, due: list[_ScheduledRound], running: int) -> float:
        if not due or running >= self._max_parallel:
            return _STOP_POLL_S
        return min(max(due[0].due_at - time.monotonic(), 0.0), _STOP_POLL_S)

    def _start(
        self,
        pool: ThreadPoolExecutor,
        scheduled: _ScheduledRound,
        done: queue.SimpleQueue[tuple[_ScheduledRound, Future[CompletedRound]]],
    ) -> None:
        def on_done(future: Future[CompletedRound]) -> None:
            done.put((scheduled, future))

        pool.submit(self._run_round, scheduled).add_done_callback(on_done)

    def _run_round(self, scheduled: _ScheduledRound) -> CompletedRound:
        target = self._targets[scheduled.target_index]
        collection_round = CollectionRound(
            target,
            self._credentials,
            self._retry_policy,
            self._stop_signal,
            limits=self._limits,
            round_number=scheduled.round_number,
            unsupported_properties=self._unsupported_properties[scheduled.target_index],
        )
        paths = write_snapshot_files(self._folder, target.name, collection_round.collect())
        return CompletedRound(collection_round.report, paths)

    def _next_round(self, scheduled: _ScheduledRound) -> _ScheduledRound | None:
        """Return the machine's next round; a round that takes longer than the interval skips the ones it overlaps."""
        if self._schedule.rounds and scheduled.round_number >= self._schedule.rounds:
            return None
        interval, now = self._schedule.interval_s, time.monotonic()
        due_at = scheduled.due_at + interval
        if due_at < now and interval > 0:
            due_at += ((now - due_at) // interval) * interval
        return _ScheduledRound(max(due_at, scheduled.due_at), scheduled.target_index, scheduled.round_number + 1)
