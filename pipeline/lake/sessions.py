"""Sessions beside a session: what a step sets in its own, others that are done at the same time do not see.

They are kept for as long as the session that they are beside, and used again. Python must not collect one while others
are at work: a session of Spark Connect closes, in whatever thread collects it, what all sessions of the process share,
and waits there for threads that may be waiting for that one (PySpark 4.1, ``SparkSession.__del__``). The run then
stands still for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from pipeline.lake import codegen


@dataclass(slots=True)
class _Beside:
    """The sessions beside one: those that nobody uses, and those that are of no use any more."""

    free: list[SparkSession] = field(default_factory=list)
    closed: list[SparkSession] = field(default_factory=list)


_LOCK: Final = Lock()
_KEPT: Final[WeakKeyDictionary[SparkSession, _Beside]] = WeakKeyDictionary()


@contextmanager
def beside(spark: SparkSession) -> Iterator[SparkSession]:
    """Have a session of one's own; its settings are those of a new one, or behind Spark Connect the other's."""
    with _LOCK:
        kept = _KEPT.setdefault(spark, _Beside())
    session = _free(kept)
    if session is None:
        clone = getattr(spark, "cloneSession", None)  # Spark Connect gives copies, classic Spark new ones
        session = clone() if clone is not None else spark.newSession()
    codegen.like(session, spark)
    try:
        yield session
    finally:
        kept.free.append(session)


def _free(kept: _Beside) -> SparkSession | None:
    """Take a session that is still there: a server closes those that were not used for an hour."""
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
