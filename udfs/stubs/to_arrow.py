"""Decoded stub values (``DecodedColumns``) to Arrow arrays of the types of the silver tables."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.array_types import Bools, Ints, Octets
from udfs.stubs import arrow_primitives
from udfs.stubs.byte_spans import slice_spans
from udfs.stubs.column_cursors import ERROR_CODES, AnyArray, DecodedColumns
from udfs.stubs.idl import OBJECT_TYPES
from udfs.stubs.single_propvariant import NUMBER_SIZES, VT_VECTOR_CLSID, VT_VECTOR_LPWSTR, PropVariant

ERRORS_TYPE: Final = pa.list_(
    pa.struct([pa.field("code", pa.string()), pa.field("field", pa.string()), pa.field("offset", pa.int64())])
)
_U64: Final = pa.decimal128(20, 0)

# The Arrow type of each column with one value per row: unsigned 32-bit numbers as int64, 64-bit ones as decimals.
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "queue_format_type": pa.int32(),
    "queue_format_name": pa.string(),
    "queue": pa.string(),
    "access": pa.int64(),
    "share_mode": pa.int64(),
    "client_id": pa.string(),
    "non_routing_server": pa.bool_(),
    "workgroup": pa.bool_(),
    "version_major": pa.int32(),
    "version_minor": pa.int32(),
    "build_number": pa.int32(),
    "returned_port": pa.int64(),
    "port_type": pa.int64(),
    "context_handle": pa.string(),
    "remote_read_handle": pa.string(),
    "queue_handle": pa.int64(),
    "queue_descriptor": pa.int64(),
    "open_context": pa.int64(),
    "mqs": pa.int64(),
    "cursor_handle": pa.int64(),
    "action": pa.int64(),
    "timeout_ms": pa.int64(),
    "request_id": pa.int64(),
    "lookup_id": _U64,
    "sequence_id": _U64,
    "max_body_bytes": pa.int64(),
    "max_compound_message_bytes": pa.int64(),
    "transaction_id": pa.string(),
    "propagation_token_bytes": pa.int64(),
    "acknowledgement_class": pa.int64(),
    "ack": pa.int64(),
    "move_context": _U64,
    "arrive_time": pa.int64(),
    "packet_bytes": pa.int64(),
    "hresult": pa.int64(),
    # only of qmcomm, qmcomm2 and qmmgmt
    "remote_queue_name": pa.string(),
    "client_name": pa.string(),
    "queue_manager_context": pa.int64(),
    "remote_cursor_handle": pa.int64(),
    "object_type": pa.string(),
    "action_text": pa.string(),
}
LIST_TYPES: Final[dict[str, pa.DataType]] = {"property_ids": pa.list_(pa.int32())}
VARIANTS_TYPE: Final = pa.list_(
    pa.struct(
        [
            pa.field("vt", pa.int32()),
            pa.field("value_decimal", _U64),
            pa.field("value_text", pa.string()),
            pa.field("value_binary", pa.binary()),
            pa.field("value_texts", pa.list_(pa.string())),
            pa.field("value_json", pa.string()),
        ]
    )
)
SECTION_TYPES: Final[dict[str, pa.DataType]] = {
    "section_types": pa.list_(pa.int32()),
    "section_bytes": pa.list_(pa.int64()),
    "section_allocated_bytes": pa.list_(pa.int64()),
}


def error_lists(parts: list[tuple[str, DecodedColumns]], rows: int) -> pa.Array:
    """Return the errors of each row as lists, in the order of ``parts`` (field prefix, decoded columns)."""
    counts = np.zeros(rows, np.int64)
    row_of, order, code, field, offset = [], [], [], [], []
    for place, (prefix, values) in enumerate(parts):
        at = np.flatnonzero(values.error_code)
        counts[at] += 1
        row_of += at.tolist()
        order += [place] * len(at)
        code += [ERROR_CODES[number] for number in values.error_code[at].tolist()]
        field += [prefix + name for name in values.error_field[at].tolist()]
        offset += values.error_offset[at].tolist()
    sort = np.lexsort((order, row_of)) if row_of else np.zeros(0, np.int64)
    flat = pa.StructArray.from_arrays(
        [
            pa.array(code, pa.string()).take(pa.array(sort)),
            pa.array(field, pa.string()).take(pa.array(sort)),
            pa.array(offset, pa.int64()).take(pa.array(sort)),
        ],
        names=["code", "field", "offset"],
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat).cast(ERRORS_TYPE)


def value_array(name: str, values: AnyArray, valid: Bools) -> pa.Array:
    """Return a column with one value per row as its Arrow type; null where not ``valid``."""
    to = COLUMN_TYPES[name]
    if not pa.types.is_string(to):
        return arrow_primitives.number_array(values, valid, to)
    if values.dtype == object:
        return arrow_primitives.string_array(values, valid)
    if name == "object_type":
        names = np.array([None, *OBJECT_TYPES.values()], object)
        return arrow_primitives.string_array(names[np.where(valid, values, 0)], valid)
    if name == "transaction_id":
        return arrow_primitives.guid_strings(values, valid & values.any(axis=1))
    if values.shape[1] == 16:
        return arrow_primitives.guid_strings(values, valid)
    return arrow_primitives.hex_strings(values, valid & values.any(axis=1))


def _ordered_elements(values: DecodedColumns, name: str, parts: int) -> list[AnyArray]:
    """Return the arrays of a column with any number of values per row, sorted by row; the first one holds the rows."""
    flats = values.elements.get(name) or [tuple(np.zeros(0, np.int64) for _ in range(parts))]
    merged = [np.concatenate(part) for part in zip(*flats, strict=True)]
    order = np.argsort(merged[0], kind="stable")
    return [part[order] for part in merged]


def _list_offsets(rows: Ints, has: Bools) -> pa.Array:
    """Return list offsets for elements that belong to ``rows`` (ascending); the list is null where not ``has``."""
    ends = np.cumsum(np.bincount(rows, minlength=len(has)))
    return pa.array(np.concatenate([[0], ends]).astype(np.int32), mask=np.concatenate([~has, [False]]))


def _rows_with(values: DecodedColumns, name: str, keep: Bools) -> Bools:
    return keep & values.valid.get(name, np.zeros(values.rows, np.bool_))


def section_columns(values: DecodedColumns, keep: Bools) -> dict[str, pa.Array]:
    """Return the ``section_*`` columns as lists; null in rows that are not ``keep`` or have no sections."""
    has = _rows_with(values, "sections", keep)
    rows, kinds, allocated, sizes = _ordered_elements(values, "sections", 4)
    ours = has[rows]
    offsets = _list_offsets(rows[ours], has)
    out = {}
    for (name, to), part in zip(SECTION_TYPES.items(), (kinds, sizes, allocated), strict=True):
        flat = pa.array(part[ours].astype(to.value_type.to_pandas_dtype()), to.value_type)
        out[name] = pa.ListArray.from_arrays(offsets, flat)
    return out


def number_lists(values: DecodedColumns, name: str, keep: Bools) -> pa.Array:
    """Return lists of 32-bit numbers as list<int32>; a number of 2^31 or more becomes its two's complement."""
    has = _rows_with(values, name, keep)
    rows, items = _ordered_elements(values, name, 2)
    ours = has[rows]
    flat = pa.array(items[ours].astype(np.uint32).view(np.int32))
    return pa.ListArray.from_arrays(_list_offsets(rows[ours], has), flat)


