"""What is known of connections, asked for many at once, and taken apart connection by connection in tasks.

Of a connection with a checkpoint the rows behind it are asked for; of one that is read in rounds, those of a round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in, times_to_us
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import BUCKET, bucket_sql
from pipeline.transfers.checkpoints import Checkpoint, LaterPackets, checkpoints_by_connection
from pipeline.transfers.connection_packets import ConnectionPackets
from pipeline.transfers.inputs import PACKETS_SQL, arrange_read_packets
from schemas.bronze import CONNECTIONS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import EVENT_DATE, Table, quoted
from udfs.capture.clock_steps import ClockSteps
from udfs.columns.arrays import one_array
from udfs.messages.header_layouts import PROTOCOL_BINARY
from udfs.times import us_to_datetime

_NO_CHECKPOINTS: Final[Mapping[str, Checkpoint]] = MappingProxyType({})
_NOTHING_LATER: Final[Mapping[str, LaterPackets]] = MappingProxyType({})
_CHOSEN: Final = "connection_id IN {names}"
_DECODED: Final = f"""
SELECT sighting_key, packet_key, connection_id, seen_at, session_number, recoverable_number, delivery, transactional,
  {EVENT_DATE}
FROM {{rows}} WHERE seen_in = '{PROTOCOL_BINARY}' AND {{chosen}}"""
_PACKET_COUNTS: Final = """
SELECT connection_id, count(*) AS packets FROM {rows} WHERE connection_id IN {names} GROUP BY connection_id"""
_LIMITS: Final = ("connection_id", "read_since", "read_until")


class ConnectionsToRead(NamedTuple):
    """Connections, and what is read of them: what lies behind a checkpoint, up to what is ``later``; else all.

    ``stored``: checkpoints of the table that hold; ``made``: those of this run; ``later``: what is not read yet.
    """

    names: pa.Array
    stored: Mapping[str, Checkpoint] = _NO_CHECKPOINTS
    made: Mapping[str, Checkpoint] = _NO_CHECKPOINTS
    later: Mapping[str, LaterPackets] = _NOTHING_LATER

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """The checkpoints behind which connections are read."""
        return {**self.stored, **self.made}

    @property
    def of_this_run(self) -> ConnectionsToRead:
        """The same without checkpoints of the table, and without names: few."""
        return ConnectionsToRead(pa.array([], pa.string()), made=self.made, later=self.later)

    @property
    def whole(self) -> ConnectionsToRead:
        """The same connections, of which all is read."""
        return ConnectionsToRead(self.names)

    def up_to(self, later: Mapping[str, LaterPackets]) -> ConnectionsToRead:
        """Return the same without packets that are read later."""
        return self._replace(later=later)

    def behind(
        self, names: Collection[str], made: Mapping[str, Checkpoint], whole: Collection[str]
    ) -> ConnectionsToRead:
        """Return some of the connections, read behind new checkpoints; ``whole``: those that are read without one."""
        made = {name: each for name, each in {**self.made, **made}.items() if name in names}
        stored = {name: self.stored[name] for name in names if name in self.stored and name not in {*made, *whole}}
        return ConnectionsToRead(pa.array(sorted(names), pa.string()), stored, made)


def connection_queries(read: ConnectionsToRead, table: Table, columns: Collection[str]) -> dict[str, BoundQuery]:
    """Return the queries for what ``ConnectionParts`` reads, by bucket of the connection.

    ``table``: of their checkpoints; ``columns``: those of ``bronze.connections`` that are wanted.
    """
    chosen, stored = {"names": read.names}, {*read.stored}
    usable = "connection_id IN {usable}" if stored else "FALSE"
    of_checkpoints = f"SELECT {_listed(table.names)}, {usable} AS usable FROM {{rows}} WHERE {_CHOSEN}"
    queries = {
        "packets": _packets_query(read),
        "decoded": unread_rows(_DECODED, MESSAGES, read, "seen_at"),
        "connections": BoundQuery(
            f"SELECT {_listed(columns)} FROM {{rows}} WHERE {_CHOSEN}", {"rows": CONNECTIONS, **chosen}
        ),
        "checkpoints": BoundQuery(of_checkpoints, {"rows": table, "usable": stored, **chosen}),
        "packet_counts": BoundQuery(_PACKET_COUNTS, {"rows": SESSION_PACKETS, "names": stored}),
    }
    return {name: by_bucket(query) for name, query in queries.items()}


def by_bucket(query: BoundQuery) -> BoundQuery:
    """Return a query with a column for the bucket of each row's connection."""
    return query.wrap(f"SELECT *, {bucket_sql('connection_id')} FROM {{answer}} AS answer")


