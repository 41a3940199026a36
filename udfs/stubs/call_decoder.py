"""Decode the stubs of RPC calls, into the columns of the silver tables of calls: both of a call, or single ones.

Calls of one method and transfer syntax are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.table import ERRORS, TIMESTAMP
from udfs import codes
from udfs.array_types import Bools, Ints
from udfs.call_results import call_succeeded
from udfs.columns.arrays import over_distinct, to_flags
from udfs.dcerpc.interfaces import INTERFACES_BY_NAME, NDR64_NAME, NDR_NAME, REMOTE_READ_NAME
from udfs.errors import UNSUPPORTED
from udfs.queues.normal_form import normalize_queue_names
from udfs.stubs import method_registry, to_arrow
from udfs.stubs.column_cursors import ERROR_CODES, AnyArray, DecodedColumns
from udfs.stubs.idl import Method
from udfs.stubs.stub_decoder import StubColumn, decoded_column, read_stub_rows

DECODER_VERSION: Final = "3"  # 3: counts that reading does not need end nothing; 2: an empty name is no queue

# Columns for which the response's value takes precedence over the request's.
_RESPONSE_FIRST: Final = frozenset({"sequence_id", "hresult", "arrive_time", "packet_bytes", "remote_queue_name"})
_REMOTE_READ_COLUMNS: Final = (*to_arrow.READ_COLUMNS, "arrive_time")
_CLIENT_COLUMNS: Final = (
    "queue_format_name", "queue", "access", "share_mode", "queue_handle", "queue_descriptor", "open_context",
    "context_handle", "cursor_handle", "client_id", "returned_port", "remote_queue_name", "client_name",
    "queue_manager_context", "remote_cursor_handle", "port_type", "mqs", "action", "timeout_ms", "hresult",
)  # fmt: skip
_MANAGEMENT_COLUMNS: Final = ("object_type", "queue_format_name", "queue", "hresult")
PARAMETERS_SCHEMA: Final = pa.schema(
    {
        "method": pa.string(),
        **{name: kind for name, kind in to_arrow.COLUMN_TYPES.items() if name not in to_arrow.RAW_TYPES},
        "arrived_at": TIMESTAMP,
        "management_action": pa.string(),
        **dict.fromkeys(("action_name", "ack_name", "hresult_name"), pa.string()),
        **to_arrow.LIST_TYPES,
        "values": to_arrow.VARIANTS_TYPE,
        **to_arrow.SECTION_TYPES,
        "packet": pa.binary(),
        "errors": ERRORS,
    }
)
_DIRECTIONS: Final = ("request", "response")

ColumnArrays = Mapping[str, pa.Array]


def _equals(column: pa.Array, value: str) -> Bools:
    """Return the mask of rows that equal ``value``; null does not."""
    return to_flags(pc.equal(column, value))


def _readable_rows(batch: pa.RecordBatch) -> Bools:
    """Return the mask of rows whose stubs are in the clear: not sealed, or decrypted."""
    return ~to_flags(batch.column("sealed")) | to_flags(batch.column("opened_by").is_valid())


def _big_endian_rows(batch: pa.RecordBatch, side: str) -> Bools:
    """Return the mask of rows whose stub of ``side`` is big-endian; a PDU has its sender's byte order ([C706] 14.1)."""
    order = batch.column("byte_order")
    if side == "response" and "response_byte_order" in batch.schema.names:
        order = pc.coalesce(batch.column("response_byte_order"), order)
    return _equals(order, "big")


