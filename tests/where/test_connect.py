"""Runs over Spark Connect into a lake in a folder, and answers that have no rows; every job is in ``test_where.py``."""

import json
import subprocess
import sys

import pytest

from jobs import run_all
from pipeline.lake.engine import codegen
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from schemas import catalog
from where import connect_answers
from where.servers import connect_server, environment

pytestmark = pytest.mark.spark

CAPTURES = ("07-faults-cancels-groups.pcap", "12-lookups.pcap")
MAX_SECONDS = 300
RUN_COLUMNS = {"run_id", "ingested_at", "opened_at", "modified_at"}
MOST = {"SparkListenerConnectOperationStarted": 15, "SparkListenerJobStart": 20}  # of a run that finds nothing new


def rows_of(lake):
    """Return the rows of each table, sorted, without the columns of the run."""
    found = {}
    for table in catalog.DATA_TABLES:
        if lake.exists(table):
            names = [name for name in table.names if name not in RUN_COLUMNS]
            found[str(table)] = sorted(map(str, lake.select(table, "TRUE", names).to_pylist()))
    return found


def run_python(project, folder, *arguments, **more):
    """Run Python on the project's code, in another process; return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment(PYTHONPATH=str(project), **more),
        capture_output=True, text=True, check=False, timeout=MAX_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-6000:]}"
    return done.stdout


def run_there(project, url, folder, lake, captures):
    """Run all layers over Spark Connect; return the numbers of rows written, by table."""
    arguments = ["-m", "jobs.run_all", "--lake", lake, "--captures", *captures]
    summary = json.loads(run_python(project, folder, *arguments, SPARK_REMOTE=url).splitlines()[-1])
    assert summary["engine"]["started"]
    return {name: counts["rows_out"] for name, counts in summary["tables"].items() if counts["rows_out"]}


def count_events(log):
    """Return how often the server noted the start of operations, and of jobs."""
    (file,) = log.iterdir()
    text = file.read_text()
    return {name: text.count(name) for name in MOST}


def test_runs_over_connect_write_what_a_plain_run_does(project, request, tmp_path):
    plain, there, log = tmp_path / "plain", tmp_path / "there", tmp_path / "events"
    captures = [project / "data" / "sample" / name for name in CAPTURES]
    log.mkdir()
    assert run_all.main(["--lake", str(plain), "--captures", *map(str, captures)]) == 0
    made = [sys.executable, "tools/write_spark_conf.py", str(tmp_path / "spark.conf")]
    subprocess.run(made, cwd=project, env=environment(PYTHONPATH=str(project)), check=True, capture_output=True)
    settings = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri(), "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false",
        **codegen.OFF_SETTINGS,
    }  # fmt: skip
    told = [f"{name}={value}" for name, value in settings.items()]
    with connect_server(tmp_path / "server", tmp_path / "spark.conf", *told) as url:
        assert run_there(project, url, tmp_path, there, captures)
        before = count_events(log)
        assert run_there(project, url, tmp_path, there, captures) == {}
        asked = {name: count - before[name] for name, count in count_events(log).items()}
        run_python(project, tmp_path, connect_answers.__file__, url, there)
    assert {name: count for name, count in asked.items() if count > MOST[name]} == {}
    session = LazySession(lambda: request.getfixturevalue("spark"))
    found, expected = rows_of(Lake(session, str(there))), rows_of(Lake(session, str(plain)))
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert sum(map(len, expected.values())) > 200
