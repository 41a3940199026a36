"""Write a report on the estate: who sends what to whom, and what a move away from Message Queuing would need.

It is one HTML page, with a CSV file for each of its tables, of what was captured and reported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from jobs import cli
from jobs.analysis.row_formats import csv_parts, without_formulas
from jobs.command_line.answers import lake_views
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.bronze.event_time import newest_event_time
from pipeline.dashboards.estate.page import render_report
from pipeline.dashboards.estate.report import REPORT_VIEWS, EstateReport, read_report
from pipeline.reports.lake_options import lake_options
from pipeline.reports.targets.target_file import MoveTarget, TargetError, bundled_targets, read_targets
from pipeline.reports.views.scope import Scope

JOB: Final = "report_estate"
PAGE_FILE: Final = "estate.html"
VERDICTS_FILE: Final = "estate_verdicts.csv"
_LINE_END: Final = "\r\n"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Read the views and write the files; nothing is written to the lake."""
    arguments = job_run.arguments
    targets = _targets(arguments.targets)
    lake = open_lake_with_data(job_run)
    out = Path(arguments.out)
    files = {name: out / name for name in (PAGE_FILE, *(f"{view}.csv" for view in REPORT_VIEWS), VERDICTS_FILE)}
    check_outputs(job_run, lake, files.values())
    cli.log_progress("reading the views of the estate")
    now = arguments.as_of or newest_event_time(lake)
    scope = Scope(None if now is None else now - arguments.last, now)
    report = read_report(
        replace(lake_views(job_run.config, lake, now), scope=scope),
        targets,
        arguments.time_zone,
        lake_options=lake_options(lake, arguments.lake),
        published_at=job_run.started_at,
    )
    written = _write(files, report)
    cli.log_progress(f"the report is in {files[PAGE_FILE].resolve().as_uri()}")
    rows = {name: table.num_rows for name, table in report.views.items()}
    return cli.Outcome(summary_fields={"page": str(files[PAGE_FILE]), "written_bytes": written, "rows": rows})


def _targets(paths: Sequence[str]) -> Sequence[MoveTarget]:
    try:
        return read_targets([*map(Path, paths)]) if paths else bundled_targets()
    except TargetError as error:
        raise ConfigError(str(error)) from error


def _write(files: Mapping[str, Path], report: EstateReport) -> dict[str, int]:
    """Write all files, of which none takes its place before all are written; return their sizes by name."""
    tables = {f"{name}.csv": rows for name, rows in report.views.items()}
    tables[VERDICTS_FILE] = report.verdict_rows
    page = render_report(report).encode()
    try:
        files[PAGE_FILE].parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            opened = {name: stack.enter_context(replace_file(path)) for name, path in files.items()}
            opened[PAGE_FILE].write(page)
            for name, rows in tables.items():
                for part in csv_parts([without_formulas(rows)], rows.column_names, _LINE_END):
                    opened[name].write(part.encode())
    except OSError as error:
        raise ConfigError(f"{error.filename or files[PAGE_FILE].parent}: {error.strerror or error}") from error
    return {name: path.stat().st_size for name, path in files.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
