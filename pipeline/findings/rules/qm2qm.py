"""Rules on one call of qm2qm: Q01 to Q69, with those of RemoteRead that check the same. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.findings.columns.call_columns import CallColumns, Mask
from pipeline.findings.columns.call_history import LOOKUP_ID_NUMBER_MASK, QM2QM_READS, REMOTE_READ_READS, CapturedCall
from pipeline.findings.rules.registry import Violation, call_rule, violation_of_either
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
_REQUEST_DESCRIPTOR_OFFSETS: Final = {0: (0, 0), 9: (16, 16), 10: (24, 24)}  # of a REMOTEREADDESC: NDR, NDR64
_REQUEST_BYTES_WITHOUT_BUFFER: Final = {0: (44, 48), 9: (60, 64), 10: (68, 72)}
_SEQUENTIAL_ID_OFFSETS: Final = {9: 8, 10: 16}
_ECHOED_FIELDS: Final = ((0, "hRemoteQueue"), (4, "hCursor"), (8, "ulAction"), (12, "ulTimeout"), (20, "dwQueue"),
                  (24, "dwRequestID"))  # fmt: skip
_CLOCK_SKEW_US: Final = 300_000_000
_ECHOED_OCTETS: Final = ((0, 16), (20, 28))  # of a REMOTEREADDESC: those of the echoed fields
_CLOSES_AND_ENDS: Final = ((QM2QM_NAME, 1), (QM2QM_NAME, 3), (REMOTE_READ_NAME, 3))
_HANDLE_BYTES: Final = 20


def waits(calls: CallColumns) -> Mask:
    """Tell which reads have a time-out or a cursor."""
    return calls.nonzero("timeout_ms") | calls.nonzero("cursor_handle")


def has_invalid_number(calls: CallColumns) -> Mask:
    """Tell which reads returned a message number that is 0, or uses its top octet."""
    numbers = calls.numbers("sequence_id").astype(np.uint64)
    result: Mask = calls.has("sequence_id") & ((numbers == 0) | (numbers > LOOKUP_ID_NUMBER_MASK))
    return result


def returned_another_message(calls: CallColumns) -> Mask:
    """Tell which lookups of a message by its number returned another number."""
    requested = calls.requested_lookup_id & np.uint64(LOOKUP_ID_NUMBER_MASK)
    result: Mask = calls.equals("action", *LOOKUP_CURRENT_ACTIONS) & (
        calls.lookup_id_number != requested.astype(np.int64)
    )
    return result


def _read_layouts(calls: CallColumns) -> Iterator[tuple[Mask, int, bool]]:
    """Yield the reads of qm2qm by the layout of their stubs: which they are, their opnum, and whether it is NDR64."""
    for method in QM2QM_READS:
        for is_ndr64 in (False, True):
            yield calls.of(method) & (calls.is_ndr64 == is_ndr64), method[1], is_ndr64


def _request_octets_differ(calls: CallColumns, offset: int, *expected: bytes) -> Mask:
    """Tell where four octets of a request's descriptor differ from all that is expected."""
    found = calls.nothing()
    for reads, opnum, is_ndr64 in _read_layouts(calls):
        at = _REQUEST_DESCRIPTOR_OFFSETS[opnum][is_ndr64] + offset
        found |= calls.octets_differ("request_head", reads, at, at + 4, *expected)
    return found


def _request_may_have_buffer(calls: CallColumns) -> Mask:
    found = calls.nothing()
    for reads, opnum, is_ndr64 in _read_layouts(calls):
        found |= reads & (calls.numbers("request_bytes") > _REQUEST_BYTES_WITHOUT_BUFFER[opnum][is_ndr64])
    return found


def _returned_handle_is_not_null(calls: CallColumns) -> Mask:
    return calls.octets_differ("response_head", calls.of(*_CLOSES_AND_ENDS), 0, _HANDLE_BYTES, bytes(_HANDLE_BYTES))


