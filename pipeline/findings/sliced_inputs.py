"""Queries that read the input of the rules on calls by slices of servers, which are evaluated apart.

A slice has whole associations (``pipeline.attempts.server_slices``), and of all others of its server what opens and
closes queues there, with the connections of these associations, and the connections without bind. Rules on a server as
a whole are evaluated in its first slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.attempts.attempt_rows import IS_RPC_CONNECTION_SQL
from pipeline.attempts.changed_rows import WITHOUT_BIND_SQL
from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE, OPENING_CALLS
from pipeline.attempts.server_slices import CONVERSATION_SQL, SLICE_SQL, slice_digits
from pipeline.findings.inputs import MESSAGE_INPUT, RPC_CONNECTION_INPUT, STUB_COLUMN_TYPES, InputQuery
from pipeline.lake.date_filters import Dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryInput, RowsOfDates
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS

IS_OWN: Final = "is_own"
IS_FIRST: Final = "is_first"

_IS_OPENING: Final = f"coalesce({IS_OPEN_OR_CLOSE}, FALSE)"
_SLICES: Final = f"""
slices AS (
  SELECT connection_id, server_address, conversation, {SLICE_SQL} AS slice, {WITHOUT_BIND_SQL} AS without_bind
  FROM (SELECT *, {CONVERSATION_SQL} AS conversation FROM {{{{connections}}}} WHERE {IS_RPC_CONNECTION_SQL})
), places AS (
  SELECT server_address, slice, min(slice) OVER (PARTITION BY server_address) AS first
  FROM (SELECT DISTINCT server_address, slice FROM slices)
),"""
_FOUND: Final = "found AS ({found})"
# Rows pass through both joins: asked for twice they would be kept, with all columns, and go to files.
_ROWS: Final = f"""WITH {_SLICES} {_FOUND}
SELECT {{names}}, _server AS server_address,
  CASE WHEN _is_opening THEN places.slice ELSE coalesce(slices.slice, '') END AS slice
FROM found LEFT JOIN slices ON slices.connection_id = found._connection
LEFT JOIN places ON coalesce(places.server_address, '') = CASE WHEN _is_opening THEN coalesce(found._server, '') END
WHERE NOT _is_opening OR places.slice IS NOT NULL"""
_WHOLE_ROWS: Final = f"WITH {_FOUND} SELECT {{names}}, _server AS server_address, '' AS slice FROM found"
_BY_CALL: Final = f"""WITH {_SLICES} calls AS (
  SELECT call_key, connection_id, server_address FROM {{{{calls}}}} WHERE {{where}}
)
SELECT {{columns}}, calls.server_address, coalesce(slice, '') AS slice FROM {{{{rows}}}} AS found
JOIN calls ON calls.call_key = found.call_key
LEFT JOIN slices ON slices.connection_id = calls.connection_id"""
_WHOLE_BY_CALL: Final = """
SELECT {columns}, calls.server_address, '' AS slice FROM {{rows}} AS found
JOIN (SELECT call_key, server_address FROM {{calls}} WHERE {where}) AS calls ON calls.call_key = found.call_key"""
_CONNECTIONS: Final = f"""WITH {_SLICES} found AS (
  SELECT {{columns}} FROM {{{{connections}}}} WHERE {{where}}
), opening AS (
  SELECT conversation FROM slices
  WHERE connection_id IN (SELECT connection_id FROM {{{{calls}}}} WHERE {_IS_OPENING})
)
SELECT found.*, slices.slice, TRUE AS {IS_OWN}, slices.slice = firsts.first AS {IS_FIRST}
FROM found JOIN slices ON slices.connection_id = found.connection_id
JOIN (SELECT DISTINCT server_address, first FROM places) AS firsts
  ON firsts.server_address IS NOT DISTINCT FROM found.server_address
