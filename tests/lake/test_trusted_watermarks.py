"""Where Spark tells of logs a run takes tables that it does not read as their watermarks say.

What somebody else changed is noticed by the run that next reads or writes the table. Who only reads may take all tables
to be so.
"""

import json
import shutil

import pytest

from lake.writes import rows
from pipeline.lake.errors import ConflictError
from pipeline.lake.lake import Lake
from pipeline.lake.storage.spark_log import SparkLog
from schemas.bronze import QUARANTINE
from schemas.findings import FINDINGS
from schemas.quality import QUALITY_RESULTS

pytestmark = pytest.mark.spark

NAME = str(QUARANTINE)
KEYS = "SELECT quarantine_key FROM {rows} ORDER BY 1"


def open_lake(spark, root, **more):
    """Return the lake as a run opens it whose log Spark tells."""
    found = Lake(spark, str(root), **{"read_log": "spark", "trusts_versions": True, **more})
    assert isinstance(found._log, SparkLog)
    return found


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory):
    """The folder of a lake with two tables, one made of the other."""
    lake = open_lake(spark, tmp_path_factory.mktemp("trusted") / "lake", store="spark")
    with lake.hold_exclusive_access(lambda: None):
        lake.append(QUARANTINE, rows(spark, "a", "b"), provenance="made of this")
        lake.note_provenance(QUALITY_RESULTS, json.dumps({NAME: lake.version(QUARANTINE)}))
    return lake.folder.location


@pytest.fixture
def lake(spark, filled, tmp_path):
    """A copy of the filled lake."""
    shutil.copytree(filled, tmp_path / "lake")
    return open_lake(spark, tmp_path / "lake")


def by_others(lake, statement="UPDATE {} SET reason = 'other' WHERE quarantine_key = 'a'"):
    lake.spark.sql(statement.format(lake.sql_name(QUARANTINE)))


def query(lake):
    assert lake.query(KEYS, rows=QUARANTINE)["quarantine_key"].to_pylist() == ["a", "b"]


def read(lake):
    assert lake.read(QUARANTINE).count() == 2


def update(lake):
    lake.update(QUARANTINE, {"reason": "'ours'"}, "quarantine_key = 'b'")


def delete(lake):
    lake.delete(QUARANTINE, "quarantine_key = 'b'")


def run_that_uses(lake, use, version):
    with lake.hold_exclusive_access(lambda: None):
        assert lake.versions.provenance_json(QUARANTINE) == "made of this"
        assert lake.version(QUARANTINE) == version
        use(lake)


@pytest.mark.parametrize(
    "use", [query, *(pytest.param(each, marks=pytest.mark.long) for each in (read, update, delete))]
)
def test_a_change_by_somebody_else_is_noticed_by_the_run_that_next_uses_the_table(lake, spark, use):
    version = lake.version(QUARANTINE)
    by_others(lake)
    with open_lake(spark, lake.root).hold_exclusive_access(lambda: None):  # reads nothing
        pass
    with pytest.raises(ConflictError, match=f"{NAME}: somebody else changed it .*UPDATE"):
        run_that_uses(open_lake(spark, lake.root), use, version)
    assert open_lake(spark, lake.root).version(QUARANTINE) == version + 1  # nothing was written over it
    lines, again = [], open_lake(spark, lake.root, trusts_versions=False)  # as the job begins again
    with again.hold_exclusive_access(lambda: None, lines.append):
        assert again.versions.provenance_json(QUARANTINE) is None
        query(again)
    assert lines == [f"{NAME}: somebody else changed it after version {version} (UPDATE)"]
    after = open_lake(spark, lake.root)
    with after.hold_exclusive_access(lambda: None, lines.append):  # that is the table's watermark now
        query(after)
    assert len(lines) == 1


def test_maintenance_by_somebody_else_changes_nothing(lake, spark):
    by_others(lake, "ALTER TABLE {} SET TBLPROPERTIES ('some.day' = 'x')")
    by_others(lake, "OPTIMIZE {}")
    run, lines = open_lake(spark, lake.root), []
    with run.hold_exclusive_access(lambda: None, lines.append):
        query(run)
        assert run.versions.provenance_json(QUARANTINE) == "made of this"
        assert run.versions.provenance(QUALITY_RESULTS) == {NAME: run.version(QUARANTINE)}
        run.append(QUARANTINE, rows(spark, "c"))
    assert lines == []
    assert open_lake(spark, lake.root).select(QUARANTINE, "TRUE")["quarantine_key"].to_pylist().count("c") == 1


@pytest.mark.parametrize("killed", [{"trusts_versions": True}, {"read_log": "files"}], ids=str)
def test_after_a_run_that_was_killed_before_its_watermarks_every_table_is_looked_up(lake, spark, killed):
    """Whatever told that run of logs."""
    dies = Lake(spark, lake.root, **{"read_log": "spark", **killed})
    exclusive = dies.hold_exclusive_access(lambda: None)
    exclusive.__enter__()  # and never left
    dies.append(QUARANTINE, rows(spark, "c"), provenance="newer")
    run = open_lake(spark, lake.root)
    with run.hold_exclusive_access(lambda: None):
        assert run.versions.provenance_json(QUARANTINE) == "newer"
    run = open_lake(spark, lake.root)
    with run.hold_exclusive_access(lambda: None):  # that one has kept them
        assert not run.versions.is_looked_up(QUARANTINE)
        assert run.versions.provenance_json(QUARANTINE) == "newer"


def test_a_table_that_nobody_reads_is_not_looked_up(lake, spark, monkeypatch):
    asked, history = [], SparkLog._history

    def count(log, table, limit=""):
        asked.append(table)
        return history(log, table, limit)

    monkeypatch.setattr(SparkLog, "_history", count)
    run = open_lake(spark, lake.root)
    with run.hold_exclusive_access(lambda: None):
        assert run.versions.provenance_json(QUARANTINE) == "made of this"
        assert run.exists(QUALITY_RESULTS)
    assert asked == []
    with run.hold_exclusive_access(lambda: None):
        query(run)
        query(run)
    assert asked == [QUARANTINE]


def test_who_only_reads_takes_tables_to_be_as_the_last_run_left_them(lake, spark, monkeypatch):
    reader, asked = open_lake(spark, lake.root), []
    monkeypatch.setattr(SparkLog, "_history", lambda _, table, __="": asked.append(table))
    reader.trust_watermarks()
    assert reader.versions.provenance_json(QUARANTINE) == "made of this"
    assert reader.exists(QUALITY_RESULTS)
    assert not reader.exists(FINDINGS)
    query(reader)
    assert asked == []


@pytest.mark.parametrize("is_at_work", [False, True])
def test_who_only_reads_looks_tables_up_while_a_run_is_at_work(lake, spark, is_at_work):
    run, reader = open_lake(spark, lake.root), open_lake(spark, lake.root)
    exclusive = run.hold_exclusive_access(lambda: None)
    exclusive.__enter__()
    run.append(QUARANTINE, rows(spark, "c"), provenance="newer")
    if not is_at_work:
        exclusive.__exit__(None, None, None)
    reader.trust_watermarks()
    assert reader.versions.provenance_json(QUARANTINE) == "newer"
    assert bool(reader.versions.watermarks.ends) is not is_at_work
