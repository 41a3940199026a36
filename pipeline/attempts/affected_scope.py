"""What of gold.receive_attempts, and of the queues of silver.messages, a change below can touch.

An attempt rests on the calls and connections of its association, on the end of its server's capture, on the canonical
text of its queue, and in qm2qm on calls of any connection: the cancels of its number, and what opened and let go its
queue's. So these are touched, named by their connections: the associations of changed calls and connections, as they
are now and as they were; of connections that were there together with one that changed, of the same client, and may be
of their association (``Connection.is_stray``); of attempts that are open until the server's capture has gone on for
long enough; of attempts whose queue has another name now; of qm2qm Starts that share queue handle and number with a
cancel, where one of them changed; and of qm2qm Starts after an opening, closing or end of a connection that changed at
their server. What is taken is at least that. Purges and moves (gold.queue_operations) are touched with the connections
that they came over; a purge by number is touched as a Start is.

Of associations that only go on (``going_on``) not all is touched, but what rests on a name under which a changed call
tells something (``bearing``): they may last for months.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import chain
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts import dependency_keys
from pipeline.attempts.associations import Connection, associations
from pipeline.attempts.attempt_rows import CONNECTION, NOT_NULL
from pipeline.attempts.ongoing_associations import GoingOn, going_on
from pipeline.lake.arrow_rows import one_of
from pipeline.lake.lake import Lake
from pipeline.lake.queries import IS, Source
from schemas.bronze import CONNECTIONS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, Table

MOST: Final = 200_000  # connections, or days, that are named; if there are more, all is computed anew
FEW: Final = 20_000  # calls of which all are taken sooner than those that share a name are found
_FOR_EVER: Final = 0xFFFFFFFF  # ulTimeout
_STARTS, _CANCEL, _OPENINGS = (0, 9, 10), 5, (2, 3)  # of qm2qm
_USES: Final = (*_STARTS, 6)  # what uses a queue by its number: Starts and purges
_OPENING: Final = {("qm2qm", 2), ("qm2qm", 3), ("qmcomm", 2), ("qmcomm", 3)}
_GROUP: Final = ("server", "client", "association")
_LIFE: Final = ("first_packet_at", "closed_at")
_TIMES: Final = ("first_packet_at", "last_packet_at", "closed_at")
_NAMES: Final = ("call_key", "queue", "queue_format_name", "context_handle", "_change_type")
_SHARED: Final = ("server_address", "queue_handle", "request_id")  # by a qm2qm Start and its cancel
TOLD: Final = pa.schema({"connection_id": pa.string(), "call_key": pa.string(), "tells": pa.list_(pa.int64())})
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)


Row: TypeAlias = Mapping[str, Any]

_AT: Final = "unix_micros(coalesce(requested_at, responded_at))"


def _listed(values: Iterable[object]) -> str:
    return f"({', '.join(map(repr, values))})"


_NUMBERED: Final = f"(protocol = 'qm2qm' AND opnum IN {_listed((*_USES, _CANCEL, *_OPENINGS))})"
_NAMED: Final = "(protocol = 'RemoteRead' AND opnum IN (2, 11))"
READS_CHANGED: Final = ", ".join(
    [
        f"SELECT DISTINCT connection_id, {EVENT_DATE}",
        *(
            f"CASE WHEN {_NUMBERED} OR {_NAMED} THEN {name} END AS {name}"
            for name in ("protocol", "opnum", "server_address")
        ),
        *(f"CASE WHEN {_NUMBERED} THEN {name} END AS {name}" for name in _SHARED[1:]),
        *(f"CASE WHEN {_NAMED} THEN {name} END AS {name}" for name in _NAMES),
        f"CASE WHEN {_NAMED} THEN unix_micros(coalesce(responded_at, requested_at)) END AS observed",
        f"CASE WHEN {_NUMBERED} OR {_NAMED} THEN {_AT} END AS `at` FROM {{feed}}",
    ]
)
"""What is asked of the feed of silver.remote_read_calls.

