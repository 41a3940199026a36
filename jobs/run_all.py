"""Run the whole pipeline on captures and snapshots, and print a summary of the lake."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from jobs import check_quality, cli, ingest_snapshots
from jobs.alerts import alert_thresholds
from jobs.command_line import redaction
from jobs.command_line.notices import NoticeOptions, after_run_options, carry_out
from jobs.command_line.parsers import build_parser
from jobs.config import Config
from jobs.ingest_captures import (
    build_inline_decoders,
    decode_calls_to_silver,
    list_captures,
    load_decryption_keys,
    read_captures_into_bronze,
)
from jobs.lake_access import lake_lease, open_lake
from pipeline.alerts import update as alerts_update
from pipeline.alerts.by_clock import alerts_by_clock
from pipeline.attempts import update as attempts_update
from pipeline.bronze.input_files import InputFile
from pipeline.concurrency import run_concurrently
from pipeline.decryption_keys import DecryptionKeys
from pipeline.findings import update as findings_update
from pipeline.findings import update_reported_sequences, update_sessions
from pipeline.findings.hops import update_hops
from pipeline.findings.rules.queue_facts import QueueRuleLimits
from pipeline.lake.lake import Lake
from pipeline.privacy.redaction import RedactionRun
from pipeline.quality import coverage
from pipeline.quality.suites import Suite
from pipeline.queues import update as queues_update
from pipeline.queues import update_actions, update_machines
from pipeline.queues.queue_rows import QueueSettings
from pipeline.reports.queue_overview import queue_lines
from pipeline.reports.summary import console_summary
from pipeline.sequences import update as sequences_update
from pipeline.silver import hosts
from pipeline.silver.inline_decoders import NOTHING_DECODED, Decoded
from pipeline.silver.machine_names import DeclaredNames
from pipeline.text import format_count
from pipeline.transfers.messages import update_messages
from pipeline.transfers.messages.transfer_context import TransferSettings
from pipeline.transfers.sequences import update_sequences
from pipeline.transfers.sequences.sequence_context import SequenceSettings
from pipeline.transfers.session_rows import SessionSettings
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.alerts import ALERTS
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.calls import REMOTE_READ_CALLS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_history import MACHINE_HISTORY, MANAGEMENT_ACTIONS, QUEUE_HISTORY
from schemas.table import Table
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

JOB = "run_all"

# Update functions by table. Each returns the number of rows written, or numbers by table if it writes several tables.
UpdateSteps = dict[Table, Callable[[Lake], int | Mapping[str, int]]]


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Update all layers from the captures and snapshots, and print a summary of the lake."""
    keys, pseudonymizer = load_decryption_keys(job_run), redaction.load_pseudonymizer(job_run)
    names = redaction.load_names(job_run.config, pseudonymizer)
    notices = after_run_options(job_run)
    outcome = cli.Outcome()
    captures = list_captures(job_run, job_run.arguments.lake, outcome)
    snapshot_files = ingest_snapshots.list_snapshot_files(job_run, outcome)
    suites = check_quality.select_suites(job_run) if job_run.config.quality.in_runs else ()
    lake = open_lake(job_run)
    with lake_lease(job_run, lake, outcome):
        with redaction.open_scratch_lake(job_run, lake, pseudonymizer, snapshot_files) as redacting:
            hosts_provenance = _update_bronze_and_silver(
                job_run, lake, redacting, captures, snapshot_files, outcome, keys
            )
        if not job_run.arguments.dry_run:
            redacted_run = replace(job_run, config=redaction.redact_config(job_run.config, pseudonymizer))
            update_gold(redacted_run, lake, outcome, hosts_provenance, names)
            lines = _check_quality(job_run, lake, suites, outcome) if suites else []
            job_run.stages.begin("reports")
            queues = queue_lines(lake, job_run.arguments.as_of)
            cli.write_output("\n".join([console_summary(lake), *queues, *lines]) + "\n")
            if notices.writes:
                outcome.summary_fields |= _tell_targets(redacted_run, lake, notices, names)
        if job_run.arguments.pages and not job_run.arguments.dry_run:
            from jobs import publish_dashboards  # noqa: PLC0415 (it takes a twentieth of what a run imports)

            pages = Path(job_run.arguments.pages)
            published = publish_dashboards.publish_pages(job_run, lake, pages, names, allow_empty=True)
            outcome.summary_fields |= published.summary_fields
            cli.write_output("\n".join(publish_dashboards.highlight_lines(published)) + "\n")
    return outcome


