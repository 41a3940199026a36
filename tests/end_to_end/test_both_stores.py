"""The whole sample through both stores: every table has the same rows, cell by cell, and others can read them."""

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from end_to_end.lakes import facts, tables
from jobs import run_all
from pipeline.lake.lake import Lake
from schemas import catalog

pytestmark = pytest.mark.spark

AS_OF = "2026-12-01T00:00:00Z"


def run(lake, project, store):
    data = project / "data"
    assert run_all.main([
        "--lake", lake.root, "--captures", str(data / "sample"), "--as-of", AS_OF, "--set", f"lake.store={store}",
        "--snapshots", str(data / "estate" / "snapshots"),
    ]) == 0  # fmt: skip


@pytest.fixture(scope="module")
def lakes(spark, project, tmp_path_factory):
    """The same input in a lake of each store."""
    found = {}
    for store in ("delta-rs", "spark"):
        found[store] = Lake(spark, str(tmp_path_factory.mktemp(store)), store=store)
        run(found[store], project, store)
    return found


def test_both_stores_hold_the_same_rows(lakes):
    one, other = (tables(lakes[store]) for store in ("delta-rs", "spark"))
    for name in one:
        assert facts(one[name]) == facts(other[name]), name
    assert sum(rows.num_rows for rows in one.values()) > 5_000


def test_anybody_reads_the_tables(lakes):
    lake = lakes["delta-rs"]
    for table in catalog.DATA_TABLES:
        if lake.exists(table):
            path, count = lake.path(table), lake.read(table).count()
            delta = DeltaTable(path)
            assert len(delta.to_pandas()) == count
            assert pl.read_delta(path).height == count
            files = [f"{path}/{name}" for name in delta.get_add_actions().column("path").to_pylist()]
            if files:
                assert duckdb.read_parquet(files, union_by_name=True).count("*").fetchall() == [(count,)]
