"""Rows of tables of few files marked as gone, without asking Delta for the files.

DELETE asks Delta's state of the table twice for what a few files hold: seconds in a new process, for each table. Which
files there are is known (``pinned``); one query tells where in them the rows are, and a commit puts a larger vector of
rows that are gone (protocol of Delta: Deletion Vectors) in the place of a file's vector, or takes a file out of which
no row is left. Vectors and the commit are made by Delta's own classes: conflicts, change feed, checkpoints and
checksums are what they are after a DELETE.
"""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.pinned import Delta, Pinned

MOST_ROWS: Final = 20_000  # two bytes each in the log's line; of more, Delta writes a file of its own
_PACKAGE: Final = "org.apache.spark.sql.delta"
_GOES: Final = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion")

File = dict[str, Any]  # what the log's ``add`` says of it
Ints = npt.NDArray[np.int64]


class _Delta:
    """What is used of Java to make vectors and commits, asked for by name once, as what reading files asks for is.

    TypeError or Py4JError where it is not to be had.
    """

    def __init__(self, reading: Delta) -> None:
        java = reading.java
        self.buffer, self.longs = getattr(java, "java.nio.ByteBuffer"), getattr(java, "java.nio.LongBuffer").allocate
        self.little = getattr(java, "java.nio.ByteOrder").LITTLE_ENDIAN
        self.wrap = getattr(getattr(java, "scala.collection.immutable.ArraySeq$"), "MODULE$").unsafeWrapArray
        vectors = f"{_PACKAGE}.deletionvectors"
        self.bitmap = getattr(getattr(java, f"{vectors}.RoaringBitmapArray$"), "MODULE$")
        self.stored = getattr(java, f"{vectors}.DeletionVectorStoredBitmap")
        self.portable = getattr(getattr(java, f"{vectors}.RoaringBitmapArrayFormat$"), "MODULE$").Portable()
        self.described = getattr(getattr(java, f"{_PACKAGE}.actions.DeletionVectorDescriptor$"), "MODULE$")
        self.stores = getattr(getattr(java, f"{_PACKAGE}.storage.dv.DeletionVectorStore$"), "MODULE$")
        self.delete = getattr(java, f"{_PACKAGE}.DeltaOperations$Delete")
        self.metric = getattr(java, "org.apache.spark.sql.execution.metric.SQLMetric")
        self.hash_map, self.to_map = getattr(java, "java.util.HashMap"), java.PythonUtils.toScalaMap
        self.some = getattr(java, "scala.Option").apply
        self.action, self.to_seq, self.array_list = reading.action, reading.to_seq, reading.array_list

    def vector(self, table: Any, file: File, rows: Ints) -> dict[str, Any]:  # noqa: ANN401 - py4j's
        """The vector of a file's rows that were gone, and of these, numbered from 0."""
        numbers = self.buffer.wrap(rows.astype("<i8").tobytes()).order(self.little).asLongBuffer()
        bitmap = self.bitmap.apply(self.wrap(self.longs(len(rows)).put(numbers).array()))
        if "deletionVector" in file:
            there = self.action.fromJson(json.dumps({"add": {**file, "dataChange": False}}))
            stored = self.stored(there.deletionVector(), self.some(table.dataPath()))
            bitmap.merge(stored.load(self.stores.createInstance(table.newDeltaHadoopConf())))
        made = self.described.inlineInLog(bitmap.serializeAsByteArray(self.portable), bitmap.cardinality())
        return {
            "storageType": made.storageType(), "pathOrInlineDv": made.pathOrInlineDv(),
            "sizeInBytes": made.sizeInBytes(), "cardinality": made.cardinality(),
        }  # fmt: skip

    def commit(self, spark: SparkSession, pinned: Pinned, actions: list[dict[str, File]], rows: int) -> None:
        """Commit actions as a DELETE, of so many rows, of the version that is pinned."""
        made, said = self.array_list(), self.hash_map()
        for each in actions:
            made.add(self.action.fromJson(json.dumps(each)))
        vectors = sum("add" in each for each in actions)
        counts = {"numDeletedRows": rows, "numRemovedFiles": len(actions) - 2 * vectors}
        counts["numDeletionVectorsAdded"] = vectors
        for name, count in counts.items():
            metric = self.metric("sum", 0)
            metric.set(count)
            said.put(name, metric)
        transaction = pinned.table.startTransaction(pinned.delta.none, self.some(pinned.snapshot))
        transaction.registerSQLMetrics(spark._jsparkSession, self.to_map(said))  # noqa: SLF001
        transaction.commit(self.to_seq(made), self.delete(self.to_seq(self.array_list())))


_delta = lru_cache(maxsize=1)(_Delta)


def mark(spark: SparkSession, pinned: Pinned, condition: str) -> bool:
    """Take out the rows that meet a SQL condition, in one commit; none where there is no such row.

    False: nothing was done, and a DELETE has to do it.
    """
    try:
        return _mark(spark, pinned, condition)
    except Py4JJavaError:
        raise
    except (Py4JError, TypeError):  # no such class, or no such method of it
        return False


def _mark(spark: SparkSession, pinned: Pinned, condition: str) -> bool:
    files = {each["path"].rpartition("/")[2]: each for each in pinned.told.files.values()}
    name, row = F.substring_index("_metadata.file_path", "/", -1), F.col("_metadata.row_index")
    rows = pinned.frame(spark).where(condition).select(name.alias("file"), row.alias("row"))
    found = rows.limit(MOST_ROWS + 1).toArrow()
    sizes = {each: _records(files.get(each, {})) for each in found["file"].unique().to_pylist()}
    if found.num_rows > MOST_ROWS or len(files) < pinned.number or None in sizes.values():
        return False
    if not sizes:
        return True
    delta, now = _delta(pinned.delta), time.time_ns() // 1_000_000
    actions: list[dict[str, File]] = []
    for each, size in sizes.items():
        file = files[each]
        vector = delta.vector(pinned.table, file, found.filter(pc.equal(found["file"], each))["row"].to_numpy())
        gone: File = {part: file[part] for part in _GOES if part in file}
        gone |= {"deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": {**gone, "stats": json.dumps({"numRecords": size})}})
        if vector["cardinality"] != size:
            stats = {**json.loads(file["stats"]), "tightBounds": False}  # they may be of rows that are gone
            left = {"dataChange": True, "deletionVector": vector, "stats": json.dumps(stats)}
            actions.append({"add": {**file, **left}})
    delta.commit(spark, pinned, actions, found.num_rows)
    return True


def _records(file: File) -> int | None:
    """How many rows a file has, gone ones among them; None where that is not told."""
    told = json.loads(file.get("stats") or "{}").get("numRecords")
    return told if isinstance(told, int) else None
