"""Queries over the change feeds that the attempts follow, and what their answers say.

The feeds are those of silver.remote_read_calls, silver.client_calls and bronze.connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts
from pipeline.attempts import dependency_keys
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS, IS_RPC_CONNECTION_SQL, servers_condition
from pipeline.attempts.capture_gaps import latest_by_server
from pipeline.bronze.across_captures.capture_ends import values_of_servers
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import POST_IMAGES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE

_FOR_EVER: Final = 0xFFFFFFFF  # ulTimeout

START_OPNUMS: Final = (0, 9, 10)  # opnums of qm2qm

CANCEL_OPNUM: Final = 5

OPENING_OPNUMS: Final = (2, 3)

QUEUE_NUMBER_OPNUMS: Final = (*START_OPNUMS, 6)  # methods that use a queue by its number: Starts and purges

GROUP_COLUMNS: Final = ("server", "client", "association")

_LIFE: Final = ("first_packet_at", "closed_at")

_TIMES: Final = ("first_packet_at", "last_packet_at", "closed_at")

_NAMES: Final = ("call_key", "queue", "queue_format_name", "context_handle", "_change_type")

REQUEST_KEY_SQL: Final = "(server_address || '|' || CAST(queue_handle AS string) || '|' || CAST(request_id AS string))"
"""What a qm2qm Start and its cancel share: server, queue handle and request number as one text; null without one."""

PLACES_SCHEMA: Final = pa.schema({"connection_id": pa.string(), EVENT_DATE: pa.date32()})
"""Of calls: their connections and event dates."""

CHANGED_READS_SCHEMA: Final = pa.schema(
    [
        *PLACES_SCHEMA, ("protocol", pa.string()), ("opnum", pa.int32()), ("server_address", pa.string()),
        ("request", pa.string()), *((name, pa.string()) for name in _NAMES), ("observed", pa.int64()),
        ("at", pa.int64()),
    ]
)  # fmt: skip

CHANGED_CLIENT_CALLS_SCHEMA: Final = pa.schema(
    [("protocol", pa.string()), ("opnum", pa.int32()), ("server_address", pa.string()), ("at", pa.int64())]
)

PUBLISHED_KEYS_SCHEMA: Final = pa.schema(
    {"connection_id": pa.string(), "call_key": pa.string(), "published_keys": pa.list_(pa.string())}
)

FeedRow: TypeAlias = Mapping[str, Any]

CALL_TIME_SQL: Final = "unix_micros(coalesce(requested_at, responded_at))"


def sql_values(values: Iterable[object]) -> str:
    """Return values as a SQL list of literals."""
    return f"({', '.join(map(repr, values))})"


_IS_BY_NUMBER: Final = (
    f"(protocol = 'qm2qm' AND opnum IN {sql_values((*QUEUE_NUMBER_OPNUMS, CANCEL_OPNUM, *OPENING_OPNUMS))})"
)

_IS_REMOTE_OPEN: Final = "(protocol = 'RemoteRead' AND opnum IN (2, 11))"

CHANGED_READS_QUERY: Final = ", ".join(
    [
        f"SELECT DISTINCT connection_id, {EVENT_DATE}",
        *(
            f"CASE WHEN {_IS_BY_NUMBER} OR {_IS_REMOTE_OPEN} THEN {name} END AS {name}"
            for name in ("protocol", "opnum", "server_address")
        ),
        f"CASE WHEN {_IS_BY_NUMBER} THEN {REQUEST_KEY_SQL} END AS request",
        *(f"CASE WHEN {_IS_REMOTE_OPEN} THEN {name} END AS {name}" for name in _NAMES),
        f"CASE WHEN {_IS_REMOTE_OPEN} THEN unix_micros(coalesce(responded_at, requested_at)) END AS observed",
        f"CASE WHEN {_IS_BY_NUMBER} OR {_IS_REMOTE_OPEN} THEN {CALL_TIME_SQL} END AS `at` FROM {{feed}}",
    ]
)
"""Query over the change feed of silver.remote_read_calls.

