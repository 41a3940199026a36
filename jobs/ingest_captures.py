"""Bring RPC calls cut from packet captures into the bronze tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.config import Config, ConfigError
from jobs.session import one_origin, session
from pipeline import bronze
from pipeline.lake import Lake
from pipeline.listing import InputError, Listed, is_pipe, list_files
from pipeline.spool import spool
from schemas.bronze import CAPTURE_FILES, QUARANTINE, RPC_CALLS

JOB = "ingest_captures"


def parser() -> cli.Parser:
    """Return the job's command line."""
    return cli.parser(JOB, __doc__, captures=True)


def captures(run: cli.Run, lake_root: str) -> list[Listed]:
    """Return the capture files of the command line; standard input and named pipes are spooled first."""
    uris = run.arguments.captures
    if not uris:
        raise ConfigError("no captures: --captures takes files, folders, patterns or - for standard input")
    limit = run.config.capture.spool_bytes
    try:
        return list_files([str(spool(uri, Path(lake_root) / "_spool", limit)) if is_pipe(uri) else uri for uri in uris])
    except InputError as error:
        raise ConfigError(str(error)) from error


def open_lake(run: cli.Run) -> Lake:
    """Return the lake that arguments and settings name, with a session for it."""
    one_origin()
    config = run.config.lake
    return Lake(session(JOB), run.arguments.lake, catalog=config.catalog, prefix=config.prefix)


def reader_options(config: Config) -> dict[str, object]:
    """Return the settings that the data source takes."""
    capture = config.capture
    return {
        "reorder_window_s": capture.reorder_window_s,
        "block_bytes": int(capture.block_bytes),
        "max_expansion": capture.max_expansion,
        "max_expanded_bytes": int(capture.max_expanded_bytes),
    }


def ingest(run: cli.Run, lake: Lake, files: list[Listed], outcome: cli.Outcome) -> bronze.Ingested:
    """Read what is new into bronze and count it."""
    done = bronze.ingest(lake, files, run_id=run.run_id, reader_options=reader_options(run.config), say=cli.say)
    outcome.bytes_read += sum(row["size_bytes"] for row in done.files)
    outcome.input_failed |= done.unreadable
    for row in done.files:
        if row["status"] != "complete":
            cli.say(f"{row['path']}: {row['status']}: {row['error']}")
    flagged = {
        str(RPC_CALLS): sum(row["calls_damaged"] for row in done.files),
        str(CAPTURE_FILES): sum(row["status"] != "complete" for row in done.files),
        str(QUARANTINE): done.written.get(str(QUARANTINE), 0),
    }
    for table in map(str, bronze.BRONZE):
        outcome.tables[table] = cli.TableCounts(0, done.written.get(table, 0), flagged.get(table, 0))
    return done


def run(this: cli.Run) -> cli.Outcome:
    """Read the captures of the command line into the lake's bronze tables."""
    files = captures(this, this.arguments.lake)
    outcome = cli.Outcome()
    ingest(this, open_lake(this), files, outcome)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
