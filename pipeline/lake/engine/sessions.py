"""Spark sessions: one that starts when it is first used, and extra ones for steps that run at the same time.

Settings of one step are not seen by the others. Extra sessions are pooled, and live as long as the session that they
belong to. Python must not collect one while others work: a Spark Connect session closes, in the thread that collects
it, what all sessions of the process share, and may wait there for threads that wait for it (PySpark 4.1,
``SparkSession.__del__``). The run would hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from pipeline.lake.engine import codegen, session_settings
from pipeline.settings import RunConfig, RunEngine

# Environment variables of Spark Connect clients and Databricks clusters.
REMOTE_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "DATABRICKS_RUNTIME_VERSION")


def is_remote_session(session: SparkSession | LazySession) -> bool:
    """Whether a session is, or will be, one of Spark Connect or Databricks: files are not those of this machine."""
    is_connected = type(session).__module__.startswith("pyspark.sql.connect")
    return is_connected or any(os.environ.get(name) for name in REMOTE_VARIABLES)


class LazySession:
    """A Spark session that is made when it is first used, and what computes tasks. A run with nothing new makes none.

    ``in_driver`` names the rooms whose rows could have been computed by tasks, and were computed in this process.
    """

    def __init__(self, make: Callable[[], SparkSession], engine: RunEngine = RunConfig.engine) -> None:
        self._make, self.engine = make, engine
        self._made: SparkSession | None = None
        self._starting: Future[SparkSession] | None = None
        self._compiles = False
        self.in_driver: set[str] = set()
        self._lock = Lock()

    @staticmethod
    def of(spark: SparkSession) -> LazySession:
        """Return a session that was made before."""
        found = LazySession(lambda: spark)
        found._made = spark
        return found

    @property
    def has_started(self) -> bool:
        """Whether the session was asked for."""
        return bool(self._made or self._starting)

    def start_soon(self) -> None:
        """Let the session start beside what this thread does next.

        An error is raised by the step that first uses the session.
        """
        with self._lock:
            if not self.has_started:
                self._starting = Future()
                # No daemon: where the start is interrupted, this process ends when Java has ended.
                Thread(target=_start, args=(self._make, self._starting), name="start of Spark").start()

    @property
    def spark(self) -> SparkSession:
        """The session."""
        with self._lock:
            if self._made is None:
                self._made = self._make() if self._starting is None else self._starting.result()
                if self._compiles:
                    codegen.enable(self._made)
            return self._made

    def expect_to_read(self, size: int) -> None:
        """Have queries compiled if so many bytes of captures are worth it; no session is made for it."""
        if size >= codegen.MIN_READ_BYTES:
            self._compiles = True
            if self._made is not None:
                codegen.enable(self._made)

    def note_in_driver(self, function: Callable[..., object]) -> None:
        """Note that this process computes what tasks could compute: the room of pipeline/ that has the function."""
        self.in_driver.add(getattr(function, "func", function).__module__.split(".")[1])


def _start(make: Callable[[], SparkSession], started: Future[SparkSession]) -> None:
    try:
        started.set_result(make())
    except BaseException as error:  # noqa: BLE001 - who waits for the session raises it
        started.set_exception(error)


@dataclass(slots=True)
class _SessionPool:
    """The extra sessions of one session: free ones, and closed ones that must not be collected yet."""

    free: list[SparkSession] = field(default_factory=list)
    closed: list[SparkSession] = field(default_factory=list)


# Spark asks after each row whether the batch that it makes for Python has become too large, and to answer that it walks
# through each list column that is null since its last value: with few lists the time goes with the square of the rows.
# Measured with 200,000 rows of five groups and seven such columns: 39 s, and 0.9 s without the question.
_BATCH_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
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
    if not codegen.is_off(spark):  # a new session has the settings that the first one began with
        codegen.enable(session)
    try:
        yield session
    finally:
        kept.free.append(session)


@contextmanager
def session_for_groups(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session of one's own whose Arrow batches for Python are sized by their rows alone, if it takes that.

    For groups of rows, which Python takes whole anyway.
    """
    with own_session(spark) as session, session_settings.within(session, {_BATCH_BYTES: str(2**31 - 1)}):
        yield session


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
