"""A column of message bodies to the method calls that COM+ queued components recorded in them.

``is_comqc`` tells by its extension whether a message is one; ``decode_comqc`` gives one row per body, its calls a list;
``explode`` makes those lists the rows of silver.comqc_calls.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.comqc import layout
from udfs.comqc.containers import Bodies, Methods, Verdict, read_methods
from udfs.comqc.dispatch import ARGUMENT, Arguments, read_arguments
from udfs.comqc.values import bstr_texts, gather
from udfs.errors import MALFORMED, TRUNCATED
from udfs.stubs.arrays import ERRORS_TYPE
from udfs.stubs.column import CODES, Bools, Column, Ints, buffer_of
from udfs.stubs.text import guid_text

DECODER_VERSION: Final = "2"  # 2: an empty array of numbers behind a null pointer

CALL: Final = pa.struct(
    [
        pa.field("call_index", pa.int32()),
        pa.field("header_offset", pa.int64()),
        pa.field("header", pa.string()),
        pa.field("target_clsid", pa.string()),
        pa.field("target_text", pa.string()),
        pa.field("partition_id", pa.string()),
        pa.field("interface_id", pa.string()),
        pa.field("is_dispatch", pa.bool_()),
        pa.field("opnum", pa.int32()),
        pa.field("data_representation", pa.int64()),
        pa.field("flags", pa.int64()),
        pa.field("marshaled_bytes", pa.int64()),
        pa.field("marshaled", pa.binary()),
        pa.field("security_offset", pa.int64()),
        pa.field("security_index", pa.int32()),
        pa.field("dispatch_id", pa.int64()),
        pa.field("dispatch_flags", pa.int64()),
        pa.field("named_dispatch_ids", pa.list_(pa.int64())),
        pa.field("arguments", pa.list_(ARGUMENT)),
        pa.field("errors", ERRORS_TYPE),
    ]
)
SCHEMA: Final = pa.schema(
    [
        pa.field("comqc_rejected", pa.string()),
        pa.field("rejected_offset", pa.int64()),
        pa.field("errors", ERRORS_TYPE),
        pa.field("calls", pa.list_(CALL)),
    ]
)
_PAD: Final = 256  # bytes: more than any single read, so that offset 0 can always be gathered from


def is_comqc(extensions: pa.Array) -> pa.Array:
    """Tell whether a message's extension (PROPID_M_EXTENSION) is the marker of COMQC and nothing else, 2.1 and 3.1.5.

    False for a message without an extension. The type of the body plays no part.
    """
    return pc.fill_null(pc.equal(extensions, pa.scalar(layout.MARKER, extensions.type)), fill_value=False)


def decode_comqc(
    bodies: pa.Array, extensions: pa.Array | None = None, body_bytes: pa.Array | None = None, *, marshaled: bool = False
) -> pa.RecordBatch:
    """Decode message bodies, one row out per row in: ``SCHEMA``.

    ``bodies`` are binary or large_binary; a null is no message and gives nulls. With ``extensions`` only those that
    carry the marker are looked at, all others give nulls. ``body_bytes`` (int64) are the declared sizes of the whole
    bodies: one of which less was seen is not rejected for what is missing, its whole calls are given, and ``errors``
    has ``truncated`` with the offset at which they end. ``marshaled`` keeps each call's Marshaled Data.

    ``comqc_rejected`` is the rule, with its section, for which a server must reject the message, null when there is
    none; ``rejected_offset`` says where in the body. A rejected message has an empty list of ``calls``. Offsets in a
    body's errors are in the body; in a call's errors in its Marshaled Data.
    """
    rows = len(bodies)
    present = np.asarray(bodies.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if extensions is not None:
        present = present & np.asarray(is_comqc(extensions).to_numpy(zero_copy_only=False), np.bool_)
    data, offsets = buffer_of(bodies)
    if len(data) < _PAD:
        data = np.concatenate([data, np.zeros(_PAD - len(data), np.uint8)])
    which = np.flatnonzero(present)
    start, seen = offsets[which], offsets[which + 1]
    end = seen
    if body_bytes is not None:
        declared = pc.fill_null(body_bytes.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)[which]
        end = start + np.clip(declared, seen - start, 1 << 40)  # of 32 bits on the wire
    methods, verdict = read_methods(Bodies(data, start, seen, end))
    calls = _calls(data, start, methods, marshaled=marshaled)
    counts = np.zeros(rows, np.int64)
    counts[which] = np.bincount(methods.body, minlength=len(which))
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    reason = np.zeros(rows, np.int64)
    reason[which] = verdict.reason
    rejected_at = np.zeros(rows, np.int64)
    rejected_at[which] = verdict.offset
    return pa.RecordBatch.from_arrays(
        [
            pa.array(layout.REASONS, pa.string()).take(pa.array(reason)),
            pa.array(rejected_at, mask=reason == 0),
            _body_errors(verdict, which, rows),
            pa.ListArray.from_arrays(pa.array(bounds), calls, mask=None if present.all() else pa.array(~present)),
        ],
        schema=SCHEMA,
    )


def explode(decoded: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
    """Return the calls of all bodies, one row each, and for each the number of its body's row. Nothing is copied."""
    calls = decoded.column("calls")
    flat = pa.RecordBatch.from_arrays(calls.flatten().flatten(), schema=pa.schema(list(CALL)))
    return pc.list_parent_indices(calls), flat


