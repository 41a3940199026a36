"""Measure the peak resident memory of this process's descendants from /proc (Linux only)."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")


def _process_status(pid: str) -> tuple[int, str, int] | None:
    """Return the parent's id, name and peak resident bytes of a process; None if it has ended."""
    try:
        lines = (PROC / pid / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(facts["PPid"]), facts["Name"].strip(), int(facts.get("VmHWM", "0 kB").split()[0]) * 1024


class PeakMemory:
    """Context manager that records peak memory: of the largest Python worker, and of the driver's JVM, in bytes.

    The kernel keeps the peak of each process. So sampling only has to see each process once near its end.
    """

    def __init__(self, interval_s: float = 0.1) -> None:
        self.worker_bytes = self.jvm_bytes = 0
        self._interval = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        if not PROC.is_dir():
            return
        found = {int(entry.name): _process_status(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()}
        children: dict[int, list[int]] = defaultdict(list)
        for pid, status in found.items():
            if status is not None:
                children[status[0]].append(pid)
        queue = [(child, False) for child in children[os.getpid()]]
        while queue:
            pid, below_java = queue.pop()
            status = found[pid]
            assert status is not None
            _, name, peak = status
            if name.startswith("java"):
                if not below_java:  # separate executors are children of the driver
                    self.jvm_bytes = max(self.jvm_bytes, peak)
                below_java = True
            elif below_java and name.startswith("python"):
                self.worker_bytes = max(self.worker_bytes, peak)
            queue += [(child, below_java) for child in children[pid]]
