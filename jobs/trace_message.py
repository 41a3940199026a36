"""Print the timeline of a message: hops between queue managers, reads, moves, purges, findings, COM+ calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from jobs import cli
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.reports.trace.formatting import format_timeline, timeline_to_json
from pipeline.reports.trace.inputs import TraceRequest, trace_messages

JOB = "trace_message"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find the messages and print the timeline of each."""
    arguments = job_run.arguments
    asked = (arguments.id, arguments.lookup_id, arguments.queue, arguments.label, arguments.packet)
    if not any(each is not None for each in asked):
        raise ConfigError("which message? Give --id, --lookup-id with --queue, --label, --packet or --queue")
    request = TraceRequest(*asked, max_messages=arguments.most)
    trace = trace_messages(open_lake_with_data(job_run), request)
    for timeline in trace.timelines:
        text = json.dumps(timeline_to_json(timeline)) if arguments.json else "\n".join([*format_timeline(timeline), ""])
        cli.write_output(text + "\n")
    if not trace.timelines:
        cli.log_progress("no such message was read in these captures")
    if trace.truncated:
        cli.log_progress(f"there are more: only the earliest {arguments.most} are printed (--most)")
    return cli.Outcome(summary_fields={"messages": len(trace.timelines), "more": trace.truncated})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
