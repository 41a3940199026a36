"""Maintenance changes no row: small files are joined, what nothing needs is gone; the next run has nothing to do."""

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from end_to_end.lakes import facts, tables
from jobs import maintain, run_all
from pipeline.lake.lake import Lake
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.bronze import CAPTURE_FILES, RPC_CALLS, WATERMARKS

pytestmark = pytest.mark.spark


def rows(lake):
    return {name: facts(found) for name, found in tables(lake).items()}


@pytest.fixture
def lake(spark, project, tmp_path):
    """A lake of two runs."""
    sample = project / "data" / "sample"
    root = tmp_path / "lake"
    for name in ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng"):
        (tmp_path / "captures").mkdir(exist_ok=True)
        shutil.copy(sample / name, tmp_path / "captures")
        assert run_all.main(["--lake", str(root), "--captures", str(tmp_path / "captures" / name)]) == 0
    return Lake(spark, str(root))


def test_maintenance_changes_no_row_and_the_next_run_has_nothing_to_do(lake, tmp_path, spark, capsys):
    there = [table for table in catalog.ALL_TABLES if lake.exists(table)]
    before = rows(lake)
    left = Path(lake.path(RPC_CALLS), "part-of-a-killed-run.parquet")
    left.write_bytes(b"x")

    assert maintain.main(["--lake", lake.root, "--retain-days", "1"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["tables_maintained"], summary["store"]) == (len(there), "delta-rs")
    assert left.exists()  # it may be one that a run is about to commit
    assert len(DeltaTable(lake.path(RPC_CALLS)).file_uris()) == 1

    for table in there:
        lake.vacuum(table)
        shutil.rmtree(Path(lake.path(table), "_change_data"), ignore_errors=True)
    assert not left.exists()
    versions = {table: lake.version(table) for table in there if table is not WATERMARKS}
    assert run_all.main(["--lake", lake.root, "--captures", str(tmp_path / "captures")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bytes"] == 0
    again = Lake(spark, lake.root)
    assert {table: again.version(table) for table in versions} == versions
    assert rows(again) == before


def test_a_run_that_was_killed_is_undone_before(lake, capsys):
    RunMarkers.of(lake).begin("killed", {str(CAPTURE_FILES): 0})
    assert maintain.main(["--lake", lake.root]) == 0
    assert "an earlier run did not end: its work is undone (killed)" in capsys.readouterr().err