UNION ALL
SELECT found.*, places.slice, FALSE AS {IS_OWN}, places.slice = places.first AS {IS_FIRST}
FROM found JOIN slices ON slices.connection_id = found.connection_id
JOIN places ON places.server_address IS NOT DISTINCT FROM found.server_address AND places.slice <> slices.slice
WHERE slices.without_bind OR slices.conversation IN (SELECT conversation FROM opening)"""
_WHOLE_CONNECTIONS: Final = f"""
SELECT {{columns}}, '' AS slice, TRUE AS {IS_OWN}, TRUE AS {IS_FIRST} FROM {{{{connections}}}} WHERE {{where}}"""
_CALLS: Final = "SELECT server_address, count(*) AS calls FROM {calls} GROUP BY server_address"


class SlicedInputs(NamedTuple):
    """How servers are cut: the ``sliced`` ones, with slices of so many hexadecimal ``digits``."""

    sliced: frozenset[str]
    digits: int

    @staticmethod
    def of(lake: Lake) -> SlicedInputs:
        """Return how to cut the servers of a lake, by how many calls they have."""
        counts = lake.query(_CALLS, calls=RPC_CALLS).to_pylist()
        digits = slice_digits(max((row["calls"] for row in counts), default=0))
        servers = frozenset(row["server_address"] for row in counts) - {None}
        return SlicedInputs(servers if digits else frozenset(), digits)

    def rows(
        self, query: InputQuery, where: str = "TRUE", openings: str | None = None, /, **inputs: QueryInput
    ) -> BoundQuery:
        """Return the query for the rows of calls, or of binds, that meet a condition.

        ``openings``: the condition of further calls that open and close queues, which are read without their stubs.
        """
        is_opening = "FALSE" if "opnum" not in query.table.names else _IS_OPENING
        parts = [("rows", query.columns, where)]
        if openings is not None and query.table in OPENING_CALLS:
            parts.append(("openings", tuple(map(_without_stub, query.columns)), f"{is_opening} AND {openings}"))
            inputs["openings"] = OPENING_CALLS[query.table]
        found = " UNION ALL ".join(
            f"SELECT {', '.join(columns)}, connection_id AS _connection, server_address AS _server,"
            f" {is_opening} AS _is_opening FROM {{{rows}}} WHERE {query.where} AND {condition}"
            for rows, columns, condition in parts
        )
        names = ", ".join(f"found.{name}" for name in map(_name, query.columns) if name != "server_address")
        texts = {"found": found.replace("interface_name", query.interface_sql), "names": names}
        return self._bound(_ROWS, _WHOLE_ROWS, texts, {"rows": query.table, **inputs})

    def messages(self, where: str = "TRUE", dates: Dates | None = None, /, **inputs: QueryInput) -> BoundQuery:
        """Return the query for the messages of calls that meet a condition, on some dates, or on all (None)."""
        columns = ", ".join(f"found.{name}" for name in MESSAGE_INPUT.columns)
        rows, calls = (RowsOfDates(table, dates) for table in (MESSAGE_INPUT.table, REMOTE_READ_CALLS))
        return self._by_call(columns, where, {"rows": rows, "calls": calls, **inputs})

    def changed(self, calls: pa.Table) -> BoundQuery:
        """Return the query for rows of calls; the calls have ``call_key``."""
        return self._by_call("found.*", "TRUE", {"rows": calls, "calls": RPC_CALLS})

    def connections(self, where: str = "TRUE", /, **inputs: QueryInput) -> BoundQuery:
        """Return the query for connections that meet a condition: whether it ``IS_OWN``, and the slice ``IS_FIRST``."""
        columns, here = ", ".join(RPC_CONNECTION_INPUT.columns), f"{RPC_CONNECTION_INPUT.where} AND {where}"
        texts = {"columns": columns, "where": here}
        return self._bound(_CONNECTIONS, _WHOLE_CONNECTIONS, texts, {"calls": RPC_CALLS, **inputs})

    def _by_call(self, columns: str, where: str, inputs: Mapping[str, QueryInput]) -> BoundQuery:
        return self._bound(_BY_CALL, _WHOLE_BY_CALL, {"columns": columns, "where": where}, inputs)

    def _bound(self, sql: str, whole: str, texts: Mapping[str, str], inputs: Mapping[str, QueryInput]) -> BoundQuery:
        """Return a query for slices; ``whole`` is the same for servers that have one slice each."""
        text = (sql if self.sliced else whole).format(digits=self.digits, **texts)
        return BoundQuery(text, {"connections": CONNECTIONS, "sliced": self.sliced, **inputs})


def _without_stub(column: str) -> str:
    """Return a column, or null for one that is made of stubs."""
    name = _name(column)
    return f"CAST(NULL AS {STUB_COLUMN_TYPES[name]}) AS {name}" if name in STUB_COLUMN_TYPES else column


def _name(column: str) -> str:
    """Return the name of a column in SQL."""
    return column.rpartition(" AS ")[2]
