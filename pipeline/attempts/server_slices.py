"""Queries for what the attempts at servers are made of, cut into slices that are computed apart.

A slice of a server has whole associations: all connections of a client with one association group, at any time. With
them come the rows of other slices that its calls depend on:

* of queues that are read by number (qm2qm): what opened and closed them, cancels, and reads that share their number
  with a cancel, and all connections of their associations;
* connections whose beginning and bind were not captured: they may be part of any association of their client.

Where several clocks meet, calls make their connections last longer, so all calls must be there: such a server has one
slice, and so has one of which it is not known when its captures end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pipeline.attempts.affected_scope import REQUEST_KEY_SQL
from pipeline.attempts.attempt_rows import (
    CLIENT_CALL_COLUMNS,
    CONNECTION_FIELDS,
    IS_CLIENT_CALL_SQL,
    IS_READ_SQL,
    IS_RPC_CONNECTION_SQL,
    MESSAGE_COLUMNS,
    MESSAGE_FACTS,
    OUTCOME_COLUMNS,
    OUTCOME_FACTS,
    READ_COLUMNS,
    servers_condition,
)
from pipeline.attempts.changed_rows import (
    ASSOCIATION_GROUP_SQL,
    CANCEL_OPNUM,
    IS_STRAY_SQL,
    OPENING_OPNUMS,
    START_OPNUMS,
    sql_values,
)
from pipeline.attempts.client_identity import IDENTITIES_SQL, IDENTITY_COLUMNS
from pipeline.attempts.columns.call_columns import MESSAGE_ERRORS
from pipeline.lake.lake import Lake
from pipeline.lake.queries import BoundQuery, QueryInput
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES

SLICE_KEYS: Final = ("server_address", "slice")
# A server with more calls is cut into slices, which are named by hexadecimal digits: by so many that a slice has no
# more calls than below. Few slices cost least: each reads what opened and closed queues at the whole server.
_CALLS_IN_ONE_SLICE: Final = 10_000
_CALLS_PER_SLICE: Final = 100_000
_MAX_DIGITS: Final = 3

CONVERSATION_SQL: Final = (
    f"concat_ws('|', server_address, coalesce(client_address, ''), coalesce({ASSOCIATION_GROUP_SQL}, connection_id))"
)
"""What connections of one association have in common, as text, over bronze.connections."""
SLICE_SQL: Final = "CASE WHEN server_address IN {{sliced}} THEN left(sha2(conversation, 256), {digits}) ELSE '' END"
"""The slice of a connection by its ``conversation``; to be formatted with ``digits``, ``sliced`` are the servers."""

# The tables that all queries rest on. ``decisive`` are the calls that attempts of other slices depend on.
_TABLES: Final = f"""
WITH reads AS (
  SELECT {", ".join(READ_COLUMNS)}, {REQUEST_KEY_SQL} AS request FROM {{{{reads}}}}
  WHERE {IS_READ_SQL} AND {{of_servers}}
), connections AS (
  SELECT *, {SLICE_SQL} AS slice FROM (
    SELECT {", ".join(CONNECTION_FIELDS)}, server_address,
      {IS_STRAY_SQL} AS is_stray,
      {CONVERSATION_SQL} AS conversation
    FROM {{{{connections}}}} WHERE {IS_RPC_CONNECTION_SQL} AND {{of_servers}}
  )
), own AS (
  {{own}}
), by_number AS (
  SELECT DISTINCT server_address, slice FROM own WHERE protocol = 'qm2qm'
), decisive AS (
  SELECT * FROM reads WHERE protocol = 'qm2qm' AND server_address IN {{{{sliced}}}} AND (
    opnum IN {sql_values((*OPENING_OPNUMS, CANCEL_OPNUM))} OR (
      opnum IN {sql_values(START_OPNUMS)}
      AND request IN (SELECT request FROM reads WHERE protocol = 'qm2qm' AND opnum = {CANCEL_OPNUM})
    )
  )
), openings AS (
  SELECT {", ".join(CLIENT_CALL_COLUMNS)} FROM {{{{clients}}}} WHERE {IS_CLIENT_CALL_SQL} AND {{of_servers}}
), known AS (
  SELECT {", ".join(OUTCOME_COLUMNS)} FROM {{{{calls}}}} WHERE {IS_CLIENT_CALL_SQL} AND {{of_servers}}
)"""
_SLICED_OWN: Final = """
  SELECT reads.*, coalesce(connections.slice, '') AS slice
  FROM reads LEFT JOIN connections ON connections.connection_id = reads.connection_id"""
_WHOLE_OWN: Final = "SELECT *, '' AS slice FROM reads"
_SAME_SERVER: Final = "ON by_number.server_address IS NOT DISTINCT FROM"
_KNOWN: Final = ", ".join(f"known.{name}" for name in OUTCOME_FACTS)
_OWN: Final = f"""{_TABLES}, messages AS (
  SELECT {", ".join(MESSAGE_COLUMNS)} FROM {{{{messages}}}}
), identities AS (
  {IDENTITIES_SQL.replace("{rows}", "{{binds}} AS binds")} GROUP BY connection_id
)
SELECT {", ".join(f"own.{name}" for name in READ_COLUMNS)}, own.slice, {_KNOWN},
  {", ".join((*IDENTITY_COLUMNS, *MESSAGE_FACTS, MESSAGE_ERRORS))}
