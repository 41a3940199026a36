"""Entries of the ledger ``bronze.capture_files``, and the plan of an ingest: captures to read, rename and replace."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Final

from pipeline.bronze.input_files import InputFile
from udfs.capture.record_order import CLOCK_SET, OUT_OF_ORDER
from udfs.tcp.unread_packets import may_hide_msmq
from udfs.times import DAY_NS, EPOCH, us_to_datetime


@dataclass(frozen=True, slots=True)
class CaptureFileState:
    """A file as it was when the ledger noted it: path, size and time as listed, and what its decompressed content is.

    ``content_bytes`` and ``tail_key`` (``udfs.files.capture_fingerprint.Content``) are None where they are unknown.
    """

    path: str
    size: int
    modified_us: int | None
    content_bytes: int | None = None
    tail_key: str | None = None
    compression: str | None = None

    @property
    def input_file(self) -> InputFile:
        """The file as ``list_files`` returns it."""
        return InputFile(self.path, self.size, self.modified_us)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A capture as the ledger has it. Times are microseconds since 1970.

    ``file`` is the file whose content counts; ``other_files`` are copies and beginnings of it, as they were when they
    were compared. ``first_key`` is the key of the bytes up to the end of the first packet (None without a packet). It
    differs from ``capture_id`` where another capture with other bytes begins with the same packet. ``resume`` is the
    reader's state (JSON) at the end of the capture. ``ingested_us`` is the clock when it was first read as it is.
    """

    capture_id: str
    file: CaptureFileState
    first_key: str | None = None
    other_paths: tuple[str, ...] = ()
    other_files: tuple[CaptureFileState, ...] = ()
    status: str = "complete"
    damage: str | None = None
    resume: str | None = None
    decoder_version: str | None = None
    first_us: int | None = None
    last_us: int | None = None
    reread_endpoints: tuple[str, ...] = ()
    learned_endpoints: tuple[str, ...] = ()
    ingested_us: int | None = None

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> LedgerEntry:
        """Return the entry for a row of the ledger with the columns ``LEDGER_COLUMNS``."""
        columns = ("path", "size_bytes", "modified_us", "content_bytes", "tail_key", "compression")
        file = CaptureFileState(*(row[name] for name in columns))
        return LedgerEntry(
            row["capture_id"],
            file,
            row["first_key"],
            tuple(row["other_paths"] or ()),
            tuple(CaptureFileState(**each) for each in json.loads(row["other_files"])) if row["other_files"] else (),
            row["status"],
            row["damage"],
            row["resume"],
            row["decoder_version"],
            row["first_us"],
            row["last_us"],
            tuple(row["reread_endpoints"] or ()),
            tuple(row["learned_endpoints"] or ()),
            row["ingested_us"],
        )

    @property
    def all_files(self) -> tuple[CaptureFileState, ...]:
        """All files of the capture, the one whose content counts first."""
        return (self.file, *self.other_files)


