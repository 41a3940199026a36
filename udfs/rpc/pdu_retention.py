"""Selects the PDUs of calls to retain for other captures, which may complete, explain or repeat the calls."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import ABSENT
from udfs.columns.groups import expand_ranges
from udfs.rpc.call_assembly import association_of, retain_call_pdus
from udfs.rpc.pdu_columns import AssembledCalls
from udfs.tcp.connections import TcpConnection

# Bytes of request and response, up to which a complete call is retained in case another capture repeats it.
_MAX_REPEATABLE_CALL_BYTES: Final = 2048


def retain_for_other_captures(
    calls: AssembledCalls, candidates: Bools, unexplained: Bools, owner: Ints, connections: list[TcpConnection]
) -> Bools:
    """Retain PDUs of calls that another capture may complete, explain or repeat; return which may be changed by it.

    ``candidates``: calls of MSMQ or without a bind; ``unexplained``: calls without a bind whose interface is not
    inferred.
    """
    whole, request, response = calls.halves.is_whole, calls.request_half, calls.response_half
    unfinished = (request < 0) | (response < 0) | ~whole[request] | ~whole[response]
    again = ~unfinished & _may_be_repeated(calls, owner, connections)
    kept = _retain_calls(calls, unfinished & candidates, connections)
    _retain_calls(calls, ~unfinished & ~again & unexplained, connections, unknown=True)
    return kept | _retain_calls(calls, again & candidates, connections, finished=True)


def _retain_calls(
    calls: AssembledCalls,
    chosen: Bools,
    connections: list[TcpConnection],
    *,
    unknown: bool = False,
    finished: bool = False,
) -> Bools:
    """Retain the PDUs of chosen calls; return which were retained, as each connection has a limit."""
    kept = np.zeros(len(chosen), bool)
    halves = np.nonzero((calls.call_of_half >= 0) & chosen[calls.call_of_half])[0]
    halves = halves[np.argsort(calls.call_of_half[halves], kind="stable")]
    numbers, begins = np.unique(calls.call_of_half[halves], return_index=True)
    for number, part in zip(numbers.tolist(), np.split(halves, begins[1:]), strict=False):
        which = expand_ranges(calls.halves.first_pdu[part], calls.halves.pdu_count[part]).tolist()
        kept[number] = retain_call_pdus(
            calls.pdus, which, calls.pdu_bytes, connections, is_unbound=unknown, is_finished=finished
        )
    return kept


def _may_be_repeated(calls: AssembledCalls, owner: Ints, connections: list[TcpConnection]) -> Bools:
    """Return a mask of small calls at the start of a direction without a SYN: the previous capture may have them too.

    Only data that was unacknowledged at the end of the previous file is sent again, rarely more than one request.
    """
    unique, inverse = np.unique(owner, return_inverse=True)
    until = np.full((len(unique), 2), ABSENT)
    for row, index in enumerate(unique.tolist()):
        connection: TcpConnection = connections[index]
        client = connection.likely_client_side()
        for column, number in enumerate((client, client ^ 1)):
            side = connection.directions[number]
            if side.syn_sequence is None and side.started:
                until[row, column] = side.first_offset
    found = np.zeros(len(owner), bool)
    if (until == ABSENT).all():
        return found
    for column, half in enumerate((calls.request_half, calls.response_half)):
        offset = calls.pdus.stream_offset[calls.halves.first_pdu[half]]
        found |= (half >= 0) & (offset <= until[inverse, column])
    sizes = np.add.reduceat(calls.pdus.frag_length, calls.halves.first_pdu)
    return found & (sizes[calls.request_half] + sizes[calls.response_half] <= _MAX_REPEATABLE_CALL_BYTES)


def unretained_pdu_mask(calls: AssembledCalls, owner: Ints, connections: list[TcpConnection]) -> Bools:
    """Return a mask of unfinished calls whose PDUs were not retained, because their connection was at its limit."""
    found = np.zeros(len(owner), bool)
    names = [index for index in np.unique(owner).tolist() if association_of(connections[index]).unretained_offsets]
    for call in np.nonzero(np.isin(owner, names))[0].tolist() if names else ():
        left = association_of(connections[int(owner[call])]).unretained_offsets
        for kind, half in enumerate((int(calls.request_half[call]), int(calls.response_half[call]))):
            found[call] |= half >= 0 and (kind, int(calls.pdus.stream_offset[calls.halves.first_pdu[half]])) in left
    return found
