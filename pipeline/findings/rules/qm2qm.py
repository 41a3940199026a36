"""Rules on one call of qm2qm: Q01 to Q69, with those of RemoteRead that check the same. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Numbers
from pipeline.findings.columns.call_history import LOOKUP_ID_NUMBER_MASK, QM2QM_READS, REMOTE_READ_READS, CapturedCall
from pipeline.findings.rules.registry import ViolatingCalls, call_rule
from udfs.codes import ACTION_NAMES, RR_ACK, RR_NACK, code_name
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

SEQUENTIAL_ACTIONS: Final = (0x00000000, 0x80000000, 0x80000001)
ACTION_PEEK_NEXT: Final = 0x80000001
LOOKUP_ACTIONS: Final = (0x40000010, 0x40000011, 0x40000012, 0x40000020, 0x40000021, 0x40000022)
LOOKUP_CURRENT_ACTIONS: Final = (0x40000010, 0x40000020)
LOOKUP_NEXT_ACTIONS: Final = (0x40000011, 0x40000021)
_MAX_PACKET_BYTES: Final = 0x00420000
ACCESS_DENIED: Final = (0x00000005, 0xC00E0025)
_NIL_GUID: Final = "00000000-0000-0000-0000-000000000000"
_MIN_BUILDS: Final = {(5, 1): 1020, (5, 2): 1716, (6, 0): 6000, (6, 1): 6531}
_FIRST_PORTS: Final = {0: 2103, 2: 2103, 1: 2105, 3: 2105}
_PORT_STEP: Final = 11
_LAST_PORT_TYPE: Final = 3
_DESCRIPTOR_OFFSETS: Final = {
    "request": {0: (0, 0), 9: (16, 16), 10: (24, 24)}, "response": {0: (20, 24), 9: (40, 40), 10: (40, 40)},
}  # fmt: skip
"""Of a REMOTEREADDESC, by side and opnum: in NDR and in NDR64."""
_DESCRIPTOR_INTEGERS: Final = 7  # those that rules look at
_SIZE_OFFSET: Final = 16
_ECHOED_FIELDS: Final = ((0, "hRemoteQueue"), (4, "hCursor"), (8, "ulAction"), (12, "ulTimeout"), (20, "dwQueue"),
                  (24, "dwRequestID"))  # fmt: skip
_REQUEST_BYTES_WITHOUT_BUFFER: Final = {0: (44, 48), 9: (60, 64), 10: (68, 72)}
_SEQUENTIAL_ID_OFFSET: Final = 8
_CLOCK_SKEW_US: Final = 300_000_000
_HANDLE_BYTES: Final = 20


def waits(calls: AssociationCallColumns) -> Mask:
    """Tell which reads have a time-out or a cursor."""
    return calls.nonzero("timeout_ms") | calls.nonzero("cursor_handle")


def returned_another_message(calls: AssociationCallColumns) -> Mask:
    """Tell which lookups of a message by its number returned another number."""
    requested = calls.requested_lookup_id & np.uint64(LOOKUP_ID_NUMBER_MASK)
    other = (calls.lookup_id_number != 0) & (calls.lookup_id_number != requested.astype(np.int64))
    result: Mask = calls.equals("action", *LOOKUP_CURRENT_ACTIONS) & other
    return result


def _read_layouts(calls: AssociationCallColumns) -> Iterator[tuple[Mask, int, bool]]:
    """Yield the reads of qm2qm by the layout of their stubs: which they are, their opnum, and whether it is NDR64."""
    for method in QM2QM_READS:
        for is_ndr64 in (False, True):
            yield calls.of(method) & (calls.is_ndr64 == is_ndr64), method[1], is_ndr64


def _descriptors(calls: AssociationCallColumns, side: str) -> tuple[Mask, list[Numbers]]:
    """Return which reads have a descriptor on a side, and its first integers; 0 without."""
    return calls.share(("descriptors", side), lambda: _read_descriptors(calls, side))


def _read_descriptors(calls: AssociationCallColumns, side: str) -> tuple[Mask, list[Numbers]]:
    there, integers = calls.nothing(), np.zeros((_DESCRIPTOR_INTEGERS, calls.count), np.uint64)
    for reads, opnum, is_ndr64 in _read_layouts(calls):
        at = _DESCRIPTOR_OFFSETS[side][opnum][is_ndr64]
        found, theirs = calls.stub_integers(f"{side}_head", reads, at, count=_DESCRIPTOR_INTEGERS)
        if found.any():
            there |= found
            integers[:, found] = [each[found] for each in theirs]
    return there, list(integers)


def has_null_handle(calls: AssociationCallColumns, name: str) -> Mask:
    """Tell where a handle is NULL, or is not there."""
    return ~calls.text_matches(name, bool)


def action_name(call: CapturedCall) -> str:
    """Return the action of a read as the specifications name it."""
    return "no action" if call["action"] is None else code_name(ACTION_NAMES, call["action"])


def client_section(read: CapturedCall) -> str:
    """Return the document and section that describe how a client reads in this way: with a cursor, a transaction."""
    by_cursor = bool(read["cursor_handle"])
    if read.method[0] == QM2QM_NAME:
        number = (5 if by_cursor else 2) if read.is_peek else (6 if by_cursor else 3)
        return f"MS-MQQP 3.2.4.{number}"
    if read.is_peek:
        return f"MS-MQRR 3.2.4.{9 if by_cursor else 3}"
    return f"MS-MQRR 3.2.4.{10 if by_cursor else 4}.{1 if read.method == REMOTE_READ_READS[0] else 2}"


def is_valid_port(calls: AssociationCallColumns, *port_types: int) -> Mask:
    """Tell where a port is valid for its port type, one of some: the first of the type, or that plus a multiple of 11.

    Without ``port_types`` it is valid for the type of the call.
    """
    port, found = calls.numbers("returned_port"), calls.nothing()
    for port_type, first in _FIRST_PORTS.items():
        valid = (port >= first) & ((port - first) % _PORT_STEP == 0)
        found |= valid & (calls.equals("port_type", port_type) if not port_types else port_type in port_types)
    return found


@call_rule("Q01", *QM2QM_READS)
def request_descriptor_size_not_zero(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The descriptor of a request has a dwSize other than 0."""
    size = _descriptors(calls, "request")[1][_SIZE_OFFSET // 4]
    yield ViolatingCalls(size != 0, "dwSize {}", (size,))


@call_rule("Q02", *QM2QM_READS)
def request_descriptor_has_buffer(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A request is longer than its descriptor without a buffer."""
    for reads, opnum, is_ndr64 in _read_layouts(calls):
        most = _REQUEST_BYTES_WITHOUT_BUFFER[opnum][is_ndr64]
        longer = reads & (calls.numbers("request_bytes") > most)
        yield ViolatingCalls(longer, f"{{request_bytes}} bytes, {most} without lpBuffer")


@call_rule("Q03", *QM2QM_READS, needs="headers")
def response_packet_size_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The packet of the response is larger than allowed, or its counts differ."""
    yield ViolatingCalls(calls.numbers("packet_bytes") > _MAX_PACKET_BYTES, "dwSize {packet_bytes}")
    yield ViolatingCalls(calls.has_malformed_field("response", "lpBuffer.max_count"), "the counts of lpBuffer differ")


@call_rule("Q04", *QM2QM_READS, needs="ok")
def response_packet_missing_or_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MQ_OK without a packet, or with a packet whose header is invalid."""
    yield ViolatingCalls(~calls.nonzero("packet_bytes"), "no packet")
    wrong, fields = calls.first_of_elements("message_errors", _base_header_field)
    yield ViolatingCalls(wrong, "{} is wrong", (fields,))


def _base_header_field(error: dict[str, Any]) -> str | None:
    name = str(error["field"] or "")
    return name if name.startswith("BaseHeader.") else None


@call_rule("Q05", (QM2QM_NAME, 0), (QM2QM_NAME, 9))
def read_action_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The action is none of the three that are allowed."""
    yield ViolatingCalls(calls.has("action") & ~calls.equals("action", *SEQUENTIAL_ACTIONS), action_name)


@call_rule("Q06", (QM2QM_NAME, 10))
def lookup_action_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The action is none of the six that are allowed."""
    yield ViolatingCalls(calls.has("action") & ~calls.equals("action", *LOOKUP_ACTIONS), action_name)


@call_rule("Q07", (QM2QM_NAME, 0), (QM2QM_NAME, 9))
def peek_next_without_cursor(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    wrong = calls.equals("action", ACTION_PEEK_NEXT) & calls.equals("cursor_handle", 0)
    yield ViolatingCalls(wrong, "hCursor 0", of_either=True)


@call_rule("Q14", *QM2QM_READS, needs="ok")
def received_message_without_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A receive returned a message without a handle to end it."""
    yield ViolatingCalls(calls.is_receive & ~calls.has("remote_read_handle"))


@call_rule("Q15", *QM2QM_READS, needs="answer")
def handle_returned_without_receive(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A peek, or a read that failed, returned a handle."""
    returned = ~has_null_handle(calls, "remote_read_handle")
    yield ViolatingCalls(returned & calls.failed, "a handle for a failure")
    yield ViolatingCalls(returned & calls.succeeded & calls.is_peek, "a handle for a peek")


@call_rule("Q17", (QM2QM_NAME, 1))
def end_with_null_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """RemoteQMEndReceive with a NULL handle, for instance after a peek."""
    yield ViolatingCalls(has_null_handle(calls, "remote_read_handle"))


@call_rule("Q19", (QM2QM_NAME, 1), needs="ok")
def end_with_null_handle_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """RemoteQMEndReceive with a NULL handle was answered MQ_OK."""
    yield ViolatingCalls(has_null_handle(calls, "remote_read_handle"))


@call_rule("Q20", (QM2QM_NAME, 1))
@call_rule("R49", (REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15))
def acknowledgement_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The acknowledgement is neither RR_NACK nor RR_ACK."""
    yield ViolatingCalls(~calls.equals("ack", RR_NACK, RR_ACK), "dwAck {ack}")


@call_rule("Q21", (QM2QM_NAME, 1), needs="ok")
@call_rule("Q37", (QM2QM_NAME, 3), needs="ok")
@call_rule("R12", (REMOTE_READ_NAME, 3), needs="ok")
def handle_returned_after_end_or_close(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The response returns a handle that is not NULL."""
    ours = calls.of((QM2QM_NAME, 1), (QM2QM_NAME, 3), (REMOTE_READ_NAME, 3))
    returned, handles = calls.octets("response_head", ours, 0, _HANDLE_BYTES)
    returned[returned] = handles.any(axis=1)
    yield ViolatingCalls(returned)


@call_rule("Q26", (QM2QM_NAME, 2))
def open_with_zero_number(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """An open without a queue number or without a context."""
    wrong = calls.equals("queue_descriptor", 0) | calls.equals("open_context", 0)
    yield ViolatingCalls(wrong, "pQueue {queue_descriptor}, dwpContext {open_context}", of_either=True)


@call_rule("Q29", (QM2QM_NAME, 2), needs="ok")
def open_without_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MQ_OK without a context handle."""
    yield ViolatingCalls(has_null_handle(calls, "context_handle"))


@call_rule("Q31", (QM2QM_NAME, 2))
def server_port_parameter_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The value of dwMQS is neither 0 nor 1."""
    yield ViolatingCalls(calls.has("mqs") & ~calls.equals("mqs", 0, 1), "dwMQS {mqs}")


@call_rule("Q32", (QM2QM_NAME, 2))
def client_identifier_nil(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The client's identifier is nil."""
    yield ViolatingCalls(calls.text_in("client_id", {_NIL_GUID}), "a nil GUID")


@call_rule("Q36", (QM2QM_NAME, 3), needs="ok")
def close_of_null_handle_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The close of a NULL handle was answered MQ_OK."""
    yield ViolatingCalls(has_null_handle(calls, "context_handle"))


@call_rule("Q42", (QM2QM_NAME, 5))
def cancel_without_queue(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A cancel without a queue."""
    wrong = calls.equals("queue_descriptor", 0) | calls.equals("queue_handle", 0)
    yield ViolatingCalls(wrong, "pQueue {queue_descriptor}, hQueue {queue_handle}", of_either=True)


@call_rule("Q50", (QM2QM_NAME, 7))
def port_type_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The port type is none of the four that exist; the server may have answered with a port."""
    wrong = calls.numbers("port_type") > _LAST_PORT_TYPE
    answered = calls.response_decoded & calls.nonzero("returned_port")
    yield ViolatingCalls(wrong & answered, "dwPortType {port_type}, port {returned_port}", by_server=True)
    yield ViolatingCalls(wrong, "dwPortType {port_type}", by_server=False)


@call_rule("Q52", (QM2QM_NAME, 7), needs="answer")
def returned_port_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The returned port is none at which a queue manager listens."""
    of_known_type = calls.equals("port_type", *_FIRST_PORTS) & calls.nonzero("returned_port")
    yield ViolatingCalls(of_known_type & ~is_valid_port(calls), "port {returned_port}")


@call_rule("Q53", (QM2QM_NAME, 7), needs="headers")
def port_query_denied(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The query for the port was denied."""
    yield ViolatingCalls(calls.equals("fault_status", *ACCESS_DENIED), lambda call: call.fault_text)


@call_rule("Q54", (QM2QM_NAME, 8), needs="answer")
def server_version_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The version is none that was released."""
    released = calls.nothing()
    for (major, minor), least in _MIN_BUILDS.items():
        recent = ~calls.has("build_number") | (calls.numbers("build_number") >= least)
        released |= calls.equals("version_major", major) & calls.equals("version_minor", minor) & recent
    named = calls.has("version_major") & calls.has("version_minor")
    yield ViolatingCalls(named & ~released, "version {version_major}.{version_minor}.{build_number}")


@call_rule("Q57", (QM2QM_NAME, 9), (QM2QM_NAME, 10))
def null_descriptor(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The descriptor is NULL: the request has no action."""
    yield ViolatingCalls(~calls.has("action"), "pRemoteReadDesc NULL", of_either=True)


@call_rule("Q58", (QM2QM_NAME, 9))
def request_sequential_id_not_zero(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The SequentialId of a request is not 0."""
    _, (number,) = calls.stub_integers("request_head", calls.of((QM2QM_NAME, 9)), _SEQUENTIAL_ID_OFFSET, 8)
    yield ViolatingCalls(number != 0, "SequentialId {}", (number,), source=client_section)


@call_rule("Q59", (QM2QM_NAME, 9), (QM2QM_NAME, 10), needs="answer")
def response_sequential_id_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The SequentialId of a response uses its top octet, or is 0 with a message."""
    uses_top = calls.numbers("sequence_id").astype(np.uint64) > LOOKUP_ID_NUMBER_MASK
    yield ViolatingCalls(uses_top, "SequentialId 0x{sequence_id:016X}")
    yield ViolatingCalls(calls.succeeded & calls.equals("sequence_id", 0), "SequentialId 0")


@call_rule("Q60", (QM2QM_NAME, 10), needs="ok")
def lookup_returned_another_message(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The response has another message than the one that was requested by its number."""
    numbers = (calls.lookup_id_number, calls.requested_lookup_id)
    yield ViolatingCalls(returned_another_message(calls), "SequentialId {}, LookupId {}", numbers)


@call_rule("Q61", (QM2QM_NAME, 10), needs="ok")
def lookup_with_wait_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A lookup without a queue, with a time-out, or with a cursor was answered MQ_OK."""
    yield ViolatingCalls(waits(calls) | ~calls.nonzero("queue_handle"))


@call_rule("Q62", (QM2QM_NAME, 10))
def lookup_with_wait(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A lookup has a time-out or a cursor."""
    yield ViolatingCalls(waits(calls), "ulTimeout {timeout_ms}, hCursor {cursor_handle}")


@call_rule("Q63", (QM2QM_NAME, 10))
def lookup_without_lookup_id(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """LookupId is 0 in a request that must name a message."""
    names_one = calls.equals("action", *(action for action in LOOKUP_ACTIONS if action not in LOOKUP_NEXT_ACTIONS))
    wrong = names_one & calls.equals("lookup_id", 0)
    yield ViolatingCalls(wrong, lambda call: f"{action_name(call)} of LookupId 0")


@call_rule("Q65", *QM2QM_READS, needs="ok")
@call_rule("R42", *REMOTE_READ_READS, needs="ok")
def arrival_time_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The message's arrival time is missing, in the future, or before it was sent."""
    at, known = calls.numbers("arrived_at"), calls.has("arrived_at")
    yield ViolatingCalls(~known & calls.nonzero("packet_bytes"), "no time of arrival")
    late = np.where(known & calls.answered, at - calls.responded_at, 0)
    yield ViolatingCalls(late > _CLOCK_SKEW_US, "arrives {:.0f} s after it was read", (late / 1e6,))
    early = np.where(known & calls.has("sent_at"), calls.numbers("sent_at") - at, 0)
    yield ViolatingCalls(early > _CLOCK_SKEW_US, "arrived {:.0f} s before it was sent", (early / 1e6,))


@call_rule("Q69", *QM2QM_READS, needs="answer")
def descriptor_changed_in_response(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The descriptor of the response differs from that of the request."""
    (asked, sent), (answered, returned) = (_descriptors(calls, side) for side in ("request", "response"))
    for offset, name in _ECHOED_FIELDS:
        values = sent[offset // 4], returned[offset // 4]
        changed = asked & answered & (values[0] != values[1])
        yield ViolatingCalls(changed, f"{name} {{}} came back as {{}}", values)
