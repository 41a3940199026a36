"""The calls that open and close queues, number them and lead to them at a server, of all dates (``OPENING_CALLS``).

Queue numbers and versions belong to the whole server: whoever looks at one of its associations needs all of these
calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pipeline.attempts.calls.decoded_call import OPEN_ROLES
from pipeline.lake.queries.inputs import FilteredTable
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
"""The condition of rows with interface_name and opnum that they are of ``OPEN_AND_CLOSE_METHODS``."""

_METHODS: Final = {*OPEN_AND_CLOSE_METHODS, *OPEN_ROLES}
_INTERFACES: Final = {RPC_CALLS: "interface_name", REMOTE_READ_CALLS: "protocol", CLIENT_CALLS: "interface_name"}
OPENING_CALLS: Final[dict[Table, FilteredTable]] = {
    table: FilteredTable(
        table, f"{methods_condition(_METHODS, interface)} AND server_address IS NOT NULL", is_shared=True
    )
    for table, interface in _INTERFACES.items()
}
"""The calls of these methods, and of those that have a role in opening a queue, by the table whose rows they are."""
