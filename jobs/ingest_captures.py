"""Bring RPC calls cut from packet captures into the bronze tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli, redaction
from jobs.config import Config, ConfigError
from jobs.keys import load_keys
from jobs.lake_access import alone, open_lake
from pipeline.bronze import ingest_captures
from pipeline.bronze.decryption import Keys, open_sealed
from pipeline.bronze.input_files import InputError, Listed, is_pipe, list_files, spool
from pipeline.lake.lake import Lake
from pipeline.silver import update as silver_update
from pipeline.silver.decode_tasks import Decoded, Decoder
from schemas.bronze import CAPTURE_FILES, QUARANTINE, RPC_CALLS

JOB = "ingest_captures"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__, captures=True)
    redaction.add_argument(made)
    return made


def captures(run: cli.Run, lake_root: str) -> list[Listed]:
    """Return the capture files of the command line; standard input and named pipes are spooled first."""
    uris = run.arguments.captures
    if not uris and run.arguments.reprocess is None:
        if getattr(run.arguments, "snapshots", None):
            return []  # those alone, then
        raise ConfigError("no captures: --captures takes files, folders, patterns or - for standard input")
    limit = run.config.capture.spool_bytes
    try:
        folder = redaction.spool_folder(run, lake_root) or Path(lake_root) / "_spool"
        return list_files([str(spool(uri, folder, limit)) if is_pipe(uri) else uri for uri in uris])
    except InputError as error:
        raise ConfigError(str(error)) from error


def reader_options(config: Config) -> dict[str, object]:
    """Return the settings that the data source takes."""
    capture = config.capture
    return {
        "reorder_window_s": capture.reorder_window_s,
        "block_bytes": int(capture.block_bytes),
        "max_expansion": capture.max_expansion,
        "max_expanded_bytes": int(capture.max_expanded_bytes),
    }


def keys_of(run: cli.Run) -> Keys:
    """Return the keys that the command line or the environment names."""
    return load_keys(run.arguments.keys, cli.say)


def ingest(
    run: cli.Run, lake: Lake, files: list[Listed], outcome: cli.Outcome, keys: Keys | None = None,
    decoder: Decoder | None = None,
) -> ingest_captures.Ingested:  # fmt: skip
    """Read what is new into bronze and count it; then open what keys open of what is closed.

    ``decoder``: for what ``decode`` is to bring to silver afterwards; not used with keys, for they change calls first.
    """
    chosen = run.arguments
    done = ingest_captures.ingest(
        lake,
        files,
        run_id=run.run_id,
        reader_options=reader_options(run.config),
        say=cli.say,
        expire=run.config.pending.expire,
        as_of=chosen.as_of,
        choice=ingest_captures.Choice(chosen.between, chosen.reprocess, chosen.dry_run),
        tap=None if keys else decoder,
    )
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
    for table in map(str, ingest_captures.BRONZE):
        outcome.tables[table] = cli.TableCounts(0, done.written.get(table, 0), flagged.get(table, 0))
    if keys and not chosen.dry_run:
        opened = open_sealed(lake, keys, run_id=run.run_id, say=cli.say)
        outcome.more["sealed"] = opened
        outcome.tables[str(RPC_CALLS)].rows_out += sum(opened.values())
    return done


def decoder(run: cli.Run, lake: Lake) -> Decoder | None:
    """Return what decodes calls while they are read, to be given to ``ingest``; None where nothing is to be written."""
    if run.arguments.dry_run:
        return None
    return silver_update.decoder(lake, keep_packets=run.config.store.packets, keep_bodies=run.config.store.bodies)


def decode(run: cli.Run, lake: Lake, *, keep_stubs: bool, decoded: Decoded | None = None) -> dict[str, int]:
    """Bring what is new in bronze.rpc_calls to silver; how many rows of each table were written.

    ``decoded``: what ``ingest`` decoded already.
    """
    store = run.config.store
    return silver_update.silver(
        lake, keep_packets=store.packets, keep_bodies=store.bodies, keep_stubs=keep_stubs, decoded=decoded
    )


def run(this: cli.Run) -> cli.Outcome:
    """Read the captures of the command line into the lake's bronze tables.

    Where names are redacted silver is made as well, for afterwards there are no stubs to make it of.
    """
    keys, by = keys_of(this), redaction.pseudonyms(this)
    files = captures(this, this.arguments.lake)
    outcome = cli.Outcome()
    lake = open_lake(this)
    with alone(this, lake), redaction.apart(this, lake, by) as own:
        if own is None:
            ingest(this, lake, files, outcome, keys)
            return outcome
        while_writing = decoder(this, own.apart)
        done = ingest(this, own.apart, files, outcome, keys, while_writing)
        if not this.arguments.dry_run:
            decode(this, own.apart, keep_stubs=True, decoded=Decoded.of(while_writing, done.tapped))
            own.bring(run_id=this.run_id, read={row["path"] for row in done.files})
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