def _calls(data: Column, start: Ints, methods: Methods, *, marshaled: bool) -> pa.Array:
    count = len(methods.body)
    dispatch = (methods.interface == np.frombuffer(layout.IID_IDISPATCH, np.uint8)).all(axis=1)
    # Any other operation of IDispatch makes no sense one way and stays bytes (D36).
    which = np.flatnonzero(dispatch & (methods.opnum == layout.INVOKE_OPNUM))
    read = read_arguments(data, methods.marshaled_at[which], methods.marshaled_bytes[which])
    back = np.full(count, -1, np.int64)
    back[which] = np.arange(len(which))
    take = pa.array(back, mask=back < 0)
    base = start[methods.body]
    fits = methods.opnum < 1 << 31  # a number beyond is no operation of any interface
    targets, target = methods.targets, pa.array(methods.target)
    columns = {
        "call_index": pa.array(methods.order.astype(np.int32)),
        "header_offset": pa.array(methods.at - base),
        "header": pa.array(["METH", "SMTH"]).take(pa.array(methods.short.astype(np.int8))),
        "target_clsid": guid_text(targets.clsid).take(target),
        "target_text": bstr_texts(data, targets.text_at, targets.text_bytes).take(target),
        "partition_id": guid_text(targets.partition, targets.has_partition).take(target),
        "interface_id": guid_text(methods.interface),
        "is_dispatch": pa.array(dispatch),
        "opnum": pa.array(np.where(fits, methods.opnum, 0).astype(np.int32), mask=~fits),
        "data_representation": pa.array(methods.data_representation),
        "flags": pa.array(methods.flags),
        "marshaled_bytes": pa.array(methods.marshaled_bytes),
        "marshaled": _marshaled(data, methods) if marshaled else pa.nulls(count, pa.binary()),
        "security_offset": pa.array(methods.security_at - base),
        "security_index": pa.array(methods.security_index.astype(np.int32)),
        "dispatch_id": read.dispatch_id.take(take),
        "dispatch_flags": read.flags.take(take),
        "named_dispatch_ids": read.named.take(take),
        "arguments": read.arguments.take(take),
        "errors": _call_errors(read, which, fits),
    }
    return pa.StructArray.from_arrays([columns[field.name] for field in CALL], fields=list(CALL))


def _marshaled(data: Column, methods: Methods) -> pa.Array:
    octets, places = gather(data, methods.marshaled_at, methods.marshaled_bytes)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.large_binary(), len(methods.body), buffers).cast(pa.binary())


def _errors(rows: Ints, code: list[str | None], field: list[str], offset: Ints, count: int) -> pa.Array:
    """Return at most one error for each of ``count`` rows; ``rows`` in order."""
    flat = pa.StructArray.from_arrays(
        [pa.array(code, pa.string()), pa.array(field, pa.string()), pa.array(offset, pa.int64())],
        fields=list(ERRORS_TYPE.value_type),
    )
    bounds = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), flat).cast(ERRORS_TYPE)


def _body_errors(verdict: Verdict, which: Ints, rows: int) -> pa.Array:
    cut = np.flatnonzero(verdict.cut_at >= 0)
    return _errors(which[cut], [TRUNCATED] * len(cut), ["body"] * len(cut), verdict.cut_at[cut], rows)


def _call_errors(read: Arguments, which: Ints, fits: Bools) -> pa.Array:
    wrong = np.flatnonzero(read.out.code)
    rows = which[wrong]
    code = [CODES[number] for number in read.out.code[wrong].tolist()]
    field = read.out.field[wrong].tolist()
    offset = read.out.offset[wrong]
    strange = np.flatnonzero(~fits)  # never a dispatch call that was read
    order = np.argsort(np.concatenate([rows, strange]), kind="stable")
    all_codes, all_fields = code + [MALFORMED] * len(strange), field + ["Method Number"] * len(strange)
    return _errors(
        np.concatenate([rows, strange])[order],
        [all_codes[place] for place in order.tolist()],
        [all_fields[place] for place in order.tolist()],
        np.concatenate([offset, np.zeros(len(strange), np.int64)])[order],
        len(fits),
    )
