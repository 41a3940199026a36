"""Print the active alerts of a lake, or write them as JSON lines; exit with 1 if an error is active."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from jobs import cli
from jobs.command_line import redaction
from jobs.command_line.notices import carry_out, notice_options, notices_lease
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.command_line.task_values import set_task_value
from jobs.config import Config, ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.alerts.by_clock import AlertsByClock, alerts_by_clock
from pipeline.alerts.conditions import CLOCK_CONDITIONS, CONDITIONS, EVIDENCE_STOPPED, Thresholds
from pipeline.alerts.entries import AlertRow, Entry, evidence_keys
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.lake.lake import Lake
from pipeline.notices.notice import notice_key
from pipeline.reports.changes import find_changes, format_changes
from pipeline.reports.lake_options import lake_options
from pipeline.reports.next_commands import next_commands
from pipeline.settings import AlertThresholds
from pipeline.silver.machine_names import DeclaredNames
from pipeline.text import escape_as_hex, escape_unprintable, format_age, format_cell, format_count, json_default
from schemas.table import RUN_ID

JOB = "alerts"
NO_ALERT: Final = "none"  # in place of the severity of the worst active alert
_COLUMNS_NOT_IN_JSON: Final = (RUN_ID, "event_date", "errors")
_MAX_KEYS: Final = 3  # of evidence in a line


def alert_thresholds(config: Config, names: DeclaredNames = ()) -> Thresholds:
    """Return the thresholds of the alerts, including what they use beside their settings: of other sections, names."""
    quotas = {entry.queue.lower(): (entry.messages, entry.journal) for entry in config.quotas.queues}
    return Thresholds(
        **{each.name: getattr(config.alerts, each.name) for each in fields(AlertThresholds)},
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
        machine_names=names,
    )


def load_thresholds(job_run: cli.JobRun, lake: Lake) -> Thresholds:
    """Return the thresholds for a lake; quotas and machines have names, for which it may have pseudonyms."""
    config = job_run.config
    if config.quotas.queues or config.quotas.machines:
        config = redaction.redact_config(config, redaction.load_pseudonymizer(job_run))
    return alert_thresholds(config, redaction.load_names_for(job_run, lake))


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Print the alerts by the clock, write them as JSON if asked, and do what is asked of notices.

    They are read from ``gold.alerts`` if that table was made with the same thresholds and as-of time, else computed.
    Only what is asked of notices writes to the lake.
    """
    wanted, conditions = set(job_run.arguments.condition), CONDITIONS | CLOCK_CONDITIONS
    if unknown := sorted(wanted - conditions.keys()):
        raise ConfigError(f"no such condition: {unknown[0]} (there are {', '.join(conditions)})")
    if job_run.arguments.since is not None and (wanted or job_run.arguments.ended):
        raise ConfigError("--since lists all that changed: it goes neither with --condition nor with --ended")
    options = notice_options(job_run)
    lake = open_lake_with_data(job_run)
    limits, of_clock = load_thresholds(job_run, lake), job_run.config.alerts
    with notices_lease(job_run, lake, options):
        found = alerts_by_clock(lake, limits, of_clock, job_run.started_at, job_run.arguments.as_of)
        notice_fields = carry_out(job_run, lake, options, found)
    alerts = sorted((row for row in found.every if not wanted or row["condition"] in wanted), key=_sort_key)
    told = [row for row in alerts if found.is_reported(row)]
    ended = [row for row in alerts if row["until"] is not None]
    listing = _Listing.of(lake, found, told, lake_options(lake, job_run.arguments.lake))
    if (since := _since(job_run, found)) is not None:
        changes = find_changes(lake, limits, found, since)
        rows, lines = [change._asdict() for change in changes], format_changes(changes, since)
    else:
        rows, lines = [listing.json_fields(row) for row in alerts], listing.lines()
        if job_run.arguments.ended:
            lines += [line for row in ended if not found.is_reported(row) for line in format_alert(row)]
    _write_json_lines(job_run, lake, rows)
    if job_run.arguments.json != "-":
        cli.write_output("".join(f"{line}\n" for line in [*lines, _age_text(found)]))
    outcome = _outcome(job_run, found, listing, told, len(ended))
    outcome.summary_fields |= notice_fields
    return outcome


def _since(job_run: cli.JobRun, found: AlertsByClock) -> datetime | None:
    """Return the time since when changes are asked for, None if they are not; ConfigError if it is not before now."""
    asked: timedelta | datetime | None = job_run.arguments.since
    since = found.clock - asked if isinstance(asked, timedelta) else asked
    if since is not None and since >= found.clock:
        raise ConfigError(f"--since {format_cell(since)}: it is not before now, {format_cell(found.clock)}")
    return since


