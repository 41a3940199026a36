"""``PYTHONPATH=.:tests/support python -m pcapgen.record``: store what tshark lists for the sample and built captures.

Run it after the sample traffic was recorded again or a built capture changed. Needs tshark 4.0 or later.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from pcapgen.dissector import record, tshark
from pcapgen.scenarios import agreement_captures

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "data" / "sample"
KEPT = ROOT / "tests" / "capture" / "tshark"
SUFFIXES = (".pcap", ".pcapng", ".gz", ".zst")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sample_captures() -> list[Path]:
    return sorted(path for path in SAMPLE.glob("*") if path.suffix in SUFFIXES)


def main() -> None:
    KEPT.mkdir(exist_ok=True)
    for path in sample_captures():
        record(KEPT / f"{path.name}.json", digest(path.read_bytes()), tshark(path))
    with tempfile.TemporaryDirectory() as folder:
        for name, file in agreement_captures().items():
            path = Path(folder) / name
            path.write_bytes(file.data)
            record(KEPT / f"built-{name}.json", digest(file.data), tshark(path))


if __name__ == "__main__":
    main()
