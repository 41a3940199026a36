"""The RPC interfaces of Message Queuing, their methods, ports and stub lengths.

The only place that lists them. Sources: [MS-MQQP] 3.1.4, [MS-MQRR] 3.1.4, [MS-MQMR] 3.1.4, [MS-MQMP] 3.1.4 and 3.1.5,
[C706] appendix O for the endpoint mapper. Stub lengths follow from the IDL and NDR / NDR64; they identify an interface
where its bind was not captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

NDR: Final = "NDR"
NDR64: Final = "NDR64"
FEATURE_NEGOTIATION: Final = "feature_negotiation"

TRANSFER_SYNTAX: Final = {
    "8a885d04-1ceb-11c9-9fe8-08002b104860": NDR,
    "71710533-beba-4937-8319-b5dbef9ccc36": NDR64,
}
FEATURE_NEGOTIATION_PREFIX: Final = "6cb71c2c-9812-4540-"  # [MS-RPCE] 3.3.1.5.3: the bits asked for follow


@dataclass(frozen=True, slots=True)
class Lengths:
    """Octets of a method's request and response stubs, exact where the layout is fixed.

    ``request`` and ``response`` map a length to the transfer syntax that it proves, or to None when both give it.
    A ``*_min`` is the shortest stub of a variable layout; None means that only the listed lengths exist.
    """

    request: Mapping[int, str | None]
    response: Mapping[int, str | None]
    request_min: int | None = None
    response_min: int | None = None


@dataclass(frozen=True, slots=True)
class Interface:
    """One RPC interface: ``methods`` by opnum, ``lengths`` by opnum where they identify a call."""

    name: str
    uuid: str
    version: str
    methods: tuple[str, ...]
    lengths: dict[int, Lengths]


def _fixed(request: int, response: int) -> Lengths:
    return Lengths({request: None}, {response: None})


_START_2_RESPONSE: Final = {88: NDR, 92: NDR64, 44: None}  # without a message; 44 with a NULL descriptor

QM2QM: Final = Interface(
    "qm2qm",
    "1088a980-eae5-11d0-8d9b-00a02453c337",
    "1.0",
    (
        "RemoteQMStartReceive",
        "RemoteQMEndReceive",
        "RemoteQMOpenQueue",
        "RemoteQMCloseQueue",
        "RemoteQMCloseCursor",
        "RemoteQMCancelReceive",
        "RemoteQMPurgeQueue",
        "RemoteQMGetQMQMServerPort",
        "RemoteQmGetVersion",
        "RemoteQMStartReceive2",
        "RemoteQMStartReceiveByLookupId",
    ),
    {
        0: Lengths({44: NDR, 48: NDR64}, {68: NDR, 76: NDR64}, response_min=80),
        1: _fixed(24, 24),
        2: _fixed(32, 24),
        3: _fixed(20, 24),
        4: _fixed(8, 4),
        5: _fixed(12, 4),
        6: _fixed(4, 4),
        7: _fixed(4, 4),
        8: _fixed(0, 4),
        9: Lengths({60: NDR, 64: NDR64, 16: None}, _START_2_RESPONSE, response_min=100),
        10: Lengths({68: NDR, 72: NDR64, 24: None}, _START_2_RESPONSE, response_min=100),
    },
)

_START = {28: NDR, 36: NDR64}

REMOTE_READ: Final = Interface(
    "RemoteRead",
    "1a9134dd-7b39-45ba-ad88-44d01ca47f28",
    "1.0",
    (
        "R_GetServerPort",
        "Opnum1NotUsedOnWire",
        "R_OpenQueue",
        "R_CloseQueue",
        "R_CreateCursor",
        "R_CloseCursor",
        "R_PurgeQueue",
        "R_StartReceive",
        "R_CancelReceive",
        "R_EndReceive",
        "R_MoveMessage",
        "R_OpenQueueForMove",
        "R_QMEnlistRemoteTransaction",
        "R_StartTransactionalReceive",
        "R_SetUserAcknowledgementClass",
        "R_EndTransactionalReceive",
    ),
    {
        0: _fixed(0, 4),
        2: Lengths({}, {20: None}, request_min=44),
        3: _fixed(20, 24),
        4: _fixed(20, 8),
        5: _fixed(24, 4),
        6: _fixed(20, 4),
        7: Lengths({56: None}, _START, response_min=40),
        8: _fixed(24, 4),
        9: _fixed(28, 4),
        10: _fixed(56, 4),
        11: Lengths({}, {28: None}, request_min=44),
        12: Lengths({}, {4: None}, request_min=29),
        13: Lengths({72: None}, _START, response_min=40),
        14: Lengths({34: None, 36: None}, {4: None}),  # 36: the pad before a verification trailer stays
        15: _fixed(28, 4),
    },
)

QMMGMT: Final = Interface(
    "qmmgmt",
    "41208ee0-e970-11d1-9b9e-00e02c064c39",
    "1.0",
    ("R_QMMgmtGetInfo", "R_QMMgmtAction"),
    {
        0: Lengths({}, {}, request_min=34, response_min=16),
        1: Lengths({}, {4: None}, request_min=10),
    },
)

QMCOMM: Final = Interface(
    "qmcomm",
    "fdb3a030-065f-11d1-bb9b-00a024ea5525",
    "1.0",
    (
        "Opnum0NotUsedOnWire",
        "R_QMGetRemoteQueueName",
        "R_QMOpenRemoteQueue",
        "R_QMCloseRemoteQueueContext",
        "R_QMCreateRemoteCursor",
        "Opnum5NotUsedOnWire",
        "R_QMCreateObjectInternal",
        "R_QMSetObjectSecurityInternal",
        "R_QMGetObjectSecurityInternal",
        "R_QMDeleteObject",
        "R_QMGetObjectProperties",
        "R_QMSetObjectProperties",
        "R_QMObjectPathToObjectFormat",
        "Opnum13NotUsedOnWire",
        "R_QMGetTmWhereabouts",
        "R_QMEnlistTransaction",
        "R_QMEnlistInternalTransaction",
        "R_QMCommitTransaction",
        "R_QMAbortTransaction",
        "rpc_QMOpenQueueInternal",
        "rpc_ACCloseHandle",
        "Opnum21NotUsedOnWire",
        "rpc_ACCloseCursor",
        "rpc_ACSetCursorProperties",
        "Opnum24NotUsedOnWire",
        "Opnum25NotUsedOnWire",
        "rpc_ACHandleToFormatName",
        "rpc_ACPurgeQueue",
        "R_QMQueryQMRegistryInternal",
        "Opnum29NotUsedOnWire",
        "Opnum30NotUsedOnWire",
        "R_QMGetRTQMServerPort",
        "Opnum32NotUsedOnWire",
        "Opnum33NotUsedOnWire",
        "Opnum34NotUsedOnWire",
    ),
    {
        1: Lengths({12: NDR, 8: NDR, 24: NDR64, 16: NDR64}, {}, response_min=8),
        2: Lengths({}, {36: None}, request_min=44),
        3: _fixed(20, 20),
        4: Lengths({232: NDR, 452: NDR64}, {8: None}),
        19: Lengths({}, {32: NDR, 36: NDR64}, request_min=60, response_min=40),
        20: _fixed(20, 24),
        22: _fixed(24, 4),
        23: _fixed(28, 4),
        27: _fixed(20, 4),
        31: _fixed(4, 4),
    },
)

QMCOMM2: Final = Interface(
    "qmcomm2",
    "76d12b80-3467-11d3-91ff-0090272f9ea3",
    "1.0",
    ("QMSendMessageInternalEx", "rpc_ACSendMessageEx", "rpc_ACReceiveMessageEx", "rpc_ACCreateCursorEx"),
    {
        0: Lengths({}, {}, request_min=240, response_min=8),
        1: Lengths({}, {}, request_min=240, response_min=8),
        2: Lengths({}, {}, request_min=240, response_min=240),
        3: _fixed(32, 16),
    },
)

EPM: Final = Interface(
    "epm",
    "e1af8308-5d1f-11c9-91a4-08002b14a0fa",
    "3.0",
    (
        "ept_insert",
        "ept_delete",
        "ept_lookup",
        "ept_map",
        "ept_lookup_handle_free",
        "ept_inq_object",
        "ept_mgmt_delete",
    ),
    {},
)

MSMQ: Final = (QM2QM, REMOTE_READ, QMMGMT, QMCOMM, QMCOMM2)
BY_UUID: Final = {interface.uuid: interface for interface in (*MSMQ, EPM)}
BY_NAME: Final = {interface.name: interface for interface in (*MSMQ, EPM)}

EPM_PORT: Final = 135
EPT_MAP: Final = 3
BINARY_PROTOCOL_PORT: Final = 1801  # [MS-MQQB] 2.1

# [MS-MQQP] 3.1.4.8, [MS-MQRR] 3.1.4.1: the first of port, port + 11, port + 22 ... that is free. Nobody occupies a
# hundred of them; the bound keeps a twelfth of all ephemeral ports from looking like ours.
_READ_PORTS: Final = frozenset(range(2105, 2105 + 11 * 100, 11))
_HANDSHAKE_PORTS: Final = frozenset(range(2103, 2103 + 11 * 100, 11))
STATIC_PORTS: Final = _READ_PORTS | _HANDSHAKE_PORTS

# Opnums that answer with a port number: the answer's interface listens there.
PORT_ASKING: Final = {(QM2QM.name, 7), (REMOTE_READ.name, 0), (QMCOMM.name, 31)}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call without its bind shows: opnum, stub lengths (None: not seen), and the syntax its bytes suggest."""

    opnum: int | None
    request: int | None
    response: int | None
    syntax: str | None = None


