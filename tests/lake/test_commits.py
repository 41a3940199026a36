"""What a lake tells of its tables' commits, whichever library stores them."""

from dataclasses import replace

import pytest

from lake.writes import NO_COMMIT, log_of, rows, writes
from pipeline.lake.lake import Lake
from schemas.bronze import QUARANTINE
from schemas.table import STRING, Column

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_each_commit_tells_what_it_was_made_of(lake_of_each_store):
    lake, told, newest = lake_of_each_store, {}, -1
    for write, provenance, written in writes(lake):
        write()
        snapshot = lake.versions.newest_commit(QUARANTINE)
        assert snapshot.provenance_json == provenance
        if written is NO_COMMIT:
            assert snapshot.version == newest
            continue
        assert snapshot.rows_written == written or written is None
        newest = snapshot.version
        assert newest == len(told) or provenance == "purged"
        told[newest] = provenance
    for since in (-1, 2, newest - 1):
        found = lake.versions.provenance_since(QUARANTINE, since)
        assert {
            version: found.get(version, "?") for version in told if version > max(since, 0)
        }.items() <= found.items()
    assert lake.versions.provenance_since(QUARANTINE, newest) == {}
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.sql_name(QUARANTINE)}").select("version", "userMetadata")
    assert told.items() <= dict(map(tuple, history.collect())).items()  # Delta tells the same


def test_entries_before_a_checkpoint_may_be_gone(lake):
    for write, *_ in writes(lake):
        write()
    newest, stored = lake.versions.newest_commit(QUARANTINE), sorted(map(str, lake.read(QUARANTINE).collect()))
    for version in range(newest.version):
        (log_of(lake) / f"{version:020}.json").unlink()
    for reader in (lake, Lake(lake.spark, lake.root)):
        assert reader.versions.newest_commit(QUARANTINE) == newest
        assert reader.versions.provenance_since(QUARANTINE, 2) == {newest.version: "purged"}
        assert sorted(map(str, reader.read(QUARANTINE).collect())) == stored
    lake.append(QUARANTINE, rows(lake.spark, "f"), provenance="one more")
    assert lake.versions.provenance_since(QUARANTINE, newest.version) == {newest.version + 1: "one more"}


def test_a_column_that_a_table_does_not_have_yet_is_null_in_every_answer(lake_of_each_store):
    """Readers do not add the columns that were declared since: the next run does."""
    lake, later = lake_of_each_store, replace(QUARANTINE, columns=(*QUARANTINE.columns, Column("news", STRING, "n")))
    lake.append(QUARANTINE, rows(lake.spark, "a"))
    reader = Lake(lake.spark, lake.root, catalog=lake.catalog, prefix=lake.prefix)
    sql = "SELECT quarantine_key, news FROM {rows}"
    for found in (reader.query(sql, rows=later), reader.frame(sql, rows=later).toArrow()):
        assert found.to_pylist() == [{"quarantine_key": "a", "news": None}]
    assert reader.read(later).select("news").first()["news"] is None