Where calls are; of those by number, and of those that open, what they share with others, and when they were.
"""

TOLD_OF: Final = (
    f"SELECT connection_id, call_key, {dependency_keys.listed(dependency_keys.TELLS)} AS tells FROM {{feed}}"
)
"""What else is asked of the same feed: under which names the calls tell something (``Changed.told``)."""

CLIENTS_CHANGED: Final = (
    f"SELECT interface_name AS protocol, opnum, server_address, {_AT} AS `at` FROM {{feed}} WHERE "
    "(interface_name = 'qmcomm' AND opnum IN (1, 2, 3, 19)) OR (interface_name = 'qmcomm2' AND opnum = 3)"
)
"""What is asked of the feed of silver.client_calls: those that open, let go, or tell names."""

_GROUPED: Final = "CASE WHEN association_group_id <> 0 THEN CAST(association_group_id AS string) END"
# Where an RPC connection belongs: its server, its client, and its group, alone without one; and whether it is a stray
# (``Connection.is_stray``).
_PLACE: Final = (
    "server_address", "coalesce(server_address, '') AS server", "coalesce(client_address, '') AS client",
    f"coalesce({_GROUPED}, connection_id) AS association", *(f"unix_micros({name}) AS {name}" for name in _TIMES),
    f"NOT coalesce(syn_seen, FALSE) AND {_GROUPED} IS NULL AS stray",
)  # fmt: skip
_OWN: Final = tuple(name for name in CONNECTION if name not in _TIMES)
CONNECTIONS_CHANGED: Final = (
    f"SELECT {', '.join((*_OWN, *_PLACE))}, _change_type IN {_listed(IS)} AS added, _commit_version AS version"
    " FROM {feed} WHERE kind = 'rpc'"
)
"""What is asked of the feed of bronze.connections: where they belong, and whether they are new."""

MEMBERS: Final = f"SELECT {', '.join((*_OWN, 'calls', *_PLACE))} FROM {{connections}} WHERE kind = 'rpc'"
"""RPC connections as ``Scope.members`` has them; times are microseconds."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Rows of the feeds of silver.remote_read_calls, silver.client_calls and bronze.connections, as they are asked for.

    ``told``: under which names the changed calls of silver.remote_read_calls tell something (``bearing``), by their
    connections, with the columns ``TOLD``; None: too many. ``earlier``: servers whose capture now ends earlier;
    ``renamed``: the texts that stood for queues with another canonical text now.
    """

    reads: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    connections: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    told: pa.Table | None = None
    earlier: Collection[str] = ()
    renamed: Collection[str] = ()

    @property
    def too_many(self) -> bool:
        """Whether there is more than can be named."""
        return any(len(rows) > MOST for rows in (self.reads, self.clients, self.connections, self.waiting))

    def started(self) -> dict[str, int]:
        """Return the newest qm2qm Start or purge of each server among the calls, microseconds."""
        found: dict[str, int] = {}
        for row in self.reads:
            start = row["protocol"] == "qm2qm" and row["opnum"] in _USES
            if start and row["at"] is not None and row["server_address"] is not None:
                found[row["server_address"]] = max(row["at"], found.get(row["server_address"], row["at"]))
        return found

    @property
    def named(self) -> list[Row]:
        """The opens of RemoteRead among the calls: they can show which texts name the same queue."""
        return [row for row in self.reads if row["protocol"] == "RemoteRead"]

    @property
    def answers(self) -> bool:
        """Whether calls of qmcomm and qmcomm2 that can show it are among them."""
        return any((row["protocol"], row["opnum"]) != ("qmcomm", 3) for row in self.clients)

    @property
    def cancels(self) -> bool:
        """Whether a qm2qm cancel is among the calls."""
        return any((row["protocol"], row["opnum"]) == ("qm2qm", _CANCEL) for row in self.reads)

    def moved(self) -> dict[str, list[Row]]:
        """Return the connections, as they were and are, that are new or gone, in another group, or ended elsewhen.

        Only these can have moved the bounds of associations.
        """
        images: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self.connections:
            images[row["connection_id"]].append(row)
        facts = (*_GROUP, *_LIFE)
        return {
            name: rows
            for name, rows in images.items()
            if {tuple(row[n] for n in facts) for row in rows if row["added"]}
            != {tuple(row[n] for n in facts) for row in rows if not row["added"]}
        }

    def strays(self) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Return when changed connections were there that are or were strays, by server and client; microseconds."""
        found: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for row in self.connections:
            if row["stray"]:
                found[row["server"], row["client"]].append((row["first_packet_at"], row["last_packet_at"]))
        return found

    def told_by(self, connections: Container[str]) -> list[dict[str, Any]]:
        """Return what was told by calls of some connections."""
        rows = [] if self.told is None else self.told.to_pylist()
        return [row for row in rows if row["connection_id"] in connections]

    def openings(self, numbered: Mapping[str, int]) -> tuple[set[str], int] | None:
        """Return the servers where something can have opened or let go queues before a qm2qm Start, and since when.

        ``numbered`` are the newest Starts of servers, as of before; microseconds.
        """
        calls = [row for row in (*self.reads, *self.clients) if (row["protocol"], row["opnum"]) in _OPENING]
        at = [(row["server_address"], row["at"]) for row in calls if row["at"] is not None]
        at += [(rows[0]["server_address"], _moved_at(rows)) for rows in self.moved().values()]
        before = [(server, time) for server, time in at if server in numbered and time <= numbered[server]]
        return ({server for server, _ in before}, min(time for _, time in before)) if before else None


