"""Notices: ``alerts --notify``, ``--acknowledge`` and ``--mute``, and run_all with alerts.notify_after_run.

They alone write to the lake's folder ``_notices``, and hold the lease for it. What a target does not get waits for the
next call, and changes no exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from jobs import cli
from jobs.command_line import redaction
from jobs.command_line.notice_targets import load_targets
from jobs.config import ConfigError
from jobs.lake_access import files_lease
from pipeline.alerts.by_clock import AlertsByClock
from pipeline.alerts.conditions import CLOCK_CONDITIONS, CONDITIONS
from pipeline.lake.lake import Lake
from pipeline.notices.kept_lines import KeptLines, Line, Mute, acknowledged_line, muted_line
from pipeline.notices.notice import Notice
from pipeline.notices.notify import TargetOutcome, alerts_now, notify_targets
from pipeline.notices.target import Target
from pipeline.privacy.redaction import Pseudonymizer
from pipeline.text import format_count

_MIN_KEY_CHARS: Final = 8
_WILDCARDS: Final = frozenset("*?[")
_NEEDED_OPTIONS: Final = {"acknowledge": ("by", "until", "reason"), "mute": ("until",)}
_WITH_OPTION: Final = {
    "by": ("acknowledge",), "reason": ("acknowledge",), "queue": ("mute",), "until": ("acknowledge", "mute"),
}  # fmt: skip


class AcknowledgeRequest(NamedTuple):
    """That a notice is not to be repeated until a time: the beginning of its key, who looks after it, and why."""

    own_key: str
    by: str
    until: datetime
    reason: str | None


class MuteRequest(NamedTuple):
    """What is not to be told until a time."""

    mute: Mute
    until: datetime


@dataclass(frozen=True)
class NoticeOptions:
    """What a command line asks of notices."""

    targets: Sequence[Target] = ()
    request: AcknowledgeRequest | MuteRequest | None = None

    @property
    def writes(self) -> bool:
        """Whether anything is written to the lake."""
        return bool(self.targets) or self.request is not None


def notice_options(job_run: cli.JobRun) -> NoticeOptions:
    """Return the options of ``msmq alerts``; ConfigError, before anything is read, where they are wrong."""
    arguments = job_run.arguments
    targets = () if arguments.notify is None else load_targets(arguments.notify, cli.log_progress)
    return NoticeOptions(targets, _request(arguments, _now(job_run)))


def _request(arguments: argparse.Namespace, now: datetime) -> AcknowledgeRequest | MuteRequest | None:
    _check_combination(arguments)
    if arguments.until is None:
        return None
    until: datetime = arguments.until if isinstance(arguments.until, datetime) else now + arguments.until
    if until < now:
        raise ConfigError("--until: the time is over")
    if arguments.acknowledge is not None:
        return AcknowledgeRequest(arguments.acknowledge, arguments.by, until, arguments.reason)
    known = CONDITIONS | CLOCK_CONDITIONS
    if arguments.mute not in known:
        raise ConfigError(f"no such condition: {arguments.mute} (there are {', '.join(known)})")
    return MuteRequest(Mute(arguments.mute, arguments.queue), until)


def _check_combination(arguments: argparse.Namespace) -> None:
    """Raise ConfigError unless each option stands with those that it needs, and with no other."""
    given = {name for name in ("acknowledge", "mute", *_WITH_OPTION) if getattr(arguments, name) is not None}
    if {"acknowledge", "mute"} <= given:
        raise ConfigError("--acknowledge and --mute: give one of them")
    for option, needed in _NEEDED_OPTIONS.items():
        if option in given and (missing := [f"--{name}" for name in needed if name not in given]):
            raise ConfigError(f"--{option} needs {' and '.join(missing)}")
    for name, options in _WITH_OPTION.items():
        if name in given and given.isdisjoint(options):
            raise ConfigError(f"--{name} needs --{' or --'.join(options)}")


def after_run_options(job_run: cli.JobRun) -> NoticeOptions:
    """Return what ``alerts.notify_after_run`` asks of a run: all targets of the file named by MSMQ_NOTIFY_FILE."""
    if not job_run.config.alerts.notify_after_run or job_run.arguments.dry_run:
        return NoticeOptions()
    return NoticeOptions(load_targets((), cli.log_progress))


@contextmanager
def notices_lease(job_run: cli.JobRun, lake: Lake, options: NoticeOptions) -> Iterator[None]:
    """Hold the lake's lease if the options write there."""
    if not options.writes:
        yield
        return
    with files_lease(job_run, lake):
        yield


