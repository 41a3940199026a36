"""Observations as snapshot rows: one row per observation, one column per property.

Values of the expected type are converted for all rows at once; nested vectors and values of other types one by one, by
``value_conversion.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.table import ERRORS, EVENT_DATE, RUN_ID, STRINGS, TIMESTAMP, UINT64
from udfs import codes
from udfs.array_types import Bools
from udfs.columns.arrays import from_groups, over_distinct, to_flags
from udfs.columns.groups import group_bounds
from udfs.errors import MALFORMED
from udfs.properties import property_names, value_conversion
from udfs.properties.observations import (
    DECODER_VERSION,
    OBSERVATION_COLUMNS,
    STATE_ERROR,
    STATE_VALUE,
    VALUE_COLUMNS,
    parse_json,
)
from udfs.properties.value_conversion import (
    COLUMN_CONVERSIONS,
    SEQUENCE_TYPE,
    ColumnConversion,
    PropertyValue,
    UnexpectedValueError,
)

ColumnwiseResult = tuple[pa.Array, Bools]
_SNAPSHOT_TABLES: Final = {"queue": QUEUE_SNAPSHOTS, "machine": MACHINE_SNAPSHOTS}


def queue_snapshot_rows(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.queue_snapshots``: one per observation of a queue, failed ones included."""
    return _snapshot_rows(observations, "queue")


