"""Dispatch calls a column at a time: the [in] parameters of IDispatch::Invoke to dispatch ids and typed arguments.

[MS-OAUT] 3.1.4.4 in NDR 2.0, little-endian. All calls are read together, one argument of every call at a time: values
of fixed size, strings, and references to such. A call with anything else (arrays, objects, records, VARIANTs by
reference) or with more than ``_TOGETHER`` arguments is read alone, by ``variants.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.comqc import values
from udfs.comqc.variants import read_invoke
from udfs.errors import DecodeError
from udfs.stubs.column import CODES, Bools, Column, Cursors, Ints, Values

_TRUNCATED: Final = 1
_MALFORMED: Final = 2
_TOGETHER: Final = 12  # arguments of a call; methods have a handful
ARGUMENT: Final = pa.struct(
    [pa.field("vt", pa.int32()), pa.field("vt_name", pa.string()), pa.field("value", pa.string())]
)

# By type (with VT_BYREF where it may stand): bytes of a value of fixed size; -1 for a BSTR; -2 for what is read alone.
_ALONE: Final = -2
_STRING: Final = -1
_SIZE: Final = np.full(1 << 16, _ALONE, np.int8)
for _vt, _bytes in values.SIZES.items():
    _SIZE[_vt] = _bytes
    if _bytes:
        _SIZE[_vt | values.BYREF] = _bytes
_SIZE[[values.BSTR, values.BSTR | values.BYREF]] = _STRING


class _Read(NamedTuple):
    """Arguments read together: call, place in rgvarg, type, value of up to 8 bytes, span of a longer one, or null."""

    call: Ints
    place: Ints
    vt: Column
    raw: Column
    start: Ints
    bytes: Ints
    null: Bools


class Arguments(NamedTuple):
    """Per call: dispatch id and flags with whether they are there, named DISPIDs, arguments; error as in ``Values``."""

    dispatch_id: pa.Array
    flags: pa.Array
    named: pa.Array
    arguments: pa.Array
    out: Values


class _Reader:
    """Reads the calls of one column; what it finds stays flat until all is read."""

    def __init__(self, data: npt.NDArray[np.uint8], start: Ints, size: Ints) -> None:
        self.data = data
        self.start = start
        self.size = size
        calls = len(start)
        self.out = Values(calls)
        self.alone = np.zeros(calls, np.bool_)
        self.read: list[_Read] = []
        self.counts = np.full(calls, -1, np.int64)  # arguments; -1 when that is not known
        self.named: list[tuple[Ints, Ints]] = []  # calls, DISPIDs
        self.named_read = np.zeros(calls, np.bool_)
        rows = np.arange(calls, dtype=np.int64)
        self._invoke(Cursors(data, rows, start, start + size, self.out))

    def kept(self) -> _Read:
        """Return the arguments of all calls that are not read alone."""
        whole = np.int64
        blank = _Read._make(np.zeros(0, kind) for kind in (whole, whole, np.uint16, np.uint64, whole, whole, np.bool_))
        read = _Read._make(np.concatenate(part) for part in zip(blank, *self.read, strict=True))
        keep = ~self.alone[read.call]
        return _Read._make(part[keep] for part in read)

    def _leave(self, cursors: Cursors, which: Bools) -> None:
        """Leave calls to be read alone: they take no further part."""
        which = which & cursors.live
        if which.any():
            self.alone[cursors.rows[which]] = True
            cursors.live &= ~which
            cursors.whole = False

    def _invoke(self, cursors: Cursors) -> None:
        cursors.put("dispatch_id", cursors.uint(4, "dispIdMember"))
        cursors.take(16, "riid")  # must be zero; the server's answer to another would never be seen
        cursors.uint(4, "lcid")
        cursors.put("flags", cursors.uint(4, "dwFlags"))
        arguments = cursors.uint(4, "rgvarg") != 0
        named = cursors.uint(4, "rgdispidNamedArgs") != 0
        at = cursors.position
        count = cursors.uint(4, "cArgs").astype(np.int64)
        named_count = cursors.uint(4, "cNamedArgs").astype(np.int64)
        wrong = (~arguments & (count > 0)) | (named_count > count) | (~named & (named_count > 0))
        cursors.fail(wrong, _MALFORMED, "cArgs", at)
        self._leave(cursors, count > _TOGETHER)
        none = cursors.live & ~arguments
        self.counts[cursors.rows[none]] = 0
        index, part = cursors.subset(arguments)
        self._variants(part, "rgvarg", count[index], None)
        cursors.join(index, part)
        self.named_read[cursors.rows[cursors.live & ~named]] = True
        index, part = cursors.subset(named)
        self._named(part, named_count[index])
        cursors.join(index, part)
        references = cursors.uint(4, "cVarRef").astype(np.int64)
        places, first = self._places(cursors, references, count)
        self._variants(cursors, "rgVarRef", references, (places, first))

    def _max_count(self, cursors: Cursors, count: Ints, name: str) -> None:
        cursors.align(4)
        at = cursors.position
        most = cursors.uint(4, f"{name}.max_count")
        cursors.fail(most != count, _MALFORMED, f"{name}.max_count", at)

    def _numbers(self, cursors: Cursors, count: Ints, name: str) -> tuple[Column, Ints]:
        """Pass over ``count`` numbers of 32 bits per call; return those of all, and where each call's begin."""
        start = cursors.take((4 * count).astype(np.uint64), name)
        here = np.where(cursors.live, count, 0)
        place, bounds = values.ragged(np.zeros(len(here), np.int64), here)
        view = np.ndarray(len(self.data) - 3, "<u4", self.data, strides=(1,))
        return view[np.repeat(start, here) + 4 * (place)], bounds

    def _named(self, cursors: Cursors, count: Ints) -> None:
        self._max_count(cursors, count, "rgdispidNamedArgs")
        numbers, bounds = self._numbers(cursors, count, "rgdispidNamedArgs")
        self.named.append((np.repeat(cursors.rows, np.diff(bounds)), numbers.view("<i4").astype(np.int64)))
        self.named_read[cursors.rows[cursors.live]] = True

    def _places(self, cursors: Cursors, references: Ints, count: Ints) -> tuple[Ints, Ints]:
        """Read which arguments are given by reference, flat, and where each call's begin."""
        self._max_count(cursors, references, "rgVarRefIdx")
        self._leave(cursors, references > _TOGETHER)
        at = cursors.position
        places, bounds = self._numbers(cursors, references, "rgVarRefIdx")
        owner = np.repeat(np.arange(len(references)), np.diff(bounds))
        wrong = np.zeros(len(references), np.bool_)
        wrong[owner[places >= count[owner]]] = True
        cursors.fail(wrong, _MALFORMED, "rgVarRefIdx", at)
        return places.astype(np.int64), bounds[:-1]

    def _variants(self, cursors: Cursors, name: str, count: Ints, places: tuple[Ints, Ints] | None) -> None:
        """Read an array of VARIANT pointers and what they refer to; ``places`` in rgvarg, else they are in order."""
        self._max_count(cursors, count, name)
        referents, first = self._numbers(cursors, count, name)
        if places is None:
            self.counts[cursors.rows[cursors.live]] = count[cursors.live]
        most = int(count[cursors.live].max(initial=0))
        for ordinal in range(most):
            has = cursors.live & (count > ordinal)
            has[has] = referents[first[:-1][has] + ordinal] != 0
            index, part = cursors.subset(has)
            place = np.full(len(index), ordinal) if places is None else places[0][places[1][index] + ordinal]
            self._variant(part, name, place)
            cursors.join(index, part)

    def _variant(self, cursors: Cursors, name: str, place: Ints) -> None:
        """Read one VARIANT of every call, [MS-OAUT] 2.2.29.1."""
        cursors.align(8)
        cursors.uint(4, f"{name}.clSize")
        cursors.take(4, f"{name}.rpcReserved")
        vt = cursors.uint(2, f"{name}.vt")
        cursors.take(6, f"{name}.wReserved1")
        at = cursors.position
        tag = cursors.uint(4, f"{name}.tag")
        size = _SIZE[vt]
        self._leave(cursors, size == _ALONE)
        cursors.fail(tag != vt, _MALFORMED, f"{name}.tag", at)
        by_reference = (vt & values.BYREF) != 0
        index, part = cursors.subset(by_reference)
        given = part.uint(4, f"{name}.value") != 0
        cursors.join(index, part)
        there = np.ones(len(vt), np.bool_)
        there[index] = given
        self._keep(cursors, cursors.live & ~there, place, vt, null=True)
        kinds = np.where(cursors.live & there, size, _ALONE)
        for kind in np.unique(kinds).tolist():
            if kind == _ALONE:
                continue
            index, part = cursors.subset(kinds == kind)
            if kind == _STRING:
                self._strings(part, name, place[index], vt[index])
            elif kind == 16:
                self._decimals(part, name, place[index], vt[index])
            else:
                raw = part.uint(kind, f"{name}.value") if kind else np.zeros(len(index), np.uint8)
                self._keep(part, part.live, place[index], vt[index], raw=raw, null=kind == 0)
            cursors.join(index, part)

    def _keep(
        self, cursors: Cursors, which: Bools, place: Ints, vt: Column, *,
        raw: Column | None = None, start: Ints | None = None, size: Ints | None = None, null: bool | Bools = False,
    ) -> None:  # fmt: skip
        count = int(which.sum())
        if not count:
            return
        zeros = np.zeros(count, np.int64)
        self.read.append(
            _Read(
                cursors.rows[which], place[which], vt[which],
                zeros.astype(np.uint64) if raw is None else raw[which].astype(np.uint64),
                zeros if start is None else start[which],
                zeros if size is None else size[which],
                np.full(count, null) if isinstance(null, bool) else null[which],
            )
        )  # fmt: skip

    def _strings(self, cursors: Cursors, name: str, place: Ints, vt: Column) -> None:
        """Read BSTRs: a pointer, and a FLAGGED_WORD_BLOB, 2.2.23.1."""
        given = cursors.uint(4, f"{name}.value") != 0
        self._keep(cursors, cursors.live & ~given, place, vt, null=True)
        index, part = cursors.subset(given)
        at = part.position
        most = part.uint(4, f"{name}.bstr.max_count").astype(np.int64)
        size = part.uint(4, f"{name}.bstr.cBytes").astype(np.int64)
        units = part.uint(4, f"{name}.bstr.clSize").astype(np.int64)
        null = size == 0xFFFFFFFF
        wrong = (most != units) | (units != np.where(null, 0, (size + 1) // 2))
        part.fail(wrong, _MALFORMED, f"{name}.bstr.max_count", at)
        start = part.take((2 * units).astype(np.uint64), f"{name}.bstr")
        size = np.where(null, 0, size)
        self._keep(part, part.live, place[index], vt[index], start=start, size=size, null=null)
        cursors.join(index, part)

    def _decimals(self, cursors: Cursors, name: str, place: Ints, vt: Column) -> None:
        cursors.align(8)
        at = cursors.position
        start = cursors.take(16, f"{name}.value")
        scale, sign = self.data[start + 2], self.data[start + 3]
        cursors.fail((scale > 28) | ((sign & 0x7F) != 0), _MALFORMED, f"{name}.value", at)
        self._keep(cursors, cursors.live, place, vt, start=start, size=np.full(len(start), 16))


def _texts(data: npt.NDArray[np.uint8], read: _Read) -> pa.Array:
    """Return the values of arguments read together, type by type, in their order."""
    kind = np.where(read.null, 0, read.vt & ~np.uint16(values.BYREF))
    parts, where = [], []
    for vt in np.unique(kind).tolist():
        at = np.flatnonzero(kind == vt)
        where.append(at)
        if vt == values.BSTR:
            parts.append(values.bstr_texts(data, read.start[at], read.bytes[at]))
        elif vt == values.DECIMAL:
            raw = [data[start : start + 16].tobytes() for start in read.start[at].tolist()]
            parts.append(pa.array([values.decimal_text(each) for each in raw], pa.string()))
        else:
            parts.append(values.texts_of(vt, read.raw[at]))
    if not parts:
        return pa.nulls(0, pa.string())
    back = np.zeros(len(kind), np.int64)
    back[np.concatenate(where)] = np.arange(len(kind))
    return pa.concat_arrays(parts).take(pa.array(back))


def _type_names(vt: Column) -> pa.Array:
    known, place = np.unique(vt, return_inverse=True)
    return pa.array([values.type_name(each) for each in known.tolist()], pa.string()).take(pa.array(place))


class _Alone:
    """Arguments of the calls that were read alone, flat, beside those that were read together."""

    def __init__(self, reader: _Reader) -> None:
        self.call: list[int] = []
        self.place: list[int] = []
        self.vt: list[int] = []
        self.value: list[str | None] = []
        self.named_call: list[int] = []
        self.named: list[int] = []
        for call in np.flatnonzero(reader.alone).tolist():
            self._one(reader, call)

    def _one(self, reader: _Reader, call: int) -> None:
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
        reader.named_read[call] = invoke.named is not None
        self.named += invoke.named or []
        self.named_call += [call] * len(invoke.named or [])
        if invoke.error is not None:
            _set_error(reader.out, call, invoke.error)


def _set_error(out: Values, call: int, error: DecodeError) -> None:
    out.code[call] = CODES.index(error.code)
    out.field[call] = error.field
    out.offset[call] = error.offset


def read_arguments(data: npt.NDArray[np.uint8], start: Ints, size: Ints) -> Arguments:
    """Read the Marshaled Data of dispatch calls: spans in ``data``, one row out for each.

    Arguments are in the order of the method's parameters; those given by reference stand at their place with their
    value. Of a call with an error the arguments that were read have their value, all others nulls.
    """
    reader = _Reader(data, start, size)
    alone = _Alone(reader)
    read = reader.kept()
    call = np.concatenate([read.call, np.array(alone.call, np.int64)])
    place = np.concatenate([read.place, np.array(alone.place, np.int64)])
    vt = np.concatenate([read.vt, np.array(alone.vt, np.uint16)])
    texts = pa.concat_arrays([_texts(data, read), pa.array(alone.value, pa.string())])
    # One slot for each argument, rgvarg reversed; what rgVarRef gives comes later than what it stands for.
    counts = np.maximum(reader.counts, 0)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    source = np.full(int(bounds[-1]), -1, np.int64)
    source[bounds[call] + counts[call] - 1 - place] = np.arange(len(call))
    take = pa.array(source, mask=source < 0)
    flat = pa.StructArray.from_arrays(
        [pa.array(vt.astype(np.int32)).take(take), _type_names(vt).take(take), texts.take(take)],
        fields=list(ARGUMENT),
    )
    known = reader.counts >= 0
    return Arguments(
        _column(reader.out, "dispatch_id").cast(pa.int64()),
        _column(reader.out, "flags", signed=False).cast(pa.int64()),
        _named(reader, alone),
        _lists(bounds, known, flat),
        reader.out,
    )


def _column(out: Values, name: str, *, signed: bool = True) -> pa.Array:
    if name not in out.values:
        return pa.nulls(out.rows, pa.int64())
    numbers = out.values[name].view("<i4") if signed else out.values[name]
    return pa.array(numbers, mask=~out.valid[name])


def _named(reader: _Reader, alone: _Alone) -> pa.Array:
    parts = [part for part in reader.named if len(part[0])]
    call = np.concatenate([*(part[0] for part in parts), np.array(alone.named_call, np.int64)])
    ids = np.concatenate([*(part[1] for part in parts), np.array(alone.named, np.int64)])
    together = np.arange(len(call)) < len(call) - len(alone.named)
    keep = ~(together & reader.alone[call])
    call, ids = call[keep], ids[keep]
    order = np.argsort(call, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(call, minlength=reader.out.rows))])
    return _lists(bounds, reader.named_read, pa.array(ids[order], pa.int64()))


def _lists(bounds: Ints, valid: Bools, flat: pa.Array) -> pa.Array:
    """Return lists over a flat array; null where not ``valid``, and empty there on the inside."""
    mask = None if valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), flat, mask=mask)
