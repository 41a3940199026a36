"""The jobs write the same tables everywhere: plain Python, a standalone cluster, a Connect server, a catalog, S3.

Each test reads the same captures and snapshots in a different way: in one run or in several, from files or from an
object store.
"""

import json
import shutil
import subprocess
import sys

import pytest

from bronze.stores.bucket import serving
from bundles.databricks_bundle import load, resolved, wheel_tasks
from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.bronze import CAPTURE_FILES
from schemas.quality import QUALITY_RESULTS
from where import serverless_job
from where.servers import LOCALHOST, cluster, connect_server, environment, made_by

pytestmark = [pytest.mark.long, pytest.mark.spark]

CAPTURES = ("03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng", "10-many-clients.pcap.gz")
RUN_COLUMNS = {"run_id", "ingested_at", "opened_at", "modified_at", "path", "source_path"}
MAX_SECONDS = 900
CHECKING_JOBS = {"check_quality", "alerts", "queue_verdict"}  # they exit with 1 for what they find in the data


@pytest.fixture(scope="module")
def inputs(project, tmp_path_factory):
    """A folder with captures, and a folder with snapshots."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "captures").mkdir()
    for name in CAPTURES:
        shutil.copy(project / "data" / "sample" / name, folder / "captures" / name)
    (folder / "snapshots").mkdir()
    for path in sorted((project / "data" / "estate" / "snapshots").glob("orders1-*"))[:4]:
        shutil.copy(path, folder / "snapshots")
    return folder


@pytest.fixture(scope="module")
def archive(project, tmp_path_factory):
    """The archive that ``make pyfiles`` builds."""
    return made_by(project, "build_pyfiles", tmp_path_factory.mktemp("dist") / "pyfiles.zip")


def assert_catalog_has(expected, spark, folder, work, schemas):
    """Read the tables of a catalog from their folders, which begin with ``schemas``, and compare them."""
    folder.mkdir()
    shutil.copy(work / "_lake.json", folder)
    for layer in ("bronze", "silver", "gold"):
        (folder / layer).symlink_to(f"{schemas}{layer}.db")
    found = contents(Lake(spark, str(folder)))
    found.pop("gold.quality_results", None)
    assert_same(found, expected)


def run(*command, cwd, codes=(0,), **env):
    """Run a job and check its exit code; return its JSON summary."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment(**env), capture_output=True, text=True, check=False,
        timeout=MAX_SECONDS,
    )  # fmt: skip
    assert done.returncode in codes, (
        f"{command}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(inputs, project, tmp_path_factory):
    """The lake that plain Python writes, in one run."""
    folder = tmp_path_factory.mktemp("plain")
    arguments = ["--captures", inputs / "captures", "--snapshots", inputs / "snapshots", "--lake", folder / "lake"]
    run(sys.executable, "-m", "jobs.run_all", *arguments, cwd=folder, PYTHONPATH=str(project))
    return folder / "lake"


@pytest.fixture(scope="module")
def expected(plain, spark):
    return contents(Lake(spark, str(plain)))


def contents(lake):
    """Return the rows of each table, sorted, without columns that depend on the run or the place."""
    found = {}
    for table in catalog.DATA_TABLES:
        if lake.exists(table):
            names = [name for name in table.names if name not in RUN_COLUMNS]
            found[str(table)] = sorted(map(str, lake.read(table).select(*names).toArrow().to_pylist()))
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_standalone_cluster(inputs, properties, archive, project, expected, spark, tmp_path):
    """The code only comes from ``--py-files``; the second run continues from the tables of the first."""
    shutil.copy(project / "jobs" / "run_all.py", tmp_path)
    lake = tmp_path / "lake"
    captures = sorted((inputs / "captures").iterdir())
    with cluster(tmp_path / "cluster") as master:
        submit = [
            "spark-submit", "--master", master, "--properties-file", properties, "--py-files", archive,
            "--conf", "spark.executor.memory=768m", "--conf", f"spark.driver.host={LOCALHOST}", "run_all.py",
        ]  # fmt: skip
        submit += ["--conf", project / "conf" / "cluster.yml"]  # of the job: it comes after its name
        run(*submit, "--captures", captures[-1], "--lake", lake, cwd=tmp_path, codes=(0, 1))
        second_input = ["--captures", inputs / "captures", "--snapshots", inputs / "snapshots"]
        summary = run(*submit, *second_input, "--lake", lake, cwd=tmp_path, codes=(0, 1))
    assert summary["tables"][str(CAPTURE_FILES)]["rows_out"] == len(captures) - 1
    executors = [path for path in (tmp_path / "cluster").glob("worker*/app-*/*") if (path / "stderr").exists()]
    worked = [path for path in executors if "Finished task" in (path / "stderr").read_text()]
    assert {path.parents[1].name for path in worked} == {"worker1", "worker2"}
    written = Lake(spark, str(lake))
    assert written.read(QUALITY_RESULTS).where("success").count() > 100  # quality.in_runs
    assert_same(contents(written), expected)


def reading_jobs(lake, out, call):
    """Yield each job that reads a lake, with its arguments."""
    yield "check_quality", []
    yield "alerts", ["--since", "400d"]
    yield "queue_verdict", ["orders"]
    yield "ask", ["oldest_unread"]
    yield "trace_message", ["--from", "1971-01-01"]
    yield "show_message", ["--label", "order"]
    yield "export_packets", ["--call", call, "--out", out / "call.pcapng"]
    yield "publish_dashboards", ["--out", out / "pages"]


def test_a_connect_server(inputs, properties, project, expected, spark, tmp_path):
    """Every job; each uploads its code to the server."""
    lake, out = tmp_path / "lake", tmp_path / "out"
    out.mkdir()
    with connect_server(tmp_path / "server", properties) as url:

        def job(name, *arguments):
            where = {"PYTHONPATH": str(project), "SPARK_REMOTE": url}
            codes = (0, 1) if name in CHECKING_JOBS else (0,)
            command = [sys.executable, "-m", f"jobs.{name}", *arguments, "--lake", lake]
            return run(*command, cwd=tmp_path, codes=codes, **where)

        job("ingest_captures", "--captures", inputs / "captures" / CAPTURES[0])
        job("ingest_snapshots", "--snapshots", inputs / "snapshots")
        job("run_all", "--captures", inputs / "captures", "--snapshots", inputs / "snapshots")
        local = Lake(spark, str(lake))
        assert_same(contents(local), expected)
        call = local.read(catalog.table("bronze.rpc_calls")).where("outcome = 'ok'").first()["call_key"]
        for name, arguments in reading_jobs(lake, out, call):
            assert name.startswith(job(name, *arguments)["job"])
    assert (out / "call.pcapng").stat().st_size > 100
    assert (out / "pages" / "index.html").stat().st_size > 100_000


def test_the_bundles_jobs_with_tables_in_a_catalog(inputs, properties, project, expected, spark, tmp_path):
    """Run the tasks of databricks.yml with their arguments, on a Connect server, with variables for this machine."""
    warehouse, work, files = tmp_path / "warehouse", tmp_path / "work", tmp_path / "files"
    shutil.copytree(project / "conf", files / "conf")
    variables = {"catalog": "spark_catalog", "schema": "msmq", "work": str(work)}
    variables |= {"captures": str(inputs / "captures"), "snapshots": str(inputs / "snapshots"), "warehouse": "none"}
    variables |= {"service_principal": "somebody"}
    known = {f"var.{name}": value for name, value in variables.items()} | {"workspace.file_path": str(files)}
    jobs = wheel_tasks(resolved(load(project / "databricks.yml"), "prod", known))
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps({"targets": [{"name": "duty", "kind": "command", "command": ["true"]}]}))
    with connect_server(tmp_path / "server", properties, f"spark.sql.warehouse.dir={warehouse.as_uri()}") as url:
        where = {"PYTHONPATH": str(project), "SPARK_REMOTE": url}
        # Not msmq.alerts: only Databricks takes its task value. The next task has the same arguments.
        for name in ("msmq.run_all", "msmq.check_quality", "msmq.report_errors", "reprocess.run_all"):
            parameters = jobs[name]["python_wheel_task"]["parameters"]
            parameters = ["all" if each == "{{job.parameters.what}}" else each for each in parameters]
            parameters += ["--notify", f"@{targets}"] if name == "msmq.report_errors" else []
            codes = (0, 1) if parameters[0] in CHECKING_JOBS else (0,)
            summary = run(sys.executable, "-m", "jobs", *parameters, cwd=tmp_path, codes=codes, **where)
            if name == "msmq.run_all":
                assert (work / "pages" / "index.html").stat().st_size > 100_000
        assert summary["tables"][str(CAPTURE_FILES)]["rows_out"] == len(CAPTURES)  # all captures were read again
    assert {path.name for path in work.iterdir()} <= {"_lake.json", "_notices", "_runs", "pages", "scratch"}
    assert '"line": "target"' in (work / "_notices" / "notices.jsonl").read_text()
    assert (warehouse / "msmq_bronze.db" / "lease").is_dir()
    assert_catalog_has(expected, spark, tmp_path / "by layer", work, warehouse / "msmq_")


