"""How a method is declared: a table of parameters in IDL order, each an NDR type by name. Data only, no reading.

NDR64 and big endian are parameters of the readers, not second tables: ``single.py`` reads one stub, ``column.py`` a
whole Arrow column, both from the same tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """An NDR type. Sizes and alignments are those of [C706] 14 and [MS-RPCE] 2.2.4 (NDR) and 2.2.5 (NDR64)."""

    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"  # a 32-bit integer, true unless 0
    ENUM = "enum"  # 2 octets in NDR, 4 in NDR64
    GUID = "guid"
    UOW = "uow"  # XACTUOW: 16 octets, never swapped; all zero stands for NULL
    CONTEXT = "context"  # a context handle: 20 octets; all zero is NULL
    OCTETS = "octets"  # a conformant array of octets at top level
    QUEUE_FORMAT = "queue_format"  # [MS-MQMQ] 2.2.7
    READ_DESC = "read_desc"  # REMOTEREADDESC, [MS-MQQP] 2.2.2.1
    READ_DESC2 = "read_desc2"  # REMOTEREADDESC2, [MS-MQQP] 2.2.2.2
    SECTIONS = "sections"  # SectionBuffer**, [MS-MQRR] 2.2.6
    STRING = "string"  # [string] wchar_t* in line: counts and text, no referent
    NAME = "name"  # [ptr, string] wchar_t**: a referent to a referent to a string
    ACTION = "action"  # lpwszAction of R_QMMgmtAction: a string, doubt D1
    QUEUE_FORMAT_POINTER = "queue_format_pointer"  # a referent to a QUEUE_FORMAT
    MANAGED_OBJECT = "managed_object"  # MGMT_OBJECT, [MS-MQMR] 2.2.1.2
    NUMBERS = "numbers"  # a conformant array of 32-bit integers at top level
    VARIANTS = "variants"  # a conformant array of PROPVARIANT at top level, [MS-MQMQ] 2.2.13
    TRANSFER_1 = "transfer_1"  # CACTransferBufferV1, [MS-MQMP] 2.2.3.2
    TRANSFER_2 = "transfer_2"  # CACTransferBufferV2, [MS-MQMP] 2.2.3.3
    REST = "rest"  # whatever stands before the return value, not looked into; all there is where none follows


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter or member: its name on the wire, its type, and the column that its value goes to.

    ``column`` None: read over, not kept. ``size_is`` names the earlier parameter that counts the elements. A queue
    format fills ``queue_format_type`` and ``queue_format_name``, and ``queue`` where ``column`` is "queue"; sections
    fill the ``section_*`` columns. The other structures say in their readers which columns they fill.
    """

    name: str
    kind: Kind
    column: str | None = None
    size_is: str | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One opnum: what a request and a response carry, in IDL order, the return value last."""

    opnum: int
    name: str
    section: str
    request: tuple[Param, ...] = ()
    response: tuple[Param, ...] = ()

    def params(self, direction: str) -> tuple[Param, ...]:
        """Return the parameters of ``direction``, "request" or "response"."""
        return self.request if direction == "request" else self.response


HRESULT: Final = Param("return", Kind.U32, "hresult")
UNUSED: Final = None  # a column name for what is echoed back and says nothing new

# The members of a REMOTEREADDESC before lpBuffer, [MS-MQQP] 2.2.2.1. dwSize counts lpBuffer's octets.
READ_DESC_MEMBERS: Final = (
    Param("hRemoteQueue", Kind.U32, "queue_handle"),
    Param("hCursor", Kind.U32, "cursor_handle"),
    Param("ulAction", Kind.U32, "action"),
    Param("ulTimeout", Kind.U32, "timeout_ms"),
    Param("dwSize", Kind.U32),
    Param("dwQueue", Kind.U32, "queue_descriptor"),
    Param("dwRequestID", Kind.U32, "request_id"),
    Param("Reserved", Kind.U32),
    Param("dwArriveTime", Kind.U32, "arrive_time"),
    Param("eAckNack", Kind.ENUM),
)

# What an open may ask for, [MS-MQRR] 3.1.4.2 and 3.1.4.11, and what other clients combine: where padding seems to
# be missing, other values after it show that it is not (doubt D19).
PLAUSIBLE: Final = {"access": (0x01, 0x02, 0x04, 0x20, 0x81, 0xA0), "share_mode": (0, 1)}

# The arms of a QUEUE_FORMAT by m_qft, [MS-MQMQ] 2.2.7: fixed members, and whether a string pointer follows them.
QUEUE_FORMAT_ARMS: Final[dict[int, tuple[tuple[Param, ...], str | None]]] = {
    0: ((), None),
    1: ((Param("m_gPublicID", Kind.GUID),), None),
    2: ((Param("m_oPrivateID.Lineage", Kind.GUID), Param("m_oPrivateID.Uniquifier", Kind.U32)), None),
    3: ((), "m_pDirectID"),
    4: ((Param("m_gMachineID", Kind.GUID),), None),
    5: ((Param("m_GConnectorID", Kind.GUID),), None),
    6: ((Param("m_DlID.m_DlGuid", Kind.GUID),), "m_DlID.m_pwzDomain"),
    7: ((Param("m_MulticastID.m_address", Kind.U32), Param("m_MulticastID.m_port", Kind.U32)), None),
    8: ((), "m_pDirectSubqueueID"),
}

# MGMT_OBJECT.type, [MS-MQMR] 2.2.1.1
OBJECT_TYPES: Final = {1: "machine", 2: "queue", 3: "session"}
# Parameters that hold a queue format: the padding after one is what some peers leave out (doubt D19).
PADDED: Final = (Kind.QUEUE_FORMAT, Kind.QUEUE_FORMAT_POINTER, Kind.MANAGED_OBJECT)
