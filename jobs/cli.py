"""What the jobs' command lines share: arguments, exit codes, and the JSON summary that ends standard output.

A job is ``run(arguments, config) -> Outcome``; ``main`` parses, loads, runs it, prints the summary and gives the exit
code. Progress and messages go to standard error, so that the last line of standard output is always the summary.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from jobs.config import Config, ConfigError
from pipeline.bronze.ledger_entries import Days, Reprocess
from pipeline.lake.errors import SchemaError

LAKE = "folder of the Delta tables; where lake.catalog names a catalog, of the runs' own files alone"
_CAPTURE_ID = re.compile(r"[0-9a-f]{32}")


class Exit(IntEnum):
    """Exit codes of every job; ``INPUT`` wins over ``QUALITY``."""

    OK = 0
    QUALITY = 1  # a quality gate failed
    USAGE = 2  # wrong usage or configuration
    INPUT = 3  # some input could not be read; the rest was processed


@dataclass(slots=True)
class TableCounts:
    """Rows of one table in this run: read for it, written to it, and written with errors or damage."""

    rows_in: int = 0
    rows_out: int = 0
    rows_flagged: int = 0


@dataclass(slots=True)
class Outcome:
    """What a job did: counts for each ``layer.table``, bytes of input read, and what went wrong."""

    tables: dict[str, TableCounts] = field(default_factory=dict)
    bytes_read: int = 0
    quality_failed: bool = False
    input_failed: bool = False
    more: dict[str, Any] = field(default_factory=dict)  # further facts for the summary, JSON values

    @property
    def exit_code(self) -> Exit:
        """The exit code that says it."""
        if self.input_failed:
            return Exit.INPUT
        return Exit.QUALITY if self.quality_failed else Exit.OK

    def summary(self, job: str, run_id: str, seconds: float) -> str:
        """The JSON line that ends standard output."""
        facts = {
            "job": job,
            "run_id": run_id,
            "exit_code": int(self.exit_code),
            "seconds": round(seconds, 3),
            "bytes": self.bytes_read,
            "tables": {name: asdict(counts) for name, counts in self.tables.items()},
        }
        return json.dumps({**facts, **self.more})


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job: its arguments, settings and identity. ``started_at`` is clock time, UTC.

    ``ends`` is left when the run ends, however it does: what must not outlast it is entered there.
    """

    job: str
    arguments: argparse.Namespace
    config: Config
    run_id: str
    started_at: datetime
    ends: ExitStack = field(default_factory=ExitStack)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and the message, without the usage."""
        self.exit(Exit.USAGE, f"{self.prog}: {message} (--help lists the options)\n")


def parser(
    job: str, description: str | None, *, captures: bool = False, snapshots: bool = False, lake: bool = True
) -> Parser:
    """The arguments that every job takes; a lake and the named inputs where the job has to do with them."""
    made = Parser(prog=job, description=description, allow_abbrev=False)
    made.add_argument("--conf", metavar="FILE", help="settings, YAML (default: every setting's default)")
    made.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="override one setting"
    )
    if lake:
        made.add_argument("--lake", metavar="URI", required=True, help=LAKE)
    if captures:
        made.add_argument(
            "--captures",
            metavar="URI",
            nargs="+",
            action="extend",
            default=[],
            help="capture files, folders (all files below) and patterns, also s3://BUCKET/...; - is standard input",
        )
        made.add_argument(
            "--between",
            metavar="FROM..TO",
            type=days,
            help="of new captures only those with packets, or last modified, on these days (YYYY-MM-DD, UTC)",
        )
        made.add_argument(
            "--reprocess",
            metavar="WHAT",
            type=reprocess,
            help="read captures of the lake again and replace what they gave: all, capture=ID or capture=PATH, "
            "date=YYYY-MM-DD or date=FROM..TO (of their packets), decoder=VERSION (what any other version read)",
        )
        made.add_argument(
            "--keys",
            metavar="FILE",
            help="keys of sealed traffic, YAML (default: the file that MSMQ_KEYS_FILE names; docs/sealed.md)",
        )
        made.add_argument("--dry-run", action="store_true", help="say what would be read, write nothing")
    if snapshots:
        made.add_argument(
            "--snapshots",
            metavar="URI",
            nargs="+",
            action="extend",
            default=[],
            help="snapshot files (JSON lines), folders and patterns",
        )
    if lake:
        made.add_argument(
            "--as-of", metavar="TIME", type=utc_time, help="what counts as now, ISO 8601 (default: the newest packet)"
        )
    return made


def utc_time(text: str) -> datetime:
    """An ISO 8601 time as UTC; without an offset it is taken to be UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a time like 2024-05-01T12:00:00Z: {text!r}") from error
    try:
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"out of range: {text!r}") from error
    if when.year < 1971:  # what captures can hold, and room for a time before it
        raise argparse.ArgumentTypeError(f"out of range: {text!r}")
    return when


def whole_number(text: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"not a whole number from 1: {text!r}")
    return int(text)


def days(text: str) -> Days:
    """``YYYY-MM-DD`` or ``YYYY-MM-DD..YYYY-MM-DD`` as the days from the first to the last, both included."""
    first, dots, last = text.partition("..")
    found = Days(_date(first, text), _date(last if dots else first, text))
    if found.first > found.last:
        raise argparse.ArgumentTypeError(f"ends before it begins: {text!r}")
    return found


def _date(part: str, text: str) -> date:
    try:
        return datetime.strptime(part, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not dates like 2024-05-01..2024-05-31: {text!r}") from error


def reprocess(text: str) -> Reprocess:
    """``all``, ``capture=ID-or-path``, ``date=DAYS`` or ``decoder=VERSION`` as what to read again."""
    kind, _, value = text.partition("=")
    if text == "all":
        return Reprocess()
    if kind == "capture" and value:
        is_path = "://" not in value and not _CAPTURE_ID.fullmatch(value)
        return Reprocess(capture=str(Path(value).absolute()) if is_path else value)  # the ledger's paths are absolute
    if kind == "date" and value:
        return Reprocess(days=days(value))
    if kind == "decoder" and value:
        return Reprocess(decoder=value)
    raise argparse.ArgumentTypeError(f"not all, capture=ID-or-path, date=DAYS or decoder=VERSION: {text!r}")


def main(job: str, made: Parser, run: Callable[[Run], Outcome], argv: Sequence[str] | None = None) -> int:
    """Parse, load the settings, run the job, print its summary; the exit code. ConfigError is one line and 2."""
    started = time.monotonic()
    try:
        arguments = made.parse_args(argv)
        config = Config.load(arguments.conf, arguments.overrides)
        this = Run(job, arguments, config, uuid.uuid4().hex, datetime.now(UTC))
        with this.ends:
            outcome = run(this)
    except (ConfigError, SchemaError) as error:
        say(f"{job}: {error}")
        return Exit.USAGE
    except SystemExit as left:  # argparse: --help or a complaint, already printed
        return int(left.code or 0)
    sys.stdout.write(outcome.summary(job, this.run_id, time.monotonic() - started) + "\n")
    sys.stdout.flush()
    return outcome.exit_code


def say(message: str) -> None:
    """One line for the person who waits, on standard error."""
    try:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
    except BrokenPipeError:  # nobody listens any more; the run goes on
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
