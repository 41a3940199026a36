"""Write what the lake says as pages for people: one HTML file, metrics for Prometheus, a Databricks dashboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from pipeline.dashboards.databricks import dashboard
from pipeline.dashboards.highlights import attention
from pipeline.dashboards.html_page import PageError, page, program_digest
from pipeline.dashboards.prometheus import metrics
from pipeline.dashboards.read_site import Limits, read_site
from pipeline.lake.lake import Lake, versions_of
from schemas import catalog

JOB = "publish_dashboards"
PAGE, METRICS, DASHBOARD = "index.html", "metrics.prom", "msmq.lvdash.json"
_MADE_OF = ".made_of.json"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    made.add_argument("--out", metavar="FOLDER", required=True, help=f"where {PAGE}, {METRICS} and {DASHBOARD} go")
    made.add_argument(
        "--rows",
        metavar="NUMBER",
        type=cli.whole_number,
        default=Limits().rows,
        help="most rows of each table in the page (default %(default)s); counts are of all rows",
    )
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Read the lake and write the pages."""
    return publish(this, open_lake(this), Path(this.arguments.out), rows=this.arguments.rows)


def publish(this: cli.Run, lake: Lake, out: Path, *, rows: int = Limits().rows) -> cli.Outcome:
    """Write the pages of a lake into a folder, each file whole or not at all; nothing where they are there already.

    What they were made of is kept beside them: the tables' versions, what was asked for, and the program.
    """
    made_of = _made_of(lake, rows, this.arguments.as_of)
    if (kept := _kept(out, made_of)) is not None:
        cli.say("nothing has changed since the pages were written")
        return cli.Outcome(more=kept)
    cli.say("reading what the pages show")
    limits = Limits()._replace(rows=rows)
    site = read_site(lake, limits=limits, published_at=this.started_at, as_of=this.arguments.as_of)
    if all(data.rows is None for data in site.data.values()):
        raise ConfigError(f"{lake.root} holds no tables: run jobs.run_all first")
    try:
        texts = {PAGE: page(site), METRICS: metrics(site), DASHBOARD: dashboard(lake)}
        out.mkdir(parents=True, exist_ok=True)
        written = {name: _write(out / name, text) for name, text in texts.items()}
        cut = {name: data.total for name, data in site.data.items() if data.cut}
        seen = [f"#{section}  {what}" for section, what in attention(site)]
        more = {"site": str(out / PAGE), "written_bytes": written, "cut": cut, "attention": seen}
        _write(out / _MADE_OF, json.dumps({"made_of": made_of, "more": more}))
    except PageError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or out}: {error.strerror or error}") from error
    cli.say(f"the pages are in {(out / PAGE).resolve().as_uri()}")
    for name, total in cut.items():
        cli.say(f"  of {total} rows of {name} {rows} are in the page, and sums over all")
    return cli.Outcome(more=more)


def _made_of(lake: Lake, rows: int, as_of: datetime | None) -> dict[str, Any]:
    newest = lake.newest(*catalog.EVERY)
    asked = {"lake": lake.path(catalog.EVERY[0]), "rows": rows, "as_of": str(as_of)}
    return {**asked, "tables": versions_of(newest, catalog.EVERY), "program": program_digest()}


def _kept(out: Path, made_of: dict[str, Any]) -> dict[str, Any] | None:
    """What was told of the pages that are there, if they were made of the same."""
    try:
        kept = json.loads((out / _MADE_OF).read_text(encoding="utf-8"))
        sizes = {name: (out / name).stat().st_size for name in (PAGE, METRICS, DASHBOARD)}
        same = kept["made_of"] == made_of and kept["more"]["written_bytes"] == sizes
        return dict(kept["more"]) if same else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def worth_a_look(published: cli.Outcome) -> list[str]:
    """Lines for the person who has just run it: where the site is, and what is worth looking at there."""
    site = Path(published.more["site"]).resolve().as_uri()
    found = published.more["attention"]
    return [f"site      {site}", *(f"  {line}" for line in found)]


def _write(path: Path, text: str) -> int:
    data = text.encode("utf-8")
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)
    return len(data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