class _CallBatch:
    """The calls of one batch and the decoded columns of their requests and responses."""

    def __init__(self, batch: pa.RecordBatch, methods_of: method_registry.MethodsByInterface) -> None:
        self.rows = batch.num_rows
        self.methods_by_interface = methods_of
        order = {side: _big_endian_rows(batch, side) for side in ("request", "response")}
        self.stubs = {side: StubColumn(batch.column(f"{side}_stub"), big) for side, big in order.items()}
        self.values = {side: DecodedColumns(self.rows) for side in self.stubs}
        self.readable = _readable_rows(batch)
        self.of_interface = {interface: _equals(batch.column("interface_name"), interface) for interface in methods_of}
        self.opnum = pc.fill_null(batch.column("opnum"), -1).to_numpy(zero_copy_only=False)

        self._decode_all(batch.column("transfer_syntax"))
        # A damaged call's stub ends early as a matter of course: no error.
        damaged = _equals(batch.column("outcome"), "damaged")
        for values in self.values.values():
            values.error_code[damaged & (values.error_code == ERROR_CODES.index("truncated"))] = 0

    def _decode_all(self, syntax: pa.Array) -> None:
        """Decode all calls, grouped by method and transfer syntax."""
        ndr, ndr64 = _equals(syntax, NDR_NAME), _equals(syntax, NDR64_NAME)
        unknown = np.asarray(syntax.is_null().to_numpy(zero_copy_only=False), np.bool_)
        for interface, by_opnum in self.methods_by_interface.items():
            ours = self.readable & self.of_interface[interface] & (self.opnum >= 0)
            for opnum in np.unique(self.opnum[ours]).tolist():
                these = ours & (self.opnum == opnum)
                method = by_opnum.get(opnum)
                if method is None:
                    self._mark_unsupported(these, "opnum")
                    continue
                self._decode_method(method, np.flatnonzero(these & ndr), self.values, ndr64=False)
                self._decode_method(method, np.flatnonzero(these & ndr64), self.values, ndr64=True)
                self._decode_unknown_syntax(method, np.flatnonzero(these & unknown))
                self._mark_unsupported(these & ~ndr & ~ndr64 & ~unknown, "transfer_syntax")

    def _decode_method(self, method: Method, rows: Ints, out: dict[str, DecodedColumns], *, ndr64: bool) -> None:
        for side, stubs in self.stubs.items():
            read_stub_rows(method, side, stubs, rows, out[side], ndr64=ndr64)

    def _decode_unknown_syntax(self, method: Method, rows: Ints) -> None:
        """Decode calls whose bind was not captured: as NDR, or as NDR64 where only that fits."""
        self._decode_method(method, rows, self.values, ndr64=False)
        failed = rows[np.any([values.error_code[rows] != 0 for values in self.values.values()], axis=0)]
        if not len(failed):
            return
        again = {side: DecodedColumns(self.rows) for side in self.stubs}
        self._decode_method(method, failed, again, ndr64=True)
        fits = np.zeros(self.rows, np.bool_)
        fits[failed] = ~np.any([values.error_code[failed] != 0 for values in again.values()], axis=0)
        for side, values in self.values.items():
            values.replace_rows_from(again[side], fits)

    def _mark_unsupported(self, which: Bools, field: str) -> None:
        for side, stubs in self.stubs.items():
            rows = np.flatnonzero(which & stubs.present)
            self.values[side].error_code[rows] = ERROR_CODES.index("unsupported")
            self.values[side].error_field[rows] = field


def _merge_directions(calls: _CallBatch, name: str) -> tuple[AnyArray, Bools] | None:
    """Return values and validity of a column over both directions: the request's value, else the response's.

    For ``_RESPONSE_FIRST`` it is the other way round. None if neither direction has the column.
    """
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


