"""Which hops are one: between two queue managers, whatever addresses these had. No Spark session.

A queue manager may have several addresses at a time, or one after the other (two network cards, DHCP, failover). Where
one identifier is that of two machines (finding O07), it does not say which of them sent, and addresses do. So O07 is
evaluated before transfers, and the rules that count by hop after them. Rows of transfers have keys of addresses, which
no handshake changes; ``hop_key`` says which rows are of one hop, and views and alerts count once for each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

from pipeline.lake.lake import Lake
from schemas.findings import FINDINGS
from udfs.keys import key

HOP_COLUMNS: Final = ("sender_queue_manager", "receiver_queue_manager", "sender_address", "receiver_address")
"""The columns that ``hop_keys`` takes, in their order."""
CLONES_RULE: Final = "O07"
CLONE_SUBJECT: Final = "queue manager "
"""What the subject of a finding of ``CLONES_RULE`` begins with; the identifier follows."""


def hop_keys(columns: list[pa.Array | pa.ChunkedArray], clones: Collection[str] = ()) -> pa.Array:
    """Return hop_key of rows: the key of both queue managers where both are known and no ``clones``, else of addresses.

    ``columns`` are ``HOP_COLUMNS``; ``clones`` the identifiers that two machines have (``read_clones``).
    """
    rows = [*zip(*(column.to_pylist() for column in columns), strict=True)]
    keys = {}
    for sender, receiver, *addresses in set(rows):
        is_known = None not in (sender, receiver) and sender not in clones and receiver not in clones
        keys[sender, receiver, *addresses] = key(sender, receiver) if is_known else key(*addresses)
    return pa.array([keys[row] for row in rows], pa.string())


def read_clones(lake: Lake) -> frozenset[str]:
    """Return the identifiers of queue managers that findings show to be those of two machines."""
    sql = f"SELECT DISTINCT subject FROM {{rows}} WHERE rule_id = '{CLONES_RULE}'"
    found = lake.query_shared(sql, rows=FINDINGS)["subject"].to_pylist()
    return frozenset(each.removeprefix(CLONE_SUBJECT) for each in found)
