"""What joining tells the finished calls of a capture: the connection that they are part of, what their context means.

Arrow in, Arrow out: ``joining.join`` gives labels and meanings, and the calls are rows of ``bronze.rpc_calls`` as one
capture alone made them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# What a call takes of its context's meaning, and what it takes only where it said nothing of it itself.
_TAKEN: Final = ("bind_seen", "interface_uuid", "interface_name", "transfer_syntax")
_LEVEL: Final = ("auth_type", "auth_level")
LEARNT: Final = ("connection_id", *_TAKEN, *_LEVEL, "outcome", "closed_reason")
"""The columns that ``labelled`` may change."""
LOOKED_AT: Final = ("capture_id", "context_id", *LEARNT)
"""The columns that it looks at."""
_OF_BINDS: Final = pa.array(["ok", "unbound"])  # outcomes that only say whether the bind was seen


def labelled(calls: pa.RecordBatch, labels: pa.RecordBatch, meanings: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls with what they learn, without those that turn out to be of another protocol.

    ``labels`` and ``meanings`` are ``Joined.labels`` and ``Joined.meanings`` (``LABELS_SCHEMA``, ``MEANINGS_SCHEMA``),
    of any captures; a call whose connection has no label stays as it is. ``calls`` may have any columns beside those
    that are looked at.
    """
    connection = _name(calls, "capture_id", "connection_id")
    at = pc.index_in(connection, _name(labels, "capture_id", "was_connection_id"))
    if at.null_count == len(at):
        return calls
    context = pc.index_in(
        _name(calls, "capture_id", "connection_id", "context_id"),
        _name(meanings, "capture_id", "was_connection_id", "context_id"),
    )
    label, meaning = labels.take(at), meanings.take(context)
    known, told = at.is_valid(), context.is_valid()
    learnt = {name: pc.if_else(told, meaning[name], calls[name]) for name in _TAKEN}
    silent = pc.and_(told, calls["auth_level"].is_null())
    learnt |= {name: pc.if_else(silent, meaning[name], calls[name]) for name in _LEVEL}
    learnt["connection_id"] = pc.if_else(known, label["connection_id"], calls["connection_id"])
    bound = pc.if_else(_true(meaning["bind_seen"]), "ok", "unbound")
    rests = pc.and_(told, pc.is_in(calls["outcome"], _OF_BINDS))
    learnt["outcome"] = pc.if_else(rests, bound, calls["outcome"])
    reason = calls["closed_reason"]
    began = pc.and_(_true(label["handshake"]), _true(pc.equal(reason, "no_handshake")))
    learnt["closed_reason"] = pc.if_else(began, "no_key", reason)
    stranger = pc.and_(told, pc.invert(_true(meaning["known"])))
    nameless = pc.and_(pc.and_(known, pc.invert(_true(label["ours"]))), meaning["interface_uuid"].is_null())
    columns = [learnt.get(name, calls[name]) for name in calls.schema.names]
    changed = pa.RecordBatch.from_arrays(columns, schema=calls.schema)
    return _where(pc.invert(pc.or_(stranger, nameless)), changed)


def renamed(rows: pa.RecordBatch, labels: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of any table with the connections that theirs are parts of, by ``labels`` as in ``labelled``."""
    at = pc.index_in(_name(rows, "capture_id", "connection_id"), _name(labels, "capture_id", "was_connection_id"))
    name = pc.if_else(at.is_valid(), labels["connection_id"].take(at), rows["connection_id"])
    return rows.set_column(rows.schema.get_field_index("connection_id"), rows.schema.field("connection_id"), name)


def without(calls: pa.RecordBatch, remade: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls but those that joining made anew; ``remade`` has their ``capture_id`` and ``call_key``."""
    names = ("capture_id", "call_key")
    return _where(pc.invert(pc.is_in(_name(calls, *names), _name(remade, *names))), calls)


def _where(stay: pa.Array, calls: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls that stay: most often all do, and then their bytes need not be copied."""
    return calls if pc.all(stay, min_count=0).as_py() else calls.filter(stay)


def _name(rows: pa.RecordBatch, *columns: str) -> pa.Array:
    """Return the values of columns as one text; null where one of them is."""
    return pc.binary_join_element_wise(*(rows[name].cast(pa.string()) for name in columns), "|")


def _true(values: pa.Array) -> pa.Array:
    """Return whether values are true: null is not."""
    return pc.fill_null(values, False)  # noqa: FBT003
