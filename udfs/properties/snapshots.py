"""Observations as snapshots: a row each, with a column per property, a column at a time.

A value of the type that its property has is taken as it stands, all rows at once; nested vectors, and whatever comes in
another type, are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from udfs import codes
from udfs.errors import MALFORMED
from udfs.properties import names, values
from udfs.properties.observations import DECODER_VERSION, ERROR, OBSERVED, VALUE, VALUES, loads
from udfs.properties.values import KINDS, SEQUENCE, TEXTS, TIME, U64, Kind, UnfitError, Value
from udfs.stubs.arrays import ERRORS_TYPE

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Fast = tuple[pa.Array, Bools]

_SNAPSHOT: Final[dict[str, pa.DataType]] = {
    **{name: to for name, to in OBSERVED.items() if name != "object_type"},
    "hresult_name": pa.string(),
    "property_states": pa.map_(pa.string(), pa.string()),
}
_CLOSING: Final[dict[str, pa.DataType]] = {"errors": ERRORS_TYPE, "decoder_version": pa.string()}


def queue_snapshots(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.queue_snapshots``: one per observation of a queue, failed ones too."""
    return _snapshots(observations, "queue")


def machine_snapshots(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.machine_snapshots``: one per observation of a queue manager, failed ones too."""
    return _snapshots(observations, "machine")


def snapshot_schema(object_type: str) -> pa.Schema:
    """Return the columns of the snapshots of queues or of machines."""
    kinds = {names.column_name(object_type, number): kind.type for number, kind in sorted(KINDS[object_type].items())}
    known = {name: to for name, to in _SNAPSHOT.items() if object_type == "queue" or not name.startswith("queue_form")}
    if object_type == "machine":
        del known["queue"]
    return pa.schema({**known, **kinds, **_CLOSING})


def _bools(mask: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), np.bool_)  # noqa: FBT003


def _text(items: pa.StructArray) -> Fast:
    text = items.field("value_text")
    return text, _bools(pc.and_(pc.equal(items.field("vt"), 31), text.is_valid()))


def _decimal(items: pa.StructArray) -> Fast:
    number = items.field("value_decimal")
    return number, _bools(pc.and_(pc.is_in(items.field("vt"), pa.array(values.NUMBERS)), number.is_valid()))


def _count(items: pa.StructArray) -> Fast:
    number, fits = _decimal(items)
    small = _bools(pc.less(pc.abs(number), pa.scalar(1 << 62, U64))) & fits
    return pc.if_else(pa.array(small), number, pa.scalar(None, U64)).cast(pa.int64()), small


def _time(items: pa.StructArray) -> Fast:
    number, fits = _count(items)
    seconds = np.asarray(pc.fill_null(number, 0)) % (1 << 32)
    return pa.array(seconds * 1_000_000, TIME, mask=seconds == 0), fits


def _texts(items: pa.StructArray) -> Fast:
    texts = items.field("value_texts")
    return texts, _bools(pc.and_(pc.equal(items.field("vt"), 0x101F), texts.is_valid()))


def _sequence(items: pa.StructArray) -> Fast:
    """SEQUENCE_INFO of 16 octets, [MS-MQMQ] 2.2.5; all zero is none."""
    blob = items.field("value_binary")
    fits = _bools(pc.and_(pc.equal(items.field("vt"), values.BLOB), pc.equal(pc.binary_length(blob), 16)))
    plain = pc.if_else(pa.array(fits), blob, pa.scalar(bytes(16), pa.binary())).cast(pa.binary(16))
    raw = np.frombuffer(b"".join(plain.to_pylist()), np.dtype([("id", "<u8"), ("number", "<u4"), ("previous", "<u4")]))
    wide = np.zeros((len(raw), 2), "<u8")
    wide[:, 0] = raw["id"]
    parts = [
        pa.Array.from_buffers(U64, len(raw), [None, pa.py_buffer(wide)]),
        pa.array(raw["number"].astype(np.int64)),
        pa.array(raw["previous"].astype(np.int64)),
    ]
    none = (raw["id"] == 0) & (raw["number"] == 0) & (raw["previous"] == 0)
    return pa.StructArray.from_arrays(parts, fields=list(SEQUENCE), mask=pa.array(none)), fits


_FAST: Final[dict[pa.DataType, Callable[[pa.StructArray], Fast]]] = {
    pa.string(): _text, U64: _decimal, pa.int64(): _count, TIME: _time, TEXTS: _texts, SEQUENCE: _sequence,
}  # fmt: skip


class _Flat:
    """The properties of all observations, one after the other; of what was asked twice only the first."""

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
        self.given = self.states == VALUE
        distinct, which = np.unique(self.numbers, return_inverse=True)
        labels = np.array([names.column_name(object_type, number) for number in distinct.tolist()], object)
        self.names = labels[which]
        self.unfit: list[int] = []

    def column(self, number: int, kind: Kind, rows: int) -> pa.Array:
        """Return the column of one property; what does not fit it is null, and noted."""
        at = np.flatnonzero(self.given & (self.numbers == number))
        items = self.items.take(pa.array(at))
        found, fits = pa.array([], kind.type), np.zeros(len(at), np.bool_)
        if kind.type in _FAST:
            found, fits = _FAST[kind.type](items)
        read = [_read(kind, each) for each in items.filter(pa.array(~fits)).to_pylist()]
        self.unfit += at[~fits][[isinstance(value, UnfitError) for value in read]].tolist()
        slow = pa.array([None if isinstance(value, UnfitError) else value for value in read], kind.type)
        index = np.full(rows, -1)
        index[self.owner[at[fits]]] = np.flatnonzero(fits)
        index[self.owner[at[~fits]]] = len(found) + np.arange(len(slow))
        return pa.concat_arrays([found.cast(kind.type), slow]).take(pa.array(index, mask=index < 0))

    def closing(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return the states by name, and the errors of what did not fit; call it after all columns."""
        unfit = np.array(sorted(self.unfit), np.int64)
        self.states[unfit] = ERROR
        order = np.lexsort((self.names.astype(str), self.owner))
        states = pa.MapArray.from_arrays(
            _offsets(self.owner, rows),
            pa.array(self.names[order], pa.string()),
            pa.array(self.states[order], pa.string()),
        )
        errors = pa.StructArray.from_arrays(
            [
                pa.array([MALFORMED] * len(unfit), pa.string()),
                pa.array(self.names[unfit], pa.string()),
                pa.array(self.place[unfit], pa.int64()),
            ],
            fields=list(ERRORS_TYPE.value_type),
        )
        return states, pa.ListArray.from_arrays(_offsets(self.owner[unfit], rows), errors).cast(ERRORS_TYPE)


def _offsets(owner: Ints, rows: int) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=rows))]), pa.int32())


