"""What findings are judged of, as it is read: the columns that ``evaluate`` names, of bronze and silver."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.attempts.server_openings import OPENINGS
from pipeline.findings import evaluate as judging
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import MOST_DATES
from pipeline.lake.lake import Lake
from pipeline.lake.queries import Names, Source
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table
from udfs.dcerpc.interfaces import MG, QC, QM, RR

HEADS: Final = {"request_bytes": "bigint", "request_head": "binary", "request_tail": "binary",
                 "response_head": "binary", "request_stub": "binary", "response_stub": "binary"}  # fmt: skip
_CHOOSING: Final = ("connection_id", "server_address", "interface_name", "opnum")  # of rows, beside the call's own
_OBJECTS: Final = (7, 8, 9, 10, 11)  # of qmcomm


class Part(NamedTuple):
    """What is read of a table: columns in SQL, and which rows of it at all.

    Conditions are asked of ``interface_name``; ``interface`` is what the table calls that.
    """

    table: Table
    columns: tuple[str, ...]
    where: str = "TRUE"
    interface: str = "interface_name"

    def rows(self, lake: Lake, where: str = "TRUE", /, **of: Source) -> pa.Table:
        """Return the rows that meet a condition; ``rows`` among ``of``: some of the table's, of which they are."""
        return lake.query(self._sql(", ".join(self.columns), where), **{"rows": self.table, **of})

    def connections(self, lake: Lake, where: str = "TRUE", /, **of: Source) -> set[str]:
        """Return the connections that rows are of."""
        sql = self._sql("DISTINCT connection_id", f"{where} AND connection_id IS NOT NULL")
        return set(lake.query(sql, rows=self.table, **of)["connection_id"].to_pylist())

    def frame(self, lake: Lake) -> DataFrame:
        """Return all rows as a frame, with what chooses them."""
        named = (name for name in _CHOOSING if name in self.table.names and name not in self.columns)
        more: list[str] = [name for name in named if name != "interface_name"]
        if "opnum" in self.table.names and "interface_name" not in self.columns:
            more.append(f"{self.interface} AS interface_name")
        return lake.frame(self._sql(", ".join((*self.columns, *more)), "TRUE"), rows=self.table)

    def _sql(self, columns: str, where: str) -> str:
        condition = where.replace("interface_name", self.interface)
        return f"SELECT {columns} FROM {{rows}} WHERE {self.where} AND {condition}"


def heads(*, stubs: bool) -> tuple[str, ...]:
    """Return the bytes of stubs that rules look at: those of few methods, and of these the first; or nulls."""
    if not stubs:
        return tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in HEADS.items())
    reads = f"(interface_name = '{QM}' AND opnum IN (0, 9, 10))"
    opens = f"(interface_name = '{RR}' AND opnum IN (2, 11))"
    objects = f"(interface_name = '{QC}' AND opnum IN ({', '.join(map(str, _OBJECTS))}))"
    gives_back = f"((interface_name = '{QM}' AND opnum IN (1, 3)) OR (interface_name = '{RR}' AND opnum = 3))"
    failed = f"(interface_name = '{RR}' AND opnum IN (7, 13) AND octet_length(response_stub) <= {judging.HEAD_BYTES})"
    first = f"1, {judging.HEAD_BYTES})"
    tail = f"substring(request_stub, -{judging.TAIL_BYTES}, {judging.TAIL_BYTES})"
    whole = f"interface_name = '{MG}'"
    found = {
        "request_bytes": (reads, "CAST(octet_length(request_stub) AS bigint)"),
        "request_head": (f"{reads} OR {opens} OR {objects}", f"substring(request_stub, {first}"),
        "request_tail": (opens, tail),
        "response_head": (f"{reads} OR {gives_back} OR {failed}", f"substring(response_stub, {first}"),
        "request_stub": (whole, "request_stub"),
        "response_stub": (whole, "response_stub"),
    }
    return tuple(f"CASE WHEN {found[name][0]} THEN {found[name][1]} END AS {name}" for name in HEADS)


_NOT_MAPPED: Final = "(interface_name IS NULL OR interface_name <> 'epm')"  # the endpoint mapper's are left out
CALLS: Final = Part(RPC_CALLS, judging.CALLS, _NOT_MAPPED)
"""Calls of bronze, without the bytes of their stubs (``heads``)."""
READS: Final = Part(REMOTE_READ_CALLS, judging.READS, interface="protocol")
CLIENTS: Final = Part(CLIENT_CALLS, judging.CLIENTS)
_TEXTS = tuple("action AS action_text" if name == "action" else name for name in judging.MANAGEMENT)
MANAGEMENT: Final = Part(MANAGEMENT_CALLS, _TEXTS, interface=f"'{MG}'")
BINDS: Final = Part(RPC_BINDS, judging.BINDS)
MESSAGES_SAID: Final = Part(
    MESSAGES, tuple("errors AS message_errors" if name == "errors" else name for name in judging.MESSAGES)
)
"""What messages say, by the call that brought them."""
CONNECTED: Final = Part(CONNECTIONS, (*judging.CONNECTIONS, "calls"), "kind = 'rpc'")
"""RPC connections."""


def with_heads(*, stubs: bool) -> Part:
    """Return calls of bronze with the bytes of stubs that rules look at."""
    return CALLS._replace(columns=(*CALLS.columns, *heads(stubs=stubs)))


def together(calls: pa.Table, *parts: pa.Table) -> pa.Table:
    """Return calls with what silver decoded of them."""
    chosen = [part.drop_columns([name for name in _CHOOSING if name in part.column_names]) for part in parts]
    return judging.beside(calls, *chosen)


class Servers(NamedTuple):
    """What is read of some servers as a whole: their ``connections``, what they ``opened``, and each of them."""

    connections: pa.Table
    opened: pa.Table
    each: list[judging.Server]

    @classmethod
    def of(cls, lake: Lake, connections: pa.Table, addresses: Collection[str]) -> Servers:
        """Read what servers opened and were asked: the calls of the methods in ``LEDGER``, with what silver decoded.

        ``connections`` are all of theirs.
        """
        theirs, parts = "server_address IN {servers}", (with_heads(stubs=False), READS, CLIENTS)
        asked = {
            part.table: partial(part.rows, lake, theirs, rows=OPENINGS[part.table], servers=addresses) for part in parts
        }
        opened = together(*gather(asked).values())
        return cls(connections, opened, judging.servers_of(connections.select(list(judging.CONNECTIONS)), opened))


def days_of(connections: pa.Table) -> set[date | None] | None:
    """Return all days, UTC, of the connections' packets, and None for rows without one; None if they are too many."""
    spans = zip(*(connections[name].to_pylist() for name in ("first_packet_at", "last_packet_at")), strict=True)
    days: set[date | None] = {None}
    for first, last in spans:
        if (last - first).days > MOST_DATES:
            return None
        days |= {first.date() + timedelta(days=day) for day in range((last.date() - first.date()).days + 1)}
    return days


def found_rows(lake: Lake, where: str, /, **of: Names) -> pa.Table:
    """Return rows of gold.findings as they are made here."""
    return lake.select(FINDINGS, where, judging.SCHEMA.names, **of).cast(judging.SCHEMA)
