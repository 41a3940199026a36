"""Few attempts and operations, settled here: the calls of a scope and all that is known of them, brought to the driver.

What Spark would plan for seconds takes a fraction of one in plain rows. The rows settled are those that
``attempt_rows.receive_attempts`` takes of the whole tables, and the function is the same. Of associations that go on
what is touched is found by the names that it rests on (``bearing``), and then what tells something under its names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts import affected_scope, dependency_keys
from pipeline.attempts.affected_scope import Scope
from pipeline.attempts.attempt_rows import (
    CLIENT,
    CLIENT_COLUMNS,
    KNOWN_COLUMNS,
    MESSAGE_COLUMNS,
    READ,
    READ_COLUMNS,
    attempts_of,
    facts_here,
)
from pipeline.attempts.dependency_keys import named, once
from pipeline.attempts.operation_rows import operations_of
from pipeline.attempts.server_openings import OPENINGS
from pipeline.lake.arrow_rows import one_of
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries import Names, Source
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.messages import MESSAGES
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table
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
    connections: pa.Table | None,
    numbered: Collection[str],
    ends: Mapping[str, int],
    aliases: Mapping[str, str],
    cleanup_s: float,
) -> Settled:
    """Settle the attempts of the scope; ``ends`` and ``aliases`` as for ``attempts_of``.

    ``connections`` as for ``touched.scope``. At ``numbered`` servers queues are read from by number: what opened and
    let them go there is asked for whenever it was captured.
    """
    asked = _Asked(
        lake, scope, frozenset(server for server in scope.servers if server in numbered and server is not None)
    )
    found = gather(asked.questions())
    ours, others = found["reads"], [found["openings"]] if asked.servers else []
    if scope.going_on:
        tell = scope.tell | named(found["woken"], "tells")
        if asked.servers:  # a close tells something of the number that was opened
            openings = zip(
                found["openings"]["session"].to_pylist(), found["openings"]["number"].to_pylist(), strict=True
            )
            tell |= {number for session, number in openings if session in tell and number is not None}
        touched_ones = asked.meeting(dependency_keys.RESTS_ON, tell)
        ours = once(ours, touched_ones)
        others.append(asked.meeting(dependency_keys.TELLS, named(touched_ones, "rests_on")))
    facts = once(ours, *others)
    if shared := _keys(facts) & scope.cancels:
        facts = once(
            facts, asked.reads(affected_scope.SHARING, everywhen=True, shared=affected_scope.shared_texts(shared))
        )
    known = once(found["known"], *([found["known of openings"]] if asked.servers else []))
    unknown = set(_without(facts, known)["call_key"].to_pylist())
    more = gather(asked.questions_of_calls(ours, unknown, everywhen=bool(shared)))
    known = pa.concat_tables([known, more["known"]])
    there, operations_there = (pa.concat_tables([found[name], more[name]]) for name in ("there", "operations"))
    facts = facts_here(facts, found.get("clients"), known=known, messages=more["messages"])
    at_servers = _connections(lake, scope, connections, asked.servers)
    rows = attempts_of(facts, at_servers, ends=ends, aliases=aliases, cleanup_s=cleanup_s)
    operations = operations_of(facts, at_servers, aliases=aliases)
    attempt_keys = pa.array(keys_of(ours["call_key"].to_pylist()), pa.string())
    rows = rows.filter(pc.is_in(rows["attempt_key"], attempt_keys))
    operations = operations.filter(pc.is_in(operations["call_key"], ours["call_key"].combine_chunks()))
    return Settled(rows, there, more["messages"], operations, operations_there)


class _Asked(NamedTuple):
    """What is asked of a scope; at ``servers`` queues are read from by number."""

    lake: Lake
    scope: Scope
    servers: frozenset[str]

    def questions(self) -> dict[str, Callable[[], pa.Table]]:
        """Return what is asked first: of connections that are touched as a whole, and of servers."""
        named, whole = "connection_id IN {names}", self.scope.whole
        asked: dict[str, Callable[[], pa.Table]] = {
            "reads": lambda: self.reads(named, names=whole),
            "known": lambda: self._ask(RPC_CALLS, KNOWN_COLUMNS, named, names=whole),
            "there": lambda: self._there(RECEIVE_ATTEMPTS, named, names=whole),
            "operations": lambda: self._there(QUEUE_OPERATIONS, named, names=whole),
        }
        if self.servers:
            opening = "opnum IN (2, 3) AND server_address IN {servers}"
            at_these = partial(self._opened, servers=self.servers)
            names = (f"{dependency_keys.SESSION} AS session", f"{dependency_keys.NUMBERED} AS number")
            columns = (*READ_COLUMNS, *names)
            asked["openings"] = lambda: at_these(REMOTE_READ_CALLS, columns, f"protocol = 'qm2qm' AND {opening}")
            ours = f"interface_name = 'qm2qm' AND {opening}"
            asked["known of openings"] = lambda: at_these(RPC_CALLS, KNOWN_COLUMNS, ours)
            clients = f"{CLIENT} AND server_address IN {{servers}}"
            asked["clients"] = lambda: at_these(CLIENT_CALLS, CLIENT_COLUMNS, clients)
        if self.scope.going_on:
            tells = (f"{dependency_keys.listed(dependency_keys.TELLS)} AS tells",)
            unanswered = "responded_at IS NULL AND connection_id IN {names}"
            asked["woken"] = lambda: self._ask(REMOTE_READ_CALLS, tells, unanswered, names=self.scope.woken)
        return asked

    def questions_of_calls(
        self, ours: pa.Table, unknown: Collection[str], *, everywhen: bool
    ) -> dict[str, Callable[[], pa.Table]]:
        """Return what is asked then, by call: of connections that go on, of ``unknown`` calls, and of messages.

        ``everywhen``: what is known of calls is asked for of all dates.
        """
        going_on = self.scope.going_on
        calls = self.scope.changed | {*ours["call_key"].to_pylist()} if going_on else frozenset()
        answered = ours.filter(pc.is_valid(ours["responded_at"]))["call_key"].to_pylist()
        theirs = "connection_id IN {names} AND "
        return {
            "known": lambda: self._ask(
                RPC_CALLS, KNOWN_COLUMNS, "call_key IN {keys}", keys=unknown, everywhen=everywhen
            ),
            "messages": lambda: self._ask(MESSAGES, MESSAGE_COLUMNS, "call_key IN {keys}", keys=answered),
            "there": lambda: self._there(
                RECEIVE_ATTEMPTS, f"{theirs} attempt_key IN {{keys}}", names=going_on, keys={*keys_of(calls)}
            ),
            "operations": lambda: self._there(
                QUEUE_OPERATIONS, f"{theirs} call_key IN {{keys}}", names=going_on, keys=calls
            ),
        }

    def meeting(self, names: Sequence[str], some: Collection[int]) -> pa.Table:
        """Return the calls of associations that go on which have one of some names, with what they rest on."""
        where = f"connection_id IN {{going_on}} AND {dependency_keys.meets(names, 'some')}"
        rests_on = (f"{dependency_keys.listed(dependency_keys.RESTS_ON)} AS rests_on",)
        return self.reads(where, more=rests_on, going_on=self.scope.going_on, some=some)

    def reads(self, where: str, *, more: Sequence[str] = (), everywhen: bool = False, **of: Source) -> pa.Table:
        """Return calls of silver.remote_read_calls that play a part, with ``more`` columns."""
        return self._ask(REMOTE_READ_CALLS, (*READ_COLUMNS, *more), f"{READ} AND {where}", everywhen=everywhen, **of)

    def _ask(
        self, table: Table, columns: Sequence[str], where: str, *, everywhen: bool = False, **of: Source
    ) -> pa.Table:
        """Return columns of the rows of a table, of the scope's dates or of all."""
        here = "TRUE" if everywhen else on_dates(self.scope.dates)
        return self.lake.query(f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {here} AND {where}", rows=table, **of)

    def _opened(self, table: Table, columns: Sequence[str], where: str, **of: Source) -> pa.Table:
        """Return columns of what servers opened and let go, of all dates."""
        return self.lake.query(f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {where}", rows=OPENINGS[table], **of)

    def _there(self, table: Table, where: str, **of: Names) -> pa.Table:
        """Return rows of a table of gold as they are."""
        return self.lake.select(table, f"{on_dates(self.scope.dates)} AND {where}", **of)


def _connections(lake: Lake, scope: Scope, connections: pa.Table | None, servers: frozenset[str]) -> pa.Table:
    """Return the connections that the scope knows of, and all of some servers."""
    if connections is None:
        if not servers:
            return scope.members
        sql = f"SELECT * FROM ({affected_scope.MEMBERS}) WHERE server_address IN {{servers}}"
        found = lake.query(sql, connections=CONNECTIONS, servers=servers)
        return pa.concat_tables(
            [scope.members.filter(pc.invert(one_of(scope.members, "server_address", servers))), found]
        )
    ours = pc.is_in(connections["connection_id"], scope.members["connection_id"].combine_chunks())
    return connections.filter(pc.or_(ours, one_of(connections, "server_address", servers)))


def _keys(reads: pa.Table) -> set[tuple[Any, ...]]:
    """Return what qm2qm calls share with their cancels."""
    ours = reads.filter(pc.equal(reads["protocol"], "qm2qm"))
    return set(zip(*(ours[name].to_pylist() for name in _SHARED), strict=True))


def _without(calls: pa.Table, others: pa.Table) -> pa.Table:
    """Return the calls that are not among others."""
    return calls.filter(pc.invert(pc.is_in(calls["call_key"], others["call_key"].combine_chunks())))