def _snapshots(observations: pa.Table, object_type: str) -> pa.Table:
    schema = snapshot_schema(object_type)
    ours = observations.filter(pc.equal(observations.column("object_type"), object_type))
    rows = ours.num_rows
    flat = _Flat(ours.column("properties").combine_chunks(), object_type)
    out: dict[str, Any] = {name: ours.column(name) for name in OBSERVED if name in schema.names}
    for number, kind in KINDS[object_type].items():
        out[names.column_name(object_type, number)] = flat.column(number, kind, rows)
    results = ours.column("hresult").combine_chunks().dictionary_encode()
    known = [codes.name_of(codes.HRESULT, code) for code in results.dictionary.to_pylist()]
    out["hresult_name"] = pa.array(known, pa.string()).take(results.indices)
    out["property_states"], out["errors"] = flat.closing(rows)
    out["decoder_version"] = pa.array([DECODER_VERSION] * rows, pa.string())
    return pa.table([out[name] for name in schema.names], schema=schema)


def _read(kind: Kind, each: Mapping[str, Any]) -> Any:  # noqa: ANN401  (whatever the column holds)
    """Return one value for its column, or the error that it does not fit."""
    try:
        return kind.read(Value(each["vt"], _plain(each)))
    except UnfitError as error:
        return error


def _plain(each: Mapping[str, Any]) -> Any:  # noqa: ANN401  (any variant's value)
    """Return the one value that is there, decimals as integers and JSON read."""
    if each["value_decimal"] is not None:
        return int(each["value_decimal"])
    if each["value_json"] is None:
        return next((each[name] for name in VALUES if each[name] is not None), None)
    try:
        return loads(each["value_json"])
    except (ValueError, RecursionError) as error:
        raise UnfitError from error
