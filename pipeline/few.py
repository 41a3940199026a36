"""Few attempts, settled here: the calls of a scope and all that is known of them, brought to the driver.

What Spark would plan for seconds takes a fraction of one in plain rows. The rows settled are those that
``pipeline.gold.receive_attempts`` takes of the whole tables, and the function is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import touched
from pipeline.gather import gather
from pipeline.gold import attempts_of, clients_of, known_of, messages_of, reads_of
from pipeline.lake import Lake, on_dates
from pipeline.touched import Scope, only
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.silver import REMOTE_READ_CALLS

_STARTS: Final = pa.array([0, 9, 10], pa.int32())  # of qm2qm
_SHARED: Final = ("server_address", "queue_handle", "request_id")


class Settled(NamedTuple):
    """``rows`` of gold.receive_attempts as they are now, ``there`` as they were, and the ``messages`` of the calls."""

    rows: pa.Table
    there: pa.Table
    messages: pa.Table


class _Calls(NamedTuple):
    """Calls with what bronze knows of them, those of qmcomm, and connections."""

    reads: pa.Table
    known: pa.Table
    clients: pa.Table | None
    connections: pa.Table


def settle(lake: Lake, scope: Scope, ends: Mapping[str, int], texts: Mapping[str, str], *, cleanup_s: float) -> Settled:
    """Settle the attempts of the scope's connections; ``ends`` and ``texts`` as for ``attempts_of``."""
    here = on_dates(scope.dates)
    ours = partial(only, column="connection_id", values=scope.connections)
    asked: dict[str, pa.Table] = gather(
        {
            "reads": lambda: reads_of(ours(lake.read(REMOTE_READ_CALLS).where(here))).toArrow(),
            "known": lambda: known_of(ours(lake.read(RPC_CALLS).where(here))).toArrow(),
            "there": lambda: ours(lake.read(RECEIVE_ATTEMPTS).where(here)).toArrow(),
        }
    )
    calls = _Calls(asked["reads"], asked["known"], None, scope.members)
    if numbered := _numbered(calls.reads):
        calls = _with_openings(lake, calls, numbered, _keys(calls.reads) & scope.cancels)
    answered = calls.reads.filter(pc.is_valid(calls.reads["responded_at"]))
    messages = only(lake.read(MESSAGES).where(here), "call_key", answered["call_key"].to_pylist())
    brought = messages_of(messages).toArrow()
    rows = attempts_of(
        calls.reads,
        calls.clients,
        calls.connections,
        known=calls.known,
        messages=brought,
        ends=ends,
        aliases=texts,
        cleanup_s=cleanup_s,
    )
    of_scope = pc.is_in(rows["connection_id"], pa.array(sorted(scope.connections), pa.string()))
    return Settled(rows.filter(of_scope), asked["there"], brought)


def _with_openings(lake: Lake, calls: _Calls, servers: set[str | None], shared: set[tuple[Any, ...]]) -> _Calls:
    """Add what qm2qm attempts at these servers rest on beyond their associations, whenever it was captured.

    That is what opened and let go queues there, with its connections, and what shares its number with a cancel.
    """
    reads = lake.read(REMOTE_READ_CALLS)
    there = partial(only, column="server_address", values=servers)
    opening = (F.col("protocol") == "qm2qm") & F.col("opnum").isin(2, 3)
    near = there(reads.where(opening)).union(touched.sharing(reads, shared)) if shared else there(reads.where(opening))
    asked: dict[str, pa.Table] = gather(
        {
            "reads": lambda: reads_of(near).toArrow(),
            "clients": lambda: clients_of(there(lake.read(CLIENT_CALLS))).toArrow(),
            "connections": lambda: touched.members(there(lake.read(CONNECTIONS))).toArrow(),
        }
    )
    more, known = _without(asked["reads"], calls.reads, "call_key"), calls.known
    if more.num_rows:
        bronze: DataFrame = only(lake.read(RPC_CALLS), "call_key", more["call_key"].to_pylist())
        known = pa.concat_tables([known, known_of(bronze).toArrow()])
    connections = _without(asked["connections"], calls.connections, "connection_id")
    return _Calls(
        pa.concat_tables([calls.reads, more]),
        known,
        asked["clients"],
        pa.concat_tables([calls.connections, connections]),
    )


def _numbered(reads: pa.Table) -> set[str | None]:
    """Return the servers that are read from by a number of theirs."""
    starts = pc.and_(pc.equal(reads["protocol"], "qm2qm"), pc.is_in(reads["opnum"], _STARTS))
    return set(reads.filter(starts)["server_address"].to_pylist())


def _keys(reads: pa.Table) -> set[tuple[Any, ...]]:
    """Return what qm2qm calls share with their cancels."""
    ours = reads.filter(pc.equal(reads["protocol"], "qm2qm"))
    return set(zip(*(ours[name].to_pylist() for name in _SHARED), strict=True))


def _without(rows: pa.Table, others: pa.Table, key: str) -> pa.Table:
    """Return the rows, each key once, whose key no other row has."""
    seen = set(others[key].to_pylist())
    places = {name: place for place, name in enumerate(rows[key].to_pylist()) if name not in seen}
    return rows.take(pa.array(sorted(places.values()), pa.int64()))
