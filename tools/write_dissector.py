"""Write msmq.lua, the dissector for Wireshark: what the decoders declare, and the Lua files of ``tools/dissector``.

Filters have the names of columns: ``msmq.label``. A field of a header that is no column is called by its header and its
name: ``msmq.user.time_to_be_received``. All text is ASCII, and all Lua is what 5.2 and 5.4 have in common.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SESSION_HEADER, SESSION_PACKETS
from schemas.table import TIMESTAMP, UINT64, Table
from udfs import codes
from udfs.comqc import container_layout
from udfs.dcerpc import interfaces, pdu_headers
from udfs.dcerpc.interfaces import MSMQ_INTERFACES, TRANSFER_SYNTAX_NAMES
from udfs.messages import header_layouts, report_messages
from udfs.messages.header_layouts import FieldColumn
from udfs.queues import queue_format
from udfs.sessions import packet_headers, packet_layouts, packet_rows, pings
from udfs.stubs.idl import OBJECT_TYPES, QUEUE_FORMAT_ARMS, READ_DESC_MEMBERS, NdrType, Parameter
from udfs.stubs.method_registry import ALL_METHODS

Lua = None | bool | int | str | bytes | list["Lua"] | dict[str | int, "Lua"]
Row = dict[str, Any]  # of a table of the Lua file
PARTS = Path(__file__).parent / "dissector"
PART_NAMES = ("reading", "names", "packets", "fields", "messages", "sessions", "stubs", "calls")  # in the order of use
FIRST_LINE = "-- msmq.lua, the Message Queuing (MSMQ) dissector of msmq-lakehouse."

# Headers by the name that filters have, with the layout and the prefix of the constants that name bits of Flags.
HEADERS = {
    "BaseHeader": (header_layouts.BASE_HEADER, header_layouts, "BASE_FLAG_"),
    "UserHeader": (header_layouts.USER_HEADER, header_layouts, "USER_FLAG_"),
    "TransactionHeader": (header_layouts.TRANSACTION_HEADER, header_layouts, "TRANSACTION_FLAG_"),
    "SecurityHeader": (header_layouts.SECURITY_HEADER, header_layouts, "SECURITY_FLAG_"),
    "MessagePropertiesHeader": (header_layouts.MESSAGE_PROPERTIES_HEADER, None, ""),
    "DebugHeader": (header_layouts.DEBUG_HEADER, None, ""),
    "SRMPEnvelopeHeader": (header_layouts.SRMP_ENVELOPE_HEADER, None, ""),
    "CompoundMessageHeader": (header_layouts.COMPOUND_MESSAGE_HEADER, None, ""),
    "SoapHeader": (header_layouts.SOAP_SECTION, None, ""),
    "FormatNameList": (header_layouts.FORMAT_NAME_LIST, None, ""),
    "MultiQueueSignature": (header_layouts.MULTI_QUEUE_SIGNATURE, None, ""),
    "SessionHeader": (header_layouts.SESSION_HEADER, None, ""),
    "ExtensionHeader": (header_layouts.EXTENSION_HEADER, header_layouts, "EXTENSION_FLAG_"),
    "SubqueueHeader": (header_layouts.SUBQUEUE_HEADER, None, ""),
    "DeadLetterHeader": (header_layouts.DEAD_LETTER_HEADER, None, ""),
    "ExtendedAddressHeader": (header_layouts.EXTENDED_ADDRESS_HEADER, None, ""),
    "InternalHeader": (packet_layouts.INTERNAL_HEADER, None, ""),
    "EstablishConnectionHeader": (packet_layouts.ESTABLISH_CONNECTION_HEADER, None, ""),
    "ConnectionParametersHeader": (packet_layouts.CONNECTION_PARAMETERS_HEADER, None, ""),
    "AcknowledgedSequence": (packet_layouts.ACKNOWLEDGED_SEQUENCE, None, ""),
    "AcknowledgedMessage": (packet_layouts.ACKNOWLEDGED_MESSAGE, None, ""),
    "Ping": (packet_layouts.PING, packet_layouts, "PING_FLAG_"),
}
# Fields of other types than numbers that are columns, as they are.
OTHER_COLUMNS = {
    ("BaseHeader", "VersionNumber"): (SESSION_PACKETS, "version"),
    ("BaseHeader", "Flags"): (SESSION_PACKETS, "flags"),
    ("BaseHeader", "PacketSize"): (SESSION_PACKETS, "packet_size"),
    ("UserHeader", "SourceQueueManager"): (MESSAGES, "source_queue_manager"),
    ("UserHeader", "SentTime"): (MESSAGES, "sent_at"),
    ("AcknowledgedMessage", "MessageID"): (ORDER_ACKS, "acknowledged_ordinal"),
}
NUMBER_COLUMNS = (
    *header_layouts.FIELD_COLUMNS, *header_layouts.SUBQUEUE_COUNTERS, *packet_layouts.ACKNOWLEDGEMENT_COLUMNS
)  # fmt: skip
GUID_FIELDS = {"SourceQueueManager", "QueueManagerAddress", "ClientGuid", "ServerGuid", "SourceGUID", "QMGuid"}
# Columns that the Lua files compute.
COMPUTED_COLUMNS = {
    MESSAGES: (
        "message_id", "queue_manager_address", "destination_queue_manager", "correlation_id", "message_kind",
        "class_name", "delivery", "label", "body_bytes", "body_bytes_seen", "body", "body_complete",
        "extension", "is_comqc", "destination_queue", "admin_queue", "response_queue", "destination_list",
        "admin_list", "response_list", "report_queue", "connector_type", "connector_queue_manager",
        "sender_id", "sender_address", "soap_header", "soap_body_bytes", "subqueue", "target_subqueue",
        "dead_letter_queue", "subqueue_acknowledgement_class", "time_to_reach_queue_s",
        "time_to_be_received_s", "is_srmp", "session_number", "recoverable_number", "seen_in",
    ),
    ORDER_ACKS: ("acknowledged_message_id",),
    SESSION_PACKETS: ("kind",),
    REMOTE_READ_CALLS: (
        "protocol", "method", "opnum", "call_id", "queue_format_type", "queue_format_name", "queue", "action_name",
        "ack_name", "hresult_name", "fault_name", "packet_bytes", "section_types", "section_bytes",
        "section_allocated_bytes",
    ),
    CLIENT_CALLS: ("interface_name",),
    MANAGEMENT_CALLS: ("object_type",),
}  # fmt: skip
CODE_NAMES = {
    "class": codes.MESSAGE_CLASS_NAMES,
    "hresult": codes.RESULT_NAMES,
    "fault_status": codes.RESULT_NAMES,
    "action": codes.ACTION_NAMES,
    "ack": codes.ACK_NAMES,
    "share_mode": codes.SHARE_MODE_NAMES,
    "internal.packet_type": dict(enumerate(packet_rows.PACKET_KINDS[: packet_headers.CONNECTION_PARAMETERS + 1])),
}
SHOWN_AS_HEX = {"flags", "hresult", "fault_status", "class", "action", "access", "signature"}
# Constants that the Lua files use, by their names in the modules.
CONSTANTS = {
    header_layouts: (
        "PACKET_VERSION", "PACKET_SIGNATURE", "MAX_PACKET_BYTES", "BASE_FLAG_IN", "BASE_FLAG_SH", "BASE_FLAG_DH",
        "USER_FLAG_SH", "USER_FLAG_TH", "USER_FLAG_MP", "USER_FLAG_CQ", "USER_FLAG_MQ", "USER_FLAG_AH", "USER_FLAG_HH",
        "TRANSACTION_FLAG_CG", "SECURITY_FLAG_EB", "EXTENSION_FLAG_SQ", "EXTENSION_FLAG_DL", "EXTENSION_FLAG_EA",
        "DIRECT_NAME_TYPE", "INFINITE_TIMEOUT", "SENDER_TYPE_SID", "SENDER_TYPE_QUEUE_MANAGER", "SOAP_HEADER_ID",
        "SOAP_BODY_ID", "MULTI_QUEUE_SIGNATURE_ID", "SUBQUEUE_NAME_BYTES", "ADDRESS_TYPE_IPV4", "ADDRESS_TYPE_IPV6",
        "DEBUG_PUBLIC_QUEUE", "FORMAT_NAME_PUBLIC", "FORMAT_NAME_PRIVATE", "FORMAT_NAME_DIRECT",
        "FORMAT_NAME_DISTRIBUTION_LIST", "FORMAT_NAME_ALIGNMENT", "MIN_FORMAT_NAME_BYTES", "SECTION_FULL_PACKET",
        "SECTION_BINARY_FIRST", "SECTION_SRMP_FIRST", "PROTOCOL_REMOTE_READ", "PROTOCOL_QM2QM", "PROTOCOL_BINARY",
    ),
    packet_layouts: (
        "ESTABLISH_CONNECTION_BYTES", "CONNECTION_PARAMETERS_BYTES", "SESSION_ACK_BYTES", "PING_SIGNATURE",
        "ESTABLISH_PADDING_AT",
    ),
    packet_headers: (
        "MIN_STEP_BYTES", "MIN_SEARCH_BYTES", "CHECKED_HEADER_BYTES", "SESSION_ACK", "ESTABLISH_CONNECTION",
        "CONNECTION_PARAMETERS", "MIN_PACKET_BYTES", "MIN_MESSAGE_BYTES",
    ),
    pdu_headers: (
        "REQUEST", "RESPONSE", "FAULT", "BIND", "BIND_ACK", "BIND_NAK", "ALTER_CONTEXT", "ALTER_CONTEXT_RESP",
        "FIRST_FRAG", "LAST_FRAG", "OBJECT_UUID", "PDU_HEADER_BYTES",
    ),
    codes: ("NEGATIVE_CLASS_BIT", "MQMSG_CLASS_REPORT", "MQMSG_CLASS_ORDER_ACK"),
    pings: ("PING_PORT",),
    interfaces: ("BINARY_PROTOCOL_PORT",),
    container_layout: ("COMQC_EXTENSION",),
}  # fmt: skip
_INTEGERS = {"u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64"}
_NDR_KINDS = {
    NdrType.U8: "uint8", NdrType.U16: "uint16", NdrType.U32: "uint32", NdrType.U64: "uint64", NdrType.ENUM: "uint32",
    NdrType.BOOL: "bool", NdrType.GUID: "guid", NdrType.UOW: "guid", NdrType.CONTEXT: "bytes",
}  # fmt: skip


def snake_case(name: str) -> str:
    """Return a name of the specifications as filters have it: ``TxSequenceID`` is ``tx_sequence_id``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().replace(".", "_")


