"""Rules on one call of RemoteRead: R01 to R78. No Spark."""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.findings.columns.call_columns import CallColumns, Mask
from pipeline.findings.columns.call_history import LOOKUP_ID_NUMBER_MASK, REMOTE_READ_READS, CapturedCall
from pipeline.findings.rules.qm2qm import (
    ACTION_PEEK_NEXT,
    LOOKUP_ACTIONS,
    LOOKUP_CURRENT_ACTIONS,
    SEQUENTIAL_ACTIONS,
    action_name,
    has_invalid_number,
    is_valid_port,
    returned_another_message,
    waits,
)
from pipeline.findings.rules.registry import Violation, call_rule, violation_of_either
from udfs.dcerpc.interfaces import REMOTE_READ_NAME

_CONTEXT_OPENS: Final = ((REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11))
RECEIVE_ACCESS, PEEK_ACCESS, MOVE_ACCESS = 0x01, 0x20, 0x04
_OPENABLE_TYPES: Final = (1, 2, 3, 4, 8)
_DIRECT_TYPES: Final = (3, 8)
MAX_TOKEN_BYTES: Final = 131_072
_SECTION_SEQUENCES: Final = ([0], [1], [1, 2], [3], [3, 4])
_FIRST_PART_TYPES: Final = (1, 3)
_MOST_SECTIONS: Final = 2
_VERSION_STEPS: Final = 1 << 32
_CLIENT_VERSIONS: Final = {(5, 2), (6, 0), (6, 1)}
_RECEIVE_PREV: Final = 0x40000022
_REJECTED_CLASS: Final = 0xC004
_EXTENSION_BYTES: Final = 12
_EXTENSION_FLAGS: Final = {"SQ": "SubqueueHeader", "EA": "ExtendedAddressHeader"}
_TRAILER_SECTIONS: Final = {"SubqueueHeader": "2.2.5.3", "ExtendedAddressHeader": "2.2.5.5"}
_SYSTEM_QUEUE_FLAG: Final = 0x80
_FLAG_OCTETS: Final = (bytes(4), b"\1" + bytes(3))  # 0 and 1, little-endian
_PLAIN_SUFFIX: Final = b"\0"
_MACHINE_TYPE: Final = 4  # the only type that needs another suffix


def _format_name_type_may_be_invalid(calls: CallColumns) -> Mask:
    return calls.has_errors | (calls.has("queue_format_type") & ~calls.equals("queue_format_type", *_OPENABLE_TYPES))


def _names_other_protocol(name: str) -> bool:
    """Tell whether a direct format name has another protocol than TCP or OS."""
    return not name.partition("=")[2].upper().startswith(("TCP:", "OS:"))


def _open_modes_are_invalid(calls: CallColumns) -> Mask:
    return ~(calls.equals("access", RECEIVE_ACCESS, PEEK_ACCESS) & calls.equals("share_mode", 0, 1))


def _open_flags_may_be_invalid(calls: CallColumns) -> Mask:
    opens = calls.of(*_CONTEXT_OPENS)
    differ = [calls.octets_differ("request_tail", opens, at, at + 4, *_FLAG_OCTETS) for at in (0, 8)]
    return differ[0] | differ[1] | calls.text_in("byte_order", {"big"})


def _has_version(calls: CallColumns, *versions: tuple[int, int]) -> Mask:
    """Tell which calls name a version: one of some, where these are given."""
    given = calls.has("version_major") & calls.has("version_minor")
    numbers = calls.numbers("version_major") * _VERSION_STEPS + calls.numbers("version_minor")
    wanted = [major * _VERSION_STEPS + minor for major, minor in versions]
    return given & np.isin(numbers, wanted) if versions else given


