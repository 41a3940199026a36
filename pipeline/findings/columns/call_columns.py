"""Calls of associations as columns, as the conditions of rules see them. No Spark.

A condition says which calls may break a rule: those become ``CapturedCall`` rows, and the rule evaluates them. So a
call that breaks no rule is never a row. All answers are numpy arrays with one element for each call. A condition
on a value is false where the column is null, or is not there.

Flags and times have the meaning, and the names, that they have in ``CapturedCall``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.findings.columns.call_history import LOOKUP_ID_NUMBER_MASK, UNREADABLE_OUTCOMES, Result
from pipeline.findings.columns.stored_calls import StoredCalls
from udfs.call_results import call_succeeded
from udfs.codes import is_peek_action
from udfs.columns.absent import AFTER_ALL
from udfs.columns.codes import codes_and_values

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
Method = tuple[str, int]
_OPNUMS: Final = 1 << 17  # more than there are
_MAX_SHARED_BYTES: Final = 128 << 20

Owner = TypeVar("Owner", bound="AssociationCallColumns")


class shared_property(Generic[Owner, Result]):  # noqa: N801 - a decorator
    """A property of calls that is shared: computed when it is first asked for (``AssociationCallColumns.share``)."""

    def __init__(self, compute: Callable[[Owner], Result]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, calls: Owner, _type: type[Owner]) -> Result:
        """Return the result for some calls."""
        return calls.share(self, lambda: self._compute(calls))


def _size(result: object) -> int:
    """Return how many bytes the arrays of a result take."""
    if isinstance(result, np.ndarray):
        return result.nbytes
    parts = result if isinstance(result, tuple) else vars(result).values() if hasattr(result, "__dict__") else ()
    return sum(map(_size, parts))


class _SharedResults:
    """Results by name, those that were not asked for the longest are forgotten when there is no memory for more."""

    def __init__(self) -> None:
        self._found: dict[object, tuple[Any, int]] = {}  # with their bytes, the one asked for last at the end
        self._bytes = 0

    def get(self, name: object, compute: Callable[[], Result]) -> Result:
        """Return a result that is known, or compute it."""
        found: Result
        if name in self._found:
            found, size = self._found.pop(name)
        else:
            found = compute()
            size = _size(found)
            while self._found and self._bytes + size > _MAX_SHARED_BYTES:
                self._bytes -= self._found.pop(next(iter(self._found)))[1]
            self._bytes += size
        self._found[name] = found, size
        return found


def _object_array(values: Sequence[Any]) -> Numbers:
    """Return values of any kind as an array."""
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def is_malformed(error: Mapping[str, Any], side: str, *fields: str) -> bool:
    """Tell whether an error is of a value of one of these fields of a side (``has_malformed_field``)."""
    name = str(error["field"] or "")
    named = name.startswith(f"{side}.") and any(each in name for each in fields)
    return error["code"] == "malformed" and named


class AssociationCallColumns:
    """Calls, a table of plain columns (times in microseconds), and the association of each.

    ``associations`` are numbers from 0, one for each call.
    """

    def __init__(self, table: pa.Table | StoredCalls, associations: Numbers) -> None:
        self.table = table
        self.association = associations
        self.count = table.num_rows
        self._names = frozenset(table.column_names)
        self._shared = _SharedResults()

    def slice(self, begin: int, count: int) -> AssociationCallColumns:
        """Return some of the calls; what is computed of them is their own.

        Lists and maps are copied: of a part of them pyarrow gives the elements of all.
        """
        rows = self.table.slice(begin, count)
        places = pa.array(np.arange(rows.num_rows))
        for place, field in enumerate(rows.schema):
            if pa.types.is_nested(field.type):
                rows = rows.set_column(place, field, rows.column(place).take(places))
        return AssociationCallColumns(rows, self.association[begin : begin + count])

    def share(self, name: object, compute: Callable[[], Result]) -> Result:
        """Return a result that several conditions use; it is computed once, as long as there is memory for it."""
        return self._shared.get(name, compute)

    # Columns

    def array(self, name: str) -> pa.Array | None:
        """Return a column as one array; None where it is not there."""
        if name not in self._names:
            return None
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def nothing(self) -> Mask:
        """Return False for each call."""
        return np.zeros(self.count, np.bool_)

    def has(self, name: str) -> Mask:
        """Tell where a column has a value."""
        return self.share(("has", name), lambda: self._has(name))

    def _has(self, name: str) -> Mask:
        array = self.array(name)
        if array is None or pa.types.is_null(array.type):
            return self.nothing()
        return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))

    def numbers(self, name: str) -> Numbers:
        """Return a column of integers or booleans; 0 where it has no value. 64-bit numbers have no sign."""
        return self.share(("numbers", name), lambda: self._numbers(name))

    def _numbers(self, name: str) -> Numbers:
        array = self.array(name)
        if array is None or pa.types.is_null(array.type):
            return np.zeros(self.count, np.int64)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        if array.null_count:
            array = array.fill_null(0)
        found = array.to_numpy(zero_copy_only=False)
        result: Numbers = found if found.dtype == np.uint64 else found.astype(np.int64, copy=False)
        return result

    def nonzero(self, name: str) -> Mask:
        """Tell where a number is not 0, or a boolean is true."""
        return self.share(("nonzero", name), lambda: self.numbers(name) != 0)

    def equals(self, name: str, *values: int) -> Mask:
        """Tell where a number is one of some values."""
        numbers = self.numbers(name)
        found = numbers == values[0] if len(values) == 1 else np.isin(numbers, np.array(values, numbers.dtype))
        return found & self.has(name) if 0 in values else found

    def differs(self, one: str, other: str) -> Mask:
        """Tell where two columns of numbers have different values, or only one of them has one."""
        unequal = self.numbers(one) != self.numbers(other)
        result: Mask = unequal | (self.has(one) != self.has(other))
        return result

    def dictionary_codes(self, name: str) -> Numbers:
        """Return a number for each text of a column: the same for the same text; -1 where it has none."""
        return self.texts(name)[0]

    def texts(self, name: str) -> tuple[Numbers, list[str]]:
        """Return the codes of a column, and the texts that they are places of."""
        return self.share(("texts", name), lambda: self._encode(name))

    def _encode(self, name: str) -> tuple[Numbers, list[str]]:
        array = self.array(name)
        if array is None or pa.types.is_null(array.type):
            return np.full(self.count, -1), []
        return codes_and_values(array)

    def text_matches(self, name: str, predicate: Callable[[str], bool]) -> Mask:
        """Tell where a text meets a condition, which is asked once for each different text."""
        codes, texts = self.texts(name)
        return np.array([*map(predicate, texts), False], np.bool_)[codes]

    def text_map(self, name: str, function: Callable[[str], Result | None]) -> tuple[Mask, Numbers]:
        """Return for which texts a function, asked once for each different one, gives a value, and the values."""
        codes, texts = self.texts(name)
        values = np.empty(len(texts) + 1, np.object_)
        values[:-1] = _object_array([*map(function, texts)])
        found = np.array([value is not None for value in values], np.bool_)
        return found[codes], values[codes]

    def text_in(self, name: str, texts: Collection[str]) -> Mask:
        """Tell where a text is one of some."""
        return self.text_matches(name, lambda text: text in texts)

    def text_values(self, name: str, values: Mapping[str | None, Any], default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return the value of each text, or of None where the column has none."""
        codes, texts = self.texts(name)
        return np.array([*(values.get(text, default) for text in texts), values.get(None, default)])[codes]

    def lengths(self, name: str) -> Numbers:
        """Return how many elements a list has; 0 where there is none."""
        return self.share(("lengths", name), lambda: self._lengths(name))

    def _lengths(self, name: str) -> Numbers:
        array = self.array(name)
        if array is None or pa.types.is_null(array.type):
            return np.zeros(self.count, np.int64)
        result: Numbers = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return result

    def first_elements(self, name: str, place: int = 0) -> Numbers:
        """Return an element of each list of integers; 0 where there is none."""
        return self.share(("elements at", name, place), lambda: self._elements_at(name, place))

    def _elements_at(self, name: str, place: int) -> Numbers:
        array = self.array(name)
        long = self.lengths(name) > place
        if array is None or not long.any():
            return np.zeros(self.count, np.int64)
        found = np.zeros(self.count, np.int64)
        found[long] = pc.list_element(array.filter(pa.array(long)), place).fill_null(0).to_numpy(zero_copy_only=False)
        return found

    def map_sums(self, name: str, *excluded: str) -> Numbers:
        """Return the sum of the values of each map of integers, but for those of some keys."""
        array = self.array(name)
        if array is None or pa.types.is_null(array.type):
            return np.zeros(self.count, np.int64)
        items = array.items.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        if excluded:
            items[pc.is_in(array.keys, pa.array(excluded)).to_numpy(zero_copy_only=False)] = 0
        until = np.concatenate([[0], np.cumsum(items)])
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        return np.where(self.has(name), until[offsets[1:]] - until[offsets[:-1]], 0)

    def map_has(self, name: str, key: str) -> Mask:
        """Tell which maps have a key."""
        array, found = self.array(name), self.nothing()
        if array is not None and not pa.types.is_null(array.type):
            found[self._rows_with_key(array, key)[1]] = True
        return found & self.has(name)

    @staticmethod
    def _rows_with_key(array: pa.MapArray, key: str) -> tuple[Numbers, Numbers]:
        """Return the places of a key among those of all maps, and the map of each."""
        places = np.nonzero(pc.equal(array.keys, key).fill_null(False).to_numpy(zero_copy_only=False))[0]  # noqa: FBT003 - by place
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        return places, np.searchsorted(offsets, places + offsets[0], side="right") - 1

    def map_value(self, name: str, key: str) -> Numbers:
        """Return the value that each map of integers has for a key; -1 where it has none."""
        array, found = self.array(name), np.full(self.count, -1)
        if array is None or pa.types.is_null(array.type) or not len(array.keys):
            return found
        places, rows = self._rows_with_key(array, key)
        found[rows] = array.items.take(pa.array(places)).fill_null(-1).to_numpy(zero_copy_only=False)
        return np.where(self.has(name), found, -1)

    def first_of_elements(self, name: str, function: Callable[[Any], Result | None]) -> tuple[Mask, Numbers]:
        """Return which lists have an element for which a function gives a value, and the value of the first of these.

        The function gives None for other elements; the value of other lists is None.
        """
        found, values = self.nothing(), np.empty(self.count, np.object_)
        for row, elements in self.share(("elements", name), lambda: self._elements(name)):
            values[row] = next((value for value in map(function, elements) if value is not None), None)
            found[row] = values[row] is not None
        return found, values

    def _elements(self, name: str) -> tuple[tuple[int, list[Any]], ...]:
        rows = np.flatnonzero(self.lengths(name))
        array = self.array(name)
        if array is None or not rows.size:
            return ()
        return tuple(zip(rows.tolist(), array.take(pa.array(rows)).to_pylist(), strict=True))

    def elements_side_by_side(self, *names: str) -> tuple[Numbers, list[Numbers]]:
        """Return the elements of lists of integers: the call of each, and those with one place in each of the lists."""
        arrays = [self.array(name) for name in names]
        counts = np.minimum.reduce([self.lengths(name) for name in names])
        rows = np.repeat(np.arange(self.count), counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = [np.zeros(1, np.int64) if each is None else each.offsets.to_numpy() for each in arrays]
        values = [
            each.values.take(pa.array(starts[rows] + places)).fill_null(0).to_numpy(zero_copy_only=False)
            for each, starts in zip(arrays, offsets, strict=True)
            if each is not None and rows.size
        ]
        return rows, values or [rows for _ in names]

    def computed(
        self, rows: Mask, names: Sequence[str], function: Callable[[dict[str, Any]], Result | None]
    ) -> tuple[Mask, Numbers]:
        """Return for which of some calls a function of some columns gives a value, and the values; None without."""
        found, values = self.nothing(), np.empty(self.count, np.object_)
        places = np.flatnonzero(rows)
        for row, columns in zip(places.tolist(), self._columns_of(places, names), strict=True):
            values[row] = function(columns)
            found[row] = values[row] is not None
        return found, values

    def _columns_of(self, places: Numbers, names: Sequence[str]) -> list[dict[str, Any]]:
        there = [name for name in names if name in self._names]
        missing = dict.fromkeys(names)
        chosen = self.table.select(there).take(pa.array(places)).to_pylist()
        return [missing | row for row in chosen] if there else [missing] * len(places)

    # Octets of stubs

    def octets(self, name: str, rows: Mask, start: int, stop: int) -> tuple[Mask, Numbers]:
        """Return which of some calls have these octets of a stub, and the octets of those: a row for each."""
        array, found = self.array(name), self.nothing()
        if array is None or pa.types.is_null(array.type) or not (rows := rows & self.has(name)).any():
            return found, np.zeros((0, stop - start), np.uint8)
        part = pc.binary_slice(array.filter(pa.array(rows)), start, stop)
        long = pc.equal(pc.binary_length(part), stop - start)
        found[rows] = long.to_numpy(zero_copy_only=False)
        kept = part.filter(long).cast(pa.binary(stop - start))
        octets = np.frombuffer(kept.buffers()[1], np.uint8) if len(kept) else np.zeros(0, np.uint8)
        return found, octets[: len(kept) * (stop - start)].reshape(-1, stop - start)

    def stub_integers(
        self, name: str, rows: Mask, offset: int, size: int = 4, count: int = 1
    ) -> tuple[Mask, list[Numbers]]:
        """Return which of some calls have unsigned integers at an offset of a stub, and the integers; 0 without."""
        found, octets = self.octets(name, rows, offset, offset + size * count)
        integers = np.zeros((count, self.count), np.uint64)
        if len(octets):
            big = self.text_in("byte_order", {"big"})[found][:, None]
            octets = np.ascontiguousarray(octets)
            integers[:, found] = np.where(big, octets.view(f">u{size}"), octets.view(f"<u{size}")).T
        return found, list(integers)

    # Methods

    @shared_property
    def _methods(self) -> Numbers:
        names = self.dictionary_codes("interface_name")
        opnums = np.where(self.has("opnum"), self.numbers("opnum"), -1)
        return names * _OPNUMS + opnums + 1

    def of(self, *methods: Method) -> Mask:
        """Tell which calls are of some methods, each an interface and an opnum."""
        return self.share(("of", methods), lambda: self._of(methods))

    def _of(self, methods: Sequence[Method]) -> Mask:
        names = {name: code for code, name in enumerate(self.texts("interface_name")[1])}
        wanted = [names[interface] * _OPNUMS + opnum + 1 for interface, opnum in methods if interface in names]
        return np.isin(self._methods, wanted) if wanted else self.nothing()

    def of_interfaces(self, *interfaces: str) -> Mask:
        """Tell which calls are of some interfaces."""
        return self.text_in("interface_name", interfaces)

    @shared_property
    def is_ndr64(self) -> Mask:
        """The stubs are encoded in NDR64."""
        return self.text_in("transfer_syntax", {"NDR64"})

    # What was read of a call

    @shared_property
    def _clock(self) -> tuple[Numbers, Numbers]:
        """By how much the clocks of a call's request and of its response are ahead, microseconds."""
        array = self.array("clocks")
        if array is None or not self.seen_by_taps.any():
            return np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        ahead = (pc.struct_field(array, name).fill_null(0) for name in ("request_ahead_us", "response_ahead_us"))
        request, response = (each.to_numpy(zero_copy_only=False).astype(np.int64) for each in ahead)
        return request, response

    @property
    def seen_by_taps(self) -> Mask:
        """Several taps saw the call's connection."""
        return self.has("clocks")

    @shared_property
    def started_at(self) -> Numbers:
        """The time of the request, or of the response where the request was not captured."""
        asked = self.numbers("request_at") - self._clock[0]
        return np.where(
            self.has("request_at"), asked, np.where(self.answered, self.numbers("response_at") - self._clock[1], 0)
        )

    @property
    def answered(self) -> Mask:
        """The response was captured."""
        return self.has("response_at")

    @shared_property
    def responded_at(self) -> Numbers:
        """The time of the response; ``AFTER_ALL`` without one."""
        return np.where(self.answered, self.numbers("response_at") - self._clock[1], AFTER_ALL)

    @shared_property
    def ended_at(self) -> Numbers:
        """The time of the response; that of the request without one."""
        return np.where(self.answered & (self.responded_at != 0), self.responded_at, self.started_at)

    @property
    def has_errors(self) -> Mask:
        """Something of the call's stubs could not be decoded."""
        return self.lengths("errors") > 0

    @property
    def has_message_errors(self) -> Mask:
        """Something of the returned message could not be decoded."""
        return self.lengths("message_errors") > 0

    def _has_wrong(self, side: str) -> Mask:
        """Tell where the error of a side's stub, or of a part of it, was found."""
        return self._any_error(lambda error: str(error["field"] or "").split(".", 1)[0] == side)

    def has_malformed_field(self, side: str, *fields: str) -> Mask:
        """Tell where decoding of a side failed at one of these fields because of its value, not for missing bytes.

        ``side`` is ``request`` or ``response``; a field matches where it is part of the name in the error.
        """
        return self._any_error(lambda error: is_malformed(error, side, *fields))

    def _any_error(self, predicate: Callable[[Any], bool]) -> Mask:
        return self.first_of_elements("errors", lambda error: predicate(error) or None)[0]

    @property
    def unbound(self) -> Mask:
        """The bind of the call was looked for and not seen."""
        return self.has("bind_seen") & ~self.nonzero("bind_seen")

    @shared_property
    def request_decoded(self) -> Mask:
        """The request was captured and decoded completely."""
        closed = self.nonzero("sealed") & ~self.has("opened_by")
        unreadable = self.unbound | closed | self.text_in("outcome", UNREADABLE_OUTCOMES)
        return ~unreadable & self.has("request_at") & ~self._has_wrong("request")

    @shared_property
    def response_decoded(self) -> Mask:
        """The response was too, and is no fault."""
        return self.request_decoded & self.text_in("outcome", {"ok"}) & ~self._has_wrong("response")

    @shared_property
    def result_succeeded(self) -> Mask:
        """The HRESULT is that of a success (``call_succeeded``)."""
        return self._with_result(lambda interface, result: call_succeeded(interface, result) is True)

    @shared_property
    def result_failed(self) -> Mask:
        """The HRESULT is that of a failure."""
        return self._with_result(lambda interface, result: call_succeeded(interface, result) is False)

    def _with_result(self, predicate: Callable[[str, int], bool]) -> Mask:
        """Tell where interface and HRESULT meet a condition, which is asked once for each different pair."""
        names, found = self.texts("interface_name"), self.nothing()
        results, has_result = self.numbers("hresult"), self.has("hresult")
        for code, interface in ((-1, ""), *enumerate(names[1])):
            ours = has_result & (names[0] == code)
            if ours.any():
                places, values = codes_and_values(pa.array(results[ours]))
                found[ours] = np.array([predicate(interface, value) for value in values])[places]
        return found

    @shared_property
    def succeeded(self) -> Mask:
        """The response was decoded, and its result is that of a success."""
        return self.response_decoded & self.result_succeeded

    @shared_property
    def failed(self) -> Mask:
        """The response is a fault, or its result is that of a failure."""
        return self.has("fault_status") | (self.response_decoded & self.result_failed)

    @shared_property
    def is_peek(self) -> Mask:
        """The call is a read that leaves the message in the queue."""
        places, values = codes_and_values(pa.array(self.numbers("action")))
        return self.has("action") & np.array([is_peek_action(value) for value in values], np.bool_)[places]

    @property
    def is_receive(self) -> Mask:
        """The call is a read that takes the message."""
        return self.has("action") & ~self.is_peek

    @property
    def abandoned(self) -> Mask:
        """The client cancelled or orphaned the call."""
        return self.has("cancelled_at") | self.has("orphaned_at")

    @shared_property
    def given_up_at(self) -> Numbers:
        """The time at which the client did so; ``AFTER_ALL`` where it did not."""
        names = ("cancelled_at", "orphaned_at")
        times = (np.where(self.has(name), self.numbers(name) - self._clock[0], AFTER_ALL) for name in names)
        return np.minimum(*times)

    @shared_property
    def lookup_id_number(self) -> Numbers:
        """The number of the returned message in its queue; 0 without one."""
        number = self.numbers("sequence_id").astype(np.uint64) & np.uint64(LOOKUP_ID_NUMBER_MASK)
        return np.where(self.succeeded, number.astype(np.int64), 0)

    @shared_property
    def requested_lookup_id(self) -> Numbers:
        """The LookupId of the request, 64 bits without a sign; 0 without one."""
        return self.numbers("lookup_id").astype(np.uint64)
