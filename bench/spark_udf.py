"""Benchmark of the message decoder in Spark: as an Arrow function on columns, and as a plain ``udf`` on single packets.

Both decode the same binary column of a Parquet file to all columns of ``silver.messages`` except the hash of the body,
on one core, and discard the result.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from bench import TEST_FOLDERS
from bench.measure import Measure, log_progress
from bench.messages import build_packet
from jobs.session import PROJECT_ROOT, get_spark_session
from messages.single_message import decode_single_message
from udfs.messages.message_decoder import decode_messages

ONE_CORE_SETTINGS = {
    "spark.master": "local[1]",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT), *TEST_FOLDERS]),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _decode_columns(packets: pa.Array) -> pa.Array:
    found = decode_messages(packets, "RemoteRead", hashes=False)
    return pa.StructArray.from_arrays(list(found.values()), names=list(found))


MESSAGE_TYPE = _decode_columns(pa.array([b""], pa.binary())).type


def _spark_value(kind: pa.DataType, value: Any) -> object:
    """Convert a value of the single-packet decoder to the type in Spark's rows."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return EPOCH + timedelta(microseconds=value)
    return Decimal(value) if pa.types.is_decimal(kind) else value


def _decode_row(raw: bytes) -> tuple[object, ...]:
    values, errors = decode_single_message(raw, "RemoteRead")
    values["errors"] = errors
    return tuple(_spark_value(field.type, values.get(field.name)) for field in MESSAGE_TYPE)


def measure(folder: Path, rows: int = 200_000, udf_rows: int = 10_000) -> list[Measure]:
    """Measure packets per second through Spark in both ways; the plain udf gets ``udf_rows`` packets."""
    pick = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("many", rows), ("few", udf_rows)):
        made = pa.array([build_packet(number, pick) for number in range(count)], pa.binary())
        pq.write_table(pa.table({"packet": made}), folder / f"{name}.parquet")
    spark = get_spark_session("bench", ONE_CORE_SETTINGS)
    try:
        kind = from_arrow_type(MESSAGE_TYPE)
        ways = {
            "many": F.arrow_udf(_decode_columns, kind),  # type: ignore[attr-defined]
            "few": F.udf(_decode_row, kind),
        }
        rates = {}
        for name, way in ways.items():
            log_progress(f"Spark: {'an arrow_udf' if name == 'many' else 'a plain udf'}")
            frame = spark.read.parquet(str(folder / f"{name}.parquet"))
            took = []
            for _ in range(3):  # the first starts the worker
                begin = time.perf_counter()
                frame.select(way("packet").alias("message")).write.format("noop").mode("overwrite").save()
                took.append(time.perf_counter() - begin)
            rates[name] = (rows if name == "many" else udf_rows) / min(took)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    return [
        Measure("packets through Spark, an arrow_udf", rates["many"] / 1000, "k/s"),
        Measure("packets through Spark, a plain udf", rates["few"] / 1000, "k/s"),
        Measure("  the one against the other", rates["many"] / rates["few"], "x"),
    ]
