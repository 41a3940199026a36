"""What happens to a lake between runs: jobs that only read, and maintenance of its tables."""

import io
import json
import re
from pathlib import Path

import pytest

from end_to_end.lakes import reading_jobs
from jobs import check_quality, run_all
from pipeline.lake.lake import Lake
from pipeline.lake.spark.settings import spark_conf
from schemas import catalog

pytestmark = pytest.mark.spark

CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")


@pytest.fixture(scope="module")
def place(spark, project, tmp_path_factory):
    """A folder with a lake that a run has made."""
    folder = tmp_path_factory.mktemp("lake") / "lake"
    assert run_all.main(arguments(project, folder)) == 0
    return folder


def arguments(project, folder):
    return ["--captures", *(str(project / "data" / "sample" / name) for name in CAPTURES), "--lake", str(folder)]


def test_jobs_that_only_read_make_no_lake(spark, project, tmp_path, capsys, monkeypatch):
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    for lake in (nowhere, empty):
        for job, given in [
            *reading_jobs(lake, tmp_path),
            (check_quality, ["--lake", str(lake), "--docs", str(tmp_path / "docs")]),
        ]:
            assert job.main(given) == 2, job.JOB
            streams = capsys.readouterr()
            assert streams.out == ""
            assert streams.err == (
                f"{job.JOB}: {lake}: no captures or snapshots were read into this lake; run 'msmq run_all' first\n"
            )
    assert run_all.main([*arguments(project, nowhere), "--dry-run"]) == 0
    piped = (project / "data" / "sample" / CAPTURES[0]).open("rb")
    with piped, io.TextIOWrapper(piped) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        assert run_all.main(["--captures", "-", "--lake", str(nowhere), "--dry-run"]) == 0
    assert re.search(r"\nread /.*\.capture \(39210 bytes\)\n", capsys.readouterr().err)
    assert sorted(tmp_path.rglob("*")) == [empty]


@pytest.mark.long
def test_maintenance_between_runs_makes_no_run_compute_anything_again(spark, place, project, capsys):
    lake = Lake(spark, str(place))
    tables = [table for table in catalog.ALL_TABLES if lake.exists(table)]
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with spark_conf(spark, settings):
        for table in tables:
            spark.sql(f"OPTIMIZE {lake.sql_name(table)}")
            spark.sql(f"VACUUM {lake.sql_name(table)} RETAIN 0 HOURS")
    rows_before = {path for table in tables for path in Path(lake.path(table)).glob("*.parquet")}
    capsys.readouterr()
    assert run_all.main(arguments(project, place)) == 0
    written = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    assert {name: counts for name, counts in written.items() if counts["rows_out"]} == {}
    assert {path for table in tables for path in Path(lake.path(table)).glob("*.parquet")} == rows_before
    newest = {table: lake.version(table) for table in tables}
    assert run_all.main(arguments(project, place)) == 0
    assert {table: Lake(spark, str(place)).version(table) for table in tables} == newest
