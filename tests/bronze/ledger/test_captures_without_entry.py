"""Which captures have rows in bronze but none in the ledger: those of a run that was killed."""

import pyarrow as pa
import pytest

from memory_lake import MemoryLake
from pipeline.bronze.write_tables import captures_without_entry
from schemas.bronze import CAPTURE_FILES, QUARANTINE


@pytest.mark.parametrize("ledger", [[], ["known"]])
def test_lines_of_snapshots_are_of_no_capture(ledger):
    rows = pa.table({"capture_id": pa.array([None, "known", "lost"])})
    lake = MemoryLake({QUARANTINE: rows, CAPTURE_FILES: pa.table({"capture_id": pa.array(ledger, pa.string())})})
    assert captures_without_entry(lake) == {"known", "lost"}.difference(ledger)
