"""What calls without a bind show of their interface: one example of each shape, for ``interfaces.infer``."""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.dcerpc.interfaces import NDR, NDR64, Seen
from udfs.dcerpc.pdu import FAULT
from udfs.dcerpc.verification import trailer_start
from udfs.files.container import Ints
from udfs.rpc.calls import AUTH_LEVEL_PRIVACY, Calls, association
from udfs.tcp.flows import Connection

_NO_FIXED_LENGTH: Final = 512  # stubs longer than this are alike as evidence: no fixed layout is
_MAX_EVIDENCE: Final = 4096  # different shapes of calls of one context; more tell nothing new


def note_evidence(calls: Calls, rows: Ints, owner: Ints, context: Ints, connections: list[Connection]) -> None:
    """Keep what calls without a bind show, one of each shape: opnum and lengths, with the syntax its bytes suggest."""
    pdus, halves = calls.pdus, calls.halves
    request, response = calls.request[rows], calls.response[rows]
    lead = np.where(request >= 0, request, response)

    stubs = np.add.reduceat(pdus.stub_size, halves.first)

    def size(half: Ints) -> Ints:
        return np.where((half >= 0) & halves.whole[half], np.minimum(stubs[half], _NO_FIXED_LENGTH), -1)

    shape = np.stack(
        [owner[rows], context[rows], pdus.opnum[halves.first[lead]], pdus.ptype[halves.first[lead]], size(request),
         size(response), pdus.ptype[halves.last[response]]]
    )  # fmt: skip
    _, examples = np.unique(shape, axis=1, return_index=True)
    for example in examples.tolist():
        known = association(connections[int(owner[rows[example]])])
        evidence = known.evidence.setdefault(int(context[rows[example]]), set())
        if len(evidence) >= _MAX_EVIDENCE:
            continue
        first = int(halves.first[lead[example]])
        opnum = int(pdus.opnum[first]) if request[example] >= 0 else None
        asked = _beginning(calls, int(request[example]), int(shape[4, example]), request=True)
        answered = _beginning(calls, int(response[example]), int(shape[5, example]), request=False)
        sealed = int(pdus.auth_level[first]) == AUTH_LEVEL_PRIVACY
        evidence.add(
            Seen(
                opnum,
                None if asked is None else min(len(asked), _NO_FIXED_LENGTH),
                None if answered is None else min(len(answered), _NO_FIXED_LENGTH),
                None if sealed else _suggested_syntax(opnum, asked, answered),
            )
        )


def _beginning(calls: Calls, half: int, size: int, *, request: bool) -> bytes | None:
    """Return the stub of one half as far as evidence needs it: all of a short one, else a long enough piece of it.

    None if it was not seen whole or is a fault.
    """
    if size < 0 or calls.pdus.ptype[calls.halves.last[half]] == FAULT:
        return None
    pdus, value = calls.pdus, b""
    for index in range(int(calls.halves.first[half]), int(calls.halves.last[half]) + 1):
        low = int(pdus.stub_from[index])
        value += calls.fragment(index)[low : low + int(pdus.stub_size[index])]
        if len(value) > _NO_FIXED_LENGTH:
            return value
    trailer = trailer_start(value) if request else None
    return value if trailer is None else value[:trailer]


def _suggested_syntax(opnum: int | None, request: bytes | None, response: bytes | None) -> str | None:
    """Return the transfer syntax that the bytes of a RemoteRead call suggest (little endian alone)."""
    if opnum in (2, 11) and request is not None and len(request) >= 44:
        if request[4] == request[0] and request[0]:
            return NDR
        if request[8] == request[0] and not any(request[4:8]):
            return NDR64
    if opnum in (7, 13) and response is not None and len(response) >= 40:
        return NDR if any(response[20:24]) else NDR64
    return None
