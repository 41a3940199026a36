"""Write the packets of chosen calls, and the bind that decodes them, to a pcapng file."""

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

JOB = "export_packets"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find the calls, read their captures again and write their packets."""
    lake = open_lake_with_data(job_run)
    if is_redacted(lake):
        raise ConfigError(f"{job_run.arguments.lake}: names are redacted, so the calls cannot be found in the captures")
    found = plan_export(lake, job_run.arguments.call)
    if not found.intervals_by_path:
        raise ConfigError(f"no such call in {job_run.arguments.lake}: {', '.join(found.call_keys_not_found)}")
    capture = job_run.config.capture
    target = Path(job_run.arguments.out)
    check_outputs(job_run, lake, [target])
    try:
        with replace_file(target) as out:
            packets = write_packets(
                found.intervals_by_path, out, capture.max_expansion, int(capture.max_expanded_bytes)
            )
    except OSError as error:
        raise ConfigError(str(error)) from error
    for key in found.call_keys_not_found:
        cli.log_progress(f"no such call: {key}")
    cli.log_progress(f"{packets} packets of {len(found.intervals_by_path)} captures in {job_run.arguments.out}")
    return cli.Outcome(input_failed=bool(found.call_keys_not_found), summary_fields={"packets": packets})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