def _section_types_are_invalid(calls: CallColumns) -> Mask:
    count = calls.lengths("section_types")
    kinds = [calls.first_elements("section_types", place) for place in (0, 1)]
    known = calls.nothing()
    for sequence in _SECTION_SEQUENCES:
        same = count == len(sequence)
        for kind, expected in zip(kinds, sequence, strict=False):
            same = same & (kind == expected)
        known |= same
    return (count > 0) & ~known


def _section_sizes_may_be_invalid(calls: CallColumns) -> Mask:
    found = calls.lengths("section_types") > _MOST_SECTIONS
    for place in range(_MOST_SECTIONS):
        kinds, allocated, sizes = (
            calls.first_elements(name, place) for name in ("section_types", "section_allocated_bytes", "section_bytes")
        )
        found |= (allocated < sizes) | (~np.isin(kinds, _FIRST_PART_TYPES) & (allocated != sizes))
    return found


def _has_body_of_known_size(calls: CallColumns) -> Mask:
    return calls.has("body_bytes") & calls.has("max_body_bytes") & ~calls.nonzero("is_srmp")


def _body_is_split_wrongly(calls: CallColumns) -> Mask:
    kinds = np.where(calls.lengths("section_types") > 0, calls.first_elements("section_types"), -1)
    larger = calls.numbers("body_bytes") > calls.numbers("max_body_bytes")
    result: Mask = _has_body_of_known_size(calls) & (((kinds == 0) & larger) | ((kinds == 1) & ~larger))
    return result


def _body_is_cut_wrongly(calls: CallColumns) -> Mask:
    left = calls.first_elements("section_allocated_bytes") - calls.first_elements("section_bytes")
    too_many = calls.numbers("body_bytes") - calls.numbers("max_body_bytes")
    cut = (calls.first_elements("section_types") == 1) & (too_many > 0)
    result: Mask = _has_body_of_known_size(calls) & cut & (left != too_many)
    return result


def _has_nonzero_octets_of_sections(calls: CallColumns) -> Mask:
    """Tell which responses have other octets than 0 where the count of sections, or the pointer to them, is."""
    reads, found = calls.of(*REMOTE_READ_READS), calls.nothing()
    for ours, at in ((reads, 16), (reads & ~calls.is_ndr64, 20), (reads & calls.is_ndr64, 24)):
        found |= calls.octets_differ("response_head", ours, at, at + 4, bytes(4))
    return found


def _extension_header_is_invalid(calls: CallColumns) -> Mask:
    size = calls.map_value("header_sizes", "ExtensionHeader")
    lacks = calls.nothing()
    for name in _EXTENSION_FLAGS.values():
        lacks |= ~calls.map_has("header_sizes", name)
    result: Mask = calls.map_has("header_sizes", "ExtensionHeader") & ((size != _EXTENSION_BYTES) | lacks)
    return result


@call_rule("R01", *_CONTEXT_OPENS, needs="headers", suspects=_format_name_type_may_be_invalid)
def format_name_type_invalid(call: CapturedCall) -> str | None:
    """The type of the format name is none that can be opened."""
    kind = call["queue_format_type"]
    if call.has_malformed_field("request", "m_qft"):
        return "an unknown m_qft" if kind is None else f"m_qft {kind}"
    return f"m_qft {kind}" if call.request_decoded and kind is not None and kind not in _OPENABLE_TYPES else None


@call_rule(
    "R02", *_CONTEXT_OPENS, suspects=lambda calls: calls.text_matches("queue_format_name", _names_other_protocol)
)
def direct_name_protocol_invalid(call: CapturedCall) -> str | None:
    """A direct format name has another protocol than TCP or OS."""
    name = call["queue_format_name"]
    if call["queue_format_type"] not in _DIRECT_TYPES or name is None:
        return None
    return name if _names_other_protocol(name) else None


