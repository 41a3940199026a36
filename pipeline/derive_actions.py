"""gold.queue_actions follows silver: pauses and resumes row by row, purges and moves server by server.

A purge or move may get its queue from an open that was captured anywhere, any time before. So of a server at which one
changed, or an open, close or end of a connection before its last one, all are settled again: they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from pipeline import states
from pipeline.associations import Connection
from pipeline.gather import gather
from pipeline.gold import CONNECTION, known_of
from pipeline.lake import Lake, on_dates
from pipeline.queue_actions import MOVE, OPEN, OPEN_FOR_MOVE, PURGES, operation, operations
from pipeline.states import Names
from pipeline.touched import Changed, only
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.queue_history import QUEUE_ACTIONS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, RUN_ID
from udfs.keys import key

Operating = dict[str, int]  # servers with purges or moves, and when the last one was, microseconds

ACTIONS: Final = {"PAUSE": "pause", "RESUME": "resume"}
_OPENING: Final = [("RemoteRead", OPEN), ("RemoteRead", 3), ("RemoteRead", OPEN_FOR_MOVE), ("qm2qm", 2), ("qm2qm", 3)]
_CALL: Final = (
    "call_key", "opnum", "connection_id", "queue", "queue_format_name", "context_handle", "queue_handle",
    "queue_descriptor", "open_context", "hresult", "errors", "client_address", "server_address",
)  # fmt: skip
_READ: Final = ("protocol", "lookup_id", "move_context", "transaction_id")
_ASKED: Final = ("call_key", "queue", "queue_format_name", "hresult", "errors", "client_address", "server_address")


class Done(NamedTuple):
    """``changed``: operations as they were and as they are, of those that differ; how many rows were ``written``."""

    changed: list[dict[str, Any]]
    operating: Operating
    written: int


def actions_changed(feed: DataFrame) -> DataFrame:
    """Return the calls of a feed of silver.management_calls that pause or resume a queue, as they were and are."""
    new = F.col("_change_type").isin("insert", "update_postimage").alias("new")
    return feed.where(_acts()).select(*_ASKED, "action", *_times(), new, "_commit_version")


def reads_changed(feed: DataFrame) -> DataFrame:
    """Return the servers of a feed of silver.remote_read_calls where purges, moves or openings changed, and when."""
    doing = _is(_DOING).alias("doing")
    at = F.unix_micros(F.coalesce("requested_at", "responded_at"))
    found = feed.where(_is([*_DOING, *_OPENING])).groupBy("server_address", doing)
    return found.agg(F.min(at).alias("at"))


def clients_changed(feed: DataFrame) -> DataFrame:
    """Return the servers of a feed of silver.client_calls where queues were opened or let go by number; and when."""
    at = F.unix_micros(F.coalesce("requested_at", "responded_at"))
    found = feed.where("interface_name = 'qmcomm' AND opnum IN (2, 3)").groupBy("server_address")
    return found.agg(F.min(at).alias("at"))


def servers_touched(
    reads: Iterable[Row], clients: Iterable[Row], moved: list[Row], operating: Mapping[str, int]
) -> frozenset[str | None]:
    """Return the servers whose purges and moves can have changed; ``moved`` as ``touched.connections_changed``."""
    found = {row["server_address"] for row in reads if row["doing"]}
    early = [(row["server_address"], row["at"]) for row in (*(r for r in reads if not r["doing"]), *clients)]
    for rows in Changed(connections=moved).moved().values():
        times = [row[name] for row in rows for name in ("first_packet_at", "closed_at") if row[name] is not None]
        early.append((rows[0]["server_address"], min(times, default=0)))
    return frozenset(found | {server for server, at in early if (at or 0) <= operating.get(server, -1)})


def follow(
    lake: Lake, names: Names, run_id: str, *, servers: Collection[str | None], actions: Iterable[Row],
    renamed: Collection[str],
) -> Done:  # fmt: skip
    """Bring the table to what is now: of some servers, of changed ``actions``, and of texts that were ``renamed``."""
    last: dict[str, Row] = {}
    for row in sorted(actions, key=lambda row: (row["_commit_version"], row["new"])):
        last[row["call_key"]] = row
    if not servers and not last and not renamed:
        return Done([], {}, 0)
    table = lake.read(QUEUE_ACTIONS)
    parts = {
        "servers": only(table, "server_address", servers).where("operation IN ('purge', 'move')"),
        "actions": only(table, "call_key", last),
        **{column: only(table, column, renamed) for column in ("queue", "target_queue")},
    }
    asked: dict[str, Callable[[], Any]] = {name: rows.toArrow for name, rows in parts.items()}
    found = gather(asked | ({"settled": lambda: _settled(lake, servers)} if servers else {}))
    there = _each_once(pa.concat_tables([found[name] for name in parts]))
    old = states.rows_of(there)
    rows = [*found.get("settled", ()), *(_action(row.asDict(recursive=True)) for row in last.values() if row["new"])]
    known = {row["call_key"] for row in rows} | last.keys()
    rows += [row for row in old if row["call_key"] not in known and not _is_settled(row, servers)]
    rows = [_named(row, names) for row in rows]
    made = states.table_of(QUEUE_ACTIONS, rows, run_id)
    days: set[date | None] = set(there.column(EVENT_DATE).to_pylist())
    written = lake.put(QUEUE_ACTIONS, made, there, dates=days)
    return Done(_differing(states.rows_of(made), old), _operating(rows), written)


def _each_once(rows: pa.Table) -> pa.Table:
    keys = rows.column("operation_key").to_pylist()
    return rows.take(sorted({name: place for place, name in enumerate(keys)}.values()))


def anew(lake: Lake, names: Names, run_id: str) -> tuple[Operating, int]:
    """Make the table of all there is; the servers at which purges and moves were, and how many rows it has."""
    actions = lake.read(MANAGEMENT_CALLS).where(_acts()).select(*_ASKED, "action", *_times())
    asked: dict[str, Callable[[], Any]] = {"settled": lambda: _settled(lake, None), "actions": actions.collect}
    found = gather(asked)
    rows = [*found["settled"], *(_action(row.asDict(recursive=True)) for row in found["actions"])]
    rows = [_named(row, names) for row in rows]
    lake.create(QUEUE_ACTIONS)
    lake.replace(QUEUE_ACTIONS, lake.spark.createDataFrame(states.table_of(QUEUE_ACTIONS, rows, run_id)))
    return _operating(rows), len(rows)


def _is_settled(row: Mapping[str, Any], servers: Collection[str | None]) -> bool:
    return row["server_address"] in servers and row["operation"] in ("purge", "move")


def _named(row: dict[str, Any], names: Names) -> dict[str, Any]:
    return row | {
        "operation_key": key(row["call_key"]),
        "queue_manager": names.machines.name("wire", row["server_address"]),
        "queue": names.queue(row["opened_queue"]),
        "target_queue": names.queue(row["opened_target_queue"]),
    }


def _raw(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"opened_queue": row["queue"], "opened_target_queue": row["target_queue"]}


def _action(row: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: row[name] for name in ("queue", "queue_format_name")}
    missing = () if row["queue"] is not None else ("queue_unknown",)
    return _raw(operation(row, ACTIONS[row["action"].upper()], missing) | named)


def _operating(rows: Iterable[Mapping[str, Any]]) -> Operating:
    found: Operating = {}
    for row in rows:
        if row["operation"] in ("purge", "move") and row["server_address"] is not None:
            at = max(row[name] or 0 for name in ("done_at", "requested_at"))
            found[row["server_address"]] = max(at, found.get(row["server_address"], at))
    return found


def _differing(rows: list[dict[str, Any]], old: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now, before = ({row["operation_key"]: row | {RUN_ID: None} for row in each} for each in (rows, old))
    keys = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    return [each[name] for each in (now, before) for name in keys if name in each]


_DOING: Final = [*sorted(PURGES), MOVE]


def _acts() -> Column:
    return (F.col("object_type") == "queue") & F.upper("action").isin(*ACTIONS)


def _is(methods: Iterable[tuple[str, int]]) -> Column:
    found = F.lit(False)  # noqa: FBT003
    for protocol, opnum in methods:
        found |= (F.col("protocol") == protocol) & (F.col("opnum") == opnum)
    return found


def _times() -> list[Column]:
    return [F.unix_micros(name).alias(name) for name in ("requested_at", "responded_at")]


def _settled(lake: Lake, servers: Collection[str | None] | None) -> list[dict[str, Any]]:
    """Return the purges and moves of some servers, or of all, settled."""
    at_these = partial(only, column="server_address", values=servers) if servers is not None else lambda rows: rows
    reads = at_these(lake.read(REMOTE_READ_CALLS)).select(*_CALL, *_READ, *_times(), EVENT_DATE)
    done = [row.asDict(recursive=True) for row in reads.where(_is(_DOING)).collect()]
    if not done:
        return []
    bronze = lake.read(RPC_CALLS).where(on_dates({row.pop(EVENT_DATE) for row in done}))
    known = known_of(only(bronze, "call_key", [row["call_key"] for row in done])).collect()
    outcomes = {row["call_key"]: {"outcome": row["outcome"], "closed": row["closed"]} for row in known}
    done = [row | outcomes.get(row["call_key"], {}) for row in done]
    handles = {row["context_handle"] for row in done if row["context_handle"]}
    numbers = {row["queue_handle"] for row in done if row["protocol"] == "qm2qm" and row["queue_handle"]}
    moves = any((row["protocol"], row["opnum"]) == MOVE for row in done)
    openings = [
        only(reads.where(_is([("RemoteRead", OPEN), ("RemoteRead", OPEN_FOR_MOVE)])), "context_handle", handles)
    ]
    if moves:
        openings.append(reads.where(_is([("RemoteRead", OPEN_FOR_MOVE)])))
    if numbers:
        openings.append(reads.where(_is([("qm2qm", 2)]) & F.col("queue_handle").isin(*numbers)))
    found = gather({place: rows.collect for place, rows in enumerate(openings)})
    opened = {row["call_key"]: row for rows in found.values() for row in rows}.values()
    given = {row["context_handle"] for row in opened if row["context_handle"]}
    asked = {"closes": only(reads.where(_is([("RemoteRead", 3), ("qm2qm", 3)])), "context_handle", given).collect}
    if numbers:
        nothing = {name: F.lit(None).cast("decimal(20,0)").alias(name) for name in ("lookup_id", "move_context")}
        clients = at_these(lake.read(CLIENT_CALLS)).where("interface_name = 'qmcomm' AND opnum IN (2, 3)")
        asked["clients"] = clients.select(
            *_CALL, F.col("interface_name").alias("protocol"), *nothing.values(),
            F.lit(None).cast("string").alias("transaction_id"), *_times(),
        ).collect  # fmt: skip
    rpc = at_these(lake.read(CONNECTIONS)).where("kind = 'rpc'")
    asked["connections"] = rpc.select(
        "server_address",
        *(F.unix_micros(name).alias(name) if name.endswith("_at") else F.col(name) for name in CONNECTION),
    ).collect
    more = gather(asked)
    others = (*opened, *more["closes"], *more.get("clients", ()))
    calls = [*done, *(row.asDict(recursive=True) for row in others)]
    out: list[dict[str, Any]] = []
    for server in {row["server_address"] for row in calls}:
        theirs = [Connection(**{name: row[name] for name in CONNECTION}) for row in more["connections"]
                  if row["server_address"] == server]  # fmt: skip
        out += operations([row for row in calls if row["server_address"] == server], theirs)
    return [_raw(row) for row in out]
