"""Shared command line of all jobs: common arguments, exit codes, and the JSON summary on standard output.

A job module has ``run(job_run) -> Outcome`` and ``main(argv)``; its parser is in ``jobs/command_line/parsers.py``.
``run_job`` parses the arguments, loads the settings, calls ``run``, prints the summary and returns the exit code.
Progress and error messages go to standard error. So the last line of standard output is the summary; where standard
output is data, the summary goes to standard error too. No Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from enum import IntEnum
from itertools import pairwise
from types import FrameType
from typing import Any, BinaryIO, NoReturn, TextIO

from jobs.command_line.failure_report import report_lines, summarize_exception
from jobs.command_line.java_process import JAVA
from jobs.command_line.settings_file import load_config
from jobs.config import Config, ConfigError
from pipeline.bronze.input_files import ledger_path
from pipeline.bronze.ledger_entries import DateRange, ReprocessSelector
from pipeline.lake.errors import ConflictError, LakeNameError, SchemaError, StoreError
from pipeline.local_paths import lake_location, local_path
from pipeline.settings import FileAccess
from pipeline.text import escape_lines, escape_unprintable, is_utf8

LAKE_HELP = (
    "folder of the Delta tables, also s3://BUCKET/...; if lake.catalog names a catalog, the folder of the runs' "
    "working files"
)
STANDARD_OUTPUT = "-"  # in place of a file
_UMASKS: Mapping[FileAccess, int] = {"owner": 0o077, "group_read": 0o027, "group_write": 0o007, "all_read": 0o022}
_MAX_CONFLICTS = 2  # with somebody else's changes, in one run
_METER_INTERVAL_S = 5.0
_METER_LINE = "{percentage:.0f} % read: {n_fmt} of {total_fmt}B, {rate_fmt}, {remaining} left{postfix}"
_MAX_LINE_CHARS = 4_000  # of progress and messages: paths are long
_CAPTURE_ID = re.compile(r"[0-9a-f]{32}")


class ExitCode(IntEnum):
    """Exit codes of every job. If several apply, ``INPUT_UNREADABLE`` takes precedence over ``QUALITY_FAILED``."""

    OK = 0
    QUALITY_FAILED = 1  # a quality gate failed
    USAGE_ERROR = 2  # wrong usage or configuration
    INPUT_UNREADABLE = 3  # some input could not be read; the rest was processed
    UNFORESEEN_ERROR = 4  # an exception that nobody foresaw ended the run
    NOTHING_CAPTURED = 5  # asked for something of which nothing was captured; no failure of the program
    INTERRUPTED = 130  # Ctrl-C, as shells count it


@dataclass(slots=True)
class TableCounts:
    """Row counts of one table in this run: input rows, written rows, and written rows with errors or damage."""

    rows_in: int = 0
    rows_out: int = 0
    rows_flagged: int = 0


@dataclass(slots=True)
class Outcome:
    """Result of a job: row counts by ``layer.table``, what was read of the input, and whether something failed.

    ``failures`` counts inputs that could not be read. ``nothing_captured``: the tables have nothing of what was asked
    for. ``error`` describes the exception that ended the run, if one did.
    """

    tables: dict[str, TableCounts] = field(default_factory=dict)
    captures_read: int = 0
    snapshots_read: int = 0
    packets_read: int = 0
    bytes_read: int = 0
    quality_failed: bool = False
    failures: int = 0
    nothing_captured: bool = False
    error: str | None = None
    summary_fields: dict[str, Any] = field(default_factory=dict)  # additional fields of the summary, JSON values

    def report_unreadable(self, problem: str) -> None:
        """Log that some input cannot be read; the exit code will say so too."""
        self.failures += 1
        log_progress(problem)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for this result."""
        if self.error is not None:
            return ExitCode.UNFORESEEN_ERROR
        if self.failures:
            return ExitCode.INPUT_UNREADABLE
        if self.quality_failed:
            return ExitCode.QUALITY_FAILED
        return ExitCode.NOTHING_CAPTURED if self.nothing_captured else ExitCode.OK

    def summary_json(self, job: str, run_id: str, seconds: float) -> str:
        """Return the summary as one line of JSON."""
        summary = {
            "job": job,
            "run_id": run_id,
            "exit_code": int(self.exit_code),
            "seconds": round(seconds, 3),
            "bytes": self.bytes_read,
            "tables": {name: asdict(counts) for name, counts in self.tables.items()},
            **({} if self.error is None else {"error": self.error}),
        }
        return json.dumps({**summary, **self.summary_fields})