FROM own
LEFT JOIN known ON known.call_key = own.call_key
LEFT JOIN messages ON messages.call_key = own.call_key
LEFT JOIN identities ON identities.connection_id = own.connection_id"""
_SHARED: Final = f"""{_TABLES}
SELECT {", ".join(f"decisive.{name}" for name in READ_COLUMNS)}, by_number.slice, {_KNOWN}
FROM decisive JOIN by_number {_SAME_SERVER} decisive.server_address
LEFT JOIN known ON known.call_key = decisive.call_key"""
_CLIENTS: Final = f"""{_TABLES}
SELECT openings.*, by_number.slice FROM openings JOIN by_number {_SAME_SERVER} openings.server_address"""
_CONNECTIONS: Final = f"""{_TABLES}, shared AS (
  SELECT connections.*, by_number.slice AS place
  FROM connections JOIN by_number {_SAME_SERVER} connections.server_address
  WHERE conversation IN (SELECT conversation FROM connections WHERE connection_id IN (
    SELECT connection_id FROM decisive UNION ALL SELECT connection_id FROM openings
  ))
), strays AS (
  SELECT connections.*, places.slice AS place FROM connections
  JOIN (SELECT DISTINCT server_address, client_address, slice FROM connections) AS places
  ON places.server_address IS NOT DISTINCT FROM connections.server_address
    AND places.client_address IS NOT DISTINCT FROM connections.client_address
  WHERE is_stray
)
SELECT DISTINCT {", ".join(CONNECTION_FIELDS)}, server_address, place AS slice FROM (
  SELECT *, slice AS place FROM connections UNION ALL SELECT * FROM shared UNION ALL SELECT * FROM strays
)"""
# The same of servers that have one slice each.
_WHOLE_CLIENTS: Final = f"""
SELECT {", ".join(CLIENT_CALL_COLUMNS)}, '' AS slice FROM {{{{clients}}}}
WHERE {IS_CLIENT_CALL_SQL} AND {{of_servers}}"""
_WHOLE_CONNECTIONS: Final = f"""
SELECT {", ".join(CONNECTION_FIELDS)}, server_address, '' AS slice FROM {{{{connections}}}}
WHERE {IS_RPC_CONNECTION_SQL} AND {{of_servers}}"""
_CALLS: Final = f"""
SELECT server_address, count(*) AS calls, count(clocks) AS clocks FROM {{{{reads}}}}
WHERE {IS_READ_SQL} AND {{of_servers}} GROUP BY server_address"""


def attempt_queries(
    lake: Lake, servers: Collection[str | None] | None, known_ends: Collection[str]
) -> dict[str, BoundQuery]:
    """Return the queries for the calls and connections of some servers, or of all (None), by slice (``SLICE_KEYS``).

    ``known_ends``: the servers of which it is known when their captures end. ``calls`` are those whose attempts are
    made, with what other tables know of them; ``shared`` and ``clients`` are calls that these depend on; without slices
    none is shared.
    """
    of_servers, inputs = servers_condition(servers)
    counts = lake.query(_CALLS.format(of_servers=of_servers), reads=REMOTE_READ_CALLS, **inputs).to_pylist()
    digits = slice_digits(max((row["calls"] for row in counts), default=0))
    sliced = {row["server_address"] for row in counts if not row["clocks"]} & {*known_ends} if digits else set()
    tables: dict[str, QueryInput] = {
        "reads": REMOTE_READ_CALLS, "clients": CLIENT_CALLS, "connections": CONNECTIONS, "calls": RPC_CALLS,
        "messages": MESSAGES, "binds": RPC_BINDS,
    }  # fmt: skip
    own = _SLICED_OWN if sliced else _WHOLE_OWN
    texts = {"calls": _OWN, "clients": _WHOLE_CLIENTS, "connections": _WHOLE_CONNECTIONS}
    if sliced:
        texts |= {"shared": _SHARED, "clients": _CLIENTS, "connections": _CONNECTIONS}
    return {
        name: BoundQuery(
            sql.format(of_servers=of_servers, digits=digits, own=own), {**tables, **inputs, "sliced": sliced}
        )
        for name, sql in texts.items()
    }


def slice_digits(calls: int) -> int:
    """Return with how many hexadecimal digits to name the slices of a server with so many calls."""
    if calls <= _CALLS_IN_ONE_SLICE:
        return 0
    return next((digits for digits in range(1, _MAX_DIGITS) if calls <= _CALLS_PER_SLICE * 16**digits), _MAX_DIGITS)
