"""The command lines of all jobs: what ``msmq JOB --help`` shows. No Spark, which takes a second to import."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from importlib.util import find_spec
from typing import Final

from jobs import cli
from jobs.command_line.setting_values import parse_duration
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.dashboards.dashboard_data import MAX_DATASET_ROWS
from pipeline.dashboards.estate.time_zones import find_time_zone

_MODULES: Final = {  # of jobs that are called otherwise
    "compare_taps": "jobs.analysis.compare_taps",
    "queue": "jobs.queue_verdict",
    "report_estate": "jobs.analysis.report_estate",
    "rows": "jobs.analysis.rows",
    "wireshark": "jobs.analysis.wireshark",
}
MAX_TIMELINES: Final = 3  # of messages whose timelines trace_message prints unasked
DEFAULT_ROWS: Final = 100  # that the command rows gives unasked
REDACT_KEY_VARIABLE: Final = "MSMQ_REDACT_KEY"
REDACT_KEY_FILE_VARIABLE: Final = "MSMQ_REDACT_KEY_FILE"


def build_parser(job: str) -> cli.JobArgumentParser:
    """Return the argument parser of a job."""
    return PARSERS[job]()


def list_jobs() -> dict[str, str]:
    """Return the name of each job and the first line of its description."""
    return {job: _description(job).partition("\n")[0] for job in PARSERS}


def module_of(job: str) -> str:
    """Return the name of a job's module, which must not hide one of Python's: spark-submit puts its folder first."""
    return _MODULES.get(job, f"jobs.{job}")


def _description(job: str) -> str:
    """Return the docstring of a job's module. The module is parsed, not imported: importing Spark takes a second."""
    spec = find_spec(module_of(job))
    source = getattr(spec.loader, "get_source", lambda _: None)(spec.name) if spec is not None else None
    return ast.get_docstring(ast.parse(source or "")) or ""


def _base(job: str, *, captures: bool = False, snapshots: bool = False, lake: bool = True) -> cli.JobArgumentParser:
    return cli.build_base_parser(job, _description(job), captures=captures, snapshots=snapshots, lake=lake)


def _add_redact_key(parser: cli.JobArgumentParser) -> None:
    parser.add_argument(
        "--redact-key",
        metavar="FILE",
        type=cli.parse_local_path,
        help="file with the key of the pseudonyms, for privacy.redact (default: the file named by "
        f"{REDACT_KEY_FILE_VARIABLE}, or the text of {REDACT_KEY_VARIABLE})",
    )


def _add_hours(parser: cli.JobArgumentParser, what: str, of_until: str = "") -> None:
    """Add --from and --to; ``what`` they limit."""
    parser.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        type=cli.parse_utc_time,
        help=f"{what} at this time or later, ISO 8601",
    )
    parser.add_argument(
        "--to",
        dest="until",
        metavar="TIME",
        type=cli.parse_utc_time,
        help=f"{what} at this time or earlier, ISO 8601{of_until}",
    )


def parse_past_day(text: str) -> date:
    """Parse a day that is not in the future."""
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a date like 2024-05-01: {text!r}") from error
    if day > datetime.now(UTC).date():
        raise argparse.ArgumentTypeError(f"a day in the future: {text!r}")
    return day


