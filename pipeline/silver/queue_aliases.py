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
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.queries import IS, WAS
from schemas.calls import CLIENT_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
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
# The first open of each name at each address that gave a handle; as ``aliases_of_opens`` takes them.
_FIRST_OPENS: Final = f"""
SELECT 'RemoteRead' AS interface_name, 2 AS opnum, {", ".join(_OPEN)}, 'given' AS context_handle, call_key,
  moment AS requested_at, moment AS responded_at
FROM (
  SELECT {", ".join(_OPEN)}, call_key, coalesce(responded_at, requested_at) AS moment,
    row_number() OVER (
      PARTITION BY {", ".join(_OPEN)} ORDER BY coalesce(responded_at, requested_at) NULLS FIRST, call_key NULLS FIRST
    ) AS place
  FROM {{reads}}
  WHERE protocol = 'RemoteRead' AND opnum IN (2, 11) AND context_handle IS NOT NULL AND queue IS NOT NULL
    AND upper(queue_format_name) LIKE 'DIRECT=%'
)
WHERE place = 1"""
# The calls of qmcomm and qmcomm2 that open, name, and ask by number.
_NAMING_CALLS: Final = f"""
SELECT {", ".join(_ANSWER)} FROM {{clients}}
WHERE hresult = 0 AND (
  (interface_name = 'qmcomm' AND opnum IN (1, 2, 19)) OR (interface_name = 'qmcomm2' AND opnum = 3)
)"""
# The first snapshot of each path name, format name and object asked.
_FIRST_SNAPSHOTS: Final = f"""
SELECT {", ".join(_SNAPSHOT)}, observed_at, call_key, snapshot_id
FROM (
  SELECT {", ".join(_SNAPSHOT)}, observed_at, call_key, snapshot_id,
    row_number() OVER (
      PARTITION BY {", ".join(_SNAPSHOT)}
      ORDER BY observed_at NULLS FIRST, call_key NULLS FIRST, snapshot_id NULLS FIRST
    ) AS place
  FROM {{snapshots}} WHERE pathname IS NOT NULL OR formatname IS NOT NULL
)
WHERE place = 1"""
_MOST: Final = 1_000_000  # changes of the table that are looked at
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
        names = "queue, other_queue, evidence, canonical_queue, call_key, unix_micros(observed_at) AS `at`"
        rows = lake.query(f"SELECT {names} FROM {{aliases}}", aliases=QUEUE_ALIASES).to_pylist()
        return Known(
            {row["queue"]: row["canonical_queue"] for row in rows},
            {(row["queue"], row["other_queue"], row["evidence"]): row["at"] for row in rows},
            {row["call_key"] for row in rows},
        )

    def misses(self, opens: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether opens of RemoteRead that changed (``touched.READS_CHANGED``) can show anything else."""
        new = [{**row} for row in opens if row["_change_type"] in IS]
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
    there = lake.select(QUEUE_ALIASES, "TRUE", facts).to_pylist()
    if sorted(there, key=_order) == sorted(made.select(facts).to_pylist(), key=_order):
        lake.create(QUEUE_ALIASES)
        return False
    lake.replace(QUEUE_ALIASES, made)
    return True


def alias_rows(lake: Lake, declared: Groups = ()) -> pa.Table:
    """Return the rows of the table, of all that captures and configuration show."""
    asked = gather(
        {
            "reads": partial(lake.query, _FIRST_OPENS, reads=REMOTE_READ_CALLS),
            "clients": partial(lake.query, _NAMING_CALLS, clients=CLIENT_CALLS),
            "snapshots": partial(lake.query, _FIRST_SNAPSHOTS, snapshots=QUEUE_SNAPSHOTS),
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


def renamed(feeds: Feeds) -> set[str] | None:
    """Return the texts that stood for a queue before changes of the table, and do not any more; None: not told."""
    rows = feeds.rows(QUEUE_ALIASES, "SELECT queue, canonical_queue, _change_type, _commit_version FROM {feed}", _MOST)
    if rows is None:
        return None
    before = _at_the_ends(rows, old=True)
    after = _at_the_ends(rows, old=False)
    both = before.keys() | after.keys()
    return {before.get(text, text) for text in both if before.get(text, text) != after.get(text, text)}


def _at_the_ends(rows: Iterable[Mapping[str, Any]], *, old: bool) -> dict[str, str]:
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
