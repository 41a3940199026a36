"""What is known of connections, asked for many at once, and taken apart connection by connection in tasks.

Of a connection with a checkpoint the rows behind it are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import BUCKET, bucket_sql
from pipeline.transfers.checkpoints import Checkpoint, checkpoints_by_connection
from pipeline.transfers.connection_packets import ConnectionPackets
from pipeline.transfers.inputs import PACKETS_SQL, arrange_read_packets
from schemas.bronze import CONNECTIONS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import EVENT_DATE, Table, quoted
from udfs.capture.clock_steps import ClockSteps
from udfs.messages.header_layouts import PROTOCOL_BINARY
from udfs.times import us_to_datetime

_NO_CHECKPOINTS: Final[Mapping[str, Checkpoint]] = MappingProxyType({})
_CHOSEN: Final = "connection_id IN {names}"
_DECODED: Final = f"""
SELECT sighting_key, packet_key, connection_id, seen_at, session_number, recoverable_number, delivery, transactional,
  {EVENT_DATE}
FROM {{rows}} WHERE seen_in = '{PROTOCOL_BINARY}' AND {{chosen}}"""
_PACKET_COUNTS: Final = """
SELECT connection_id, count(*) AS packets FROM {rows} WHERE connection_id IN {names} GROUP BY connection_id"""


def connection_queries(
    names: pa.Array, checkpoints: Mapping[str, Checkpoint], table: Table, columns: Collection[str]
) -> dict[str, BoundQuery]:
    """Return the queries for what ``ConnectionParts`` reads, by bucket of the connection.

    ``names``: of the connections; ``checkpoints``: of some of them, those of a table that hold, by connection;
    ``columns``: those of ``bronze.connections`` that are wanted.
    """
    chosen = {"names": names}
    usable = "connection_id IN {usable}" if checkpoints else "FALSE"
    of_checkpoints = f"SELECT {_listed(table.names)}, {usable} AS usable FROM {{rows}} WHERE {_CHOSEN}"
    queries = {
        "packets": _packets_query(names, checkpoints),
        "decoded": behind_checkpoints(_DECODED, MESSAGES, names, checkpoints, "seen_at"),
        "connections": BoundQuery(
            f"SELECT {_listed(columns)} FROM {{rows}} WHERE {_CHOSEN}", {"rows": CONNECTIONS, **chosen}
        ),
        "checkpoints": BoundQuery(of_checkpoints, {"rows": table, "usable": {*checkpoints}, **chosen}),
        "packet_counts": BoundQuery(_PACKET_COUNTS, {"rows": SESSION_PACKETS, "names": {*checkpoints}}),
    }
    return {name: by_bucket(query) for name, query in queries.items()}


def by_bucket(query: BoundQuery) -> BoundQuery:
    """Return a query with a column for the bucket of each row's connection."""
    return query.wrap(f"SELECT *, {bucket_sql('connection_id')} FROM {{answer}} AS answer")


def rows_of_connections(
    table: Table, names: pa.Array, checkpoints: Mapping[str, Checkpoint] = _NO_CHECKPOINTS, column: str = "",
    where: str = "TRUE", columns: Collection[str] = (),
) -> BoundQuery:  # fmt: skip
    """Return the query for rows of a table that meet a condition, by bucket, as for ``behind_checkpoints``.

    ``columns``: those that are wanted, all by default.
    """
    sql = f"SELECT {_listed(columns or table.names)} FROM {{rows}} WHERE {where} AND {{chosen}}"
    return by_bucket(behind_checkpoints(sql, table, names, checkpoints, column))


def behind_checkpoints(
    sql: str, table: Table, names: pa.Array, checkpoints: Mapping[str, Checkpoint], column: str
) -> BoundQuery:
    """Return the query for rows of some connections, of those with a checkpoint the ones behind it.

    ``sql`` asks ``{rows}`` of a table with a connection_id for those that meet the condition ``{chosen}``; ``column``:
    its times. Files with older rows alone are not read.
    """
    until = {name: each.counted_until for name, each in checkpoints.items()}
    late = pa.array([*until], pa.string())
    whole = names.filter(pc.invert(pc.is_in(names, late)))
    parts, inputs = [], dict[str, QueryInput]()
    if len(whole) or not until:
        parts.append(_filled(sql, "{whole_rows}", "connection_id IN {whole}"))
        inputs |= {"whole_rows": table, "whole": whole}
    if until:
        since = min(until.values())
        limits = pa.table({"connection_id": late, "counted_until": pa.array([*until.values()], pa.int64())})
        is_behind = f"connection_id IN {{late}} AND {column} > timestamp_micros({since})"
        is_behind += f" AND unix_micros({column}) > counted_until"
        parts.append(_filled(sql, "{late_rows} JOIN {limits} USING (connection_id)", is_behind))
        rows = RowsOfDates(table, DateSpan.of_times(since))
        inputs |= {"late_rows": rows, "limits": limits, "late": late}
    return BoundQuery(" UNION ALL ".join(parts), inputs)


def _packets_query(names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> BoundQuery:
    """Return the query for packets of connections, of those with a checkpoint the ones behind it and the kept ones."""
    found = behind_checkpoints(f"{PACKETS_SQL} WHERE {{chosen}}", SESSION_PACKETS, names, checkpoints, "sent_at")
    kept = [each for checkpoint in checkpoints.values() for each in checkpoint.kept_packets]
    if not kept:
        return found
    times, keys = sorted({each.sent_at_us for each in kept}), {each.packet_key for each in kept}
    at = ", ".join(f"timestamp_micros({each})" for each in times)
    where = f"connection_id IN {{late}} AND packet_key IN {{kept}} AND sent_at IN ({at})"
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
    with one of these packets and messages are those behind it, and the packets that it keeps. ``packet_counts``: how
    many packets these have in all.
    """

    found: ConnectionPackets
    connections: pa.Table
    decoded: pa.Table
    stored: pa.Table
    checkpoints: Mapping[str, Checkpoint]
    packet_counts: Mapping[str, int]

    @staticmethod
    def of(parts: Mapping[str, pa.Table], table: Table, steps: ClockSteps, expire_us: int) -> ConnectionParts:
        """``table``: of checkpoints; ``steps``: where clocks were set; ``expire_us``: the setting pending.expire."""
        connections, decoded, counts = (parts[name] for name in ("connections", "decoded", "packet_counts"))
        columns = [name for name in connections.column_names if name != BUCKET]
        connections, stored = cast_to(CONNECTIONS, connections, columns), cast_to(table, parts["checkpoints"])
        checkpoints = checkpoints_by_connection(stored.filter(parts["checkpoints"]["usable"]))
        packets, names = parts["packets"].drop_columns([BUCKET]), connections["connection_id"].to_pylist()
        return ConnectionParts(
            arrange_read_packets(packets, decoded, names, expire_us, checkpoints, steps),
            connections,
            decoded,
            stored,
            checkpoints,
            dict(zip(counts["connection_id"].to_pylist(), counts["packets"].to_pylist(), strict=True)),
        )


def without_connections(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the rows of other connections."""
    return rows.filter(pc.invert(is_in(rows, "connection_id", names)))