def _fits(length: int | None, exact: Mapping[int, str | None], least: int | None) -> tuple[bool, str | None]:
    if length is None:
        return True, None
    if length in exact:
        return True, exact[length]
    return least is not None and length >= least, None


@lru_cache(1 << 14)
def _best_fits(call: Seen) -> tuple[tuple[int, str | None] | None, ...]:
    """Return ``_best_fit`` for each interface of ``MSMQ``: captures of one network show the same shapes again."""
    return tuple(_best_fit(interface, call) for interface in MSMQ)


def _best_fit(interface: Interface, call: Seen) -> tuple[int, str | None] | None:
    """Return how many of a call's stub lengths an interface has exactly, and the syntax they prove; None: impossible.

    A call of which only the response was seen has no opnum: any method may have given it.
    """
    best = None
    for opnum, lengths in interface.lengths.items():
        if call.opnum is not None and opnum != call.opnum:
            continue
        request, one = _fits(call.request, lengths.request, lengths.request_min)
        response, two = _fits(call.response, lengths.response, lengths.response_min)
        if request and response:
            exact = (call.request in lengths.request) + (call.response in lengths.response)
            if best is None or exact > best[0]:
                best = exact, one or two
    return best


def at_home(port: int) -> frozenset[str]:
    """Return the interfaces that a server's port is known for."""
    names = {QM2QM.name} if port in _READ_PORTS else set()
    if port in _HANDSHAKE_PORTS:
        names |= {REMOTE_READ.name, QMCOMM.name, QMCOMM2.name, QMMGMT.name}
    return frozenset(names)


