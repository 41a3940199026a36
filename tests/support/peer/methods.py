"""The methods of the MSMQ interfaces and their stubs (fact sheet sections 2 and 3.2 to 3.5, 1.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from peer import idl
from peer.ndr import (
    CTX,
    GUID,
    TEXT,
    U8,
    U16,
    U32,
    U64,
    UOW,
    Boxed,
    Codec,
    Counted,
    CountedOctets,
    Pointer,
    Ranged,
    StubError,
    StubReader,
    StubWriter,
    value_setter,
)
from peer.pdu import Syntax

QM2QM = Syntax(UUID("1088a980-eae5-11d0-8d9b-00a02453c337"))
REMOTEREAD = Syntax(UUID("1a9134dd-7b39-45ba-ad88-44d01ca47f28"))
QMMGMT = Syntax(UUID("41208ee0-e970-11d1-9b9e-00e02c064c39"))
QMCOMM = Syntax(UUID("fdb3a030-065f-11d1-bb9b-00a024ea5525"))
QMCOMM2 = Syntax(UUID("76d12b80-3467-11d3-91ff-0090272f9ea3"))
EPM = Syntax(UUID("e1af8308-5d1f-11c9-91a4-08002b14a0fa"), 3)
RPC_MGMT = Syntax(UUID("afa8bd80-7d8a-11c9-bef4-08002b102989"))  # [C706] appendix Q: every RPC server has it

NAMES = {
    QM2QM.uuid: "qm2qm",
    REMOTEREAD.uuid: "RemoteRead",
    QMMGMT.uuid: "qmmgmt",
    QMCOMM.uuid: "qmcomm",
    QMCOMM2.uuid: "qmcomm2",
    EPM.uuid: "epm",
    RPC_MGMT.uuid: "mgmt",
}

Fields = tuple[tuple[str, Codec], ...]


@dataclass(frozen=True)
class Method:
    """One method: its parameters in the order of the IDL, and whether a DWORD or HRESULT follows (N18)."""

    interface: Syntax
    opnum: int
    name: str
    ins: Fields = ()
    outs: Fields = ()
    returns: bool = True

    def request(self, args: dict[str, Any], *, ndr64: bool, order: str = "<") -> bytes:
        """The request stub."""
        w = StubWriter(ndr64=ndr64, order=order)
        for name, codec in self.ins:
            w.construct(codec, args[name])
        return bytes(w.data)

    def parse_request(self, stub: bytes, *, ndr64: bool, order: str = "<") -> dict[str, Any]:
        """The parameters of a request stub, whole: octets left over are an error (P05)."""
        return self._parse(self.ins, stub, ndr64=ndr64, order=order)

    def response(self, values: dict[str, Any], *, ndr64: bool, order: str = "<") -> bytes:
        """The response stub; `return` is the return value."""
        w = StubWriter(ndr64=ndr64, order=order)
        for name, codec in self.outs:
            w.construct(codec, values[name])
        if self.returns:
            w.integer(values["return"], 4)
        return bytes(w.data)

    def parse_response(self, stub: bytes, *, ndr64: bool, order: str = "<") -> dict[str, Any]:
        """The out parameters of a response stub and its `return`."""
        fields = (*self.outs, ("return", U32)) if self.returns else self.outs
        return self._parse(fields, stub, ndr64=ndr64, order=order)

    @staticmethod
    def _parse(fields: Fields, stub: bytes, *, ndr64: bool, order: str) -> dict[str, Any]:
        r = StubReader(stub, ndr64=ndr64, order=order)
        values: dict[str, Any] = {}
        for name, codec in fields:
            r.construct(codec, value_setter(values, name))
        if len(stub) - r.at > 3:  # up to 3 octets of padding in front of a verification trailer
            raise StubError(f"{len(stub) - r.at} octets left over")
        return values


ACK = Ranged(1, 2)
_DESC = ("lpRemoteReadDesc", idl.REMOTEREADDESC)
_DESC2 = ("lpRemoteReadDesc2", idl.REMOTEREADDESC2)
_OPEN = (
    ("pQueueFormat", idl.QUEUE_FORMAT),
    ("dwAccess", U32),
    ("dwShareMode", U32),
    ("pClientId", GUID),
    ("fNonRoutingServer", U32),
    ("Major", U8),
    ("Minor", U8),
    ("BuildNumber", U16),
    ("fWorkgroup", U32),
)
_RECEIVE = (
    ("phContext", CTX),
    ("LookupId", U64),
    ("hCursor", U32),
    ("ulAction", U32),
    ("ulTimeout", U32),
    ("dwRequestId", U32),
    ("dwMaxBodySize", U32),
    ("dwMaxCompoundMessageSize", U32),
)
_SECTIONS = (
    ("pdwArriveTime", U32),
    ("pSequenceId", U64),
    ("pdwNumberOfSections", U32),
    ("ppPacketSections", Pointer(Counted(idl.SECTION_BUFFER))),
)
_END = (("phContext", CTX), ("dwAck", ACK), ("dwRequestId", U32))
_CTX = (("phContext", CTX),)
_NAME = ("lplpRemoteQueueName", Pointer(Boxed(Pointer(TEXT))))


class TowerPointee(Codec):
    """twr_t: a conformant structure, its max_count hoisted in front of tower_length (1.9)."""

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: bytes) -> None:
        w.count(len(value))
        w.integer(len(value), 4)
        w.data += value

    def read(self, r: StubReader, put: Any) -> None:
        size = r.count()
        if r.integer(4) != size:
            raise StubError("tower with two lengths")
        put(r.take(size))


class TowerArray(Codec):
    """The varying array of tower pointers that ept_map returns."""

    def alignment(self, ndr64: bool) -> int:
        return 8 if ndr64 else 4

    def write(self, w: StubWriter, value: tuple[int, list[bytes]]) -> None:
        limit, towers = value
        for number in (limit, 0, len(towers)):
            w.count(number)
        for tower in towers:
            Pointer(TowerPointee()).write(w, tower)

    def read(self, r: StubReader, put: Any) -> None:
        limit, _, actual = r.count(), r.count(), r.count()
        towers: list[Any] = [None] * min(actual, len(r.data))
        put((limit, towers))
        for index in range(len(towers)):
            Pointer(TowerPointee()).read(r, value_setter(towers, index))


def _m(interface: Syntax, *rows: tuple[int, str, Fields, Fields, bool]) -> list[Method]:
    return [Method(interface, *row) for row in rows]


_ALL = [
    *_m(
        QM2QM,
        (0, "RemoteQMStartReceive", (_DESC,), (("pphContext", CTX), _DESC), True),
        (1, "RemoteQMEndReceive", (("pphContext", CTX), ("dwAck", ACK)), (("pphContext", CTX),), True),
        (2, "RemoteQMOpenQueue", (("pLicGuid", GUID), ("dwMQS", Ranged(0, 16)), ("hQueue", U32), ("pQueue", U32),
                                  ("dwpContext", U32)), (("phContext", CTX),), True),
        (3, "RemoteQMCloseQueue", (("pphContext", CTX),), (("pphContext", CTX),), True),
        (4, "RemoteQMCloseCursor", (("hQueue", U32), ("hCursor", U32)), (), True),
        (5, "RemoteQMCancelReceive", (("hQueue", U32), ("pQueue", U32), ("dwRequestID", U32)), (), True),
        (6, "RemoteQMPurgeQueue", (("hQueue", U32),), (), True),
        (7, "RemoteQMGetQMQMServerPort", (("dwPortType", Ranged(0, 3)),), (), True),
        (8, "RemoteQmGetVersion", (), (("pMajor", U8), ("pMinor", U8), ("pBuildNumber", U16)), False),
        (9, "RemoteQMStartReceive2", (_DESC2,), (("pphContext", CTX), _DESC2), True),
        (10, "RemoteQMStartReceiveByLookupId", (("LookupId", U64), _DESC2), (("pphContext", CTX), _DESC2), True),
    ),
    *_m(
        REMOTEREAD,
        (0, "R_GetServerPort", (), (), True),
        (2, "R_OpenQueue", _OPEN, (("pphContext", CTX),), False),
        (3, "R_CloseQueue", _CTX, _CTX, True),
        (4, "R_CreateCursor", _CTX, (("phCursor", U32),), True),
        (5, "R_CloseCursor", (*_CTX, ("hCursor", U32)), (), True),
        (6, "R_PurgeQueue", _CTX, (), True),
        (7, "R_StartReceive", _RECEIVE, _SECTIONS, True),
        (8, "R_CancelReceive", (*_CTX, ("dwRequestId", U32)), (), True),
        (9, "R_EndReceive", _END, (), True),
        (10, "R_MoveMessage", (("phContextFrom", CTX), ("ullContextTo", U64), ("LookupId", U64),
                               ("pTransactionId", UOW)), (), True),
        (11, "R_OpenQueueForMove", _OPEN, (("pMoveContext", U64), ("pphContext", CTX)), False),
        (12, "R_QMEnlistRemoteTransaction", (("pTransactionId", UOW), ("cbPropagationToken", Ranged(0, 131072)),
                                             ("pbPropagationToken", CountedOctets()),
                                             ("pQueueFormat", idl.QUEUE_FORMAT)), (), True),
        (13, "R_StartTransactionalReceive", (*_RECEIVE, ("pTransactionId", UOW)), _SECTIONS, True),
        (14, "R_SetUserAcknowledgementClass", (*_CTX, ("LookupId", U64), ("usClass", U16)), (), True),
        (15, "R_EndTransactionalReceive", _END, (), True),
    ),
    *_m(
        QMMGMT,
        (0, "R_QMMgmtGetInfo", (("pObjectFormat", idl.MGMT_OBJECT), ("cp", Ranged(1, 128)), ("aProp", Counted(U32)),
                                ("apVar", Counted(idl.VARIANT))), (("apVar", Counted(idl.VARIANT)),), True),
        (1, "R_QMMgmtAction", (("pObjectFormat", idl.MGMT_OBJECT), ("lpwszAction", TEXT)), (), True),
    ),
    *_m(
        QMCOMM,
        (1, "R_QMGetRemoteQueueName", (("pQueue", U32), _NAME), (_NAME,), True),
        (2, "R_QMOpenRemoteQueue", (("pQueueFormat", Pointer(idl.QUEUE_FORMAT)), ("dwCallingProcessID", U32),
                                    ("dwDesiredAccess", U32), ("dwShareMode", U32), ("pLicGuid", GUID),
                                    ("dwMQS", U32)),
         (("pphContext", CTX), ("pdwContext", U32), ("dwpQueue", U32), ("phQueue", U32)), True),
        (3, "R_QMCloseRemoteQueueContext", (("pphContext", CTX),), (("pphContext", CTX),), False),
        (4, "R_QMCreateRemoteCursor", (("ptb1", idl.ZERO_BUFFER), ("hQueue", U32)), (("phCursor", U32),), True),
        (19, "rpc_QMOpenQueueInternal", (("pQueueFormat", idl.QUEUE_FORMAT), ("dwDesiredAccess", U32),
                                         ("dwShareMode", U32), ("hRemoteQueue", U32), _NAME, ("dwpQueue", U32),
                                         ("pLicGuid", GUID), ("lpClientName", TEXT), ("dwRemoteProtocol", U32),
                                         ("dwpRemoteContext", U32)),
         (_NAME, ("pdwQMContext", U32), ("phQueue", CTX)), True),
        (20, "rpc_ACCloseHandle", (("phQueue", CTX),), (("phQueue", CTX),), True),
        (31, "R_QMGetRTQMServerPort", (("fIP", U32),), (), True),
    ),
    *_m(
        EPM,
        (3, "ept_map", (("obj", Pointer(UOW)), ("map_tower", Pointer(TowerPointee())), ("entry_handle", CTX),
                        ("max_towers", U32)),
         (("entry_handle", CTX), ("num_towers", U32), ("towers", TowerArray())), True),
    ),
    *_m(RPC_MGMT, (2, "rpc__mgmt_is_server_listening", (), (("status", U32),), True)),
]  # fmt: skip

METHODS = {(method.interface, method.opnum): method for method in _ALL}
BY_NAME = {method.name: method for method in _ALL}
