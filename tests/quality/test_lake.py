"""Each fault planted in a lake is caught by the suite meant for it, and by no other, until it is repaired."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from hostile import TEXTS
from jobs import check_quality, run_all
from pipeline.lake.lake import Lake
from pipeline.lake.queries import answer
from pipeline.quality.check import CheckOptions, check_suites
from pipeline.quality.suites import Expectation, Suite, SuiteError, read_suites
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.quality import QUALITY_RESULTS

pytestmark = [pytest.mark.spark, pytest.mark.long]  # test_run_all tries a few suites in make test

SAMPLE = "09-transactions-and-moves.pcapng"


@pytest.fixture(scope="module")
def suites(project):
    return read_suites(project / "conf" / "quality")


@pytest.fixture(scope="module")
def lake(spark, project, tmp_path_factory):
    """A lake with a capture of the sample and the snapshot files of the estate."""
    root = tmp_path_factory.mktemp("lake")
    landed = root / "landed"
    shutil.copytree(project / "data" / "estate" / "snapshots", landed)
    arguments = ["--captures", str(project / "data" / "sample" / SAMPLE), "--snapshots", str(landed)]
    assert run_all.main(["--lake", str(root / "lake"), *arguments]) == 0
    return Lake(spark, str(root / "lake"))


@pytest.fixture(scope="module")
def fresh(lake):
    """A time at which no snapshot was old yet."""
    newest = lake.read(SNAPSHOTS_RAW).agg(F.unix_micros(F.max("collected_at"))).first()[0]
    return datetime.fromtimestamp(newest / 1e6, UTC) + timedelta(minutes=1)


def failed(found):
    return {(row["suite"], row["expectation"]) for row in found.failed_rows()}


def run_check(lake, suites, fresh, name, **more):
    return check_suites(lake, suites, CheckOptions(name, datetime.now(UTC), fresh, **more))


def wrong_outcome(lake):
    name = lake.sql_name(RECEIVE_ATTEMPTS)
    key = lake.read(RECEIVE_ATTEMPTS).where("outcome = 'acked'").first()["attempt_key"]
    lake.spark.sql(f"UPDATE {name} SET outcome = 'ackd' WHERE attempt_key = '{key}'")


def lost_call(lake):
    row = lake.read(REMOTE_READ_CALLS).where("method = 'R_OpenQueue'").first()
    lake.delete(REMOTE_READ_CALLS, f"call_key = '{row['call_key']}'")


def doubled_call(lake):
    lake.append(RPC_CALLS, lake.read(RPC_CALLS).limit(1))


def lost_connection(lake):
    row = lake.read(CONNECTIONS).where("calls > 0").first()
    lake.delete(CONNECTIONS, f"connection_id = '{row['connection_id']}'")


FAULTS = {
    RPC_CALLS: (doubled_call, {("rpc_calls", "keys_unique")}),
    REMOTE_READ_CALLS: (lost_call, {("rpc_calls", "reads_decoded")}),
    RECEIVE_ATTEMPTS: (wrong_outcome, {("receive_attempts", "outcome_known")}),
    CONNECTIONS: (lost_connection, {("rpc_calls", "has_a_connection"), ("rpc_binds", "has_a_connection")}),
}


def test_the_clean_sample_passes_and_each_planted_fault_is_caught(lake, suites, fresh):
    first = run_check(lake, suites, fresh, "first", include_clock_suites=True)
    assert failed(first) == set()
    assert {row["scope"] for row in first.rows} == {"all"}
    assert len({row["suite"] for row in first.rows}) > 15
    assert run_check(lake, suites, fresh, "again").rows == []  # nothing changed
    everywhere = lake.read(RPC_CALLS).count()
    for table, (plant, caught) in FAULTS.items():
        version = lake.version(table)
        plant(lake)
        found = run_check(lake, suites, fresh, f"planted in {table}")
        assert failed(found) == caught
        assert found.gate_failed
        if table in (RPC_CALLS, REMOTE_READ_CALLS):  # the slice, not everything; a connection may have all calls
            evaluated = {row["suite"]: row["evaluated"] for row in found.rows if row["expectation"] == "keys_unique"}
            assert evaluated["rpc_calls"] <= 2 < everywhere
        if table is RPC_CALLS:  # the gate stays shut though nothing changed since
            assert run_check(lake, suites, fresh, "still").gate_failed
        lake.restore(table, version)
        assert failed(run_check(lake, suites, fresh, f"mended {table}")) == set()
    kept = lake.read(QUALITY_RESULTS)
    assert kept.where("run_id = 'planted in bronze.rpc_calls' AND NOT success").count() == 1
    assert kept.select("result_key").distinct().count() == kept.count()
    # Later: the machines were not queried for hours.
    late = fresh + timedelta(hours=2)
    assert failed(run_check(lake, suites, late, "late", include_clock_suites=True)) == {("freshness", "machines_fresh")}
    machines = {"include_clock_suites": True, "machines": ("relay1", "unheard", *TEXTS)}
    found = run_check(lake, suites, late, "configured", **machines)
    assert failed(found) == {("freshness", "machines_fresh"), ("freshness", "configured_machines_fresh")}
    assert next(row for row in found.failed_rows("error"))["unexpected"] == 2 + len(TEXTS)


def test_sql_that_spark_alone_knows_is_evaluated_too(lake, fresh):
    columns = {"same": "call_key <=> call_key", "text": "regexp_replace(call_key, '[0-9a-f]{32}', 'a key')"}
    expectations = tuple(
        Expectation(name, "expect_column_values_to_be_in_set", {"column": name, "value_set": [value]}, "error", name)
        for name, value in (("same", True), ("text", "a key"))
    )
    suite = Suite("own", RPC_CALLS, "", "call_key", False, None, (), columns, expectations)
    found = run_check(lake, [suite], fresh, "own")
    assert {(row["expectation"], row["success"], row["evaluated"] > 10) for row in found.rows} == {
        ("same", True, True), ("text", True, True)
    }  # fmt: skip
    with pytest.raises(SuiteError, match="no_column"):
        run_check(lake, [replace(suite, derived_columns={"same": "no_column", "text": "1"})], fresh, "wrong")


def test_many_rows_are_judged_by_spark_as_few_are_here(lake, suites, fresh):
    doubled_call(lake)
    options = CheckOptions("in memory", datetime.now(UTC), fresh, all_rows=True)
    in_memory = check_suites(lake, suites, options)
    in_spark = check_suites(lake, suites, replace(options, run_id="in Spark", max_rows_in_memory=3))
    compared = ("suite", "expectation", "success", "evaluated", "unexpected", "observed", "failed_keys")
    assert [[row[name] for name in compared] for row in in_spark.rows] == [
        [row[name] for name in compared] for row in in_memory.rows
    ]
    version = lake.version(RPC_CALLS)
    lake.restore(RPC_CALLS, version - 1)


def test_of_many_changed_rows_spark_judges_these_and_no_others(lake, suites, fresh, monkeypatch):
    monkeypatch.setattr(answer, "MAX_IN_LIST", 0)  # keys of more rows are joined
    run_check(lake, suites, fresh, "before")
    doubled_call(lake)
    found = run_check(lake, suites, fresh, "changed", max_rows_in_memory=0)
    assert ("rpc_calls", "keys_unique") in failed(found)
    assert {row["scope"] for row in found.rows if row["suite"] == "rpc_calls"} == {"changed"}
    lake.restore(RPC_CALLS, lake.version(RPC_CALLS) - 1)


def test_the_job_shuts_the_gate_and_writes_pages(lake, fresh, project, tmp_path, capsys):
    pages = tmp_path / "pages"
    arguments = ["--lake", lake.root, "--as-of", fresh.isoformat(), "--docs", str(pages)]
    assert check_quality.main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]["gold.quality_results"]["rows_out"] > 100
    assert [path.name for path in pages.iterdir()] == ["index.html"]
    assert 'id="rpc_calls"' in (pages / "index.html").read_text()
    doubled_call(lake)
    assert check_quality.main(arguments[:4]) == 1
    assert "error    bronze.rpc_calls keys_unique" in capsys.readouterr().out
    again = ["--lake", lake.root, "--captures", str(project / "data" / "sample" / SAMPLE)]
    assert run_all.main([*again, "--set", "quality.in_runs=true"]) == 1
    assert run_all.main(again) == 0  # not requested
    lake.restore(RPC_CALLS, lake.version(RPC_CALLS) - 1)
    (tmp_path / "suites").mkdir()
    assert check_quality.main([*arguments[:2], "--set", f"quality.suites={tmp_path / 'suites'}"]) == 2