The places of changed calls; of calls by number, and of opens, also what they share with other calls, and their times.
"""

PUBLISHED_DEPENDENCY_KEYS_QUERY: Final = (
    f"SELECT connection_id, call_key, {dependency_keys.key_array(dependency_keys.PUBLISHED_KEYS)} AS published_keys"
    " FROM {feed} WHERE connection_id IN {names}"
)
"""Query over the same feed: the dependency keys that the calls on some connections publish."""

CHANGED_CLIENT_CALLS_QUERY: Final = (
    f"SELECT interface_name AS protocol, opnum, server_address, {CALL_TIME_SQL} AS `at` FROM {{feed}} WHERE "
    "(interface_name = 'qmcomm' AND opnum IN (1, 2, 3, 19)) OR (interface_name = 'qmcomm2' AND opnum = 3)"
)
"""Query over the change feed of silver.client_calls: calls that open, close, or show queue names."""

ASSOCIATION_GROUP_SQL: Final = "CASE WHEN association_group_id <> 0 THEN CAST(association_group_id AS string) END"
"""The association group of a connection as text; null without one."""
# The beginning or the end of a connection has no time, or one direction was not captured (``RpcConnection.of``).
_LOST_IN_PART: Final = (
    "(first_packet_at IS NULL OR (closed_by IS NOT NULL AND closed_at IS NULL) OR uncaptured_side IS NOT NULL)"
)
WITHOUT_BIND_SQL: Final = (
    f"(NOT coalesce(syn_seen, FALSE) OR coalesce(missing_bytes, 0) > 0 OR {_LOST_IN_PART})"
    f" AND {ASSOCIATION_GROUP_SQL} IS NULL"
)
"""Whether a connection is without bind (``RpcConnection.is_without_bind``)."""

# The group of an RPC connection: server, client, and association group (the connection itself without one); and
# whether it is without bind (``RpcConnection.is_without_bind``).
_GROUP_COLUMNS: Final = (
    "server_address", "coalesce(server_address, '') AS server", "coalesce(client_address, '') AS client",
    f"coalesce({ASSOCIATION_GROUP_SQL}, connection_id) AS association",
    *(f"coalesce(unix_micros({name}), 0) AS {name}" for name in _TIMES[:2]), "unix_micros(closed_at) AS closed_at",
    f"{WITHOUT_BIND_SQL} AS without_bind",
)  # fmt: skip

_CONNECTION_COLUMNS: Final = (
    *(name for name in CONNECTION_FIELDS if name not in (*_TIMES, "missing_bytes")),
    f"CASE WHEN {_LOST_IN_PART} THEN greatest(missing_bytes, 1) ELSE missing_bytes END AS missing_bytes",
)

CHANGED_CONNECTIONS_QUERY: Final = (
    f"SELECT {', '.join((*_CONNECTION_COLUMNS, *_GROUP_COLUMNS))}, _change_type IN {sql_values(POST_IMAGES)} AS added,"
    f" _commit_version AS version FROM {{feed}} WHERE {IS_RPC_CONNECTION_SQL}"
)
"""Query over the change feed of bronze.connections: the group of each changed connection, before and after."""

RPC_CONNECTIONS_QUERY: Final = (
    f"SELECT {', '.join((*_CONNECTION_COLUMNS, 'calls', *_GROUP_COLUMNS))} FROM {{connections}}"
    f" WHERE {IS_RPC_CONNECTION_SQL}"
)
"""Query over bronze.connections: RPC connections with their groups; times are microseconds."""


@dataclass(frozen=True, slots=True)
class InputChanges:
    """The answers to the queries over the change feeds.

    ``reads``: rows with ``CHANGED_READS_SCHEMA``, one for each changed call that uses a queue by its number.
    ``client_calls``: rows with ``CHANGED_CLIENT_CALLS_SCHEMA``. ``expiring_attempts`` as ``read_expiring_attempts``
    returns them; ``other_claims``: the connections whose clients claim to be others (``CHANGED_CLAIMS_QUERY``).
    ``servers_with_earlier_capture_end``: servers whose last captured packet is earlier than before;
    ``renamed_queues``: former canonical names that have another canonical name now.
    """

    reads: pa.Table
    client_calls: pa.Table
    connections: list[FeedRow]
    expiring_attempts: pa.Table
    other_claims: pa.Table
    servers_with_earlier_capture_end: Collection[str] = ()
    renamed_queues: Collection[str] = ()

    def calls_by_number(self, *opnums: int) -> pa.Table:
        """Return the changed calls of some methods of qm2qm."""
        is_qm2qm, opnum = pc.equal(self.reads["protocol"], "qm2qm"), self.reads["opnum"]
        return self.reads.filter(pc.and_(is_qm2qm, pc.is_in(opnum, pa.array(opnums, opnum.type))))

    def latest_starts(self) -> dict[str, int]:
        """Return the latest qm2qm Start or purge of each server among the changed calls, microseconds."""
        starts = self.calls_by_number(*QUEUE_NUMBER_OPNUMS).group_by("server_address").aggregate([("at", "max")])
        known = starts.filter(pc.and_(pc.is_valid(starts["server_address"]), pc.is_valid(starts["at_max"])))
        return dict(zip(known["server_address"].to_pylist(), known["at_max"].to_pylist(), strict=True))

    @property
    def remote_opens(self) -> list[FeedRow]:
        """The RemoteRead opens among the changed calls: they can show which names mean the same queue."""
        opens: list[FeedRow] = self.reads.filter(pc.equal(self.reads["protocol"], "RemoteRead")).to_pylist()
        return opens

    @property
    def has_naming_calls(self) -> bool:
        """Whether calls of qmcomm and qmcomm2 that can show this are among the changed calls."""
        calls = self.client_calls
        is_other = pc.or_(pc.not_equal(calls["protocol"], "qmcomm"), pc.not_equal(calls["opnum"], 3))
        return bool(pc.any(is_other).as_py())

    @property
    def has_cancels(self) -> bool:
        """Whether a qm2qm cancel is among the changed calls."""
        return len(self.calls_by_number(CANCEL_OPNUM)) > 0

    def connections_with_other_groups(self) -> dict[str, list[FeedRow]]:
        """Return the images, before and after, of connections that are new, deleted, regrouped, or have another end.

        Only these can have changed which connections form an association.
        """
        images: defaultdict[str, list[FeedRow]] = defaultdict(list)
        for row in self.connections:
            images[row["connection_id"]].append(row)
        facts = (*GROUP_COLUMNS, *_LIFE)
        return {
            name: rows
            for name, rows in images.items()
            if {tuple(row[n] for n in facts) for row in rows if row["added"]}
            != {tuple(row[n] for n in facts) for row in rows if not row["added"]}
        }

    def connections_of_other_clients(self) -> pa.Array:
        """Return the connections, not new ones, whose clients claim to be others than before."""
        before = connections_before_change(self.connections)
        new = pa.array([name for name, row in before.items() if row is None], pa.string())
        names = distinct_texts(self.other_claims["connection_id"])
        return names.filter(pc.invert(pc.is_in(names, new)))

    def servers_with_changed_openings(self, numbered: Mapping[str, int]) -> tuple[pa.Array, int] | None:
        """Return the servers where queues may have been opened or closed before a qm2qm Start, and since when.

        ``numbered`` are the latest Starts of servers before the change, microseconds.
        """
        clients, columns = self.client_calls, ["server_address", "at"]
        opens = pc.is_in(clients["opnum"], pa.array(OPENING_OPNUMS, clients["opnum"].type))
        others = self.connections_with_other_groups().values()
        moved = [(rows[0]["server_address"], _moved_since(rows)) for rows in others]
        servers, times = zip(*moved, strict=True) if moved else ((), ())
        found = pa.concat_tables([
            self.calls_by_number(*OPENING_OPNUMS).select(columns),
            clients.filter(pc.and_(pc.equal(clients["protocol"], "qmcomm"), opens)).select(columns),
            pa.table([pa.array(servers, pa.string()), pa.array(times, pa.int64())], columns),
        ])  # fmt: skip
        found = found.filter(pc.less_equal(found["at"], values_of_servers(found["server_address"], numbered)))
        if not found.num_rows:
            return None
        since: int = pc.min(found["at"]).as_py()
        return distinct_texts(found["server_address"]), since


def times_without_bind(images: Iterable[FeedRow]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return when changed connections that are or were without bind existed, by server and client, microseconds.

    ``images`` are those of ``CHANGED_CONNECTIONS_QUERY``.
    """
    found: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in images:
        if row["without_bind"]:
            found[row["server"], row["client"]].append((row["first_packet_at"], row["last_packet_at"]))
    return found


