"""Write what the lake says as pages for people: one HTML file, metrics for Prometheus, a Databricks dashboard."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.config import ConfigError
from jobs.ingest_captures import open_lake
from pipeline.lake import Lake
from pipeline.pages.attention import attention
from pipeline.pages.databricks import dashboard
from pipeline.pages.page import PageError, page
from pipeline.pages.prometheus import metrics
from pipeline.pages.reading import Limits, read_site

JOB = "publish_dashboards"
PAGE, METRICS, DASHBOARD = "index.html", "metrics.prom", "msmq.lvdash.json"


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
    """Write the pages of a lake into a folder, each file whole or not at all."""
    cli.say("reading what the pages show")
    limits = Limits()._replace(rows=rows)
    site = read_site(lake, limits=limits, published_at=this.started_at, as_of=this.arguments.as_of)
    if all(data.rows is None for data in site.data.values()):
        raise ConfigError(f"{lake.root} holds no tables: run jobs.run_all first")
    try:
        texts = {PAGE: page(site), METRICS: metrics(site), DASHBOARD: dashboard(lake)}
        out.mkdir(parents=True, exist_ok=True)
        written = {name: _write(out / name, text) for name, text in texts.items()}
    except PageError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or out}: {error.strerror or error}") from error
    seen = [f"#{section}  {what}" for section, what in attention(site)]
    cut = {name: data.total for name, data in site.data.items() if data.cut}
    cli.say(f"the pages are in {(out / PAGE).resolve().as_uri()}")
    for name, total in cut.items():
        cli.say(f"  of {total} rows of {name} {rows} are in the page, and sums over all")
    pages = {"site": str(out / PAGE), "written_bytes": written, "cut": cut, "attention": seen}
    return cli.Outcome(more=pages)


def worth_a_look(published: cli.Outcome) -> list[str]:
    """Lines for the person who has just run it: where the site is, and what is worth looking at there."""
    site = Path(published.more["site"]).resolve().as_uri()
    found = published.more["attention"]
    return [f"site      {site}", *(f"  {line}" for line in found)]


def _write(path: Path, text: str) -> int:
    data = text.encode("utf-8")
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)
    return len(data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
