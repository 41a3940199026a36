"""Renders the report on an estate as one self-contained HTML file: script, style and data are embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pipeline.dashboards.dashboard_data import encode_table, json_for_script
from pipeline.dashboards.estate.heat_map import HOURS_OF_WEEK, captured_weeks, heat_maps
from pipeline.dashboards.estate.overview import captured_minutes, format_hours, overview
from pipeline.dashboards.estate.report import (
    COVERAGE,
    FLOWS,
    GROWTH_VIEWS,
    HOURS,
    MACHINES,
    QUEUE_COVERAGE,
    QUEUES,
    EstateReport,
)
from pipeline.dashboards.html_page import join_scripts, read_static, render_document
from pipeline.dashboards.terms import page_terms
from pipeline.reports.targets.verdicts import Fit
from pipeline.reports.views.catalog import VIEWS_BY_NAME
from pipeline.text import cut_text
from udfs.times import datetime_to_us

MAX_PAGE_BYTES: Final = 5_000_000
_MOST_EXPLAINED: Final = 2_000  # queues whose verdicts are explained, fewer where the page would be too large
_QUEUES_PER_EXPLAINED: Final = 4  # rows of other tables for each of these
_NOT_CAPTURED: Final = (0.0,) * HOURS_OF_WEEK
_FLOW_ENDS: Final = ("sender", "receiver", "way")
_FLOW_AMOUNTS: Final = {"messages": "sum", "sendings": "sum", "bytes": "sum", "first_at": "min", "last_at": "max"}
_SITE_SCRIPTS: Final = ("data.js", "dom.js", "terms.js", "rows.js", "navigation.js")
_SCRIPTS: Final = ("heat_map.js", "flows.js", "facts.js", "queue.js", "sections.js", "main.js")
_VERDICT_COLUMNS: Final = ("queue", "target", "verdict", "refuses", "fits", "not_seen", "unknown")
_IN_THE_WAY_COLUMNS: Final = ("queue", "target", "property", "verdict", "evidence", "change", "source", "as_of")
_IN_THE_WAY: Final = (Fit.DOES_NOT_FIT, Fit.CHANGE)


def render_report(report: EstateReport) -> str:
    """Return the report as one HTML document of at most ``MAX_PAGE_BYTES``.

    Where not all queues fit, it has those with most messages, explains the verdicts on the first of them, and says so.
    """
    explained = _MOST_EXPLAINED
    while len((page := _render(report, explained)).encode()) > MAX_PAGE_BYTES and explained > 1:
        explained //= 2
    return page


def _render(report: EstateReport, explained: int) -> str:
    scripts = "\n".join((join_scripts(_SITE_SCRIPTS), *map(_read_own, _SCRIPTS)))
    style = read_static("style.css") + _read_own("estate.css")
    texts = {"style": style, "program": scripts, "site": json_for_script(_page_data(report, explained))}
    return render_document(_read_own("estate.html"), texts, scripts=(scripts,), styles=(style,))


def _read_own(name: str) -> str:
    return (resources.files("pipeline.dashboards.estate") / "static" / name).read_text(encoding="utf-8")


def _page_data(report: EstateReport, explained: int) -> dict[str, Any]:
    """Return the data of the page as JSON values; of at most ``explained`` queues it says what is in the way."""
    most = explained * _QUEUES_PER_EXPLAINED
    growing = {name: report.views[name].filter(pc.field("trend_days").is_valid()) for name in GROWTH_VIEWS}
    every = {**report.views, **growing}
    shown = {
        QUEUES: _largest(every[QUEUES], "messages", most),
        FLOWS: _join_small_flows(every[FLOWS], most),
        **{name: every[name].slice(0, most) for name in (MACHINES, *GROWTH_VIEWS)},
    }
    queues = shown[QUEUES]["queue"].to_pylist()
    data = {name: _dataset(rows, every[name].num_rows) for name, rows in shown.items()}
    data |= {name: _dataset(rows, rows.num_rows) for name, rows in _verdict_tables(report, queues, explained).items()}
    return {
        "lake": report.lake_name,
        "lake_options": report.lake_options,
        "as_of": _us(report.now),
        "since": _us(report.since),
        "asked": report.time_asked,
        "published_at": _us(report.published_at),
        "time_zone": str(report.time_zone),
        "captured_from": _us(pc.min(report.views[COVERAGE]["first_at"]).as_py()),
        "captured": format_hours(captured_minutes(report)),
        **_heat_map_data(report, set(queues)),
        "targets": [target.name for target in report.targets],
        "verdicts": [str(each) for each in Fit],
        "overview": overview(report),
        "views": [_view_texts(report, name) for name in report.views if name not in (HOURS, COVERAGE, QUEUE_COVERAGE)],
        "terms": page_terms(),
        "machine_names": {},  # views name machines
        "column_comments": {},
        "data": data,
    }


def _heat_map_data(report: EstateReport, queues: set[str]) -> dict[str, Any]:
    """Return sendings by hour of the week of each queue, and the place of what was captured in ``captured_weeks``."""
    maps = heat_maps(report.views[HOURS], report.time_zone)
    weeks = captured_weeks(report.views[QUEUE_COVERAGE], report.time_zone)
    places: dict[tuple[float, ...], int] = {}
    of_queues = {
        _cut(queue): {"counts": counts, "week": places.setdefault(weeks.get(queue, _NOT_CAPTURED), len(places))}
        for queue, counts in maps.items()
        if queue in queues
    }
    return {"heat_maps": of_queues, "captured_weeks": [*places]}


def _us(at: Any) -> int | None:  # noqa: ANN401
    return None if at is None else datetime_to_us(at)


def _largest(rows: pa.Table, column: str, most: int) -> pa.Table:
    """Return the rows with the largest values, these first; equal ones in their order."""
    order = pc.sort_indices(rows, sort_keys=[(column, "descending")])
    return rows.take(order[:most])


def _join_small_flows(rows: pa.Table, most: int) -> pa.Table:
    """Return flows, the largest first; those behind ``most`` are joined by sender, receiver and way, without queue."""
    ordered = _largest(rows, "bytes", rows.num_rows)
    if rows.num_rows <= most:
        return ordered
    joined = ordered.slice(most).group_by(list(_FLOW_ENDS)).aggregate([*_FLOW_AMOUNTS.items()])
    joined = joined.rename_columns([*_FLOW_ENDS, *_FLOW_AMOUNTS])
    joined = joined.append_column("queue", pa.nulls(joined.num_rows, pa.string())).select(rows.column_names)
    return pa.concat_tables([ordered.slice(0, most), joined])


def _dataset(rows: pa.Table, total: int) -> dict[str, Any]:
    """Return rows as the page's scripts read them, with long texts cut."""
    cut = [_cut_column(rows[name]) for name in rows.column_names]
    encoded = encode_table(pa.table(cut, names=rows.column_names))
    return {"computed": True, "total": total, **encoded}


