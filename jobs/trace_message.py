"""Print the timeline of a message: sightings, attempts, moves, purges, findings, COM+ calls."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from pipeline.reports.trace.formatting import format_timeline, timeline_to_json
from pipeline.reports.trace.inputs import TraceRequest, trace_messages

JOB = "trace_message"


def build_parser() -> cli.JobArgumentParser:
    """Return the argument parser of this job."""
    parser = cli.build_base_parser(JOB, __doc__)
    parser.add_argument("--id", metavar="GUID\\N", help="message identifier, as in silver.messages.message_id")
    parser.add_argument("--lookup-id", metavar="N", type=int, help="lookup identifier of the message; needs --queue")
    parser.add_argument("--queue", metavar="NAME", help="any name of a queue that the message was read from")
    parser.add_argument("--label", metavar="TEXT", help="label of the message, the whole text")
    parser.add_argument(
        "--most",
        metavar="N",
        type=cli.parse_positive_int,
        default=20,
        help="print at most N messages, the earliest ones (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per message")
    return parser


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find the messages and print the timeline of each."""
    arguments = job_run.arguments
    if (arguments.id, arguments.lookup_id, arguments.queue, arguments.label) == (None, None, None, None):
        raise ConfigError("which message? Give --id, --lookup-id with --queue, --label or --queue")
    request = TraceRequest(arguments.id, arguments.lookup_id, arguments.queue, arguments.label, arguments.most)
    trace = trace_messages(open_lake(job_run), request)
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal's encoding lacks are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    for timeline in trace.timelines:
        text = json.dumps(timeline_to_json(timeline)) if arguments.json else "\n".join([*format_timeline(timeline), ""])
        sys.stdout.write(text + "\n")
    if not trace.timelines:
        cli.log_progress("no such message was read in these captures")
    if trace.truncated:
        cli.log_progress(f"there are more: only the earliest {arguments.most} are printed (--most)")
    return cli.Outcome(summary_fields={"messages": len(trace.timelines), "more": trace.truncated})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
