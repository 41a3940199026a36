"""Joining in the lake: what captures could not finish alone goes in the place of what each made of it.

``udfs.capture.joining`` decides; here its answer is carried out on the Delta tables, for the connections that a run's
captures touch and for nothing else. ``udfs.capture.together`` does the same in memory, and says it in fewer lines.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.lake import Lake, on_dates
from schemas.bronze import PENDING, QUARANTINE, RPC_CALLS
from schemas.table import literal
from udfs.capture.joining import MEANINGS_SCHEMA, Joined, join
from udfs.capture.reader import SCHEMAS
from udfs.capture.remainder import flow
from udfs.capture.sightings import merged, restored

Row = dict[str, Any]
Dates = set[dt.date | None]
_AT_ONCE: Final = 2000  # four-tuples joined together: their remainders are in memory
_MEANING: Final = pa.struct(list(MEANINGS_SCHEMA)[3:])  # behind what names the context


@dataclass(slots=True)
class Changes:
    """What joining changes: rows to write, and what goes.

    ``connections`` of before (``was``), with the rows of ``tables`` in their place; ``call_keys`` and
    ``quarantine_keys`` that were made from remainders; the new state of the remainders (``pending``); by capture, what
    is to be added to its counts of packets. ``together`` are connections that captures saw at the same time: their
    calls are merged as a whole, without those that were made from remainders (``remade``: capture and key), since two
    captures may have given a call the same key.
    """

    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    labels: list[pa.RecordBatch] = field(default_factory=list)
    meanings: list[pa.RecordBatch] = field(default_factory=list)
    was: set[str] = field(default_factory=set)
    call_keys: set[str] = field(default_factory=set)
    quarantine_keys: set[str] = field(default_factory=set)
    together: set[str] = field(default_factory=set)
    remade: set[tuple[str, str]] = field(default_factory=set)
    packets: dict[str, Row] = field(default_factory=dict)
    pending: list[Row] = field(default_factory=list)
    dates: Dates = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether anything was joined."""
        return bool(self.was)

    def rows(self, name: str) -> pa.Table:
        """Return the new rows of a table."""
        return pa.Table.from_batches(self.tables.get(name, []), SCHEMAS[name])


