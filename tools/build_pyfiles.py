"""Build the archive for ``spark-submit --py-files``: the four packages with the data files of the wheel.

Equal sources give equal bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.command_line.code_archive import build_code_archive

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the archive to the path given on the command line."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(build_code_archive(ROOT))
    print(target)


if __name__ == "__main__":
    main()
