"""Command line of all jobs: exit codes, errors in one line, and the summary as the last line of standard output."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from jobs import cli
from jobs.cli import ExitCode, Outcome, TableCounts
from jobs.config import ConfigError
from jobs.session import PROJECT_ROOT


def run_a_job(argv, run=lambda _: Outcome()):
    parser = cli.build_base_parser("a_job", "Does a thing.", captures=True, snapshots=True)
    return cli.run_job("a_job", parser, run, argv)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(), 0),
        (Outcome(quality_failed=True), 1),
        (Outcome(failures=1), 3),
        (Outcome(quality_failed=True, failures=1), 3),
    ],
)
def test_exit_codes(outcome, code, capsys):
    assert run_a_job(["--lake", "x"], lambda _: outcome) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_the_summary_is_the_last_line_of_standard_output(capsys):
    def run(job_run):
        print("what was found")
        cli.log_progress("reading")
        assert job_run.config.reads.poison_after == 4
        assert job_run.arguments.captures == ["a", "b", "c"]
        assert job_run.arguments.as_of == datetime(2024, 5, 1, 10, tzinfo=UTC)
        return Outcome({"bronze.rpc_calls": TableCounts(5, 4, 1)}, bytes_read=77, summary_fields={"files": 3})

    argv = [
        "--lake",
        "x",
        "--set",
        "reads.poison_after=4",
        "--captures",
        "a",
        "b",
        "--captures",
        "c",
        "--as-of",
        "2024-05-01T12:00:00+02:00",
    ]
    assert run_a_job(argv, run) == ExitCode.OK
    streams = capsys.readouterr()
    assert streams.err == "reading\n"
    first, last = streams.out.splitlines()
    summary = json.loads(last)
    assert first == "what was found"
    assert summary.pop("seconds") >= 0
    assert len(summary.pop("run_id")) == 32
    assert summary == {
        "job": "a_job",
        "exit_code": 0,
        "bytes": 77,
        "tables": {"bronze.rpc_calls": {"rows_in": 5, "rows_out": 4, "rows_flagged": 1}},
        "files": 3,
    }


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "a_job: the following arguments are required: --lake (--help lists the options)"),
        (["--lake", "x", "--cap", "y"], "a_job: unrecognized arguments: --cap y (--help lists the options)"),
        (["--lake", "x", "--as-of", "noon"], "a_job: argument --as-of: not a time like 2024-05-01T12:00:00Z: 'noon'"),
        (["--lake", "x", "--as-of", "0001-01-01T00:00:00+09:00"], "a_job: argument --as-of: out of range"),
        (["--lake", "x", "--conf", "none.yml"], "a_job: none.yml: No such file or directory"),
        (["--lake", "x", "--set", "a.b=1"], "a_job: --set a.b=1: unknown setting a.b"),
    ],
)
def test_wrong_usage_is_one_line_and_2(argv, complaint, capsys):
    assert run_a_job(argv) == ExitCode.USAGE_ERROR
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(complaint)
    assert streams.err.count("\n") == 1


def test_a_jobs_own_configuration_error_is_one_line_too(capsys):
    def run(_):
        raise ConfigError("nothing.pcap: no such file")

    assert run_a_job(["--lake", "x"], run) == ExitCode.USAGE_ERROR
    assert capsys.readouterr().err == "a_job: nothing.pcap: no such file\n"


# What str() of an exception of Java is, shortened: frames of Java, and a cause with more.
FROM_JAVA = """An error occurred while calling o76.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2935)
\tat scala.collection.mutable.ResizableArray$class.foreach(ResizableArray.scala:59)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 37 more
"""


def test_an_unforeseen_exception_is_exit_code_4_with_the_error_in_the_summary_and_what_to_do(capsys):
    def run(_):
        raise RuntimeError(FROM_JAVA)

    assert run_a_job(["--lake", "x"], run) == ExitCode.UNFORESEEN_ERROR == 4
    streams = capsys.readouterr()
    summary = json.loads(streams.out)
    assert (summary["exit_code"], summary["tables"]) == (4, {})
    assert summary["error"] == (
        "RuntimeError: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed; "
        "caused by java.io.IOException: No space left on device"
    )
    lines = streams.err.splitlines()
    assert lines[0] == f"a_job: an error that was not foreseen ended the run: {summary['error']}"
    assert "run the same command again" in lines[1]
    assert any("at jobs/cli.py:" in line for line in lines)  # where it was, in this project
    assert len(lines) < 20
    assert "DAGScheduler.scala" not in streams.err
    assert "more" not in lines[-1]


# What a terminal obeys, what reorders a line, and bytes of a file name that are not UTF-8.
HOSTILE = [
    "\x1b]0;t\x07",
    "\x1b[2J",
    "\r",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\u200f",
    "\0",
    "\x7f",
    "\udcff",
    "e" + "\u0301" * 9,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_terminal_obeys_a_name(text, capsys):
    cli.log_progress(f"reading {text}.pcap\nready: 0 errors")
    cli.write_output(f"{text}\nsecond\n")
    with pytest.raises(SystemExit):
        cli.build_base_parser("a_job", None).parse_args(["--lake", "x", text])

    def run(_):
        raise ConfigError(text)

    run_a_job(["--lake", "x"], run)
    run_a_job(["--lake", "x"], lambda _: 1 // text)
    streams = capsys.readouterr()
    assert text not in streams.out + streams.err
    lines = [*streams.out.split("\n"), *streams.err.split("\n")]
    assert [line for line in lines if not line.isprintable()] == []
    assert "second" in lines
    assert streams.err.startswith("reading ")
    assert "<U+000A>ready" in streams.err.split("\n")[0]  # one call, one line


def test_what_the_encoding_of_a_terminal_lacks_is_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding="ascii"))
    cli.log_progress("Aufträge\u202e")
    assert written.getvalue() == b"Auftr\\xe4ge<U+202E>\n"


def test_only_the_command_line_writes_to_the_terminal(project):
    """So that everything is escaped."""
    paths = [path for package in ("jobs", "pipeline", "schemas", "udfs") for path in (project / package).rglob("*.py")]
    named = {path.name for path in paths if re.search(r"sys\.(stdout|stderr)|\bprint\(", path.read_text())}
    assert named == {"cli.py"}


@pytest.mark.parametrize(
    ("error", "shown"),
    [(ValueError("srv1"), "ValueError"), (OSError(28, "No space left", "srv1"), "OSError: No space left")],
)
def test_a_redacting_run_shows_no_message_of_an_exception(capsys, error, shown):
    def run(_):
        raise error

    assert run_a_job(["--lake", "x", "--set", "privacy.redact=[hosts]"], run) == 4
    streams = capsys.readouterr()
    assert json.loads(streams.out)["error"] == shown
    assert "srv1" not in streams.out + streams.err


def test_an_exception_without_a_message_is_told_by_its_type(capsys):
    def run(_):
        raise ZeroDivisionError

    assert run_a_job(["--lake", "x"], run) == 4
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError"


@pytest.mark.parametrize("cleaning_up", ["pass", "raise ConnectionError('Java is gone')"])
def test_ctrl_c_is_one_line_and_130(cleaning_up):
    """Also if the clean-up fails, because Spark has gone."""
    code = f"""
