"""``bronze.runs``: one row of each run that changed a table, also of one that was killed or that an error ended."""

from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from engines import without_spark
from jobs.command_line.engine_summary import count_work
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.errors import ConflictError
from pipeline.lake.lake import Lake
from pipeline.lake.run_notes import RunNote
from pipeline.privacy import retention
from pipeline.runs.lease import LeaseError
from schemas import catalog
from schemas.bronze import QUARANTINE, RUNS

BEGAN = datetime(2026, 11, 21, 15, 20, 0, 250, tzinfo=UTC)
ENDED = datetime(2026, 11, 21, 15, 20, 7, tzinfo=UTC)


def note(run_id, error_code=4):
    begun = {"run_id": run_id, "command": "run_all", "began_at": BEGAN}
    done = {"seconds": 7.5, "ended_at": ENDED, "stage_seconds": {"reading": 2.5}, "rows_written": {str(QUARANTINE): 1}}
    return RunNote(begun, lambda error: {**done, "exit_code": 0 if error is None else error_code})


def rows(*keys):
    values = [{"quarantine_key": key} for key in keys]
    return type(QUARANTINE.schema().empty_table()).from_pylist(values, QUARANTINE.schema())


@pytest.fixture
def open_lake(tmp_path):
    return lambda: Lake(without_spark(), str(tmp_path / "lake"))


def run(lake, run_id, *keys, check=lambda: None):
    with lake.hold_exclusive_access(check, run=note(run_id)):
        if keys:
            lake.append(QUARANTINE, rows(*keys), provenance="made of this")


def fail(lake, run_id, error, *keys):
    with lake.hold_exclusive_access(lambda: None, run=note(run_id)):
        if keys:
            lake.append(QUARANTINE, rows(*keys))
        raise error


def kill(lake, run_id, *keys):
    """Return what the run held, to be kept: it is never left."""
    held = lake.hold_exclusive_access(lambda: None, run=note(run_id))
    held.__enter__()
    lake.append(QUARANTINE, rows(*keys))
    return held


def runs(lake):
    """The exit code of each run, by its identifier; no run is there twice."""
    found = lake.select(RUNS, "TRUE", ["run_id", "exit_code"]).to_pylist()
    codes = {row["run_id"]: row["exit_code"] for row in found}
    assert len(codes) == len(found)
    return codes


def is_unfinished(lake):
    return (lake.folder / "_runs" / "unfinished").exists()


def test_a_run_that_changes_a_table_adds_its_row_and_one_with_nothing_new_adds_none(open_lake):
    run(open_lake(), "one", "a")
    lake = open_lake()
    (row,) = lake.select(RUNS, "TRUE").to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "run_id": "one", "command": "run_all", "began_at": BEGAN, "ended_at": ENDED, "seconds": 7.5, "exit_code": 0,
        "stage_seconds": [("reading", 2.5)], "rows_written": [(str(QUARANTINE), 1)], "event_date": BEGAN.date(),
    }  # fmt: skip
    versions = {table: lake.version(table) for table in catalog.ALL_TABLES}
    for _ in range(2):
        run(open_lake(), "nothing")
    assert {table: open_lake().version(table) for table in catalog.ALL_TABLES} == versions
    assert not is_unfinished(lake)
    run(open_lake(), "two", "b")
    assert runs(open_lake()) == {"one": 0, "two": 0}
    assert open_lake().version(RUNS) == versions[RUNS] + 1


def test_maintenance_by_somebody_else_is_no_change_of_a_run(open_lake):
    for run_id in ("one", "two"):
        run(open_lake(), run_id, run_id)
    for table in (QUARANTINE, RUNS):
        DeltaTable(open_lake().location(table)).optimize.compact()
    run(open_lake(), "nothing")
    assert runs(open_lake()) == {"one": 0, "two": 0}


