"""The installed command: every job behind one name, each told of without being started."""

import tomllib
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from jobs import __main__ as command
from jobs.session import PROJECT


def test_every_job_is_a_subcommand(capsys):
    modules = {path.stem for path in Path(PROJECT, "jobs").glob("*.py") if "\nJOB = " in path.read_text()}
    assert set(command.jobs()) == modules >= {"run_all", "ingest_captures", "ingest_snapshots", "collect_snapshots"}
    for name in modules:
        assert name == import_module(f"jobs.{name}").JOB
    assert command.main([]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name}" in told for name in modules)


def test_a_job_gets_the_other_arguments(capsys):
    assert command.main(["run-all", "--as-of", "soon"]) == 2
    assert capsys.readouterr().err.startswith("run_all: argument --as-of: not a time")


@pytest.mark.parametrize("name", ["nothing", "session", "__main__", "../run_all"])
def test_what_is_no_job_is_one_line_and_exit_2(name, capsys):
    assert command.main([name]) == 2
    assert "no such job" in capsys.readouterr().err


def test_the_wheel_installs_it():
    (name, value), *others = tomllib.loads(Path(PROJECT, "pyproject.toml").read_text())["project"]["scripts"].items()
    assert (name, others) == ("msmq", [])
    assert EntryPoint(name, value, "console_scripts").load() is command.main
