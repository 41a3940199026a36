"""The launcher of a process decides the settings of its session; all packages come from one installation."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JError
from pyspark.sql import functions as F

from jobs import session
from jobs.command_line.python_daemon import WORKER_ENVIRONMENT
from jobs.config import ConfigError

# Run by spark-submit in a folder where only the archive contains the packages: on the driver, and in a worker, which
# imports a decoder.
SUBMITTED = """
import json, sys
from jobs.session import check_single_installation, get_spark_session

def where(batches):
    import os, sys
    import pyarrow as pa
    preloaded = "pipeline.bronze.capture_tasks" in sys.modules  # by the daemon, before any task
    import udfs.keys
    for batch in batches:
        facts = [udfs.keys.__file__, str(preloaded), os.environ.get("MALLOC_TRIM_THRESHOLD_", "")]
        yield pa.RecordBatch.from_pydict({"facts": [facts] * batch.num_rows})

spark = get_spark_session("submitted")
names = ["spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions", "spark.master"]
names += ["spark.sql.codegen.wholeStage", "spark.executorEnv.MALLOC_MMAP_THRESHOLD_"]
print(json.dumps({
    "settings": {name: spark.conf.get(name, None) for name in names},
    "origin": str(check_single_installation()),
    "worker": spark.range(1).mapInArrow(where, "facts array<string>").first()[0],
    "rows": spark.createDataFrame([(1,)], "a int").write.format("delta").save(sys.argv[1]),
    "delta": spark.read.format("delta").load(sys.argv[1]).count(),
}))
sys.exit(3)
"""

PLAIN = """
import json, os, sys
from jobs.session import get_spark_session
spark = get_spark_session("plain")
names = ["spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions", "spark.sql.session.timeZone"]
print(json.dumps({name: spark.conf.get(name, None) for name in names}))
print(os.environ["PYSPARK_PYTHON"] == sys.executable)
"""


def without_launcher():
    """The environment of a plain start, without the variables of a launcher of the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}


