"""Snapshot files: JSON lines, each file there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def land(folder: Path, name: str, snapshots: Sequence[dict[str, Any]]) -> Path | None:
    """Write snapshots to ``<folder>/<day>/<name>-<time>-<random>.jsonl``; None where there is nothing to write.

    The file is written under a hidden name, which no reader takes, and renamed when all is on the disk. No file is
    written twice: its name ends with what nobody else has.
    """
    if not snapshots:
        return None
    at: str = snapshots[0]["asked_at"]
    place = folder / at[:10]
    place.mkdir(parents=True, exist_ok=True)
    stem = f"{_UNSAFE.sub('_', name)[:80]}-{re.sub('[^0-9]', '', at)}-{uuid.uuid4().hex[:8]}"
    temporary, target = place / f".{stem}.writing", place / f"{stem}.jsonl"
    try:
        with temporary.open("w", encoding="ascii", newline="\n") as out:
            for snapshot in snapshots:  # halves of surrogate pairs come from queue managers too: escaped, they are text
                out.write(json.dumps(snapshot, separators=(",", ":")) + "\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target