def _arrival_time_is_invalid(calls: CallColumns) -> Mask:
    at, sent = calls.numbers("arrived_at"), calls.numbers("sent_at")
    late = calls.answered & (at > calls.responded_at + _CLOCK_SKEW_US)
    early = calls.has("sent_at") & (at < sent - _CLOCK_SKEW_US)
    return np.where(calls.has("arrived_at"), late | early, calls.nonzero("packet_bytes"))


def _response_descriptor_offset(opnum: int, *, is_ndr64: bool) -> int:
    return 20 + (4 if is_ndr64 else 0) if opnum == 0 else 40


def _descriptor_may_be_changed(calls: CallColumns) -> Mask:
    found = calls.nothing()
    for reads, opnum, is_ndr64 in _read_layouts(calls):
        offsets = _REQUEST_DESCRIPTOR_OFFSETS[opnum][is_ndr64], _response_descriptor_offset(opnum, is_ndr64=is_ndr64)
        for begin, end in _ECHOED_OCTETS:
            parts = [(offset + begin, offset + end) for offset in offsets]
            found |= calls.octets_changed("request_head", parts[0], "response_head", parts[1], reads)
    return found


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


def is_valid_port(port_type: int | None, port: int | None) -> bool:
    """Tell whether a port is valid for a port type: the first port of the type, or that plus a multiple of 11."""
    first = _FIRST_PORTS.get(port_type if port_type is not None else -1)
    return first is not None and port is not None and port >= first and (port - first) % _PORT_STEP == 0


@call_rule("Q01", *QM2QM_READS, suspects=lambda calls: _request_octets_differ(calls, 16, bytes(4)))
def request_descriptor_size_not_zero(call: CapturedCall) -> str | None:
    """The descriptor of a request has a dwSize other than 0."""
    size = call.read_stub_integer("request", _REQUEST_DESCRIPTOR_OFFSETS[call.method[1]][call.is_ndr64] + 16)
    return f"dwSize {size}" if size else None


@call_rule("Q02", *QM2QM_READS, suspects=_request_may_have_buffer)
def request_descriptor_has_buffer(call: CapturedCall) -> str | None:
    """A request is longer than its descriptor without a buffer."""
    most, size = _REQUEST_BYTES_WITHOUT_BUFFER[call.method[1]][call.is_ndr64], call["request_bytes"]
    return f"{size} bytes, {most} without lpBuffer" if size is not None and size > most else None


@call_rule(
    "Q03",
    *QM2QM_READS,
    needs="headers",
    suspects=lambda calls: calls.has_errors | (calls.numbers("packet_bytes") > _MAX_PACKET_BYTES),
)
def response_packet_size_invalid(call: CapturedCall) -> str | None:
    """The packet of the response is larger than allowed, or its counts differ."""
    size = call["packet_bytes"] or 0
    if size > _MAX_PACKET_BYTES:
        return f"dwSize {size}"
    return "the counts of lpBuffer differ" if call.has_malformed_field("response", "lpBuffer.max_count") else None


@call_rule(
    "Q04", *QM2QM_READS, needs="ok", suspects=lambda calls: calls.has_message_errors | ~calls.nonzero("packet_bytes")
)
def response_packet_missing_or_invalid(call: CapturedCall) -> str | None:
    """MQ_OK without a packet, or with a packet whose header is invalid."""
    if not call["packet_bytes"]:
        return "no packet"
    wrong = [e["field"] for e in call["message_errors"] or () if str(e["field"] or "").startswith("BaseHeader.")]
    return f"{wrong[0]} is wrong" if wrong else None


@call_rule(
    "Q05",
    (QM2QM_NAME, 0),
    (QM2QM_NAME, 9),
    suspects=lambda calls: calls.has("action") & ~calls.equals("action", *SEQUENTIAL_ACTIONS),
)
def read_action_invalid(call: CapturedCall) -> str | None:
    """The action is none of the three that are allowed."""
    return action_name(call) if call["action"] is not None and call["action"] not in SEQUENTIAL_ACTIONS else None


