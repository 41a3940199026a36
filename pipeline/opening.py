"""Opening sealed calls in the lake with the keys of a run: what this run brought, and what earlier runs left closed.

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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze import versions
from pipeline.lake import IS, FeedError, Lake, on_dates
from pipeline.rows import for_spark
from pipeline.runs import Runs
from pipeline.touched import only
from schemas.bronze import RPC_BINDS, RPC_CALLS
from schemas.table import EVENT_DATE
from udfs.sealed.contexts import SecurityContext, security_contexts
from udfs.sealed.kerberos import KeytabError, keytab_keys
from udfs.sealed.keys import Keys, NtlmKey
from udfs.sealed.opening import HALVES, open_calls
from udfs.sealed.tokens import of_rows

__all__ = ["Keys", "KeytabError", "NtlmKey", "keytab_keys", "open_sealed"]

Say = Callable[[str], None]
Contexts = dict[str, list[SecurityContext]]  # by connection
CLOSED: Final = "sealed AND opened_by IS NULL AND (request_pieces IS NOT NULL OR response_pieces IS NOT NULL)"
_HERE: Final = 64 << 20  # bytes of stubs that are opened on the driver
_MOST_HERE: Final = 20_000  # calls likewise
_AT_ONCE: Final = 5_000  # connections whose session keys are shipped together
_GIVES: Final = (
    "request_stub", "response_stub", "request_pieces", "response_pieces", "outcome", "opened_by", "closed_reason",
)  # fmt: skip


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
        except (FeedError, PySparkException):
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
                self.lake.append(RPC_CALLS, self.lake.spark.createDataFrame(for_spark(rows)))
            return _counted(rows)
        return self._in_spark(calls, contexts, dates, side)

    def _in_spark(self, calls: DataFrame, contexts: Contexts, dates: Collection[Any], side: Path) -> Counter[str]:
        """Open calls in Spark, to side files first: what is written then is read from there and not made again."""
        schema = calls.select(*RPC_CALLS.names).schema

        def of_connection(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
            return changed_rows(table, {key[0].as_py(): contexts[key[0].as_py()]})

        opened = calls.select(*RPC_CALLS.names).groupBy("connection_id").applyInArrow(of_connection, schema)
        opened.write.mode("overwrite").option("compression", "lz4").parquet(str(side))
        rows = self.lake.spark.read.schema(schema).parquet(str(side))
        told = rows.groupBy("opened_by", "closed_reason").count().toArrow()
        if told.num_rows:
            self.lake.remove(RPC_CALLS, "call_key", rows.select("call_key"), dates=dates)
            self.lake.append(RPC_CALLS, rows)
        return _counted(told)


def changed_rows(calls: pa.Table, contexts: Contexts) -> pa.Table:
    """Return those rows of ``rpc_calls`` of which opening makes something else, as it makes them."""
    given = [name for name in (*_GIVES, "connection_id", "bind_seen") if name in calls.column_names]
    rows = calls.select(given).to_pylist()
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
            complete = row["outcome"] == "encrypted"
            reason = str(result.closed) if complete and result.closed is not None else None
            if result.opened_by is not None:
                outcome = ("ok" if row["bind_seen"] else "unbound") if complete else row["outcome"]
                news[number] = {
                    **row, "request_stub": result.request_stub, "response_stub": result.response_stub,
                    "request_pieces": None, "response_pieces": None, "outcome": outcome,
                    "opened_by": result.opened_by, "closed_reason": None,
                }  # fmt: skip
            elif reason != row["closed_reason"]:
                news[number] = {**row, "closed_reason": reason}
    chosen = calls.take(pa.array(sorted(news), pa.int64()))
    for name in _GIVES:
        place = chosen.schema.get_field_index(name)
        values = pa.array([news[number][name] for number in sorted(news)], chosen.schema.field(name).type)
        chosen = chosen.set_column(place, chosen.schema.field(name), values)
    return chosen


def _counted(rows: pa.Table) -> Counter[str]:
    """Count rows by what became of them; rows of a count have the column ``count``."""
    counts = rows.column("count").to_pylist() if "count" in rows.column_names else [1] * rows.num_rows
    found: Counter[str] = Counter()
    for principal, reason, count in zip(
        rows.column("opened_by").to_pylist(), rows.column("closed_reason").to_pylist(), counts, strict=True
    ):
        found["opened" if principal is not None else reason or "closed"] += count
    return found
