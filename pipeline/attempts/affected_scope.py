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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, is_in, unique_rows
from pipeline.attempts import dependency_keys
from pipeline.attempts.attempt_rows import CONNECTION_DEFAULTS, CONNECTION_FIELDS
from pipeline.attempts.calls.associations import RpcConnection, group_into_associations
from pipeline.attempts.changed_rows import (
    CALL_TIME_SQL,
    CANCEL_OPNUM,
    GROUP_COLUMNS,
    OPENING_OPNUMS,
    QUEUE_NUMBER_OPNUMS,
    REQUEST_KEY_COLUMNS,
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
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.times import DAY_US, EPOCH, us_to_datetime

MIN_CALLS_FOR_KEYS: Final = 20_000  # with fewer calls, recomputing all is faster than selecting by keys


@dataclass(frozen=True, slots=True)
class RecomputeScope:
    """The connections whose attempts are recomputed, and the event dates of their calls and attempts.

    ``connection_rows`` are the rows of bronze.connections of these and more, ``call_count`` the number of calls to
    recompute; ``cancelled_requests`` the server, queue handle and request number of every qm2qm cancel. At ``numbered``
    servers queues are used by number: all their connections are among the rows. Of ``ongoing_connections`` only
    attempts are recomputed that depend on one of the ``changed_keys``; ``changed_calls`` are their changed, new or
    deleted calls.
    """

    connections: frozenset[str] = frozenset()
    dates: frozenset[date | None] = frozenset()
    connection_rows: pa.Table = field(default_factory=lambda: pa.table({"connection_id": [], "server_address": []}))
    call_count: int = 0
    cancelled_requests: frozenset[tuple[Any, ...]] = frozenset()
    ongoing_connections: frozenset[str] = frozenset()
    numbered: frozenset[str] = frozenset()
    changed_keys: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    changed_calls: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))

    def __bool__(self) -> bool:
        return bool(self.connections_in_full or len(self.changed_keys))

    @property
    def connections_in_full(self) -> frozenset[str]:
        """The connections of which all attempts are recomputed."""
        return self.connections - self.ongoing_connections

    @property
    def servers(self) -> frozenset[str | None]:
        """The servers of the connections."""
        ours = self.connection_rows.filter(is_in(self.connection_rows, "connection_id", self.connections))
        return frozenset(ours["server_address"].to_pylist())


REQUEST_KEY_SQL: Final = f"concat_ws('|', {', '.join(REQUEST_KEY_COLUMNS)})"
"""What a qm2qm Start and its cancel share, as one text (``shared_texts``)."""
SHARES_REQUEST_KEY_SQL: Final = (
    f"protocol = 'qm2qm' AND opnum IN {sql_values((*START_OPNUMS, CANCEL_OPNUM))} AND {REQUEST_KEY_SQL} IN {{shared}}"
)
"""The condition of qm2qm Starts and cancels that share server, queue handle and number (``Scope.cancels``)."""


def request_key_texts(keys: Iterable[tuple[Any, ...]]) -> set[str]:
    """Return request keys (server, queue handle, request number) as texts, as ``SHARES_REQUEST_KEY_SQL`` takes them."""
    return {"|".join(map(str, key)) for key in keys}


def find_recompute_scope(
    lake: Lake,
    changed: InputChanges,
    connections: pa.Table | None,
    ends: Mapping[str, int],
    *,
    numbered: Mapping[str, int],
    cancels: bool,
) -> RecomputeScope:
    """Return what changes affect.

    ``connections`` are all RPC connections (``RPC_CONNECTIONS_QUERY``), None where they are not in memory; ``ends`` the
    last captured packet of each server, ``numbered`` the latest qm2qm Start of each server before the changes,
    microseconds; ``cancels``: qm2qm cancels exist. Each call's connection has a row, and the call's times lie within
    it.
    """
    reached = _find_affected_calls(lake, changed, ends, numbered)
    if cancels:
        reached.add_cancelled_starts(lake, changed)
    names = reached.connections
    if not names:
        return RecomputeScope()
    moved = chain.from_iterable(changed.connections_with_other_groups().values())
    wide = {tuple(row[name] for name in GROUP_COLUMNS) for row in moved if not row["added"]}
    without_bind = times_without_bind(changed.connections)
    found = _read_group_connections(lake, connections, names, wide, without_bind)
    rows = found.to_pylist()
    met = {
        c["connection_id"]
        for c in rows
        if existed_in(without_bind.get((c["server"], c["client"]), ()), c["first_packet_at"], c["closed_at"])
    }
    names |= met
    names |= _associated_connections(rows, names, wide)
    days = _days_of_spans((c["first_packet_at"], c["last_packet_at"]) for c in rows if c["connection_id"] in names)
    counts = {c["connection_id"]: c["calls"] or 0 for c in rows if c["connection_id"] in names}
    on = OngoingAssociations({}, frozenset())
    if changed.published_keys is not None and sum(counts.values()) > MIN_CALLS_FOR_KEYS:
        on = select_ongoing(rows, names, connections_before_change(changed.connections), reached.recomputed_whole | met)
    calls = changed.keys_published_on(on.associations)
    dates = frozenset({*(day for _, day in reached.places), *days, None})
    keys = distinct_texts(
        pc.list_flatten(calls["published_keys"]), pa.array(sorted(reached.changed_keys - {None}), pa.string())
    )
    at = {c["server_address"] for c in rows if c["connection_id"] in names}
    users = frozenset(at & (numbered.keys() | changed.latest_starts().keys()))
    return RecomputeScope(
        connections=frozenset(names),
        dates=dates,
        connection_rows=_with_all_connections(lake, found, connections, users),
        call_count=sum(count for name, count in counts.items() if name not in on.associations) + calls.num_rows,
        cancelled_requests=frozenset(reached.cancelled_requests),
        ongoing_connections=frozenset(on.associations),
        numbered=users,
        changed_keys=_all_changed_keys(lake, keys, on, dates, users) if on.associations else keys,
        changed_calls=distinct_texts(calls["call_key"]),
    )


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
        opened = f"protocol = 'qm2qm' AND opnum IN {sql_values(OPENING_OPNUMS)} AND server_address IN {{servers}}"
        sql = f"SELECT DISTINCT {dependency_keys.QUEUE_NUMBER_KEY} AS number FROM {{openings}} WHERE {opened}"
        opened_in = f"{sql} AND {dependency_keys.SESSION_KEY} IN {{some}}"
        openings = OPENING_CALLS[REMOTE_READ_CALLS]
        keys = distinct_texts(keys, lake.query(opened_in, openings=openings, servers=numbered, some=keys)["number"])
    return keys


