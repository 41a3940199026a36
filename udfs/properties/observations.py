"""Observations of queues and queue managers: one common form for captured and collected R_QMMgmtGetInfo responses.

An observation has the object, the time, the result and the properties. Here it becomes one row per property
(``silver.properties``); in ``snapshot_rows.py`` one row with a column per property.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.queue_snapshots import PROPERTIES
from schemas.table import ERRORS, EVENT_DATE, RUN_ID, list_of
from udfs.call_results import call_succeeded
from udfs.columns.arrays import over_distinct
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.properties import property_names, value_conversion
from udfs.queues.normal_form import normalize_queue_name

DECODER_VERSION: Final = "2"  # 2: any result but 0 is a failure

PROPERTY_TYPE: Final = pa.struct(
    PROPERTIES.schema(
        only=("property_id", "vt", "state", "value_decimal", "value_text", "value_binary", "value_texts", "value_json")
    )
)
OBSERVATION_COLUMNS: Final = (
    "snapshot_id", "call_key", "source", "queue_manager", "object_type", "queue", "queue_format_name", "observed_at",
    "hresult",
)  # fmt: skip
"""The columns of an observation; all its rows of ``silver.properties`` have them."""
OBSERVATION_SCHEMA: Final = PROPERTIES.schema(only=OBSERVATION_COLUMNS).append(
    pa.field("properties", list_of(PROPERTY_TYPE))
)
PROPERTY_ROW_SCHEMA: Final = PROPERTIES.schema(without=(EVENT_DATE, RUN_ID))
STATE_VALUE, STATE_NULL, STATE_ERROR = "value", "null", "error"
_EMPTY_TYPES: Final = (0, 1)
VALUE_COLUMNS: Final = ("value_decimal", "value_text", "value_binary", "value_texts", "value_json")
_GET_INFO_OPNUM: Final = 0

PropertyFields = Mapping[str, Any]


def _is_failed(hresult: int | None) -> bool:
    """Return whether a response has no values: the call did not succeed, or has no result (a fault, no response)."""
    return call_succeeded(QMMGMT_NAME, hresult) is not True


def _property_struct(number: int | None, vt: int | None, value: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    """Return one property with its state; after a failed response only its number (rule M09)."""
    if failed or vt is None:
        return {"property_id": number, "state": STATE_ERROR}
    held_values = {name: value.get(name) for name in VALUE_COLUMNS}
    state = STATE_NULL if vt in _EMPTY_TYPES or all(prop is None for prop in held_values.values()) else STATE_VALUE
    return {"property_id": number, "vt": vt, "state": state, **held_values}


def observations_from_calls(calls: pa.Table) -> pa.Table:
    """Return the observations of R_QMMgmtGetInfo calls.

    ``calls`` are rows of ``silver.management_calls`` with ``values``, ``opnum``, ``call_key``, ``responded_at`` and
    optionally ``outcome``: a fault is a failed response. Calls without a response or without a decoded request are
    skipped.
    """
    out = []
    for row in calls.to_pylist():
        numbers, found = row["property_ids"], row["values"]
        failed = _is_failed(row["hresult"])
        answered = row["hresult"] is not None or row.get("outcome") == "fault"
        if row["opnum"] != _GET_INFO_OPNUM or numbers is None or not answered:
            continue
        pairs = [(prop["vt"], prop) for prop in found or []]
        pairs += [(None, {})] * (len(numbers) - len(pairs))
        out.append(
            {name: row.get(name) for name in OBSERVATION_COLUMNS}
            | {
                "snapshot_id": row["call_key"],
                "source": "wire",
                "observed_at": row["responded_at"],
                "properties": [
                    _property_struct(number, vt, value, failed=failed)
                    for number, (vt, value) in zip(numbers, pairs, strict=False)
                ],
            }
        )
    return pa.Table.from_pylist(out, schema=OBSERVATION_SCHEMA)


def observations_from_snapshots(snapshots: pa.Table) -> pa.Table:
    """Return the observations of rows of ``bronze.snapshots_raw``; their time is that of response, else request."""
    out = []
    for row in snapshots.to_pylist():
        failed = _is_failed(row["hresult"]) or row["error"] is not None
        out.append(
            {name: row.get(name) for name in OBSERVATION_COLUMNS}
            | {
                "source": "collector",
                "queue": normalize_queue_name(row["format_name"]),
                "queue_format_name": row["format_name"],
                "observed_at": row["collected_at"] or row["asked_at"],
                "properties": [
                    _property_struct(prop["property_id"], prop["vt"], _collected_value(prop), failed=failed)
                    for prop in row["properties"] or []
                    if prop is not None and prop["property_id"] is not None
                ],
            }
        )
    return pa.Table.from_pylist(out, schema=OBSERVATION_SCHEMA)


def parse_json(text: str) -> Any:  # noqa: ANN401  (any JSON)
    """Parse JSON; lone surrogates, which JSON escapes can express but no column can hold, become U+FFFD."""
    value = json.loads(text)
    return _replace_lone_surrogates(value) if "\\ud" in text.lower() else value


def _replace_lone_surrogates(value: Any) -> Any:  # noqa: ANN401  (any JSON)
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_replace_lone_surrogates(item) for item in value]
    return {name: _replace_lone_surrogates(item) for name, item in value.items()} if isinstance(value, dict) else value


def _collected_value(prop: PropertyFields) -> dict[str, Any]:
    """Return a collected value by value column; JSON that does not fit its type stays in ``value_json``."""
    text, vt = prop["value_json"], prop["vt"]
    if text is None or vt is None:
        return {}
    try:
        value = parse_json(text)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
            return {"value_decimal": value}
        if isinstance(value, str):
            return {"value_binary": bytes.fromhex(value)} if vt == value_conversion.VT_BLOB else {"value_text": value}
    except (ValueError, RecursionError):
        return {"value_json": text}
    if value is None:
        return {}
    if (
        isinstance(value, list)
        and vt in value_conversion.TEXT_VECTOR_TYPES
        and all(isinstance(item, str | None) for item in value)
    ):
        return {"value_texts": value}
    return {"value_json": text}


def property_rows(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.properties``: one per property of each observation, in the order of the request."""
    lists = observations.column("properties").combine_chunks()
    owner = pc.list_parent_indices(lists)
    items = lists.flatten()
    rows = np.asarray(owner)
    out = {name: observations.column(name).take(owner) for name in OBSERVATION_COLUMNS}
    out |= {field.name: items.field(field.name) for field in PROPERTY_TYPE}
    first = np.searchsorted(rows, rows)  # the index of the first property of the same observation
    out["place"] = pa.array(np.arange(len(rows)) - first, pa.int32())
    out["property_name"] = _property_name_column(out["object_type"].combine_chunks(), out["property_id"])
    out["vt_name"] = over_distinct(out["vt"], property_names.propvariant_type_name, pa.string())
    out["errors"] = pa.array([[]] * len(rows), ERRORS)
    out["decoder_version"] = pa.array([DECODER_VERSION] * len(rows), pa.string())
    return pa.table([out[name] for name in PROPERTY_ROW_SCHEMA.names], schema=PROPERTY_ROW_SCHEMA)


def _property_name_column(object_types: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return the name of each property; each pair of object type and number is looked up once."""
    kinds, encoded = object_types.dictionary_encode(), numbers.dictionary_encode()
    ids = [*encoded.dictionary.to_pylist(), None]
    table = [
        None if number is None else property_names.property_name(kind, number)
        for kind in [*kinds.dictionary.to_pylist(), None]
        for number in ids
    ]
    kind = np.asarray(pc.fill_null(kinds.indices, len(kinds.dictionary)))
    number = np.asarray(pc.fill_null(encoded.indices, len(encoded.dictionary)))
    return pa.array(table, pa.string()).take(pa.array(kind * len(ids) + number))
