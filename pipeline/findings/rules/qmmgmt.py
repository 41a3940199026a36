"""Rules on qmmgmt: M01 to M19, M21. No Spark.

The variants of a request, and what a failed call returned, are in no column of silver. They are decoded from the stubs
of bronze, where these are stored (store.stubs). Management calls are few.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask
from pipeline.findings.columns.call_history import AssociationHistory, CapturedCall
from pipeline.findings.rules.registry import (
    ViolatingCalls,
    Violation,
    association_call_rule,
    association_rule,
    call_rule,
)
from udfs.codes import AUTH_LEVEL_NONE
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.properties.property_names import (
    MACHINE_ACTIONS,
    MACHINE_PROPERTY_NAMES,
    PROPERTY_TEXTS,
    QUEUE_ACTIONS,
    QUEUE_PROPERTY_NAMES,
)
from udfs.stubs.idl import Method, NdrType, Parameter
from udfs.stubs.qmmgmt import METHODS
from udfs.stubs.single_propvariant import EMPTY_TYPES, PropVariant
from udfs.stubs.single_stub import decode_single_stub
from udfs.times import MINUTE_US

_INFO: Final = METHODS[0]
_INFO_WITH_VARIANTS: Final = Method(
    0, _INFO.name, _INFO.section,
    request=(*_INFO.request[:3], Parameter("apVar", NdrType.VARIANTS, "asked", size_is="cp")), response=_INFO.response,
)  # fmt: skip
MAX_PROPERTIES: Final = 128
_COUNTS: Final = ("aProp.max_count", "apVar.max_count")
_QUERY_COLUMNS: Final = (
    "object_type", "property_ids", "request_stub", "response_stub", "transfer_syntax", "byte_order",
)  # fmt: skip
_STATE_ID, _LOCATION_ID, _CONNECTED_ID, _TYPE_ID, _PRIVATEQ_ID = 11, 4, 4, 5, 2
_SEQUENCE_IDS: Final = (13, 16, 17, 18)
_SEQUENCE_BYTES: Final = 16
_MACHINE_TYPES: Final = {1: (0x101F,), 2: (0x101F,), 3: (31,), 4: (31,), 5: (31,), 6: (20, 21)}
_QUEUE_TYPES: Final = {
    **dict.fromkeys((1, 2, 3, 4, 5, 6, 11), (31,)), **dict.fromkeys((7, 8, 9, 10, 15, 19, 20, 22, 23, 26), (19,)),
    12: (0x101F,), **dict.fromkeys(_SEQUENCE_IDS, (65,)), 14: (3,), 21: (3,), 24: (0x100C,), 25: (0x100C,),
    27: (0x101F, 0x100C),
}  # fmt: skip
_BEFORE_VISTA: Final = re.compile(r"\b(?:Windows\s+2000|5\.[012])\b")
_VISTA_PROPERTIES: Final = (25, 26, 27)


@lru_cache(maxsize=4096)
def _decode_info_stub(side: str, stub: bytes, ndr64: bool, big: bool) -> dict[str, Any]:  # noqa: FBT001 - by place, for the cache
    return decode_single_stub(_INFO_WITH_VARIANTS, side, stub, ndr64=ndr64, big_endian=big)[0]


def _variants(call: Mapping[str, Any], side: str, name: str) -> list[PropVariant] | None:
    """Return the variants of a R_QMMgmtGetInfo request or response; None where they cannot be decoded."""
    stub = call[f"{side}_stub"]
    if stub is None:
        return None
    is_ndr64, is_big = call["transfer_syntax"] == "NDR64", call["byte_order"] == "big"
    found: list[PropVariant] | None = _decode_info_stub(side, stub, is_ndr64, is_big).get(name)
    return found


def _values(call: Mapping[str, Any]) -> list[tuple[int, PropVariant]]:
    values = _variants(call, "response", "values")
    return list(zip(call["property_ids"] or (), values, strict=False)) if values is not None else []


def returned_properties(call: CapturedCall) -> list[tuple[int, PropVariant]]:
    """Return the property ids and values that a R_QMMgmtGetInfo answered MQ_OK returned."""
    return _values(call) if call.succeeded else []


def _with_text(
    calls: AssociationCallColumns,
    rows: Mask,
    function: Callable[[dict[str, Any]], str | None],
    *,
    by_server: bool | None = None,
) -> ViolatingCalls:
    """Return the queries among some calls for whose values a function, of ``_QUERY_COLUMNS``, gives a text."""
    wrong, texts = calls.computed(rows & calls.of((QMMGMT_NAME, 0)), _QUERY_COLUMNS, function)
    return ViolatingCalls(wrong, "{}", (texts,), by_server=by_server)


@call_rule("M01", (QMMGMT_NAME, 0), (QMMGMT_NAME, 1), needs="headers")
def object_type_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The object's type is not 1, 2 or 3, or its tag differs from the type."""
    yield ViolatingCalls(calls.has_malformed_field("request", "pObjectFormat.type", "pObjectFormat.tag"))


