"""Decrypt captures without Spark: the reader's rows, and the function by which the pipeline decrypts them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from capture.in_memory import read_captures
from pipeline.bronze.decryption import decrypt_rows
from udfs.rows import RowDict
from udfs.sealed.decryption_keys import DecryptionKeys, NtlmKey
from udfs.sealed.security_contexts import build_security_contexts
from udfs.sealed.security_tokens import tokens_from_rows

STUBS = ("request_stub", "response_stub")


def password(text: str, principal: str = "TESTDOM\\reader") -> DecryptionKeys:
    return DecryptionKeys((NtlmKey.from_password(principal, text),))


def decrypted_calls(runs: Sequence[bytes] | Sequence[Sequence[bytes]], keys: DecryptionKeys) -> list[RowDict]:
    """Return the rows of ``rpc_calls`` after a run with keys, by time; captures are read in one run or one run each."""
    tables = read_captures([[run] if isinstance(run, bytes) else run for run in runs])
    return calls_after_run_with_keys(tables, keys)


def calls_after_run_with_keys(tables: dict[str, pa.Table], keys: DecryptionKeys) -> list[RowDict]:
    """Return rows of ``rpc_calls`` after a run with keys."""
    tokens: dict[str, list[RowDict]] = defaultdict(list)
    binds = sorted(tables["rpc_binds"].to_pylist(), key=lambda row: (row["bound_at"], row["packet_number"]))
    for row in binds:
        tokens[row["connection_id"]] += row["handshake"] or []
    calls = tables["rpc_calls"]
    closed = calls.filter(pc.or_(calls["request_signed_bytes"].is_valid(), calls["response_signed_bytes"].is_valid()))
    contexts = {name: build_security_contexts(tokens_from_rows(rows), keys) for name, rows in tokens.items()}
    news = {row["call_key"]: row for row in decrypt_rows(closed, contexts).to_pylist()}
    rows = [news.get(row["call_key"], row) for row in calls.to_pylist()]
    return sorted(rows, key=lambda row: (row["request_at"] is None, row["request_at"], row["call_id"]))


def digests(rows: Sequence[RowDict]) -> list[tuple[str | None, ...]]:
    return [tuple(None if row[s] is None else hashlib.sha256(row[s]).hexdigest() for s in STUBS) for row in rows]


def reasons(rows: Sequence[RowDict]) -> set[str | None]:
    return {row["closed_reason"] for row in rows if row["sealed"]}
