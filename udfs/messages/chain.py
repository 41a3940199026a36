"""The header chain of a column of message packets, header by header: [MS-MQMQ] 2.2.20, [MS-MQRR] 2.2.5.

A header's fixed part is kept as a record under its name, where it begins under ``@`` and its name, and what else is
needed of it under names of its own: offsets into the column's buffer, sizes in bytes. The chain of a row ends at its
first error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from udfs.messages import headers as h
from udfs.stubs.column import Bools, Column, Cursors, Ints, Values

TRUNCATED: Final = 1  # indices into CODES of udfs.stubs.column
MALFORMED: Final = 2
UNSUPPORTED: Final = 3

_SIZES: Final = np.array(h.QUEUE_SIZES, np.int64)


@dataclass
class Packets:
    """A column of packets, per row: bounds in ``data``, protocol, and where a section was cut short.

    ``split``: the packet came in sections; its first one ends at ``first`` and lacks ``missing`` bytes that the
    reader's limit left out; ``srmp`` tells a limit on the compound message from one on the body.
    """

    data: npt.NDArray[np.uint8]
    start: Ints
    end: Ints
    remote_read: Bools
    rpc: Bools
    split: Bools
    srmp: Bools
    first: Ints
    missing: Ints


def record(c: Cursors, name: str, kind: np.dtype[np.void]) -> Column:
    """Read and return a record of ``kind`` per row; rows without one get whatever stands at offset 0."""
    at = c.take(kind.itemsize, name)
    view = np.ndarray(len(c.data) - kind.itemsize + 1, f"V{kind.itemsize}", c.data, strides=(1,))
    return view[at].view(kind)


def keep(c: Cursors, name: str, values: Column) -> None:
    """Store what the live rows have read; as it is, without scattering it over rows, when those are all rows."""
    if c.whole and len(c.rows) == c.out.rows:
        c.out.values[name], c.out.valid[name] = values, np.ones(len(values), np.bool_)
    else:
        c.put(name, values)


def header(c: Cursors, name: str, kind: np.dtype[np.void]) -> Column:
    """Read the fixed part of the header ``name`` and keep it, with where it begins if any of it is there."""
    begun = c.position < c.end
    if begun.all():
        keep(c, f"@{name}", c.position.copy())
    else:
        begun &= c.live
        c.out.put(f"@{name}", c.rows[begun], c.position[begun])
    records = record(c, name, kind)
    keep(c, name, records)
    return records


def align(c: Cursors, base: Ints) -> None:
    """Move on to the next multiple of 4 bytes from ``base``; padding that the packet ends before is not asked for."""
    c.position = np.minimum(c.position + (base - c.position) % 4, np.maximum(c.end, c.position))


def u16(c: Cursors, at: Ints, there: Bools) -> Column:
    """Return the 16-bit number at an offset of the buffer, 0 where it is not ``there``."""
    view = np.ndarray(len(c.data) - 1, "<u2", c.data, strides=(1,))
    return np.where(there, view[np.where(there, at, 0)], 0)


def _queue_names(c: Cursors, flags: Column) -> None:
    """Pass over the three queue names of a UserHeader; keep where each begins and its size ([MS-MQMQ] 2.2.19.2)."""
    for name, flag, shift, allowed in h.QUEUES:
        kind = (flags >> shift) & 7
        c.fail(
            np.isin(np.arange(8), allowed, invert=True)[kind], MALFORMED, f"UserHeader.Flags.{flag}", c.start + 16 + 44
        )
        size = _SIZES[kind]
        at = c.position
        direct = kind == h.DIRECT
        count = np.zeros(len(size), np.int64)
        if direct.any():
            count = u16(c, at, direct & c.live & (c.end - at >= 2)).astype(np.int64)
            size = np.where(direct, (2 + count + 3) & ~3, size)
        at = c.take(size, f"UserHeader.{name}")
        keep(c, f"{flag} at", at + 2 * direct)
        keep(c, f"{flag} size", np.where(direct, count, size))


def _user(c: Cursors) -> Column:
    """Read the UserHeader to its end, [MS-MQMQ] 2.2.19.2; return its flags."""
    flags: Column = header(c, "UserHeader", h.USER)["Flags"]
    _queue_names(c, flags)
    connector = flags & h.USER_CQ != 0
    if connector.any():
        c.take(np.where(connector, 16, 0), "UserHeader.ConnectorType")
    keep(c, "UserHeader whole", np.ones(len(flags), np.bool_))
    return flags


def _transaction(c: Cursors) -> None:
    """Read a TransactionHeader, [MS-MQMQ] 2.2.20.5."""
    found = header(c, "TransactionHeader", h.TRANSACTION)
    connector = found["Flags"] & h.TRANSACTION_CG != 0
    if connector.any():
        c.take(np.where(connector, 16, 0), "TransactionHeader.ConnectorQMGuid")


def _security(c: Cursors) -> Column:
    """Read a SecurityHeader, [MS-MQMQ] 2.2.20.6, by its sizes: published frames have data and AI = 0 (doubt D5)."""
    found = header(c, "SecurityHeader", h.SECURITY)
    for name, size_name in h.SECURITY_ITEMS:
        size = found[size_name].astype(np.int64)
        if not size.any():
            continue
        at = c.take((size + 3) & ~3, f"SecurityHeader.{name}")
        if name == "SecurityID":
            keep(c, "SecurityID at", at)
    encrypted: Bools = found["Flags"] & h.SECURITY_EB != 0
    return encrypted


def _properties(c: Cursors, packets: Packets, encrypted: Bools, other_span: Bools) -> Ints:
    """Read a MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3, and return from where the rest of the packet is aligned.

    The label, the extension and the body follow each other unaligned. How many bytes a body takes whose
    AllocationBodySize is larger than its MessageSize is not said (doubt D6): the larger when it is encrypted, else
    MessageSize; ``other_span`` takes the other one. A body that the reader's limit cut ends with its section.
    """
    found = header(c, "MessagePropertiesHeader", h.PROPERTIES)
    size = found["MessageSize"].astype(np.int64)
    span = np.where(encrypted ^ other_span, np.maximum(size, found["AllocationBodySize"]), size)
    label = 2 * found["LabelLength"].astype(np.int64)
    extension = found["ExtensionSize"].astype(np.int64)
    keep(c, "label at", c.take(label, "MessagePropertiesHeader.Label"))
    keep(c, "extension at", c.take(extension, "MessagePropertiesHeader.ExtensionData"))
    keep(c, "MessagePropertiesHeader whole", np.ones(len(found), np.bool_))
    left = np.maximum(c.end - c.position, 0)
    keep(c, "body at", c.position.copy())
    keep(c, "body seen", np.minimum(size, left))
    cut = packets.split[c.rows] & ~packets.srmp[c.rows]
    if not cut.any():
        c.take(span, "MessagePropertiesHeader.MessageBody")
        align(c, c.start)
        return c.start
    missing = np.where(cut, packets.missing[c.rows], 0)
    c.fail(span > left + missing, TRUNCATED, "MessagePropertiesHeader.MessageBody")
    first = packets.first[c.rows]
    c.take(np.where(cut, left, span), "MessagePropertiesHeader.MessageBody")
    c.end = np.where(cut, packets.end[c.rows], c.end)
    base = np.where(cut, first, c.start)
    align(c, base)
    return base


def _debug(c: Cursors) -> None:
    """Read a DebugHeader, [MS-MQMQ] 2.2.20.8."""
    found = header(c, "DebugHeader", h.DEBUG)
    c.take(np.where(found["Flags"] & 3 == h.DEBUG_PUBLIC, 16, 0), "DebugHeader.QueueIdentifier")


def _compound_fits(c: Cursors, at: Ints, base: Ints, missing: Ints) -> Bools:
    """Tell whether a plausible CompoundMessageHeader stands at the next multiple of 4 after ``at``."""
    at = at + (base - at) % 4
    there = c.live & (at + h.COMPOUND.itemsize <= c.end)
    view = np.ndarray(len(c.data) - h.COMPOUND.itemsize + 1, f"V{h.COMPOUND.itemsize}", c.data, strides=(1,))
    found = view[np.where(there, at, 0)].view(h.COMPOUND)
    size = found["HTTPBodySize"].astype(np.int64)
    body = found["MsgBodyOffset"].astype(np.int64) + found["MsgBodySize"]
    fits: Bools = there & (body <= size) & (size <= c.end - at - h.COMPOUND.itemsize + missing)
    return fits


def _srmp(c: Cursors, packets: Packets, base: Ints) -> Ints:
    """Read the SRMP envelope and the compound message, [MS-MQRR] 2.2.5.1.2; return where the rest is aligned from.

    The unit of DataLength is not said (doubt D7): characters, unless only bytes leave a NUL at the end and a
    plausible CompoundMessageHeader after it.
    """
    missing = np.where(packets.srmp[c.rows], packets.missing[c.rows], 0)
    length = header(c, "SRMPEnvelopeHeader", h.ENVELOPE)["DataLength"].astype(np.int64)
    fits = []
    for size in (2 * length, length):
        after = c.position + size
        ends = c.live & (size >= 2) & (after <= c.end)
        fits.append(ends & (u16(c, after - 2, ends) == 0) & _compound_fits(c, after, base, missing))
    c.take(np.where(fits[1] & ~fits[0], length, 2 * length), "SRMPEnvelopeHeader.Data")
    align(c, base)
    found = header(c, "CompoundMessageHeader", h.COMPOUND)
    size = found["HTTPBodySize"].astype(np.int64)
    body, offset = found["MsgBodySize"].astype(np.int64), found["MsgBodyOffset"].astype(np.int64)
    at = c.position
    c.fail(offset + body > size, MALFORMED, "CompoundMessageHeader.MsgBodySize", at - 8)
    left = np.maximum(c.end - at, 0)
    keep(c, "body at", np.minimum(at + offset, np.maximum(c.end, at)))
    keep(c, "body seen", np.clip(left - offset, 0, body))
    keep(c, "CompoundMessageHeader whole", np.ones(len(found), np.bool_))
    c.fail(size > left + missing, TRUNCATED, "CompoundMessageHeader.Data")
    cut = packets.split[c.rows] & packets.srmp[c.rows]
    c.take(np.where(cut, left, size), "CompoundMessageHeader.Data")
    c.end = np.where(cut, packets.end[c.rows], c.end)
    base = np.where(cut, packets.first[c.rows], base)
    align(c, base)
    return base


def _soap(c: Cursors, base: Ints) -> None:
    """Read a SoapHeader, [MS-MQMQ] 2.2.20.7. Its second half is aligned, or, as nobody says so, not (doubt D8)."""
    at = c.position
    found = header(c, "SoapHeader", h.SOAP)
    c.fail(found["SectionID"] != h.SOAP_HEADER_ID, MALFORMED, "SoapHeader.HeaderSectionID", at)
    c.take(2 * found["DataLength"].astype(np.int64), "SoapHeader.Header")
    aligned = c.position + (base - c.position) % 4
    there = u16(c, aligned, c.live & (aligned + 2 <= c.end)) == h.SOAP_BODY_ID
    c.position = np.where(there, aligned, c.position)
    at = c.position
    found = record(c, "SoapHeader.BodySectionID", h.SOAP)
    c.fail(found["SectionID"] != h.SOAP_BODY_ID, MALFORMED, "SoapHeader.BodySectionID", at)
    c.take(2 * found["DataLength"].astype(np.int64), "SoapHeader.Body")
    align(c, base)


def _multi_queue(c: Cursors, base: Ints) -> None:
    """Read a MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1: three lists of names and a signature, all always there."""
    name = "MultiQueueFormatHeader"
    for number, (part, kind) in enumerate(h.ADDRESS_PARTS):
        at, field = c.position, f"{name}.{part}"
        found = header(c, name, h.ADDRESSES) if number == 0 else record(c, field, h.ADDRESSES)
        size = found["HeaderSize"].astype(np.int64) - h.ADDRESSES.itemsize
        c.fail(size < 0, MALFORMED, f"{field}.HeaderSize", at)
        c.fail(found["HeaderID"] != kind, MALFORMED, f"{field}.HeaderID", at + 4)
        many = found["ElementCount"] > size // h.SMALLEST_ELEMENT
        c.fail(many, MALFORMED, f"{field}.ElementCount", at + 8)
        c.take(np.maximum(size, 0), f"{field}.FormatNameList")
        align(c, base)
    at, field = c.position, f"{name}.Signature"
    found = record(c, field, h.MQF_SIGNATURE)
    c.fail(found["ID"] != h.MQF_SIGNATURE_ID, MALFORMED, f"{field}.ID", at)
    c.take(found["Size"].astype(np.int64), field)
    align(c, base)


def _session(c: Cursors) -> None:
    """Pass over a SessionHeader, [MS-MQMQ] 2.2.20.4: it is the session's, not the message's."""
    c.out.put("@SessionHeader", c.rows, c.position)
    c.take(16, "SessionHeader")


def _trailing(c: Cursors) -> None:
    """Read the headers behind a RemoteRead message, [MS-MQRR] 2.2.5.2 to 2.2.5.5, found by parsing (doubt D35)."""
    at = c.position
    found = header(c, "ExtensionHeader", h.EXTENSION)
    c.fail(found["HeaderSize"] != h.EXTENSION.itemsize, MALFORMED, "ExtensionHeader.HeaderSize", at)
    said = c.position + found["RemainingHeadersSize"]
    whole_end = c.end
    c.end = np.minimum(said, c.end)
    flags = found["Flags"]
    for flag, read in ((h.EXTENSION_SQ, _subqueue), (h.EXTENSION_DL, _dead_letter), (h.EXTENSION_EA, _address)):
        index, part = c.subset(flags & flag != 0)
        if len(index):
            read(part)
            c.join(index, part)
    c.end = whole_end
    c.fail(said > c.end, TRUNCATED, "ExtensionHeader.RemainingHeadersSize", at + 4)
    c.fail(said != c.position, MALFORMED, "ExtensionHeader.RemainingHeadersSize", at + 4)


def _subqueue(c: Cursors) -> None:
    """Read a SubqueueHeader, [MS-MQRR] 2.2.5.3."""
    at = c.position
    found = header(c, "SubqueueHeader", h.SUBQUEUE)
    keep(c, "subqueues at", c.take(h.SUBQUEUE_NAMES, "SubqueueHeader.SubqueueName"))
    c.fail(found["HeaderSize"] != h.SUBQUEUE.itemsize + h.SUBQUEUE_NAMES, MALFORMED, "SubqueueHeader.HeaderSize", at)


def _dead_letter(c: Cursors) -> None:
    """Read a DeadLetterHeader, [MS-MQRR] 2.2.5.4: its size, and a path name that NULs fill up."""
    at = c.position
    size = header(c, "DeadLetterHeader", np.dtype([("HeaderSize", "<u4")]))["HeaderSize"].astype(np.int64) - 4
    c.fail(size < 0, MALFORMED, "DeadLetterHeader.HeaderSize", at)
    keep(c, "dead letter at", c.take(np.maximum(size, 0), "DeadLetterHeader.DeadLetterPathName"))
    keep(c, "dead letter size", size)


def _address(c: Cursors) -> None:
    """Read an ExtendedAddressHeader, [MS-MQRR] 2.2.5.5."""
    at = c.position
    found = header(c, "ExtendedAddressHeader", h.ADDRESS)
    c.fail(found["HeaderSize"] != h.ADDRESS.itemsize, MALFORMED, "ExtendedAddressHeader.HeaderSize", at)


def _cursors(packets: Packets, rows: Ints, out: Values) -> Cursors:
    """Return cursors that end with the packet, or with its first section until what was cut in it is read."""
    end = np.where(packets.split[rows], packets.first[rows], packets.end[rows])
    return Cursors(packets.data, rows, packets.start[rows], end, out)


def _base(c: Cursors, packets: Packets) -> Column:
    """Read a BaseHeader, [MS-MQMQ] 2.2.19.1; what is wrong in it stops the row ([MS-MQQB] 3.1.5.1.2)."""
    base = header(c, "BaseHeader", h.BASE)
    c.fail(base["VersionNumber"] != h.VERSION, MALFORMED, "BaseHeader.VersionNumber", c.start)
    c.fail(base["Signature"] != h.SIGNATURE, MALFORMED, "BaseHeader.Signature", c.start + 4)
    c.fail(base["Flags"] & h.BASE_IN != 0, UNSUPPORTED, "BaseHeader.Flags.IN", c.start + 2)
    if not packets.rpc[c.rows].all():  # a stream goes on behind its packet
        size = base["PacketSize"].astype(np.int64) + np.where(base["Flags"] & h.BASE_SH != 0, 16, 0)
        c.end = np.where(packets.rpc[c.rows], c.end, np.minimum(c.end, c.start + size))
    keep(c, "BaseHeader whole", np.ones(len(base), np.bool_))
    return base


def walk(packets: Packets, rows: Ints, out: Values, soft: Values, other_span: Bools) -> None:
    """Read the packets of ``rows`` into ``out``; ``soft`` gets what is wrong and ends no chain."""
    c = _cursors(packets, rows, out)
    base_header = _base(c, packets)
    base_flags = base_header["Flags"]
    flags = _user(c)
    index, part = c.subset(flags & h.USER_TH != 0)
    if len(index):
        _transaction(part)
        c.join(index, part)
    encrypted = np.zeros(len(rows), np.bool_)
    index, part = c.subset(flags & h.USER_SH != 0)
    if len(index):
        encrypted[index] = _security(part)
        c.join(index, part)
    base = c.start
    lacking = c.live & (flags & h.USER_MP == 0)
    if lacking.any():
        note(soft, rows[lacking], MALFORMED, "UserHeader.Flags.MP", 16 + 44)
        base = base.copy()
        index, part = c.subset(~lacking)
        base[index] = _properties(part, packets, encrypted[index], other_span[index])
        c.end[index] = part.end
        c.join(index, part)
    else:
        base = _properties(c, packets, encrypted, other_span)
    base = _optional(c, packets, flags, base_flags, base)
    _ending(c, packets, base_flags)
    _packet_size(c, packets, base_header, soft)


def _optional(c: Cursors, packets: Packets, flags: Column, base_flags: Column, base: Ints) -> Ints:
    """Read the headers after the message's properties that flags announce."""
    index, part = c.subset(base_flags & h.BASE_DH != 0)
    if len(index):
        _debug(part)
        c.join(index, part)
    srmp = (flags & h.USER_AH != 0) & packets.rpc[c.rows]  # never set on TCP (doubt D12)
    index, part = c.subset(srmp)
    if len(index):
        base = base.copy()
        base[index] = _srmp(part, packets, base[index])
        c.end[index] = part.end
        c.join(index, part)
    c.fail(packets.srmp[c.rows] & packets.split[c.rows] & ~srmp, MALFORMED, "SectionBufferType", c.start)
    for flag, read in ((h.USER_HH, _soap), (h.USER_MQ, _multi_queue)):
        index, part = c.subset(flags & flag != 0)
        if len(index):
            read(part, base[index])
            c.join(index, part)
    return base


