"""Tables with deletion vectors, as earlier versions of this program made them: hidden rows stay hidden."""

import datetime as dt

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import ChangesSince, FilteredTable
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
KEYS = "SELECT quarantine_key FROM {rows} ORDER BY quarantine_key"


def rows(*keys):
    schema = pa.schema([field for field in QUARANTINE.schema() if field.name != "event_date"])
    return pa.Table.from_pylist([{"quarantine_key": key, "size_bytes": 1, "seen_at": NOON} for key in keys], schema)


@pytest.fixture(params=["auto", pytest.param("spark", marks=pytest.mark.long)])
def lake(request, spark, tmp_path):
    """A lake of Spark's with four rows in one file, one of which somebody else deletes: its vector hides it."""
    lake = Lake(spark, str(tmp_path / "lake"), store="spark", read_log=request.param)
    lake.append(QUARANTINE, rows("a", "b", "c", "d"))
    name = lake.sql_name(QUARANTINE)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {name} WHERE quarantine_key = 'b'")
    assert DeltaTable(lake.path(QUARANTINE)).deletion_vectors().read_all().num_rows == 1
    return Lake(spark, lake.root, read_log=request.param)


def test_a_row_that_a_vector_hides_is_in_no_answer(lake):
    """Not in rows, counts, changes, frames, and what is held in memory; and all goes on."""
    for _ in range(2):
        assert lake.query(KEYS, rows=QUARANTINE)["quarantine_key"].to_pylist() == ["a", "c", "d"]
    shared = FilteredTable(QUARANTINE, "size_bytes = 1", is_shared=True)
    assert lake.query(KEYS, rows=shared)["quarantine_key"].to_pylist() == ["a", "c", "d"]
    assert lake.query("SELECT count(*) AS n FROM {rows}", rows=QUARANTINE)["n"].to_pylist() == [3]
    assert lake._answers.count_rows(QUARANTINE) == 3
    assert sorted(row.quarantine_key for row in lake.read(QUARANTINE).collect()) == ["a", "c", "d"]
    newest = lake.version(QUARANTINE)
    feed = lake.query("SELECT quarantine_key, _change_type FROM {feed}", feed=ChangesSince(QUARANTINE, 0, newest))
    assert feed.to_pylist() == [{"quarantine_key": "b", "_change_type": "delete"}]
    with lake.hold_exclusive_access(lambda: None):
        lake.delete_and_insert(QUARANTINE, "quarantine_key", ["c"], rows("c", "e"), dates=None)
        assert lake.query(KEYS, rows=QUARANTINE)["quarantine_key"].to_pylist() == ["a", "c", "d", "e"]
        lake.update(QUARANTINE, {"size_bytes": "2"}, "quarantine_key IN ('b', 'd')")
        lake.delete(QUARANTINE, "quarantine_key = 'a'")
    again = Lake(lake.spark, lake.root)
    found = again.query("SELECT quarantine_key, size_bytes FROM {rows} ORDER BY quarantine_key", rows=QUARANTINE)
    assert [tuple(row.values()) for row in found.to_pylist()] == [("c", 1), ("d", 2), ("e", 1)]
    assert again._answers.count_rows(QUARANTINE) == 3


def test_new_tables_have_no_vectors(spark, tmp_path):
    """Their files are read as they are, by whoever reads Parquet."""
    lake = Lake(spark, str(tmp_path / "lake"), store="spark")
    lake.append(QUARANTINE, rows("a", "b"))
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    delta = DeltaTable(lake.path(QUARANTINE))
    assert delta.to_pyarrow_table()["quarantine_key"].to_pylist() == ["b"]
    assert "deletionVectors" not in (delta.protocol().reader_features or ())
