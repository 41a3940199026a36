"""qmcomm: the methods of [MS-MQMP] 3.1.4. Tables only.

Those that open, name, purge or close queues and cursors are declared whole. Of the others only the HRESULT is read,
which is the last thing in every response (rule N18); what stands before it is not looked into.
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.method import HRESULT, UNUSED, Kind, Method, Param

_NAME: Final = Param("lplpRemoteQueueName", Kind.NAME, "remote_queue_name")
_HANDLE: Final = Param("hQueue", Kind.CONTEXT, "context_handle")
_CURSOR: Final = Param("hCursor", Kind.U32, "cursor_handle")
_IN: Final = (Param("in", Kind.REST),)
_OUT: Final = (Param("out", Kind.REST), HRESULT)


def _only_hresult(opnum: int, name: str, section: str) -> Method:
    return Method(opnum, name, section, request=_IN, response=_OUT)


METHODS: Final = (
    Method(
        1,
        "R_QMGetRemoteQueueName",
        "[MS-MQMP] 3.1.4.1",
        request=(Param("pQueue", Kind.U32, "queue_descriptor"), _NAME),
        response=(_NAME, HRESULT),
    ),
    Method(
        2,
        "R_QMOpenRemoteQueue",
        "[MS-MQMP] 3.1.4.2",
        request=(
            Param("pQueueFormat", Kind.QUEUE_FORMAT_POINTER, "queue"),
            Param("dwCallingProcessID", Kind.U32),
            Param("dwDesiredAccess", Kind.U32, "access"),
            Param("dwShareMode", Kind.U32, "share_mode"),
            Param("pLicGuid", Kind.GUID, "client_id"),
            Param("dwMQS", Kind.U32, "mqs"),
        ),
        response=(
            Param("pphContext", Kind.CONTEXT, "context_handle"),
            Param("pdwContext", Kind.U32, "open_context"),
            Param("dwpQueue", Kind.U32, "queue_descriptor"),
            Param("phQueue", Kind.U32, "queue_handle"),
            HRESULT,
        ),
    ),
    Method(
        3,
        "R_QMCloseRemoteQueueContext",
        "[MS-MQMP] 3.1.4.3",
        request=(Param("pphContext", Kind.CONTEXT, "context_handle"),),
        response=(Param("pphContext", Kind.CONTEXT, UNUSED),),
    ),
    Method(
        4,
        "R_QMCreateRemoteCursor",
        "[MS-MQMP] 3.1.4.4",
        # ptb1 is all zero on the wire where the document says NULL (doubt D6); another is read over.
        request=(Param("ptb1", Kind.TRANSFER_1, UNUSED), Param("hQueue", Kind.U32, "queue_handle")),
        response=(Param("phCursor", Kind.U32, "cursor_handle"), HRESULT),
    ),
    _only_hresult(6, "R_QMCreateObjectInternal", "[MS-MQMP] 3.1.4.5"),
    _only_hresult(7, "R_QMSetObjectSecurityInternal", "[MS-MQMP] 3.1.4.6"),
    _only_hresult(8, "R_QMGetObjectSecurityInternal", "[MS-MQMP] 3.1.4.7"),
    _only_hresult(9, "R_QMDeleteObject", "[MS-MQMP] 3.1.4.8"),
    _only_hresult(10, "R_QMGetObjectProperties", "[MS-MQMP] 3.1.4.9"),
    _only_hresult(11, "R_QMSetObjectProperties", "[MS-MQMP] 3.1.4.10"),
    _only_hresult(12, "R_QMObjectPathToObjectFormat", "[MS-MQMP] 3.1.4.11"),
    _only_hresult(14, "R_QMGetTmWhereabouts", "[MS-MQMP] 3.1.4.12"),
    _only_hresult(15, "R_QMEnlistTransaction", "[MS-MQMP] 3.1.4.13"),
    _only_hresult(16, "R_QMEnlistInternalTransaction", "[MS-MQMP] 3.1.4.14"),
    _only_hresult(17, "R_QMCommitTransaction", "[MS-MQMP] 3.1.4.15"),
    _only_hresult(18, "R_QMAbortTransaction", "[MS-MQMP] 3.1.4.16"),
    Method(
        19,
        "rpc_QMOpenQueueInternal",
        "[MS-MQMP] 3.1.4.17",
        request=(
            Param("pQueueFormat", Kind.QUEUE_FORMAT, "queue"),
            Param("dwDesiredAccess", Kind.U32, "access"),
            Param("dwShareMode", Kind.U32, "share_mode"),
            # These two and dwpRemoteContext are phQueue, dwpQueue and pdwContext of one R_QMOpenRemoteQueue (C07).
            Param("hRemoteQueue", Kind.U32, "queue_handle"),
            _NAME,
            Param("dwpQueue", Kind.U32, "queue_descriptor"),
            Param("pLicGuid", Kind.GUID, "client_id"),
            Param("lpClientName", Kind.STRING, "client_name"),
            Param("dwRemoteProtocol", Kind.U32),
            Param("dwpRemoteContext", Kind.U32, "open_context"),
        ),
        response=(
            _NAME,
            Param("pdwQMContext", Kind.U32, "queue_manager_context"),
            Param("phQueue", Kind.CONTEXT, "context_handle"),
            HRESULT,
        ),
    ),
    Method(
        20,
        "rpc_ACCloseHandle",
        "[MS-MQMP] 3.1.4.18",
        request=(Param("phQueue", Kind.CONTEXT, "context_handle"),),
        response=(Param("phQueue", Kind.CONTEXT, UNUSED), HRESULT),
    ),
    Method(22, "rpc_ACCloseCursor", "[MS-MQMP] 3.1.4.19", request=(_HANDLE, _CURSOR), response=(HRESULT,)),
    Method(
        23,
        "rpc_ACSetCursorProperties",
        "[MS-MQMP] 3.1.4.20",
        request=(
            Param("hProxy", Kind.CONTEXT, "context_handle"),
            _CURSOR,
            Param("hRemoteCursor", Kind.U32, "remote_cursor_handle"),
        ),
        response=(HRESULT,),
    ),
    _only_hresult(26, "rpc_ACHandleToFormatName", "[MS-MQMP] 3.1.4.21"),
    Method(27, "rpc_ACPurgeQueue", "[MS-MQMP] 3.1.4.22", request=(_HANDLE,), response=(HRESULT,)),
    _only_hresult(28, "R_QMQueryQMRegistryInternal", "[MS-MQMP] 3.1.4.23"),
    Method(
        31,
        "R_QMGetRTQMServerPort",
        "[MS-MQMP] 3.1.4.24",
        request=(Param("fIP", Kind.U32, "port_type"),),
        response=(Param("return", Kind.U32, "returned_port"),),
    ),
)
