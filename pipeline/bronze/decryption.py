"""Opening sealed calls in the lake with the keys of a run: what this run brought, and what earlier runs left closed.

Calls that are signed alone are verified with them: ``verified_by`` names whose key did it. Where the key is known and a
signature does not fit, the call is ``damaged``, with ``bad_signature`` for its reason: it is not what was sent.

The handshakes (``bronze.rpc_binds``) are judged on the driver, a connection at a time; only connections whose calls
changed, or of which the keys of this run say something else than those before, are looked at further. Few calls are
opened here, many in Spark, a group for each connection: workers get the session keys of these connections inside the
function that Spark ships, and nothing of them is ever a row, a column or a text.

What was opened stays open. A note beside the lake says up to which version all calls were looked at, and why
connections were left closed: names of reasons, nothing of the keys.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.ingest_captures import versions
from pipeline.lake.date_filters import on_dates
from pipeline.lake.frames import frame
from pipeline.lake.lake import Lake
from pipeline.lake.queries import IS, UNTOLD, only
from pipeline.lake.recovery import Runs
from pipeline.lake.settings import unmeasured
from schemas.bronze import RPC_BINDS, RPC_CALLS
from schemas.table import EVENT_DATE
from udfs.sealed.contexts import SecurityContext, security_contexts
from udfs.sealed.kerberos import KeytabError, keytab_keys
from udfs.sealed.keys import Keys, NtlmKey
from udfs.sealed.opening import HALVES, Call, open_calls
from udfs.sealed.session import Closed
from udfs.sealed.tokens import of_rows

__all__ = ["Keys", "KeytabError", "NtlmKey", "keytab_keys", "open_sealed"]

Say = Callable[[str], None]
Contexts = dict[str, list[SecurityContext]]  # by connection
# Closed, or signed and not verified; stubs may have been emptied (store.stubs).
CLOSED: Final = " OR ".join(f"({half}_pieces IS NOT NULL AND {half}_stub IS NOT NULL)" for half in HALVES)
_HERE: Final = 64 << 20  # bytes of stubs that are opened on the driver
_MOST_HERE: Final = 20_000  # calls likewise
_AT_ONCE: Final = 5_000  # connections whose session keys are shipped together
_GIVES: Final = (
    "request_stub", "response_stub", "request_pieces", "response_pieces", "outcome", "opened_by", "closed_reason",
    "verified_by",
)  # fmt: skip
_ASKED: Final = ("sealed", "bind_seen", "request_fragments", "response_fragments", "fault_status")


def open_sealed(lake: Lake, keys: Keys, *, run_id: str, say: Say) -> dict[str, int]:
    """Open what the keys open of ``bronze.rpc_calls``; return how many calls were opened, and closed, by reason.

    Those that changed are counted alone. Without keys nothing is looked at.
    """
    newest = lake.version(RPC_CALLS) if keys else None
    if newest is None:
        return {}
    note = _Note.of(lake)
    changed = _changed(lake, note.version, newest)
    contexts, wanted = _judged(lake, keys, note, changed)
    found: Counter[str] = Counter()
    if wanted:
        found = _Work(lake, run_id, contexts).carry_out(wanted)
        say(f"opening sealed calls: {', '.join(f'{count} {what}' for what, count in sorted(found.items())) or 'none'}")
    note.version = lake.version(RPC_CALLS)
    note.write()
    return dict(found)


@dataclass(slots=True)
class _Note:
    """How far opening has come: a version of rpc_calls, and of connections that are not all open what was said."""

    path: Path
    version: int | None = None
    closed: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(lake: Lake) -> _Note:
        path = Runs.of(lake).root / "opening"
        if not path.exists():
            return _Note(path)
        told = json.loads(path.read_text(encoding="utf-8"))
        return _Note(path, told["version"], told["closed"])

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(".opening")
        temporary.write_text(json.dumps({"version": self.version, "closed": self.closed}), encoding="utf-8")
        temporary.replace(self.path)


def _changed(lake: Lake, since: int | None, newest: int) -> set[str]:
    """Return the connections with closed calls that came or changed after a version."""
    if since == newest:
        return set()
    rows: DataFrame | None = None
    if since is not None:
        try:
            rows = lake.changes(RPC_CALLS, since, newest).where(F.col("_change_type").isin(*IS))
            return _connections(rows)
        except UNTOLD:
            pass  # the feed does not reach back: all are looked at
    return _connections(lake.read(RPC_CALLS))


def _connections(calls: DataFrame) -> set[str]:
    return {row[0] for row in calls.where(CLOSED).select("connection_id").distinct().collect()}


def _judged(lake: Lake, keys: Keys, note: _Note, changed: Collection[str]) -> tuple[Contexts, set[str]]:
    """Return the security contexts of connections with closed calls, and those of which something is new."""
    concerned = {*changed, *note.closed}
    if not concerned:
        return {}, set()
    binds = only(lake.read(RPC_BINDS), "connection_id", concerned).where("handshake IS NOT NULL")
    rows = binds.select("connection_id", "bound_at", "packet_number", "handshake").toArrow().to_pylist()
    rows.sort(key=lambda row: (row["bound_at"] is None, row["bound_at"], row["packet_number"] or 0))
    tokens: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        tokens[row["connection_id"]] += of_rows(row["handshake"])
    contexts, wanted = {}, set()
    for name in concerned:
        contexts[name] = security_contexts(tokens[name], keys)
        said = _said(contexts[name])
        if name in changed or said != note.closed.get(name):
            wanted.add(name)
        if not said or "closed" not in said:
            note.closed.pop(name, None)
        else:
            note.closed[name] = said
    return contexts, wanted


def _said(contexts: Sequence[SecurityContext]) -> str:
    """Return what keys say of a connection's contexts, as a text that differs when they say something else."""
    return " ".join(
        f"{each.context_id}:{'open' if each.closed is None else f'closed:{each.closed}'}" for each in contexts
    )