def parse_time_span(text: str) -> timedelta:
    """Parse a duration as settings have it."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_time_zone(text: str) -> tzinfo:
    """Parse the name of a time zone."""
    try:
        return find_time_zone(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_time_or_span(text: str) -> datetime | timedelta:
    """Parse a time (ISO 8601), or a duration as settings have it."""
    try:
        return parse_duration(text)
    except ValueError:
        return cli.parse_utc_time(text)


def _alerts() -> cli.JobArgumentParser:
    parser = _base("alerts")
    _add_redact_key(parser)
    levels = [*SEVERITY_ORDER[::-1], "never"]
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=cli.parse_local_path,
        help="write all alerts to FILE, one JSON object per line; - prints them",
    )
    parser.add_argument("--ended", action="store_true", help="also print alerts that have ended")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        type=parse_time_or_span,
        help="print instead what changed in alerts, queues, machines and flows since then: 1d, or a time (ISO 8601)",
    )
    parser.add_argument(
        "--condition",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="print only alerts of these conditions (docs/reference/alerts.md)",
    )
    parser.add_argument(
        "--fail-on",
        choices=levels,
        default="error",
        help="exit with 1 if an alert of this severity or a higher one is active (default: error)",
    )
    parser.add_argument(
        "--task-value",
        metavar="NAME",
        help="in a job of Databricks: set this task value to the severity of the worst active alert, or to none",
    )
    _add_notices(parser)
    return parser


def _add_notices(parser: cli.JobArgumentParser) -> None:
    parser.add_argument(
        "--notify",
        metavar="TARGET",
        nargs="*",
        action="extend",
        help="tell targets what began, worsened or ended: @FILE names the file of targets (default: the file named by "
        "MSMQ_NOTIFY_FILE), other words some of its targets (default: all; docs/guides/operations.md#being-told)",
    )
    parser.add_argument(
        "--acknowledge",
        metavar="KEY",
        help="do not repeat the notice with this notice_key until --until or until it worsens; needs --by and --reason",
    )
    parser.add_argument(
        "--mute", metavar="CONDITION", help="tell nothing of this condition until --until, at the queues of --queue"
    )
    parser.add_argument(
        "--queue",
        metavar="PATTERN",
        type=cli.parse_text,
        help="with --mute: queues by their names in gold, whatever the case; * stands for anything",
    )
    parser.add_argument("--by", metavar="NAME", type=cli.parse_text, help="with --acknowledge: who looks after it")
    parser.add_argument("--reason", metavar="TEXT", type=cli.parse_text, help="with --acknowledge: why")
    parser.add_argument(
        "--until",
        metavar="TIME",
        type=parse_time_or_span,
        help="with --acknowledge and --mute: ISO 8601, or a duration from now on like 4h; 0s ends it",
    )


def _apply_governance() -> cli.JobArgumentParser:
    parser = _base("apply_governance")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the SQL for all tables, also those that do not exist; change nothing",
    )
    return parser


def _ask() -> cli.JobArgumentParser:
    parser = _base("ask")
    parser.add_argument(
        "questions",
        metavar="QUESTION",
        nargs="*",
        help="number of a question, or name of a view (docs/reference/questions.md); without any, list the questions",
    )
    parser.add_argument(
        "--machine",
        metavar="TEXT",
        type=cli.parse_text,
        help="only what concerns these machines: an IP address, or a part of a name, whatever the case",
    )
    parser.add_argument(
        "--queue",
        metavar="TEXT",
        type=cli.parse_text,
        help="only what concerns these queues: a part of any of their names, whatever the case",
    )
    parser.add_argument(
        "--last",
        metavar="DURATION",
        type=parse_time_span,
        help="only what was at some time of so long before now, like 15m, 12h or 7d",
    )
    _add_hours(parser, "only what was", "; it counts as now, in place of --as-of")
    parser.add_argument(
        "--rows",
        metavar="N",
        type=int,
        default=40,
        help="print at most N rows of each answer (default: 40; 0: all rows)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=cli.parse_local_path,
        help="write the rows of the answers to FILE, one JSON object per line; - prints them",
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        type=cli.parse_local_path,
        help="write the rows of the answer, of one view, to FILE as CSV (RFC 4180); - prints them",
    )
    parser.add_argument(
        "--define", action="store_true", help="create all views as permanent views of the catalog (lake.catalog)"
    )
    return parser


def _check_quality() -> cli.JobArgumentParser:
    parser = _base("check_quality")
    parser.add_argument(
        "--all", action="store_true", help="check all rows, not only those that changed since the last check"
    )
    parser.add_argument(
        "--docs",
        metavar="DIR",
        type=cli.parse_local_path,
        help="write the results as an HTML page to DIR; checks all rows",
    )
    return parser


def _collect_snapshots() -> cli.JobArgumentParser:
    parser = _base("collect_snapshots", lake=False)
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, type=cli.parse_local_path, help="folder for the snapshot files"
    )
    return parser


def _compare_taps() -> cli.JobArgumentParser:
    parser = _base("compare_taps", lake=False)
    parser.add_argument("a", metavar="A", type=cli.parse_text, help="a capture: a path, or a capture_id of --lake")
    parser.add_argument("b", metavar="B", type=cli.parse_text, help="another capture of the same traffic")
    parser.add_argument(
        "--lake",
        metavar="FOLDER",
        type=cli.parse_lake_location,
        help=f"for captures that are named by id: {cli.LAKE_HELP}",
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=cli.parse_positive_int,
        default=20,
        help="print at most N of what each capture lacks (default: %(default)s); counts are of all",
    )
    parser.add_argument("--json", action="store_true", help="print all that is lacking, one JSON object per line")
    return parser


def _export_packets() -> cli.JobArgumentParser:
    parser = _base("export_packets")
    for names, metavar, what in (
        (("--message",), "KEY", "messages: message_key, sighting_key or message_id of silver.messages"),
        (("--attempt",), "KEY", "attempt_key values of gold.receive_attempts"),
        (("--transfer",), "KEY", "transfer_key values of gold.message_transfers"),
        (("--finding",), "KEY", "finding_key values of gold.findings"),
        (("--alert",), "KEY", "alert_key values of gold.alerts"),
        (("--call",), "KEY", "call_key values of rpc_calls"),
        (("--packet",), "KEY", "packet_key values of session_packets: packets of the binary protocol"),
        (("--connection", "--session"), "ID", "connection_id values of bronze.connections: all of their packets"),
    ):  # fmt: skip
        parser.add_argument(
            *names, metavar=metavar, type=cli.parse_text, nargs="+", action="extend", default=[], help=what
        )
    parser.add_argument(
        "--row",
        metavar=("TABLE", "KEY"),
        type=cli.parse_text,
        nargs="+",
        action="append",
        default=[],
        help="rows of a table by their keys: every table of gold, and those of other layers whose rows name calls, "
        "packets or a connection; may be repeated",
    )
    parser.add_argument(
        "--label", metavar="TEXT", type=cli.parse_text, help="messages with TEXT in their label, whatever the case"
    )
    parser.add_argument(
        "--queue",
        metavar="TEXT",
        type=cli.parse_text,
        help="all rows of gold about queues with TEXT in any of their names, whatever the case",
    )
    _add_hours(parser, "only packets")
    parser.add_argument(
        "--most",
        metavar="N",
        type=cli.parse_positive_int,
        default=1_000_000,
        help="write at most N packets, the earliest ones (default: 1000000)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=cli.parse_local_path,
        required=True,
        help="the pcapng file to write; - writes to standard output, as in '| wireshark -N n -k -i -'",
    )
    return parser


def _forget() -> cli.JobArgumentParser:
    parser = _base("forget")
    _add_redact_key(parser)
    parser.add_argument(
        "--before",
        metavar="DATE",
        type=parse_past_day,
        required=True,
        help="first day to keep, YYYY-MM-DD, UTC; everything before it is erased and cannot be restored",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
    parser.add_argument(
        "--pages",
        metavar="FOLDER",
        type=cli.parse_local_path,
        action="append",
        default=[],
        help="folder of pages from publish_dashboards to rewrite; pages in <lake>/pages are always rewritten",
    )
    parser.add_argument(
        "--docs",
        metavar="DIR",
        type=cli.parse_local_path,
        action="append",
        default=[],
        help="folder with the page of check_quality, to remove",
    )
    return parser


def _maintain() -> cli.JobArgumentParser:
    parser = _base("maintain")
    parser.add_argument(
        "--retain-days",
        metavar="DAYS",
        type=cli.parse_positive_int,
        default=7,
        help="how many days of old table versions and change feeds stay (default: 7). A layer that is further behind "
        "is recomputed by its next run",
    )
    return parser


def _ingest_captures() -> cli.JobArgumentParser:
    parser = _base("ingest_captures", captures=True)
    _add_redact_key(parser)
    return parser


def _ingest_snapshots() -> cli.JobArgumentParser:
    parser = _base("ingest_snapshots", snapshots=True)
    _add_redact_key(parser)
    return parser


def _publish_dashboards() -> cli.JobArgumentParser:
    parser = _base("publish_dashboards")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=cli.parse_local_path,
        required=True,
        help="folder for index.html, metrics.prom and msmq.lvdash.json",
    )
    parser.add_argument(
        "--rows",
        metavar="NUMBER",
        type=cli.parse_positive_int,
        default=MAX_DATASET_ROWS,
        help="maximum rows of each table in the page (default: %(default)s); counts are of all rows",
    )
    return parser


def _queue() -> cli.JobArgumentParser:
    parser = _base("queue")
    _add_redact_key(parser)
    parser.add_argument("name", metavar="NAME", type=cli.parse_text, help="any part of a queue's name, in any case")
    parser.add_argument("--json", action="store_true", help="print JSON lines, one for each queue")
    return parser


def _report_estate() -> cli.JobArgumentParser:
    parser = _base("report_estate")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=cli.parse_local_path,
        required=True,
        help="folder for estate.html, and for a CSV file with all rows of each of its tables",
    )
    parser.add_argument(
        "--last",
        metavar="DURATION",
        type=parse_time_span,
        default="30d",
        help="report what was at some time of so long before now, like 12h or 90d (default: %(default)s)",
    )
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        type=parse_time_zone,
        default="UTC",
        help="time zone of hours and weekdays, like Europe/Berlin (default: %(default)s); all times are in UTC",
    )
    parser.add_argument(
        "--targets",
        metavar="FILE",
        type=cli.parse_local_path,
        nargs="+",
        action="extend",
        default=[],
        help="files of your own that say what targets of a move offer (default: those of conf/targets)",
    )
    return parser


def _rows() -> cli.JobArgumentParser:
    parser = _base("rows")
    parser.set_defaults(prints_data=True)
    parser.add_argument(
        "relation", metavar="TABLE|VIEW", nargs="?", help="layer.table, table, or view; --list names them"
    )
    parser.add_argument("--list", action="store_true", help="print all tables and views, with what one row is")
    parser.add_argument("--describe", action="store_true", help="print the columns, with their types and meanings")
    parser.add_argument("--count", action="store_true", help="print the number of rows")
    parser.add_argument(
        "--columns", metavar="NAME", nargs="+", action="extend", default=[], help="only these columns, in this order"
    )
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        type=cli.parse_text,
        help="only rows that meet this condition, like \"label ILIKE '%%order%%' AND body_bytes > 1000\" "
        "(docs/guides/operations.md#rows-of-any-table)",
    )
    parser.add_argument(
        "--order",
        metavar="NAME[:desc]",
        nargs="+",
        action="extend",
        default=[],
        help="order by these columns, smallest first; :desc: largest first",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=DEFAULT_ROWS,
        help="at most N rows (default: %(default)s; 0: all rows)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "csv", "json", "parquet"),
        help="json: one object per line (default: what the name of the file says: .csv, .json, .jsonl, .parquet; else "
        "text)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=cli.parse_local_path,
        default=cli.STANDARD_OUTPUT,
        help="the file to write (default: -, standard output)",
    )
    return parser


def _run_all() -> cli.JobArgumentParser:
    parser = _base("run_all", captures=True, snapshots=True)
    _add_redact_key(parser)
    parser.add_argument(
        "--pages",
        metavar="FOLDER",
        type=cli.parse_local_path,
        help="then write the pages of the lake to FOLDER, like publish_dashboards",
    )
    return parser


def _show_message() -> cli.JobArgumentParser:
    parser = _base("show_message")
    parser.add_argument(
        "key",
        metavar="KEY",
        nargs="?",
        type=cli.parse_text,
        help="the message: message_key, sighting_key or message_id of silver.messages",
    )
    parser.add_argument(
        "--label", metavar="TEXT", type=cli.parse_text, help="a part of the message's label, whatever the case"
    )
    _add_application_id(parser)
    parser.add_argument("--raw", metavar="FILE", type=cli.parse_local_path, help="write the bytes of its body to FILE")
    return parser


def _add_application_id(parser: cli.JobArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--application-id",
        metavar="ID",
        type=cli.parse_text,
        help=f"the application's own id of the message: silver.messages.application_message_id{more}",
    )


def _trace_message() -> cli.JobArgumentParser:
    parser = _base("trace_message")
    parser.add_argument(
        "--id", metavar="GUID\\N", type=cli.parse_text, help="message identifier, as in silver.messages.message_id"
    )
    parser.add_argument(
        "--label", metavar="TEXT", type=cli.parse_text, help="a part of the message's label, whatever the case"
    )
    parser.add_argument(
        "--sender",
        metavar="TEXT",
        type=cli.parse_text,
        help="machine that sent the message: an IP address, or a part of a name or GUID, whatever the case",
    )
    parser.add_argument(
        "--queue",
        metavar="TEXT",
        type=cli.parse_text,
        help="a part of any name of a queue that the message was read from, or sent to on TCP 1801, whatever the case; "
        "with --lookup-id a whole name",
    )
    parser.add_argument("--lookup-id", metavar="N", type=int, help="lookup identifier of the message; needs --queue")
    _add_hours(parser, "only messages that were first seen")
    parser.add_argument(
        "--conversation",
        metavar="ID",
        type=cli.parse_text,
        help="all messages of the conversation with this id, in order of time, indented by what caused what: "
        "silver.messages.conversation_id",
    )
    _add_application_id(parser, ". All messages of its conversation, in the same way")
    parser.add_argument(
        "--packet",
        metavar="PACKET_KEY",
        type=cli.parse_text,
        help="packet of TCP 1801 that carried the message or acknowledges it: packet_key of bronze.session_packets",
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=cli.parse_positive_int,
        help=f"print the timelines of at most N messages, the earliest ones (default: of up to {MAX_TIMELINES}; more "
        "messages are listed, one a line)",
    )
    parser.add_argument("--all", action="store_true", help="print the timelines of all messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object per message, with its timeline")
    return parser


def _wireshark() -> cli.JobArgumentParser:
    parser = _base("wireshark", lake=False)
    places = parser.add_mutually_exclusive_group()
    places.add_argument(
        "--out",
        metavar="FILE",
        type=cli.parse_local_path,
        default=cli.STANDARD_OUTPUT,
        help="the file to write (default: -, standard output)",
    )
    places.add_argument(
        "--install",
        dest="out",
        action="store_const",
        const=None,
        default=cli.STANDARD_OUTPUT,
        help="write msmq.lua to the personal plugins of Wireshark, and say where",
    )
    return parser


PARSERS: Final[Mapping[str, Callable[[], cli.JobArgumentParser]]] = {
    "alerts": _alerts,
    "apply_governance": _apply_governance,
    "ask": _ask,
    "check_quality": _check_quality,
    "collect_snapshots": _collect_snapshots,
    "compare_taps": _compare_taps,
    "export_packets": _export_packets,
    "forget": _forget,
    "maintain": _maintain,
    "ingest_captures": _ingest_captures,
    "ingest_snapshots": _ingest_snapshots,
    "publish_dashboards": _publish_dashboards,
    "queue": _queue,
    "report_estate": _report_estate,
    "rows": _rows,
    "run_all": _run_all,
    "show_message": _show_message,
    "trace_message": _trace_message,
    "wireshark": _wireshark,
}
