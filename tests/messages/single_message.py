"""Decode one message packet in plain Python. Slow and simple: the reference for tests of the column decoder.

It shares no reading code with the column decoder; an exception ends the header chain.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final

from messages.single_message_headers import FieldError, OptionalHeaderReader, PacketCursor
from udfs import codes
from udfs.comqc.container_layout import COMQC_EXTENSION
from udfs.errors import MALFORMED, DecodeError, MalformedError, TruncatedError, UnsupportedError
from udfs.keys import key
from udfs.messages.header_layouts import PROTOCOL_BINARY, PROTOCOL_REMOTE_READ
from udfs.messages.name_columns import (
    direct_queue_name,
    ip_address_text,
    numbered_queue_name,
    queue_manager_guid,
)
from udfs.messages.report_messages import parse_report
from udfs.sids import sid_text

_INFINITE_TIMEOUT: Final = 0xFFFF_FFFF
_QUEUE_NAME_BYTES: Final = {0: 0, 1: 0, 2: 4, 3: 4, 4: 4, 5: 16, 6: 20}


class _SingleMessage(OptionalHeaderReader):
    """One packet and its decoded values: ``row`` holds them by column of ``silver.messages``."""

    def __init__(self, packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None) -> None:
        self.cursor, self.protocol, self.row = PacketCursor(packet), protocol, dict[str, Any]()
        self.rpc, self.remote_read = protocol != PROTOCOL_BINARY, protocol == PROTOCOL_REMOTE_READ
        self.section_type, self.first_section_end, self.missing_bytes = 0, len(packet), 0
        self.section_error: FieldError | None = None
        if sections and self.remote_read:  # other protocols have none
            self.section_error = _check_sections(sections, len(packet))
            kind, size, allocated = sections[0]
            if kind:
                self.section_type, self.first_section_end = kind, min(size, len(packet))
                self.missing_bytes = max(allocated - size, 0)
                self.cursor.end = self.first_section_end
        self.other_span = self.has_two_body_sizes = False
        self.deferred_errors: list[DecodeError] = []  # soft errors that come after those of the chain
        self.flags = self.packet_size = self.session_header_bytes = 0

    def read_headers(self) -> None:
        self.read_base_header()
        self.read_user_header()
        if self.flags & 1 << 20:
            self.read_transaction_header()
        encrypted = bool(self.flags & 1 << 19) and self.read_security_header()
        if self.flags & 1 << 21:
            self.read_properties_header(encrypted=encrypted)
        else:
            self.cursor.add_nonfatal_error(MalformedError("UserHeader.Flags.MP", 60))
        if self.base_flags & 1 << 5:
            self.cursor.mark_header_start("DebugHeader")
            (flags, _) = self.cursor.unpack("<HH", "DebugHeader")
            if flags & 3 == 1:
                raw = self.cursor.read_bytes(16, "DebugHeader.QueueIdentifier")
                self.row["report_queue"] = f"public={queue_manager_guid(raw)}"
        srmp = bool(self.flags & 1 << 25) and self.rpc
        if srmp:
            self.read_srmp_headers()
        elif self.section_type == 3:
            raise MalformedError("SectionBufferType", 0)
        if self.flags & 1 << 28:
            self.read_soap_header()
        if self.flags & 1 << 23:
            self.read_multi_queue_header()
        self.read_headers_after_message()

    def read_base_header(self) -> None:
        cursor, row = self.cursor, self.row
        cursor.mark_header_start("BaseHeader")
        version, _, flags, signature, size, reach = cursor.unpack("<BBHIII", "BaseHeader")
        if version != 0x10:
            raise MalformedError("BaseHeader.VersionNumber", 0)
        if signature != 0x524F494C:
            raise MalformedError("BaseHeader.Signature", 4)
        if flags & 8:
            raise UnsupportedError("BaseHeader.Flags.IN", 2)
        self.base_flags, self.packet_size, self.time_to_reach_queue = flags, size, reach
        if not self.rpc:
            cursor.end = min(cursor.end, size + (16 if flags & 16 else 0))
        row |= {"priority": flags & 7, "traced": bool(flags & 1 << 8)}
        row["header_sizes"] = {}

    def read_user_header(self) -> None:
        cursor, row = self.cursor, self.row
        cursor.mark_header_start("UserHeader")
        source, manager, received, sent, ordinal, flags = cursor.unpack("<16s16sIIII", "UserHeader")
        self.flags, self.sent_time = flags, sent
        name = queue_manager_guid(source)
        row |= {"source_queue_manager": name, "message_ordinal": ordinal, "message_id": f"{name}\\{ordinal}"}
        row["sent_at"] = sent * 1_000_000 or None
        row["time_to_be_received_s"] = None if received == _INFINITE_TIMEOUT else received
        row["time_to_reach_queue_s"] = self.relative_lifetime(self.time_to_reach_queue)
        row["delivery"] = {0: "express", 1: "recoverable"}.get(flags >> 5 & 3)
        row["journaling"] = (flags >> 9 & 1) * 2 + (flags >> 8 & 1)
        row |= {"hop_count": flags & 31, "admin_queue_type": flags >> 13 & 7}
        row["is_srmp"] = bool(flags & 1 << 25) and self.rpc
        row["transactional"] = bool(flags & 1 << 20)
        if not flags & 1 << 19:
            row |= {"authenticated": False, "signed": False, "encrypted": False, "sender_certificate_bytes": 0}
        kinds = [flags >> shift & 7 for shift in (10, 13, 16)]
        overlaid = self.remote_read and kinds[0] == 7
        if not overlaid and any(manager):
            row["queue_manager_address"] = queue_manager_guid(manager)
            row["destination_queue_manager"] = None if self.rpc else queue_manager_guid(manager)
        if overlaid:
            near = manager[2:4] == b"\1\0"
            row["sender_address"] = ip_address_text(b"\1" + manager[8:12] + bytes(12)) if near else None
            manager = bytes(16)
        self.read_queue_names(kinds, source, manager)
        if flags & 1 << 22:
            row["connector_type"] = queue_manager_guid(cursor.read_bytes(16, "UserHeader.ConnectorType"))
        row["message_key"] = key(name, ordinal, row["sent_at"])

    def relative_lifetime(self, reach: int) -> int | None:
        if reach == _INFINITE_TIMEOUT:
            return None
        if self.remote_read:
            return reach - self.sent_time if reach >= self.sent_time else None
        return reach - self.sent_time if self.rpc and reach > self.sent_time and reach > 10**9 else reach

    def read_queue_names(self, kinds: list[int], source: bytes, manager: bytes) -> None:
        cursor, host = self.cursor, {2: source, 3: manager}
        fields = (
            ("DestinationQueue", "DQ", "destination_queue"),
            ("AdminQueue", "AQ", "admin_queue"),
            ("ResponseQueue", "RQ", "response_queue"),
        )
        for (field, flag, column), kind, allowed in zip(fields, kinds, ("0357", "023567", "01234567"), strict=True):
            if str(kind) not in allowed:
                raise MalformedError(f"UserHeader.Flags.{flag}", 60)
            if kind == 7:
                (count,) = cursor.peek("<H", cursor.position) or (0,)
                raw = cursor.read_bytes((count + 5) // 4 * 4, f"UserHeader.{field}")
                self.row[column] = direct_queue_name(raw[2 : 2 + count])
                continue
            raw = cursor.read_bytes(_QUEUE_NAME_BYTES[kind], f"UserHeader.{field}")
            if kind == 1:
                self.row[column] = self.row.get("admin_queue")
            elif kind == 5:
                self.row[column] = numbered_queue_name(b"\5" + raw + bytes(4))
            elif kind == 6:
                self.row[column] = numbered_queue_name(b"\6" + raw)
            elif kind:
                self.row[column] = numbered_queue_name(b"\2" + host.get(kind, bytes(16)) + raw)
            if field == "AdminQueue":  # the owner of queues of name type 4
                host[4] = raw[:16] if kind == 6 else host.get(kind, bytes(16))

    def read_transaction_header(self) -> None:
        self.cursor.mark_header_start("TransactionHeader")
        flags, sequence, number, previous = self.cursor.unpack("<IQII", "TransactionHeader")
        self.row |= {"transaction_sequence_id": sequence, "transaction_number": number}
        self.row |= {"previous_transaction_number": previous, "transaction_index": flags >> 4 & 0xFFFFF}
        self.row |= {"final_acknowledgement_requested": bool(flags & 2)}
        self.row |= {"first_in_transaction": bool(flags & 4), "last_in_transaction": bool(flags & 8)}
        if flags & 1:
            raw = self.cursor.read_bytes(16, "TransactionHeader.ConnectorQMGuid")
            self.row["connector_queue_manager"] = queue_manager_guid(raw)

    def read_security_header(self) -> bool:
        cursor = self.cursor
        cursor.mark_header_start("SecurityHeader")
        flags, *sizes = cursor.unpack("<HHHHII", "SecurityHeader")
        encrypted = bool(flags & 32)
        self.row |= {"authenticated": bool(flags & 16), "signed": sizes[2] > 0, "encrypted": encrypted}
        self.row["sender_certificate_bytes"] = sizes[3]
        for name, size in zip(
            ("SecurityID", "EncryptionKey", "Signature", "SenderCert", "ProviderInfo"), sizes, strict=True
        ):
            at = cursor.position
            raw = cursor.read_bytes((size + 3) // 4 * 4, f"SecurityHeader.{name}")[:size]
            if name == "SecurityID" and size and flags & 15 in (1, 2):
                self.row["sender_id"] = sid_text(raw) if flags & 15 == 1 else queue_manager_guid(raw)
                if self.row["sender_id"] is None:
                    self.deferred_errors.append(MalformedError("SecurityHeader.SecurityID", at))
        return encrypted

    def read_properties_header(self, *, encrypted: bool) -> None:
        cursor, row = self.cursor, self.row
        cursor.mark_header_start("MessagePropertiesHeader")
        flags, label, kind, correlation, *numbers = cursor.unpack("<BBH20s8I", "MessagePropertiesHeader")
        row["body_type"], row["app_specific"], size, allocated, privacy, *algorithms, extension = numbers
        row["privacy_level"], (row["hash_algorithm"], row["encryption_algorithm"]) = privacy, algorithms
        negative = bool(kind & 0x8000)
        row["message_kind"] = (
            "report" if kind == 1 else "administration_ack" if kind in (2, 0x4000) or negative else "application"
        )
        row |= {"class": kind, "class_name": codes.message_class_name(kind), "acknowledgement_requested": flags & 15}
        if any(correlation):
            row["correlation_id"] = (
                f"{queue_manager_guid(correlation[:16])}\\{struct.unpack_from('<I', correlation, 16)[0]}"
            )
        if not row["is_srmp"]:
            row |= {"body_bytes": size, "body_complete": False}
        text = cursor.read_bytes(2 * label, "MessagePropertiesHeader.Label")
        row["label"] = text.decode("utf-16-le", "replace").partition("\0")[0] if label else None
        row["extension"] = cursor.read_bytes(extension, "MessagePropertiesHeader.ExtensionData") or None
        row["is_comqc"] = row["extension"] == COMQC_EXTENSION
        self.has_two_body_sizes = allocated > size
        span = max(size, allocated) if encrypted != self.other_span else size
        if not row["is_srmp"]:
            self.store_body(
                cursor.packet[cursor.position : cursor.position + min(size, max(cursor.bytes_left, 0))], size
            )
        if self.section_type != 1:
            cursor.read_bytes(span, "MessagePropertiesHeader.MessageBody")
        elif span > cursor.bytes_left + self.missing_bytes:
            raise TruncatedError("MessagePropertiesHeader.MessageBody", cursor.position)
        else:
            self.enter_second_section()
        cursor.align_to_4()

    def read_headers_after_message(self) -> None:
        cursor = self.cursor
        if self.base_flags & 16:
            ahead = (cursor.peek("<II", cursor.position) or (0, 0)) if self.remote_read else (0, 0)
            if ahead != (12, cursor.bytes_left - 12) and (cursor.bytes_left > 0 or not self.rpc):
                cursor.mark_header_start("SessionHeader")
                cursor.read_bytes(16, "SessionHeader")
                self.session_header_bytes = 16
        self.message_end = cursor.position
        if self.remote_read and cursor.bytes_left > 0:
            self.read_trailing_headers()
        if cursor.bytes_left > 0:
            raise MalformedError("packet", cursor.position)
        size = self.message_end - self.session_header_bytes
        if (
            self.section_type
            or (self.packet_size + 3) // 4 == (size + 3) // 4
            or self.packet_size in (len(cursor.packet), len(cursor.packet) - self.session_header_bytes)
        ):
            return
        kind = TruncatedError if self.packet_size > len(cursor.packet) else MalformedError
        cursor.add_nonfatal_error(kind("BaseHeader.PacketSize", 8))


def _check_sections(sections: list[tuple[int, int, int]], size: int) -> FieldError | None:
    """Raise MalformedError for sections that must be rejected, [MS-MQRR] 3.1.4.7; return the error of wrong sizes."""
    kinds = [kind for kind, _, _ in sections]
    if len(sections) > 2:
        raise MalformedError("ppPacketSections", 0)
    if kinds not in ([0], [1], [3], [1, 2], [3, 4]):
        raise MalformedError("SectionBufferType", 0)
    _, first, allocated = sections[0]
    if sum(each for _, each, _ in sections) != size:
        return MALFORMED, "ppPacketSections", 0
    if allocated < first or (kinds == [0] and allocated != first):
        return MALFORMED, "SectionSizeAlloc", 0
    return None


def _read_packet(
    packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None, *, other_span: bool
) -> tuple[_SingleMessage | None, list[FieldError]]:
    try:
        message = _SingleMessage(packet, protocol, sections)
    except DecodeError as error:
        return None, [(error.code, error.field, error.offset)]
    message.other_span = other_span
    errors = []
    try:
        message.read_headers()
    except DecodeError as error:
        errors.append((error.code, error.field, error.offset))
    for each in message.deferred_errors:
        message.cursor.add_nonfatal_error(each)
    return message, errors


def decode_single_message(
    packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None = None
) -> tuple[dict[str, Any], list[FieldError]]:
    """Decode one packet: returns its values by column of ``silver.messages``, and its errors as (code, field, offset).

    ``sections`` are (type, bytes, allocated bytes) of the sections of a RemoteRead packet, joined without padding.
    Times are microseconds since the epoch. Null columns may be missing.
    """
    message, errors = _read_packet(packet, protocol, sections, other_span=False)
    if message is None:
        return {}, errors
    if errors and message.has_two_body_sizes:  # try the other possible body size (doubt D6)
        other, none = _read_packet(packet, protocol, sections, other_span=True)
        if other is not None and not none:
            message, errors = other, none
    if message.row.get("class") == 1:
        message.row["report"] = parse_report(message.row.get("label"), message.row.get("body") or b"")
    if "header_sizes" in message.row:
        begun = [*message.cursor.header_starts.items(), ("", len(packet))]
        message.row["header_sizes"] = {name: after - at for (name, at), (_, after) in itertools.pairwise(begun)}
    return message.row, [*errors, *filter(None, (message.section_error, message.cursor.soft_error))]
