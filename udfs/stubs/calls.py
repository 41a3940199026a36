"""Whole calls to silver's columns: both stubs of every call of a batch, the calls of one method and syntax at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs import codes
from udfs.dcerpc.interfaces import BY_NAME, NDR, NDR64
from udfs.queues.normal_form import normal_form
from udfs.stubs import arrays, methods
from udfs.stubs.column import CODES, Bools, Column, Ints, Values
from udfs.stubs.decode import Stubs, column_of, read_rows
from udfs.stubs.method import Method

DECODER_VERSION: Final = "2"  # 2: an empty name is no queue

METHODS: Final = methods.REMOTE_READS  # the interfaces of silver.remote_read_calls
MANAGEMENT: Final = methods.MANAGEMENT  # of silver.management_calls
CLIENT: Final = methods.CLIENT  # of silver.client_calls

_RESPONSE_FIRST: Final = frozenset({"sequence_id", "hresult", "arrive_time", "packet_bytes", "remote_queue_name"})
_REMOTE_READ_COLUMNS: Final = (
    "queue_format_type", "queue_format_name", "queue", "access", "share_mode", "client_id", "non_routing_server",
    "workgroup", "version_major", "version_minor", "build_number", "returned_port", "port_type", "context_handle",
    "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "action",
    "timeout_ms", "request_id", "lookup_id", "sequence_id", "max_body_bytes", "max_compound_message_bytes",
    "transaction_id", "propagation_token_bytes", "acknowledgement_class", "ack", "move_context", "arrive_time",
    "packet_bytes", "hresult",
)  # fmt: skip
_CLIENT_COLUMNS: Final = (
    "queue_format_name", "queue", "access", "share_mode", "queue_handle", "queue_descriptor", "open_context",
    "context_handle", "cursor_handle", "client_id", "returned_port", "remote_queue_name", "client_name",
    "queue_manager_context", "remote_cursor_handle", "port_type", "mqs", "action", "timeout_ms", "hresult",
)  # fmt: skip
_MANAGEMENT_COLUMNS: Final = ("object_type", "queue_format_name", "queue", "hresult")


def _is(column: pa.Array, value: str) -> Bools:
    """Tell the rows that have a value; null is none."""
    same = pc.fill_null(pc.equal(column, value), False)  # noqa: FBT003
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


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
    return _is(order, "big")


class _Calls:
    """The calls of one batch while they are decoded: what is read of requests, and of responses."""

    def __init__(self, batch: pa.RecordBatch, methods_of: methods.Methods) -> None:
        self.rows = batch.num_rows
        self.methods_of = methods_of
        order = {side: _byte_order(batch, side) for side in ("request", "response")}
        self.stubs = {side: Stubs(batch.column(f"{side}_stub"), big) for side, big in order.items()}
        self.values = {side: Values(self.rows) for side in self.stubs}
        self.readable = _readable(batch)
        self.of = {interface: _is(batch.column("interface_name"), interface) for interface in methods_of}
        self.opnum = pc.fill_null(batch.column("opnum"), -1).to_numpy(zero_copy_only=False)

        self._read(batch.column("transfer_syntax"))
        # That a damaged call's stub ends early is known already.
        damaged = _is(batch.column("outcome"), "damaged")
        for values in self.values.values():
            values.code[damaged & (values.code == CODES.index("truncated"))] = 0

    def _read(self, syntax: pa.Array) -> None:
        """Decode every call, the calls of one method and syntax at once."""
        ndr, ndr64 = _is(syntax, NDR), _is(syntax, NDR64)
        unknown = np.asarray(syntax.is_null().to_numpy(zero_copy_only=False), np.bool_)
        for interface, by_opnum in self.methods_of.items():
            ours = self.readable & self.of[interface] & (self.opnum >= 0)
            for opnum in np.unique(self.opnum[ours]).tolist():
                these = ours & (self.opnum == opnum)
                method = by_opnum.get(opnum)
                if method is None:
                    self._unsupported(these, "opnum")
                    continue
                self._read_method(method, np.flatnonzero(these & ndr), self.values, ndr64=False)
                self._read_method(method, np.flatnonzero(these & ndr64), self.values, ndr64=True)
                self._read_either(method, np.flatnonzero(these & unknown))
                self._unsupported(these & ~ndr & ~ndr64 & ~unknown, "transfer_syntax")

    def _read_method(self, method: Method, rows: Ints, out: dict[str, Values], *, ndr64: bool) -> None:
        for side, stubs in self.stubs.items():
            read_rows(method, side, stubs, rows, out[side], ndr64=ndr64)

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
    index, names = np.full(calls.rows, -1, np.int32), list[str]()
    for interface, ours in calls.of.items():
        by_opnum = BY_NAME[interface].methods
        named = ours & (calls.opnum >= 0) & (calls.opnum < len(by_opnum))
        index[named] = calls.opnum[named] + len(names)
        names += by_opnum
    return pa.array(names, pa.string()).take(pa.array(index, mask=index < 0))


def _columns(calls: _Calls, names: tuple[str, ...], masks: dict[str, Bools] | None = None) -> dict[str, pa.Array]:
    """Return columns of both directions, by name; ``masks`` tells where one may stand at all."""
    out = {}
    for name in names:
        read = _merged(calls, name)
        if read is None:
            out[name] = pa.nulls(calls.rows, arrays.COLUMN_TYPES[name])
            continue
        column, valid = read
        out[name] = arrays.column(name, column, valid & masks[name] if masks and name in masks else valid)
    return out


def _closing(calls: _Calls, hresults: pa.Array) -> dict[str, pa.Array]:
    """Return what every table of calls has: names of method and result, errors, the decoders' version."""
    return {
        "method": _method_names(calls),
        "hresult_name": _names(hresults, codes.HRESULT),
        "errors": arrays.errors([(f"{side}.", values) for side, values in calls.values.items()], calls.rows),
        "decoder_version": pa.array([DECODER_VERSION] * calls.rows, pa.string()),
    }


