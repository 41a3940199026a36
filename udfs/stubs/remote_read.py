"""RemoteRead: the methods of [MS-MQRR] 3.1.4. Tables only; opnum 1 is never sent."""

from __future__ import annotations

from typing import Final

from udfs.stubs.method import HRESULT, UNUSED, Kind, Method, Param

_CONTEXT: Final = Param("phContext", Kind.CONTEXT, "context_handle")
_OPEN_REQUEST: Final = (
    Param("pQueueFormat", Kind.QUEUE_FORMAT, "queue"),
    Param("dwAccess", Kind.U32, "access"),
    Param("dwShareMode", Kind.U32, "share_mode"),
    Param("pClientId", Kind.GUID, "client_id"),
    Param("fNonRoutingServer", Kind.BOOL, "non_routing_server"),
    Param("Major", Kind.U8, "version_major"),
    Param("Minor", Kind.U8, "version_minor"),
    Param("BuildNumber", Kind.U16, "build_number"),
    Param("fWorkgroup", Kind.BOOL, "workgroup"),
)
_START_REQUEST: Final = (
    _CONTEXT,
    Param("LookupId", Kind.U64, "lookup_id"),
    Param("hCursor", Kind.U32, "cursor_handle"),
    Param("ulAction", Kind.U32, "action"),
    Param("ulTimeout", Kind.U32, "timeout_ms"),
    Param("dwRequestId", Kind.U32, "request_id"),
    Param("dwMaxBodySize", Kind.U32, "max_body_bytes"),
    Param("dwMaxCompoundMessageSize", Kind.U32, "max_compound_message_bytes"),
)
_START_RESPONSE: Final = (
    Param("pdwArriveTime", Kind.U32, "arrive_time"),
    Param("pSequenceId", Kind.U64, "sequence_id"),
    Param("pdwNumberOfSections", Kind.U32),
    Param("ppPacketSections", Kind.SECTIONS, "sections", size_is="pdwNumberOfSections"),
    HRESULT,
)
_END_REQUEST: Final = (
    _CONTEXT,
    Param("dwAck", Kind.U32, "ack"),
    Param("dwRequestId", Kind.U32, "request_id"),
)
_TRANSACTION: Final = Param("pTransactionId", Kind.UOW, "transaction_id")

METHODS: Final = (
    Method(0, "R_GetServerPort", "[MS-MQRR] 3.1.4.1", response=(Param("return", Kind.U32, "returned_port"),)),
    Method(2, "R_OpenQueue", "[MS-MQRR] 3.1.4.2", request=_OPEN_REQUEST, response=(_CONTEXT,)),
    Method(
        3,
        "R_CloseQueue",
        "[MS-MQRR] 3.1.4.3",
        request=(_CONTEXT,),
        response=(Param("pphContext", Kind.CONTEXT, UNUSED), HRESULT),
    ),
    Method(
        4,
        "R_CreateCursor",
        "[MS-MQRR] 3.1.4.4",
        request=(_CONTEXT,),
        response=(Param("phCursor", Kind.U32, "cursor_handle"), HRESULT),
    ),
    Method(
        5,
        "R_CloseCursor",
        "[MS-MQRR] 3.1.4.5",
        request=(_CONTEXT, Param("hCursor", Kind.U32, "cursor_handle")),
        response=(HRESULT,),
    ),
    Method(6, "R_PurgeQueue", "[MS-MQRR] 3.1.4.6", request=(_CONTEXT,), response=(HRESULT,)),
    Method(7, "R_StartReceive", "[MS-MQRR] 3.1.4.7", request=_START_REQUEST, response=_START_RESPONSE),
    Method(
        8,
        "R_CancelReceive",
        "[MS-MQRR] 3.1.4.8",
        request=(_CONTEXT, Param("dwRequestId", Kind.U32, "request_id")),
        response=(HRESULT,),
    ),
    Method(9, "R_EndReceive", "[MS-MQRR] 3.1.4.9", request=_END_REQUEST, response=(HRESULT,)),
    Method(
        10,
        "R_MoveMessage",
        "[MS-MQRR] 3.1.4.10",
        request=(
            Param("phContextFrom", Kind.CONTEXT, "context_handle"),
            Param("ullContextTo", Kind.U64, "move_context"),
            Param("LookupId", Kind.U64, "lookup_id"),
            _TRANSACTION,
        ),
        response=(HRESULT,),
    ),
    Method(
        11,
        "R_OpenQueueForMove",
        "[MS-MQRR] 3.1.4.11",
        request=_OPEN_REQUEST,
        response=(Param("pMoveContext", Kind.U64, "move_context"), _CONTEXT),
    ),
    Method(
        12,
        "R_QMEnlistRemoteTransaction",
        "[MS-MQRR] 3.1.4.12",
        request=(
            _TRANSACTION,
            Param("cbPropagationToken", Kind.U32, "propagation_token_bytes"),
            Param("pbPropagationToken", Kind.OCTETS, size_is="cbPropagationToken"),
            Param("pQueueFormat", Kind.QUEUE_FORMAT),
        ),
        response=(HRESULT,),
    ),
    Method(
        13,
        "R_StartTransactionalReceive",
        "[MS-MQRR] 3.1.4.13",
        request=(*_START_REQUEST, _TRANSACTION),
        response=_START_RESPONSE,
    ),
    Method(
        14,
        "R_SetUserAcknowledgementClass",
        "[MS-MQRR] 3.1.4.14",
        request=(
            _CONTEXT,
            Param("LookupId", Kind.U64, "lookup_id"),
            Param("usClass", Kind.U16, "acknowledgement_class"),
        ),
        response=(HRESULT,),
    ),
    Method(15, "R_EndTransactionalReceive", "[MS-MQRR] 3.1.4.15", request=_END_REQUEST, response=(HRESULT,)),
)
