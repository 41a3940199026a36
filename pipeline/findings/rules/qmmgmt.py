"""Tests of the rules of qmmgmt: M01 to M19. No Spark.

What a request asks with, and what a refused answer holds, are in no column of silver: they are read from the stubs of
bronze, where these are kept (store.stubs). Management calls are few.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from pipeline.findings.rules.conversations import Conversation, Exchange
from pipeline.findings.rules.registry import Hit, each, over
from udfs.dcerpc.interfaces import MG
from udfs.properties.names import MACHINE, QUEUE
from udfs.stubs.method import Kind, Method, Param
from udfs.stubs.qmmgmt import METHODS
from udfs.stubs.single import decode_stub
from udfs.stubs.single_variants import EMPTY, Variant

_INFO: Final = METHODS[0]
_ASKED: Final = Method(
    0, _INFO.name, _INFO.section,
    request=(*_INFO.request[:3], Param("apVar", Kind.VARIANTS, "asked", size_is="cp")), response=_INFO.response,
)  # fmt: skip
_MOST: Final = 128
_STATE, _LOCATION, _CONNECTED, _TYPE, _PRIVATEQ = 11, 4, 4, 5, 2
_BLOBS: Final = (13, 16, 17, 18)
_BLOB_BYTES: Final = 16
_MACHINE_VT: Final = {1: (0x101F,), 2: (0x101F,), 3: (31,), 4: (31,), 5: (31,), 6: (20, 21)}
_QUEUE_VT: Final = {
    **dict.fromkeys((1, 2, 3, 4, 5, 6, 11), (31,)), **dict.fromkeys((7, 8, 9, 10, 15, 19, 20, 22, 23, 26), (19,)),
    12: (0x101F,), **dict.fromkeys(_BLOBS, (65,)), 14: (3,), 21: (3,), 24: (0x100C,), 25: (0x100C,),
    27: (0x101F, 0x100C),
}  # fmt: skip
_DOMAINS: Final = {
    ("machine", 4): {"CONNECTED", "DISCONNECTED"},
    ("queue", 3): {"PUBLIC", "PRIVATE", "MACHINE", "CONNECTOR", "MULTICAST"},
    ("queue", 4): {"LOCAL", "REMOTE"},
    ("queue", 5): {"YES", "NO", "UNKNOWN"},
    ("queue", 6): {"YES", "NO", "UNKNOWN"},
    ("queue", 11): {"LOCAL CONNECTION", "INACTIVE", "WAITING", "NEED VALIDATION", "ONHOLD", "CONNECTED",
                    "DISCONNECTING", "DISCONNECTED", "LOCKED"},
}  # fmt: skip
_MACHINE_ACTIONS: Final = {"CONNECT", "DISCONNECT", "TIDY"}
_QUEUE_ACTIONS: Final = {"PAUSE", "RESUME", "EOD_RESEND"}
_OLD_SYSTEMS: Final = re.compile(r"\b(?:Windows\s+2000|5\.[012])\b")
_NEW_PROPERTIES: Final = (25, 26, 27)
_US_A_MINUTE: Final = 60_000_000


@lru_cache(maxsize=4096)
def _read(side: str, stub: bytes, ndr64: bool, big: bool) -> dict[str, Any]:  # noqa: FBT001 - by place, for the cache
    return decode_stub(_ASKED, side, stub, ndr64=ndr64, big_endian=big)[0]


def _values(call: Exchange, side: str, name: str) -> list[Variant] | None:
    """Return the variants of a GetInfo as asked with, or as answered; None where they cannot be read."""
    stub = call[f"{side}_stub"]
    if stub is None:
        return None
    found: list[Variant] | None = _read(side, stub, call.wide, call["byte_order"] == "big").get(name)
    return found


def answers(call: Exchange) -> list[tuple[int, Variant]]:
    """Return the properties that a GetInfo answered with MQ_OK, each with its value."""
    values = _values(call, "response", "values") if call.ok else None
    asked = call["property_ids"] or ()
    return list(zip(asked, values, strict=False)) if values is not None else []


@each("M01", (MG, 0), (MG, 1), needs="headers")
def object_type(call: Exchange) -> bool:
    """The object's type is not 1, 2 or 3, or its tag is another."""
    return call.wrong("request", "pObjectFormat.type", "pObjectFormat.tag")


@each("M02", (MG, 0), needs="headers")
def counts(call: Exchange) -> str | None:
    """The number of properties is outside 1 to 128, or differs from the arrays' counts."""
    asked = call["property_ids"]
    if asked is not None and not 1 <= len(asked) <= _MOST:
        return f"{len(asked)} properties"
    return "the counts differ" if call.wrong("request", "aProp.max_count", "apVar.max_count") else None