@dataclass(frozen=True, slots=True)
class Scope:
    """The connections whose attempts are computed anew, and the event dates where their calls and attempts are.

    ``members`` are the rows of bronze.connections of these and of more, ``calls`` how many calls are computed of;
    ``cancels`` what qm2qm cancels share with Starts (server, queue handle, number), of all there are. Of connections
    that are ``going_on`` only answers are computed that rest on one of the names that ``tell``; ``changed`` are their
    calls that changed, came or went, ``woken`` as for ``GoingOn``.
    """

    connections: frozenset[str] = frozenset()
    dates: frozenset[date | None] = frozenset()
    members: pa.Table = field(default_factory=lambda: pa.table({"connection_id": [], "server_address": []}))
    calls: int = 0
    cancels: frozenset[tuple[Any, ...]] = frozenset()
    going_on: frozenset[str] = frozenset()
    woken: frozenset[str] = frozenset()
    tell: frozenset[int] = frozenset()
    changed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.whole or self.tell or self.woken)

    @property
    def whole(self) -> frozenset[str]:
        """The connections of which all is computed anew."""
        return self.connections - self.going_on

    @property
    def servers(self) -> frozenset[str | None]:
        """The servers of these connections."""
        rows = self.members.select(["connection_id", "server_address"]).to_pylist()
        return frozenset(row["server_address"] for row in rows if row["connection_id"] in self.connections)


def connections_before(images: Iterable[Row]) -> dict[str, Row | None]:
    """Return what each changed connection was, of the rows of ``connections_changed``; None of a new one."""
    before: dict[str, Row | None] = {}
    for row in sorted(images, key=lambda row: (row["version"], row["added"])):
        before.setdefault(row["connection_id"], None if row["added"] else row)
    return before


def waiting(lake: Lake, cleanup_s: float) -> list[dict[str, Any]]:
    """Return the attempts that the capture's end can settle, and until when they cannot, microseconds (``until``).

    With them connection_id, event_date, server_address, and the names of the calls that they rest on, a row for each
    (``rests_on``). Of too many as many as tell it.
    """
    held = "protocol = 'RemoteRead' AND returned_at IS NOT NULL"
    unanswered = f"returned_at IS NULL AND timeout_ms <> {_FOR_EVER}"
    until = (
        f"CASE WHEN {held} THEN unix_micros(returned_at) + {round(cleanup_s * 1e6)}"
        f" WHEN {unanswered} THEN unix_micros(started_at) + timeout_ms * 1000 END"
    )
    each = (
        f"SELECT connection_id, {EVENT_DATE}, server_address, {until} AS until, explode(evidence) AS call_key"
        " FROM {attempts} WHERE outcome = 'in_flight'"
    )
    names = f"connection_id, {EVENT_DATE}, server_address, until, {dependency_keys.CALL} AS rests_on"
    sql = f"SELECT {names} FROM ({each}) WHERE until IS NOT NULL LIMIT {MOST + 1}"
    rows: list[dict[str, Any]] = lake.query(sql, attempts=RECEIVE_ATTEMPTS).to_pylist()
    return rows


def by_number(lake: Lake) -> tuple[dict[str, int], bool]:
    """Return the newest qm2qm Start or purge of each server, microseconds, and whether there are cancels of Starts."""
    start, cancel = f"opnum IN {_listed(_USES)}", f"opnum = {_CANCEL}"
    rows = lake.query(
        f"SELECT server_address, max(CASE WHEN {start} THEN {_AT} END) AS newest, bool_or({cancel}) AS cancels"
        f" FROM {{reads}} WHERE protocol = 'qm2qm' AND ({start} OR {cancel}) GROUP BY server_address",
        reads=REMOTE_READ_CALLS,
    ).to_pylist()
    known = (row for row in rows if row["server_address"] is not None and row["newest"] is not None)
    return {row["server_address"]: row["newest"] for row in known}, any(row["cancels"] for row in rows)


