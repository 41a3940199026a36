"""Single-value readers: the read position in one packet, and the optional headers of a message."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from udfs.codes import RECEIVE_ACKNOWLEDGEMENTS
from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.messages.name_columns import (
    direct_queue_name,
    distribution_list_name,
    ip_address_text,
    numbered_queue_name,
    path_queue_name,
)

FieldError = tuple[str, str, int]


class PacketCursor:
    """A read position in one packet: ``end`` is where reading stops, ``base`` the offset that alignment counts from."""

    def __init__(self, packet: bytes) -> None:
        self.packet, self.position, self.end, self.base = packet, 0, len(packet), 0
        self.header_starts: dict[str, int] = {}
        self.soft_error: FieldError | None = None

    @property
    def bytes_left(self) -> int:
        """The number of bytes up to ``end``."""
        return self.end - self.position

    def mark_header_start(self, name: str) -> None:
        """Record the start offset of a header, if at least one byte of it is there."""
        if self.bytes_left > 0:
            self.header_starts[name] = self.position

    def read_bytes(self, size: int, field: str) -> bytes:
        """Read the next ``size`` bytes; raises TruncatedError."""
        if size > self.bytes_left:
            raise TruncatedError(field, self.position)
        self.position += size
        return self.packet[self.position - size : self.position]

    def unpack(self, layout: str, field: str) -> tuple[Any, ...]:
        """Read the next values of a ``struct`` layout."""
        return struct.unpack(layout, self.read_bytes(struct.calcsize(layout), field))

    def align_to_4(self) -> None:
        """Skip to the next multiple of 4 bytes from ``base``, at most to the end."""
        self.position = min(self.position + (self.base - self.position) % 4, max(self.end, self.position))

    def peek(self, layout: str, at: int) -> tuple[Any, ...] | None:
        """Return values of a ``struct`` layout at an offset without moving; None if they do not fit."""
        size = struct.calcsize(layout)
        return struct.unpack_from(layout, self.packet, at) if at >= 0 and at + size <= self.end else None

    def add_nonfatal_error(self, error: DecodeError) -> None:
        """Record an error that does not end the header chain; the first one counts."""
        self.soft_error = self.soft_error or (error.code, error.field, error.offset)


def _format_names(raw: bytes, count: int, alignment: int) -> list[str | None] | None:
    """Return the queues of a FormatNameList, [MS-MQMQ] 2.2.18.1.4; None if its elements do not fill it."""
    cursor, names = PacketCursor(raw), list[str | None]()
    try:
        while len(names) < count:
            (kind,) = cursor.unpack("<H", "FormatType")
            if kind == 3:
                units = iter(lambda: cursor.read_bytes(2, "FormatName"), b"\0\0")
                names.append(direct_queue_name(b"".join(units)))
                continue
            cursor.position += -cursor.position % alignment
            guid = cursor.read_bytes(16, "FormatName")
            if kind == 1:
                names.append(numbered_queue_name(b"\5" + guid + bytes(4)))
            elif kind == 2:
                names.append(numbered_queue_name(b"\6" + guid + cursor.read_bytes(4, "FormatName")))
            elif kind == 6:
                names.append(distribution_list_name(guid))
            else:
                return None
    except TruncatedError:
        return None
    return names if cursor.bytes_left < 4 else None


class OptionalHeaderReader:
    """Readers of the optional headers: SRMP, SOAP, MultiQueueFormatHeader, and the trailing headers of RemoteRead."""

    cursor: PacketCursor
    row: dict[str, Any]
    section_type: int  # type of the first section if the packet came in sections, else 0
    first_section_end: int
    missing_bytes: int
    deferred_errors: list[DecodeError]

    def enter_second_section(self) -> None:
        """Move to the second section: the first one ends within the body."""
        self.cursor.position = self.cursor.base = self.first_section_end
        self.cursor.end = len(self.cursor.packet)

    def has_compound_header_at(self, at: int) -> bool:
        """Return whether a plausible CompoundMessageHeader is at the next multiple of 4 from ``at``."""
        cursor = self.cursor
        at += (cursor.base - at) % 4
        found = cursor.peek("<HHIII", at)
        if found is None:
            return False
        _, _, size, body, offset = found
        missing = self.missing_bytes if self.section_type == 3 else 0
        return bool(body + offset <= size <= cursor.end - at - 16 + missing)

    def read_srmp_headers(self) -> None:
        """Read SRMP envelope and compound message, [MS-MQRR] 2.2.5.1.2; the unit of the length is doubt D7."""
        cursor = self.cursor
        cursor.mark_header_start("SRMPEnvelopeHeader")
        _, _, length = cursor.unpack("<HHI", "SRMPEnvelopeHeader")
        fits = []
        for size in (2 * length, length):
            nul = size >= 2 and cursor.peek("<H", cursor.position + size - 2) == (0,)
            fits.append(nul and self.has_compound_header_at(cursor.position + size))
        cursor.read_bytes(length if fits[1] and not fits[0] else 2 * length, "SRMPEnvelopeHeader.Data")
        cursor.align_to_4()
        cursor.mark_header_start("CompoundMessageHeader")
        at = cursor.position
        _, _, size, body, offset = cursor.unpack("<HHIII", "CompoundMessageHeader")
        if offset + body > size:
            cursor.add_nonfatal_error(MalformedError("CompoundMessageHeader.MsgBodySize", at + 8))
        start = cursor.position + offset
        end = min(cursor.end, cursor.position + size, start + body)
        self.store_body(cursor.packet[start : max(start, end)], body)
        if size > cursor.bytes_left + (self.missing_bytes if self.section_type == 3 else 0):
            raise TruncatedError("CompoundMessageHeader.Data", cursor.position)
        if self.section_type == 3:
            self.enter_second_section()
        else:
            cursor.read_bytes(size, "CompoundMessageHeader.Data")
        cursor.align_to_4()

    def read_soap_header(self) -> None:
        """Read a SoapHeader, [MS-MQMQ] 2.2.20.7; the alignment of its second half is doubt D8."""
        cursor = self.cursor
        cursor.mark_header_start("SoapHeader")
        at = cursor.position
        kind, _, length = cursor.unpack("<HHI", "SoapHeader")
        if kind != 0x0320:
            raise MalformedError("SoapHeader.HeaderSectionID", at)
        raw = cursor.read_bytes(2 * length, "SoapHeader.Header")
        self.row["soap_header"] = raw.decode("utf-16-le", "replace").partition("\0")[0] if length else None
        aligned = cursor.position + (cursor.base - cursor.position) % 4
        if cursor.peek("<H", aligned) == (0x0384,):
            cursor.position = aligned
        at = cursor.position
        kind, _, length = cursor.unpack("<HHI", "SoapHeader.BodySectionID")
        if kind != 0x0384:
            raise MalformedError("SoapHeader.BodySectionID", at)
        cursor.read_bytes(2 * length, "SoapHeader.Body")
        self.row["soap_body_bytes"] = 2 * length
        cursor.align_to_4()

    def read_multi_queue_header(self) -> None:
        """Read a MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1."""
        cursor, name = self.cursor, "MultiQueueFormatHeader"
        cursor.mark_header_start(name)
        columns = ("destination_list", "admin_list", "response_list")
        parts = (("Destination", 0x64), ("Administration", 0xC8), ("Response", 0x12C))
        for column, (part, wanted) in zip(columns, parts, strict=True):
            at, field = cursor.position, f"{name}.{part}"
            size, kind, _, count = cursor.unpack("<IHHI", name if part == "Destination" else field)
            if size < 12:
                raise MalformedError(f"{field}.HeaderSize", at)
            if kind != wanted:
                raise MalformedError(f"{field}.HeaderID", at + 4)
            if 4 * count > size - 12:
                cursor.add_nonfatal_error(MalformedError(f"{field}.ElementCount", at + 8))
            at = cursor.position
            raw = cursor.read_bytes(size - 12, f"{field}.FormatNameList")
            self.row[column] = _format_names(raw, count, 4)
            if self.row[column] is None:
                self.row[column] = _format_names(raw, count, 1)
            if self.row[column] is None:
                self.deferred_errors.append(MalformedError(f"{field}.FormatNameList", at))
            cursor.align_to_4()
        at, field = cursor.position, f"{name}.Signature"
        kind, _, size = cursor.unpack("<HHI", field)
        if kind != 0x015E:
            raise MalformedError(f"{field}.ID", at)
        cursor.read_bytes(size, field)
        cursor.align_to_4()

    def read_trailing_headers(self) -> None:
        """Read the headers behind a RemoteRead message, [MS-MQRR] 2.2.5.2."""
        cursor, at = self.cursor, self.cursor.position
        cursor.mark_header_start("ExtensionHeader")
        size, remaining, flags, _ = cursor.unpack("<IIB3s", "ExtensionHeader")
        declared = cursor.position + remaining
        if size != 12:
            if declared != cursor.end:
                raise MalformedError("ExtensionHeader.HeaderSize", at)
            cursor.add_nonfatal_error(MalformedError("ExtensionHeader.HeaderSize", at))
        if flags & 2:
            self.read_subqueue_header()
        if flags & 1:
            self.read_dead_letter_header(invalid=bool(flags & 8))
        if flags & 16:
            self.read_extended_address_header()
        if declared > cursor.end:
            raise TruncatedError("ExtensionHeader.RemainingHeadersSize", at + 4)
        if declared != cursor.position:
            cursor.add_nonfatal_error(MalformedError("ExtensionHeader.RemainingHeadersSize", at + 4))

    def read_subqueue_header(self) -> None:
        """Read a SubqueueHeader, [MS-MQRR] 2.2.5.3."""
        at = self.cursor.position
        self.cursor.mark_header_start("SubqueueHeader")
        size, bits, aborts, moves, moved = self.cursor.unpack("<5I", "SubqueueHeader")
        in_high_half = bits >> 16 in RECEIVE_ACKNOWLEDGEMENTS  # doubt D11
        self.row["subqueue_acknowledgement_class"] = bits >> 16 if in_high_half else bits >> 1 & 0xFFFF
        for column, field, offset, value in (
            ("abort_count", "AbortCounter", 8, aborts),
            ("move_count", "MoveCounter", 12, moves),
        ):
            if value < 1 << 31:
                self.row[column] = value
            else:
                self.deferred_errors.append(MalformedError(f"SubqueueHeader.{field}", at + offset))
        self.row["last_moved_raw"] = moved or None
        names = self.cursor.read_bytes(128, "SubqueueHeader.SubqueueName")
        for column, raw in (("subqueue", names[:64]), ("target_subqueue", names[64:])):
            self.row[column] = raw.decode("utf-16-le", "replace").partition("\0")[0] or None
        if size != 148:
            self.cursor.add_nonfatal_error(MalformedError("SubqueueHeader.HeaderSize", at))

    def read_dead_letter_header(self, *, invalid: bool) -> None:
        """Read a DeadLetterHeader, [MS-MQRR] 2.2.5.4."""
        at = self.cursor.position
        self.cursor.mark_header_start("DeadLetterHeader")
        (size,) = self.cursor.unpack("<I", "DeadLetterHeader")
        if size < 4:
            raise MalformedError("DeadLetterHeader.HeaderSize", at)
        raw = self.cursor.read_bytes(size - 4, "DeadLetterHeader.DeadLetterPathName")
        text = raw[: len(raw) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
        self.row |= {"dead_letter_queue": path_queue_name(text), "dead_letter_queue_invalid": invalid}

    def read_extended_address_header(self) -> None:
        """Read an ExtendedAddressHeader, [MS-MQRR] 2.2.5.5."""
        at = self.cursor.position
        self.cursor.mark_header_start("ExtendedAddressHeader")
        size, _, kind, _, raw = self.cursor.unpack("<IHHI16s", "ExtendedAddressHeader")
        if kind:
            self.row["sender_address"] = ip_address_text(bytes([min(kind, 255)]) + raw)
        if size != 28:
            self.cursor.add_nonfatal_error(MalformedError("ExtendedAddressHeader.HeaderSize", at))

    def store_body(self, body: bytes, size: int) -> None:
        """Store the captured bytes of a body of ``size`` bytes, their hash, and whether they are complete."""
        digest = hashlib.sha256(body).hexdigest()
        self.row |= {"body": body, "body_bytes": size, "body_bytes_seen": len(body), "body_sha256": digest}
        self.row["body_complete"] = len(body) == size
