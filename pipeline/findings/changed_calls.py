"""The changes of bronze.rpc_calls since the last update, from its change feed: for the findings on calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE, methods_condition
from pipeline.findings.columns.call_history import OPEN_METHODS, UNREADABLE_OUTCOMES
from pipeline.findings.inputs import STUB_COLUMN_TYPES, stub_column_expressions
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.queries.inputs import POST_IMAGES
from schemas.bronze import RPC_CALLS

MAX_ROWS_IN_MEMORY: Final = 200_000  # of the change feed; of more changed calls, tasks read what the rules look at
_ANSWERED_CALL_COLUMNS: Final = ("interface_name", "opnum", "outcome", "started_us", "ended_us")
"""The columns of an answered call that do not change unless the call is altered."""
_IMAGE_COLUMNS: Final = (
    *_ANSWERED_CALL_COLUMNS, "connection_id", "server_address", "is_current", "is_unanswered", "was_unreadable",
    "is_opening",
)  # fmt: skip
_ARROW_TYPES: Final = {"bigint": pa.int64(), "binary": pa.binary()}
_UNREADABLE: Final = f"outcome IN ({', '.join(map(repr, sorted(UNREADABLE_OUTCOMES)))})"
# ``is_current``: the row after the change. ``was_unreadable``: the call could not be read, or opens something and was
# not answered. ``is_opening``: its method is in ``OPEN_AND_CLOSE_METHODS``.
_IMAGE_EXPRESSIONS: Final = (
    "connection_id", "server_address", "interface_name", "opnum", "outcome", "_commit_version",
    f"_change_type IN ({', '.join(map(repr, POST_IMAGES))}) AS is_current",
    "unix_micros(coalesce(request_at, response_at)) AS started_us",
    "unix_micros(coalesce(response_at, request_at)) AS ended_us",
    "response_at IS NULL AS is_unanswered",
    f"{_UNREADABLE} OR ({methods_condition(OPEN_METHODS)} AND response_at IS NULL) AS was_unreadable",
    f"coalesce({IS_OPEN_OR_CLOSE}, FALSE) AS is_opening",
)  # fmt: skip
_ROWS_SCHEMA: Final = pa.schema(
    {"call_key": pa.string(), **{name: _ARROW_TYPES[kind] for name, kind in STUB_COLUMN_TYPES.items()}}
)


@dataclass(slots=True)
class ChangedCalls:
    """The calls that were added, changed or deleted.

    ``rows``: call_key, the stub columns that rules use (``STUB_COLUMN_TYPES``), and ``is_changed``, always true.
    ``time_spans``: the start of the first and the end of the last changed call, microseconds, by connection.
    ``updated_connections``: connections where calls changed otherwise than by being added or answered.
    ``servers_with_updated_open_calls``: servers where this happened to a call that opens or closes.
    """

    rows: pa.Table
    time_spans: dict[str, tuple[int, int]]
    updated_connections: set[str]
    servers_with_updated_open_calls: set[str]

    @classmethod
    def from_feed(cls, feeds: ChangeFeeds, condition: str, *, stubs_kept: bool) -> ChangedCalls | None:
        """Read the changed calls from the change feed; None where it is not readable, or does not fit in memory.

        ``condition``: which rows of the feed. The feed has the stubs of added calls in its files; to find them in the
        table would mean to scan it.
        """
        columns = ", ".join(("call_key", *stub_column_expressions(stubs_kept=stubs_kept), *_IMAGE_EXPRESSIONS))
        found = feeds.table(RPC_CALLS, f"SELECT {columns} FROM {{feed}} WHERE {condition}", MAX_ROWS_IN_MEMORY)
        if found is None and not feeds.is_unchanged(RPC_CALLS):
            return None
        if found is None or not found.num_rows:
            return cls(_mark_changed(_ROWS_SCHEMA.empty_table()), {}, set(), set())
        return cls.from_images(found)

    @classmethod
    def from_images(cls, images: pa.Table) -> ChangedCalls:
        """Return the changed calls of feed rows, which are images of calls before and after a change."""
        images = images.sort_by([("_commit_version", "ascending"), ("is_current", "ascending")])
        image_rows = images.select(["call_key", *_IMAGE_COLUMNS]).to_pylist()
        first: dict[str, dict[str, Any]] = {}
        last: dict[str, int] = {}
        for position, row in enumerate(image_rows):
            first.setdefault(row["call_key"], row)
            last[row["call_key"]] = position
        connections, servers = set(), set()
        for key, before in first.items():
            after = image_rows[last[key]]
            if not before["is_current"] and _is_altered(before, after):
                connections |= {before["connection_id"], after["connection_id"]}
                servers |= {row["server_address"] for row in (before, after) if row["is_opening"]}
        times = images.group_by("connection_id").aggregate([("started_us", "min"), ("ended_us", "max")]).to_pylist()
        spans = {row["connection_id"]: (row["started_us_min"], row["ended_us_max"]) for row in times}
        rows = images.select(_ROWS_SCHEMA.names).cast(_ROWS_SCHEMA).take(pa.array(list(last.values()), pa.int64()))
        return cls(_mark_changed(rows), spans, connections, servers)

    @property
    def call_keys(self) -> frozenset[str]:
        """The keys of the changed calls."""
        return frozenset(self.rows["call_key"].to_pylist())

    def time_span(self, connections: Iterable[str]) -> tuple[int, int]:
        """Return the start of the first and the end of the last changed call of connections; (0, 0) for none."""
        spans = [self.time_spans[name] for name in connections if name in self.time_spans]
        return min((start for start, _ in spans), default=0), max((end for _, end in spans), default=0)


def _mark_changed(rows: pa.Table) -> pa.Table:
    return rows.append_column("is_changed", pa.array([True] * rows.num_rows, pa.bool_()))


def _is_altered(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tell whether a call changed otherwise than by its response, or by being captured again."""
    same = before["is_unanswered"] or all(before[name] == after[name] for name in _ANSWERED_CALL_COLUMNS)
    moved = before["connection_id"] != after["connection_id"]
    return bool(before["was_unreadable"]) or not after["is_current"] or not same or moved
