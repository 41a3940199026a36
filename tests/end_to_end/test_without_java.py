"""Runs on a folder that read little need no Java, the first one too, with snapshots, quality and pages."""

import json
import os
import subprocess
import sys

import pytest

SAMPLE = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")


@pytest.fixture
def run(project, tmp_path):
    """Run all layers in a process that finds no Java; return the summary."""

    def run(*captures, more=()):
        data, lake = project / "data", str(tmp_path / "lake")
        done = subprocess.run(
            [sys.executable, "-m", "jobs.run_all", "--lake", lake, "--snapshots", str(data / "estate" / "snapshots"),
             *more, "--captures", *(str(data / "sample" / name) for name in captures)],
            cwd=project, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_runs_that_read_little_need_no_java(run, tmp_path):
    first = run(SAMPLE[0])["tables"]
    assert first["gold.receive_attempts"]["rows_out"] > 10
    assert first["bronze.snapshots_raw"]["rows_out"] > 60
    more = ("--set", "quality.in_runs=true", "--pages", str(tmp_path / "pages"))
    added = run(*SAMPLE, more=more)["tables"]
    assert added["gold.quality_results"]["rows_out"] > 100
    assert added["gold.receive_attempts"]["rows_out"] > 10
    assert added["silver.management_calls"]["rows_out"] > 10
    assert "R_QMMgmtGetInfo" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    nothing = run(*SAMPLE)
    assert (nothing["bytes"], nothing["store"]) == (0, "delta-rs")
    assert {counts["rows_out"] for counts in nothing["tables"].values()} == {0}


def test_captures_without_any_call_need_no_java(run, project):
    transfers = sorted(path.name for path in (project / "data" / "transfers").glob("*.pcap*"))
    found = run(*(f"../transfers/{name}" for name in transfers))["tables"]
    assert found["silver.sendings"]["rows_out"] > 10
    assert found["bronze.rpc_calls"]["rows_out"] == 0
