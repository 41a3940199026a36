"""qm2qm: the methods of [MS-MQQP] 3.1.4. Tables only.

[in, out] parameters that a response merely echoes are read over there (column None), but for the descriptor: where a
request was not seen, its echo in the response still tells queue, action and request.
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.method import HRESULT, UNUSED, Kind, Method, Param

_READ_RESPONSE_1: Final = (
    Param("pphContext", Kind.CONTEXT, "remote_read_handle"),
    Param("pRemoteReadDesc", Kind.READ_DESC, "desc"),
    HRESULT,
)
_READ_RESPONSE_2: Final = (
    Param("pphContext", Kind.CONTEXT, "remote_read_handle"),
    Param("pRemoteReadDesc2", Kind.READ_DESC2, "desc"),
    HRESULT,
)

METHODS: Final = (
    Method(
        0,
        "RemoteQMStartReceive",
        "[MS-MQQP] 3.1.4.1",
        request=(Param("pRemoteReadDesc", Kind.READ_DESC, "desc"),),
        response=_READ_RESPONSE_1,
    ),
    Method(
        1,
        "RemoteQMEndReceive",
        "[MS-MQQP] 3.1.4.2",
        request=(Param("pphContext", Kind.CONTEXT, "remote_read_handle"), Param("dwAck", Kind.U32, "ack")),
        response=(Param("pphContext", Kind.CONTEXT, UNUSED), HRESULT),
    ),
    Method(
        2,
        "RemoteQMOpenQueue",
        "[MS-MQQP] 3.1.4.3",
        request=(
            Param("pLicGuid", Kind.GUID, "client_id"),
            Param("dwMQS", Kind.U32, "mqs"),
            Param("hQueue", Kind.U32, "queue_handle"),
            Param("pQueue", Kind.U32, "queue_descriptor"),
            Param("dwpContext", Kind.U32, "open_context"),
        ),
        response=(Param("phContext", Kind.CONTEXT, "context_handle"), HRESULT),
    ),
    Method(
        3,
        "RemoteQMCloseQueue",
        "[MS-MQQP] 3.1.4.4",
        request=(Param("pphContext", Kind.CONTEXT, "context_handle"),),
        response=(Param("pphContext", Kind.CONTEXT, UNUSED), HRESULT),
    ),
    Method(
        4,
        "RemoteQMCloseCursor",
        "[MS-MQQP] 3.1.4.5",
        request=(Param("hQueue", Kind.U32, "queue_handle"), Param("hCursor", Kind.U32, "cursor_handle")),
        response=(HRESULT,),
    ),
    Method(
        5,
        "RemoteQMCancelReceive",
        "[MS-MQQP] 3.1.4.6",
        request=(
            Param("hQueue", Kind.U32, "queue_handle"),
            Param("pQueue", Kind.U32, "queue_descriptor"),
            Param("dwRequestID", Kind.U32, "request_id"),
        ),
        response=(HRESULT,),
    ),
    Method(
        6,
        "RemoteQMPurgeQueue",
        "[MS-MQQP] 3.1.4.7",
        request=(Param("hQueue", Kind.U32, "queue_handle"),),
        response=(HRESULT,),
    ),
    Method(
        7,
        "RemoteQMGetQMQMServerPort",
        "[MS-MQQP] 3.1.4.8",
        request=(Param("dwPortType", Kind.U32, "port_type"),),
        response=(Param("return", Kind.U32, "returned_port"),),
    ),
    Method(
        8,
        "RemoteQmGetVersion",
        "[MS-MQQP] 3.1.4.9",
        response=(
            Param("pMajor", Kind.U8, "version_major"),
            Param("pMinor", Kind.U8, "version_minor"),
            Param("pBuildNumber", Kind.U16, "build_number"),
        ),
    ),
    Method(
        9,
        "RemoteQMStartReceive2",
        "[MS-MQQP] 3.1.4.10",
        request=(Param("pRemoteReadDesc2", Kind.READ_DESC2, "desc"),),
        response=_READ_RESPONSE_2,
    ),
    Method(
        10,
        "RemoteQMStartReceiveByLookupId",
        "[MS-MQQP] 3.1.4.11",
        request=(
            Param("LookupId", Kind.U64, "lookup_id"),
            Param("pRemoteReadDesc2", Kind.READ_DESC2, "desc"),
        ),
        response=_READ_RESPONSE_2,
    ),
)
