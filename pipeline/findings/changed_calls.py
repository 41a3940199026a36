"""The changes of bronze.rpc_calls since the last update, from its change feed: for the findings on calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE, methods_condition
from pipeline.findings.columns.call_history import OPEN_METHODS, UNREADABLE_OUTCOMES
from pipeline.findings.inputs import STUB_COLUMN_TYPES, stub_column_expressions
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.queries.inputs import POST_IMAGES
from pipeline.lake.schema_enforcement import alike
from schemas.bronze import RPC_CALLS

MAX_ROWS_IN_MEMORY: Final = 200_000  # of the change feed; of more changed calls, tasks read what the rules look at
_ANSWERED_CALL_COLUMNS: Final = ("interface_name", "opnum", "outcome", "started_us", "ended_us")
"""The columns of an answered call that do not change unless the call is altered."""
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
_SPANS_SCHEMA: Final = pa.schema({"connection_id": pa.string(), "since": pa.int64(), "until": pa.int64()})


@dataclass(slots=True)
class ChangedCalls:
    """The calls that were added, changed or deleted.

    ``rows``: call_key, the stub columns that rules use (``STUB_COLUMN_TYPES``), and ``is_changed``, always true.
    ``time_spans``: connection_id, ``since``, the start of the first changed call of the connection, and ``until``, the
    end of the last one, microseconds.
    ``updated_connections``: connections where calls changed otherwise than by being added or answered.
    ``servers_with_updated_open_calls``: servers where this happened to a call that opens or closes.
    """

    rows: pa.Table
    time_spans: pa.Table
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
            return cls(_mark_changed(_ROWS_SCHEMA.empty_table()), _SPANS_SCHEMA.empty_table(), set(), set())
        return cls.from_images(found)

    @classmethod
    def from_images(cls, images: pa.Table) -> ChangedCalls:
        """Return the changed calls of feed rows, which are images of calls before and after a change."""
        images = images.sort_by([("_commit_version", "ascending"), ("is_current", "ascending")])
        places = images.select(["call_key"]).append_column("place", pa.array(np.arange(len(images))))
        ends = places.group_by("call_key", use_threads=False).aggregate([("place", "min"), ("place", "max")])
        first, last = (images.take(ends[name]) for name in ("place_min", "place_max"))
        is_altered = _is_altered(first, last)
        altered = pa.concat_tables([first.filter(is_altered), last.filter(is_altered)])
        times = images.group_by("connection_id").aggregate([("started_us", "min"), ("ended_us", "max")])
        return cls(
            _mark_changed(last.select(_ROWS_SCHEMA.names).cast(_ROWS_SCHEMA)),
            times.select(["connection_id", "started_us_min", "ended_us_max"]).rename_columns(_SPANS_SCHEMA.names),
            {*altered["connection_id"].unique().to_pylist()},
            {*altered.filter(altered["is_opening"])["server_address"].unique().to_pylist()},
        )

    @property
    def call_keys(self) -> pa.Array:
        """The keys of the changed calls."""
        return self.rows["call_key"].combine_chunks()

    def time_span(self, connections: Collection[str]) -> tuple[int, int]:
        """Return the start of the first and the end of the last changed call of connections; (0, 0) for none."""
        spans = self.time_spans.filter(is_in(self.time_spans, "connection_id", connections))
        return pc.min(spans["since"]).as_py() or 0, pc.max(spans["until"]).as_py() or 0


def _mark_changed(rows: pa.Table) -> pa.Table:
    return rows.append_column("is_changed", pa.array([True] * rows.num_rows, pa.bool_()))


def _is_altered(before: pa.Table, after: pa.Table) -> pa.ChunkedArray:
    """Return which calls changed otherwise than by being added, by their response, or by being captured again."""
    same = reduce(pc.and_, (alike(before[name], after[name]) for name in _ANSWERED_CALL_COLUMNS))
    stays = (
        pc.or_(before["is_unanswered"], same),
        pc.invert(pc.fill_null(before["was_unreadable"], False)),  # noqa: FBT003 - Arrow's
        after["is_current"],
        alike(before["connection_id"], after["connection_id"]),
    )
    return pc.invert(pc.or_(before["is_current"], reduce(pc.and_, stays)))
