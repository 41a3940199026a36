"""A table's files, as its log tells them, are those that Delta lists, and reading them is reading the table."""

import shutil
from dataclasses import replace

import pytest

from lake.writes import log_of, rows, writes
from pipeline.lake.lake import Lake
from pipeline.lake.local import pinned
from pipeline.lake.local.commits import newest_in_log
from pipeline.lake.local.table_files import listing
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark


def listed_by_delta(lake):
    """Path, size and what is gone of each file, as Delta has them."""
    table = lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        lake.spark._jsparkSession, lake.path(QUARANTINE)
    )
    files = table.unsafeVolatileSnapshot().allFiles().collectAsList()
    return sorted((each.path(), each.size(), vector(each.deletionVector())) for each in files)


def vector(gone):
    return None if gone is None else (gone.storageType(), gone.pathOrInlineDv(), gone.cardinality())


def listed(found):
    gone = [each.get("deletionVector") for each in found.files.values()]
    named = [each and (each["storageType"], each["pathOrInlineDv"], each["cardinality"]) for each in gone]
    return sorted((each["path"], each["size"], name) for each, name in zip(found.files.values(), named, strict=True))


def keys(frame):
    return sorted(row[0] for row in frame.select("quarantine_key").collect())


def by_delta(lake):
    return keys(lake.spark.read.format("delta").load(lake.path(QUARANTINE)))


def is_pinned(frame):
    relation = frame._jdf.queryExecution().analyzed().collectLeaves().head().relation()
    return relation.location().getClass().getSimpleName() == "TahoeBatchFileIndex"


@pytest.mark.long
def test_a_log_tells_the_files_that_delta_lists_and_they_hold_the_rows(lake):
    known, vectors = None, 0
    for write in writes(lake):
        before = (lake.read(QUARANTINE), by_delta(lake)) if known else None
        write()
        version = newest_in_log(log_of(lake)).version
        found = listing(log_of(lake), version)
        known = listing(log_of(lake), version, known)
        assert found == known
        assert listed(found) == listed_by_delta(lake)
        assert keys(lake.read(QUARANTINE)) == by_delta(lake)
        if before:
            assert keys(before[0]) == before[1]  # of a frame read before, whenever it is asked for
        vectors += any(each.get("deletionVector") for each in found.files.values())
    assert (log_of(lake) / "_last_checkpoint").exists()
    assert vectors


def test_a_pinned_table_is_read_without_a_job_that_lists_its_files(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a", "b"))
    lake.append(QUARANTINE, rows(spark, "c"))
    lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None])
    assert is_pinned(lake.read(QUARANTINE))
    for name, read in (("pinned", lake.read), ("delta", lake._open)):
        spark.sparkContext.setJobGroup(name, name)
        assert keys(read(QUARANTINE)) == ["b", "c"]
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    jobs = {name: len(spark.sparkContext.statusTracker().getJobIdsForGroup(name)) for name in ("pinned", "delta")}
    assert jobs["pinned"] == 1 < jobs["delta"]


def test_an_empty_table_is_not_asked(lake, spark):
    lake.create(QUARANTINE)
    assert lake.read(QUARANTINE)._jdf.queryExecution().optimizedPlan().getClass().getSimpleName() == "LocalRelation"
    assert lake.read(QUARANTINE).schema == QUARANTINE.struct()
    lake.append(QUARANTINE, rows(spark, "a"))
    assert keys(lake.read(QUARANTINE)) == ["a"]


def test_an_empty_table_has_the_columns_that_it_was_made_with(lake):
    lake.create(replace(QUARANTINE, columns=QUARANTINE.columns[:-1]))
    assert lake.read(QUARANTINE).columns == lake._open(QUARANTINE).columns != [*QUARANTINE.struct().names]


def test_of_many_files_delta_chooses(lake, spark, monkeypatch):
    monkeypatch.setattr(pinned, "MOST_FILES", 1)
    lake.append(QUARANTINE, rows(spark, "a"))
    assert is_pinned(lake.read(QUARANTINE))
    lake.append(QUARANTINE, rows(spark, "b"))
    assert not is_pinned(lake.read(QUARANTINE))
    assert keys(lake.read(QUARANTINE)) == ["a", "b"]


def test_another_table_in_the_folder_is_another_table(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a"))
    assert keys(lake.read(QUARANTINE)) == ["a"]
    shutil.rmtree(lake.path(QUARANTINE))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    Lake(spark, lake.root).append(QUARANTINE, rows(spark, "b"))
    assert keys(lake.read(QUARANTINE)) == ["b"]


def test_what_another_session_of_the_lake_reads_is_of_that_session(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a"))
    with lake.with_own_session() as other:
        for each in (lake, other, lake):
            frame = each.read(QUARANTINE)
            assert is_pinned(frame)
            assert frame._jdf.sparkSession().equals(each.spark._jsparkSession)


def test_columns_declared_since_are_null(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a"))
    spark.sql(f"ALTER TABLE {lake.sql_name(QUARANTINE)} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {lake.sql_name(QUARANTINE)} DROP COLUMN sample")
    again = Lake(spark, lake.root)
    assert again.read(QUARANTINE).select("quarantine_key", "sample").collect() == [("a", None)]


@pytest.mark.parametrize("entry", [None, b"\xff\xfe", b'{"add":', b'{"add":{"size":1}}\n', b"[]\n", b"1\n"])
def test_a_log_that_is_not_as_expected_tells_nothing(tmp_path, entry):
    if entry is not None:
        (tmp_path / f"{0:020}.json").write_bytes(entry)
    assert listing(tmp_path, 0) is None


def test_a_checkpoint_that_is_not_one_file_tells_nothing(lake):
    for write in writes(lake):
        write()
    version = newest_in_log(log_of(lake)).version
    assert listing(log_of(lake), version) is not None
    for file in log_of(lake).glob("*.checkpoint.parquet"):
        file.rename(file.with_suffix(".0000000001.0000000001.parquet"))
    assert listing(log_of(lake), version) is None
