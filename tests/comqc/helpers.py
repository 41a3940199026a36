"""Decode COMQC bodies and dispatch calls with both decoders; peer.comqc builds them."""

import pyarrow as pa

from comqc.single_body import decode_body
from peer.comqc import (  # noqa: F401
    CLSID,
    IDISPATCH,
    IID,
    MARKER,
    MONIKER,
    PARTITION,
    RECORD_LIBRARY,
    RECORD_TYPE,
    SIGNATURE,
    USER,
    Ndr,
    brecord,
    bstr,
    chdr,
    invoke,
    message,
    method,
    numbers_of,
    part,
    persisted_object,
    pointed,
    safearray,
    secd,
    secr,
    security_collection,
    security_data,
    security_property,
    string,
    value,
    variant,
)
from udfs.comqc.body_decoder import decode_bodies
from udfs.comqc.declared_interfaces import NO_DECLARATIONS


def column(bodies, *, extensions=None, body_bytes=None):
    """Decode with the column decoder; returns rows in the form of the single-value decoder."""
    out = decode_bodies(
        pa.array(bodies, pa.binary()),
        None if extensions is None else pa.array(extensions, pa.binary()),
        None if body_bytes is None else pa.array(body_bytes, pa.int64()),
        marshaled=True,
    )
    return rows_of(out)


def rows_of(decoded):
    """Return the output of the column decoder in the form of ``column``."""
    return [_plain(row) for row in decoded.to_pylist()]


def _plain(row):
    for each in [row, *(row["calls"] or [])]:
        each["errors"] = [(e["code"], e["field"], e["offset"]) for e in each["errors"]]
    if row["comqc_deviations"] is not None:
        row["comqc_deviations"] = [(each["rule"], each["offset"], each["places"]) for each in row["comqc_deviations"]]
    for call in row["calls"] or []:
        if call["arguments"] is not None:
            call["arguments"] = [(a["vt"], a["vt_name"], a["value"]) for a in call["arguments"]]
    return row


OPTIONAL = dict.fromkeys(("dispatch_id", "dispatch_flags", "named_dispatch_ids", "arguments", "partition_id"))


def single(body, body_bytes=None, declarations=NO_DECLARATIONS):
    """Decode with the single-value decoder; every column is present."""
    out = decode_body(body, body_bytes, declarations)
    out["calls"] = [OPTIONAL | call for call in out["calls"]]
    return out


def both(*bodies, body_bytes=None):
    """Decode with both decoders, which must agree; return the rows."""
    rows = column(bodies, body_bytes=body_bytes)
    sizes = body_bytes or [None] * len(bodies)
    assert rows == [single(body, size) for body, size in zip(bodies, sizes, strict=True)]
    return rows


def call(marshaled):
    """Return the only dispatch call of a body with this Marshaled Data, decoded with both decoders."""
    (row,) = both(message(chdr(), secd(), method(marshaled)))
    assert row["comqc_rejected"] is None
    (only,) = row["calls"]
    return only
