"""Print the story of a message: sightings, attempts, outcomes, moves, purges, findings and COM+ calls, by time."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from pipeline.reports.trace.inputs import Wanted, tell
from pipeline.reports.trace.text import lines, plain

JOB = "trace_message"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    made.add_argument("--id", metavar="GUID\\N", help="message identifier, as silver.messages.message_id has it")
    made.add_argument("--lookup-id", metavar="N", type=int, help="the message's number in its queue; give --queue too")
    made.add_argument("--queue", metavar="NAME", help="a queue that it was read from, in any of its names")
    made.add_argument("--label", metavar="TEXT", help="its label, exactly")
    made.add_argument(
        "--most", metavar="N", type=cli.whole_number, default=20, help="messages told at most, the earliest (20)"
    )
    made.add_argument("--json", action="store_true", help="one JSON object per message, for programs")
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Find the messages asked for and tell what is known of each."""
    asked = this.arguments
    if (asked.id, asked.lookup_id, asked.queue, asked.label) == (None, None, None, None):
        raise ConfigError("which message? --id, --lookup-id with --queue, --label or --queue")
    told = tell(open_lake(this), Wanted(asked.id, asked.lookup_id, asked.queue, asked.label, asked.most))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without these letters is shown their code points
        sys.stdout.reconfigure(errors="backslashreplace")
    for story in told.stories:
        text = json.dumps(plain(story)) if asked.json else "\n".join([*lines(story), ""])
        sys.stdout.write(text + "\n")
    if not told.stories:
        cli.say("no such message was read in these captures")
    if told.cut:
        cli.say(f"there are more: only the earliest {asked.most} are told (--most)")
    return cli.Outcome(more={"messages": len(told.stories), "more": told.cut})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
