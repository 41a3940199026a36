"""Declarations of the qmcomm2 methods, [MS-MQMP] 3.1.5."""

from __future__ import annotations

from typing import Final

from udfs.stubs.idl import HRESULT_RETURN, NOT_STORED, Method, NdrType, Parameter

_IN: Final = (Parameter("in", NdrType.REST),)
_OUT: Final = (Parameter("out", NdrType.REST), HRESULT_RETURN)

METHODS: Final = (
    Method(0, "QMSendMessageInternalEx", "[MS-MQMP] 3.1.5.1", request=_IN, response=_OUT),
    Method(1, "rpc_ACSendMessageEx", "[MS-MQMP] 3.1.5.2", request=_IN, response=_OUT),
    Method(
        2,
        "rpc_ACReceiveMessageEx",
        "[MS-MQMP] 3.1.5.3",
        request=(
            Parameter("hQMContext", NdrType.U32, "queue_manager_context"),
            Parameter("ptb", NdrType.TRANSFER_2, "receive"),
        ),
        response=(Parameter("ptb", NdrType.TRANSFER_2, NOT_STORED), HRESULT_RETURN),
    ),
    Method(
        3,
        "rpc_ACCreateCursorEx",
        "[MS-MQMP] 3.1.5.4",
        # pcc is [in, out]; only the response has cursor, the owner's queue handle and the descriptor.
        request=(
            Parameter("hQueue", NdrType.CONTEXT, "context_handle"),
            Parameter("pcc.hCursor", NdrType.U32),
            Parameter("pcc.srv_hACQueue", NdrType.U32),
            Parameter("pcc.cli_pQMQueue", NdrType.U32),
        ),
        response=(
            Parameter("pcc.hCursor", NdrType.U32, "cursor_handle"),
            Parameter("pcc.srv_hACQueue", NdrType.U32, "queue_handle"),
            Parameter("pcc.cli_pQMQueue", NdrType.U32, "queue_descriptor"),
            HRESULT_RETURN,
        ),
    ),
)