SHARED: Final = f"concat_ws('|', {', '.join(_SHARED)})"
"""What a qm2qm Start and its cancel share, as one text (``shared_texts``)."""
SHARING: Final = f"protocol = 'qm2qm' AND opnum IN {_listed((*_STARTS, _CANCEL))} AND {SHARED} IN {{shared}}"
"""The condition of qm2qm Starts and cancels that share server, queue handle and number (``Scope.cancels``)."""


def shared_texts(keys: Iterable[tuple[Any, ...]]) -> set[str]:
    """Return what Starts and cancels share as ``SHARING`` takes it."""
    return {"|".join(map(str, key)) for key in keys}


def scope(
    lake: Lake,
    changed: Changed,
    connections: pa.Table | None,
    ends: Mapping[str, int],
    *,
    numbered: Mapping[str, int],
    cancels: bool,
) -> Scope | None:
    """Return what changes touch; None when it is too much to be named.

    ``connections`` are all RPC connections (``MEMBERS``), None where they are too many to be here; ``ends`` the newest
    packet of captures that hold packets of a server, ``numbered`` the newest qm2qm Start of each server before the
    changes, microseconds; ``cancels``: there are such of qm2qm. Each call's connection has a row, and the call's times
    lie within it.
    """
    if changed.too_many:
        return None
    reached = _reached(lake, changed, ends, numbered)
    if cancels:
        reached.by_cancels(lake, changed)
    names = reached.connections
    if not names:
        return Scope()
    if len(names) > MOST or len(reached.places) > 2 * MOST:
        return None
    moved = chain.from_iterable(changed.moved().values())
    wide = {tuple(row[name] for name in _GROUP) for row in moved if not row["added"]}
    strays = changed.strays()
    found = _members(lake, connections, names, wide, strays)
    if found is None:
        return None
    rows = found.to_pylist()
    met = {c["connection_id"] for c in rows if _overlaps(c, strays.get((c["server"], c["client"]), ()))}
    names |= met
    names |= _associated(rows, names, wide)
    days = _days((c["first_packet_at"], c["last_packet_at"]) for c in rows if c["connection_id"] in names)
    if days is None:
        return None
    counts = {c["connection_id"]: c["calls"] or 0 for c in rows if c["connection_id"] in names}
    on = GoingOn({}, frozenset())
    if changed.told is not None and sum(counts.values()) > FEW:
        on = those_going_on(rows, names, connections_before(changed.connections), reached.anew | met)
    calls = changed.told_by(on.associations)
    return Scope(
        connections=frozenset(names),
        dates=frozenset({*(day for _, day in reached.places), *days, None}),
        members=found,
        calls=sum(count for name, count in counts.items() if name not in on.associations) + len(calls),
        cancels=frozenset(reached.shared),
        going_on=frozenset(on.associations),
        woken=on.woken,
        tell=frozenset(reached.tell.union(*(row["tells"] for row in calls)) - {None}),
        changed=frozenset(row["call_key"] for row in calls),
    )


@dataclass(slots=True)
class _Reached:
    """Where changes reach before associations are looked at: ``places`` are connections and event dates.

    ``connections``: those of the places and those that changed; ``anew``: those where all is touched, not only what
    shares a name with a changed call; ``tell``: names of calls that did not change and touch what rests on them all the
    same; ``shared``: ``Scope.cancels``.
    """

    places: list[tuple[str, date | None]]
    connections: set[str]
    anew: set[str]
    tell: set[int]
    shared: set[tuple[Any, ...]] = field(default_factory=set)

    def by_cancels(self, lake: Lake, changed: Changed) -> None:
        """Add the Starts that share something with a changed call, or with a cancel of a changed connection."""
        columns = ", ".join(("connection_id", *_SHARED))
        cancelled = f"SELECT DISTINCT {columns} FROM {{reads}} WHERE protocol = 'qm2qm' AND opnum = {_CANCEL}"
        found = lake.query(cancelled, reads=REMOTE_READ_CALLS).to_pylist()
        calls = [row for row in changed.reads if row["protocol"] == "qm2qm" and row["opnum"] not in _OPENINGS]
        cancels = {tuple(row[name] for name in _SHARED) for row in found}
        gone = {tuple(row[name] for name in _SHARED) for row in calls if row["opnum"] == _CANCEL}
        near = {tuple(row[name] for name in _SHARED) for row in calls}
        near |= {tuple(row[name] for name in _SHARED) for row in found if row["connection_id"] in self.connections}
        self.shared = {key for key in cancels if None not in key}
        wanted = {key for key in near & (cancels | gone) if None not in key}
        if wanted:
            columns = f"connection_id, {EVENT_DATE}, {dependency_keys.CANCELLED} AS told"
            sql = f"SELECT DISTINCT {columns} FROM {{reads}} WHERE {SHARING} LIMIT {MOST + 1}"
            for row in lake.query(sql, reads=REMOTE_READ_CALLS, shared=shared_texts(wanted)).to_pylist():
                self.places.append((row["connection_id"], row[EVENT_DATE]))
                self.connections.add(row["connection_id"])
                self.tell.add(row["told"])


