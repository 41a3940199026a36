"""Write the packets of given calls as a small pcapng file, with the bind that Wireshark needs to read them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from pipeline.privacy.redaction import marked
from pipeline.reports.packet_export import wanted, write_excerpt

JOB = "export_packets"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    made.add_argument("--call", metavar="KEY", nargs="+", action="extend", required=True, help="call_key of rpc_calls")
    made.add_argument("--out", metavar="FILE", required=True, help="the pcapng file to write")
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Find the calls, read their captures again and write their packets."""
    lake = open_lake(this)
    if marked(lake):
        raise ConfigError(f"{this.arguments.lake}: names are redacted; captures hold no pseudonyms to be found by")
    found = wanted(lake, this.arguments.call)
    if not found.spans:
        raise ConfigError(f"no such call in {this.arguments.lake}: {', '.join(found.unknown)}")
    capture = this.config.capture
    try:
        with Path(this.arguments.out).open("wb") as out:
            packets = write_excerpt(found.spans, out, capture.max_expansion, int(capture.max_expanded_bytes))
    except OSError as error:
        raise ConfigError(str(error)) from error
    for key in found.unknown:
        cli.say(f"no such call: {key}")
    cli.say(f"{packets} packets of {len(found.spans)} captures in {this.arguments.out}")
    return cli.Outcome(input_failed=bool(found.unknown), more={"packets": packets})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
