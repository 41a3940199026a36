"""Read packet captures into the bronze tables: connections, binds and RPC calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs import cli
from jobs.command_line import redaction
from jobs.command_line.key_file import load_keys
from jobs.command_line.parsers import build_parser
from jobs.command_line.private_folder import PRIVATE_FOLDER
from jobs.config import Config, ConfigError
from jobs.lake_access import lake_lease, open_lake
from pipeline.bronze import ingest_captures
from pipeline.bronze.input_files import InputError, InputFile, is_pipe, list_files, spool_pipe
from pipeline.bronze.ledger_entries import (
    count_unread_packets,
    holds_msmq,
    line_on_captures_without_msmq,
    lines_on_times_that_go_back,
)
from pipeline.decryption_keys import DecryptionKeys
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.silver import update as silver_update
from pipeline.silver.declaration_file import DeclarationError, load_declarations
from pipeline.silver.decode import DecodeSettings
from pipeline.silver.inline_decoders import NOTHING_DECODED, Decoded, InlineDecoders
from pipeline.transfers import update as transfers_update
from pipeline.transfers.session_rows import SessionSettings
from schemas.bronze import CAPTURE_FILES, QUARANTINE, RPC_CALLS

JOB = "ingest_captures"


def list_captures(job_run: cli.JobRun, lake_root: str, outcome: cli.Outcome) -> list[InputFile]:
    """List the capture files named on the command line; copy standard input and named pipes to files first."""
    uris = job_run.arguments.captures
    if not uris and job_run.arguments.reprocess is None:
        if getattr(job_run.arguments, "snapshots", None):
            return []  # a run that reads only snapshots
        raise ConfigError("no captures: --captures takes files, folders, patterns or - for standard input")
    limit = job_run.config.capture.spool_bytes
    try:
        folder, has_pipes = Path(lake_root) / "_spool", any(map(is_pipe, uris))
        only_for_the_run = job_run.config.privacy.redact or job_run.arguments.dry_run
        if has_pipes and not only_for_the_run and LakePath(lake_root).is_remote:
            raise ConfigError(f"{lake_root}: standard input and pipes are read into lakes in folders only")
        if has_pipes and only_for_the_run:
            subfolder = PRIVATE_FOLDER.subfolder(job_run.config.privacy.scratch_folder, "spool")
            folder = job_run.exit_stack.enter_context(subfolder)
        named = [str(spool_pipe(uri, folder, limit)) if is_pipe(uri) else uri for uri in uris]
        files = list_files(named, outcome.report_unreadable)
    except InputError as error:
        raise ConfigError(str(error)) from error
    if uris and not files:
        cli.log_progress(f"warning: there are no capture files in {', '.join(uris)}")
    return files


def reader_options(config: Config) -> dict[str, object]:
    """Return the options of the capture data source, from the settings."""
    capture = config.capture
    return {
        "reorder_window_s": capture.reorder_window_s,
        "max_clock_skew_s": capture.max_clock_skew.total_seconds(),
        "tunnel_ports": json.dumps({each.port: each.kind for each in capture.tunnel_ports}),
        "block_bytes": int(capture.block_bytes),
        "max_expansion": capture.max_expansion,
        "max_expanded_bytes": int(capture.max_expanded_bytes),
        "alone_memory_bytes": int(capture.alone_memory_bytes),
        "alone_file_bytes": int(capture.alone_file_bytes),
        "alone_seconds": capture.alone_timeout.total_seconds(),
    }


def load_decryption_keys(job_run: cli.JobRun) -> DecryptionKeys:
    """Load the decryption keys from the file named by --keys or the environment; no keys if none is named."""
    return load_keys(job_run.arguments.keys, cli.log_progress)


def read_captures_into_bronze(
    job_run: cli.JobRun, lake: Lake, files: list[InputFile], outcome: cli.Outcome, keys: DecryptionKeys | None = None,
    decoders: InlineDecoders | None = None,
) -> ingest_captures.CaptureIngestResult:  # fmt: skip
    """Read new captures into bronze, decrypt calls with the keys, and add the counts to ``outcome``.

    ``decoders`` decode calls and packets while they are written, for ``decode_calls_to_silver``; calls not with keys,
    which change them after they are written.
    """
    arguments = job_run.arguments
    observers = {} if decoders is None else decoders.observers()
    if keys:
        observers.pop(RPC_CALLS, None)
    done = ingest_captures.ingest(
        lake,
        files,
        run_id=job_run.run_id,
        reader_options=reader_options(job_run.config),
        log=cli.log_progress,
        pending_expiry=job_run.config.pending.expire,
        as_of=arguments.as_of,
        options=ingest_captures.IngestOptions(arguments.between, arguments.reprocess, arguments.dry_run),
        observers=observers,
        max_time_ahead=job_run.config.ingest.max_time_ahead,
        meter=cli.byte_meter,
    )
    outcome.captures_read += len(done.file_rows)
    outcome.packets_read += sum(row["packets"] or 0 for row in done.file_rows)
    outcome.bytes_read += sum(row["size_bytes"] for row in done.file_rows)
    outcome.failures += done.unreadable_files
    for row in done.file_rows:
        if row["status"] != "complete":
            cli.log_progress(f"{row['path']}: {row['status']}: {redaction.loggable_error(job_run, row['error'])}")
    not_read, lines = count_unread_packets(done.file_rows)
    for line in lines:
        cli.log_progress(f"warning: {line}")
    if not_read:
        outcome.summary_fields["packets_not_read"] = not_read
    if (without := _line_on_captures_without_msmq(lake, done.file_rows)) is not None:
        cli.log_progress(f"warning: {without}")
    if ahead := sum(row["packets_ahead"] for row in done.file_rows):
        cli.log_progress(f"warning: {ahead} packets are read without their times, which are ahead of the clock")
        outcome.summary_fields["packets_ahead"] = ahead
    for line in lines_on_times_that_go_back(done.file_rows):
        cli.log_progress(f"warning: {line}")
    flagged = {
        str(RPC_CALLS): sum(row["calls_damaged"] for row in done.file_rows),
        str(CAPTURE_FILES): sum(row["status"] != "complete" for row in done.file_rows),
        str(QUARANTINE): done.rows_written.get(str(QUARANTINE), 0),
    }
    for table in map(str, ingest_captures.BRONZE_TABLES):
        outcome.tables[table] = cli.TableCounts(0, done.rows_written.get(table, 0), flagged.get(table, 0))
    if keys and not arguments.dry_run:
        from pipeline.bronze.decryption import decrypt_calls  # noqa: PLC0415 - with ciphers, which few runs need

        decrypted = decrypt_calls(lake, keys, run_id=job_run.run_id, log=cli.log_progress)
        outcome.summary_fields["sealed"] = decrypted
        outcome.tables[str(RPC_CALLS)].rows_out += sum(decrypted.values())
    return done


def _line_on_captures_without_msmq(lake: Lake, rows_read: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a line on captures that a run read and that hold no MSMQ; None where all do.

    What was read of a capture before, and what other captures show of its connections, counts: the ledger has it.
    """
    paths = [row["path"] for row in rows_read if not holds_msmq(row)]
    if not paths or not lake.exists(CAPTURE_FILES):
        return None
    sql = "SELECT path, packets, packets_used, packets_binary_protocol FROM {rows} WHERE path IN {paths}"
    ledger = lake.query(sql, rows=CAPTURE_FILES, paths=paths)
    return line_on_captures_without_msmq(ledger.to_pylist())


