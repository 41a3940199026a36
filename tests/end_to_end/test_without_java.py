"""Jobs on a folder that read little need no Java, the first run too: with snapshots, quality, pages, or keys."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

SEALED = "05-sealed-ntlm.pcap"
SAMPLE = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")


@pytest.fixture
def job(project, tmp_path):
    """Start a job on the lake in a process that finds no Java; return what it prints."""

    def job(name, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", f"jobs.{name}", "--lake", str(tmp_path / "lake"), *arguments],
            cwd=project, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return job


@pytest.fixture
def run(job, project):
    """Run all layers; return the summary."""

    def run(*captures, more=()):
        data = project / "data"
        given = ("--snapshots", str(data / "estate" / "snapshots"), *more)
        printed = job("run_all", *given, "--captures", *(str(data / "sample" / name) for name in captures))
        return json.loads(printed.splitlines()[-1])

    return run


@pytest.fixture
def private_file(tmp_path):
    """Write a file that only this user may read; return its path."""

    def private_file(name, text):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return private_file


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


def test_calls_are_decrypted_emptied_and_forgotten_without_java(run, job, private_file):
    run(SEALED)
    keys = private_file("keys.yml", "ntlm: [{principal: 'testdom\\*', password: Passw0rd!}]")
    opened = run(SEALED, SAMPLE[0], more=("--keys", keys, "--set", "store.stubs=false"))
    assert opened["sealed"]["opened"] == 19
    assert opened["tables"]["silver.remote_read_calls"]["rows_out"] > 19
    assert "bronze.rpc_calls" in job("forget", "--before", datetime.now(UTC).date().isoformat())
    nothing = run(SEALED, SAMPLE[0])["tables"]
    assert {counts["rows_out"] for counts in nothing.values()} == {0}


def test_names_are_redacted_without_java(run, private_file, tmp_path):
    key = private_file("redact.key", "7d9f0a53c1b24e6688aa0b1c2d3e4f50\n")
    folder = f"privacy.scratch_folder={tmp_path}"
    more = ("--set", "privacy.redact=[queues,hosts]", "--set", folder, "--redact-key", key)
    assert run(SAMPLE[0], more=more)["tables"]["gold.receive_attempts"]["rows_out"] > 10
    assert run(*SAMPLE, more=more)["tables"]["silver.management_calls"]["rows_out"] > 10