@call_rule(
    "Q06", (QM2QM_NAME, 10), suspects=lambda calls: calls.has("action") & ~calls.equals("action", *LOOKUP_ACTIONS)
)
def lookup_action_invalid(call: CapturedCall) -> str | None:
    """The action is none of the six that are allowed."""
    return action_name(call) if call["action"] is not None and call["action"] not in LOOKUP_ACTIONS else None


@call_rule(
    "Q07",
    (QM2QM_NAME, 0),
    (QM2QM_NAME, 9),
    suspects=lambda calls: calls.equals("action", ACTION_PEEK_NEXT) & calls.equals("cursor_handle", 0),
)
def peek_next_without_cursor(call: CapturedCall) -> Violation | None:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    wrong = call["action"] == ACTION_PEEK_NEXT and call["cursor_handle"] == 0
    return violation_of_either(call, "hCursor 0") if wrong else None


@call_rule("Q14", *QM2QM_READS, needs="ok", suspects=lambda calls: calls.is_receive & ~calls.has("remote_read_handle"))
def received_message_without_handle(call: CapturedCall) -> bool:
    """A receive returned a message without a handle to end it."""
    return bool(call.is_receive and call["remote_read_handle"] is None)


@call_rule(
    "Q15",
    *QM2QM_READS,
    needs="answer",
    suspects=lambda calls: calls.has("remote_read_handle") & (calls.failed | calls.is_peek),
)
def handle_returned_without_receive(call: CapturedCall) -> str | None:
    """A peek, or a read that failed, returned a handle."""
    unexpected = call.failed or (call.succeeded and call.is_peek)
    reason = "a failure" if call.failed else "a peek"
    return f"a handle for {reason}" if unexpected and call["remote_read_handle"] else None


@call_rule("Q17", (QM2QM_NAME, 1), suspects=lambda calls: ~calls.text_matches("remote_read_handle", bool))
def end_with_null_handle(call: CapturedCall) -> bool:
    """RemoteQMEndReceive with a NULL handle, for instance after a peek."""
    return not call["remote_read_handle"]


@call_rule("Q19", (QM2QM_NAME, 1), needs="ok", suspects=lambda calls: ~calls.text_matches("remote_read_handle", bool))
def end_with_null_handle_accepted(call: CapturedCall) -> bool:
    """RemoteQMEndReceive with a NULL handle was answered MQ_OK."""
    return not call["remote_read_handle"]


@call_rule("Q20", (QM2QM_NAME, 1), suspects=lambda calls: ~calls.equals("ack", RR_NACK, RR_ACK))
@call_rule(
    "R49", (REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15), suspects=lambda calls: ~calls.equals("ack", RR_NACK, RR_ACK)
)
def acknowledgement_invalid(call: CapturedCall) -> str | None:
    """The acknowledgement is neither RR_NACK nor RR_ACK."""
    return f"dwAck {call['ack']}" if call["ack"] not in (1, 2) else None


@call_rule("Q21", (QM2QM_NAME, 1), needs="ok", suspects=_returned_handle_is_not_null)
@call_rule("Q37", (QM2QM_NAME, 3), needs="ok", suspects=_returned_handle_is_not_null)
@call_rule("R12", (REMOTE_READ_NAME, 3), needs="ok", suspects=_returned_handle_is_not_null)
def handle_returned_after_end_or_close(call: CapturedCall) -> bool:
    """The response returns a handle that is not NULL."""
    head = call["response_head"]
    return head is not None and len(head) >= _HANDLE_BYTES and any(head[:_HANDLE_BYTES])


@call_rule(
    "Q26", (QM2QM_NAME, 2), suspects=lambda calls: calls.equals("queue_descriptor", 0) | calls.equals("open_context", 0)
)
def open_with_zero_number(call: CapturedCall) -> Violation | None:
    """An open without a queue number or without a context."""
    numbers = (call["queue_descriptor"], call["open_context"])
    return violation_of_either(call, f"pQueue {numbers[0]}, dwpContext {numbers[1]}") if 0 in numbers else None


@call_rule("Q29", (QM2QM_NAME, 2), needs="ok", suspects=lambda calls: ~calls.text_matches("context_handle", bool))
def open_without_handle(call: CapturedCall) -> bool:
    """MQ_OK without a context handle."""
    return not call["context_handle"]


