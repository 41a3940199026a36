"""Remove what is older than a date from every layer, from older versions of the tables, and from the pages.

What an ordinary run would make of what is left is made, then the bytes go: deleted rows, versions, changes that tables
told, entries of their logs, spooled captures. Later runs bring nothing back that is older, whatever lies in the folders
they read. Killed anywhere and repeated it is done.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

from jobs import cli, publish_dashboards, redaction, run_all
from jobs.config import ConfigError
from jobs.lake_access import alone, open_lake
from pipeline.bronze.ingest_captures import BRONZE
from pipeline.bronze.retention_cutoff import Horizon
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs, recover
from pipeline.privacy import erasure, retention
from schemas import catalog
from schemas.bronze import CAPTURE_FILES

JOB = "forget"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    redaction.add_argument(made)
    made.add_argument(
        "--before",
        metavar="DATE",
        type=_day,
        required=True,
        help="the first day that is kept, YYYY-MM-DD, UTC: all before it goes, for good",
    )
    made.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")
    made.add_argument(
        "--pages",
        metavar="FOLDER",
        action="append",
        default=[],
        help="pages of publish_dashboards to write anew of what is left; those in the lake's folder pages always are",
    )
    made.add_argument(
        "--docs", metavar="DIR", action="append", default=[], help="Data Docs of check_quality, to be removed"
    )
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Take out what is older, bring the layers above to what is left, remove the bytes."""
    horizon = Horizon(this.arguments.before)
    for folder in map(Path, this.arguments.docs):
        if folder.exists() and not (folder / "index.html").exists():
            raise ConfigError(f"--docs {folder}: no index.html there, so these are no Data Docs; nothing was removed")
    by = redaction.pseudonyms(this)
    lake = open_lake(this)
    if not any(lake.exists(table) for table in catalog.EVERY):
        raise ConfigError(f"{lake.root} holds no tables: --lake names the folder that runs were given")
    if this.arguments.dry_run:
        return _counted(retention.forget(lake, horizon, dry_run=True), "would go")
    with alone(this, lake), redaction.agreed(this, lake, by):
        recover(lake, BRONZE, CAPTURE_FILES, cli.say)  # else the next run would restore what goes here
        runs = Runs.of(lake)
        known = Horizon.of(runs)
        if known is not None and known.before > horizon.before:
            cli.say(f"all before {known.before} was forgotten already")
            horizon = known
        horizon.note(runs)  # first of all: from now on nothing older comes in
        cli.say(f"taking out what is older than {horizon.before}")
        outcome = _counted(retention.forget(lake, horizon), "removed")
        derived = cli.Outcome()
        run_all.derive_all(replace(this, config=redaction.redacted(this.config, by)), lake, derived)
        spooled = _spool(lake, horizon)
        cli.say("removing bytes: deleted rows, older versions, changes, logs")
        tables = erasure.erase(lake)
        erasure.leftovers(lake)
        outcome.more |= {"before": horizon.before.isoformat(), "tables_erased": tables, "spooled_removed": spooled}
        _pages(this, lake)
    return outcome


def _counted(found: retention.Forgotten, what: str) -> cli.Outcome:
    lines = [f"{table:<24}{rows:>12} rows {what}" for table, rows in found.rows.items() if rows]
    if found.files:
        lines.append(f"{found.files} files stay in the ledgers as read, without what was in them")
    sys.stdout.write("\n".join(lines or ["nothing is older"]) + "\n")
    return cli.Outcome(more={"forgotten": {table: rows for table, rows in found.rows.items() if rows}})


def _spool(lake: Lake, horizon: Horizon) -> int:
    """Remove copies of what was piped in that hold anything older, or that no row of the ledger is of."""
    folder = Path(lake.root) / "_spool"
    if not folder.is_dir():
        return 0
    kept = {
        row["path"]
        for row in lake.read(CAPTURE_FILES).select("path", "first_packet_at", "last_packet_at").toArrow().to_pylist()
        if not horizon.crosses(row)
    }
    old = [path for path in sorted(folder.iterdir()) if str(path) not in kept]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _pages(this: cli.Run, lake: Lake) -> None:
    """Write pages anew, and remove Data Docs, which quote rows."""
    own = Path(lake.root) / "pages"
    for folder in dict.fromkeys([*([own] if own.is_dir() else []), *map(Path, this.arguments.pages)]):
        publish_dashboards.publish(this, lake, folder)
    for folder in map(Path, this.arguments.docs):
        shutil.rmtree(folder, ignore_errors=True)


def _day(text: str) -> date:
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a date like 2024-05-01: {text!r}") from error
    if day > datetime.now(UTC).date():
        raise argparse.ArgumentTypeError(f"a day to come: {text!r}")
    return day


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
