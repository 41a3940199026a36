"""What servers opened, let go, and were asked, of all dates: the calls of the methods in ``LEDGER``.

Numbers and versions are of the whole server: whatever run judges one of its associations asks for all of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pipeline.lake.queries import Standing
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table
from udfs.dcerpc.interfaces import QC, QM, RR

LEDGER: Final = {*((QM, opnum) for opnum in (2, 3, 4, 7, 8)), *((RR, opnum) for opnum in (2, 3, 11, 12)),
                 *((QC, opnum) for opnum in (2, 3, 4))}  # fmt: skip
"""What is known of a whole server when one of its associations is judged: who opened what, and asked what."""


def among(methods: Iterable[tuple[str, int]], interface: str = "interface_name") -> str:
    """Return the condition that rows are of some methods; ``interface`` is the column that names theirs."""
    opnums: defaultdict[str, list[str]] = defaultdict(list)
    for name, opnum in sorted(methods):
        opnums[name].append(str(opnum))
    each = (f"({interface} = '{name}' AND opnum IN ({', '.join(numbers)}))" for name, numbers in opnums.items())
    return f"({' OR '.join(each)})"


IS_LEDGER: Final = among(LEDGER)
"""The condition of rows with interface_name and opnum that they are of the methods in ``LEDGER``."""

OPENINGS: Final[dict[Table, Standing]] = {
    RPC_CALLS: Standing(RPC_CALLS, IS_LEDGER),
    REMOTE_READ_CALLS: Standing(REMOTE_READ_CALLS, among(LEDGER, "protocol")),
    CLIENT_CALLS: Standing(CLIENT_CALLS, IS_LEDGER),
}
"""These calls, by the table whose rows they are."""
