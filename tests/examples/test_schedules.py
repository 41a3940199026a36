"""The examples for systemd and cron: their commands are commands of msmq, and who is told what."""

import re
import shlex
import subprocess
from configparser import ConfigParser

import pytest

from jobs.cli import ExitCode
from jobs.command_line.parsers import build_parser
from jobs.command_line.settings_file import load_config


@pytest.fixture
def examples(project):
    return project / "conf" / "examples"


def unit(path):
    """A unit file as {section: {key: its values}}."""
    parser = ConfigParser(strict=False, interpolation=None, delimiters="=", dict_type=Repeated)
    parser.optionxform = str
    parser.read_string(path.read_text(encoding="utf-8"))
    return {section: {key: value.split("\n") for key, value in parser.items(section)} for section in parser.sections()}


class Repeated(dict):
    """Joins the values of a key that is given more than once."""

    def __setitem__(self, key, value):
        super().__setitem__(key, [*self[key], *value] if isinstance(value, list) and key in self else value)


def job_of(command, variables):
    """The job and the parsed arguments of a command line, whose settings exist."""
    for name, value in variables.items():
        command = command.replace(f"${{{name}}}", value).replace(f"${name}", value).replace(f"%{name}", value)
    program, job, *arguments = shlex.split(command)
    assert program.endswith("/msmq")
    parsed = build_parser(job).parse_args(arguments)
    load_config(parsed.conf, parsed.overrides)
    return job, parsed


def test_the_service_runs_commands_that_msmq_takes_on_one_lake(examples):
    service = unit(examples / "msmq.service")["Service"]
    assert service["Type"] == ["oneshot"]
    variables = dict(each.split("=", 1) for each in service["Environment"]) | {"S": "/var/lib"}
    (first, run), (second, alerts) = (job_of(command, variables) for command in service["ExecStart"])
    assert (first, second) == ("run_all", "alerts")
    assert run.captures == ["/data/ring"]
    assert run.lake == alerts.lake == f"/var/lib/{service['StateDirectory'][0]}/lake"


def test_the_service_succeeds_where_only_an_alert_is_active(examples):
    (codes,) = unit(examples / "msmq.service")["Service"]["SuccessExitStatus"]
    assert [int(code) for code in codes.split()] == [ExitCode.QUALITY_FAILED]


def test_the_timer_starts_the_service_of_its_name_each_quarter_of_an_hour(examples):
    timer = unit(examples / "msmq.timer")["Timer"]
    assert timer["OnCalendar"] == ["*:0/15"]
    assert "Unit" not in timer
    assert (examples / "msmq.service").exists()


@pytest.mark.tool("systemd-analyze")
def test_systemd_takes_the_units(examples, project, tmp_path):
    for name in ("msmq.service", "msmq.timer"):
        text = (examples / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/msmq/.venv/bin/msmq", "/bin/true"), encoding="utf-8")
    units = [str(tmp_path / name) for name in ("msmq.service", "msmq.timer")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "msmq." in line] == []
    assert done.returncode == 0


def crontab(examples):
    """The variables of the crontab, and its commands by their schedule."""
    lines = [line for line in (examples / "crontab").read_text(encoding="utf-8").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]+=", line))
    commands = [line.split(None, 5) for line in lines if not re.match(r"[A-Z]+=", line)]
    return variables, {" ".join(fields[:5]): fields[5] for fields in commands}


def test_cron_runs_commands_that_msmq_takes_on_one_lake(examples):
    variables, commands = crontab(examples)
    assert list(commands) == ["*/15 * * * *", "5 * * * *"]
    assert not any("%" in command for command in commands.values())  # a line feed for cron
    called = [re.search(r'"\$MSMQ" .*?(?= 2?>)', command)[0] for command in commands.values()]
    (first, run), (second, alerts) = (job_of(command, variables) for command in called)
    assert (first, second) == ("run_all", "alerts")
    assert run.lake == alerts.lake == variables["LAKE"]
    assert variables["MAILTO"]


@pytest.mark.parametrize(
    ("schedule", "code", "mailed"),
    [
        ("5 * * * *", ExitCode.OK, ""),
        ("5 * * * *", ExitCode.QUALITY_FAILED, "said\nlogged\n"),
        ("5 * * * *", ExitCode.USAGE_ERROR, "said\nlogged\n"),
        ("*/15 * * * *", ExitCode.OK, ""),
        ("*/15 * * * *", ExitCode.INPUT_UNREADABLE, "said\nlogged\n"),
    ],
)
def test_cron_mails_what_a_command_says_only_where_it_does_not_end_with_0(examples, tmp_path, schedule, code, mailed):
    variables, commands = crontab(examples)
    program = tmp_path / "msmq"
    program.write_text(f"#!/bin/sh\necho said\necho logged >&2\nexit {int(code)}\n", encoding="utf-8")
    program.chmod(0o755)
    environment = variables | {"MSMQ": str(program), "LOG": str(tmp_path / "log"), "PATH": "/usr/bin:/bin"}
    line = ["/bin/sh", "-c", commands[schedule]]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == mailed
