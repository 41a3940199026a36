"""Commits of sessions that refuse settings, as on Databricks' serverless compute.

Statements cannot say their provenance there: ``bronze.watermarks`` announces them. Each test stands for a run that is
killed, and the next one.
"""

import shutil
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from lake.writes import rows
from pipeline.lake.errors import ConflictError
from pipeline.lake.lake import Lake
from pipeline.lake.storage import delta_spark
from pipeline.lake.storage.log import TableCommit
from pipeline.lake.watermarks import Announced, Watermark, Watermarks, read_watermarks, watermark_rows
from pipeline.runs.recovery import RunMarkers, undo_unfinished_runs
from refused_settings import refuse_settings
from schemas.bronze import CAPTURE_FILES, QUARANTINE, WATERMARKS
from spark_settings import spark_settings

NAME = str(QUARANTINE)
MERGED = Announced(4, "MERGE", "_new_run_", "made of this")


def commit(version, operation="MERGE", parameter="[(key = _new_run_key)]", provenance=None):
    return TableCommit(version, provenance, 0, operation, parameter)


@pytest.mark.parametrize(
    ("announced", "made", "provenance"),
    [
        (MERGED, commit(4), "made of this"),
        (MERGED, commit(5), None),
        (MERGED, commit(4, "UPDATE"), None),
        (MERGED, commit(4, parameter="[(key = other_key)]"), None),  # a MERGE by somebody else
        (MERGED, commit(4, provenance="{}"), "{}"),  # it says it itself
        (Announced(4, "RESTORE", "version 1;", "{}"), commit(4, "RESTORE", "version 1;"), "{}"),
        (Announced(4, "RESTORE", "version 1;", "{}"), commit(4, "RESTORE", "version 11;"), None),
    ],
)
def test_only_the_commit_that_was_announced_takes_its_provenance(announced, made, provenance):
    assert Watermarks({}, {NAME: (announced,)}).of_commit(NAME, made).provenance_json == provenance
    assert Watermarks({}, {"silver.messages": (announced,)}).of_commit(NAME, made) == made


def test_of_commits_announced_for_one_version_the_last_holds():
    both = Watermarks({}, {NAME: (MERGED, MERGED._replace(provenance="repeated"))})
    assert both.of_commit(NAME, commit(4)).provenance_json == "repeated"


def test_what_is_announced_is_kept_beside_the_watermarks_and_words_of_provenance_outlive_the_run():
    words = MERGED._replace(version=5, provenance="stubs emptied")
    kept = Watermarks({"b": Watermark(3, "{}", 7)}, {NAME: (MERGED._replace(provenance='{"a": 1}'), words)})
    assert read_watermarks(watermark_rows(kept)) == kept
    kept.forget_announced()
    assert kept.announced == {NAME: (words,)}
    assert watermark_rows(kept).to_pylist()[0]["announced"] is None


@contextmanager
def refusing(spark):
    """Have sessions refuse settings within the block."""
    few_tasks = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}  # else VACUUM takes 10,000
    with spark_settings(spark, few_tasks), pytest.MonkeyPatch.context() as patch:
        refuse_settings(patch)
        yield


def open_lake(spark, root, read_log="spark"):
    return Lake(spark, str(root), store="spark", read_log=read_log)


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory):
    """The folder of a lake of one run."""
    lake = open_lake(spark, tmp_path_factory.mktemp("filled") / "lake")
    with refusing(spark), lake.hold_exclusive_access(lambda: None):
        lake.append(QUARANTINE, rows(spark, "a", "b").toArrow(), provenance="made of this")
        lake.create(CAPTURE_FILES)
    return lake.folder.location


@pytest.fixture
def lake(spark, filled, tmp_path):
    """A copy of that lake; sessions refuse settings."""
    with refusing(spark):
        yield open_lake(spark, shutil.copytree(filled, tmp_path / "lake"))


def killed(lake):
    """Return a lake as a run holds it that has begun, and will be killed."""
    held = open_lake(lake.spark, lake.root)
    held.exclusive = held.hold_exclusive_access(lambda: None)
    held.exclusive.__enter__()  # and never left
    versions = {str(table): held.version(table) for table in (QUARANTINE, CAPTURE_FILES)}
    RunMarkers.of(held).begin("killed", versions, ["one"])
    return held


def merge(lake, gone="a", key="c"):
    """Replace a row by another one."""
    changed = lake.select(QUARANTINE, f"quarantine_key = '{gone}'")
    changed = changed.set_column(0, changed.schema.field(0), [[key]])
    lake.delete_and_insert(QUARANTINE, "quarantine_key", [gone], changed, dates=[None], provenance="merged")


@pytest.fixture
def merging(monkeypatch):
    """Have all replacements be MERGEs."""
    monkeypatch.setattr(delta_spark, "MAX_IN_LIST", 0)


def keys(lake):
    return sorted(lake.select(QUARANTINE, "TRUE")["quarantine_key"].to_pylist())


def undo(lake):
    lines = []
    with lake.hold_exclusive_access(lambda: None, lines.append):
        undo_unfinished_runs(lake, (QUARANTINE, CAPTURE_FILES), CAPTURE_FILES, lines.append)
    return lines


def by_others(lake, statement):
    lake.spark.sql(statement.format(lake.sql_name(QUARANTINE)))