def code_name_column(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Return the name of each code; null for a null code."""
    return over_distinct(numbers, partial(codes.code_name, names), pa.string())


def _method_names(calls: _CallBatch) -> pa.Array:
    index, names = np.full(calls.rows, -1, np.int32), list[str]()
    for interface, ours in calls.of_interface.items():
        by_opnum = INTERFACES_BY_NAME[interface].methods
        named = ours & (calls.opnum >= 0) & (calls.opnum < len(by_opnum))
        index[named] = calls.opnum[named] + len(names)
        names += by_opnum
    return pa.array(names, pa.string()).take(pa.array(index, mask=index < 0))


def _output_columns(
    calls: _CallBatch, names: tuple[str, ...], masks: dict[str, Bools] | None = None
) -> dict[str, pa.Array]:
    """Return the named columns over both directions; a mask in ``masks`` limits a column to its rows."""
    out = {}
    for name in names:
        read = _merge_directions(calls, name)
        if read is None:
            out[name] = pa.nulls(calls.rows, to_arrow.COLUMN_TYPES[name])
            continue
        column, valid = read
        out[name] = to_arrow.value_array(name, column, valid & masks[name] if masks and name in masks else valid)
    return out


def _common_columns(calls: _CallBatch, hresults: pa.Array) -> dict[str, pa.Array]:
    """Return the columns that all tables of calls have: method, result name, errors, decoder version."""
    return {
        "method": _method_names(calls),
        "hresult_name": code_name_column(hresults, codes.RESULT_NAMES),
        "errors": to_arrow.error_lists([(f"{side}.", values) for side, values in calls.values.items()], calls.rows),
        "decoder_version": pa.array([DECODER_VERSION] * calls.rows, pa.string()),
    }


def decode_remote_read_calls(batch: pa.RecordBatch, *, packets: bool = False) -> dict[str, pa.Array]:
    """Decode both stubs of qm2qm and RemoteRead calls, one row per call, by column of ``silver.remote_read_calls``.

    ``batch`` has the columns ``interface_name``, ``opnum``, ``transfer_syntax``, ``byte_order``, ``outcome``,
    ``sealed``, ``opened_by``, ``request_stub`` and ``response_stub`` of ``bronze.rpc_calls``, and optionally
    ``response_byte_order``. Sealed and missing stubs give nulls and no error; the stub of a ``damaged`` call may end
    early without an error.
    """
    calls = _CallBatch(batch, method_registry.REMOTE_READ_METHODS)
    nothing = np.zeros(calls.rows, np.bool_)
    response = calls.values["response"]
    hresult, answered = _merge_directions(calls, "hresult") or (np.zeros(calls.rows, np.uint32), nothing)
    # Arrival time and sections have a meaning only on success (doubt D25). A missing HRESULT is not a failure.
    failures = [each for each in np.unique(hresult).tolist() if not call_succeeded(REMOTE_READ_NAME, each)]
    came = response.valid.get("packet_bytes", nothing) & ~(answered & np.isin(hresult, failures))
    arrived = _merge_directions(calls, "arrive_time")
    timed = came & (arrived[0] != 0) if arrived else came
    out = _output_columns(calls, _REMOTE_READ_COLUMNS, {"arrive_time": timed, "packet_bytes": came})
    out.update(to_arrow.section_columns(response, came))
    out["packet"] = (
        to_arrow.packet_column(response, calls.stubs["response"].data, came)
        if packets
        else pa.nulls(calls.rows, pa.binary())
    )
    seconds = out.pop("arrive_time").cast(pa.timestamp("s"))
    out["arrived_at"] = seconds.cast(pa.timestamp("us")).cast(TIMESTAMP)
    out["action_name"] = code_name_column(out["action"], codes.ACTION_NAMES)
    out["ack_name"] = code_name_column(out["ack"], codes.ACK_NAMES)
    return out | _common_columns(calls, out["hresult"])


def decode_management_calls(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Decode both stubs of qmmgmt calls, by column of ``silver.management_calls``.

    ``batch`` as in ``decode_remote_read_calls``. Additional column: ``values``, the PROPVARIANTs that R_QMMgmtGetInfo
    returned (``to_arrow.VARIANTS_TYPE``), in the order of ``property_ids``. ``queue_manager`` is the server's address.
    """
    calls = _CallBatch(batch, method_registry.MANAGEMENT_METHODS)
    everywhere = np.ones(calls.rows, np.bool_)
    out = _output_columns(calls, _MANAGEMENT_COLUMNS)
    out["queue_manager"] = batch.column("server_address")
    out["property_ids"] = decoded_column(calls.values["request"], "property_ids", everywhere)
    out["action"] = decoded_column(calls.values["request"], "action_text", everywhere)
    out["values"] = decoded_column(calls.values["response"], "values", everywhere)
    return out | _common_columns(calls, out["hresult"])


def decode_client_calls(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Decode both stubs of qmcomm and qmcomm2 calls, by column of ``silver.client_calls``.

    ``batch`` as in ``decode_remote_read_calls``. ``queue`` is the queue of the request; for R_QMGetRemoteQueueName,
    whose request has a number only, the queue named in the response. ``request_bytes`` and ``response_bytes`` are the
    sizes of the captured stubs.
    """
    calls = _CallBatch(batch, method_registry.CLIENT_METHODS)
    out = _output_columns(calls, _CLIENT_COLUMNS)
    by_number = pa.array(calls.of_interface["qmcomm"] & (calls.opnum == 1))
    out["queue"] = pc.if_else(by_number, normalize_queue_names(out["remote_queue_name"]), out["queue"])
    for side in calls.stubs:
        out[f"{side}_bytes"] = pc.binary_length(batch.column(f"{side}_stub")).cast(pa.int64())
    return out | _common_columns(calls, out["hresult"])


def _management_columns(batch: pa.RecordBatch) -> ColumnArrays:
    columns = decode_management_calls(batch)
    columns["management_action"] = columns.pop("action")
    return columns


_DECODERS: Final[tuple[tuple[method_registry.MethodsByInterface, Callable[[pa.RecordBatch], ColumnArrays]], ...]] = (
    (method_registry.REMOTE_READ_METHODS, partial(decode_remote_read_calls, packets=True)),
    (method_registry.CLIENT_METHODS, decode_client_calls),
    (method_registry.MANAGEMENT_METHODS, _management_columns),
)


def decode_mixed_stubs(
    stubs: pa.Array,
    interface_names: pa.Array,
    opnums: pa.Array,
    directions: pa.Array,
    transfer_syntaxes: pa.Array,
    byte_orders: pa.Array,
) -> pa.RecordBatch:
    """Decode stubs: one row per stub, with the columns of ``PARAMETERS_SCHEMA``; null where its method has none.

    The arrays are as in ``bronze.rpc_calls``: ``interface_names`` ``qm2qm``, ``RemoteRead``, ``qmmgmt``, ``qmcomm`` or
    ``qmcomm2``; ``opnums`` whole numbers; ``transfer_syntaxes`` ``NDR``, ``NDR64``, or null if it is not known;
    ``byte_orders`` ``little`` or ``big``. ``directions``: ``request`` or ``response``.

    A stub of which these say nothing or something else has the error ``unsupported`` with the column's name. A null
    stub gives nulls and no error.
    """
    rows = pa.record_batch(
        {
            "stub": stubs.cast(pa.binary()),
            "interface_name": interface_names,
            "opnum": opnums.cast(pa.int32()),
            "direction": directions,
            "transfer_syntax": transfer_syntaxes,
            "byte_order": byte_orders,
        }
    )
    unclear = _unclear_columns(rows)
    parts, places = [], []
    others: pa.Array = pa.array([True] * rows.num_rows, pa.bool_())
    for methods, decode in _DECODERS:
        ours = pc.and_(_is_one_of(rows["interface_name"], methods), unclear.is_null())
        others = pc.and_not(others, ours)
        chosen = pc.indices_nonzero(ours)
        parts.append(_parameters(decode(_as_calls(rows.take(chosen))), len(chosen)))
        places.append(chosen)
    chosen = pc.indices_nonzero(others)
    errors = [
        [{"code": UNSUPPORTED, "field": name, "offset": 0}] if name else [] for name in unclear.take(chosen).to_pylist()
    ]
    parts.append(_parameters({"errors": pa.array(errors, ERRORS)}, len(chosen)))
    order = pa.concat_arrays([*places, chosen])
    return pa.concat_batches(parts).take(pc.array_sort_indices(order))


def _unclear_columns(rows: pa.RecordBatch) -> pa.Array:
    """Return the first column of each row that does not say how to read its stub; null if none, or without a stub."""
    clear = {
        "interface_name": _is_one_of(rows["interface_name"], method_registry.ALL_METHODS),
        "opnum": rows["opnum"].is_valid(),
        "direction": _is_one_of(rows["direction"], _DIRECTIONS),
        "byte_order": _is_one_of(rows["byte_order"], ("little", "big")),
    }
    found = pa.nulls(rows.num_rows, pa.string())
    for name, is_clear in reversed(clear.items()):
        found = pc.if_else(is_clear, found, name)
    return pc.if_else(rows["stub"].is_valid(), found, pa.scalar(None, pa.string()))


def _is_one_of(texts: pa.Array, values: Iterable[str]) -> pa.Array:
    return pc.is_in(texts, pa.array(list(values), pa.string()))


def _as_calls(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the stubs as calls (``decode_remote_read_calls``) of which nothing else was seen."""
    count, nothing = rows.num_rows, pa.scalar(None, pa.binary())
    stubs = {
        f"{direction}_stub": pc.if_else(pc.equal(rows["direction"], direction), rows["stub"], nothing)
        for direction in _DIRECTIONS
    }
    return pa.record_batch(
        {
            **{name: rows[name] for name in ("interface_name", "opnum", "transfer_syntax", "byte_order")},
            **stubs,
            "outcome": pa.nulls(count, pa.string()),
            "sealed": pa.nulls(count, pa.bool_()),
            "opened_by": pa.nulls(count, pa.string()),
            "server_address": pa.nulls(count, pa.string()),
        }
    )


def _parameters(columns: ColumnArrays, count: int) -> pa.RecordBatch:
    """Return ``count`` rows of ``PARAMETERS_SCHEMA``; null in columns that are not given."""
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in PARAMETERS_SCHEMA
    ]
    return pa.record_batch(arrays, schema=PARAMETERS_SCHEMA)