def infer(calls: Iterable[Seen], port: int, learnt: Iterable[str] = ()) -> tuple[Interface, str | None] | None:
    """Name the interface of calls whose bind was not seen, or None when port and stub lengths do not agree on one.

    ``calls`` are all calls seen with one presentation context of one connection, ``port`` the server's port and
    ``learnt`` the interfaces that a port-asking call or the endpoint mapper placed on it. Where lengths leave several
    interfaces possible, the one at home on the port wins, then the one with the most calls of exact length; a tie is no
    answer. Returns the interface and its transfer syntax when the lengths show it.
    """
    calls = list(calls)
    native = at_home(port).union(learnt)
    if not native:
        return None
    ranked = []
    for number, interface in enumerate(MSMQ):
        fits = [_best_fits(call)[number] for call in calls]
        if fits and None not in fits:
            found = [fit for fit in fits if fit is not None]
            exact = sum(count for count, _ in found)
            syntaxes = {syntax for _, syntax in found} | {call.syntax for call in calls}
            if exact:
                ranked.append(((interface.name in native, exact), interface, syntaxes - {None}))
    ranked.sort(key=lambda entry: entry[0], reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    _, interface, syntaxes = ranked[0]
    return interface, next(iter(syntaxes)) if len(syntaxes) == 1 else None


QM, RR, MG, QC, QC2 = "qm2qm", "RemoteRead", "qmmgmt", "qmcomm", "qmcomm2"
