"""Write an archive of the Java classes that a run loads (class data sharing), so that later runs start faster.

Loading and verifying the classes of Spark and Delta is most of the time until Spark's first task begins. Classes in an
archive are mapped into memory instead. Java writes the archive when it exits, from the classes that it loaded: those of
tasks that give Arrow rows, of queries, of Parquet files, and of commits by delta-spark. Another Java version, or
another class path, ignores the archive.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.session import PROJECT_ROOT, get_spark_session, java_options
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.tasks import PartitionedRows
from udfs.capture.capture_reader import BRONZE_SCHEMAS, ReadOptions, read_capture_batches
from udfs.files.file_source import FileSource

_OPTIONS = "spark.driver.extraJavaOptions"
_CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")
_ROWS = "rpc_calls"  # of the captures
# What the pipeline's statements make Spark do, in few words: a window, a join, groups, a sort, a limit.
_QUERY = """
SELECT opnum, count(*) AS calls, max(place) AS places, collect_set(outcome) AS outcomes
FROM (SELECT *, row_number() OVER (PARTITION BY connection_id ORDER BY request_at) AS place FROM {calls})
JOIN (SELECT DISTINCT connection_id FROM {calls}) USING (connection_id)
WHERE outcome IS NOT NULL GROUP BY opnum ORDER BY calls DESC LIMIT 10
"""
_MERGE = """
MERGE INTO delta.`{table}` AS kept USING {{more}} AS more ON kept.call_key = more.call_key
WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""
_PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "false"}


def main() -> None:
    """Let Spark compute, query and commit, and write the archive to the path given on the command line."""
    archive = Path(sys.argv[1]).absolute()
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    options = f'{java_options(None)[_OPTIONS]} "-XX:ArchiveClassesAtExit={unfinished}" -Xlog:cds*=off'
    spark = get_spark_session(
        "archive of classes", {_OPTIONS: options, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    )
    with tempfile.TemporaryDirectory() as folder:
        calls = _compute(spark, f"{folder}/calls")
        _commit(spark, calls, f"{folder}/table")
    gateway = SparkContext._gateway  # noqa: SLF001 - the only access to the Java process
    spark.stop()
    if gateway is None:
        sys.exit("this process did not start Java itself")
    gateway.shutdown()
    gateway.proc.stdin.close()  # then Java exits and writes the archive
    gateway.proc.wait(timeout=120)
    unfinished.rename(archive)


def _compute(spark: SparkSession, folder: str) -> DataFrame:
    """Read captures in tasks, write their calls to Parquet files in a folder, and return these; query them."""
    captures = [PROJECT_ROOT / "data" / "sample" / name for name in _CAPTURES]

    def read(number: int) -> Iterator[pa.RecordBatch]:
        batches = read_capture_batches(FileSource.from_path(str(captures[number])), ReadOptions())
        return (batch for kind, batch in batches if kind == _ROWS)

    rows = PartitionedRows(len(captures), sum(path.stat().st_size for path in captures), read)
    tasks = rows.frame(spark, from_arrow_schema(BRONZE_SCHEMAS[_ROWS]))
    tasks.toArrow()
    tasks.write.parquet(folder)
    calls = spark.read.parquet(folder)
    spark.sql(_QUERY, calls=calls).toArrow()
    calls.groupBy("connection_id").applyInArrow(lambda group: group, calls.schema).toArrow()
    return calls


def _commit(spark: SparkSession, calls: DataFrame, table: str) -> None:
    """Create a Delta table, and change and read it in each way that a lake does; and query it compiled."""
    rows = arrow_to_frame(spark, calls.toArrow())
    _writer(rows).options(**_PROPERTIES).clusterBy("event_date").save(table)
    _writer(rows).mode("append").save(table)
    _writer(rows.where("opnum = 0")).mode("overwrite").option("replaceWhere", "opnum = 0").save(table)
    spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    spark.sql(_MERGE.format(table=table), more=rows.limit(1))
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    feed.load(table).toArrow()


def _writer(rows: DataFrame) -> DataFrameWriter:
    return rows.write.format("delta").option("userMetadata", "{}")


if __name__ == "__main__":
    main()
