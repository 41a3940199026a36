"""qmmgmt: the methods of [MS-MQMR] 3.1.4. Tables only.

The interface is NDR alone by its document ([MS-MQMR] 2.2); NDR64 is read all the same where a bind accepted it.
"""

from __future__ import annotations

from typing import Final

from udfs.stubs.method import HRESULT, Kind, Method, Param

_OBJECT: Final = Param("pObjectFormat", Kind.MANAGED_OBJECT, "queue")

METHODS: Final = (
    Method(
        0,
        "R_QMMgmtGetInfo",
        "[MS-MQMR] 3.1.4.1",
        request=(
            _OBJECT,
            Param("cp", Kind.U32),
            Param("aProp", Kind.NUMBERS, "property_ids", size_is="cp"),
            Param("apVar", Kind.VARIANTS, size_is="cp"),
        ),
        # The count of a response is the array's own: cp is not sent back.
        response=(Param("apVar", Kind.VARIANTS, "values"), HRESULT),
    ),
    Method(
        1,
        "R_QMMgmtAction",
        "[MS-MQMR] 3.1.4.2",
        request=(_OBJECT, Param("lpwszAction", Kind.ACTION, "action_text")),
        response=(HRESULT,),
    ),
)
