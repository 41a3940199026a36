"""Queries for what the attempts at servers are made of, cut into slices that are computed apart.

A slice of a server has whole conversations: all connections of a client with one association group, at any time. With
them come the rows of other slices that its calls depend on:

* of queues that are read by number (qm2qm): what opened and closed them, cancels, and reads that share their number
  with a cancel, and all connections of their associations;
* connections whose beginning and bind were not captured: they may be part of any association of their client.

A conversation with very many calls is cut too: reads are in one slice with their Ends and cancels
(``dependency_keys``). With them come, of the same conversation, its connections and

* what opened and closed the contexts that are read from;
* rejections of the messages that reads brought, and all reads that brought such a message;
* what says something of whole connections: the last answer, the first open, a request without a time.

Where several clocks meet, calls make their connections last longer, so all calls must be there: such a server has one
slice, and so has one of which it is not known when its captures end.

What a change affects is a condition on the same queries (``calls_of_scope``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from string import hexdigits
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.attempts import dependency_keys
from pipeline.attempts.affected_scope import RecomputeScope
from pipeline.attempts.attempt_rows import (
    ATTEMPT_READ_COLUMNS,
    CLIENT_CALL_COLUMNS,
    CONNECTION_FIELDS,
    IS_CLIENT_CALL_SQL,
    IS_READ_SQL,
    IS_RPC_CONNECTION_SQL,
    IS_WANTED,
    OUTCOME_FACTS,
    READ_MESSAGE_COLUMNS,
    servers_condition,
)
from pipeline.attempts.calls_of_scope import READ_COLUMNS, CallSource, all_calls, calls_of_scope
from pipeline.attempts.changed_rows import (
    ASSOCIATION_GROUP_SQL,
    CALL_TIME_SQL,
    CANCEL_OPNUM,
    OPENING_OPNUMS,
    START_OPNUMS,
    WITHOUT_BIND_SQL,
    sql_values,
)
from pipeline.attempts.client_identity import IDENTITIES_SQL, IDENTITY_COLUMNS
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES

SLICE_KEYS: Final = ("server_address", "slice")
# A server with more calls is cut into slices, which are named by hexadecimal digits: by so many that a slice has no
# more calls than below. Few slices cost least: each reads what opened and closed queues at the whole server.
_CALLS_IN_ONE_SLICE: Final = 10_000
_CALLS_PER_SLICE: Final = 100_000
_CALLS_OF_SCOPE_IN_ONE_SLICE: Final = 500_000  # to find what slices need of one another takes longer than one slice
_MAX_DIGITS: Final = 3

CONVERSATION_SQL: Final = (
    f"concat_ws('|', server_address, coalesce(client_address, ''), coalesce({ASSOCIATION_GROUP_SQL}, connection_id))"
)
"""What connections of one association have in common, as text, over bronze.connections."""
SLICE_SQL: Final = "CASE WHEN server_address IN {{sliced}} THEN left(sha2(conversation, 256), {digits}) ELSE '' END"
"""The slice of a connection by its ``conversation``; to be formatted with ``digits``, ``sliced`` are the servers."""
# What queries rest on: the calls whose attempts are made, all calls that are read, and connections with their slices.
_WANTED: Final = f"""
WITH wanted AS (
  SELECT {READ_COLUMNS} FROM {{{{reads}}}} WHERE {IS_READ_SQL} AND {{is_wanted}}
)"""
_CONNECTIONS_SLICED: Final = f"""connections AS (
  SELECT *, {SLICE_SQL} AS slice FROM (
    SELECT {", ".join(CONNECTION_FIELDS)}, server_address,
      {WITHOUT_BIND_SQL} AS is_without_bind,
      {CONVERSATION_SQL} AS conversation
    FROM {{{{connections}}}} WHERE {{is_connection}}
  )
)"""
_OWN_SLICED: Final = f"""{_WANTED}, {_CONNECTIONS_SLICED}, own AS (
  SELECT wanted.*, cut.conversation AS large, coalesce(slice, '') || CASE WHEN cut.digits IS NULL THEN ''
    ELSE left(md5(coalesce({dependency_keys.READ_KEY}, call_key)), cut.digits) END AS slice, TRUE AS {IS_WANTED}
  FROM wanted LEFT JOIN connections ON connections.connection_id = wanted.connection_id
  LEFT JOIN {{{{large}}}} AS cut ON cut.conversation = connections.conversation
)"""
# ``decisive`` are the calls that attempts of other slices depend on.
_TABLES: Final = f"""{_OWN_SLICED}, reads AS (
  SELECT * FROM wanted {{and_others}}
), places AS (
  SELECT connections.*, slice || coalesce(part, '') AS place FROM connections
  LEFT JOIN {{{{parts}}}} AS parts ON parts.conversation = connections.conversation
), by_number AS (
  SELECT DISTINCT server_address, slice FROM own WHERE protocol = 'qm2qm'
), decisive AS (
  SELECT call_key, connection_id, server_address FROM reads
  WHERE protocol = 'qm2qm' AND {{at_servers}} AND (
    opnum IN {sql_values((*OPENING_OPNUMS, CANCEL_OPNUM))} OR (
      opnum IN {sql_values(START_OPNUMS)}
      AND request IN (SELECT request FROM reads WHERE protocol = 'qm2qm' AND opnum = {CANCEL_OPNUM})
    )
  )
), openings AS (
  SELECT {", ".join(CLIENT_CALL_COLUMNS)} FROM {{{{clients}}}} WHERE {IS_CLIENT_CALL_SQL} AND {{of_servers}}
)"""
_SAME_SERVER: Final = "ON by_number.server_address IS NOT DISTINCT FROM"
_KNOWN: Final = ", ".join(f"known.{name}" for name in OUTCOME_FACTS)
# The ``own`` calls, and what other tables know of them. Of the two sides of a join one is in memory: the narrow one.
_OWN: Final = {
    "calls": f"""identities AS (
  {IDENTITIES_SQL.replace("{rows}", "{{binds}} AS binds")} AND {{on_own_connection}} GROUP BY connection_id
)
SELECT {", ".join(f"own.{name}" for name in (*ATTEMPT_READ_COLUMNS, "slice", IS_WANTED))}, {", ".join(IDENTITY_COLUMNS)}
FROM own LEFT JOIN identities ON identities.connection_id = own.connection_id""",
    "outcomes": """known AS (
  {known}
)
SELECT known.*, own.server_address, own.slice FROM known JOIN own ON own.call_key = known.call_key""",
    "messages": f"""messages AS (
  SELECT {", ".join(READ_MESSAGE_COLUMNS)} FROM {{{{messages}}}} WHERE {{of_dates}}
)
SELECT messages.*, own.server_address, own.slice FROM messages JOIN own ON own.call_key = messages.call_key""",
}
# Of large conversations: which calls of its other slices a slice needs.
_BEGINS, _REJECTS, _OPENS = (
    dependency_keys.role_condition_sql("RemoteRead", role) for role in ("start", "reject", "open")
)
_OPENS_OR_CLOSES: Final = dependency_keys.role_condition_sql("RemoteRead", "open", "close")
_OF_OTHERS: Final = f"""
large_reads AS (
  SELECT call_key, connection_id, protocol, opnum, requested_at, responded_at, context_handle, large, slice,
    {dependency_keys.MESSAGE_KEY} AS message
  FROM own WHERE large IS NOT NULL
), contexts AS (
  SELECT DISTINCT large, slice, context_handle FROM large_reads WHERE {_BEGINS}
), rejected AS (
  SELECT DISTINCT large, message FROM large_reads WHERE {_REJECTS}
), concerned AS (
  SELECT large_reads.* FROM large_reads
  JOIN rejected ON rejected.large = large_reads.large AND rejected.message = large_reads.message
), of_connections AS (
  SELECT large, max_by(call_key, responded_at) AS call_key FROM large_reads GROUP BY large, connection_id
  UNION ALL
  SELECT large, min_by(call_key, coalesce({CALL_TIME_SQL}, 0)) AS call_key FROM large_reads WHERE {_OPENS}
  GROUP BY large, connection_id
  UNION ALL
  SELECT large, min(call_key) AS call_key FROM large_reads
  WHERE requested_at IS NULL AND call_key NOT IN (
    SELECT call_key FROM {{calls}} WHERE outcome = 'no_request' AND {{of_dates}}
  ) GROUP BY large, connection_id
), needed AS (
  SELECT call_key, contexts.slice FROM large_reads JOIN contexts
  ON contexts.large = large_reads.large AND contexts.context_handle = large_reads.context_handle
  WHERE {_OPENS_OR_CLOSES}
  UNION
  SELECT others.call_key, concerned.slice FROM concerned JOIN concerned AS others
  ON others.large = concerned.large AND others.message = concerned.message AND others.slice <> concerned.slice
  UNION
  SELECT call_key, place AS slice FROM of_connections
  JOIN (SELECT DISTINCT conversation, place FROM places) AS slices ON slices.conversation = of_connections.large
),"""
_NEEDED: Final = "UNION SELECT call_key, slice FROM needed"
_SHARED: Final = f"""{_TABLES}, {{of_others}} shared AS (
  SELECT decisive.call_key, by_number.slice FROM decisive JOIN by_number {_SAME_SERVER} decisive.server_address
  {{needed}} {{of_ongoing}}
), known AS (
  SELECT * FROM ({{known}}) WHERE call_key IN (SELECT call_key FROM shared)
), found AS (
  {{found}}
)
SELECT {", ".join(f"found.{name}" for name in ATTEMPT_READ_COLUMNS)}, shared.slice, {_KNOWN}
FROM found JOIN shared ON shared.call_key = found.call_key
LEFT JOIN known ON known.call_key = found.call_key"""
_CLIENTS: Final = f"""{_TABLES}
SELECT openings.*, by_number.slice FROM openings JOIN by_number {_SAME_SERVER} openings.server_address"""
_CONNECTIONS: Final = f"""{_TABLES}, shared AS (
  SELECT connections.*, by_number.slice AS place
  FROM connections JOIN by_number {_SAME_SERVER} connections.server_address
  WHERE conversation IN (SELECT conversation FROM connections WHERE connection_id IN (
    SELECT connection_id FROM decisive UNION ALL SELECT connection_id FROM openings
  ))
), without_bind AS (
  SELECT connections.*, near.place FROM connections
  JOIN (SELECT DISTINCT server_address, client_address, place FROM places) AS near
  ON near.server_address IS NOT DISTINCT FROM connections.server_address
    AND near.client_address IS NOT DISTINCT FROM connections.client_address
  WHERE is_without_bind
)
SELECT DISTINCT {", ".join(CONNECTION_FIELDS)}, server_address, place AS slice FROM (
  SELECT * FROM places UNION ALL SELECT * FROM shared UNION ALL SELECT * FROM without_bind
)"""
# The same of servers that have one slice each.
_WHOLE_OWN: Final = f"{_WANTED}, own AS (SELECT *, '' AS slice, TRUE AS {IS_WANTED} FROM wanted)"
_WHOLE_OWN_AND_OTHERS: Final = f"""{_WANTED}, others AS (
  {{others}}
), own AS (
  SELECT *, '' AS slice, TRUE AS {IS_WANTED} FROM wanted
  UNION ALL
  SELECT *, '', FALSE FROM others WHERE call_key NOT IN (SELECT call_key FROM wanted)
)"""
_WHOLE_CLIENTS: Final = f"""
SELECT {", ".join(CLIENT_CALL_COLUMNS)}, '' AS slice FROM {{{{clients}}}}
WHERE {IS_CLIENT_CALL_SQL} AND {{of_servers}}"""
_WHOLE_CONNECTIONS: Final = f"""
SELECT {", ".join(CONNECTION_FIELDS)}, server_address, '' AS slice FROM {{{{connections}}}} WHERE {{is_connection}}"""
# The rows of gold that what is made of the wanted calls replaces.
_WHOLE_STORED: Final = """
SELECT *, '' AS slice FROM {{stored}} WHERE {is_stored}"""
_STORED: Final = f"""WITH {_CONNECTIONS_SLICED}
SELECT stored.*, coalesce(slice, '') || CASE WHEN cut.digits IS NULL THEN ''
  ELSE left(md5(coalesce({dependency_keys.READ_KEY}, '')), cut.digits) END AS slice