def lua_text(value: Lua) -> str:
    """Return a value as Lua: None, booleans, numbers, texts, bytes, lists, dicts."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return '"' + "".join(f"\\{octet:03d}" for octet in value) + '"'
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_lua_key(key)} = {lua_text(each)}" for key, each in value.items()) + "}"
    return "{" + ", ".join(map(lua_text, value)) + "}"


def _lua_key(key: str | int) -> str:
    return key if isinstance(key, str) and key.isidentifier() else f"[{lua_text(key)}]"


class Fields:
    """The fields that filters name, each declared once: a row each, by abbreviation."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, name: str, kind: str, label: str, text: str = "", more: Row | None = None) -> str:
        """Declare a field, of one type, with ``more`` of its row; return its abbreviation."""
        abbreviation = f"msmq.{name}"
        row = {"abbr": abbreviation, "type": kind, "label": label, "text": text}
        if name in CODE_NAMES:
            row["names"] = name
        if name in SHOWN_AS_HEX or name.rpartition(".")[2] in SHOWN_AS_HEX:
            row["hex"] = True
        row |= more or {}
        known = self.rows.setdefault(abbreviation, row)
        if known["type"] != kind:  # of a number, the widest type that the wire has for it
            known["type"] = max(known["type"], kind, key=list(_INTEGERS.values()).index)
        return abbreviation

    def add_column(self, table: Table, column: str, kind: str | None = None, more: Row | None = None) -> str:
        """Declare the field of a column: its type by that of the column, unless the wire has another."""
        found = table.column(column)
        return self.add(column, kind or _column_kind(found.type), column.replace("_", " "), found.comment, more)


