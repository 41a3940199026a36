"""Print the active alerts of a lake, or write them as JSON lines; exit with 1 if an error is active."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jobs import cli, redaction
from jobs.command_line.notices import NoticeOptions, carry_out, notice_options, notices_lease
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.command_line.task_values import set_task_value
from jobs.config import Config, ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.alerts.by_clock import alerts_by_clock
from pipeline.alerts.conditions import CONDITIONS, ClockLimits, Thresholds
from pipeline.alerts.entries import Entry, find_entries
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.lake.lake import Lake
from pipeline.notices.notice import notice_key
from pipeline.silver.machines import Machines
from pipeline.text import escape_as_hex, format_cell, format_count, json_default
from schemas.table import RUN_ID

JOB = "alerts"
NO_ALERT: Final = "none"  # in place of the severity of the worst active alert
_COLUMNS_NOT_IN_JSON: Final = (RUN_ID, "event_date", "errors")


def alert_thresholds(config: Config) -> Thresholds:
    """Return the thresholds of the alerts, including the settings of other sections that they use."""
    quotas = {entry.queue.lower(): (entry.messages, entry.journal) for entry in config.quotas.queues}
    names = {each.name for each in fields(Thresholds)} & {each.name for each in fields(config.alerts)}
    return Thresholds(
        **{name: getattr(config.alerts, name) for name in names},
        stall_after=config.transfers.stall_after,
        window_full_after=config.transfers.window_full_after,
        slow_after=config.transfers.slow_after,
        max_gap=config.history.max_gap,
        cleanup_interval=config.timers.cleanup,
        queue_quota_bytes=config.quotas.queue,
        journal_quota_bytes=config.quotas.journal,
        quotas=quotas,
        machine_quota_bytes=config.quotas.machine,
        machine_quotas={entry.machine: entry.bytes for entry in config.quotas.machines},
    )


def clock_limits(config: Config) -> ClockLimits:
    """Return the limits of the alerts that are compared with the clock."""
    return ClockLimits(config.alerts.silence_after, config.alerts.event_hold)


def load_thresholds(job_run: cli.JobRun) -> Thresholds:
    """Return the thresholds of a run; quotas have names, for which the lake may have pseudonyms."""
    config = job_run.config
    if config.quotas.queues or config.quotas.machines:
        config = redaction.redact_config(config, redaction.load_pseudonymizer(job_run))
    return alert_thresholds(config)


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Print the alerts, write them as JSON if asked, and tell targets; only for these is anything written to the lake.

    They are read from ``gold.alerts`` if that table was made with the same thresholds and as-of time, else computed.
    """
    wanted = set(job_run.arguments.condition)
    if unknown := sorted(wanted - CONDITIONS.keys()):
        raise ConfigError(f"no such condition: {unknown[0]} (there are {', '.join(CONDITIONS)})")
    options = notice_options(job_run)
    lake = open_lake_with_data(job_run)
    with notices_lease(job_run, lake, options):
        return _show_and_tell(job_run, lake, options)


def _show_and_tell(job_run: cli.JobRun, lake: Lake, options: NoticeOptions) -> cli.Outcome:
    wanted = set(job_run.arguments.condition)
    limits, by_clock = load_thresholds(job_run), clock_limits(job_run.config)
    found_by_clock = alerts_by_clock(lake, limits, by_clock, job_run.started_at, job_run.arguments.as_of)
    found = found_by_clock.rows
    alerts = sorted((row for row in found if not wanted or row["condition"] in wanted), key=_sort_key)
    active = [row for row in alerts if row["until"] is None]
    machines = Machines.of(lake)
    entries = find_entries(active, machines)
    _write_json_lines(job_run, lake, alerts, entries)
    if job_run.arguments.json != "-":
        lines = [line for entry in entries for line in format_entry(entry)]
        if job_run.arguments.ended:
            lines += [line for row in alerts if row["until"] is not None for line in format_alert(row)]
        cli.write_output("".join(f"{line}\n" for line in lines))
    counts = {level: sum(row["severity"] == level for row in active) for level in SEVERITY_ORDER[::-1]}
    by_level = ", ".join(f"{count} {level}" for level, count in counts.items())
    of_causes = f", of {format_count(len(entries), 'cause')}" if len(entries) < len(active) else ""
    cli.log_progress(f"{len(active)} alerts are active ({by_level}){of_causes}, {len(alerts) - len(active)} have ended")
    worst = max((row["severity"] for row in active), key=SEVERITY_ORDER.index, default=None)
    if job_run.arguments.task_value:
        set_task_value(job_run.arguments.task_value, worst or NO_ALERT)
    level = job_run.arguments.fail_on
    failed = worst is not None and level != "never" and SEVERITY_ORDER.index(worst) >= SEVERITY_ORDER.index(level)
    told = carry_out(job_run, lake, options, found_by_clock, machines)
    fields_of_alerts = {"alerts": counts, "ended": len(alerts) - len(active)}
    return cli.Outcome(quality_failed=failed, summary_fields=fields_of_alerts | told)


def _sort_key(row: Mapping[str, Any]) -> tuple[bool, int, datetime, str]:
    """Sort active alerts before ended ones, then by descending severity, then by age."""
    return row["until"] is not None, -SEVERITY_ORDER.index(row["severity"]), row["since"], row["alert_key"]


def format_entry(entry: Entry) -> list[str]:
    """Return the lines printed for alerts of one cause: those of the leading alert, and one for each other."""
    others = [
        f"        also {row['severity']} {row['condition']}  {escape_as_hex(row['subject'])}, since "
        f"{format_cell(row['since'])}"
        for row in entry.others
    ]
    return [*format_alert(entry.leading), *others]


def format_alert(row: Mapping[str, Any]) -> list[str]:
    """Return the lines printed for an alert. Names and texts that come from the wire are escaped."""
    until = "" if row["until"] is None else f", ended {format_cell(row['until'])}"
    known = "" if row["confidence"] == "complete" else f" ({row['confidence']}: {', '.join(row['missing'])})"
    return [
        f"{row['severity']:<8}{row['condition']}  {escape_as_hex(row['subject'])}",
        f"        since {format_cell(row['since'])}, last seen {format_cell(row['last_seen_at'])}{until}{known}",
        f"        {escape_as_hex(row['message'])}",
        f"        {row['suggestion']}",
    ]


def _write_json_lines(
    job_run: cli.JobRun, lake: Lake, alerts: Sequence[Mapping[str, Any]], entries: Sequence[Entry]
) -> None:
    """Write alerts as JSON lines to the file of ``--json``, if there is one, or to standard output for ``-``.

    ``leading_alert`` of an active alert is the ``alert_key`` of the one that says most of the cause, maybe itself.
    """
    target = job_run.arguments.json
    if target is None:
        return
    leading = {row["alert_key"]: entry.leading["alert_key"] for entry in entries for row in entry.alerts}
    rows = (
        _json_fields(row) | {"leading_alert": leading.get(row["alert_key"]), "notice_key": notice_key(row)}
        for row in alerts
    )
    text = "".join(f"{json.dumps(row, default=json_default)}\n" for row in rows)
    if target == "-":
        cli.write_output(text)
        return
    check_outputs(job_run, lake, [Path(target)])
    try:
        with replace_file(Path(target)) as out:
            out.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}") from error


def _json_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _COLUMNS_NOT_IN_JSON}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
