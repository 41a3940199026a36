"""Who the client of a connection says it is, for the rows of gold (``schemas.table.CLIENT_IDENTITY``).

bronze.rpc_binds has what each handshake claims. A connection on which clients claim different accounts, or machines,
shows none: a call does not say whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pipeline.lake.queries.inputs import POST_IMAGES

IDENTITY_COLUMNS: Final = ("claimed_principal", "claimed_workstation")
_CLAIMS: Final = "auth_principal IS NOT NULL OR auth_workstation IS NOT NULL"
_CHOSEN: Final = tuple(
    f"CASE WHEN min({claim}) = max({claim}) THEN min({claim}) END AS {name}"
    for name, claim in zip(IDENTITY_COLUMNS, ("auth_principal", "auth_workstation"), strict=True)
)
CHANGED_BINDS_QUERY: Final = (
    "SELECT bind_key, connection_id, server_address, auth_principal, auth_workstation,"
    f" _change_type IN {POST_IMAGES!r} AS added FROM {{feed}} WHERE {_CLAIMS}"
)
"""Query over the change feed of bronze.rpc_binds: what handshakes claim, before and after."""


def connections_with_other_claims(images: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the connections whose claims changed, with their servers; ``images`` from ``CHANGED_BINDS_QUERY``."""
    differing: set[tuple[Any, ...]] = set()
    for row in images:  # what is there before and after cancels out
        differing ^= {tuple(value for name, value in row.items() if name != "added")}
    return {connection: server for _, connection, server, *_ in differing}


IDENTITIES_SQL: Final = (
    f"SELECT connection_id, min(server_address) AS server_address, {', '.join(_CHOSEN)} FROM {{rows}} WHERE ({_CLAIMS})"
)
"""Query over bronze.rpc_binds for what the clients of connections claim, to be grouped by connection_id."""


def client_identity(through: Mapping[str, Any]) -> dict[str, str | None]:
    """Return ``principal`` and ``workstation`` of a call, from its columns opened_by and ``IDENTITY_COLUMNS``."""
    principal, workstation = (through.get(name) for name in IDENTITY_COLUMNS)
    proven = through.get("opened_by")
    return {"principal": principal if proven is None else proven, "workstation": workstation}
