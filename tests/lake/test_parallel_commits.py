"""No commit of several processes on one table is lost, in a folder and on an object store."""

import os
import subprocess
import sys

import pytest

from bronze.stores.bucket import serving_here
from engines import without_spark
from pipeline.lake.lake import Lake
from schemas.bronze import QUARANTINE

# Commits rows one by one, and prints the key of each that was acknowledged.
_WRITER = """
import sys
import pyarrow as pa
from pipeline.lake.errors import ConflictError
from pipeline.lake.lake import Lake
from pipeline.lake.engine.sessions import LazySession
from schemas.bronze import QUARANTINE

root, name, count = sys.argv[1:]
lake, schema = Lake(LazySession(lambda: None), root), QUARANTINE.schema()
for number in range(int(count)):
    key = f"{name}-{number}"
    row = pa.Table.from_pylist([{"quarantine_key": key}], schema)
    while True:
        try:
            if number % 5:
                lake.append(QUARANTINE, row)
            else:
                lake.delete_and_insert(QUARANTINE, "quarantine_key", [f"{name}-{number - 1}"], row, dates=None)
                print("-", f"{name}-{number - 1}")
            break
        except ConflictError:
            pass
    print("+", key)
"""


def check_commits(root, count):
    """Have two processes commit at the same time; all that they were told is there, and nothing else."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(root), name, str(count)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in ("one", "other")
    ]  # fmt: skip
    told = [line.split() for writer in writers for line in writer.communicate()[0].splitlines()]
    assert [writer.returncode for writer in writers] == [0, 0]
    gone = {key for sign, key in told if sign == "-"}
    expected = sorted(key for sign, key in told if sign == "+" and key not in gone)
    assert len(told) == 2 * (count + -(-count // 5))
    lake = Lake(without_spark(), str(root))
    assert sorted(lake.select(QUARANTINE, "TRUE", ["quarantine_key"]).column(0).to_pylist()) == expected
    assert lake.version(QUARANTINE) >= 2 * count


@pytest.fixture
def bucket():
    with serving_here() as server:
        yield server


def test_in_a_folder(tmp_path):
    check_commits(tmp_path / "lake", 25)


def test_on_an_object_store(bucket):
    check_commits("s3://captures/lake", 10)


@pytest.mark.long
def test_many_in_a_folder(tmp_path):
    check_commits(tmp_path / "lake", 500)


@pytest.mark.long
def test_many_on_an_object_store(bucket):
    check_commits("s3://captures/lake", 50)
