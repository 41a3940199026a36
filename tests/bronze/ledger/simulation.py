"""A simulated ingest for the ledger: files as byte strings, a ledger in memory, and the expected captures.

``IngestSimulation`` holds files and carries out plans like a run, reading with the container. ``expected`` applies the
rules of tables.md for ``capture_files`` to everything that was seen, in few lines and without any order.
"""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, field, replace

from ledgers import ledger_of
from pcapgen.model import key
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import InputFile
from pipeline.bronze.ledger_entries import CaptureFileSet, IngestPlan, LedgerEntry
from udfs.files.capture_file import CaptureFileReader, NotACaptureError, resume_read_offset
from udfs.files.file_source import FileSource

BOUNDS = (1100, 1 << 30)
HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)


def record(content: bytes, second: int = 0) -> bytes:
    return struct.pack("<IIII", second, 0, len(content), len(content)) + content


def capture(first: str, rest: str = "") -> bytes:
    """Return a capture of one-byte packets; ``first`` is the first packet."""
    return HEADER + b"".join(record(letter.encode(), 1) for letter in first + rest)


def first_end(data: bytes) -> int | None:
    """Return the end of the first packet's record, if it is complete."""
    if len(data) < 40 or not data.startswith(HEADER):
        return None
    end = 40 + struct.unpack_from("<I", data, 32)[0]
    return end if len(data) >= end else None


def unpacked(stored: bytes) -> bytes:
    return gzip.decompress(stored) if stored.startswith(b"\x1f\x8b") else stored


@dataclass
class IngestSimulation:
    """Files, the ledger, and what was read of each capture."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # path: stored bytes, time
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    rows: dict[str, bytes] = field(default_factory=dict)  # what was read of each capture
    opened: list[str] = field(default_factory=list)
    clock: int = 0
    plans: list[IngestPlan] = field(default_factory=list)

    def put(self, path: str, stored: bytes) -> None:
        self.clock += 1
        self.files[path] = (stored, self.clock)

    def find_file(self, path: str) -> InputFile | None:
        return InputFile(path, len(self.files[path][0]), self.files[path][1]) if path in self.files else None

    def open_source(self, file: InputFile) -> FileSource:
        self.opened.append(file.path)
        return replace(FileSource.from_bytes(self.files[file.path][0], file.path), stored_bytes=file.size)

    def run(self, *paths: str) -> IngestPlan:
        """Plan and carry out an ingest of these files, all by default."""
        files = [listed for path in paths or sorted(self.files) if (listed := self.find_file(path)) is not None]
        plan = plan_ingest(
            files, ledger_of(self.ledger.values()), open_source=self.open_source, find_file=self.find_file
        )
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: IngestPlan) -> None:
        self.plans.append(plan)
        for capture_id in plan.replaced_captures:
            del self.ledger[capture_id], self.rows[capture_id]
        assert len(set(plan.renamed_captures.values())) == len(plan.renamed_captures)
        renamed = {old: (self.ledger.pop(old), self.rows.pop(old)) for old in plan.renamed_captures}
        for old, (entry, rows) in renamed.items():
            new = plan.renamed_captures[old]
            assert new not in self.ledger
            self.ledger[new], self.rows[new] = replace(entry, capture_id=new), rows
        for capture_id, file_set in plan.changed_file_sets.items():
            self.ledger[capture_id] = with_files(self.ledger[capture_id], file_set)
        for read in plan.reads:
            before = self.rows.get(read.capture_id, b"")
            assert (read.capture_id in self.ledger) == bool(read.start_offset)
            assert len(before) >= read.start_offset
            entry, data = self.read(read)
            self.ledger[read.capture_id] = entry
            self.rows[read.capture_id] = before[: read.start_offset] + data

    def read(self, read) -> tuple[LedgerEntry, bytes]:
        """Read like the reader; return the ledger entry and the bytes read."""
        stored, _ = self.files[read.file.path]
        source = FileSource.from_bytes(stored, read.file.path)
        state = json.loads(read.resume_state) if read.resume_state else None
        with source.open_decompressed(*BOUNDS, resume_read_offset(state) if state else 0) as stream:
            container = CaptureFileReader(stream, 1 << 16, resume_from=state)
            try:
                packets = sum(len(records.packet_start) for records in container.read_blocks())
            except NotACaptureError:
                packets = 0
        file_state = replace(
            read.capture_files.file, content_bytes=container.content_bytes, tail_key=container.tail_key
        )
        after = container.resume_state()
        status = "unreadable" if not packets and not state else "partial" if container.damage else "complete"
        entry = LedgerEntry(
            read.capture_id,
            file_state,
            read.first_key,
            read.capture_files.other_paths,
            read.capture_files.other_files,
            status,
            None if container.damage is None else container.damage.kind,
            None if after is None else json.dumps(after),
        )
        return entry, unpacked(stored)[read.start_offset :]

    def captures(self) -> dict[str, tuple[str, tuple[str, ...], bytes]]:
        """Return path, other paths and content of each capture."""
        return {
            capture_id: (entry.file.path, entry.other_paths, self.rows[capture_id])
            for capture_id, entry in self.ledger.items()
        }


def with_files(entry: LedgerEntry, files: CaptureFileSet) -> LedgerEntry:
    """Return the entry with the present files of its capture."""
    return replace(entry, file=files.file, other_paths=files.other_paths, other_files=files.other_files)


def expected(seen: list[tuple[str, bytes]]) -> dict[str, tuple[str, tuple[str, ...], bytes]]:
    """Return the captures that must result from files seen in this order of time (stored uncompressed)."""
    current = []
    for at, (path, data) in enumerate(seen):
        later = [other for name, other in seen[at + 1 :] if name == path]
        if first_end(data) is None and later:
            continue  # a file that becomes readable stays one capture
        if any(other.startswith(data) for other in later):
            continue  # it grew, or is unchanged
        current.append((path, data))
    found: dict[str, tuple[str, tuple[str, ...], bytes]] = {}
    groups: dict[bytes, list[list[tuple[str, bytes]]]] = {}
    for path, data in sorted(current, key=lambda each: (-len(each[1]), each[0])):
        end = first_end(data)
        if end is None:
            found[key(path)] = (path, (), data)
            continue
        group = groups.setdefault(data[:end], [])
        home = next((cluster for cluster in group if cluster[0][1].startswith(data)), None)
        if home is None:
            group.append([(path, data)])
        else:
            home.append((path, data))
    for first, group in groups.items():
        for number, cluster in enumerate(group):
            path, data = cluster[0]
            others = tuple(sorted({other for other, _ in cluster} - {path}))
            found[key(first, path) if number else key(first)] = (path, others, data)
    return found
