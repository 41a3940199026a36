"""Vectors, and the roads a stub can be sent down: the column reader, the single-value reader, four encodings."""

import json
from pathlib import Path

import pyarrow as pa

from peer.methods import BY_NAME
from udfs.stubs.calls import METHODS, decode
from udfs.stubs.single import decode_stub

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())["vectors"]
ENCODINGS = {"NDR": (False, "<"), "NDR big-endian": (False, ">"), "NDR64": (True, "<"), "NDR64 big-endian": (True, ">")}
BY_METHOD = {method.name: method for methods in METHODS.values() for method in methods.values()}


def column(method, direction, stubs, *, ndr64=False, big=False):
    """Decode with the column reader: per row (values that are not null, errors as tuples)."""
    rows = decode(method, direction, pa.array(stubs, pa.binary()), ndr64=ndr64, big_endian=big, packets=True)
    out = []
    for row in rows.to_pylist():
        errors = [(e["code"], e["field"], e["offset"]) for e in row.pop("errors")]
        out.append(({name: plain(value) for name, value in row.items() if value is not None}, errors))
    return out


def single(method, direction, stub, *, ndr64=False, big=False):
    """Decode with the single-value reader, in the same form."""
    values, errors = decode_stub(method, direction, stub, ndr64=ndr64, big_endian=big)
    return {name: value for name, value in values.items() if value is not None}, errors


def plain(value):
    return int(value) if hasattr(value, "as_tuple") else value


def peer_values(method_name, direction, stub):
    """Return what the peer's own codec reads from a little-endian NDR stub."""
    peer = BY_NAME[method_name]
    return (peer.parse_request if direction == "request" else peer.parse_response)(stub, ndr64=False)


def peer_stub(method_name, direction, values, *, ndr64, order):
    """Encode with the peer's codec, which shares nothing with the decoders."""
    peer = BY_NAME[method_name]
    return (peer.request if direction == "request" else peer.response)(values, ndr64=ndr64, order=order)
