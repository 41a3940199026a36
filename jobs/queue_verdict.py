"""Say of a queue, given by any part of its name, how it is, since when, why, and what to do.

Exits with 0 if all is well, 1 if a queue is in trouble, 5 if nothing was captured of such a queue.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from jobs import cli
from jobs.alerts import load_thresholds
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.reports.lake_options import lake_options
from pipeline.reports.queue_verdict.formatting import format_in_line, format_verdict, verdict_to_json
from pipeline.reports.queue_verdict.verdict import QueueVerdict, find_verdicts
from pipeline.text import format_cell, json_default

JOB = "queue"
_MAX_WHOLE = 3  # of more queues only a list


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Print the verdicts; nothing is written."""
    arguments = job_run.arguments
    if not arguments.name:
        raise ConfigError("which queue? Give a part of its name")
    lake = open_lake_with_data(job_run)
    found = find_verdicts(lake, arguments.name, load_thresholds(job_run, lake), arguments.as_of)
    options = lake_options(lake, arguments.lake)
    if arguments.json:
        lines = [json.dumps(verdict_to_json(each, options), default=json_default) for each in found.verdicts]
    else:
        lines = _lines(found.verdicts, options)
    cli.write_output("".join(f"{line}\n" for line in lines))
    if not found.verdicts:
        near = f"; similar names: {format_cell(list(found.near))}" if found.near else ""
        cli.log_progress(f"nothing was captured of a queue called {format_cell(arguments.name)}{near}")
    in_trouble = [verdict.facts.queue for verdict in found.verdicts if verdict.is_in_trouble]
    return cli.Outcome(
        quality_failed=bool(in_trouble),
        nothing_captured=not found.verdicts,
        summary_fields={"queues": len(found.verdicts), "in_trouble": len(in_trouble)},
    )


def _lines(verdicts: Sequence[QueueVerdict], options: str) -> list[str]:
    """Return the lines that are printed: of several queues a list, and each verdict where they are few."""
    lines = [format_in_line(each) for each in verdicts] if len(verdicts) > 1 else []
    for verdict in verdicts if len(verdicts) <= _MAX_WHOLE else ():
        lines += [*([""] if lines else ()), *format_verdict(verdict, options)]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