@call_rule("Q31", (QM2QM_NAME, 2), suspects=lambda calls: calls.has("mqs") & ~calls.equals("mqs", 0, 1))
def server_port_parameter_invalid(call: CapturedCall) -> str | None:
    """The value of dwMQS is neither 0 nor 1."""
    return f"dwMQS {call['mqs']}" if call["mqs"] not in (None, 0, 1) else None


@call_rule("Q32", (QM2QM_NAME, 2), suspects=lambda calls: calls.text_in("client_id", {_NIL_GUID}))
def client_identifier_nil(call: CapturedCall) -> str | None:
    """The client's identifier is nil."""
    return "a nil GUID" if call["client_id"] == _NIL_GUID else None


@call_rule("Q36", (QM2QM_NAME, 3), needs="ok", suspects=lambda calls: ~calls.text_matches("context_handle", bool))
def close_of_null_handle_accepted(call: CapturedCall) -> bool:
    """The close of a NULL handle was answered MQ_OK."""
    return not call["context_handle"]


@call_rule("Q42", (QM2QM_NAME, 5))
def cancel_without_queue(call: CapturedCall) -> Violation | None:
    """A cancel without a queue."""
    numbers = (call["queue_descriptor"], call["queue_handle"])
    return violation_of_either(call, f"pQueue {numbers[0]}, hQueue {numbers[1]}") if 0 in numbers else None


@call_rule("Q50", (QM2QM_NAME, 7))
def port_type_invalid(call: CapturedCall) -> Violation | None:
    """The port type is none of the four that exist; the server may have answered with a port."""
    if call["port_type"] is None or call["port_type"] <= 3:
        return None
    port = call["returned_port"] if call.response_decoded else None
    actual = f"dwPortType {call['port_type']}{f', port {port}' if port else ''}"
    return Violation(call, actual, by_server=bool(port))


@call_rule("Q52", (QM2QM_NAME, 7), needs="answer")
def returned_port_invalid(call: CapturedCall) -> str | None:
    """The returned port is none at which a queue manager listens."""
    kind, port = call["port_type"], call["returned_port"]
    return f"port {port}" if kind in _FIRST_PORTS and port and not is_valid_port(kind, port) else None


@call_rule("Q53", (QM2QM_NAME, 7), needs="headers")
def port_query_denied(call: CapturedCall) -> str | None:
    """The query for the port was denied."""
    return call.fault_text if call.fault_status in ACCESS_DENIED else None


@call_rule("Q54", (QM2QM_NAME, 8), needs="answer")
def server_version_invalid(call: CapturedCall) -> str | None:
    """The version is none that was released."""
    major, minor, build = call["version_major"], call["version_minor"], call["build_number"]
    if major is None or minor is None:
        return None
    least = _MIN_BUILDS.get((major, minor))
    released = least is not None and (build is None or build >= least)
    return None if released else f"version {major}.{minor}.{build}"


@call_rule("Q57", (QM2QM_NAME, 9), (QM2QM_NAME, 10), suspects=lambda calls: ~calls.has("action"))
def null_descriptor(call: CapturedCall) -> Violation | None:
    """The descriptor is NULL: the request has no action."""
    return violation_of_either(call, "pRemoteReadDesc NULL") if call["action"] is None else None


@call_rule(
    "Q58",
    (QM2QM_NAME, 9),
    suspects=lambda calls: calls.octets_differ(
        "request_head", calls.of((QM2QM_NAME, 9)), _SEQUENTIAL_ID_OFFSETS[9], _SEQUENTIAL_ID_OFFSETS[9] + 8, bytes(8)
    ),
)
def request_sequential_id_not_zero(call: CapturedCall) -> Violation | None:
    """The SequentialId of a request is not 0."""
    number = call.read_stub_integer("request", _SEQUENTIAL_ID_OFFSETS[9], 8)
    return Violation(call, f"SequentialId {number}", source=client_section(call)) if number else None


