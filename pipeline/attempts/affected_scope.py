"""Which attempts and operations a change of the inputs affects, as connections and event dates.

An attempt depends on the calls and connections of its association, on the end of its server's capture, on the
canonical name of its queue, and in qm2qm on calls of any connection: the cancels of its request number, and what
opened and closed its queue's number. So these are affected:

* the associations of changed calls and connections, before and after the change;
* associations of the same client whose connections overlap in time with a changed connection that may be part of
  them (``RpcConnection.is_without_bind``);
* attempts that are open until the server's capture has gone on for long enough;
* attempts whose queue has another canonical name now;
* qm2qm Starts that share queue handle and request number with a cancel, where either changed;
* qm2qm Starts after a changed opening, closing or end of a connection at their server;
* attempts on connections whose client claims to be another than before.

More may be recomputed, never less. Purges and moves (gold.queue_operations) are affected with the connections that
they came over; a purge by number is affected as a Start is. Of associations that only gained calls
(``ongoing_associations``), which may last for months, only what depends on a key of a changed call is recomputed
(``dependency_keys``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts, is_in, no_texts, unique_rows
from pipeline.attempts import dependency_keys
from pipeline.attempts.attempt_rows import CONNECTION_DEFAULTS, CONNECTION_FIELDS
from pipeline.attempts.calls.associations import RpcConnection, group_into_associations
from pipeline.attempts.changed_rows import (
    CALL_TIME_SQL,
    CANCEL_OPNUM,
    GROUP_COLUMNS,
    OPENING_OPNUMS,
    PLACES_SCHEMA,
    PUBLISHED_KEYS_SCHEMA,
    QUEUE_NUMBER_OPNUMS,
    REQUEST_KEY_SQL,
    RPC_CONNECTIONS_QUERY,
    START_OPNUMS,
    FeedRow,
    InputChanges,
    connections_before_change,
    existed_in,
    sql_values,
    times_without_bind,
)
from pipeline.attempts.ongoing_associations import OngoingAssociations, find_ongoing
from pipeline.attempts.server_openings import OPENING_CALLS
from pipeline.bronze.across_captures.capture_ends import values_of_servers
from pipeline.lake.date_filters import DateSpan, distinct_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from udfs.times import DAY_US, EPOCH

MIN_CALLS_FOR_KEYS: Final = 20_000  # with fewer calls, recomputing all is faster than selecting by keys

SHARES_REQUEST_KEY_SQL: Final = (
    f"protocol = 'qm2qm' AND opnum IN {sql_values((*START_OPNUMS, CANCEL_OPNUM))} AND {REQUEST_KEY_SQL} IN {{shared}}"
)
"""The condition of qm2qm Starts and cancels that have one of some request keys."""
IS_OPENING_SQL: Final = (
    f"protocol = 'qm2qm' AND opnum IN {sql_values(OPENING_OPNUMS)} AND server_address IN {{numbered}}"
)
"""The condition of calls that open and close queues by number at some servers."""
_IS_CANCEL: Final = f"protocol = 'qm2qm' AND opnum = {CANCEL_OPNUM}"
_GROUP_KEY, _CLIENT_KEY = (f"concat_ws('|', {', '.join(columns)})" for columns in (GROUP_COLUMNS, GROUP_COLUMNS[:2]))
# All connections of the groups of some connections, of ``groups``, and of ``clients``; and those without bind of all
# their clients.
_GROUP_CONNECTIONS: Final = f"""
WITH rpc AS ({RPC_CONNECTIONS_QUERY}), wanted AS (
  SELECT {", ".join(GROUP_COLUMNS)} FROM rpc WHERE connection_id IN {{names}}
  UNION SELECT {", ".join(GROUP_COLUMNS)} FROM {{groups}}
)
SELECT * FROM rpc WHERE {_GROUP_KEY} IN (SELECT {_GROUP_KEY} FROM wanted)
  OR {_CLIENT_KEY} IN (SELECT {_CLIENT_KEY} FROM {{clients}})
  OR (without_bind AND {_CLIENT_KEY} IN (SELECT {_CLIENT_KEY} FROM wanted))"""
_GROUPS_SCHEMA: Final = pa.schema([(name, pa.string()) for name in GROUP_COLUMNS])


@dataclass(frozen=True, slots=True)
class RecomputeScope:
    """The connections whose attempts are recomputed, and the event dates of their calls and attempts.

    Of ``connections`` all attempts are recomputed; of ``ongoing_connections`` only those of ``ongoing_calls``, which
    require a changed key; ``changed_calls`` are their changed, new or deleted calls. ``connection_rows`` are the rows
    of bronze.connections of these and more, ``call_count`` the number of calls to recompute; ``cancelled_requests``
    what qm2qm Starts of theirs share with cancels (``REQUEST_KEY_SQL``). At ``numbered`` servers queues are used by
    number: the connections on which they are opened, closed and cancelled are among the rows. All requests of these
    calls were sent at ``since`` or later, microseconds: of a busy day little is read.
    """

    connections: pa.Array = field(default_factory=no_texts)
    ongoing_connections: pa.Array = field(default_factory=no_texts)
    dates: frozenset[date | None] = frozenset()
    connection_rows: pa.Table = field(default_factory=lambda: pa.table({"connection_id": [], "server_address": []}))
    call_count: int = 0
    cancelled_requests: pa.Array = field(default_factory=no_texts)
    numbered: frozenset[str] = frozenset()
    ongoing_calls: pa.Array = field(default_factory=no_texts)
    changed_calls: pa.Array = field(default_factory=no_texts)
    since: int = 0

    def __bool__(self) -> bool:
        return bool(len(self.connections) or len(self.ongoing_connections))

    @property
    def all_connections(self) -> pa.Array:
        """All connections of which attempts are recomputed."""
        return distinct_texts(self.connections, self.ongoing_connections)

    @property
    def servers(self) -> frozenset[str | None]:
        """Their servers."""
        ours = self.connection_rows.filter(is_in(self.connection_rows, "connection_id", self.all_connections))
        return frozenset(pc.unique(ours["server_address"]).to_pylist())


def find_recompute_scope(
    lake: Lake,
    changed: InputChanges,
    read_published_keys: Callable[[pa.Array], pa.Table],
    ends: Mapping[str, int],
    *,
    numbered: Mapping[str, int],
    cancels: bool,
) -> RecomputeScope:
    """Return what changes affect.

    ``read_published_keys`` returns, of the changed calls on some connections, connection_id, call_key and the
    dependency keys that they publish (``PUBLISHED_DEPENDENCY_KEYS_QUERY``). ``ends``: the last captured packet of each
    server, ``numbered`` the latest qm2qm Start of each server before the changes, microseconds; ``cancels``: qm2qm
    cancels exist. Each call's connection has a row, and the call's times lie within it.
    """
    calls = _find_affected_calls(lake, changed, ends, numbered)
    changed_names = pa.array([row["connection_id"] for row in changed.connections], pa.string())
    named = distinct_texts(calls.places["connection_id"], changed_names)
    if not len(named):
        return RecomputeScope()
    moved = chain.from_iterable(changed.connections_with_other_groups().values())
    wide = {tuple(row[name] for name in GROUP_COLUMNS) for row in moved if not row["added"]}
    without_bind = times_without_bind(changed.connections)
    read = partial(_read_group_connections, lake, groups=wide, clients=without_bind)
    found = read(named)
    if cancels and (starts := _read_cancelled_starts(lake, changed, named, found)).num_rows:
        calls = calls.with_starts(starts)
        named = distinct_texts(named, starts["connection_id"])
        found = read(named)
    rows = found.to_pylist()
    met = {
        c["connection_id"]
        for c in rows
        if existed_in(without_bind.get((c["server"], c["client"]), ()), c["first_packet_at"], c["closed_at"])
    }
    names = {*named.to_pylist(), *met}
    names |= _associated_connections(rows, names, wide)
    affected = pa.array(sorted(names), pa.string())
    ours = found.filter(is_in(found, "connection_id", affected))
    on = OngoingAssociations({}, frozenset())
    if _call_count(ours) > MIN_CALLS_FOR_KEYS:
        whole = {*calls.recomputed_whole.to_pylist(), *met}
        on = select_ongoing(rows, names, connections_before_change(changed.connections), whole)
    ongoing = pa.array([*on.associations], pa.string())
    published = read_published_keys(ongoing) if len(ongoing) else PUBLISHED_KEYS_SCHEMA.empty_table()
    spans = zip(ours["first_packet_at"].to_pylist(), ours["last_packet_at"].to_pylist(), strict=True)
    dates = frozenset({*distinct_dates(calls.places), *_days_of_spans(spans), None})
    users = {*pc.unique(ours["server_address"]).to_pylist()} & (numbered.keys() | changed.latest_starts().keys())
    ongoing_calls = NO_TEXTS
    if len(ongoing):
        keys = distinct_texts(pc.list_flatten(published["published_keys"]), calls.changed_keys)
        ongoing_calls = read_requiring_calls(lake, ongoing, _all_changed_keys(lake, keys, on, dates, users), dates)
    scope = RecomputeScope(
        connections=affected.filter(pc.invert(pc.is_in(affected, ongoing))),
        ongoing_connections=ongoing,
        dates=dates,
        connection_rows=found,
        call_count=_call_count(ours.filter(pc.invert(is_in(ours, "connection_id", ongoing)))) + published.num_rows,
        numbered=frozenset(users),
        ongoing_calls=ongoing_calls,
        changed_calls=distinct_texts(published["call_key"]),
    )
    scope = replace(scope, since=read_first_request(lake, scope))
    return _with_calls_by_number(lake, scope, cancels=cancels) if users else scope


def read_first_request(lake: Lake, scope: RecomputeScope) -> int:
    """Return when the first request of the calls of a scope was sent, microseconds; 0 where no request was captured."""
    sql = """
