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
    scripts = tomllib.loads(Path(PROJECT, "pyproject.toml").read_text())["project"]["scripts"]
    found = {name: EntryPoint(name, value, "console_scripts").load() for name, value in scripts.items()}
    assert found == {"msmq": command.main, "msmq-task": command.task}


def test_a_task_fails_by_its_exit_code_and_raises_nothing_when_all_is_well(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["msmq-task", "--help"])
    assert command.task() is None
    monkeypatch.setattr("sys.argv", ["msmq-task", "nothing"])
    with pytest.raises(SystemExit) as left:
        command.task()
    assert left.value.code == 2


@pytest.mark.parametrize("name", sorted(command.jobs()))
def test_help_tells_of_every_option(name, capsys):
    made = import_module(f"jobs.{name}").parser()
    assert made.description
    assert [action.dest for action in made._actions if not action.help] == []
    assert command.main([name, "--help"]) == 0
    assert "--conf" in capsys.readouterr().out
