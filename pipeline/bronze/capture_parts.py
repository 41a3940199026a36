"""Large captures are read in parts, so that one file uses all cores. What the parts show is merged as that of files.

A part begins where the one before it ends, as a capture that has grown is read on. The driver walks from record to
record beforehand, which takes some 2 % of the time of reading: so few large files are cut, and many are not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ledger_entries import PlannedRead
from udfs.capture.bronze_rows import host_name_rows, not_read_rows, sort_tunnels, sum_server_connections
from udfs.capture.record_order import TimesGoBackError, TimeWatch
from udfs.capture.silences import Silences, look_for_silences
from udfs.columns.absent import NO_TIME
from udfs.files.capture_file import CaptureFileReader, NotACaptureError, RecordBlock, ResumeState, resume_read_offset
from udfs.files.file_source import open_stored_file
from udfs.files.filesystems import is_remote_location
from udfs.rows import RowDict
from udfs.tcp.packet_decoder import PacketDecoder

_MIN_PART_BYTES: Final = 128 << 20
_MAX_PARTS: Final = 32  # of all captures of a run together, about
_BLOCK_BYTES: Final = 4 << 20
_END_COLUMNS: Final = ("resume", "content_bytes", "tail_key")  # what is known of the end of what was read
# Counts of parts add up.
_ADDED_COUNTS: Final = (
    "packets", "packets_tcp", "packets_truncated", "packets_used", "packets_other", "packets_damaged",
    "packets_binary_protocol", "packets_ahead",
)  # fmt: skip


def cut_into_parts(reads: Sequence[PlannedRead], clock: IngestClock) -> list[list[PlannedRead]]:
    """Return the parts of each planned read; most reads are one part.

    What cannot be read from its middle is one part (compressed, or on an object store, or its clock was set), and
    so is what follows a packet without a time, or with one that is ahead of ``clock``.
    """
    size = max(_MIN_PART_BYTES, sum(read.size for read in reads) // _MAX_PARTS)
    return [_parts(read, -(-read.size // size), clock) for read in reads]


def _parts(read: PlannedRead, count: int, clock: IngestClock) -> list[PlannedRead]:
    if count < 2 or read.first_key is None or read.capture_files.file.compression or is_remote_location(read.file.path):
        return [read]
    parts, rest, size = list[PlannedRead](), read, -(-read.size // count)
    try:
        for state in _resume_states(read, clock.latest_us(read.ingested_us) * 1000):
            if state["offset"] - rest.start_offset >= size and rest.size > size:
                parts.append(replace(rest, end_offset=state["offset"]))
                rest = replace(rest, start_offset=state["offset"], resume_state=json.dumps(state))
    except TimesGoBackError:
        return [read]
    except (NotACaptureError, OSError, ValueError):
        pass  # the task that reads it reports it
    return [*parts, rest]


def _resume_states(read: PlannedRead, latest_ns: int) -> Iterator[ResumeState]:
    """Yield states from which a capture can be read on, between packets of different times.

    A connection is named by the time of its first packet, in each part: so parts name it differently. Raises
    ``TimesGoBackError`` where times go back or leave time out: all records decide what they mean.
    """
    state = None if read.resume_state is None else json.loads(read.resume_state)
    with open_stored_file(read.file.path) as stream:
        stream.seek(0 if state is None else resume_read_offset(state))
        reader = CaptureFileReader(stream, _BLOCK_BYTES, resume_from=state)
        ends = ((block, reader.resume_state()) for block in _in_order_of_time(reader.read_blocks()))
        for (before, end), (after, _) in pairwise(ends):
            if not _has_usable_times(before, latest_ns):
                return
            if end is not None and (before.time_ns[-1:] // 1000 < after.time_ns[:1] // 1000).any():
                yield end


def _in_order_of_time(blocks: Iterator[RecordBlock]) -> Iterator[RecordBlock]:
    watch, silences = TimeWatch(), Silences()
    for records in look_for_silences(blocks, PacketDecoder(), silences):
        if watch.goes_back(records.time_ns):
            raise TimesGoBackError
        yield records
    if silences.steps():
        raise TimesGoBackError


def _has_usable_times(records: RecordBlock, latest_ns: int) -> bool:
    return not ((records.time_ns == NO_TIME) | (records.time_ns > latest_ns)).any()


def join_rows_of_parts(rows: Sequence[RowDict]) -> RowDict:
    """Return the row of ``bronze.capture_files`` for a capture from those of its parts, in their order.

    If a part could not be read as it should be, the row says why of the first one, and that the capture is not whole.
    """
    whole = rows[0]
    for row in rows[1:]:
        added = {name: whole[name] + row[name] for name in ("calls", "calls_damaged")}
        whole = {**add_row_before(row, whole), **added, "first_key": rows[0]["first_key"]}
    failed = next((row for row in rows[:-1] if row["damage"] is not None), None)
    if failed is not None:
        status = "partial" if whole["packets"] else "unreadable"
        whole |= {name: failed[name] for name in ("damage", "error", *_END_COLUMNS)} | {"status": status}
    return whole


def add_row_before(row: RowDict, before: RowDict) -> RowDict:
    """Return the ledger's row of what was read of a capture, with that of what was read before it."""
    row = dict(row)
    for name in _ADDED_COUNTS:
        row[name] = None if before[name] is None else row[name] + before[name]
    for name, better in (("first_packet_at", min), ("last_packet_at", max)):
        row[name] = better([time for time in (row[name], before[name]) if time is not None], default=None)
    row |= sum_server_connections(row["server_connections"], before["server_connections"])
    for name in ("link_types", "learned_endpoints", "reread_endpoints"):
        row[name] = sorted({*(row[name] or ()), *(before[name] or ())}) or None
    tunnels = {tuple(each.values()): each for each in (*(row["tunnels"] or ()), *(before["tunnels"] or ()))}
    row["tunnels"] = sort_tunnels(tunnels.values()) or None
    row["host_names"] = host_name_rows([*(before["host_names"] or ()), *(row["host_names"] or ())])
    not_read: Counter[str] = Counter()
    for part in (row, before):
        not_read.update({each["what"]: each["packets"] for each in part["packets_not_read"] or ()})
    row["packets_not_read"] = not_read_rows(not_read)
    row["times_go_back"] = [*(before["times_go_back"] or ()), *(row["times_go_back"] or ())] or None
    row["tap_steps"] = before["tap_steps"]
    first = row["first_packet_at"]
    return {**row, "event_date": None if first is None else first.date()}
