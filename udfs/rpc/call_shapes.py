"""Collects the shapes of calls without a bind, from which ``interfaces.infer_interface`` infers the interface."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.array_types import Ints
from udfs.dcerpc.interfaces import NDR64_NAME, NDR_NAME, CallShape
from udfs.dcerpc.pdu_headers import FAULT
from udfs.dcerpc.verification_trailer import find_verification_trailer
from udfs.rpc.call_assembly import AUTH_LEVEL_PRIVACY, association_of
from udfs.rpc.pdu_columns import AssembledCalls
from udfs.tcp.connections import TcpConnection

_MAX_FIXED_STUB_BYTES: Final = 512  # bytes; longer stubs are not told apart, because no fixed layout is as long
_MAX_SHAPES_PER_CONTEXT: Final = 4096  # shapes kept per presentation context


def record_call_shapes(
    calls: AssembledCalls, rows: Ints, owner: Ints, context: Ints, connections: list[TcpConnection]
) -> None:
    """Add the shapes of calls without a bind to their associations; one example of equal calls is decoded."""
    pdus, halves = calls.pdus, calls.halves
    request, response = calls.request_half[rows], calls.response_half[rows]
    lead = np.where(request >= 0, request, response)

    stubs = np.add.reduceat(pdus.stub_size, halves.first_pdu)

    def size(half: Ints) -> Ints:
        return np.where((half >= 0) & halves.is_whole[half], np.minimum(stubs[half], _MAX_FIXED_STUB_BYTES), -1)

    shape = np.stack(
        [
            owner[rows],
            context[rows],
            pdus.opnum[halves.first_pdu[lead]],
            pdus.pdu_type[halves.first_pdu[lead]],
            size(request),
            size(response),
            pdus.pdu_type[halves.last_pdu[response]],
        ]
    )
    _, examples = np.unique(shape, axis=1, return_index=True)
    for example in examples.tolist():
        known = association_of(connections[int(owner[rows[example]])])
        evidence = known.unbound_call_shapes.setdefault(int(context[rows[example]]), set())
        if len(evidence) >= _MAX_SHAPES_PER_CONTEXT:
            continue
        first = int(halves.first_pdu[lead[example]])
        opnum = int(pdus.opnum[first]) if request[example] >= 0 else None
        asked = _stub_start(calls, int(request[example]), int(shape[4, example]), request=True)
        answered = _stub_start(calls, int(response[example]), int(shape[5, example]), request=False)
        sealed = int(pdus.auth_level[first]) == AUTH_LEVEL_PRIVACY
        evidence.add(
            CallShape(
                opnum,
                None if asked is None else min(len(asked), _MAX_FIXED_STUB_BYTES),
                None if answered is None else min(len(answered), _MAX_FIXED_STUB_BYTES),
                None if sealed else _suggested_syntax(opnum, asked, answered),
            )
        )


def _stub_start(calls: AssembledCalls, half: int, size: int, *, request: bool) -> bytes | None:
    """Return the stub of a request or response, of a long one only its beginning; None if incomplete or a fault.

    A verification trailer is removed from requests.
    """
    if size < 0 or calls.pdus.pdu_type[calls.halves.last_pdu[half]] == FAULT:
        return None
    pdus, value = calls.pdus, b""
    for index in range(int(calls.halves.first_pdu[half]), int(calls.halves.last_pdu[half]) + 1):
        low = int(pdus.stub_start[index])
        value += calls.pdu_bytes(index)[low : low + int(pdus.stub_size[index])]
        if len(value) > _MAX_FIXED_STUB_BYTES:
            return value
    trailer = find_verification_trailer(value) if request else None
    return value if trailer is None else value[:trailer]


def _suggested_syntax(opnum: int | None, request: bytes | None, response: bytes | None) -> str | None:
    """Return the transfer syntax that the bytes of a RemoteRead call suggest; only for little-endian calls."""
    if opnum in (2, 11) and request is not None and len(request) >= 44:
        if request[4] == request[0] and request[0]:
            return NDR_NAME
        if request[8] == request[0] and not any(request[4:8]):
            return NDR64_NAME
    if opnum in (7, 13) and response is not None and len(response) >= 40:
        return NDR_NAME if any(response[20:24]) else NDR64_NAME
    return None