def machine_snapshot_rows(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.machine_snapshots``: one per observation of a queue manager, failed ones included."""
    return _snapshot_rows(observations, "machine")


def snapshot_schema(object_type: str) -> pa.Schema:
    """Return the schema of snapshot rows; ``object_type`` is "queue" or "machine"."""
    return _SNAPSHOT_TABLES[object_type].schema(without=(EVENT_DATE, RUN_ID))


def _text_values(items: pa.StructArray) -> ColumnwiseResult:
    text = items.field("value_text")
    return text, to_flags(pc.and_(pc.equal(items.field("vt"), 31), text.is_valid()))


def _decimal_values(items: pa.StructArray) -> ColumnwiseResult:
    number = items.field("value_decimal")
    return number, to_flags(
        pc.and_(pc.is_in(items.field("vt"), pa.array(value_conversion.NUMBER_TYPES)), number.is_valid())
    )


def _count_values(items: pa.StructArray) -> ColumnwiseResult:
    number, fits = _decimal_values(items)
    small = to_flags(pc.less(pc.abs(number), pa.scalar(1 << 62, UINT64))) & fits
    return pc.if_else(pa.array(small), number, pa.scalar(None, UINT64)).cast(pa.int64()), small


def _time_values(items: pa.StructArray) -> ColumnwiseResult:
    number, fits = _count_values(items)
    seconds = np.asarray(pc.fill_null(number, 0)) % (1 << 32)
    return pa.array(seconds * 1_000_000, TIMESTAMP, mask=seconds == 0), fits


def _text_list_values(items: pa.StructArray) -> ColumnwiseResult:
    texts = items.field("value_texts")
    return texts, to_flags(pc.and_(pc.equal(items.field("vt"), 0x101F), texts.is_valid()))


def _sequence_values(items: pa.StructArray) -> ColumnwiseResult:
    """Convert SEQUENCE_INFO values of 16 octets, [MS-MQMQ] 2.2.5; all zero is null."""
    blob = items.field("value_binary")
    fits = to_flags(
        pc.and_(pc.equal(items.field("vt"), value_conversion.VT_BLOB), pc.equal(pc.binary_length(blob), 16))
    )
    plain = pc.if_else(pa.array(fits), blob, pa.scalar(bytes(16), pa.binary())).cast(pa.binary(16))
    raw = np.frombuffer(b"".join(plain.to_pylist()), np.dtype([("id", "<u8"), ("number", "<u4"), ("previous", "<u4")]))
    wide = np.zeros((len(raw), 2), "<u8")
    wide[:, 0] = raw["id"]
    parts = [
        pa.Array.from_buffers(UINT64, len(raw), [None, pa.py_buffer(wide)]),
        pa.array(raw["number"].astype(np.int64)),
        pa.array(raw["previous"].astype(np.int64)),
    ]
    none = (raw["id"] == 0) & (raw["number"] == 0) & (raw["previous"] == 0)
    return pa.StructArray.from_arrays(parts, fields=list(SEQUENCE_TYPE), mask=pa.array(none)), fits


_COLUMNWISE_READERS: Final[dict[pa.DataType, Callable[[pa.StructArray], ColumnwiseResult]]] = {
    pa.string(): _text_values,
    UINT64: _decimal_values,
    pa.int64(): _count_values,
    TIMESTAMP: _time_values,
    STRINGS: _text_list_values,
    SEQUENCE_TYPE: _sequence_values,
}


class _FlatProperties:
    """The properties of all observations as flat arrays; of a property requested twice only the first counts."""

    def __init__(self, lists: pa.ListArray, object_type: str) -> None:
        owner = np.asarray(pc.list_parent_indices(lists), np.int64)
        items = lists.flatten()
        numbers = np.asarray(items.field("property_id")).astype(np.int64)
        _, first = np.unique((owner << 32) + numbers % (1 << 32), return_index=True)
        first.sort()
        self.owner, self.numbers = owner[first], numbers[first]
        self.place = first - np.searchsorted(owner, owner[first])
        self.items = items.take(pa.array(first))
        self.states = self.items.field("state").to_numpy(zero_copy_only=False).copy()
        self.given = self.states == STATE_VALUE
        distinct, which = np.unique(self.numbers, return_inverse=True)
        labels = np.array(
            [property_names.property_column_name(object_type, number) for number in distinct.tolist()], object
        )
        self.names = labels[which]
        self.unfit: list[int] = []

    def property_column(self, number: int, kind: ColumnConversion, rows: int) -> pa.Array:
        """Return the column of one property; values that do not fit it become null and are recorded in ``unfit``."""
        at = np.flatnonzero(self.given & (self.numbers == number))
        items = self.items.take(pa.array(at))
        found, fits = pa.array([], kind.type), np.zeros(len(at), np.bool_)
        if kind.type in _COLUMNWISE_READERS:
            found, fits = _COLUMNWISE_READERS[kind.type](items)
        read = [_convert_value(kind, prop) for prop in items.filter(pa.array(~fits)).to_pylist()]
        self.unfit += at[~fits][[isinstance(value, UnexpectedValueError) for value in read]].tolist()
        slow = pa.array([None if isinstance(value, UnexpectedValueError) else value for value in read], kind.type)
        index = np.full(rows, -1)
        index[self.owner[at[fits]]] = np.flatnonzero(fits)
        index[self.owner[at[~fits]]] = len(found) + np.arange(len(slow))
        return pa.concat_arrays([found.cast(kind.type), slow]).take(pa.array(index, mask=index < 0))

    def states_and_errors(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return the property states and the errors of unfit values, by row; call it after all ``property_column``."""
        unfit = np.array(sorted(self.unfit), np.int64)
        self.states[unfit] = STATE_ERROR
        order = np.lexsort((self.names.astype(str), self.owner))
        states = pa.MapArray.from_arrays(
            pa.array(group_bounds(self.owner, rows), pa.int32()),
            pa.array(self.names[order], pa.string()),
            pa.array(self.states[order], pa.string()),
        )
        errors = pa.StructArray.from_arrays(
            [
                pa.array([MALFORMED] * len(unfit), pa.string()),
                pa.array(self.names[unfit], pa.string()),
                pa.array(self.place[unfit], pa.int64()),
            ],
            fields=list(ERRORS.value_type),
        )
        return states, from_groups(group_bounds(self.owner[unfit], rows), errors).cast(ERRORS)


def _snapshot_rows(observations: pa.Table, object_type: str) -> pa.Table:
    schema = snapshot_schema(object_type)
    ours = observations.filter(pc.equal(observations.column("object_type"), object_type))
    rows = ours.num_rows
    flat = _FlatProperties(ours.column("properties").combine_chunks(), object_type)
    out: dict[str, Any] = {name: ours.column(name) for name in OBSERVATION_COLUMNS if name in schema.names}
    for number, kind in COLUMN_CONVERSIONS[object_type].items():
        out[property_names.property_column_name(object_type, number)] = flat.property_column(number, kind, rows)
    out["hresult_name"] = over_distinct(ours.column("hresult"), codes.result_name, pa.string())
    out["property_states"], out["errors"] = flat.states_and_errors(rows)
    out["decoder_version"] = pa.array([DECODER_VERSION] * rows, pa.string())
    return pa.table([out[name] for name in schema.names], schema=schema)


def _convert_value(kind: ColumnConversion, prop: Mapping[str, Any]) -> Any:  # noqa: ANN401  (whatever the column holds)
    """Return one value converted for its column, or the UnexpectedValueError."""
    try:
        return kind.convert(PropertyValue(prop["vt"], _python_value(prop)))
    except UnexpectedValueError as error:
        return error


def _python_value(prop: Mapping[str, Any]) -> Any:  # noqa: ANN401  (any variant's value)
    """Return the value of a property struct as a Python value: decimals as integers, JSON parsed."""
    if prop["value_decimal"] is not None:
        return int(prop["value_decimal"])
    if prop["value_json"] is None:
        return next((prop[name] for name in VALUE_COLUMNS if prop[name] is not None), None)
    try:
        return parse_json(prop["value_json"])
    except (ValueError, RecursionError) as error:
        raise UnexpectedValueError from error
