"""What jobs add to ``bronze.runs``: what they read and wrote, how they ended, and nothing that names anything."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import example_rows
import jobs
from engines import LOCAL, without_spark
from jobs import check_quality, forget, ingest_captures, ingest_snapshots, maintain, run_all
from pipeline.lake.lake import Lake
from pipeline.quality.check import CheckOptions, check_suites
from pipeline.quality.suites import read_suites
from schemas.bronze import CAPTURE_FILES, RUNS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.quality import QUALITY_RESULTS

SAMPLE = "01-remoteread-ndr.pcap"
PRIVATE = "zqprivate"


def lake_of(root):
    return Lake(without_spark(), str(root))


def runs(root):
    """The rows in the order in which the runs began."""
    rows = lake_of(root).select(RUNS, "TRUE").to_pylist()
    return sorted(rows, key=lambda row: row["began_at"])


@pytest.fixture(scope="module")
def done(project, tmp_path_factory):
    """A lake that several jobs have worked on, one after the other, and the folder that it is in."""
    folder = tmp_path_factory.mktemp(PRIVATE)
    root, captures, snapshots, suites = (folder / name for name in ("lake", "captures", "snapshots", "suites"))
    for made in (captures, snapshots, suites):
        made.mkdir()
    shutil.copy(project / "conf" / "quality" / "runs.yml", suites)
    shutil.copy(project / "data" / "sample" / SAMPLE, captures)
    (captures / "broken.pcap").write_bytes(b"no capture")
    for path in sorted((project / "data" / "estate" / "snapshots").glob("*.jsonl"))[:2]:
        shutil.copy(path, snapshots)
    given = ["--captures", str(captures), "--snapshots", str(snapshots)]
    jobs_with_arguments = [
        (run_all, given), (run_all, [*given, "--dry-run"]), (run_all, given), (ingest_captures, given[:2]),
        (ingest_snapshots, given[2:]), (check_quality, ["--set", f"quality.suites={suites}"]), (maintain, []),
        (forget, ["--before", "2000-01-01"]),
    ]  # fmt: skip
    codes = [job.main(["--lake", str(root), *LOCAL, *more]) for job, more in jobs_with_arguments]
    return root, codes


def test_each_job_that_wrote_adds_a_row_with_its_exit_code(done):
    root, codes = done
    found = runs(root)
    assert codes == [3, 0, 0, 0, 0, 0, 0, 0]
    ended = [(row["command"], row["exit_code"]) for row in found]
    assert ended == [("run_all", 3), ("check_quality", 0), ("forget", 0)]  # nothing was new, and nothing to be joined


def test_rows_are_as_their_suite_expects_and_are_checked_by_check_quality_alone(done, project):
    lake, suite = lake_of(done[0]), read_suites(project / "conf" / "quality")
    (expected,) = (len(each.expectations) for each in suite if each.name == "runs")
    results = lake.select(QUALITY_RESULTS, "TRUE").to_pylist()
    assert [row["success"] for row in results] == [True] * expected
    assert {row["evaluated"] for row in results} == {1}
    now = datetime.now(UTC)
    options = CheckOptions("later", now, now)
    runs_suite = [each for each in suite if each.name == "runs"]
    assert check_suites(lake, runs_suite, options).rows == []  # as run_all checks
    late = replace(options, now=now + timedelta(days=2), include_clock_suites=True)
    failed = [row["expectation"] for row in check_suites(lake, runs_suite, late).failed_rows()]
    assert failed == ["read_lately"]


def test_a_row_says_what_was_read_and_written_and_how_long_it_took(done):
    root, _ = done
    row = runs(root)[0]
    lake = lake_of(root)
    files = lake.select(CAPTURE_FILES, "TRUE").to_pylist()
    assert (row["captures_read"], row["snapshots_read"], row["failures"], row["restarts"]) == (2, 2, 1, 0)
    assert row["packets"] == sum(each["packets"] or 0 for each in files) > 100
    assert row["bytes_read"] > sum(each["size_bytes"] for each in files)
    written = dict(row["rows_written"])
    assert written[str(CAPTURE_FILES)] == 2
    assert written[str(SNAPSHOTS_RAW)] == lake.select(SNAPSHOTS_RAW, "TRUE", ["snapshot_id"]).num_rows
    assert min(written.values()) > 0
    stages = dict(row["stage_seconds"])
    assert {"reading", "decoding", "findings"} <= stages.keys()
    assert row["seconds"] == (row["ended_at"] - row["began_at"]).total_seconds() >= sum(stages.values()) - 0.01
    assert (row["engine"], row["master"], row["executions"], row["jobs"], row["tasks"]) == ("local", None, 0, 0, 0)
    assert row["program_version"] == jobs.__version__


def test_nothing_names_a_file_a_machine_or_a_queue(done):
    root, _ = done
    assert PRIVATE in str(root)
    text = str(runs(root))
    for word in (PRIVATE, SAMPLE, "broken", "orders", "srv1", "10."):
        assert word not in text.replace(f"{jobs.__version__}", ""), word


def test_the_example_row_of_the_documentation(done):
    """UPDATE_EXAMPLE_ROWS=1 regenerates it."""
    began = datetime(2026, 11, 21, 15, 20, tzinfo=UTC)
    seconds = [("alerts", 0.741), ("attempts", 0.983), ("decoding", 0.402), ("reading", 0.768)]
    clock = {"began_at": began, "event_date": began.date(), "ended_at": began + timedelta(seconds=6.204)}
    row = runs(done[0])[0] | clock | {"seconds": 6.204, "stage_seconds": seconds}
    example_rows.check({RUNS: pa.Table.from_pylist([row], RUNS.schema())})
