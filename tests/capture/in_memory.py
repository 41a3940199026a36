"""Reads several captures into bronze tables in memory, without Spark: the content of a lake after runs over them.

``pipeline.bronze`` does the same with Delta tables. Here the tables are Python rows, so that tests can try any order of
files and runs in milliseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from udfs.capture.call_relabelling import relabel_calls
from udfs.capture.call_sightings import merge_sightings, restore_single_capture_row
from udfs.capture.capture_reader import BRONZE_SCHEMAS, CaptureReadRequest, InterfaceEndpoint, read_capture
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.clocks.tap_steps import CommonPackets, with_tap_steps
from udfs.capture.connection_merge import MergeResult, merge_connections
from udfs.capture.merge_candidates import merge_candidates
from udfs.capture.merged_remainders import add_packet_counts
from udfs.capture.open_connections import four_tuple_key
from udfs.capture.openings import (
    TRIED_PORTS,
    CaptureSpans,
    Surroundings,
    attempt_connection,
    count_again,
    find_attempt_outcomes,
    heard_in,
    is_queue_manager,
    packets_not_read,
)
from udfs.rows import RowDict
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA
from udfs.sessions.packet_sightings import merge_packet_sightings, move_packets
from udfs.sessions.pings import ping_rows, pings_of_rows
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits

BRONZE_TABLES: Final = (
    "capture_files", "connections", "rpc_binds", "rpc_calls", "session_packets", "pings", "quarantine", "pending"
)  # fmt: skip
_SPAN: Final = ("first_packet_at", "last_packet_at")


def read_captures(
    runs: Iterable[Sequence[bytes]], limits: TimeLimits = DEFAULT_TIME_LIMITS, latest_time_ns: int | None = None
) -> dict[str, pa.Table]:
    """Return the bronze tables after a sequence of runs, each over the bytes of some captures.

    A capture whose first packet is known already is skipped (``pipeline.bronze.ingest_plan`` compares more).
    ``latest_time_ns`` is as in ``CaptureReadRequest``.
    """
    known: set[str] = set()

    def read_new(captures: Sequence[bytes]) -> Iterator[Mapping[str, pa.Table]]:
        for capture in captures:
            found = read_capture(capture, limits=limits, request=CaptureReadRequest(latest_time_ns=latest_time_ns))
            if (name := found["capture_files"]["capture_id"][0].as_py()) not in known:
                known.add(name)
                yield found

    return merge_runs(map(read_new, runs), limits)


def merge_runs(
    runs: Iterable[Iterable[Mapping[str, pa.Table]]], limits: TimeLimits = DEFAULT_TIME_LIMITS
) -> dict[str, pa.Table]:
    """Return the bronze tables after a sequence of runs, each with what ``read_capture`` returned of its captures."""
    tables: dict[str, list[RowDict]] = {name: [] for name in BRONZE_TABLES}
    for captures in runs:
        fresh: list[RowDict] = []
        for found in captures:
            for name in BRONZE_TABLES:
                tables[name] += found[name].to_pylist()
            fresh += found["pending"].to_pylist()
        tables["pings"] = ping_rows(pings_of_rows(tables["pings"]))
        keys = {four_tuple_key(row) for row in fresh}
        pending = [row for row in tables["pending"] if four_tuple_key(row) in keys]
        pending = [pending[index] for found in merge_candidates(pending, limits).values() for index in found]
        steps = ClockSteps(tables["capture_files"])
        common = CommonPackets(steps)
        apply_merge(tables, pending, merge_connections(pending, limits, steps), limits, steps, common)
        steps = _add_tap_steps(tables, common, {row["capture_id"] for row in fresh})
        find_connection_outcomes(tables, steps)
    return {name: pa.Table.from_pylist(rows, BRONZE_SCHEMAS[name]) for name, rows in tables.items()}


def _add_tap_steps(tables: dict[str, list[RowDict]], common: CommonPackets, read: Collection[str]) -> ClockSteps:
    """Add the places that captures of the same packets show to the ledger, and to calls; return all places."""
    found = common.steps()
    files = [with_tap_steps(row, found.get(row["capture_id"], ()), read) for row in tables["capture_files"]]
    steps = ClockSteps(files)
    if [row["tap_steps"] for row in files] != [row["tap_steps"] for row in tables["capture_files"]]:
        tables["rpc_calls"] = [{**row, "clocks": steps.renumbered(row)} for row in tables["rpc_calls"]]
    tables["capture_files"] = files
    return steps


def find_connection_outcomes(tables: dict[str, list[RowDict]], steps: ClockSteps = NO_STEPS) -> None:
    """Find what became of connections that were not established, by all captures."""
    files, endpoints = tables["capture_files"], set[tuple[str, int]]()
    for text in (text for row in files for text in row["learned_endpoints"] or ()):
        endpoint = InterfaceEndpoint.parse(text)
        endpoints.add((endpoint.address, endpoint.port))
    spans = {}
    for row in (row for row in files if row["first_packet_at"] is not None):
        first, last = (round(row[name].timestamp() * 1e6) * 1000 for name in _SPAN)
        spans[row["capture_id"]] = first, last - steps.skipped_us(row["capture_id"]) * 1000
    tried: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in (*tables["connections"], *tables["pending"]):
        if row["server_port"] in TRIED_PORTS and row["first_packet_at"] is not None:
            at = round(row["first_packet_at"].timestamp() * 1e6) * 1000
            tried[row["client_address"], row["server_address"]].append(at)
    managers = {row["server_address"] for row in tables["connections"] if is_queue_manager(row)}
    managers |= {address for address, _ in endpoints}
    around = Surroundings(
        CaptureSpans(spans), heard_in(tables["pending"]), managers, endpoints,
        {pair: sorted(times) for pair, times in tried.items()},
    )  # fmt: skip
    found = find_attempt_outcomes(tables["pending"], around)
    rows = [row for row in tables["connections"] if row["connection_id"] not in {*found.rpc, *found.left_out}]
    for row in rows:
        row["not_established"] = found.codes.get(row["connection_id"], row["not_established"])
    made = [attempt_connection(name, remainders, found.codes[name]) for name, remainders in found.rpc.items()]
    tables["connections"] = rows + pa.Table.from_pylist(made, BRONZE_SCHEMAS["connections"]).to_pylist()
    counted, changes = count_again(found)
    for row in tables["pending"]:
        row["counted"] = counted.get(row["pending_key"], row["counted"])
    for row in files:
        if row["capture_id"] in changes:
            add_packet_counts(row, changes[row["capture_id"]])
        row["packets_not_read"] = packets_not_read(row["packets_not_read"], found.over_limit[row["capture_id"]])


def apply_merge(
    tables: dict[str, list[RowDict]], pending: Sequence[RowDict], merged: MergeResult,
    limits: TimeLimits = DEFAULT_TIME_LIMITS, steps: ClockSteps = NO_STEPS, common: CommonPackets | None = None,
) -> None:  # fmt: skip
    """Apply a merge to the tables: its rows replace those that it was made from. ``pending`` are its input rows.

    ``common`` gets the merged rows.
    """
    labels = {(row["capture_id"], row["was_connection_id"]): row for row in merged.connection_labels.to_pylist()}
    old_ids = {row["connection_id"] for row in pending}
    fresh = {name: batch.to_pylist() for name, batch in merged.tables.items()}
    affected = [row for row in tables["rpc_calls"] if row["connection_id"] in old_ids]
    calls = [row for row in tables["rpc_calls"] if row["connection_id"] not in old_ids]
    fresh["rpc_calls"] = merge_call_rows(affected, pending, merged, limits, steps)
    cut = [row for row in tables["session_packets"] if row["connection_id"] in old_ids]
    tables["session_packets"] = [row for row in tables["session_packets"] if row["connection_id"] not in old_ids]
    fresh["session_packets"] = merge_packet_rows(cut, pending, merged)
    if common is not None:
        common.add_calls(fresh["rpc_calls"])
        common.add_packets(fresh["session_packets"])
    for name in ("connections", "rpc_binds"):
        tables[name] = [row for row in tables[name] if row["connection_id"] not in old_ids]
    counts = Counter(row["connection_id"] for row in fresh["rpc_calls"])
    for row in fresh["connections"]:
        row["calls"] = counts[row["connection_id"]]
    replaced = {(row["capture_id"], key) for row in pending for key in row["quarantine_keys"]}
    kept = []
    for row in tables["quarantine"]:
        if (row["capture_id"], row["quarantine_key"]) in replaced:
            continue
        if row["connection_id"] in old_ids:
            label = labels.get((row["capture_id"], row["connection_id"]), row)  # none where its remainder expired
            row["connection_id"] = label["connection_id"]
        kept.append(row)
    tables["rpc_calls"], tables["quarantine"] = calls, kept
    for name, rows in fresh.items():
        tables[name] += rows
    packets = {row["capture_id"]: row for row in merged.packet_counts.to_pylist()}
    for row in tables["capture_files"]:
        if row["capture_id"] in packets:
            add_packet_counts(row, packets[row["capture_id"]])
    changes = {row["pending_key"]: row for row in merged.pending_changes.to_pylist()}
    for row in pending:
        row.update(changes[row["pending_key"]])


def merge_packet_rows(rows: Iterable[RowDict], pending: Sequence[RowDict], merged: MergeResult) -> list[RowDict]:
    """Return all ``session_packets`` rows of merged connections: those of the merge, and the moved existing ones.

    ``rows`` are the existing rows of the connections in ``pending``, the merge's input rows.
    """
    fresh = merged.tables["session_packets"].to_pylist()
    rebuilt = {(row["capture_id"], key) for row in pending for key in row["packet_keys"]}
    moved = move_packets(pa.RecordBatch.from_pylist(list(rows), SESSION_PACKETS_SCHEMA), merged.packet_moves)
    kept = moved.to_pylist()
    found = [
        row
        for row in kept
        if row["connection_id"] not in merged.shared_sessions and (row["capture_id"], row["packet_key"]) not in rebuilt
    ]
    found += [row for row in fresh if row["connection_id"] not in merged.shared_sessions]
    for identity, coverage in merged.shared_sessions.items():
        own, joint = ([row for row in part if row["connection_id"] == identity] for part in (kept, fresh))
        found += merge_packet_sightings(own, joint, rebuilt, coverage)
    return found


def merge_call_rows(
    calls: Iterable[RowDict], pending: Sequence[RowDict], merged: MergeResult,
    limits: TimeLimits = DEFAULT_TIME_LIMITS, steps: ClockSteps = NO_STEPS,
) -> list[RowDict]:  # fmt: skip
    """Return all ``rpc_calls`` rows of merged connections: those of the merge, and the relabelled existing ones.

    ``calls`` are the existing rows of the connections in ``pending``, the merge's input rows. A replaced row is
    identified by key *and* capture, because captures with the same clock produce the same key.
    """
    fresh = merged.tables["rpc_calls"].to_pylist()
    replaced = {(row["capture_id"], key) for row in pending for key in row["call_keys"]}
    replaced |= {(row["capture_id"], row["call_key"]) for row in fresh}
    finished_rows = [
        row
        for call in calls
        if (row := restore_single_capture_row(call, steps)) is not None
        and (call["sightings"] or (row["capture_id"], row["call_key"]) not in replaced)
    ]
    finished = pa.RecordBatch.from_pylist(finished_rows, BRONZE_SCHEMAS["rpc_calls"])
    kept = relabel_calls(finished, merged.connection_labels, merged.context_meanings).to_pylist()
    stored, new = ([row for row in rows if row["connection_id"] in merged.taps] for rows in (kept, fresh))
    others = [row for row in (*kept, *fresh) if row["connection_id"] not in merged.taps]
    return others + merge_sightings(stored, new, merged.taps, limits, steps)
