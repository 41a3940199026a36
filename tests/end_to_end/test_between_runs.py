"""What happens to a lake between runs: jobs that only read, and maintenance of its tables."""

import io
import json
import re
from pathlib import Path

import pytest

from jobs import alerts, ask, check_quality, export_packets, forget, publish_dashboards, run_all, trace_message
from pipeline.lake.lake import Lake
from pipeline.lake.settings import spark_conf
from schemas import catalog
from schemas.bronze import RPC_CALLS

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


def files(folder):
    """Return all files and folders below a folder, with their sizes and times."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def reading_jobs(project, place, out, key="k"):
    """Yield each job that only reads, with its arguments."""
    lake = ["--lake", str(place)]
    yield ask, [*lake, "10", "not_known"]
    yield alerts, [*lake, "--fail-on", "never"]
    yield trace_message, [*lake, "--label", "no such label"]
    yield export_packets, [*lake, "--call", key, "--out", str(out / "packets.pcapng")]
    yield publish_dashboards, [*lake, "--out", str(out / "pages")]
    yield forget, [*lake, "--before", "2020-01-01", "--dry-run"]
    yield run_all, [*arguments(project, place), "--dry-run"]


def test_jobs_that_only_read_make_nothing_in_a_lake(spark, place, project, tmp_path, capsys):
    key = Lake(spark, str(place)).read(RPC_CALLS).first()["call_key"]
    before = files(place)
    for job, given in reading_jobs(project, place, tmp_path, key):
        assert job.main(given) == 0, capsys.readouterr().err
        assert files(place) == before, job.JOB


def test_jobs_that_only_read_make_no_lake(spark, project, tmp_path, capsys, monkeypatch):
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    for lake in (nowhere, empty):
        jobs = dict(reading_jobs(project, lake, tmp_path))
        assert jobs.pop(run_all)
        for job, given in [*jobs.items(), (check_quality, ["--lake", str(lake), "--docs", str(tmp_path / "docs")])]:
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
