"""The settings of a run as each step of the pipeline takes them."""

from __future__ import annotations

from dataclasses import fields

from jobs.config import Config
from pipeline.alerts.conditions import Thresholds
from pipeline.findings.rules.queue_facts import Limits
from pipeline.lake.arrow_rows import us
from pipeline.queues.queue_rows import Settings


def states_settings(config: Config) -> Settings:
    """Return the settings that histories and transfers of queues rest on."""
    return Settings(
        max_gap=config.history.max_gap,
        resend_rise=config.eod.resend_rise,
        ladder=config.eod.resend_ladder,
        cleanup=config.timers.cleanup,
        declared={machine.address: machine.name for machine in config.collector.machines},
    )


def of_queues(limits: Thresholds) -> Limits:
    """Return the settings that findings on queues rest on: the same."""
    return Limits(
        slow_window=us(limits.slow_window),
        dead_letters=limits.dead_letters,
        journal_messages=limits.journal_messages,
        clock_difference=us(limits.clock_difference),
        max_gap=us(limits.max_gap),
    )


def thresholds(config: Config) -> Thresholds:
    """Return the settings that alerts rest on."""
    each = {entry.queue.lower(): (entry.messages, entry.journal) for entry in config.quotas.queues}
    return Thresholds(
        **{name.name: getattr(config.alerts, name.name) for name in fields(config.alerts)},
        max_gap=config.history.max_gap,
        cleanup=config.timers.cleanup,
        queue_quota=config.quotas.queue,
        journal_quota=config.quotas.journal,
        quotas=each,
    )
