"""Few attempts and operations, settled here: the calls of a scope and all that is known of them, brought to the driver.

What Spark would plan for seconds takes a fraction of one in plain rows. The rows settled are those that
``pipeline.gold.receive_attempts`` takes of the whole tables, and the function is the same. Of associations that go on
what is touched is found by the names that it rests on (``bearing``), and then what tells something under its names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import bearing, touched
from pipeline.bearing import meeting, named, once
from pipeline.gather import gather
from pipeline.gold import attempts_of, clients_of, facts_here, known_of, messages_of, reads_of
from pipeline.gold_operations import operations_of
from pipeline.lake import Lake, on_dates
from pipeline.touched import Scope, only
from schemas.ack_sequences import QUEUE_OPERATIONS
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.silver import REMOTE_READ_CALLS
from udfs.keys import keys_of

_SHARED: Final = ("server_address", "queue_handle", "request_id")


class Settled(NamedTuple):
    """``rows`` of gold.receive_attempts as they are now, ``there`` as they were, and the ``messages`` of the calls.

    ``operations`` and ``operations_there`` are the same of gold.queue_operations.
    """

    rows: pa.Table
    there: pa.Table
    messages: pa.Table
    operations: pa.Table
    operations_there: pa.Table


def settle(
    lake: Lake,
    scope: Scope,
    *,
    connections: DataFrame | pa.Table,
    numbered: Collection[str],
    ends: Mapping[str, int],
    aliases: Mapping[str, str],
    cleanup_s: float,
) -> Settled:
    """Settle the attempts of the scope; ``ends`` and ``aliases`` as for ``attempts_of``.

    ``connections`` as for ``touched.scope``. At ``numbered`` servers queues are read from by number: what opened and
    let them go there is asked for whenever it was captured.
    """
    here = on_dates(scope.dates)
    servers = scope.servers & frozenset(numbered)
    found = gather(_questions(lake, scope, servers, here))
    ours, others = found["reads"], [found["openings"]] if servers else []
    if scope.going_on:
        theirs = _with_names(only(lake.read(REMOTE_READ_CALLS).where(here), "connection_id", scope.going_on))
        tell = scope.tell | named(found["woken"], "tells")
        if servers:  # a close tells something of the number that was opened
            openings = zip(
                found["openings"]["session"].to_pylist(), found["openings"]["number"].to_pylist(), strict=True
            )
            tell |= {number for session, number in openings if session in tell and number is not None}
        touched_ones = meeting(theirs, "rests_on", tell)
        ours = once(ours, touched_ones)
        others.append(meeting(theirs, "tells", named(touched_ones, "rests_on")))
    facts = once(ours, *others)
    if shared := _keys(facts) & scope.cancels:
        facts = once(facts, reads_of(touched.sharing(lake.read(REMOTE_READ_CALLS), shared)).toArrow())
    known = once(found["known"], *([found["known of openings"]] if servers else []))
    unknown = set(_without(facts, known)["call_key"].to_pylist())
    more = gather(_questions_of_calls(lake, scope, "TRUE" if shared else here, ours, unknown))
    known = pa.concat_tables([known, more["known"]])
    there, operations_there = (pa.concat_tables([found[name], more[name]]) for name in ("there", "operations"))
    facts = facts_here(facts, found.get("clients"), known=known, messages=more["messages"])
    at_servers = _connections(scope, connections, servers)
    rows = attempts_of(facts, at_servers, ends=ends, aliases=aliases, cleanup_s=cleanup_s)
    operations = operations_of(facts, at_servers, aliases=aliases)
    attempt_keys = pa.array(keys_of(ours["call_key"].to_pylist()), pa.string())
    rows = rows.filter(pc.is_in(rows["attempt_key"], attempt_keys))
    operations = operations.filter(pc.is_in(operations["call_key"], ours["call_key"].combine_chunks()))
    return Settled(rows, there, more["messages"], operations, operations_there)


def _questions(
    lake: Lake, scope: Scope, servers: Collection[str | None], here: str
) -> dict[str, Callable[[], pa.Table]]:
    """Return what is asked first: of connections that are touched as a whole, and of servers."""
    reads, clients = lake.read(REMOTE_READ_CALLS), lake.read(CLIENT_CALLS)
    whole = partial(only, column="connection_id", values=scope.whole)
    at_these = partial(only, column="server_address", values=servers)
    asked: dict[str, Callable[[], pa.Table]] = {
        "reads": lambda: reads_of(whole(reads.where(here))).toArrow(),
        "known": lambda: known_of(whole(lake.read(RPC_CALLS).where(here))).toArrow(),
        "there": lambda: whole(lake.read(RECEIVE_ATTEMPTS).where(here)).toArrow(),
        "operations": lambda: whole(lake.read(QUEUE_OPERATIONS).where(here)).toArrow(),
    }
    if servers:
        opening = (F.col("protocol") == "qm2qm") & F.col("opnum").isin(2, 3)
        names = {"session": bearing.session(), "number": bearing.numbered()}
        asked["openings"] = lambda: reads_of(at_these(reads.where(opening))).withColumns(names).toArrow()
        calls = lake.read(RPC_CALLS).withColumnRenamed("interface_name", "protocol")
        asked["known of openings"] = lambda: known_of(at_these(calls.where(opening))).toArrow()
        asked["clients"] = lambda: clients_of(at_these(clients)).toArrow()
    if scope.going_on:
        unanswered = only(reads.where(here).where("responded_at IS NULL"), "connection_id", scope.woken)
        asked["woken"] = lambda: unanswered.select(bearing.tells().alias("tells")).toArrow()
    return asked


def _questions_of_calls(
    lake: Lake, scope: Scope, here: str, ours: pa.Table, unknown: Collection[str]
) -> dict[str, Callable[[], pa.Table]]:
    """Return what is asked then, by call: of connections that go on, of calls nothing is ``known`` of, and messages."""
    going_on = partial(only, column="connection_id", values=scope.going_on)
    calls = scope.changed | {*ours["call_key"].to_pylist()} if scope.going_on else frozenset()
    answered = ours.filter(pc.is_valid(ours["responded_at"]))["call_key"].to_pylist()
    there, operations = (going_on(lake.read(table).where(here)) for table in (RECEIVE_ATTEMPTS, QUEUE_OPERATIONS))
    return {
        "known": lambda: known_of(only(lake.read(RPC_CALLS).where(here), "call_key", unknown)).toArrow(),
        "messages": lambda: messages_of(only(lake.read(MESSAGES).where(here), "call_key", answered)).toArrow(),
        "there": lambda: only(there, "attempt_key", {*keys_of(calls)}).toArrow(),
        "operations": lambda: only(operations, "call_key", calls).toArrow(),
    }


def _with_names(reads: DataFrame) -> DataFrame:
    """Return calls that play a part, with the names that they tell something under, and rest on."""
    return reads_of(reads).withColumns({"tells": bearing.tells(), "rests_on": bearing.rests_on()})


def _connections(scope: Scope, connections: DataFrame | pa.Table, servers: frozenset[str | None]) -> pa.Table:
    """Return the connections that the scope knows of, and all of some servers."""
    ours = scope.members["connection_id"].combine_chunks()
    theirs = pa.array(sorted(server for server in servers if server is not None), pa.string())
    if isinstance(connections, DataFrame):
        if not servers:
            return scope.members
        found = touched.members(only(connections, "server_address", servers)).toArrow()
        return pa.concat_tables(
            [scope.members.filter(pc.invert(pc.is_in(scope.members["server_address"], theirs))), found]
        )
    return connections.filter(
        pc.or_(pc.is_in(connections["connection_id"], ours), pc.is_in(connections["server_address"], theirs))
    )


def _keys(reads: pa.Table) -> set[tuple[Any, ...]]:
    """Return what qm2qm calls share with their cancels."""
    ours = reads.filter(pc.equal(reads["protocol"], "qm2qm"))
    return set(zip(*(ours[name].to_pylist() for name in _SHARED), strict=True))


def _without(calls: pa.Table, others: pa.Table) -> pa.Table:
    """Return the calls that are not among others."""
    return calls.filter(pc.invert(pc.is_in(calls["call_key"], others["call_key"].combine_chunks())))
