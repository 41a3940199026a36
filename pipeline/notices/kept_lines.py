"""What is kept of notices: JSON lines in the lake's folder ``_notices``, no table. No Spark.

A line is what a target was told (``told``), the first call for a target (``target``), that somebody looks after a
notice (``acknowledged``), or that a condition is not told (``muted``). The newest line of the same thing counts. Lines
hold no address and no key of a target, but names as the lake has them. Who writes them holds the lake's lease.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from pipeline.alerts.entries import AlertRow
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.lake.lake_path import LakePath
from pipeline.notices.changes import Acknowledgement, Notification, as_time
from pipeline.notices.notice import Notice
from pipeline.text import json_default

FOLDER: Final = "_notices"
MAX_AGE: Final = timedelta(days=90)
MAX_LINES: Final = 100_000
TOLD, TARGET, ACKNOWLEDGED, MUTED = "told", "target", "acknowledged", "muted"
_FILE: Final = "notices.jsonl"
_FIELDS: Final = {
    TOLD: ("target", "waiting", "known", "notice"),
    TARGET: ("target",),
    ACKNOWLEDGED: ("notice_key", "severity", "until"),
    MUTED: ("condition", "queue", "until"),
}
_FORGOTTEN: Final = "(forgotten)"
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mute:
    """A condition of which nothing is told, at queues whose name fits a pattern, or everywhere."""

    condition: str
    queue: str | None

    def covers(self, row: AlertRow) -> bool:
        """Whether nothing is told of an alert; case does not matter."""
        if row["condition"] != self.condition:
            return False
        return self.queue is None or fnmatchcase((row["queue"] or "").casefold(), self.queue.casefold())


class KeptLines:
    """The lines of a lake, as they were read."""

    def __init__(self, folder: LakePath) -> None:
        """Read them; ``folder`` is that of the lake. A line that is damaged is left out. OSError."""
        self._file = folder / FOLDER / _FILE
        try:
            self.lines = [*_parse(self._file.read_text())]
        except FileNotFoundError:
            self.lines = []

    def is_known(self, target: str) -> bool:
        """Whether a target was called before."""
        return any(line["line"] == TARGET and line.get("target") == target for line in self.lines)

    def told(self, target: str) -> dict[str, Notification]:
        """Return what a target was told last, by notice key."""
        out = {}
        for line in self.lines:
            if line["line"] == TOLD and line.get("target") == target:
                notice = Notice(**line["notice"])
                out[notice.notice_key] = Notification(notice, as_time(line["at"]), line["waiting"], line["known"])
        return out

    def open_notices(self) -> dict[str, Notice]:
        """Return the notices of all targets that are open, by notice key."""
        newest = {line["notice"]["notice_key"]: Notice(**line["notice"]) for line in self.lines if line["line"] == TOLD}
        return {own_key: notice for own_key, notice in newest.items() if notice.is_open}

    def acknowledged(self) -> dict[str, Acknowledgement]:
        """Return the newest acknowledgement by notice key."""
        return {
            line["notice_key"]: Acknowledgement(as_time(line["at"]), as_time(line["until"]), line["severity"])
            for line in self.lines if line["line"] == ACKNOWLEDGED
        }  # fmt: skip

    def mutes(self, now: datetime) -> list[Mute]:
        """Return what is muted now."""
        until = {Mute(line["condition"], line["queue"]): line["until"] for line in self.lines if line["line"] == MUTED}
        return [mute for mute, text in until.items() if now < as_time(text)]

    def add(self, lines: Iterable[Line], now: datetime) -> None:
        """Add lines and write the file in one step, within its limits. OSError."""
        if added := [*lines]:
            self._write(bound_lines([*self.lines, *added], now))

    def forget(self, before: date) -> None:
        """Remove what was told, or is about times, before midnight UTC of a date; of what is open the key stays."""
        if self.lines:
            cutoff = datetime.combine(before, time(), UTC)
            needed = _needed(self.lines, cutoff)
            kept = ((number, line) for number, line in enumerate(self.lines))
            self._write([
                line if not _is_older(line, cutoff) else _without_names(line)
                for number, line in kept if number in needed or not _is_older(line, cutoff)
            ])  # fmt: skip

    def _write(self, lines: Sequence[Line]) -> None:
        self._file.write_text("".join(f"{json.dumps(line, default=json_default)}\n" for line in lines))
        self.lines = [*lines]


def notification_line(target: str, told: Notification) -> Line:
    """Return the line of what a target was told, or is to be told."""
    notice = {name: getattr(told.notice, name) for name in Notice.__slots__}
    said = {"line": TOLD, "at": told.told_at, "target": target, "waiting": told.is_waiting, "known": told.is_known}
    return _as_read({**said, "notice": notice})


def target_line(target: str, now: datetime) -> Line:
    """Return the line of the first call for a target."""
    return _as_read({"line": TARGET, "at": now, "target": target})


def acknowledged_line(notice: Notice, *, by: str, until: datetime, reason: str | None, now: datetime) -> Line:
    """Return the line that says who looks after a notice."""
    said = {"line": ACKNOWLEDGED, "at": now, "notice_key": notice.notice_key, "severity": notice.severity}
    return _as_read({**said, "until": until, "by": by, "reason": reason})


def muted_line(mute: Mute, *, until: datetime, now: datetime) -> Line:
    """Return the line that says what is not told, until when."""
    return _as_read({"line": MUTED, "at": now, "condition": mute.condition, "queue": mute.queue, "until": until})


def bound_lines(lines: Sequence[Line], now: datetime) -> list[Line]:
    """Return the lines of the last 90 days, and older ones that still count; of 100,000 the newest, in their order."""
    needed = _needed(lines, now)
    kept = [line for number, line in enumerate(lines) if number in needed or now - as_time(line["at"]) < MAX_AGE]
    if len(kept) <= MAX_LINES:
        return kept
    counting = _needed(kept, now)
    optional = [number for number in range(len(kept)) if number not in counting]
    left_out = {*optional[: len(kept) - MAX_LINES]}
    return [line for number, line in enumerate(kept) if number not in left_out][-MAX_LINES:]


def _needed(lines: Sequence[Line], now: datetime) -> set[int]:
    """Return the numbers of the lines without which the next call would do something else."""
    newest: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(lines):
        newest[_subject(line)] = number
    return {number for number in newest.values() if _counts(lines[number], now)}


def _subject(line: Line) -> tuple[str, ...]:
    """Return what a line is about: the newest of them counts."""
    own_key = line["notice"]["notice_key"] if line["line"] == TOLD else line.get("notice_key")
    return tuple(map(str, (line["line"], line.get("target"), own_key, line.get("condition"), line.get("queue"))))


def _counts(line: Line, now: datetime) -> bool:
    if line["line"] == TOLD:
        return bool(line["waiting"]) or Notice(**line["notice"]).is_open
    return line["line"] == TARGET or now < as_time(line["until"])


def _is_older(line: Line, cutoff: datetime) -> bool:
    since = line["notice"]["facts"]["since"] if line["line"] == TOLD else line["at"]
    return min(as_time(line["at"]), as_time(since)) < cutoff


def _without_names(line: Line) -> Line:
    if line["line"] == TOLD:
        notice = line["notice"]
        names = {name: None for name in notice["facts"] if name not in ("condition", "severity")}
        facts = notice["facts"] | names | {"subject": _FORGOTTEN, "alert_count": 1, "alerts": [], "missing": []}
        return {**line, "notice": {**notice, "facts": facts}}
    return {**line, **{name: _FORGOTTEN for name in ("by", "reason") if name in line}}


def _parse(text: str) -> Iterator[Line]:
    for each in text.splitlines():
        try:
            line = json.loads(each)
            _check(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        yield line


def _check(line: Line) -> None:
    """Raise KeyError, TypeError or ValueError where a line lacks what is read of it."""
    found = {name: line[name] for name in ("at", *_FIELDS[line["line"]])}
    times = [found[name] for name in ("at", "until") if name in found]
    if "notice" in found:
        facts = Notice(**found["notice"]).facts
        SEVERITY_ORDER.index(facts["severity"])
        times += [facts["since"], facts["last_seen_at"]]
    for text in times:
        as_time(text)


def _as_read(line: Line) -> Line:
    """Return a line as it will be read."""
    found: Line = json.loads(json.dumps(line, default=json_default))
    return found
