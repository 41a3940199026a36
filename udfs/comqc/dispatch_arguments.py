"""Column reader of IDispatch::Invoke calls: their [in] parameters to dispatch ids and typed arguments.

[MS-OAUT] 3.1.4.4 in NDR 2.0, little-endian. The n-th arguments of all calls are read together: values of fixed size,
strings, and references to these. ``single_invoke.py`` reads calls with anything else (arrays, objects, records,
VARIANTs by reference) or with more than ``_COLUMNWISE_ARGUMENTS`` arguments, one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.comqc import COMQC_CALLS
from udfs.array_types import Bools, Ints, Octets
from udfs.columns.arrays import over_distinct
from udfs.comqc import variant_text
from udfs.comqc.single_invoke import read_invoke
from udfs.errors import DecodeError
from udfs.stubs.column_cursors import ERROR_CODES, MALFORMED_CODE, AnyArray, ColumnCursors, DecodedColumns

_COLUMNWISE_ARGUMENTS: Final = 12
ARGUMENT_TYPE: Final = COMQC_CALLS.column("arguments").type.value_type

# Size of a value in bytes by VARIANT type (with or without VT_BYREF), or one of these two.
_READ_ALONE: Final = -2
_IS_BSTR: Final = -1
_VALUE_SIZES: Final = np.full(1 << 16, _READ_ALONE, np.int8)
for _vt, _bytes in variant_text.VALUE_SIZES.items():
    _VALUE_SIZES[_vt] = _bytes
    if _bytes:
        _VALUE_SIZES[_vt | variant_text.VT_BYREF] = _bytes
_VALUE_SIZES[[variant_text.VT_BSTR, variant_text.VT_BSTR | variant_text.VT_BYREF]] = _IS_BSTR


class _ArgumentBatch(NamedTuple):
    """Arguments of many calls: call, index in rgvarg, type, value (8 bytes, or the span of a longer one), null mask."""

    call: Ints
    place: Ints
    vt: AnyArray
    raw: AnyArray
    start: Ints
    bytes: Ints
    null: Bools


class DispatchArguments(NamedTuple):
    """Decoded parameters by call: dispatch id, flags, DISPIDs of named arguments, arguments.

    ``decoded_columns`` has the errors.
    """

    dispatch_id: pa.Array
    flags: pa.Array
    named_dispatch_ids: pa.Array
    arguments: pa.Array
    decoded_columns: DecodedColumns


class _InvokeColumnReader:
    """Reads all Invoke calls of a column and collects their arguments as flat arrays."""

    def __init__(self, data: Octets, start: Ints, size: Ints) -> None:
        self.data = data
        self.start = start
        self.size = size
        calls = len(start)
        self.out = DecodedColumns(calls)
        self.alone = np.zeros(calls, np.bool_)  # calls left to ``single_invoke.py``
        self.read: list[_ArgumentBatch] = []
        self.counts = np.full(calls, -1, np.int64)  # number of arguments; -1 if unknown
        self.named: list[tuple[Ints, Ints]] = []  # calls, DISPIDs
        self.named_read = np.zeros(calls, np.bool_)
        rows = np.arange(calls, dtype=np.int64)
        self._read_invoke(ColumnCursors(data, rows, start, start + size, self.out))

    def columnwise_arguments(self) -> _ArgumentBatch:
        """Return the arguments of all calls that were read together."""
        whole = np.int64
        blank = _ArgumentBatch._make(
            np.zeros(0, kind) for kind in (whole, whole, np.uint16, np.uint64, whole, whole, np.bool_)
        )
        read = _ArgumentBatch._make(np.concatenate(part) for part in zip(blank, *self.read, strict=True))
        keep = ~self.alone[read.call]
        return _ArgumentBatch._make(part[keep] for part in read)

    def _leave_for_single_reader(self, cursors: ColumnCursors, which: Bools) -> None:
        """Leave the calls of ``which`` to be read one by one."""
        which = which & cursors.live
        if which.any():
            self.alone[cursors.rows[which]] = True
            cursors.live &= ~which
            cursors.all_live = False

    def _read_invoke(self, cursors: ColumnCursors) -> None:
        cursors.store("dispatch_id", cursors.read_uint(4, "dispIdMember"))
        cursors.advance(16, "riid")  # must be zero; not checked, a one-way call has no response
        cursors.read_uint(4, "lcid")
        cursors.store("flags", cursors.read_uint(4, "dwFlags"))
        arguments = cursors.read_uint(4, "rgvarg") != 0
        named = cursors.read_uint(4, "rgdispidNamedArgs") != 0
        at = cursors.position
        count = cursors.read_uint(4, "cArgs").astype(np.int64)
        named_count = cursors.read_uint(4, "cNamedArgs").astype(np.int64)
        wrong = (~arguments & (count > 0)) | (named_count > count) | (~named & (named_count > 0))
        cursors.fail(wrong, MALFORMED_CODE, "cArgs", at)
        self._leave_for_single_reader(cursors, count > _COLUMNWISE_ARGUMENTS)
        none = cursors.live & ~arguments
        self.counts[cursors.rows[none]] = 0
        index, part = cursors.subset(arguments)
        self._read_variant_array(part, "rgvarg", count[index], None)
        cursors.merge_subset(index, part)
        self.named_read[cursors.rows[cursors.live & ~named]] = True
        index, part = cursors.subset(named)
        self._read_named_dispids(part, named_count[index])
        cursors.merge_subset(index, part)
        references = cursors.read_uint(4, "cVarRef").astype(np.int64)
        places, first = self._read_reference_indices(cursors, references, count)
        self._read_variant_array(cursors, "rgVarRef", references, (places, first))

    def _check_max_count(self, cursors: ColumnCursors, count: Ints, name: str) -> None:
        cursors.align(4)
        at = cursors.position
        max_count = cursors.read_uint(4, f"{name}.max_count")
        cursors.fail(max_count != count, MALFORMED_CODE, f"{name}.max_count", at)

    def _read_uint32_arrays(self, cursors: ColumnCursors, count: Ints, name: str) -> tuple[AnyArray, Ints]:
        """Read ``count`` 32-bit numbers per call; returns those of all calls, and the n + 1 offsets of the calls."""
        start = cursors.advance((4 * count).astype(np.uint64), name)
        here = np.where(cursors.live, count, 0)
        place, bounds = variant_text.span_offsets(np.zeros(len(here), np.int64), here)
        view = np.ndarray(len(self.data) - 3, "<u4", self.data, strides=(1,))
        return view[np.repeat(start, here) + 4 * (place)], bounds

    def _read_named_dispids(self, cursors: ColumnCursors, count: Ints) -> None:
        self._check_max_count(cursors, count, "rgdispidNamedArgs")
        numbers, bounds = self._read_uint32_arrays(cursors, count, "rgdispidNamedArgs")
        self.named.append((np.repeat(cursors.rows, np.diff(bounds)), numbers.view("<i4").astype(np.int64)))
        self.named_read[cursors.rows[cursors.live]] = True

    def _read_reference_indices(self, cursors: ColumnCursors, references: Ints, count: Ints) -> tuple[Ints, Ints]:
        """Read the indices of arguments passed by reference; returns those of all calls and the offset of each call."""
        self._check_max_count(cursors, references, "rgVarRefIdx")
        self._leave_for_single_reader(cursors, references > _COLUMNWISE_ARGUMENTS)
        at = cursors.position
        places, bounds = self._read_uint32_arrays(cursors, references, "rgVarRefIdx")
        owner = np.repeat(np.arange(len(references)), np.diff(bounds))
        wrong = np.zeros(len(references), np.bool_)
        wrong[owner[places >= count[owner]]] = True
        cursors.fail(wrong, MALFORMED_CODE, "rgVarRefIdx", at)
        return places.astype(np.int64), bounds[:-1]

    def _read_variant_array(
        self, cursors: ColumnCursors, name: str, count: Ints, places: tuple[Ints, Ints] | None
    ) -> None:
        """Read an array of VARIANT pointers and their pointees.

        ``places`` are their indices in rgvarg and the offset of each call among these; None: all of rgvarg, in order.
        """
        self._check_max_count(cursors, count, name)
        referents, first = self._read_uint32_arrays(cursors, count, name)
        if places is None:
            self.counts[cursors.rows[cursors.live]] = count[cursors.live]
        largest = int(count[cursors.live].max(initial=0))
        for ordinal in range(largest):
            has = cursors.live & (count > ordinal)
            has[has] = referents[first[:-1][has] + ordinal] != 0
            index, part = cursors.subset(has)
            place = np.full(len(index), ordinal) if places is None else places[0][places[1][index] + ordinal]
            self._read_variants(part, name, place)
            cursors.merge_subset(index, part)

    def _read_variants(self, cursors: ColumnCursors, name: str, place: Ints) -> None:
        """Read one VARIANT of each call, [MS-OAUT] 2.2.29.1."""
        cursors.align(8)
        cursors.read_uint(4, f"{name}.clSize")
        cursors.advance(4, f"{name}.rpcReserved")
        vt = cursors.read_uint(2, f"{name}.vt")
        cursors.advance(6, f"{name}.wReserved1")
        at = cursors.position
        tag = cursors.read_uint(4, f"{name}.tag")
        size = _VALUE_SIZES[vt]
        self._leave_for_single_reader(cursors, size == _READ_ALONE)
        cursors.fail(tag != vt, MALFORMED_CODE, f"{name}.tag", at)
        by_reference = (vt & variant_text.VT_BYREF) != 0
        index, part = cursors.subset(by_reference)
        given = part.read_uint(4, f"{name}.value") != 0
        cursors.merge_subset(index, part)
        there = np.ones(len(vt), np.bool_)
        there[index] = given
        self._append_arguments(cursors, cursors.live & ~there, place, vt, null=True)
        kinds = np.where(cursors.live & there, size, _READ_ALONE)
        for kind in np.unique(kinds).tolist():
            if kind == _READ_ALONE:
                continue
            index, part = cursors.subset(kinds == kind)
            if kind == _IS_BSTR:
                self._read_bstrs(part, name, place[index], vt[index])
            elif kind == 16:
                self._read_decimals(part, name, place[index], vt[index])
            else:
                raw = part.read_uint(kind, f"{name}.value") if kind else np.zeros(len(index), np.uint8)
                self._append_arguments(part, part.live, place[index], vt[index], raw=raw, null=kind == 0)
            cursors.merge_subset(index, part)

    def _append_arguments(
        self, cursors: ColumnCursors, which: Bools, place: Ints, vt: AnyArray, *,
        raw: AnyArray | None = None, start: Ints | None = None, size: Ints | None = None,
        null: bool | Bools = False,
    ) -> None:  # fmt: skip
        count = int(which.sum())
        if not count:
            return
        zeros = np.zeros(count, np.int64)
        self.read.append(
            _ArgumentBatch(
                cursors.rows[which], place[which], vt[which],
                zeros.astype(np.uint64) if raw is None else raw[which].astype(np.uint64),
                zeros if start is None else start[which],
                zeros if size is None else size[which],
                np.full(count, null) if isinstance(null, bool) else null[which],
            )
        )  # fmt: skip

    def _read_bstrs(self, cursors: ColumnCursors, name: str, place: Ints, vt: AnyArray) -> None:
        """Read a BSTR of each call: a pointer and a FLAGGED_WORD_BLOB, 2.2.23.1."""
        given = cursors.read_uint(4, f"{name}.value") != 0
        self._append_arguments(cursors, cursors.live & ~given, place, vt, null=True)
        index, part = cursors.subset(given)
        at = part.position
        max_count = part.read_uint(4, f"{name}.bstr.max_count").astype(np.int64)
        size = part.read_uint(4, f"{name}.bstr.cBytes").astype(np.int64)
        units = part.read_uint(4, f"{name}.bstr.clSize").astype(np.int64)
        null = size == 0xFFFFFFFF
        wrong = (max_count != units) | (units != np.where(null, 0, (size + 1) // 2))
        part.fail(wrong, MALFORMED_CODE, f"{name}.bstr.max_count", at)
        start = part.advance((2 * units).astype(np.uint64), f"{name}.bstr")
        size = np.where(null, 0, size)
        self._append_arguments(part, part.live, place[index], vt[index], start=start, size=size, null=null)
        cursors.merge_subset(index, part)

    def _read_decimals(self, cursors: ColumnCursors, name: str, place: Ints, vt: AnyArray) -> None:
        cursors.align(8)
        at = cursors.position
        start = cursors.advance(16, f"{name}.value")
        scale, sign = self.data[start + 2], self.data[start + 3]
        cursors.fail((scale > 28) | ((sign & 0x7F) != 0), MALFORMED_CODE, f"{name}.value", at)
        self._append_arguments(cursors, cursors.live, place, vt, start=start, size=np.full(len(start), 16))


def _argument_texts(data: Octets, read: _ArgumentBatch) -> pa.Array:
    """Return the values of arguments as text, in their order; converted type by type."""
    kind = np.where(read.null, 0, read.vt & ~np.uint16(variant_text.VT_BYREF))
    parts, where = [], []
    for vt in np.unique(kind).tolist():
        at = np.flatnonzero(kind == vt)
        where.append(at)
        if vt == variant_text.VT_BSTR:
            parts.append(variant_text.bstr_texts(data, read.start[at], read.bytes[at]))
        elif vt == variant_text.VT_DECIMAL:
            raw = [data[start : start + 16].tobytes() for start in read.start[at].tolist()]
            parts.append(pa.array([variant_text.decimal_text(each) for each in raw], pa.string()))
        else:
            parts.append(variant_text.fixed_size_texts(vt, read.raw[at]))
    if not parts:
        return pa.nulls(0, pa.string())
    back = np.zeros(len(kind), np.int64)
    back[np.concatenate(where)] = np.arange(len(kind))
    return pa.concat_arrays(parts).take(pa.array(back))


class _SeparatelyReadCalls:
    """The arguments of the calls that ``single_invoke.py`` reads one by one, as flat lists."""

    def __init__(self, reader: _InvokeColumnReader) -> None:
        self.call: list[int] = []
        self.place: list[int] = []
        self.vt: list[int] = []
        self.value: list[str | None] = []
        self.named_call: list[int] = []
        self.named: list[int] = []
        for call in np.flatnonzero(reader.alone).tolist():
            self._read_call(reader, call)

    def _read_call(self, reader: _InvokeColumnReader, call: int) -> None:
        start = int(reader.start[call])
        invoke = read_invoke(reader.data[start : start + int(reader.size[call])].tobytes())
        if invoke.arguments is not None:
            last = len(invoke.arguments) - 1
            reader.counts[call] = last + 1
            found = [(last - place, *each) for place, each in enumerate(invoke.arguments) if each is not None]
            self.call += [call] * len(found)
            self.place += [place for place, _, _ in found]
            self.vt += [vt for _, vt, _ in found]
            self.value += [value for _, _, value in found]
        reader.named_read[call] = invoke.named_dispatch_ids is not None
        self.named += invoke.named_dispatch_ids or []
        self.named_call += [call] * len(invoke.named_dispatch_ids or [])
        if invoke.error is not None:
            _store_error(reader.out, call, invoke.error)


def _store_error(out: DecodedColumns, call: int, error: DecodeError) -> None:
    out.error_code[call] = ERROR_CODES.index(error.code)
    out.error_field[call] = error.field
    out.error_offset[call] = error.offset


def read_dispatch_arguments(data: Octets, start: Ints, size: Ints) -> DispatchArguments:
    """Read the Marshaled Data of dispatch calls, spans in ``data``: one row per call.

    Arguments are in the order of the method's parameters; those passed by reference have their value. In a call with an
    error, arguments read before it have their value, all others are null.
    """
    reader = _InvokeColumnReader(data, start, size)
    alone = _SeparatelyReadCalls(reader)
    read = reader.columnwise_arguments()
    call = np.concatenate([read.call, np.array(alone.call, np.int64)])
    place = np.concatenate([read.place, np.array(alone.place, np.int64)])
    vt = np.concatenate([read.vt, np.array(alone.vt, np.uint16)])
    texts = pa.concat_arrays([_argument_texts(data, read), pa.array(alone.value, pa.string())])
    # One slot per argument, rgvarg reversed. An entry of rgVarRef comes later and replaces that of rgvarg.
    counts = np.maximum(reader.counts, 0)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    source = np.full(int(bounds[-1]), -1, np.int64)
    source[bounds[call] + counts[call] - 1 - place] = np.arange(len(call))
    take = pa.array(source, mask=source < 0)
    flat = pa.StructArray.from_arrays(
        [
            pa.array(vt.astype(np.int32)).take(take),
            over_distinct(pa.array(vt), variant_text.variant_type_name, pa.string()).take(take),
            texts.take(take),
        ],
        fields=list(ARGUMENT_TYPE),
    )
    known = reader.counts >= 0
    return DispatchArguments(
        _scalar_column(reader.out, "dispatch_id").cast(pa.int64()),
        _scalar_column(reader.out, "flags", signed=False).cast(pa.int64()),
        _named_argument_lists(reader, alone),
        _list_array(bounds, known, flat),
        reader.out,
    )


def _scalar_column(out: DecodedColumns, name: str, *, signed: bool = True) -> pa.Array:
    if name not in out.values:
        return pa.nulls(out.rows, pa.int64())
    numbers = out.values[name].view("<i4") if signed else out.values[name]
    return pa.array(numbers, mask=~out.valid[name])


def _named_argument_lists(reader: _InvokeColumnReader, alone: _SeparatelyReadCalls) -> pa.Array:
    parts = [part for part in reader.named if len(part[0])]
    call = np.concatenate([*(part[0] for part in parts), np.array(alone.named_call, np.int64)])
    ids = np.concatenate([*(part[1] for part in parts), np.array(alone.named, np.int64)])
    together = np.arange(len(call)) < len(call) - len(alone.named)
    keep = ~(together & reader.alone[call])
    call, ids = call[keep], ids[keep]
    order = np.argsort(call, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(call, minlength=reader.out.rows))])
    return _list_array(bounds, reader.named_read, pa.array(ids[order], pa.int64()))


def _list_array(bounds: Ints, valid: Bools, flat: pa.Array) -> pa.Array:
    """Return a list array over flat values; null where not ``valid`` (these lists have no values)."""
    mask = None if valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), flat, mask=mask)
