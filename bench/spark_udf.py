"""The decoder of message packets in Spark: as an Arrow function, and beside it a plain ``udf``, a packet at a time.

Both give all columns of ``silver.messages`` but the body's hash, over the same binary column of a Parquet file, on one
core, into nothing.
"""

from __future__ import annotations

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

from bench.measure import Measure, say
from bench.messages import packet
from jobs.session import PROJECT, session
from udfs.messages.packets import decode_messages
from udfs.messages.single import decode_message

ONE_CORE = {"spark.master": "local[1]", "spark.executorEnv.PYTHONPATH": str(PROJECT)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _columns(packets: pa.Array) -> pa.Array:
    found = decode_messages(packets, "RemoteRead", hashes=False)
    return pa.StructArray.from_arrays(list(found.values()), names=list(found))


KIND = _columns(pa.array([b""], pa.binary())).type


def _value(kind: pa.DataType, value: Any) -> object:
    """A value of the single-value reader as Spark's rows have it."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return EPOCH + timedelta(microseconds=value)
    return Decimal(value) if pa.types.is_decimal(kind) else value


def _row(raw: bytes) -> tuple[object, ...]:
    values, errors = decode_message(raw, "RemoteRead")
    values["errors"] = errors
    return tuple(_value(field.type, values.get(field.name)) for field in KIND)


def measure(folder: Path, rows: int = 200_000, few: int = 10_000) -> list[Measure]:
    """Thousands of packets a second through Spark, both ways; ``few`` for the slow one."""
    pick = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("many", rows), ("few", few)):
        made = pa.array([packet(number, pick) for number in range(count)], pa.binary())
        pq.write_table(pa.table({"packet": made}), folder / f"{name}.parquet")
    spark = session("bench", ONE_CORE)
    try:
        kind = from_arrow_type(KIND)
        ways = {
            "many": F.arrow_udf(_columns, kind),  # type: ignore[attr-defined]
            "few": F.udf(_row, kind),
        }
        rates = {}
        for name, way in ways.items():
            say(f"Spark: {'an arrow_udf' if name == 'many' else 'a plain udf'}")
            frame = spark.read.parquet(str(folder / f"{name}.parquet"))
            took = []
            for _ in range(3):  # the first starts the worker
                begin = time.perf_counter()
                frame.select(way("packet").alias("message")).write.format("noop").mode("overwrite").save()
                took.append(time.perf_counter() - begin)
            rates[name] = (rows if name == "many" else few) / min(took)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    return [
        Measure("packets through Spark, an arrow_udf", rates["many"] / 1000, "k/s"),
        Measure("packets through Spark, a plain udf", rates["few"] / 1000, "k/s"),
        Measure("  the one against the other", rates["many"] / rates["few"], "x"),
    ]
