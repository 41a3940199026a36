"""Plain data to one HTML file that needs nothing else: Plotly, program, style and data are in it.

The page's own policy lets it load nothing and run nothing but its two scripts, which are named by their digests; the
data is JSON in an element that is never run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import Final

from pipeline.dashboards.model import Site, script_json

PROGRAM: Final = ("data.js", "dom.js", "charts.js", "rows.js", "health.js", "sections.js", "main.js")
_SHEET: Final = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
_END: Final = "</script"


class PageError(Exception):
    """The page cannot be made; the message says what to do."""


def page(site: Site) -> str:
    """Return the site as one HTML document."""
    texts = {
        "style": _static("style.css"),
        "plotly": plotly_program(),
        "program": "\n".join(_static(name) for name in PROGRAM),
        "site": script_json(site.plain()),
    }
    # Empty sheets in the place of those that Plotly would add: it finds them, and what maps would need stays out.
    sheets = ["plotly.js-style-global", *sorted(set(_SHEET.findall(texts["plotly"])))]
    texts["sheets"] = "\n".join(f'<style id="{name}"></style>' for name in sheets)
    for name in ("plotly", "program"):
        if _END in texts[name].lower():
            raise PageError(f"a script holds {_END!r}, which would end its element")
    texts["policy"] = policy(scripts=(texts["plotly"], texts["program"]), styles=(texts["style"], ""))
    made: list[str] = []
    for place, part in enumerate(_static("index.html").split("{{")):
        name, closed, rest = part.partition("}}")
        made += [texts[name], rest] if place and closed else [part]
    return "".join(made)


def program_digest() -> str:
    """Return what tells versions of the pages apart: of the files of this package, and of Plotly's program."""
    digest = hashlib.sha256(plotly_program().encode())
    package = resources.files("pipeline.dashboards")
    for folder in (package, package / "static"):
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            if each.is_file():
                digest.update(each.name.encode() + b"\0" + each.read_bytes())
    return digest.hexdigest()


def policy(*, scripts: tuple[str, ...], styles: tuple[str, ...]) -> str:
    """Return the page's Content-Security-Policy: these scripts and styles, and nothing from anywhere.

    The empty style is the sheet that Plotly adds its rules to.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digests(scripts)}",
            f"style-src {_digests(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digests(texts: tuple[str, ...]) -> str:
    made = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in made)


def plotly_program() -> str:
    """Return Plotly's program as its package carries it; PageError without the package."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - only this needs it, and it is heavy
    except ImportError as error:
        raise PageError("the package plotly is not installed: run 'make setup', or pip install plotly") from error
    program: str = get_plotlyjs()
    return program


def _static(name: str) -> str:
    return (resources.files("pipeline.dashboards") / "static" / name).read_text(encoding="utf-8")
