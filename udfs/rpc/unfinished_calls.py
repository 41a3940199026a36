"""What of calls is kept for other captures: PDUs that these may finish, explain or repeat."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.files.container import Ints
from udfs.rpc.calls import Calls, Flags, association, keep, spans
from udfs.tcp.flows import Connection

# Bytes of request and answer of a call that is kept though it is finished: more, of each connection, costs too much.
_SMALL_CALL: Final = 2048


def keep_for_others(
    calls: Calls, candidates: Flags, unexplained: Flags, owner: Ints, connections: list[Connection]
) -> Flags:
    """Keep the PDUs of calls that another capture may finish or explain; return which it may finish or repeat."""
    whole, request, response = calls.halves.whole, calls.request, calls.response
    unfinished = (request < 0) | (response < 0) | ~whole[request] | ~whole[response]
    again = ~unfinished & _sent_again(calls, owner, connections)
    kept = _keep_calls(calls, unfinished & candidates, connections)
    _keep_calls(calls, ~unfinished & ~again & unexplained, connections, unknown=True)
    return kept | _keep_calls(calls, again & candidates, connections, settled=True)


def _keep_calls(
    calls: Calls, chosen: Flags, connections: list[Connection], *, unknown: bool = False, settled: bool = False
) -> Flags:
    """Keep some calls; return which were: a connection has enough at some time."""
    kept = np.zeros(len(chosen), bool)
    halves = np.nonzero((calls.group >= 0) & chosen[calls.group])[0]
    halves = halves[np.argsort(calls.group[halves], kind="stable")]
    numbers, begins = np.unique(calls.group[halves], return_index=True)
    for number, part in zip(numbers.tolist(), np.split(halves, begins[1:]), strict=False):
        which = spans(calls.halves.first[part], calls.halves.last[part]).tolist()
        kept[number] = keep(calls.pdus, which, calls.fragment, connections, unknown=unknown, settled=settled)
    return kept


def _sent_again(calls: Calls, owner: Ints, connections: list[Connection]) -> Flags:
    """Tell which small calls begin a direction without its SYN: the capture before may have them too.

    What is sent again is what was not acknowledged when the file before ended: seldom more than one request.
    """
    none = np.iinfo(np.int64).min
    unique, inverse = np.unique(owner, return_inverse=True)
    until = np.full((len(unique), 2), none)
    for row, index in enumerate(unique.tolist()):
        connection = connections[index]
        client = connection.likely_client()
        for column, number in enumerate((client, client ^ 1)):
            side = connection.sides[number]
            if side.syn is None and side.started:
                until[row, column] = side.first
    found = np.zeros(len(owner), bool)
    if (until == none).all():
        return found
    for column, half in enumerate((calls.request, calls.response)):
        offset = calls.pdus.offset[calls.halves.first[half]]
        found |= (half >= 0) & (offset <= until[inverse, column])
    sizes = np.add.reduceat(calls.pdus.size, calls.halves.first)
    return found & (sizes[calls.request] + sizes[calls.response] <= _SMALL_CALL)


def were_left(calls: Calls, owner: Ints, connections: list[Connection]) -> Flags:
    """Tell which calls were not kept for other captures, for their connections had too much to keep."""
    found = np.zeros(len(owner), bool)
    names = [index for index in np.unique(owner).tolist() if association(connections[index]).left]
    for call in np.nonzero(np.isin(owner, names))[0].tolist() if names else ():
        left = association(connections[int(owner[call])]).left
        for kind, half in enumerate((int(calls.request[call]), int(calls.response[call]))):
            found[call] |= half >= 0 and (kind, int(calls.pdus.offset[calls.halves.first[half]])) in left
    return found
