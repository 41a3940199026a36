"""Writes snapshot files (JSON lines) atomically: readers see a whole file or none."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Final

PART_BYTES: Final = 4 << 20  # of a file, after which the next one begins
PART_SECONDS: Final = 30.0  # from a file's first snapshot, after which it lands with the next one
_UNSAFE_CHARS = re.compile(r"[^A-Za-z0-9_-]+")


def write_snapshot_files(
    folder: Path, name: str, snapshots: Iterable[dict[str, Any]], *, part_bytes: int = PART_BYTES,
    part_seconds: float = PART_SECONDS,
) -> list[Path]:  # fmt: skip
    """Write snapshots as they come, to files ``<folder>/<day>/<name>-<time>-<random>.jsonl``; return their paths.

    A file is written under a hidden name, which readers ignore, and renamed when it is on the disk: when it has
    ``part_bytes``, or after ``part_seconds``. The random part makes the name unique.
    """
    coming = iter(snapshots)
    return [_write_part(folder, name, chain([first], coming), part_bytes, part_seconds) for first in coming]


def _write_part(
    folder: Path, name: str, snapshots: Iterable[dict[str, Any]], part_bytes: int, part_seconds: float
) -> Path:
    """Write the first snapshots, at least one, and return the path."""
    begun, coming = time.monotonic(), iter(snapshots)
    first = next(coming)
    at: str = first["asked_at"]
    day_folder = folder / at[:10]
    day_folder.mkdir(parents=True, exist_ok=True)
    stem = f"{_UNSAFE_CHARS.sub('_', name)[:80]}-{re.sub('[^0-9]', '', at)}-{uuid.uuid4().hex[:8]}"
    temporary, target = day_folder / f".{stem}.writing", day_folder / f"{stem}.jsonl"
    try:
        with temporary.open("w", encoding="ascii", newline="\n") as out:
            written = 0
            for snapshot in chain([first], coming):
                # As ASCII: only escapes can represent the lone surrogates of some texts.
                written += out.write(json.dumps(snapshot, separators=(",", ":")) + "\n")
                if written >= part_bytes or time.monotonic() - begun >= part_seconds:
                    break
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target