def _reached(lake: Lake, changed: Changed, ends: Mapping[str, int], numbered: Mapping[str, int]) -> _Reached:
    """Return where changes reach; the parameters are those of ``scope``."""
    due = [row for row in changed.waiting if row["until"] < ends.get(row["server_address"], -1)]
    places = [(row["connection_id"], row[EVENT_DATE]) for row in (*changed.reads, *due)]
    anew: list[tuple[str, date | None]] = []
    for table, other in ((RECEIVE_ATTEMPTS, "inferred_queue"), (QUEUE_OPERATIONS, "target_queue")):
        if changed.earlier:
            anew += _places(lake, table, "server_address IN {servers}", servers=changed.earlier)
        if changed.renamed:
            anew += _places(lake, table, _of_queues("queue", other), texts=changed.renamed)
    openings = changed.openings(numbered)
    if openings is not None:
        anew += _started_since(lake, *openings)
    places += anew
    connections = {name for name, _ in places} | {row["connection_id"] for row in changed.connections}
    return _Reached(places, connections, {name for name, _ in anew}, {row["rests_on"] for row in due})


def those_going_on(
    members: list[dict[str, Any]], names: Collection[str], before: Mapping[str, Row | None], anew: Collection[str]
) -> GoingOn:
    """Return which of the named connections are of associations that go on; ``anew``: connections whose ones do not.

    ``members`` are rows of bronze.connections, all of the named ones' groups, ``before`` as ``connections_before``.
    """
    servers = {c["connection_id"]: c["server_address"] for c in members}
    images: defaultdict[str | None, dict[str, Connection | None]] = defaultdict(dict)
    for name, row in before.items():
        server = servers.get(name) if row is None else row["server_address"]
        images[server][name] = None if row is None else _connection(row)
    elsewhere = {name for name, row in before.items() if row is not None and row["server_address"] != servers.get(name)}
    found: dict[str, str] = {}
    woken: set[str] = set()
    for server, theirs in _by_server(members).items():
        on = going_on(theirs, images[server])
        parted = {on.associations[name] for name in (*anew, *elsewhere) if name in on.associations}
        found |= {
            name: association
            for name, association in on.associations.items()
            if name in names and association not in parted
        }
        woken |= on.woken
    return GoingOn(found, frozenset(woken & found.keys()))


def _by_server(members: Iterable[Mapping[str, Any]]) -> dict[str | None, list[Connection]]:
    found: defaultdict[str | None, list[Connection]] = defaultdict(list)
    for row in members:
        found[row["server_address"]].append(_connection(row))
    return found


def _connection(row: Mapping[str, Any]) -> Connection:
    """Return a connection of ``members``, or of the feed."""
    facts: dict[str, Any] = {name: NOT_NULL.get(name) if row[name] is None else row[name] for name in CONNECTION}
    return Connection(**facts)


def _moved_at(images: list[Row]) -> int:
    """Return since when a connection that moved can have changed associations: one that only ended, since its end."""
    began: int = min(row["first_packet_at"] for row in images)
    ends = [row["closed_at"] for row in images if row["closed_at"] is not None]
    stayed = len({(*(row[name] for name in _GROUP), row["first_packet_at"]) for row in images}) == 1
    both = {row["added"] for row in images} == {True, False}
    return min(ends, default=began) if stayed and both else began


def _places(lake: Lake, table: Table, where: str, **of: Source) -> list[tuple[str, date | None]]:
    columns = f"SELECT DISTINCT connection_id, {EVENT_DATE} FROM {{rows}} WHERE {where} LIMIT {MOST + 1}"
    found = lake.query(columns, rows=table, **of).to_pylist()
    return [(row["connection_id"], row[EVENT_DATE]) for row in found]


