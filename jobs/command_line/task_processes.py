"""Processes of this machine that compute tasks, as Spark's workers do, but without Java.

Spark takes six seconds here until its first task has begun. On a cluster, and in a session that somebody else made, it
is Spark that computes the tasks (``PartitionedRows``). Each process computes one task at a time; it is asked, and
answers, by pickled values through its standard input and output.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock, Thread, local
from typing import Any, Final, TypeVar
from weakref import WeakSet

from jobs.python_daemon import WORKER_ENVIRONMENT, preload_modules

Input = TypeVar("Input")
Result = TypeVar("Result")

_MODULES: Final = ("pipeline.bronze.capture_tasks", "pipeline.findings.update")  # of tasks; they take a second
_WATCH_INTERVAL_S: Final = 1.0
_OUTPUT, _ERRORS = 1, 2  # file descriptors


class TaskProcessError(Exception):
    """A process that computed a task ended before it answered: it was killed, for instance for want of memory."""


class TaskProcesses:
    """As many processes as there are cores, which start when they are first used. Threads may use them side by side."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: for the temporary files of tasks."""
        self._folder = folder
        self._pool: ThreadPoolExecutor | None = None  # each thread asks a process of its own
        self._own = local()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        _ALL.add(self)

    @property
    def have_started(self) -> bool:
        """Whether a task would begin at once."""
        return self._pool is not None

    def start(self) -> None:
        """Let the processes start; they import the modules of tasks meanwhile."""
        for _ in range(_core_count()):
            self._threads().submit(self._worker)

    def run(self, function: Callable[[Input], Iterable[Result]], inputs: Iterable[Input]) -> list[Result]:
        """Return what a function gives for each input, in their order; each is a task.

        When one fails, no other begins, and its exception is raised when those that run have ended: nobody does their
        work twice. TaskProcessError if its process ended.
        """
        from pyspark import cloudpickle  # noqa: PLC0415 (takes a third of a second)

        task = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
        futures = [self._threads().submit(self._compute, task, each) for each in inputs]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [result for future in futures for result in future.result()]
        finally:
            wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the processes, whatever they do."""
        with self._lock:
            pool, self._pool = self._pool, None
        self.kill()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End the processes that run, whatever they do; their tasks fail."""
        while self._running:
            self._running.pop().kill()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_core_count())
            return self._pool

    def _worker(self) -> _Worker:
        """Return the process of this thread."""
        if getattr(self._own, "worker", None) is None:
            self._own.worker = _Worker(self._folder)
            self._running.add(self._own.worker.process)
        worker: _Worker = self._own.worker
        return worker

    def _compute(self, task: bytes, given: object) -> list[Any]:
        try:
            return self._worker().compute(task, given)
        except TaskProcessError:
            self._running.discard(self._own.worker.process)
            self._own.worker = None  # the next task gets another one
            raise


class _Worker:
    """One process."""

    def __init__(self, folder: Path | None) -> None:
        environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if folder is not None:
            environment["TMPDIR"] = str(folder)
        command = [sys.executable, "-m", "jobs.command_line.task_processes", str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603

    def compute(self, task: bytes, given: object) -> list[Any]:
        """Return what a pickled function gives for an input."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None and answers is not None  # noqa: PT018, S101 - they are pipes
        try:
            pickle.dump((task, given), asked)
            asked.flush()
            results, error = pickle.load(answers)  # noqa: S301 - of this program
        except (EOFError, OSError, pickle.UnpicklingError) as ended:
            self.process.kill()
            how = self.process.wait()
            killed = ": the system may have killed it for want of memory" if how == -signal.SIGKILL else ""
            raise TaskProcessError(f"a process that computed a task ended with {how}{killed}") from ended
        if error is not None:
            raise error
        return list(results)


_ALL: Final = WeakSet[TaskProcesses]()


def end_processes() -> None:
    """End all processes of tasks at once, whatever they do."""
    for each in [*_ALL]:
        each.kill()


def _core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Compute the tasks that come by standard input, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver ends its processes
    Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(_OUTPUT), "wb")
    os.dup2(_ERRORS, _OUTPUT)  # what a task prints is no answer
    preload_modules(*_MODULES)
    while True:
        try:
            task, given = pickle.load(asked)  # noqa: S301 - of this program
        except EOFError:
            return
        answers.write(_answer(task, given))
        answers.flush()


def _end_with(driver: int) -> None:
    """End this process when the driver has ended, also within a task."""
    while os.getppid() == driver:
        time.sleep(_WATCH_INTERVAL_S)
    os._exit(1)


def _answer(task: bytes, given: object) -> bytes:
    """Return a task's results and None, or no results and the exception that it raised."""
    try:
        return pickle.dumps(([*pickle.loads(task)(given)], None))  # noqa: S301 - of this program
    except Exception as error:  # noqa: BLE001 - the driver raises it
        return pickle.dumps(([], _portable(error)))


def _portable(error: Exception) -> Exception:
    """Return an exception as another process can have it, with the traceback as a note."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of this program
    except Exception:  # noqa: BLE001 - whatever it says
        return RuntimeError("".join(traceback.format_exception_only(error)))
    return error


if __name__ == "__main__":
    main()
