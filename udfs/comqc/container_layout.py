"""Constants of COMQC message bodies: GUIDs, header kinds and sizes, and the rules that a message can break.

Section numbers are those of [MC-COMQC] unless a document is named; doubts (D...) are those of the project's fact sheet
on message packets, section 8.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

# 2.1: the value of PROPID_M_EXTENSION. Section 1.9 labels the two signatures the other way round (D25).
COMQC_EXTENSION: Final = UUID("1664bcfb-1751-11d2-b58e-00e0290e6c31").bytes_le
# 2.2.2: printed without its fourth hyphen; its last 16 digits split only as 4 + 12 (D24).
MESSAGE_SIGNATURE_GUID: Final = UUID("71bbdb83-fc41-11d0-b764-0080c7ec3fc1").bytes_le
TARGET_STRUCTURE_GUID: Final = UUID("ecabafc6-7f19-11d2-978e-0000f8757e2a").bytes_le
IID_IDISPATCH: Final = UUID("00020400-0000-0000-c000-000000000046").bytes_le
IDISPATCH_INVOKE_OPNUM: Final = 6  # the only operation of IDispatch that makes sense in a one-way call (D36)

# Header kinds, numbered by this package; 0 is an unknown signature.
CHDR: Final = 1
PART: Final = 2
SECD: Final = 3
SECR: Final = 4
METH: Final = 5
SMTH: Final = 6
TRAILER: Final = 7  # a PART that does not follow the container header: tolerated behind the last method (D25)
CONTAINER_HEADER_NAMES: Final = ("", "CHDR", "PART", "SECD", "SECR", "METH", "SMTH", "PART")
HEADER_KINDS: Final = {
    int.from_bytes(CONTAINER_HEADER_NAMES[kind].encode(), "little"): kind for kind in range(CHDR, TRAILER)
}

# Size of a header in bytes without its variable part, by kind.
MIN_HEADER_BYTES: Final = (8, 80, 24, 16, 16, 48, 32, 24)

# The kinds of headers that may follow each kind, 2.2 with its figures 2 to 6:
# message = CHDR [PART] SECD method *([SECD / SECR] method) [PART], method = METH / SMTH.
MAY_FOLLOW: Final = {
    CHDR: (PART, SECD),
    PART: (SECD,),
    SECD: (METH, SMTH),
    SECR: (METH, SMTH),
    METH: (SECD, SECR, METH, SMTH, TRAILER),
    SMTH: (SECD, SECR, METH, SMTH, TRAILER),
    TRAILER: (),
}

# Violations by which a message must be rejected. The first one in the order of its bytes is reported.
NO_CONTAINER: Final = 1
CONTAINER_TOO_SHORT: Final = 2
BAD_MESSAGE_SIGNATURE: Final = 3
BAD_VERSION: Final = 4
BAD_MESSAGE_SIZE: Final = 5
BAD_TARGET_SIZE: Final = 6
BAD_TARGET_ID: Final = 7
BAD_TARGET_STRING: Final = 8
SECOND_CONTAINER: Final = 9
HEADER_TRUNCATED: Final = 10
UNKNOWN_SIGNATURE: Final = 11
SIZE_NOT_MULTIPLE_OF_8: Final = 12
SIZE_BEYOND_MESSAGE: Final = 13
SIZE_TOO_SMALL: Final = 14
HEADER_OUT_OF_ORDER: Final = 15
NO_SECURITY: Final = 16
NO_METHOD_CALL: Final = 17
SECURITY_WITHOUT_METHOD: Final = 18
BAD_PARTITION_SIZE: Final = 19
BAD_SECURITY_DATA_SIZE: Final = 20
BAD_REFERENCE_SIZE: Final = 21
BAD_REFERENCE_OFFSET: Final = 22
FIRST_METHOD_WITHOUT_INTERFACE: Final = 23
BAD_MARSHALED_SIZE: Final = 24
BAD_DATA_REPRESENTATION: Final = 25
BAD_FLAGS: Final = 26
BAD_RESERVED: Final = 27

_RULES: Final = {
    NO_CONTAINER: "2.2.2: no container header at the start",
    CONTAINER_TOO_SHORT: "2.2.2: container header shorter than its fields",
    BAD_MESSAGE_SIGNATURE: "2.2.2: Message Signature is another GUID",
    BAD_VERSION: "2.2.2: Maximum Version or Minimum Version is not 1",
    BAD_MESSAGE_SIZE: "2.2.2: Message Size is not the size of the body",
    BAD_TARGET_SIZE: "2.2.2: Call Target Identifier Size does not fit the container header",
    BAD_TARGET_ID: "2.2.2.1: Structure ID is another GUID",
    BAD_TARGET_STRING: "2.2.2.1: Target ID String is no UUID ended by a NUL",
    SECOND_CONTAINER: "2.2.2: more than one container header",
    HEADER_TRUNCATED: "2.2.1: bytes left over that hold no header",
    UNKNOWN_SIGNATURE: "2.2: unknown Header Signature",
    SIZE_NOT_MULTIPLE_OF_8: "2.2.1: Size is not a multiple of 8",
    SIZE_BEYOND_MESSAGE: "2.2.1: header goes beyond the message",
    SIZE_TOO_SMALL: "2.2.1: Size is smaller than the header's fields",
    HEADER_OUT_OF_ORDER: "2.2: header out of order",
    NO_SECURITY: "2.2.4: no security header before the first method call",
    NO_METHOD_CALL: "2.2: no method call",
    SECURITY_WITHOUT_METHOD: "2.2: security header without a method header behind it",
    BAD_PARTITION_SIZE: "2.2.3: Size of the partition identifier header is not 0x18",
    BAD_SECURITY_DATA_SIZE: "2.2.4: Security Data Size does not fit the security header",
    BAD_REFERENCE_SIZE: "2.2.5: Size of the security reference header is not 0x10",
    BAD_REFERENCE_OFFSET: "2.2.5: Security Header Offset is not that of an earlier security header",
    FIRST_METHOD_WITHOUT_INTERFACE: "2.2.6: first method header has no Interface ID",
    BAD_MARSHALED_SIZE: "2.2.6: Marshaled Data Size does not fit the method header",
    BAD_DATA_REPRESENTATION: "2.2.6: Data Representation is not 0x00000010",
    BAD_FLAGS: "2.2.6: Flags are not 0x00001000",
    BAD_RESERVED: "2.2.6: Reserved is not 0x00000001",
}
REJECTION_TEXTS: Final = (None, *(f"[MC-COMQC] {_RULES[number]}" for number in range(1, len(_RULES) + 1)))

# Recommendations (SHOULD) that a message does not follow. Servers play such a message.
TARGET_STRING_DIFFERS: Final = 1
SECURITY_REPEATED: Final = 2
REFERENCE_NOT_NEEDED: Final = 3
INTERFACE_REPEATED: Final = 4

_RECOMMENDATIONS: Final = {
    TARGET_STRING_DIFFERS: "2.2.2.1: Target ID String is another UUID than Target ID",
    SECURITY_REPEATED: "2.2.4: security header with the Security Data of an earlier one",
    REFERENCE_NOT_NEEDED: "2.2.5: security reference header to the security that applies already",
    INTERFACE_REPEATED: "2.2.6: Interface ID in a method header although it applies already",
}
DEVIATION_TEXTS: Final = (None, *(f"[MC-COMQC] {_RECOMMENDATIONS[number]}" for number in sorted(_RECOMMENDATIONS)))
