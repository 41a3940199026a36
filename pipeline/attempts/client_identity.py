"""Who the client of a connection says it is, for the rows of gold (``schemas.table.CLIENT_IDENTITY``).

bronze.rpc_binds has what each handshake claims. A connection on which clients claim different accounts, or machines,
shows none: a call does not say whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pipeline.lake.queries.inputs import MORE_ROWS_SQL

IDENTITY_COLUMNS: Final = ("claimed_principal", "claimed_workstation")
_CLAIMS: Final = "auth_principal IS NOT NULL OR auth_workstation IS NOT NULL"
_CHOSEN: Final = tuple(
    f"CASE WHEN min({claim}) = max({claim}) THEN min({claim}) END AS {name}"
    for name, claim in zip(IDENTITY_COLUMNS, ("auth_principal", "auth_workstation"), strict=True)
)
CHANGED_CLAIMS_QUERY: Final = (
    "SELECT DISTINCT connection_id, server_address FROM (SELECT bind_key, connection_id, server_address,"
    f" auth_principal, auth_workstation FROM {{feed}} WHERE {_CLAIMS} GROUP BY ALL HAVING {MORE_ROWS_SQL} <> 0)"
)
"""Query over the change feed of bronze.rpc_binds: the connections whose claims changed, with their servers.

What is there before and after cancels out.
"""
CHANGED_CLAIMS_SCHEMA: Final = pa.schema([("connection_id", pa.string()), ("server_address", pa.string())])

IDENTITIES_SQL: Final = (
    f"SELECT connection_id, min(server_address) AS server_address, {', '.join(_CHOSEN)} FROM {{rows}} WHERE ({_CLAIMS})"
)
"""Query over bronze.rpc_binds for what the clients of connections claim, to be grouped by connection_id."""


def client_identity(through: Mapping[str, Any]) -> dict[str, str | None]:
    """Return ``principal`` and ``workstation`` of a call, from its columns opened_by and ``IDENTITY_COLUMNS``."""
    principal, workstation = (through.get(name) for name in IDENTITY_COLUMNS)
    proven = through.get("opened_by")
    return {"principal": principal if proven is None else proven, "workstation": workstation}
