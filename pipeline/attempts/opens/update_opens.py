"""Update of gold.queue_opens, beside the attempts (``update``): server by server.

What an open was blocked by, and until when a queue was open, depends on all opens of its server. These are few, and
read as a whole (``open_rows.OPEN_CALLS``). A server is recomputed where a call that opens or closes a queue changed, or
a connection in what associations depend on, or the canonical name of a queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pipeline.attempts.attempt_rows import OUTCOME_COLUMNS
from pipeline.attempts.changed_rows import GROUP_COLUMNS, RPC_CONNECTIONS_QUERY, FeedRow
from pipeline.attempts.client_identity import identities_table
from pipeline.attempts.opens.open_rows import (
    CLIENT_COLUMNS,
    IS_OPEN_CALL_SQL,
    OPEN_CALLS,
    READ_COLUMNS,
    queue_opens_frame,
    queue_opens_table,
)
from pipeline.lake.arrow_rows import is_in
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.queries import where_in
from pipeline.lake.spark.settings import fixed_row_batches
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.queue_opens import QUEUE_OPENS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table

_MAX_CALLS_IN_MEMORY: Final = 500_000  # more calls are processed in Spark
_COLUMNS: Final = {REMOTE_READ_CALLS: READ_COLUMNS, CLIENT_CALLS: CLIENT_COLUMNS, RPC_CALLS: OUTCOME_COLUMNS}
_INPUTS: Final = (REMOTE_READ_CALLS, CONNECTIONS, RPC_CALLS, CLIENT_CALLS, RPC_BINDS)  # of ``queue_opens_frame``
_LIFE: Final = (*GROUP_COLUMNS, "first_packet_at", "closed_at", "syn_seen")


def changed_servers_query(table: Table) -> str:
    """Return the query over a change feed of calls: the servers where queues were opened or closed."""
    return f"SELECT DISTINCT server_address FROM {{feed}} WHERE {IS_OPEN_CALL_SQL[table]}"


def servers_of_changed_connections(images: Iterable[FeedRow]) -> set[str]:
    """Return the servers of connections that changed in what opens depend on (``CHANGED_CONNECTIONS_QUERY``)."""
    before: defaultdict[str, set[tuple[Any, ...]]] = defaultdict(set)
    now: defaultdict[str, set[tuple[Any, ...]]] = defaultdict(set)
    servers: defaultdict[str, set[str]] = defaultdict(set)
    for row in images:
        facts = (*(row[name] for name in _LIFE), bool(row["missing_bytes"]))
        (now if row["added"] else before)[row["connection_id"]].add(facts)
        servers[row["connection_id"]].add(row["server_address"])
    return set().union(*(servers[name] for name in servers if before[name] != now[name]))


def update_servers(
    lake: Lake,
    servers: Collection[str | None],
    *,
    renamed: Collection[str],
    connections: pa.Table | None,
    aliases: Mapping[str, str],
) -> None:
    """Recompute the opens of some servers, and of those where a queue was ``renamed``; replace the rows that differ.

    ``connections`` as for ``find_recompute_scope``.
    """
    named = {server for server in servers if server is not None}
    if renamed and lake.exists(QUEUE_OPENS):
        base = "split_part(queue, ';', 1)"
        sql = f"SELECT DISTINCT server_address FROM {{opens}} WHERE queue IN {{names}} OR {base} IN {{names}}"
        named |= {*lake.query(sql, opens=QUEUE_OPENS, names=renamed)["server_address"].to_pylist()} - {None}
    if not named:
        return
    rows = _rows_in_memory(lake, named, connections, aliases)
    if rows is None:
        with fixed_row_batches(lake.spark):
            frames = [lake.read(table) for table in _INPUTS]
            theirs = (where_in(frame, "server_address", named) for frame in frames)
            rows = queue_opens_frame(*theirs, aliases=aliases).toArrow()
    current = lake.select(QUEUE_OPENS, "server_address IN {servers}", servers=named)
    dates = {*rows[EVENT_DATE].to_pylist(), *current[EVENT_DATE].to_pylist()}
    if rows.num_rows or current.num_rows:
        lake.replace_changed(QUEUE_OPENS, rows, current, dates=dates)


def update_all(lake: Lake, aliases: Mapping[str, str]) -> None:
    """Recompute all opens in Spark."""
    frames = [lake.read(table) for table in _INPUTS]
    lake.replace(QUEUE_OPENS, queue_opens_frame(*frames, aliases=aliases))


def _rows_in_memory(
    lake: Lake, servers: Collection[str], connections: pa.Table | None, aliases: Mapping[str, str]
) -> pa.Table | None:
    """Return the opens of some servers; None where there are too many calls."""
    found = run_concurrently({str(table): partial(_calls, lake, table, servers) for table in OPEN_CALLS})
    reads, known, clients = (found[str(table)] for table in (REMOTE_READ_CALLS, RPC_CALLS, CLIENT_CALLS))
    if reads is None or known is None or clients is None:
        return None
    if connections is None:
        sql = f"SELECT * FROM ({RPC_CONNECTIONS_QUERY}) WHERE server_address IN {{servers}}"
        connections = lake.query(sql, connections=CONNECTIONS, servers=servers)
    here = connections.filter(is_in(connections, "server_address", servers))
    clients_of = {*reads["connection_id"].to_pylist(), *clients["connection_id"].to_pylist()}
    return queue_opens_table(reads, here, known, clients, identities_table(lake, clients_of), aliases=aliases)


def _calls(lake: Lake, table: Table, servers: Collection[str]) -> pa.Table | None:
    sql = f"SELECT {', '.join(_COLUMNS[table])} FROM {{rows}} WHERE server_address IN {{servers}}"
    return lake.query_at_most(sql, _MAX_CALLS_IN_MEMORY, rows=OPEN_CALLS[table], servers=servers)