def existed_in(spans: Iterable[tuple[int, int]], begun: int, ended: int | None) -> bool:
    """Whether a connection existed in one of some time spans; one without a captured end still exists."""
    return any((ended is None or first <= ended) and last >= begun for first, last in spans)


def connections_before_change(images: Iterable[FeedRow]) -> dict[str, FeedRow | None]:
    """Return each changed connection before the change, from ``CHANGED_CONNECTIONS_QUERY``; None for a new one."""
    before: dict[str, FeedRow | None] = {}
    for row in sorted(images, key=lambda row: (row["version"], row["added"])):
        before.setdefault(row["connection_id"], None if row["added"] else row)
    return before


def read_incomplete_until(lake: Lake, servers: Collection[str] | None = None) -> dict[str, int]:
    """Return when the last packet of connections came of which bytes are missing, by server, microseconds.

    Of some servers, or of all (None).
    """
    of_servers, inputs = servers_condition(servers)
    sql = (
        f"SELECT server_address, max(last_packet_at) AS `at` FROM ({RPC_CONNECTIONS_QUERY})"
        f" WHERE missing_bytes > 0 AND {of_servers} GROUP BY server_address"
    )
    rows = lake.query(sql, connections=CONNECTIONS, **inputs)
    return latest_by_server(zip(rows["server_address"].to_pylist(), rows["at"].to_pylist(), strict=True))


