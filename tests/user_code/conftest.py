"""The lake of `make demo`, for tests of what its users run."""

from __future__ import annotations

import pytest

from jobs import run_all


@pytest.fixture(scope="session")
def demo_lake(spark, project, tmp_path_factory):
    """The folder of a lake with the data of `make demo`, written with the settings for a cluster."""
    root, data = tmp_path_factory.mktemp("demo"), project / "data"
    arguments = [
        "--conf",
        str(project / "conf" / "cluster.yml"),
        "--captures",
        str(data / "sample"),
        str(data / "estate" / "wire"),
        "--snapshots",
    ]
    assert run_all.main(["--lake", str(root), *arguments, str(data / "estate" / "snapshots")]) == 0
    return root
