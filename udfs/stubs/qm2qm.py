"""Declarations of the qm2qm methods, [MS-MQQP] 3.1.4.

[in, out] parameters that a response only echoes are not stored from it, except the descriptor: where the request was
not captured, the response still shows queue, action and request id.
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.idl import HRESULT_RETURN, NOT_STORED, Method, NdrType, Parameter

_READ_RESPONSE_1: Final = (
    Parameter("pphContext", NdrType.CONTEXT, "remote_read_handle"),
    Parameter("pRemoteReadDesc", NdrType.READ_DESC, "desc"),
    HRESULT_RETURN,
)
_READ_RESPONSE_2: Final = (
    Parameter("pphContext", NdrType.CONTEXT, "remote_read_handle"),
    Parameter("pRemoteReadDesc2", NdrType.READ_DESC2, "desc"),
    HRESULT_RETURN,
)

METHODS: Final = (
    Method(
        0,
        "RemoteQMStartReceive",
        "[MS-MQQP] 3.1.4.1",
        request=(Parameter("pRemoteReadDesc", NdrType.READ_DESC, "desc"),),
        response=_READ_RESPONSE_1,
    ),
    Method(
        1,
        "RemoteQMEndReceive",
        "[MS-MQQP] 3.1.4.2",
        request=(
            Parameter("pphContext", NdrType.CONTEXT, "remote_read_handle"),
            Parameter("dwAck", NdrType.U32, "ack"),
        ),
        response=(Parameter("pphContext", NdrType.CONTEXT, NOT_STORED), HRESULT_RETURN),
    ),
    Method(
        2,
        "RemoteQMOpenQueue",
        "[MS-MQQP] 3.1.4.3",
        request=(
            Parameter("pLicGuid", NdrType.GUID, "client_id"),
            Parameter("dwMQS", NdrType.U32, "mqs"),
            Parameter("hQueue", NdrType.U32, "queue_handle"),
            Parameter("pQueue", NdrType.U32, "queue_descriptor"),
            Parameter("dwpContext", NdrType.U32, "open_context"),
        ),
        response=(Parameter("phContext", NdrType.CONTEXT, "context_handle"), HRESULT_RETURN),
    ),
    Method(
        3,
        "RemoteQMCloseQueue",
        "[MS-MQQP] 3.1.4.4",
        request=(Parameter("pphContext", NdrType.CONTEXT, "context_handle"),),
        response=(Parameter("pphContext", NdrType.CONTEXT, NOT_STORED), HRESULT_RETURN),
    ),
    Method(
        4,
        "RemoteQMCloseCursor",
        "[MS-MQQP] 3.1.4.5",
        request=(Parameter("hQueue", NdrType.U32, "queue_handle"), Parameter("hCursor", NdrType.U32, "cursor_handle")),
        response=(HRESULT_RETURN,),
    ),
    Method(
        5,
        "RemoteQMCancelReceive",
        "[MS-MQQP] 3.1.4.6",
        request=(
            Parameter("hQueue", NdrType.U32, "queue_handle"),
            Parameter("pQueue", NdrType.U32, "queue_descriptor"),
            Parameter("dwRequestID", NdrType.U32, "request_id"),
        ),
        response=(HRESULT_RETURN,),
    ),
    Method(
        6,
        "RemoteQMPurgeQueue",
        "[MS-MQQP] 3.1.4.7",
        request=(Parameter("hQueue", NdrType.U32, "queue_handle"),),
        response=(HRESULT_RETURN,),
    ),
    Method(
        7,
        "RemoteQMGetQMQMServerPort",
        "[MS-MQQP] 3.1.4.8",
        request=(Parameter("dwPortType", NdrType.U32, "port_type"),),
        response=(Parameter("return", NdrType.U32, "returned_port"),),
    ),
    Method(
        8,
        "RemoteQmGetVersion",
        "[MS-MQQP] 3.1.4.9",
        response=(
            Parameter("pMajor", NdrType.U8, "version_major"),
            Parameter("pMinor", NdrType.U8, "version_minor"),
            Parameter("pBuildNumber", NdrType.U16, "build_number"),
        ),
    ),
    Method(
        9,
        "RemoteQMStartReceive2",
        "[MS-MQQP] 3.1.4.10",
        request=(Parameter("pRemoteReadDesc2", NdrType.READ_DESC2, "desc"),),
        response=_READ_RESPONSE_2,
    ),
    Method(
        10,
        "RemoteQMStartReceiveByLookupId",
        "[MS-MQQP] 3.1.4.11",
        request=(
            Parameter("LookupId", NdrType.U64, "lookup_id"),
            Parameter("pRemoteReadDesc2", NdrType.READ_DESC2, "desc"),
        ),
        response=_READ_RESPONSE_2,
    ),
)