def _of_queues(*columns: str) -> str:
    """Return the condition that a queue, or the one that a journal or subqueue belongs to, has one of some texts."""
    bases = (f"split_part({column}, ';', 1)" for column in columns)
    return " OR ".join(f"{name} IN {{texts}}" for name in (*columns, *bases))


def _started_since(lake: Lake, servers: Collection[str], at: int) -> list[tuple[str, date | None]]:
    """Return where qm2qm Starts and purges of some servers are since a time, microseconds."""
    day = (_EPOCH + timedelta(days=at // _DAY_US)).isoformat()
    late = f"({EVENT_DATE} >= DATE'{day}' OR {EVENT_DATE} IS NULL) AND {_AT} >= {at}"
    where = f"protocol = 'qm2qm' AND opnum IN {_listed(_USES)} AND {late} AND server_address IN {{servers}}"
    return _places(lake, REMOTE_READ_CALLS, where, servers=servers)


def _members(
    lake: Lake,
    connections: pa.Table | None,
    names: Collection[str],
    groups: Collection[tuple[str, ...]],
    clients: Collection[tuple[str, str]],
) -> pa.Table | None:
    """All connections of these groups, of those that the named ones are in, and of these clients at their servers.

    With the strays of all their clients. None if there are too many.
    """
    if connections is None:
        asked = lake.query(f"SELECT DISTINCT {', '.join(_GROUP)} FROM ({MEMBERS}) WHERE connection_id IN {{names}}"
                           f" LIMIT {MOST + 1}", connections=CONNECTIONS, names=names)  # fmt: skip
        wanted = {*groups, *(tuple(row.values()) for row in asked.to_pylist())}
        near_clients = {client for _, client, _ in wanted} | {client for _, client in clients}
        found: pa.Table = lake.query(
            f"SELECT * FROM ({MEMBERS}) WHERE association IN {{groups}} OR (stray AND client IN {{near}})"
            f" OR client IN {{clients}} LIMIT {MOST + 1}",
            connections=CONNECTIONS, groups={group[2] for group in wanted}, near=near_clients,
            clients={client for _, client in clients},
        )  # fmt: skip
        if found.num_rows > MOST:
            return None
    else:
        ours = one_of(connections, "connection_id", names)
        wanted = {*groups, *(tuple(row.values()) for row in connections.filter(ours).select(list(_GROUP)).to_pylist())}
        theirs = one_of(connections, "association", {group[2] for group in wanted})
        theirs = pc.or_(theirs, one_of(connections, "client", {client for _, client in clients}))
        found = connections.filter(pc.or_(theirs, connections["stray"]))
    near = {group[:2] for group in wanted} | {*clients}
    here = zip(*(found[name].to_pylist() for name in (*_GROUP, "stray")), strict=True)
    return found.filter(
        pa.array(
            [
                (server, client, group) in wanted or (server, client) in clients or (stray and (server, client) in near)
                for server, client, group, stray in here
            ],
            pa.bool_(),
        )
    )


def _overlaps(connection: Mapping[str, Any], spans: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a connection was there in one of the spans; one that was not seen to end goes on."""
    begun, ended = connection["first_packet_at"], connection["closed_at"]
    return any((ended is None or first <= ended) and last >= begun for first, last in spans)


def _associated(members: list[dict[str, Any]], names: Collection[str], wide: Collection[tuple[str, ...]]) -> set[str]:
    """The connections of the associations that these connections are in, and of whole groups that are ``wide``.

    A connection that was added can only have joined associations, and these are in the one it is in now; one that
    changed or went can have parted them, so that all of its group may stand in another one than before.
    """
    name_of: dict[str, str] = {}
    for ours in _by_server(members).values():
        name_of |= {connection: found.name for connection, found in associations(ours).items()}
    touched = {name_of[name] for name in names if name in name_of}
    return {
        c["connection_id"]
        for c in members
        if name_of[c["connection_id"]] in touched or tuple(c[name] for name in _GROUP) in wide
    }


def _days(spans: Iterable[tuple[int, int]]) -> set[date] | None:
    """All days, UTC, of spans in microseconds since the epoch; None if there are too many."""
    days = {(first // _DAY_US, last // _DAY_US) for first, last in spans}
    if sum(last - first + 1 for first, last in days) > MOST:
        return None
    return {_EPOCH + timedelta(days=day) for first, last in days for day in range(first, last + 1)}