FROM (SELECT * FROM {{{{stored}}}} WHERE {{is_stored}}) AS stored
LEFT JOIN connections ON connections.connection_id = stored.connection_id
LEFT JOIN {{{{large}}}} AS cut ON cut.conversation = connections.conversation"""
_LARGE: Final = f"""
SELECT conversation, count(*) AS calls FROM (SELECT connection_id FROM {{{{reads}}}} WHERE {IS_READ_SQL}) AS calls
JOIN (
  SELECT connection_id, {CONVERSATION_SQL} AS conversation FROM {{{{connections}}}}
  WHERE {IS_RPC_CONNECTION_SQL} AND server_address IN {{{{servers}}}}
) AS connections ON connections.connection_id = calls.connection_id
GROUP BY conversation HAVING count(*) > {{most}}"""
_CALLS: Final = f"""
SELECT server_address, count(*) AS calls, count(clocks) AS clocks FROM {{{{reads}}}}
WHERE {IS_READ_SQL} AND {{of_servers}} GROUP BY server_address"""


class _Cuts(NamedTuple):
    """How servers are cut: the ``sliced`` ones, with slices of so many hexadecimal ``digits``.

    ``large`` are conversations that are cut too: ``conversation``, and the ``digits`` that name the parts of each.
    """

    sliced: frozenset[str]
    digits: int
    large: pa.Table


_LARGE_SCHEMA: Final = pa.schema({"conversation": pa.string(), "digits": pa.int32()})
_NO_CUTS: Final = _Cuts(frozenset(), 0, _LARGE_SCHEMA.empty_table())


def attempt_queries(lake: Lake, scope: RecomputeScope | None, known_ends: Collection[str]) -> dict[str, BoundQuery]:
    """Return the queries for the calls and connections of a scope, or of all (None), by slice (``SLICE_KEYS``).

    ``known_ends``: the servers of which it is known when their captures end. ``calls`` are those whose attempts are
    made (``IS_WANTED``), and of servers that are not cut others that these depend on, with what other tables know of
    them; ``shared`` and ``clients`` are further calls that they depend on: where none can be, there is no such query.
    ``stored``: of a scope, the rows of gold.receive_attempts that these attempts replace.
    """
    cuts = _NO_CUTS
    if scope is None or scope.call_count > _CALLS_OF_SCOPE_IN_ONE_SLICE:
        reads = REMOTE_READ_CALLS if scope is None else RowsOfDates(REMOTE_READ_CALLS, scope.dates)
        cuts = _cut_servers(lake, reads, None if scope is None else scope.servers, known_ends)
    return _queries(all_calls() if scope is None else calls_of_scope(scope, RECEIVE_ATTEMPTS), cuts)


def operation_queries(scope: RecomputeScope | None, servers: Collection[str | None] | None) -> dict[str, BoundQuery]:
    """Return the same for what operations are made of, of a scope, or of some servers; Starts, most calls, are none."""
    source = all_calls(servers, starts=False) if scope is None else calls_of_scope(scope, QUEUE_OPERATIONS)
    return _queries(source, _NO_CUTS)


def _cut_servers(
    lake: Lake, reads: QueryInput, servers: Collection[str | None] | None, known_ends: Collection[str]
) -> _Cuts:
    """Return how to cut some servers, or all (None), by how many calls they have among ``reads``."""
    of_servers, inputs = servers_condition(servers)
    counts = lake.query(_CALLS.format(of_servers=of_servers), reads=reads, **inputs).to_pylist()
    digits = slice_digits(max((row["calls"] for row in counts), default=0))
    sliced = {row["server_address"] for row in counts if not row["clocks"]} & {*known_ends} if digits else set()
    busy = {row["server_address"] for row in counts if row["calls"] > _CALLS_PER_SLICE} & sliced
    return _Cuts(frozenset(sliced), digits, _large_conversations(lake, reads, busy))


def _queries(source: CallSource, cuts: _Cuts) -> dict[str, BoundQuery]:
    """Return the queries for the rows of a source."""
    own = _WHOLE_OWN_AND_OTHERS if source.others else _WHOLE_OWN
    texts = {"clients": _WHOLE_CLIENTS, "connections": _WHOLE_CONNECTIONS}
    if cuts.sliced:
        own, texts = _OWN_SLICED, {"shared": _SHARED, "clients": _CLIENTS, "connections": _CONNECTIONS}
    texts |= {name: f"{own}, {sql}" for name, sql in _OWN.items()}
    if not source.has_clients:
        del texts["clients"]
    if "is_stored" in source.texts:
        texts["stored"] = _STORED if cuts.sliced else _WHOLE_STORED
    of_others, needed = "", ""
    if cuts.large.num_rows:
        of_others, needed = _OF_OTHERS.replace("{of_dates}", source.texts["of_dates"]), _NEEDED
    others = " UNION ALL ".join(source.others)
    filled_in = source.texts | {
        "digits": str(cuts.digits), "of_others": of_others, "needed": needed, "others": others,
        "and_others": f"UNION ALL {others}" if others else "",
    }  # fmt: skip
    inputs: dict[str, QueryInput] = {
        "reads": REMOTE_READ_CALLS, "clients": CLIENT_CALLS, "connections": CONNECTIONS, "calls": RPC_CALLS,
        "messages": MESSAGES, "binds": RPC_BINDS, "sliced": cuts.sliced, "large": cuts.large,
        "parts": _parts(cuts.large), **source.inputs,
    }  # fmt: skip
    return {name: _bound(sql.format(**filled_in), inputs) for name, sql in texts.items()}


def _bound(sql: str, inputs: Mapping[str, QueryInput]) -> BoundQuery:
    """Return a query with those inputs that it names: each costs a little time."""
    return BoundQuery(sql, {name: each for name, each in inputs.items() if f"{{{name}}}" in sql})


def _large_conversations(lake: Lake, reads: QueryInput, servers: Collection[str]) -> pa.Table:
    """Return the conversations with more calls than a slice may have, with the digits that name the parts of each."""
    rows = []
    if servers:
        tables: dict[str, QueryInput] = {"reads": reads, "connections": CONNECTIONS, "servers": servers}
        rows = lake.query(_LARGE.format(most=_CALLS_PER_SLICE), **tables).to_pylist()
    large = [{"conversation": row["conversation"], "digits": slice_digits(row["calls"])} for row in rows]
    return pa.Table.from_pylist(large, pa.schema({"conversation": pa.string(), "digits": pa.int32()}))


def _parts(large: pa.Table) -> pa.Table:
    """Return the parts of large conversations, by the digits that follow those of the conversation's slice."""
    rows = [
        {"conversation": row["conversation"], "part": "".join(part)}
        for row in large.to_pylist()
        for part in product(hexdigits[:16], repeat=row["digits"])
    ]
    return pa.Table.from_pylist(rows, pa.schema({"conversation": pa.string(), "part": pa.string()}))


def slice_digits(calls: int) -> int:
    """Return with how many hexadecimal digits to name the slices of a server with so many calls."""
    if calls <= _CALLS_IN_ONE_SLICE:
        return 0
    return next((digits for digits in range(1, _MAX_DIGITS) if calls <= _CALLS_PER_SLICE * 16**digits), _MAX_DIGITS)
