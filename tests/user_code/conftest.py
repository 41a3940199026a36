"""The lake of `make demo`, for tests of what its users run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jobs import run_all

MAX_WAIT_S = 300


@pytest.fixture(scope="session")
def demo_lake(request, tmp_path_factory):
    """The folder of a lake with the data of `make demo`, written with the settings for a cluster. Tests only read it.

    The first process of a test run writes it, the others wait.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / "demo"
    try:
        folder.mkdir()
    except FileExistsError:
        until = time.monotonic() + MAX_WAIT_S
        while not (folder / "written").exists():
            assert time.monotonic() < until, "the other process has not written the lake"
            time.sleep(0.2)
    else:
        write_demo_lake(request, folder / "lake")
        (folder / "written").touch()
    return folder / "lake"


def write_demo_lake(request, root: Path) -> None:
    request.getfixturevalue("spark")
    project = request.getfixturevalue("project")
    data, settings = project / "data", project / "conf" / "cluster.yml"
    captures = [str(data / "sample"), str(data / "estate" / "wire"), str(data / "transfers")]
    arguments = ["--conf", str(settings), "--captures", *captures, "--snapshots", str(data / "estate" / "snapshots")]
    assert run_all.main(["--lake", str(root), *arguments]) == 0