SELECT min(unix_micros(requested_at)) AS since FROM {reads}
WHERE connection_id IN {names} OR call_key IN {ongoing_calls}"""
    reads = RowsOfDates(REMOTE_READ_CALLS, scope.dates)
    found = lake.query(sql, reads=reads, names=scope.connections, ongoing_calls=scope.ongoing_calls)
    return found["since"][0].as_py() or 0


def read_requiring_calls(lake: Lake, connections: pa.Array, keys: pa.Array, dates: Collection[date | None]) -> pa.Array:
    """Return the calls on some connections and dates that require one of some keys (``dependency_keys``)."""
    requires = dependency_keys.keys_overlap(dependency_keys.REQUIRED_KEYS, "{keys}")
    sql = f"SELECT call_key FROM {{reads}} WHERE connection_id IN {{names}} AND {requires}"
    reads = RowsOfDates(REMOTE_READ_CALLS, dates)
    return distinct_texts(lake.query(sql, reads=reads, names=connections, keys=keys)["call_key"])


def _call_count(connections: pa.Table) -> int:
    count: int = pc.sum(connections["calls"], min_count=0).as_py()
    return count


def _all_changed_keys(
    lake: Lake, keys: pa.Array, on: OngoingAssociations, dates: Collection[date | None], numbered: Collection[str]
) -> pa.Array:
    """Return changed keys, with those of unanswered calls on closed connections, and of what closed sessions opened."""
    if names := on.newly_closed_connections:
        published = dependency_keys.key_array(dependency_keys.PUBLISHED_KEYS)
        unanswered = "responded_at IS NULL AND connection_id IN {names}"
        sql = f"SELECT DISTINCT explode({published}) AS published FROM {{reads}} WHERE {unanswered}"
        keys = distinct_texts(
            keys, lake.query(sql, reads=RowsOfDates(REMOTE_READ_CALLS, dates), names=names)["published"]
        )
    if numbered:  # a close also affects users of the number that was opened
        sql = f"SELECT DISTINCT {dependency_keys.QUEUE_NUMBER_KEY} AS number FROM {{openings}} WHERE {IS_OPENING_SQL}"
        opened_in = f"{sql} AND {dependency_keys.SESSION_KEY} IN {{some}}"
        openings = OPENING_CALLS[REMOTE_READ_CALLS]
        keys = distinct_texts(keys, lake.query(opened_in, openings=openings, numbered=numbered, some=keys)["number"])
    return keys


def _with_calls_by_number(lake: Lake, scope: RecomputeScope, *, cancels: bool) -> RecomputeScope:
    """Return a scope with what its qm2qm Starts share with cancels, and the connections of calls that it depends on.

    ``cancels``: qm2qm cancels exist. One that comes before its Start cancels something else.
    """
    shared = NO_TEXTS
    if cancels:
        since = min(day for day in scope.dates if day is not None) - timedelta(days=1)  # clocks differ
        started = f"protocol = 'qm2qm' AND opnum IN {sql_values(START_OPNUMS)} AND connection_id IN {{names}}"
        sql = (
            f"SELECT DISTINCT {REQUEST_KEY_SQL} AS request FROM {{cancels}} WHERE {_IS_CANCEL}"
            f" AND {REQUEST_KEY_SQL} IN (SELECT {REQUEST_KEY_SQL} FROM {{reads}} WHERE {started})"
        )
        late = RowsOfDates(REMOTE_READ_CALLS, DateSpan(since))
        of_scope = RowsOfDates(REMOTE_READ_CALLS, scope.dates)
        found = lake.query(sql, cancels=late, reads=of_scope, names=scope.all_connections)
        shared = distinct_texts(found["request"])
    openings = OPENING_CALLS[REMOTE_READ_CALLS], OPENING_CALLS[CLIENT_CALLS]
    sql = (
        f"SELECT connection_id FROM {{openings}} WHERE {IS_OPENING_SQL}"
        " UNION SELECT connection_id FROM {clients} WHERE server_address IN {numbered}"
    )
    found = lake.query(sql, openings=openings[0], clients=openings[1], numbered=scope.numbered)
    names = distinct_texts(found["connection_id"])
    if len(shared):
        sql = f"SELECT DISTINCT connection_id FROM {{reads}} WHERE {SHARES_REQUEST_KEY_SQL}"
        names = distinct_texts(names, lake.query(sql, reads=REMOTE_READ_CALLS, shared=shared)["connection_id"])
    rows = pa.concat_tables([scope.connection_rows, _read_group_connections(lake, names)])
    return replace(scope, cancelled_requests=shared, connection_rows=unique_rows(rows, "connection_id"))


@dataclass(frozen=True, slots=True)
class _AffectedCalls:
    """What changes affect, before associations are considered: ``places`` have ``PLACES_SCHEMA``.

    ``recomputed_whole``: connections where every attempt is affected, not only those that share a key with a changed
    call; ``changed_keys``: keys of calls that did not change, whose dependents are affected all the same.
    """

    places: pa.Table
    recomputed_whole: pa.Array
    changed_keys: pa.Array

    def with_starts(self, cancelled: pa.Table) -> _AffectedCalls:
        """Add the answer of ``_read_cancelled_starts``."""
        keys = distinct_texts(self.changed_keys, cancelled["cancel_key"])
        return replace(self, places=_places(self.places, cancelled), changed_keys=keys)


def _read_cancelled_starts(lake: Lake, changed: InputChanges, names: pa.Array, connections: pa.Table) -> pa.Table:
    """Return the Starts and cancels that share a request key with a changed call, or with a cancel on some connections.

    Each row has connection_id, event_date, and the ``cancel_key``. ``connections`` are the rows of the connections
    ``names`` and more. A cancel that comes before a Start cancels something else; the Starts before it may be of any
    time.
    """
    started = changed.calls_by_number(*QUEUE_NUMBER_OPNUMS)
    begins = (started["at"], connections["first_packet_at"].filter(is_in(connections, "connection_id", names)))
    since = [pc.min(pc.fill_null(times, 0)).as_py() for times in begins if len(times)]
    since += [row["first_packet_at"] for row in changed.connections]
    cancels = RowsOfDates(REMOTE_READ_CALLS, DateSpan.of_times(max(min(since, default=0) - DAY_US, 0)))  # clocks differ
    sql = (
        f"SELECT DISTINCT {REQUEST_KEY_SQL} AS request FROM {{cancels}} WHERE {_IS_CANCEL}"
        f" AND ({REQUEST_KEY_SQL} IN {{started}} OR connection_id IN {{names}})"
    )
    found = lake.query(sql, cancels=cancels, started=distinct_texts(started["request"]), names=names)
    shared = distinct_texts(found["request"], changed.calls_by_number(CANCEL_OPNUM)["request"])
    if not len(shared):
        return pa.schema([*PLACES_SCHEMA, ("cancel_key", pa.string())]).empty_table()
    columns = f"{', '.join(PLACES_SCHEMA.names)}, {dependency_keys.CANCEL_KEY} AS cancel_key"
    sql = f"SELECT DISTINCT {columns} FROM {{reads}} WHERE {SHARES_REQUEST_KEY_SQL}"
    return lake.query(sql, reads=REMOTE_READ_CALLS, shared=shared)


def _find_affected_calls(
    lake: Lake, changed: InputChanges, ends: Mapping[str, int], numbered: Mapping[str, int]
) -> _AffectedCalls:
    """Return what changes affect, call by call; the parameters are those of ``find_recompute_scope``."""
    open_attempts = changed.expiring_attempts
    due = open_attempts.filter(
        pc.less(open_attempts["until"], values_of_servers(open_attempts["server_address"], ends))
    )
    whole = [PLACES_SCHEMA.empty_table()]
    for table, other in ((RECEIVE_ATTEMPTS, "inferred_queue"), (QUEUE_OPERATIONS, "target_queue")):
        if earlier := changed.servers_with_earlier_capture_end:
            whole.append(_read_places(lake, table, "server_address IN {servers}", servers=earlier))
        if changed.renamed_queues:
            whole.append(_read_places(lake, table, _queue_condition("queue", other), texts=changed.renamed_queues))
    if len(reclaimed := changed.connections_of_other_clients()):
        whole.append(_read_places(lake, RECEIVE_ATTEMPTS, "connection_id IN {names}", names=reclaimed))
    openings = changed.servers_with_changed_openings(numbered)
    if openings is not None:
        whole.append(_starts_since(lake, *openings))
    return _AffectedCalls(
        places=_places(changed.reads, due, *whole),
        recomputed_whole=distinct_texts(*(places["connection_id"] for places in whole)),
        changed_keys=distinct_texts(due["rests_on"]),
    )


def _places(*parts: pa.Table) -> pa.Table:
    """Return the places of some rows, each once."""
    places = pa.concat_tables(part.select(PLACES_SCHEMA.names).cast(PLACES_SCHEMA) for part in parts)
    return places.group_by(PLACES_SCHEMA.names).aggregate([])


def select_ongoing(
    members: list[dict[str, Any]], names: Collection[str], before: Mapping[str, FeedRow | None], whole: Collection[str]
) -> OngoingAssociations:
    """Return which of the named connections belong to ongoing associations.

    ``members`` are rows of bronze.connections, all of the groups of the named ones; ``before`` as
    ``connections_before_change``. Associations of the connections in ``whole`` are never ongoing.
    """
    servers = {c["connection_id"]: c["server_address"] for c in members}
    images: defaultdict[str | None, dict[str, RpcConnection | None]] = defaultdict(dict)
    for name, row in before.items():
        server = servers.get(name) if row is None else row["server_address"]
        images[server][name] = None if row is None else _connection(row)
    elsewhere = {name for name, row in before.items() if row is not None and row["server_address"] != servers.get(name)}
    found: dict[str, str] = {}
    newly_closed: set[str] = set()
    for server, connections in _connections_by_server(members).items():
        on = find_ongoing(connections, images[server])
        parted = {on.associations[name] for name in (*whole, *elsewhere) if name in on.associations}
        found |= {
            name: association
            for name, association in on.associations.items()
            if name in names and association not in parted
        }
        newly_closed |= on.newly_closed_connections
    return OngoingAssociations(found, frozenset(newly_closed & found.keys()))


def _connections_by_server(members: Iterable[Mapping[str, Any]]) -> dict[str | None, list[RpcConnection]]:
    found: defaultdict[str | None, list[RpcConnection]] = defaultdict(list)
    for row in members:
        found[row["server_address"]].append(_connection(row))
    return found


def _connection(row: Mapping[str, Any]) -> RpcConnection:
    """Return a row of bronze.connections, or of its change feed, as an ``RpcConnection``."""
    facts: dict[str, Any] = {
        name: CONNECTION_DEFAULTS.get(name) if row[name] is None else row[name] for name in CONNECTION_FIELDS
    }
    return RpcConnection.of(facts)


def _read_places(lake: Lake, rows: QueryInput, where: str, **of: QueryInput) -> pa.Table:
    places = f"SELECT DISTINCT {', '.join(PLACES_SCHEMA.names)} FROM {{rows}} WHERE {where}"
    return lake.query(places, rows=rows, **of).cast(PLACES_SCHEMA)


def _queue_condition(*columns: str) -> str:
    """Return the SQL condition that a queue, or the queue of a journal or subqueue, has one of some names."""
    bases = (f"split_part({column}, ';', 1)" for column in columns)
    return " OR ".join(f"{name} IN {{texts}}" for name in (*columns, *bases))


def _starts_since(lake: Lake, servers: pa.Array, at: int) -> pa.Table:
    """Return the places of qm2qm Starts and purges at some servers since a time, microseconds."""
    calls = f"protocol = 'qm2qm' AND opnum IN {sql_values(QUEUE_NUMBER_OPNUMS)} AND server_address IN {{servers}}"
    late = RowsOfDates(REMOTE_READ_CALLS, DateSpan.of_times(at))
    return _read_places(lake, late, f"{calls} AND {CALL_TIME_SQL} >= {at}", servers=servers)


def _read_group_connections(
    lake: Lake, names: pa.Array, *, groups: Collection[tuple[str, ...]] = (), clients: Collection[tuple[str, str]] = ()
) -> pa.Table:
    """Return all connections of some groups, of the groups of the named connections, and of some clients.

    The connections without bind of all their clients are included.
    """
    tables = {
        name: pa.Table.from_pylist([dict(zip(GROUP_COLUMNS, row, strict=False)) for row in rows], _GROUPS_SCHEMA)
        for name, rows in (("groups", groups), ("clients", clients))
    }
    return lake.query(_GROUP_CONNECTIONS, connections=CONNECTIONS, names=names, **tables)


def _associated_connections(
    members: list[dict[str, Any]], names: Collection[str], wide: Collection[tuple[str, ...]]
) -> set[str]:
    """Return the connections of the associations that these connections are in, and of the groups in ``wide``.

    A new connection can only have joined associations, which are in the one that it is in now. A changed or deleted
    one may have split associations, so that all of its group may belong to other ones than before.
    """
    name_of: dict[str, str] = {}
    for ours in _connections_by_server(members).values():
        name_of |= {connection: found.name for connection, found in group_into_associations(ours).items()}
    touched = {name_of[name] for name in names if name in name_of}
    return {
        c["connection_id"]
        for c in members
        if name_of[c["connection_id"]] in touched or tuple(c[name] for name in GROUP_COLUMNS) in wide
    }


def _days_of_spans(spans: Iterable[tuple[int, int]]) -> set[date]:
    """Return all UTC days of time spans in microseconds since the epoch."""
    days: set[int] = set()
    for first, last in {(first // DAY_US, last // DAY_US) for first, last in spans}:
        days.update(range(first, last + 1))
    return {EPOCH.date() + timedelta(days=day) for day in days}
