"""Who needs Java: not the engine ``local``, and no run that finds nothing new. Without it Spark computes nothing."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from end_to_end.lakes import reading_jobs
from engines import LOCAL
from jobs.session import JARS_VARIABLE
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from schemas.bronze import RPC_CALLS

SEALED = "05-sealed-ntlm.pcap"
SAMPLE = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")

# Runs jobs in one process, each with its arguments; none starts Java.
RUN_EACH = """
import importlib, json, os, sys

for name, arguments in json.loads(sys.argv[1]):
    assert importlib.import_module(name).main(arguments) == 0, name
    assert not os.path.exists(sys.argv[2]), name
"""


@pytest.fixture
def java(tmp_path):
    """The home of a Java that is new enough, and notes that it was started."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('IMPLEMENTOR="nobody"\nJAVA_VERSION="17.0.1"\n')
    (home / "bin" / "java").write_text(f"#!/bin/sh\ntouch {home / 'started'}\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    return home


@pytest.fixture
def run(project, tmp_path, java):
    """Run all layers in a process of its own, by default on local tables and with that Java; return what it said."""

    def run(*captures, more=(), snapshots=True, env=None):
        data, lake = project / "data", str(tmp_path / "lake")
        given = ["--snapshots", str(data / "estate" / "snapshots")] if snapshots else []
        return subprocess.run(
            [sys.executable, "-m", "jobs", "run_all", "--lake", lake, *given, *more, "--captures",
             *(str(data / "sample" / name) for name in captures)],
            cwd=project, env={**os.environ, "JAVA_HOME": str(java), **(env or {})}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    return run


def summary(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_runs_of_this_process_and_those_without_anything_new_need_no_java(run, project, tmp_path, java):
    done = run(SAMPLE[0], more=LOCAL)
    first = summary(done)
    assert "this process computes (run.engine=local)" in done.stderr.splitlines()
    assert first["engine"].items() >= {"name": "local", "master": None, "started": False, "tasks": 0}.items()
    assert {"bronze", "attempts", "findings"} <= {*first["engine"]["in_driver"]}
    assert first["tables"]["gold.receive_attempts"]["rows_out"] > 10
    assert first["tables"]["bronze.snapshots_raw"]["rows_out"] > 60
    more = ("--set", "quality.in_runs=true", "--pages", str(tmp_path / "pages"))
    added = summary(run(*SAMPLE, more=(*LOCAL, *more)))["tables"]
    assert added["gold.quality_results"]["rows_out"] > 100
    assert added["gold.receive_attempts"]["rows_out"] > 10
    assert added["silver.management_calls"]["rows_out"] > 10
    assert "R_QMMgmtGetInfo" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    nothing = summary(run(*SAMPLE))
    assert (nothing["bytes"], nothing["store"]) == (0, "delta-rs")
    assert nothing["engine"] == {
        "name": "spark", "master": None, "started": False, "executions": 0, "jobs": 0, "tasks": 0, "in_driver": [],
    }  # fmt: skip
    assert {counts["rows_out"] for counts in nothing["tables"].values()} == {0}
    lake = Lake(LazySession(pytest.fail), str(tmp_path / "lake"))
    call_key = lake.query("SELECT min(call_key) AS one FROM {calls}", calls=RPC_CALLS)["one"][0].as_py()
    jobs = [(job.__name__, arguments) for job, arguments in reading_jobs(tmp_path / "lake", tmp_path, call_key)]
    command = [sys.executable, "-c", RUN_EACH, json.dumps(jobs), str(java / "started")]
    subprocess.run(
        command, cwd=project, env={**os.environ, "JAVA_HOME": str(java)}, stdout=subprocess.DEVNULL, check=True
    )
    found = run(SAMPLE[0], "02-remoteread-ndr64-multiplexed.pcap")
    assert (java / "started").exists()
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith("run_all: Spark did not start with ")


def test_captures_without_any_call_need_no_java(run, java):
    found = summary(run("../transfers/06-two-hops.pcapng", "../transfers/08-stall.pcap.gz", more=LOCAL))["tables"]
    assert found["silver.sendings"]["rows_out"] > 10
    assert found["bronze.rpc_calls"]["rows_out"] == 0
    assert not (java / "started").exists()


@pytest.fixture
def private_file(tmp_path):
    """Write a file that only this user may read; return its path."""

    def private_file(name, text):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return private_file


@pytest.mark.long
def test_calls_are_decrypted_emptied_and_forgotten_without_java(run, private_file, project, tmp_path, java):
    summary(run(SEALED, more=LOCAL))
    keys = private_file("keys.yml", "ntlm: [{principal: 'testdom\\*', password: Passw0rd!}]")
    opened = summary(run(SEALED, SAMPLE[0], more=(*LOCAL, "--keys", keys, "--set", "store.stubs=false")))
    assert opened["sealed"]["opened"] == 19
    assert opened["tables"]["silver.remote_read_calls"]["rows_out"] > 19
    today = datetime.now(UTC).date().isoformat()
    forgotten = subprocess.run(
        [sys.executable, "-m", "jobs", "forget", "--lake", str(tmp_path / "lake"), "--before", today],
        cwd=project, env={**os.environ, "JAVA_HOME": str(java)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "bronze.rpc_calls" in forgotten.stdout
    nothing = summary(run(SEALED, SAMPLE[0], more=LOCAL))["tables"]
    assert {counts["rows_out"] for counts in nothing.values()} == {0}
    assert not (java / "started").exists()


@pytest.mark.long
def test_names_are_redacted_without_java(run, private_file, tmp_path, java):
    key = private_file("redact.key", "7d9f0a53c1b24e6688aa0b1c2d3e4f50\n")
    folder = f"privacy.scratch_folder={tmp_path}"
    more = (*LOCAL, "--set", "privacy.redact=[queues,hosts]", "--set", folder, "--redact-key", key)
    assert summary(run(SAMPLE[0], more=more))["tables"]["gold.receive_attempts"]["rows_out"] > 10
    assert summary(run(*SAMPLE, more=more))["tables"]["silver.management_calls"]["rows_out"] > 10
    assert not (java / "started").exists()


LOCAL_HINT = "; or compute without Spark: --set run.engine=local\n"


@pytest.mark.parametrize(
    ("env", "store", "said"),
    [
        ({"JAVA_HOME": "{}/none"}, "delta-rs", ("JAVA_HOME is {}/none, which has no bin/java: ", LOCAL_HINT)),
        (
            {"JAVA_HOME": "", "PATH": "{}"},
            "delta-rs",
            ("there is no java on the PATH: Spark needs Java 17", LOCAL_HINT),
        ),
        ({"JAVA_HOME": "{}/old"}, "delta-rs", ("{}/old/bin/java is Java 8: Spark needs Java 17", LOCAL_HINT)),
        ({"JAVA_HOME": "{}/none"}, "spark", ("JAVA_HOME is {}/none, which has no bin/java: ", "\n")),
        ({JARS_VARIABLE: "{}/empty"}, "spark", ("Delta's jars are not in {}/empty: ", "\n")),
    ],
)
def test_what_spark_lacks_is_one_line_before_anything_is_written(run, tmp_path, env, store, said):
    (tmp_path / "old" / "bin").mkdir(parents=True)
    java = tmp_path / "old" / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    variables = {name: value.format(tmp_path) for name, value in env.items()}
    done = run(SAMPLE[0], more=("--set", f"lake.store={store}"), env=variables)
    begin, end = (text.format(tmp_path) for text in said)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"run_all: {begin}")
    assert done.stderr.endswith(end)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "lake").exists()


@pytest.mark.spark
@pytest.mark.long
def test_spark_computes_without_the_jars_of_delta_where_it_stores_nothing(run, tmp_path):
    (tmp_path / "empty").mkdir()
    usual = {"JAVA_HOME": os.environ.get("JAVA_HOME", ""), JARS_VARIABLE: str(tmp_path / "empty")}
    found = summary(run(SAMPLE[0], snapshots=False, env=usual))
    assert found["tables"]["bronze.rpc_calls"]["rows_out"] == 54
    engine = found["engine"]
    assert (engine["name"], engine["started"], engine["master"]) == ("spark", True, "local[*]")
    assert engine["executions"] >= 1
    assert engine["tasks"] >= 1


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_without_pyspark_nothing_computes(run, tmp_path, engine):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    done = run(SAMPLE[0], more=("--set", f"run.engine={engine}"), env={"PYTHONPATH": str(hidden)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run_all: the package pyspark is not installed: ")
    assert done.stderr.count("\n") == 1
    assert not Path(tmp_path / "lake").exists()