def _column_kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return "bool"
    if kind in (TIMESTAMP, UINT64):
        return "absolute_time" if kind == TIMESTAMP else "uint64"
    if pa.types.is_binary(kind):
        return "bytes"
    return "uint32" if pa.types.is_integer(kind) else "string"


def declare_headers(fields: Fields) -> dict[str, Row]:
    """Return size and fields of each header: name, abbreviation, offset, bytes, and the fields of its bits."""
    headers = {}
    for header, (layout, module, prefix) in HEADERS.items():
        rows = []
        for name, (kind, at) in layout.fields.items():
            columns = [each for each in NUMBER_COLUMNS if (each.header, each.field) == (header, name)]
            row = {"name": name, "abbr": _declare_field(fields, header, name, kind, columns)}
            row |= {"at": at, "size": kind.itemsize}
            flags = _flags(module, prefix) if name == "Flags" and module is not None else {}
            if bits := _declare_bits(fields, header, kind, columns, flags):
                row["bits"] = bits
            for column in columns:
                if column.mask is None and _is_flag(column):
                    row["is_set"] = fields.add_column(MESSAGES, column.column)
            rows.append(row)
        headers[header] = {"size": layout.itemsize, "fields": rows}
    return headers


def _declare_bits(
    fields: Fields, header: str, kind: np.dtype, columns: list[FieldColumn], flags: dict[str, int]
) -> list[str]:
    """Declare the columns that are bits of a field, and the flags that are no column."""
    names, seen, bits = [], 0, 8 * kind.itemsize
    for each in columns:
        if each.mask is not None:
            seen |= each.mask
            own = "bool" if _is_flag(each) else _INTEGERS[kind.str[1:]]
            names.append(fields.add_column(MESSAGES, each.column, own, {"mask": each.mask, "bits": bits}))
    for flag, mask in flags.items():
        if not mask & seen:
            name = f"{_short(header)}.flags.{flag.lower()}"
            names.append(fields.add(name, "bool", flag, "", {"mask": mask, "bits": bits}))
    return names


