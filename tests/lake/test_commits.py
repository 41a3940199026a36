"""What a lake tells of its tables' commits, whichever library stores them."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from lake.writes import log_of, rows, writes
from pipeline.lake.lake import Lake
from pipeline.lake.spark.settings import spark_conf
from schemas.bronze import QUARANTINE
from schemas.table import STRING, Column

pytestmark = pytest.mark.spark


def test_each_commit_tells_what_it_was_made_of(lake_of_each_store):
    lake, told = lake_of_each_store, {}
    for write, provenance, written in writes(lake):
        write()
        snapshot = lake.snapshot(QUARANTINE)
        assert snapshot.provenance_json == provenance
        assert snapshot.rows_written == written or written is None
        newest = snapshot.version
        assert newest == len(told) or provenance == "purged"
        told[newest] = provenance
    for since in (-1, 2, newest - 1):
        found = lake.provenance_since(QUARANTINE, since)
        assert {version: found.get(version, "?") for version in told if version > since}.items() <= found.items()
    assert lake.provenance_since(QUARANTINE, newest) == {}
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.sql_name(QUARANTINE)}").select("version", "userMetadata")
    assert told.items() <= dict(map(tuple, history.collect())).items()  # Delta tells the same


def test_entries_before_a_checkpoint_may_be_gone(lake):
    for write, *_ in writes(lake):
        write()
    newest, stored = lake.snapshot(QUARANTINE), sorted(map(str, lake.read(QUARANTINE).collect()))
    for version in range(newest.version):
        (log_of(lake) / f"{version:020}.json").unlink()
    for reader in (lake, Lake(lake.spark, lake.root)):
        assert reader.snapshot(QUARANTINE) == newest
        assert reader.provenance_since(QUARANTINE, 2) == {newest.version: "purged"}
        assert sorted(map(str, reader.read(QUARANTINE).collect())) == stored
    lake.append(QUARANTINE, rows(lake.spark, "f"), provenance="one more")
    assert lake.provenance_since(QUARANTINE, newest.version) == {newest.version + 1: "one more"}


MAINTENANCE = (
    "OPTIMIZE {}", "REORG TABLE {} APPLY (PURGE)", "VACUUM {}", "ALTER TABLE {} SET TBLPROPERTIES ('some.day' = 'x')",
    "ALTER TABLE {} UNSET TBLPROPERTIES ('some.day')",
)  # fmt: skip


def compact(lake):
    DeltaTable(lake.location(QUARANTINE)).optimize.compact()


def vacuum(lake):
    DeltaTable(lake.location(QUARANTINE)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def of_spark(statement):
    return lambda lake: lake.spark.sql(statement.format(lake.sql_name(QUARANTINE)))


BY_SPARK = (*map(of_spark, MAINTENANCE),)


def keys(lake):
    return sorted(row[0] for row in lake.read(QUARANTINE).select("quarantine_key").collect())


def fill(lake):
    """Write two files, one with a row that was deleted."""
    for each in ("ac", "b"):
        lake.append(QUARANTINE, rows(lake.spark, *each).coalesce(1), provenance="made of this")
    lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None], provenance="made of this")


def commits_of(lake):
    return lake.spark.sql(f"DESCRIBE HISTORY {lake.sql_name(QUARANTINE)}").count()


def keeps_version_and_provenance(lake, maintenance):
    """Maintain a filled table in several ways; the first one joins its files."""
    fill(lake)
    version, commits = lake.version(QUARANTINE), commits_of(lake)
    for maintain in maintenance:
        maintain(lake)
        snapshot = lake.snapshot(QUARANTINE)
        assert (snapshot.version, snapshot.provenance_json) == (version, "made of this")
    assert keys(lake) == ["b", "c"]
    assert commits_of(lake) > commits
    assert lake.provenance_since(QUARANTINE, version) == {}
    lake.append(QUARANTINE, rows(lake.spark, "d"))
    maintenance[0](lake)
    assert lake.provenance_json(QUARANTINE) is None  # the rows that came last are of unknown origin
    assert lake.version(QUARANTINE) > version


def test_maintenance_by_spark_changes_neither_version_nor_provenance(lake_of_each_store):
    few_tasks = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}  # else VACUUM takes 10,000
    with spark_conf(lake_of_each_store.spark, few_tasks):
        keeps_version_and_provenance(lake_of_each_store, BY_SPARK)


def test_maintenance_by_delta_rs_changes_neither_version_nor_provenance(lake):
    keeps_version_and_provenance(lake, (compact, vacuum))


def test_a_new_column_is_no_maintenance(lake_of_each_store):
    lake = lake_of_each_store
    lake.append(QUARANTINE, rows(lake.spark, "a"), provenance="made of this")
    lake.spark.sql(f"ALTER TABLE {lake.sql_name(QUARANTINE)} ADD COLUMNS (another INT)")
    assert lake.provenance_json(QUARANTINE) is None


def test_a_column_that_a_table_does_not_have_yet_is_null_in_every_answer(lake_of_each_store):
    """Readers do not add the columns that were declared since: the next run does."""
    lake, later = lake_of_each_store, replace(QUARANTINE, columns=(*QUARANTINE.columns, Column("news", STRING, "n")))
    lake.append(QUARANTINE, rows(lake.spark, "a"))
    reader = Lake(lake.spark, lake.root, catalog=lake.catalog, prefix=lake.prefix)
    sql = "SELECT quarantine_key, news FROM {rows}"
    for found in (reader.query(sql, rows=later), reader.frame(sql, rows=later).toArrow()):
        assert found.to_pylist() == [{"quarantine_key": "a", "news": None}]
    assert reader.read(later).select("news").first()["news"] is None
