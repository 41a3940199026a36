"""What the data source says of one file, against the tables of a lake that has this file alone; row by row."""

from __future__ import annotations

from collections import Counter

import pytest

from example_counts import one_in
from jobs import ingest_captures, run_all
from pipeline.data_source.options import SILVER_TABLES
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.transfers.update import update
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, PINGS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.table import INGESTED_AT, RUN_ID
from transfers_peer.reading import CAPTURES
from user_code.reading import rows_of

OF_SESSIONS = (SESSION_PACKETS, PINGS, SESSIONS, SENDINGS, ORDER_ACKS, MESSAGES, COMQC_CALLS)
RUN_COLUMNS = {RUN_ID, INGESTED_AT}  # a run writes them
OF_SEVERAL_CALLS = {"queue"}  # of messages that were read: an earlier call opened it
SAMPLE = "11-queued-components.pcap"


def lake_of(root):
    return Lake(LazySession(lambda: pytest.fail("Spark is not needed")), str(root))


def facts(rows, without):
    kept = rows.drop_columns([name for name in without if name in rows.column_names])
    return Counter(map(repr, kept.to_pylist()))


def compare(lake, capture, table, without, **options):
    """Compare the rows of a table but for some columns, and return how many there are."""
    ours = rows_of(capture, rows=table.name, **options)
    there = lake.select(table, "TRUE").select(ours.column_names) if lake.exists(table) else ours.slice(0, 0)
    assert facts(ours, without) == facts(there, without), table
    return ours.num_rows


@pytest.mark.parametrize("capture", one_in(4, CAPTURES), ids=lambda path: path.name)
def test_sessions_of_one_capture(tmp_path, capture):
    assert ingest_captures.main(["--lake", str(tmp_path / "lake"), "--captures", str(capture)]) == 0
    lake = lake_of(tmp_path / "lake")
    update(lake, "run")
    counts = {table.name: compare(lake, capture, table, RUN_COLUMNS) for table in OF_SESSIONS}
    assert counts["session_packets"] >= counts["messages"] == counts["sendings"] > 0 < counts["sessions"]
    # Packets that come in many small batches have the same numbers.
    compare(lake, capture, MESSAGES, RUN_COLUMNS, block_bytes="5000")
    compare(lake, capture, SENDINGS, RUN_COLUMNS, block_bytes="5000")


def test_all_tables_of_a_capture_of_calls(tmp_path, project):
    capture = project / "data" / "sample" / SAMPLE
    assert run_all.main(["--lake", str(tmp_path / "lake"), "--captures", str(capture)]) == 0
    lake = lake_of(tmp_path / "lake")
    every = (SESSION_PACKETS, PINGS, *SILVER_TABLES.values())
    counts = {table.name: compare(lake, capture, table, RUN_COLUMNS | OF_SEVERAL_CALLS) for table in every}
    assert counts["messages"] > 20
    assert counts["comqc_calls"] > 20
    queues = lake.select(MESSAGES, "TRUE")["queue"]
    assert queues.null_count < len(queues)  # a lake knows it
    assert rows_of(capture, rows="messages")["queue"].null_count == counts["messages"]