import sys, time
from jobs import cli
def run(_):
    try:
        cli.log_progress("reading")
        time.sleep(60)
    finally:
        {cleaning_up}
sys.exit(cli.run_job("a_job", cli.build_base_parser("a_job", ""), run, ["--lake", "x"]))
"""
    running = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr.readline() == "reading\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "a_job: interrupted; run again to continue\n")


def test_ctrl_c_means_after_a_job_what_it_meant_before():
    before = signal.getsignal(signal.SIGINT)
    run_a_job(["--lake", "x"])
    assert signal.getsignal(signal.SIGINT) is before


PRINTING = """
import sys
from jobs import cli
def run(_):
    for _ in range(1000):
        cli.write_output("found " * 100 + "\\n")
    return cli.Outcome(failures=1)
sys.exit(cli.run_job("a_job", cli.build_base_parser("a_job", ""), run, ["--lake", "x"]))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["-c", PRINTING], 3), (["-m", "jobs", "--help"], 0), (["-m", "jobs", "--version"], 0)]
    + [(["-m", "jobs", name, "--help"], 0) for name in ("run_all", "alerts")],
)
def test_a_reader_of_the_output_that_has_gone_is_no_failure(arguments, code):
    """As with ``| head``: nothing is printed, and the exit code is that of the job."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=PROJECT_ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (code, b"")


def test_help_is_no_failure(capsys):
    assert run_a_job(["--help"]) == ExitCode.OK
    assert "--captures" in capsys.readouterr().out
