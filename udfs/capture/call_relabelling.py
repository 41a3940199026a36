"""Applies the result of a merge to calls that one capture finished alone: connection key and presentation context.

``connection_merge.merge_connections`` returns labels and context meanings. The calls are rows of ``bronze.rpc_calls``,
as one capture alone made them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# Columns that are set from the context's meaning: always, and only where the call itself has no value.
_CONTEXT_COLUMNS: Final = ("bind_seen", "interface_uuid", "interface_name", "transfer_syntax")
_SECURITY_COLUMNS: Final = ("auth_type", "auth_level")
RELABELLED_COLUMNS: Final = ("connection_id", *_CONTEXT_COLUMNS, *_SECURITY_COLUMNS, "outcome", "closed_reason")
"""The columns that ``relabel_calls`` may change."""
RELABEL_INPUT_COLUMNS: Final = ("capture_id", "context_id", *RELABELLED_COLUMNS)
"""The columns that ``relabel_calls`` reads."""
_BIND_OUTCOMES: Final = pa.array(["ok", "unbound"])  # outcomes that only differ in whether the bind was seen


def relabel_calls(calls: pa.RecordBatch, labels: pa.RecordBatch, meanings: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls with connection key and context columns updated, without those of other protocols.

    ``labels`` and ``meanings`` are ``MergeResult.connection_labels`` and ``MergeResult.context_meanings``, of any
    captures. Calls of connections without a label stay unchanged. ``calls`` must have ``RELABEL_INPUT_COLUMNS`` and may
    have others.
    """
    connection = _join_columns(calls, "capture_id", "connection_id")
    label_index = pc.index_in(connection, _join_columns(labels, "capture_id", "was_connection_id"))
    if label_index.null_count == len(label_index):
        return calls
    context = pc.index_in(
        _join_columns(calls, "capture_id", "connection_id", "context_id"),
        _join_columns(meanings, "capture_id", "was_connection_id", "context_id"),
    )
    label, meaning = labels.take(label_index), meanings.take(context)
    has_label, has_meaning = label_index.is_valid(), context.is_valid()
    updated = {name: pc.if_else(has_meaning, meaning[name], calls[name]) for name in _CONTEXT_COLUMNS}
    without_level = pc.and_(has_meaning, calls["auth_level"].is_null())
    updated |= {name: pc.if_else(without_level, meaning[name], calls[name]) for name in _SECURITY_COLUMNS}
    updated["connection_id"] = pc.if_else(has_label, label["connection_id"], calls["connection_id"])
    bound = pc.if_else(_is_true(meaning["bind_seen"]), "ok", "unbound")
    depends_on_bind = pc.and_(has_meaning, pc.is_in(calls["outcome"], _BIND_OUTCOMES))
    updated["outcome"] = pc.if_else(depends_on_bind, bound, calls["outcome"])
    reason = calls["closed_reason"]
    key_is_missing = pc.and_(_is_true(label["handshake"]), _is_true(pc.equal(reason, "no_handshake")))
    updated["closed_reason"] = pc.if_else(key_is_missing, "no_key", reason)
    is_foreign = pc.and_(has_meaning, pc.invert(_is_true(meaning["known"])))
    is_unknown = pc.and_(pc.and_(has_label, pc.invert(_is_true(label["ours"]))), meaning["interface_uuid"].is_null())
    columns = [updated.get(name, calls[name]) for name in calls.schema.names]
    changed = pa.RecordBatch.from_arrays(columns, schema=calls.schema)
    return _filter_rows(pc.invert(pc.or_(is_foreign, is_unknown)), changed)


def relabel_connection_ids(rows: pa.RecordBatch, labels: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of any table with the connection keys of ``MergeResult.connection_labels``."""
    label_index = pc.index_in(
        _join_columns(rows, "capture_id", "connection_id"), _join_columns(labels, "capture_id", "was_connection_id")
    )
    name = pc.if_else(label_index.is_valid(), labels["connection_id"].take(label_index), rows["connection_id"])
    return rows.set_column(rows.schema.get_field_index("connection_id"), rows.schema.field("connection_id"), name)


def drop_merged_calls(calls: pa.RecordBatch, remade: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls except those that a merge replaces; ``remade`` has their ``capture_id`` and ``call_key``."""
    names = ("capture_id", "call_key")
    return _filter_rows(pc.invert(pc.is_in(_join_columns(calls, *names), _join_columns(remade, *names))), calls)


def _filter_rows(stay: pa.Array, calls: pa.RecordBatch) -> pa.RecordBatch:
    """Return the calls where ``stay`` is true; without a copy if it is true for all."""
    return calls if pc.all(stay, min_count=0).as_py() else calls.filter(stay)


def _join_columns(rows: pa.RecordBatch, *columns: str) -> pa.Array:
    """Join the values of columns to one text; null where one of them is null."""
    return pc.binary_join_element_wise(*(rows[name].cast(pa.string()) for name in columns), "|")


def _is_true(values: pa.Array) -> pa.Array:
    """Return a mask of the values that are true; null counts as false."""
    return pc.fill_null(values, False)  # noqa: FBT003