@dataclass(slots=True)
class Stages:
    """The stages of a run, one after the other: when each began."""

    _begun: dict[str, float] = field(default_factory=dict)

    def begin(self, name: str) -> None:
        """End the stage before, and begin one; a stage that begins again counts from then on."""
        self._begun.pop(name, None)
        self._begun[name] = time.monotonic()

    def seconds(self) -> dict[str, float]:
        """Return how long each stage took; the last one ends now."""
        names, begun = [*self._begun], [*self._begun.values(), time.monotonic()]
        return {name: round(end - begin, 3) for name, (begin, end) in zip(names, pairwise(begun), strict=True)}


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job: its arguments, settings, run id and start time.

    ``started_at`` is the machine's clock time, in UTC; ``began`` is the same on a clock that nobody sets, in seconds.
    ``exit_stack`` is closed when the run ends, also after an error: enter there what must be released or removed with
    the run. ``summary_fields`` are added to the summary, and how long each of the ``stages`` took; a function among
    them is called in the end. ``conflicts``: with somebody else's changes, for which the run began again.
    ``interrupted`` is set by Ctrl-C.
    """

    job: str
    arguments: argparse.Namespace
    config: Config
    run_id: str
    started_at: datetime
    began: float = field(default_factory=time.monotonic)
    interrupted: threading.Event = field(default_factory=threading.Event)
    exit_stack: ExitStack = field(default_factory=ExitStack)
    summary_fields: dict[str, Any] = field(default_factory=dict)
    stages: Stages = field(default_factory=Stages)
    conflicts: list[str] = field(default_factory=list)

    def exit_code_of(self, error: BaseException) -> ExitCode:
        """Return the exit code of a run that an exception ends."""
        return _exit_code_of(error, self.interrupted)


def _exit_code_of(error: BaseException, interrupted: threading.Event) -> ExitCode:
    """Return the exit code for an exception; whatever it is after Ctrl-C, that is the reason."""
    if interrupted.is_set() or isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, (ConfigError, LakeNameError, SchemaError, StoreError)):
        return ExitCode.USAGE_ERROR
    return ExitCode.UNFORESEEN_ERROR


class JobArgumentParser(argparse.ArgumentParser):
    """Argument parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage text and exit with code 2."""
        self.exit(ExitCode.USAGE_ERROR, f"{self.prog.removeprefix('msmq ')}: {message} (--help lists the options)\n")

    def _print_message(self, message: str, file: object = None) -> None:
        """Write a message to standard output or error, whether or not somebody reads it."""
        if file is sys.stdout:
            write_output(message)
        else:
            log_progress(message.rstrip("\n"))


def build_base_parser(
    job: str, description: str | None, *, captures: bool = False, snapshots: bool = False, lake: bool = True
) -> JobArgumentParser:
    """Return a parser with the arguments that jobs share.

    ``lake``, ``captures`` and ``snapshots`` say which of these the job works with; each adds its arguments.
    """
    parser = JobArgumentParser(prog=f"msmq {job}", description=description, allow_abbrev=False)
    parser.add_argument(
        "--conf",
        metavar="FILE",
        type=parse_local_path,
        help="settings file, YAML (default: the default of every setting)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one setting, for example store.stubs=false; may be repeated",
    )
    if lake:
        parser.add_argument("--lake", metavar="FOLDER", type=parse_lake_location, required=True, help=LAKE_HELP)
    if captures:
        parser.add_argument(
            "--captures",
            metavar="URI",
            nargs="+",
            action="extend",
            default=[],
            help="capture files, folders (all files below them) and patterns, also s3://BUCKET/...; - reads standard "
            "input",
        )
        parser.add_argument(
            "--between",
            metavar="FROM..TO",
            type=parse_days,
            help="read only new captures that have packets from these days or were last modified on them "
            "(YYYY-MM-DD, UTC, both included)",
        )
        parser.add_argument(
            "--reprocess",
            metavar="WHAT",
            type=parse_reprocess,
            help="read captures of the lake again and replace their rows: all, capture=ID or capture=PATH, "
            "date=YYYY-MM-DD or date=FROM..TO (by the days of their packets), decoder=VERSION (all that were read by "
            "another version)",
        )
        parser.add_argument(
            "--keys",
            metavar="FILE",
            type=parse_local_path,
            help="keys that decrypt sealed traffic, YAML (default: the file named by MSMQ_KEYS_FILE; "
            "docs/guides/encrypted-traffic.md)",
        )
        parser.add_argument("--dry-run", action="store_true", help="list what would be read; write nothing")
    if snapshots:
        parser.add_argument(
            "--snapshots",
            metavar="URI",
            nargs="+",
            action="extend",
            default=[],
            help="snapshot files (JSON lines), folders and patterns",
        )
    if lake:
        parser.add_argument(
            "--as-of",
            metavar="TIME",
            type=parse_utc_time,
            help="the time that counts as now, ISO 8601 (default: the time of the newest packet or snapshot)",
        )
    return parser


def parse_local_path(text: str) -> str:
    """Parse a place on this machine: a path, or a ``file:`` URI, which becomes a path."""
    try:
        return local_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_lake_location(text: str) -> str:
    """Parse the place of a lake: a path, a ``file:`` URI, which becomes a path, or an S3 URI."""
    try:
        return lake_location(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_text(text: str) -> str:
    """Parse a text that is looked for in tables: they hold no text that is not UTF-8."""
    if not is_utf8(text):
        raise argparse.ArgumentTypeError(f"not UTF-8: {text!r}")
    return text


def parse_utc_time(text: str) -> datetime:
    """Parse an ISO 8601 time and convert it to UTC; a time without an offset is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a time like 2024-05-01T12:00:00Z: {text!r}") from error
    try:
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"out of range: {text!r}") from error
    if when.year < 1971:  # captures hold no earlier times, and a duration can be subtracted from this one
        raise argparse.ArgumentTypeError(f"out of range: {text!r}")
    return when


