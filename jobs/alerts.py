"""Tell what is wrong: print the alerts of a lake, write them as JSON lines, exit 1 where they are grave."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jobs import cli, redaction
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from jobs.step_settings import thresholds
from pipeline.alerts.conditions import CONDITIONS
from pipeline.alerts.episodes import GRAVITY
from pipeline.alerts.update import current, is_there
from pipeline.text import cell, json_value, plain
from schemas.table import RUN_ID

JOB = "alerts"
_NOT_TOLD: Final = (RUN_ID, "event_date", "errors")  # in JSON


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    redaction.add_argument(made)
    levels = [*GRAVITY[::-1], "never"]
    made.add_argument(
        "--json", metavar="FILE", help="write all alerts to a file, one JSON object a line; - prints them"
    )
    made.add_argument("--ended", action="store_true", help="print those that ended too")
    made.add_argument(
        "--condition", metavar="NAME", nargs="+", action="extend", default=[], help="only these (docs/alerts.md)"
    )
    made.add_argument(
        "--fail-on",
        choices=levels,
        default="error",
        help="exit with 1 when an alert of this level or a graver one holds (default: error)",
    )
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Read the alerts, or work them out with other thresholds or as of another time; nothing is written to the lake."""
    wanted = set(this.arguments.condition)
    if unknown := sorted(wanted - CONDITIONS.keys()):
        raise ConfigError(f"no such condition: {unknown[0]} (there are {', '.join(CONDITIONS)})")
    lake = open_lake(this)
    if not is_there(lake):
        raise ConfigError(f"{this.arguments.lake}: nothing was read into this lake (jobs.run_all does that)")
    config = this.config
    if config.quotas.queues:  # by their names, where the lake may have pseudonyms
        config = redaction.redacted(config, redaction.pseudonyms(this))
    found = current(lake, thresholds(config), this.arguments.as_of).to_pylist()
    alerts = sorted((row for row in found if not wanted or row["condition"] in wanted), key=_order)
    holding = [row for row in alerts if row["until"] is None]
    _write(this.arguments.json, alerts)
    if this.arguments.json != "-":
        shown = alerts if this.arguments.ended else holding
        sys.stdout.write("".join(f"{line}\n" for row in shown for line in lines(row)))
    counts = {level: sum(row["severity"] == level for row in holding) for level in GRAVITY[::-1]}
    told = ", ".join(f"{count} {level}" for level, count in counts.items())
    cli.say(f"{len(holding)} alerts hold ({told}), {len(alerts) - len(holding)} ended")
    level = this.arguments.fail_on
    failed = level != "never" and any(GRAVITY.index(row["severity"]) >= GRAVITY.index(level) for row in holding)
    return cli.Outcome(quality_failed=failed, more={"alerts": counts, "ended": len(alerts) - len(holding)})


def _order(row: Mapping[str, Any]) -> tuple[bool, int, datetime, str]:
    """Order alerts: those that hold first, of these the gravest, of these the oldest."""
    return row["until"] is not None, -GRAVITY.index(row["severity"]), row["since"], row["alert_key"]


def lines(row: Mapping[str, Any]) -> list[str]:
    """Return what is printed of an alert; names and texts come from the wire, and are escaped."""
    until = "" if row["until"] is None else f", ended {cell(row['until'])}"
    known = "" if row["confidence"] == "complete" else f" ({row['confidence']}: {', '.join(row['missing'])})"
    return [
        f"{row['severity']:<8}{row['condition']}  {plain(row['subject'])}",
        f"        since {cell(row['since'])}, last seen {cell(row['last_seen_at'])}{until}{known}",
        f"        {plain(row['message'])}",
        f"        {row['suggestion']}",
    ]


def _write(target: str | None, alerts: Sequence[Mapping[str, Any]]) -> None:
    """Write alerts as JSON lines."""
    if target is None:
        return
    text = "".join(f"{json.dumps(_told(row), default=json_value)}\n" for row in alerts)
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}") from error


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _NOT_TOLD}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
