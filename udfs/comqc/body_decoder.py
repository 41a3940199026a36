"""Decode an Arrow column of message bodies into the method calls that COM+ queued components recorded in them.

``is_comqc_extension`` recognises such messages, ``decode_bodies`` returns one row per body with a list of calls, and
``explode_calls`` turns these lists into rows of ``silver.comqc_calls``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.table import ERRORS
from udfs.array_types import Bools, Ints
from udfs.columns.arrays import from_groups
from udfs.columns.groups import group_bounds
from udfs.comqc import container_layout
from udfs.comqc.container_reader import BodyColumn, BodyVerdicts, Deviations, RecordedCalls, read_recorded_calls
from udfs.comqc.declared_arguments import apply_declarations
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, Declarations
from udfs.comqc.dispatch_arguments import DispatchArguments, read_dispatch_arguments
from udfs.comqc.security_data import SECURITY_STRUCT, security_columns
from udfs.comqc.variant_text import bstr_texts, gather_spans
from udfs.errors import MALFORMED, TRUNCATED
from udfs.stubs.arrow_primitives import concat_lists, guid_strings
from udfs.stubs.column_cursors import ERROR_CODES, AnyArray, binary_buffer

DECODER_VERSION: Final = "6"  # 6: fields of records; 5: declarations; 4: deviations; 3: callers

CALL_STRUCT: Final = pa.struct(COMQC_CALLS.schema(only=(
    "call_index", "header_offset", "header", "target_clsid", "target_text", "partition_id", "interface_id",
    "interface_name", "is_dispatch", "opnum", "method", "data_representation", "flags", "marshaled_bytes",
    "marshaled", "security_offset", "security_index", "security_bytes", "security_data", "caller_sid", "caller_name",
    "callers", "minimum_authentication_level", "dispatch_id", "dispatch_flags", "named_dispatch_ids",
    "argument_names", "arguments", "errors",
)))  # fmt: skip
DEVIATIONS_TYPE: Final = MESSAGES.column("comqc_deviations").type
BODY_SCHEMA: Final = pa.schema(
    [
        pa.field("comqc_rejected", pa.string()),
        pa.field("rejected_offset", pa.int64()),
        pa.field("comqc_deviations", DEVIATIONS_TYPE),
        pa.field("errors", ERRORS),
        pa.field("calls", pa.list_(CALL_STRUCT)),
    ]
)
_MIN_BUFFER_BYTES: Final = 256  # more than any single read: masked rows read at offset 0


def is_comqc_extension(extensions: pa.Array) -> pa.Array:
    """Return whether each message extension (PROPID_M_EXTENSION) is exactly the marker of COMQC, 2.1 and 3.1.5.

    False for a null extension. The body type does not matter.
    """
    return pc.fill_null(
        pc.equal(extensions, pa.scalar(container_layout.COMQC_EXTENSION, extensions.type)), fill_value=False
    )


def decode_bodies(
    bodies: pa.Array, extensions: pa.Array | None = None, body_bytes: pa.Array | None = None, *,
    marshaled: bool = False, declarations: Declarations = NO_DECLARATIONS,
) -> pa.RecordBatch:  # fmt: skip
    """Decode a column of message bodies: one row of ``BODY_SCHEMA`` per body.

    ``bodies`` is binary or large_binary; a null body gives nulls. With ``extensions`` only the bodies of messages with
    the COMQC marker are decoded, all others give nulls. ``body_bytes`` (int64) are the declared body sizes: a body that
    was captured in part is not rejected for its missing bytes; its complete calls are returned, and ``errors`` has
    ``truncated`` at the offset where they end. ``marshaled`` adds each call's Marshaled Data.
    ``declarations`` are the methods whose names and parameters are known.

    ``comqc_rejected`` is the rule, with its section, by which a server must reject the message, else null;
    ``rejected_offset`` is the offset of the violation in the body. A rejected message has no ``calls``.
    ``comqc_deviations`` are the recommendations (SHOULD) that another message does not follow in what was captured of
    it: the rule with its section, the offset of the first place in the body, and the number of places. Offsets of body
    errors count from the start of the body, those of call errors from the start of the Marshaled Data or, of fields
    that begin with ``Security Data``, of that.
    """
    rows = len(bodies)
    present = np.asarray(bodies.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if extensions is not None:
        present = present & np.asarray(is_comqc_extension(extensions).to_numpy(zero_copy_only=False), np.bool_)
    data, offsets = binary_buffer(bodies)
    if len(data) < _MIN_BUFFER_BYTES:
        data = np.concatenate([data, np.zeros(_MIN_BUFFER_BYTES - len(data), np.uint8)])
    which = np.flatnonzero(present)
    start, seen = offsets[which], offsets[which + 1]
    end = seen
    if body_bytes is not None:
        declared = pc.fill_null(body_bytes.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)[which]
        end = start + np.clip(declared, seen - start, 1 << 40)  # 32 bits on the wire: no overflow
    methods, verdict, deviations = read_recorded_calls(BodyColumn(data, start, seen, end))
    calls = _call_structs(data, start, methods, declarations, marshaled=marshaled)
    counts = np.zeros(rows, np.int64)
    counts[which] = np.bincount(methods.body, minlength=len(which))
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    reason = np.zeros(rows, np.int64)
    reason[which] = verdict.reason
    rejected_at = np.zeros(rows, np.int64)
    rejected_at[which] = verdict.offset
    return pa.RecordBatch.from_arrays(
        [
            pa.array(container_layout.REJECTION_TEXTS, pa.string()).take(pa.array(reason)),
            pa.array(rejected_at, mask=reason == 0),
            _deviation_lists(deviations, which, ~present | (reason != 0)),
            _body_errors(verdict, which, rows),
            pa.ListArray.from_arrays(pa.array(bounds), calls, mask=None if present.all() else pa.array(~present)),
        ],
        schema=BODY_SCHEMA,
    )


def explode_calls(decoded: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
    """Return for each call the index of its body, and the calls of all bodies as rows. No copy is made."""
    calls = decoded.column("calls")
    flat = pa.RecordBatch.from_arrays(calls.flatten().flatten(), schema=pa.schema(list(CALL_STRUCT)))
    return pc.list_parent_indices(calls), flat


def _call_structs(
    data: AnyArray, start: Ints, methods: RecordedCalls, declarations: Declarations, *, marshaled: bool
) -> pa.Array:
    count = len(methods.body)
    dispatch = (methods.interface == np.frombuffer(container_layout.IID_IDISPATCH, np.uint8)).all(axis=1)
    # Any other operation of IDispatch makes no sense in a one-way call and stays undecoded (D36).
    which = np.flatnonzero(dispatch & (methods.opnum == container_layout.IDISPATCH_INVOKE_OPNUM))
    read = read_dispatch_arguments(data, methods.marshaled_at[which], methods.marshaled_bytes[which])
    back = np.full(count, -1, np.int64)
    back[which] = np.arange(len(which))
    take = pa.array(back, mask=back < 0)
    base = start[methods.body]
    fits = methods.opnum < 1 << 31  # a larger number is no operation of any interface
    targets, target = methods.targets, pa.array(methods.target_index)
    security = _security_columns(data, methods)
    columns = {
        "call_index": pa.array(methods.call_index.astype(np.int32)),
        "header_offset": pa.array(methods.header_at - base),
        "header": pa.array(["METH", "SMTH"]).take(pa.array(methods.has_short_header.astype(np.int8))),
        "target_clsid": guid_strings(targets.clsid).take(target),
        "target_text": bstr_texts(data, targets.text_at, targets.text_bytes).take(target),
        "partition_id": guid_strings(targets.partition, targets.has_partition).take(target),
        "interface_id": guid_strings(methods.interface),
        "is_dispatch": pa.array(dispatch),
        "opnum": pa.array(np.where(fits, methods.opnum, 0).astype(np.int32), mask=~fits),
        "data_representation": pa.array(methods.data_representation),
        "flags": pa.array(methods.flags),
        "marshaled_bytes": pa.array(methods.marshaled_bytes),
        "marshaled": _marshaled_column(data, methods) if marshaled else pa.nulls(count, pa.binary()),
        "security_offset": pa.array(methods.security_at - base),
        "security_index": pa.array(methods.security_index.astype(np.int32)),
        **security,
        "security_data": security["security_data"] if marshaled else pa.nulls(count, pa.binary()),
        "dispatch_id": read.dispatch_id.take(take),
        "dispatch_flags": read.flags.take(take),
        "named_dispatch_ids": read.named_dispatch_ids.take(take),
        "arguments": read.arguments.take(take),
        "errors": _call_errors(read, which, fits),
    }
    named = apply_declarations(declarations, data, methods.marshaled_at, methods.marshaled_bytes, columns)
    columns |= named._asdict() | {"errors": concat_lists(named.errors, security["errors"])}
    return pa.StructArray.from_arrays([columns[field.name] for field in CALL_STRUCT], fields=list(CALL_STRUCT))


def _marshaled_column(data: AnyArray, methods: RecordedCalls) -> pa.Array:
    return _binary_column(data, methods.marshaled_at, methods.marshaled_bytes)


def _binary_column(data: AnyArray, at: Ints, size: Ints) -> pa.Array:
    octets, places = gather_spans(data, at, size)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.large_binary(), len(at), buffers).cast(pa.binary())


def _security_columns(data: AnyArray, methods: RecordedCalls) -> dict[str, pa.Array]:
    """Return what the security header of each call says; one header may apply to many calls."""
    headers, first, header = np.unique(methods.security_at, return_index=True, return_inverse=True)
    size = methods.security_bytes[first]
    raw = _binary_column(data, headers + container_layout.MIN_HEADER_BYTES[container_layout.SECD], size)
    read = security_columns(raw)
    columns = {"security_bytes": pa.array(size), "security_data": raw}
    columns |= {field.name: read.field(field.name) for field in SECURITY_STRUCT}
    return {name: array.take(pa.array(header)) for name, array in columns.items()}


def _single_errors(rows: Ints, code: list[str | None], field: list[str], offset: Ints, count: int) -> pa.Array:
    """Return error lists for ``count`` rows with at most one error each; ``rows`` are ascending."""
    flat = pa.StructArray.from_arrays(
        [pa.array(code, pa.string()), pa.array(field, pa.string()), pa.array(offset, pa.int64())],
        fields=list(ERRORS.value_type),
    )
    return from_groups(group_bounds(rows, count), flat).cast(ERRORS)


def _deviation_lists(found: Deviations, which: Ints, absent: Bools) -> pa.Array:
    """Return the deviations of all bodies; ``which`` are the rows of bodies that were read. Null where ``absent``."""
    flat = pa.StructArray.from_arrays(
        [
            pa.array(container_layout.DEVIATION_TEXTS, pa.string()).take(pa.array(found.number)),
            pa.array(found.offset),
            pa.array(found.places.astype(np.int32)),
        ],
        fields=list(DEVIATIONS_TYPE.value_type),
    )
    counts = np.bincount(which[found.body], minlength=len(absent))
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), flat, mask=pa.array(absent)).cast(DEVIATIONS_TYPE)


def _body_errors(verdict: BodyVerdicts, which: Ints, rows: int) -> pa.Array:
    cut = np.flatnonzero(verdict.truncated_at >= 0)
    return _single_errors(which[cut], [TRUNCATED] * len(cut), ["body"] * len(cut), verdict.truncated_at[cut], rows)


def _call_errors(read: DispatchArguments, which: Ints, fits: Bools) -> pa.Array:
    wrong = np.flatnonzero(read.decoded_columns.error_code)
    rows = which[wrong]
    code = [ERROR_CODES[number] for number in read.decoded_columns.error_code[wrong].tolist()]
    field = read.decoded_columns.error_field[wrong].tolist()
    offset = read.decoded_columns.error_offset[wrong]
    bad_opnum = np.flatnonzero(~fits)  # never among the dispatch calls of ``which``
    order = np.argsort(np.concatenate([rows, bad_opnum]), kind="stable")
    all_codes, all_fields = code + [MALFORMED] * len(bad_opnum), field + ["Method Number"] * len(bad_opnum)
    return _single_errors(
        np.concatenate([rows, bad_opnum])[order],
        [all_codes[place] for place in order.tolist()],
        [all_fields[place] for place in order.tolist()],
        np.concatenate([offset, np.zeros(len(bad_opnum), np.int64)])[order],
        len(fits),
    )
