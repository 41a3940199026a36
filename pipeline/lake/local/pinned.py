"""Tables of few files, read as they are now without asking Delta for their files.

Each query of a Delta table first finds which of its files it needs: a query of its own, of the table's state, which is
made anew after every commit. That costs more than to read some small files does (``docs/internals/decisions``). Of a
table of few files a query needs nearly all; which they are is in the table's log (``table_files``). Delta still reads
the rows: it knows which of them are gone.

Delta's classes are asked for what its readers of streams use. Where these are not to be had (Spark Connect, a platform
with a Delta of its own), where the log is no folder of this machine, or is not as expected, a table is read as anybody
reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pipeline.lake.local.table_files import Listing, listing

MOST_FILES: Final = 100  # measured: of 128 and more, files that statistics leave out cost more than asking for them
_TOLD: Final = (
    "path", "partitionValues", "size", "modificationTime", "deletionVector", "baseRowId", "defaultRowCommitVersion",
)  # fmt: skip


class Delta:
    """What is used of Java, asked for by name once: each part of a dotted name is a question of its own."""

    def __init__(self, java: Any) -> None:  # noqa: ANN401 - py4j's
        self.java = java
        self.none = getattr(java, "scala.Option").empty()
        self.for_table = getattr(java, "org.apache.spark.sql.delta.DeltaLog").forTable
        self.action = getattr(getattr(java, "org.apache.spark.sql.delta.actions.Action$"), "MODULE$")
        self.array_list = getattr(java, "java.util.ArrayList")
        self.to_seq = java.PythonUtils.toSeq
        self.activate = java.SparkSession.setActiveSession

    def files(self, told: Listing) -> Any:  # noqa: ANN401 - py4j's
        """Delta's own objects for what the log says of files; statistics and tags are left out."""
        made = self.array_list()
        for file in told.files.values():
            each = {name: file[name] for name in _TOLD if name in file}
            made.add(self.action.fromJson(json.dumps({"add": {**each, "dataChange": False}})))
        return self.to_seq(made)


class Pinned(NamedTuple):
    """A table of few files at one version; the table, its snapshot and files are Java's, ``told`` is of the log."""

    delta: Delta
    table: Any
    snapshot: Any
    files: Any
    told: Listing

    @property
    def number(self) -> int:
        """How many files there are."""
        return len(self.told.files)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows of that version, whenever they are asked for."""
        self.delta.activate(_session(spark))  # a frame is of the session in which it is made
        rows = DataFrame(self.table.createDataFrame(self.snapshot, self.files, False, self.delta.none), spark)  # noqa: FBT003
        return rows if self.number else rows.limit(0)  # Spark then knows without asking, in joins too


class Pins:
    """The files of tables, as they were listed last. One for each lake; its sessions may share it."""

    def __init__(self) -> None:
        self._delta: Delta | None = None
        # Of a log: the table's identity, its files, and Java's objects for them where they are few.
        self._known: dict[Path, tuple[str, Listing, Any]] = {}

    def pinned(self, spark: SparkSession, log: Path) -> Pinned | None:
        """The table of a log, which has to be there, as it is now; None where Delta has to look for its files."""
        java = getattr(spark, "_jvm", None)
        if java is None or not log.is_dir():
            return None
        try:
            self._delta = self._delta or Delta(java)
            return self._pinned(self._delta, spark, log)
        except Py4JJavaError:
            raise
        except (Py4JError, TypeError):  # no such class, or no such method of it
            return None

    def _pinned(self, delta: Delta, spark: SparkSession, log: Path) -> Pinned | None:
        table = delta.for_table(_session(spark), str(log.parent))
        now = table.update(False, delta.none, delta.none)  # noqa: FBT003 - Java's; it looks into the folder
        identity = now.metadata().id()  # another table can have been made in the folder
        before, known, files = self._known.get(log, (identity, None, None))
        if known is None or before != identity or known.version != now.version():
            known = listing(log, now.version(), known if before == identity else None)
            if known is None:
                return None
            files = delta.files(known) if len(known.files) <= MOST_FILES else None
            self._known[log] = identity, known, files
        return None if files is None else Pinned(delta, table, now, files, known)


def _session(spark: SparkSession) -> Any:  # noqa: ANN401 - py4j's
    return spark._jsparkSession  # noqa: SLF001
