"""What messages that came over HTTP carry: SRMP envelope and compound message, SOAP header and body."""

from __future__ import annotations

import numpy as np

from udfs.messages import headers as h
from udfs.messages.reading import MALFORMED, TRUNCATED, Packets, align, header, keep, record, u16
from udfs.stubs.column import Bools, Cursors, Ints


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


def read_srmp(c: Cursors, packets: Packets, base: Ints) -> Ints:
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


def read_soap(c: Cursors, base: Ints) -> None:
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
