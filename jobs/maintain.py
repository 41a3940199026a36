"""Keep a lake small and fast: join small files, and remove files that nothing needs any more.

Files that are removed are those of table versions and change feeds older than the retention, and those that killed runs
left. No row changes: the next run finds nothing new. Another run that works on the lake is waited for. In a catalog it
also removes what the catalog still kept of rows that ``forget`` deleted, as far as their time is over.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from jobs import cli
from jobs.command_line.parsers import build_parser
from jobs.lake_access import lake_lease, open_lake_with_data
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.privacy.retained_history import is_noted, remove_history
from pipeline.runs.lease_table import LEASE, lease_location
from pipeline.runs.recovery import undo_unfinished_runs
from schemas.bronze import CAPTURE_FILES
from schemas.catalog import ALL_TABLES

JOB = "maintain"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Maintain every table of the lake."""
    lake, retain = open_lake_with_data(job_run), timedelta(days=job_run.arguments.retain_days)
    outcome = cli.Outcome()
    with lake_lease(job_run, lake, outcome):
        undo_unfinished_runs(lake, BRONZE_TABLES, CAPTURE_FILES, cli.log_progress)
        tables = [table for table in ALL_TABLES if lake.exists(table)]
        if lease_location(lake) is not None:  # it holds the lease of this run
            tables.append(LEASE)
        for table in tables:
            cli.log_progress(f"maintaining {table}")
            lake.maintain(table, retain)
        if not lake.owns_files and is_noted(lake):
            cli.write_output("\n".join(remove_history(lake, datetime.now(UTC))) + "\n")
    cli.write_output(f"{len(tables)} tables maintained; versions of the last {retain.days} days can be read\n")
    outcome.summary_fields["tables_maintained"] = len(tables)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
