"""Calls of servers as columns, for the steps that are done for all calls at once; few of them become objects.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.attempts.calls.decoded_call import (
    CALL_ROLES,
    LOOKUP_ID_ACTION_FLAG,
    ONE_CLOCK,
    CallRole,
    Clocks,
    DecodedCall,
    DecodeErrorFields,
)
from schemas.table import CLOCKS, ERRORS, TIMESTAMP
from udfs.array_types import Bools, Ints
from udfs.call_results import call_succeeded
from udfs.columns.absent import ABSENT, NONE
from udfs.columns.arrays import to_flags, to_ints
from udfs.columns.codes import codes_and_values
from udfs.columns.groups import order_by
from udfs.dcerpc.interfaces import QM2QM_NAME

MESSAGE_ERRORS: Final = "message_errors"
# How far ahead the clock of each time is, as ``clocks`` has it.
_AHEAD: Final = {
    **dict.fromkeys(("requested_at", "cancelled_at", "orphaned_at"), "request_ahead_us"),
    "responded_at": "response_ahead_us",
}


_KINDS: Final = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_()}
_IDENTIFIERS: Final = ("sequence_id", "lookup_id", "move_context")


def _row_type(name: str, annotation: str) -> pa.DataType:
    """Return the type of a field of ``DecodedCall`` as a column."""
    if name in ("clocks", "errors"):
        return CLOCKS.type if name == "clocks" else ERRORS
    if name in _AHEAD:
        return TIMESTAMP
    return pa.uint64() if name in _IDENTIFIERS else _KINDS[annotation.removesuffix(" | None")]


_ROWS: Final = pa.schema(
    [(name, _row_type(name, kind.__forward_arg__)) for name, kind in DecodedCall.__annotations__.items()]
)


def rows_of_calls(calls: Iterable[DecodedCall]) -> pa.Table:
    """Return calls as rows with the fields of ``DecodedCall``, the inverse of ``calls_from_rows``."""
    rows = []
    for call in calls:
        ahead = {
            name: at if at is None else at + (getattr(call.clocks, clock) or 0)
            for name, clock in _AHEAD.items()
            for at in [getattr(call, name)]
        }
        errors = [dict(zip(("code", "field", "offset"), error, strict=True)) for error in call.errors]
        clocks = None if call.clocks == ONE_CLOCK else call.clocks._asdict()
        rows.append(call._asdict() | ahead | {"errors": errors, "clocks": clocks})
    return pa.Table.from_pylist(rows, _ROWS)


def calls_from_rows(rows: pa.Table) -> list[DecodedCall]:
    """Return rows as ``DecodedCall`` objects; their errors include those of the messages that they returned.

    Times become those of one clock. Columns that the rows do not have are as in a call of which nothing is known.
    """
    return [*map(DecodedCall, *(_call_values(rows, name) for name in DecodedCall._fields))]


def _call_values(rows: pa.Table, name: str) -> Iterable[Any]:
    """Return the values of one field of ``DecodedCall``."""
    default = DecodedCall._field_defaults.get(name)
    if name == "errors":
        return _errors_of_calls(rows)
    column = _field(rows, name)
    if column is None or column.null_count == rows.num_rows:
        return repeat(default, rows.num_rows)
    if name == "clocks":
        return [ONE_CLOCK if clocks is None else Clocks(**clocks) for clocks in column.to_pylist()]
    return (column.fill_null(default) if default is not None else column).to_pylist()  # type: ignore[no-any-return]


def _field(rows: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return one field of ``DecodedCall`` as a column: times of one clock, numbers; None if the rows do not have it."""
    if name not in rows.column_names:
        return None
    column = rows[name]
    if name in _AHEAD:
        column = times_to_us(column)
        if "clocks" in rows.column_names and rows["clocks"].null_count < rows.num_rows:
            column = pc.subtract(column, pc.fill_null(pc.struct_field(rows["clocks"], _AHEAD[name]), 0))
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.uint64())
    return column


def _errors_of_calls(rows: pa.Table) -> Iterable[tuple[DecodeErrorFields, ...]]:
    """Return the errors of each call, and of the message that it returned."""
    columns = [rows[name] for name in ("errors", MESSAGE_ERRORS) if name in rows.column_names]
    if not any(len(pc.list_flatten(column)) for column in columns):
        return repeat((), rows.num_rows)
    every = (
        chain.from_iterable(filter(None, some)) for some in zip(*(one.to_pylist() for one in columns), strict=True)
    )
    return [tuple((error["code"], error["field"], error["offset"]) for error in errors) for errors in every]


def _first_known(requested: Ints, responded: Ints) -> Ints:
    """Return the times of calls: of the request, else of the response, else 0."""
    either = np.where(requested != ABSENT, requested, responded)
    return np.where(either == ABSENT, 0, either)


def _roles_of_rows(rows: pa.Table, roles: Mapping[tuple[str, int], CallRole]) -> Ints:
    """Return the numbers of the calls' roles among all roles; -1 for calls that have none."""
    numbers = {role: number for number, role in enumerate(dict.fromkeys(roles.values()))}
    opnums = to_ints(rows["opnum"].combine_chunks(), ABSENT)
    protocols, names = codes_and_values(rows["protocol"].combine_chunks())
    found = np.full(rows.num_rows, NONE)
    for (protocol, opnum), role in roles.items():
        if protocol in names:
            found[(protocols == names.index(protocol)) & (opnums == opnum)] = numbers[role]
    return found


