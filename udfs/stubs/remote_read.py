"""Declarations of the RemoteRead methods, [MS-MQRR] 3.1.4; opnum 1 is not used on the wire."""

from __future__ import annotations

from typing import Final

from udfs.stubs.idl import HRESULT_RETURN, NOT_STORED, Method, NdrType, Parameter

_CONTEXT: Final = Parameter("phContext", NdrType.CONTEXT, "context_handle")
_OPEN_REQUEST: Final = (
    Parameter("pQueueFormat", NdrType.QUEUE_FORMAT, "queue"),
    Parameter("dwAccess", NdrType.U32, "access"),
    Parameter("dwShareMode", NdrType.U32, "share_mode"),
    Parameter("pClientId", NdrType.GUID, "client_id"),
    Parameter("fNonRoutingServer", NdrType.BOOL, "non_routing_server"),
    Parameter("Major", NdrType.U8, "version_major"),
    Parameter("Minor", NdrType.U8, "version_minor"),
    Parameter("BuildNumber", NdrType.U16, "build_number"),
    Parameter("fWorkgroup", NdrType.BOOL, "workgroup"),
)
_START_REQUEST: Final = (
    _CONTEXT,
    Parameter("LookupId", NdrType.U64, "lookup_id"),
    Parameter("hCursor", NdrType.U32, "cursor_handle"),
    Parameter("ulAction", NdrType.U32, "action"),
    Parameter("ulTimeout", NdrType.U32, "timeout_ms"),
    Parameter("dwRequestId", NdrType.U32, "request_id"),
    Parameter("dwMaxBodySize", NdrType.U32, "max_body_bytes"),
    Parameter("dwMaxCompoundMessageSize", NdrType.U32, "max_compound_message_bytes"),
)
_START_RESPONSE: Final = (
    Parameter("pdwArriveTime", NdrType.U32, "arrive_time"),
    Parameter("pSequenceId", NdrType.U64, "sequence_id"),
    Parameter("pdwNumberOfSections", NdrType.U32),
    Parameter("ppPacketSections", NdrType.SECTIONS, "sections", size_is="pdwNumberOfSections"),
    HRESULT_RETURN,
)
_END_REQUEST: Final = (
    _CONTEXT,
    Parameter("dwAck", NdrType.U32, "ack"),
    Parameter("dwRequestId", NdrType.U32, "request_id"),
)
_TRANSACTION: Final = Parameter("pTransactionId", NdrType.UOW, "transaction_id")

METHODS: Final = (
    Method(0, "R_GetServerPort", "[MS-MQRR] 3.1.4.1", response=(Parameter("return", NdrType.U32, "returned_port"),)),
    Method(2, "R_OpenQueue", "[MS-MQRR] 3.1.4.2", request=_OPEN_REQUEST, response=(_CONTEXT,)),
    Method(
        3,
        "R_CloseQueue",
        "[MS-MQRR] 3.1.4.3",
        request=(_CONTEXT,),
        response=(Parameter("pphContext", NdrType.CONTEXT, NOT_STORED), HRESULT_RETURN),
    ),
    Method(
        4,
        "R_CreateCursor",
        "[MS-MQRR] 3.1.4.4",
        request=(_CONTEXT,),
        response=(Parameter("phCursor", NdrType.U32, "cursor_handle"), HRESULT_RETURN),
    ),
    Method(
        5,
        "R_CloseCursor",
        "[MS-MQRR] 3.1.4.5",
        request=(_CONTEXT, Parameter("hCursor", NdrType.U32, "cursor_handle")),
        response=(HRESULT_RETURN,),
    ),
    Method(6, "R_PurgeQueue", "[MS-MQRR] 3.1.4.6", request=(_CONTEXT,), response=(HRESULT_RETURN,)),
    Method(7, "R_StartReceive", "[MS-MQRR] 3.1.4.7", request=_START_REQUEST, response=_START_RESPONSE),
    Method(
        8,
        "R_CancelReceive",
        "[MS-MQRR] 3.1.4.8",
        request=(_CONTEXT, Parameter("dwRequestId", NdrType.U32, "request_id")),
        response=(HRESULT_RETURN,),
    ),
    Method(9, "R_EndReceive", "[MS-MQRR] 3.1.4.9", request=_END_REQUEST, response=(HRESULT_RETURN,)),
    Method(
        10,
        "R_MoveMessage",
        "[MS-MQRR] 3.1.4.10",
        request=(
            Parameter("phContextFrom", NdrType.CONTEXT, "context_handle"),
            Parameter("ullContextTo", NdrType.U64, "move_context"),
            Parameter("LookupId", NdrType.U64, "lookup_id"),
            _TRANSACTION,
        ),
        response=(HRESULT_RETURN,),
    ),
    Method(
        11,
        "R_OpenQueueForMove",
        "[MS-MQRR] 3.1.4.11",
        request=_OPEN_REQUEST,
        response=(Parameter("pMoveContext", NdrType.U64, "move_context"), _CONTEXT),
    ),
    Method(
        12,
        "R_QMEnlistRemoteTransaction",
        "[MS-MQRR] 3.1.4.12",
        request=(
            _TRANSACTION,
            Parameter("cbPropagationToken", NdrType.U32, "propagation_token_bytes"),
            Parameter("pbPropagationToken", NdrType.OCTETS, size_is="cbPropagationToken"),
            Parameter("pQueueFormat", NdrType.QUEUE_FORMAT),
        ),
        response=(HRESULT_RETURN,),
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
            Parameter("LookupId", NdrType.U64, "lookup_id"),
            Parameter("usClass", NdrType.U16, "acknowledgement_class"),
        ),
        response=(HRESULT_RETURN,),
    ),
    Method(15, "R_EndTransactionalReceive", "[MS-MQRR] 3.1.4.15", request=_END_REQUEST, response=(HRESULT_RETURN,)),
)