def _declare_field(fields: Fields, header: str, name: str, kind: np.dtype, columns: list[FieldColumn]) -> str:
    octets = "guid" if name in GUID_FIELDS else "bytes"
    own = _INTEGERS[kind.str[1:]] if kind.subdtype is None else octets
    if (header, name) in OTHER_COLUMNS:
        table, column = OTHER_COLUMNS[header, name]
        return fields.add_column(table, column, "absolute_time" if table.column(column).type == TIMESTAMP else own)
    for each in columns:
        if each.mask is None and not _is_flag(each):
            return fields.add_column(MESSAGES, each.column, own)
    label = name
    if header == "SessionHeader" and name != "Reserved":
        name = SESSION_HEADER[header_layouts.SESSION_HEADER.names.index(name)].name
    return fields.add(f"{_short(header)}.{snake_case(name)}", own, label)


def _short(header: str) -> str:
    """Return the name of a header in filters; the session header has that of its column."""
    return "session_header" if header == "SessionHeader" else snake_case(header.removesuffix("Header"))


def _is_flag(column: FieldColumn) -> bool:
    return pa.types.is_boolean(MESSAGES.column(column.column).type)


def _flags(module: ModuleType, prefix: str) -> dict[str, int]:
    """Return the constants of a module that name bits, without the prefix of their names."""
    return {name.removeprefix(prefix): value for name, value in vars(module).items() if name.startswith(prefix)}


def declare_parameters(fields: Fields, parameters: Iterable[Parameter], *, shown: bool = True) -> list[Row]:
    """Return the parameters of one direction of a method, or members, as Lua reads them."""
    rows = []
    for each in parameters:
        row: Row = {"name": each.name, "type": each.ndr_type.value}
        if shown and each.ndr_type in _NDR_KINDS:
            kind = _NDR_KINDS[each.ndr_type]
            table = next((one for one in _CALL_TABLES if each.column in one.schema().names), None)
            if table is not None and each.column is not None:
                row["abbr"] = fields.add_column(table, each.column, kind)
            else:
                name = each.column or f"parameter.{snake_case(each.name)}"
                row["abbr"] = fields.add(name, kind, each.name)
        if each.size_is:
            row["size_is"] = each.size_is
        if each.column == "queue":
            row["is_queue"] = True
        rows.append(row)
    return rows