def _ending(c: Cursors, packets: Packets, base_flags: Column) -> None:
    """Read the SessionHeader and the trailing headers, and see to it that nothing is left.

    PacketSize leaves a SessionHeader out, so that a packet handed on by RPC may have the flag and no header.
    """
    remote_read = packets.remote_read[c.rows]
    session = base_flags & h.BASE_SH != 0
    if session.any():
        left = c.end - c.position
        there = c.live & (left >= 8)
        size, follows = _u32(c, c.position, there), _u32(c, c.position + 4, there)
        trailing = remote_read & (size == h.EXTENSION.itemsize) & (follows == left - h.EXTENSION.itemsize)
        index, part = c.subset(session & ~trailing & ((left > 0) | ~packets.rpc[c.rows]))
        if len(index):
            _session(part)
            c.join(index, part)
    keep(c, "message end", c.position.copy())
    index, part = c.subset(remote_read & (c.position < c.end))
    if len(index):
        _trailing(part)
        c.join(index, part)
    c.fail(c.position < c.end, MALFORMED, "packet", c.position)


def _u32(c: Cursors, at: Ints, there: Bools) -> Ints:
    view = np.ndarray(len(c.data) - 3, "<u4", c.data, strides=(1,))
    return np.where(there, view[np.where(there, at, 0)], 0).astype(np.int64)