def parse_positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"not a whole number from 1: {text!r}")
    return int(text)


def parse_days(text: str) -> DateRange:
    """Parse ``YYYY-MM-DD`` or ``YYYY-MM-DD..YYYY-MM-DD`` into a range of days; both ends are included."""
    first, dots, last = text.partition("..")
    found = DateRange(_parse_date(first, text), _parse_date(last if dots else first, text))
    if found.first > found.last:
        raise argparse.ArgumentTypeError(f"ends before it begins: {text!r}")
    return found


def _parse_date(part: str, text: str) -> date:
    try:
        return datetime.strptime(part, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not dates like 2024-05-01..2024-05-31: {text!r}") from error


def is_capture_id(text: str) -> bool:
    """Whether a text is a capture's id: 32 hexadecimal digits; else it is a path."""
    return _CAPTURE_ID.fullmatch(text) is not None


def parse_reprocess(text: str) -> ReprocessSelector:
    """Parse the value of --reprocess: ``all``, ``capture=ID-or-path``, ``date=DAYS`` or ``decoder=VERSION``."""
    kind, _, value = text.partition("=")
    if text == "all":
        return ReprocessSelector()
    if kind == "capture" and value:
        try:
            return ReprocessSelector(capture=value if is_capture_id(value) else ledger_path(value))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    if kind == "date" and value:
        return ReprocessSelector(days=parse_days(value))
    if kind == "decoder" and value:
        return ReprocessSelector(except_decoder_version=value)
    raise argparse.ArgumentTypeError(f"not all, capture=ID-or-path, date=DAYS or decoder=VERSION: {text!r}")


def run_job(
    job: str, parser: JobArgumentParser, run: Callable[[JobRun], Outcome], argv: Sequence[str] | None = None
) -> int:
    """Parse the arguments, load the settings, run the job and print its summary; return the exit code.

    The summary goes to standard error where standard output is data: with ``--out -``, and where the parser says so
    (``prints_data``). A ConfigError, LakeNameError, SchemaError or StoreError is printed as one line and gives exit
    code 2. Any other exception gives exit code 4, and the summary describes it. Ctrl-C gives exit code 130.
    """
    started, run_id, redacting, arguments = time.monotonic(), uuid.uuid4().hex, False, argparse.Namespace()
    with _handle_interrupts() as interrupted:
        try:
            arguments = parser.parse_args(argv)
            config = load_config(arguments.conf, arguments.overrides)
            redacting = bool(config.privacy.redact)
            job_run = JobRun(job, arguments, config, run_id, datetime.now(UTC), started, interrupted)
            with job_run.exit_stack:
                previous_umask = os.umask(_UMASKS[config.privacy.file_access])  # Java and its workers have it too
                job_run.exit_stack.callback(os.umask, previous_umask)
                outcome = _run_undisturbed(run, job_run)
                fields = job_run.summary_fields | outcome.summary_fields
                outcome.summary_fields = {name: each() if callable(each) else each for name, each in fields.items()}
                if took := job_run.stages.seconds():
                    outcome.summary_fields["stages"] = took
        except SystemExit as stop:  # from argparse, which has already printed the help or the error
            return int(stop.code or 0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends in one line and an exit code
            code = _exit_code_of(error, interrupted)
            if code is not ExitCode.UNFORESEEN_ERROR:
                how = "interrupted; run again to continue" if code is ExitCode.INTERRUPTED else error
                log_progress(f"{job}: {how}")
                return code
            for line in report_lines(error, values=not redacting):
                log_progress(f"{job}: {line}")
            outcome = Outcome(error=summarize_exception(error, values=not redacting))
    is_data = getattr(arguments, "prints_data", False) or getattr(arguments, "out", None) == STANDARD_OUTPUT
    summary = outcome.summary_json(job, run_id, time.monotonic() - started)
    _write(sys.stderr if is_data else sys.stdout, f"{summary}\n")
    return outcome.exit_code


def _run_undisturbed(run: Callable[[JobRun], Outcome], job_run: JobRun) -> Outcome:
    """Run a job; again, from the beginning, if somebody else changed a table meanwhile. ConflictError at last."""
    for _ in range(_MAX_CONFLICTS):
        try:
            return run(job_run)
        except ConflictError as error:
            job_run.conflicts.append(str(error))
            log_progress(f"{job_run.job}: {error}: nothing of theirs is overwritten; the run begins again")
    return run(job_run)


@contextmanager
def _handle_interrupts() -> Iterator[threading.Event]:
    """Handle Ctrl-C within the block: end Java, even as it starts, then raise KeyboardInterrupt. Yield a flag for it.

    It is ended first because the main thread may wait for it. Without Java, Spark commits nothing any more, and each
    call from the clean-up fails at once. The next run recovers, as from a run that was killed.
    """
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        JAVA.kill()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def write_output(text: str) -> None:
    """Write text to standard output and flush it."""
    _write(sys.stdout, text)


def terminal_width() -> int | None:
    """Return how many characters a line of the terminal has; None where standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def log_progress(message: str) -> None:
    """Write one line of progress to standard error."""
    _write(sys.stderr, escape_unprintable(message, _MAX_LINE_CHARS) + "\n")


def bytes_for_terminal(text: str) -> bytes:
    """Return lines as the terminal of standard output takes them, escaped."""
    return escape_lines(text, sys.stdout.encoding).encode(sys.stdout.encoding)


@contextmanager
def data_output() -> Iterator[BinaryIO]:
    """Yield standard output for bytes. Where its reader has gone, the block ends there, and the run continues."""
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _discard(sys.stdout)


@contextmanager
def byte_meter(total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that shows how many of so many bytes are done: a bar on a terminal, elsewhere lines.

    It takes the bytes, and a text that is shown with them. The lines come every few seconds.
    """
    from tqdm import tqdm  # noqa: PLC0415 (no command waits for it that reads nothing)

    if sys.stderr.isatty():
        with tqdm(total=total, unit="B", unit_scale=True, leave=False) as bar:

            def draw(done: int, text: str) -> None:
                bar.set_postfix_str(text, refresh=False)
                bar.update(done - bar.n)

            yield draw
        return
    begun = shown = time.monotonic()

    def log(done: int, text: str) -> None:
        nonlocal shown
        if (now := time.monotonic()) - shown >= _METER_INTERVAL_S:
            shown = now
            log_progress(tqdm.format_meter(done, total, now - begun, unit="B", unit_scale=True, postfix=text,
                                           bar_format=_METER_LINE))  # fmt: skip

    yield log


def _write(stream: TextIO, text: str) -> None:
    """Write text to a stream and flush it. If its reader has gone (``| head``), the run continues without it.

    Everything that a terminal or a log shows passes here. Names and texts may be an attacker's, so all that a terminal
    would obey, and all that is not text, is escaped.
    """
    try:
        stream.write(escape_lines(text, stream.encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Send nowhere what is written to a stream from now on."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())