_CALL_TABLES = (REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS)


def declare_interfaces(fields: Fields) -> dict[str, Row]:
    """Return the interfaces by UUID: name, and by opnum the methods with the parameters of both directions."""
    found = {}
    for interface in MSMQ_INTERFACES:
        methods: dict[int, Row] = {opnum: {"name": name} for opnum, name in enumerate(interface.methods)}
        for opnum, method in ALL_METHODS[interface.name].items():
            for side in ("request", "response"):
                methods[opnum][side] = declare_parameters(fields, method.parameters(side))
        found[interface.uuid] = {"name": interface.name, "methods": methods}
    return found


def tables() -> Row:
    """Return the tables of the Lua file, by name."""
    fields = Fields()
    for table, columns in COMPUTED_COLUMNS.items():
        for column in columns:
            fields.add_column(table, column)
    for each in report_messages.REPORT_TYPE:
        fields.add(f"report.{each.name}", _column_kind(each.type), each.name.replace("_", " "))
    fields.add("management_action", "string", "action", MANAGEMENT_CALLS.column("action").comment)
    fields.add("fault_status", "uint32", "fault status", RPC_CALLS.column("fault_status").comment)
    return {
        "constants": {name: getattr(module, name) for module, names in CONSTANTS.items() for name in names},
        "names": CODE_NAMES,
        "acknowledgement_classes": dict.fromkeys(sorted(codes.RECEIVE_ACKNOWLEDGEMENTS), True),
        "positive_acknowledgements": dict.fromkeys(codes.POSITIVE_ACKNOWLEDGEMENTS, True),
        "queue_names": [
            {"name": name, "flag": flag, "shift": shift, "allowed": dict.fromkeys(allowed, True)}
            for name, flag, shift, allowed in header_layouts.QUEUE_NAME_FIELDS
        ],
        "queue_name_bytes": dict(enumerate(header_layouts.QUEUE_NAME_BYTES)),
        "security_items": header_layouts.SECURITY_ITEMS,
        "format_name_lists": header_layouts.FORMAT_NAME_LIST_IDS,
        "object_types": OBJECT_TYPES,
        "queue_suffixes": queue_format.SUFFIX_TEXTS,
        "queue_kinds": queue_format.KIND_NAMES,
        "queue_format_arms": {
            tag: {"members": declare_parameters(fields, members, shown=False), "text": text is not None}
            for tag, (members, text) in QUEUE_FORMAT_ARMS.items()
        },
        "transfer_syntaxes": TRANSFER_SYNTAX_NAMES,
        "headers": declare_headers(fields),
        "read_desc_members": declare_parameters(fields, READ_DESC_MEMBERS),
        "interfaces": declare_interfaces(fields),
        "fields": list(fields.rows.values()),  # the last one: now all are declared
    }


def declarations() -> str:
    """Return the table ``declared`` of the Lua file, a line for each row."""
    lines = ["-- What the decoders declare.", "local declared = {}"]
    for name, value in tables().items():
        rows = value.items() if isinstance(value, dict) else ((None, each) for each in value)
        lines.append(f"declared.{name} = {{")
        lines += [f"  {'' if key is None else f'{_lua_key(key)} = '}{lua_text(each)}," for key, each in rows]
        lines.append("}")
    return "\n".join(lines) + "\n"


def dissector() -> str:
    """Return the text of msmq.lua."""
    parts = [
        f"{FIRST_LINE}\n-- Made by tools/write_dissector.py. Install it with: msmq wireshark --install\n",
        declarations(),
        *((PARTS / f"{name}.lua").read_text(encoding="utf-8") for name in PART_NAMES),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(dissector(), encoding="ascii")
