"""Rules on one call of RemoteRead: R01 to R78. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask
from pipeline.findings.columns.call_history import LOOKUP_ID_NUMBER_MASK, REMOTE_READ_READS
from pipeline.findings.rules.qm2qm import (
    ACTION_PEEK_NEXT,
    LOOKUP_ACTIONS,
    SEQUENTIAL_ACTIONS,
    action_name,
    is_valid_port,
    returned_another_message,
    waits,
)
from pipeline.findings.rules.registry import ViolatingCalls, call_rule
from udfs.codes import PEEK_ACCESS, RECEIVE_ACCESS
from udfs.dcerpc.interfaces import REMOTE_READ_NAME

_CONTEXT_OPENS: Final = ((REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11))
_MOVE_ACCESS: Final = 0x04
_OPENABLE_TYPES: Final = (1, 2, 3, 4, 8)
_DIRECT_TYPES: Final = (3, 8)
MAX_TOKEN_BYTES: Final = 131_072
_SECTION_SEQUENCES: Final = ([0], [1], [1, 2], [3], [3, 4])
_FIRST_PART_TYPES: Final = (1, 3)
_CLIENT_VERSIONS: Final = {(5, 2), (6, 0), (6, 1)}
_RECEIVE_PREV: Final = 0x40000022
_REJECTED_CLASS: Final = 0xC004
_EXTENSION_BYTES: Final = 12
_EXTENSION_FLAGS: Final = {"SQ": "SubqueueHeader", "EA": "ExtendedAddressHeader"}
_TRAILER_SECTIONS: Final = {"SubqueueHeader": "2.2.5.3", "ExtendedAddressHeader": "2.2.5.5"}
_SYSTEM_QUEUE_FLAG: Final = 0x80


def has_invalid_open_modes(calls: AssociationCallColumns) -> Mask:
    """Tell which opens have an access or share mode that no open for reading has."""
    return ~(calls.equals("access", RECEIVE_ACCESS, PEEK_ACCESS) & calls.equals("share_mode", 0, 1))


@call_rule("R01", *_CONTEXT_OPENS, needs="headers")
def format_name_type_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The type of the format name is none that can be opened."""
    malformed, known = calls.has_malformed_field("request", "m_qft"), calls.has("queue_format_type")
    yield ViolatingCalls(malformed & ~known, "an unknown m_qft")
    unopenable = calls.request_decoded & known & ~calls.equals("queue_format_type", *_OPENABLE_TYPES)
    yield ViolatingCalls(malformed | unopenable, "m_qft {queue_format_type}")


@call_rule("R02", *_CONTEXT_OPENS)
def direct_name_protocol_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A direct format name has another protocol than TCP or OS."""
    other = calls.text_matches("queue_format_name", _names_other_protocol)
    yield ViolatingCalls(calls.equals("queue_format_type", *_DIRECT_TYPES) & other, "{queue_format_name}")


def _names_other_protocol(name: str) -> bool:
    """Tell whether a direct format name has another protocol than TCP or OS."""
    return not name.partition("=")[2].upper().startswith(("TCP:", "OS:"))


@call_rule("R03", *_CONTEXT_OPENS)
def suffix_and_flags_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """Suffix, flags and type of the format name do not fit together."""
    there, octets = calls.octets("request_head", calls.of(*_CONTEXT_OPENS), 1, 2)
    octet = np.zeros(calls.count, np.uint8)
    octet[there] = octets[:, 0]
    suffix, flags, kind = octet & 0x0F, octet & 0xF0, calls.numbers("queue_format_type")
    plain, system = flags == 0, flags == _SYSTEM_QUEUE_FLAG
    good = (
        ((suffix == 0) & plain & (kind != 4))
        | ((suffix == 1) & system & ~np.isin(kind, (5, 6, 7)))
        | (np.isin(suffix, (2, 3)) & system & np.isin(kind, (3, 4)))
        | ((suffix == 4) & (kind == 5))
        | ((suffix == 5) & plain & (kind == 8))
    )
    wrong = there & calls.has("queue_format_type") & ~good
    yield ViolatingCalls(wrong, "m_SuffixAndFlags 0x{:02X} with m_qft {queue_format_type}", (octet,))


@call_rule("R04", (REMOTE_READ_NAME, 2))
def open_modes_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The access or the share mode is not allowed."""
    yield ViolatingCalls(has_invalid_open_modes(calls), "dwAccess {access}, dwShareMode {share_mode}")


