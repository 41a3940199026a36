"""Rows that are kept because they are asked for again and again are those that the table has now, whatever happened."""

import random
import shutil

import pytest

from lake.writes import rows
from pipeline.lake.lake import Lake
from pipeline.lake.local.local_tables import LocalTables
from pipeline.lake.queries import CachedFilter
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark

KEY = "quarantine_key"
LATE = CachedFilter(QUARANTINE, f"{KEY} >= '3' OR reason = 'other'")


def kept(lake):
    """The keys of the rows, as a run keeps them, and the files that hold them."""
    with lake.hold_exclusive_access(lambda: None):
        found = lake.query(f"SELECT {KEY} FROM {{rows}}", rows=LATE)[KEY].to_pylist()
    return sorted(found), sorted(path.name for path in (lake._local._root / "_runs" / "standing").iterdir())


def there(lake):
    """The keys of the same rows, of the table."""
    return sorted(lake.query(f"SELECT {KEY} FROM {{rows}} WHERE {LATE.where}", rows=QUARANTINE)[KEY].to_pylist())


@pytest.fixture
def asked(monkeypatch):
    """The tables of which all rows were looked through."""
    found = []
    whole = LocalTables._relation

    def looked_through(self, table, *args, **options):
        found.append(table)
        return whole(self, table, *args, **options)

    monkeypatch.setattr(LocalTables, "_relation", looked_through)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_they_follow_whatever_is_done_to_the_table(lake, asked, seed):
    pick = random.Random(seed)
    lake.append(QUARANTINE, rows(lake.spark, *(f"{number}" for number in range(6))))
    assert kept(lake)[0] == ["3", "4", "5"]
    for number in range(8):
        for _ in range(pick.randrange(3)):  # several commits between two questions
            key = f"{pick.randrange(6)}"
            pick.choice(
                [
                    lambda key=key: lake.delete(QUARANTINE, f"{KEY} = '{key}'"),
                    lambda key=key: lake.update(QUARANTINE, {"reason": "'other'"}, f"{KEY} = '{key}'"),
                    lambda key=key: lake.update(QUARANTINE, {"reason": "NULL"}, f"{KEY} >= '{key}'"),
                    lambda key=key, more=f"{key}.{number}": lake.delete_and_insert(
                        QUARANTINE, KEY, {key}, rows(lake.spark, key, more).toArrow(), dates=None
                    ),
                ]
            )()
        asked.clear()
        found, files = kept(lake)
        assert asked == []
        assert found == there(lake)
        assert files == [f"{files[0].rsplit('.', 2)[0]}.{lake.version(QUARANTINE)}.parquet"]


def spoil(how, lake, file):
    if how == "damaged":
        file.write_bytes(b"PAR1")
    elif how == "removed":
        file.unlink()
    elif how == "of a version to come":
        file.rename(file.with_name(file.name.replace(".1.", ".9.")))
    else:  # what changed since was in files that are removed
        lake.purge(QUARANTINE, None)
        lake.vacuum(QUARANTINE)


@pytest.mark.parametrize("how", ["damaged", "removed", "of a version to come", "behind old versions"])
def test_they_are_asked_anew_where_nothing_tells_what_changed(lake, asked, how):
    lake.append(QUARANTINE, rows(lake.spark, "1", "3", "5"))
    _, (name,) = kept(lake)
    lake.append(QUARANTINE, rows(lake.spark, "4"))
    lake.delete(QUARANTINE, f"{KEY} = '4'")
    spoil(how, lake, lake._local._root / "_runs" / "standing" / name)
    asked.clear()
    assert kept(lake)[0] == ["3", "5"]
    assert asked == [QUARANTINE]
    assert kept(lake)[0] == ["3", "5"]
    assert asked == [QUARANTINE]


def test_another_table_in_the_same_place_is_another(lake, spark):
    lake.append(QUARANTINE, rows(lake.spark, "1", "3", "5"))
    assert kept(lake)[0] == ["3", "5"]
    shutil.rmtree(lake._local.folder(QUARANTINE))
    again = Lake(spark, lake.root)
    again.append(QUARANTINE, rows(spark, "2", "4"))
    assert kept(again)[0] == ["4"]


def test_a_job_that_only_reads_keeps_no_rows(lake):
    lake.append(QUARANTINE, rows(lake.spark, "1", "3", "5"))
    assert lake.query(f"SELECT {KEY} FROM {{rows}}", rows=LATE)[KEY].to_pylist() == ["3", "5"]
    assert not (lake._local._root / "_runs" / "standing").exists()


def test_without_tables_at_hand_they_are_asked_of_spark(lake, spark):
    lake.append(QUARANTINE, rows(lake.spark, "1", "3", "5"))
    by_spark = Lake(spark, lake.root)
    by_spark._local = None
    found = by_spark.query(f"SELECT {KEY} FROM {{rows}} WHERE {KEY} < '4'", rows=LATE)
    assert found[KEY].to_pylist() == ["3"]
    assert not (lake._local._root / "_runs" / "standing").exists()


def test_of_no_table_there_is_none(lake):
    assert lake.query("SELECT * FROM {rows}", rows=LATE).schema.names == list(LATE.column_names)
    assert "sample" not in LATE.column_names
