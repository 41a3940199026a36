"""Build COMQC bodies and dispatch calls from [MC-COMQC] 2.2 and [MS-OAUT], and decode them with both decoders."""

import struct
from uuid import UUID

import pyarrow as pa

from udfs.comqc.body_decoder import decode_bodies
from udfs.comqc.declared_interfaces import NO_DECLARATIONS
from udfs.comqc.single_body import decode_body

MARKER = bytes.fromhex("fbbc64165117d211b58e00e0290e6c31")
SIGNATURE = bytes.fromhex("83dbbb7141fcd011b7640080c7ec3fc1")
MONIKER = bytes.fromhex("c6afabec197fd211978e0000f8757e2a")
IDISPATCH = bytes.fromhex("0004020000000000c000000000000046")
CLSID = UUID("0d1e2f30-4152-6374-8596-a7b8c9dae0f1")
IID = UUID("11223344-5566-7788-99aa-bbccddeeff00")
PARTITION = UUID("41e90f3e-56c1-4633-81c3-6e8bac8bdd70")
USER = 0x72657355


def chdr(*, text=None, size=None, total=0, signature=SIGNATURE, versions=(1, 1), identifier=MONIKER, extra=0):
    """Return a container header; ``message`` replaces a ``total`` of 0."""
    raw = (f"{{{CLSID}}}\0" if text is None else text).encode("utf-16-le")
    target = identifier + CLSID.bytes_le + struct.pack("<I", len(raw)) + raw
    target += b"\xee" * (-len(target) % 8 + extra)
    head = struct.pack("<II", 0x52444843, 80 + len(target)) + signature + struct.pack("<III", *versions, total)
    return head + b"\xaa" * 32 + struct.pack("<I", len(target) if size is None else size) + b"\xbb" * 8 + target


def part(guid=PARTITION):
    return struct.pack("<II", 0x54524150, 0x18) + guid.bytes_le


def secd(data=b"\1\0\1\0\0\0\0\0", *, pad=0):
    body = data + b"\xcc" * (-len(data) % 8 + pad)
    return struct.pack("<IIII", 0x44434553, 16 + len(body), len(data), 0xDDDDDDDD) + body


def secr(offset):
    return struct.pack("<IIII", 0x52434553, 16, offset, 0x99999999)


def method(data=b"", *, opnum=6, iid=IDISPATCH, representation=0x10, flags=0x1000, reserved=1, size=None, pad=b""):
    """Return a METH, or an SMTH if ``iid`` is None; ``pad`` follows the data, then padding to a multiple of 8."""
    body = data + pad
    body += b"\x77" * (-len(body) % 8)
    name = 0x48544D53 if iid is None else 0x4854454D
    iid = iid.bytes_le if isinstance(iid, UUID) else iid or b""
    return (
        struct.pack("<IIII", name, 32 + len(iid) + len(body), opnum, representation)
        + struct.pack("<IIII", flags, len(data) if size is None else size, reserved, 0x55555555)
        + iid
        + body
    )


def message(*headers, trim=0):
    """Join headers and set the total size in the first one."""
    body = b"".join(headers)
    if body[:4] == b"CHDR" and body[32:36] == bytes(4):
        body = body[:32] + struct.pack("<I", len(body)) + body[36:]
    return body[: len(body) - trim]


class Ndr:
    """A buffer of NDR bytes with alignment."""

    def __init__(self):
        self.out = bytearray()

    def put(self, form, *numbers):
        for code, number in zip(form, numbers, strict=True):
            size = struct.calcsize(code)
            self.out += b"\xa5" * (-len(self.out) % size) + struct.pack(f"<{code}", number)
        return self

    def align(self, to):
        self.out += b"\xa5" * (-len(self.out) % to)
        return self

    def raw(self, data):
        self.out += data
        return self


def bstr(text):
    """Return a writer of a BSTR's blob: text, bytes (of any number), or None."""

    def write(ndr):
        raw = text.encode("utf-16-le") if isinstance(text, str) else text
        if raw is None:
            ndr.put("III", 0, 0xFFFFFFFF, 0)
            return
        units = (len(raw) + 1) // 2
        ndr.put("III", units, len(raw), units).raw(raw + bytes(len(raw) % 2))

    return write


def variant(ndr, vt, form=None, *numbers, body=None, pointers=0, tag=None):
    """Write a VARIANT: pointers, then a value of fixed size or what ``body`` writes; sets clSize."""
    ndr.align(8)
    start = len(ndr.out)
    ndr.put("II", 0, 0x5A5A5A5A).put("HHHH", vt, 1, 2, 3)
    ndr.put("I", (vt & 0x6000 if vt & 0x2000 else vt) if tag is None else tag)
    for _ in range(pointers):
        ndr.put("I", USER)
    if body:
        body(ndr)
    elif form:
        ndr.put(form, *numbers)
    size = -(-(len(ndr.out) - start) // 8)
    ndr.out[start : start + 4] = struct.pack("<I", size)
    return ndr


def safearray(kind, elements, *, features=0, element=0, bounds=None, write=None, width=None):
    """Write a SAFEARRAY behind its pointers; ``write`` writes what follows the max_count of its elements."""

    def put(ndr):
        dims = bounds or [(len(elements), 0)]
        ndr.put("IHHIII", len(dims), len(dims), features, width or 0, element << 16 | 7, kind)
        ndr.put("II", len(elements), 0x20008)
        for pair in dims:
            ndr.put("Ii", *pair)
        ndr.put("I", len(elements))
        write(ndr)

    return put


def invoke(arguments, *, dispid=1, flags=1, named=(), references=(), tail=b""):
    """Return the [in] parameters of IDispatch::Invoke.

    ``arguments`` are functions of an Ndr in the order of rgvarg, ``references`` are (index, function).
    """
    ndr = Ndr().put("i", dispid).raw(bytes(16)).put("II", 0x409, flags)
    ndr.put("IIII", 0x20000 if arguments else 0, 0x20004 if named else 0, len(arguments), len(named))
    if arguments:
        ndr.put("I", len(arguments)).put("I" * len(arguments), *[USER] * len(arguments))
        for write in arguments:
            write(ndr)
    if named:
        ndr.put("I", len(named)).put("i" * len(named), *named)
    count = len(references)
    ndr.put("II", count, count).put("I" * count, *(index for index, _ in references))
    ndr.put("I", count).put("I" * count, *[USER] * count)
    for _, write in references:
        write(ndr)
    return bytes(ndr.out) + tail


def value(vt, form=None, *numbers, **options):
    return lambda ndr: variant(ndr, vt, form, *numbers, **options)


def string(text, *, vt=8, pointers=1):
    return value(vt, body=bstr(text), pointers=pointers)


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