def _cut_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if types.is_string(kind) or (types.is_list(kind) and types.is_string(kind.value_type)):
        return pa.array(map(_cut, column.to_pylist()), kind)
    return column


def _cut(value: Any) -> Any:  # noqa: ANN401
    """Return a text, or texts, with what is too long cut; different ones stay different."""
    if isinstance(value, str):
        return cut_text(value, distinct=True)
    return [_cut(each) for each in value] if isinstance(value, list) else value


def _verdict_tables(report: EstateReport, queues: Sequence[str], explained: int) -> Mapping[str, pa.Table]:
    """Return one row for each queue and target, and one for each property that is in the way of a move.

    The second are of the first queues only, ``explained`` of them.
    """
    shown, to_explain = set(queues), set(queues[:explained])
    verdicts = [each for each in report.verdicts if each.queue in shown]
    of_queues = [
        {
            "queue": each.queue,
            "target": each.target,
            "verdict": str(each.verdict),
            "refuses": _titles(each, Fit.DOES_NOT_FIT),
            "fits": _titles(each, Fit.FITS),
            "not_seen": _titles(each, Fit.NOT_SEEN),
            "unknown": _titles(each, Fit.UNKNOWN),
        }
        for each in verdicts
    ]
    in_the_way = [
        {
            "queue": each.queue,
            "target": each.target,
            "property": one.property,
            "verdict": str(one.verdict),
            "evidence": one.evidence,
            "change": one.change,
            "source": one.source,
            "as_of": None if one.as_of is None else one.as_of.isoformat(),
        }
        for each in verdicts
        if each.queue in to_explain
        for one in each.properties
        if one.verdict in _IN_THE_WAY
    ]
    return {"verdicts": _texts(of_queues, _VERDICT_COLUMNS), "in_the_way": _texts(in_the_way, _IN_THE_WAY_COLUMNS)}


def _titles(judged: Any, verdict: Fit) -> str:  # noqa: ANN401
    return ", ".join(each.property for each in judged.with_verdict(verdict))


def _texts(rows: Sequence[Mapping[str, str | None]], names: Sequence[str]) -> pa.Table:
    return pa.Table.from_pylist([*rows], pa.schema([(name, pa.string()) for name in names]))


def _view_texts(report: EstateReport, name: str) -> dict[str, Any]:
    """Return what a view says of itself, and what was and was not seen of the evidence that it needs."""
    view, evidence = VIEWS_BY_NAME[name], report.evidence[name]
    return {
        "name": name,
        "row_meaning": view.row_meaning,
        "how_to_read": view.how_to_read,
        "limitations": view.limitations,
        "rows": report.views[name].num_rows,
        "is_known": bool(report.views[name].num_rows) or evidence.is_enough,
        "seen": [
            {"name": kind.name, "subjects": f"{count} {kind.subjects}", "servers": servers, "first_at": _us(first),
             "last_at": _us(last)}
            for kind, count, servers, first, last in evidence.sights
        ],
        "unseen": [kind.name for kind in evidence.unseen],
    }  # fmt: skip
