"""Delta's jars: what they must be, byte for byte. Set-up and every local session ask here. No Spark."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_IN_PROJECT: Final = Path(__file__).resolve().parents[2] / "conf" / "jars.sha256"
_IN_WHEEL: Final = Path(__file__).with_name("jars.sha256")  # pyproject.toml and code_archive.py put it there


def pinned_jars() -> dict[str, str]:
    """Return the SHA-256 of each jar by file name."""
    pins = _IN_WHEEL if _IN_WHEEL.exists() else _IN_PROJECT
    lines = pins.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}


def invalid_jars(folder: Path) -> list[str]:
    """Return the names of pinned jars that are missing in a folder or have another digest there."""
    return [name for name, digest in pinned_jars().items() if _digest(folder / name) != digest]


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
