"""Declarations of the qmcomm methods, [MS-MQMP] 3.1.4.

Methods that open, name, purge or close queues and cursors are declared completely. Of the others only the HRESULT is
decoded, the last value of each response (rule N18).
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.idl import HRESULT_RETURN, NOT_STORED, Method, NdrType, Parameter

_NAME: Final = Parameter("lplpRemoteQueueName", NdrType.NAME, "remote_queue_name")
_HANDLE: Final = Parameter("hQueue", NdrType.CONTEXT, "context_handle")
_CURSOR: Final = Parameter("hCursor", NdrType.U32, "cursor_handle")
_IN: Final = (Parameter("in", NdrType.REST),)
_OUT: Final = (Parameter("out", NdrType.REST), HRESULT_RETURN)


def _only_hresult(opnum: int, name: str, section: str) -> Method:
    return Method(opnum, name, section, request=_IN, response=_OUT)


METHODS: Final = (
    Method(
        1,
        "R_QMGetRemoteQueueName",
        "[MS-MQMP] 3.1.4.1",
        request=(Parameter("pQueue", NdrType.U32, "queue_descriptor"), _NAME),
        response=(_NAME, HRESULT_RETURN),
    ),
    Method(
        2,
        "R_QMOpenRemoteQueue",
        "[MS-MQMP] 3.1.4.2",
        request=(
            Parameter("pQueueFormat", NdrType.QUEUE_FORMAT_POINTER, "queue"),
            Parameter("dwCallingProcessID", NdrType.U32),
            Parameter("dwDesiredAccess", NdrType.U32, "access"),
            Parameter("dwShareMode", NdrType.U32, "share_mode"),
            Parameter("pLicGuid", NdrType.GUID, "client_id"),
            Parameter("dwMQS", NdrType.U32, "mqs"),
        ),
        response=(
            Parameter("pphContext", NdrType.CONTEXT, "context_handle"),
            Parameter("pdwContext", NdrType.U32, "open_context"),
            Parameter("dwpQueue", NdrType.U32, "queue_descriptor"),
            Parameter("phQueue", NdrType.U32, "queue_handle"),
            HRESULT_RETURN,
        ),
    ),
    Method(
        3,
        "R_QMCloseRemoteQueueContext",
        "[MS-MQMP] 3.1.4.3",
        request=(Parameter("pphContext", NdrType.CONTEXT, "context_handle"),),
        response=(Parameter("pphContext", NdrType.CONTEXT, NOT_STORED),),
    ),
    Method(
        4,
        "R_QMCreateRemoteCursor",
        "[MS-MQMP] 3.1.4.4",
        # ptb1 is all zero on the wire where the document says NULL (doubt D6); it is skipped.
        request=(Parameter("ptb1", NdrType.TRANSFER_1, NOT_STORED), Parameter("hQueue", NdrType.U32, "queue_handle")),
        response=(Parameter("phCursor", NdrType.U32, "cursor_handle"), HRESULT_RETURN),
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
            Parameter("pQueueFormat", NdrType.QUEUE_FORMAT, "queue"),
            Parameter("dwDesiredAccess", NdrType.U32, "access"),
            Parameter("dwShareMode", NdrType.U32, "share_mode"),
            # These two and dwpRemoteContext are phQueue, dwpQueue and pdwContext of one R_QMOpenRemoteQueue (C07).
            Parameter("hRemoteQueue", NdrType.U32, "queue_handle"),
            _NAME,
            Parameter("dwpQueue", NdrType.U32, "queue_descriptor"),
            Parameter("pLicGuid", NdrType.GUID, "client_id"),
            Parameter("lpClientName", NdrType.STRING, "client_name"),
            Parameter("dwRemoteProtocol", NdrType.U32),
            Parameter("dwpRemoteContext", NdrType.U32, "open_context"),
        ),
        response=(
            _NAME,
            Parameter("pdwQMContext", NdrType.U32, "queue_manager_context"),
            Parameter("phQueue", NdrType.CONTEXT, "context_handle"),
            HRESULT_RETURN,
        ),
    ),
    Method(
        20,
        "rpc_ACCloseHandle",
        "[MS-MQMP] 3.1.4.18",
        request=(Parameter("phQueue", NdrType.CONTEXT, "context_handle"),),
        response=(Parameter("phQueue", NdrType.CONTEXT, NOT_STORED), HRESULT_RETURN),
    ),
    Method(22, "rpc_ACCloseCursor", "[MS-MQMP] 3.1.4.19", request=(_HANDLE, _CURSOR), response=(HRESULT_RETURN,)),
    Method(
        23,
        "rpc_ACSetCursorProperties",
        "[MS-MQMP] 3.1.4.20",
        request=(
            Parameter("hProxy", NdrType.CONTEXT, "context_handle"),
            _CURSOR,
            Parameter("hRemoteCursor", NdrType.U32, "remote_cursor_handle"),
        ),
        response=(HRESULT_RETURN,),
    ),
    _only_hresult(26, "rpc_ACHandleToFormatName", "[MS-MQMP] 3.1.4.21"),
    Method(27, "rpc_ACPurgeQueue", "[MS-MQMP] 3.1.4.22", request=(_HANDLE,), response=(HRESULT_RETURN,)),
    _only_hresult(28, "R_QMQueryQMRegistryInternal", "[MS-MQMP] 3.1.4.23"),
    Method(
        31,
        "R_QMGetRTQMServerPort",
        "[MS-MQMP] 3.1.4.24",
        request=(Parameter("fIP", NdrType.U32, "port_type"),),
        response=(Parameter("return", NdrType.U32, "returned_port"),),
    ),
)
