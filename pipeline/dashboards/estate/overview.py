"""The overview of an estate: figures, and sentences for its owner on what flows, is hard to move, and is full soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow.compute as pc

from pipeline.dashboards.estate.report import COVERAGE, FLOWS, MACHINES, QUEUES, EstateReport
from pipeline.reports.targets.verdicts import Fit
from pipeline.text import escape_unprintable, format_count

_MOST_NAMED: Final = 3  # flows, properties and queues in a sentence
_MAX_NAME_CHARS: Final = 60
_MINUTES_A_DAY: Final = 1440
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_READ: Final = "rpc_read"  # bytes of a message that is read were also sent to its queue


def overview(report: EstateReport) -> dict[str, Any]:
    """Return tiles (label, value, detail, section that explains it) and sentences, as JSON values."""
    return {"tiles": [*_tiles(report)], "sentences": [*_sentences(report)]}


def _tiles(report: EstateReport) -> Iterator[dict[str, str]]:
    messages = f"{_number(_sum(report, QUEUES, 'messages'))} messages seen"
    yield _tile("Queues", _number(report.views[QUEUES].num_rows), messages, "queues")
    yield _tile("Machines", _number(report.views[MACHINES].num_rows), _roles(report), "machines")
    yield _rate_tile(report, "Messages sent", "sendings", _number, "queues")
    yield _rate_tile(report, "Bytes sent", "sent_bytes", format_bytes, "flows")


def _tile(label: str, value: str, detail: str, section: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail, "section": section}


def _rate_tile(
    report: EstateReport, label: str, column: str, text: Callable[[int], str], section: str
) -> dict[str, str]:
    """Return how much of something there is in a day; where less than a day was captured, how much was seen."""
    minutes, amount = captured_minutes(report), _sum(report, QUEUES, column)
    if minutes < _MINUTES_A_DAY:
        return _tile(label, text(amount), f"in {format_hours(minutes)}: too short for a rate by day", section)
    of_a_day = round(amount / minutes * _MINUTES_A_DAY)
    return _tile(f"{label} a day", text(of_a_day), f"mean of {format_hours(minutes)} that were captured", section)


def _roles(report: EstateReport) -> str:
    roles = Counter(role for each in report.views[MACHINES]["roles"].to_pylist() for role in each or ())
    return f"{format_count(roles['sends'], 'sender')}, {_number(roles['holds_queues'])} with queues"


def _sentences(report: EstateReport) -> Iterator[str]:
    yield from _largest_flows(report)
    yield from _moves(report)
    yield from _full_soon(report)


def _largest_flows(report: EstateReport) -> Iterator[str]:
    """Yield what flows most, by the bytes that one machine sent to another for a queue."""
    rows = report.views[FLOWS].filter(pc.field("way") != _READ).sort_by([("bytes", "descending")])
    total, largest = pc.sum(rows["bytes"]).as_py(), rows.slice(0, _MOST_NAMED).to_pylist()
    if not total:
        yield "No message was seen to be sent from one machine to another."
        return
    named = [f"{_name(each['sender'])} to {_name(each['queue'])} ({each['bytes'] / total:.0%})" for each in largest
             if each["bytes"]]  # fmt: skip
    yield f"Most bytes: {'; '.join(named)}. All flows together: {format_bytes(total)}."


def _moves(report: EstateReport) -> Iterator[str]:
    """Yield how many queues do not fit the targets as they are, and what is most often in the way."""
    refused = [each for each in report.verdicts if each.verdict is Fit.DOES_NOT_FIT]
    if not report.verdicts:
        return
    by_target = Counter(each.target for each in refused)
    counts = "; ".join(f"{_number(by_target[each.name])} do not fit {_name(each.name)}" for each in report.targets)
    reasons = Counter(one.property for each in refused for one in each.with_verdict(Fit.DOES_NOT_FIT))
    why = ", ".join(name for name, _ in reasons.most_common(_MOST_NAMED))
    queues = format_count(report.views[QUEUES].num_rows, "queue")
    yield f"Hard to move, of {queues}: {counts}.{f' Most often in the way: {why}.' if why else ''}"


def _full_soon(report: EstateReport) -> Iterator[str]:
    """Yield what is full first if it grows on as it does."""
    rising = [
        (row["trend_days_until_full"], what, row)
        for view, what in _FILLING.items()
        for row in report.views[view].to_pylist()
        if row["trend"] == "rising" and row["trend_days_until_full"] is not None
    ]
    if not rising:
        yield "Full soon: no growth towards a quota was seen. At least 7 days with reports are needed."
        return
    first = sorted(rising, key=lambda each: each[0])[:_MOST_NAMED]
    named = [
        f"{what} {_name(row.get('queue') or row['queue_manager'])} in {days:.0f} days{_interval(row)}"
        for days, what, row in first
    ]
    yield f"Full soon: {'; '.join(named)}."


_FILLING: Final = {"depth_growth": "queue", "journal_growth": "the journal of", "machines": "machine"}


def _interval(row: dict[str, Any]) -> str:
    low, high = row["trend_full_low"], row["trend_full_high"]
    end = "or never" if high is None else f"to {high:.0f}"
    return f" ({low:.0f} {end}{', quota assumed' if row['quota_assumed'] else ''})"


def captured_minutes(report: EstateReport) -> int:
    """Return in how many minutes of the time that is reported anything was captured."""
    return _sum(report, COVERAGE, "minutes")


def _sum(report: EstateReport, view: str, column: str) -> int:
    return int(pc.sum(report.views[view][column]).as_py() or 0)


def _name(text: str | None) -> str:
    return "a machine that was not seen" if text is None else escape_unprintable(text, _MAX_NAME_CHARS)


def _number(count: int) -> str:
    return f"{count:,}".replace(",", "\u202f")


def format_bytes(size: float) -> str:
    """Return bytes in the largest unit of which there is one, as the page does: ``3.1 MiB``."""
    place = 0
    while size >= 1024 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.1f} {_UNITS[place]}" if place else f"{size:.0f} {_UNITS[0]}"


def format_hours(minutes: int) -> str:
    """Return minutes as days, hours or minutes: the unit of which there are two."""
    for unit, size in (("day", 1440), ("hour", 60)):
        if minutes >= 2 * size:
            return f"{minutes / size:.1f} {unit}s"
    return format_count(minutes, "minute")
