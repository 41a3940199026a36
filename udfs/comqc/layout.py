"""The constants of a COMQC message: GUIDs, header signatures, sizes, and the rules whose breach rejects a message.

Sections are those of [MC-COMQC] unless a document is named; doubts (D...) are those of the project's fact sheet on
message packets, section 8.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

# 2.1: what PROPID_M_EXTENSION must be. Section 1.9 labels the two signatures the other way round; use decides (D25).
MARKER: Final = UUID("1664bcfb-1751-11d2-b58e-00e0290e6c31").bytes_le
# 2.2.2: printed without its fourth hyphen; its last 16 digits split only as 4 + 12 (D24).
MESSAGE_SIGNATURE: Final = UUID("71bbdb83-fc41-11d0-b764-0080c7ec3fc1").bytes_le
TARGET_STRUCTURE: Final = UUID("ecabafc6-7f19-11d2-978e-0000f8757e2a").bytes_le
IID_IDISPATCH: Final = UUID("00020400-0000-0000-c000-000000000046").bytes_le
INVOKE_OPNUM: Final = 6  # the one operation of IDispatch that makes sense one way (D36)

# Kinds of headers, in the numbering of this package; 0 is any other signature.
CHDR: Final = 1
PART: Final = 2
SECD: Final = 3
SECR: Final = 4
METH: Final = 5
SMTH: Final = 6
TRAILER: Final = 7  # a PART that does not follow the container header: tolerated behind the last method (D25)
NAMES: Final = ("", "CHDR", "PART", "SECD", "SECR", "METH", "SMTH", "PART")
SIGNATURES: Final = {int.from_bytes(NAMES[kind].encode(), "little"): kind for kind in range(CHDR, TRAILER)}

# Bytes of a header without its variable part, by kind.
FIXED: Final = (8, 80, 24, 16, 16, 48, 32, 24)

# Which header may follow which, 2.2 with its figures 2 to 6:
# message = CHDR [PART] SECD method *([SECD / SECR] method) [PART], method = METH / SMTH.
FOLLOWS: Final = {
    CHDR: (PART, SECD),
    PART: (SECD,),
    SECD: (METH, SMTH),
    SECR: (METH, SMTH),
    METH: (SECD, SECR, METH, SMTH, TRAILER),
    SMTH: (SECD, SECR, METH, SMTH, TRAILER),
    TRAILER: (),
}

# Why a message must be rejected: section and rule. The first that holds, in the order of the bytes, is given.
NO_CONTAINER: Final = 1
SHORT_CONTAINER: Final = 2
MESSAGE_SIGNATURE_WRONG: Final = 3
VERSION: Final = 4
MESSAGE_SIZE: Final = 5
TARGET_SIZE: Final = 6
TARGET_ID: Final = 7
TARGET_STRING: Final = 8
CONTAINER_AGAIN: Final = 9
HEADER_CUT: Final = 10
SIGNATURE: Final = 11
SIZE_UNEVEN: Final = 12
SIZE_BEYOND: Final = 13
SIZE_SMALL: Final = 14
ORDER: Final = 15
NO_SECURITY: Final = 16
NO_METHOD: Final = 17
SECURITY_WITHOUT_METHOD: Final = 18
PARTITION_SIZE: Final = 19
SECURITY_SIZE: Final = 20
REFERENCE_SIZE: Final = 21
REFERENCE_OFFSET: Final = 22
FIRST_SHORT: Final = 23
MARSHALED_SIZE: Final = 24
DATA_REPRESENTATION: Final = 25
FLAGS: Final = 26
RESERVED: Final = 27

_RULES: Final = {
    NO_CONTAINER: "2.2.2: no container header at the start",
    SHORT_CONTAINER: "2.2.2: container header shorter than its fields",
    MESSAGE_SIGNATURE_WRONG: "2.2.2: Message Signature is another GUID",
    VERSION: "2.2.2: Maximum Version or Minimum Version is not 1",
    MESSAGE_SIZE: "2.2.2: Message Size is not the size of the body",
    TARGET_SIZE: "2.2.2: Call Target Identifier Size does not fit the container header",
    TARGET_ID: "2.2.2.1: Structure ID is another GUID",
    TARGET_STRING: "2.2.2.1: Target ID String is no UUID ended by a NUL",
    CONTAINER_AGAIN: "2.2.2: more than one container header",
    HEADER_CUT: "2.2.1: bytes left over that hold no header",
    SIGNATURE: "2.2: unknown Header Signature",
    SIZE_UNEVEN: "2.2.1: Size is not a multiple of 8",
    SIZE_BEYOND: "2.2.1: header goes beyond the message",
    SIZE_SMALL: "2.2.1: Size is smaller than the header's fields",
    ORDER: "2.2: header out of order",
    NO_SECURITY: "2.2.4: no security header before the first method call",
    NO_METHOD: "2.2: no method call",
    SECURITY_WITHOUT_METHOD: "2.2: security header without a method header behind it",
    PARTITION_SIZE: "2.2.3: Size of the partition identifier header is not 0x18",
    SECURITY_SIZE: "2.2.4: Security Data Size does not fit the security header",
    REFERENCE_SIZE: "2.2.5: Size of the security reference header is not 0x10",
    REFERENCE_OFFSET: "2.2.5: Security Header Offset is not that of an earlier security header",
    FIRST_SHORT: "2.2.6: first method header has no Interface ID",
    MARSHALED_SIZE: "2.2.6: Marshaled Data Size does not fit the method header",
    DATA_REPRESENTATION: "2.2.6: Data Representation is not 0x00000010",
    FLAGS: "2.2.6: Flags are not 0x00001000",
    RESERVED: "2.2.6: Reserved is not 0x00000001",
}
REASONS: Final = (None, *(f"[MC-COMQC] {_RULES[number]}" for number in range(1, len(_RULES) + 1)))
