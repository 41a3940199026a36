"""Sessions of the binary protocol in one capture, which nothing is joined with, from what the reader yields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.bronze.across_captures.capture_ends import CAPTURE_ENDS
from pipeline.lake.queries.duckdb_sql import DuckDbSql
from pipeline.silver.decode_packets import PACKET_NUMBERS
from pipeline.transfers.connection_packets import ConnectionPackets
from pipeline.transfers.inputs import (
    BINARY_PROTOCOL,
    CAPTURE_BEGINS,
    PACKETS_SQL,
    arrange_read_packets,
    group_connections,
)
from pipeline.transfers.sending_rows import sending_rows
from pipeline.transfers.session_rows import SessionSettings, order_ack_rows, session_rows
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.table import Table
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA
from udfs.times import timedelta_to_us

SESSION_TABLES: Final = (SESSIONS, ORDER_ACKS, SENDINGS)
_NOTHING_DECODED: Final = pa.table(
    {
        "packet_key": pa.array([], pa.string()),
        "delivery": pa.array([], pa.string()),
        "transactional": pa.array([], pa.bool_()),
    }
)


class CaptureSessions:
    """The sessions of one capture. Of its packets those bytes are kept that sessions are made of: few of messages."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self._settings = settings or SessionSettings()
        self._sql = DuckDbSql()
        self._packets = [self._sql.answer(PACKETS_SQL, {"rows": SESSION_PACKETS_SCHEMA.empty_table()})]
        self._connections: list[pa.Table] = []
        self._capture_ends: dict[str, int] = {}
        self._capture_begins: dict[str, int] = {}
        self._steps = NO_STEPS

    def add(self, kind: str, batch: pa.RecordBatch) -> None:
        """Add rows of the reader; kinds that sessions are not made of are left out."""
        rows = pa.Table.from_batches([batch])
        if kind == SESSION_PACKETS.name:
            self._packets.append(self._sql.answer(PACKETS_SQL, {"rows": rows}))
        elif kind == CONNECTIONS.name:
            self._connections.append(rows.filter(pc.equal(rows["kind"], BINARY_PROTOCOL)))
        elif kind == CAPTURE_FILES.name:
            ends, begins = (
                self._sql.answer(sql, {"files": rows}).to_pylist() for sql in (CAPTURE_ENDS, CAPTURE_BEGINS)
            )
            self._capture_ends |= {row["server"]: row["ends"] for row in ends}
            self._capture_begins |= {row["capture_id"]: row["begins"] for row in begins}
            self._steps = ClockSteps(rows.select(["capture_id", "times_go_back"]).to_pylist())

    def rows(self, table: Table) -> Iterator[pa.Table]:
        """Yield the rows of one of ``SESSION_TABLES``, when all rows of the capture are added; ``run_id`` is null."""
        for found, connections in self._groups():
            sessions = session_rows(connections, found, self._capture_ends, self._capture_begins, self._settings, None)
            if table is SESSIONS:
                yield sessions
            elif table is ORDER_ACKS:
                yield order_ack_rows(found, sessions, None)
            else:
                yield sending_rows(found, connections, sessions, None)

    def numbers(self) -> pa.Table:
        """Return the numbers of all packets, ``PACKET_NUMBERS``."""
        parts = [found.numbers_of(np.arange(found.table.num_rows)) for found, _ in self._groups()]
        return pa.concat_tables([PACKET_NUMBERS.empty_table(), *parts])

    def _groups(self) -> Iterator[tuple[ConnectionPackets, pa.Table]]:
        """Yield all packets of some connections together, and the connections' rows."""
        if not self._connections:  # the capture could not be read
            return
        connections, packets = pa.concat_tables(self._connections), pa.concat_tables(self._packets)
        counts = {each["values"]: each["counts"] for each in packets["connection_id"].value_counts().to_pylist()}
        expire = timedelta_to_us(self._settings.expire)
        for names in group_connections(counts, connections["connection_id"].to_pylist()):
            ours = packets.filter(is_in(packets, "connection_id", names))
            found = arrange_read_packets(ours, _NOTHING_DECODED, names, expire, steps=self._steps)
            yield found, connections.filter(is_in(connections, "connection_id", names))