@call_rule("M02", (QMMGMT_NAME, 0), needs="headers")
def property_count_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The number of properties is outside 1 to 128, or differs from the arrays' counts."""
    count = calls.lengths("property_ids")
    wrong = calls.has("property_ids") & ((count < 1) | (count > MAX_PROPERTIES))
    yield ViolatingCalls(wrong, "{} properties", (count,))
    yield ViolatingCalls(calls.has_malformed_field("request", *_COUNTS), "the counts differ")


@call_rule("M03", (QMMGMT_NAME, 0))
def request_variant_not_null(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A variant of the request is not VT_NULL."""

    def other_types(call: dict[str, Any]) -> str | None:
        types = sorted({value.vt for value in _variants(call, "request", "asked") or () if value.vt != 1})
        return f"types {', '.join(map(str, types))}" if types else None

    yield _with_text(calls, calls.request_decoded, other_types)


def _is_of_other_object(call: Mapping[str, Any], number: int) -> bool:
    """Tell whether a property does not belong to the type of the object that is asked about."""
    last = {"machine": len(MACHINE_PROPERTY_NAMES), "queue": len(QUEUE_PROPERTY_NAMES)}.get(call["object_type"] or "")
    return last is not None and not 1 <= number <= last


@call_rule("M04", (QMMGMT_NAME, 0))
def property_id_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A property does not belong to the object's type."""

    def others(call: dict[str, Any]) -> str | None:
        wrong = [number for number in call["property_ids"] or () if _is_of_other_object(call, number)]
        return f"properties {', '.join(map(str, wrong))} of a {call['object_type']}" if wrong else None

    yield _with_text(calls, calls.request_decoded, others)


@call_rule("M05", (QMMGMT_NAME, 0), needs="ok")
def property_of_other_type_returned(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A value was returned for a property that does not belong to the object's type."""

    def others(call: dict[str, Any]) -> str | None:
        there = (number for number, value in _values(call) if value.vt not in EMPTY_TYPES)
        wrong = [number for number in there if _is_of_other_object(call, number)]
        return f"values for {', '.join(map(str, wrong))} of a {call['object_type']}" if wrong else None

    yield _with_text(calls, calls.succeeded, others)


@call_rule("M06", (QMMGMT_NAME, 0), (QMMGMT_NAME, 1), needs="ok")
def session_query_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A query for a session was answered MQ_OK."""
    yield ViolatingCalls(calls.text_in("object_type", {"session"}), "MQ_OK for a session")


@call_rule("M07", (QMMGMT_NAME, 0), needs="ok")
def property_value_type_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A value has not the type of its property, or there are more or fewer values than properties."""

    def wrong_types(call: dict[str, Any]) -> str | None:
        values, asked = _variants(call, "response", "values"), call["property_ids"]
        if values is None or asked is None:
            return None
        if len(values) != len(asked):
            return f"{len(values)} values for {len(asked)} properties"
        known = _MACHINE_TYPES if call["object_type"] == "machine" else _QUEUE_TYPES
        wrong = [f"{n}: {v.vt}" for n, v in _values(call) if n in known and v.vt not in (*known[n], *EMPTY_TYPES)]
        return f"types {', '.join(wrong)}" if wrong else None

    yield _with_text(calls, calls.succeeded, wrong_types)


@call_rule("M08", (QMMGMT_NAME, 0), needs="ok")
def property_text_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A text is none of those that its property allows."""

    def unknown_text(call: dict[str, Any]) -> str | None:
        for number, value in _values(call):
            domain = PROPERTY_TEXTS.get((call["object_type"], number))
            if domain and isinstance(value.value, str) and value.value.upper() not in domain:
                return f"property {number} is {value.value!r}"
        return None

    yield _with_text(calls, calls.succeeded, unknown_text)


@call_rule("M09", (QMMGMT_NAME, 0), needs="answer")
def values_returned_on_failure(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A query that failed returned values."""

    def values(call: dict[str, Any]) -> str | None:
        there = [value for value in _variants(call, "response", "values") or () if value.vt not in EMPTY_TYPES]
        return f"{len(there)} values" if there else None

    yield _with_text(calls, calls.failed & calls.response_decoded, values)


@call_rule("M11", (QMMGMT_NAME, 1))
def action_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The action is none of the six that exist."""
    known = calls.text_matches("action_text", lambda action: action.upper() in MACHINE_ACTIONS | QUEUE_ACTIONS)
    yield ViolatingCalls(calls.has("action_text") & ~known, "action {action!r}")


@call_rule("M12", (QMMGMT_NAME, 1), needs="ok")
def invalid_action_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """An action that is none of the six was answered MQ_OK."""
    for found in action_invalid(calls):
        yield found._replace(actual=f"MQ_OK for {found.actual}")


@call_rule("M13", (QMMGMT_NAME, 1))
def action_for_other_object_type(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A queue's action was used on a machine, or a machine's on a queue."""
    _, action = calls.text_map("action_text", str.upper)
    for kind, others in (("queue", MACHINE_ACTIONS), ("machine", QUEUE_ACTIONS)):
        wrong = np.isin(action.astype(str), [*others]) & calls.text_in("object_type", {kind})
        yield ViolatingCalls(wrong, f"{{}} of a {kind}", (action,), of_either=True)


@call_rule("M18", (QMMGMT_NAME, 0), (QMMGMT_NAME, 1), needs="headers")
def array_size_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A count differs from its array's size, or a sequence does not have 16 bytes."""
    for side in ("request", "response"):
        of_element = calls.has_malformed_field(side, "].max_count", "]: max_count")
        other = calls.has_malformed_field(side, "max_count") & ~calls.has_malformed_field(side, *_COUNTS)
        yield ViolatingCalls(of_element | other, f"the {side}'s counts differ", by_server=side == "response")

    def wrong_sequence(call: dict[str, Any]) -> str | None:
        for number, value in _values(call):
            if number in _SEQUENCE_IDS and isinstance(value.value, bytes) and len(value.value) != _SEQUENCE_BYTES:
                return f"property {number} has {len(value.value)} bytes"
        return None

    of_queues = calls.succeeded & calls.text_in("object_type", {"queue"})
    yield _with_text(calls, of_queues, wrong_sequence, by_server=True)


@association_rule(
    "M19",
    (QMMGMT_NAME, 0),
    precondition="the server returned its version as a property of the machine, in the same association",
)
def property_newer_than_server(history: AssociationHistory) -> Iterator[Violation]:
    """A server before Vista returned a property that Vista added."""
    versions = [
        (call, value.value)
        for call in history.calls_of((QMMGMT_NAME, 0))
        if call["object_type"] == "machine"
        for number, value in returned_properties(call)
        if number == _TYPE_ID
    ]
    old = next((call for call, text in versions if isinstance(text, str) and _BEFORE_VISTA.search(text)), None)
    if old is None:
        return
    for call in history.calls_of((QMMGMT_NAME, 0)):
        if call["object_type"] == "queue":
            returned = returned_properties(call)
            new = [n for n, value in returned if n in _VISTA_PROPERTIES and value.vt not in EMPTY_TYPES]
            if new:
                yield Violation(call, f"values for {', '.join(map(str, new))}", (old, call))


def _queue_locations(history: AssociationHistory) -> dict[str, tuple[str, CapturedCall]]:
    """Return the last known LOCATION of each queue of an association, with the call that returned it."""
    found = {}
    for call in history.calls_of((QMMGMT_NAME, 0)):
        for number, value in returned_properties(call):
            if call["object_type"] == "queue" and number == _LOCATION_ID and isinstance(value.value, str):
                found[call["queue_format_name"]] = (value.value.upper(), call)
    return found


@association_rule("M14", (QMMGMT_NAME, 1), precondition="the queue's LOCATION was answered in the same association")
def local_queue_paused(history: AssociationHistory) -> Iterator[Violation]:
    """PAUSE or RESUME of a local queue was answered MQ_OK."""
    locations = _queue_locations(history)
    for call in history.calls_of((QMMGMT_NAME, 1)):
        place = locations.get(call["queue_format_name"])
        if call.succeeded and (call["action"] or "").upper() in ("PAUSE", "RESUME") and place and place[0] == "LOCAL":
            yield Violation(call, f"{call['action']} of a local queue", (place[1], call))


@association_rule(
    "M16",
    (QMMGMT_NAME, 0),
    precondition="the machine's PRIVATEQ was answered within a minute before and after, and names other queues",
)
def absent_queue_query_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """A query for a private queue that the machine does not have was answered MQ_OK."""
    listed = []
    for call in history.calls_of((QMMGMT_NAME, 0)):
        queues = dict(returned_properties(call)).get(_PRIVATEQ_ID) if call["object_type"] == "machine" else None
        if queues is not None and isinstance(queues.value, list) and queues.value:
            listed.append((call, {str(name).lower().split("\\", 1)[-1] for name in queues.value}))
    for call in history.calls_of((QMMGMT_NAME, 0)):
        path = (call["queue"] or "").split(";")[0].partition("\\")[2]
        if not call.succeeded or call["object_type"] != "queue" or not path.startswith("private$\\"):
            continue
        locations = [value.value for number, value in returned_properties(call) if number == _LOCATION_ID]
        if not locations or any(location != "LOCAL" for location in locations):
            continue
        last = bisect_right(listed, call.started_at, key=_listed_at) - 1
        next_one = bisect_left(listed, call.started_at, key=_listed_at)
        if last < 0 or next_one == len(listed):
            continue
        (before, names_before), (after, names_after) = listed[last], listed[next_one]
        near = max(call.started_at - before.started_at, after.started_at - call.started_at) <= MINUTE_US
        if near and path not in names_before and path not in names_after:
            yield Violation(call, f"MQ_OK for {path}", (before, call, after))


def _listed_at(listed: tuple[CapturedCall, set[str]]) -> int:
    return listed[0].started_at


@association_rule(
    "M17", (QMMGMT_NAME, 0), precondition="the answers and the actions before them are of one association"
)
def state_contradicts_action(history: AssociationHistory) -> Iterator[Violation]:
    """A state contradicts an earlier action, or the LOCATION of the same response."""
    paused: defaultdict[str | None, CapturedCall | None] = defaultdict(lambda: None)
    offline: CapturedCall | None = None
    for call in history.calls_of((QMMGMT_NAME, 0), (QMMGMT_NAME, 1)):
        action = (call["action"] or "").upper() if call.method == (QMMGMT_NAME, 1) else ""
        name = call["queue_format_name"]
        if call.succeeded and action:
            if action in ("PAUSE", "RESUME"):
                paused[name] = call if action == "PAUSE" else None
            elif action in ("CONNECT", "DISCONNECT"):
                offline = call if action == "DISCONNECT" else None
        returned = returned_properties(call)
        texts = {number: value.value.upper() for number, value in returned if isinstance(value.value, str)}
        state, location, connected = (texts.get(number) for number in (_STATE_ID, _LOCATION_ID, _CONNECTED_ID))
        if call["object_type"] == "machine" and offline and connected not in (None, "DISCONNECTED"):
            yield Violation(call, f"CONNECTED is {connected} after DISCONNECT", (offline, call))
        if call["object_type"] != "queue" or state is None:
            continue
        before = paused[name]
        if before is not None and state != "ONHOLD" and location != "LOCAL":
            yield Violation(call, f"STATE is {state} after PAUSE", (before, call))
        elif location is not None and (location == "LOCAL") != (state == "LOCAL CONNECTION"):
            yield Violation(call, f"LOCATION is {location}, STATE is {state}")


@association_call_rule("M21", (QMMGMT_NAME, 1), needs="ok", precondition="the binds of the connection were captured")
def unauthenticated_action_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An action without authentication was answered MQ_OK."""
    wrong = calls.nonzero("bind_seen") & (calls.numbers("auth_level") <= AUTH_LEVEL_NONE)
    yield ViolatingCalls(wrong, _accepted_action, severity="warning", source="MS-MQMR 3")


def _accepted_action(call: CapturedCall) -> str:
    return f"MQ_OK for {(call['action'] or 'an action').upper()} without authentication"