def _decode_settings(config: Config) -> DecodeSettings:
    """Return the settings of decoding; ConfigError for a file of ``comqc.interfaces`` that cannot be read."""
    store = config.store
    try:
        declarations = load_declarations(config.comqc.interfaces)
    except DeclarationError as error:
        raise ConfigError(str(error)) from error
    return DecodeSettings(store.packets, store.bodies, store.application_headers, declarations)


def build_inline_decoders(job_run: cli.JobRun, lake: Lake) -> InlineDecoders | None:
    """Return decoders for ``read_captures_into_bronze``; None for --dry-run."""
    config = job_run.config
    settings = _decode_settings(config)  # ConfigError before anything is read
    return None if job_run.arguments.dry_run else InlineDecoders.of(lake, settings)


def decode_calls_to_silver(
    job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome, *, keep_stubs: bool, decoded: Decoded = NOTHING_DECODED
) -> dict[str, int]:
    """Decode new calls and packets of bronze into silver; return the number of rows written by table.

    ``decoded``: what ``read_captures_into_bronze`` has already decoded.
    """
    config, settings, failures = job_run.config, _decode_settings(job_run.config), dict[str, str]()
    written = silver_update.update(lake, settings, keep_stubs=keep_stubs, decoded=decoded.calls, failures=failures)
    sessions = transfers_update.update(
        lake, job_run.run_id,
        SessionSettings(config.sessions.idle, config.sessions.silent_after, config.pending.expire),
        settings, decoded.packets, keep_stubs=keep_stubs,
    )  # fmt: skip
    if decoded.packets is not None:
        decoded.packets.remove()
    for table, rows in sessions.items():
        written[table] = written.get(table, 0) + rows
    for capture_id, why in failures.items():
        outcome.report_unreadable(f"capture {capture_id}: unreadable: {redaction.loggable_error(job_run, why)}")
    return written


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Read the captures named on the command line into bronze.

    With redaction silver is written too, because the stubs that it is made from are not kept.
    """
    keys, pseudonymizer = load_decryption_keys(job_run), redaction.load_pseudonymizer(job_run)
    outcome = cli.Outcome()
    files = list_captures(job_run, job_run.arguments.lake, outcome)
    lake = open_lake(job_run)
    with lake_lease(job_run, lake, outcome), redaction.open_scratch_lake(job_run, lake, pseudonymizer) as redacting:
        if redacting is None:
            read_captures_into_bronze(job_run, lake, files, outcome, keys)
            return outcome
        decoders = build_inline_decoders(job_run, redacting.scratch_lake)
        done = read_captures_into_bronze(job_run, redacting.scratch_lake, files, outcome, keys, decoders)
        if decoders is not None:
            decode_calls_to_silver(
                job_run,
                redacting.scratch_lake,
                outcome,
                keep_stubs=True,
                decoded=decoders.decoded(done.observed_writes),
            )
            redacting.publish(run_id=job_run.run_id, read_paths={row["path"] for row in done.file_rows})
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
