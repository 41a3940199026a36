"""Bring snapshot files that the collector landed into the bronze tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs import cli, redaction
from jobs.config import ConfigError
from jobs.lake_access import alone, open_lake
from pipeline.bronze import ingest_snapshots
from pipeline.bronze.input_files import InputError, Listed, list_files
from pipeline.lake.lake import Lake
from pipeline.silver import hosts
from schemas.bronze import QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW

JOB = "ingest_snapshots"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__, snapshots=True)
    redaction.add_argument(made)
    return made


def snapshot_files(run: cli.Run) -> list[Listed]:
    """Return the snapshot files of the command line."""
    try:
        return list_files(run.arguments.snapshots)
    except InputError as error:
        raise ConfigError(str(error)) from error


def ingest(run: cli.Run, lake: Lake, files: list[Listed], outcome: cli.Outcome) -> None:
    """Read what is new into bronze and count it. Broken lines are flagged and no failure, an unreadable file is one."""
    done = ingest_snapshots.ingest(lake, files, run_id=run.run_id, say=cli.say)
    outcome.bytes_read += sum(row["size_bytes"] for row in done.files)
    outcome.input_failed |= done.unreadable
    for row in done.files:
        if row["error"] is not None:
            cli.say(f"{row['path']}: {row['status']}: {row['error']}")
        if row["quarantined"]:
            cli.say(f"{row['path']}: {row['quarantined']} of {row['lines']} lines are no snapshots")
    unreadable = sum(row["status"] != "complete" for row in done.files)
    for table, flagged in ((SNAPSHOTS_RAW, 0), (SNAPSHOT_FILES, unreadable)):
        outcome.tables[str(table)] = cli.TableCounts(
            sum(row["lines"] for row in done.files), done.written.get(str(table), 0), flagged
        )
    broken = done.written.get(str(QUARANTINE), 0)
    counts = outcome.tables.setdefault(str(QUARANTINE), cli.TableCounts())
    counts.rows_out += broken
    counts.rows_flagged += broken


def run(this: cli.Run) -> cli.Outcome:
    """Read the snapshot files of the command line into the lake's bronze tables."""
    if not this.arguments.snapshots:
        raise ConfigError("no snapshots: --snapshots takes files, folders and patterns")
    by = redaction.pseudonyms(this)
    files = snapshot_files(this)
    outcome = cli.Outcome()
    lake = open_lake(this)
    with alone(this, lake), redaction.apart(this, lake, by, files) as own:
        ingest(this, lake if own is None else own.apart, files, outcome)
        if own is not None:
            hosts.collected_snapshots(own.apart)
            own.bring(run_id=this.run_id, read=())
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