def _with_all_connections(
    lake: Lake, rows: pa.Table, connections: pa.Table | None, servers: frozenset[str]
) -> pa.Table:
    """Return connections with all those of some servers; ``connections`` as for ``find_recompute_scope``."""
    if not servers:
        return rows
    if connections is None:
        sql = f"SELECT * FROM ({RPC_CONNECTIONS_QUERY}) WHERE server_address IN {{servers}}"
        at_servers = lake.query(sql, connections=CONNECTIONS, servers=servers)
    else:
        at_servers = connections.filter(is_in(connections, "server_address", servers))
    return unique_rows(pa.concat_tables([rows, at_servers]), "connection_id")


@dataclass(slots=True)
class _AffectedCalls:
    """What changes affect, before associations are considered: ``places`` are pairs of connection and event date.

    ``connections``: those of the places, and the changed ones; ``recomputed_whole``: those where every attempt is
    affected, not only those that share a key with a changed call; ``changed_keys``: keys of calls that did not
    change, whose dependents are affected all the same.
    """

    places: list[tuple[str, date | None]]
    connections: set[str]
    recomputed_whole: set[str]
    changed_keys: set[str]
    cancelled_requests: set[tuple[Any, ...]] = field(default_factory=set)

    def add_cancelled_starts(self, lake: Lake, changed: InputChanges) -> None:
        """Add the Starts that share a request key with a changed call, or with a cancel on a changed connection."""
        columns = ", ".join(("connection_id", *REQUEST_KEY_COLUMNS))
        cancelled = f"SELECT DISTINCT {columns} FROM {{reads}} WHERE protocol = 'qm2qm' AND opnum = {CANCEL_OPNUM}"
        found = lake.query(cancelled, reads=REMOTE_READ_CALLS).to_pylist()
        changed_cancels = changed.calls_by_number(CANCEL_OPNUM).to_pylist()
        cancels = {tuple(row[name] for name in REQUEST_KEY_COLUMNS) for row in found}
        gone = {tuple(row[name] for name in REQUEST_KEY_COLUMNS) for row in changed_cancels}
        calls = changed.calls_by_number(*QUEUE_NUMBER_OPNUMS, CANCEL_OPNUM)
        numbers = pa.array([number for *_, number in cancels | gone], calls["request_id"].type)
        calls = calls.filter(pc.is_in(calls["request_id"], numbers))
        near = {tuple(row[name] for name in REQUEST_KEY_COLUMNS) for row in calls.to_pylist()}
        near |= {
            tuple(row[name] for name in REQUEST_KEY_COLUMNS)
            for row in found
            if row["connection_id"] in self.connections
        }
        self.cancelled_requests = {key for key in cancels if None not in key}
        wanted = {key for key in near & (cancels | gone) if None not in key}
        if wanted:
            columns = f"connection_id, {EVENT_DATE}, {dependency_keys.CANCEL_KEY} AS cancel_key"
            sql = f"SELECT DISTINCT {columns} FROM {{reads}} WHERE {SHARES_REQUEST_KEY_SQL}"
            for row in lake.query(sql, reads=REMOTE_READ_CALLS, shared=request_key_texts(wanted)).to_pylist():
                self.places.append((row["connection_id"], row[EVENT_DATE]))
                self.connections.add(row["connection_id"])
                self.changed_keys.add(row["cancel_key"])