class OrderedCallColumns:
    """The calls that have a role, in order of (server, time, key): arrays in which an index stands for a call.

    ``rows`` have fields of ``DecodedCall``, and server_address where they are of several servers. Fields that they do
    not have are as in a call of which nothing is known. ``places`` are the calls' places among the rows.
    """

    def __init__(self, rows: pa.Table, roles: Mapping[tuple[str, int], CallRole] = CALL_ROLES) -> None:
        self._rows, self._roles = rows, [*dict.fromkeys(roles.values())]
        self._numbers: dict[str, Ints] = {}
        role = _roles_of_rows(rows, roles)
        self.places: Ints = np.flatnonzero(role != NONE)
        self.places = self.places[self._order()]
        self.role = role[self.places]
        self.key: pa.Array = self.field("call_key")
        self.server, self.servers = self.dictionary_codes("server_address")
        self.protocol, self.protocols = self.dictionary_codes("protocol")
        self.requested_at, self.responded_at = self.numbers("requested_at"), self.numbers("responded_at")
        self.at = _first_known(self.requested_at, self.responded_at)

    def _order(self) -> Ints:
        requested, responded = (
            to_ints(self.field(name, pa.int64()), ABSENT) for name in ("requested_at", "responded_at")
        )
        return order_by(
            [self.dictionary_codes("server_address")[0], _first_known(requested, responded)], self.field("call_key")
        )

    def __len__(self) -> int:
        """Return how many calls there are."""
        return len(self.places)

    def of_role(self, *names: CallRole) -> Ints:
        """Return the calls that have one of some roles."""
        wanted = [number for number, name in enumerate(self._roles) if name in names]
        return np.flatnonzero(np.isin(self.role, wanted))

    def objects(self, calls: Ints) -> list[DecodedCall]:
        """Return some of the calls as objects."""
        return calls_from_rows(self._rows.take(pa.array(self.places[calls])))

    def field(self, name: str, kind: pa.DataType | None = None) -> pa.Array:
        """Return a field: times of one clock as numbers; nulls of a kind, else texts, where the rows do not have it."""
        column = _field(self._rows, name)
        if column is None:
            return pa.nulls(len(self), kind or pa.string())
        return column.take(pa.array(self.places)).combine_chunks()

    def numbers(self, name: str) -> Ints:
        """Return a field of numbers or times; ``ABSENT`` for null."""
        if name not in self._numbers:
            self._numbers[name] = to_ints(self.field(name, pa.int64()), ABSENT)
        return self._numbers[name]

    def dictionary_codes(self, name: str) -> tuple[Ints, list[Any]]:
        """Return the codes of a field, -1 for null, and the values that they stand for."""
        return codes_and_values(self.field(name))

    def identifiers(self, name: str) -> Ints:
        """Return a field of identifiers of messages, of which the wire carries 56 bits; ``ABSENT`` for 0 and null."""
        values = self.field(name, pa.uint64()).cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(values == 0, ABSENT, (values & np.uint64(LOOKUP_ID_ACTION_FLAG)).astype(np.int64))

    def flags(self, name: str) -> Bools:
        """Return a field of flags."""
        return to_flags(self.field(name, pa.bool_()), default=DecodedCall._field_defaults[name])

    # What a call is, as ``DecodedCall`` says it

    @cached_property
    def by_number(self) -> Bools:
        """Whether calls are of qm2qm, whose queues are used by number."""
        found: Bools = self.protocol == (self.protocols.index(QM2QM_NAME) if QM2QM_NAME in self.protocols else NONE)
        return found

    @cached_property
    def succeeded(self) -> tuple[Bools, Bools]:
        """Which calls were accepted, and which were refused (``is_accepted``, ``is_refused``)."""
        results, values = self.dictionary_codes("hresult")
        each = [[call_succeeded(name, value) for value in (*values, None)] for name in self.protocols]  # null at -1
        fault = self.numbers("fault_status") != ABSENT
        accepted, refused = (
            np.array([[one is wanted for one in row] for row in each], np.bool_).reshape(-1, len(values) + 1)
            for wanted in (True, False)
        )
        return accepted[self.protocol, results] & ~fault, refused[self.protocol, results] | fault

    @cached_property
    def clocks(self) -> dict[str, Ints]:
        """The fields of ``Clocks``."""
        column = self.field("clocks", CLOCKS.type)
        return {name: to_ints(pc.struct_field(column, name), ABSENT) for name in Clocks._fields}

    def ahead_us(self, side: str) -> Ints:
        """Return how far ahead the clock is of the tap that saw the ``request`` or ``response``; 0 if not known."""
        ahead = self.clocks[f"{side}_ahead_us"]
        return np.where(ahead == ABSENT, 0, ahead)

    @cached_property
    def errors(self) -> list[tuple[DecodeErrorFields, ...]]:
        """The errors of each call, and of the message that it returned; empty if no call has one."""
        found = [*_errors_of_calls(self._rows)]
        return [found[place] for place in self.places.tolist()] if any(found) else []

    @cached_property
    def has_errors(self) -> Bools:
        """Whether calls, or the messages that they returned, have errors."""
        return np.array([bool(each) for each in self.errors]) if self.errors else np.zeros(len(self), np.bool_)

    def captured_at(self, side: str) -> Ints:
        """Return the times of ``request`` or ``response`` by the clocks of the taps that saw them."""
        at = self.requested_at if side == "request" else self.responded_at
        return np.where(at == ABSENT, ABSENT, at + self.ahead_us(side))

    def is_known(self, name: str) -> Bools:
        """Return which calls have a value in a field."""
        return self.field(name).is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def has_outcome(self, outcome: str) -> Bools:
        """Whether calls have an outcome, as bronze.rpc_calls has it."""
        return to_flags(pc.equal(self.field("outcome"), outcome), default=False)
