"""What keys make of captures, without Spark: the reader's rows, and the function that the pipeline opens them with."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.decryption import changed_rows
from udfs.capture.in_memory import read_together
from udfs.sealed.contexts import security_contexts
from udfs.sealed.keys import Keys, NtlmKey
from udfs.sealed.tokens import of_rows

Row = dict[str, Any]
STUBS = ("request_stub", "response_stub")


def password(text: str, principal: str = "TESTDOM\\reader") -> Keys:
    return Keys((NtlmKey.of_password(principal, text),))


def opened(runs: Sequence[bytes] | Sequence[Sequence[bytes]], keys: Keys) -> list[Row]:
    """Rows of rpc_calls of captures, each a run of its own or several in one, after a run with keys, by time."""
    tables = read_together([[run] if isinstance(run, bytes) else run for run in runs])
    return with_keys(tables, keys)


def with_keys(tables: dict[str, pa.Table], keys: Keys) -> list[Row]:
    """Rows of rpc_calls after a run with keys."""
    tokens: dict[str, list[Row]] = defaultdict(list)
    binds = sorted(tables["rpc_binds"].to_pylist(), key=lambda row: (row["bound_at"], row["packet_number"]))
    for row in binds:
        tokens[row["connection_id"]] += row["handshake"] or []
    calls = tables["rpc_calls"]
    closed = calls.filter(pc.or_(calls["request_pieces"].is_valid(), calls["response_pieces"].is_valid()))
    contexts = {name: security_contexts(of_rows(rows), keys) for name, rows in tokens.items()}
    news = {row["call_key"]: row for row in changed_rows(closed, contexts).to_pylist()}
    rows = [news.get(row["call_key"], row) for row in calls.to_pylist()]
    return sorted(rows, key=lambda row: (row["request_at"] is None, row["request_at"], row["call_id"]))


def digests(rows: Sequence[Row]) -> list[tuple[str | None, ...]]:
    return [tuple(None if row[s] is None else hashlib.sha256(row[s]).hexdigest() for s in STUBS) for row in rows]


def reasons(rows: Sequence[Row]) -> set[str | None]:
    return {row["closed_reason"] for row in rows if row["sealed"]}
