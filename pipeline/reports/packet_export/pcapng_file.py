"""Writes the packets of an export as one pcapng file, in the order of time, however many they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.queries.duckdb_sql import DuckDbSql
from pipeline.reports.packet_export.captured_packets import PACKETS, PacketFinder
from pipeline.reports.packet_export.plan import ExportPlan
from udfs.columns.absent import BEFORE_ALL
from udfs.files.pcapng_writer import PcapngWriter

PCAPNG_APPLICATION: Final = "msmq-lakehouse"
_SORTED_SQL: Final = """SELECT time_ns, link_type, original_length, data, comment FROM {packets}
ORDER BY time_ns, path, packet_number"""


class ExportLimits(NamedTuple):
    """Bounds of what captures expand to, bytes for each stored one and in all, and of the packets that are written."""

    max_expansion: int
    max_expanded_bytes: int
    max_packets: int | None = None


@dataclass(slots=True)
class Exported:
    """What was written: so many packets; if ``is_cut``, there are later ones, or may be.

    ``unreadable``: why captures cannot be read, or not to their end, by path; ``found``: names of what has a packet.
    """

    packets: int = 0
    is_cut: bool = False
    unreadable: dict[str, str] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)


def write_packets(plan: ExportPlan, out: BinaryIO, limits: ExportLimits, overflow_folder: Path | None) -> Exported:
    """Read each capture once, and write its packets with those of others, with comments and the names of machines.

    They are sorted in bounded memory; what is more goes to ``overflow_folder``, None: a private one. Of more than
    ``max_packets`` the first ones are written.
    """
    result, sql = Exported(), DuckDbSql(overflow_folder)
    writer = PcapngWriter(out, PCAPNG_APPLICATION, _comment(plan))
    writer.write_names(plan.hosts.names)
    packets = pa.RecordBatchReader.from_batches(PACKETS, _read_captures(plan, limits, result))
    with sql.little_memory(), sql.read_answer(_SORTED_SQL, {"packets": packets}) as batches:
        for batch in batches:
            for time, link, length, data, comment in zip(*(each.to_pylist() for each in batch.columns), strict=True):
                if result.packets == limits.max_packets:
                    result.is_cut = True
                    return result
                writer.write_packet(link, time, data, length, comment)
                result.packets += 1
    return result


def _read_captures(plan: ExportPlan, limits: ExportLimits, result: Exported) -> Iterator[pa.RecordBatch]:
    """Yield the packets of all captures, but of none that begins after more packets than are written."""
    packets, last_us = 0, BEFORE_ALL
    for path, pieces in plan.pieces_by_path.items():
        if limits.max_packets is not None and packets >= limits.max_packets and plan.begins_us[path] > last_us:
            result.is_cut = True
            return
        finder = PacketFinder(path, pieces)
        try:
            for batch in finder.read(limits.max_expansion, limits.max_expanded_bytes):
                packets += batch.num_rows
                last_us = max(last_us, pc.max(batch["time_ns"]).as_py() // 1000)
                yield batch
        except OSError as error:
            result.unreadable[path] = error.strerror or str(error).removeprefix(f"{path}: ")
        result.found.update(name for place in finder.found.nonzero()[0] for name in pieces[place].names)


def _comment(plan: ExportPlan) -> str | None:
    """Return what is said of the whole file: the addresses whose name at that time is not known for sure."""
    doubtful = (f"{address} is {' or '.join(names)}" for address, names in sorted(plan.hosts.doubtful.items()))
    text = "; ".join(doubtful)
    return f"Addresses with several names at that time: {text}" if text else None
