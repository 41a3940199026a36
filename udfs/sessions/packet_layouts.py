"""Layouts of the binary protocol's own packets, [MS-MQQB] 2.2: numpy record types, flags, sizes. Little-endian.

Offsets and sizes are bytes. BaseHeader and UserHeader are those of ``udfs.messages.header_layouts``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.messages.header_layouts import (
    BASE_HEADER,
    MESSAGE_PROPERTIES_HEADER,
    QUEUE_NAME_BYTES,
    SESSION_HEADER_BYTES,
    TRANSACTION_HEADER,
    USER_HEADER,
    FieldColumn,
)

# What lies at the beginning of internal packets: BaseHeader, then InternalHeader, [MS-MQQB] 2.2.1
INTERNAL_HEADER: Final = np.dtype([("Reserved", "<u2"), ("Flags", "<u2")])
PACKET_TYPE_MASK: Final = 0x0F  # PT
CONNECTION_REFUSED: Final = 1 << 4  # CS
INTERNAL_PACKET_BYTES: Final = BASE_HEADER.itemsize + INTERNAL_HEADER.itemsize  # before what is a packet's own

# EstablishConnectionHeader without its padding, [MS-MQQB] 2.2.3
ESTABLISH_CONNECTION_HEADER: Final = np.dtype(
    [("ClientGuid", "u1", (16,)), ("ServerGuid", "u1", (16,)), ("TimeStamp", "<u4"), ("OperatingSystem", "<u2"),
     ("Reserved", "<u2")]
)  # fmt: skip
ESTABLISH_CONNECTION_BYTES: Final = 572
ESTABLISH_PADDING_AT: Final = 60
ESTABLISH_PADDING: Final = b"\x5a" * (ESTABLISH_CONNECTION_BYTES - ESTABLISH_PADDING_AT)  # of answers
RELEASE_MASK: Final = 0xFF  # RE of OperatingSystem, 0x10
RELEASE: Final = 0x10
NOT_PINGED: Final = 1 << 8  # SE
SERVER_CLASS: Final = 1 << 9  # OS

# ConnectionParametersHeader, [MS-MQQB] 2.2.2
CONNECTION_PARAMETERS_HEADER: Final = np.dtype(
    [("RecoverableAckTimeout", "<u4"), ("AckTimeout", "<u4"), ("Reserved", "<u2"), ("WindowSize", "<u2")]
)
CONNECTION_PARAMETERS_BYTES: Final = 32
SESSION_ACK_BYTES: Final = INTERNAL_PACKET_BYTES + SESSION_HEADER_BYTES  # [MS-MQQB] 2.2.6

# Ping, [MS-MQQB] 2.2.7: UDP port 3527
PING: Final = np.dtype([("Flags", "<u2"), ("Signature", "<u2"), ("Cookie", "<u4"), ("QMGuid", "u1", (16,))])
PING_SIGNATURE: Final = 0x5548
PING_FLAG_RC: Final = 1  # the request of a workstation
PING_FLAG_RF: Final = 1 << 1  # refused

# Bodies of OrderAck and FinalAck, [MS-MQQB] 2.2.4.1 and 2.2.5.1. An OrderAck has reserved bytes behind the numbers.
ACKNOWLEDGED_SEQUENCE: Final = np.dtype(
    [("TxSequenceID", "<u8"), ("TxSequenceNumber", "<u4"), ("TxPreviousSequenceNumber", "<u4")]
)
ACKNOWLEDGED_MESSAGE: Final = np.dtype([("SourceGUID", "u1", (16,)), ("MessageID", "<u4")])
ACKNOWLEDGEMENT_COLUMNS: Final = (
    FieldColumn("transaction_sequence_id", "AcknowledgedSequence", "TxSequenceID"),
    FieldColumn("transaction_number", "AcknowledgedSequence", "TxSequenceNumber"),
    FieldColumn("previous_transaction_number", "AcknowledgedSequence", "TxPreviousSequenceNumber"),
)
ACKNOWLEDGEMENT_BODY_BYTES: Final = ACKNOWLEDGED_SEQUENCE.itemsize + ACKNOWLEDGED_MESSAGE.itemsize

# The smallest packets that carry a message: BaseHeader, UserHeader with the name of a queue, MessagePropertiesHeader.
_MIN_USER_HEADER_BYTES: Final = USER_HEADER.itemsize + min(filter(None, QUEUE_NAME_BYTES))
MIN_MESSAGE_BYTES: Final = BASE_HEADER.itemsize + _MIN_USER_HEADER_BYTES + MESSAGE_PROPERTIES_HEADER.itemsize
MIN_TRANSACTIONAL_BYTES: Final = MIN_MESSAGE_BYTES + TRANSACTION_HEADER.itemsize
MIN_ACKNOWLEDGEMENT_BYTES: Final = MIN_MESSAGE_BYTES + ACKNOWLEDGEMENT_BODY_BYTES

DECODER_VERSION: Final = "1"
"""The version of the decoders of this folder: raised when they give other values."""
