"""Names and arguments of recorded COM+ calls by what users declare of them (``declared_interfaces.py``).

The arguments of calls that are no dispatch calls are read by the tables and readers of stubs (``udfs/stubs``), as NDR
2.0, little-endian, without ORPCTHIS, aligned from the first byte of the Marshaled Data. Bytes behind the last parameter
are padding, [MC-COMQC] 2.2.6.1.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Ints, Octets
from udfs.columns.absent import NONE
from udfs.columns.arrays import to_ints
from udfs.comqc import variant_text
from udfs.comqc.declared_interfaces import Declarations, DeclaredMethod, argument_names
from udfs.comqc.dispatch_arguments import ARGUMENT_TYPE
from udfs.comqc.single_invoke import ArgumentText, InvokeCursor, read_automation_value
from udfs.errors import DecodeError
from udfs.stubs import parameter_readers, single_stub
from udfs.stubs.arrow_primitives import concat_lists
from udfs.stubs.column_cursors import ERROR_CODES, AnyArray, ColumnCursors, DecodedColumns
from udfs.stubs.idl import NdrType, Parameter
from udfs.stubs.single_cursor import StubCursor
from udfs.stubs.to_arrow import error_lists

_NUMBERS: Final = {1: NdrType.U8, 2: NdrType.U16, 4: NdrType.U32, 8: NdrType.U64}
_PADDING: Final = Parameter("in", NdrType.REST)
_VT: Final = " vt"  # behind a parameter's name: the column of its type, which names cannot have


def _idl_parameters(method: DeclaredMethod) -> tuple[Parameter, ...]:
    """Return the parameters of a method as the readers of stubs need them."""
    kinds = (
        _NUMBERS.get(variant_text.VALUE_SIZES.get(each.vt or 0, 0), NdrType.AUTOMATION) for each in method.parameters
    )
    named = (Parameter(each.name, kind, each.name) for each, kind in zip(method.parameters, kinds, strict=True))
    return (*named, _PADDING)


def _types(method: DeclaredMethod) -> dict[str, int]:
    return {parameter.name: parameter.vt or 0 for parameter in method.parameters}


def read_typed_call(marshaled: bytes, method: DeclaredMethod) -> tuple[list[ArgumentText | None], DecodeError | None]:
    """Decode the Marshaled Data of one call: its arguments in order, None for those behind an error, and the error."""
    types, found, cursor = _types(method), dict[str, Any](), InvokeCursor(marshaled)

    def read(_: StubCursor, param: Parameter, out: dict[str, Any]) -> None:
        read_automation_value(cursor, param.name, types[param.name], partial(out.__setitem__, param.name))

    problem = None
    try:
        single_stub.read_single_parameters(cursor, _idl_parameters(method), found, {NdrType.AUTOMATION: read})
    except DecodeError as error:
        problem = error
    return [_single_argument(found.get(name), vt) for name, vt in types.items()], problem


def _single_argument(value: int | ArgumentText | None, vt: int) -> ArgumentText | None:
    if not isinstance(value, int):
        return value
    return vt, variant_text.fixed_size_texts(vt, np.array([value], np.uint64))[0].as_py()


class _TypedCalls(NamedTuple):
    """Arguments (a list per call) and errors of the calls ``which`` of one method."""

    which: Ints
    arguments: pa.Array
    decoded: DecodedColumns


def _read_typed_calls(data: Octets, which: Ints, start: Ints, size: Ints, method: DeclaredMethod) -> _TypedCalls:
    """Decode the Marshaled Data of calls of one method, spans in ``data``, as ``read_typed_call`` does."""
    out, types = DecodedColumns(len(which)), _types(method)
    cursors = ColumnCursors(data, np.arange(len(which)), start, start + size, out)
    read = partial(_read_automation_values, types)
    parameter_readers.read_parameters(cursors, _idl_parameters(method), {NdrType.AUTOMATION: read})
    columns = [_argument_column(out, name, vt) for name, vt in types.items()]
    bounds = pa.array(np.arange(len(which) + 1, dtype=np.int32) * len(columns))
    flat = pa.concat_arrays(columns) if columns else pa.array([], ARGUMENT_TYPE)
    by_call = np.arange(len(flat)).reshape(len(columns), len(which)).T.ravel()  # one parameter after the other in flat
    return _TypedCalls(which, pa.ListArray.from_arrays(bounds, flat.take(pa.array(by_call))), out)


def _read_automation_values(types: Mapping[str, int], cursors: ColumnCursors, param: Parameter) -> None:
    """Read a parameter of all calls, one by one; its texts and types become two columns."""
    found: dict[int, ArgumentText] = {}
    problems: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place in np.flatnonzero(cursors.live).tolist():
        start = int(cursors.start[place])
        cursor = InvokeCursor(cursors.data[start : int(cursors.end[place])].tobytes())
        cursor.position = int(cursors.position[place]) - start
        try:
            read_automation_value(cursor, param.name, types[param.name], partial(found.__setitem__, place))
        except DecodeError as error:
            problems.setdefault((error.code, error.field), []).append((place, start + error.offset))
        cursors.position[place] = start + cursor.position
    rows = cursors.rows[list(found)]
    cursors.out.store(param.name, rows, np.array([text for _, text in found.values()], object))
    cursors.out.store(param.name + _VT, rows, np.array([vt for vt, _ in found.values()], np.int32))
    for (code, field), places in problems.items():
        which, at = np.zeros(len(cursors.rows), np.bool_), np.zeros(len(cursors.rows), np.int64)
        index = [place for place, _ in places]
        which[index], at[index] = True, [offset for _, offset in places]
        cursors.fail(which, ERROR_CODES.index(code), field, at)


def _argument_column(out: DecodedColumns, name: str, vt: int) -> pa.Array:
    """Return one parameter of all calls as ``ARGUMENT_TYPE``; null fields where it was not read."""
    valid = out.valid.get(name, np.zeros(out.rows, np.bool_))
    vts: AnyArray = out.values.get(name + _VT, np.full(out.rows, vt, np.int32))
    if name + _VT in out.values:
        texts = pa.array(out.values[name], pa.string(), mask=~valid)
    elif name in out.values:
        texts = variant_text.fixed_size_texts(vt, out.values[name].astype(np.uint64))
    else:
        texts = pa.nulls(out.rows, pa.string())
    kinds = {each: variant_text.variant_type_name(each) for each in np.unique(vts).tolist()}
    columns = [
        pa.array(vts, pa.int32()),
        pa.array([kinds[each] for each in vts.tolist()], pa.string()),
        texts,
    ]  # fmt: skip
    mask = pa.array(valid)
    return pa.StructArray.from_arrays(
        [pc.if_else(mask, column, pa.scalar(None, column.type)) for column in columns], fields=list(ARGUMENT_TYPE)
    )


class DeclaredColumns(NamedTuple):
    """Columns of calls: names by the declarations, all arguments, and the errors of those that were read here."""

    interface_name: pa.Array
    method: pa.Array
    argument_names: pa.Array
    arguments: pa.Array
    errors: pa.Array


def apply_declarations(
    declarations: Declarations, data: Octets, start: Ints, size: Ints, calls: Mapping[str, pa.Array]
) -> DeclaredColumns:
    """Name calls and their arguments, and read the arguments of those that are no dispatch calls.

    ``start`` and ``size`` are the spans of the Marshaled Data; ``calls`` are the columns interface_id, target_clsid,
    is_dispatch, opnum, dispatch_id, named_dispatch_ids, arguments (of dispatch calls) and errors.
    """
    names = _CallNames(len(start))
    typed: list[_TypedCalls] = []
    dispatch = np.asarray(calls["is_dispatch"])
    opnum = to_ints(calls["opnum"], NONE)
    for interface_id, interface in declarations.interfaces.items():
        ours = np.flatnonzero(np.asarray(pc.equal(calls["interface_id"], interface_id)) & ~dispatch)
        names.interface[ours] = interface.name
        for number in np.unique(opnum[ours]).tolist():
            if (method := interface.methods.get(number)) is not None:
                which = ours[opnum[ours] == number]
                names.method[which] = method.name
                parameters = [parameter.name for parameter in method.parameters]
                names.arguments.update(dict.fromkeys(which.tolist(), parameters))
                typed.append(_read_typed_calls(data, which, start[which], size[which], method))
    for class_id, interface in declarations.classes.items():
        names.name_dispatch_calls(interface.name, interface.methods, class_id, calls)
    arguments, errors = _with_typed_calls(calls["arguments"], calls["errors"], typed)
    return DeclaredColumns(*names.columns(), arguments, errors)


class _CallNames:
    """The names of calls, their interfaces and arguments."""

    def __init__(self, calls: int) -> None:
        self.interface = np.full(calls, None, object)
        self.method = np.full(calls, None, object)
        self.arguments: dict[int, list[Any]] = {}

    def name_dispatch_calls(
        self, name: str | None, methods: Mapping[int, DeclaredMethod], class_id: str, calls: Mapping[str, pa.Array]
    ) -> None:
        """Name the dispatch calls of a class."""
        ours = pc.indices_nonzero(pc.and_(calls["is_dispatch"], pc.equal(calls["target_clsid"], class_id)))
        self.interface[ours.to_numpy()] = name
        columns = (calls[each].take(ours) for each in ("dispatch_id", "named_dispatch_ids"))
        counts = pc.list_value_length(calls["arguments"].take(ours))
        for call, dispatch_id, named, count in zip(
            *(each.to_pylist() for each in (ours, *columns, counts)), strict=True
        ):
            if (method := methods.get(dispatch_id)) is not None:
                self.method[call] = method.name
                if count is not None:
                    self.arguments[call] = argument_names(method, count, named or ())

    def columns(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the columns interface_name, method and argument_names."""
        lists = [self.arguments.get(call) for call in range(len(self.method))] if self.arguments else None
        kind = pa.list_(pa.string())
        names = pa.nulls(len(self.method), kind) if lists is None else pa.array(lists, kind)
        return pa.array(self.interface, pa.string()), pa.array(self.method, pa.string()), names


def _with_typed_calls(arguments: pa.Array, errors: pa.Array, typed: list[_TypedCalls]) -> tuple[pa.Array, pa.Array]:
    """Return arguments and errors of all calls, with those of ``typed`` at their places."""
    if not typed:
        return arguments, errors
    values = [arguments, *(each.arguments.cast(arguments.type) for each in typed)]
    problems = [errors.slice(0, 0), *(error_lists([("", each.decoded)], len(each.which)) for each in typed)]
    place = np.arange(len(arguments))
    place_of_error = np.full(len(arguments), -1, np.int64)
    read = 0
    for each in typed:
        numbers = np.arange(len(each.which)) + read
        place[each.which], place_of_error[each.which] = len(arguments) + numbers, numbers
        read += len(each.which)
    found = pa.concat_arrays(problems).take(pa.array(place_of_error, mask=place_of_error < 0))
    return pa.concat_arrays(values).take(pa.array(place)), concat_lists(errors, found)
