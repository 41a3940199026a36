"""Renders dashboard data as one self-contained HTML file: Plotly, scripts, style and data are embedded.

The page's Content-Security-Policy allows its two scripts and its styles by their digests, and nothing else. The data is
JSON in an element that the browser does not run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from pipeline.dashboards.dashboard_data import DashboardData, json_for_script
from pipeline.dashboards.terms import page_terms

SCRIPT_FILES: Final = (
    "data.js",
    "dom.js",
    "terms.js",
    "charts.js",
    "rows.js",
    "checks.js",
    "stories.js",
    "transfers.js",
    "sections.js",
    "navigation.js",
    "main.js",
)
_PLOTLY_STYLE_ID: Final = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
_SCRIPT_END: Final = "</script"


class PageError(Exception):
    """The page cannot be rendered; the message says what to do."""


def render_page(dashboard: DashboardData) -> str:
    """Return the dashboard as one HTML document."""
    texts = {
        "style": read_static("style.css"),
        "plotly": plotly_script(),
        "program": join_scripts(SCRIPT_FILES),
        "site": json_for_script({**dashboard.to_json(), "terms": page_terms()}),
    }
    # Plotly finds these empty style elements and adds none of its own, which the policy would block.
    sheets = ["plotly.js-style-global", *sorted(set(_PLOTLY_STYLE_ID.findall(texts["plotly"])))]
    texts["sheets"] = "\n".join(f'<style id="{name}"></style>' for name in sheets)
    return render_document(
        read_static("index.html"),
        texts,
        scripts=(texts["plotly"], texts["program"]),
        styles=(texts["style"], ""),
    )


def render_document(
    template: str, texts: Mapping[str, str], *, scripts: tuple[str, ...], styles: tuple[str, ...]
) -> str:
    """Return a template with its texts in place of ``{{name}}``, and its policy in place of ``{{policy}}``.

    The policy allows ``scripts`` and ``styles``. PageError if a script would end its own element.
    """
    if any(_SCRIPT_END in script.lower() for script in scripts):
        raise PageError(f"a script contains {_SCRIPT_END!r}, which would end its element")
    given = {**texts, "policy": content_security_policy(scripts=scripts, styles=styles)}
    parts: list[str] = []
    for place, part in enumerate(template.split("{{")):
        name, closed, rest = part.partition("}}")
        parts += [given[name], rest] if place and closed else [part]
    return "".join(parts)


def page_code_digest() -> str:
    """Return a digest of the code that makes the page: the files of this package, and Plotly's script."""
    digest = hashlib.sha256(plotly_script().encode())
    package = resources.files("pipeline.dashboards")
    for folder in (package, package / "static"):
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def content_security_policy(*, scripts: tuple[str, ...], styles: tuple[str, ...]) -> str:
    """Return the page's Content-Security-Policy: it allows these scripts and styles, and no network access.

    An empty style stands for the style element that Plotly adds its rules to.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_csp_digests(scripts)}",
            f"style-src {_csp_digests(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _csp_digests(texts: tuple[str, ...]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def plotly_script() -> str:
    """Return Plotly's JavaScript from its Python package; PageError if the package is missing."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - large, and only needed here
    except ImportError as error:
        raise PageError("the package plotly is not installed: run 'make setup', or pip install plotly") from error
    program: str = get_plotlyjs()
    return program


def join_scripts(names: Iterable[str]) -> str:
    """Return scripts of the dashboard, by the names of their files, as one."""
    return "\n".join(read_static(name) for name in names)


def read_static(name: str) -> str:
    """Return the text of a file of the dashboard's page."""
    return (resources.files("pipeline.dashboards") / "static" / name).read_text(encoding="utf-8")
