"""The verdict, the pages and the report where Spark stores the tables: the same, for few executions."""

from __future__ import annotations

import json

import pytest

from jobs import publish_dashboards, queue_verdict, run_all
from jobs.analysis import report_estate
from jobs.command_line.engine_summary import count_work
from pipeline.dashboards.estate.report import REPORT_VIEWS

pytestmark = [pytest.mark.spark, pytest.mark.long]
CAPTURES = ("sample/01-remoteread-ndr.pcap", "transfers/04-administration-acks.pcap")
MOST_EXECUTIONS = 64  # up to four for each of the tables that are read
MOST_OF_PAGES = 140  # one or two for each dataset, and those of the stories
MOST_OF_REPORT = 110  # up to four for each of the tables that are read, and two for each view


@pytest.fixture(scope="module")
def lakes(project, tmp_path_factory):
    """The folders of two lakes with the same rows, by what stores them."""
    folder, data = tmp_path_factory.mktemp("lakes"), project / "data"
    captures = [str(data / name) for name in CAPTURES]
    for store in ("delta-rs", "spark"):
        given = ["--lake", str(folder / store), "--set", f"lake.store={store}", "--captures", *captures]
        assert run_all.main([*given, "--snapshots", str(data / "estate/snapshots")]) == 0
    return folder


@pytest.fixture
def ask(spark, lakes, capsys):
    """Returns the verdicts for queues, the exit code, and how much Spark did."""

    def find(store, name):
        settings = ["--set", "lake.read_log=spark"] if store == "spark" else []
        before = count_work(spark).executions
        code = queue_verdict.main([*settings, "--lake", str(lakes / store), "--json", name])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        verdicts = {line.pop("queue"): {**line, "export": None} for line in lines if "queue" in line}
        return verdicts, code, count_work(spark).executions - before

    return find


def test_the_same_verdicts_for_as_few_executions_as_one(spark, lakes, ask):
    def of_spark(name):
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # as in a process that begins
        return ask("spark", name)

    expected, code, executions = ask("delta-rs", "$")
    assert (len(expected), code, executions) == (13, 1, 0)
    found, code, many = of_spark("$")
    assert (found, code) == (expected, 1)
    _, code, few = of_spark("shop2\\private$\\till")
    assert code == 1
    assert 0 < many <= few + 12  # one table more: that of messages, where some were read remotely
    assert many <= MOST_EXECUTIONS, (few, many)


def test_the_report_on_the_estate_is_the_same_for_few_executions(spark, lakes, tmp_path):
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for store, settings in (("delta-rs", []), ("spark", ["--set", "lake.read_log=spark"])):
        before = count_work(spark).executions
        assert report_estate.main([*settings, "--lake", str(lakes / store), "--out", str(tmp_path / store)]) == 0
        executions = count_work(spark).executions - before
        assert (0 < executions <= MOST_OF_REPORT) if store == "spark" else not executions, executions
    files = {store: {each.name: each.read_bytes() for each in (tmp_path / store).glob("*.csv")} for store in
             ("delta-rs", "spark")}  # fmt: skip
    assert len(files["spark"]) == len(REPORT_VIEWS) + 1
    assert files["spark"] == files["delta-rs"]


def test_the_pages_take_few_executions(spark, lakes, tmp_path):
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    before = count_work(spark).executions
    arguments = ["--lake", str(lakes / "spark"), "--set", "lake.read_log=spark", "--out", str(tmp_path)]
    assert publish_dashboards.main(arguments) == 0
    executions = count_work(spark).executions - before
    assert 0 < executions <= MOST_OF_PAGES, executions