def _update_bronze_and_silver(
    job_run: cli.JobRun,
    lake: Lake,
    redacting: RedactionRun | None,
    captures: list[InputFile],
    snapshot_files: list[InputFile],
    outcome: cli.Outcome,
    keys: DecryptionKeys,
) -> Mapping[str, Any] | None:
    """Read new input into bronze and decode it into silver; return the provenance for silver.hosts, if it must change.

    With redaction this happens in the scratch lake of the run, and the redacted rows are then written to the lake.
    """
    target = lake if redacting is None else redacting.scratch_lake
    decoders = build_inline_decoders(job_run, target)
    job_run.stages.begin("reading")
    done = read_captures_into_bronze(job_run, target, captures, outcome, keys, decoders)
    if snapshot_files:
        ingest_snapshots.read_snapshots_into_bronze(job_run, target, snapshot_files, outcome)
    if decoders is None:  # --dry-run
        return None
    keep_stubs = redacting is not None or job_run.config.store.stubs
    hosts_provenance = _update_silver(
        job_run,
        target,
        outcome,
        keep_stubs=keep_stubs,
        decoded=decoders.decoded(done.observed_writes),
    )
    if redacting is not None:
        cli.log_progress("replacing names")
        return redacting.publish(run_id=job_run.run_id, read_paths={row["path"] for row in done.file_rows})
    return hosts_provenance


def _update_silver(
    job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome, *, keep_stubs: bool, decoded: Decoded = NOTHING_DECODED
) -> Mapping[str, Any] | None:
    """Decode new calls and snapshots of bronze into silver; return the provenance for silver.hosts, or None."""
    job_run.stages.begin("decoding")
    cli.log_progress("decoding calls")
    rows_decoded = decode_calls_to_silver(job_run, lake, outcome, keep_stubs=keep_stubs, decoded=decoded)
    for table, rows in rows_decoded.items():
        outcome.tables[table] = cli.TableCounts(rows_out=rows)
    _log_rows_written(rows_decoded)
    written, hosts_provenance = ingest_snapshots.decode_snapshots_to_silver(job_run, lake, outcome)
    for table, rows in written.items():
        outcome.tables.setdefault(table, cli.TableCounts()).rows_out += rows
    outcome.tables[str(HOSTS)] = cli.TableCounts()
    return hosts_provenance


def update_silver_and_gold(job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome, names: DeclaredNames) -> None:
    """Update silver and gold from bronze, without reading new input. ``names``: declared ones of machines."""
    hosts_provenance = _update_silver(job_run, lake, outcome, keep_stubs=job_run.config.store.stubs)
    update_gold(job_run, lake, outcome, hosts_provenance, names)


def update_gold(
    job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome, hosts_provenance: Mapping[str, Any] | None,
    names: DeclaredNames,
) -> None:  # fmt: skip
    """Update silver.hosts and all tables of gold from silver, and add the row counts to ``outcome``.

    ``names``: declared ones of machines.
    """
    decoded = outcome.tables[str(REMOTE_READ_CALLS)].rows_out
    total: Counter[str] = Counter()  # findings are written by two steps
    for steps in _gold_steps(job_run, hosts_provenance, names):
        rows: dict[str, int] = {}
        for table, written in run_concurrently({table: partial(step, lake) for table, step in steps.items()}).items():
            rows |= {str(table): written} if isinstance(written, int) else written
        total.update(rows)
        outcome.tables |= {table: cli.TableCounts(rows_out=total[table]) for table in rows}
        _log_rows_written(rows)
    for table_of_calls in (RECEIVE_ATTEMPTS, FINDINGS):
        outcome.tables[str(table_of_calls)].rows_in = decoded
    outcome.tables[str(ACK_SEQUENCES)].rows_in = outcome.tables[str(RECEIVE_ATTEMPTS)].rows_out


def _log_rows_written(rows: Mapping[str, int]) -> None:
    """Log how many rows of tables were written, if any were."""
    if written := [f"{table} {format_count(count, 'row')}" for table, count in rows.items() if count]:
        cli.log_progress(f"  written: {', '.join(written)}")


