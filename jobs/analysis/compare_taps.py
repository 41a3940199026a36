"""Compare two captures of the same traffic: what each lacks and why, and how far their clocks are apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jobs import cli
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.ingest_captures import reader_options
from jobs.lake_access import open_lake_with_data
from pipeline.privacy.redaction import is_redacted
from pipeline.reports.taps.clock_difference import ClockDifference
from pipeline.reports.taps.comparison import REASONS, Comparison, Lacking, LackingItem, Tap, compare_taps
from pipeline.reports.taps.lost_bytes import CAUSES
from pipeline.reports.taps.reading import UnreadableError, read_taps
from pipeline.reports.taps.tap_items import KINDS
from pipeline.text import escape_unprintable, format_cell, format_count, format_table, format_time
from schemas.bronze import CAPTURE_FILES

JOB: Final = "compare_taps"
_NAMES: Final = ("A", "B")
_MAX_CLOCKS: Final = 10  # parts of the time with a difference of their own, that are printed


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Read both captures again and print the comparison; nothing is written."""
    arguments, outcome = job_run.arguments, cli.Outcome()
    paths = _paths(job_run)
    try:
        a, b = read_taps(paths, reader_options(job_run.config), cli.log_progress)
    except UnreadableError as error:
        for problem in error.args:
            outcome.report_unreadable(problem)
        return outcome
    compared = compare_taps(a, b)
    if arguments.json:
        cli.write_output("".join(f"{json.dumps(row)}\n" for row in _json_rows(compared)))
    else:
        cli.write_output("\n".join(_lines(paths, (a, b), compared, arguments.most)) + "\n")
    outcome.summary_fields |= _summary(compared)
    return outcome


def _paths(job_run: cli.JobRun) -> list[str]:
    """Return the paths of both captures; ConfigError for an id that the lake does not have."""
    names = [job_run.arguments.a, job_run.arguments.b]
    if job_run.arguments.lake is None:
        return names
    lake = open_lake_with_data(job_run)
    if is_redacted(lake):
        raise ConfigError(f"{job_run.arguments.lake}: names are redacted, and captures are not: give paths, no lake")
    ledger = lake.select_by_values(CAPTURE_FILES, names, columns=("capture_id", "path")).to_pylist()
    known = {row["capture_id"]: row["path"] for row in ledger}
    if unknown := [name for name in names if cli.is_capture_id(name) and name not in known]:
        raise ConfigError(f"no capture of {job_run.arguments.lake}: {', '.join(unknown)}")
    return [known.get(name, name) for name in names]


def _lines(paths: Sequence[str], taps: Sequence[Tap], compared: Comparison, most: int) -> Iterator[str]:
    for name, path, tap in zip(_NAMES, paths, taps, strict=True):
        file = tap.found.file
        hours = " to ".join(format_cell(file[at]) for at in ("first_packet_at", "last_packet_at"))
        yield f"{name}  {path}: {format_count(file['packets'], 'packet')}, {hours}"
    yield from ("", *_clock_lines(compared.clocks), "")
    lacking = (compared.lacking_in_a, compared.lacking_in_b)
    rows = [
        [f"{kind}s" if kind != "call" else "requests and responses of calls", compared.in_both[kind],
         *(each.count(kind) for each in lacking)]
        for kind in KINDS
    ]  # fmt: skip
    yield from format_table(["", "both have", "A lacks", "B lacks"], rows)
    yield ""
    yield from format_table(
        ["bytes that are lacking", *_NAMES],
        [[REASONS[cause], *(each.bytes[cause] for each in lacking)] for cause in CAUSES],
    )
    for name, each in zip(_NAMES, lacking, strict=True):
        yield from _lacking_lines(name, each, most)


def _clock_lines(clocks: Sequence[ClockDifference]) -> Iterator[str]:
    """Yield the bounds of how far B's clock is ahead of A's."""
    if not clocks:
        yield "clocks: cannot be compared: no packet is in both captures once, or their times contradict each other"
    for each in clocks[:_MAX_CLOCKS]:
        since = f" since {format_time(each.since_ns // 1000)}" if len(clocks) > 1 else ""
        packets = format_count(each.packets, "packet")
        if each.is_interval:
            yield (
                f"clocks: B is ahead of A by {_ms(each.least_ns)} to {_ms(each.most_ns)} ms{since} "
                f"({packets} of both directions)"
            )
        else:
            yield (
                f"clocks: B is ahead of A by at most {_ms(each.most_ns)} ms if packets pass A first, by at least "
                f"{_ms(each.least_ns)} ms if they pass B first{since} ({packets} of one direction)"
            )
    if len(clocks) > _MAX_CLOCKS:
        yield f"clocks: {len(clocks) - _MAX_CLOCKS} more differences: the clocks drift, or were set"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def _lacking_lines(name: str, lacking: Lacking, most: int) -> Iterator[str]:
    if not lacking.items:
        return
    yield from ("", f"{name} lacks:")
    columns = ["seen at", "what", "which", "why", "from", "to"]
    yield from format_table(columns, [_row(each) for each in lacking.items[:most]], cli.terminal_width())
    if len(lacking.items) > most:
        yield f"... {len(lacking.items) - most} more: --most, or --json for all"


def _row(each: LackingItem) -> list[str]:
    item, place = each.item, each.item.place
    at = "" if place.at_us is None else format_time(place.at_us)
    ends = [f"{end.address}:{end.port}" for end in place.direction]
    return [at, item.kind, escape_unprintable(item.text, 80), REASONS[each.reason], *ends]


def _json_rows(compared: Comparison) -> Iterator[dict[str, Any]]:
    for name, lacking in zip(_NAMES, (compared.lacking_in_a, compared.lacking_in_b), strict=True):
        for item, reason in lacking.items:
            source, target = item.place.direction
            yield {
                "lacking_in": name, "kind": item.kind, "text": item.text, "seen_at_us": item.place.at_us,
                "source_address": source.address, "source_port": source.port, "target_address": target.address,
                "target_port": target.port, "tcp_sequence": item.place.sequence, "reason": reason,
            }  # fmt: skip


def _summary(compared: Comparison) -> dict[str, Any]:
    lacking = dict(zip(_NAMES, (compared.lacking_in_a, compared.lacking_in_b), strict=True))
    return {
        "in_both": compared.in_both,
        "lacking": {name: {kind: each.count(kind) for kind in KINDS} for name, each in lacking.items()},
        "lacking_bytes": {name: each.bytes for name, each in lacking.items()},
        "clocks": [
            {"since_us": each.since_ns // 1000, "least_us": each.least_ns / 1000, "most_us": each.most_ns / 1000,
             "packets": each.packets, "both_directions": each.is_interval}
            for each in compared.clocks
        ],
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
