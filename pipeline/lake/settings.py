"""Settings of a session for as long as something is done with them.

Threads that ask side by side (``gather``) share a session and its settings. Several may want the same at once: the last
one that leaves puts back what was there. What one does must not be done with the settings of another: that is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import RLock, get_ident
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

# Spark asks after each row whether the batch that it makes for Python has become too large, and to answer that it walks
# through each list column that is null since its last value: with few lists the time goes with the square of the rows.
# Measured with 200,000 rows of five groups and seven such columns: 39 s, and 0.9 s without the question.
_UNMEASURED: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
_SHORT: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}


@dataclass(slots=True)
class _Held:
    """A setting while somebody has it: what it was before, and which threads have it as what, the latest last."""

    before: str | None
    by: list[tuple[int, str]] = field(default_factory=list)

    @property
    def now(self) -> str | None:
        return self.by[-1][1] if self.by else self.before


_LOCK: Final = RLock()
_HELD: Final[WeakKeyDictionary[SparkSession, dict[str, _Held]]] = WeakKeyDictionary()


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have the session these settings within, and behind it what it had.

    RuntimeError where another thread has one of them as something else at the time.
    """
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(_having(spark, name, value))
        yield


@contextmanager
def _having(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    mine = (get_ident(), value)
    with _LOCK:
        of_session = _HELD.setdefault(spark, {})
        held = of_session.get(name) or _Held(spark.conf.get(name, None))
        if held.now != value:
            if any(thread != mine[0] for thread, _ in held.by):
                raise RuntimeError(f"{name} is {held.now!r} for another thread of the session, it cannot be {value!r}")
            spark.conf.set(name, value)
        held.by.append(mine)
        of_session[name] = held
    try:
        yield
    finally:
        with _LOCK:
            held.by.remove(mine)
            if not held.by:
                del of_session[name]
            if held.now is None:
                spark.conf.unset(name)
            elif held.now != value:
                spark.conf.set(name, held.now)


def unmeasured(spark: SparkSession) -> AbstractContextManager[None]:
    """Within, batches for Python are as large as their number of rows says, whatever is in them.

    For groups of rows, which Python has as a whole anyway. Where a session does not let itself be told, nothing is set.
    """
    return having(spark, _allowed(spark, _UNMEASURED))


def short_batches(spark: SparkSession) -> AbstractContextManager[None]:
    """Within, batches for Python have few rows: for wide rows with lists and long values, whose size must be asked."""
    return having(spark, _allowed(spark, _SHORT))


def _allowed(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if spark.conf.isModifiable(name)}