@dataclass(slots=True)
class _Work:
    """One run's work."""

    lake: Lake
    run_id: str
    contexts: Contexts

    def carry_out(self, wanted: Collection[str]) -> Counter[str]:
        """Open the closed calls of some connections, and put them in the place of what they were."""
        found: Counter[str] = Counter()
        names = sorted(wanted)
        runs, name = Runs.of(self.lake), f"{self.run_id}-opening"
        side = runs.begin(name, versions(self.lake))  # a run that is killed here is undone, as one that reads
        for begin in range(0, len(names), _AT_ONCE):
            found += self._some(names[begin : begin + _AT_ONCE], side / f"{begin}")
        runs.end(name)
        return found

    def _some(self, names: Collection[str], side: Path) -> Counter[str]:
        calls = only(self.lake.read(RPC_CALLS), "connection_id", names).where(CLOSED)
        size = F.sum(sum((F.coalesce(F.octet_length(f"{half}_stub"), F.lit(0)) for half in HALVES), F.lit(0)))
        told = calls.select(F.count("*"), size, F.collect_set(EVENT_DATE), F.max(F.col(EVENT_DATE).isNull())).first()
        if told is None or not told[0]:
            return Counter()
        dates = {*told[2], *([None] if told[3] else [])}
        contexts = {name: self.contexts[name] for name in names}
        calls = calls.where(on_dates(dates))
        if told[0] <= _MOST_HERE and (told[1] or 0) <= _HERE:
            there = calls.select(*RPC_CALLS.names).toArrow()
            rows = changed_rows(there, contexts)
            keys = set(rows.column("call_key").to_pylist())
            if keys:
                self.lake.remove(RPC_CALLS, "call_key", keys, dates=dates)
                self.lake.append(RPC_CALLS, frame(self.lake.spark, rows))
            return _counted(rows)
        return self._in_spark(calls, contexts, dates, side)

    def _in_spark(self, calls: DataFrame, contexts: Contexts, dates: Collection[Any], side: Path) -> Counter[str]:
        """Open calls in Spark, to side files first: what is written then is read from there and not made again."""
        schema = calls.select(*RPC_CALLS.names).schema

        def of_connection(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
            return changed_rows(table, {key[0].as_py(): contexts[key[0].as_py()]})

        opened = calls.select(*RPC_CALLS.names).groupBy("connection_id").applyInArrow(of_connection, schema)
        with unmeasured(self.lake.spark):
            opened.write.mode("overwrite").option("compression", "lz4").parquet(str(side))
        rows = self.lake.spark.read.schema(schema).parquet(str(side))
        told = rows.groupBy("opened_by", "closed_reason", "verified_by").count().toArrow()
        if told.num_rows:
            self.lake.remove(RPC_CALLS, "call_key", rows.select("call_key"), dates=dates)
            self.lake.append(RPC_CALLS, rows)
        return _counted(told)


def changed_rows(calls: pa.Table, contexts: Contexts) -> pa.Table:
    """Return those rows of ``rpc_calls`` of which opening makes something else, as it makes them."""
    rows = calls.select([*_GIVES, *_ASKED, "connection_id"]).to_pylist()
    for half in HALVES:
        times = calls.column(f"{half}_at").cast(pa.int64()).to_pylist()
        for row, time in zip(rows, times, strict=True):
            row[f"{half}_us"] = time
    of_connection: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        of_connection[row["connection_id"]].append(number)
    news: dict[int, dict[str, Any]] = {}
    for name, numbers in of_connection.items():
        results = open_calls([rows[number] for number in numbers], contexts.get(name, []))
        for number, result in zip(numbers, results, strict=True):
            row = rows[number]
            made = _opened(row, result) if row["sealed"] else _verified(row, result)
            if made is not None:
                news[number] = row | made
    chosen = sorted(news)
    others = calls.drop_columns(list(_GIVES)).take(pa.array(chosen, pa.int64()))
    given = {
        name: pa.array([news[number][name] for number in chosen], calls.schema.field(name).type) for name in _GIVES
    }
    columns = [given[name] if name in given else others.column(name) for name in calls.column_names]
    return pa.Table.from_arrays(columns, schema=calls.schema)


def _opened(row: dict[str, Any], result: Call) -> dict[str, Any] | None:
    """Return what a sealed call is now; None if it stays as it is."""
    encrypted = row["outcome"] == "encrypted"
    if result.principal is not None:
        return {
            "request_stub": result.request_stub, "response_stub": result.response_stub, "request_pieces": None,
            "response_pieces": None, "opened_by": result.principal, "closed_reason": None,
            "outcome": ("ok" if row["bind_seen"] else "unbound") if encrypted else row["outcome"],
        }  # fmt: skip
    reason = str(result.closed) if encrypted and result.closed is not None else None
    return {"closed_reason": reason} if reason != row["closed_reason"] else None


def _verified(row: dict[str, Any], result: Call) -> dict[str, Any] | None:
    """Return what a signed call is now; None if it stays as it is: keys that tell nothing of it change nothing."""
    if result.principal is not None:
        return {
            "request_pieces": None, "response_pieces": None, "verified_by": result.principal, "closed_reason": None,
            "outcome": _as_seen(row) if row["closed_reason"] is not None else row["outcome"],
        }  # fmt: skip
    if result.refuted and row["closed_reason"] is None:
        return {
            "closed_reason": str(Closed.BAD_SIGNATURE),
            "outcome": "damaged" if row["request_fragments"] else row["outcome"],
        }
    return None


def _as_seen(row: dict[str, Any]) -> str:
    """Return the outcome of a call that is not sealed (tables.md): the first that holds."""
    answered = bool(row["response_fragments"])
    if not row["request_fragments"]:
        return "no_request"
    if row["request_stub"] is None or (answered and row["response_stub"] is None and row["fault_status"] is None):
        return "damaged"
    if not answered:
        return "no_response"
    return "fault" if row["fault_status"] is not None else "ok" if row["bind_seen"] else "unbound"


def _counted(rows: pa.Table) -> Counter[str]:
    """Count rows by what became of them; rows of a count have the column ``count``."""
    counts = rows.column("count").to_pylist() if "count" in rows.column_names else [1] * rows.num_rows
    found: Counter[str] = Counter()
    told = (rows.column(name).to_pylist() for name in ("opened_by", "verified_by", "closed_reason"))
    for opened, verified, reason, count in zip(*told, counts, strict=True):
        found["opened" if opened is not None else "verified" if verified is not None else reason or "closed"] += count
    return found
