"""Read the headers of messages that came over HTTP: SRMP envelope, compound message, SOAP header and body."""

from __future__ import annotations

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.messages import header_layouts as layouts
from udfs.messages.record_readers import (
    PacketColumn,
    align_to_4,
    note_wrong_size,
    peek_uint16,
    read_header,
    read_record,
    write_values,
)
from udfs.stubs.column_cursors import MALFORMED_CODE, TRUNCATED_CODE, ColumnCursors, DecodedColumns


def _has_compound_header(cursors: ColumnCursors, at: Ints, base: Ints, missing: Ints) -> Bools:
    """Return the mask of rows with a plausible CompoundMessageHeader at the next multiple of 4 from ``at``."""
    at = at + (base - at) % 4
    there = cursors.live & (at + layouts.COMPOUND_MESSAGE_HEADER.itemsize <= cursors.end)
    view = np.ndarray(
        len(cursors.data) - layouts.COMPOUND_MESSAGE_HEADER.itemsize + 1,
        f"V{layouts.COMPOUND_MESSAGE_HEADER.itemsize}",
        cursors.data,
        strides=(1,),
    )
    found = view[np.where(there, at, 0)].view(layouts.COMPOUND_MESSAGE_HEADER)
    size = found["HTTPBodySize"].astype(np.int64)
    body = found["MsgBodyOffset"].astype(np.int64) + found["MsgBodySize"]
    fits: Bools = (
        there & (body <= size) & (size <= cursors.end - at - layouts.COMPOUND_MESSAGE_HEADER.itemsize + missing)
    )
    return fits


def read_srmp_headers(cursors: ColumnCursors, packets: PacketColumn, base: Ints, soft: DecodedColumns) -> Ints:
    """Read SRMP envelope and compound message, [MS-MQRR] 2.2.5.1.2; returns the new alignment base.

    The unit of DataLength is not specified (doubt D7). It is characters, unless only with bytes the text ends with NUL
    and a plausible CompoundMessageHeader follows. A body that is larger than Data ends with it: an error in ``soft``.
    """
    missing = np.where(packets.srmp_limited[cursors.rows], packets.missing_bytes[cursors.rows], 0)
    length = read_header(cursors, "SRMPEnvelopeHeader", layouts.SRMP_ENVELOPE_HEADER)["DataLength"].astype(np.int64)
    fits = []
    for size in (2 * length, length):
        after = cursors.position + size
        ends = cursors.live & (size >= 2) & (after <= cursors.end)
        fits.append(
            ends & (peek_uint16(cursors, after - 2, ends) == 0) & _has_compound_header(cursors, after, base, missing)
        )
    cursors.advance(np.where(fits[1] & ~fits[0], length, 2 * length), "SRMPEnvelopeHeader.Data")
    align_to_4(cursors, base)
    found = read_header(cursors, "CompoundMessageHeader", layouts.COMPOUND_MESSAGE_HEADER)
    size = found["HTTPBodySize"].astype(np.int64)
    body, offset = found["MsgBodySize"].astype(np.int64), found["MsgBodyOffset"].astype(np.int64)
    at = cursors.position
    note_wrong_size(soft, cursors, offset + body > size, "CompoundMessageHeader.MsgBodySize", at - 8)
    left = np.maximum(cursors.end - at, 0)
    write_values(cursors, "body at", np.minimum(at + offset, np.maximum(cursors.end, at)))
    write_values(cursors, "body seen", np.clip(np.minimum(left, size) - offset, 0, body))
    write_values(cursors, "CompoundMessageHeader whole", np.ones(len(found), np.bool_))
    cursors.fail(size > left + missing, TRUNCATED_CODE, "CompoundMessageHeader.Data")
    cut = packets.is_in_sections[cursors.rows] & packets.srmp_limited[cursors.rows]
    cursors.advance(np.where(cut, left, size), "CompoundMessageHeader.Data")
    cursors.end = np.where(cut, packets.end[cursors.rows], cursors.end)
    base = np.where(cut, packets.first_section_end[cursors.rows], base)
    align_to_4(cursors, base)
    return base


def read_soap_header(cursors: ColumnCursors, base: Ints, _soft: DecodedColumns) -> None:
    """Read a SoapHeader, [MS-MQMQ] 2.2.20.7; its second half may be aligned or not (doubt D8)."""
    at = cursors.position
    found = read_header(cursors, "SoapHeader", layouts.SOAP_SECTION)
    cursors.fail(found["SectionID"] != layouts.SOAP_HEADER_ID, MALFORMED_CODE, "SoapHeader.HeaderSectionID", at)
    size = 2 * found["DataLength"].astype(np.int64)
    write_values(cursors, "soap header at", cursors.advance(size, "SoapHeader.Header"))
    write_values(cursors, "soap header size", size)
    aligned = cursors.position + (base - cursors.position) % 4
    there = peek_uint16(cursors, aligned, cursors.live & (aligned + 2 <= cursors.end)) == layouts.SOAP_BODY_ID
    cursors.position = np.where(there, aligned, cursors.position)
    at = cursors.position
    found = read_record(cursors, "SoapHeader.BodySectionID", layouts.SOAP_SECTION)
    cursors.fail(found["SectionID"] != layouts.SOAP_BODY_ID, MALFORMED_CODE, "SoapHeader.BodySectionID", at)
    size = 2 * found["DataLength"].astype(np.int64)
    cursors.advance(size, "SoapHeader.Body")
    write_values(cursors, "soap body size", size)
    align_to_4(cursors, base)
