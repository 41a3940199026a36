"""msmq wireshark: where the dissector goes, and what it does not overwrite."""

from __future__ import annotations

import json
import subprocess

import pytest

from jobs.analysis import wireshark

TEXT = wireshark.dissector_text()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without Wireshark: its folder of plugins is that of the documentation."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(wireshark.shutil, "which", lambda _: None)
    return tmp_path


def test_standard_output_is_the_dissector_and_the_summary_is_not_in_it(capsys):
    assert wireshark.main([]) == 0
    said = capsys.readouterr()
    assert said.out == TEXT
    assert json.loads(said.err)["job"] == "wireshark"
    assert wireshark.main(["--out", "-"]) == 0
    assert capsys.readouterr().out == TEXT


def test_install_writes_to_the_personal_plugins_and_says_where(home, capsys):
    target = home / ".local" / "lib" / "wireshark" / "plugins" / "msmq.lua"
    for _ in range(2):  # an older dissector of ours is replaced
        assert wireshark.main(["--install"]) == 0
        said = capsys.readouterr()
        assert target.read_text() == TEXT
        assert str(target) in said.err
        assert json.loads(said.out)["written"] == str(target)


def test_install_asks_tshark_for_the_folder(home, monkeypatch):
    tshark = home / "tshark"
    tshark.write_text(f"#!/bin/sh\nprintf 'Temp:\\t/tmp\\nPersonal Lua Plugins:\\t{home}/lua\\n'\n")
    tshark.chmod(0o755)
    monkeypatch.setattr(wireshark.shutil, "which", lambda _: str(tshark))
    assert wireshark.main(["--install"]) == 0
    assert (home / "lua" / "msmq.lua").read_text() == TEXT


@pytest.mark.tool("tshark")
def test_tshark_loads_what_was_installed(tmp_path, monkeypatch, project):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wireshark.main(["--install"]) == 0
    command = ["tshark", "-n", "-r", str(project / "data" / "transfers" / "01-handshakes.pcap"), "-Y", "msmq.label"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "by name" in shown


def test_another_file_is_not_overwritten(tmp_path, capsys):
    other = tmp_path / "mine.lua"
    other.write_text("-- mine\n")
    assert wireshark.main(["--out", str(other)]) == 2
    assert other.read_text() == "-- mine\n"
    assert "is not a dissector of this project" in capsys.readouterr().err
    other.write_text("")
    assert wireshark.main(["--out", str(other)]) == 0
    assert other.read_text() == TEXT


def test_a_place_that_cannot_be_written_is_a_wrong_use(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert wireshark.main(["--out", str(tmp_path / "file" / "msmq.lua")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_both_places_at_once_are_refused(capsys):
    assert wireshark.main(["--install", "--out", "msmq.lua"]) == 2
