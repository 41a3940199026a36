"""One message packet, in plain Python: the reader that the column reader is held against, and one for a single value.

It shares no reading with the column reader: ``struct`` over a bytes object, an exception ends the chain.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final

from udfs import codes
from udfs.comqc.layout import MARKER
from udfs.errors import DecodeError, MalformedError, TruncatedError, UnsupportedError
from udfs.keys import key
from udfs.messages.headers import BINARY, REMOTE_READ
from udfs.messages.names import address, direct_queue, numbered_queue, queue_manager, sid
from udfs.messages.single_parts import Error, Further, Reader

_INFINITE: Final = 0xFFFF_FFFF
_FIXED: Final = {0: 0, 1: 0, 2: 4, 3: 4, 4: 4, 5: 16, 6: 20}


class _Message(Further):
    """One packet while it is read; ``row`` is what silver.messages has of it."""

    def __init__(self, packet: bytes, protocol: str, sections: list[tuple[int, int, int]] | None) -> None:
        self.r, self.protocol, self.row = Reader(packet), protocol, dict[str, Any]()
        self.rpc, self.remote_read = protocol != BINARY, protocol == REMOTE_READ
        self.split, self.first, self.missing = 0, len(packet), 0
        if sections and self.remote_read:  # no other protocol has any
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