@call_rule(
    "R03",
    *_CONTEXT_OPENS,
    suspects=lambda calls: (
        calls.octets_differ("request_head", calls.of(*_CONTEXT_OPENS), 1, 2, _PLAIN_SUFFIX)
        | calls.equals("queue_format_type", _MACHINE_TYPE)
    ),
)
def suffix_and_flags_invalid(call: CapturedCall) -> str | None:
    """Suffix, flags and type of the format name do not fit together."""
    head, kind = call["request_head"], call["queue_format_type"]
    if head is None or len(head) < 2 or kind is None:
        return None
    what, flags = head[1] & 0x0F, head[1] & 0xF0
    good = {
        0: flags == 0 and kind != 4,
        1: flags == _SYSTEM_QUEUE_FLAG and kind not in (5, 6, 7),
        2: flags == _SYSTEM_QUEUE_FLAG and kind in (3, 4),
        3: flags == _SYSTEM_QUEUE_FLAG and kind in (3, 4),
        4: kind == 5,
        5: flags == 0 and kind == 8,
    }.get(what, False)
    return None if good else f"m_SuffixAndFlags 0x{head[1]:02X} with m_qft {kind}"


@call_rule("R04", (REMOTE_READ_NAME, 2), suspects=_open_modes_are_invalid)
def open_modes_invalid(call: CapturedCall) -> str | None:
    """The access or the share mode is not allowed."""
    wrong = call["access"] not in (RECEIVE_ACCESS, PEEK_ACCESS) or call["share_mode"] not in (0, 1)
    return f"dwAccess {call['access']}, dwShareMode {call['share_mode']}" if wrong else None


@call_rule("R05", *_CONTEXT_OPENS, suspects=_open_flags_may_be_invalid)
def open_flags_invalid(call: CapturedCall) -> str | None:
    """A flag is neither 0 nor 1."""
    tail: bytes | None = call["request_tail"]
    if tail is None or len(tail) < 12:
        return None
    order = "big" if call["byte_order"] == "big" else "little"
    non_routing, workgroup = int.from_bytes(tail[:4], order), int.from_bytes(tail[8:], order)  # type: ignore[arg-type]
    return f"fNonRoutingServer {non_routing}, fWorkgroup {workgroup}" if max(non_routing, workgroup) > 1 else None


@call_rule("R06", *_CONTEXT_OPENS, suspects=lambda calls: _has_version(calls) & ~_has_version(calls, *_CLIENT_VERSIONS))
def client_version_invalid(call: CapturedCall) -> str | None:
    """The client's version is none that has RemoteRead."""
    version = (call["version_major"], call["version_minor"])
    return None if None in version or version in _CLIENT_VERSIONS else f"version {version[0]}.{version[1]}"


@call_rule(
    "R07",
    (REMOTE_READ_NAME, 2),
    needs="answer",
    suspects=lambda calls: _format_name_type_may_be_invalid(calls) | _open_modes_are_invalid(calls),
)
def invalid_open_answered(call: CapturedCall) -> str | None:
    """An invalid request to open a queue got a response, not a fault."""
    wrong = [text for text in (format_name_type_invalid(call), open_modes_invalid(call)) if isinstance(text, str)]
    return f"a response to {wrong[0]}" if wrong else None


@call_rule(
    "R21",
    *REMOTE_READ_READS,
    suspects=lambda calls: calls.has("action") & ~calls.equals("action", *SEQUENTIAL_ACTIONS, *LOOKUP_ACTIONS),
)
def read_action_invalid(call: CapturedCall) -> Violation | None:
    """The action is none of the nine that are allowed."""
    wrong = call["action"] is not None and call["action"] not in (*SEQUENTIAL_ACTIONS, *LOOKUP_ACTIONS)
    return violation_of_either(call, action_name(call)) if wrong else None