OTHERS_MERGE = """MERGE INTO {} AS t USING (SELECT 'b' AS k) AS s ON t.quarantine_key = s.k
WHEN MATCHED THEN UPDATE SET reason = 'other'"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("read_log", ["spark", "files"])
def test_a_merge_of_a_killed_run_is_known_as_its_own_and_undone(lake, merging, spark, read_log):
    dies = killed(lake)
    merge(dies)
    assert (dies.versions.provenance_json(QUARANTINE), dies.versions.rows_written(QUARANTINE)) == ("merged", 1)
    merge(dies, "c", "d")
    after = open_lake(spark, lake.root, read_log)
    newest = after._log.newest_commit(QUARANTINE)
    assert (newest.operation, newest.provenance_json) == ("MERGE", None)
    assert after.versions.provenance_json(QUARANTINE) == "merged"
    assert keys(after) == ["b", "d"]
    assert undo(after) == ["an earlier run did not end: its work is undone (killed)"]
    assert keys(after) == ["a", "b"]
    assert undo(open_lake(spark, lake.root, read_log)) == []  # the RESTORE was its own too


@pytest.mark.spark
@pytest.mark.parametrize(
    "by",
    [
        OTHERS_MERGE,
        pytest.param("UPDATE {} SET reason = 'other' WHERE quarantine_key = 'b'", marks=pytest.mark.long),
    ],
)
def test_a_commit_of_others_at_the_version_announced_stays(lake, merging, spark, monkeypatch, by):
    """The run is killed after it has announced its commit, and before it: also a MERGE of others is theirs."""
    dies = killed(lake)
    dies.append(QUARANTINE, rows(spark, "half").toArrow(), provenance="half")

    def die(*_):
        raise InterruptedError

    monkeypatch.setattr(delta_spark.SparkStore, "_merge", die)
    with pytest.raises(InterruptedError):
        merge(dies)
    expected = dies.version(QUARANTINE) + 1
    by_others(lake, by)
    after = open_lake(spark, lake.root)
    (announced,) = after.select(WATERMARKS, f"`table` = '{NAME}'")["announced"].to_pylist()[0]
    assert (announced["version"], announced["operation"], announced["provenance"]) == (expected, "MERGE", "merged")
    lines = undo(after)
    assert lines[-1].startswith(f"it cannot be undone (somebody else has changed {NAME} since)")
    assert keys(after) == ["a", "b", "half"]
    assert after.select(QUARANTINE, "reason = 'other'").num_rows == 1
    assert RunMarkers.of(after).captures_to_replace() == {"one"}


@pytest.mark.spark
def test_a_run_that_was_killed_before_its_merge_is_undone(lake, merging, spark, monkeypatch):
    dies = killed(lake)
    dies.append(QUARANTINE, rows(spark, "half").toArrow(), provenance="half")
    with monkeypatch.context() as patch:
        patch.setattr(delta_spark.SparkStore, "_merge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge(dies)
    assert undo(open_lake(spark, lake.root)) == ["an earlier run did not end: its work is undone (killed)"]
    assert keys(lake) == ["a", "b"]


@pytest.mark.spark
@pytest.mark.long
def test_a_run_that_was_killed_while_it_undid_another_is_undone_too(lake, merging, spark):
    merge(killed(lake))
    second = open_lake(spark, lake.root)
    exclusive = second.hold_exclusive_access(lambda: None)
    exclusive.__enter__()
    second.restore(QUARANTINE, 0)  # and is killed before it removes the marker
    after = open_lake(spark, lake.root)
    assert undo(after) == ["an earlier run did not end: its work is undone (killed)"]
    assert keys(after) == ["a", "b"]


@pytest.mark.spark
@pytest.mark.long
def test_maintenance_changes_no_row_and_no_provenance(lake, spark):
    def files():
        return [*Path(lake.path(QUARANTINE)).glob("*.parquet")]

    again = open_lake(spark, lake.root)
    with again.hold_exclusive_access(lambda: None):
        again.append(QUARANTINE, rows(spark, "c").toArrow(), provenance="made of this")
        again.purge(QUARANTINE, "made of that")
        again.keep_watermarks()  # as erasure does
        again.maintain(QUARANTINE, timedelta(hours=1))
        assert len(files()) > 1
        again.vacuum(QUARANTINE)
        assert len(files()) == 1
    properties = spark.sql(f"SHOW TBLPROPERTIES {lake.sql_name(QUARANTINE)}").toArrow()["key"].to_pylist()
    assert not {"delta.deletedFileRetentionDuration", "delta.checkpointInterval"} & {*properties}
    after = open_lake(spark, lake.root)
    assert after.versions.provenance_json(QUARANTINE) == "made of that"
    assert keys(after) == ["a", "b", "c"]
    assert after.versions.changed_since(QUARANTINE, 1) == (False, False)


@pytest.mark.spark
def test_what_others_commit_between_a_look_and_a_commit_is_a_conflict(lake, spark, monkeypatch):
    """Though no session tells the version of the commit."""
    overwrite = delta_spark.SparkStore._overwrite

    def overwrite_after_others(*given):
        by_others(lake, "DELETE FROM {} WHERE quarantine_key = 'b'")
        overwrite(*given)

    monkeypatch.setattr(delta_spark.SparkStore, "_overwrite", overwrite_after_others)
    run = open_lake(spark, lake.root)
    with pytest.raises(ConflictError, match="DELETE"), run.hold_exclusive_access(lambda: None):
        merge(run)
