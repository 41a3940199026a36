"""One message packet, in plain Python: the reader that the column reader is held against, and one for a single value.

It shares no reading with the column reader: ``struct`` over a bytes object, an exception ends the chain.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from typing import Any, Final

from udfs import codes
from udfs.comqc.layout import MARKER
from udfs.errors import DecodeError, MalformedError, TruncatedError, UnsupportedError
from udfs.keys import key
from udfs.messages.headers import BINARY, REMOTE_READ
from udfs.messages.names import address, direct_queue, numbered_queue, path_queue, queue_manager, sid

Error = tuple[str, str, int]

_INFINITE: Final = 0xFFFF_FFFF
_FIXED: Final = {0: 0, 1: 0, 2: 4, 3: 4, 4: 4, 5: 16, 6: 20}


class _Reader:
    """A position in one packet: ``end`` is where reading stops, ``base`` what padding is counted from."""

    def __init__(self, packet: bytes) -> None:
        self.packet, self.at, self.end, self.base = packet, 0, len(packet), 0
        self.begun: dict[str, int] = {}
        self.noted: Error | None = None

    @property
    def left(self) -> int:
        return self.end - self.at

    def begin(self, name: str) -> None:
        if self.left > 0:
            self.begun[name] = self.at

    def take(self, size: int, field: str) -> bytes:
        if size > self.left:
            raise TruncatedError(field, self.at)
        self.at += size
        return self.packet[self.at - size : self.at]

    def unpack(self, layout: str, field: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout), field))

    def align(self) -> None:
        self.at = min(self.at + (self.base - self.at) % 4, max(self.end, self.at))

    def peek(self, layout: str, at: int) -> tuple[Any, ...] | None:
        size = struct.calcsize(layout)
        return struct.unpack_from(layout, self.packet, at) if at >= 0 and at + size <= self.end else None

    def note(self, error: DecodeError) -> None:
        self.noted = self.noted or (error.code, error.field, error.offset)


class _Message:
    """One packet while it is read; ``row`` is what silver.messages has of it."""

    def __init__(self, packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None) -> None:
        self.r, self.protocol, self.row = _Reader(packet), protocol, dict[str, Any]()
        self.rpc, self.remote_read = protocol != BINARY, protocol == REMOTE_READ
        self.split, self.first, self.missing = 0, len(packet), 0
        if sections:
            _check_sections(sections, len(packet))
            kind, size, allocated = sections[0]
            if kind:
                self.split, self.first, self.missing = kind, size, allocated - size
                self.r.end = size
        self.other_span = self.either = False
        self.late: list[DecodeError] = []  # noted after the chain
        self.flags = self.size = self.session = 0

    def read(self) -> None:
        self.base_header()
        self.user_header()
        if self.flags & 1 << 20:
            self.transaction()
        encrypted = bool(self.flags & 1 << 19) and self.security()
        if self.flags & 1 << 21:
            self.properties(encrypted=encrypted)
        else:
            self.r.note(MalformedError("UserHeader.Flags.MP", 60))
        if self.base_flags & 1 << 5:
            self.r.begin("DebugHeader")
            (flags, _) = self.r.unpack("<HH", "DebugHeader")
            self.r.take(16 if flags & 3 == 1 else 0, "DebugHeader.QueueIdentifier")
        srmp = bool(self.flags & 1 << 25) and self.rpc
        if srmp:
            self.srmp()
        elif self.split == 3:
            raise MalformedError("SectionBufferType", 0)
        if self.flags & 1 << 28:
            self.soap()
        if self.flags & 1 << 23:
            self.multi_queue()
        self.ending()

    def base_header(self) -> None:
        r, row = self.r, self.row
        r.begin("BaseHeader")
        version, _, flags, signature, size, reach = r.unpack("<BBHIII", "BaseHeader")
        if version != 0x10:
            raise MalformedError("BaseHeader.VersionNumber", 0)
        if signature != 0x524F494C:
            raise MalformedError("BaseHeader.Signature", 4)
        if flags & 8:
            raise UnsupportedError("BaseHeader.Flags.IN", 2)
        self.base_flags, self.size, self.reach = flags, size, reach
        if not self.rpc:
            r.end = min(r.end, size + (16 if flags & 16 else 0))
        row["priority"] = flags & 7
        row["header_sizes"] = {}

    def user_header(self) -> None:
        r, row = self.r, self.row
        r.begin("UserHeader")
        source, manager, received, sent, ordinal, flags = r.unpack("<16s16sIIII", "UserHeader")
        self.flags, self.sent = flags, sent
        name = queue_manager(source)
        row |= {"source_queue_manager": name, "message_ordinal": ordinal, "message_id": f"{name}\\{ordinal}"}
        row["sent_at"] = sent * 1_000_000 or None
        row["time_to_be_received_s"] = None if received == _INFINITE else received
        row["time_to_reach_queue_s"] = self.relative(self.reach)
        row["delivery"] = {0: "express", 1: "recoverable"}.get(flags >> 5 & 3)
        row["journaling"] = (flags >> 9 & 1) * 2 + (flags >> 8 & 1)
        row["is_srmp"] = bool(flags & 1 << 25) and self.rpc
        row["transactional"] = bool(flags & 1 << 20)
        if not flags & 1 << 19:
            row |= {"authenticated": False, "signed": False, "encrypted": False}
        kinds = [flags >> shift & 7 for shift in (10, 13, 16)]
        overlaid = self.remote_read and kinds[0] == 7
        if overlaid:
            near = manager[2:4] == b"\1\0"
            row["sender_address"] = address(b"\1" + manager[8:12] + bytes(12)) if near else None
            manager = bytes(16)
        self.queue_names(kinds, source, manager)
        r.take(16 if flags & 1 << 22 else 0, "UserHeader.ConnectorType")
        row["message_key"] = key(name, ordinal, row["sent_at"])

    def relative(self, reach: int) -> int | None:
        if reach == _INFINITE:
            return None
        if self.remote_read:
            return reach - self.sent if reach >= self.sent else None
        return reach - self.sent if self.rpc and reach > self.sent and reach > 10**9 else reach

    def queue_names(self, kinds: list[int], source: bytes, manager: bytes) -> None:
        r, host = self.r, {2: source, 3: manager}
        fields = (
            ("DestinationQueue", "DQ", "destination_queue"),
            ("AdminQueue", "AQ", "admin_queue"),
            ("ResponseQueue", "RQ", "response_queue"),
        )
        for (field, flag, column), kind, allowed in zip(fields, kinds, ("0357", "023567", "01234567"), strict=True):
            if str(kind) not in allowed:
                raise MalformedError(f"UserHeader.Flags.{flag}", 60)
            if kind == 7:
                (count,) = r.peek("<H", r.at) or (0,)
                raw = r.take((count + 5) // 4 * 4, f"UserHeader.{field}")
                self.row[column] = direct_queue(raw[2 : 2 + count])
                continue
            raw = r.take(_FIXED[kind], f"UserHeader.{field}")
            if kind == 1:
                self.row[column] = self.row.get("admin_queue")
            elif kind == 5:
                self.row[column] = numbered_queue(b"\5" + raw + bytes(4))
            elif kind == 6:
                self.row[column] = numbered_queue(b"\6" + raw)
            elif kind:
                self.row[column] = numbered_queue(b"\2" + host.get(kind, bytes(16)) + raw)
            if field == "AdminQueue":  # where the queues of type 4 are
                host[4] = raw[:16] if kind == 6 else host.get(kind, bytes(16))

    def transaction(self) -> None:
        self.r.begin("TransactionHeader")
        flags, sequence, number, previous = self.r.unpack("<IQII", "TransactionHeader")
        self.row |= {"transaction_sequence_id": sequence, "transaction_number": number}
        self.row |= {"previous_transaction_number": previous, "transaction_index": flags >> 4 & 0xFFFFF}
        self.row |= {"first_in_transaction": bool(flags & 4), "last_in_transaction": bool(flags & 8)}
        self.r.take(16 if flags & 1 else 0, "TransactionHeader.ConnectorQMGuid")

    def security(self) -> bool:
        r = self.r
        r.begin("SecurityHeader")
        flags, *sizes = r.unpack("<HHHHII", "SecurityHeader")
        encrypted = bool(flags & 32)
        self.row |= {"authenticated": bool(flags & 16), "signed": sizes[2] > 0, "encrypted": encrypted}
        for name, size in zip(
            ("SecurityID", "EncryptionKey", "Signature", "SenderCert", "ProviderInfo"), sizes, strict=True
        ):
            at = r.at
            raw = r.take((size + 3) // 4 * 4, f"SecurityHeader.{name}")[:size]
            if name == "SecurityID" and size and flags & 15 in (1, 2):
                self.row["sender_id"] = sid(raw) if flags & 15 == 1 else queue_manager(raw)
                if self.row["sender_id"] is None:
                    self.late.append(MalformedError("SecurityHeader.SecurityID", at))
        return encrypted

    def properties(self, *, encrypted: bool) -> None:
        r, row = self.r, self.row
        r.begin("MessagePropertiesHeader")
        flags, label, kind, correlation, *numbers = r.unpack("<BBH20s8I", "MessagePropertiesHeader")
        row["body_type"], row["app_specific"], size, allocated, _, *algorithms, extension = numbers
        row["hash_algorithm"], row["encryption_algorithm"] = algorithms
        row |= {"class": kind, "class_name": codes.class_name(kind), "acknowledgement_requested": flags & 15}
        if any(correlation):
            row["correlation_id"] = f"{queue_manager(correlation[:16])}\\{struct.unpack_from('<I', correlation, 16)[0]}"
        if not row["is_srmp"]:
            row |= {"body_bytes": size, "body_complete": False}
        text = r.take(2 * label, "MessagePropertiesHeader.Label")
        row["label"] = text.decode("utf-16-le", "replace").partition("\0")[0] if label else None
        row["extension"] = r.take(extension, "MessagePropertiesHeader.ExtensionData") or None
        row["is_comqc"] = row["extension"] == MARKER
        self.either = allocated > size
        span = max(size, allocated) if encrypted != self.other_span else size
        if not row["is_srmp"]:
            self.keep_body(r.packet[r.at : r.at + min(size, max(r.left, 0))], size)
        if self.split != 1:
            r.take(span, "MessagePropertiesHeader.MessageBody")
        elif span > r.left + self.missing:
            raise TruncatedError("MessagePropertiesHeader.MessageBody", r.at)
        else:
            self.next_section()
        r.align()

    def next_section(self) -> None:
        """Go on with the second section, behind what the first one has of a body."""
        self.r.at = self.r.base = self.first
        self.r.end = len(self.r.packet)

    def keep_body(self, body: bytes, size: int) -> None:
        digest = hashlib.sha256(body).hexdigest()
        self.row |= {"body": body, "body_bytes": size, "body_bytes_seen": len(body), "body_sha256": digest}
        self.row["body_complete"] = len(body) == size

    def compound_fits(self, at: int) -> bool:
        r = self.r
        at += (r.base - at) % 4
        found = r.peek("<HHIII", at)
        if found is None:
            return False
        _, _, size, body, offset = found
        missing = self.missing if self.split == 3 else 0
        return bool(body + offset <= size <= r.end - at - 16 + missing)

    def srmp(self) -> None:
        r = self.r
        r.begin("SRMPEnvelopeHeader")
        _, _, length = r.unpack("<HHI", "SRMPEnvelopeHeader")
        fits = []
        for size in (2 * length, length):
            nul = size >= 2 and r.peek("<H", r.at + size - 2) == (0,)
            fits.append(nul and self.compound_fits(r.at + size))
        r.take(length if fits[1] and not fits[0] else 2 * length, "SRMPEnvelopeHeader.Data")
        r.align()
        r.begin("CompoundMessageHeader")
        at = r.at
        _, _, size, body, offset = r.unpack("<HHIII", "CompoundMessageHeader")
        if offset + body > size:
            raise MalformedError("CompoundMessageHeader.MsgBodySize", at + 8)
        start = r.at + offset
        self.keep_body(r.packet[start : max(start, min(r.end, start + body))], body)
        if size > r.left + (self.missing if self.split == 3 else 0):
            raise TruncatedError("CompoundMessageHeader.Data", r.at)
        if self.split == 3:
            self.next_section()
        else:
            r.take(size, "CompoundMessageHeader.Data")
        r.align()

    def soap(self) -> None:
        r = self.r
        r.begin("SoapHeader")
        at = r.at
        kind, _, length = r.unpack("<HHI", "SoapHeader")
        if kind != 0x0320:
            raise MalformedError("SoapHeader.HeaderSectionID", at)
        r.take(2 * length, "SoapHeader.Header")
        aligned = r.at + (r.base - r.at) % 4
        if r.peek("<H", aligned) == (0x0384,):
            r.at = aligned
        at = r.at
        kind, _, length = r.unpack("<HHI", "SoapHeader.BodySectionID")
        if kind != 0x0384:
            raise MalformedError("SoapHeader.BodySectionID", at)
        r.take(2 * length, "SoapHeader.Body")
        r.align()

    def multi_queue(self) -> None:
        r, name = self.r, "MultiQueueFormatHeader"
        r.begin(name)
        for part, wanted in (("Destination", 0x64), ("Administration", 0xC8), ("Response", 0x12C)):
            at, field = r.at, f"{name}.{part}"
            size, kind, _, count = r.unpack("<IHHI", name if part == "Destination" else field)
            if size < 12:
                raise MalformedError(f"{field}.HeaderSize", at)
            if kind != wanted:
                raise MalformedError(f"{field}.HeaderID", at + 4)
            if 4 * count > size - 12:
                raise MalformedError(f"{field}.ElementCount", at + 8)
            r.take(size - 12, f"{field}.FormatNameList")
            r.align()
        at, field = r.at, f"{name}.Signature"
        kind, _, size = r.unpack("<HHI", field)
        if kind != 0x015E:
            raise MalformedError(f"{field}.ID", at)
        r.take(size, field)
        r.align()

    def ending(self) -> None:
        r = self.r
        if self.base_flags & 16:
            ahead = (r.peek("<II", r.at) or (0, 0)) if self.remote_read else (0, 0)
            if ahead != (12, r.left - 12) and (r.left > 0 or not self.rpc):
                r.begin("SessionHeader")
                r.take(16, "SessionHeader")
                self.session = 16
        self.message_end = r.at
        if self.remote_read and r.left > 0:
            self.trailing()
        if r.left > 0:
            raise MalformedError("packet", r.at)
        size = self.message_end - self.session
        if self.split or (self.size + 3) // 4 == (size + 3) // 4 or self.size == len(r.packet):
            return
        kind = TruncatedError if self.size > len(r.packet) else MalformedError
        r.note(kind("BaseHeader.PacketSize", 8))

    def trailing(self) -> None:
        r, at = self.r, self.r.at
        r.begin("ExtensionHeader")
        size, remaining, flags, _ = r.unpack("<IIB3s", "ExtensionHeader")
        if size != 12:
            raise MalformedError("ExtensionHeader.HeaderSize", at)
        end, said = r.end, r.at + remaining
        r.end = min(said, end)
        if flags & 2:
            self.subqueue()
        if flags & 1:
            self.dead_letter()
        if flags & 16:
            self.extended_address()
        r.end = end
        if said > end:
            raise TruncatedError("ExtensionHeader.RemainingHeadersSize", at + 4)
        if said != r.at:
            raise MalformedError("ExtensionHeader.RemainingHeadersSize", at + 4)

    def subqueue(self) -> None:
        at = self.r.at
        self.r.begin("SubqueueHeader")
        size, _, aborts, moves, moved = self.r.unpack("<5I", "SubqueueHeader")
        for column, field, offset, value in (
            ("abort_count", "AbortCounter", 8, aborts),
            ("move_count", "MoveCounter", 12, moves),
        ):
            if value < 1 << 31:
                self.row[column] = value
            else:
                self.late.append(MalformedError(f"SubqueueHeader.{field}", at + offset))
        self.row["last_moved_raw"] = moved or None
        names = self.r.take(128, "SubqueueHeader.SubqueueName")
        for column, raw in (("subqueue", names[:64]), ("target_subqueue", names[64:])):
            self.row[column] = raw.decode("utf-16-le", "replace").partition("\0")[0] or None
        if size != 148:
            raise MalformedError("SubqueueHeader.HeaderSize", at)

    def dead_letter(self) -> None:
        at = self.r.at
        self.r.begin("DeadLetterHeader")
        (size,) = self.r.unpack("<I", "DeadLetterHeader")
        if size < 4:
            raise MalformedError("DeadLetterHeader.HeaderSize", at)
        raw = self.r.take(size - 4, "DeadLetterHeader.DeadLetterPathName")
        text = raw[: len(raw) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
        self.row["dead_letter_queue"] = path_queue(text)

    def extended_address(self) -> None:
        at = self.r.at
        self.r.begin("ExtendedAddressHeader")
        size, _, kind, _, raw = self.r.unpack("<IHHI16s", "ExtendedAddressHeader")
        if kind:
            self.row["sender_address"] = address(bytes([min(kind, 255)]) + raw)
        if size != 28:
            raise MalformedError("ExtendedAddressHeader.HeaderSize", at)


def _check_sections(sections: list[tuple[int, int, int]], size: int) -> None:
    """Raise what must be rejected, [MS-MQRR] 3.1.4.7."""
    kinds = [kind for kind, _, _ in sections]
    if len(sections) > 2 or sum(each for _, each, _ in sections) != size:
        raise MalformedError("ppPacketSections", 0)
    if kinds not in ([0], [1], [3], [1, 2], [3, 4]):
        raise MalformedError("SectionBufferType", 0)
    _, first, allocated = sections[0]
    if allocated < first or (kinds == [0] and allocated != first):
        raise MalformedError("SectionSizeAlloc", 0)


def _attempt(
    packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None, *, other_span: bool
) -> tuple[_Message | None, list[Error]]:
    try:
        message = _Message(packet, protocol, sections)
    except DecodeError as error:
        return None, [(error.code, error.field, error.offset)]
    message.other_span = other_span
    errors = []
    try:
        message.read()
    except DecodeError as error:
        errors.append((error.code, error.field, error.offset))
    for each in message.late:
        message.r.note(each)
    return message, errors


def decode_message(
    packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None = None
) -> tuple[dict[str, Any], list[Error]]:
    """Decode one packet: its values by column of silver.messages, and its errors as (code, field, offset).

    ``sections`` are (type, bytes, allocated bytes) of a packet that RemoteRead brought, joined without filler. Times
    are microseconds since the epoch. Columns that are null may be missing.
    """
    message, errors = _attempt(packet, protocol, sections, other_span=False)
    if message is None:
        return {}, errors
    if errors and message.either:  # the other size that the body may take, doubt D6
        other, none = _attempt(packet, protocol, sections, other_span=True)
        if other is not None and not none:
            message, errors = other, none
    if "header_sizes" in message.row:
        begun = [*message.r.begun.items(), ("", len(packet))]
        message.row["header_sizes"] = {name: after - at for (name, at), (_, after) in itertools.pairwise(begun)}
    return message.row, errors + ([message.r.noted] if message.r.noted else [])
