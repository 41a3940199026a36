"""What a table's log says of its commits is what Delta tells of them."""

import pytest

from lake.writes import log_of, rows, writes
from pipeline.lake.local import commits
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark


def told_by_delta(lake, count):
    return commits.describe_history(lake.spark, lake.sql_name(QUARANTINE), count)


@pytest.mark.long
def test_a_log_tells_what_delta_tells(lake):
    for write in writes(lake):
        write()
        [told] = told_by_delta(lake, 1)
        assert commits.newest_in_log(log_of(lake)) == told
        assert (lake.version(QUARANTINE), lake.provenance_json(QUARANTINE)) == (told.version, told.provenance_json)
        assert lake.count_rows_written(QUARANTINE) == told.rows_written
    newest = told.version
    assert newest > 10
    assert (log_of(lake) / "_last_checkpoint").exists()
    assert {each.rows_written for each in told_by_delta(lake, newest + 1)} >= {0, 1, 2, 3}
    assert commits.snapshots_in_log(log_of(lake), 3, newest) == told_by_delta(lake, newest - 2)[::-1]
    assert lake.provenance_since(QUARANTINE, 2) == {
        each.version: each.provenance_json for each in told_by_delta(lake, newest - 2)
    }
    elsewhere = commits.CommitHistory(lake.spark, lake.sql_name(QUARANTINE), None)
    assert elsewhere.newest() == commits.newest_in_log(log_of(lake))
    assert elsewhere.since(2, newest) == commits.snapshots_in_log(log_of(lake), 3, newest)


def test_entries_before_a_checkpoint_may_be_gone(lake):
    for write in writes(lake):
        write()
    newest = commits.newest_in_log(log_of(lake))
    for version in range(8):
        (log_of(lake) / f"{version:020}.json").unlink()
    assert commits.newest_in_log(log_of(lake)) == newest
    assert commits.snapshots_in_log(log_of(lake), 7, newest.version) is None
    assert [each.version for each in commits.snapshots_in_log(log_of(lake), 8, newest.version)] == [
        *range(8, newest.version + 1)
    ]


MAINTENANCE = (
    "REORG TABLE {} APPLY (PURGE)", "OPTIMIZE {}", "VACUUM {}", "ALTER TABLE {} SET TBLPROPERTIES ('some.day' = 'x')",
    "ALTER TABLE {} UNSET TBLPROPERTIES ('some.day')",
)  # fmt: skip


@pytest.mark.long  # test_between_runs tries maintenance in make test
def test_maintenance_leaves_what_a_table_is_made_of(lake):
    """Also by Delta's own word, where the log is not in a folder of this machine."""
    for keys in ("ac", "b"):
        lake.append(QUARANTINE, rows(lake.spark, *keys).coalesce(1), provenance="made of this")
    lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None], provenance="made of this")  # for the purge
    elsewhere = commits.CommitHistory(lake.spark, lake.sql_name(QUARANTINE), None)
    for statement in MAINTENANCE:
        before = lake.version(QUARANTINE)
        lake.spark.sql(statement.format(lake.sql_name(QUARANTINE)))
        assert lake.version(QUARANTINE) > before, statement
        assert lake.provenance_json(QUARANTINE) == "made of this", statement
        assert elsewhere.newest() == lake.snapshot(QUARANTINE)
    assert lake.provenance_since(QUARANTINE, before - 1) == {}  # commits of maintenance say nothing
    lake.append(QUARANTINE, rows(lake.spark, "d"))
    lake.spark.sql(MAINTENANCE[1].format(lake.sql_name(QUARANTINE)))
    assert lake.provenance_json(QUARANTINE) is None  # the rows that came last are of unknown origin
    assert elsewhere.newest().provenance_json is None


def test_a_new_column_is_no_maintenance(lake):
    lake.append(QUARANTINE, rows(lake.spark, "a"), provenance="made of this")
    lake.spark.sql(f"ALTER TABLE {lake.sql_name(QUARANTINE)} ADD COLUMNS (another INT)")
    assert lake.provenance_json(QUARANTINE) is None


@pytest.mark.parametrize("text", ["", "[1", '{"version": "1"}', "[]", '{"size": 1}'])
def test_a_checkpoint_that_says_nothing_is_passed_over(lake, text):
    lake.append(QUARANTINE, rows(lake.spark, "a"), provenance="something")
    (log_of(lake) / "_last_checkpoint").write_text(text, encoding="utf-8")
    assert commits.newest_in_log(log_of(lake)) == commits.Snapshot(1, "something", 1, "WRITE")


@pytest.mark.parametrize("entry", [b"", b"\xff\xfe", b'{"commitInfo":', b'{"metaData":{}}\n'])
def test_where_the_log_does_not_tell_delta_is_asked(lake, monkeypatch, entry):
    lake.append(QUARANTINE, rows(lake.spark, "a"), provenance="something")
    told = told_by_delta(lake, 1)
    (log_of(lake) / f"{1:020}.json").write_bytes(entry)
    monkeypatch.setattr(commits, "describe_history", lambda _spark, _name, count: told[:count])
    assert commits.newest_in_log(log_of(lake)) is None
    assert lake.provenance_json(QUARANTINE) == "something"
    assert lake.provenance_since(QUARANTINE, 0) == {1: "something"}


def test_a_log_that_is_nowhere_here_tells_nothing(tmp_path):
    for log in (tmp_path / "no" / "_delta_log", tmp_path):
        assert commits.newest_in_log(log) is None
        assert commits.snapshots_in_log(log, 0, 1) is None
