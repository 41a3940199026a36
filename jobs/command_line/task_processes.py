"""Processes of this machine that compute tasks, as Spark's workers do, but without Java.

Spark takes six seconds here until its first task has begun. On a cluster, and in a session that somebody else made, it
is Spark that computes the tasks (``PartitionedRows``). Each process computes one task at a time; it is asked, and
answers, by pickled values.

The processes are forked from one that has imported what tasks need, so that this is done, and held in memory, once. The
driver itself is not forked: it has threads.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread, local
from typing import Any, Final, TypeVar
from weakref import WeakSet

from jobs.python_daemon import WORKER_ENVIRONMENT, preload_modules

Input = TypeVar("Input")
Result = TypeVar("Result")

_MODULES: Final = ("pipeline.bronze.capture_tasks", "pipeline.findings.update")  # of tasks; they take a second
_WATCH_INTERVAL_S: Final = 1.0
_INPUT, _ERRORS = 0, 2  # file descriptors


class TaskProcessError(Exception):
    """A process that computed a task ended before it answered: it was killed, for instance for want of memory."""


class TaskProcesses:
    """As many processes as there are cores, which start when they are first used. Threads may use them side by side."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: for the temporary files of tasks."""
        self._folder = folder
        self._origin: _Origin | None = None
        self._pool: ThreadPoolExecutor | None = None  # each thread asks a process of its own
        self._own = local()
        self._lock = Lock()
        _ALL.add(self)

    @property
    def have_started(self) -> bool:
        """Whether a task would begin at once."""
        return self._origin is not None

    def start(self) -> None:
        """Let the modules of tasks be imported meanwhile."""
        self._running_origin()

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
            origin, self._origin = self._origin, None
        if origin is not None:
            origin.close()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End the processes, whatever they do; their tasks fail. Takes no lock: it may be called by a signal."""
        if self._origin is not None:
            self._origin.kill()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_core_count())
            return self._pool

    def _running_origin(self) -> _Origin:
        with self._lock:
            if self._origin is None or self._origin.has_ended:
                self._origin = _Origin(self._folder)
            return self._origin

    def _compute(self, task: bytes, given: object) -> list[Any]:
        """Have the process of this thread compute a task."""
        origin = self._running_origin()
        if getattr(self._own, "origin", None) is not origin:
            self._own.origin, self._own.process = origin, origin.fork()
        process: _TaskProcess = self._own.process
        try:
            return process.compute(task, given)
        except TaskProcessError:
            self._own.origin = None  # the next task gets another one
            raise


class _Origin:
    """The process that has imported the modules of tasks, from which those that compute them are forked."""

    def __init__(self, folder: Path | None) -> None:
        environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if folder is not None:
            environment["TMPDIR"] = str(folder)
        command = [sys.executable, "-m", "jobs.command_line.task_processes"]
        self._requests, its_end = socket.socketpair()
        with its_end:
            self._process = subprocess.Popen(  # noqa: S603
                command, env=environment, stdin=its_end.fileno(),
                stdout=_ERRORS,  # what a task prints is no answer
                process_group=0,  # all that are forked are ended at once
            )  # fmt: skip

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be forked any more."""
        return self._process.poll() is not None

    def fork(self) -> _TaskProcess:
        """Return a new process, which begins when the modules are imported."""
        answers, its_answers = Pipe()
        ending, its_ending = Pipe(duplex=False)
        with its_answers, its_ending, suppress(OSError):  # if this process has ended, so has the one forked
            socket.send_fds(self._requests, [b"f"], [its_answers.fileno(), its_ending.fileno()])
        return _TaskProcess(answers, ending)

    def kill(self) -> None:
        """End this process and all that were forked from it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End this process and all that were forked from it, and wait for its end."""
        self.kill()
        self._process.wait()
        self._requests.close()


class _TaskProcess:
    """A process that computes tasks, one at a time."""

    def __init__(self, connection: Connection, ending: Connection) -> None:
        """``ending``: gives the exit code of the process once it has ended; its end, if nobody knows."""
        self._connection, self._ending = connection, ending

    def compute(self, task: bytes, given: object) -> list[Any]:
        """Return what a pickled function gives for an input."""
        try:
            self._connection.send((task, given))
            results, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            raise TaskProcessError(f"a process that computed a task ended with {self._describe_ending()}") from ended
        if error is not None:
            raise error
        return list(results)

    def _describe_ending(self) -> str:
        self._connection.close()
        try:
            how = self._ending.recv()
        except (EOFError, OSError):
            return "the one that it was forked from"
        return f"{how}: the system may have killed it for want of memory" if how == -signal.SIGKILL else str(how)


_ALL: Final = WeakSet[TaskProcesses]()


def end_processes() -> None:
    """End all processes of tasks at once, whatever they do."""
    for each in [*_ALL]:
        each.kill()


def _core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Be the process from which others are forked, until the driver has ended; and in each of those, compute tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever sends it to all: the driver ends its processes
    preload_modules(*_MODULES)
    with socket.socket(fileno=_INPUT) as requests:
        driver = _fork_processes(requests)
    if driver is not None:
        Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        _compute_tasks(driver)


def _fork_processes(requests: socket.socket) -> Connection | None:
    """Fork a process for each request; return its connection with the driver in it, and None here at the end.

    A request has two file descriptors: of the connection, and of a pipe for the exit code of the process.
    """
    endings: dict[int, Connection] = {}

    def send_exit_codes(*_: object) -> None:
        """Send the exit code of each process that has ended."""
        for process in [*endings]:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                with endings.pop(process) as ending, suppress(OSError):  # the driver has ended
                    ending.send(os.waitstatus_to_exitcode(status))

    signal.signal(signal.SIGCHLD, send_exit_codes)
    while handles := socket.recv_fds(requests, 1, 2)[1]:
        driver: Connection[Any, Any] = Connection(handles[0])
        ending: Connection[Any, Any] = Connection(handles[1])
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until its end is waited for
        process = _fork()
        if process:
            endings[process] = ending
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if not process:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return driver
        driver.close()
    return None


def _fork() -> int:
    with warnings.catch_warnings():
        # It has threads of two memory allocators and of OpenBLAS, which are all made for being forked.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _compute_tasks(driver: Connection) -> None:
    """Compute the tasks that come from the driver, until it has ended."""
    with suppress(EOFError, OSError):
        while True:
            task, given = driver.recv()
            driver.send_bytes(_answer(task, given))


def _end_with(origin: int) -> None:
    """End this process when the one that it was forked from has ended, also within a task."""
    while os.getppid() == origin:
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
