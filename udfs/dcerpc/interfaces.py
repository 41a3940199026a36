"""The RPC interfaces of MSMQ and the endpoint mapper: UUIDs, methods, ports and stub lengths.

No other module lists them. Sources: [MS-MQQP] 3.1.4, [MS-MQRR] 3.1.4, [MS-MQMR] 3.1.4, [MS-MQMP] 3.1.4 and 3.1.5,
[C706] appendix O for the endpoint mapper. The stub lengths follow from the IDL and from NDR or NDR64. They identify the
interface of calls whose bind was not captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

QM2QM_NAME: Final = "qm2qm"
REMOTE_READ_NAME: Final = "RemoteRead"
QMMGMT_NAME: Final = "qmmgmt"
QMCOMM_NAME: Final = "qmcomm"
QMCOMM2_NAME: Final = "qmcomm2"
EPM_NAME: Final = "epm"
"""Interface names as in the tables."""

NDR_NAME: Final = "NDR"
NDR64_NAME: Final = "NDR64"
FEATURE_NEGOTIATION_NAME: Final = "feature_negotiation"

TRANSFER_SYNTAX_NAMES: Final = {
    "8a885d04-1ceb-11c9-9fe8-08002b104860": NDR_NAME,
    "71710533-beba-4937-8319-b5dbef9ccc36": NDR64_NAME,
}
FEATURE_NEGOTIATION_PREFIX: Final = (
    "6cb71c2c-9812-4540-"  # [MS-RPCE] 3.3.1.5.3: the rest of the UUID holds the requested bits
)


@dataclass(frozen=True, slots=True)
class StubLengths:
    """Possible lengths, in bytes, of the request and response stubs of a method.

    ``request`` and ``response`` map each exact length to the transfer syntax that it proves, or to None if both
    syntaxes have this length. ``request_min`` and ``response_min`` are the shortest stubs of a variable layout; None if
    only the listed lengths exist.
    """

    request: Mapping[int, str | None]
    response: Mapping[int, str | None]
    request_min: int | None = None
    response_min: int | None = None


@dataclass(frozen=True, slots=True)
class RpcInterface:
    """One RPC interface: UUID, version, method names by opnum, and the stub lengths by opnum that are known."""

    name: str
    uuid: str
    version: str
    methods: tuple[str, ...]
    lengths: dict[int, StubLengths]


def _fixed_lengths(request: int, response: int) -> StubLengths:
    return StubLengths({request: None}, {response: None})


_START_2_RESPONSE: Final = {
    88: NDR_NAME,
    92: NDR64_NAME,
    44: None,
}  # 88, 92: without a message; 44: with a NULL descriptor

QM2QM_INTERFACE: Final = RpcInterface(
    QM2QM_NAME,
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
        0: StubLengths({44: NDR_NAME, 48: NDR64_NAME}, {68: NDR_NAME, 76: NDR64_NAME}, response_min=80),
        1: _fixed_lengths(24, 24),
        2: _fixed_lengths(32, 24),
        3: _fixed_lengths(20, 24),
        4: _fixed_lengths(8, 4),
        5: _fixed_lengths(12, 4),
        6: _fixed_lengths(4, 4),
        7: _fixed_lengths(4, 4),
        8: _fixed_lengths(0, 4),
        9: StubLengths({60: NDR_NAME, 64: NDR64_NAME, 16: None}, _START_2_RESPONSE, response_min=100),
        10: StubLengths({68: NDR_NAME, 72: NDR64_NAME, 24: None}, _START_2_RESPONSE, response_min=100),
    },
)

_START = {28: NDR_NAME, 36: NDR64_NAME}

REMOTE_READ_INTERFACE: Final = RpcInterface(
    REMOTE_READ_NAME,
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
        0: _fixed_lengths(0, 4),
        2: StubLengths({}, {20: None}, request_min=44),
        3: _fixed_lengths(20, 24),
        4: _fixed_lengths(20, 8),
        5: _fixed_lengths(24, 4),
        6: _fixed_lengths(20, 4),
        7: StubLengths({56: None}, _START, response_min=40),
        8: _fixed_lengths(24, 4),
        9: _fixed_lengths(28, 4),
        10: _fixed_lengths(56, 4),
        11: StubLengths({}, {28: None}, request_min=44),
        12: StubLengths({}, {4: None}, request_min=29),
        13: StubLengths({72: None}, _START, response_min=40),
        14: StubLengths({34: None, 36: None}, {4: None}),  # 36: with the padding before a verification trailer
        15: _fixed_lengths(28, 4),
    },
)

QMMGMT_INTERFACE: Final = RpcInterface(
    QMMGMT_NAME,
    "41208ee0-e970-11d1-9b9e-00e02c064c39",
    "1.0",
    ("R_QMMgmtGetInfo", "R_QMMgmtAction"),
    {
        0: StubLengths({}, {}, request_min=34, response_min=16),
        1: StubLengths({}, {4: None}, request_min=10),
    },
)

QMCOMM_INTERFACE: Final = RpcInterface(
    QMCOMM_NAME,
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
        1: StubLengths({12: NDR_NAME, 8: NDR_NAME, 24: NDR64_NAME, 16: NDR64_NAME}, {}, response_min=8),
        2: StubLengths({}, {36: None}, request_min=44),
        3: _fixed_lengths(20, 20),
        4: StubLengths({232: NDR_NAME, 452: NDR64_NAME}, {8: None}),
        19: StubLengths({}, {32: NDR_NAME, 36: NDR64_NAME}, request_min=60, response_min=40),
        20: _fixed_lengths(20, 24),
        22: _fixed_lengths(24, 4),
        23: _fixed_lengths(28, 4),
        27: _fixed_lengths(20, 4),
        31: _fixed_lengths(4, 4),
    },
)

QMCOMM2_INTERFACE: Final = RpcInterface(
    QMCOMM2_NAME,
    "76d12b80-3467-11d3-91ff-0090272f9ea3",
    "1.0",
    ("QMSendMessageInternalEx", "rpc_ACSendMessageEx", "rpc_ACReceiveMessageEx", "rpc_ACCreateCursorEx"),
    {
        0: StubLengths({}, {}, request_min=240, response_min=8),
        1: StubLengths({}, {}, request_min=240, response_min=8),
        2: StubLengths({}, {}, request_min=240, response_min=240),
        3: _fixed_lengths(32, 16),
    },
)

EPM_INTERFACE: Final = RpcInterface(
    EPM_NAME,
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

MSMQ_INTERFACES: Final = (QM2QM_INTERFACE, REMOTE_READ_INTERFACE, QMMGMT_INTERFACE, QMCOMM_INTERFACE, QMCOMM2_INTERFACE)
INTERFACES_BY_UUID: Final = {interface.uuid: interface for interface in (*MSMQ_INTERFACES, EPM_INTERFACE)}
INTERFACES_BY_NAME: Final = {interface.name: interface for interface in (*MSMQ_INTERFACES, EPM_INTERFACE)}

EPM_PORT: Final = 135
EPT_MAP_OPNUM: Final = 3
BINARY_PROTOCOL_PORT: Final = 1801  # [MS-MQQB] 2.1

# [MS-MQQP] 3.1.4.8, [MS-MQRR] 3.1.4.1: the server listens on the first free port of port, port + 11, port + 22 ... The
# bound of 100 steps is never reached; without it one in eleven ephemeral ports would count as an MSMQ port.
_PORTS_FROM_2105: Final = frozenset(range(2105, 2105 + 11 * 100, 11))
_PORTS_FROM_2103: Final = frozenset(range(2103, 2103 + 11 * 100, 11))
MSMQ_RPC_PORTS: Final = _PORTS_FROM_2105 | _PORTS_FROM_2103

# (interface, opnum) of methods that return a TCP port on which an MSMQ interface listens.
PORT_QUERY_OPNUMS: Final = {(QM2QM_NAME, 7), (REMOTE_READ_NAME, 0), (QMCOMM_NAME, 31)}


@dataclass(frozen=True, slots=True)
class CallShape:
    """The shape of a call without a bind: opnum, stub lengths in bytes (None: not seen), suggested transfer syntax."""

    opnum: int | None
    request_length: int | None
    response_length: int | None
    transfer_syntax: str | None = None


def _length_fits(length: int | None, exact: Mapping[int, str | None], least: int | None) -> tuple[bool, str | None]:
    if length is None:
        return True, None
    if length in exact:
        return True, exact[length]
    return least is not None and length >= least, None


@lru_cache(1 << 14)
def _best_fits(call: CallShape) -> tuple[tuple[int, str | None] | None, ...]:
    """Return ``_best_fit`` for each interface of ``MSMQ_INTERFACES``. Cached, because the same shapes recur."""
    return tuple(_best_fit(interface, call) for interface in MSMQ_INTERFACES)


def _best_fit(interface: RpcInterface, call: CallShape) -> tuple[int, str | None] | None:
    """Return the number of exactly matching stub lengths and the syntax they prove; None if no opnum matches.

    If only the response was seen, the opnum is unknown and every method is tried.
    """
    best = None
    for opnum, lengths in interface.lengths.items():
        if call.opnum is not None and opnum != call.opnum:
            continue
        request, one = _length_fits(call.request_length, lengths.request, lengths.request_min)
        response, two = _length_fits(call.response_length, lengths.response, lengths.response_min)
        if request and response:
            exact = (call.request_length in lengths.request) + (call.response_length in lengths.response)
            if best is None or exact > best[0]:
                best = exact, one or two
    return best


def interfaces_on_port(port: int) -> frozenset[str]:
    """Return the names of the interfaces that usually listen on a server port."""
    names = {QM2QM_NAME} if port in _PORTS_FROM_2105 else set()
    if port in _PORTS_FROM_2103:
        names |= {REMOTE_READ_NAME, QMCOMM_NAME, QMCOMM2_NAME, QMMGMT_NAME}
    return frozenset(names)


def infer_interface(
    calls: Iterable[CallShape], port: int, learned: Iterable[str] = ()
) -> tuple[RpcInterface, str | None] | None:
    """Infer the interface of calls whose bind was not captured; None if port and stub lengths do not determine one.

    ``calls`` are the shapes of all calls seen in one presentation context of one connection, ``port`` is the server's
    port. ``learned`` are the interfaces that a port query or the endpoint mapper reported for this port. If the
    lengths allow several interfaces, one that usually listens on the port wins, then the one with the most exact
    lengths; a tie gives None. Returns the interface and its transfer syntax, None if the lengths do not prove one.
    """
    calls = list(calls)
    native = interfaces_on_port(port).union(learned)
    if not native:
        return None
    ranked = []
    for number, interface in enumerate(MSMQ_INTERFACES):
        fits = [_best_fits(call)[number] for call in calls]
        if fits and None not in fits:
            found = [fit for fit in fits if fit is not None]
            exact = sum(count for count, _ in found)
            syntaxes = {syntax for _, syntax in found} | {call.transfer_syntax for call in calls}
            if exact:
                ranked.append(((interface.name in native, exact), interface, syntaxes - {None}))
    ranked.sort(key=lambda entry: entry[0], reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    _, interface, syntaxes = ranked[0]
    return interface, next(iter(syntaxes)) if len(syntaxes) == 1 else None
