"""Decoded stub values (``DecodedColumns``) to Arrow arrays of the types of the silver tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.queue_snapshots import PROPERTIES
from schemas.table import BIGINT, ERRORS, STRING, UINT64, Table, list_of
from udfs.array_types import Bools, Ints, Octets
from udfs.stubs import arrow_primitives
from udfs.stubs.byte_spans import slice_spans
from udfs.stubs.column_cursors import ERROR_CODES, AnyArray, DecodedColumns
from udfs.stubs.idl import OBJECT_TYPES
from udfs.stubs.single_propvariant import NUMBER_SIZES, VT_VECTOR_CLSID, VT_VECTOR_LPWSTR, PropVariant


def _declared(table: Table, columns: Iterable[str]) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in table.schema(only=columns)}


READ_COLUMNS: Final = (
    "queue_format_type", "queue_format_name", "queue", "access", "share_mode", "client_id", "non_routing_server",
    "workgroup", "version_major", "version_minor", "build_number", "returned_port", "port_type", "context_handle",
    "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "action",
    "timeout_ms", "request_id", "lookup_id", "sequence_id", "max_body_bytes", "max_compound_message_bytes",
    "transaction_id", "propagation_token_bytes", "acknowledgement_class", "ack", "move_context", "packet_bytes",
    "hresult",
)  # fmt: skip
"""The columns of ``silver.remote_read_calls`` with one value per stub."""
RAW_TYPES: Final = {"arrive_time": BIGINT, "action_text": STRING}
"""Values that are in no column: others are made of them."""
COLUMN_TYPES: Final = {
    **_declared(REMOTE_READ_CALLS, READ_COLUMNS),
    **_declared(CLIENT_CALLS, ("remote_queue_name", "client_name", "queue_manager_context", "remote_cursor_handle")),
    **_declared(MANAGEMENT_CALLS, ("object_type",)),
    **RAW_TYPES,
}
"""The Arrow type of each value of which a stub has one: unsigned 32-bit numbers as int64, 64-bit ones as decimals."""
LIST_TYPES: Final = _declared(MANAGEMENT_CALLS, ("property_ids",))
VARIANTS_TYPE: Final = list_of(
    pa.struct(
        PROPERTIES.schema(only=("vt", "value_decimal", "value_text", "value_binary", "value_texts", "value_json"))
    )
)
SECTION_TYPES: Final = _declared(REMOTE_READ_CALLS, ("section_types", "section_bytes", "section_allocated_bytes"))


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
    return pa.ListArray.from_arrays(pa.array(offsets), flat).cast(ERRORS)


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
    return pa.Array.from_buffers(UINT64, len(low), [mask, pa.py_buffer(wide)])


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
