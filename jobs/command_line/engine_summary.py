"""Who computed a run, for its log and summary: engine, master, and how much Spark did.

This is the one module that asks Java directly: PySpark has no other way to such counts (its status tracker knows jobs
that run, listeners are for streams). Behind Spark Connect, and where a platform forbids the access, nobody knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pipeline.lake.engine import session_settings
from pipeline.lake.engine.sessions import LazySession

_WAIT_MS = 10_000  # for the events of what has ended


class SparkWork(NamedTuple):
    """What the sessions in one Java have done: SQL executions, jobs, tasks."""

    executions: int
    jobs: int
    tasks: int


def count_work(spark: SparkSession) -> SparkWork | None:
    """Return what a session, and those beside it in the same Java, have done; None where that is not known."""
    java = getattr(spark, "_jsparkSession", None)
    if java is None:
        return None
    try:
        context = java.sparkContext()
        context.listenerBus().waitUntilEmpty(_WAIT_MS)
        status = context.statusStore()
        executors = status.executorList(False)  # noqa: FBT003 - lost ones too
        # Of very many executions and jobs Spark forgets the oldest, but numbers go on.
        executions, jobs = java.sharedState().statusStore().executionsList(), status.jobsList(None)
        return SparkWork(
            executions.last().executionId() + 1 if executions.size() else 0,
            jobs.head().jobId() + 1 if jobs.size() else 0,  # the newest is first
            sum(executors.apply(place).totalTasks() for place in range(executors.size())),
        )
    except Py4JError:
        return None


class EngineSummary:
    """The summary of the engine of one run."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._before: SparkWork | None = None  # what others did in the same session
        self._master: str | None = None

    def has_started(self, spark: SparkSession) -> str:
        """Note that the session has started; return its master as it is logged."""
        self._spark, self._before = spark, count_work(spark)
        self._master = session_settings.read(spark, "spark.master")  # some platforms do not tell
        return self._master or "where the session says"

    def fields(self, session: LazySession) -> dict[str, Any]:
        """Return the summary as JSON values; counts are None where nobody knows them.

        ``in_driver``: the rooms of pipeline/ whose rows could have been computed by tasks, and were computed in the
        driver.
        """
        work: SparkWork | None = SparkWork(0, 0, 0)
        if self._spark is not None:
            work, before = count_work(self._spark), self._before
            work = work and before and SparkWork(*(now - then for now, then in zip(work, before, strict=True)))
        counts = dict.fromkeys(SparkWork._fields) if work is None else work._asdict()
        return {
            "name": session.engine, "master": self._master, "started": self._spark is not None, **counts,
            "in_driver": sorted(session.in_driver),
        }  # fmt: skip