def decode_calls(batch: pa.RecordBatch, *, packets: bool = False) -> dict[str, pa.Array]:
    """Decode both stubs of qm2qm and RemoteRead calls: one row out per row in, by column of the silver table.

    ``batch`` has bronze.rpc_calls' ``interface_name``, ``opnum``, ``transfer_syntax``, ``byte_order``, ``outcome``,
    ``sealed``, ``opened_by``, ``request_stub`` and ``response_stub``; ``response_byte_order``, where there is one,
    tells an answer in another order than its request. Sealed stubs and what was not seen give nulls and no error; nor
    does a stub that ends early because the call is ``damaged``: that is known already.
    """
    calls = _Calls(batch, METHODS)
    nothing = np.zeros(calls.rows, np.bool_)
    response = calls.values["response"]
    hresult, answered = _merged(calls, "hresult") or (np.zeros(calls.rows, np.uint32), nothing)
    # Arrival time and sections have a meaning only on success (doubt D25); unseen is not refused.
    came = response.valid.get("packet_bytes", nothing) & ~(answered & (hresult != codes.MQ_OK))
    arrived = _merged(calls, "arrive_time")
    timed = came & (arrived[0] != 0) if arrived else came
    out = _columns(calls, _REMOTE_READ_COLUMNS, {"arrive_time": timed, "packet_bytes": came})
    out.update(arrays.sections(response, came))
    out["packet"] = (
        arrays.packets(response, calls.stubs["response"].data, came) if packets else pa.nulls(calls.rows, pa.binary())
    )
    seconds = out.pop("arrive_time").cast(pa.timestamp("s"))
    out["arrived_at"] = seconds.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    out["action_name"] = _names(out["action"], codes.ACTION)
    out["ack_name"] = _names(out["ack"], codes.ACK)
    return out | _closing(calls, out["hresult"])


def decode_management_calls(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Decode both stubs of qmmgmt calls, by column of ``silver.management_calls``; ``batch`` as in ``decode_calls``.

    Beside the table's columns: ``values``, the variants that R_QMMgmtGetInfo answered (arrays.VARIANTS_TYPE), in the
    order of ``property_ids``; ``queue_manager`` is the server's address.
    """
    calls = _Calls(batch, MANAGEMENT)
    everywhere = np.ones(calls.rows, np.bool_)
    out = _columns(calls, _MANAGEMENT_COLUMNS)
    out["queue_manager"] = batch.column("server_address")
    out["property_ids"] = column_of(calls.values["request"], "property_ids", everywhere)
    out["action"] = column_of(calls.values["request"], "action_text", everywhere)
    out["values"] = column_of(calls.values["response"], "values", everywhere)
    return out | _closing(calls, out["hresult"])


def decode_client_calls(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Decode both stubs of qmcomm and qmcomm2 calls, by column of ``silver.client_calls``.

    ``batch`` as in ``decode_calls``. ``queue`` is the queue asked for; that of R_QMGetRemoteQueueName, which asks by
    number, is the one its answer names. ``request_bytes`` and ``response_bytes`` are the sizes of the stubs seen.
    """
    calls = _Calls(batch, CLIENT)
    out = _columns(calls, _CLIENT_COLUMNS)
    by_number = pa.array(calls.of["qmcomm"] & (calls.opnum == 1))
    out["queue"] = pc.if_else(by_number, normal_form(out["remote_queue_name"]), out["queue"])
    for side in calls.stubs:
        out[f"{side}_bytes"] = pc.binary_length(batch.column(f"{side}_stub")).cast(pa.int64())
    return out | _closing(calls, out["hresult"])
