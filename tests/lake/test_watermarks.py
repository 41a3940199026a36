"""What a table was made of survives maintenance by anybody; what somebody else changed is noticed."""

import json
from datetime import timedelta

import pytest
from deltalake import DeltaTable, write_deltalake

from lake.writes import clean_log, log_of, rows
from pipeline.lake.errors import ConflictError
from pipeline.lake.lake import Lake
from pipeline.lake.storage.log import TableCommit
from pipeline.lake.watermarks import Watermark, replace_versions, resolve_newest
from pipeline.runs.recovery import RunMarkers, undo_unfinished_runs
from schemas.bronze import CAPTURE_FILES, QUARANTINE, WATERMARKS
from schemas.quality import QUALITY_RESULTS
from spark_settings import spark_settings
from tests.support.lakes import changes

NAME = str(QUARANTINE)
MARK = Watermark(3, "made of this", 7)


def no_count():
    raise AssertionError("rows are not counted where the log tells all")


def commit(version, operation="WRITE", provenance=None):
    return TableCommit(version, provenance, 0, operation)


OPTIMIZED, CLEANED = commit(4, "OPTIMIZE"), commit(9, "SET TBLPROPERTIES")


@pytest.mark.parametrize(
    ("newest", "mark", "commits", "provenance", "same", "is_foreign"),
    [
        (OPTIMIZED, MARK, [OPTIMIZED], "made of this", (3,), False),
        (commit(4), MARK, [commit(4)], None, (), True),
        (OPTIMIZED, None, [commit(3, provenance="{}"), OPTIMIZED], "{}", (3,), False),
        (commit(5, "VACUUM END"), MARK, [commit(4, provenance="newer"), commit(5, "VACUUM END")], "newer", (4,), False),
        (commit(5, "VACUUM END"), MARK, [commit(4, "DELETE"), commit(5, "VACUUM END")], None, (), True),
        (commit(1), MARK, [], None, (), True),  # another table in its place
        (commit(1), None, [commit(1)], None, (), False),
    ],
)
def test_what_commits_of_others_leave_of_a_watermark(newest, mark, commits, provenance, same, is_foreign):
    found = resolve_newest(newest, mark, commits, no_count)
    assert (found.newest_commit.version, found.newest_commit.provenance_json) == (newest.version, provenance)
    assert (found.same_versions, found.foreign is not None) == (same, is_foreign)


def test_where_the_log_has_gaps_the_number_of_rows_tells_whether_any_changed():
    assert resolve_newest(CLEANED, MARK, [CLEANED], lambda: 7).newest_commit.provenance_json == "made of this"
    assert resolve_newest(CLEANED, MARK, [CLEANED], lambda: 8).foreign == CLEANED
    seen = [commit(8, "DELETE"), CLEANED]
    assert resolve_newest(CLEANED, MARK, seen, no_count).foreign == seen[0]


def test_a_provenance_takes_later_versions_with_the_same_rows():
    made = {"bronze.rpc_calls": 7, "seen silver.messages": 2, "decoder": "3", "ends": {"10.0.0.1": 7}, "looked": 7}
    same = {("bronze.rpc_calls", 7): 10, ("silver.messages", 3): 6}
    assert json.loads(replace_versions(json.dumps(made), same)) == {**made, "bronze.rpc_calls": 10}
    assert json.loads(replace_versions(json.dumps(made), {("silver.messages", 2): 6}))["seen silver.messages"] == 6
    for other in (None, "stubs emptied", "[7]", "{}"):
        assert replace_versions(other, same) == other


def compact(lake, table):
    DeltaTable(lake.location(table)).optimize.compact()


