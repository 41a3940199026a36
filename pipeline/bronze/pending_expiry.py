"""Which remainders leave ``bronze.pending``: those of connections that were silent for longer than ``pending.expire``.

All remainders of a connection that goes on stay, however old they are. The first one has its beginning, on which its
key and the places of its bytes rest, and its binds, without which its later calls cannot be read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.lake.lake import Lake
from schemas.bronze import PENDING
from schemas.table import EVENT_DATE, INGESTED_AT
from udfs.times import datetime_to_us

# A row without a time of its own is as old as its ingestion.
_LAST_SEEN_SQL: Final = f"CASE WHEN {EVENT_DATE} IS NULL THEN {INGESTED_AT} ELSE last_packet_at END"
EXPIRY_COLUMNS: Final = ("connection_id", "last_packet_at", EVENT_DATE)
"""The columns that ``find_open_connections`` needs."""
_NO_CONNECTIONS: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class PendingExpiry:
    """Selects the remainders of connections whose last packet came before a time: no more is waited for."""

    expires_before: dt.datetime

    def expired_rows(self, lake: Lake, open_connections: AbstractSet[str]) -> pa.Table:
        """Return key and date of the stored rows that leave; ``open_connections`` have newer ones in this run."""
        sql = (
            f"SELECT pending_key, {EVENT_DATE} FROM (SELECT pending_key, {EVENT_DATE}, connection_id, "
            f"max({_LAST_SEEN_SQL}) OVER (PARTITION BY connection_id) AS last_seen FROM {{pending}}) "
            f"WHERE last_seen < {self._time_sql} AND connection_id NOT IN {{open_connections}}"
        )
        return lake.query(sql, pending=PENDING, open_connections=open_connections)

    def find_open_connections(self, lake: Lake, merged: pa.Table) -> set[str]:
        """Return the connections of merged rows that go on, by these rows or by stored ones that stayed equal."""
        expired = self._is_expired(merged)
        fresh: set[str] = set(merged.filter(pc.invert(expired))["connection_id"].to_pylist())
        doubtful = set(merged.filter(expired)["connection_id"].to_pylist()) - fresh
        if not doubtful or not lake.exists(PENDING):
            return fresh
        sql = (
            "SELECT DISTINCT connection_id FROM {pending} "
            f"WHERE connection_id IN {{doubtful}} AND {_LAST_SEEN_SQL} >= {self._time_sql}"
        )
        return fresh | set(lake.query(sql, pending=PENDING, doubtful=doubtful).column(0).to_pylist())

    def drop_expired(
        self,
        rows: Any,  # noqa: ANN401 - table or batch
        open_connections: AbstractSet[str] = _NO_CONNECTIONS,
    ) -> Any:  # noqa: ANN401
        """Return the rows of this run, a table or a batch, without those that have expired already.

        A row without a time of its own stays: it has been read just now.
        """
        return rows.filter(
            pc.invert(pc.and_(self._is_expired(rows), pc.invert(is_in(rows, "connection_id", open_connections))))
        )

    def _is_expired(self, rows: Any) -> Any:  # noqa: ANN401 - table or batch
        dated = pc.is_valid(rows[EVENT_DATE])
        return pc.and_(dated, pc.fill_null(pc.less(rows["last_packet_at"], self.expires_before), False))  # noqa: FBT003

    @property
    def _time_sql(self) -> str:
        return f"timestamp_micros({datetime_to_us(self.expires_before)})"
