"""A Spark Connect server for two tests, then a standalone cluster, never both at a time; each job is in ``test_where``.

Over Connect: runs into a lake in a folder, answers that have no rows, and the lease in a catalog. The two workers of
the cluster are each in a folder and an environment without the project.
"""

import json
import shutil
import subprocess
import sys

import pytest

from engines import LOCAL
from jobs import run_all
from jobs.analysis import report_estate
from pipeline.lake.engine import codegen
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from schemas import catalog
from where import connect_answers, lease_client, serverless_job, submitted_job
from where.servers import CLASS_PATH, LOCALHOST, QUICK_JAVA, cluster, connect_server, environment, made_by

pytestmark = pytest.mark.spark

CAPTURES = ("07-faults-cancels-groups.pcap", "12-lookups.pcap")
MAX_SECONDS = 300
RUN_COLUMNS = {"run_id", "ingested_at", "opened_at", "modified_at"}
MOST = {"SparkListenerConnectOperationStarted": 15, "SparkListenerJobStart": 20}  # of a run that finds nothing new
MOST_OF_REPORT = 30


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
    path = f"{project}:{project}/tests/support"
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment(PYTHONPATH=path, **more),
        capture_output=True, text=True, check=False, timeout=MAX_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-6000:]}"
    return done.stdout


def run_there(project, url, folder, lake, captures, job=("-m", "jobs.run_all")):
    """Run a job, by default all layers, over Spark Connect; return the numbers of rows written, by table."""
    arguments = [*job, "--lake", lake, "--captures", *captures]
    summary = json.loads(run_python(project, folder, *arguments, SPARK_REMOTE=url).splitlines()[-1])
    assert summary["engine"]["started"]
    return {name: counts["rows_out"] for name, counts in summary["tables"].items() if counts["rows_out"]}


def count_events(log):
    """Return how often the server noted the start of operations, and of jobs."""
    (file,) = log.iterdir()
    text = file.read_text()
    return {name: text.count(name) for name in MOST}


@pytest.fixture(scope="class")
def connect(properties, tmp_path_factory):
    """The URL of a Connect server, and the folder of its event log."""
    folder = tmp_path_factory.mktemp("connect")
    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri(), "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(), **codegen.OFF_SETTINGS,
    }  # fmt: skip
    told = [f"{name}={value}" for name, value in settings.items()]
    with connect_server(folder / "server", properties, *told) as url:
        yield url, log


class TestOverConnect:
    @pytest.mark.parametrize("first", ["ingest_captures", pytest.param("run_all", marks=pytest.mark.long)])
    def test_runs_write_what_a_plain_run_does(self, project, connect, request, tmp_path, first):
        """Into a lake that another job has begun, where the session refuses settings; then nothing."""
        plain, there, (url, log) = tmp_path / "plain", tmp_path / "there", connect
        captures = [project / "data" / "sample" / name for name in CAPTURES]
        assert run_all.main(["--lake", str(plain), *LOCAL, "--captures", *map(str, captures)]) == 0
        assert run_there(project, url, tmp_path, there, captures[:1], ("-m", f"jobs.{first}"))
        serverless = (serverless_job.__file__, "run_all")  # refuses settings
        assert run_there(project, url, tmp_path, there, captures, serverless)
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

    @pytest.mark.long
    def test_a_report_on_the_estate_is_that_of_the_tables_in_files(self, project, connect, tmp_path):
        """Of tables that Spark stores and reads; the files beside the page are equal byte for byte."""
        lake, (url, log) = tmp_path / "lake", connect
        captures = [project / "data" / name for name in ("transfers/03-transactions.pcapng", f"sample/{CAPTURES[1]}")]
        assert run_there(project, url, tmp_path, lake, captures, ("-m", "jobs.run_all", "--set", "lake.store=spark"))
        before = count_events(log)
        given = ("--lake", lake, "--set", "lake.store=spark", "--out", tmp_path / "there")
        run_python(project, tmp_path, "-m", "jobs.analysis.report_estate", *given, SPARK_REMOTE=url)
        asked = {name: count - before[name] for name, count in count_events(log).items()}
        assert asked["SparkListenerConnectOperationStarted"] <= MOST_OF_REPORT
        assert report_estate.main(["--lake", str(lake), "--out", str(tmp_path / "here")]) == 0
        files = {path.name: path.read_bytes() for path in (tmp_path / "here").glob("*.csv")}
        assert len(files) == 10
        assert {name: (tmp_path / "there" / name).read_bytes() for name in files} == files

    @pytest.mark.long  # a plain run tries the lease in a catalog in one process (tests/lake/lease/test_lease_table.py)
    def test_one_client_at_a_time_holds_the_lease_in_a_catalog(self, project, connect, tmp_path):
        """Others wait for it; who was killed or paused for long is followed, and then commits nothing."""
        run_python(project, tmp_path, lease_client.__file__, connect[0], tmp_path / "journal")


def test_workers_have_the_code_from_pyfiles_and_tasks_that_die_are_repeated(project, properties, tmp_path):
    """A task dies after its first file, another takes its executor with it; the files of both are there once."""
    made_by(project, "build_pyfiles", tmp_path / "pyfiles.zip")
    shutil.copy(submitted_job.__file__, tmp_path / "job.py")
    with cluster(tmp_path / "cluster") as master:
        submit = [
            "spark-submit", "--master", master, "--properties-file", properties,
            "--py-files", tmp_path / "pyfiles.zip", "--conf", f"spark.driver.host={LOCALHOST}",
            "--conf", "spark.executor.memory=768m", "--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}",
            "--conf", f"spark.executor.extraClassPath={CLASS_PATH}",
            "--conf", "spark.scheduler.minRegisteredResourcesRatio=1",
            "job.py", tmp_path / "out",
        ]  # fmt: skip
        done = subprocess.run(
            [*map(str, submit)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    said = json.loads(done.stdout.splitlines()[-1])
    attempts = {row["task"]: row["attempt"] for row in said["computed"]}
    assert len(attempts) == submitted_job.TASKS
    assert attempts[submitted_job.DIES] >= 1
    assert attempts[submitted_job.LOSES_ITS_EXECUTOR] >= 1
    workers = {worker for place in said["attempts"] for worker in ("worker1", "worker2") if f"/{worker}/" in place}
    assert workers == {"worker1", "worker2"}
    assert all("pyfiles.zip" in row["code"] and str(project) not in row["code"] for row in said["computed"])
    both = [[task, name] for task in range(submitted_job.TASKS) for name in ("first", "second")]
    assert said["staged"] == sorted(both * 2)
    assert said["files"] == len(both)
    assert (said["delta"], said["daemon"]) == (2, None)
