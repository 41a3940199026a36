"""The queries that read the input of ``evaluate`` from bronze and silver."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, timedelta
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.arrow_rows import distinct_texts
from pipeline.attempts.attempt_rows import IS_RPC_CONNECTION_SQL
from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE, OPENING_CALLS
from pipeline.concurrency import run_concurrently
from pipeline.findings import evaluate
from pipeline.findings.columns.joined_calls import join_by_call_key
from pipeline.lake.date_filters import MAX_DATES, Dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates, Values
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.table import Table
from udfs.dcerpc.interfaces import EPM_NAME, QM2QM_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

STUB_COLUMN_TYPES: Final = {"request_bytes": "bigint", "request_head": "binary", "request_tail": "binary",
                 "response_head": "binary", "request_stub": "binary", "response_stub": "binary"}  # fmt: skip
_SELECTION_COLUMNS: Final = ("connection_id", "server_address", "interface_name", "opnum")  # what conditions name
_OBJECT_OPNUMS: Final = (7, 8, 9, 10, 11)  # of qmcomm


class InputQuery(NamedTuple):
    """What is read of a table: its columns in SQL, and the condition on its rows.

    Conditions name the interface ``interface_name``; ``interface_sql`` is the table's expression for it.
    """

    table: Table
    columns: tuple[str, ...]
    where: str = "TRUE"
    interface_sql: str = "interface_name"

    def read_rows(
        self, lake: Lake, where: str = "TRUE", dates: Dates | None = None, /, **inputs: QueryInput
    ) -> pa.Table:
        """Return the rows of some dates, None for all, that meet a condition; ``inputs`` are what it names in braces.

        ``rows`` among ``inputs`` is read in place of the table, for instance a part of it.
        """
        rows = RowsOfDates(self.table, dates)
        return lake.query(self._sql(", ".join(self.columns), where), **{"rows": rows, **inputs})

    def read_connection_ids(self, lake: Lake, where: str = "TRUE", /, **inputs: QueryInput) -> pa.Array:
        """Return the ids of the connections whose rows meet a condition."""
        sql = self._sql("DISTINCT connection_id", where)
        return distinct_texts(lake.query(sql, rows=self.table, **inputs)["connection_id"])

    def _sql(self, columns: str, where: str) -> str:
        condition = where.replace("interface_name", self.interface_sql)
        return f"SELECT {columns} FROM {{rows}} WHERE {self.where} AND {condition}"


def stub_column_expressions(*, stubs_kept: bool) -> tuple[str, ...]:
    """Return the SQL of the stub columns that rules use; nulls where bronze does not store stubs.

    Only the stubs of some methods are read, and of most of these only the first bytes.
    """
    if not stubs_kept:
        return tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in STUB_COLUMN_TYPES.items())
    reads = f"(interface_name = '{QM2QM_NAME}' AND opnum IN (0, 9, 10))"
    opens = f"(interface_name = '{REMOTE_READ_NAME}' AND opnum IN (2, 11))"
    objects = f"(interface_name = '{QMCOMM_NAME}' AND opnum IN ({', '.join(map(str, _OBJECT_OPNUMS))}))"
    closes = f"(interface_name = '{QM2QM_NAME}' AND opnum IN (1, 3))"
    returns_handle = f"({closes} OR (interface_name = '{REMOTE_READ_NAME}' AND opnum = 3))"
    short = f"octet_length(response_stub) <= {evaluate.STUB_HEAD_BYTES}"
    failed = f"(interface_name = '{REMOTE_READ_NAME}' AND opnum IN (7, 13) AND {short})"
    first = f"1, {evaluate.STUB_HEAD_BYTES})"
    tail = f"substring(request_stub, -{evaluate.STUB_TAIL_BYTES}, {evaluate.STUB_TAIL_BYTES})"
    whole = f"interface_name = '{QMMGMT_NAME}'"
    found = {
        "request_bytes": (reads, "CAST(octet_length(request_stub) AS bigint)"),
        "request_head": (f"{reads} OR {opens} OR {objects}", f"substring(request_stub, {first}"),
        "request_tail": (opens, tail),
        "response_head": (f"{reads} OR {returns_handle} OR {failed}", f"substring(response_stub, {first}"),
        "request_stub": (whole, "request_stub"),
        "response_stub": (whole, "response_stub"),
    }
    return tuple(f"CASE WHEN {found[name][0]} THEN {found[name][1]} END AS {name}" for name in STUB_COLUMN_TYPES)


CALL_INPUT: Final = InputQuery(
    RPC_CALLS, evaluate.CALL_COLUMNS, f"(interface_name IS NULL OR interface_name <> '{EPM_NAME}')"
)
"""Calls of bronze, without those of the endpoint mapper and without stubs (``calls_with_stub_columns``)."""
REMOTE_READ_INPUT: Final = InputQuery(REMOTE_READ_CALLS, evaluate.REMOTE_READ_COLUMNS, interface_sql="protocol")
CLIENT_CALL_INPUT: Final = InputQuery(CLIENT_CALLS, evaluate.EVALUATED_CLIENT_CALL_COLUMNS)
MANAGEMENT_CALL_INPUT: Final = InputQuery(
    MANAGEMENT_CALLS,
    tuple("action AS action_text" if name == "action" else name for name in evaluate.MANAGEMENT_CALL_COLUMNS),
    interface_sql=f"'{QMMGMT_NAME}'",
)
BIND_INPUT: Final = InputQuery(RPC_BINDS, evaluate.BIND_COLUMNS)
MESSAGE_INPUT: Final = InputQuery(
    MESSAGES,
    tuple("errors AS message_errors" if name == "errors" else name for name in evaluate.EVALUATED_MESSAGE_COLUMNS),
)
"""Message columns, by the call that returned the message."""
RPC_CONNECTION_INPUT: Final = InputQuery(
    CONNECTIONS,
    (*evaluate.EVALUATED_CONNECTION_COLUMNS, "calls"),
    f"{IS_RPC_CONNECTION_SQL} AND first_packet_at IS NOT NULL",
)
"""RPC connections. Rules evaluate in the order of time: a connection without any is not evaluated."""


def calls_with_stub_columns(*, stubs_kept: bool) -> InputQuery:
    """Return the query for calls of bronze with the stub columns that rules use."""
    return CALL_INPUT._replace(columns=(*CALL_INPUT.columns, *stub_column_expressions(stubs_kept=stubs_kept)))


def join_decoded_columns(calls: pa.Table, parts: Iterable[pa.Table]) -> pa.Table:
    """Return calls with the columns that silver decoded (``join_by_call_key``)."""
    return join_by_call_key(calls, map(decoded_columns, parts))


def decoded_columns(part: pa.Table) -> pa.Table:
    """Return the columns that silver decoded, and the call key, without those that only conditions name."""
    return part.drop_columns([name for name in _SELECTION_COLUMNS if name in part.column_names])


class ServersInput(NamedTuple):
    """The input of whole servers: their connections, their calls that open or close, and the contexts made of these."""

    connections: pa.Table
    opening_calls: pa.Table
    contexts: list[evaluate.ServerContext]

    @classmethod
    def read(cls, lake: Lake, connections: pa.Table, addresses: Collection[str]) -> ServersInput:
        """Read the calls of servers that open or close, with the columns that silver decoded.

        ``connections`` are all connections of the servers.
        """
        where = f"{IS_OPEN_OR_CLOSE} AND server_address IN {{servers}}"
        parts = (calls_with_stub_columns(stubs_kept=False), REMOTE_READ_INPUT, CLIENT_CALL_INPUT)
        queries = {
            part.table: partial(part.read_rows, lake, where, rows=OPENING_CALLS[part.table], servers=addresses)
            for part in parts
        }
        calls, *decoded = run_concurrently(queries).values()
        calls = join_decoded_columns(calls, decoded)
        columns = connections.select(list(evaluate.EVALUATED_CONNECTION_COLUMNS))
        return cls(connections, calls, evaluate.server_contexts(columns, calls))


def connection_dates(connections: pa.Table) -> set[date | None] | None:
    """Return all dates, UTC, of connections' packets, and None for rows without a date; None if they are too many."""
    spans = zip(*(connections[name].to_pylist() for name in ("first_packet_at", "last_packet_at")), strict=True)
    dates: set[date | None] = {None}
    for first, last in spans:
        if (last - first).days > MAX_DATES:
            return None
        dates |= {first.date() + timedelta(days=day) for day in range((last.date() - first.date()).days + 1)}
    return dates


def read_findings(lake: Lake, where: str, /, **values: Values) -> pa.Table:
    """Return rows of gold.findings in the schema that evaluation returns."""
    return lake.select(FINDINGS, where, evaluate.FINDINGS_SCHEMA.names, **values).cast(evaluate.FINDINGS_SCHEMA)
