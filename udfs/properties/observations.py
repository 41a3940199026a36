"""Observations of queue managers and queues: from the wire or a collector to one form, and from that to silver's rows.

An observation is one answered R_QMMgmtGetInfo: what was asked about, when, with which result, and the properties. It
becomes a row per property (``silver.properties``) and, in ``snapshots.py``, a row with a column per property.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.codes import FAILURE
from udfs.properties import names, values
from udfs.queues.normal_form import normal_text
from udfs.stubs.arrays import ERRORS_TYPE

DECODER_VERSION: Final = "1"

_U64: Final = pa.decimal128(20, 0)
PROPERTY: Final = pa.struct(
    {
        "property_id": pa.int32(),
        "vt": pa.int32(),
        "state": pa.string(),
        "value_decimal": _U64,
        "value_text": pa.string(),
        "value_binary": pa.binary(),
        "value_texts": pa.list_(pa.string()),
        "value_json": pa.string(),
    }
)
OBSERVED: Final[dict[str, pa.DataType]] = {
    "snapshot_id": pa.string(),
    "call_key": pa.string(),
    "source": pa.string(),
    "queue_manager": pa.string(),
    "object_type": pa.string(),
    "queue": pa.string(),
    "queue_format_name": pa.string(),
    "observed_at": pa.timestamp("us", tz="UTC"),
    "hresult": pa.int64(),
}
OBSERVATIONS: Final = pa.schema({**OBSERVED, "properties": pa.list_(PROPERTY)})
PROPERTIES: Final = pa.schema(
    {
        **OBSERVED,
        "place": pa.int32(),
        "property_id": pa.int32(),
        "property_name": pa.string(),
        "vt": pa.int32(),
        "vt_name": pa.string(),
        **{field.name: field.type for field in list(PROPERTY)[2:]},
        "errors": ERRORS_TYPE,
        "decoder_version": pa.string(),
    }
)
VALUE, NULL, ERROR = "value", "null", "error"
_EMPTY: Final = (0, 1)
VALUES: Final = ("value_decimal", "value_text", "value_binary", "value_texts", "value_json")
_GET_INFO: Final = 0

Row = Mapping[str, Any]


def _failed(hresult: int | None) -> bool:
    """Tell whether an answer holds no values: a failing HRESULT (bit 31), or none at all (a fault, no answer)."""
    return hresult is None or bool(hresult & FAILURE)


def _property(number: int | None, vt: int | None, value: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    """Return one property with its state; of a failed answer nothing but what was asked for (rule M09)."""
    if failed or vt is None:
        return {"property_id": number, "state": ERROR}
    held = {name: value.get(name) for name in VALUES}
    state = NULL if vt in _EMPTY or all(each is None for each in held.values()) else VALUE
    return {"property_id": number, "vt": vt, "state": state, **held}


def observations_of_calls(calls: pa.Table) -> pa.Table:
    """Return the observations of R_QMMgmtGetInfo calls: rows of ``silver.management_calls`` with their ``values``.

    Read are also ``opnum``, ``call_key``, ``responded_at`` and, where it is there, ``outcome``: a fault is a failed
    answer. Calls without an answer or without a request that can be read are none.
    """
    out = []
    for row in calls.to_pylist():
        numbers, found = row["property_ids"], row["values"]
        failed = _failed(row["hresult"])
        answered = row["hresult"] is not None or row.get("outcome") == "fault"
        if row["opnum"] != _GET_INFO or numbers is None or not answered:
            continue
        pairs = [(each["vt"], each) for each in found or []]
        pairs += [(None, {})] * (len(numbers) - len(pairs))
        out.append(
            {name: row.get(name) for name in OBSERVED}
            | {
                "snapshot_id": row["call_key"],
                "source": "wire",
                "observed_at": row["responded_at"],
                "properties": [
                    _property(number, vt, value, failed=failed)
                    for number, (vt, value) in zip(numbers, pairs, strict=False)
                ],
            }
        )
    return pa.Table.from_pylist(out, schema=OBSERVATIONS)


def observations_of_collected(snapshots: pa.Table) -> pa.Table:
    """Return the observations of rows of ``bronze.snapshots_raw``, at the time of the answer, else of asking."""
    out = []
    for row in snapshots.to_pylist():
        failed = _failed(row["hresult"]) or row["error"] is not None
        out.append(
            {name: row.get(name) for name in OBSERVED}
            | {
                "source": "collector",
                "queue": normal_text(row["format_name"]),
                "queue_format_name": row["format_name"],
                "observed_at": row["collected_at"] or row["asked_at"],
                "properties": [
                    _property(each["property_id"], each["vt"], _collected(each), failed=failed)
                    for each in row["properties"] or []
                    if each is not None and each["property_id"] is not None
                ],
            }
        )
    return pa.Table.from_pylist(out, schema=OBSERVATIONS)


def loads(text: str) -> Any:  # noqa: ANN401  (any JSON)
    """Read JSON; halves of surrogate pairs, which escapes can write and no column can hold, become U+FFFD."""
    value = json.loads(text)
    return _whole(value) if "\\ud" in text.lower() else value


def _whole(value: Any) -> Any:  # noqa: ANN401  (any JSON)
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def _collected(each: Row) -> dict[str, Any]:
    """Return a collector's value in the columns of the wire's; what is no JSON of its type is kept as it stands."""
    text, vt = each["value_json"], each["vt"]
    if text is None or vt is None:
        return {}
    try:
        value = loads(text)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
            return {"value_decimal": value}
        if isinstance(value, str):
            return {"value_binary": bytes.fromhex(value)} if vt == values.BLOB else {"value_text": value}
    except (ValueError, RecursionError):
        return {"value_json": text}
    if value is None:
        return {}
    if isinstance(value, list) and vt in values.TEXT_VECTORS and all(isinstance(item, str | None) for item in value):
        return {"value_texts": value}
    return {"value_json": text}


def properties(observations: pa.Table) -> pa.Table:
    """Return the rows of ``silver.properties``: one per property of each observation, in the order asked."""
    lists = observations.column("properties").combine_chunks()
    owner = pc.list_parent_indices(lists)
    items = lists.flatten()
    rows = np.asarray(owner)
    out = {name: observations.column(name).take(owner) for name in OBSERVED}
    out |= {field.name: items.field(field.name) for field in PROPERTY}
    first = np.searchsorted(rows, rows)  # where each one's observation begins
    out["place"] = pa.array(np.arange(len(rows)) - first, pa.int32())
    out["property_name"] = _property_names(out["object_type"].combine_chunks(), out["property_id"])
    encoded = out["vt"].dictionary_encode()
    vts = [names.vt_name(vt) for vt in encoded.dictionary.to_pylist()]
    out["vt_name"] = pa.array(vts, pa.string()).take(encoded.indices)
    out["errors"] = pa.array([[]] * len(rows), ERRORS_TYPE)
    out["decoder_version"] = pa.array([DECODER_VERSION] * len(rows), pa.string())
    return pa.table([out[name] for name in PROPERTIES.names], schema=PROPERTIES)


def _property_names(object_types: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return the specification's name of each property, each pair of object and number looked up once."""
    kinds, encoded = object_types.dictionary_encode(), numbers.dictionary_encode()
    ids = encoded.dictionary.to_pylist()
    table = [names.property_name(kind, number) for kind in [*kinds.dictionary.to_pylist(), None] for number in ids]
    kind = np.asarray(pc.fill_null(kinds.indices, len(kinds.dictionary)))
    return pa.array(table, pa.string()).take(pa.array(kind * len(ids) + np.asarray(encoded.indices)))