@call_rule(
    "R22",
    *REMOTE_READ_READS,
    suspects=lambda calls: (calls.requested_lookup_id != 0) & (waits(calls) | ~calls.equals("action", *LOOKUP_ACTIONS)),
)
def lookup_id_with_other_parameters(call: CapturedCall) -> Violation | None:
    """LookupId comes with a time-out, a cursor, or an action that does not allow it."""
    waits = bool(call["timeout_ms"]) or bool(call["cursor_handle"])
    wrong = call.requested_lookup_id != 0 and (waits or call["action"] not in LOOKUP_ACTIONS)
    if not wrong:
        return None
    parameters = f"{action_name(call)}, ulTimeout {call['timeout_ms']}, hCursor {call['cursor_handle']}"
    return violation_of_either(call, f"{parameters} with a LookupId")


@call_rule(
    "R23",
    *REMOTE_READ_READS,
    suspects=lambda calls: (calls.requested_lookup_id == 0) & calls.equals("action", *LOOKUP_ACTIONS),
)
def lookup_without_lookup_id(call: CapturedCall) -> Violation | None:
    """A lookup without LookupId; MQ_LOOKUP_RECEIVE_PREV is accepted (D4)."""
    if call["lookup_id"] is None or call.requested_lookup_id:
        return None
    wrong = call["action"] in LOOKUP_ACTIONS and call["action"] != _RECEIVE_PREV
    return violation_of_either(call, action_name(call)) if wrong else None


@call_rule(
    "R24",
    *REMOTE_READ_READS,
    suspects=lambda calls: (
        calls.nonzero("cursor_handle")
        & ((calls.requested_lookup_id != 0) | ~calls.equals("action", *SEQUENTIAL_ACTIONS))
    ),
)
def cursor_with_other_parameters(call: CapturedCall) -> Violation | None:
    """A cursor comes with LookupId, or with an action that does not allow it."""
    wrong = bool(call["cursor_handle"]) and (call.requested_lookup_id != 0 or call["action"] not in SEQUENTIAL_ACTIONS)
    if not wrong:
        return None
    return violation_of_either(call, f"{action_name(call)}, LookupId {call.requested_lookup_id} with a cursor")


@call_rule(
    "R25",
    *REMOTE_READ_READS,
    suspects=lambda calls: calls.equals("action", ACTION_PEEK_NEXT) & calls.equals("cursor_handle", 0),
)
def peek_next_without_cursor(call: CapturedCall) -> Violation | None:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    wrong = call["action"] == ACTION_PEEK_NEXT and call["cursor_handle"] == 0
    return violation_of_either(call, "hCursor 0") if wrong else None


@call_rule(
    "R26",
    *REMOTE_READ_READS,
    suspects=lambda calls: calls.equals("action", *LOOKUP_ACTIONS) & calls.nonzero("timeout_ms"),
)
def lookup_with_time_out(call: CapturedCall) -> Violation | None:
    """A lookup has a time-out."""
    wrong = call["action"] in LOOKUP_ACTIONS and bool(call["timeout_ms"])
    return violation_of_either(call, f"ulTimeout {call['timeout_ms']}") if wrong else None


@call_rule(
    "R34",
    *REMOTE_READ_READS,
    needs="headers",
    suspects=lambda calls: calls.has_errors | (calls.succeeded & ~np.isin(calls.lengths("section_types"), (1, 2))),
)
def section_count_invalid(call: CapturedCall) -> str | None:
    """MQ_OK without one or two sections, or with a count that differs from the array's."""
    if call.has_malformed_field("response", "ppPacketSections.max_count"):
        return "pdwNumberOfSections is not the array's count"
    if not call.succeeded:
        return None
    count = len(call["section_types"] or ())
    return None if count in (1, 2) else f"{count} sections"


@call_rule("R35", *REMOTE_READ_READS, needs="ok", suspects=_section_types_are_invalid)
def section_types_invalid(call: CapturedCall) -> str | None:
    """The types of the sections are no valid sequence."""
    types = call["section_types"]
    return f"section types {list(types)}" if types and list(types) not in _SECTION_SEQUENCES else None