def joined(fresh: pa.Table, earlier: pa.Table, *, left: set[str], window_s: float) -> Changes:
    """Join the remainders of four-tuples that more than one capture saw.

    ``fresh`` and ``earlier`` are rows of ``bronze.pending``, of this run and of those before, of the same four-tuples;
    ``left`` are four-tuples (``flow``) of which something was taken out: they are joined even if one remainder is left.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for table in (earlier, fresh):
        for row in table.to_pylist():
            groups[flow(row)].append(row)
    changes = Changes()
    several = [rows for name, rows in sorted(groups.items()) if len(rows) > 1 or name in left]
    for begin in range(0, len(several), _AT_ONCE):
        rows = [row for group in several[begin : begin + _AT_ONCE] for row in group]
        _add(changes, rows, join(rows, window_s=window_s))
    return changes


def _add(changes: Changes, rows: list[Row], found: Joined) -> None:
    changes.was |= {row["connection_id"] for row in rows}
    labels = {(label["capture_id"], label["was_connection_id"]): label for label in found.labels.to_pylist()}
    changes.together |= {label["connection_id"] for label in labels.values() if label["together"]}
    for row in rows:
        label = labels.get((row["capture_id"], row["connection_id"]))
        if label is not None and label["connection_id"] in changes.together:
            changes.remade |= {(row["capture_id"], key) for key in row["call_keys"]}
        else:
            changes.call_keys.update(row["call_keys"])
    for packets in found.packets.to_pylist():
        changes.packets[packets.pop("capture_id")] = packets
    changes.quarantine_keys |= {key for row in rows for key in row["quarantine_keys"]}
    for name, batch in found.tables.items():
        changes.tables[name].append(batch)
    changes.labels.append(found.labels)
    changes.meanings.append(found.meanings)
    after = {row["pending_key"]: row for row in found.pending.to_pylist()}
    changes.pending += [{**row, **after[row["pending_key"]]} for row in rows if row["pending_key"] in after]
    for row in rows:
        changes.dates |= set(days(row))


def days(row: Row) -> Iterator[dt.date | None]:
    """Yield the dates of a remainder's packets, the first to the last; None, for rows without, where none is known."""
    first, last = row["first_packet_at"], row["since"]
    if first is None or last is None:
        yield None
        return
    for number in range((last.date() - first.date()).days + 1):
        yield first.date() + dt.timedelta(days=number)


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return Arrow rows as a frame."""
    return spark.createDataFrame(rows)  # type: ignore[arg-type, unused-ignore]  # Arrow since Spark 4


def relabel(lake: Lake, changes: Changes) -> None:
    """Give finished calls and stray bytes the connection that they are now part of, and calls what their context means.

    Names that stay are not touched: most files of a day are then not rewritten.
    """
    labels = pa.Table.from_batches(changes.labels).to_pylist()
    meanings: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in pa.Table.from_batches(changes.meanings).to_pylist():
        meanings[row["capture_id"], row["was_connection_id"]].append(row)
    rows = []
    for label in labels:
        contexts = meanings.get((label["capture_id"], label["was_connection_id"]), [])
        moved = label["was_connection_id"] != label["connection_id"]
        if moved or contexts or label["handshake"]:
            rows.append(
                {
                    "_capture": label["capture_id"],
                    "_was": label["was_connection_id"],
                    "_id": label["connection_id"],
                    "_ours": label["ours"],
                    "_handshake": label["handshake"],
                    "_contexts": [
                        (c["context_id"], {meant.name: c[meant.name] for meant in _MEANING}) for c in contexts
                    ],
                }
            )
    if not rows:
        return
    source = frame(lake.spark, pa.Table.from_pylist(rows, _RELABEL_SCHEMA))
    meaning = "_contexts[context_id]"
    changed = f"(connection_id <> _id OR {meaning} IS NOT NULL OR (_handshake AND closed_reason = 'no_handshake'))"
    gone = f"(({meaning} IS NOT NULL AND NOT {meaning}.known) OR (NOT _ours AND {meaning}.interface_uuid IS NULL))"

    def meant(column: str) -> str:
        return f"CASE WHEN {meaning} IS NULL THEN {column} ELSE {meaning}.{column} END"

    level = f"auth_level IS NULL AND {meaning} IS NOT NULL"
    lake.merge_into(
        RPC_CALLS,
        source,
        f"capture_id = _capture AND connection_id = _was AND {on_dates(changes.dates)}",
        delete=gone,
        update_when=changed,
        update={
            "connection_id": "_id",
            **{name: meant(name) for name in ("bind_seen", "interface_uuid", "interface_name", "transfer_syntax")},
            "auth_type": f"CASE WHEN {level} THEN {meaning}.auth_type ELSE auth_type END",
            "auth_level": f"CASE WHEN {level} THEN {meaning}.auth_level ELSE auth_level END",
            "outcome": f"CASE WHEN {meaning} IS NOT NULL AND outcome IN ('unbound', 'ok') "
            f"THEN if({meaning}.bind_seen, 'ok', 'unbound') ELSE outcome END",
            "closed_reason": "CASE WHEN outcome = 'encrypted' AND _handshake THEN 'no_key' ELSE closed_reason END",
        },
    )
    lake.merge_into(
        QUARANTINE,
        source.where("_was <> _id"),
        f"capture_id = _capture AND connection_id = _was AND {on_dates(changes.dates)}",
        update={"connection_id": "_id"},
    )


_RELABEL_SCHEMA: Final = pa.schema(
    [
        ("_capture", pa.string()),
        ("_was", pa.string()),
        ("_id", pa.string()),
        ("_ours", pa.bool_()),
        ("_handshake", pa.bool_()),
        ("_contexts", pa.map_(pa.int32(), _MEANING)),
    ]
)


def merge_together(lake: Lake, changes: Changes, rows: pa.Table) -> pa.Table:
    """Return the calls of connections that captures saw at the same time, one row each; take out those there were.

    ``rows`` are their calls as joining gave them.
    """
    named = ", ".join(literal(name) for name in sorted(changes.together))
    where = f"connection_id IN ({named}) AND {on_dates(changes.dates)}"
    there = lake.read(RPC_CALLS).where(where).select(*rows.schema.names).toArrow().cast(rows.schema).to_pylist()
    fresh = rows.to_pylist()
    remade = changes.remade | {(row["capture_id"], row["call_key"]) for row in fresh}
    kept = []
    for each in there:
        row = restored(each)
        if row is not None and (each["sightings"] or (row["capture_id"], row["call_key"]) not in remade):
            kept.append(row)
    lake.delete(RPC_CALLS, where)
    return pa.Table.from_pylist(merged(kept, fresh), rows.schema)


def gone(spark: SparkSession, keys: Iterable[str], column: str) -> DataFrame:
    """Return keys as a frame of one column."""
    return frame(spark, pa.table({column: pa.array(sorted(keys), pa.string())}))


def pending_table(rows: Sequence[Row]) -> pa.Table:
    """Return rows of ``bronze.pending`` as Arrow."""
    return pa.Table.from_pylist(list(rows), SCHEMAS["pending"])


def earlier(lake: Lake, fresh: pa.Table) -> pa.Table:
    """Return the remainders of earlier runs of the four-tuples in ``fresh``."""
    if not lake.exists(PENDING) or not fresh.num_rows:
        return pending_table([])
    names = frame(lake.spark, pa.table({"_flow": pa.array(sorted({flow(row) for row in _tuples(fresh)}), pa.string())}))
    one = F.concat_ws("|", "client_address", "client_port")
    two = F.concat_ws("|", "server_address", "server_port")
    rows = lake.read(PENDING).withColumn("_flow", F.concat_ws(" ", F.least(one, two), F.greatest(one, two)))
    found = rows.join(F.broadcast(names), "_flow", "left_semi").select(*SCHEMAS["pending"].names)
    return found.toArrow().cast(SCHEMAS["pending"])


def _tuples(rows: pa.Table) -> list[Row]:
    found: list[Row] = rows.select(["client_address", "client_port", "server_address", "server_port"]).to_pylist()
    return found