@pytest.mark.spark
def test_spark_submit_keeps_its_settings_gets_those_of_local_workers_and_finds_everything(project, tmp_path):
    archive = tmp_path / "pyfiles.zip"
    properties = tmp_path / "spark.conf"
    env = {**without_launcher(), "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    packer = [sys.executable, "tools/build_pyfiles.py", str(archive)]
    subprocess.run(packer, cwd=project, env=env, check=True, capture_output=True)
    writer = [sys.executable, "tools/write_spark_conf.py", str(properties)]
    subprocess.run(writer, cwd=project, env=env, check=True, capture_output=True)
    text = properties.read_text().replace("spark.sql.shuffle.partitions 16", "spark.sql.shuffle.partitions 7")
    text = text.replace("spark.databricks.delta.snapshotPartitions 1\n", "")
    properties.write_text(text + "spark.executorEnv.MALLOC_MMAP_THRESHOLD_ 12345\n")
    (tmp_path / "job.py").write_text(SUBMITTED)
    del env["PYTHONPATH"]
    submit = os.path.join(os.path.dirname(sys.executable), "spark-submit")  # noqa: PTH118, PTH120 - as a user types it
    command = [submit, "--properties-file", properties, "--py-files", archive, "job.py", str(tmp_path / "table")]
    path = f"{os.path.dirname(sys.executable)}:{env['PATH']}"  # noqa: PTH120
    done = subprocess.run(
        command, cwd=tmp_path, env={**env, "PATH": path}, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 3, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["settings"] == {
        "spark.sql.shuffle.partitions": "7",
        "spark.databricks.delta.snapshotPartitions": None,
        "spark.master": "local[*]",
        "spark.sql.codegen.wholeStage": "false",
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": "12345",
    }
    assert said["delta"] == 1
    assert said["origin"].endswith("pyfiles.zip")
    place, preloaded, trim_threshold = said["worker"]
    assert "pyfiles.zip" in place
    assert (preloaded, trim_threshold) == ("True", WORKER_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"])
    assert "[cds" not in done.stderr  # Java took its archive of classes, or there is none


def test_what_only_workers_of_this_machine_can_have_is_not_in_the_properties_of_spark_submit(project, tmp_path):
    """A cluster's workers have no project folder: they would end with "No module named 'jobs'"."""
    env = {**without_launcher(), "PYTHONPATH": str(project)}
    writer = [sys.executable, "tools/write_spark_conf.py", str(tmp_path / "spark.conf")]
    subprocess.run(writer, cwd=project, env=env, check=True, capture_output=True)
    lines = (tmp_path / "spark.conf").read_text().splitlines()
    written = dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    assert not written.keys() & session.local_worker_settings().keys()
    assert written["spark.driver.extraClassPath"].split(os.pathsep) == [str(jar) for jar in session.delta_jars()]
    assert written["spark.jars"].split(",") == [jar.as_uri() for jar in session.delta_jars()]


@pytest.mark.spark
@pytest.mark.parametrize("class_path", ["as set-up found it", pytest.param("other jars", marks=pytest.mark.long)])
def test_a_plain_start_makes_the_local_session_and_says_if_java_has_no_classes_at_hand(project, tmp_path, class_path):
    env = {**without_launcher(), "PYTHONPATH": str(project)}
    archive = session.JAVA_CLASS_ARCHIVE
    expected = "" if archive.exists() else f"Java starts slower: there is no {archive}; run 'make setup'\n"
    if class_path == "other jars":
        for jar in session.delta_jars():
            shutil.copyfile(jar, tmp_path / jar.name)
        env[session.JARS_VARIABLE] = str(tmp_path)
        expected = expected or f"Java starts slower: it does not take {archive}; run 'make setup' ("
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == expected if class_path == "as set-up found it" else done.stderr.startswith(expected)
    assert done.stderr.count("\n") == (1 if expected else 0)
    settings, python = done.stdout.splitlines()
    assert json.loads(settings) == {
        "spark.sql.shuffle.partitions": "16",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    assert python == "True"


BROKEN_PROFILE = {
    "SPARK_HOME": "/opt/spark-2.4",
    "PYSPARK_PYTHON": "python2",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "PYSPARK_SUBMIT_ARGS": "--master yarn",
    "HADOOP_CONF_DIR": "{}/conf",
    "SPARK_CONF_DIR": "{}/conf",
}


@pytest.mark.spark
@pytest.mark.long
def test_a_profile_for_another_spark_breaks_nothing_and_java_prints_nothing(project, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere:8020</value></property></configuration>"
    )
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master yarn\n")
    (tmp_path / "temporary").mkdir()
    env = without_launcher() | {name: value.format(tmp_path) for name, value in BROKEN_PROFILE.items()}
    env |= {"SPARK_LOCAL_DIRS": str(tmp_path / "temporary"), "TMPDIR": str(tmp_path / "temporary")}
    capture, lake = project / "data" / "sample" / "01-remoteread-ndr.pcap", tmp_path / "the lake"
    uri = f"file://{tmp_path}/the%20lake"
    read = [sys.executable, "-m", "jobs", "ingest_captures", "--captures", str(capture), "--lake", uri]
    read += ["--set", "lake.store=spark"]
    done = subprocess.run(read, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    store, first, *others = done.stderr.splitlines()
    assert (store, first) == ("the tables are stored by spark", "reading 1 capture files, 0.0 MB; 0 known already")
    assert [line for line in others if " % read: " not in line] == ["Spark computes: local[*]"]
    assert json.loads(done.stdout)["tables"]["bronze.rpc_calls"]["rows_out"] == 54
    assert (lake / "bronze" / "rpc_calls" / "_delta_log").is_dir()
    assert [path for path in lake.rglob("*") if path.stat().st_mode & 0o077] == []
    assert list((tmp_path / "temporary").iterdir()) == []
    again = subprocess.run(
        [*read, "--dry-run"], cwd=project, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert (again.returncode, again.stderr.splitlines()[-1]) == (0, "nothing new in 1 capture files")


def test_what_a_launcher_or_a_user_set_for_local_sessions_stays(monkeypatch):
    for name, value in {**BROKEN_PROFILE, "SPARK_LOCAL_DIRS": "/big", "JAVA_HOME": "/java"}.items():
        monkeypatch.setenv(name, value)
    session.set_local_environment()
    assert (os.environ["SPARK_LOCAL_DIRS"], os.environ["JAVA_HOME"]) == ("/big", "/java")
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.path.exists(f"{os.environ['SPARK_HOME']}/bin/spark-submit")  # noqa: PTH110
    assert {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys() == set()


def test_java_that_is_gone_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^JAVA_HOME is .*, which has no bin/java: Spark needs Java 17 or later; "):
        session.find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^there is no java on the PATH: Spark needs Java 17 or later; "):
        session.find_java()


def test_java_that_is_too_old_is_one_clear_line(project, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'java.lang.UnsupportedClassVersionError: 61.0' >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "lake").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobs",
            "alerts",
            "--lake",
            str(tmp_path / "lake"),
            "--set",
            "lake.store=spark",
            "--set",
            "lake.read_log=spark",
        ],
        cwd=project,
        env={**without_launcher(), "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"alerts: Spark did not start with {java}: it needs Java 17 or later. ")
    assert "UnsupportedClassVersionError" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", session.LAUNCHER_VARIABLES)
def test_any_other_launcher_keeps_its_settings(monkeypatch, name):
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)
    for other in session.LAUNCHER_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    assert session.started_as_plain_python()
    monkeypatch.setenv(name, "1")
    assert not session.started_as_plain_python()


@pytest.mark.spark
def test_a_session_that_runs_is_the_one_to_use(spark):
    assert not session.started_as_plain_python()
    assert session.get_spark_session("another").conf.get("spark.sql.shuffle.partitions") == "2"


@pytest.mark.spark
def test_a_session_that_does_not_escape_texts_is_refused(spark, monkeypatch):
    other = spark.newSession()
    other.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(
        builder=SimpleNamespace(appName=lambda _: SimpleNamespace(getOrCreate=lambda: other)),
        getActiveSession=lambda: other,
    ))  # fmt: skip
    with pytest.raises(ConfigError, match="escapedStringLiterals is true"):
        session.get_spark_session("another")


@pytest.mark.spark
def test_java_is_asked_once_what_a_name_stands_for(spark, monkeypatch):
    for name in session.CACHED_JAVA_MEMBERS:
        vars(spark._jvm).pop(name, None)
    session.cache_java_members(spark)
    asked = []
    ask = JVMView.__getattr__
    monkeypatch.setattr(JVMView, "__getattr__", lambda view, name: asked.append(name) or ask(view, name))
    assert spark.range(3).where(F.col("id") > F.lit(0)).count() == 2
    assert not set(asked) & set(session.CACHED_JAVA_MEMBERS)


def test_who_lets_nobody_ask_java_is_asked_as_ever():
    class Refusing:
        def __getattr__(self, name):
            raise Py4JError("not allowed")

    for spark in (SimpleNamespace(_jvm=Refusing()), SimpleNamespace()):
        session.cache_java_members(spark)


def test_jars_that_are_missing_or_of_another_version_are_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setenv(session.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"^Delta's jars are not in .*: run 'make setup'"):
        session.delta_jars()
    (tmp_path / "delta-spark_4.1_2.13-4.4.1.jar").touch()
    with pytest.raises(ConfigError, match=r"holds delta-spark_4\.1_2\.13-4\.4\.1\.jar, but delta-spark is 4\.4\.0"):
        session.delta_jars()


@pytest.mark.parametrize("change", ["another byte", "gone", "one more"])
def test_a_jar_that_was_changed_is_not_loaded(monkeypatch, tmp_path, change):
    for jar in session.delta_jars():
        (tmp_path / jar.name).symlink_to(jar)
    monkeypatch.setenv(session.JARS_VARIABLE, str(tmp_path))
    assert len(session.delta_jars()) == 5
    name = "delta-storage-4.4.0.jar" if change != "one more" else "delta-hooks-4.4.0.jar"
    data = (tmp_path / name).read_bytes() if change == "another byte" else b""
    (tmp_path / name).unlink(missing_ok=True)
    if change != "gone":
        (tmp_path / name).write_bytes(data[:-1] + b"!")
    with pytest.raises(ConfigError, match=rf"{name}: missing, or not the bytes of conf/jars.sha256: run 'make setup'"):
        session.delta_jars()


def test_packages_of_one_origin(project):
    assert session.check_single_installation() == project


def test_a_strangers_package_is_refused(project, tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "__init__.py").touch()
    code = "import schemas, jobs.session as s\n"
    code += "try: s.check_single_installation()\nexcept s.ConfigError as error: print(error)"
    env = {**without_launcher(), "PYTHONPATH": f"{tmp_path}:{project}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("packages of different origin: ")
    assert f"schemas from {tmp_path}" in done.stdout
