"""Reads captures that are to be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.bronze.capture_tasks import read_options
from pipeline.reports.taps.comparison import Tap
from pipeline.reports.taps.tap_items import read_items
from pipeline.reports.taps.tap_streams import read_segments
from udfs.files.capture_file import NotACaptureError
from udfs.files.file_source import FileSource


class UnreadableError(Exception):
    """Captures that cannot be read: a line for each."""


def read_taps(paths: Sequence[str], options: Mapping[str, Any], warn: Callable[[str], object]) -> list[Tap]:
    """Return what captures have; ``options`` as for ``read_options``. UnreadableError if one cannot be read.

    ``warn`` takes a line on each that is damaged or cut short: of it there is what could be read.
    """
    reading, problems = read_options(options), list[str]()
    found = []
    for path in paths:
        try:
            source = FileSource.from_path(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None)
            problems.append(str(error) if why is None else f"{path}: {why}")
            continue
        items = read_items(source, reading)
        found.append((source, items))
        status, why = items.file["status"], items.file["error"]
        if status in ("unreadable", "empty"):
            problems.append(f"{path}: {status}: {why or 'there is nothing in it'}")
        elif status != "complete":
            warn(f"{path}: {status}: {why}")
    if problems:
        raise UnreadableError(*problems)
    directions = set().union(*(items.directions for _, items in found))
    try:
        return [Tap(items, read_segments(source, reading, directions)) for source, items in found]
    except (OSError, NotACaptureError) as error:
        raise UnreadableError(f"a capture has changed while it was read: {error}") from error