@call_rule("R05", *_CONTEXT_OPENS)
def open_flags_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A flag is neither 0 nor 1."""
    opens = calls.of(*_CONTEXT_OPENS)
    non_routing, workgroup = (calls.stub_integers("request_tail", opens, at)[1][0] for at in (0, 8))
    wrong = (non_routing > 1) | (workgroup > 1)
    yield ViolatingCalls(wrong, "fNonRoutingServer {}, fWorkgroup {}", (non_routing, workgroup))


@call_rule("R06", *_CONTEXT_OPENS)
def client_version_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The client's version is none that has RemoteRead."""
    known = calls.nothing()
    for major, minor in _CLIENT_VERSIONS:
        known |= calls.equals("version_major", major) & calls.equals("version_minor", minor)
    named = calls.has("version_major") & calls.has("version_minor")
    yield ViolatingCalls(named & ~known, "version {version_major}.{version_minor}")


@call_rule("R07", (REMOTE_READ_NAME, 2), needs="answer")
def invalid_open_answered(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """An invalid request to open a queue got a response, not a fault."""
    for check in (format_name_type_invalid, open_modes_invalid):
        for found in check(calls):
            yield found._replace(actual=f"a response to {found.actual}")


@call_rule("R21", *REMOTE_READ_READS)
def read_action_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The action is none of the nine that are allowed."""
    other = calls.has("action") & ~calls.equals("action", *SEQUENTIAL_ACTIONS, *LOOKUP_ACTIONS)
    yield ViolatingCalls(other, action_name, of_either=True)


@call_rule("R22", *REMOTE_READ_READS)
def lookup_id_with_other_parameters(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """LookupId comes with a time-out, a cursor, or an action that does not allow it."""
    yield ViolatingCalls(
        (calls.requested_lookup_id != 0) & (waits(calls) | ~calls.equals("action", *LOOKUP_ACTIONS)),
        lambda call: (
            f"{action_name(call)}, ulTimeout {call['timeout_ms']}, hCursor {call['cursor_handle']} with a LookupId"
        ),
        of_either=True,
    )


@call_rule("R23", *REMOTE_READ_READS)
def lookup_without_lookup_id(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A lookup without LookupId; MQ_LOOKUP_RECEIVE_PREV is accepted (D4)."""
    names_one = calls.equals("action", *(action for action in LOOKUP_ACTIONS if action != _RECEIVE_PREV))
    yield ViolatingCalls(names_one & calls.equals("lookup_id", 0), action_name, of_either=True)


@call_rule("R24", *REMOTE_READ_READS)
def cursor_with_other_parameters(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A cursor comes with LookupId, or with an action that does not allow it."""
    other = (calls.requested_lookup_id != 0) | ~calls.equals("action", *SEQUENTIAL_ACTIONS)
    yield ViolatingCalls(
        calls.nonzero("cursor_handle") & other,
        lambda call: f"{action_name(call)}, LookupId {call.requested_lookup_id} with a cursor",
        of_either=True,
    )


@call_rule("R25", *REMOTE_READ_READS)
def peek_next_without_cursor(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    wrong = calls.equals("action", ACTION_PEEK_NEXT) & calls.equals("cursor_handle", 0)
    yield ViolatingCalls(wrong, "hCursor 0", of_either=True)


@call_rule("R26", *REMOTE_READ_READS)
def lookup_with_time_out(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A lookup has a time-out."""
    wrong = calls.equals("action", *LOOKUP_ACTIONS) & calls.nonzero("timeout_ms")
    yield ViolatingCalls(wrong, "ulTimeout {timeout_ms}", of_either=True)


@call_rule("R34", *REMOTE_READ_READS, needs="headers")
def section_count_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MQ_OK without one or two sections, or with a count that differs from the array's."""
    malformed = calls.has_malformed_field("response", "ppPacketSections.max_count")
    yield ViolatingCalls(malformed, "pdwNumberOfSections is not the array's count")
    count = calls.lengths("section_types")
    yield ViolatingCalls(calls.succeeded & ~np.isin(count, (1, 2)), "{} sections", (count,))


@call_rule("R35", *REMOTE_READ_READS, needs="ok")
def section_types_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The types of the sections are no valid sequence."""
    count = calls.lengths("section_types")
    kinds = [calls.first_elements("section_types", place) for place in (0, 1)]
    known = calls.nothing()
    for sequence in _SECTION_SEQUENCES:
        same = count == len(sequence)
        for kind, expected in zip(kinds, sequence, strict=False):
            same = same & (kind == expected)
        known |= same
    yield ViolatingCalls((count > 0) & ~known, "section types {section_types}")


@call_rule("R36", *REMOTE_READ_READS, needs="ok")
def section_size_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A complete section has another size than allocated, or a first part is larger than allocated."""
    names = ("section_types", "section_allocated_bytes", "section_bytes")
    rows, (kinds, allocated, sizes) = calls.elements_side_by_side(*names)
    bad = (allocated < sizes) | (~np.isin(kinds, _FIRST_PART_TYPES) & (allocated != sizes))
    broken, first = np.unique(rows[bad], return_index=True)
    wrong, values = calls.nothing(), np.zeros((3, calls.count), np.int64)
    wrong[broken] = True
    values[:, broken] = [part[bad][first] for part in (kinds, allocated, sizes)]
    yield ViolatingCalls(wrong, "type {}: SectionSizeAlloc {}, SectionSize {}", tuple(values))


@call_rule("R37", *REMOTE_READ_READS, needs="headers")
def section_buffer_count_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """SectionSize differs from the buffer's count."""
    yield ViolatingCalls(calls.has_malformed_field("response", "pSectionBuffer.max_count"))


def _has_body_of_known_size(calls: AssociationCallColumns) -> Mask:
    has_sections = calls.lengths("section_types") > 0
    known = calls.has("body_bytes") & calls.has("max_body_bytes") & has_sections
    return known & ~calls.nonzero("is_srmp")


@call_rule("R38", *REMOTE_READ_READS, needs="ok")
def body_split_wrongly(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A body larger than requested came complete, or a smaller one came in parts."""
    ours, kind = _has_body_of_known_size(calls) & ~calls.has_message_errors, calls.first_elements("section_types")
    larger = calls.numbers("body_bytes") > calls.numbers("max_body_bytes")
    for wrong, how in (((kind == 0) & larger, "whole"), ((kind == 1) & ~larger, "cut")):
        yield ViolatingCalls(ours & wrong, f"a body of {{body_bytes}} bytes {how}, {{max_body_bytes}} asked for")


@call_rule("R39", *REMOTE_READ_READS, needs="ok")
def body_cut_at_wrong_size(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The bytes that were left out are not those beyond the requested size."""
    left = calls.first_elements("section_allocated_bytes") - calls.first_elements("section_bytes")
    too_many = calls.numbers("body_bytes") - calls.numbers("max_body_bytes")
    cut = _has_body_of_known_size(calls) & (calls.first_elements("section_types") == 1) & (too_many > 0)
    yield ViolatingCalls(cut & (left != too_many), "{} bytes left out, {} too many", (left, too_many))


@call_rule("R41", *REMOTE_READ_READS, needs="ok")
def sequence_id_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The message's number is 0, uses its top octet, or differs from the requested one."""
    uses_top = calls.numbers("sequence_id").astype(np.uint64) > LOOKUP_ID_NUMBER_MASK
    yield ViolatingCalls(uses_top | calls.equals("sequence_id", 0), "SequenceId 0x{sequence_id:016X}")
    numbers = (calls.lookup_id_number, calls.requested_lookup_id)
    yield ViolatingCalls(returned_another_message(calls), "SequenceId {}, LookupId {}", numbers)


@call_rule("R43", *REMOTE_READ_READS, needs="ok")
def reach_queue_deadline_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The time by which the message must reach its queue is before it was sent."""
    early = calls.numbers("time_to_reach_queue_s") < 0
    yield ViolatingCalls(early, "TimeToReachQueue {time_to_reach_queue_s} s after SentTime")


@call_rule("R44", *REMOTE_READ_READS, needs="answer")
def sections_returned_on_failure(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A read that failed returned sections."""
    reads = calls.of(*REMOTE_READ_READS) & calls.failed
    count = calls.stub_integers("response_head", reads, 16)[1][0]
    pointers = [
        calls.stub_integers("response_head", reads & (calls.is_ndr64 == is_ndr64), at)[1][0]
        for is_ndr64, at in ((False, 20), (True, 24))
    ]
    yield ViolatingCalls((count | pointers[0] | pointers[1]) != 0, "pdwNumberOfSections {}", (count,))


@call_rule("R62", (REMOTE_READ_NAME, 11))
def move_open_modes_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A queue is opened for moves with another access or share mode than allowed."""
    allowed = calls.equals("access", _MOVE_ACCESS) & calls.equals("share_mode", 0)
    yield ViolatingCalls(~allowed, "dwAccess {access}, dwShareMode {share_mode}")


@call_rule("R63", (REMOTE_READ_NAME, 11), needs="answer")
def move_context_missing(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The response has no move context."""
    yield ViolatingCalls(~calls.nonzero("move_context"))


@call_rule("R64", (REMOTE_READ_NAME, 12))
def enlistment_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A transaction without identifier, or a token that is empty or too large."""
    yield ViolatingCalls(~calls.has("transaction_id"), "no transaction")
    size = calls.numbers("propagation_token_bytes")
    wrong = calls.has("propagation_token_bytes") & ((size <= 0) | (size > MAX_TOKEN_BYTES))
    yield ViolatingCalls(wrong, "a token of {propagation_token_bytes} bytes")


@call_rule("R65", (REMOTE_READ_NAME, 0), needs="answer")
def returned_port_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The returned port is none at which a queue manager listens."""
    yield ViolatingCalls(~is_valid_port(calls, 0), "port {returned_port}")


@call_rule("R66", (REMOTE_READ_NAME, 13), needs="ok")
def transactional_peek_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A peek in a transaction was answered MQ_OK."""
    yield ViolatingCalls(calls.has("transaction_id") & calls.is_peek)


@call_rule("R67", (REMOTE_READ_NAME, 13))
def transactional_peek(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A peek is part of a transaction."""
    yield ViolatingCalls(calls.has("transaction_id") & calls.is_peek, action_name)


@call_rule("R68", (REMOTE_READ_NAME, 14))
def acknowledgement_class_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The class is neither 0 nor that of a rejected message."""
    wrong = calls.has("acknowledgement_class") & ~calls.equals("acknowledgement_class", 0, _REJECTED_CLASS)
    yield ViolatingCalls(wrong, "usClass 0x{acknowledgement_class:04X}")


@call_rule("R76", *REMOTE_READ_READS, needs="ok")
def extension_header_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The ExtensionHeader does not have 12 bytes, or its fields are invalid."""
    wrong, fields = calls.first_of_elements("message_errors", _extension_header_field)
    yield ViolatingCalls(wrong, "{} is wrong", (fields,))
    size = calls.map_value("header_sizes", "ExtensionHeader")
    has_header = size >= 0
    yield ViolatingCalls(has_header & (size != _EXTENSION_BYTES), "HeaderSize {}", (size,))
    lacks = {flag: has_header & ~calls.map_has("header_sizes", name) for flag, name in _EXTENSION_FLAGS.items()}
    for flags in ([*lacks], *([flag] for flag in lacks)):
        without = np.logical_and.reduce([lacks[flag] for flag in flags])
        yield ViolatingCalls(without, f"{' and '.join(flags)} not set")


def _extension_header_field(error: dict[str, Any]) -> str | None:
    name = str(error["field"] or "")
    return name if name.startswith("ExtensionHeader.") else None


@call_rule("R77", *REMOTE_READ_READS, needs="ok")
def subqueue_header_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A field of the SubqueueHeader or the ExtendedAddressHeader is invalid."""
    wrong, fields = calls.first_of_elements("message_errors", _trailer_field)
    yield ViolatingCalls(wrong, "{0[0]} is wrong", (fields,), source="MS-MQRR {0[1]}")


def _trailer_field(error: dict[str, Any]) -> tuple[str, str] | None:
    """Return the field of a header behind the message that an error is of, and the section on the header."""
    name = str(error["field"] or "")
    section = _TRAILER_SECTIONS.get(name.partition(".")[0])
    return None if section is None else (name, section)
