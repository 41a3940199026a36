"""Rows that are fetched by their numbers, or by what they are, are those that Spark reads."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.test_table_writer import TIMES, quarantine
from pipeline.lake.frames import arrow_to_frame
from pipeline.lake.lake import Lake
from pipeline.lake.local import table_reader
from pipeline.lake.local.table_reader import rows_at
from pipeline.lake.schema_enforcement import arrow_schema
from schemas.bronze import QUARANTINE

ROWS = 100
NAMES = pa.schema([("name", pa.string()), ("data", pa.binary())])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of a hundred rows in groups of seven."""
    path = tmp_path_factory.mktemp("rows") / "some.parquet"
    rows = pa.table({"name": [f"row {number}" for number in range(ROWS)], "data": [bytes([n]) for n in range(ROWS)]})
    pq.write_table(rows, path, row_group_size=7)
    return path


@given(numbers=st.sets(st.integers(0, ROWS - 1)).flatmap(lambda each: st.permutations(sorted(each))))
def test_rows_by_their_numbers(file, numbers):
    found = rows_at(file, np.array(numbers, np.int64), NAMES)
    assert found.schema == NAMES
    assert found["data"].to_pylist() == [bytes([number]) for number in sorted(numbers)]
    assert found["name"].to_pylist() == [f"row {number}" for number in sorted(numbers)]


def test_only_row_groups_that_hold_one_are_read(file, monkeypatch):
    read = []

    class Watched(pq.ParquetFile):
        def read_row_group(self, group, **more):
            read.append(group)
            return super().read_row_group(group, **more)

    monkeypatch.setattr(table_reader.pq, "ParquetFile", Watched)
    rows_at(file, np.array([99, 0, 6, 50], np.int64), NAMES)
    assert read == [0, 7, 14]


def test_columns_that_a_file_does_not_have_are_null(file):
    more = pa.schema([("seen", pa.timestamp("us", "UTC")), ("name", pa.string()), ("list", pa.list_(pa.int64()))])
    found = rows_at(file, np.array([3], np.int64), more)
    assert found.schema == more
    assert found.to_pylist() == [{"seen": None, "name": "row 3", "list": None}]


@pytest.mark.parametrize("flavor", ["as they are written", "INT96"])
def test_times_are_those_that_were_written(tmp_path, flavor):
    at = [dt.datetime(2024, 2, 29, 12, 0, 0, 123999, tzinfo=dt.UTC), None]
    rows = pa.table({"at": pa.array(at, pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "times.parquet", use_deprecated_int96_timestamps=flavor == "INT96")
    found = rows_at(tmp_path / "times.parquet", np.array([0, 1], np.int64), rows.schema)
    assert found["at"].to_pylist() == at


@pytest.mark.spark
def test_rows_of_a_table_by_what_they_are(lake, spark, tmp_path):
    """Of files that Arrow and that Spark wrote, without rows that are gone; as Spark finds them."""
    by_spark = Lake(spark, str(tmp_path / "by_spark"))
    by_spark._local = None
    for each in (lake, by_spark):
        for part in range(3):
            rows = quarantine(*((f"{part}-{n}", TIMES[n % len(TIMES)], bytes([n])) for n in range(40)))
            each.append(QUARANTINE, rows if part else arrow_to_frame(spark, rows))
        each.delete(QUARANTINE, "quarantine_key IN {keys}", keys={"0-1", "1-1", "2-39"})
    conditions = ("TRUE", "FALSE", "quarantine_key IN {keys}", "seen_at IS NULL", "event_date > DATE'2024-01-01'")
    for where in conditions:
        for columns in ((), ("sample", "quarantine_key")):
            names = {"keys": {"0-1", "0-2", "2-7"}} if "{keys}" in where else {}
            ours, theirs = (each.select(QUARANTINE, where, columns, **names) for each in (lake, by_spark))
            assert ours.schema.names == theirs.schema.names
            assert ours.schema == pa.schema([arrow_schema(QUARANTINE).field(name) for name in ours.schema.names])
            assert sorted(ours.to_pylist(), key=str) == sorted(theirs.to_pylist(), key=str)
