"""Declarations of the qmmgmt methods, [MS-MQMR] 3.1.4.

By its document the interface is NDR only ([MS-MQMR] 2.2); NDR64 is decoded as well where a bind accepted it.
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.idl import HRESULT_RETURN, Method, NdrType, Parameter

_OBJECT: Final = Parameter("pObjectFormat", NdrType.MANAGED_OBJECT, "queue")

METHODS: Final = (
    Method(
        0,
        "R_QMMgmtGetInfo",
        "[MS-MQMR] 3.1.4.1",
        request=(
            _OBJECT,
            Parameter("cp", NdrType.U32),
            Parameter("aProp", NdrType.NUMBERS, "property_ids", size_is="cp"),
            Parameter("apVar", NdrType.VARIANTS, size_is="cp"),
        ),
        # The response does not repeat cp: the array's own count holds.
        response=(Parameter("apVar", NdrType.VARIANTS, "values"), HRESULT_RETURN),
    ),
    Method(
        1,
        "R_QMMgmtAction",
        "[MS-MQMR] 3.1.4.2",
        request=(_OBJECT, Parameter("lpwszAction", NdrType.ACTION, "action_text")),
        response=(HRESULT_RETURN,),
    ),
)
