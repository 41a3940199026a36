"""The command msmq: it lists and starts every job; the wheel and the archive contain what jobs need."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from commands.test_without_network import WITHOUT_NETWORK
from hostile import NOT_UTF8
from jobs import __main__ as command
from jobs.cli import Outcome
from jobs.command_line.parsers import build_parser, module_of
from jobs.session import JARS_VARIABLE, PROJECT_ROOT, delta_jars
from pipeline.dashboards.html_page import page_code_digest


def test_every_job_is_a_subcommand(capsys):
    jobs = Path(PROJECT_ROOT, "jobs")
    modules = {
        ".".join(path.relative_to(PROJECT_ROOT).with_suffix("").parts)
        for path in jobs.rglob("*.py")
        if re.search(r"^JOB\b.* = ", path.read_text(), re.MULTILINE)
    }
    every = {"run_all", "ingest_captures", "ingest_snapshots", "collect_snapshots", "queue"}
    names = set(command.list_jobs())
    assert names >= every
    assert {module_of(name) for name in names} == modules
    for name in names:
        assert name == import_module(module_of(name)).JOB
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name}" in listed for name in names)


def test_the_version_is_printed(capsys):
    assert command.main(["--version"]) == 0
    assert re.fullmatch(r"msmq \d+\.\d+\.\d+\n", capsys.readouterr().out)


# Runs the command in a Python that has no Spark.
WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "delta"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoSpark())
from jobs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def without_spark(*arguments):
    command_line = [sys.executable, "-c", WITHOUT_SPARK, *arguments]
    return subprocess.run(command_line, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)


# Asks several jobs in one such Python; arguments: the jobs, and what each is asked.
SEVERAL_WITHOUT_SPARK = WITHOUT_SPARK.replace(
    "sys.exit(main(sys.argv[1:]))",
    """
import io, json
from contextlib import redirect_stderr, redirect_stdout

found = {}
for name in sys.argv[2:]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([name, sys.argv[1]])
    found[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(found))
""",
)


@pytest.mark.parametrize("option", ["--help", "--nothing"])
def test_help_and_wrong_usage_need_no_spark(option):
    names = sorted(command.list_jobs())
    command_line = [sys.executable, "-c", SEVERAL_WITHOUT_SPARK, option, *names]
    done = subprocess.run(command_line, cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert sorted(found) == names
    for name, (code, printed, said) in found.items():
        if option == "--help":
            assert (code, said) == (0, "")
            assert printed.startswith(f"usage: msmq {name} ")
        else:
            assert (code, said.count("\n")) == (2, 1)


def test_a_job_without_spark_is_one_line_and_exit_2():
    done = without_spark("ask", "1", "--lake", "none")
    assert done.returncode == 2
    assert re.fullmatch(r"ask: the package py\w+ is not installed: run 'make setup', or .*\n", done.stderr)


def test_snapshots_are_collected_without_spark(tmp_path):
    done = without_spark("collect_snapshots", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (
        2,
        "collect_snapshots: collector.machines: no machine to query; list them in the file given by --conf\n",
    )


def test_a_job_gets_the_other_arguments(capsys):
    assert command.main(["run-all", "--as-of", "soon"]) == 2
    assert capsys.readouterr().err.startswith("run_all: argument --as-of: not a time")


@pytest.mark.parametrize("text", NOT_UTF8)
def test_a_text_that_no_table_holds_is_not_looked_for(text, capsys):
    for job, argument in (
        ("trace_message", "--label"),
        ("trace_message", "--conversation"),
        ("trace_message", "--queue"),
        ("show_message", "--application-id"),
        ("export_packets", "--call"),
    ):
        assert command.main([job, argument, text]) == 2
        assert f"argument {argument}: not UTF-8: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing", "session", "__main__", "../run_all"])
def test_what_is_no_job_is_one_line_and_exit_2(name, capsys):
    assert command.main([name]) == 2
    assert "no such job" in capsys.readouterr().err


def test_the_wheel_installs_it():
    scripts = tomllib.loads(Path(PROJECT_ROOT, "pyproject.toml").read_text())["project"]["scripts"]
    found = {name: EntryPoint(name, value, "console_scripts").load() for name, value in scripts.items()}
    assert found == {"msmq": command.main, "msmq-task": command.run_databricks_task}


def test_a_task_fails_by_its_exit_code_and_raises_nothing_when_all_is_well(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["msmq-task", "--help"])
    assert command.run_databricks_task() is None
    monkeypatch.setattr("sys.argv", ["msmq-task", "nothing"])
    with pytest.raises(SystemExit) as left:
        command.run_databricks_task()
    assert left.value.code == 2
    # That nothing was captured of what was asked for is no failure.
    monkeypatch.setattr(command.cli, "run_job", lambda *_: Outcome(nothing_captured=True).exit_code)
    monkeypatch.setattr("sys.argv", ["msmq-task", "trace_message"])
    assert command.main(["trace_message"]) == 5
    assert command.run_databricks_task() is None


@pytest.mark.parametrize("name", sorted(command.list_jobs()))
def test_help_tells_of_every_option(name, capsys):
    parser = build_parser(name)
    assert parser.description
    assert [action.dest for action in parser._actions if not action.help] == []
    assert command.main([name, "--help"]) == 0
    assert "--conf" in capsys.readouterr().out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as `make wheel` builds it, and the archive for spark-submit."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=PROJECT_ROOT, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The archive for spark-submit, as `make pyfiles` builds it."""
    out = tmp_path_factory.mktemp("dist") / "pyfiles.zip"
    build = [sys.executable, "tools/build_pyfiles.py", str(out)]
    env = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    subprocess.run(build, cwd=PROJECT_ROOT, env=env, check=True, capture_output=True)
    return out


