"""Names of machines from the file to the terminal: what shows them, what stays as it is, and what nobody may see."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from end_to_end.lakes import facts, tables
from engines import LOCAL, without_spark
from jobs import alerts, publish_dashboards, queue_verdict, run_all, trace_message
from jobs.session import PROJECT_ROOT
from pcapgen import containers as c
from pipeline.lake.lake import Lake
from privacy.redaction.test_lake import found

TRANSFERS = Path(PROJECT_ROOT, "data", "transfers")
SENDER, RECEIVER = "10.77.108.1", "10.77.108.2"  # of the stall
SENDER_ID, RECEIVER_ID = "9bad54be-4585-595a-9bb5-6dff2fc22d5c", "0cf753ea-ab77-5e15-87bc-834df08a718c"
HOP = "10.77.106.1"  # of the two hops
QUEUE = f"{RECEIVER_ID}\\0000000a"
TEXTS = ["subject_text", "message"]
HEADER = "address,queue_manager_id,name\n"


@pytest.fixture
def captures(tmp_path):
    """Captures of a stall, and of two hops with names in a name resolution block."""
    named = tmp_path / "named.pcapng"
    block = c.host_names("<", (HOP, b"of-the-block"), (SENDER, b"never-shown"))
    named.write_bytes((TRANSFERS / "06-two-hops.pcapng").read_bytes() + block)
    return [str(TRANSFERS / "08-stall.pcap.gz"), str(named)]


@pytest.fixture
def declared(tmp_path):
    path = tmp_path / "machines.csv"
    path.write_text(f"{HEADER}{SENDER},,Kasse 7\n,{RECEIVER_ID},Lager\n")
    return path


def named(path):
    return ["--set", f"names.machines={path}"]


def run(lake, *more):
    return run_all.main(["--lake", str(lake), *LOCAL, *more])


def opened(lake):
    return Lake(without_spark(), str(lake))


def subjects(lake):
    return {row["subject_text"] for row in tables(opened(lake))["alerts"].to_pylist()}


def printed(capsys, job, *arguments):
    capsys.readouterr()
    job.main([*arguments, *(LOCAL if job is run_all else ())])
    return capsys.readouterr().out


@pytest.mark.long
def test_names_are_in_what_people_see_and_change_nothing_else(tmp_path, captures, declared, capsys):
    plain, lake = tmp_path / "plain", tmp_path / "lake"
    assert run(plain, "--captures", *captures) == 0
    assert run(lake, *named(declared), "--captures", *captures) == 0
    before, after = tables(opened(plain)), tables(opened(lake))
    assert facts(before["alerts"]) != facts(after["alerts"])
    for name in before:
        one, other = (
            rows.drop_columns([each for each in TEXTS if name == "alerts"]) for rows in (before[name], after[name])
        )
        assert facts(one) == facts(other), name

    of = ["--lake", str(lake), *named(declared)]
    assert f"messages of Kasse 7 to {QUEUE} from Kasse 7 to Lager" in printed(capsys, alerts, *of, "--fail-on", "never")
    row = json.loads(printed(capsys, alerts, *of, "--fail-on", "never", "--json", "-").splitlines()[0])
    assert row["subject_text"] == f"messages of Kasse 7 to {QUEUE} from Kasse 7 to Lager"
    assert row["subject"] == f"messages of {SENDER_ID} to {QUEUE} from {SENDER} to {RECEIVER}"
    changed = printed(capsys, alerts, *of, "--fail-on", "never", "--since", "2026-11-20T00:00:00Z")
    assert re.search(r"flow .*from Kasse 7 to Lager, \d+ message", changed)
    assert "  senders   Kasse 7 to Lager: " in printed(capsys, queue_verdict, "0000000a", *of)
    verdict = json.loads(printed(capsys, queue_verdict, "0000000a", *of, "--json").splitlines()[0])
    assert verdict["machines"] == {SENDER: "Kasse 7", RECEIVER: "Lager"}
    assert verdict["senders"][0]["sender_address"] == SENDER
    traced = printed(capsys, trace_message, *of, "--sender", HOP, "--all")
    assert re.search(r"hop +of-the-block -> 10\.77\.106\.4 to ", traced)
    assert re.search(r"of-the-block:\d+ -> 10\.77\.106\.4:1801", traced)
    traced = json.loads(printed(capsys, trace_message, *of, "--sender", HOP, "--all", "--json").splitlines()[0])
    assert traced["machines"][HOP] == "of-the-block"

    pages = tmp_path / "pages"
    assert publish_dashboards.main([*of, "--out", str(pages)]) == 0
    metrics = (pages / "metrics.prom").read_text()
    assert f'\nmsmq_machine_info{{address="{SENDER}",queue_manager_id="{SENDER_ID}",name="Kasse 7"}} 1\n' in metrics
    assert f'\nmsmq_machine_info{{address="{RECEIVER}",queue_manager_id="{RECEIVER_ID}",name="Lager"}} 1\n' in metrics

    declared.write_text(f"{HEADER}{SENDER},,Markt\n{RECEIVER},,Markt\n")
    expected = f"from Markt ({SENDER}) to Markt ({RECEIVER})"
    assert expected in printed(capsys, alerts, *of, "--fail-on", "never")
    assert publish_dashboards.main([*of, "--out", str(pages)]) == 0
    assert f'address="{RECEIVER}",queue_manager_id="{RECEIVER_ID}",name="Markt"' in (pages / "metrics.prom").read_text()
    assert not any("Markt" in each for each in subjects(lake))
    assert run(lake, *named(declared), "--captures", *captures) == 0
    assert any(each.endswith(expected) for each in subjects(lake))


def test_a_bad_file_ends_a_run_before_it_reads_anything(tmp_path, captures, declared, capsys):
    declared.write_text(f"{HEADER}{SENDER},,Kasse 7\n{SENDER},,Kasse 8\n")
    assert run(tmp_path / "lake", *named(declared), "--captures", *captures) == 2
    assert f"{declared}:3: the address of line 2 again: give each address one name" in capsys.readouterr().err
    assert not (tmp_path / "lake" / "bronze").exists()


def test_redacted_names_are_pseudonyms_wherever_they_appear(tmp_path, captures, declared, capsys):
    lake, key = tmp_path / "lake", tmp_path / "key"
    key.write_text("7d9f0a53c1b24e6688aa0b1c2d3e4f50\n")
    key.chmod(0o600)
    redacted = ["--set", "privacy.redact=[hosts]", "--redact-key", str(key)]
    of = ["--lake", str(lake), *named(declared)]
    pages = tmp_path / "pages"
    assert run(lake, *named(declared), *redacted, "--captures", *captures, "--pages", str(pages)) == 0
    assert any(re.search(r"from host-[0-9a-f]{12} to host-[0-9a-f]{12}$", each) for each in subjects(lake))
    alerts.main([*of, *redacted])
    queue_verdict.main(["0000000a", *of, *redacted])
    said = capsys.readouterr()
    names = ("kasse", "lager", "never-shown", "of-the-block")
    assert [name for name in names if name in (said.out + said.err).lower()] == []
    assert found(lake, names) + found(pages, names) == []
    assert re.search(r'name="host-[0-9a-f]{12}"', (pages / "metrics.prom").read_text())

    assert alerts.main(of) == 2
    assert "names in this lake are redacted" in capsys.readouterr().err
