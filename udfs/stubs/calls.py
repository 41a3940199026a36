"""Columns of stubs to Arrow: one method's stubs for whoever wants just them, whole calls for the silver table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from udfs import codes
from udfs.rpc.interfaces import BY_NAME, NDR, NDR64, QM2QM, REMOTE_READ
from udfs.stubs import qm2qm, remote_read, text, types
from udfs.stubs.column import CODES, Bools, Column, Cursors, Ints, Values, buffer_of
from udfs.stubs.method import PLAUSIBLE, Kind, Method, Param

DECODER_VERSION: Final = "1"

METHODS: Final = {
    QM2QM.name: {method.opnum: method for method in qm2qm.METHODS},
    REMOTE_READ.name: {method.opnum: method for method in remote_read.METHODS},
}

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
}
_SECTION_TYPES: Final[dict[str, pa.DataType]] = {
    "section_types": pa.list_(pa.int32()),
    "section_bytes": pa.list_(pa.int64()),
    "section_allocated_bytes": pa.list_(pa.int64()),
}
_RESPONSE_FIRST: Final = frozenset({"sequence_id", "hresult", "arrive_time", "packet_bytes"})
_STRUCTURE_COLUMNS: Final = {
    Kind.READ_DESC: ("queue_handle", "cursor_handle", "action", "timeout_ms", "queue_descriptor", "request_id",
                     "arrive_time", "packet_bytes"),
    Kind.QUEUE_FORMAT: ("queue_format_type", "queue_format_name"),
    Kind.SECTIONS: (*_SECTION_TYPES, "packet_bytes"),
}  # fmt: skip


def _attempt(
    method: Method, direction: str, at: _Stubs, rows: Ints, out: Values, *, ndr64: bool, lenient: bool
) -> Cursors:
    begin, end = at.offsets[rows], at.offsets[rows + 1]
    cursors = Cursors(at.data, rows, begin, end, out, ndr64=ndr64, big=at.big[rows], lenient=lenient)
    types.read(cursors, method.params(direction))
    return cursors


class _Stubs:
    """A column of stubs: its buffer, offsets, which rows have one, and which are big-endian."""

    def __init__(self, stubs: pa.Array, big: Bools) -> None:
        self.data, self.offsets = buffer_of(stubs)
        self.present = np.asarray(stubs.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        self.big = big


def _read_rows(method: Method, direction: str, stubs: _Stubs, rows: Ints, out: Values, *, ndr64: bool) -> None:
    """Read the stubs of ``rows`` into ``out``; rows without a stub stay as they are."""
    rows = rows[stubs.present[rows]]
    if not len(rows):
        return
    cursors = _attempt(method, direction, stubs, rows, out, ndr64=ndr64, lenient=False)
    pads = any(param.kind is Kind.QUEUE_FORMAT for param in method.params(direction))
    if not ndr64 or not pads or cursors.whole:
        return
    # Peers are known that leave out the padding after a queue format: read so where it makes sense, and say it (D19).
    failed = rows[~cursors.live]
    again = Values(out.rows)
    lenient = _attempt(method, direction, stubs, failed, again, ndr64=True, lenient=True)
    if lenient.missing_pad is None:
        return
    missing = np.where(lenient.live, lenient.missing_pad, -1)
    for name, most in PLAUSIBLE.items():
        if name in again.values:
            missing[~np.isin(again.values[name][failed], most)] = -1
    fits = failed[missing >= 0]
    again.code[fits] = CODES.index("malformed")
    again.field[fits] = next(p.name for p in method.params(direction) if p.kind is Kind.QUEUE_FORMAT) + " (padding)"
    again.offset[fits] = missing[missing >= 0]
    which = np.zeros(out.rows, np.bool_)
    which[fits] = True
    out.take_from(again, which)


def _errors(parts: list[tuple[str, Values]], rows: int) -> pa.Array:
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


def _column(name: str, values: Column, valid: Bools) -> pa.Array:
    to = COLUMN_TYPES[name]
    if not pa.types.is_string(to):
        return text.numbers(values, valid, to)
    if values.dtype == object:
        return text.texts(values, valid)
    if name == "transaction_id":
        return text.guid_text(values, valid & values.any(axis=1))
    if values.shape[1] == 16:
        return text.guid_text(values, valid)
    return text.hex_text(values, valid & values.any(axis=1))


def _sections(values: Values, keep: Bools) -> dict[str, pa.Array]:
    """Return the section columns: lists in the rows of ``keep`` that have sections, null in the others."""
    has = keep & values.valid.get("sections", np.zeros(values.rows, np.bool_))
    flats = values.sections or [(np.zeros(0, np.int64),) + (np.zeros(0, np.uint32),) * 3]
    rows, kinds, allocated, sizes = (np.concatenate(parts) for parts in zip(*flats, strict=True))
    order = np.argsort(rows, kind="stable")
    order = order[has[rows[order]]]
    ends = np.cumsum(np.bincount(rows[order], minlength=values.rows))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32), mask=np.concatenate([~has, [False]]))
    out = {}
    for (name, to), part in zip(_SECTION_TYPES.items(), (kinds, sizes, allocated), strict=True):
        flat = pa.array(part[order].astype(to.value_type.to_pandas_dtype()), to.value_type)
        out[name] = pa.ListArray.from_arrays(offsets, flat)
    return out


def _packets(values: Values, data: npt.NDArray[np.uint8], keep: Bools) -> pa.Array:
    """Return packets as bytes, the spans of a row one after the other; null where not ``keep`` or without one."""
    has = keep & values.valid.get("packet_bytes", np.zeros(values.rows, np.bool_))
    parts: list[list[bytes]] = [[] for _ in range(values.rows)]
    for rows, starts, sizes in values.spans:
        for row, start, size in zip(rows.tolist(), starts.tolist(), sizes.tolist(), strict=True):
            if has[row]:
                parts[row].append(data[start : start + size].tobytes())
    return pa.array([b"".join(part) if has[row] else None for row, part in enumerate(parts)], pa.binary())


def columns_of(params: tuple[Param, ...]) -> tuple[str, ...]:
    """Return the columns that parameters fill, in order, each once."""
    names: list[str] = []
    for param in params:
        if param.kind is Kind.READ_DESC2:
            names += ("sequence_id", *_STRUCTURE_COLUMNS[Kind.READ_DESC])
        elif param.kind in _STRUCTURE_COLUMNS:
            names += _STRUCTURE_COLUMNS[param.kind]
            if param.column == "queue":
                names.append("queue")
        elif param.column:
            names.append(param.column)
    return tuple(dict.fromkeys(names))


def decode(
    method: Method,
    direction: str,
    stubs: pa.Array,
    *,
    ndr64: bool = False,
    big_endian: bool | Bools = False,
    packets: bool = False,
) -> pa.StructArray:
    """Decode the stubs of one method and direction: one struct row out per row in.

    ``stubs`` is a binary or large_binary array, ``direction`` "request" or "response", ``big_endian`` a flag or a
    mask of rows. The struct holds the parameters by column (null where not read), ``packet`` when asked for, and
    ``errors``: empty when the stub was used up to its last byte. A null stub gives nulls and no error.
    """
    rows = len(stubs)
    column = _Stubs(stubs, np.broadcast_to(np.asarray(big_endian, np.bool_), rows))
    out = Values(rows)
    _read_rows(method, direction, column, np.arange(rows), out, ndr64=ndr64)
    everywhere = np.ones(rows, np.bool_)
    arrays: dict[str, pa.Array] = {}
    for name in columns_of(method.params(direction)):
        if name in _SECTION_TYPES:
            arrays.update(_sections(out, everywhere))
        elif name in out.values:
            arrays[name] = _column(name, out.values[name], out.valid[name])
        else:
            arrays[name] = pa.nulls(rows, COLUMN_TYPES[name])
    if packets:
        arrays["packet"] = _packets(out, column.data, everywhere)
    arrays["errors"] = _errors([("", out)], rows)
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def _text_column(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=False)
    return values


def _readable(batch: pa.RecordBatch) -> Bools:
    """Tell the rows whose stubs are not sealed, or were opened."""
    sealed = pc.fill_null(batch.column("sealed"), False)  # noqa: FBT003
    opened = pc.or_(pc.invert(sealed), batch.column("opened_by").is_valid())
    return np.asarray(opened.to_numpy(zero_copy_only=False), np.bool_)


def _byte_order(batch: pa.RecordBatch, side: str) -> Bools:
    """Tell the rows whose stub of ``side`` is big-endian: every PDU has its sender's order ([C706] 14.1, rule N22)."""
    order = batch.column("byte_order")
    if side == "response" and "response_byte_order" in batch.schema.names:
        order = pc.coalesce(batch.column("response_byte_order"), order)
    big = pc.fill_null(pc.equal(order, "big"), False)  # noqa: FBT003
    return np.asarray(big.to_numpy(zero_copy_only=False), np.bool_)


