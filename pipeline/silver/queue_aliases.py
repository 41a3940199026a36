"""``silver.queue_aliases``: which names mean the same queue, each with the earliest evidence for it.

Every open and every snapshot shows the same two names again. Of each kind of evidence only the first piece is kept, the
smallest by (time, call, snapshot), so that the table grows with the names and not with the traffic. The table is always
computed as a whole, from the first opens and snapshots of each name, and written if it differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

import pyarrow as pa

from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import POST_IMAGES, PRE_IMAGES
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID
from udfs.call_results import succeeded_sql
from udfs.queues import alias_groups

AliasGroups = Sequence[Sequence[str]]

DECODER_VERSION: Final = "1"
_ALIAS_SCHEMA: Final = QUEUE_ALIASES.schema()
_OPEN_COLUMNS: Final = ("queue_format_name", "queue", "server_address")
_OPEN_CALL_COLUMNS: Final = ("interface_name", "opnum", *_OPEN_COLUMNS, "context_handle", "call_key")
_SNAPSHOT_COLUMNS: Final = ("queue", "pathname", "formatname")
_CLIENT_CALL_COLUMNS: Final = (
    "interface_name", "opnum", "queue", "remote_queue_name", "server_address", "queue_descriptor", "context_handle",
    "hresult", "call_key", "requested_at", "responded_at", "queue_format_name",
)  # fmt: skip
# The first open of each name at each address that returned a handle, for ``evidence_from_opens``.
_FIRST_OPENS: Final = f"""
SELECT 'RemoteRead' AS interface_name, 2 AS opnum, {", ".join(_OPEN_COLUMNS)}, 'given' AS context_handle, call_key,
  moment AS requested_at, moment AS responded_at
