"""Answers of views as text: lines at a terminal, JSON lines, CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, NamedTuple

from jobs import cli
from jobs.config import Config
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import QUESTIONS, LakeViews
from pipeline.reports.views.evidence import SeenEvidence
from pipeline.reports.views.scope import Scope
from pipeline.reports.views.view import View
from pipeline.text import format_cell, format_table, json_default


class Answer(NamedTuple):
    """The rows of a view that are shown, and what was seen of the evidence that it needs. ``more``: there are others.

    ``is_known`` is false where what the view needs was not seen.
    """

    view: View
    column_names: Sequence[str]
    rows: list[dict[str, Any]]
    more: bool
    evidence: SeenEvidence
    is_known: bool


def lake_views(config: Config, lake: Lake, now: datetime | None) -> LakeViews:
    """Return the views of a lake with the quotas of the settings; ``now``: None for the newest packet or snapshot."""
    quotas = config.quotas
    return LakeViews(
        lake,
        now,
        quotas.queue,
        quotas.journal,
        {each.queue.lower(): (each.messages, each.journal) for each in quotas.queues},
        config.history.max_gap,
        quotas.machine,
        {each.machine: each.bytes for each in quotas.machines},
    )


def json_lines(answer: Answer) -> str:
    """Return the rows as JSON lines."""
    named = ({"view": answer.view.name, **row} for row in answer.rows)
    return "".join(f"{json.dumps(row, default=json_default)}\n" for row in named)


def csv_text(answer: Answer) -> str:
    """Return the rows as CSV: the names of the columns first; nothing for null, lists and structures as JSON."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(answer.column_names)
    writer.writerows([_csv_value(value) for value in row.values()] for row in answer.rows)
    return text.getvalue()


def _csv_value(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    return json_default(value) if isinstance(value, datetime) else json.dumps(value, default=json_default)


def hours_text(scope: Scope) -> str:
    """Return the hours that are asked for, as words that follow others; nothing without."""
    times = (("from", scope.since), ("until", scope.until))
    return "".join(f" {word} {at:%Y-%m-%d %H:%M:%S}" for word, at in times if at is not None)


def lines_of(answer: Answer, scope: Scope, machine: str | None) -> Iterator[str]:
    """Yield the lines of an answer for a terminal; ``machine`` is the text that was asked for."""
    view = answer.view
    yield f"{view.question_number}. {QUESTIONS[view.question_number].text}"
    yield f"{view.name}: one row is {view.row_meaning}"
    yield ""
    if answer.rows:
        yield from _table(answer.column_names, answer.rows)
    yield from _lines_on_evidence(answer, scope, machine)
    if answer.more:
        yield f"... more rows: use --rows 0, or query the view {view.name}"
    yield from ("", f"Limitations: {view.limitations}")


def _lines_on_evidence(answer: Answer, scope: Scope, machine: str | None) -> Iterator[str]:
    """Yield lines on what an answer rests on: where it is empty what was seen, and what was not."""
    needs, evidence = answer.view.needs, answer.evidence
    within = hours_text(scope)
    if scope.since is None and needs.hours is not None:
        within = f" in the {needs.hours} hours before now"
    if machine is not None:
        within += f" at machines called {format_cell(machine)}"
    if not answer.is_known:
        lacking = [kind.name for kind in evidence.unseen if kind not in needs.beside]
        yield f"Cannot be known from what was captured: nothing was seen of {', '.join(lacking)}{within}."
        return
    if not answer.rows:
        yield f"(no row){within}"
        for kind, subjects, servers, first, last in evidence.sights:
            times = " ".join(f"{word} {at:%Y-%m-%d %H:%M:%S}" for word, at in (("from", first), ("until", last)) if at)
            yield f"Seen of {kind.name}: {subjects} {kind.subjects} at {servers} servers, {times or 'without times'}."
    if evidence.unseen:
        yield f"More cannot be known: nothing was seen of {', '.join(kind.name for kind in evidence.unseen)}{within}."


def lines_on_coverage(views: LakeViews, shown: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield lines on the gaps in coverage of the hours and servers that the answers are about."""
    coverage = views.coverage_for(shown)
    gaps = coverage.to_pylist()
    names = [name for name in coverage.column_names if name == "server_address" or any(row[name] for row in gaps)]
    yield "Gaps in coverage (question 25) in these hours and of these servers:"
    yield from _table(names, gaps) if gaps else ["(nothing was read)"]


def _table(column_names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table, which fits the terminal if there is one."""
    return format_table(column_names, [[row[name] for name in column_names] for row in rows], cli.terminal_width())
