"""A client of Spark Connect that looks at answers without rows: a process of its own, since it may end.

The arguments are the server's URL and the folder of a lake.
"""

import sys

from pyspark.sql import SparkSession

from pipeline.lake.engine.collect import collect
from pipeline.lake.lake import Lake
from pipeline.lake.storage.spark_log import SparkLog
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

EMPTY = "SELECT connection_history, array('a') AS texts FROM {rows} WHERE false"
WITHIN = "SELECT filter(array(array('b')), each -> false) AS x FROM range(3)"


def main(url, folder):
    """Ask in each way that a lake is asked."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    lake = Lake(spark, folder)
    assert isinstance(lake._log, SparkLog), lake._log
    few = lake.query_at_most(EMPTY, 10, rows=QUEUE_SNAPSHOTS)
    for rows in (few, lake.collect(lake.frame(EMPTY, rows=QUEUE_SNAPSHOTS), QUEUE_SNAPSHOTS.struct())):
        assert (rows.num_rows, rows.nbytes) == (0, 0)
    within = collect(spark.sql(WITHIN))
    for column in (*rows.columns, *within.columns):
        column.combine_chunks().flatten().validate(full=True)
    assert within.nbytes > 0
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