def rows_of_connections(
    table: Table, read: ConnectionsToRead, column: str = "", where: str = "TRUE", columns: Collection[str] = ()
) -> BoundQuery:
    """Return the query for rows of a table that meet a condition, by bucket, as for ``unread_rows``.

    ``columns``: those that are wanted, all by default.
    """
    sql = f"SELECT {_listed(columns or table.names)} FROM {{rows}} WHERE {where} AND {{chosen}}"
    return by_bucket(unread_rows(sql, table, read, column))


def unread_rows(sql: str, table: Table | pa.Table, read: ConnectionsToRead, column: str) -> BoundQuery:
    """Return the query for rows of some connections: behind their checkpoints, and without those that are read later.

    ``sql`` asks ``{rows}`` of a table with a connection_id for those that meet the condition ``{chosen}``; ``column``:
    the SQL of their times. Files with other rows alone are not read. A row without a time is read with a connection
    that is read from its beginning.
    """
    checkpoints = read.checkpoints
    since = {name: each.counted_until for name, each in checkpoints.items()}
    until = {name: each.read_until for name, each in read.later.items()}
    some = pa.array(sorted({*since, *until}), pa.string())
    whole = read.names.filter(pc.invert(pc.is_in(read.names, some)))
    parts, inputs = [], dict[str, QueryInput]()
    if len(whole) or not (since or until):
        parts.append(_filled(sql, "{whole_rows}", "connection_id IN {whole}"))
        inputs |= {"whole_rows": table, "whole": whole}
    if since or until:
        limits = [[of.get(name) for name in some.to_pylist()] for of in (since, until)]
        first = min(since.values()) if len(since) == len(some) else None
        last = max(until.values()) if len(until) == len(some) else None
        inputs["some_rows"] = table
        if first is not None and isinstance(table, Table):
            inputs["some_rows"] = RowsOfDates(table, DateSpan.of_times(first, last))
        inputs |= {
            "some": some,
            "limits": pa.table([some, *(pa.array(each, pa.int64()) for each in limits)], _LIMITS),
        }
        parts.append(_filled(sql, "{some_rows} JOIN {limits} USING (connection_id)", _between(column, first, last)))
    return BoundQuery(" UNION ALL ".join(parts), inputs)


def _between(column: str, first: int | None, last: int | None) -> str:
    """Return the SQL condition of rows behind ``read_since`` up to ``read_until``.

    ``first`` and ``last``: bounds of these limits, if there are any; files tell of them without being read.
    """
    conditions = [
        "connection_id IN {some}",
        f"coalesce(unix_micros({column}) > read_since, read_since IS NULL)",
        f"coalesce(unix_micros({column}) <= read_until, read_until IS NULL OR read_since IS NULL)",
    ]
    if first is not None:
        conditions.append(f"{column} > timestamp_micros({first})")
    if first is not None and last is not None:
        conditions.append(f"{column} <= timestamp_micros({last})")
    return " AND ".join(conditions)


