"""Entries of the ledger ``bronze.capture_files``, and the plan that is made of them: what to read, rename, replace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from pipeline.bronze.input_files import Listed

_DAY_NS: Final = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Sighting:
    """A file as it was when it was looked at: its facts as listed, and those of its decompressed content.

    ``content_bytes`` and ``tail_key`` (``udfs.files.identity.Content``) are None where they are not known.
    """

    path: str
    size: int
    modified_us: int | None
    content_bytes: int | None = None
    tail_key: str | None = None
    compression: str | None = None

    @property
    def listed(self) -> Listed:
        """The file as listing gives it."""
        return Listed(self.path, self.size, self.modified_us)


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger says of a capture. Times are microseconds since 1970.

    ``first_key`` is the key of its bytes to the end of the first packet (None without one), which differs from
    ``capture_id`` where another capture with other bytes begins with the same packet. ``resume`` is the reader's state
    (JSON) for reading on; ``other_files`` are copies and beginnings, as they were when they were compared.
    """

    capture_id: str
    file: Sighting
    first_key: str | None = None
    other_paths: tuple[str, ...] = ()
    other_files: tuple[Sighting, ...] = ()
    status: str = "complete"
    damage: str | None = None
    resume: str | None = None
    decoder_version: str | None = None
    first_us: int | None = None
    last_us: int | None = None
    followed: tuple[str, ...] = ()
    learnt: tuple[str, ...] = ()

    @staticmethod
    def of(row: Mapping[str, Any]) -> Known:
        """Return a capture from its row of the ledger, as ``COLUMNS`` selects it."""
        file = Sighting(
            row["path"],
            row["size_bytes"],
            row["modified_us"],
            row["content_bytes"],
            row["tail_key"],
            row["compression"],
        )
        return Known(
            row["capture_id"],
            file,
            row["first_key"],
            tuple(row["other_paths"] or ()),
            tuple(Sighting(**each) for each in json.loads(row["other_files"])) if row["other_files"] else (),
            row["status"],
            row["damage"],
            row["resume"],
            row["decoder_version"],
            row["first_us"],
            row["last_us"],
            tuple(row["followed"] or ()),
            tuple(row["learnt"] or ()),
        )

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """Every file that it was seen in."""
        return (self.file, *self.other_files)


