"""Few attempts and operations, settled here: the calls of a scope and all that is known of them, brought to the driver.

What Spark would plan for seconds takes a fraction of one in plain rows. The rows settled are those that
``pipeline.gold.receive_attempts`` takes of the whole tables, and the function is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import touched
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
    """Settle the attempts of the scope's connections; ``ends`` and ``aliases`` as for ``attempts_of``.

    ``connections`` as for ``touched.scope``. At ``numbered`` servers queues are read from by number: what opened and
    let them go there is asked for whenever it was captured.
    """
    here = on_dates(scope.dates)
    ours = partial(only, column="connection_id", values=scope.connections)
    servers = scope.servers & frozenset(numbered)
    at_these = partial(only, column="server_address", values=servers)
    reads, bronze = lake.read(REMOTE_READ_CALLS), lake.read(RPC_CALLS)
    asked: dict[str, Callable[[], pa.Table]] = {
        "reads": lambda: reads_of(ours(reads.where(here))).toArrow(),
        "known": lambda: known_of(ours(bronze.where(here))).toArrow(),
        "there": lambda: ours(lake.read(RECEIVE_ATTEMPTS).where(here)).toArrow(),
        "operations": lambda: ours(lake.read(QUEUE_OPERATIONS).where(here)).toArrow(),
    }
    if servers:
        opening = (F.col("protocol") == "qm2qm") & F.col("opnum").isin(2, 3)
        asked["openings"] = lambda: reads_of(at_these(reads.where(opening))).toArrow()
        asked["clients"] = lambda: clients_of(at_these(lake.read(CLIENT_CALLS))).toArrow()
    found = gather(asked)
    facts, known = found["reads"], found["known"]
    more = _without(found["openings"], facts) if servers else facts.slice(0, 0)
    if shared := _keys(facts) & scope.cancels:
        more = pa.concat_tables([more, _without(reads_of(touched.sharing(reads, shared)).toArrow(), facts, more)])
    if more.num_rows:
        facts = pa.concat_tables([facts, more])
        known = pa.concat_tables([known, known_of(only(bronze, "call_key", more["call_key"].to_pylist())).toArrow()])
    answered = facts.filter(pc.is_valid(facts["responded_at"]))["call_key"].to_pylist()
    messages = messages_of(only(lake.read(MESSAGES).where(here), "call_key", answered)).toArrow()
    facts = facts_here(facts, found.get("clients"), known=known, messages=messages)
    theirs = _connections(scope, connections, servers)
    rows = attempts_of(facts, theirs, ends=ends, aliases=aliases, cleanup_s=cleanup_s)
    operations = operations_of(facts, theirs, aliases=aliases)
    of_scope = pa.array(sorted(scope.connections), pa.string())
    rows, operations = (made.filter(pc.is_in(made["connection_id"], of_scope)) for made in (rows, operations))
    return Settled(rows, found["there"], messages, operations, found["operations"])


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


def _without(calls: pa.Table, *others: pa.Table) -> pa.Table:
    """Return the calls that are not among others."""
    seen = {name for other in others for name in other["call_key"].to_pylist()}
    return calls.filter(pa.array([name not in seen for name in calls["call_key"].to_pylist()], pa.bool_()))
