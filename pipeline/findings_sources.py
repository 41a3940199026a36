"""What findings are judged of, as it is read: the columns that ``pipeline.findings`` names, of bronze and silver."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline import findings as judging
from pipeline.exchanges import LEDGER, MG, QC, QM, RR
from pipeline.gather import gather
from pipeline.lake import MOST_DATES, Lake
from pipeline.touched import only
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.messages import MESSAGES
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE

HEADS: Final = {"request_bytes": "bigint", "request_head": "binary", "request_tail": "binary",
                 "response_head": "binary", "request_stub": "binary", "response_stub": "binary"}  # fmt: skip
_CHOOSING: Final = ("connection_id", "server_address", "interface_name", "opnum")  # of rows, beside the call's own
_OBJECTS: Final = (7, 8, 9, 10, 11)  # of qmcomm


def sources(lake: Lake, *, stubs: bool) -> dict[str, DataFrame]:
    """Return what is read of each table: the columns that ``pipeline.findings`` names, and what chooses rows."""
    reads = lake.read(REMOTE_READ_CALLS).withColumn("interface_name", F.col("protocol"))
    management = lake.read(MANAGEMENT_CALLS).withColumn("interface_name", F.lit(MG))
    texts = [F.col(name).alias("action_text") if name == "action" else F.col(name) for name in judging.MANAGEMENT]
    return {
        "calls": calls_of(lake, stubs=stubs),
        "reads": reads.select(*judging.READS, *_CHOOSING, EVENT_DATE),
        "clients": lake.read(CLIENT_CALLS).select(*judging.CLIENTS, *_CHOOSING, EVENT_DATE),
        "management": management.select(*texts, *_CHOOSING, EVENT_DATE),
        "binds": lake.read(RPC_BINDS).select(*judging.BINDS),
    }


def calls_of(lake: Lake, *, stubs: bool) -> DataFrame:
    """Return what is read of bronze.rpc_calls, the endpoint mapper's left out."""
    calls = lake.read(RPC_CALLS).where(F.col("interface_name").isNull() | (F.col("interface_name") != "epm"))
    return calls.select(*judging.CALLS, *heads(stubs=stubs), EVENT_DATE)


def messages_of(lake: Lake) -> DataFrame:
    """Return what is read of messages, by the call that brought them."""
    said = [F.col(name).alias("message_errors") if name == "errors" else F.col(name) for name in judging.MESSAGES]
    return lake.read(MESSAGES).select(*said, EVENT_DATE)


def heads(*, stubs: bool) -> list[Column]:
    """Return the bytes of stubs that rules look at: those of few methods, and of these the first; or nulls."""
    if not stubs:
        return [F.lit(None).cast(kind).alias(name) for name, kind in HEADS.items()]
    interface, opnum = F.col("interface_name"), F.col("opnum")
    reads = (interface == QM) & opnum.isin(0, 9, 10)
    opens = (interface == RR) & opnum.isin(2, 11)
    objects = (interface == QC) & opnum.isin(*_OBJECTS)
    gives_back = ((interface == QM) & opnum.isin(1, 3)) | ((interface == RR) & (opnum == 3))
    failed_reads = (interface == RR) & opnum.isin(7, 13) & (F.length("response_stub") <= judging.HEAD_BYTES)
    tail = F.expr(f"substring(request_stub, -{judging.TAIL_BYTES}, {judging.TAIL_BYTES})")
    whole = interface == MG
    found = {
        "request_bytes": F.when(reads, F.length("request_stub").cast("bigint")),
        "request_head": F.when(reads | opens | objects, F.substring("request_stub", 1, judging.HEAD_BYTES)),
        "request_tail": F.when(opens, tail),
        "response_head": F.when(reads | gives_back | failed_reads, F.substring("response_stub", 1, judging.HEAD_BYTES)),
        "request_stub": F.when(whole, F.col("request_stub")),
        "response_stub": F.when(whole, F.col("response_stub")),
    }
    return [found[name].alias(name) for name in HEADS]


def connections_of(lake: Lake, servers: Collection[str] | None) -> DataFrame:
    """Return the RPC connections of some servers, or of all."""
    rows = lake.read(CONNECTIONS).where("kind = 'rpc'").select(*judging.CONNECTIONS, "calls")
    return rows if servers is None else only(rows, "server_address", servers)


def together(calls: pa.Table, *parts: pa.Table) -> pa.Table:
    """Return calls with what silver decoded of them."""
    chosen = [part.drop_columns([name for name in _CHOOSING if name in part.column_names]) for part in parts]
    return judging.beside(calls, *chosen)


def openings(lake: Lake, servers: Collection[str]) -> pa.Table:
    """Return what servers opened and were asked: the calls of the methods in ``LEDGER``, with what silver decoded."""
    frames = sources(lake, stubs=False)
    found = gather(
        {
            name: only(frames[name].where(is_ledger()), "server_address", servers).drop(EVENT_DATE).toArrow
            for name in ("calls", "reads", "clients")
        }
    )
    return together(*found.values())


def is_ledger() -> Column:
    """Tell of rows with interface_name and opnum whether they are of the methods in ``LEDGER``."""
    ours: Column = F.lit(False)  # noqa: FBT003
    for interface in sorted({name for name, _ in LEDGER}):
        opnums = sorted(opnum for name, opnum in LEDGER if name == interface)
        ours |= (F.col("interface_name") == interface) & F.col("opnum").isin(*opnums)
    return ours


def days_of(connections: pa.Table) -> set[date | None] | None:
    """Return all days, UTC, of the connections' packets, and None for rows without one; None if they are too many."""
    spans = zip(*(connections[name].to_pylist() for name in ("first_packet_at", "last_packet_at")), strict=True)
    days: set[date | None] = {None}
    for first, last in spans:
        if (last - first).days > MOST_DATES:
            return None
        days |= {first.date() + timedelta(days=day) for day in range((last.date() - first.date()).days + 1)}
    return days


def found_rows(frame: DataFrame) -> pa.Table:
    """Return rows of gold.findings as they are made here."""
    return frame.select(*judging.SCHEMA.names).toArrow().cast(judging.SCHEMA)


def names_of(frame: DataFrame) -> set[str]:
    """Return the connections that rows are of."""
    return {row[0] for row in frame.select("connection_id").distinct().collect() if row[0] is not None}


def strings(values: Collection[str]) -> pa.Array:
    """Return texts as an array, sorted."""
    return pa.array(sorted(values), pa.string())
