"""Zip the four packages for ``spark-submit --py-files``, with what the wheel puts into them beside their own files.

The same sources give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.shipping import archive

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the archive named on the command line."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive(ROOT))
    print(target)


if __name__ == "__main__":
    main()
