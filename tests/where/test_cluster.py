"""A standalone cluster of two workers, each in a folder and an environment without the project."""

import json
import shutil
import subprocess
import sys

import pytest

from where import submitted_job
from where.servers import LOCALHOST, QUICK_JAVA, cluster, environment

pytestmark = pytest.mark.spark


def test_workers_have_the_code_from_pyfiles_and_tasks_that_die_are_repeated(project, tmp_path):
    """A task dies after its first file, another takes its executor with it; the files of both are there once."""
    for tool, made in (("build_pyfiles", "pyfiles.zip"), ("write_spark_conf", "spark.conf")):
        command = [sys.executable, f"tools/{tool}.py", str(tmp_path / made)]
        subprocess.run(command, cwd=project, env=environment(PYTHONPATH=str(project)), check=True, capture_output=True)
    shutil.copy(submitted_job.__file__, tmp_path / "job.py")
    with cluster(tmp_path / "cluster") as master:
        submit = [
            "spark-submit", "--master", master, "--properties-file", tmp_path / "spark.conf",
            "--py-files", tmp_path / "pyfiles.zip", "--conf", f"spark.driver.host={LOCALHOST}",
            "--conf", "spark.executor.memory=768m", "--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}",
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
