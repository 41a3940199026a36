"""Notices where the tables are in a catalog: what was told is kept in the folder of ``--lake``."""

import json
from datetime import UTC, datetime

import pytest

from engines import without_spark
from jobs import alerts
from notices.servers import HttpServer, serve
from pipeline.lake.lake import Lake
from reports.questions.in_memory_lake import rows
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS

pytestmark = pytest.mark.spark

PREFIX = "noticed_"
NOON = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp()) // 60  # minutes since 1970, as the rows have them
REFUSED = {
    "attempt_key": "a", "is_receive": True, "started_at": NOON, "returned_at": NOON, "ended_at": NOON,
    "outcome": "failed", "ack_refused": True, "end_hresult": 0xC00E0005, "lookup_id": 1, "server_address": "10.0.0.1",
    "client_address": "10.0.0.9", "evidence": ["c"],
}  # fmt: skip
TABLES = {
    RECEIVE_ATTEMPTS: REFUSED,
    RPC_CALLS: {"call_key": "c", "request_at": NOON, "ingested_at": NOON + 1},
    CAPTURE_FILES: {"capture_id": "f", "last_packet_at": NOON, "ingested_at": NOON + 1},
}


@pytest.fixture
def lake_in_catalog(spark, tmp_path):
    """The options of a lake whose tables are in a catalog, and whose folder is not there yet: a refused end."""
    files = Lake(without_spark(), str(tmp_path / "tables"))
    for table, row in TABLES.items():
        files.append(table, rows(table, row).drop_columns(["event_date"]))
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {PREFIX}{table.layer}")
        spark.catalog.createTable(f"{PREFIX}{table}", files.path(table), "delta")
    yield f"--lake {tmp_path / 'work'} --set lake.catalog=spark_catalog --set lake.prefix={PREFIX}"
    for layer in {table.layer for table in TABLES}:
        spark.sql(f"DROP DATABASE {PREFIX}{layer} CASCADE")


def test_what_was_told_is_kept_in_the_folder_of_the_lake(lake_in_catalog, tmp_path, capsys):
    targets, names = tmp_path / "targets.json", tmp_path / "machines.csv"
    names.write_text("address,queue_manager_id,name\n10.0.0.1,,till-7\n")
    arguments = [*lake_in_catalog.split(), "--set", f"names.machines={names}", "--as-of", "2026-03-02T12:05:00Z"]
    arguments += ["--set", "lake.read_log=spark"]  # these tables have places of their own
    with serve(HttpServer()) as web:
        targets.write_text(json.dumps({"targets": [{"name": "hook", "kind": "webhook", "url": web.url}]}))
        targets.chmod(0o600)
        for _ in range(2):
            assert alerts.main([*arguments, "--notify", f"@{targets}"]) == 1
        told = [(body["condition"], body["subject"]) for body in web.bodies]
    assert told == [("ends_refused", "reader 10.0.0.9 of an unknown queue at till-7")]  # once
    (file,) = (tmp_path / "work" / "_notices").iterdir()
    assert [json.loads(line)["line"] for line in file.read_text().splitlines()] == ["target", "told"]
    # A command that is shown finds the same lake.
    assert f"next: msmq export_packets {lake_in_catalog} --call c --out" in capsys.readouterr().out
