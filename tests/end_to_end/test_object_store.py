"""A lake on an object store: the tables of a folder, whatever happens to a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bronze.stores.bucket import serving_here
from end_to_end.lakes import facts
from engines import without_spark
from jobs import run_all
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.runs.lease import hold_lease
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.bronze import RPC_CALLS

pytestmark = pytest.mark.spark

LAKE, RING = "s3://captures/a lake/é", "s3://captures/ring"
CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng", "08-endpoint-mapper.pcap")
# Runs jobs one after the other. Instead of a job, there may be a function of this module.
_JOBS = """
import importlib, json, sys
from end_to_end import test_object_store
for job, arguments in json.loads(sys.argv[1]):
    if callable(step := getattr(test_object_store, job, None)):
        step(*arguments)
    elif code := importlib.import_module(f"jobs.{job}").main(arguments):
        sys.exit(code)
"""


@pytest.fixture(scope="module")
def bucket():
    with serving_here() as server:
        yield server


def run(*jobs):
    """Run jobs one after the other in a process whose Spark knows the bucket; return their summaries and its log."""
    done = subprocess.run(
        [sys.executable, "-c", _JOBS, json.dumps(jobs)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a-secret" not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


def lake_at(root):
    """A lake for which no Spark is started."""
    return Lake(without_spark(), str(root))


def contents(root):
    """Read the tables of a lake, by name."""
    lake, found = lake_at(root), {}
    for table in catalog.DATA_TABLES:
        rows = lake.query("SELECT * FROM {rows}", rows=table)
        found[str(table)] = facts(rows.select(table.names).cast(table.schema()))
    return found


def be_killed():
    """Leave what a run leaves that is killed after it has written calls."""
    lake = lake_at(LAKE)
    RunMarkers.of(lake).begin("killed", {str(table): lake.version(table) for table in BRONZE_TABLES})
    calls = lake.select(RPC_CALLS, "TRUE")
    place = calls.column_names.index("run_id")
    lake.append(RPC_CALLS, calls.set_column(place, "run_id", pa.repeat("killed", calls.num_rows)))


def add_capture(path):
    """Put a capture beside those that were read."""
    with (LakePath(RING) / CAPTURES[2]).open_output() as out:
        out.write(Path(path).read_bytes())


@pytest.fixture(scope="module")
def runs(bucket, project, tmp_path_factory):
    """Two runs on an object store, one killed between them, then maintenance and a run; and one run on a folder.

    Returns the rows of both lakes, the summaries, and the log.
    """
    sample, folder = project / "data" / "sample", tmp_path_factory.mktemp("folder") / "lake"
    for name in CAPTURES[:2]:
        bucket.upload(f"ring/{name}", sample / name)
    on_store, in_folder = (["run_all", ["--lake", root, "--captures", RING]] for root in (LAKE, str(folder)))
    summaries, log = run(
        on_store, ["be_killed", []], ["add_capture", [str(sample / CAPTURES[2])]], on_store, in_folder,
        ["maintain", ["--lake", LAKE, "--retain-days", "1"]], on_store,
    )  # fmt: skip
    return contents(LAKE), contents(folder), summaries, log


@pytest.mark.long
def test_the_tables_are_those_of_a_folder(runs):
    on_store, in_folder, *_ = runs
    assert sum(sum(rows.values()) for rows in on_store.values()) > 500
    for name, rows in in_folder.items():
        assert on_store[name] == rows, name


@pytest.mark.long
def test_a_run_that_was_killed_is_undone(runs):
    *_, log = runs
    assert log.count("an earlier run did not end: its work is undone (killed)") == 1
    assert RunMarkers.of(lake_at(LAKE)).unfinished() == {}
    assert [each.name for each in (LakePath(LAKE) / "_runs").entries() if each.is_folder()] == []


@pytest.mark.long
def test_others_read_the_tables_directly(runs, bucket):
    options = {"aws_endpoint": bucket.endpoint, "aws_region": "us-east-1", "aws_allow_http": "true"}
    found = DeltaTable("s3://captures/a%20lake/%C3%A9/bronze/rpc_calls", storage_options=options)
    assert found.to_pyarrow_dataset().count_rows() == sum(runs[0]["bronze.rpc_calls"].values()) > 0


@pytest.mark.long
def test_a_second_run_waits_for_the_first_and_gives_up(runs, capsys):
    with hold_lease(LAKE, "the first", say=print):
        assert run_all.main(["--lake", LAKE, "--captures", RING, "--set", "lake.lease_wait=0s"]) == 2
    assert f"works on {LAKE}; waited 0 s for it to end" in capsys.readouterr().err


@pytest.mark.long
def test_after_maintenance_the_next_run_has_nothing_to_do(runs):
    _, _, (*_, maintained, last), _ = runs
    assert maintained["tables_maintained"] > 20
    assert {name: counts["rows_out"] for name, counts in last["tables"].items() if counts["rows_out"]} == {}


@pytest.mark.long
def test_forget_and_redaction(runs, project, tmp_path):
    (forgotten,), _ = run(["forget", ["--lake", LAKE, "--before", "2026-11-22"]])
    assert forgotten["tables_erased"] > 20
    assert contents(LAKE)["bronze.rpc_calls"] == {}
    assert all((LakePath(LAKE) / "bronze" / "rpc_calls" / "_delta_log").files())
    key, redacted = tmp_path / "key", "s3://captures/redacted"
    key.write_text("k" * 32)
    more = ["--captures", RING, "--set", "privacy.redact=[hosts]", "--redact-key", str(key)]
    run(["run_all", ["--lake", redacted, *more]], ["run_all", ["--lake", str(tmp_path / "lake"), *more]])
    assert contents(redacted) == contents(tmp_path / "lake")
    assert contents(redacted)["bronze.rpc_calls"]


@pytest.mark.parametrize(
    ("lake", "more", "says"),
    [
        ("s3://captures/new", ["--set", "lake.store=spark"], "Spark needs a folder"),
        ("s3://captures/new", ["--set", "lake.catalog=spark_catalog"], "Spark needs a folder"),
        ("s3://captures/new/[1]", [], "delta-rs takes no folder with '[' in its name"),
        ("s3://no-such-bucket/lake", [], "s3://no-such-bucket/lake: "),
        ("s3://captures/new", ["--captures", "-"], "standard input and pipes are read into lakes in folders only"),
        ("gs://captures/new", [], "not a place on this machine"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_written(bucket, capsys, project, lake, more, says):
    capture = str(project / "data" / "sample" / CAPTURES[0])
    assert run_all.main(["--lake", lake, "--captures", capture, *more]) == 2
    streams = capsys.readouterr()
    usual = {"the tables are stored by delta-rs", "this process computes (run.engine=local)"}
    lines = [line for line in streams.err.splitlines() if line not in usual]
    assert (streams.out, len(lines)) == ("", 1), streams.err
    assert says in lines[0]
    assert (LakePath("s3://captures/new")).exists() is False


def test_a_store_out_of_reach_is_one_line(bucket, monkeypatch, capsys, project):
    bucket.deny("s3:*", "/denied/*")
    capture = str(project / "data" / "sample" / CAPTURES[0])
    try:
        assert run_all.main(["--lake", "s3://captures/denied", "--captures", capture]) == 2
    finally:
        bucket.client.delete_bucket_policy(Bucket="captures")
    assert capsys.readouterr().err.count("\n") == 1
