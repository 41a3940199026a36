"""Server endpoints that calls name, and the captures to read again because they hold connections to such an endpoint.

A connection is parsed from its first byte if its port, or its bind, shows that it is MSMQ. Calls that ask for a port
([MS-MQQP] 3.1.4.1, [MS-MQRR] 3.1.4.1 and the like), or the endpoint mapper ([C706] appendix O), show the interface at
an endpoint too late for captures that were read before: these are read again, for connections to that endpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake import Lake
from schemas.bronze import PENDING
from udfs.capture.capture_reader import InterfaceEndpoint
from udfs.dcerpc.interfaces import interfaces_on_port
from udfs.rows import RowDict

PENDING_COLUMNS: Final = (
    "capture_id", "connection_id", "kind", "client_address", "client_port", "server_address", "server_port",
    "learned_interfaces",
)  # fmt: skip
_WITHOUT_ENDPOINT_SQL: Final = "(kind = 'cold' OR array_contains(waits_for, 'bind'))"


def pending_without_endpoint(rows: pa.Table) -> list[RowDict]:
    """Return new rows of ``bronze.pending`` whose interface is unknown, for ``captures_to_reread``."""
    waits = pa.array(["bind" in names for names in rows.column("waits_for").to_pylist()], pa.bool_())
    unknown = rows.filter(pc.or_(pc.equal(rows.column("kind"), "cold"), waits))
    found: list[RowDict] = unknown.select(PENDING_COLUMNS).to_pylist()
    return found


def stored_pending_at_endpoints(lake: Lake, endpoints: Collection[str]) -> list[RowDict]:
    """Return stored rows of ``bronze.pending`` whose interface is unknown, with either end at one of the endpoints."""
    if not endpoints or not lake.exists(PENDING):
        return []
    parsed = sorted({(endpoint.address, endpoint.port) for endpoint in map(InterfaceEndpoint.parse, endpoints)})
    at = pa.table({"address": [address for address, _ in parsed], "port": [port for _, port in parsed]})
    either = " OR ".join(f"({end}_address = known.address AND {end}_port = known.port)" for end in ("client", "server"))
    sql = (
        f"SELECT {', '.join(PENDING_COLUMNS)} FROM {{pending}} WHERE {_WITHOUT_ENDPOINT_SQL} "
        f"AND EXISTS (SELECT 1 FROM {{at}} AS known WHERE {either})"
    )
    found: list[RowDict] = lake.query(sql, pending=PENDING, at=at).to_pylist()
    return found


def captures_to_reread(rows: Iterable[RowDict], endpoints: Iterable[str]) -> dict[str, set[str]]:
    """Return captures with connections at endpoints that the captures did not know, and these endpoints by capture.

    ``rows`` are pending connections with the columns ``PENDING_COLUMNS``. Either end can be the server if the
    connection was never parsed (``cold``). Interfaces that use the port by default, or that the capture itself shows,
    are known.
    """
    at: dict[tuple[str, int], set[InterfaceEndpoint]] = defaultdict(set)
    for endpoint in map(InterfaceEndpoint.parse, endpoints):
        at[endpoint.address, endpoint.port].add(endpoint)
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for end in ("client", "server") if row["kind"] == "cold" else ("server",):
            known = _known_interfaces(row) if end == "server" else frozenset()
            for endpoint in at.get((row[f"{end}_address"], row[f"{end}_port"]), ()):
                if endpoint.interface_name not in known:
                    found[row["capture_id"]].add(endpoint.text)
    return found


def _known_interfaces(row: Mapping[str, Any]) -> frozenset[str]:
    return interfaces_on_port(row["server_port"]).union(row["learned_interfaces"] or ())
