"""One HTML page with the results of a check, which needs nothing else: no script, no other page, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from schemas.quality import QUALITY_RESULTS

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 90rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { border: 1px solid #8886; padding: .3rem .5rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }
th { white-space: nowrap }
code { font-size: .9em } .error { color: #c62828; font-weight: 600 } .warning { color: #b26a00 } .ok { color: #2e7d32 }
"""
_SEVERITIES: Final = ("error", "warning", "info")
_HEADINGS: Final = ("Expected", "Limit", "Severity", "Holds", "Rows", "Not as expected", "Observed", "Rows that failed")


def render_results(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of rows of gold.quality_results: a table for each suite, those with a failure first."""
    by_suite: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_suite.setdefault(row["suite"], []).append(row)
    ordered = sorted(by_suite.items(), key=lambda each: (min(map(_urgency, each[1])), each[0]))
    failed = sum(not row["success"] for row in rows)
    links = " · ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name, _ in ordered)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Data quality</title><style>{_STYLE}</style>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><h1>Data quality</h1>'
        f"<p>{len(rows) - failed} of {len(rows)} expectations hold. Results of all runs: {QUALITY_RESULTS}.</p>"
        f"<nav>{links}</nav>{''.join(_suite_table(name, results) for name, results in ordered)}</body></html>"
    )


def _urgency(row: Mapping[str, Any]) -> int:
    """Sort key of a result: failed ones come first, by severity."""
    return len(_SEVERITIES) if row["success"] else _SEVERITIES.index(row["severity"])


def _suite_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    lines = "".join(map(_row, sorted(rows, key=_urgency)))
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    return (
        f'<h2 id="{escape(name)}">{escape(name)}: {escape(rows[0]["table"])}</h2>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _row(row: Mapping[str, Any]) -> str:
    keys = "<br>".join(map(escape, row["failed_keys"] or ()))
    cells = (
        f"{escape(row['description'])}<br><code>{escape(row['expectation'])}</code>",
        f"<code>{escape(row['limits'])}</code>",
        row["severity"],
        f'<span class="{"ok" if row["success"] else row["severity"]}">{"yes" if row["success"] else "no"}</span>',
        str(row["evaluated"]),
        str(row["unexpected"]),
        escape(row["observed"] or ""),
        f"{escape(row['key_column'])}:<br>{keys}" if keys else "",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
