"""A run on a folder that adds little needs no Java, nor do quality and pages: where there is none, they work."""

import json
import os
import subprocess
import sys

import pytest

from jobs import run_all

pytestmark = pytest.mark.spark

SAMPLE = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")


@pytest.fixture
def run(project, tmp_path):
    """Run all layers in a process that finds no Java; return the summary."""

    def run(*captures):
        data, lake = project / "data", str(tmp_path / "lake")
        done = subprocess.run(
            [sys.executable, "-m", "jobs.run_all", "--lake", lake, "--snapshots", str(data / "estate" / "snapshots"),
             "--set", "quality.in_runs=true", "--pages", str(tmp_path / "pages"),
             "--captures", *(str(data / "sample" / name) for name in captures)],
            cwd=project, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_run_that_adds_little_needs_no_java(run, spark, project, tmp_path):
    first = str(project / "data" / "sample" / SAMPLE[0])
    snapshots = str(project / "data" / "estate" / "snapshots" / "*-2026112115180[3-6]*")
    arguments = ["--lake", str(tmp_path / "lake"), "--captures", first, "--snapshots", snapshots]
    assert run_all.main(arguments) == 0  # recomputes all, by Spark
    added = run(*SAMPLE)["tables"]
    assert added["gold.receive_attempts"]["rows_out"] > 10
    assert added["silver.management_calls"]["rows_out"] > 10
    assert added["bronze.snapshots_raw"]["rows_out"] == 64
    assert added["gold.quality_results"]["rows_out"] > 100
    assert "R_QMMgmtGetInfo" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    nothing = run(*SAMPLE)
    assert (nothing["bytes"], nothing["store"]) == (0, "delta-rs")
    assert {counts["rows_out"] for counts in nothing["tables"].values()} == {0}