@call_rule("R36", *REMOTE_READ_READS, needs="ok", suspects=_section_sizes_may_be_invalid)
def section_size_invalid(call: CapturedCall) -> str | None:
    """A complete section has another size than allocated, or a first part is larger than allocated."""
    parts = (call["section_types"] or (), call["section_allocated_bytes"] or (), call["section_bytes"] or ())
    for kind, allocated, size in zip(*parts, strict=False):
        if allocated < size or (kind not in _FIRST_PART_TYPES and allocated != size):
            return f"type {kind}: SectionSizeAlloc {allocated}, SectionSize {size}"
    return None


@call_rule("R37", *REMOTE_READ_READS, needs="headers", suspects=lambda calls: calls.has_errors)
def section_buffer_count_invalid(call: CapturedCall) -> bool:
    """SectionSize differs from the buffer's count."""
    return call.has_malformed_field("response", "pSectionBuffer.max_count")


@call_rule("R38", *REMOTE_READ_READS, needs="ok", suspects=_body_is_split_wrongly)
def body_split_wrongly(call: CapturedCall) -> str | None:
    """A body larger than requested came complete, or a smaller one came in parts."""
    body, most, types = call["body_bytes"], call["max_body_bytes"], call["section_types"]
    if body is None or most is None or not types or call["is_srmp"] or call["message_errors"]:
        return None
    if types[0] == 0 and body > most:
        return f"a body of {body} bytes whole, {most} asked for"
    return f"a body of {body} bytes cut, {most} asked for" if types[0] == 1 and body <= most else None


@call_rule("R39", *REMOTE_READ_READS, needs="ok", suspects=_body_is_cut_wrongly)
def body_cut_at_wrong_size(call: CapturedCall) -> str | None:
    """The bytes that were left out are not those beyond the requested size."""
    body, most, types = call["body_bytes"], call["max_body_bytes"], call["section_types"]
    if body is None or most is None or not types or types[0] != 1 or call["is_srmp"] or body <= most:
        return None
    left = call["section_allocated_bytes"][0] - call["section_bytes"][0]
    return f"{left} bytes left out, {body - most} too many" if left != body - most else None


@call_rule(
    "R41",
    *REMOTE_READ_READS,
    needs="ok",
    suspects=lambda calls: has_invalid_number(calls) | returned_another_message(calls),
)
def sequence_id_invalid(call: CapturedCall) -> str | None:
    """The message's number is 0, uses its top octet, or differs from the requested one."""
    number = call["sequence_id"]
    if number is None:
        return None
    if not number or int(number) > LOOKUP_ID_NUMBER_MASK:
        return f"SequenceId 0x{int(number):016X}"
    requested = call.requested_lookup_id
    wrong = call["action"] in LOOKUP_CURRENT_ACTIONS and call.lookup_id_number != requested & LOOKUP_ID_NUMBER_MASK
    return f"SequenceId {call.lookup_id_number}, LookupId {requested}" if wrong else None


@call_rule("R43", *REMOTE_READ_READS, needs="ok", suspects=lambda calls: calls.numbers("time_to_reach_queue_s") < 0)
def reach_queue_deadline_invalid(call: CapturedCall) -> str | None:
    """The time by which the message must reach its queue is before it was sent."""
    left = call["time_to_reach_queue_s"]
    return f"TimeToReachQueue {left} s after SentTime" if left is not None and left < 0 else None


@call_rule(
    "R44",
    *REMOTE_READ_READS,
    needs="answer",
    suspects=lambda calls: calls.failed & _has_nonzero_octets_of_sections(calls),
)
def sections_returned_on_failure(call: CapturedCall) -> str | None:
    """A read that failed returned sections."""
    if not call.failed:
        return None
    count = call.read_stub_integer("response", 16)
    pointer = call.read_stub_integer("response", 24 if call.is_ndr64 else 20)
    return f"pdwNumberOfSections {count}" if count or pointer else None


