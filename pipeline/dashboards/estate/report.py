"""What the report on an estate shows: rows of the views of the estate and of growth, and verdicts on its queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

import pyarrow as pa

from pipeline.reports.lake_options import lake_name
from pipeline.reports.targets.target_file import MoveTarget
from pipeline.reports.targets.verdicts import TargetVerdict, judge_queues, verdict_rows
from pipeline.reports.views.catalog import VIEWS_BY_NAME, LakeViews
from pipeline.reports.views.evidence import SeenEvidence
from pipeline.text import format_age, format_count

QUEUES: Final = "estate_queues"
FLOWS: Final = "estate_flows"
MACHINES: Final = "estate_machines"
HOURS: Final = "estate_hours"
COVERAGE: Final = "estate_coverage"
QUEUE_COVERAGE: Final = "estate_queue_coverage"
GROWTH_VIEWS: Final = ("depth_growth", "journal_growth", "machines")
REPORT_VIEWS: Final = (QUEUES, FLOWS, MACHINES, HOURS, COVERAGE, QUEUE_COVERAGE, *GROWTH_VIEWS)

_VERDICT_ROWS: Final = pa.schema([
    *((name, pa.string()) for name in ("queue", "target", "queue_verdict", "property", "verdict", "evidence", "change",
                                       "source")),
    ("as_of", pa.date32()),
])  # fmt: skip
_UNITS: Final = {"day": timedelta(days=1), "hour": timedelta(hours=1), "minute": timedelta(minutes=1)}


@dataclass(frozen=True, slots=True)
class EstateReport:
    """Rows of ``REPORT_VIEWS`` by name, of the time from ``since`` to ``now``, and verdicts of queues for targets.

    ``since`` and ``now`` are None for a lake whose packets and snapshots have no time. ``evidence`` says by view what
    was seen of what it needs. ``lake_options`` are those of commands that name the lake, quoted for a shell.
    """

    lake_name: str
    lake_options: str
    since: datetime | None
    now: datetime | None
    published_at: datetime
    time_zone: tzinfo
    views: Mapping[str, pa.Table]
    evidence: Mapping[str, SeenEvidence]
    targets: Sequence[MoveTarget]
    verdicts: Sequence[TargetVerdict]

    @property
    def verdict_rows(self) -> pa.Table:
        """One row for each queue, target and property."""
        return pa.Table.from_pylist(verdict_rows(self.verdicts), _VERDICT_ROWS)

    @property
    def time_asked(self) -> str:
        """How long the time is that is reported, as words: ``30 days``."""
        return format_time_asked(self.since, self.now)


def format_time_asked(since: datetime | None, now: datetime | None) -> str:
    """Return how long a time is, as words: in days, hours or minutes where it is a whole number of them."""
    if since is None or now is None:
        return "the time that was captured"
    span = now - since
    whole = (format_count(span // unit, name) for name, unit in _UNITS.items() if span and not span % unit)
    return next(whole, format_age(span))


def read_report(
    views: LakeViews, targets: Sequence[MoveTarget], time_zone: tzinfo, *, lake_options: str, published_at: datetime
) -> EstateReport:
    """Return the report of the hours that views are limited to."""
    answers = {name: views.answer(name) for name in REPORT_VIEWS}
    by_needs = {VIEWS_BY_NAME[name].needs: name for name in REPORT_VIEWS}
    seen = {needs: views.evidence(name) for needs, name in by_needs.items()}
    since, now = views.scope.since, views.scope.until
    return EstateReport(
        lake_name(views.lake),
        lake_options,
        since,
        now,
        published_at,
        time_zone,
        answers,
        {name: seen[VIEWS_BY_NAME[name].needs] for name in REPORT_VIEWS},
        targets,
        judge_queues(answers[QUEUES].to_pylist(), targets, format_time_asked(since, now)),
    )
