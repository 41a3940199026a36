"""Print a message as a person reads it: its headers, those of the application that sent it, and its body.

Several messages are a list, of which one is shown by its key. The exit code is 5 if no such message was captured.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from jobs import cli
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.ingest_captures import reader_options
from jobs.lake_access import open_lake_with_data
from pipeline.bronze.capture_tasks import read_options
from pipeline.lake.lake import Lake
from pipeline.privacy.redaction import is_redacted
from pipeline.reports.shown_message.application_headers import read_application_headers
from pipeline.reports.shown_message.bodies import FoundBody, find_body
from pipeline.reports.shown_message.formatting import format_list, format_message
from pipeline.reports.shown_message.inputs import MessageRequest, find_messages, read_sighting
from pipeline.text import format_count

JOB = "show_message"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find what is asked for; print the message, or the list; write its body with --raw."""
    arguments = job_run.arguments
    request = _request(arguments)
    lake = open_lake_with_data(job_run)
    if is_redacted(lake):
        raise ConfigError(f"{arguments.lake}: names are redacted, and bodies are not kept: there is nothing to show")
    listed, found = find_messages(lake, request)
    outcome = cli.Outcome(nothing_captured=not found, summary_fields={"found": found})
    if not found:
        cli.log_progress("no such message was captured")
        return outcome
    if len(listed) > 1:
        if arguments.raw is not None:
            raise ConfigError(f"--raw: {found} messages match; give the key of one")
        _print([*format_list(listed), "", f"{format_count(found, 'message')}; give the key of one to see it"])
        return outcome
    (message,) = listed
    sighting = read_sighting(lake, request, message.key)
    body = find_body(lake, sighting.row, read_options(reader_options(job_run.config)))
    application = read_application_headers(sighting.row, body.data)
    if arguments.raw is not None:
        _write_raw(job_run, lake, body)
    _print(format_message(sighting, application, body, sightings=message.sightings))
    return outcome


def _request(given: Namespace) -> MessageRequest:
    """Return what is asked for; ConfigError unless it is one thing."""
    request = MessageRequest(given.key, given.label, given.application_id)
    asked = [value for value in request if value is not None]
    if len(asked) != 1 or not asked[0]:
        raise ConfigError("which message? Give one of KEY, --label and --application-id")
    return request


def _print(lines: Iterable[str]) -> None:
    cli.write_output("".join(f"{line}\n" for line in lines))


def _write_raw(job_run: cli.JobRun, lake: Lake, body: FoundBody) -> None:
    """Write the bytes of a body to the file of --raw; ConfigError where there are none, or it cannot be written."""
    target = Path(job_run.arguments.raw)
    if body.data is None:
        raise ConfigError(f"--raw: no body to write: {body.source}")
    check_outputs(job_run, lake, [target])
    try:
        with replace_file(target) as out:
            out.write(body.data)
    except OSError as error:
        raise ConfigError(str(error)) from error
    cli.log_progress(f"{format_count(len(body.data), 'byte')} in {target}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
