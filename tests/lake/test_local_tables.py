"""What is changed here, without Spark, is what Spark reads, and a table is then as it is after Spark's commits."""

import random

import pytest
from pyspark.sql import functions as F

from lake.writes import log_of, rows
from pipeline.lake.lake import Lake
from pipeline.lake.local import transaction
from pipeline.lake.local.commits import newest_in_log
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark


# An update is told as rows that went and came, or as what they were and are.
KINDS = {"update_preimage": "delete", "update_postimage": "insert"}


def by_spark(spark, root):
    """A lake whose tables Spark reads and changes, wherever they are."""
    made = Lake(spark, str(root))
    made._local = None
    return made


@pytest.fixture
def both(lake, spark, tmp_path):
    """Do the same to a lake whose tables are changed here, and to one that Spark changes."""
    lakes = (lake, by_spark(spark, tmp_path / "by_spark"))

    def do(what):
        for each in lakes:
            what(each)

    do.lakes = lakes
    return do


def told(lake):
    """What Delta tells of the table, and its change feed."""
    feed = lake.changes(QUARANTINE, 0).select("_commit_version", "_change_type", "quarantine_key").collect()
    return *told_now(lake), sorted((version, KINDS.get(kind, kind), key) for version, kind, key in feed)


def told_now(lake):
    """The keys that Delta reads, and how many rows are gone by the state that it makes of the log."""
    there = lake.spark.read.format("delta").load(lake.path(QUARANTINE))
    log = lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    snapshot = log.forTable(lake.spark._jsparkSession, lake.path(QUARANTINE)).unsafeVolatileSnapshot()
    state = snapshot.computedState()
    gone = state.numDeletedRecordsOpt().get()
    return sorted(row[0] for row in there.select("quarantine_key").collect()), gone


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_what_is_taken_out_is_what_delete_takes_out(both, seed):
    pick = random.Random(seed)
    keys = [f"{number:04}" for number in range(600)]
    for part in range(3):
        both(lambda lake, part=part: lake.append(QUARANTINE, rows(lake.spark, *keys[part * 200 : part * 200 + 200])))
    for _ in range(9):  # past a checkpoint
        if pick.random() < 0.2:
            more = [f"{pick.random()}" for _ in range(9)]
            both(lambda lake, more=more: lake.append(QUARANTINE, rows(lake.spark, *more)))
        gone = pick.choice([pick.sample(keys, 9), keys[200:400], ["not there"], pick.sample(keys, 150)])
        both(lambda lake, gone=gone: lake.delete_values(QUARANTINE, "quarantine_key", gone, dates=None))
        assert both.lakes[0].version(QUARANTINE) == both.lakes[1].version(QUARANTINE)
    ours, theirs = map(told, both.lakes)
    assert ours == theirs
    assert ours[1] > 0
    assert (log_of(both.lakes[0]) / "_last_checkpoint").exists()


@pytest.mark.long
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
    lake.delete_values(QUARANTINE, "quarantine_key", ["a", "c", "d"], dates=[None], provenance="of this")
    said = newest_in_log(log_of(lake))
    assert (said.version, said.provenance_json) == (2, "of this")
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


def test_no_job_of_spark_finds_the_rows_or_adds_some(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b", "c").coalesce(1))
    spark.sparkContext.setJobGroup("here", "")
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    found = lake.query("SELECT * FROM {rows}", rows=QUARANTINE)
    lake.append(QUARANTINE, found)
    lake.commit_provenance(QUARANTINE, "stamped")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("here")
    assert sorted(found["quarantine_key"].to_pylist()) == ["b", "c"]
    assert lake.read(QUARANTINE).count() == 4


def test_rows_that_are_gone_have_a_file_of_their_own(both):
    both(lambda lake: lake.append(QUARANTINE, rows(lake.spark, *map(str, range(100))).coalesce(1)))
    both(lambda lake: lake.delete(QUARANTINE, "quarantine_key LIKE '%3'"))
    both(lambda lake: lake.delete(QUARANTINE, "quarantine_key LIKE '%7'"))
    assert told(both.lakes[0]) == told(both.lakes[1])
    assert len(list(log_of(both.lakes[0]).parent.glob("deletion_vector_*.bin"))) == 2
    assert both.lakes[0].query("SELECT count(*) AS n FROM {rows}", rows=QUARANTINE)["n"].to_pylist() == [80]


@pytest.mark.parametrize("stats", ['{"minValues": {}}', None])
def test_rows_go_of_files_of_which_the_log_tells_little(lake, spark, stats):
    lake.append(QUARANTINE, rows(spark, "a", "b").coalesce(1))
    found = lake._local.listing(QUARANTINE)
    for file in found.files.values():
        file["stats"] = stats
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    assert lake.version(QUARANTINE) == 2
    assert told_now(lake) == (["b"], 1)


def test_without_deltas_classes_spark_reads_and_changes(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(transaction, "_PACKAGE", "com.example.another.delta")
    transaction._delta.cache_clear()
    lake = Lake(spark, str(tmp_path))
    assert lake._local is None
    lake.append(QUARANTINE, rows(spark, "a", "b"))
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    assert lake.read(QUARANTINE).select(F.col("quarantine_key")).collect() == [("b",)]
    assert lake.query("SELECT quarantine_key FROM {rows}", rows=QUARANTINE).to_pylist() == [{"quarantine_key": "b"}]
    transaction._delta.cache_clear()


def test_a_commit_that_another_one_came_before_is_refused(lake, spark, monkeypatch):
    lake.append(QUARANTINE, rows(spark, "a", "b", "c").coalesce(1))
    found = lake._local.listing(QUARANTINE)
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    monkeypatch.setattr(lake._local, "listing", lambda _: found)
    with pytest.raises(transaction.ConflictError, match="version 2 instead of 1"):
        lake.delete(QUARANTINE, "quarantine_key = 'b'")
    monkeypatch.undo()
    assert lake.read(QUARANTINE).count() == 2
