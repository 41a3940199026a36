"""Print what became of a message, and its timeline: hops between queue managers, reads, moves, purges, findings.

Several messages are a list. The exit code is 5 if nothing was captured of the message that is asked for.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from jobs import cli
from jobs.command_line import redaction
from jobs.command_line.parsers import MAX_TIMELINES, build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.reports.trace.conversation import trace_conversation
from pipeline.reports.trace.conversation_formatting import conversation_to_json, format_conversation
from pipeline.reports.trace.formatting import format_list, format_timeline, timeline_to_json
from pipeline.reports.trace.inputs import TraceRequest, TraceResult, trace_messages
from pipeline.silver.machines import UNNAMED, Machines
from pipeline.text import format_cell, format_count

JOB = "trace_message"
_MAX_LISTED: Final = 40


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find the messages, and print the timeline of each, or a list."""
    arguments = job_run.arguments
    _check_arguments(arguments)
    request = TraceRequest(
        arguments.id, arguments.lookup_id, arguments.queue, arguments.label, arguments.packet, arguments.sender,
        arguments.since, arguments.until, None if arguments.all else arguments.most or _MAX_LISTED,
    )  # fmt: skip
    if arguments.conversation is not None or arguments.application_id is not None:
        return _run_conversation(job_run, request.max_messages)
    lake = open_lake_with_data(job_run)
    trace = trace_messages(lake, request)
    machines = Machines.of(lake, redaction.load_names_for(job_run, lake)) if trace.timelines else UNNAMED
    if arguments.json:
        texts = [json.dumps(timeline_to_json(timeline, machines)) for timeline in trace.timelines]
    elif trace.found <= MAX_TIMELINES or arguments.all or arguments.most is not None:
        texts = ["\n".join([*format_timeline(timeline, machines), ""]) for timeline in trace.timelines]
    else:
        texts = [
            *format_list(trace.timelines, machines),
            "",
            f"{format_count(trace.found, 'message')}; --all prints all timelines",
        ]
    for text in texts:
        cli.write_output(text + "\n")
    if not trace.timelines:
        for line in _lines_on_nothing(arguments, trace):
            cli.log_progress(line)
    return _outcome(len(trace.timelines), trace.found)


def _run_conversation(job_run: cli.JobRun, most: int | None) -> cli.Outcome:
    """Print the conversation that is asked for."""
    arguments = job_run.arguments
    lake = open_lake_with_data(job_run)
    found = trace_conversation(
        lake, conversation=arguments.conversation, application_id=arguments.application_id, most=most
    )
    if not found.messages:
        cli.log_progress("no such message was captured")
        return _outcome(0, 0)
    machines = Machines.of(lake, redaction.load_names_for(job_run, lake))
    if arguments.json:
        lines = [json.dumps(conversation_to_json(message, machines)) for message in found.messages]
    else:
        lines = [*format_conversation(found, machines)]
    cli.write_output("".join(f"{line}\n" for line in lines))
    return _outcome(len(found.messages), found.found)


def _outcome(messages: int, found: int) -> cli.Outcome:
    """Return the outcome of a job that printed so many messages; say that there are more."""
    if found > messages:
        cli.log_progress(f"there are more: these are the earliest {messages} of {found} messages")
    fields = {"messages": messages, "found": found, "more": found > messages}
    return cli.Outcome(nothing_captured=not messages, summary_fields=fields)


def _check_arguments(given: Namespace) -> None:
    """Raise ConfigError where nothing is asked for, or options contradict each other."""
    texts = {"--id": given.id, "--label": given.label, "--sender": given.sender, "--queue": given.queue,
             "--packet": given.packet}  # fmt: skip
    conversations = {"--conversation": given.conversation, "--application-id": given.application_id}
    others = [*texts.values(), given.lookup_id, given.since, given.until]
    if chosen := [option for option, value in conversations.items() if value is not None]:
        if len(chosen) > 1 or any(value is not None for value in others):
            raise ConfigError(f"{chosen[0]}: no other option that chooses messages goes with it")
    elif all(value is None for value in others):
        known = ", ".join((*texts, *conversations))
        raise ConfigError(f"which message? Give {known}, --lookup-id with --queue, --from or --to")
    if empty := [option for option, value in (texts | conversations).items() if value == ""]:
        raise ConfigError(f"{empty[0]}: is empty")
    if given.lookup_id is not None and given.queue is None:
        raise ConfigError("--lookup-id: needs --queue; each queue counts its own messages")
    if given.since is not None and given.until is not None and given.since > given.until:
        raise ConfigError(f"--from: {given.since:%Y-%m-%dT%H:%M:%SZ} is later than {given.until:%Y-%m-%dT%H:%M:%SZ}")
    if given.all and given.most is not None:
        raise ConfigError("--all: not with --most; give one of both")


def _lines_on_nothing(arguments: Namespace, trace: TraceResult) -> Iterator[str]:
    """Yield lines that say that no message was found, and what is called similarly."""
    yield "no such message was captured"
    for option, texts in trace.near.items():
        near = f"; similar are {format_cell(list(texts))}" if texts else ""
        yield f"nothing in this lake is called {format_cell(getattr(arguments, option))} (--{option}){near}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