FROM (
  SELECT {", ".join(_OPEN_COLUMNS)}, call_key, coalesce(responded_at, requested_at) AS moment,
    row_number() OVER (
      PARTITION BY {", ".join(_OPEN_COLUMNS)}
      ORDER BY coalesce(responded_at, requested_at) NULLS FIRST, call_key NULLS FIRST
    ) AS place
  FROM {{reads}}
  WHERE protocol = 'RemoteRead' AND opnum IN (2, 11) AND context_handle IS NOT NULL AND queue IS NOT NULL
    AND upper(queue_format_name) LIKE 'DIRECT=%'
)
WHERE place = 1"""
# Calls of qmcomm and qmcomm2 that open a queue, name it, or refer to it by number.
_NAMING_CALLS: Final = f"""
SELECT {", ".join(_CLIENT_CALL_COLUMNS)} FROM {{clients}}
WHERE {succeeded_sql("interface_name")} AND (
  (interface_name = 'qmcomm' AND opnum IN (1, 2, 19)) OR (interface_name = 'qmcomm2' AND opnum = 3)
)"""
# The first snapshot of each path name, format name and queried object.
_FIRST_SNAPSHOTS: Final = f"""
SELECT {", ".join(_SNAPSHOT_COLUMNS)}, observed_at, call_key, snapshot_id
FROM (
  SELECT {", ".join(_SNAPSHOT_COLUMNS)}, observed_at, call_key, snapshot_id,
    row_number() OVER (
      PARTITION BY {", ".join(_SNAPSHOT_COLUMNS)}
      ORDER BY observed_at NULLS FIRST, call_key NULLS FIRST, snapshot_id NULLS FIRST
    ) AS place
  FROM {{snapshots}} WHERE pathname IS NOT NULL OR formatname IS NOT NULL
)
WHERE place = 1"""
_EVIDENCE_KEY: Final = ("queue", "other_queue", "named_as", "evidence")


@dataclass(frozen=True, slots=True)
class AliasIndex:
    """The stored aliases, to find out whether new opens change them."""

    canonical_names: Mapping[str, str]  # by name
    first_observed_us: Mapping[tuple[str, str, str], int | None]  # by name, other name and kind of evidence
    call_keys: Collection[str]  # of the calls that are evidence

    @staticmethod
    def load(lake: Lake) -> AliasIndex:
        """Read the table."""
        names = "queue, other_queue, evidence, canonical_queue, call_key, unix_micros(observed_at) AS `at`"
        rows = lake.query_shared(f"SELECT {names} FROM {{aliases}}", aliases=QUEUE_ALIASES).to_pylist()
        return AliasIndex(
            {row["queue"]: row["canonical_queue"] for row in rows},
            {(row["queue"], row["other_queue"], row["evidence"]): row["at"] for row in rows},
            {row["call_key"] for row in rows},
        )

    def is_outdated_by(self, opens: Sequence[Mapping[str, Any]]) -> bool:
        """Whether changed opens of RemoteRead, as rows of a change feed, can change the aliases."""
        new = [{**row} for row in opens if row["_change_type"] in POST_IMAGES]
        if any(row["call_key"] in self.call_keys for row in opens if row["_change_type"] in PRE_IMAGES):
            return True
        schema = pa.schema([(name, pa.int32() if name == "opnum" else pa.string()) for name in _OPEN_CALL_COLUMNS])
        calls = pa.Table.from_pylist([row | {"interface_name": row["protocol"]} for row in new], schema)
        for name in ("responded_at", "requested_at"):
            at = pa.array([row["observed"] for row in new], pa.int64()).cast(pa.timestamp("us"))
            calls = calls.append_column(name, at.cast(pa.timestamp("us", tz="UTC")))
        evidence = alias_groups.alias_evidence_from_opens(calls)
        times = evidence["observed_at"].cast(pa.int64()).to_pylist()
        keys = zip(*(evidence[name].to_pylist() for name in ("queue", "other_queue", "evidence")), strict=True)
        first = self.first_observed_us
        return any(key not in first or (first[key] or 0) > time for key, time in zip(keys, times, strict=True))


NO_ALIASES: Final = AliasIndex({}, {}, ())
"""The aliases of an empty table."""


def update_queue_aliases(lake: Lake, declared: AliasGroups = ()) -> bool:
    """Compute the table again and write it if it differs; return whether it was written.

    ``declared`` are groups of names that are one queue by configuration (setting queues.aliases).
    """
    rows = compute_alias_rows(lake, declared)
    columns = [name for name in _ALIAS_SCHEMA.names if name not in (RUN_ID, INGESTED_AT)]
    stored = lake.select(QUEUE_ALIASES, "TRUE", columns).to_pylist()
    if sorted(stored, key=_evidence_order) == sorted(rows.select(columns).to_pylist(), key=_evidence_order):
        lake.create(QUEUE_ALIASES)
        return False
    lake.replace(QUEUE_ALIASES, rows)
    return True


def compute_alias_rows(lake: Lake, declared: AliasGroups = ()) -> pa.Table:
    """Compute the rows of the table from silver and from configuration."""
    found = run_concurrently(
        {
            "reads": partial(lake.query, _FIRST_OPENS, reads=REMOTE_READ_CALLS),
            "clients": partial(lake.query, _NAMING_CALLS, clients=CLIENT_CALLS),
            "snapshots": partial(lake.query, _FIRST_SNAPSHOTS, snapshots=QUEUE_SNAPSHOTS),
        }
    )
    pairs = [pair for group in declared for pair in combinations(group, 2)]
    evidence = pa.concat_tables(
        [
            alias_groups.alias_evidence_from_opens(found["reads"]),
            alias_groups.alias_evidence_from_opens(found["clients"]),
            alias_groups.alias_evidence_from_responses(found["clients"]),
            alias_groups.alias_evidence_from_snapshots(found["snapshots"]),
            alias_groups.alias_evidence_from_configuration(pairs),
        ]
    )
    rows = alias_groups.queue_alias_rows(earliest_evidence(evidence)).to_pylist()
    for row in rows:
        day = row["observed_at"] and row["observed_at"].date()
        row.update({"errors": [], "decoder_version": DECODER_VERSION, EVENT_DATE: day})
    return pa.Table.from_pylist(rows, schema=_ALIAS_SCHEMA)


def earliest_evidence(evidence: pa.Table) -> pa.Table:
    """Return the first piece of evidence of each kind for each two names (``ALIAS_EVIDENCE_SCHEMA``)."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(evidence.to_pylist(), key=_evidence_order):
        first.setdefault(tuple(row[name] for name in _EVIDENCE_KEY), row)
    return pa.Table.from_pylist([first[piece] for piece in sorted(first)], schema=alias_groups.ALIAS_EVIDENCE_SCHEMA)


def replaced_canonical_names(feeds: ChangeFeeds) -> set[str] | None:
    """Return canonical names that changes of the table replaced by others; None if the change feed cannot show it."""
    rows = feeds.rows(QUEUE_ALIASES, "SELECT queue, canonical_queue, _change_type, _commit_version FROM {feed}")
    if rows is None:
        return None
    before = _canonical_names_at(rows, old=True)
    after = _canonical_names_at(rows, old=False)
    both = before.keys() | after.keys()
    return {before.get(name, name) for name in both if before.get(name, name) != after.get(name, name)}


def _canonical_names_at(rows: Iterable[Mapping[str, Any]], *, old: bool) -> dict[str, str]:
    """Return the canonical name of each name in a change feed: before its first change (``old``), or now."""
    kinds = PRE_IMAGES if old else POST_IMAGES
    found: dict[str, tuple[int, str]] = {}
    for row in rows:
        if row["_change_type"] in kinds:
            version = -row["_commit_version"] if old else row["_commit_version"]
            found[row["queue"]] = max((version, row["canonical_queue"]), found.get(row["queue"], (version, "")))
    return {queue: canonical for queue, (_, canonical) in found.items()}


def _evidence_order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: time, call, snapshot; null is last."""
    names = ("observed_at", "call_key", "snapshot_id", *_EVIDENCE_KEY)
    return tuple((row[name] is None, "" if row[name] is None else str(row[name])) for name in names)
