"""Update of gold.queue_opens, beside the attempts (``update``): server by server.

What an open was blocked by, and until when a queue was open, depends on all opens of its server. These are few, and
read as a whole (``OPENING_CALLS``). A server is recomputed where a call that opens or closes a queue changed, or
a connection in what associations depend on, or the canonical name of a queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from pipeline.attempts.changed_rows import GROUP_COLUMNS, FeedRow
from pipeline.attempts.open_rows import IS_OPEN_CALL_SQL, open_queries, opens_function
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupedQuery
from schemas.attempts import QUEUE_OPENS
from schemas.table import Table

_LIFE: Final = (
    *GROUP_COLUMNS, "first_packet_at", "closed_at", "association_joined", "syn_seen", "uncaptured_side", "without_bind",
)  # fmt: skip


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
    aliases: Mapping[str, str],
) -> None:
    """Recompute the opens of some servers, and of those where a queue was ``renamed``; replace the rows that differ."""
    named = {server for server in servers if server is not None}
    if renamed and lake.exists(QUEUE_OPENS):
        base = "split_part(queue, ';', 1)"
        sql = f"SELECT DISTINCT server_address FROM {{opens}} WHERE queue IN {{names}} OR {base} IN {{names}}"
        named |= {*lake.query(sql, opens=QUEUE_OPENS, names=renamed)["server_address"].to_pylist()} - {None}
    if not named:
        return
    rows = lake.map_few_groups(opens_query(named, aliases))
    current = lake.select(QUEUE_OPENS, "server_address IN {servers}", servers=named)
    dates = distinct_dates(rows, current)
    if rows.num_rows or current.num_rows:
        lake.replace_changed(QUEUE_OPENS, rows, current, dates=dates)


def opens_query(servers: Collection[str] | None, aliases: Mapping[str, str]) -> GroupedQuery:
    """Return the query for the opens of some servers, or of all (None)."""
    return GroupedQuery(open_queries(servers), ("server_address",), opens_function(aliases), QUEUE_OPENS.struct())