def _packet_size(c: Cursors, packets: Packets, base: Column, soft: Values) -> None:
    """Note a PacketSize that is not the packet's: of a message without or with what RemoteRead puts behind it."""
    said = base["PacketSize"].astype(np.int64)
    whole = packets.end[c.rows] - c.start
    size = values_of(c.out, "message end", c.rows) - c.start
    if "@SessionHeader" in c.out.valid:
        size = size - 16 * c.out.valid["@SessionHeader"][c.rows]
    wrong = c.live & ~packets.split[c.rows] & ((said + 3) & ~3 != (size + 3) & ~3) & (said != whole)
    for which, code in ((wrong & (said > whole), TRUNCATED), (wrong & (said <= whole), MALFORMED)):
        note(soft, c.rows[which], code, "BaseHeader.PacketSize", 8)


def note(soft: Values, rows: Ints, code: int, field: str, offset: int | Ints) -> None:
    """Keep an error that ends no chain, the first one of each row."""
    free = soft.code[rows] == 0
    soft.offset[rows[free]] = offset if isinstance(offset, int) else offset[free]
    soft.field[rows[free]] = field
    soft.code[rows[free]] = code


def values_of(out: Values, name: str, rows: Ints) -> Ints:
    """Return what was kept under ``name`` in ``rows``, 0 where nothing was."""
    if name not in out.values:
        return np.zeros(len(rows), np.int64)
    return np.where(out.valid[name][rows], out.values[name][rows], 0)
