"""Ask of what changed since the last check what is expected of it (conf/quality); exit 1 when an error fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import alone, open_lake
from pipeline.lake.lake import Lake
from pipeline.quality import data_docs
from pipeline.quality.check import Check, Checked, check
from pipeline.quality.suites import Suite, SuiteError, load, shipped
from schemas.quality import QUALITY_RESULTS

JOB = "check_quality"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    made.add_argument("--all", action="store_true", help="ask of all rows, not only of those that changed")
    made.add_argument("--docs", metavar="DIR", help="write Great Expectations' Data Docs there, as HTML")
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Check the lake, print what does not hold, write the pages."""
    suites = suites_of(this)
    lake = open_lake(this)
    with alone(this, lake):
        found = checked(this, lake, suites, everything=this.arguments.all or bool(this.arguments.docs), clock=True)
    lines = found.lines() or ["quality   nothing changed since the last check, which found no error"]
    sys.stdout.write("\n".join(lines) + "\n")
    if this.arguments.docs:
        try:
            index = data_docs.write(Path(this.arguments.docs), found.rows, found.reports)
        except OSError as error:
            raise ConfigError(f"--docs: {error}") from error
        cli.say(f"pages: {index}")
    return outcome(found)


def suites_of(this: cli.Run) -> tuple[Suite, ...]:
    """Return the suites of the folder ``quality.suites``, else of ``quality`` beside the settings, else ours."""
    named, conf = this.config.quality.suites, this.arguments.conf
    beside = Path(conf).parent / "quality" if conf else None
    try:
        if named is not None:
            return load(Path(named))
        return load(beside if beside is not None and beside.is_dir() else shipped())
    except SuiteError as error:
        raise ConfigError(str(error)) from error


def checked(
    this: cli.Run, lake: Lake, suites: Sequence[Suite], *, everything: bool = False, clock: bool = False
) -> Checked:
    """Check a lake that is held; ConfigError for suites that cannot be asked of its tables."""
    machines = tuple(machine.name for machine in this.config.collector.machines)
    how = Check(
        this.run_id,
        this.started_at,
        this.arguments.as_of or this.started_at,
        machines,
        everything=everything,
        clock=clock,
    )
    try:
        return check(lake, suites, how)
    except SuiteError as error:
        raise ConfigError(str(error)) from error


def outcome(found: Checked) -> cli.Outcome:
    """Return what a check comes to: the gate fails when an expectation of level error does."""
    failed = found.failed()
    counts = cli.TableCounts(
        rows_in=sum(row["evaluated"] for row in found.rows), rows_out=len(found.rows), rows_flagged=len(failed)
    )
    return cli.Outcome(tables={str(QUALITY_RESULTS): counts}, quality_failed=found.gate_failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
