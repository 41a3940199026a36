"""Ctrl-C while Spark starts: the run ends at once, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from example_counts import one_in

JOB = """
import sys, time
from jobs import cli
from jobs.session import prepare_session
from pipeline.lake.engine.sessions import LazySession

def run(_):
    session = LazySession(prepare_session("a job"))
    session.start_soon()
    print("starting", flush=True)
    session.spark
    print("started", flush=True)
    time.sleep(120)

sys.exit(cli.run_job("a_job", cli.build_base_parser("a_job", ""), run, ["--lake", "x"]))
"""
STARTED = "started"


def of_session(leader: int) -> list[str]:
    """The processes that a process and those below it have started, as long as they run."""
    listed = subprocess.run(["ps", "-axo", "sess=,pid=,stat=,args="], capture_output=True, check=True, text=True).stdout
    rows = (line.split(None, 3) for line in listed.splitlines())
    return [line for session, pid, state, line in rows if int(session) == leader and not state.startswith("Z")]


@pytest.fixture
def job(project, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py")], cwd=project, env={**env, "PYTHONPATH": str(project)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    yield process
    for line in of_session(process.pid):
        print(line)  # of a test that failed
    process.kill()
    process.communicate()


@pytest.mark.spark
@pytest.mark.parametrize("moment", one_in(2, [0.0, 0.2, 0.5, 1.0, STARTED, 2.0]))
def test_an_interrupted_start_of_spark_ends_at_once_and_leaves_no_process(job, moment):
    assert job.stdout.readline() == "starting\n"
    if moment == STARTED:
        assert job.stdout.readline() == "started\n"
        assert any("java" in line for line in of_session(job.pid))
    else:
        time.sleep(moment)
    os.killpg(job.pid, signal.SIGINT)
    begin = time.monotonic()
    _, err = job.communicate(timeout=30)
    assert (job.returncode, err) == (130, "a_job: interrupted; run again to continue\n")
    assert time.monotonic() - begin < 5
    while left := of_session(job.pid):
        assert time.monotonic() - begin < 10, left
        time.sleep(0.05)
