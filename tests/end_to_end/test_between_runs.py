"""What happens to a lake between runs: jobs that only read, and maintenance of its tables."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest

from end_to_end.lakes import reading_jobs
from jobs import check_quality, run_all
from lake.writes import clean_log
from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.bronze import WATERMARKS
from spark_settings import spark_settings

pytestmark = pytest.mark.spark

CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")
ONE_MORE = "07-faults-cancels-groups.pcap"


@pytest.fixture(scope="module")
def place(spark, project, tmp_path_factory):
    """A folder with a lake that a run has made."""
    folder = tmp_path_factory.mktemp("lake") / "lake"
    assert run_all.main(arguments(project, folder)) == 0
    return folder


def arguments(project, folder, captures=CAPTURES):
    return ["--captures", *(str(project / "data" / "sample" / name) for name in captures), "--lake", str(folder)]


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


def maintain(lake, table):
    """Do what others may do while no run works; in the end the log holds only an entry that changes nothing."""
    name = lake.sql_name(table)
    for statement in ("OPTIMIZE {}", "VACUUM {} RETAIN 0 HOURS", "ALTER TABLE {} SET TBLPROPERTIES ('some.day' = 'x')"):
        lake.spark.sql(statement.format(name))
    clean_log(lake, table)


def rows_written(capsys):
    tables = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    return {name: counts["rows_out"] for name, counts in tables.items() if counts["rows_out"]}


@pytest.mark.long
def test_maintenance_between_runs_makes_no_run_compute_anything_again(spark, place, project, tmp_path, capsys):
    lake, untouched = Lake(spark, str(place)), tmp_path / "lake"
    shutil.copytree(place, untouched)
    tables = [table for table in catalog.ALL_TABLES if lake.exists(table)]
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with spark_settings(spark, settings):
        for table in tables:
            maintain(lake, table)
    rows_before = {path for table in tables for path in Path(lake.path(table)).glob("*.parquet")}
    capsys.readouterr()
    assert run_all.main(arguments(project, place)) == 0
    assert rows_written(capsys) == {}
    data = [table for table in tables if table is not WATERMARKS]
    found = {path for table in data for path in Path(lake.path(table)).glob("*.parquet")}
    assert found == {path for path in rows_before if path.parent.name != WATERMARKS.name}
    newest = {table: lake.version(table) for table in tables}
    assert run_all.main(arguments(project, place)) == 0
    assert {table: Lake(spark, str(place)).version(table) for table in tables} == newest
    capsys.readouterr()
    written = []
    for root in (place, untouched):
        assert run_all.main(arguments(project, root, (*CAPTURES, ONE_MORE))) == 0
        written.append(rows_written(capsys))
    assert written[0] == written[1] != {}
