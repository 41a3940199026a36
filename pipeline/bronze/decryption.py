"""Decrypt sealed calls of ``bronze.rpc_calls`` with the keys of a run, and verify signed ones.

A call of which a key fits is replaced by its decrypted row (``opened_by``), or, if it was only signed, by its verified
row (``verified_by``). Where the key is known and a signature does not fit, the call was changed on the way: its outcome
is ``damaged``, its ``closed_reason`` ``bad_signature``.

The driver derives security contexts from the handshakes (``bronze.rpc_binds``), one connection at a time. It looks
further only at connections whose calls changed, or of which these keys give another result than earlier ones. Calls
are decrypted connection by connection (``Lake.map_groups``). Tasks get the session keys of these connections inside
their function; no key is ever in a row, a column or a text.

Decrypted calls stay decrypted. A state file beside the lake (``_runs/opening``) notes up to which version all calls
were looked at, and why connections could not be decrypted: codes of reasons, nothing of the keys.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts
from pipeline.bronze.ingest_captures import LogFunction, bronze_versions
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, POST_IMAGES, BoundQuery, ChangesSince, QueryAnswers
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import StagingWriter, staged_rows
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import RPC_BINDS, RPC_CALLS
from schemas.table import EVENT_DATE
from udfs.sealed.call_decryption import HALVES, CallDecryption, decrypt_connection_calls
from udfs.sealed.decryption_keys import DecryptionKeys
from udfs.sealed.protected_pdu import DecryptionFailure
from udfs.sealed.security_contexts import SecurityContext, build_security_contexts
from udfs.sealed.security_tokens import tokens_from_rows

_STATE: Final = "opening"  # name of the state file

ContextsByConnection = dict[str, list[SecurityContext]]
# Neither decrypted nor verified, with a stub left: stubs may have been removed (store.stubs).
_UNDECRYPTED_SQL: Final = " OR ".join(
    f"({half}_signed_bytes IS NOT NULL AND {half}_stub IS NOT NULL)" for half in HALVES
)
_CHANGED_SQL: Final = f"SELECT call_key FROM {{feed}} WHERE _change_type IN ({', '.join(map(repr, POST_IMAGES))})"
_CONNECTIONS_PER_BATCH: Final = 5_000  # whose session keys are shipped together
_UPDATED_COLUMNS: Final = (
    "request_stub", "response_stub", "request_signed_bytes", "response_signed_bytes", "outcome", "opened_by",
    "closed_reason", "verified_by",
)  # fmt: skip
# What is to be known of the calls that change.
_SUMMARY: Final = StructType(
    [RPC_CALLS.struct()[name] for name in ("call_key", "opened_by", "verified_by", "closed_reason", EVENT_DATE)]
)
_READ_ONLY_COLUMNS: Final = ("sealed", "bind_seen", "request_fragments", "response_fragments", "fault_status")


def decrypt_calls(lake: Lake, keys: DecryptionKeys, *, run_id: str, log: LogFunction) -> dict[str, int]:
    """Decrypt and verify the calls of ``bronze.rpc_calls`` that the keys fit; return the changed calls by result.

    Results are ``opened``, ``verified``, or the reason why a call could not be decrypted. Without keys nothing is done.
    """
    newest = lake.version(RPC_CALLS) if keys else None
    if newest is None:
        return {}
    state = _DecryptionState.load(lake)
    changed = _connections_with_changed_calls(lake, state.version, newest)
    contexts, affected = _derive_contexts(lake, keys, state, changed)
    counts: Counter[str] = Counter()
    if affected:
        counts = _DecryptionRun(lake, run_id, contexts).decrypt(affected)
        results = ", ".join(f"{count} {result}" for result, count in sorted(counts.items())) or "none"
        log(f"decrypting sealed calls: {results}")
    state.version = lake.version(RPC_CALLS)
    state.save()
    return dict(counts)


@dataclass(slots=True)
class _DecryptionState:
    """The state file: the version of ``bronze.rpc_calls`` looked at, and contexts of connections not all decrypted."""

    runs: RunMarkers
    version: int | None = None
    unopened: dict[str, str] = field(default_factory=dict)  # by connection, as ``_context_summary`` gives it

    @staticmethod
    def load(lake: Lake) -> _DecryptionState:
        runs = RunMarkers.of(lake)
        state = runs.read_state(_STATE)
        return _DecryptionState(runs) if state is None else _DecryptionState(runs, state["version"], state["closed"])

    def save(self) -> None:
        self.runs.write_state(_STATE, {"version": self.version, "closed": self.unopened})


def keep_state(lake: Lake, version: int | None) -> None:
    """Have the state name the newest version of ``bronze.rpc_calls`` where it names one that has the same rows."""
    state = _DecryptionState.load(lake)
    if state.version is not None and state.version == version:
        state.version = lake.version(RPC_CALLS)
        state.save()


def _connections_with_changed_calls(lake: Lake, since: int | None, newest: int) -> set[str]:
    """Return the connections with undecrypted calls that were added or changed after a version."""
    if since == newest:
        return set()
    sql = f"SELECT DISTINCT connection_id FROM {{calls}} WHERE ({_UNDECRYPTED_SQL})"
    changed = {}
    if since is not None:
        try:
            changed["changed"] = lake.query(_CHANGED_SQL, feed=ChangesSince(RPC_CALLS, since, newest))
            sql += " AND call_key IN (SELECT call_key FROM {changed})"
        except CHANGE_FEED_ERRORS:
            pass  # the feed does not reach back: all calls count as changed
    return set(lake.query(sql, calls=RPC_CALLS, **changed)["connection_id"].to_pylist())


def _derive_contexts(
    lake: Lake, keys: DecryptionKeys, state: _DecryptionState, changed: Collection[str]
) -> tuple[ContextsByConnection, set[str]]:
    """Return the security contexts of connections with undecrypted calls, and the connections to decrypt now.

    These are the ``changed`` ones, and those of which the keys give another result than ``state`` has.
    """
    connections = {*changed, *state.unopened}
    if not connections:
        return {}, set()
    columns = ("connection_id", "bound_at", "packet_number", "handshake")
    where = "connection_id IN {connections} AND handshake IS NOT NULL"
    rows = lake.select(RPC_BINDS, where, columns, connections=connections).to_pylist()
    rows.sort(key=lambda row: (row["bound_at"] is None, row["bound_at"], row["packet_number"] or 0))
    tokens: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        tokens[row["connection_id"]] += tokens_from_rows(row["handshake"])
    contexts, affected = {}, set()
    for name in connections:
        contexts[name] = build_security_contexts(tokens[name], keys)
        summary = _context_summary(contexts[name])
        if name in changed or summary != state.unopened.get(name):
            affected.add(name)
        if not summary or "closed" not in summary:
            state.unopened.pop(name, None)
        else:
            state.unopened[name] = summary
    return contexts, affected


def _context_summary(contexts: Sequence[SecurityContext]) -> str:
    """Return which contexts of a connection the keys open, and why not the others, as a text to compare."""
    return " ".join(
        f"{each.context_id}:{'open' if each.failure is None else f'closed:{each.failure}'}" for each in contexts
    )


@dataclass(slots=True)
class _DecryptionRun:
    """Decrypts the calls of chosen connections and replaces their rows."""

    lake: Lake
    run_id: str
    contexts: ContextsByConnection

    def decrypt(self, connections: Collection[str]) -> Counter[str]:
        """Decrypt the calls of connections; return the changed calls by result."""
        counts: Counter[str] = Counter()
        names = sorted(connections)
        runs, run_id = RunMarkers.of(self.lake), f"{self.run_id}-opening"
        captures = self.lake.query(
            "SELECT DISTINCT capture_id FROM {calls} WHERE connection_id IN {names}", calls=RPC_CALLS, names=names
        )
        # If it is killed, the next ingest undoes it.
        folder = runs.begin(run_id, bronze_versions(self.lake), captures.column(0).drop_null().to_pylist())
        for begin in range(0, len(names), _CONNECTIONS_PER_BATCH):
            counts += self._decrypt_batch(names[begin : begin + _CONNECTIONS_PER_BATCH], folder / f"{begin}")
        runs.end(run_id)
        return counts

    def _decrypt_batch(self, names: Collection[str], folder: LakePath) -> Counter[str]:
        """Decrypt the calls of some connections; rows are staged in ``folder``, so that each is decrypted once."""
        contexts = {name: self.contexts[name] for name in names}

        def decrypt(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
            calls = parts["calls"].select(RPC_CALLS.names).cast(RPC_CALLS.schema())
            rows = decrypt_rows(calls, contexts)
            for batch in rows.to_batches():
                staging.add(RPC_CALLS.name, batch)
            return rows.select(_SUMMARY.names)

        where = f"connection_id IN {{names}} AND ({_UNDECRYPTED_SQL})"
        sql = f"SELECT *, {bucket_sql('connection_id')} FROM {{calls}} WHERE {where}"
        calls = BoundQuery(sql, {"calls": RPC_CALLS, "names": names})
        found = stage_groups(self.lake, folder, {"calls": calls}, decrypt, _SUMMARY)
        if found.num_rows:
            keys, rows = distinct_texts(found["call_key"]), staged_rows(folder / RPC_CALLS.name, RPC_CALLS)
            self.lake.delete_and_insert(RPC_CALLS, "call_key", keys, rows, dates=distinct_dates(found))
        return _count_results(found)


def decrypt_rows(calls: pa.Table, contexts: ContextsByConnection) -> pa.Table:
    """Decrypt and verify rows of ``bronze.rpc_calls``; return only the rows that change, as they are then."""
    rows = calls.select([*_UPDATED_COLUMNS, *_READ_ONLY_COLUMNS, "connection_id"]).to_pylist()
    for half in HALVES:
        times = calls.column(f"{half}_at").cast(pa.int64()).to_pylist()
        for row, time in zip(rows, times, strict=True):
            row[f"{half}_us"] = time
    by_connection: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_connection[row["connection_id"]].append(number)
    changed: dict[int, dict[str, Any]] = {}
    for name, numbers in by_connection.items():
        results = decrypt_connection_calls([rows[number] for number in numbers], contexts.get(name, []))
        for number, result in zip(numbers, results, strict=True):
            row = rows[number]
            update = _decrypted_columns(row, result) if row["sealed"] else _verified_columns(row, result)
            if update is not None:
                changed[number] = row | update
    chosen = sorted(changed)
    others = calls.drop_columns(list(_UPDATED_COLUMNS)).take(pa.array(chosen, pa.int64()))
    updated = {
        name: pa.array([changed[number][name] for number in chosen], calls.schema.field(name).type)
        for name in _UPDATED_COLUMNS
    }
    columns = [updated[name] if name in updated else others.column(name) for name in calls.column_names]
    return pa.Table.from_arrays(columns, schema=calls.schema)


def _decrypted_columns(row: dict[str, Any], result: CallDecryption) -> dict[str, Any] | None:
    """Return the columns of a sealed call that change; None if none does."""
    encrypted = row["outcome"] == "encrypted"
    if result.principal is not None:
        return {
            "request_stub": result.request_stub, "response_stub": result.response_stub, "request_signed_bytes": None,
            "response_signed_bytes": None, "opened_by": result.principal, "closed_reason": None,
            "outcome": ("ok" if row["bind_seen"] else "unbound") if encrypted else row["outcome"],
        }  # fmt: skip
    reason = str(result.failure) if encrypted and result.failure is not None else None
    return {"closed_reason": reason} if reason != row["closed_reason"] else None


def _verified_columns(row: dict[str, Any], result: CallDecryption) -> dict[str, Any] | None:
    """Return the columns of a signed call that change; None if none does, as when no key is the signer's."""
    if result.principal is not None:
        return {
            "request_signed_bytes": None, "response_signed_bytes": None, "verified_by": result.principal,
            "closed_reason": None,
            "outcome": _unprotected_outcome(row) if row["closed_reason"] is not None else row["outcome"],
        }  # fmt: skip
    if result.refuted and row["closed_reason"] is None:
        return {
            "closed_reason": str(DecryptionFailure.BAD_SIGNATURE),
            "outcome": "damaged" if row["request_fragments"] else row["outcome"],
        }
    return None


def _unprotected_outcome(row: dict[str, Any]) -> str:
    """Return the outcome of a call that is not sealed (tables.md): the first that holds."""
    answered = bool(row["response_fragments"])
    if not row["request_fragments"]:
        return "no_request"
    if row["request_stub"] is None or (answered and row["response_stub"] is None and row["fault_status"] is None):
        return "damaged"
    if not answered:
        return "no_response"
    return "fault" if row["fault_status"] is not None else "ok" if row["bind_seen"] else "unbound"


def _count_results(calls: pa.Table) -> Counter[str]:
    """Count changed calls by result."""
    columns = (calls[name].to_pylist() for name in ("opened_by", "verified_by", "closed_reason"))
    return Counter(
        "opened" if opened is not None else "verified" if verified is not None else reason or "closed"
        for opened, verified, reason in zip(*columns, strict=True)
    )