@each("M03", (MG, 0))
def asked_with(call: Exchange) -> str | None:
    """A variant of the request is not VT_NULL."""
    types = sorted({value.vt for value in _values(call, "request", "asked") or () if value.vt != 1})
    return f"types {', '.join(map(str, types))}" if types else None


@each("M04", (MG, 0))
def property_ids(call: Exchange) -> str | None:
    """A property is none of the object's kind."""
    last = {"machine": len(MACHINE), "queue": len(QUEUE)}.get(call["object_type"] or "")
    wrong = [number for number in call["property_ids"] or () if last is not None and not 1 <= number <= last]
    return f"properties {', '.join(map(str, wrong))} of a {call['object_type']}" if wrong else None


@each("M05", (MG, 0), needs="ok")
def foreign_answered(call: Exchange) -> str | None:
    """A value came for a property of the other kind of object."""
    last = {"machine": len(MACHINE), "queue": len(QUEUE)}.get(call["object_type"] or "")
    wrong = [n for n, value in answers(call) if last is not None and not 1 <= n <= last and value.vt not in EMPTY]
    return f"values for {', '.join(map(str, wrong))} of a {call['object_type']}" if wrong else None


@each("M06", (MG, 0), (MG, 1), needs="ok")
def session_taken(call: Exchange) -> str | None:
    """A question about a session was answered MQ_OK."""
    return "MQ_OK for a session" if call["object_type"] == "session" else None


@each("M07", (MG, 0), needs="ok")
def types(call: Exchange) -> str | None:
    """A value has another type than its property, or there are more or fewer values than were asked for."""
    values = _values(call, "response", "values")
    asked = call["property_ids"]
    if values is None or asked is None:
        return None
    if len(values) != len(asked):
        return f"{len(values)} values for {len(asked)} properties"
    known = _MACHINE_VT if call["object_type"] == "machine" else _QUEUE_VT
    wrong = [f"{n}: {v.vt}" for n, v in answers(call) if n in known and v.vt not in (*known[n], *EMPTY)]
    return f"types {', '.join(wrong)}" if wrong else None


@each("M08", (MG, 0), needs="ok")
def domains(call: Exchange) -> str | None:
    """A text is none of those that its property can have."""
    for number, value in answers(call):
        domain = _DOMAINS.get((call["object_type"], number))
        if domain and isinstance(value.value, str) and value.value.upper() not in domain:
            return f"property {number} is {value.value!r}"
    return None


@each("M09", (MG, 0), needs="answer")
def set_on_failure(call: Exchange) -> str | None:
    """A refused question was answered with values."""
    values = _values(call, "response", "values") if call.refused else None
    there = [value for value in values or () if value.vt not in EMPTY]
    return f"{len(there)} values" if there else None


@each("M11", (MG, 1))
def actions(call: Exchange) -> str | None:
    """The action is none of the six."""
    action = call["action"]
    return (
        f"action {action!r}" if action is not None and action.upper() not in _MACHINE_ACTIONS | _QUEUE_ACTIONS else None
    )


@each("M12", (MG, 1), needs="ok")
def action_taken(call: Exchange) -> str | None:
    """An action that is none of the six was taken."""
    seen = actions(call)
    return f"MQ_OK for {seen}" if isinstance(seen, str) else None


@each("M13", (MG, 1))
def crossed(call: Exchange) -> Hit | None:
    """An action of queues for a machine, or of machines for a queue."""
    action, kind = (call["action"] or "").upper(), call["object_type"]
    wrong = (action in _MACHINE_ACTIONS and kind == "queue") or (action in _QUEUE_ACTIONS and kind == "machine")
    return Hit(call, f"{action} of a {kind}{', answered MQ_OK' if call.ok else ''}", server=call.ok) if wrong else None


@each("M18", (MG, 0), (MG, 1), needs="headers")
def sizes(call: Exchange) -> Hit | None:
    """A count is not its array's, or a sequence is not of 16 bytes."""
    for side, server in (("request", False), ("response", True)):
        if call.wrong(side, "].max_count", "]: max_count") or (
            call.wrong(side, "max_count") and not call.wrong(side, "aProp.max_count", "apVar.max_count")
        ):
            return Hit(call, f"the {side}'s counts differ", server=server)
    for number, value in answers(call):
        if (
            call["object_type"] == "queue"
            and number in _BLOBS
            and isinstance(value.value, bytes)
            and len(value.value) != _BLOB_BYTES
        ):
            return Hit(call, f"property {number} has {len(value.value)} bytes", server=True)
    return None