def vacuum(lake, table):
    DeltaTable(lake.location(table)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def of_spark(statement):
    return lambda lake, table: lake.spark.sql(statement.format(lake.sql_name(table)))


def by_this_program(lake, table):
    lake.maintain(table, timedelta(hours=1))


BY_SPARK = [by_this_program] + [
    of_spark(statement)
    for statement in (
        "OPTIMIZE {}", "VACUUM {}", "ALTER TABLE {} SET TBLPROPERTIES ('some.day' = 'x')",
    )
]  # fmt: skip


def again(lake):
    """Return the same lake, opened by another run."""
    return Lake(lake.spark, lake.root, catalog=lake.catalog, prefix=lake.prefix)


def fill(lake):
    """Write two files, one with a row that was deleted, and a table that was made of this one; return its version."""
    with lake.hold_exclusive_access(lambda: None):
        for each in ("ac", "b"):
            lake.append(QUARANTINE, rows(lake.spark, *each).coalesce(1), provenance="made of this")
        lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None], provenance="made of this")
        lake.note_provenance(QUALITY_RESULTS, json.dumps({NAME: lake.version(QUARANTINE)}))
        return lake.version(QUARANTINE)


def keys(lake):
    return sorted(row[0] for row in lake.read(QUARANTINE).select("quarantine_key").collect())


def keeps_provenance(lake, maintenance):
    """Maintain a filled table; each time all that is made of it is still up to date."""
    version, lines = fill(lake), []
    first = version
    for maintain in maintenance:
        maintain(lake, QUARANTINE)
        reader = again(lake)
        with reader.hold_exclusive_access(lambda: None, lines.append):
            newest = reader.versions.newest_commit(QUARANTINE)
            assert newest.version >= version
            assert newest.provenance_json == "made of this"
            assert reader.versions.provenance(QUALITY_RESULTS) == {NAME: newest.version}
        version = newest.version
    assert version > first
    assert lines == []
    assert keys(lake) == ["b", "c"]
    reader = again(lake)
    marks = reader.version(WATERMARKS)
    with reader.hold_exclusive_access(lambda: None):  # nothing is new: nothing is kept
        pass
    assert reader.version(WATERMARKS) == marks
    with reader.hold_exclusive_access(lambda: None):
        reader.append(QUARANTINE, rows(reader.spark, "d"))
        feed = changes(reader, QUARANTINE, reader.versions.provenance(QUALITY_RESULTS)[NAME])
        assert [row.quarantine_key for row in feed.collect()] == ["d"]


@pytest.mark.spark
@pytest.mark.long
def test_maintenance_by_spark_loses_nothing(lake_of_each_store):
    few_tasks = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}  # else VACUUM takes 10,000
    with spark_settings(lake_of_each_store.spark, few_tasks):
        keeps_provenance(lake_of_each_store, BY_SPARK)


@pytest.mark.spark
def test_maintenance_by_delta_rs_and_a_cleanup_of_the_log_lose_nothing(lake):
    keeps_provenance(lake, (compact, vacuum, clean_log))


@pytest.mark.spark
def test_what_a_run_left_that_was_killed_before_it_kept_its_watermarks_is_in_its_commits(lake):
    fill(lake)
    exclusive = lake.hold_exclusive_access(lambda: None)
    exclusive.__enter__()  # and never left
    lake.append(QUARANTINE, rows(lake.spark, "d"), provenance="newer")
    compact(lake, QUARANTINE)
    reader = again(lake)
    with reader.hold_exclusive_access(lambda: None):
        assert reader.versions.provenance_json(QUARANTINE) == "newer"
        assert reader.versions.provenance(QUALITY_RESULTS)[NAME] < reader.version(QUARANTINE) - 1


def delete_by_others(lake, key="b"):
    lake.spark.sql(f"DELETE FROM {lake.sql_name(QUARANTINE)} WHERE quarantine_key = '{key}'")


@pytest.mark.spark
def test_a_change_by_somebody_else_between_runs_is_noticed(lake_of_each_store):
    lake, lines = lake_of_each_store, []
    version = fill(lake)
    delete_by_others(lake)
    reader = again(lake)
    with reader.hold_exclusive_access(lambda: None, lines.append):
        assert reader.versions.provenance_json(QUARANTINE) is None  # what it was made of is not known any more
        assert reader.versions.provenance(QUALITY_RESULTS) == {NAME: version}
    assert lines == [f"{NAME}: somebody else changed it after version {version} (DELETE)"]
    with again(lake).hold_exclusive_access(lambda: None, lines.append):
        pass
    assert len(lines) == 1


