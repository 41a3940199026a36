"""A small world for the ledger: files as byte strings, a ledger of plain values, and what must come out.

``World`` keeps files and carries plans out as a run does, reading with the container. ``expected`` is the rules of
tables.md for ``capture_files`` over everything that was seen, in a few lines and without any order.
"""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, field, replace

from pcapgen.model import key
from pipeline.bronze.ingest_plan import plan
from pipeline.bronze.input_files import Listed
from pipeline.bronze.ledger_entries import Known, Names, Plan, Sighting
from udfs.files.container import Container, NotACaptureError, lead_in
from udfs.files.sources import Source

BOUNDS = (1100, 1 << 30)
HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)


def record(content: bytes, second: int = 0) -> bytes:
    return struct.pack("<IIII", second, 0, len(content), len(content)) + content


def capture(first: str, rest: str = "") -> bytes:
    """A capture of one-byte packets: the first letter is the first packet."""
    return HEADER + b"".join(record(letter.encode(), 1) for letter in first + rest)


def first_end(data: bytes) -> int | None:
    """Where the first packet's record ends, if it is whole."""
    if len(data) < 40 or not data.startswith(HEADER):
        return None
    end = 40 + struct.unpack_from("<I", data, 32)[0]
    return end if len(data) >= end else None


def unpacked(stored: bytes) -> bytes:
    return gzip.decompress(stored) if stored.startswith(b"\x1f\x8b") else stored


@dataclass
class World:
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # path: stored bytes, time
    ledger: dict[str, Known] = field(default_factory=dict)
    rows: dict[str, bytes] = field(default_factory=dict)  # what was read of each capture
    opened: list[str] = field(default_factory=list)
    clock: int = 0
    plans: list[Plan] = field(default_factory=list)

    def put(self, path: str, stored: bytes) -> None:
        self.clock += 1
        self.files[path] = (stored, self.clock)

    def find(self, path: str) -> Listed | None:
        return Listed(path, len(self.files[path][0]), self.files[path][1]) if path in self.files else None

    def source(self, file: Listed) -> Source:
        self.opened.append(file.path)
        return replace(Source.of_bytes(self.files[file.path][0], file.path), size=file.size)

    def run(self, *paths: str) -> Plan:
        """A run over these files, all by default."""
        files = [listed for path in paths or sorted(self.files) if (listed := self.find(path)) is not None]
        done = plan(files, self.ledger.values(), source=self.source, find=self.find)
        self.carry_out(done)
        return done

    def carry_out(self, done: Plan) -> None:
        self.plans.append(done)
        for gone in done.replaced:
            del self.ledger[gone], self.rows[gone]
        assert len(set(done.renamed.values())) == len(done.renamed)
        renamed = {old: (self.ledger.pop(old), self.rows.pop(old)) for old in done.renamed}
        for old, (known, rows) in renamed.items():
            new = done.renamed[old]
            assert new not in self.ledger
            self.ledger[new], self.rows[new] = replace(known, capture_id=new), rows
        for capture_id, names in done.paths.items():
            self.ledger[capture_id] = renewed(self.ledger[capture_id], names)
        for read in done.read:
            before = self.rows.get(read.capture_id, b"")
            assert (read.capture_id in self.ledger) == bool(read.start)
            assert len(before) >= read.start
            known, data = self.read(read)
            self.ledger[read.capture_id] = known
            self.rows[read.capture_id] = before[: read.start] + data

    def read(self, read) -> tuple[Known, bytes]:
        """Read as the reader does; the row, and the bytes read."""
        stored, _ = self.files[read.file.path]
        source = Source.of_bytes(stored, read.file.path)
        state = json.loads(read.resume) if read.resume else None
        with source.open(*BOUNDS, lead_in(state) if state else 0) as stream:
            container = Container(stream, 1 << 16, resume=state)
            try:
                packets = sum(len(records.start) for records in container.blocks())
            except NotACaptureError:
                packets = 0
        seen = replace(read.names.file, content_bytes=container.content_bytes, tail_key=container.tail_key)
        after = container.state()
        status = "unreadable" if not packets and not state else "partial" if container.damage else "complete"
        known = Known(
            read.capture_id,
            seen,
            read.first_key,
            read.names.other_paths,
            read.names.other_files,
            status,
            None if container.damage is None else container.damage.kind,
            None if after is None else json.dumps(after),
        )
        return known, unpacked(stored)[read.start :]

    def captures(self) -> dict[str, tuple[str, tuple[str, ...], bytes]]:
        """Per capture its path, other paths and content."""
        return {
            capture_id: (known.file.path, known.other_paths, self.rows[capture_id])
            for capture_id, known in self.ledger.items()
        }


def renewed(known: Known, names: Names) -> Known:
    """The row after its files were found to have changed."""
    return replace(known, file=names.file, other_paths=names.other_paths, other_files=names.other_files)


def sighting(path: str, size: int, modified: int | None = 1) -> Sighting:
    return Sighting(path, size, modified)


def expected(seen: list[tuple[str, bytes]]) -> dict[str, tuple[str, tuple[str, ...], bytes]]:
    """What ``World.captures`` must be after files were seen, in this order of time (stored plain)."""
    standing = []
    for at, (path, data) in enumerate(seen):
        later = [other for name, other in seen[at + 1 :] if name == path]
        if first_end(data) is None and later:
            continue  # a file that becomes readable stays one capture
        if any(other.startswith(data) for other in later):
            continue  # it grew, or is as it was
        standing.append((path, data))
    found: dict[str, tuple[str, tuple[str, ...], bytes]] = {}
    groups: dict[bytes, list[list[tuple[str, bytes]]]] = {}
    for path, data in sorted(standing, key=lambda each: (-len(each[1]), each[0])):
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
