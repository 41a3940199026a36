"""Read the header chain of a column of message packets, [MS-MQMQ] 2.2.20, [MS-MQRR] 2.2.5.

``DecodedColumns`` gets the fixed part of each header as a record under the header's name, its start offset under ``@``
and that name, and further offsets (into the column's buffer) and sizes in bytes under names of their own. A row's chain
ends at its first error.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.messages import header_layouts as layouts
from udfs.messages.record_readers import (
    PacketColumn,
    align_to_4,
    mark_header_start,
    note_wrong_size,
    peek_uint16,
    peek_uint32,
    read_header,
    read_record,
    record_first_error,
    values_written,
    write_values,
)
from udfs.messages.srmp_headers import read_soap_header, read_srmp_headers
from udfs.messages.trailing_headers import read_trailing_headers
from udfs.stubs.column_cursors import (
    MALFORMED_CODE,
    TRUNCATED_CODE,
    UNSUPPORTED_CODE,
    AnyArray,
    ColumnCursors,
    DecodedColumns,
)

_QUEUE_NAME_BYTES: Final = np.array(layouts.QUEUE_NAME_BYTES, np.int64)
_FORBIDDEN_NAME_TYPES: Final = {
    flag: np.isin(np.arange(8), allowed, invert=True) for _, flag, _, allowed in layouts.QUEUE_NAME_FIELDS
}


def _skip_queue_names(cursors: ColumnCursors, flags: AnyArray) -> None:
    """Skip the three queue names of a UserHeader; store offset and size of each ([MS-MQMQ] 2.2.19.2)."""
    flags = flags.astype(np.int64)
    for name, flag, shift, _ in layouts.QUEUE_NAME_FIELDS:
        kind = (flags >> shift) & 7
        cursors.fail(
            _FORBIDDEN_NAME_TYPES[flag][kind], MALFORMED_CODE, f"UserHeader.Flags.{flag}", cursors.start + 16 + 44
        )
        size = kept = _QUEUE_NAME_BYTES[kind]
        direct = kind == layouts.DIRECT_NAME_TYPE
        if direct.any():
            there = direct & (cursors.end - cursors.position >= 2)
            count = peek_uint16(cursors, cursors.position, there if cursors.all_live else there & cursors.live).astype(
                np.int64
            )
            size, kept = np.where(direct, (2 + count + 3) & ~3, size), np.where(direct, count, size)
        at = cursors.advance(size, f"UserHeader.{name}")
        write_values(cursors, f"{flag} at", at + 2 * direct)
        write_values(cursors, f"{flag} size", kept)


def _read_user_header(cursors: ColumnCursors) -> AnyArray:
    """Read the UserHeader with its queue names, [MS-MQMQ] 2.2.19.2; returns its flags."""
    flags: AnyArray = read_header(cursors, "UserHeader", layouts.USER_HEADER)["Flags"]
    _skip_queue_names(cursors, flags)
    connector = flags & layouts.USER_FLAG_CQ != 0
    if connector.any():
        at = cursors.advance(np.where(connector, 16, 0), "UserHeader.ConnectorType")
        write_values(cursors, "ConnectorType at", at)
    write_values(cursors, "UserHeader whole", np.ones(len(flags), np.bool_))
    return flags


def _read_transaction_header(cursors: ColumnCursors) -> None:
    """Read a TransactionHeader, [MS-MQMQ] 2.2.20.5."""
    found = read_header(cursors, "TransactionHeader", layouts.TRANSACTION_HEADER)
    connector = found["Flags"] & layouts.TRANSACTION_FLAG_CG != 0
    if connector.any():
        at = cursors.advance(np.where(connector, 16, 0), "TransactionHeader.ConnectorQMGuid")
        write_values(cursors, "ConnectorQMGuid at", at)


def _read_security_header(cursors: ColumnCursors) -> AnyArray:
    """Read a SecurityHeader, [MS-MQMQ] 2.2.20.6; returns the mask of encrypted messages.

    The sizes alone say which data follow: published frames have data although AI is 0 (doubt D5).
    """
    found = read_header(cursors, "SecurityHeader", layouts.SECURITY_HEADER)
    for name, size_name in layouts.SECURITY_ITEMS:
        size = found[size_name].astype(np.int64)
        if not size.any():
            continue
        at = cursors.advance((size + 3) & ~3, f"SecurityHeader.{name}")
        if name == "SecurityID":
            write_values(cursors, "SecurityID at", at)
    encrypted: Bools = found["Flags"] & layouts.SECURITY_FLAG_EB != 0
    return encrypted


def _read_properties_header(cursors: ColumnCursors, packets: PacketColumn, encrypted: Bools, other_span: Bools) -> Ints:
    """Read a MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3; returns the base offset for the alignment of what follows.

    Label, extension and body follow without padding. If AllocationBodySize is larger than MessageSize, the
    specification does not say how many bytes the body takes (doubt D6): the larger if it is encrypted, else
    MessageSize; rows of ``other_span`` take the other one. A body that the reader's size limit truncated ends with its
    section.
    """
    found = read_header(cursors, "MessagePropertiesHeader", layouts.MESSAGE_PROPERTIES_HEADER)
    size = found["MessageSize"].astype(np.int64)
    span = np.where(encrypted ^ other_span, np.maximum(size, found["AllocationBodySize"]), size)
    label = 2 * found["LabelLength"].astype(np.int64)
    extension = found["ExtensionSize"].astype(np.int64)
    write_values(cursors, "label at", cursors.advance(label, "MessagePropertiesHeader.Label"))
    write_values(cursors, "extension at", cursors.advance(extension, "MessagePropertiesHeader.ExtensionData"))
    write_values(cursors, "MessagePropertiesHeader whole", np.ones(len(found), np.bool_))
    left = np.maximum(cursors.end - cursors.position, 0)
    write_values(cursors, "body at", cursors.position.copy())
    write_values(cursors, "body seen", np.minimum(size, left))
    cut = packets.is_in_sections[cursors.rows] & ~packets.srmp_limited[cursors.rows]
    if not cut.any():
        cursors.advance(span, "MessagePropertiesHeader.MessageBody")
        align_to_4(cursors, cursors.start)
        return cursors.start
    missing = np.where(cut, packets.missing_bytes[cursors.rows], 0)
    cursors.fail(span > left + missing, TRUNCATED_CODE, "MessagePropertiesHeader.MessageBody")
    first = packets.first_section_end[cursors.rows]
    cursors.advance(np.where(cut, left, span), "MessagePropertiesHeader.MessageBody")
    cursors.end = np.where(cut, packets.end[cursors.rows], cursors.end)
    base = np.where(cut, first, cursors.start)
    align_to_4(cursors, base)
    return base


def _read_debug_header(cursors: ColumnCursors) -> None:
    """Read a DebugHeader, [MS-MQMQ] 2.2.20.8."""
    found = read_header(cursors, "DebugHeader", layouts.DEBUG_HEADER)
    public = found["Flags"] & 3 == layouts.DEBUG_PUBLIC_QUEUE
    at = cursors.advance(np.where(public, 16, 0), "DebugHeader.QueueIdentifier")
    write_values(cursors, "report queue at", np.where(public, at, -1))


def _read_multi_queue_header(cursors: ColumnCursors, base: Ints, soft: DecodedColumns) -> None:
    """Read a MultiQueueFormatHeader, [MS-MQMQ] 2.2.20.1: three lists of format names and a signature, all mandatory."""
    name = "MultiQueueFormatHeader"
    for number, (part, kind) in enumerate(layouts.FORMAT_NAME_LIST_IDS):
        at, field = cursors.position, f"{name}.{part}"
        found = (
            read_header(cursors, name, layouts.FORMAT_NAME_LIST)
            if number == 0
            else read_record(cursors, field, layouts.FORMAT_NAME_LIST)
        )
        size = found["HeaderSize"].astype(np.int64) - layouts.FORMAT_NAME_LIST.itemsize
        cursors.fail(size < 0, MALFORMED_CODE, f"{field}.HeaderSize", at)
        cursors.fail(found["HeaderID"] != kind, MALFORMED_CODE, f"{field}.HeaderID", at + 4)
        many = found["ElementCount"] > size // layouts.MIN_FORMAT_NAME_BYTES
        note_wrong_size(soft, cursors, many, f"{field}.ElementCount", at + 8)
        at = cursors.advance(np.maximum(size, 0), f"{field}.FormatNameList")
        for value, values in (("at", at), ("size", size), ("count", found["ElementCount"])):
            write_values(cursors, f"{part} list {value}", values)
        align_to_4(cursors, base)
    at, field = cursors.position, f"{name}.Signature"
    found = read_record(cursors, field, layouts.MULTI_QUEUE_SIGNATURE)
    cursors.fail(found["ID"] != layouts.MULTI_QUEUE_SIGNATURE_ID, MALFORMED_CODE, f"{field}.ID", at)
    cursors.advance(found["Size"].astype(np.int64), field)
    align_to_4(cursors, base)


def _skip_session_header(cursors: ColumnCursors) -> None:
    """Skip a SessionHeader, [MS-MQMQ] 2.2.20.4: it describes the session, not the message."""
    mark_header_start(cursors, "SessionHeader")
    cursors.advance(layouts.SESSION_HEADER_BYTES, "SessionHeader")


def _packet_cursors(packets: PacketColumn, rows: Ints, out: DecodedColumns) -> ColumnCursors:
    """Return cursors that end with the packet, or with its first section if the packet came in two."""
    end = np.where(packets.is_in_sections[rows], packets.first_section_end[rows], packets.end[rows])
    return ColumnCursors(packets.data, rows, packets.start[rows], end, out)


def _read_base_header(cursors: ColumnCursors, packets: PacketColumn) -> AnyArray:
    """Read a BaseHeader, [MS-MQMQ] 2.2.19.1; an invalid one ends the chain ([MS-MQQB] 3.1.5.1.2)."""
    base = read_header(cursors, "BaseHeader", layouts.BASE_HEADER)
    cursors.fail(
        base["VersionNumber"] != layouts.PACKET_VERSION, MALFORMED_CODE, "BaseHeader.VersionNumber", cursors.start
    )
    cursors.fail(
        base["Signature"] != layouts.PACKET_SIGNATURE, MALFORMED_CODE, "BaseHeader.Signature", cursors.start + 4
    )
    cursors.fail(base["Flags"] & layouts.BASE_FLAG_IN != 0, UNSUPPORTED_CODE, "BaseHeader.Flags.IN", cursors.start + 2)
    if not packets.over_rpc[cursors.rows].all():  # in a TCP stream other data follow: PacketSize bounds the packet
        size = base["PacketSize"].astype(np.int64) + np.where(
            base["Flags"] & layouts.BASE_FLAG_SH != 0, layouts.SESSION_HEADER_BYTES, 0
        )
        cursors.end = np.where(
            packets.over_rpc[cursors.rows], cursors.end, np.minimum(cursors.end, cursors.start + size)
        )
    write_values(cursors, "BaseHeader whole", np.ones(len(base), np.bool_))
    return base


def read_header_chain(
    packets: PacketColumn, rows: Ints, out: DecodedColumns, soft: DecodedColumns, other_span: Bools
) -> None:
    """Read the headers of the packets of ``rows`` into ``out``; errors that do not end a chain go to ``soft``."""
    cursors = _packet_cursors(packets, rows, out)
    base_header = _read_base_header(cursors, packets)
    base_flags = base_header["Flags"]
    flags = _read_user_header(cursors)
    index, part = cursors.subset(flags & layouts.USER_FLAG_TH != 0)
    if len(index):
        _read_transaction_header(part)
        cursors.merge_subset(index, part)
    encrypted = np.zeros(len(rows), np.bool_)
    index, part = cursors.subset(flags & layouts.USER_FLAG_SH != 0)
    if len(index):
        encrypted[index] = _read_security_header(part)
        cursors.merge_subset(index, part)
    base = cursors.start
    lacking = cursors.live & (flags & layouts.USER_FLAG_MP == 0)
    if lacking.any():
        record_first_error(soft, rows[lacking], MALFORMED_CODE, "UserHeader.Flags.MP", 16 + 44)
        base = base.copy()
        index, part = cursors.subset(~lacking)
        base[index] = _read_properties_header(part, packets, encrypted[index], other_span[index])
        cursors.end[index] = part.end
        cursors.merge_subset(index, part)
    else:
        base = _read_properties_header(cursors, packets, encrypted, other_span)
    base = _read_optional_headers(cursors, packets, flags, base_flags, base, soft)
    _read_headers_after_message(cursors, packets, base_flags, soft)
    _check_packet_size(cursors, packets, base_header, soft)


def _read_optional_headers(
    cursors: ColumnCursors,
    packets: PacketColumn,
    flags: AnyArray,
    base_flags: AnyArray,
    base: Ints,
    soft: DecodedColumns,
) -> Ints:
    """Read the headers behind the MessagePropertiesHeader whose flags are set; returns the new alignment base."""
    index, part = cursors.subset(base_flags & layouts.BASE_FLAG_DH != 0)
    if len(index):
        _read_debug_header(part)
        cursors.merge_subset(index, part)
    # The flag is never set on TCP 1801 (doubt D12).
    over_http = (flags & layouts.USER_FLAG_AH != 0) & packets.over_rpc[cursors.rows]
    index, part = cursors.subset(over_http)
    if len(index):
        base = base.copy()
        base[index] = read_srmp_headers(part, packets, base[index], soft)
        cursors.end[index] = part.end
        cursors.merge_subset(index, part)
    cursors.fail(
        packets.srmp_limited[cursors.rows] & packets.is_in_sections[cursors.rows] & ~over_http,
        MALFORMED_CODE,
        "SectionBufferType",
        cursors.start,
    )
    for flag, read in ((layouts.USER_FLAG_HH, read_soap_header), (layouts.USER_FLAG_MQ, _read_multi_queue_header)):
        index, part = cursors.subset(flags & flag != 0)
        if len(index):
            read(part, base[index], soft)
            cursors.merge_subset(index, part)
    return base


def _read_headers_after_message(
    cursors: ColumnCursors, packets: PacketColumn, base_flags: AnyArray, soft: DecodedColumns
) -> None:
    """Read the SessionHeader and the trailing headers, and check that no bytes are left.

    PacketSize does not count a SessionHeader: a packet that RPC carries may have the flag but no such header.
    """
    remote_read = packets.is_from_remote_read[cursors.rows]
    session = base_flags & layouts.BASE_FLAG_SH != 0
    if session.any():
        left = cursors.end - cursors.position
        there = cursors.live & (left >= 8)
        size, follows = peek_uint32(cursors, cursors.position, there), peek_uint32(cursors, cursors.position + 4, there)
        trailing = (
            remote_read
            & (size == layouts.EXTENSION_HEADER.itemsize)
            & (follows == left - layouts.EXTENSION_HEADER.itemsize)
        )
        index, part = cursors.subset(session & ~trailing & ((left > 0) | ~packets.over_rpc[cursors.rows]))
        if len(index):
            _skip_session_header(part)
            cursors.merge_subset(index, part)
    write_values(cursors, "message end", cursors.position.copy())
    index, part = cursors.subset(remote_read & (cursors.position < cursors.end))
    if len(index):
        read_trailing_headers(part, soft)
        cursors.merge_subset(index, part)
    cursors.fail(cursors.position < cursors.end, MALFORMED_CODE, "packet", cursors.position)


def _check_packet_size(cursors: ColumnCursors, packets: PacketColumn, base: AnyArray, soft: DecodedColumns) -> None:
    """Add a soft error where PacketSize is the size of the message neither with nor without the trailing headers.

    A SessionHeader does not count ([MS-MQMQ] 2.2.19.1); a size that counts it together with all others is accepted.
    """
    declared = base["PacketSize"].astype(np.int64)
    whole = packets.end[cursors.rows] - cursors.start
    session = np.zeros(len(cursors.rows), np.int64)
    if "@SessionHeader" in cursors.out.valid:
        session = layouts.SESSION_HEADER_BYTES * cursors.out.valid["@SessionHeader"][cursors.rows]
    size = values_written(cursors.out, "message end", cursors.rows) - cursors.start - session
    wrong = (
        cursors.live
        & ~packets.is_in_sections[cursors.rows]
        & ((declared + 3) & ~3 != (size + 3) & ~3)
        & (declared != whole)
        & (declared != whole - session)
    )
    for which, code in ((wrong & (declared > whole), TRUNCATED_CODE), (wrong & (declared <= whole), MALFORMED_CODE)):
        record_first_error(soft, cursors.rows[which], code, "BaseHeader.PacketSize", 8)
