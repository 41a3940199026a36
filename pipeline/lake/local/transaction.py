"""Commits to Delta tables of files that are written already, and of rows that are gone, by Delta's own transaction.

What Spark writes goes through its planner and its tasks, and DELETE asks the table's state twice: a second and more for
a few rows, in a process that has just begun. Here Python writes the Parquet file, the log tells which files there are
(``table_files``), and Delta's classes make the commit of them in some 30 ms: conflicts, checkpoints, checksums and the
change feed are what they are after any other. They are asked for by name; where they are not to be had (Spark Connect,
a platform with a Delta of its own) Spark writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

_PACKAGE: Final = "org.apache.spark.sql.delta"

Kind = Literal["WRITE", "DELETE"]  # the operation of a commit, as the table's history shows it
Action = dict[str, Any]  # a line of the log: what it is, and what it says


class ConflictError(Exception):
    """Another commit came before one that was to follow a version of a table."""


class _Delta:
    """What is used of Java, asked for by name once: each part of a dotted name is a question of its own.

    TypeError or Py4JError where it is not to be had.
    """

    def __init__(self, java: Any) -> None:  # noqa: ANN401 - py4j's
        def named(name: str) -> Any:  # noqa: ANN401 - py4j's
            found = getattr(java, name)
            if isinstance(found, JavaPackage):
                raise TypeError(f"no class {name}")
            return found

        self.option = named("scala.Option")
        self.none = self.option.empty()
        self.for_table = named(f"{_PACKAGE}.DeltaLog").forTable
        self.action = getattr(named(f"{_PACKAGE}.actions.Action$"), "MODULE$").fromJson
        self.write, self.delete = (named(f"{_PACKAGE}.DeltaOperations${name}") for name in ("Write", "Delete"))
        modes = named("org.apache.spark.sql.SaveMode")
        self.append, self.overwrite = modes.Append, modes.Overwrite
        self.metric = named("org.apache.spark.sql.execution.metric.SQLMetric")
        self.array_list, self.hash_map = named("java.util.ArrayList"), named("java.util.HashMap")
        self.to_seq, self.to_map = java.PythonUtils.toSeq, java.PythonUtils.toScalaMap
        self.activate = java.SparkSession.setActiveSession
        self.path = named("org.apache.hadoop.fs.Path")
        self.written(None, None)  # of another Delta the operation may be made of other things
        self.deleted()

    def is_local(self, spark: SparkSession, root: str) -> bool:
        """Tell whether a path is one of this machine's files to the session."""
        settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        return bool(self.path(root).getFileSystem(settings).getUri().getScheme() == "file")

    def deleted(self) -> Any:  # noqa: ANN401 - py4j's
        """The operation of rows taken out."""
        return self.delete(self.sequence([]))

    def sequence(self, values: Sequence[Any]) -> Any:  # noqa: ANN401 - py4j's
        made = self.array_list()
        for value in values:
            made.add(value)
        return self.to_seq(made)

    def written(self, replacing: str | None, says: str | None) -> Any:  # noqa: ANN401 - py4j's
        """The operation of a write: of rows added, or put in the place of those of a condition."""
        mode, none, option = self.append if replacing is None else self.overwrite, self.none, self.option.apply
        return self.write(mode, none, option(replacing), option(says), none, none, none, none, none)

    def counted(self, counts: Mapping[str, int]) -> Any:  # noqa: ANN401 - py4j's
        made = self.hash_map()
        for name, count in counts.items():
            metric = self.metric("sum", 0)
            metric.set(count)
            made.put(name, metric)
        return self.to_map(made)


_delta = lru_cache(maxsize=1)(_Delta)


def is_possible(spark: SparkSession, root: str) -> bool:
    """Tell whether tables below a folder can be changed here.

    Java has to be at hand, with Delta's classes as they are known, and to take the folder for one of this machine: what
    a path without a scheme means is the session's to say.
    """
    if not root.startswith("/"):
        return False
    try:
        delta = _of(spark)
        return delta is not None and delta.is_local(spark, root)
    except Py4JJavaError:
        raise
    except (Py4JError, TypeError):  # no such class, or no such method of it
        return False


def _of(spark: SparkSession) -> _Delta | None:
    java = getattr(spark, "_jvm", None)
    return None if java is None else _delta(java)


def prepare(spark: SparkSession, folder: Path) -> None:
    """Have Java read the log of a table, and what commits need of its own, which takes the first one a second."""
    if (delta := _of(spark)) is not None:
        _begun(delta, spark._jsparkSession, folder)  # noqa: SLF001


def _begun(delta: _Delta, session: Any, folder: Path) -> tuple[int, Any]:  # noqa: ANN401 - py4j's
    """Return the newest version of a table, and a transaction that follows it."""
    delta.activate(session)  # whose settings a transaction has
    table = delta.for_table(session, str(folder))
    now = table.update(False, delta.none, delta.none)  # noqa: FBT003 - Java's; it looks into the folder
    return now.version(), table.startTransaction(delta.none, delta.option.apply(now))


def commit(
    spark: SparkSession, folder: Path, version: int, actions: Sequence[Action], *, kind: Kind,
    counts: Mapping[str, int], says: str | None = None, replacing: str | None = None,
) -> None:  # fmt: skip
    """Commit actions to the table of a folder behind a version of it.

    ``replacing``: the condition of rows that a WRITE puts others in the place of; ``counts`` are the operation's
    metrics. ``says``: what the commit says of itself; of a
    DELETE, or without it, what the session has it say. ConflictError where the table has another version by now.
    """
    delta, session = _of(spark), spark._jsparkSession  # noqa: SLF001
    if delta is None:
        raise TypeError("no Java to commit with")
    now, transaction = _begun(delta, session, folder)
    if now != version:
        raise ConflictError(f"{folder}: version {now} instead of {version}")
    transaction.registerSQLMetrics(session, delta.counted(counts))
    done = delta.deleted() if kind == "DELETE" else delta.written(replacing, says)
    try:
        transaction.commit(delta.sequence([delta.action(json.dumps(action)) for action in actions]), done)
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        if not name.startswith("Concurrent"):
            raise
        raise ConflictError(f"{folder}: {name} behind version {version}") from error
