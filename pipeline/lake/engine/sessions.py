"""Spark sessions: one that starts when it is first used, and extra ones for steps that run at the same time.

Settings of one step are not seen by the others. Extra sessions are pooled, and live as long as the session that they
belong to. Python must not collect one while others work: a Spark Connect session closes, in the thread that collects
it, what all sessions of the process share, and may wait there for threads that wait for it (PySpark 4.1,
``SparkSession.__del__``). The run would hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from pipeline.lake.engine import codegen

Input = TypeVar("Input")
Result = TypeVar("Result")

# Environment variables of Spark Connect clients and Databricks clusters.
REMOTE_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "DATABRICKS_RUNTIME_VERSION")


def is_remote(session: SparkSession | LazySession) -> bool:
    """Whether a session is, or will be, one of Spark Connect or Databricks: files are not those of this machine."""
    is_connected = type(session).__module__.startswith("pyspark.sql.connect")
    return is_connected or any(os.environ.get(name) for name in REMOTE_VARIABLES)


class TaskRunner(Protocol):
    """Processes of this machine that compute tasks (``jobs.command_line.task_processes``)."""

    @property
    def have_started(self) -> bool:
        """Whether a task would begin at once."""

    def start(self) -> None:
        """Let the processes start."""

    def run(self, function: Callable[[Input], Iterable[Result]], inputs: Iterable[Input]) -> list[Result]:
        """Return what a function gives for each input, in their order; each is a task."""


class LazySession:
    """A Spark session that is made when it is first used; most small runs need none, and then no Java is started."""

    def __init__(
        self,
        make: Callable[[], SparkSession],
        origin: LazySession | None = None,
        processes: TaskRunner | None = None,
    ) -> None:
        """``origin``: the session that this one is made from, in the same Java. ``processes``: compute tasks."""
        self._make, self._origin, self.processes = make, origin, processes
        self._made: SparkSession | None = None
        self._compiles = False
        self._lock = Lock()

    @staticmethod
    def of(spark: SparkSession) -> LazySession:
        """Return a session that was made before."""
        found = LazySession(lambda: spark)
        found._made = spark
        return found

    @property
    def has_started(self) -> bool:
        """Whether Java runs already."""
        return self._made is not None or (self._origin is not None and self._origin.has_started)

    def expect_tasks(self) -> None:
        """Let the processes that compute tasks start, unless they are Spark's."""
        if self.processes is not None:
            self.processes.start()

    @property
    def tasks_begin_at_once(self) -> bool:
        """Whether the processes that compute tasks have started, those of Spark or others."""
        return self.has_started or (self.processes is not None and self.processes.have_started)

    @property
    def spark(self) -> SparkSession:
        """The session."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
                if self._compiles:
                    codegen.enable(self._made)
            return self._made

    def expect_to_read(self, size: int, held: int = 0) -> None:
        """Have queries compiled if many bytes are to be read (``size``) or the lake was made from many (``held``).

        No session is made for it.
        """
        if codegen.is_worth_it(size, held):
            self._compiles = True
            if self._made is not None:
                codegen.enable(self._made)

    @contextmanager
    def own(self) -> Iterator[LazySession]:
        """Yield a session of one's own; its settings are those of a new one, or a copy behind Spark Connect."""
        with ExitStack() as stack:
            yield LazySession(lambda: stack.enter_context(own_session(self.spark)), self, self.processes)


@dataclass(slots=True)
class _SessionPool:
    """The extra sessions of one session: free ones, and closed ones that must not be collected yet."""

    free: list[SparkSession] = field(default_factory=list)
    closed: list[SparkSession] = field(default_factory=list)


_LOCK: Final = Lock()
_KEPT: Final[WeakKeyDictionary[SparkSession, _SessionPool]] = WeakKeyDictionary()


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session of one's own; its settings are those of a new one, or a copy behind Spark Connect."""
    with _LOCK:
        kept = _KEPT.setdefault(spark, _SessionPool())
    session = _free(kept)
    if session is None:
        clone = getattr(spark, "cloneSession", None)  # Spark Connect gives copies, classic Spark new ones
        session = clone() if clone is not None else spark.newSession()
    codegen.copy_codegen_settings(session, spark)
    try:
        yield session
    finally:
        kept.free.append(session)


def _free(kept: _SessionPool) -> SparkSession | None:
    """Take a pooled session that still works: a server closes those that were idle for an hour."""
    while True:
        with _LOCK:
            if not kept.free:
                return None
            session = kept.free.pop()
        try:
            session.conf.get("spark.sql.session.timeZone")
        except Exception:  # noqa: BLE001 - whatever it is, a new session does
            kept.closed.append(session)
        else:
            return session
