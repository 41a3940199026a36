"""Write captured packets to a pcapng file, from all captures, with comments: the evidence of what is asked for.

Of messages, attempts, transfers, findings, alerts and all other rows of gold; of calls with the binds that decode them,
packets of the binary protocol, connections, and queues. The exit code is 5 if what is asked for is in the lake, and no
packet shows it.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final

from jobs import cli
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.lake.lake import Lake
from pipeline.privacy.redaction import is_redacted
from pipeline.reports.packet_export.evidence import TABLES_WITH_PACKETS, ExportRequest
from pipeline.reports.packet_export.pcapng_file import Exported, ExportLimits, write_packets
from pipeline.reports.packet_export.plan import ExportPlan, plan_export
from pipeline.text import format_count
from schemas.alerts import ALERTS
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.findings import FINDINGS
from schemas.table import Table
from schemas.transfers import MESSAGE_TRANSFERS

JOB = "export_packets"
_TABLE_OPTIONS: Final = {
    "attempt": RECEIVE_ATTEMPTS, "transfer": MESSAGE_TRANSFERS, "finding": FINDINGS, "alert": ALERTS,
}  # fmt: skip
_MAX_NAMED: Final = 5  # in one line


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Find what is asked for, read its captures again and write its packets."""
    arguments = job_run.arguments
    request = _request(arguments)
    lake = open_lake_with_data(job_run)
    if is_redacted(lake):
        raise ConfigError(f"{arguments.lake}: names are redacted, so the packets cannot be found in the captures")
    plan = plan_export(lake, request)
    time = "" if arguments.since is None and arguments.until is None else " in this time"
    for name in plan.without_packets:
        cli.log_progress(f"no packet{time} is evidence of {name}: it follows from reports, or from what is absent")
    if not plan.pieces_by_path:
        if not plan.without_packets:
            missing = plan.unknown or [f"captures of {_listed(sorted(plan.names))}"]
            raise ConfigError(f"not in {arguments.lake}{time}: {_listed(missing)}")
        return cli.Outcome(failures=len(plan.unknown), nothing_captured=True)
    capture = job_run.config.capture
    limits = ExportLimits(capture.max_expansion, int(capture.max_expanded_bytes), arguments.most)
    exported: Exported | None = None
    try:
        with _open_output(job_run, lake) as out:
            exported = write_packets(plan, out, limits, lake.overflow_folder)
            if not exported.packets and exported.unreadable:
                raise ConfigError("; ".join(_lines_on_unreadable(plan, exported)))
    except BrokenPipeError:  # of a named pipe; standard output ends the block
        pass
    except OSError as error:
        raise ConfigError(str(error)) from error
    return cli.Outcome() if exported is None else _outcome(arguments, plan, exported)


def _request(arguments: Namespace) -> ExportRequest:
    """Return what is asked for; ConfigError where that is nothing, or no such table."""
    rows = defaultdict[Table, list[str]](list)
    for option, table in _TABLE_OPTIONS.items():
        if keys := getattr(arguments, option):
            rows[table] += keys
    for name, *keys in arguments.row:
        if not keys:
            raise ConfigError(f"--row: give {name} and the keys of rows")
        rows[_table(name)] += keys
    given = (
        arguments.call,
        arguments.packet,
        arguments.connection,
        arguments.message,
        arguments.label,
        arguments.queue,
    )
    if not rows and not any(given):
        raise ConfigError(
            "what to export? Give --message, --label, --attempt, --transfer, --finding, --alert, --row, --call, "
            "--packet, --connection, --session or --queue"
        )
    if arguments.since is not None and arguments.until is not None and arguments.since > arguments.until:
        raise ConfigError(f"--from: {arguments.since:%Y-%m-%dT%H:%M:%SZ} is later than --to")
    return ExportRequest(
        calls=arguments.call, packets=arguments.packet, connections=arguments.connection, rows=rows,
        messages=arguments.message, label=arguments.label or None, queue=arguments.queue or None,
        since=arguments.since, until=arguments.until,
    )  # fmt: skip


def _table(name: str) -> Table:
    """Return the table with a name, with its layer or without; ConfigError where its rows lead to no packets."""
    for full_name, table in TABLES_WITH_PACKETS.items():
        if name in (full_name, table.name):
            return table
    raise ConfigError(f"--row: {name}: not one of {', '.join(TABLES_WITH_PACKETS)}")


def _open_output(job_run: cli.JobRun, lake: Lake) -> AbstractContextManager[BinaryIO]:
    if job_run.arguments.out == cli.STANDARD_OUTPUT:
        if cli.terminal_width() is not None:
            raise ConfigError(
                "--out -: standard output is a terminal; give it a program that reads it (| wireshark -i -)"
            )
        return cli.data_output()
    target = Path(job_run.arguments.out)
    check_outputs(job_run, lake, [target])
    return replace_file(target)


def _outcome(arguments: Namespace, plan: ExportPlan, exported: Exported) -> cli.Outcome:
    """Say what was written and what is not there, and return the outcome."""
    for name in plan.unknown:
        cli.log_progress(f"not in the lake: {name}")
    for line in _lines_on_unreadable(plan, exported):
        cli.log_progress(line)
    lost = sorted(plan.names - exported.found) if not exported.is_cut else []
    if lost:
        cli.log_progress(f"no packet was found of {_listed(lost)}")
    if exported.is_cut:
        cli.log_progress(f"there are more: these are the earliest {exported.packets} packets (--most)")
    captures = format_count(len(plan.pieces_by_path) - len(exported.unreadable), "capture")
    place = "standard output" if arguments.out == cli.STANDARD_OUTPUT else arguments.out
    cli.log_progress(f"{format_count(exported.packets, 'packet')} of {captures} in {place}")
    failures = len(plan.unknown) + len(exported.unreadable) + len(lost)
    return cli.Outcome(failures=failures, summary_fields={"packets": exported.packets, "more": exported.is_cut})


def _lines_on_unreadable(plan: ExportPlan, exported: Exported) -> Iterator[str]:
    """Yield a line on each capture that cannot be read, and what may lack its packets."""
    for path, error in exported.unreadable.items():
        names = {name: None for piece in plan.pieces_by_path[path] for name in piece.names}
        yield f"{path}: {error}; it has packets of {_listed([*names]) or 'binds'}"


def _listed(names: Collection[str]) -> str:
    first = [*names][:_MAX_NAMED]
    return ", ".join([*first, *([f"and {len(names) - len(first)} more"] if len(names) > len(first) else [])])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