def archive_contents(archive):
    """Return the files of an archive, without the metadata of a wheel."""
    with zipfile.ZipFile(archive) as file:
        return {name: file.read(name) for name in file.namelist() if ".dist-info/" not in name}


def test_wheel_and_archive_hold_the_same_and_what_jobs_need_beside_it(wheel, archive):
    inside = archive_contents(wheel)
    assert inside == archive_contents(archive)
    assert {name.split("/")[0] for name in inside} == {"jobs", "pipeline", "schemas", "udfs"}
    for folder, inside_folder in (("quality", "pipeline/suites/"), ("targets", "pipeline/targets/")):
        files = {path.name: path.read_bytes() for path in Path(PROJECT_ROOT, "conf", folder).iterdir()}
        assert {name.rpartition("/")[2]: inside[name] for name in inside if name.startswith(inside_folder)} == files
    assert inside["jobs/command_line/jars.sha256"] == Path(PROJECT_ROOT, "conf", "jars.sha256").read_bytes()
    statics = {"pipeline/dashboards/static/main.js", "pipeline/dashboards/static/index.html", "jobs/analysis/msmq.lua"}
    statics |= {"pipeline/dashboards/estate/static/main.js", "pipeline/dashboards/estate/static/estate.html"}
    assert statics <= inside.keys()


FOUND = """
import sys
sys.path.insert(0, sys.argv[1])
from pipeline.dashboards.html_page import page_code_digest
from pipeline.quality.suites import bundled_suites, read_suites
from pipeline.reports.targets.target_file import bundled_targets
print(bundled_suites(), len(read_suites(bundled_suites())), page_code_digest(), len(bundled_targets()), sep="\\n")
"""


def test_what_jobs_need_is_found_in_an_archive(archive, tmp_path):
    command = [sys.executable, "-P", "-c", FOUND, str(archive)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    place, suites, digest, targets = done.stdout.split()
    assert place.startswith(str(archive))
    assert int(suites) == len(list(Path(PROJECT_ROOT, "conf", "quality").iterdir()))
    assert digest == page_code_digest()
    assert int(targets) == 7


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.network_namespace
def test_an_installed_wheel_runs_and_checks_without_network(wheel, tmp_path):
    """In another folder, with the installed dependencies and no other file of the project."""
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "PYTEST_"))}
    env |= {"PYTHONPATH": str(tmp_path / "site"), JARS_VARIABLE: str(delta_jars()[0].parent)}
    lake, capture = tmp_path / "lake", Path(PROJECT_ROOT, "data", "sample", "01-remoteread-ndr.pcap")

    def msmq(*arguments):
        command = [*WITHOUT_NETWORK, sys.executable, "-P", "-m", "jobs", *map(str, arguments), "--lake", str(lake)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert msmq("run_all", "--captures", capture)["tables"]["bronze.rpc_calls"]["rows_out"] == 54
    checked = msmq("check_quality")["tables"]["gold.quality_results"]
    assert checked["rows_out"] > 50
    assert checked["rows_flagged"] == 0
