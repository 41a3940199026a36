"""The calls that open and close queues and number them at a server, of all dates (``OPEN_AND_CLOSE_METHODS``).

Queue numbers and versions belong to the whole server: whoever looks at one of its associations needs all of these
calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pipeline.lake.queries import FilteredTable
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.table import Table
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

OPEN_AND_CLOSE_METHODS: Final = {
    *((QM2QM_NAME, opnum) for opnum in (2, 3, 4, 7, 8)),
    *((REMOTE_READ_NAME, opnum) for opnum in (2, 3, 11, 12)),
    *((QMCOMM_NAME, opnum) for opnum in (2, 3, 4)),
}
"""Methods (interface, opnum) whose calls matter to all associations of a server: who opened what, and asked what."""


def methods_condition(methods: Iterable[tuple[str, int]], interface: str = "interface_name") -> str:
    """Return the SQL condition that rows are of some methods; ``interface`` is the column with the interface's name."""
    opnums: defaultdict[str, list[str]] = defaultdict(list)
    for name, opnum in sorted(methods):
        opnums[name].append(str(opnum))
    each = (f"({interface} = '{name}' AND opnum IN ({', '.join(numbers)}))" for name, numbers in opnums.items())
    return f"({' OR '.join(each)})"


IS_OPEN_OR_CLOSE: Final = methods_condition(OPEN_AND_CLOSE_METHODS)
"""The condition of rows with interface_name and opnum that they are of the methods in ``LEDGER``."""

OPEN_AND_CLOSE_CALLS: Final[dict[Table, FilteredTable]] = {
    RPC_CALLS: FilteredTable(RPC_CALLS, IS_OPEN_OR_CLOSE),
    REMOTE_READ_CALLS: FilteredTable(REMOTE_READ_CALLS, methods_condition(OPEN_AND_CLOSE_METHODS, "protocol")),
    CLIENT_CALLS: FilteredTable(CLIENT_CALLS, IS_OPEN_OR_CLOSE),
}
"""These calls, by the table whose rows they are."""
