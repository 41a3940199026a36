"""Data Docs: the HTML pages of Great Expectations for a check, without external resources or scripts.

The original pages load style sheets, scripts, fonts and pictures from other hosts. Here these are removed, and a small
style sheet replaces them, so that the pages work without a network. A content security policy blocks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { border: 1px solid #8886; padding: .3rem .5rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }
.error { color: #c62828; font-weight: 600 } .warning { color: #b26a00 } .ok { color: #2e7d32 }
nav, .navbar, .cooltip, .modal, script, [data-toggle=collapse] > .fas { display: none }
"""
_SCRIPTS: Final = re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE)
_EXTERNAL_TAGS: Final = re.compile(
    r"<(?:link|img|iframe|source|embed|object)\b(?![^>]*\b(?:src|href)=[\"']?data:)[^>]*>(?:</(?:iframe|object)>)?",
    re.IGNORECASE,
)
_EXTERNAL_CSS: Final = re.compile(r"@import[^;]*;|url\(\s*['\"]?(?:https?:)?//[^)]*\)", re.IGNORECASE)
_HEAD: Final = re.compile(r"<head[^>]*>", re.IGNORECASE)


def write_data_docs(
    folder: Path, rows: Sequence[Mapping[str, Any]], reports: Mapping[str, ExpectationSuiteValidationResult]
) -> Path:
    """Write a page for each suite and an index page to a folder; return the path of the index."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(render_suite_page(report), encoding="utf-8")
    index = folder / "index.html"
    index.write_text(render_index(rows), encoding="utf-8")
    return index


def render_suite_page(report: ExpectationSuiteValidationResult) -> str:
    """Return the page of Great Expectations for a suite's report, without external content."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer  # noqa: PLC0415
    from great_expectations.render.view.view import DefaultJinjaPageView  # noqa: PLC0415

    rendered: str = DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(report))  # type: ignore[no-untyped-call]
    return strip_external_content(rendered)


def strip_external_content(html: str) -> str:
    """Return a page without scripts and without resources from other hosts; links stay."""
    html = _EXTERNAL_CSS.sub("", _EXTERNAL_TAGS.sub("", _SCRIPTS.sub("", html)))
    return _HEAD.sub(lambda found: found[0] + _head(), html, count=1)


def _head() -> str:
    return (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
    )


def render_index(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the index page: a table of all expectations, failed ones first."""
    ordered = sorted(rows, key=lambda row: (row["success"], row["severity"], row["suite"]))
    failed = sum(not row["success"] for row in rows)
    lines = "".join(map(_table_row, ordered))
    return (
        f"<!doctype html><html lang='en'><head>{_head()}<title>Data quality</title></head><body><h1>Data quality</h1>"
        f"<p>{len(rows) - failed} of {len(rows)} expectations hold.</p><table><thead><tr><th>Expectation</th>"
        "<th>Table</th><th>Level</th><th>Holds</th><th>Rows asked</th><th>Not as expected</th><th>Seen</th></tr>"
        f"</thead><tbody>{lines}</tbody></table></body></html>"
    )


def _table_row(row: Mapping[str, Any]) -> str:
    style = "ok" if row["success"] else row["severity"]
    link = f"<a href='{escape(row['suite'], quote=True)}.html'>{escape(row['suite'])}</a>"
    cells = (
        f"{link}: {escape(row['expectation'])}", escape(row["table"]), row["severity"],
        f"<span class='{style}'>{'yes' if row['success'] else 'no'}</span>", str(row["evaluated"]),
        str(row["unexpected"]), escape(row["observed"] or ""),
    )  # fmt: skip
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
