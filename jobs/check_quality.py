"""Check the changed rows against the expectations in conf/quality; exit with 1 on an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import lake_lease, open_lake_with_data
from pipeline.lake.lake import Lake
from pipeline.quality.check import CheckOptions, CheckResult, check_suites
from pipeline.quality.results_page import render_results
from pipeline.quality.suites import Suite, SuiteError, bundled_suites, read_suites
from schemas.quality import QUALITY_RESULTS

JOB = "check_quality"
PAGE_FILE = "index.html"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Check the lake, print the expectations that failed and, if asked, write a page of the results."""
    suites = select_suites(job_run)
    lake = open_lake_with_data(job_run)
    page = Path(job_run.arguments.docs, PAGE_FILE) if job_run.arguments.docs else None
    if page is not None:
        check_outputs(job_run, lake, [page])
    outcome = cli.Outcome()
    with lake_lease(job_run, lake, outcome):
        all_rows = job_run.arguments.all or page is not None
        found = check_lake(job_run, lake, suites, all_rows=all_rows, check_freshness=True)
        add_results(outcome, found)
    lines = found.summary_lines() or ["quality   nothing changed since the last check, which found no error"]
    cli.write_output("\n".join(lines) + "\n")
    if page is not None:
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(page) as out:
                out.write(render_results(found.rows).encode())
        except OSError as error:
            raise ConfigError(f"--docs: {error}") from error
        cli.log_progress(f"page: {page}")
    return outcome


def select_suites(job_run: cli.JobRun) -> tuple[Suite, ...]:
    """Load the suites: from ``quality.suites``, else from ``quality`` beside the settings file, else the bundled."""
    configured, conf = job_run.config.quality.suites, job_run.arguments.conf
    beside_conf = Path(conf).parent / "quality" if conf else None
    try:
        if configured is not None:
            return read_suites(configured)
        return read_suites(beside_conf if beside_conf is not None and beside_conf.is_dir() else bundled_suites())
    except SuiteError as error:
        raise ConfigError(str(error)) from error


def check_lake(
    job_run: cli.JobRun, lake: Lake, suites: Sequence[Suite], *, all_rows: bool = False, check_freshness: bool = False
) -> CheckResult:
    """Check a lake whose lease is held; ConfigError if a suite does not fit its tables.

    ``all_rows`` checks all rows instead of the changed ones. ``check_freshness`` also checks the suites that compare
    with the clock.
    """
    machines = tuple(machine.name for machine in job_run.config.collector.machines)
    options = CheckOptions(
        job_run.run_id,
        job_run.started_at,
        job_run.arguments.as_of or job_run.started_at,
        machines,
        all_rows=all_rows,
        include_clock_suites=check_freshness,
    )
    try:
        return check_suites(lake, suites, options)
    except SuiteError as error:
        raise ConfigError(str(error)) from error


def add_results(outcome: cli.Outcome, found: CheckResult) -> None:
    """Add the results of a check to an outcome: the quality gate fails if an expectation of severity error failed."""
    failed = found.failed_rows()
    counts = cli.TableCounts(
        rows_in=sum(row["evaluated"] for row in found.rows), rows_out=len(found.rows), rows_flagged=len(failed)
    )
    outcome.tables[str(QUALITY_RESULTS)] = counts
    outcome.quality_failed |= found.gate_failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
