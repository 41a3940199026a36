"""Write captured packets to a pcapng file.

Of chosen calls with the bind that decodes them, of packets of the binary protocol, or of whole sessions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs import cli
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.privacy.redaction import is_redacted
from pipeline.reports.packet_export import plan_export, write_packets
from pipeline.text import format_count

JOB = "export_packets"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find what is asked for, read its captures again and write its packets."""
    arguments = job_run.arguments
    if not (arguments.call or arguments.packet or arguments.session):
        raise ConfigError("give --call, --packet or --session")
    lake = open_lake_with_data(job_run)
    if is_redacted(lake):
        raise ConfigError(f"{arguments.lake}: names are redacted, so the packets cannot be found in the captures")
    found = plan_export(lake, arguments.call, arguments.packet, arguments.session)
    if not found.intervals_by_path:
        raise ConfigError(f"not in {arguments.lake}: {', '.join(found.not_found)}")
    capture = job_run.config.capture
    target = Path(arguments.out)
    check_outputs(job_run, lake, [target])
    try:
        with replace_file(target) as out:
            packets = write_packets(
                found.intervals_by_path, out, capture.max_expansion, int(capture.max_expanded_bytes)
            )
    except OSError as error:
        raise ConfigError(str(error)) from error
    for name in found.not_found:
        cli.log_progress(f"not in the lake: {name}")
    captures = format_count(len(found.intervals_by_path), "capture")
    cli.log_progress(f"{format_count(packets, 'packet')} of {captures} in {arguments.out}")
    return cli.Outcome(failures=len(found.not_found), summary_fields={"packets": packets})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
