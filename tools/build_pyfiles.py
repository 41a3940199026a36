"""Zip the four packages for ``spark-submit --py-files``; the same sources give the same bytes."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("jobs", "pipeline", "schemas", "udfs")
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    """Every file of the packages but caches, in order."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def main() -> None:
    """Write the archive named on the command line."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources():
            member = zipfile.ZipInfo(path.relative_to(ROOT).as_posix(), EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(target)


if __name__ == "__main__":
    main()