def test_serverless_compute_with_tables_in_a_catalog(inputs, properties, project, expected, spark, tmp_path):
    """Sessions refuse settings: runs that go on, one that is killed before its watermarks are kept, and maintenance."""
    warehouse, work = tmp_path / "warehouse", tmp_path / "work"
    captures = [inputs / "captures" / name for name in CAPTURES]
    settings = [
        f"spark.sql.warehouse.dir={warehouse.as_uri()}", "spark.sql.sources.parallelPartitionDiscovery.parallelism=2",
    ]  # fmt: skip
    with connect_server(tmp_path / "server", properties, *settings) as url:

        def job(name, *arguments, dies=""):
            where = {"PYTHONPATH": f"{project}:{project}/tests/support", "SPARK_REMOTE": url, "DIES": dies}
            places = ["--set", "lake.catalog=spark_catalog", "--set", "lake.prefix=less_", "--lake", work]
            command = [sys.executable, serverless_job.__file__, name, *arguments, *places]
            if not dies:
                return run(*command, cwd=tmp_path, codes=(0, 1), **where)
            done = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment(**where), check=False)
            assert done.returncode == serverless_job.KILLED
            return None

        snapshots = ["--snapshots", inputs / "snapshots"]
        job("run_all", "--captures", captures[0])
        job("run_all", "--captures", *captures[:2], dies="yes")
        job("run_all", "--captures", *captures[:2])
        job("maintain", "--retain-days", "1")
        job("run_all", "--captures", *captures, *snapshots)
        summary = job("run_all", "--captures", *captures, *snapshots)
    assert {name: counts for name, counts in summary["tables"].items() if counts["rows_out"]} == {}
    assert_catalog_has(expected, spark, tmp_path / "by layer", work, warehouse / "less_")


def test_captures_on_an_object_store(inputs, expected, spark, project, tmp_path):
    with serving() as bucket:
        for path in (inputs / "captures").iterdir():
            bucket.upload(f"ring/{path.name}", path)
        for path in (inputs / "snapshots").iterdir():
            bucket.upload(f"landed/{path.name}", path)
        arguments = ["--captures", "s3a://captures/ring/*.pcap*", "--snapshots", "s3://captures/landed"]
        where = {"PYTHONPATH": str(project), **bucket.environment}
        run(
            sys.executable, "-m", "jobs.run_all", *arguments, "--lake", tmp_path / "lake", cwd=tmp_path, **where
        )  # fmt: skip
    lake = Lake(spark, str(tmp_path / "lake"))
    assert_same(contents(lake), expected)
    paths = {row["path"] for row in lake.read(CAPTURE_FILES).select("path").collect()}
    assert paths == {f"s3://captures/ring/{name}" for name in CAPTURES}
