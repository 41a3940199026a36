"""Rows marked as gone are those that DELETE takes out, and the table is then what it is after a DELETE."""

import random

import pytest
from pyspark.sql import functions as F

from pipeline import lake as lakes
from pipeline import marking
from pipeline.commits import newest
from pipeline.lake import Lake
from schemas.bronze import QUARANTINE
from setup.writes import log_of, rows

pytestmark = pytest.mark.spark


def by_delete(_spark, _pinned, _condition):
    return False


def marked(*asked):
    assert marking.mark(*asked)
    return True


@pytest.fixture
def both(lake, spark, tmp_path, monkeypatch):
    """Do the same to a lake whose rows are marked, and to one that Delta deletes from."""
    lakes_and_ways = ((lake, marked), (Lake(spark, str(tmp_path / "by_delete")), by_delete))

    def do(what):
        for each, way in lakes_and_ways:
            monkeypatch.setattr(lakes, "mark", way)
            what(each)

    do.lakes = [each for each, _ in lakes_and_ways]
    return do


def told(lake):
    """What Delta tells of the table, and its change feed."""
    feed = lake.changes(QUARANTINE, 0).select("_commit_version", "_change_type", "quarantine_key")
    return *told_now(lake), sorted(feed.collect())


def told_now(lake):
    """The keys that Delta reads, and how many rows are gone by the state that it makes of the log."""
    there = lake.spark.read.format("delta").load(lake.path(QUARANTINE))
    log = lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    snapshot = log.forTable(lake.spark._jsparkSession, lake.path(QUARANTINE)).unsafeVolatileSnapshot()
    state = snapshot.computedState()
    gone = state.numDeletedRecordsOpt().get()
    return sorted(row[0] for row in there.select("quarantine_key").collect()), gone


@pytest.mark.parametrize("seed", range(3))
def test_what_is_marked_is_what_delete_takes_out(both, seed):
    pick = random.Random(seed)
    keys = [f"{number:04}" for number in range(600)]
    for part in range(3):
        both(lambda lake, part=part: lake.append(QUARANTINE, rows(lake.spark, *keys[part * 200 : part * 200 + 200])))
    for _ in range(9):  # past a checkpoint
        if pick.random() < 0.2:
            more = [f"{pick.random()}" for _ in range(9)]
            both(lambda lake, more=more: lake.append(QUARANTINE, rows(lake.spark, *more)))
        gone = pick.choice([pick.sample(keys, 9), keys[200:400], ["not there"], pick.sample(keys, 150)])
        both(lambda lake, gone=gone: lake.remove(QUARANTINE, "quarantine_key", gone, dates=None))
        assert both.lakes[0].version(QUARANTINE) == both.lakes[1].version(QUARANTINE)
    ours, theirs = map(told, both.lakes)
    assert ours == theirs
    assert ours[1] > 0
    assert (log_of(both.lakes[0]) / "_last_checkpoint").exists()


def test_tables_with_marks_go_on_as_others_do(both):
    both(lambda lake: lake.append(QUARANTINE, rows(lake.spark, *map(str, range(50)))))
    both(lambda lake: lake.delete(QUARANTINE, "quarantine_key < '3'"))
    both(lambda lake: lake.update(QUARANTINE, {"reason": "'other'"}, "quarantine_key > '4'"))
    both(lambda lake: lake.merge(QUARANTINE, rows(lake.spark, "5", "50"), dates=None))
    both(lambda lake: lake.delete(QUARANTINE, "reason = 'other'"))  # on a vector that Delta wrote to a file
    both(lambda lake: lake.restore(QUARANTINE, 3))
    both(lambda lake: lake.delete(QUARANTINE, "quarantine_key IN ('35', '45') OR quarantine_key IS NULL"))
    ours, theirs = map(told, both.lakes)
    assert ours == theirs
    both(lambda lake: lake.purge(QUARANTINE, "purged"))
    both(lambda lake: lake.vacuum(QUARANTINE))
    ours, theirs = map(told_now, both.lakes)
    assert ours == theirs
    assert ours[1] == 0


def test_a_commit_says_what_it_was_made_of_and_how_many_rows_went(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b", "c"))
    lake.remove(QUARANTINE, "quarantine_key", ["a", "c", "d"], dates=[None], made_of="of this")
    said = newest(log_of(lake))
    assert (said.version, said.made_of) == (2, "of this")
    history = spark.sql(f"DESCRIBE HISTORY {lake.sql_name(QUARANTINE)}").first()
    assert history["operation"] == "DELETE"
    assert history["operationMetrics"]["numDeletedRows"] == "2"


def test_nothing_is_committed_where_no_row_is_found(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a"))
    lake.delete(QUARANTINE, "quarantine_key = 'b' AND NULL")
    lake.delete(QUARANTINE, "quarantine_key = 'b'")
    assert lake.version(QUARANTINE) == 1


def test_a_file_without_a_row_left_is_taken_out(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b").coalesce(1))
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    lake.delete(QUARANTINE, "quarantine_key = 'b'")
    assert lake.read(QUARANTINE).count() == 0
    assert spark.sql(f"DESCRIBE DETAIL {lake.sql_name(QUARANTINE)}").first()["numFiles"] == 0


def test_one_job_finds_the_rows(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b", "c").coalesce(1))
    spark.sparkContext.setJobGroup("marking", "")
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("marking")) == 1


def test_many_rows_are_deltas_to_delete(lake, spark, monkeypatch):
    monkeypatch.setattr(marking, "MOST_ROWS", 2)
    asked = []
    monkeypatch.setattr(lakes, "mark", lambda *args: asked.append(marking.mark(*args)) or asked[-1])
    lake.append(QUARANTINE, rows(spark, "a", "b", "c", "d"))
    lake.delete(QUARANTINE, "quarantine_key <= 'c'")
    lake.delete(QUARANTINE, "quarantine_key = 'd'")
    assert asked == [False, True]
    assert lake.read(QUARANTINE).count() == 0


@pytest.mark.parametrize("name", ["stats", "path"])
def test_files_that_the_log_tells_too_little_of_are_deltas_to_delete(lake, spark, monkeypatch, name):
    lake.append(QUARANTINE, rows(spark, "a", "b"))
    pinned = lake._pinned(QUARANTINE)
    for file in pinned.told.files.values():
        file[name] = '{"minValues": {}}' if name == "stats" else "elsewhere/x"
    assert not marking.mark(spark, pinned, "quarantine_key = 'a'")
    assert lake.version(QUARANTINE) == 1


def test_without_deltas_classes_nothing_is_marked(lake, spark, monkeypatch):
    lake.append(QUARANTINE, rows(spark, "a", "b"))
    monkeypatch.setattr(marking, "_PACKAGE", "com.example.another.delta")
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    assert lake.read(QUARANTINE).select(F.col("quarantine_key")).collect() == [("b",)]


def test_a_commit_that_another_one_came_before_is_refused(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b", "c").coalesce(1))
    pinned = lake._pinned(QUARANTINE)
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    with pytest.raises(Exception, match=r"[Cc]oncurrent"):
        marking.mark(spark, pinned, "quarantine_key = 'b'")
    assert lake.read(QUARANTINE).count() == 2
