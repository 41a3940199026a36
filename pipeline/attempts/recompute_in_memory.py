"""Recomputes the attempts and operations of a scope in memory.

The functions are those of ``attempt_rows.attempts_function``, but few calls of the servers are read. Of ongoing
associations the affected calls are found by the keys that they depend on (``dependency_keys``), and then the calls that
publish their keys. The grouped query for all attempts would read all calls of these servers: it is asked only where
those of the scope are very many (``update``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.attempts import affected_scope, dependency_keys
from pipeline.attempts.affected_scope import RecomputeScope
from pipeline.attempts.attempt_rows import (
    ATTEMPT_READ_COLUMNS,
    CLIENT_CALL_COLUMNS,
    IS_CLIENT_CALL_SQL,
    IS_READ_SQL,
    OUTCOME_COLUMNS,
    READ_MESSAGE_COLUMNS,
    call_facts_table,
    receive_attempts_table,
)
from pipeline.attempts.changed_rows import RPC_CONNECTIONS_QUERY
from pipeline.attempts.client_identity import identities_table
from pipeline.attempts.dependency_keys import concat_unique, keys_in_column
from pipeline.attempts.operation_rows import queue_operations_table
from pipeline.attempts.server_openings import OPENING_CALLS
from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, Values
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.table import Table
from udfs.keys import keys_of_texts

_REQUEST_KEY: Final = ("server_address", "queue_handle", "request_id")


class Recomputed(NamedTuple):
    """Recomputed rows of gold.receive_attempts, the ``stored_rows`` in the table, and the calls' ``messages``.

    ``operations`` and ``stored_operations`` are the same of gold.queue_operations.
    """

    rows: pa.Table
    stored_rows: pa.Table
    messages: pa.Table
    operations: pa.Table
    stored_operations: pa.Table


def recompute(
    lake: Lake,
    scope: RecomputeScope,
    *,
    connections: pa.Table | None,
    numbered: Collection[str],
    ends: Mapping[str, int],
    aliases: Mapping[str, str],
    cleanup_s: float,
) -> Recomputed:
    """Recompute the attempts and operations of the scope; ``ends`` and ``aliases`` as for ``receive_attempts_table``.

    ``connections`` as for ``find_recompute_scope``. At ``numbered`` servers queues are used by number: what opened
    and closed them there is read for all dates.
    """
    asked = _ScopeQueries(
        lake, scope, frozenset(server for server in scope.servers if server in numbered and server is not None)
    )
    found = run_concurrently(asked.first_queries())
    ours, others = found["reads"], [found["openings"]] if asked.servers else []
    if scope.ongoing_connections:
        published = scope.changed_keys | keys_in_column(found["newly closed"], "published_keys")
        if asked.servers:  # a close also affects users of the number that was opened
            openings = zip(
                found["openings"]["session"].to_pylist(), found["openings"]["number"].to_pylist(), strict=True
            )
            published |= {number for session, number in openings if session in published and number is not None}
        dependents = asked.calls_with_keys(dependency_keys.REQUIRED_KEYS, published)
        ours = concat_unique(ours, dependents)
        others.append(asked.calls_with_keys(dependency_keys.PUBLISHED_KEYS, keys_in_column(dependents, "rests_on")))
    facts = concat_unique(ours, *others)
    if shared := _request_keys(facts) & scope.cancelled_requests:
        facts = concat_unique(
            facts,
            asked.reads(
                affected_scope.SHARES_REQUEST_KEY_SQL, everywhen=True, shared=affected_scope.request_key_texts(shared)
            ),
        )
    known = concat_unique(found["known"], *([found["known of openings"]] if asked.servers else []))
    unknown = set(_calls_not_in(facts, known)["call_key"].to_pylist())
    more = run_concurrently(asked.second_queries(ours, unknown, everywhen=bool(shared)))
    known = pa.concat_tables([known, more["known"]])
    current, current_operations = (pa.concat_tables([found[name], more[name]]) for name in ("current", "operations"))
    facts = call_facts_table(
        facts, found.get("clients"), known=known, messages=more["messages"], identities=more["identities"]
    )
    at_servers = _connections(lake, scope, connections, asked.servers)
    rows = receive_attempts_table(facts, at_servers, ends=ends, aliases=aliases, cleanup_s=cleanup_s)
    operations = queue_operations_table(facts, at_servers, aliases=aliases)
    attempt_keys = pa.array(keys_of_texts(ours["call_key"].to_pylist()), pa.string())
    rows = rows.filter(pc.is_in(rows["attempt_key"], attempt_keys))
    operations = operations.filter(pc.is_in(operations["call_key"], ours["call_key"].combine_chunks()))
    return Recomputed(rows, current, more["messages"], operations, current_operations)


class _ScopeQueries(NamedTuple):
    """The queries of a scope; at ``servers`` queues are used by number."""

    lake: Lake
    scope: RecomputeScope
    servers: frozenset[str]

    def first_queries(self) -> dict[str, Callable[[], pa.Table]]:
        """Return the first queries: of connections that are recomputed as a whole, and of servers."""
        named, whole = "connection_id IN {names}", self.scope.connections_in_full
        asked: dict[str, Callable[[], pa.Table]] = {
            "reads": lambda: self.reads(named, names=whole),
            "known": lambda: self._query(RPC_CALLS, OUTCOME_COLUMNS, named, names=whole),
            "current": lambda: self._current_rows(RECEIVE_ATTEMPTS, named, names=whole),
            "operations": lambda: self._current_rows(QUEUE_OPERATIONS, named, names=whole),
        }
        if self.servers:
            opening = "opnum IN (2, 3) AND server_address IN {servers}"
            at_these = partial(self._query_openings, servers=self.servers)
            names = (f"{dependency_keys.SESSION_KEY} AS session", f"{dependency_keys.QUEUE_NUMBER_KEY} AS number")
            columns = (*ATTEMPT_READ_COLUMNS, *names)
            asked["openings"] = lambda: at_these(REMOTE_READ_CALLS, columns, f"protocol = 'qm2qm' AND {opening}")
            ours = f"interface_name = 'qm2qm' AND {opening}"
            asked["known of openings"] = lambda: at_these(RPC_CALLS, OUTCOME_COLUMNS, ours)
            clients = f"{IS_CLIENT_CALL_SQL} AND server_address IN {{servers}}"
            asked["clients"] = lambda: at_these(CLIENT_CALLS, CLIENT_CALL_COLUMNS, clients)
        if self.scope.ongoing_connections:
            published = (f"{dependency_keys.key_array(dependency_keys.PUBLISHED_KEYS)} AS published_keys",)
            unanswered = "responded_at IS NULL AND connection_id IN {names}"
            asked["newly closed"] = lambda: self._query(
                REMOTE_READ_CALLS, published, unanswered, names=self.scope.newly_closed_connections
            )
        return asked

    def second_queries(
        self, ours: pa.Table, unknown: Collection[str], *, everywhen: bool
    ) -> dict[str, Callable[[], pa.Table]]:
        """Return the queries by call that follow: of ongoing connections, of ``unknown`` calls, and of messages.

        ``everywhen``: calls are read for all dates.
        """
        ongoing = self.scope.ongoing_connections
        calls = self.scope.changed_calls | {*ours["call_key"].to_pylist()} if ongoing else frozenset()
        answered = ours.filter(pc.is_valid(ours["responded_at"]))["call_key"].to_pylist()
        theirs = "connection_id IN {names} AND "
        return {
            "known": lambda: self._query(
                RPC_CALLS, OUTCOME_COLUMNS, "call_key IN {keys}", keys=unknown, everywhen=everywhen
            ),
            "identities": lambda: identities_table(self.lake, {*ours["connection_id"].to_pylist()}),
            "messages": lambda: self._query(MESSAGES, READ_MESSAGE_COLUMNS, "call_key IN {keys}", keys=answered),
            "current": lambda: self._current_rows(
                RECEIVE_ATTEMPTS, f"{theirs} attempt_key IN {{keys}}", names=ongoing, keys={*keys_of_texts(calls)}
            ),
            "operations": lambda: self._current_rows(
                QUEUE_OPERATIONS, f"{theirs} call_key IN {{keys}}", names=ongoing, keys=calls
            ),
        }

    def calls_with_keys(self, names: Sequence[str], some: Collection[str]) -> pa.Table:
        """Return the calls of ongoing associations that have one of some keys, with the keys that they depend on."""
        where = f"connection_id IN {{ongoing}} AND {dependency_keys.keys_overlap(names, 'some')}"
        rests_on = (f"{dependency_keys.key_array(dependency_keys.REQUIRED_KEYS)} AS rests_on",)
        return self.reads(where, more=rests_on, ongoing=self.scope.ongoing_connections, some=some)

    def reads(self, where: str, *, more: Sequence[str] = (), everywhen: bool = False, **of: QueryInput) -> pa.Table:
        """Return the calls of silver.remote_read_calls that have a role in remote reads, with ``more`` columns."""
        return self._query(
            REMOTE_READ_CALLS, (*ATTEMPT_READ_COLUMNS, *more), f"{IS_READ_SQL} AND {where}", everywhen=everywhen, **of
        )

    def _query(
        self, table: Table, columns: Sequence[str], where: str, *, everywhen: bool = False, **of: QueryInput
    ) -> pa.Table:
        """Return columns of a table's rows, of the scope's dates or of all."""
        here = "TRUE" if everywhen else dates_condition(self.scope.dates)
        return self.lake.query(f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {here} AND {where}", rows=table, **of)

    def _query_openings(self, table: Table, columns: Sequence[str], where: str, **of: QueryInput) -> pa.Table:
        """Return columns of the calls that open and close at servers, of all dates."""
        return self.lake.query(
            f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {where}", rows=OPENING_CALLS[table], **of
        )

    def _current_rows(self, table: Table, where: str, **of: Values) -> pa.Table:
        """Return rows of a table of gold as stored."""
        return self.lake.select(table, f"{dates_condition(self.scope.dates)} AND {where}", **of)


def _connections(lake: Lake, scope: RecomputeScope, connections: pa.Table | None, servers: frozenset[str]) -> pa.Table:
    """Return the connections of the scope, and all connections of some servers."""
    if connections is None:
        if not servers:
            return scope.connection_rows
        sql = f"SELECT * FROM ({RPC_CONNECTIONS_QUERY}) WHERE server_address IN {{servers}}"
        found = lake.query(sql, connections=CONNECTIONS, servers=servers)
        return pa.concat_tables(
            [scope.connection_rows.filter(pc.invert(is_in(scope.connection_rows, "server_address", servers))), found]
        )
    ours = pc.is_in(connections["connection_id"], scope.connection_rows["connection_id"].combine_chunks())
    return connections.filter(pc.or_(ours, is_in(connections, "server_address", servers)))


def _request_keys(reads: pa.Table) -> set[tuple[Any, ...]]:
    """Return the request keys of qm2qm calls."""
    ours = reads.filter(pc.equal(reads["protocol"], "qm2qm"))
    return set(zip(*(ours[name].to_pylist() for name in _REQUEST_KEY), strict=True))


def _calls_not_in(calls: pa.Table, others: pa.Table) -> pa.Table:
    """Return the calls whose key is not among those of others."""
    return calls.filter(pc.invert(pc.is_in(calls["call_key"], others["call_key"].combine_chunks())))
