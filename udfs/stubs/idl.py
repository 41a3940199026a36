"""Declarations of RPC methods: for each opnum its parameters in IDL order, with their NDR types. Data only.

NDR64 and big-endian need no tables of their own: they are options of the decoders (``stub_decoder.py``,
``single_stub.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class NdrType(Enum):
    """NDR type of a parameter. Sizes and alignments: [C706] 14, [MS-RPCE] 2.2.4 (NDR) and 2.2.5 (NDR64)."""

    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"  # a 32-bit integer; 0 is false
    ENUM = "enum"  # 2 octets in NDR, 4 in NDR64
    GUID = "guid"
    UOW = "uow"  # XACTUOW: 16 octets, never byte-swapped; all zero is NULL
    CONTEXT = "context"  # a context handle: 20 octets; all zero is NULL
    OCTETS = "octets"  # a conformant array of octets at top level
    QUEUE_FORMAT = "queue_format"  # [MS-MQMQ] 2.2.7
    READ_DESC = "read_desc"  # REMOTEREADDESC, [MS-MQQP] 2.2.2.1
    READ_DESC2 = "read_desc2"  # REMOTEREADDESC2, [MS-MQQP] 2.2.2.2
    SECTIONS = "sections"  # SectionBuffer**, [MS-MQRR] 2.2.6
    STRING = "string"  # [string] wchar_t* inline: counts and text, no referent
    NAME = "name"  # [ptr, string] wchar_t**: a referent to a referent to a string
    ACTION = "action"  # lpwszAction of R_QMMgmtAction: a string, doubt D1
    QUEUE_FORMAT_POINTER = "queue_format_pointer"  # a referent to a QUEUE_FORMAT
    MANAGED_OBJECT = "managed_object"  # MGMT_OBJECT, [MS-MQMR] 2.2.1.2
    NUMBERS = "numbers"  # a conformant array of 32-bit integers at top level
    VARIANTS = "variants"  # a conformant array of PROPVARIANT at top level, [MS-MQMQ] 2.2.13
    TRANSFER_1 = "transfer_1"  # CACTransferBufferV1, [MS-MQMP] 2.2.3.2
    TRANSFER_2 = "transfer_2"  # CACTransferBufferV2, [MS-MQMP] 2.2.3.3
    AUTOMATION = "automation"  # BSTR, VARIANT and others of [MS-OAUT] 2.2: of COM+ calls only, udfs/comqc reads them
    REST = "rest"  # all octets before the return value, not decoded; in a request the whole stub


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter or structure member: its name in the IDL, its NDR type, and the column for its value.

    With ``column`` None the value is skipped. ``size_is`` names the earlier parameter that counts the elements. A queue
    format fills ``queue_format_type`` and ``queue_format_name``, and also ``queue`` if ``column`` is "queue"; sections
    fill the ``section_*`` columns. For other structures see their readers.
    """

    name: str
    ndr_type: NdrType
    column: str | None = None
    size_is: str | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC method: opnum, name, and the parameters of request and response in IDL order, the return value last."""

    opnum: int
    name: str
    section: str
    request: tuple[Parameter, ...] = ()
    response: tuple[Parameter, ...] = ()

    def parameters(self, direction: str) -> tuple[Parameter, ...]:
        """Return the parameters of ``direction``, "request" or "response"."""
        return self.request if direction == "request" else self.response


HRESULT_RETURN: Final = Parameter("return", NdrType.U32, "hresult")
NOT_STORED: Final = None  # the column of parameters that a response only echoes

# The members of a REMOTEREADDESC before lpBuffer, [MS-MQQP] 2.2.2.1. dwSize counts lpBuffer's octets.
READ_DESC_MEMBERS: Final = (
    Parameter("hRemoteQueue", NdrType.U32, "queue_handle"),
    Parameter("hCursor", NdrType.U32, "cursor_handle"),
    Parameter("ulAction", NdrType.U32, "action"),
    Parameter("ulTimeout", NdrType.U32, "timeout_ms"),
    Parameter("dwSize", NdrType.U32),
    Parameter("dwQueue", NdrType.U32, "queue_descriptor"),
    Parameter("dwRequestID", NdrType.U32, "request_id"),
    Parameter("Reserved", NdrType.U32),
    Parameter("dwArriveTime", NdrType.U32, "arrive_time"),
    Parameter("eAckNack", NdrType.ENUM),
)

# Values that an open can plausibly have, [MS-MQRR] 3.1.4.2 and 3.1.4.11. A stub that seems to lack padding is read
# without it only if the values behind it are among these (doubt D19).
PLAUSIBLE_VALUES: Final = {"access": (0x01, 0x02, 0x04, 0x20, 0x81, 0xA0), "share_mode": (0, 1)}

# The union arms of a QUEUE_FORMAT by m_qft, [MS-MQMQ] 2.2.7: the fixed members, and the string pointer behind them.
QUEUE_FORMAT_ARMS: Final[dict[int, tuple[tuple[Parameter, ...], str | None]]] = {
    0: ((), None),
    1: ((Parameter("m_gPublicID", NdrType.GUID),), None),
    2: ((Parameter("m_oPrivateID.Lineage", NdrType.GUID), Parameter("m_oPrivateID.Uniquifier", NdrType.U32)), None),
    3: ((), "m_pDirectID"),
    4: ((Parameter("m_gMachineID", NdrType.GUID),), None),
    5: ((Parameter("m_GConnectorID", NdrType.GUID),), None),
    6: ((Parameter("m_DlID.m_DlGuid", NdrType.GUID),), "m_DlID.m_pwzDomain"),
    7: ((Parameter("m_MulticastID.m_address", NdrType.U32), Parameter("m_MulticastID.m_port", NdrType.U32)), None),
    8: ((), "m_pDirectSubqueueID"),
}

# MGMT_OBJECT.type, [MS-MQMR] 2.2.1.1
OBJECT_TYPES: Final = {1: "machine", 2: "queue", 3: "session"}
# Types that hold a queue format. Some peers leave out the padding behind it (doubt D19).
PADDED_TYPES: Final = (NdrType.QUEUE_FORMAT, NdrType.QUEUE_FORMAT_POINTER, NdrType.MANAGED_OBJECT)