def json_value(value: Any) -> Any:  # noqa: ANN401  (any variant's value)
    """Return a PROPVARIANT value for JSON: bytes as hex, nested variants as {"vt", "value"}."""
    if isinstance(value, PropVariant):
        return {"vt": value.vt, "value": json_value(value.value)}
    if isinstance(value, bytes):
        return value.hex()
    return [json_value(item) for item in value] if isinstance(value, list) else value


def json_text(value: Any) -> str:  # noqa: ANN401
    """Return a PROPVARIANT value as JSON text without spaces."""
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"))


def _signed_decimals(low: npt.NDArray[np.uint64], negative: Bools, valid: Bools) -> pa.Array:
    wide = np.zeros((len(low), 2), "<u8")
    wide[:, 0] = low
    wide[negative, 1] = (1 << 64) - 1
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(_U64, len(low), [mask, pa.py_buffer(wide)])


def variant_lists(values: DecodedColumns, name: str, keep: Bools) -> pa.Array:
    """Return arrays of PROPVARIANTs as VARIANTS_TYPE; ``vt`` decides which one of the five value fields is filled."""
    has = _rows_with(values, name, keep)
    # Elements were appended position by position: the stable sort by row keeps their order within each row.
    rows, vt, number, negative, objects = _ordered_elements(values, "variants", 5)
    ours = has[rows]
    vt, objects = vt[ours].astype(np.int32), objects[ours]
    is_number = np.isin(vt, list(NUMBER_SIZES))
    texts: dict[str, list[Any]] = {kind: [None] * len(vt) for kind in ("text", "binary", "texts", "json")}
    for at, value in enumerate(objects.tolist()):
        kind = "text" if isinstance(value, str) else "binary" if isinstance(value, bytes) else "texts"
        if value is None:
            continue
        if isinstance(value, list) and vt[at] not in (VT_VECTOR_LPWSTR, VT_VECTOR_CLSID):
            kind, value = "json", json_text(value)  # noqa: PLW2901
        texts[kind][at] = value
    flat = pa.StructArray.from_arrays(
        [
            pa.array(vt),
            _signed_decimals(number[ours].astype(np.uint64), negative[ours].astype(np.bool_), is_number),
            pa.array(texts["text"], pa.string()),
            pa.array(texts["binary"], pa.binary()),
            pa.array(texts["texts"], pa.list_(pa.string())),
            pa.array(texts["json"], pa.string()),
        ],
        names=[field.name for field in VARIANTS_TYPE.value_type],
    )
    return pa.ListArray.from_arrays(_list_offsets(rows[ours], has), flat)


def packet_column(values: DecodedColumns, data: Octets, keep: Bools) -> pa.Array:
    """Return message packets as binary: all spans of a row joined; null in rows that are not ``keep`` or have none."""
    has = _rows_with(values, "packet_bytes", keep)
    rows, starts, sizes = _ordered_elements(values, "spans", 3)
    ours = has[rows]
    rows, sizes = rows[ours], sizes[ours]
    spans = slice_spans(data, starts[ours], sizes, np.ones(len(rows), np.bool_))
    # The spans are already adjacent: new offsets by row join them.
    held = spans.buffers()[2]
    offsets = np.zeros(values.rows + 1, np.int64)
    np.cumsum(np.bincount(rows, sizes, minlength=values.rows).astype(np.int64), out=offsets[1:])
    width = np.int64 if pa.types.is_large_binary(spans.type) else np.int32
    there = pa.py_buffer(np.packbits(has, bitorder="little"))
    return pa.Array.from_buffers(spans.type, values.rows, [there, pa.py_buffer(offsets.astype(width)), held])