# What ``Known.of`` needs of ``bronze.capture_files``, as SQL.
COLUMNS: Final = (
    "capture_id", "path", "size_bytes", "unix_micros(modified_at) AS modified_us", "content_bytes", "tail_key",
    "compression", "first_key", "other_paths", "other_files", "status", "damage", "resume", "decoder_version",
    "unix_micros(first_packet_at) AS first_us", "unix_micros(last_packet_at) AS last_us",
    "followed", "learnt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Days:
    """UTC dates from ``first`` to ``last``, both included."""

    first: date
    last: date

    def hold(self, time_us: int | None) -> bool:
        """Whether a time (microseconds since 1970) lies in them; no time does not."""
        day = _day(time_us)
        return day is not None and self.first <= day <= self.last

    def meet(self, first_us: int | None, last_us: int | None) -> bool:
        """Whether anything between two times may lie in them; without a time nothing does."""
        first, last = _day(first_us), _day(last_us)
        return first is not None and last is not None and first <= self.last and last >= self.first


@dataclass(frozen=True, slots=True)
class Reprocess:
    """Which captures of the ledger to read again: all, or those that meet what is given.

    ``capture`` is a capture_id or a path (of the capture or of a copy); ``days`` those of its packets;
    ``decoder`` a version: what was read by any other; ``captures`` are capture_ids.
    """

    capture: str | None = None
    days: Days | None = None
    decoder: str | None = None
    captures: frozenset[str] | None = None

    def chooses(self, known: Known) -> bool:
        """Whether it means this capture."""
        if self.capture is not None:
            return self.capture in {known.capture_id, *(seen.path for seen in known.sightings), *known.other_paths}
        if self.captures is not None:
            return known.capture_id in self.captures
        if self.days is not None:
            return self.days.meet(known.first_us, known.last_us)
        return self.decoder is None or known.decoder_version != self.decoder


@dataclass(frozen=True, slots=True)
class Names:
    """The files of a capture: the one whose content counts, and the others (copies and beginnings)."""

    file: Sighting
    other_files: tuple[Sighting, ...] = ()

    @property
    def path(self) -> str:
        """The path of the capture."""
        return self.file.path

    @property
    def other_paths(self) -> tuple[str, ...]:
        """The paths of the others, each once."""
        return tuple(sorted({file.path for file in self.other_files} - {self.file.path}))

    @property
    def other_files_json(self) -> str | None:
        """The others as the ledger's column ``other_files`` keeps them; None without any."""
        return json.dumps([asdict(file) for file in self.other_files]) if self.other_files else None

    def columns(self) -> dict[str, Any]:
        """Return what they are in the ledger: columns and values, ``modified_us`` for ``modified_at``."""
        return {
            "path": self.path,
            "other_paths": list(self.other_paths) or None,
            "other_files": self.other_files_json,
            "size_bytes": self.file.size,
            "bytes_read": self.file.size,
            "modified_us": self.file.modified_us,
            "compression": self.file.compression,
        }


@dataclass(frozen=True, slots=True)
class Read:
    """A capture to be read: ``file`` from its beginning, or from ``start`` with the reader's state ``resume`` (JSON).

    ``start`` is in decompressed bytes. ``file`` is that of ``names``, or a copy of it where that is gone.
    """

    capture_id: str
    file: Listed
    names: Names
    first_key: str | None = None
    start: int = 0
    resume: str | None = None
    followed: tuple[str, ...] = ()  # places whose connections are cut from their first byte on

    def values(self) -> dict[str, Any]:
        """Return it as JSON can hold it, for the file that says what tasks read."""
        return asdict(self)

    @staticmethod
    def of(values: Mapping[str, Any]) -> Read:
        """Return what ``values`` gave."""
        names = values["names"]
        others = tuple(Sighting(**each) for each in names["other_files"])
        return Read(
            **{
                **values,
                "file": Listed(**values["file"]),
                "names": Names(Sighting(**names["file"]), others),
                "followed": tuple(values["followed"]),
            },
        )


@dataclass(slots=True)
class Plan:
    """What a run does with its captures, in this order.

    ``replaced``: captures (as the ledger calls them now) whose rows all go. ``renamed``: old name -> new name of
    captures whose rows stay; all at once, since names may be swapped. ``paths``: new name -> files of captures that
    are not read, where they changed. ``read``: what is read, by path. ``known``: how many of the files given need no
    reading. ``missing``: what was to be read again and is gone.
    """

    read: list[Read] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Names] = field(default_factory=dict)
    known: int = 0
    missing: list[Known] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.read or self.replaced or self.renamed or self.paths)

    def lines(self) -> Iterator[str]:
        """Say what would be done, a line for each capture."""
        for read in self.read:
            again = " again" if read.capture_id in self.replaced else ""
            what = f"from byte {read.start}" if read.start else f"{read.file.size} bytes"
            yield f"read{again} {read.file.path} ({what})"
        for capture_id, names in sorted(self.paths.items()):
            others = "".join(f", {path}" for path in names.other_paths)
            yield f"known {names.path}{others} ({capture_id})"
        for old, new in sorted(self.renamed.items()):
            yield f"rename capture {old} to {new}"
        for gone in sorted(self.replaced - {read.capture_id for read in self.read}):
            yield f"take out capture {gone}"
        for known in self.missing:
            yield f"cannot read {known.file.path} again: it is gone or has changed"


def _midnight(day: date) -> int:
    """Return the first nanosecond of a UTC date, since 1970."""
    return (day - date(1970, 1, 1)).days * _DAY_NS


def _day(time_us: int | None) -> date | None:
    """Return the UTC date of a time in microseconds; of one beyond the calendar its last day."""
    if time_us is None:
        return None
    try:
        return datetime.fromtimestamp(time_us // 1_000_000, UTC).date()
    except (OverflowError, ValueError, OSError):
        return date.max if time_us > 0 else date.min


def _offset(resume: str | None) -> int:
    """Return where a state goes on, in decompressed bytes; 0 when there is none."""
    if resume is None:
        return 0
    offset: int = json.loads(resume)["offset"]
    return offset