def _packets_query(read: ConnectionsToRead) -> BoundQuery:
    """Return the query for packets of connections as ``unread_rows``, and those that their checkpoints keep."""
    found = unread_rows(f"{PACKETS_SQL} WHERE {{chosen}}", SESSION_PACKETS, read, "sent_at")
    checkpoints = read.checkpoints
    kept = [each for checkpoint in checkpoints.values() for each in checkpoint.kept_packets]
    if not kept:
        return found
    times, keys = sorted({each.sent_at_us for each in kept}), {each.packet_key for each in kept}
    at = ", ".join(f"timestamp_micros({each})" for each in times)
    where = f"connection_id IN {{some}} AND packet_key IN {{kept}} AND sent_at IN ({at})"
    sql = _filled(f"{PACKETS_SQL} WHERE {{chosen}}", "{kept_rows}", where)
    rows = RowsOfDates(SESSION_PACKETS, {us_to_datetime(each).date() for each in times})
    return BoundQuery(f"{found.sql} UNION ALL {sql}", {**found.inputs, "kept_rows": rows, "kept": keys})


def _filled(sql: str, rows: str, chosen: str) -> str:
    return sql.replace("{rows}", rows).replace("{chosen}", chosen)


def _listed(columns: Collection[str]) -> str:
    return ", ".join(map(quoted, columns))


class ConnectionParts(NamedTuple):
    """What is known of some connections, as ``connection_queries`` asks for it.

    ``connections``: their rows, as far as they are there; ``decoded``: of their messages the keys, numbers, delivery,
    and whether they are transactional; ``stored``: their checkpoints, of which ``checkpoints`` hold; of connections
    with one of these packets and messages are those behind it, and the packets that it keeps. Others of this run are in
    ``found``. ``packet_counts``: how many packets connections with a checkpoint of the table have in all.
    """

    found: ConnectionPackets
    connections: pa.Table
    decoded: pa.Table
    stored: pa.Table
    checkpoints: Mapping[str, Checkpoint]
    packet_counts: Mapping[str, int]

    @staticmethod
    def of(
        parts: Mapping[str, pa.Table], table: Table, read: ConnectionsToRead, steps: ClockSteps, expire_us: int
    ) -> ConnectionParts:
        """Return what is known, as ``connection_queries`` asked for it.

        ``table``: of checkpoints; ``read``: what was ``made`` in this run, and what is read ``later``; ``steps``: where
        clocks were set; ``expire_us``: the setting pending.expire.
        """
        connections, decoded, counts = (parts[name] for name in ("connections", "decoded", "packet_counts"))
        columns = [name for name in connections.column_names if name != BUCKET]
        connections, stored = cast_to(CONNECTIONS, connections, columns), cast_to(table, parts["checkpoints"])
        checkpoints = checkpoints_by_connection(stored.filter(parts["checkpoints"]["usable"]))
        packets, names = parts["packets"].drop_columns([BUCKET]), connections["connection_id"].to_pylist()
        made = {name: read.made[name] for name in names if name in read.made}
        found = arrange_read_packets(packets, decoded, names, expire_us, {**checkpoints, **made}, steps)
        found.later = {name: read.later[name] for name in names if name in read.later}
        return ConnectionParts(
            found,
            connections,
            decoded,
            stored,
            checkpoints,
            dict(zip(counts["connection_id"].to_pylist(), counts["packets"].to_pylist(), strict=True)),
        )


def without_connections(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the rows of other connections."""
    return rows.filter(pc.invert(is_in(rows, "connection_id", names))) if names else rows


def rows_up_to(rows: pa.Table, column: str, until: Mapping[str, int]) -> pa.Table:
    """Return rows of connections; of some those up to a time in microseconds, by connection, and those without a time.

    ``column``: of the times.
    """
    if not until:
        return rows
    place = pc.index_in(rows["connection_id"], pa.array([*until], pa.string()))
    limits = pa.array([*until.values()], pa.int64()).take(one_array(place))
    return rows.filter(pc.less_equal(times_to_us(rows[column]), limits).fill_null(fill_value=True))