# The columns of ``bronze.capture_files``, as SQL, that ``LedgerEntry.from_row`` takes.
LEDGER_COLUMNS: Final = (
    "capture_id", "path", "size_bytes", "unix_micros(modified_at) AS modified_us", "content_bytes", "tail_key",
    "compression", "first_key", "other_paths", "other_files", "status", "damage", "resume", "decoder_version",
    "unix_micros(first_packet_at) AS first_us", "unix_micros(last_packet_at) AS last_us",
    "reread_endpoints", "learned_endpoints", "unix_micros(ingested_at) AS ingested_us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DateRange:
    """A range of UTC dates, both ends included."""

    first: date
    last: date

    def contains(self, time_us: int | None) -> bool:
        """Whether a time (microseconds since 1970) is on one of the dates; False for None."""
        day = _utc_date(time_us)
        return day is not None and self.first <= day <= self.last

    def overlaps(self, first_us: int | None, last_us: int | None) -> bool:
        """Whether the span between two times (microseconds since 1970) touches one of the dates; False for None."""
        first, last = _utc_date(first_us), _utc_date(last_us)
        return first is not None and last is not None and first <= self.last and last >= self.first


@dataclass(frozen=True, slots=True)
class ReprocessSelector:
    """Selects captures of the ledger to read again: all, or by one of the fields.

    ``capture`` is a capture_id, or the path of the capture or of one of its copies. ``days`` selects captures with
    packets on these days, ``except_decoder_version`` those that another version read. ``captures`` are capture_ids.
    """

    capture: str | None = None
    days: DateRange | None = None
    except_decoder_version: str | None = None
    captures: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class CaptureFileSet:
    """The files of a capture: the one whose content counts, and copies and beginnings of it."""

    file: CaptureFileState
    other_files: tuple[CaptureFileState, ...] = ()

    @property
    def path(self) -> str:
        """The path of the capture."""
        return self.file.path

    @property
    def other_paths(self) -> tuple[str, ...]:
        """The paths of the other files, each once."""
        return tuple(sorted({file.path for file in self.other_files} - {self.file.path}))

    @property
    def other_files_json(self) -> str | None:
        """The value of the ledger's column ``other_files``; None if there are none."""
        return json.dumps([asdict(file) for file in self.other_files]) if self.other_files else None

    def ledger_columns(self) -> dict[str, Any]:
        """Return the ledger's columns of the files, with ``modified_us`` in the place of ``modified_at``."""
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
class PlannedRead:
    """A capture to read, or a part of it.

    It is read from its beginning, or from ``start_offset`` with the reader's state ``resume_state`` (JSON), to its end
    or to ``end_offset``; offsets are in decompressed bytes. ``file`` is that of ``capture_files``, or a copy of it if
    that is gone. ``ingested_us`` is the clock of the run that read the same bytes before; None: none did.
    """

    capture_id: str
    file: InputFile
    capture_files: CaptureFileSet
    first_key: str | None = None
    start_offset: int = 0
    resume_state: str | None = None
    reread_endpoints: tuple[str, ...] = ()  # whose connections are parsed from their first byte on
    ingested_us: int | None = None
    end_offset: int | None = None

    @property
    def name(self) -> str:
        """What tells it from all other reads of a run: the path, and where it begins."""
        return f"{self.file.path}#{self.start_offset}" if self.start_offset else self.file.path

    @property
    def size(self) -> int:
        """How many bytes it reads, about where the file is compressed."""
        return max((self.file.size if self.end_offset is None else self.end_offset) - self.start_offset, 0)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can hold."""
        return asdict(self)

    @staticmethod
    def from_json_dict(values: Mapping[str, Any]) -> PlannedRead:
        """Return the read that ``to_json_dict`` gave these values of."""
        files = values["capture_files"]
        others = tuple(CaptureFileState(**each) for each in files["other_files"])
        return PlannedRead(
            **{
                **values,
                "file": InputFile(**values["file"]),
                "capture_files": CaptureFileSet(CaptureFileState(**files["file"]), others),
                "reread_endpoints": tuple(values["reread_endpoints"]),
            },
        )


@dataclass(slots=True)
class IngestPlan:
    """What an ingest does with captures, in this order: replace, rename, update files, read.

    ``replaced_captures`` are captures, by their present key, whose rows are all deleted. ``beginnings`` maps the keys
    of those of them that are the beginning of another, of which these bytes are not read again, to the key of that one.
    ``renamed_captures`` maps old to new keys of captures whose rows stay; all are renamed at once, since two may swap
    keys. ``changed_file_sets``, by new key, are the files of captures that are not read, where these changed. ``reads``
    are sorted by path. ``skipped_files`` counts the given files that need no reading. ``missing_captures`` should be
    read again, but their files are gone.
    """

    reads: list[PlannedRead] = field(default_factory=list)
    replaced_captures: set[str] = field(default_factory=set)
    beginnings: dict[str, str] = field(default_factory=dict)
    renamed_captures: dict[str, str] = field(default_factory=dict)
    changed_file_sets: dict[str, CaptureFileSet] = field(default_factory=dict)
    skipped_files: int = 0
    missing_captures: list[LedgerEntry] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.reads or self.replaced_captures or self.renamed_captures or self.changed_file_sets)

    def describe(self) -> Iterator[str]:
        """Yield a line of text for each step of the plan."""
        for read in self.reads:
            again = " again" if read.capture_id in self.replaced_captures else ""
            what = f"from byte {read.start_offset}" if read.start_offset else f"{read.file.size} bytes"
            yield f"read{again} {read.file.path} ({what})"
        for capture_id, files in sorted(self.changed_file_sets.items()):
            others = "".join(f", {path}" for path in files.other_paths)
            yield f"known {files.path}{others} ({capture_id})"
        for old, new in sorted(self.renamed_captures.items()):
            yield f"rename capture {old} to {new}"
        for capture_id in sorted(self.replaced_captures - {read.capture_id for read in self.reads}):
            yield f"remove capture {capture_id}"
        for entry in self.missing_captures:
            yield f"cannot read {entry.file.path} again: it is gone or has changed"


def midnight_ns(day: date) -> int:
    """Return the start of a UTC date in nanoseconds since 1970."""
    return (day - EPOCH.date()).days * DAY_NS


_SET_FORWARD: Final = "set_forward"  # of ``CLOCK_SET`` those below 0
_TIMES_GO_BACK: Final = {
    CLOCK_SET: "times go back by up to {0:.3f} s {1}: the clock was set; no duration is shown across it",
    OUT_OF_ORDER: "times go back by up to {0:.3f} s {1}: the records are not in order, and are read in that of their "
    "times",
    _SET_FORWARD: "the clock was set forward by up to {0:.3f} s {1}; no duration is shown across it",
}
_SHOWN_BY_TAPS: Final = (
    "this clock, or that of another capture of the same packets, was set by up to {0:.3f} s {1}; no duration is shown "
    "across it"
)


def _utc_date(time_us: int | None) -> date | None:
    """Return the UTC date of a time in microseconds since 1970; beyond the calendar its first or last day."""
    return None if time_us is None else us_to_datetime(time_us).date()


def resume_offset(resume: str | None) -> int:
    """Return where a reader's state (JSON) resumes, in decompressed bytes; 0 without a state."""
    if resume is None:
        return 0
    offset: int = json.loads(resume)["offset"]
    return offset


def count_unread_packets(ledger_rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, int], list[str]]:
    """Return how many packets of captures are not read, by what they are, and a line for what may hide MSMQ."""
    counts, suspicious = Counter[str](), set[str]()
    for row in ledger_rows:
        for each in row["packets_not_read"] or ():
            counts[each["what"]] += each["packets"]
            if may_hide_msmq(each["what"], each["packets"], of=row["packets"]):
                suspicious.add(each["what"])
    lines = [f"{counts[what]} packets are not read: {what}" for what in sorted(suspicious)]
    return dict(sorted(counts.items())), lines


