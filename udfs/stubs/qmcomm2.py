"""qmcomm2: the methods of [MS-MQMP] 3.1.5. Tables only."""

from __future__ import annotations

from typing import Final

from udfs.stubs.method import HRESULT, UNUSED, Kind, Method, Param

_IN: Final = (Param("in", Kind.REST),)
_OUT: Final = (Param("out", Kind.REST), HRESULT)

METHODS: Final = (
    Method(0, "QMSendMessageInternalEx", "[MS-MQMP] 3.1.5.1", request=_IN, response=_OUT),
    Method(1, "rpc_ACSendMessageEx", "[MS-MQMP] 3.1.5.2", request=_IN, response=_OUT),
    Method(
        2,
        "rpc_ACReceiveMessageEx",
        "[MS-MQMP] 3.1.5.3",
        request=(
            Param("hQMContext", Kind.U32, "queue_manager_context"),
            Param("ptb", Kind.TRANSFER_2, "receive"),
        ),
        response=(Param("ptb", Kind.TRANSFER_2, UNUSED), HRESULT),
    ),
    Method(
        3,
        "rpc_ACCreateCursorEx",
        "[MS-MQMP] 3.1.5.4",
        # pcc is [in, out] and says nothing on its way in: the answer tells cursor, owner's handle and descriptor.
        request=(
            Param("hQueue", Kind.CONTEXT, "context_handle"),
            Param("pcc.hCursor", Kind.U32),
            Param("pcc.srv_hACQueue", Kind.U32),
            Param("pcc.cli_pQMQueue", Kind.U32),
        ),
        response=(
            Param("pcc.hCursor", Kind.U32, "cursor_handle"),
            Param("pcc.srv_hACQueue", Kind.U32, "queue_handle"),
            Param("pcc.cli_pQMQueue", Kind.U32, "queue_descriptor"),
            HRESULT,
        ),
    ),
)
