"""Layouts of the message packet headers: numpy record types of their fixed parts, flags, sizes and identifiers.

All are little-endian. Bit 0 is the least significant one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

PROTOCOL_REMOTE_READ: Final = "RemoteRead"  # [MS-MQRR]: overlays, SRMP headers, trailing headers
PROTOCOL_QM2QM: Final = "qm2qm"  # [MS-MQQP]
PROTOCOL_BINARY: Final = "binary_protocol"  # [MS-MQQB], TCP port 1801
PROTOCOLS: Final = (PROTOCOL_REMOTE_READ, PROTOCOL_QM2QM, PROTOCOL_BINARY)

# The specifications' names, in the order of the packet: [MS-MQMQ] 2.2.20, then [MS-MQRR] 2.2.5.
MESSAGE_HEADER_NAMES: Final = (
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

INFINITE_TIMEOUT: Final = 0xFFFF_FFFF

# BaseHeader, [MS-MQMQ] 2.2.19.1
PACKET_VERSION: Final = 0x10
PACKET_SIGNATURE: Final = 0x524F_494C  # LIOR
BASE_HEADER: Final = np.dtype(
    [("VersionNumber", "u1"), ("Reserved", "u1"), ("Flags", "<u2"), ("Signature", "<u4"), ("PacketSize", "<u4"),
     ("TimeToReachQueue", "<u4")]
)  # fmt: skip
BASE_FLAG_IN: Final = 1 << 3  # an internal session packet, not a UserMessage
BASE_FLAG_SH: Final = 1 << 4
BASE_FLAG_DH: Final = 1 << 5
BASE_FLAG_TR: Final = 1 << 8
MAX_PACKET_BYTES: Final = 0x0040_0000

# SessionHeader, [MS-MQMQ] 2.2.20.4; PacketSize does not count it
SESSION_HEADER: Final = np.dtype(
    [("AckSequenceNumber", "<u2"), ("RecoverableMsgAckSeqNumber", "<u2"), ("RecoverableMsgAckFlags", "<u4"),
     ("UserMsgSequenceNumber", "<u2"), ("RecoverableMsgSeqNumber", "<u2"), ("WindowSize", "<u2"), ("Reserved", "<u2")]
)  # fmt: skip
SESSION_HEADER_BYTES: Final = SESSION_HEADER.itemsize

# UserHeader, [MS-MQMQ] 2.2.19.2, before the queue names
USER_HEADER: Final = np.dtype(
    [("SourceQueueManager", "u1", (16,)), ("QueueManagerAddress", "u1", (16,)), ("TimeToBeReceived", "<u4"),
     ("SentTime", "<u4"), ("MessageID", "<u4"), ("Flags", "<u4")]
)  # fmt: skip
USER_FLAGS_RC: Final = 0x1F  # number of routing servers that the message passed
USER_FLAG_JN: Final = 1 << 8
USER_FLAG_JP: Final = 1 << 9
USER_FLAG_SH: Final = 1 << 19
USER_FLAG_TH: Final = 1 << 20
USER_FLAG_MP: Final = 1 << 21
USER_FLAG_CQ: Final = 1 << 22
USER_FLAG_MQ: Final = 1 << 23
USER_FLAG_AH: Final = 1 << 25
USER_FLAG_HH: Final = 1 << 28

# Queue names of a UserHeader: field, flag, shift of the name type in Flags, allowed name types.
QUEUE_NAME_FIELDS: Final = (
    ("DestinationQueue", "DQ", 10, (0, 3, 5, 7)),
    ("AdminQueue", "AQ", 13, (0, 2, 3, 5, 6, 7)),
    ("ResponseQueue", "RQ", 16, (0, 1, 2, 3, 4, 5, 6, 7)),
)
ADMIN_QUEUE_TYPE_SHIFT: Final = 13
NO_NAME_TYPE, DIRECT_NAME_TYPE = 0, 7
QUEUE_NAME_BYTES: Final = (0, 0, 4, 4, 4, 16, 20, 2)  # by name type; a direct name is longer: 2 is its length field

# TransactionHeader, [MS-MQMQ] 2.2.20.5
TRANSACTION_HEADER: Final = np.dtype(
    [("Flags", "<u4"), ("TxSequenceID", "<u8"), ("TxSequenceNumber", "<u4"), ("PreviousTxSequenceNumber", "<u4")]
)
TRANSACTION_FLAG_CG: Final = 1
TRANSACTION_FLAG_FA: Final = 1 << 1
TRANSACTION_FLAG_FM: Final = 1 << 2
TRANSACTION_FLAG_LM: Final = 1 << 3

# SecurityHeader, [MS-MQMQ] 2.2.20.6
SECURITY_HEADER: Final = np.dtype(
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
SECURITY_FLAG_AU: Final = 1 << 4
SECURITY_FLAG_EB: Final = 1 << 5
SENDER_TYPE_SID: Final = 1
SENDER_TYPE_QUEUE_MANAGER: Final = 2

# MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3, before the label
MESSAGE_PROPERTIES_HEADER: Final = np.dtype(
    [("Flags", "u1"), ("LabelLength", "u1"), ("MessageClass", "<u2"), ("CorrelationID", "u1", (20,)),
     ("BodyType", "<u4"), ("ApplicationTag", "<u4"), ("MessageSize", "<u4"), ("AllocationBodySize", "<u4"),
     ("PrivacyLevel", "<u4"), ("HashAlgorithm", "<u4"), ("EncryptionAlgorithm", "<u4"), ("ExtensionSize", "<u4")]
)  # fmt: skip

# DebugHeader, [MS-MQMQ] 2.2.20.8
DEBUG_HEADER: Final = np.dtype([("Flags", "<u2"), ("Reserved", "<u2")])
DEBUG_PUBLIC_QUEUE: Final = 1  # QT

# [MS-MQRR] 2.2.5.1.2
SRMP_ENVELOPE_HEADER: Final = np.dtype([("HeaderId", "<u2"), ("Reserved", "<u2"), ("DataLength", "<u4")])
COMPOUND_MESSAGE_HEADER: Final = np.dtype(
    [
        ("HeaderId", "<u2"),
        ("Reserved", "<u2"),
        ("HTTPBodySize", "<u4"),
        ("MsgBodySize", "<u4"),
        ("MsgBodyOffset", "<u4"),
    ]
)

# SoapHeader, [MS-MQMQ] 2.2.20.7: two sections of this layout
SOAP_SECTION: Final = np.dtype([("SectionID", "<u2"), ("Reserved", "<u2"), ("DataLength", "<u4")])
SOAP_HEADER_ID: Final = 0x0320
SOAP_BODY_ID: Final = 0x0384

# MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1
FORMAT_NAME_LIST: Final = np.dtype(
    [("HeaderSize", "<u4"), ("HeaderID", "<u2"), ("Reserved", "<u2"), ("ElementCount", "<u4")]
)
FORMAT_NAME_LIST_IDS: Final = (("Destination", 0x0064), ("Administration", 0x00C8), ("Response", 0x012C))
MIN_FORMAT_NAME_BYTES: Final = 4  # a direct name of 0 characters
FORMAT_NAME_ALIGNMENT: Final = 4  # of GUIDs; not of direct names
FORMAT_NAME_PUBLIC: Final = 1  # the types of MQFFormatNameElement, [MS-MQMQ] 2.2.18.1.4
FORMAT_NAME_PRIVATE: Final = 2
FORMAT_NAME_DIRECT: Final = 3
FORMAT_NAME_DISTRIBUTION_LIST: Final = 6
MULTI_QUEUE_SIGNATURE: Final = np.dtype([("ID", "<u2"), ("Reserved", "<u2"), ("Size", "<u4")])
MULTI_QUEUE_SIGNATURE_ID: Final = 0x015E

# Trailing headers, [MS-MQRR] 2.2.5.2 to 2.2.5.5
EXTENSION_HEADER: Final = np.dtype(
    [("HeaderSize", "<u4"), ("RemainingHeadersSize", "<u4"), ("Flags", "u1"), ("R", "u1", (3,))]
)
EXTENSION_FLAG_DL: Final = 1
EXTENSION_FLAG_SQ: Final = 1 << 1
EXTENSION_FLAG_DI: Final = 1 << 3
EXTENSION_FLAG_EA: Final = 1 << 4
SUBQUEUE_HEADER: Final = np.dtype(
    [("HeaderSize", "<u4"), ("Bits", "<u4"), ("AbortCounter", "<u4"), ("MoveCounter", "<u4"), ("LastMoveTime", "<u4")]
)
SUBQUEUE_NAME_BYTES: Final = 64  # of each of the two names that follow: WCHAR[32]
SUBQUEUE_NAMES_BYTES: Final = 2 * SUBQUEUE_NAME_BYTES
DEAD_LETTER_HEADER: Final = np.dtype([("HeaderSize", "<u4")])
EXTENDED_ADDRESS_HEADER: Final = np.dtype(
    [("HeaderSize", "<u4"), ("AddressLength", "<u2"), ("AddressType", "<u2"), ("AddressScope", "<u4"),
     ("Address", "u1", (16,))]
)  # fmt: skip
ADDRESS_TYPE_IPV4: Final = 1
ADDRESS_TYPE_IPV6: Final = 6

# SectionBufferType, [MS-MQRR] 2.2.7
SECTION_FULL_PACKET: Final = 0
SECTION_BINARY_FIRST: Final = 1
SECTION_BINARY_SECOND: Final = 2
SECTION_SRMP_FIRST: Final = 3
SECTION_SRMP_SECOND: Final = 4


class FieldColumn(NamedTuple):
    """A column of ``silver.messages`` that is a number of a header: a field, or the bits of ``mask`` in it.

    Bits are shifted down to bit 0. A boolean column says whether the number is not zero.
    """

    column: str
    header: str
    field: str
    mask: int | None = None


FIELD_COLUMNS: Final = (
    FieldColumn("priority", "BaseHeader", "Flags", 7),
    FieldColumn("traced", "BaseHeader", "Flags", BASE_FLAG_TR),
    FieldColumn("message_ordinal", "UserHeader", "MessageID"),
    FieldColumn("hop_count", "UserHeader", "Flags", USER_FLAGS_RC),
    FieldColumn("journaling", "UserHeader", "Flags", USER_FLAG_JP | USER_FLAG_JN),
    FieldColumn("admin_queue_type", "UserHeader", "Flags", 7 << ADMIN_QUEUE_TYPE_SHIFT),
    FieldColumn("transactional", "UserHeader", "Flags", USER_FLAG_TH),
    FieldColumn("transaction_sequence_id", "TransactionHeader", "TxSequenceID"),
    FieldColumn("transaction_number", "TransactionHeader", "TxSequenceNumber"),
    FieldColumn("previous_transaction_number", "TransactionHeader", "PreviousTxSequenceNumber"),
    FieldColumn("transaction_index", "TransactionHeader", "Flags", 0xFFFFF << 4),
    FieldColumn("final_acknowledgement_requested", "TransactionHeader", "Flags", TRANSACTION_FLAG_FA),
    FieldColumn("first_in_transaction", "TransactionHeader", "Flags", TRANSACTION_FLAG_FM),
    FieldColumn("last_in_transaction", "TransactionHeader", "Flags", TRANSACTION_FLAG_LM),
    FieldColumn("authenticated", "SecurityHeader", "Flags", SECURITY_FLAG_AU),
    FieldColumn("encrypted", "SecurityHeader", "Flags", SECURITY_FLAG_EB),
    FieldColumn("signed", "SecurityHeader", "SignatureSize"),
    FieldColumn("sender_certificate_bytes", "SecurityHeader", "SenderCertSize"),
    FieldColumn("acknowledgement_requested", "MessagePropertiesHeader", "Flags", 0x0F),
    FieldColumn("class", "MessagePropertiesHeader", "MessageClass"),
    FieldColumn("body_type", "MessagePropertiesHeader", "BodyType"),
    FieldColumn("app_specific", "MessagePropertiesHeader", "ApplicationTag"),
    FieldColumn("privacy_level", "MessagePropertiesHeader", "PrivacyLevel"),
    FieldColumn("hash_algorithm", "MessagePropertiesHeader", "HashAlgorithm"),
    FieldColumn("encryption_algorithm", "MessagePropertiesHeader", "EncryptionAlgorithm"),
)
SUBQUEUE_COUNTERS: Final = (
    FieldColumn("abort_count", "SubqueueHeader", "AbortCounter"),
    FieldColumn("move_count", "SubqueueHeader", "MoveCounter"),
)
