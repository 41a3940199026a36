"""silver.queue_aliases: which texts name the same queue, each with the first piece of evidence that shows it.

The same two texts are shown again by every opening and every snapshot: of each kind of evidence the first piece is
kept, the smallest in (time, call, snapshot), so that the table grows with the names and not with the traffic. It is
computed as a whole, of what could show something new, and written where it differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.frames import frame
from pipeline.gather import gather
from pipeline.lake import IS, WAS, Lake
from schemas.calls import CLIENT_CALLS, QUEUE_ALIASES
from schemas.properties import QUEUE_SNAPSHOTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID
from udfs.queues import aliases

Groups = Sequence[Sequence[str]]

DECODER_VERSION: Final = "1"
_SCHEMA: Final = to_arrow_schema(QUEUE_ALIASES.struct())
_OPEN: Final = ("queue_format_name", "queue", "server_address")
_OPENED: Final = ("interface_name", "opnum", *_OPEN, "context_handle", "call_key")
_SNAPSHOT: Final = ("queue", "pathname", "formatname")
_ANSWER: Final = (
    "interface_name", "opnum", "queue", "remote_queue_name", "server_address", "queue_descriptor", "context_handle",
    "hresult", "call_key", "requested_at", "responded_at", "queue_format_name",
)  # fmt: skip
_PIECE: Final = ("queue", "other_queue", "named_as", "evidence")


@dataclass(frozen=True, slots=True)
class Known:
    """What the table says: each text's canonical one, when each two texts were first shown, and by which calls."""

    texts: Mapping[str, str]
    shown: Mapping[tuple[str, str, str], int | None]  # by queue, other queue and kind of evidence, microseconds
    calls: Collection[str]

    @staticmethod
    def of(lake: Lake) -> Known:
        """Read it."""
        at = F.unix_micros("observed_at").alias("at")
        names = ("queue", "other_queue", "evidence", "canonical_queue", "call_key")
        rows = lake.read(QUEUE_ALIASES).select(*names, at).collect()
        return Known(
            {row["queue"]: row["canonical_queue"] for row in rows},
            {(row["queue"], row["other_queue"], row["evidence"]): row["at"] for row in rows},
            {row["call_key"] for row in rows},
        )

    def misses(self, opens: Sequence[Row]) -> bool:
        """Tell whether opens of RemoteRead that changed (``touched.reads_changed``) can show anything else."""
        new = [row.asDict() for row in opens if row["_change_type"] in IS]
        if any(row["call_key"] in self.calls for row in opens if row["_change_type"] in WAS):
            return True
        schema = pa.schema([(name, pa.int32() if name == "opnum" else pa.string()) for name in _OPENED])
        calls = pa.Table.from_pylist([row | {"interface_name": row["protocol"]} for row in new], schema)
        for name in ("responded_at", "requested_at"):
            at = pa.array([row["observed"] for row in new], pa.int64()).cast(pa.timestamp("us"))
            calls = calls.append_column(name, at.cast(pa.timestamp("us", tz="UTC")))
        pieces = aliases.aliases_of_opens(calls)
        at = pieces["observed_at"].cast(pa.int64()).to_pylist()
        names = ("queue", "other_queue", "evidence")
        shown = zip(zip(*(pieces[name].to_pylist() for name in names), strict=True), at, strict=True)
        return any(piece not in self.shown or (self.shown[piece] or 0) > time for piece, time in shown)


def refresh(lake: Lake, declared: Groups = ()) -> bool:
    """Bring the table to what captures and configuration show now; tell whether it was written.

    ``declared`` are groups of names that the configuration says are one queue's (the setting queues.aliases).
    """
    made = alias_rows(lake, declared)
    facts = [name for name in _SCHEMA.names if name not in (RUN_ID, INGESTED_AT)]
    there = lake.read(QUEUE_ALIASES).select(*facts).toArrow().to_pylist()
    if sorted(there, key=_order) == sorted(made.select(facts).to_pylist(), key=_order):
        lake.create(QUEUE_ALIASES)
        return False
    lake.replace(QUEUE_ALIASES, frame(lake.spark, made))
    return True


