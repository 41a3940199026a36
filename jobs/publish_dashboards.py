"""Write dashboards of a lake: an HTML page, Prometheus metrics and a Databricks dashboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs import cli
from jobs.alerts import alert_thresholds
from jobs.command_line import redaction
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.alerts.conditions import Thresholds
from pipeline.dashboards.dashboard_data import MAX_DATASET_ROWS
from pipeline.dashboards.databricks import dashboard_json
from pipeline.dashboards.html_page import PageError, page_code_digest, render_page
from pipeline.dashboards.problems import count_problems
from pipeline.dashboards.prometheus import render_metrics
from pipeline.dashboards.read_datasets import RowLimits, read_dashboard_data
from pipeline.lake.lake import Lake
from pipeline.lake.versions import versions_by_name
from pipeline.lake.watermarks import WITHOUT_WATERMARK
from pipeline.silver.machine_names import DeclaredNames, names_digest
from schemas import catalog
from schemas.sessions import CHECKPOINT_TABLES

JOB = "publish_dashboards"
PAGE_FILE, METRICS_FILE, DASHBOARD_FILE = "index.html", "metrics.prom", "msmq.lvdash.json"
_PROVENANCE_FILE = ".provenance.json"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Read the lake and write its pages."""
    lake = open_lake_with_data(job_run)
    names = redaction.load_names_for(job_run, lake)
    return publish_pages(job_run, lake, Path(job_run.arguments.out), names, rows=job_run.arguments.rows)


def publish_pages(
    job_run: cli.JobRun, lake: Lake, out: Path, names: DeclaredNames = (), *, rows: int = MAX_DATASET_ROWS,
    allow_empty: bool = False,
) -> cli.Outcome:  # fmt: skip
    """Write the pages of a lake to a folder, unless they are already there and up to date.

    ``names``: declared ones of machines.

    The pages of a lake without tables say that nothing was read; without ``allow_empty`` they are an error of usage.
    So is a folder in which a page would replace a file that jobs read.
    Each file is replaced atomically. Their provenance is stored beside them: table versions, options and program.
    """
    if not (out / _PROVENANCE_FILE).exists():  # else the files are pages
        check_outputs(job_run, lake, [out / name for name in (PAGE_FILE, METRICS_FILE, DASHBOARD_FILE)])
    thresholds = alert_thresholds(job_run.config, names)
    provenance = _page_provenance(lake, names, rows, job_run.arguments.as_of, thresholds)
    if (unchanged := _unchanged_pages(out, provenance)) is not None:
        cli.log_progress("the pages are up to date")
        return cli.Outcome(summary_fields=unchanged)
    cli.log_progress("reading the data of the pages")
    limits = RowLimits()._replace(dataset_rows=rows)
    site = read_dashboard_data(
        lake,
        limits=limits,
        published_at=job_run.started_at,
        as_of=job_run.arguments.as_of,
        names=names,
        thresholds=thresholds,
    )
    if not allow_empty and all(data.rows is None for data in site.datasets.values()):
        raise ConfigError(f"{lake.root} holds no tables; run 'msmq run_all' first")
    try:
        texts = {PAGE_FILE: render_page(site), METRICS_FILE: render_metrics(site), DASHBOARD_FILE: dashboard_json(lake)}
        out.mkdir(parents=True, exist_ok=True)
        written = {name: _replace_file(out / name, text) for name, text in texts.items()}
        truncated = {name: data.total_rows for name, data in site.datasets.items() if data.truncated}
        problems = [f"#{section}  {what}" for section, what in count_problems(site)]
        summary = {"site": str(out / PAGE_FILE), "written_bytes": written, "cut": truncated, "attention": problems}
        _replace_file(out / _PROVENANCE_FILE, json.dumps({"provenance": provenance, "summary": summary}))
    except PageError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or out}: {error.strerror or error}") from error
    cli.log_progress(f"the pages are in {(out / PAGE_FILE).resolve().as_uri()}")
    for name, data in site.datasets.items():
        if data.rows is not None and data.truncated:
            shown = f"{data.rows.num_rows} of {data.total_rows} rows"
            cli.log_progress(f"  {name}: the page has {shown}; totals are of all rows")
    return cli.Outcome(summary_fields=summary)


def _page_provenance(
    lake: Lake, names: DeclaredNames, rows: int, as_of: datetime | None, thresholds: Thresholds
) -> dict[str, Any]:
    tables = [table for table in catalog.ALL_TABLES if table not in (*WITHOUT_WATERMARK, *CHECKPOINT_TABLES)]
    options = {"lake": lake.path(tables[0]), "rows": rows, "as_of": str(as_of), "names": names_digest(names)}
    options |= {"recent": str(thresholds.failure_window)}
    return {
        **options,
        "tables": versions_by_name(lake.versions.newest_commits(*tables), tables),
        "program": page_code_digest(),
    }


def _unchanged_pages(out: Path, provenance: dict[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the existing pages if they have the same provenance and sizes, else None."""
    try:
        stored = json.loads((out / _PROVENANCE_FILE).read_text(encoding="utf-8"))
        sizes = {name: (out / name).stat().st_size for name in (PAGE_FILE, METRICS_FILE, DASHBOARD_FILE)}
        same = stored["provenance"] == provenance and stored["summary"]["written_bytes"] == sizes
        return dict(stored["summary"]) if same else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def highlight_lines(published: cli.Outcome) -> list[str]:
    """Return lines for the terminal: the address of the page, and the problems that it shows."""
    site = Path(published.summary_fields["site"]).resolve().as_uri()
    return [f"site      {site}", *(f"  {line}" for line in published.summary_fields["attention"])]


def _replace_file(path: Path, text: str) -> int:
    data = text.encode("utf-8")
    with replace_file(path) as out:
        out.write(data)
    return len(data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