def _gold_steps(
    job_run: cli.JobRun, hosts_provenance: Mapping[str, Any] | None, names: DeclaredNames
) -> Iterator[UpdateSteps]:
    """Yield the update steps from silver to gold in groups; the steps of a group are independent of each other."""
    config, run_id = job_run.config, job_run.run_id
    job_run.stages.begin("attempts")
    cli.log_progress("updating receive attempts")
    attempts = partial(attempts_update.update, cleanup=config.timers.cleanup, declared=config.queues.aliases)
    clones = partial(update_hops.update_clones, run_id=run_id, wait=config.transfers.wait)
    yield {RECEIVE_ATTEMPTS: attempts, FINDINGS: clones}
    job_run.stages.begin("sequences")
    cli.log_progress("updating sequences and queue histories")
    reads, queue_settings = config.reads, queue_state_settings(config)
    sessions = SessionSettings(config.sessions.idle, config.sessions.silent_after, config.pending.expire)
    machines: UpdateSteps = {}
    if hosts_provenance is not None:  # after what the attempts change in messages, so that no run reads these again
        machines[HOSTS] = partial(hosts.update_hosts, run_id=run_id, provenance=hosts_provenance)
    yield machines | {
        ACK_SEQUENCES: partial(sequences_update.update, lost_after=reads.lost_after, poison_after=reads.poison_after),
        MESSAGE_TRANSFERS: partial(
            update_messages.update,
            run_id=run_id,
            settings=TransferSettings(config.transfers.wait, config.pending.expire, config.alerts.max_clock_difference),
        ),
        TRANSFER_SEQUENCES: partial(update_sequences.update, run_id=run_id, settings=sequence_settings(config)),
        FINDINGS: partial(update_sessions.update, run_id=run_id, settings=sessions),  # tasks work beside this process
    }
    yield {QUEUE_HISTORY: partial(queues_update.update, settings=queue_settings, run_id=run_id)}  # counts transfers
    job_run.stages.begin("findings")
    cli.log_progress("updating machines, findings, coverage and alerts")
    yield {
        MACHINE_HISTORY: partial(update_machines.update, settings=queue_settings, run_id=run_id),
        MANAGEMENT_ACTIONS: partial(update_actions.update, settings=queue_settings, run_id=run_id),
        FINDINGS: partial(_update_findings, config=config, run_id=run_id),
        COVERAGE: partial(coverage.update, run_id=run_id),
    }
    as_of = job_run.arguments.as_of
    job_run.stages.begin("alerts")
    yield {ALERTS: partial(alerts_update.update, limits=alert_thresholds(config, names), run_id=run_id, as_of=as_of)}


def _update_findings(lake: Lake, *, config: Config, run_id: str) -> int:
    """Update the findings on calls, queues and machines, on hops, on sequences; return how many are written."""
    limits = QueueRuleLimits.from_settings(config.alerts, config.history)
    written = findings_update.update(lake, stubs=config.store.stubs, limits=limits)
    written += update_hops.update(lake, run_id, config.transfers.wait)
    return written + update_reported_sequences.update(lake, run_id)


def sequence_settings(config: Config) -> SequenceSettings:
    """Return the settings of exactly-once sequences between queue managers."""
    return SequenceSettings(config.transfers.stall_after, config.transfers.wait, config.pending.expire)


def queue_state_settings(config: Config) -> QueueSettings:
    """Return the settings of queue histories and exactly-once transfers."""
    return QueueSettings(
        max_gap=config.history.max_gap,
        resend_rise=config.eod.resend_rise,
        resend_ladder=config.eod.resend_ladder,
        cleanup_interval=config.timers.cleanup,
        configured_names={machine.address: machine.name for machine in config.collector.machines},
    )


def _check_quality(job_run: cli.JobRun, lake: Lake, suites: Sequence[Suite], outcome: cli.Outcome) -> list[str]:
    """Check the changed rows against their expectations; return lines about those that failed."""
    job_run.stages.begin("quality")
    cli.log_progress("checking quality")
    result = check_quality.check_lake(job_run, lake, suites)
    check_quality.add_results(outcome, result)
    return result.summary_lines()


def _tell_targets(job_run: cli.JobRun, lake: Lake, options: NoticeOptions, names: DeclaredNames) -> dict[str, Any]:
    """Tell the targets of ``alerts.notify_after_run`` what has changed; return fields of the summary."""
    job_run.stages.begin("notices")
    limits, of_clock = alert_thresholds(job_run.config, names), job_run.config.alerts
    alerts = alerts_by_clock(lake, limits, of_clock, datetime.now(UTC), job_run.arguments.as_of)
    return carry_out(job_run, lake, options, alerts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
