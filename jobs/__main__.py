"""The ``msmq`` command: ``msmq JOB [OPTION ...]`` runs one job. ``python -m jobs JOB ...`` does the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import jobs
from jobs import cli
from jobs.command_line.parsers import PARSERS, build_parser, list_jobs, module_of
from jobs.command_line.python_daemon import preload_modules
from jobs.config import ConfigError


def usage_text() -> str:
    """Return the help text of ``msmq``: its usage and one line for each job."""
    descriptions = list_jobs()
    width = max(map(len, descriptions))
    lines = [f"  {name:{width}}  {description}" for name, description in sorted(descriptions.items())]
    return "\n".join(
        [
            "usage: msmq JOB [OPTION ...]",
            "",
            *lines,
            "",
            "msmq JOB --help lists the options of a job, msmq --version prints the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job named by the first argument with the remaining arguments; return its exit code.

    The arguments are parsed before the job's module is imported, so help and wrong usage do not need Spark.
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in {"-h", "--help"}:
        cli.write_output(usage_text() + "\n")
        return 0
    if name == "--version":
        cli.write_output(f"msmq {jobs.__version__}\n")
        return 0
    name = name.replace("-", "_")
    if name not in PARSERS:
        cli.log_progress(f"msmq: no such job: {name}; msmq --help lists them")
        return 2
    return cli.run_job(name, build_parser(name), lambda job_run: _load_and_run(name, job_run), arguments)


def _load_and_run(name: str, job_run: cli.JobRun) -> cli.Outcome:
    """Import the module of a job and run it; ConfigError if a package that it needs is not installed.

    PySpark is one for either engine: frames and schemas are PySpark's, also where no Java starts.
    """
    try:
        preload_modules(module_of(name))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ConfigError(
            f"the package {package} is not installed: run 'make setup', or install the wheel with its extra [spark]"
        ) from error
    outcome: cli.Outcome = import_module(module_of(name)).run(job_run)
    return outcome


def run_databricks_task() -> None:
    """Run a job as a Databricks wheel task: exit only with the code of a failure.

    Databricks counts every SystemExit as a failure, even one with code 0. That nothing was captured of what was asked
    for is none.
    """
    if (code := main()) not in (cli.ExitCode.OK, cli.ExitCode.NOTHING_CAPTURED):
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
