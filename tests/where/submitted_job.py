"""A job for spark-submit on a cluster. Two of its tasks die at their first attempt, after the first of two files.

Prints what was computed where, as JSON. The argument is a folder that all machines see.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

import udfs
from jobs.session import get_spark_session
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter, plan_tasks, staged_files

FOLDER = Path(sys.argv[-1])
SCHEMA = pa.schema({"task": pa.int64(), "attempt": pa.int64(), "place": pa.string(), "code": pa.string()})
DIES, LOSES_ITS_EXECUTOR = 1, 2
TASKS = 4


def rows(number):
    """Write two staging files of two rows each; give a row that says where."""
    attempt = TaskContext.get().attemptNumber()
    (FOLDER / "attempts" / f"{number} {attempt}").write_text(str(Path.cwd()))
    time.sleep(1)  # both workers take some of the tasks
    for name in ("first", "second"):
        staging = StagingWriter(str(FOLDER / "staged"), f"{name} of {number}")
        staging.add("rows", pa.record_batch({"task": [number, number], "name": [name, name]}))
        if attempt == 0 and name == "second" and number == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0 and name == "second" and number == LOSES_ITS_EXECUTOR:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)  # its parent, Java
            time.sleep(60)
        staging.close()
    yield pa.record_batch([[number], [attempt], [os.getcwd()], [udfs.__file__]], schema=SCHEMA)  # noqa: PTH109


def main():
    """Compute, commit, and print what is found then."""
    spark = get_spark_session("submitted")
    (FOLDER / "attempts").mkdir(parents=True)
    computed = PartitionedRows(TASKS, 0, rows).frame(spark, from_arrow_schema(SCHEMA)).toArrow()
    table = str(FOLDER / "table")
    few = PartitionedRows(2, 0, lambda number: [pa.record_batch({"task": [number]})])
    few.frame(spark, from_arrow_schema(pa.schema({"task": pa.int64()}))).write.format("delta").save(table)
    parts = [part for task in plan_tasks(staged_files(LakePath(str(FOLDER / "staged")) / "rows")) for part in task]
    staged = [row for part in parts for batch in part.read() for row in batch.to_pylist()]
    print(json.dumps({
        "computed": computed.to_pylist(),
        "attempts": [attempt.read_text() for attempt in (FOLDER / "attempts").iterdir()],
        "staged": sorted([row["task"], row["name"]] for row in staged),
        "files": len(parts),
        "delta": spark.read.format("delta").load(table).toArrow().num_rows,
        "daemon": spark.conf.get("spark.python.daemon.module", None),
    }))  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
