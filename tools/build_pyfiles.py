"""Zip the four packages for ``spark-submit --py-files``, with what the wheel puts into them beside their own files.

The same sources give the same bytes.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> dict[str, Path]:
    """Every file of the wheel but caches, by its place in it, in order."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {name: name for name in wheel["packages"]} | wheel["force-include"]
    found = {
        (PurePosixPath(place) / path.relative_to(ROOT / folder)).as_posix(): path
        for folder, place in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return dict(sorted(found.items()))


def main() -> None:
    """Write the archive named on the command line."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, path in sources().items():
            member = zipfile.ZipInfo(place, EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(target)


if __name__ == "__main__":
    main()
