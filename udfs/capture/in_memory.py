"""Several captures read into one set of tables, without Spark: what a lake holds after runs over them.

``pipeline.bronze`` does the same to Delta tables. Here the tables are rows in memory, so that any order of files and
runs can be tried in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from udfs.capture.duplicate_calls import merged, restored
from udfs.capture.merge import Joined, join, recount
from udfs.capture.open_connections import flow
from udfs.capture.reader import SCHEMAS, read_capture
from udfs.capture.relabel import labelled

Row = dict[str, Any]
TABLES: Final = ("capture_files", "connections", "rpc_binds", "rpc_calls", "quarantine", "pending")


def read_together(runs: Iterable[Sequence[bytes]], *, reorder_window_s: float = 2.0) -> dict[str, pa.Table]:
    """Return the bronze tables after runs, each over some captures (their bytes), in the order given.

    A capture whose first packet is known already is passed over (``pipeline.bronze.ingest_plan`` looks more closely).
    """
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    known: set[str] = set()
    for captures in runs:
        fresh: list[Row] = []
        for capture in captures:
            found = read_capture(capture, reorder_window_s=reorder_window_s)
            if found["capture_files"]["capture_id"][0].as_py() in known:
                continue
            known.add(found["capture_files"]["capture_id"][0].as_py())
            for name in TABLES:
                tables[name] += found[name].to_pylist()
            fresh += found["pending"].to_pylist()
        touched = {flow(row) for row in fresh}
        waiting = [row for row in tables["pending"] if flow(row) in touched]
        apply(tables, waiting, join(waiting, window_s=reorder_window_s))
    return {name: pa.Table.from_pylist(rows, SCHEMAS[name]) for name, rows in tables.items()}


def apply(tables: dict[str, list[Row]], waiting: Sequence[Row], joined: Joined) -> None:
    """Put what joining found in the place of what it was made from."""
    labels = {(row["capture_id"], row["was_connection_id"]): row for row in joined.labels.to_pylist()}
    was = {row["connection_id"] for row in waiting}
    fresh = {name: batch.to_pylist() for name, batch in joined.tables.items()}
    touched = [row for row in tables["rpc_calls"] if row["connection_id"] in was]
    calls = [row for row in tables["rpc_calls"] if row["connection_id"] not in was]
    fresh["rpc_calls"] = rejoined(touched, waiting, joined)
    for name in ("connections", "rpc_binds"):
        tables[name] = [row for row in tables[name] if row["connection_id"] not in was]
    counts = Counter(row["connection_id"] for row in fresh["rpc_calls"])
    for row in fresh["connections"]:
        row["calls"] = counts[row["connection_id"]]
    remade = {(row["capture_id"], key) for row in waiting for key in row["quarantine_keys"]}
    kept = []
    for row in tables["quarantine"]:
        if (row["capture_id"], row["quarantine_key"]) in remade:
            continue
        if row["connection_id"] in was:
            row["connection_id"] = labels[row["capture_id"], row["connection_id"]]["connection_id"]
        kept.append(row)
    tables["rpc_calls"], tables["quarantine"] = calls, kept
    for name, rows in fresh.items():
        tables[name] += rows
    packets = {row["capture_id"]: row for row in joined.packets.to_pylist()}
    for row in tables["capture_files"]:
        if row["capture_id"] in packets:
            recount(row, packets[row["capture_id"]])
    changes = {row["pending_key"]: row for row in joined.pending.to_pylist()}
    for row in waiting:
        row.update(changes[row["pending_key"]])


def rejoined(calls: Iterable[Row], waiting: Sequence[Row], joined: Joined) -> list[Row]:
    """Return all rows of ``rpc_calls`` of joined connections: those of joining, and ``calls`` as they are now.

    ``calls`` are the rows of the connections that ``waiting``, the joined remainders, named before. What joining
    replaces is told by its key and its capture: captures with one clock give one key.
    """
    fresh = joined.tables["rpc_calls"].to_pylist()
    remade = {(row["capture_id"], key) for row in waiting for key in row["call_keys"]}
    remade |= {(row["capture_id"], row["call_key"]) for row in fresh}
    settled = [
        row
        for each in calls
        if (row := restored(each)) is not None
        and (each["sightings"] or (row["capture_id"], row["call_key"]) not in remade)
    ]
    finished = pa.RecordBatch.from_pylist(settled, SCHEMAS["rpc_calls"])
    kept = labelled(finished, joined.labels, joined.meanings).to_pylist()
    together = {row["connection_id"] for row in joined.labels.to_pylist() if row["together"]}
    one_each = merged(*([row for row in rows if row["connection_id"] in together] for rows in (kept, fresh)))
    return [row for row in (*kept, *fresh) if row["connection_id"] not in together] + one_each
