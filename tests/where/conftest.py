"""What tests of other places share."""

import subprocess
import sys

import pytest

from where.servers import environment


@pytest.fixture(scope="module")
def properties(project, tmp_path_factory):
    """The properties file that set-up writes for spark-submit."""
    path = tmp_path_factory.mktemp("conf") / "spark.conf"
    made = [sys.executable, "tools/write_spark_conf.py", str(path)]
    subprocess.run(made, cwd=project, env=environment(PYTHONPATH=str(project)), check=True, capture_output=True)
    return path
