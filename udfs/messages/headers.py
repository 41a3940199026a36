"""The headers of a message packet as records: fixed parts only, little-endian, no reading.

A record is what numpy gathers for a whole column at once. Bit 0 is the least significant one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

REMOTE_READ: Final = "RemoteRead"  # [MS-MQRR]: overlays, SRMP headers, trailing headers
QM2QM: Final = "qm2qm"  # [MS-MQQP]
BINARY: Final = "binary_protocol"  # [MS-MQQB], TCP 1801
PROTOCOLS: Final = (REMOTE_READ, QM2QM, BINARY)

# The specifications' names, in the order of the packet: [MS-MQMQ] 2.2.20, then [MS-MQRR] 2.2.5.
HEADERS: Final = (
    "BaseHeader",
    "UserHeader",
    "TransactionHeader",
    "SecurityHeader",
    "MessagePropertiesHeader",
    "DebugHeader",
    "SRMPEnvelopeHeader",
    "CompoundMessageHeader",
    "SoapHeader",
    "MultiQueueFormatHeader",
    "SessionHeader",
    "ExtensionHeader",
    "SubqueueHeader",
    "DeadLetterHeader",
    "ExtendedAddressHeader",
)

INFINITE: Final = 0xFFFF_FFFF

# BaseHeader, [MS-MQMQ] 2.2.19.1
VERSION: Final = 0x10
SIGNATURE: Final = 0x524F_494C  # LIOR
BASE: Final = np.dtype(
    [("VersionNumber", "u1"), ("Reserved", "u1"), ("Flags", "<u2"), ("Signature", "<u4"), ("PacketSize", "<u4"),
     ("TimeToReachQueue", "<u4")]
)  # fmt: skip
BASE_IN: Final = 1 << 3  # an internal session packet, no UserMessage
BASE_SH: Final = 1 << 4
BASE_DH: Final = 1 << 5

# UserHeader, [MS-MQMQ] 2.2.19.2, before the queue names
USER: Final = np.dtype(
    [("SourceQueueManager", "u1", (16,)), ("QueueManagerAddress", "u1", (16,)), ("TimeToBeReceived", "<u4"),
     ("SentTime", "<u4"), ("MessageID", "<u4"), ("Flags", "<u4")]
)  # fmt: skip
USER_JN: Final = 1 << 8
USER_JP: Final = 1 << 9
USER_SH: Final = 1 << 19
USER_TH: Final = 1 << 20
USER_MP: Final = 1 << 21
USER_CQ: Final = 1 << 22
USER_MQ: Final = 1 << 23
USER_AH: Final = 1 << 25
USER_HH: Final = 1 << 28

# Queue names in a UserHeader by type: field, flag, shift of the type in Flags, types allowed.
QUEUES: Final = (
    ("DestinationQueue", "DQ", 10, (0, 3, 5, 7)),
    ("AdminQueue", "AQ", 13, (0, 2, 3, 5, 6, 7)),
    ("ResponseQueue", "RQ", 16, (0, 1, 2, 3, 4, 5, 6, 7)),
)
DIRECT: Final = 7
QUEUE_SIZES: Final = (0, 0, 4, 4, 4, 16, 20, 2)  # bytes by type; a direct name is longer than its 2

# TransactionHeader, [MS-MQMQ] 2.2.20.5
TRANSACTION: Final = np.dtype(
    [("Flags", "<u4"), ("TxSequenceID", "<u8"), ("TxSequenceNumber", "<u4"), ("PreviousTxSequenceNumber", "<u4")]
)
TRANSACTION_CG: Final = 1
TRANSACTION_FM: Final = 1 << 2
TRANSACTION_LM: Final = 1 << 3

# SecurityHeader, [MS-MQMQ] 2.2.20.6
SECURITY: Final = np.dtype(
    [("Flags", "<u2"), ("SenderIdSize", "<u2"), ("EncryptionKeySize", "<u2"), ("SignatureSize", "<u2"),
     ("SenderCertSize", "<u4"), ("ProviderInfoSize", "<u4")]
)  # fmt: skip
SECURITY_ITEMS: Final = (
    ("SecurityID", "SenderIdSize"),
    ("EncryptionKey", "EncryptionKeySize"),
    ("Signature", "SignatureSize"),
    ("SenderCert", "SenderCertSize"),
    ("ProviderInfo", "ProviderInfoSize"),
)
SECURITY_AU: Final = 1 << 4
SECURITY_EB: Final = 1 << 5
ST_SID: Final = 1
ST_QUEUE_MANAGER: Final = 2

# MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3, before the label
PROPERTIES: Final = np.dtype(
    [("Flags", "u1"), ("LabelLength", "u1"), ("MessageClass", "<u2"), ("CorrelationID", "u1", (20,)),
     ("BodyType", "<u4"), ("ApplicationTag", "<u4"), ("MessageSize", "<u4"), ("AllocationBodySize", "<u4"),
     ("PrivacyLevel", "<u4"), ("HashAlgorithm", "<u4"), ("EncryptionAlgorithm", "<u4"), ("ExtensionSize", "<u4")]
)  # fmt: skip

# DebugHeader, [MS-MQMQ] 2.2.20.8
DEBUG: Final = np.dtype([("Flags", "<u2"), ("Reserved", "<u2")])
DEBUG_PUBLIC: Final = 1  # QT

# [MS-MQRR] 2.2.5.1.2
ENVELOPE: Final = np.dtype([("HeaderId", "<u2"), ("Reserved", "<u2"), ("DataLength", "<u4")])
COMPOUND: Final = np.dtype(
    [
        ("HeaderId", "<u2"),
        ("Reserved", "<u2"),
        ("HTTPBodySize", "<u4"),
        ("MsgBodySize", "<u4"),
        ("MsgBodyOffset", "<u4"),
    ]
)

# SoapHeader, [MS-MQMQ] 2.2.20.7: two sections of one shape
SOAP: Final = np.dtype([("SectionID", "<u2"), ("Reserved", "<u2"), ("DataLength", "<u4")])
SOAP_HEADER_ID: Final = 0x0320
SOAP_BODY_ID: Final = 0x0384

# MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1
ADDRESSES: Final = np.dtype([("HeaderSize", "<u4"), ("HeaderID", "<u2"), ("Reserved", "<u2"), ("ElementCount", "<u4")])
ADDRESS_PARTS: Final = (("Destination", 0x0064), ("Administration", 0x00C8), ("Response", 0x012C))
SMALLEST_ELEMENT: Final = 4  # bytes: a direct name without a character
MQF_SIGNATURE: Final = np.dtype([("ID", "<u2"), ("Reserved", "<u2"), ("Size", "<u4")])
MQF_SIGNATURE_ID: Final = 0x015E

# Trailing headers, [MS-MQRR] 2.2.5.2 to 2.2.5.5
EXTENSION: Final = np.dtype(
    [("HeaderSize", "<u4"), ("RemainingHeadersSize", "<u4"), ("Flags", "u1"), ("R", "u1", (3,))]
)
EXTENSION_DL: Final = 1
EXTENSION_SQ: Final = 1 << 1
EXTENSION_EA: Final = 1 << 4
SUBQUEUE: Final = np.dtype(
    [("HeaderSize", "<u4"), ("Bits", "<u4"), ("AbortCounter", "<u4"), ("MoveCounter", "<u4"), ("LastMoveTime", "<u4")]
)
SUBQUEUE_NAME: Final = 64  # bytes of each of the two names that follow: WCHAR[32]
SUBQUEUE_NAMES: Final = 2 * SUBQUEUE_NAME
ADDRESS: Final = np.dtype(
    [("HeaderSize", "<u4"), ("AddressLength", "<u2"), ("AddressType", "<u2"), ("AddressScope", "<u4"),
     ("Address", "u1", (16,))]
)  # fmt: skip
IPV4: Final = 1
IPV6: Final = 6

# SectionBufferType, [MS-MQRR] 2.2.7
FULL_PACKET: Final = 0
BINARY_FIRST: Final = 1
BINARY_SECOND: Final = 2
SRMP_FIRST: Final = 3
SRMP_SECOND: Final = 4
