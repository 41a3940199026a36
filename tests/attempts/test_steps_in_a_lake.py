"""A clock that was set as another tap shows, in lakes: in one run and in several, in any order of files."""

from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.test_call_alerts import attempt
from attempts.test_clocks_of_captures import one_connection_in_two_taps
from capture.merge.comparing import OF_THE_RUN, differences
from end_to_end.lakes import tables
from engines import without_spark
from jobs import ingest_captures, run_all
from pipeline.alerts.call_alerts import receive_alerts
from pipeline.alerts.conditions import Thresholds
from pipeline.bronze.across_captures.clock_steps import earlier_ends, read_clock_steps
from pipeline.bronze.ledger_entries import lines_on_times_that_go_back
from pipeline.lake.lake import Lake
from pipeline.transfers.inputs import read_skipped
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.coverage import COVERAGE
from transfers.test_steps_between_taps import taps

LONG = pytest.mark.long
COLUMNS = {
    CAPTURE_FILES: ("capture_id", "tap_steps"),
    RPC_CALLS: ("call_key", "connection_id", "clocks"),
    RECEIVE_ATTEMPTS: tuple(name for name in RECEIVE_ATTEMPTS.names if name != "run_id"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("files"), []
    for number, content in enumerate(one_connection_in_two_taps(120_000_000)[:2]):
        found.append(folder / f"{number}.pcap")
        found[-1].write_bytes(content)
    return found


def lake_of(root, *runs, job=run_all, settings=()):
    given = [argument for setting in settings for argument in ("--set", setting)]
    for captures in runs:
        assert job.main(["--lake", str(root), *given, "--captures", *map(str, captures)]) == 0
    return Lake(without_spark(), str(root))


def facts(lake, of=tuple(COLUMNS)):
    return {str(table): sorted(map(repr, lake.select(table, "TRUE", COLUMNS[table]).to_pylist())) for table in of}


@pytest.fixture(scope="module")
def at_once(files, tmp_path_factory):
    return lake_of(tmp_path_factory.mktemp("once"), files)


@LONG
@pytest.mark.parametrize("first", [0, 1], ids=["in order", "the other way round"])
def test_runs_do_not_matter(files, at_once, tmp_path, first):
    expected = facts(at_once)
    assert sum("by_us" in row for row in expected[str(CAPTURE_FILES)]) == 2
    assert any("clock_step" in row for row in expected[str(RECEIVE_ATTEMPTS)])
    runs = files[:1], files[1:]
    assert facts(lake_of(tmp_path / "lake", runs[first], runs[1 - first])) == expected


SPARK_STORE = ["lake.store=spark"]


@pytest.mark.spark
@pytest.mark.parametrize("settings", [SPARK_STORE, pytest.param([*SPARK_STORE, "lake.read_log=spark"], marks=LONG)])
def test_where_spark_stores_the_tables_the_same_steps_are_noted(spark, files, at_once, tmp_path, settings):
    """Found by a second run, which changes rows of the first one."""
    bronze = (CAPTURE_FILES, RPC_CALLS)
    found = lake_of(tmp_path / "lake", files[:1], files[1:], job=ingest_captures, settings=settings)
    assert found.store_name == "spark"
    assert facts(found, bronze) == facts(at_once, bronze)


@pytest.mark.spark
@LONG
@pytest.mark.parametrize("settings", [SPARK_STORE, [*SPARK_STORE, "lake.read_log=spark"]])
def test_where_spark_stores_the_tables_all_layers_are_the_same(spark, files, tmp_path, settings):
    """Calls and sessions of two taps, the clock of one of which was set."""
    one, other, _ = taps()
    every = [*files, tmp_path / "one.pcap", tmp_path / "other.pcap"]
    for path, content in zip(every[2:], (one, other), strict=True):
        path.write_bytes(content)
    runs = [every[1:3], [every[0], every[3]]]
    expected = lake_of(tmp_path / "folders", every)
    found = lake_of(tmp_path / "spark", *runs, settings=settings)
    assert sum(steps is not None for steps in expected.select(CAPTURE_FILES, "TRUE")["tap_steps"].to_pylist()) == 4
    left = differences(tables(found), tables(expected), left_out=OF_THE_RUN)
    assert not left, "\n".join(left)


@LONG
def test_a_capture_that_is_read_again_changes_nothing(files, at_once, tmp_path):
    lake_of(tmp_path / "lake", files)
    again = ["--lake", str(tmp_path / "lake"), "--captures", *map(str, files), "--reprocess", f"capture={files[0]}"]
    assert run_all.main(again) == 0
    assert facts(lake_of(tmp_path / "lake")) == facts(at_once)


def test_receives_that_last_do_not_count_what_the_clock_may_have_left_out(at_once):
    """``receives_not_ended``: a reader had a message from 5 s before the step until captures end, 5 s behind it."""
    skipped, steps = read_skipped(at_once), read_clock_steps(at_once)
    server, (since, until) = max(
        ((name, span) for name, spans in skipped.items() for span in spans), key=lambda each: each[1][1] - each[1][0]
    )
    assert until - since == 120_000_000
    row = attempt(0, server_address=server, returned_at=since - 5_000_000)
    limits = replace(Thresholds(), unacknowledged_read_after=timedelta(seconds=60))
    ends = {server: until + 5_000_000}

    def alerts(ends, left_out):
        return [*receive_alerts([row], limits, ends[server], {}, ends, left_out)]

    assert alerts(ends, {})
    assert not alerts(ends, skipped)
    assert earlier_ends(at_once, ends, steps.shown_by_taps()) == {server: since + 5_000_000}


def test_a_step_is_said_of_both_captures(at_once):
    lines = lines_on_times_that_go_back(at_once.select(CAPTURE_FILES, "TRUE").to_pylist())
    said = "this clock, or that of another capture of the same packets, was set by up to 120.000 s at packet"
    assert [said in line for line in lines] == [True, True]
    counted = at_once.select(COVERAGE, "measure = 'files_times_go_back'").to_pylist()
    assert sum(row["value"] for row in counted) == 2