def lines_on_times_that_go_back(ledger_rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines on each capture whose times go back, or leave time out: where first, how far at most, and why.

    Also on those of which another capture of the same packets shows that a clock was set.
    """
    lines = []
    for row in sorted(ledger_rows, key=lambda row: row["path"]):
        by_cause = defaultdict(list)
        for step in row["times_go_back"] or ():
            by_cause[step["cause"] if step["back_us"] > 0 else _SET_FORWARD].append(step)
        for cause, text in _TIMES_GO_BACK.items():
            if steps := by_cause[cause]:
                furthest = max(abs(each["back_us"]) for each in steps)
                lines.append(f"{row['path']}: {_how_far(text, furthest, steps[0]['packet'], len(steps))}")
        if steps := row["tap_steps"]:
            furthest = max(each["by_us"] for each in steps)
            lines.append(f"{row['path']}: {_how_far(_SHOWN_BY_TAPS, furthest, steps[0]['first_packet'], len(steps))}")
    return lines


def _how_far(text: str, furthest_us: int, packet: int, count: int) -> str:
    places = f"at packet {packet}" + (f" and {count - 1} more" if count > 1 else "")
    return text.format(furthest_us / 1_000_000, places)


def holds_msmq(ledger_row: Mapping[str, Any]) -> bool:
    """Whether a capture holds MSMQ; one without a packet may come to."""
    return not ledger_row["packets"] or ledger_row["packets_used"] + ledger_row["packets_binary_protocol"] > 0


def line_on_captures_without_msmq(ledger_rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a line on captures that hold no MSMQ; None where all do."""
    without = sorted(row["path"] for row in ledger_rows if not holds_msmq(row))
    if not without:
        return None
    if len(without) == 1:
        return f"the capture {without[0]} holds no MSMQ (wrong interface or ports?)"
    return f"{len(without)} captures hold no MSMQ (wrong interface or ports?), the first is {without[0]}"