@call_rule("Q59", (QM2QM_NAME, 9), (QM2QM_NAME, 10), needs="answer", suspects=has_invalid_number)
def response_sequential_id_invalid(call: CapturedCall) -> str | None:
    """The SequentialId of a response uses its top octet, or is 0 with a message."""
    number = call["sequence_id"]
    if number is None:
        return None
    if int(number) > LOOKUP_ID_NUMBER_MASK:
        return f"SequentialId 0x{int(number):016X}"
    return "SequentialId 0" if call.succeeded and not number else None


@call_rule("Q60", (QM2QM_NAME, 10), needs="ok", suspects=returned_another_message)
def lookup_returned_another_message(call: CapturedCall) -> str | None:
    """The response has another message than the one that was requested by its number."""
    number, requested = call.lookup_id_number, call.requested_lookup_id
    wrong = (
        call["action"] in LOOKUP_CURRENT_ACTIONS and number is not None and number != requested & LOOKUP_ID_NUMBER_MASK
    )
    return f"SequentialId {number}, LookupId {requested}" if wrong else None


@call_rule("Q61", (QM2QM_NAME, 10), needs="ok", suspects=lambda calls: waits(calls) | ~calls.nonzero("queue_handle"))
def lookup_with_wait_accepted(call: CapturedCall) -> bool:
    """A lookup without a queue, with a time-out, or with a cursor was answered MQ_OK."""
    return not call["queue_handle"] or bool(call["timeout_ms"]) or bool(call["cursor_handle"])


@call_rule("Q62", (QM2QM_NAME, 10), suspects=waits)
def lookup_with_wait(call: CapturedCall) -> str | None:
    """A lookup has a time-out or a cursor."""
    wrong = bool(call["timeout_ms"]) or bool(call["cursor_handle"])
    return f"ulTimeout {call['timeout_ms']}, hCursor {call['cursor_handle']}" if wrong else None


@call_rule(
    "Q63",
    (QM2QM_NAME, 10),
    suspects=lambda calls: (calls.requested_lookup_id == 0) & calls.equals("action", *LOOKUP_ACTIONS),
)
def lookup_without_lookup_id(call: CapturedCall) -> str | None:
    """LookupId is 0 in a request that must name a message."""
    if call["action"] not in LOOKUP_ACTIONS or call["action"] in LOOKUP_NEXT_ACTIONS or call["lookup_id"] is None:
        return None
    return None if call.requested_lookup_id else f"{action_name(call)} of LookupId 0"


@call_rule("Q65", *QM2QM_READS, needs="ok", suspects=_arrival_time_is_invalid)
@call_rule("R42", *REMOTE_READ_READS, needs="ok", suspects=_arrival_time_is_invalid)
def arrival_time_invalid(call: CapturedCall) -> str | None:
    """The message's arrival time is missing, in the future, or before it was sent."""
    at, sent = call["arrived_at"], call["sent_at"]
    if at is None:
        return "no time of arrival" if call["packet_bytes"] else None
    if call.responded_at is not None and at > call.responded_at + _CLOCK_SKEW_US:
        return f"arrives {(at - call.responded_at) / 1e6:.0f} s after it was read"
    if sent is not None and at < sent - _CLOCK_SKEW_US:
        return f"arrived {(sent - at) / 1e6:.0f} s before it was sent"
    return None


@call_rule("Q69", *QM2QM_READS, needs="answer", suspects=_descriptor_may_be_changed)
def descriptor_changed_in_response(call: CapturedCall) -> str | None:
    """The descriptor of the response differs from that of the request."""
    opnum, is_ndr64 = call.method[1], call.is_ndr64
    request_at = _REQUEST_DESCRIPTOR_OFFSETS[opnum][is_ndr64]
    response_at = _response_descriptor_offset(opnum, is_ndr64=is_ndr64)
    for offset, name in _ECHOED_FIELDS:
        sent = call.read_stub_integer("request", request_at + offset)
        returned = call.read_stub_integer("response", response_at + offset)
        if sent is not None and returned is not None and sent != returned:
            return f"{name} {sent} came back as {returned}"
    return None
