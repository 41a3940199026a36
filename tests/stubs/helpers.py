"""Stub vectors, and ways to decode a stub: column decoder, single-value decoder, four encodings."""

import json
from pathlib import Path

import pyarrow as pa

from peer.methods import BY_NAME
from udfs.stubs import method_registry
from udfs.stubs.single_stub import decode_single_stub
from udfs.stubs.stub_decoder import decode_stubs

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())["vectors"]
# Vectors of qmmgmt, qmcomm and qmcomm2, from the same fact sheet.
_SHEET = json.loads((Path(__file__).parents[1] / "sample" / "vectors.json").read_text())
_OTHERS = {
    method.name
    for table in (method_registry.MANAGEMENT_METHODS, method_registry.CLIENT_METHODS)
    for by_opnum in table.values()
    for method in by_opnum.values()
}
OTHER_VECTORS = [vector for vector in _SHEET if vector["method"] in _OTHERS]
ENCODINGS = {"NDR": (False, "<"), "NDR big-endian": (False, ">"), "NDR64": (True, "<"), "NDR64 big-endian": (True, ">")}
BY_METHOD = {method.name: method for by_opnum in method_registry.ALL_METHODS.values() for method in by_opnum.values()}


def column(method, direction, stubs, *, ndr64=False, big=False):
    """Decode with the column decoder; per row (values that are not null, errors as tuples)."""
    return rows_of(
        decode_stubs(method, direction, pa.array(stubs, pa.binary()), ndr64=ndr64, big_endian=big, packets=True)
    )


def rows_of(rows):
    """Return the output of the column decoder in the form of ``column``."""
    out = []
    for row in rows.to_pylist():
        errors = [(e["code"], e["field"], e["offset"]) for e in row.pop("errors")]
        out.append(({name: plain(value) for name, value in row.items() if value is not None}, errors))
    return out


def single(method, direction, stub, *, ndr64=False, big=False):
    """Decode with the single-value decoder; returns the same form as ``column``."""
    values, errors = decode_single_stub(method, direction, stub, ndr64=ndr64, big_endian=big)
    if "values" in values:
        values["values"] = [shown(*variant) for variant in values["values"]]
    return {name: value for name, value in values.items() if value is not None}, errors


def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return int(value) if hasattr(value, "as_tuple") else value


def shown(vt, value):
    """Return a PROPVARIANT in the form of the column decoder: one of five value fields, by its type."""
    out = dict.fromkeys(("value_decimal", "value_text", "value_binary", "value_texts", "value_json"))
    if isinstance(value, list):
        texts = vt in (0x101F, 0x1048)
        out["value_texts" if texts else "value_json"] = value if texts else _dump(value)
    elif value is not None:
        out[{int: "value_decimal", str: "value_text", bytes: "value_binary"}[type(value)]] = value
    return {"vt": vt, **out}


def _dump(value):
    return json.dumps(_json(value), separators=(",", ":"), ensure_ascii=False)


def _json(value):
    if isinstance(value, tuple):
        return {"vt": value[0], "value": _json(value[1])}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def peer_values(method_name, direction, stub):
    """Return what the peer's codec decodes from a little-endian NDR stub."""
    peer = BY_NAME[method_name]
    return (peer.parse_request if direction == "request" else peer.parse_response)(stub, ndr64=False)


def peer_stub(method_name, direction, values, *, ndr64, order):
    """Encode with the peer's codec, which shares no code with the decoders."""
    peer = BY_NAME[method_name]
    return (peer.request if direction == "request" else peer.response)(values, ndr64=ndr64, order=order)