class _Calls:
    """The calls of one batch while they are decoded: what is read of requests, and of responses."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows = batch.num_rows
        order = {side: _byte_order(batch, side) for side in ("request", "response")}
        self.stubs = {side: _Stubs(batch.column(f"{side}_stub"), big) for side, big in order.items()}
        self.values = {side: Values(self.rows) for side in self.stubs}
        self.readable = _readable(batch)
        self.interface = _text_column(batch, "interface_name")
        self.opnum = pc.fill_null(batch.column("opnum"), -1).to_numpy(zero_copy_only=False)
        self.syntax = _text_column(batch, "transfer_syntax")

    def read(self) -> None:
        """Decode every call, the calls of one method and syntax at once."""
        for interface, methods in METHODS.items():
            ours = self.readable & (self.interface == interface) & (self.opnum >= 0)
            for opnum in np.unique(self.opnum[ours]).tolist():
                these = ours & (self.opnum == opnum)
                method = methods.get(opnum)
                if method is None:
                    self._unsupported(these, "opnum")
                    continue
                ndr, ndr64 = self.syntax == NDR, self.syntax == NDR64
                unknown = np.array([syntax is None for syntax in self.syntax], np.bool_)
                self._read_method(method, np.flatnonzero(these & ndr), self.values, ndr64=False)
                self._read_method(method, np.flatnonzero(these & ndr64), self.values, ndr64=True)
                self._read_either(method, np.flatnonzero(these & unknown))
                self._unsupported(these & ~ndr & ~ndr64 & ~unknown, "transfer_syntax")

    def _read_method(self, method: Method, rows: Ints, out: dict[str, Values], *, ndr64: bool) -> None:
        for side, stubs in self.stubs.items():
            _read_rows(method, side, stubs, rows, out[side], ndr64=ndr64)

    def _read_either(self, method: Method, rows: Ints) -> None:
        """Read calls whose bind was not seen: as NDR, and where that does not fit but NDR64 does, as NDR64."""
        self._read_method(method, rows, self.values, ndr64=False)
        failed = rows[np.any([values.code[rows] != 0 for values in self.values.values()], axis=0)]
        if not len(failed):
            return
        again = {side: Values(self.rows) for side in self.stubs}
        self._read_method(method, failed, again, ndr64=True)
        fits = np.zeros(self.rows, np.bool_)
        fits[failed] = ~np.any([values.code[failed] != 0 for values in again.values()], axis=0)
        for side, values in self.values.items():
            values.take_from(again[side], fits)

    def _unsupported(self, which: Bools, field: str) -> None:
        for side, stubs in self.stubs.items():
            rows = np.flatnonzero(which & stubs.present)
            self.values[side].code[rows] = CODES.index("unsupported")
            self.values[side].field[rows] = field


def _merged(calls: _Calls, name: str) -> tuple[Column, Bools] | None:
    """Return a column of both directions: the request's value, else the response's; for answers the other way."""
    first, second = ("response", "request") if name in _RESPONSE_FIRST else ("request", "response")
    found = [calls.values[side] for side in (first, second) if name in calls.values[side].values]
    if not found:
        return None
    values, valid = found[0].values[name], found[0].valid[name]
    if len(found) == 1:
        return values, valid
    other = found[1]
    spread = valid if values.ndim == 1 else valid[:, None]
    return np.where(spread, values, other.values[name]), valid | other.valid[name]


def _names(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Return the name of each code; null where the code is."""
    encoded = numbers.dictionary_encode()
    return pa.array([codes.name_of(names, code) for code in encoded.dictionary.to_pylist()], pa.string()).take(
        encoded.indices
    )


