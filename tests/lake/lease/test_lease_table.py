"""The lease of a lake in a catalog: a table that is made once, with its row, which is replaced as it was read."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines import without_spark
from jobs import maintain
from jobs.command_line.engine_summary import count_work
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.lake.storage.log import TableLocations
from pipeline.runs import lease
from pipeline.runs.lease import LEASE_FOLDER, LeaseError, LeaseLocation, Record, hold_lease
from pipeline.runs.lease_table import LEASE, LeaseTable, lease_location
from schemas.bronze import CAPTURE_FILES

PREFIX = "leased_"
RACES = 4
MOST_EXECUTIONS = 24  # of Spark's, for a run that takes the lease and leaves it


def quiet(_: str) -> None:
    pass


class Row(LeaseLocation):
    """A place like the table, without Spark."""

    times = LeaseTable.times._replace(poll_s=0.001)
    is_read_before_commits = LeaseTable.is_read_before_commits
    record = "the row"

    def __init__(self) -> None:
        self.row: Record | None = None
        self.away = False
        self.reads = 0

    def read(self):
        self.reads += 1
        if self.away:
            raise OSError("away")
        return self.row

    def put(self, data, before):
        if self.away:
            raise OSError("away")
        if before != self.row:
            return False
        self.row = Record(data)
        return True


# -- what a run does ---------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves, and on which waiting runs sleep."""
    now = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("where", "is_table"),
    [({}, False), ({"catalog": "spark_catalog"}, False), ({"catalog": "main", "prefix": "p_"}, True)],
)
def test_which_lakes_have_a_table(tmp_path, where, is_table):
    place = lease_location(Lake(without_spark(), str(tmp_path), **where))
    assert isinstance(place, LeaseTable) is is_table
    assert not is_table or place.record == "`main`.`p_bronze`.`lease`"


def test_over_connect_every_catalog_has_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert isinstance(lease_location(Lake(without_spark(), str(tmp_path), catalog="spark_catalog")), LeaseTable)
    assert lease_location(Lake(without_spark(), str(tmp_path))) is None


def test_a_young_lease_is_not_read_before_a_commit(clock):
    row = Row()
    with hold_lease("lake", "mine", location=row, say=quiet) as held:
        row.reads, row.away = 0, True
        clock[0] = 119
        held.check()
        assert row.reads == 0
        row.away = False


def test_an_old_lease_is_renewed_before_a_commit_or_there_is_none(clock):
    row = Row()
    with hold_lease("lake", "mine", location=row, say=quiet) as held:
        before, row.away = row.row, True
        clock[0] = 121
        with pytest.raises(LeaseError, match="the lease of lake could not be renewed for 121 s by run mine"):
            held.check()
        row.away = False
        held.check()
        assert row.row != before
        assert json.loads(row.row.data)["beat"] > json.loads(before.data)["beat"]


def test_a_run_that_slept_while_another_took_its_place_commits_nothing(clock):
    row = Row()
    with hold_lease("lake", "sleeper", location=row, say=quiet) as sleeper:
        with hold_lease("lake", "other", location=row, say=quiet, stale_s=0.01) as other:
            clock[0] = 400
            with pytest.raises(LeaseError, match=r"run sleeper has lost the lease of lake: run other .* has taken it"):
                sleeper.check()
            other.check()
        with pytest.raises(LeaseError, match="has lost the lease"):
            sleeper.check()


def test_a_place_that_is_away_is_asked_again_soon():
    """And not only at the next beat: until then the lease may be too old for a commit."""
    row = Row()
    with hold_lease("lake", "mine", location=row, say=quiet, beat_s=1.0) as held:
        row.away, before, end = True, held._renewed_at, time.monotonic() + 10
        while row.reads < 20 and time.monotonic() < end:
            time.sleep(0.01)
        row.away = False
        assert row.reads >= 20
        while held._renewed_at == before:
            time.sleep(0.01)


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(spark):
    yield LeaseTable(TableLocations("", "spark_catalog", PREFIX), LazySession.of(spark))
    spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{PREFIX}bronze CASCADE")


