"""Names of management properties, PROPVARIANT types and connection states, by number; the texts of properties."""

from __future__ import annotations

from typing import Final

# PROPID_MGMT_MSMQ_*, [MS-MQMQ] 2.3.11
MACHINE_PROPERTY_NAMES: Final = {
    1: "ACTIVEQUEUES",
    2: "PRIVATEQ",
    3: "DSSERVER",
    4: "CONNECTED",
    5: "TYPE",
    6: "BYTES_IN_ALL_QUEUES",
}

# PROPID_MGMT_QUEUE_*, [MS-MQMQ] 2.3.12
QUEUE_PROPERTY_NAMES: Final = {
    1: "PATHNAME",
    2: "FORMATNAME",
    3: "TYPE",
    4: "LOCATION",
    5: "XACT",
    6: "FOREIGN",
    7: "MESSAGE_COUNT",
    8: "BYTES_IN_QUEUE",
    9: "JOURNAL_MESSAGE_COUNT",
    10: "BYTES_IN_JOURNAL",
    11: "STATE",
    12: "NEXTHOPS",
    13: "EOD_LAST_ACK",
    14: "EOD_LAST_ACK_TIME",
    15: "EOD_LAST_ACK_COUNT",
    16: "EOD_FIRST_NON_ACK",
    17: "EOD_LAST_NON_ACK",
    18: "EOD_NEXT_SEQ",
    19: "EOD_NO_READ_COUNT",
    20: "EOD_NO_ACK_COUNT",
    21: "EOD_RESEND_TIME",
    22: "EOD_RESEND_INTERVAL",
    23: "EOD_RESEND_COUNT",
    24: "EOD_SOURCE_INFO",
    25: "CONNECTION_HISTORY",
    26: "SUBQUEUE_COUNT",
    27: "SUBQUEUE_NAMES",
}

# The texts that properties have, by object type and number, [MS-MQMQ] 2.3.11 and 2.3.12, [MS-MQMR] 3.1.4.1: in upper
# case, for letter case does not matter.
_YES_OR_NO: Final = frozenset({"YES", "NO", "UNKNOWN"})
PROPERTY_TEXTS: Final = {
    ("machine", 4): frozenset({"CONNECTED", "DISCONNECTED"}),
    ("queue", 3): frozenset({"PUBLIC", "PRIVATE", "MACHINE", "CONNECTOR", "MULTICAST"}),
    ("queue", 4): frozenset({"LOCAL", "REMOTE"}),
    ("queue", 5): _YES_OR_NO,
    ("queue", 6): _YES_OR_NO,
    ("queue", 11): frozenset(
        {"LOCAL CONNECTION", "INACTIVE", "WAITING", "NEED VALIDATION", "ONHOLD", "CONNECTED", "DISCONNECTING",
         "DISCONNECTED", "LOCKED"}
    ),
}  # fmt: skip
# Actions of R_QMMgmtAction, [MS-MQMR] 3.1.4.2, likewise.
MACHINE_ACTIONS: Final = frozenset({"CONNECT", "DISCONNECT", "TIDY"})
QUEUE_ACTIONS: Final = frozenset({"PAUSE", "RESUME", "EOD_RESEND"})

_NAMES_BY_OBJECT_TYPE: Final = {
    "machine": ("PROPID_MGMT_MSMQ_", MACHINE_PROPERTY_NAMES),
    "queue": ("PROPID_MGMT_QUEUE_", QUEUE_PROPERTY_NAMES),
}

# Types of PROPVARIANT, [MS-MQMQ] 2.2.12
_VT_NAMES: Final = {
    0: "VT_EMPTY",
    1: "VT_NULL",
    2: "VT_I2",
    3: "VT_I4",
    11: "VT_BOOL",
    12: "VT_VARIANT",
    16: "VT_I1",
    17: "VT_UI1",
    18: "VT_UI2",
    19: "VT_UI4",
    20: "VT_I8",
    21: "VT_UI8",
    31: "VT_LPWSTR",
    65: "VT_BLOB",
    72: "VT_CLSID",
}
_VT_VECTOR: Final = 0x1000

# Connection states: names of [MS-MQDMPR] 3.1.1.3 in the order of the numbers in [MS-MQMQ] 2.3.12.25.
CONNECTION_STATUS_PROPERTY: Final = {
    0x00000000: "InProcess",
    0x00000001: "EstablishPacketReceived",
    0x00000002: "Established",
    0x80000000: "UnknownFailure",
    0x80000001: "PingFailure",
    0x80000002: "SocketCreateFailure",
    0x80000003: "SocketBindFailure",
    0x80000004: "SocketConnectFailure",
    0x80000005: "TcpNotEnabled",
    0x80000006: "SocketSendFailure",
    0x80000007: "ConnectionNotReady",
    0x80000008: "DnsFailure",
    0x80000009: "CertificateValidationFailure",
    0x8000000A: "ConnectionLimitReached",
    0x8000000B: "ConnectionRefused",
    0x8000000C: "RoutingDataNotAvailable",
    0x8000000D: "LowResource",
}


def property_name(object_type: str | None, number: int) -> str:
    """Return a property's full name, like ``PROPID_MGMT_QUEUE_STATE``, or ``0x`` and 8 upper-case hex digits."""
    prefix, names = _NAMES_BY_OBJECT_TYPE.get(object_type or "", ("", {}))
    name = names.get(number)
    return prefix + name if name else f"0x{number % (1 << 32):08X}"


def property_column_name(object_type: str | None, number: int) -> str:
    """Return the column of a property in the snapshot tables, like ``state``, or ``0x`` and 8 upper-case hex digits."""
    name = _NAMES_BY_OBJECT_TYPE.get(object_type or "", ("", {}))[1].get(number)
    return name.lower() if name else f"0x{number % (1 << 32):08X}"


def propvariant_type_name(vt: int) -> str:
    """Return the name of a PROPVARIANT type, like ``VT_VECTOR|VT_LPWSTR``, or ``0x`` and 4 upper-case hex digits."""
    name = _VT_NAMES.get(vt & ~_VT_VECTOR)
    if name is None or vt < 0 or (vt & _VT_VECTOR and vt & ~_VT_VECTOR in (0, 1)):
        return f"0x{vt % (1 << 16):04X}"
    return f"VT_VECTOR|{name}" if vt & _VT_VECTOR else name
