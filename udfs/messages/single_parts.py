"""The single-value reader's position in a packet, and the headers that few messages have."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.messages.names import address, path_queue

Error = tuple[str, str, int]


class Reader:
    """A position in one packet: ``end`` is where reading stops, ``base`` what padding is counted from."""

    def __init__(self, packet: bytes) -> None:
        self.packet, self.at, self.end, self.base = packet, 0, len(packet), 0
        self.begun: dict[str, int] = {}
        self.noted: Error | None = None

    @property
    def left(self) -> int:
        """How many bytes there are still to read."""
        return self.end - self.at

    def begin(self, name: str) -> None:
        """Remember where a header begins, if any of it is there."""
        if self.left > 0:
            self.begun[name] = self.at

    def take(self, size: int, field: str) -> bytes:
        """Return the next ``size`` bytes."""
        if size > self.left:
            raise TruncatedError(field, self.at)
        self.at += size
        return self.packet[self.at - size : self.at]

    def unpack(self, layout: str, field: str) -> tuple[Any, ...]:
        """Return the next numbers of a ``struct`` layout."""
        return struct.unpack(layout, self.take(struct.calcsize(layout), field))

    def align(self) -> None:
        """Move on to the next multiple of 4 bytes, at most to the end."""
        self.at = min(self.at + (self.base - self.at) % 4, max(self.end, self.at))

    def peek(self, layout: str, at: int) -> tuple[Any, ...] | None:
        """Return numbers that stand at an offset; None when they do not fit."""
        size = struct.calcsize(layout)
        return struct.unpack_from(layout, self.packet, at) if at >= 0 and at + size <= self.end else None

    def note(self, error: DecodeError) -> None:
        """Keep the first error that ends no chain."""
        self.noted = self.noted or (error.code, error.field, error.offset)


class Further:
    """A message while it is read: SRMP, SOAP and multiple queues, and what RemoteRead puts behind it."""

    r: Reader
    row: dict[str, Any]
    split: int  # type of the first of several sections, else 0
    first: int
    missing: int
    late: list[DecodeError]

    def next_section(self) -> None:
        """Go on with the second section, behind what the first one has of a body."""
        self.r.at = self.r.base = self.first
        self.r.end = len(self.r.packet)

    def compound_fits(self, at: int) -> bool:
        """Tell whether a plausible CompoundMessageHeader follows."""
        r = self.r
        at += (r.base - at) % 4
        found = r.peek("<HHIII", at)
        if found is None:
            return False
        _, _, size, body, offset = found
        missing = self.missing if self.split == 3 else 0
        return bool(body + offset <= size <= r.end - at - 16 + missing)

    def srmp(self) -> None:
        """Read envelope and compound message, [MS-MQRR] 2.2.5.1.2; the unit of the length is doubt D7."""
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
        """Read a SoapHeader, [MS-MQMQ] 2.2.20.7; the alignment of its half is doubt D8."""
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
        """Read a MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1."""
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

    def trailing(self) -> None:
        """Read what follows a message of RemoteRead, [MS-MQRR] 2.2.5.2."""
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
        """Read a SubqueueHeader, [MS-MQRR] 2.2.5.3."""
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
        """Read a DeadLetterHeader, [MS-MQRR] 2.2.5.4."""
        at = self.r.at
        self.r.begin("DeadLetterHeader")
        (size,) = self.r.unpack("<I", "DeadLetterHeader")
        if size < 4:
            raise MalformedError("DeadLetterHeader.HeaderSize", at)
        raw = self.r.take(size - 4, "DeadLetterHeader.DeadLetterPathName")
        text = raw[: len(raw) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
        self.row["dead_letter_queue"] = path_queue(text)

    def extended_address(self) -> None:
        """Read an ExtendedAddressHeader, [MS-MQRR] 2.2.5.5."""
        at = self.r.at
        self.r.begin("ExtendedAddressHeader")
        size, _, kind, _, raw = self.r.unpack("<IHHI16s", "ExtendedAddressHeader")
        if kind:
            self.row["sender_address"] = address(bytes([min(kind, 255)]) + raw)
        if size != 28:
            raise MalformedError("ExtendedAddressHeader.HeaderSize", at)

    def keep_body(self, body: bytes, size: int) -> None:
        """Keep the bytes seen of a body of ``size``."""
        digest = hashlib.sha256(body).hexdigest()
        self.row |= {"body": body, "body_bytes": size, "body_bytes_seen": len(body), "body_sha256": digest}
        self.row["body_complete"] = len(body) == size
