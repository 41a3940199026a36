"""Example rows of docs/reference/tables.md that no other test has; the others: tests/end_to_end/test_run_all.py.

``UPDATE_EXAMPLE_ROWS=1`` regenerates them (tests/support/example_rows.py).
"""

import json

import pytest

import example_rows
from collector.snapshot_files import queue, write
from peer.comqc import CLSID
from pipeline.bronze import ingest_snapshots
from pipeline.bronze.input_files import list_files
from pipeline.lake.lake import Lake
from sample.reading import silver_of
from schemas import catalog
from schemas.bronze import QUARANTINE
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from udfs.comqc.declared_interfaces import Declarations, DeclaredInterface, DeclaredMethod, DeclaredParameter


def test_every_column_of_every_table_has_an_example():
    kept = json.loads(example_rows.FILE.read_text(encoding="utf-8"))
    assert {name: tuple(row) for name, row in kept.items()} == {str(table): table.names for table in catalog.ALL_TABLES}


def test_a_recorded_call():
    set_status = DeclaredMethod("SetStatus", (DeclaredParameter("status"),))
    declarations = Declarations({}, {str(CLSID): DeclaredInterface("Billing.Invoice", {12: set_status})})
    rows = silver_of("11-queued-components.pcap", declarations=declarations)[str(COMQC_CALLS)]
    example_rows.check({COMQC_CALLS: rows})


@pytest.mark.spark
def test_a_snapshot_its_file_and_a_line_that_is_none(spark, tmp_path):
    lake, landed = Lake(spark, str(tmp_path / "lake")), tmp_path / "snapshots"
    write(landed / "srv1.jsonl", queue(name="srv1", which="orders"), "not JSON")
    ingest_snapshots.ingest(lake, list_files([str(landed)]), run_id="run", log=lambda _: None)
    tables = (SNAPSHOTS_RAW, SNAPSHOT_FILES, QUARANTINE)
    example_rows.check({table: lake.select(table, "TRUE") for table in tables}, paths=[(landed, "/data/snapshots")])