@dataclass(frozen=True, slots=True)
class _Listing:
    """The entries that are told: those that are observed, and those without newer evidence.

    ``commands`` are the next ones, by the ``alert_key`` of the leading alert of the entry; ``leading`` is that key of
    each alert.
    """

    found: AlertsByClock
    observed: list[Entry]
    unobserved: list[Entry]
    commands: Mapping[str, str]
    leading: Mapping[str, str]

    @staticmethod
    def of(lake: Lake, found: AlertsByClock, told: Sequence[AlertRow], options: str) -> _Listing:
        """Return the entries of alerts; ``options`` name the lake, for the commands."""
        observed, unobserved = found.entries(told)
        every = [*observed, *unobserved]
        leading = {row["alert_key"]: entry.leading["alert_key"] for entry in every for row in entry.alerts}
        return _Listing(found, observed, unobserved, next_commands(lake, every, options), leading)

    def lines(self) -> list[str]:
        """Return the lines printed: first what is observed, then what is not any more."""
        lines = [line for entry in self.observed for line in self._entry_lines(entry)]
        lines += [""] if self.observed and self.unobserved else []
        lines += ["Not observed any more, as they were last seen:"] if self.unobserved else []
        return lines + [line for entry in self.unobserved for line in self._entry_lines(entry)]

    def _entry_lines(self, entry: Entry) -> list[str]:
        command = self.commands[entry.leading["alert_key"]]
        next_line = f"        next: {escape_unprintable(command, len(command))}"
        return [*format_entry(entry, self.found.unobserved), next_line]

    def json_fields(self, row: AlertRow) -> dict[str, Any]:
        """Return the fields of an alert in JSON: its columns, and what is told of it.

        ``leading_alert`` is the ``alert_key`` of the alert that says most of the cause, maybe itself.
        """
        key, leading = row["alert_key"], self.leading.get(row["alert_key"])
        return {name: value for name, value in row.items() if name not in _COLUMNS_NOT_IN_JSON} | {
            "leading_alert": leading,
            "notice_key": notice_key(row),
            "not_observed_since": row["last_seen_at"] if key in self.found.unobserved else None,
            "first_read": key in self.found.first_read,
            "next_command": None if leading is None else self.commands[leading],
            "newest_evidence_at": self.found.newest_at,
        }


def _outcome(
    job_run: cli.JobRun, found: AlertsByClock, listing: _Listing, told: Sequence[AlertRow], ended: int
) -> cli.Outcome:
    """Log how many alerts there are, and return the outcome: failed if one is as severe as ``--fail-on`` says."""
    counts = {level: sum(row["severity"] == level for row in told) for level in SEVERITY_ORDER[::-1]}
    by_level = ", ".join(f"{count} {level}" for level, count in counts.items())
    causes = len(listing.observed) + len(listing.unobserved)
    of_causes = f", of {format_count(causes, 'cause')}" if causes < len(told) else ""
    events = [row for row in told if row["until"] is not None]
    of_events = f"; {format_count(len(events), 'ended event')} among them, first read by the last run" * bool(events)
    active = f"{format_count(len(told), 'alert')} {'is' if len(told) == 1 else 'are'} active"
    cli.log_progress(f"{active} ({by_level}){of_causes}{of_events}, {ended} have ended")
    worst = max((row["severity"] for row in told), key=SEVERITY_ORDER.index, default=None)
    if job_run.arguments.task_value:
        set_task_value(job_run.arguments.task_value, worst or NO_ALERT)
    level = job_run.arguments.fail_on
    failed = worst is not None and level != "never" and SEVERITY_ORDER.index(worst) >= SEVERITY_ORDER.index(level)
    summary = {
        "alerts": counts,
        "ended": ended,
        "evidence_stopped": sum(row["condition"] == EVIDENCE_STOPPED for row in told),
        "not_observed": sum(row["alert_key"] in found.unobserved for row in told),
        "first_read": len(events),
        "evidence_age_s": None if found.evidence_age is None else found.evidence_age.total_seconds(),
    }
    return cli.Outcome(quality_failed=failed, summary_fields=summary)


def _age_text(found: AlertsByClock) -> str:
    if found.newest_at is None or found.evidence_age is None:
        return "no evidence has a time"
    at, age = format_cell(found.newest_at), found.evidence_age
    return f"newest evidence {at}, " + (
        f"{format_age(age)} ago" if age >= timedelta(0) else f"{format_age(-age)} later"
    )


def _sort_key(row: AlertRow) -> tuple[bool, int, datetime, str]:
    """Sort active alerts before ended ones, then by descending severity, then by age."""
    return row["until"] is not None, -SEVERITY_ORDER.index(row["severity"]), row["since"], row["alert_key"]


def format_entry(entry: Entry, unobserved: Collection[str] = ()) -> list[str]:
    """Return the lines printed for alerts of one cause: those of the leading alert, one for each other, the evidence.

    ``unobserved`` has the ``alert_key`` of those without newer evidence.
    """
    others = [
        f"        also {row['severity']} {row['condition']}  {escape_as_hex(row['subject_text'])}, since "
        f"{format_cell(row['since'])}"
        for row in entry.others
    ]
    keys = evidence_keys(entry.leading)
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    evidence = [f"        evidence: {escape_as_hex(', '.join(keys[:_MAX_KEYS]))}{more}"] if keys else []
    is_unobserved = entry.leading["alert_key"] in unobserved
    return [*format_alert(entry.leading, is_unobserved=is_unobserved), *others, *evidence]


def format_alert(row: AlertRow, *, is_unobserved: bool = False) -> list[str]:
    """Return the lines printed for an alert. Names and texts that come from the wire are escaped."""
    seen = "not observed since" if is_unobserved else "last seen"
    until = "" if row["until"] is None else f", ended {format_cell(row['until'])}"
    known = "" if row["confidence"] == "complete" else f" ({row['confidence']}: {', '.join(row['missing'])})"
    return [
        f"{row['severity']:<8}{row['condition']}  {escape_as_hex(row['subject_text'])}",
        f"        since {format_cell(row['since'])}, {seen} {format_cell(row['last_seen_at'])}{until}{known}",
        f"        {escape_as_hex(row['message'])}",
        f"        {row['suggestion']}",
    ]


def _write_json_lines(job_run: cli.JobRun, lake: Lake, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines to the file of ``--json``, if there is one, or to standard output for ``-``."""
    target = job_run.arguments.json
    if target is None:
        return
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