def test_the_row_of_a_killed_run_is_added_by_the_next_one(open_lake):
    held = [kill(open_lake(), "first", "a")]
    held.append(kill(open_lake(), "killed", "b"))  # which has added the first one
    assert runs(open_lake()) == {"first": None}
    run(open_lake(), "nothing")
    assert runs(open_lake()) == {"first": None, "killed": None}
    (row,) = open_lake().select(RUNS, "run_id = 'killed'").to_pylist()
    assert (row["command"], row["began_at"], row["ended_at"]) == ("run_all", BEGAN, None)
    version = open_lake().version(RUNS)
    run(open_lake(), "nothing")
    assert open_lake().version(RUNS) == version
    del held


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("commits", range(1, 4))
def test_killed_anywhere_a_run_is_there_once(open_lake, commits):
    """Before its watermarks, before its own row, and behind it, where only the end of its note is missing."""
    left = [commits]

    def check():
        left[0] -= 1
        if left[0] < 0:
            raise KilledError

    lake = open_lake()
    exclusive = lake.hold_exclusive_access(check, run=note("killed"))
    exclusive.__enter__()
    lake.append(QUARANTINE, rows("a"))
    lake._unfinished.remove = lambda: None
    if commits < 3:
        with pytest.raises(KilledError):
            exclusive.__exit__(None, None, None)
    else:
        exclusive.__exit__(None, None, None)
    assert is_unfinished(lake)
    for _ in range(2):
        run(open_lake(), "nothing")
    assert runs(open_lake()) == {"killed": None if commits < 3 else 0}


def test_how_a_run_ended_that_an_error_ended_is_added_by_the_next_one(open_lake):
    with pytest.raises(OSError, match="no space"):
        fail(open_lake(), "failed", OSError("no space"), "a")
    with pytest.raises(OSError, match="no space"):
        fail(open_lake(), "idle", OSError("no space"))  # it adds the row of the other one, and has none
    assert runs(open_lake()) == {"failed": 4}
    run(open_lake(), "nothing")
    (row,) = open_lake().select(RUNS, "TRUE").to_pylist()
    assert (row["run_id"], row["ended_at"], row["seconds"]) == ("failed", ENDED, 7.5)


def test_what_is_older_than_a_date_is_forgotten(open_lake):
    run(open_lake(), "old", "a")
    for day, kept in ((BEGAN.date(), {"old": 0}), (BEGAN.date() + timedelta(days=1), {})):
        retention.apply_retention(open_lake(), RetentionCutoff(day))
        assert runs(open_lake()) == kept


def test_a_run_that_begins_again_is_one_run(open_lake):
    with pytest.raises(ConflictError):
        fail(open_lake(), "again", ConflictError("somebody else"), "a")
    run(open_lake(), "again", "b")
    assert runs(open_lake()) == {"again": 0}


def test_a_run_that_lost_its_lease_says_nothing_more(open_lake):
    is_lost = []

    def check():
        if is_lost:
            raise LeaseError("lost")

    slow, lake = open_lake(), open_lake()
    exclusive = slow.hold_exclusive_access(check, run=note("slow"))
    exclusive.__enter__()
    slow.append(QUARANTINE, rows("a"))
    held = kill(lake, "next", "b")  # takes its place, and adds its row
    is_lost.append(True)
    with pytest.raises(LeaseError):
        exclusive.__exit__(None, None, None)
    run(open_lake(), "nothing")
    assert runs(open_lake()) == {"slow": None, "next": None}
    del held


@pytest.mark.spark
@pytest.mark.parametrize("read_log", ["files", "spark"])
def test_where_spark_stores_the_tables_a_row_takes_four_executions_at_most(spark, tmp_path, read_log):
    def executions(run):
        lake = Lake(spark, str(tmp_path), store="spark", read_log=read_log, trusts_versions=True)
        before = count_work(spark).executions
        with lake.hold_exclusive_access(lambda: None, run=run):
            lake.append(QUARANTINE, rows("a"))
        return count_work(spark).executions - before

    _, with_row, without = (executions(run) for run in (note("new"), note("one"), None))
    assert 0 < with_row - without <= 4
