"""What became of calls of bronze.rpc_calls, by its feed: what findings on one call, and on several, go by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipeline.attempts.server_openings import IS_LEDGER, among
from pipeline.findings.inputs import HEADS, heads
from pipeline.findings.rules.conversations import OPENS, UNREAD
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.queries import IS
from schemas.bronze import RPC_CALLS

MOST: Final = 200_000  # images of calls; of more nobody tells which changed
_SAME: Final = ("interface_name", "opnum", "outcome", "at", "done")  # of a call that was answered and stays what it was
_TOLD: Final = (*_SAME, "connection_id", "server_address", "is", "open", "unread", "opened")
_ARROW: Final = {"bigint": pa.int64(), "binary": pa.binary()}
# What is asked of an image of a call: whether it ``is``, or was, so; its times, in microseconds. ``open``: it was not
# answered; ``unread``: it could not be read, or opens something and was not; ``opened``: of the methods in ``LEDGER``.
_IMAGES: Final = (
    "connection_id", "server_address", "interface_name", "opnum", "outcome", "_commit_version",
    f"_change_type IN ({', '.join(map(repr, IS))}) AS `is`",
    "unix_micros(coalesce(request_at, response_at)) AS `at`",
    "unix_micros(coalesce(response_at, request_at)) AS done",
    "response_at IS NULL AS open",
    f"outcome IN ({', '.join(map(repr, sorted(UNREAD)))}) OR ({among(OPENS)} AND response_at IS NULL) AS unread",
    f"coalesce({IS_LEDGER}, FALSE) AS opened",
)  # fmt: skip
_CHANGED: Final = pa.schema({"call_key": pa.string(), **{name: _ARROW[kind] for name, kind in HEADS.items()}})


@dataclass(slots=True)
class ChangedCalls:
    """Calls that changed, came or went: call_key, the bytes that rules look at (``HEADS``), and ``fresh``, true.

    ``spans``: when the first was asked and the last one answered, by connection, microseconds. ``spoilt``: connections
    where more happened than that calls came or were answered; ``spoilt_servers``: where that is to something opened.
    """

    rows: pa.Table
    spans: dict[str, tuple[int, int]]
    spoilt: set[str]
    spoilt_servers: set[str]

    @classmethod
    def told(cls, feeds: Feeds, chosen: str, *, stubs: bool) -> ChangedCalls | None:
        """Return what the feed tells of images that meet a condition; None where it cannot, or of too many.

        The feed has the bytes of stubs in the files that were added: to find them in the table takes reading all.
        """
        columns = ", ".join(("call_key", *heads(stubs=stubs), *_IMAGES))
        found = feeds.table(RPC_CALLS, f"SELECT {columns} FROM {{feed}} WHERE {chosen}", MOST)
        if found is None and not feeds.is_unchanged(RPC_CALLS):
            return None
        if found is None or not found.num_rows:
            return cls(_fresh(_CHANGED.empty_table()), {}, set(), set())
        return cls.of(found)

    @classmethod
    def of(cls, images: pa.Table) -> ChangedCalls:
        """Return what images of calls tell, as they were and are."""
        images = images.sort_by([("_commit_version", "ascending"), ("is", "ascending")])
        told = images.select(["call_key", *_TOLD]).to_pylist()
        first: dict[str, dict[str, Any]] = {}
        last: dict[str, int] = {}
        for place, row in enumerate(told):
            first.setdefault(row["call_key"], row)
            last[row["call_key"]] = place
        spoilt, servers = set(), set()
        for key, was in first.items():
            now = told[last[key]]
            if not was["is"] and _is_more_than_answered(was, now):
                spoilt |= {was["connection_id"], now["connection_id"]}
                servers |= {row["server_address"] for row in (was, now) if row["opened"]}
        times = images.group_by("connection_id").aggregate([("at", "min"), ("done", "max")]).to_pylist()
        spans = {row["connection_id"]: (row["at_min"], row["done_max"]) for row in times}
        rows = images.select(_CHANGED.names).cast(_CHANGED).take(pa.array(list(last.values()), pa.int64()))
        return cls(_fresh(rows), spans, spoilt, servers)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of these calls."""
        return frozenset(self.rows["call_key"].to_pylist())

    def span(self, connections: Iterable[str]) -> tuple[int, int]:
        """Return when the first call of some connections was asked, and the last one answered; 0 and 0 of none."""
        spans = [self.spans[name] for name in connections if name in self.spans]
        return min((at for at, _ in spans), default=0), max((at for _, at in spans), default=0)


def _fresh(rows: pa.Table) -> pa.Table:
    return rows.append_column("fresh", pa.array([True] * rows.num_rows, pa.bool_()))


def _is_more_than_answered(was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tell whether more became of a call than that its answer came, or that it was seen once more."""
    stays = was["open"] or all(was[name] == now[name] for name in _SAME)
    return bool(was["unread"]) or not now["is"] or not stays or was["connection_id"] != now["connection_id"]
