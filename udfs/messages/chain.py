"""The header chain of a column of message packets, header by header: [MS-MQMQ] 2.2.20, [MS-MQRR] 2.2.5.

A header's fixed part is kept as a record under its name, where it begins under ``@`` and its name, and what else is
needed of it under names of its own: offsets into the column's buffer, sizes in bytes. The chain of a row ends at its
first error.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.messages import headers as h
from udfs.messages.reading import (
    MALFORMED,
    TRUNCATED,
    UNSUPPORTED,
    Packets,
    align,
    begin,
    header,
    keep,
    note,
    record,
    u16,
    u32,
    values_of,
)
from udfs.messages.srmp import read_soap, read_srmp
from udfs.messages.trailing import read_trailing
from udfs.stubs.column import Bools, Column, Cursors, Ints, Values

_SIZES: Final = np.array(h.QUEUE_SIZES, np.int64)
_FORBIDDEN: Final = {flag: np.isin(np.arange(8), allowed, invert=True) for _, flag, _, allowed in h.QUEUES}


def _queue_names(c: Cursors, flags: Column) -> None:
    """Pass over the three queue names of a UserHeader; keep where each begins and its size ([MS-MQMQ] 2.2.19.2)."""
    flags = flags.astype(np.int64)
    for name, flag, shift, _ in h.QUEUES:
        kind = (flags >> shift) & 7
        c.fail(_FORBIDDEN[flag][kind], MALFORMED, f"UserHeader.Flags.{flag}", c.start + 16 + 44)
        size = kept = _SIZES[kind]
        direct = kind == h.DIRECT
        if direct.any():
            there = direct & (c.end - c.position >= 2)
            count = u16(c, c.position, there if c.whole else there & c.live).astype(np.int64)
            size, kept = np.where(direct, (2 + count + 3) & ~3, size), np.where(direct, count, size)
        at = c.take(size, f"UserHeader.{name}")
        keep(c, f"{flag} at", at + 2 * direct)
        keep(c, f"{flag} size", kept)


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
    begin(c, "SessionHeader")
    c.take(16, "SessionHeader")


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
    over_http = (flags & h.USER_AH != 0) & packets.rpc[c.rows]  # never set on TCP (doubt D12)
    index, part = c.subset(over_http)
    if len(index):
        base = base.copy()
        base[index] = read_srmp(part, packets, base[index])
        c.end[index] = part.end
        c.join(index, part)
    c.fail(packets.srmp[c.rows] & packets.split[c.rows] & ~over_http, MALFORMED, "SectionBufferType", c.start)
    for flag, read in ((h.USER_HH, read_soap), (h.USER_MQ, _multi_queue)):
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
        size, follows = u32(c, c.position, there), u32(c, c.position + 4, there)
        trailing = remote_read & (size == h.EXTENSION.itemsize) & (follows == left - h.EXTENSION.itemsize)
        index, part = c.subset(session & ~trailing & ((left > 0) | ~packets.rpc[c.rows]))
        if len(index):
            _session(part)
            c.join(index, part)
    keep(c, "message end", c.position.copy())
    index, part = c.subset(remote_read & (c.position < c.end))
    if len(index):
        read_trailing(part)
        c.join(index, part)
    c.fail(c.position < c.end, MALFORMED, "packet", c.position)


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
