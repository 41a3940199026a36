"""Writes snapshot files (JSON lines) atomically: readers see a whole file or none."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_UNSAFE_CHARS = re.compile(r"[^A-Za-z0-9_-]+")


def write_snapshot_file(folder: Path, name: str, snapshots: Sequence[dict[str, Any]]) -> Path | None:
    """Write snapshots to ``<folder>/<day>/<name>-<time>-<random>.jsonl`` and return the path; None without snapshots.

    The file is written under a hidden name, which readers ignore, and renamed when it is on the disk. The random part
    makes the name unique.
    """
    if not snapshots:
        return None
    at: str = snapshots[0]["asked_at"]
    day_folder = folder / at[:10]
    day_folder.mkdir(parents=True, exist_ok=True)
    stem = f"{_UNSAFE_CHARS.sub('_', name)[:80]}-{re.sub('[^0-9]', '', at)}-{uuid.uuid4().hex[:8]}"
    temporary, target = day_folder / f".{stem}.writing", day_folder / f"{stem}.jsonl"
    try:
        with temporary.open("w", encoding="ascii", newline="\n") as out:
            for snapshot in snapshots:  # as ASCII: only escapes can represent the lone surrogates of some texts
                out.write(json.dumps(snapshot, separators=(",", ":")) + "\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target