def alias_rows(lake: Lake, declared: Groups = ()) -> pa.Table:
    """Return the rows of the table, of all that captures and configuration show."""
    reads, clients = lake.read(REMOTE_READ_CALLS), lake.read(CLIENT_CALLS)
    asked = gather(
        {
            "reads": partial(_first_opens, reads.withColumn("interface_name", F.col("protocol")), [2, 11]),
            "clients": partial(_naming_calls, clients),
            "snapshots": partial(_first_snapshots, lake.read(QUEUE_SNAPSHOTS)),
        }
    )
    pairs = [pair for group in declared for pair in combinations(group, 2)]
    pieces = pa.concat_tables(
        [
            aliases.aliases_of_opens(asked["reads"]),
            aliases.aliases_of_opens(asked["clients"]),
            aliases.aliases_of_answers(asked["clients"]),
            aliases.aliases_of_snapshots(asked["snapshots"]),
            aliases.aliases_of_configuration(pairs),
        ]
    )
    rows = aliases.queue_aliases(first_pieces(pieces)).to_pylist()
    for row in rows:
        day = row["observed_at"] and row["observed_at"].date()
        row.update({"errors": [], "decoder_version": DECODER_VERSION, EVENT_DATE: day})
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def first_pieces(evidence: pa.Table) -> pa.Table:
    """Return of each kind of evidence (``aliases.EVIDENCE``) for the same two texts the first piece."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(evidence.to_pylist(), key=_order):
        first.setdefault(tuple(row[name] for name in _PIECE), row)
    return pa.Table.from_pylist([first[piece] for piece in sorted(first)], schema=aliases.EVIDENCE)


def renamed(feed: DataFrame) -> set[str]:
    """Return the texts that stood for a queue before changes of the table, and do not any more."""
    rows = feed.select("queue", "canonical_queue", "_change_type", "_commit_version").collect()
    before = _at_the_ends(rows, old=True)
    after = _at_the_ends(rows, old=False)
    both = before.keys() | after.keys()
    return {before.get(text, text) for text in both if before.get(text, text) != after.get(text, text)}


def _at_the_ends(rows: Iterable[Row], *, old: bool) -> dict[str, str]:
    """Return the canonical text of each text in a feed as it was at first, or as it is now."""
    kinds = WAS if old else IS
    found: dict[str, tuple[int, str]] = {}
    for row in rows:
        if row["_change_type"] in kinds:
            version = -row["_commit_version"] if old else row["_commit_version"]
            found[row["queue"]] = max((version, row["canonical_queue"]), found.get(row["queue"], (version, "")))
    return {queue: text for queue, (_, text) in found.items()}


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Order rows by time, call and snapshot; null is last."""
    names = ("observed_at", "call_key", "snapshot_id", *_PIECE)
    return tuple((row[name] is None, "" if row[name] is None else str(row[name])) for name in names)


def _first_opens(calls: DataFrame, opnums: Collection[int]) -> pa.Table:
    """Return the first open of each name at each address that gave a handle; as ``aliases_of_opens`` takes them."""
    at = F.coalesce("responded_at", "requested_at").alias("at")
    opens = calls.where(F.col("interface_name") == "RemoteRead").where(F.col("opnum").isin(*opnums))
    opens = opens.where("context_handle IS NOT NULL AND queue IS NOT NULL")
    direct = opens.where(F.upper("queue_format_name").startswith("DIRECT="))
    first = direct.groupBy(*_OPEN).agg(F.min(F.struct(at, "call_key")).alias("first"))
    return first.select(
        F.lit("RemoteRead").alias("interface_name"),
        F.lit(2).alias("opnum"),
        *_OPEN,
        F.lit("given").alias("context_handle"),
        "first.call_key",
        F.col("first.at").alias("requested_at"),
        F.col("first.at").alias("responded_at"),
    ).toArrow()


def _naming_calls(clients: DataFrame) -> pa.Table:
    """Return the calls of qmcomm and qmcomm2 that open, name, and ask by number."""
    named = (F.col("interface_name") == "qmcomm") & F.col("opnum").isin(1, 2, 19)
    cursors = (F.col("interface_name") == "qmcomm2") & (F.col("opnum") == 3)
    found: pa.Table = clients.where(named | cursors).where("hresult = 0").select(*_ANSWER).toArrow()
    return found


def _first_snapshots(snapshots: DataFrame) -> pa.Table:
    """Return the first snapshot of each path name, format name and object asked."""
    told = snapshots.where("pathname IS NOT NULL OR formatname IS NOT NULL")
    key = F.struct("observed_at", "call_key", "snapshot_id")
    first = told.groupBy(*_SNAPSHOT).agg(F.min(key).alias("first"))
    found: pa.Table = first.select(*_SNAPSHOT, "first.*").toArrow()
    return found
