"""The page about own notebooks and jobs: its examples run word for word, in the project's folder after `make demo`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from where.servers import connect_server, environment

pytestmark = pytest.mark.spark


def examples(project):
    """Return the Python examples of the page, in order: a reader types them into one session."""
    page = (project / "docs" / "guides" / "your-own-notebook-or-job.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def run_examples(project, spark):
    """Run the examples in one namespace with a session, and return it."""
    names = {"spark": spark}
    for number, code in enumerate(examples(project)):
        exec(compile(code, f"example {number}", "exec"), names)
    return names


@pytest.fixture
def folder(project, demo_lake, tmp_path, monkeypatch):
    """A folder as the project's is after `make demo`, and the current one."""
    (tmp_path / ".lake").mkdir()
    (tmp_path / ".lake" / "demo").symlink_to(demo_lake)
    (tmp_path / "data").symlink_to(project / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TOLD = ("RemoteRead", "order 5", "R_OpenQueue", "MQMSG_CLASS_NORMAL", "PROPID_MGMT_QUEUE_PATHNAME", "billing", "top 20")


def test_the_page_as_it_stands(project, spark, folder, capsys):
    names = run_examples(project, spark)
    shown = capsys.readouterr().out
    assert [each for each in TOLD if each not in shown] == []
    assert names["messages"].count() > 100
    assert names["management"].count() > 20
    assert len(examples(project)) == 11


@pytest.mark.long
def test_the_page_over_spark_connect(project, folder, tmp_path):
    """The server has nothing of the project on its path: the code is uploaded as the page says."""
    archive, properties = tmp_path / "dist" / "pyfiles.zip", tmp_path / "spark.conf"
    for tool, made in (("build_pyfiles", archive), ("write_spark_conf", properties)):
        command = [sys.executable, f"tools/{tool}.py", str(made)]
        subprocess.run(command, cwd=project, env=environment(PYTHONPATH=str(project)), check=True)
    begin = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        'spark.addArtifacts("dist/pyfiles.zip", pyfile=True)\n'
    )
    assert 'spark.addArtifacts("dist/pyfiles.zip", pyfile=True)' in (
        project / "docs" / "guides" / "your-own-notebook-or-job.md"
    ).read_text(encoding="utf-8")
    with connect_server(tmp_path / "server", properties) as url:
        done = subprocess.run(
            [sys.executable, "-c", begin + "\n".join(examples(project))],
            cwd=folder,
            env=environment(PYTHONPATH=str(project), SPARK_REMOTE=url),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [each for each in TOLD if each not in done.stdout] == []
