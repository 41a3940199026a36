"""Erase all data older than a date: from every table, from old table versions, and from the pages.

First the rows of bronze are deleted, and silver and gold are updated as in an ordinary run. Then the bytes are removed:
deleted rows, old versions, change data, log entries and spooled captures. Later runs read nothing that is older, even
from captures that are still in their folders. A job that was killed can be repeated. A catalog that owns the files of
its tables keeps bytes for a while: the job says until when, and removes them when it is repeated then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from jobs import check_quality, cli, publish_dashboards, run_all
from jobs.command_line import redaction
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import lake_lease, open_lake_with_data
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.lake import Lake
from pipeline.notices.kept_lines import KeptLines
from pipeline.privacy import erasure, retention
from pipeline.privacy.retained_history import DeletionNote, is_noted, remove_history
from pipeline.runs.recovery import RunMarkers, undo_unfinished_runs
from pipeline.silver.machine_names import DeclaredNames
from schemas.bronze import CAPTURE_FILES

JOB = "forget"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Delete old rows, update silver and gold, erase the bytes, and rewrite the pages."""
    cutoff = RetentionCutoff(job_run.arguments.before)
    for folder in map(Path, job_run.arguments.docs):
        if folder.exists() and not (folder / "index.html").exists():
            raise ConfigError(
                f"--docs {folder}: no page of check_quality, for there is no index.html; nothing was removed"
            )
    pseudonymizer = redaction.load_pseudonymizer(job_run)
    names = redaction.load_names(job_run.config, pseudonymizer)
    lake = open_lake_with_data(job_run)
    apply_retention = partial(retention.apply_retention, lake, max_time_ahead=job_run.config.ingest.max_time_ahead)
    outcome = cli.Outcome()
    if job_run.arguments.dry_run:
        _report_rows(apply_retention(cutoff, dry_run=True), "would be removed", outcome)
        return outcome
    with lake_lease(job_run, lake, outcome), redaction.check_redaction_matches(job_run, lake, pseudonymizer):
        # Otherwise the next run would restore table versions that have the old rows.
        undo_unfinished_runs(lake, BRONZE_TABLES, CAPTURE_FILES, cli.log_progress)
        note = None if lake.owns_files else DeletionNote.begin(lake)
        runs = RunMarkers.of(lake)
        earlier = RetentionCutoff.load(runs)
        if earlier is not None and earlier.first_kept_date > cutoff.first_kept_date:
            cli.log_progress(f"everything before {earlier.first_kept_date} was already erased")
            cutoff = earlier
        cutoff.save(runs)  # before anything else: from now on no run reads older data
        cli.log_progress(f"deleting rows older than {cutoff.first_kept_date}")
        _report_rows(apply_retention(cutoff), "removed", outcome)
        redacted_run = replace(job_run, config=redaction.redact_config(job_run.config, pseudonymizer))
        run_all.update_silver_and_gold(redacted_run, lake, cli.Outcome(), names)
        spooled = _remove_spooled_captures(lake, cutoff)
        cli.log_progress("erasing deleted rows, old versions, change data and logs")
        tables = erasure.erase_history(lake)
        if note is not None:
            note.end(datetime.now(UTC))
            _report_history(lake, outcome)
        erasure.remove_leftover_files(lake)
        KeptLines(lake.folder).forget(cutoff.first_kept_date)
        redaction.remove_left_scratch_lakes(job_run, lake)
        outcome.summary_fields |= {
            "before": cutoff.first_kept_date.isoformat(),
            "tables_erased": tables,
            "spooled_removed": spooled,
        }
        _republish_pages(job_run, lake, names)
    return outcome


def _report_rows(result: retention.RetentionResult, what: str, outcome: cli.Outcome) -> None:
    """Print the removed rows by table and add them to the outcome; ``what`` ends each line."""
    removed = {table: rows for table, rows in result.rows_removed.items() if rows}
    lines = [f"{table:<24}{rows:>12} rows {what}" for table, rows in removed.items()]
    if result.emptied_file_count:
        lines.append(f"{result.emptied_file_count} files stay in the ledgers as already read, without their contents")
    cli.write_output("\n".join(lines or ["nothing is older"]) + "\n")
    outcome.summary_fields["forgotten"] = removed


def _report_history(lake: Lake, outcome: cli.Outcome) -> None:
    """Remove what a catalog lets go by now; print what it still keeps, and until when."""
    lines = remove_history(lake, datetime.now(UTC))
    cli.write_output("\n".join(lines) + "\n")
    outcome.summary_fields["retained"] = is_noted(lake)


def _remove_spooled_captures(lake: Lake, cutoff: RetentionCutoff) -> int:
    """Remove spooled captures that contain older packets or have no row in the ledger; return their number."""
    folder = Path(lake.root) / "_spool"
    if lake.folder.is_remote or not folder.is_dir():
        return 0
    kept = {
        row["path"]
        for row in lake.select(CAPTURE_FILES, "TRUE", ("path", "first_packet_at", "last_packet_at")).to_pylist()
        if not cutoff.affects_capture(row)
    }
    removed = [path for path in sorted(folder.iterdir()) if str(path) not in kept]
    for path in removed:
        path.unlink(missing_ok=True)
    return len(removed)


def _republish_pages(job_run: cli.JobRun, lake: Lake, names: DeclaredNames = ()) -> None:
    """Rewrite the pages, and remove pages of check_quality because they quote rows."""
    lake_pages = Path(lake.root) / "pages"
    has_pages = not lake.folder.is_remote and lake_pages.is_dir()
    for folder in dict.fromkeys([*([lake_pages] if has_pages else []), *map(Path, job_run.arguments.pages)]):
        publish_dashboards.publish_pages(job_run, lake, folder, names)
    for folder in map(Path, job_run.arguments.docs):
        (folder / check_quality.PAGE_FILE).unlink(missing_ok=True)  # and nothing else of a folder that was misspelt
        with suppress(OSError):
            folder.rmdir()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