def overwrite_what_somebody_else_changes(lake):
    with lake.hold_exclusive_access(lambda: None):
        lake.append(QUARANTINE, rows(lake.spark, "d"))  # its own commits are no conflict
        lake.delete_values(QUARANTINE, "quarantine_key", ["d"], dates=[None])
        assert lake.version(QUARANTINE) is not None
        delete_by_others(lake)
        lake.replace(QUARANTINE, rows(lake.spark, "b"))


@pytest.mark.spark
def test_a_change_by_somebody_else_during_a_run_is_not_overwritten(lake):
    fill(lake)
    with pytest.raises(ConflictError, match=r"somebody else changed it while this run worked .*DELETE"):
        overwrite_what_somebody_else_changes(lake)
    assert keys(lake) == ["c"]


@pytest.mark.spark
def test_maintenance_by_somebody_else_during_a_run_is_no_conflict(lake):
    fill(lake)
    with lake.hold_exclusive_access(lambda: None):
        compact(lake, QUARANTINE)
        lake.append(QUARANTINE, rows(lake.spark, "d"))
    assert keys(lake) == ["b", "c", "d"]


def killed_run(lake):
    """A run that wrote rows and not the ledger."""
    lake.create(CAPTURE_FILES)
    runs = RunMarkers.of(lake)
    runs.begin("killed", {NAME: lake.version(QUARANTINE), str(CAPTURE_FILES): 0}, ["one"])
    runs.add_captures("killed", ["other"])
    lake.append(QUARANTINE, rows(lake.spark, "half"))


def undo(lake):
    lines = []
    with lake.hold_exclusive_access(lambda: None):
        undo_unfinished_runs(lake, (QUARANTINE, CAPTURE_FILES), CAPTURE_FILES, lines.append)
    assert RunMarkers.of(lake).unfinished() == {}
    return lines


@pytest.mark.spark
def test_what_somebody_else_changed_is_not_undone_with_a_killed_run(lake):
    fill(lake)
    killed_run(lake)
    delete_by_others(lake)
    lines = undo(again(lake))
    assert "somebody else has changed bronze.quarantine since" in lines[1]
    assert keys(lake) == ["c", "half"]
    assert RunMarkers.of(lake).captures_to_replace() == {"one", "other"}


@pytest.mark.spark
def test_a_killed_run_whose_earlier_files_are_gone_is_not_undone_and_blocks_nothing(lake):
    fill(lake)
    killed_run(lake)
    lake.update(QUARANTINE, {"reason": "'other'"}, "TRUE")  # which writes all files again
    vacuum(lake, QUARANTINE)
    lines = undo(again(lake))
    assert lines[1].startswith("it cannot be undone (bronze.quarantine has no version")
    assert keys(lake) == ["b", "c", "half"]
    assert RunMarkers.of(lake).captures_to_replace() == {"one", "other"}


@pytest.mark.spark
def test_what_somebody_else_changed_stays_where_the_killed_run_changed_nothing(lake):
    fill(lake)
    lake.create(CAPTURE_FILES)
    RunMarkers.of(lake).begin("killed", {NAME: lake.version(QUARANTINE), str(CAPTURE_FILES): 0})
    delete_by_others(lake)
    undo(again(lake))
    assert keys(lake) == ["c"]
    assert RunMarkers.of(lake).captures_to_replace() is None


@pytest.mark.spark
def test_rows_that_another_program_wrote_are_foreign(lake):
    version = fill(lake)
    write_deltalake(lake.location(QUARANTINE), lake.select(QUARANTINE, "TRUE"), mode="append")
    assert len(list(log_of(lake).glob("*.json"))) == version + 2
    assert lake.versions.changed_since(QUARANTINE, version) == (False, True)
