"""What was read of a column of stubs, numpy values by column, as Arrow arrays."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.stubs import text
from udfs.stubs.column import CODES, Bools, Column, Values
from udfs.stubs.method import OBJECT_TYPES
from udfs.stubs.single_variants import NUMBERS, VT_CLSIDS, VT_STRINGS, Variant
from udfs.stubs.spans import cut

ERRORS_TYPE: Final = pa.list_(
    pa.struct([pa.field("code", pa.string()), pa.field("field", pa.string()), pa.field("offset", pa.int64())])
)
_U64: Final = pa.decimal128(20, 0)

# What can be read, and its type: 32-bit numbers widen to 64 bits, 64-bit ones to decimals.
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
    # qmcomm, qmcomm2 and qmmgmt alone
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


def errors(parts: list[tuple[str, Values]], rows: int) -> pa.Array:
    """Return errors per row, in the order of ``parts``; each part's fields get its prefix."""
    counts = np.zeros(rows, np.int64)
    row_of, order, code, field, offset = [], [], [], [], []
    for place, (prefix, values) in enumerate(parts):
        at = np.flatnonzero(values.code)
        counts[at] += 1
        row_of += at.tolist()
        order += [place] * len(at)
        code += [CODES[number] for number in values.code[at].tolist()]
        field += [prefix + name for name in values.field[at].tolist()]
        offset += values.offset[at].tolist()
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


def column(name: str, values: Column, valid: Bools) -> pa.Array:
    """Return one column of single values as its Arrow type, null where not ``valid``."""
    to = COLUMN_TYPES[name]
    if not pa.types.is_string(to):
        return text.numbers(values, valid, to)
    if values.dtype == object:
        return text.texts(values, valid)
    if name == "object_type":
        names = np.array([None, *OBJECT_TYPES.values()], object)
        return text.texts(names[np.where(valid, values, 0)], valid)
    if name == "transaction_id":
        return text.guid_text(values, valid & values.any(axis=1))
    if values.shape[1] == 16:
        return text.guid_text(values, valid)
    return text.hex_text(values, valid & values.any(axis=1))


def _listed(values: Values, name: str, parts: int) -> list[Column]:
    """Return the ``parts`` of a flat list, the rows first, in the order of their rows."""
    flats = values.flats.get(name) or [tuple(np.zeros(0, np.int64) for _ in range(parts))]
    merged = [np.concatenate(part) for part in zip(*flats, strict=True)]
    order = np.argsort(merged[0], kind="stable")
    return [part[order] for part in merged]


def _offsets(rows: npt.NDArray[np.int64], has: Bools) -> pa.Array:
    """Return the offsets of lists whose elements belong to ``rows``, ascending; null where not ``has``."""
    ends = np.cumsum(np.bincount(rows, minlength=len(has)))
    return pa.array(np.concatenate([[0], ends]).astype(np.int32), mask=np.concatenate([~has, [False]]))


def _has(values: Values, name: str, keep: Bools) -> Bools:
    return keep & values.valid.get(name, np.zeros(values.rows, np.bool_))


def sections(values: Values, keep: Bools) -> dict[str, pa.Array]:
    """Return the section columns: lists in the rows of ``keep`` that have sections, null in the others."""
    has = _has(values, "sections", keep)
    rows, kinds, allocated, sizes = _listed(values, "sections", 4)
    ours = has[rows]
    offsets = _offsets(rows[ours], has)
    out = {}
    for (name, to), part in zip(SECTION_TYPES.items(), (kinds, sizes, allocated), strict=True):
        flat = pa.array(part[ours].astype(to.value_type.to_pandas_dtype()), to.value_type)
        out[name] = pa.ListArray.from_arrays(offsets, flat)
    return out


def numbers(values: Values, name: str, keep: Bools) -> pa.Array:
    """Return lists of 32-bit numbers as list<int32>; a number of 2^31 or more is shown as its two's complement."""
    has = _has(values, name, keep)
    rows, items = _listed(values, name, 2)
    ours = has[rows]
    flat = pa.array(items[ours].astype(np.uint32).view(np.int32))
    return pa.ListArray.from_arrays(_offsets(rows[ours], has), flat)


def plain(value: Any) -> Any:  # noqa: ANN401  (any variant's value)
    """Return a variant's value as JSON has it: bytes as hex, nested variants as {"vt", "value"}."""
    if isinstance(value, Variant):
        return {"vt": value.vt, "value": plain(value.value)}
    if isinstance(value, bytes):
        return value.hex()
    return [plain(item) for item in value] if isinstance(value, list) else value


def as_json(value: Any) -> str:  # noqa: ANN401
    """Return ``plain`` JSON text, no spaces."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def _decimals(low: npt.NDArray[np.uint64], negative: Bools, valid: Bools) -> pa.Array:
    wide = np.zeros((len(low), 2), "<u8")
    wide[:, 0] = low
    wide[negative, 1] = (1 << 64) - 1
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(_U64, len(low), [mask, pa.py_buffer(wide)])


def variants(values: Values, name: str, keep: Bools) -> pa.Array:
    """Return arrays of variants as VARIANTS_TYPE: of the five values at most one is not null, by the type."""
    has = _has(values, name, keep)
    # Added place by place: a stable order of rows leaves the places in theirs.
    rows, vt, number, negative, objects = _listed(values, "variants", 5)
    ours = has[rows]
    vt, objects = vt[ours].astype(np.int32), objects[ours]
    is_number = np.isin(vt, list(NUMBERS))
    texts: dict[str, list[Any]] = {kind: [None] * len(vt) for kind in ("text", "binary", "texts", "json")}
    for at, value in enumerate(objects.tolist()):
        kind = "text" if isinstance(value, str) else "binary" if isinstance(value, bytes) else "texts"
        if value is None:
            continue
        if isinstance(value, list) and vt[at] not in (VT_STRINGS, VT_CLSIDS):
            kind, value = "json", as_json(value)  # noqa: PLW2901
        texts[kind][at] = value
    flat = pa.StructArray.from_arrays(
        [
            pa.array(vt),
            _decimals(number[ours].astype(np.uint64), negative[ours].astype(np.bool_), is_number),
            pa.array(texts["text"], pa.string()),
            pa.array(texts["binary"], pa.binary()),
            pa.array(texts["texts"], pa.list_(pa.string())),
            pa.array(texts["json"], pa.string()),
        ],
        names=[field.name for field in VARIANTS_TYPE.value_type],
    )
    return pa.ListArray.from_arrays(_offsets(rows[ours], has), flat)


def packets(values: Values, data: npt.NDArray[np.uint8], keep: Bools) -> pa.Array:
    """Return packets as bytes, the spans of a row one after the other; null where not ``keep`` or without one."""
    has = _has(values, "packet_bytes", keep)
    rows, starts, sizes = _listed(values, "spans", 3)
    ours = has[rows]
    rows, sizes = rows[ours], sizes[ours]
    spans = cut(data, starts[ours], sizes, np.ones(len(rows), np.bool_))
    # The spans stand one after the other: where a row's begin is all that makes them packets.
    held = spans.buffers()[2]
    offsets = np.zeros(values.rows + 1, np.int64)
    np.cumsum(np.bincount(rows, sizes, minlength=values.rows).astype(np.int64), out=offsets[1:])
    width = np.int64 if pa.types.is_large_binary(spans.type) else np.int32
    there = pa.py_buffer(np.packbits(has, bitorder="little"))
    return pa.Array.from_buffers(spans.type, values.rows, [there, pa.py_buffer(offsets.astype(width)), held])
