"""Writes the packets of an export as one pcapng file, in the order of time, however many they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, NamedTuple

from pipeline.reports.packet_export.captured_packets import PacketFinder
from pipeline.reports.packet_export.plan import ExportPlan
from pipeline.reports.packet_export.sorted_packets import PacketSorter
from udfs.columns.absent import BEFORE_ALL
from udfs.files.pcapng_writer import PcapngWriter

PCAPNG_APPLICATION: Final = "msmq-lakehouse"


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

    They are sorted in bounded memory; what is more goes to a private folder below ``overflow_folder``, None: the
    system's. Of more than ``max_packets`` the earliest ones are written.
    """
    result = Exported()
    with TemporaryDirectory(prefix="msmq-", dir=overflow_folder) as folder:
        sorter = PacketSorter(Path(folder), limits.max_packets)
        _read_captures(plan, limits, sorter, result)
        writer = PcapngWriter(out, PCAPNG_APPLICATION, _comment(plan))
        writer.write_names(plan.hosts.names)
        for packet in sorter.packets():
            writer.write_packet(packet.link_type, packet.time_ns, packet.data, packet.original_length, packet.comment)
            result.packets += 1
    result.is_cut |= sorter.count > result.packets
    return result


def _read_captures(plan: ExportPlan, limits: ExportLimits, sorter: PacketSorter, result: Exported) -> None:
    """Read the packets of all captures, but of none that begins after as many packets as are written."""
    last_us = BEFORE_ALL
    for path, pieces in plan.pieces_by_path.items():
        if limits.max_packets is not None and sorter.count >= limits.max_packets and plan.begins_us[path] > last_us:
            result.is_cut = True
            return
        finder = PacketFinder(path, pieces)
        try:
            sorter.add(finder.read(limits.max_expansion, limits.max_expanded_bytes))
        except OSError as error:
            result.unreadable[path] = error.strerror or str(error).removeprefix(f"{path}: ")
        last_us = max(last_us, finder.last_us)
        result.found.update(name for place in finder.found.nonzero()[0] for name in pieces[place].names)


def _comment(plan: ExportPlan) -> str | None:
    """Return what is said of the whole file: the addresses whose name at that time is not known for sure."""
    doubtful = (f"{address} is {' or '.join(names)}" for address, names in sorted(plan.hosts.doubtful.items()))
    text = "; ".join(doubtful)
    return f"Addresses with several names at that time: {text}" if text else None