def _find_affected_calls(
    lake: Lake, changed: InputChanges, ends: Mapping[str, int], numbered: Mapping[str, int]
) -> _AffectedCalls:
    """Return what changes affect, call by call; the parameters are those of ``find_recompute_scope``."""
    due = [row for row in changed.expiring_attempts if row["until"] < ends.get(row["server_address"], -1)]
    places = [*changed.places(), *((row["connection_id"], row[EVENT_DATE]) for row in due)]
    whole: list[tuple[str, date | None]] = []
    for table, other in ((RECEIVE_ATTEMPTS, "inferred_queue"), (QUEUE_OPERATIONS, "target_queue")):
        if changed.servers_with_earlier_capture_end:
            whole += _read_places(
                lake, table, "server_address IN {servers}", servers=changed.servers_with_earlier_capture_end
            )
        if changed.renamed_queues:
            whole += _read_places(lake, table, _queue_condition("queue", other), texts=changed.renamed_queues)
    if reclaimed := changed.connections_of_other_clients():
        whole += _read_places(lake, RECEIVE_ATTEMPTS, "connection_id IN {names}", names=reclaimed)
    openings = changed.servers_with_changed_openings(numbered)
    if openings is not None:
        whole += _starts_since(lake, *openings)
    places += whole
    connections = {name for name, _ in places} | {row["connection_id"] for row in changed.connections}
    return _AffectedCalls(places, connections, {name for name, _ in whole}, {row["rests_on"] for row in due})


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


def _read_places(lake: Lake, table: Table, where: str, **of: QueryInput) -> list[tuple[str, date | None]]:
    columns = f"SELECT DISTINCT connection_id, {EVENT_DATE} FROM {{rows}} WHERE {where}"
    found = lake.query(columns, rows=table, **of).to_pylist()
    return [(row["connection_id"], row[EVENT_DATE]) for row in found]


def _queue_condition(*columns: str) -> str:
    """Return the SQL condition that a queue, or the queue of a journal or subqueue, has one of some names."""
    bases = (f"split_part({column}, ';', 1)" for column in columns)
    return " OR ".join(f"{name} IN {{texts}}" for name in (*columns, *bases))


def _starts_since(lake: Lake, servers: Collection[str], at: int) -> list[tuple[str, date | None]]:
    """Return the places of qm2qm Starts and purges at some servers since a time, microseconds."""
    day = us_to_datetime(at).date().isoformat()
    late = f"({EVENT_DATE} >= DATE'{day}' OR {EVENT_DATE} IS NULL) AND {CALL_TIME_SQL} >= {at}"
    calls = f"protocol = 'qm2qm' AND opnum IN {sql_values(QUEUE_NUMBER_OPNUMS)} AND server_address IN {{servers}}"
    return _read_places(lake, REMOTE_READ_CALLS, f"{calls} AND {late}", servers=servers)


def _read_group_connections(
    lake: Lake,
    connections: pa.Table | None,
    names: Collection[str],
    groups: Collection[tuple[str, ...]],
    clients: Collection[tuple[str, str]],
) -> pa.Table:
    """Return all connections of some groups, of the groups of the named connections, and of some clients.

    The connections without bind of all their clients are included.
    """
    if connections is None:
        of_names = f"SELECT DISTINCT {', '.join(GROUP_COLUMNS)} FROM ({RPC_CONNECTIONS_QUERY})"
        sql = f"{of_names} WHERE connection_id IN {{names}}"
        named = lake.query(sql, connections=CONNECTIONS, names=names).to_pylist()
        wanted = {*groups, *(tuple(row.values()) for row in named)}
        near_clients = {client for _, client, _ in wanted} | {client for _, client in clients}
        found: pa.Table = lake.query(
            f"SELECT * FROM ({RPC_CONNECTIONS_QUERY}) WHERE association IN {{groups}}"
            f" OR (without_bind AND client IN {{near}})"
            f" OR client IN {{clients}}",
            connections=CONNECTIONS, groups={group[2] for group in wanted}, near=near_clients,
            clients={client for _, client in clients},
        )  # fmt: skip
    else:
        ours = is_in(connections, "connection_id", names)
        wanted = {
            *groups,
            *(tuple(row.values()) for row in connections.filter(ours).select(list(GROUP_COLUMNS)).to_pylist()),
        }
        theirs = is_in(connections, "association", {group[2] for group in wanted})
        theirs = pc.or_(theirs, is_in(connections, "client", {client for _, client in clients}))
        found = connections.filter(pc.or_(theirs, connections["without_bind"]))
    near = {group[:2] for group in wanted} | {*clients}
    here = zip(*(found[name].to_pylist() for name in (*GROUP_COLUMNS, "without_bind")), strict=True)
    return found.filter(
        pa.array(
            [
                (server, client, group) in wanted
                or (server, client) in clients
                or (without_bind and (server, client) in near)
                for server, client, group, without_bind in here
            ],
            pa.bool_(),
        )
    )


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
