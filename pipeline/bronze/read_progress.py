"""How far the captures of a run are read. Tasks write it to the mark of the capture that they are reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any, BinaryIO, Final, TypeAlias

from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import staging_file_name
from udfs.files.file_source import FileSource
from udfs.keys import key

Show: TypeAlias = Callable[[int, str], None]
"""Shows how many bytes are read, and what else is known."""
Meter: TypeAlias = Callable[[int], AbstractContextManager[Show]]
"""Begins to show how much of so many bytes is read."""

_MARKS: Final = "reading"  # folder of the marks, in that of a run
_NOTE_INTERVAL_S: Final = 1.0
_SHOW_INTERVAL_S: Final = 1.0


@contextmanager
def no_meter(_: int) -> Iterator[Show]:
    """Show nothing."""
    yield lambda _bytes, _text: None


def marks_folder(run_folder: LakePath) -> LakePath:
    """Return the folder of the marks of captures that a run is reading."""
    return run_folder / _MARKS


def mark_path(marks: LakePath, name: str) -> LakePath:
    """Return the file that says that a read of this name is under way, and how many of its bytes are read."""
    return marks / key(name)


class MarkedSource:
    """A capture that a task reads within a block, whose mark says how far it is. The mark stays until it is removed."""

    def __init__(self, source: FileSource, mark: LakePath, start: int) -> None:
        """``start`` is where reading begins, in bytes of the stored file."""
        self._source, self._mark, self._start = source, mark, start
        self._files: list[Any] = []  # that were opened
        self._ended = Event()
        self._noting = Thread(target=self._note, daemon=True)

    def __enter__(self) -> FileSource:
        """Mark the capture, and return the source to read."""
        with suppress(OSError):
            self._mark.write_text("0")
        self._noting.start()
        return replace(self._source, open_file=self._open)

    def __exit__(self, *_: object) -> None:
        """End noting."""
        self._ended.set()
        self._noting.join()

    def _open(self) -> BinaryIO:
        self._files.append(file := self._source.open_file())
        return file

    def _note(self) -> None:
        """Write every second how far the file is read that was read farthest, of those that are open."""
        while not self._ended.wait(_NOTE_INTERVAL_S):
            positions = [0]
            for file in [*self._files]:
                with suppress(OSError, ValueError):  # it is closed
                    positions.append(file.tell() - self._start)
            with suppress(OSError):  # a full disk
                self._mark.write_text(str(max(positions)))


class ReadProgress:
    """How far the planned reads of a run are."""

    def __init__(self, reads: Sequence[PlannedRead], run_folder: LakePath, ledger_rows: LakePath) -> None:
        """``ledger_rows``: the folder of staging files where each capture that was read has one."""
        self._reads, self._paths = reads, {read.file.path for read in reads}
        self._marks, self._ledger_rows = marks_folder(run_folder), ledger_rows
        self.total_bytes = sum(read.size for read in reads)

    def bytes_and_captures(self) -> tuple[int, int]:
        """Return how many bytes, and how many captures as a whole, are read."""
        done = {file.name for file in self._ledger_rows.files()}
        marked = {file.name for file in self._marks.files()}
        count, unread = 0, set[str]()
        for read in self._reads:
            if staging_file_name(read.name) in done:
                count += read.size
                continue
            unread.add(read.file.path)
            if key(read.name) in marked:
                with suppress(OSError, ValueError):  # it is removed when the capture is read
                    count += min(int(mark_path(self._marks, read.name).read_text()), read.size)
        return count, len(self._paths - unread)

    @contextmanager
    def shown(self, meter: Meter) -> Iterator[None]:
        """Show it every second within the block."""
        ended = Event()

        def watch(show: Show) -> None:
            while not ended.wait(_SHOW_INTERVAL_S):
                read, captures = self.bytes_and_captures()
                show(read, f"{captures} of {len(self._paths)} captures")

        with meter(self.total_bytes) as show:
            watcher = Thread(target=watch, args=(show,), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()
