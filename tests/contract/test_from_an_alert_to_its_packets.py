"""The page about operations: what its three commands print, from an alert to its packets, is what they print now."""

from __future__ import annotations

import re
import shlex

import pytest

from jobs import __main__ as command
from jobs import run_all

PLACE = "/data/lake"
STEP = re.compile(r"^   ```\n   msmq (.*)\n   ```\n\n   ```text\n((?:   .*\n)+?)   ```$", re.MULTILINE)


@pytest.fixture(scope="module")
def lake(project, tmp_path_factory):
    """The lake of the page: of one capture."""
    root = tmp_path_factory.mktemp("page") / "lake"
    assert run_all.main(["--lake", str(root), "--captures", str(project / "data/transfers/08-stall.pcap.gz")]) == 0
    return str(root)


def test_what_the_commands_print(project, lake, tmp_path, monkeypatch, capsys):
    page = (project / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    steps = STEP.findall(page.partition("### From an alert to its packets\n")[2].partition("\n## ")[0])
    assert [said.partition(" ")[0] for said, _ in steps] == ["alerts", "queue", "export_packets"]
    assert f"packets   msmq {steps[2][0]}\n" in steps[1][1]  # the second step names the third
    monkeypatch.chdir(tmp_path)
    codes = []
    for said, shown in steps:
        capsys.readouterr()
        codes.append(command.main([word.replace(PLACE, lake) for word in shlex.split(said)]))
        printed = capsys.readouterr()
        lines = [line for line in printed.out.splitlines() if not line.startswith("{")] + printed.err.splitlines()
        assert [line.replace(lake, PLACE) for line in lines if line] == [line[3:] for line in shown.splitlines()]
    assert codes == [1, 1, 0]
    assert (tmp_path / "trouble.pcapng").stat().st_size > 0