@over("M19", "the server told its version as a property of the machine, in the same association")
def too_new_for_its_server(conv: Conversation) -> Iterator[Hit]:
    """A server before Vista answered a property that came with it."""
    told = [(call, value.value) for call in conv.of((MG, 0)) if call["object_type"] == "machine"
            for number, value in answers(call) if number == _TYPE]  # fmt: skip
    old = next((call for call, text in told if isinstance(text, str) and _OLD_SYSTEMS.search(text)), None)
    if old is None:
        return
    for call in conv.of((MG, 0)):
        if call["object_type"] == "queue":
            new = [n for n, value in answers(call) if n in _NEW_PROPERTIES and value.vt not in EMPTY]
            if new:
                yield Hit(call, f"values for {', '.join(map(str, new))}", (old, call))


def _located(conv: Conversation) -> dict[str, tuple[str, Exchange]]:
    """Return where each queue is, as the association's answers tell: the last LOCATION and the call that told it."""
    found = {}
    for call in conv.of((MG, 0)):
        for number, value in answers(call):
            if call["object_type"] == "queue" and number == _LOCATION and isinstance(value.value, str):
                found[call["queue_format_name"]] = (value.value.upper(), call)
    return found


@over("M14", "the queue's LOCATION was answered in the same association")
def local_paused(conv: Conversation) -> Iterator[Hit]:
    """PAUSE or RESUME of a queue that is local was answered MQ_OK."""
    located = _located(conv)
    for call in conv.of((MG, 1)):
        place = located.get(call["queue_format_name"])
        if call.ok and (call["action"] or "").upper() in ("PAUSE", "RESUME") and place and place[0] == "LOCAL":
            yield Hit(call, f"{call['action']} of a local queue", (place[1], call))


@over("M16", "the machine's PRIVATEQ was answered within a minute before and after, and names other queues")
def absent_answered(conv: Conversation) -> Iterator[Hit]:
    """A question about a private queue that the machine does not have was answered MQ_OK."""
    listed = []
    for call in conv.of((MG, 0)):
        told = dict(answers(call)).get(_PRIVATEQ) if call["object_type"] == "machine" else None
        if told is not None and isinstance(told.value, list) and told.value:
            listed.append((call, {str(name).lower().split("\\", 1)[-1] for name in told.value}))
    for call in conv.of((MG, 0)):
        path = (call["queue"] or "").split(";")[0].partition("\\")[2]
        if not call.ok or call["object_type"] != "queue" or not path.startswith("private$\\"):
            continue
        if any(number == _LOCATION and value.value != "LOCAL" for number, value in answers(call)):
            continue
        if not any(number == _LOCATION for number, _ in answers(call)):
            continue
        before = [(each, names) for each, names in listed if 0 <= call.at - each.at <= _US_A_MINUTE]
        after = [(each, names) for each, names in listed if 0 <= each.at - call.at <= _US_A_MINUTE]
        if before and after and path not in before[-1][1] and path not in after[0][1]:
            yield Hit(call, f"MQ_OK for {path}", (before[-1][0], call, after[0][0]))


@over("M17", "the answers and the actions before them are of one association")
def incoherent(conv: Conversation) -> Iterator[Hit]:
    """A state contradicts an action before it, or LOCATION of the same answer."""
    paused: defaultdict[str | None, Exchange | None] = defaultdict(lambda: None)
    offline: Exchange | None = None
    for call in conv.of((MG, 0), (MG, 1)):
        action = (call["action"] or "").upper() if call.method == (MG, 1) else ""
        name = call["queue_format_name"]
        if call.ok and action:
            if action in ("PAUSE", "RESUME"):
                paused[name] = call if action == "PAUSE" else None
            elif action in ("CONNECT", "DISCONNECT"):
                offline = call if action == "DISCONNECT" else None
        told = {number: value.value.upper() for number, value in answers(call) if isinstance(value.value, str)}
        if call["object_type"] == "machine" and offline and told.get(_CONNECTED, "DISCONNECTED") != "DISCONNECTED":
            yield Hit(call, f"CONNECTED is {told[_CONNECTED]} after DISCONNECT", (offline, call))
        if call["object_type"] != "queue" or _STATE not in told:
            continue
        before = paused[name]
        if before is not None and told[_STATE] != "ONHOLD" and told.get(_LOCATION) != "LOCAL":
            yield Hit(call, f"STATE is {told[_STATE]} after PAUSE", (before, call))
        elif _LOCATION in told and (told[_LOCATION] == "LOCAL") != (told[_STATE] == "LOCAL CONNECTION"):
            yield Hit(call, f"LOCATION is {told[_LOCATION]}, STATE is {told[_STATE]}")
