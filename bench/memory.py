"""Measure the peak memory of a process and of those below it from /proc (Linux only)."""

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


def _proportional_bytes(pid: int) -> int:
    """Return the memory of a process, of what it shares with others its share (PSS); 0 if it has ended."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _read_bytes(pid: int) -> int:
    """Return how many bytes a process has read; 0 if it has ended."""
    try:
        line = (PROC / str(pid) / "io").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return 0
    return int(line.removeprefix("rchar:"))


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, of its own and the kernel's work for it; 0 if it has ended."""
    try:
        facts = (PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Context manager that records peak memory, in bytes.

    Of a process, by default this one; of the largest Python process below it; and of Java below it. The kernel keeps
    the peak of each process. So sampling only has to see each process once near its end. It takes time from what is
    measured: processes that ran before, and are not below, are looked at once.

    ``whole_tree``: also of all of them together, as the largest sum of their PSS in a sample. That slows them down.
    ``read_bytes``: what the first process read, from the disk or from what the kernel had of it. ``cpu_s``: processor
    time of each process, seconds, as far as it was sampled. Without the block, ``look`` samples once.
    """

    def __init__(self, pid: int | None = None, interval_s: float = 0.1, *, whole_tree: bool = False) -> None:
        self.driver_bytes = self.worker_bytes = self.jvm_bytes = self.tree_bytes = self.read_bytes = 0
        self.cpu_s: dict[int, float] = {}
        self._whole_tree = whole_tree
        self._pid = os.getpid() if pid is None else pid
        self._others: frozenset[str] = frozenset()  # ran before
        self._interval = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._others = self.look()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.look()

    @property
    def driver_cpu_s(self) -> float:
        """Return the processor time of the process itself, seconds."""
        return self.cpu_s.get(self._pid, 0.0)

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.look()

    def look(self) -> frozenset[str]:
        """Look at all processes but the others; return those that are neither this one nor below it."""
        if not PROC.is_dir():
            return frozenset()
        processes = {entry.name for entry in PROC.iterdir() if entry.name.isdigit()} - self._others
        found = {int(name): _process_status(name) for name in processes}
        children: dict[int, list[int]] = defaultdict(list)
        for pid, status in found.items():
            if status is not None:
                children[status[0]].append(pid)
        own = found.get(self._pid)
        if own is not None:
            self.driver_bytes = max(self.driver_bytes, own[2])
            self.read_bytes = max(self.read_bytes, _read_bytes(self._pid))
        processes.discard(str(self._pid))
        tree = [self._pid]
        queue = [(child, False) for child in children[self._pid]]
        while queue:
            pid, below_java = queue.pop()
            processes.discard(str(pid))
            tree.append(pid)
            status = found[pid]
            assert status is not None
            _, name, peak = status
            is_java = name.startswith("java")
            if is_java and not below_java:  # separate executors are children of the driver
                self.jvm_bytes = max(self.jvm_bytes, peak)
            elif name.startswith("python"):
                self.worker_bytes = max(self.worker_bytes, peak)
            queue += [(child, below_java or is_java) for child in children[pid]]
        self.cpu_s |= {pid: max(self.cpu_s.get(pid, 0.0), _cpu_seconds(pid)) for pid in tree}
        if self._whole_tree:
            self.tree_bytes = max(self.tree_bytes, sum(map(_proportional_bytes, tree)))
        return frozenset(processes)
