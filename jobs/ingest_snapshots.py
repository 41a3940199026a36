"""Read snapshot files of the collector into the bronze tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jobs import cli
from jobs.command_line import redaction
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import lake_lease, open_lake
from pipeline.bronze import ingest_snapshots
from pipeline.bronze.input_files import InputError, InputFile, list_files
from pipeline.lake.lake import Lake
from pipeline.silver import hosts
from schemas.bronze import QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW

JOB = "ingest_snapshots"


def list_snapshot_files(job_run: cli.JobRun, outcome: cli.Outcome) -> list[InputFile]:
    """List the snapshot files named on the command line."""
    try:
        return list_files(job_run.arguments.snapshots, outcome.report_unreadable)
    except InputError as error:
        raise ConfigError(str(error)) from error


def read_snapshots_into_bronze(job_run: cli.JobRun, lake: Lake, files: list[InputFile], outcome: cli.Outcome) -> None:
    """Read new snapshot files into bronze and add the counts to ``outcome``.

    Broken lines go to quarantine and are not a failure. A file that cannot be read is one.
    """
    dry_run = getattr(job_run.arguments, "dry_run", False)
    done = ingest_snapshots.ingest(
        lake, files, run_id=job_run.run_id, log=cli.log_progress, dry_run=dry_run,
        max_time_ahead=job_run.config.ingest.max_time_ahead,
    )  # fmt: skip
    outcome.snapshots_read += len(done.file_rows)
    outcome.bytes_read += sum(row["size_bytes"] for row in done.file_rows)
    outcome.failures += done.unreadable_files
    for row in done.file_rows:
        if row["error"] is not None:
            cli.log_progress(f"{row['path']}: {row['status']}: {redaction.loggable_error(job_run, row['error'])}")
        if row["quarantined"]:
            cli.log_progress(f"{row['path']}: {row['quarantined']} of {row['lines']} lines are not snapshots")
    unreadable = sum(row["status"] != "complete" for row in done.file_rows)
    for table, flagged in ((SNAPSHOTS_RAW, 0), (SNAPSHOT_FILES, unreadable)):
        outcome.tables[str(table)] = cli.TableCounts(
            sum(row["lines"] for row in done.file_rows), done.rows_written.get(str(table), 0), flagged
        )
    broken = done.rows_written.get(str(QUARANTINE), 0)
    counts = outcome.tables.setdefault(str(QUARANTINE), cli.TableCounts())
    counts.rows_out += broken
    counts.rows_flagged += broken


def decode_snapshots_to_silver(
    job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome
) -> tuple[dict[str, int], Mapping[str, Any] | None]:
    """Decode new snapshots into silver; return the rows written by table and the provenance for silver.hosts."""
    failures: dict[str, str] = {}
    written, hosts_provenance = hosts.update_collected_snapshots(lake, failures)
    for path, why in failures.items():
        outcome.report_unreadable(f"{path}: unreadable: {redaction.loggable_error(job_run, why)}")
    return written, hosts_provenance


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Read the snapshot files named on the command line into bronze."""
    if not job_run.arguments.snapshots:
        raise ConfigError("no snapshots: --snapshots takes files, folders and patterns")
    pseudonymizer = redaction.load_pseudonymizer(job_run)
    outcome = cli.Outcome()
    files = list_snapshot_files(job_run, outcome)
    lake = open_lake(job_run)
    with (
        lake_lease(job_run, lake, outcome),
        redaction.open_scratch_lake(job_run, lake, pseudonymizer, files) as redacting,
    ):
        read_snapshots_into_bronze(job_run, lake if redacting is None else redacting.scratch_lake, files, outcome)
        if redacting is not None:
            decode_snapshots_to_silver(job_run, redacting.scratch_lake, outcome)
            redacting.publish(run_id=job_run.run_id, read_paths=())
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