@call_rule(
    "R62",
    (REMOTE_READ_NAME, 11),
    suspects=lambda calls: ~(calls.equals("access", MOVE_ACCESS) & calls.equals("share_mode", 0)),
)
def move_open_modes_invalid(call: CapturedCall) -> str | None:
    """A queue is opened for moves with another access or share mode than allowed."""
    wrong = call["access"] != MOVE_ACCESS or call["share_mode"] != 0
    return f"dwAccess {call['access']}, dwShareMode {call['share_mode']}" if wrong else None


@call_rule("R63", (REMOTE_READ_NAME, 11), needs="answer")
def move_context_missing(call: CapturedCall) -> bool:
    """The response has no move context."""
    return not call["move_context"]


@call_rule("R64", (REMOTE_READ_NAME, 12))
def enlistment_invalid(call: CapturedCall) -> str | None:
    """A transaction without identifier, or a token that is empty or too large."""
    size = call["propagation_token_bytes"]
    if call["transaction_id"] is None:
        return "no transaction"
    return f"a token of {size} bytes" if size is not None and not 0 < size <= MAX_TOKEN_BYTES else None


@call_rule("R65", (REMOTE_READ_NAME, 0), needs="answer")
def returned_port_invalid(call: CapturedCall) -> str | None:
    """The returned port is none at which a queue manager listens."""
    return None if is_valid_port(0, call["returned_port"]) else f"port {call['returned_port']}"


@call_rule(
    "R66", (REMOTE_READ_NAME, 13), needs="ok", suspects=lambda calls: calls.has("transaction_id") & calls.is_peek
)
def transactional_peek_accepted(call: CapturedCall) -> bool:
    """A peek in a transaction was answered MQ_OK."""
    return call["transaction_id"] is not None and call.is_peek


@call_rule("R67", (REMOTE_READ_NAME, 13), suspects=lambda calls: calls.has("transaction_id") & calls.is_peek)
def transactional_peek(call: CapturedCall) -> str | None:
    """A peek is part of a transaction."""
    return action_name(call) if call["transaction_id"] is not None and call.is_peek else None


@call_rule("R68", (REMOTE_READ_NAME, 14))
def acknowledgement_class_invalid(call: CapturedCall) -> str | None:
    """The class is neither 0 nor that of a rejected message."""
    wrong = call["acknowledgement_class"] not in (None, 0, _REJECTED_CLASS)
    return f"usClass 0x{call['acknowledgement_class']:04X}" if wrong else None


@call_rule(
    "R76",
    *REMOTE_READ_READS,
    needs="ok",
    suspects=lambda calls: calls.has_message_errors | _extension_header_is_invalid(calls),
)
def extension_header_invalid(call: CapturedCall) -> str | None:
    """The ExtensionHeader does not have 12 bytes, or its fields are invalid."""
    size = (call["header_sizes"] or {}).get("ExtensionHeader")
    wrong = [e["field"] for e in call["message_errors"] or () if str(e["field"] or "").startswith("ExtensionHeader.")]
    if wrong:
        return f"{wrong[0]} is wrong"
    if size is None:
        return None
    lacks = [flag for flag, name in _EXTENSION_FLAGS.items() if name not in call["header_sizes"]]
    return f"HeaderSize {size}" if size != _EXTENSION_BYTES else f"{' and '.join(lacks)} not set" if lacks else None


@call_rule("R77", *REMOTE_READ_READS, needs="ok", suspects=lambda calls: calls.has_message_errors)
def subqueue_header_invalid(call: CapturedCall) -> Violation | None:
    """A field of the SubqueueHeader or the ExtendedAddressHeader is invalid."""
    for error in call["message_errors"] or ():
        section = _TRAILER_SECTIONS.get(str(error["field"] or "").partition(".")[0])
        if section is not None:
            return Violation(call, f"{error['field']} is wrong", source=f"MS-MQRR {section}")
    return None
