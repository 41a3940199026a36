"""Command line of all jobs: exit codes, errors in one line, and the summary as the last line of standard output."""

import json
from datetime import UTC, datetime

import pytest

from jobs import cli
from jobs.cli import ExitCode, Outcome, TableCounts
from jobs.config import ConfigError


def run_a_job(argv, run=lambda _: Outcome()):
    parser = cli.build_base_parser("a_job", "Does a thing.", captures=True, snapshots=True)
    return cli.run_job("a_job", parser, run, argv)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(), 0),
        (Outcome(quality_failed=True), 1),
        (Outcome(input_failed=True), 3),
        (Outcome(quality_failed=True, input_failed=True), 3),
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


def test_a_defect_of_ours_is_not_hidden():
    def run(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_a_job(["--lake", "x"], run)


def test_help_is_no_failure(capsys):
    assert run_a_job(["--help"]) == ExitCode.OK
    assert "--captures" in capsys.readouterr().out