def together(*calls):
    """Call functions in threads that begin at once."""
    begin = threading.Barrier(len(calls))

    def call(each):
        begin.wait()
        return each()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(call, calls)]


@pytest.mark.spark
def test_of_those_that_replace_the_same_row_one_succeeds(table):
    assert table.read() is None
    made = together(*(lambda each=each: table.put(b"made by %d" % each, None) for each in range(3)))
    assert sorted(made) == [False, False, True]
    assert table.read() == Record(b"made by %d" % made.index(True))
    assert not table.put(b"again", None)
    for number in range(RACES):
        before = table.read()
        puts = together(
            *(lambda each=each, n=number, b=before: table.put(b"%d by %d" % (n, each), b) for each in (0, 1))
        )
        assert sorted(puts) == [False, True]
        assert table.read() == Record(b"%d by %d" % (number, puts.index(True)))
        assert not table.put(b"late", before)


@pytest.mark.spark
def test_a_run_holds_the_row_and_leaves_it_free(table, spark):
    with hold_lease("lake", "it's \\ ${mine}", location=table, say=quiet) as held:
        held.check()
        held._look(renew=True)
        assert json.loads(table.read().data)["run_id"] == "it's \\ ${mine}"
        with (
            pytest.raises(LeaseError, match=r"run it's .* works on lake"),
            hold_lease("lake", "b", location=table, say=quiet, wait_s=0),
        ):
            pass
    assert table.read() == Record(b"{}")
    before = count_work(spark)
    with hold_lease("lake", "next", location=table, say=quiet) as held:
        held.check()
    assert count_work(spark).executions - before.executions <= MOST_EXECUTIONS
    properties = dict(spark.sql(f"SHOW TBLPROPERTIES {table.record}").collect())
    assert properties["delta.isolationLevel"] == "Serializable"
    assert {"CREATE TABLE AS SELECT", "UPDATE"} == {
        row["operation"] for row in spark.sql(f"DESCRIBE HISTORY {table.record}").collect()
    }


@pytest.mark.spark
@pytest.mark.long
def test_a_job_takes_the_lease_in_the_catalog_and_maintains_it(table, spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Lake, "is_in_own_spark", False)
    lake = Lake(spark, str(tmp_path), catalog="spark_catalog", prefix=PREFIX)
    lake.create(CAPTURE_FILES)
    arguments = ["--lake", lake.root, "--set", "lake.catalog=spark_catalog", "--set", f"lake.prefix={PREFIX}"]
    for _ in range(2):  # the second run trusts the watermarks of the first one, which say nothing of the lease
        assert maintain.main(arguments) == 0
        assert f"maintaining {LEASE}" in capsys.readouterr().err
    assert table.read() == Record(b"{}")
    assert not (tmp_path / LEASE_FOLDER).exists()
    assert table.put(b'{"run_id": "theirs"}', table.read())
    assert maintain.main([*arguments, "--set", "lake.lease_wait=0s"]) == 2
    assert f"run theirs (None, process None, since None) works on {lake.root}; waited 0 s" in capsys.readouterr().err


@pytest.mark.spark
def test_a_table_without_its_row_or_a_statement_that_fails_is_one_line(table, spark):
    table.put(b"{}", None)
    spark.sql(f"DELETE FROM {table.record}")
    with (
        pytest.raises(LeaseError, match=r"^lake: no lease can be taken there: .* has not one row"),
        hold_lease("lake", "mine", location=table, say=quiet),
    ):
        pass
    spark.sql(f"DROP TABLE {table.record}")
    spark.sql(f"CREATE TABLE {table.record} USING DELTA AS SELECT '{{}}' AS another")
    with (
        pytest.raises(LeaseError, match=r"^lake: no lease can be taken there: .*UNRESOLVED_COLUMN") as raised,
        hold_lease("lake", "mine", location=table, say=quiet),
    ):
        pass
    assert len(str(raised.value).splitlines()) == 1