def _method_names(calls: _Calls) -> pa.Array:
    out = np.full(calls.rows, None, object)
    for interface in METHODS:
        methods = BY_NAME[interface].methods
        for opnum, name in enumerate(methods):
            out[(calls.interface == interface) & (calls.opnum == opnum)] = name
    return pa.array(out, pa.string())


def decode_calls(batch: pa.RecordBatch, *, packets: bool = False) -> dict[str, pa.Array]:
    """Decode both stubs of qm2qm and RemoteRead calls: one row out per row in, by column of the silver table.

    ``batch`` has bronze.rpc_calls' ``interface_name``, ``opnum``, ``transfer_syntax``, ``byte_order``, ``outcome``,
    ``sealed``, ``opened_by``, ``request_stub`` and ``response_stub``; ``response_byte_order``, where there is one,
    tells an answer in another order than its request. Sealed stubs and what was not seen give nulls and no error; nor
    does a stub that ends early because the call is ``damaged``: that is known already.
    """
    calls = _Calls(batch)
    calls.read()
    damaged = _text_column(batch, "outcome") == "damaged"
    for values in calls.values.values():
        values.code[damaged & (values.code == CODES.index("truncated"))] = 0
    out: dict[str, pa.Array] = {"method": _method_names(calls)}
    nothing = np.zeros(calls.rows, np.bool_)
    response = calls.values["response"]
    hresult, answered = _merged(calls, "hresult") or (np.zeros(calls.rows, np.uint32), nothing)
    # Arrival time and sections have a meaning only on success (doubt D25); unseen is not refused.
    came = response.valid.get("packet_bytes", nothing) & ~(answered & (hresult != codes.MQ_OK))
    for name, to in COLUMN_TYPES.items():
        read = _merged(calls, name)
        if read is None:
            out[name] = pa.nulls(calls.rows, to)
            continue
        column, valid = read
        if name in ("arrive_time", "packet_bytes"):
            valid = valid & came
        if name == "arrive_time":
            valid = valid & (column != 0)
        out[name] = _column(name, column, valid)
    out.update(_sections(response, came))
    out["packet"] = (
        _packets(response, calls.stubs["response"].data, came) if packets else pa.nulls(calls.rows, pa.binary())
    )
    seconds = out.pop("arrive_time").cast(pa.timestamp("s"))
    out["arrived_at"] = seconds.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    out["action_name"] = _names(out["action"], codes.ACTION)
    out["ack_name"] = _names(out["ack"], codes.ACK)
    out["hresult_name"] = _names(out["hresult"], codes.HRESULT)
    out["errors"] = _errors([(f"{side}.", values) for side, values in calls.values.items()], calls.rows)
    out["decoder_version"] = pa.array([DECODER_VERSION] * calls.rows, pa.string())
    return out