def incomplete_until(lake: Lake, before: Mapping[str, int], images: Iterable[FeedRow]) -> dict[str, int]:
    """Return the same from what it was before and ``images``, the changed connections (``CHANGED_CONNECTIONS_QUERY``).

    Only servers whose last such connection is gone are looked up.
    """
    incomplete = [row for row in images if row["missing_bytes"]]
    came, gone = (
        latest_by_server((row["server_address"], row["last_packet_at"]) for row in incomplete if row["added"] is added)
        for added in (True, False)
    )
    now = latest_by_server([*before.items(), *came.items()])
    again = {server for server, at in gone.items() if at >= now.get(server, at)}
    kept = {server: at for server, at in now.items() if server not in again}
    return kept | (read_incomplete_until(lake, again) if again else {})


def read_expiring_attempts(lake: Lake, cleanup_s: float) -> pa.Table:
    """Return the attempts that the end of the capture can decide, and until when it cannot, microseconds (``until``).

    Each row has connection_id, event_date, server_address, and the key of one call that the attempt depends on
    (``rests_on``).
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
    names = f"connection_id, {EVENT_DATE}, server_address, until, {dependency_keys.CALL_KEY} AS rests_on"
    return lake.query(f"SELECT {names} FROM ({each}) WHERE until IS NOT NULL", attempts=RECEIVE_ATTEMPTS)


def latest_start_by_server_and_any_cancel(lake: Lake) -> tuple[dict[str, int], bool]:
    """Return the latest qm2qm Start or purge of each server, microseconds, and whether any qm2qm cancel exists."""
    start, cancel = f"opnum IN {sql_values(QUEUE_NUMBER_OPNUMS)}", f"opnum = {CANCEL_OPNUM}"
    rows = lake.query(
        f"SELECT server_address, max(CASE WHEN {start} THEN {CALL_TIME_SQL} END) AS newest,"
        f" bool_or({cancel}) AS cancels FROM {{reads}} WHERE protocol = 'qm2qm' AND ({start} OR {cancel})"
        " GROUP BY server_address",
        reads=REMOTE_READ_CALLS,
    ).to_pylist()
    known = (row for row in rows if row["server_address"] is not None and row["newest"] is not None)
    return {row["server_address"]: row["newest"] for row in known}, any(row["cancels"] for row in rows)


def _moved_since(images: list[FeedRow]) -> int:
    """Return since when a moved connection can have changed associations: since its end, if only that changed."""
    began: int = min(row["first_packet_at"] for row in images)
    ends = [row["closed_at"] for row in images if row["closed_at"] is not None]
    stayed = len({(*(row[name] for name in GROUP_COLUMNS), row["first_packet_at"]) for row in images}) == 1
    both = {row["added"] for row in images} == {True, False}
    return min(ends, default=began) if stayed and both else began
