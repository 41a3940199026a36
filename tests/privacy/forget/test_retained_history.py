"""Forgetting where a catalog owns the files of tables: by statements alone, and what stays until when is said."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from engines import LOCAL, without_spark
from jobs import forget, maintain, run_all
from pipeline.lake.errors import StoreError
from pipeline.lake.lake import Lake
from pipeline.lake.storage.retention import Retention, read_retention
from pipeline.privacy import erasure
from pipeline.privacy.retained_history import Deletion, DeletionNote, remove_history
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.bronze import QUARANTINE, RPC_CALLS

NOW = datetime(2026, 11, 21, 15, 20, tzinfo=UTC)
SAMPLE = "01-remoteread-ndr.pcap"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, Retention(timedelta(days=7), timedelta(days=30))),
        ({"delta.deletedFileRetentionDuration": "interval 1 week 2 days"}, Retention(files=timedelta(days=9))),
        ({"delta.logRetentionDuration": "12 HOURS"}, Retention(log=timedelta(hours=12))),
        ({"delta.deletedFileRetentionDuration": "interval 0 seconds"}, Retention(files=timedelta())),
    ],
)
def test_how_long_a_table_keeps_files_and_history(properties, expected):
    assert read_retention({"delta.appendOnly": "false", **properties}) == expected


@pytest.mark.parametrize("text", ["interval 1 month", "a while", ""])
def test_a_duration_that_is_not_understood_is_an_error(text):
    with pytest.raises(StoreError, match="not a duration"):
        read_retention({"delta.logRetentionDuration": text})


def test_entries_of_a_log_go_by_whole_days():
    deletion = Deletion(NOW, {})
    assert deletion.files_until(Retention()) == NOW + timedelta(days=7)
    assert deletion.log_until(Retention()) == datetime(2026, 12, 22, tzinfo=UTC)


def rows(*keys):
    return pa.Table.from_pylist([{"quarantine_key": key} for key in keys], QUARANTINE.schema())


@pytest.fixture
def managed(monkeypatch):
    """Every lake's files are a catalog's; whoever asks where they are fails the test."""
    monkeypatch.setattr(Lake, "owns_files", property(lambda _: False))
    monkeypatch.setattr(Lake, "location", lambda *_: pytest.fail("the files of tables are the catalog's"))
    monkeypatch.setattr(Lake, "vacuum", lambda *_: pytest.fail("the retention is the table's"))


@pytest.fixture(scope="module")
def filled(project, tmp_path_factory):
    """The folder of a lake of one capture."""
    root = tmp_path_factory.mktemp("filled") / "lake"
    assert run_all.main(["--lake", str(root), *LOCAL, "--captures", str(project / "data" / "sample" / SAMPLE)]) == 0
    return root


@pytest.mark.usefixtures("managed")
class TestTheJobs:
    @pytest.fixture
    def root(self, filled, tmp_path):
        return shutil.copytree(filled, tmp_path / "lake")

    def run(self, capsys, root, job=forget):
        capsys.readouterr()
        more = ["--before", str(datetime.now(UTC).date())] if job is forget else []
        assert job.main(["--lake", str(root), *LOCAL, *more]) == 0
        *lines, summary = capsys.readouterr().out.splitlines()
        return "\n".join(lines), json.loads(summary)

    @pytest.mark.long
    def test_what_stays_is_said_until_nothing_does(self, root, capsys):
        said, summary = self.run(capsys, root)
        lake = Lake(without_spark(), str(root))
        assert lake.select(RPC_CALLS, "TRUE").num_rows == 0
        (files_until, log_until) = re.findall(r"until (\S+ \S+ UTC)", said)
        assert files_until < log_until
        assert "Of them stay" in said
        assert summary["retained"]

        again, summary = self.run(capsys, root)  # nothing leaves: the times stay
        assert re.findall(r"until (\S+ \S+ UTC)", again) == [files_until, log_until]
        assert files_until in self.run(capsys, root, maintain)[0]

        runs = RunMarkers.of(lake)
        state = runs.read_state("erasing")
        runs.write_state("erasing", {**state, "at": (NOW - timedelta(days=10_000)).isoformat()})
        said, summary = self.run(capsys, root, maintain)
        assert "the catalog has not removed yet" in said  # and does so later
        assert "files of earlier versions" not in said
        clean_logs(root)
        said, _ = self.run(capsys, root, maintain)
        assert "done: nothing that was deleted" in said
        assert runs.read_state("erasing") is None
        said, summary = self.run(capsys, root)
        assert ("done: nothing" in said, summary["retained"]) == (True, False)
        assert "done" not in self.run(capsys, root, maintain)[0]

    def test_a_job_that_was_killed_has_deleted_rows_perhaps(self, root, capsys, monkeypatch):
        monkeypatch.setattr(erasure, "erase_history", lambda _: 1 / 0)
        assert forget.main(["--lake", str(root), *LOCAL, "--before", str(datetime.now(UTC).date())]) == 4
        monkeypatch.undo()
        monkeypatch.setattr(Lake, "owns_files", property(lambda _: False))
        assert "run forget again" in self.run(capsys, root, maintain)[0]
        before = datetime.now(UTC).replace(second=0, microsecond=0)
        said, _ = self.run(capsys, root)
        until = datetime.fromisoformat(re.findall(r"until (\S+ \S+) UTC", said)[0] + "+00:00")
        assert until >= before + timedelta(days=7)


def clean_logs(root):
    """Remove what is older than the newest checkpoint of each log, as a catalog does in the course of time."""
    for table in catalog.ALL_TABLES:
        log = Path(root, table.layer, table.name, "_delta_log")
        files = [(path.name, str(path)) for path in log.glob("*")] if log.is_dir() else []
        for path in erasure.log_files_before_checkpoint(files):
            Path(path).unlink()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("managed")
def test_statements_do_it_where_spark_stores_the_tables(spark, tmp_path, monkeypatch):
    statements, execute = [], SparkSession.sql

    def sql(session, text, *args, **more):
        statements.append(text)
        return execute(session, text, *args, **more)

    lake = Lake(spark, str(tmp_path / "work"), catalog="spark_catalog", prefix="managed_", read_log="spark")
    name = lake.sql_name(QUARANTINE)

    def keys_in_files():
        (row,) = execute(spark, f"DESCRIBE DETAIL {name}").collect()
        folder = Path(row["location"].removeprefix("file:"))
        return {key for path in folder.glob("*.parquet") for key in pq.read_table(path)["quarantine_key"].to_pylist()}

    try:
        with lake.hold_exclusive_access(lambda: None):
            lake.append(QUARANTINE, rows("old", "young"))
        written = lake.version(QUARANTINE)
        monkeypatch.setattr(SparkSession, "sql", sql)
        with lake.hold_exclusive_access(lambda: None):
            note = DeletionNote.begin(lake)
            lake.delete_values(QUARANTINE, "quarantine_key", ["old"], dates=None)
            erasure.erase_history(lake)
            note.end(datetime.now(UTC))
            said = remove_history(lake, datetime.now(UTC))
        assert "files of earlier versions" in said[1]
        assert f"REORG TABLE {name} APPLY (PURGE)" in statements
        assert f"VACUUM {name}" in statements
        assert [text for text in statements if "RETAIN" in text or "delta.`" in text] == []
        before = f"SELECT quarantine_key FROM {name} VERSION AS OF {written}"
        assert sorted(row[0] for row in spark.sql(before).collect()) == ["old", "young"]  # as is said
        assert keys_in_files() == {"old", "young"}

        for table in catalog.ALL_TABLES:
            if lake.exists(table):
                spark.sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ("
                          "'delta.deletedFileRetentionDuration' = 'interval 0 seconds')")  # fmt: skip
        later = Lake(spark, lake.root, catalog="spark_catalog", prefix="managed_", read_log="spark")
        with later.hold_exclusive_access(lambda: None):
            said = remove_history(later, datetime.now(UTC))
        assert not any("files of earlier versions" in line for line in said)
        assert keys_in_files() == {"young"}
        assert later.select(QUARANTINE, "TRUE", ["quarantine_key"]).column(0).to_pylist() == ["young"]
    finally:
        execute(spark, "DROP SCHEMA IF EXISTS spark_catalog.managed_bronze CASCADE")