def carry_out(job_run: cli.JobRun, lake: Lake, options: NoticeOptions, alerts: AlertsByClock) -> dict[str, Any]:
    """Do what the options ask, and return fields of the summary. The caller holds the lease (``notices_lease``)."""
    if not options.writes:
        return {}
    try:
        kept = KeptLines(lake.folder)
        if options.request is not None:
            kept.add([_requested_line(job_run, lake, options.request, kept, alerts.clock)], alerts.clock)
        if not options.targets:
            return {}
        now = alerts_now(alerts, kept.mutes(alerts.clock))
        outcomes = notify_targets(kept, options.targets, now, repeat_after=job_run.config.alerts.repeat_after)
    except OSError as error:
        raise ConfigError(f"{lake.root}: notices: {error.strerror or type(error).__name__}") from error
    return _report(outcomes)


def _report(outcomes: Mapping[str, TargetOutcome]) -> dict[str, Any]:
    for name, outcome in outcomes.items():
        if outcome.sent:
            cli.log_progress(f"{name}: {format_count(outcome.sent, 'notice')} sent")
        if outcome.waiting or outcome.failures:
            why = ", ".join(dict.fromkeys(outcome.failures))
            cli.log_progress(
                f"warning: {name}: {format_count(outcome.waiting, 'notice')} waiting for the next call: {why}"
            )
    return {
        "notices_sent": sum(outcome.sent for outcome in outcomes.values()),
        "notices_waiting": sum(outcome.waiting for outcome in outcomes.values()),
    }


def _requested_line(
    job_run: cli.JobRun, lake: Lake, request: AcknowledgeRequest | MuteRequest, kept: KeptLines, now: datetime
) -> Line:
    """Return the line of ``--acknowledge`` or ``--mute``; in a redacted lake without names of the command line."""
    pseudonymizer = redaction.load_pseudonymizer(job_run)
    with redaction.check_redaction_matches(job_run, lake, pseudonymizer):
        if isinstance(request, MuteRequest):
            return muted_line(_redact_mute(request.mute, pseudonymizer), until=request.until, now=now)
        notice, by, reason = _find_notice(request.own_key, kept), request.by, request.reason
        if pseudonymizer is not None:
            by, reason = pseudonymizer.sender_name(by), None
        return acknowledged_line(notice, by=by, until=request.until, reason=reason, now=now)


def _redact_mute(mute: Mute, pseudonymizer: Pseudonymizer | None) -> Mute:
    if pseudonymizer is None or mute.queue is None:
        return mute
    if _WILDCARDS & {*mute.queue}:
        raise ConfigError("--queue: with privacy.redact a whole name, without *, ? and [: the lake has pseudonyms")
    return Mute(mute.condition, pseudonymizer.queue_name(mute.queue))


def _find_notice(own_key: str, kept: KeptLines) -> Notice:
    found = [notice for each, notice in kept.open_notices().items() if each.startswith(own_key)]
    if len(own_key) < _MIN_KEY_CHARS or len(found) != 1:
        raise ConfigError(
            f"--acknowledge: {len(found)} open notices have this key; give at least {_MIN_KEY_CHARS} characters of the "
            "notice_key of one that was sent"
        )
    return found[0]


def _now(job_run: cli.JobRun) -> datetime:
    """Return the clock's time, or --as-of in its place."""
    as_of: datetime | None = job_run.arguments.as_of
    return as_of or job_run.started_at
