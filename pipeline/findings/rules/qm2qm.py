"""Tests of the rules of qm2qm that look at one call: Q01 to Q69. No Spark."""

from __future__ import annotations

from typing import Final

from pipeline.findings.rules.conversations import LOOKUP_ID, Exchange
from pipeline.findings.rules.registry import Hit, each
from udfs.codes import ACTION, FAULT, HRESULT, name_of
from udfs.dcerpc.interfaces import QM

STARTS: Final = ((QM, 0), (QM, 9), (QM, 10))
READ_ACTIONS: Final = (0x00000000, 0x80000000, 0x80000001)
PEEK_NEXT: Final = 0x80000001
LOOKUP_ACTIONS: Final = (0x40000010, 0x40000011, 0x40000012, 0x40000020, 0x40000021, 0x40000022)
CURRENT: Final = (0x40000010, 0x40000020)
NEXT: Final = (0x40000011, 0x40000021)
_MOST_READ: Final = 0x00420000
_IO_TIMEOUT: Final = 0xC00E001B
_DENIED: Final = (0x00000005, 0xC00E0025)
_NO_GUID: Final = "00000000-0000-0000-0000-000000000000"
_VERSIONS: Final = {(5, 1): 1020, (5, 2): 1716, (6, 0): 6000, (6, 1): 6531}
_PORTS: Final = {0: 2103, 2: 2103, 1: 2105, 3: 2105}
_PORT_STEP: Final = 11
_DESC_AT: Final = {0: (0, 0), 9: (16, 16), 10: (24, 24)}  # of a REMOTEREADDESC in a request, NDR and NDR64
_WITHOUT_BUFFER: Final = {0: (44, 48), 9: (60, 64), 10: (68, 72)}
_SEQUENTIAL_AT: Final = {9: 8, 10: 16}
_WITHOUT_DESC: Final = {9: 16, 10: 24}
_ECHOED: Final = ((0, "hRemoteQueue"), (4, "hCursor"), (8, "ulAction"), (12, "ulTimeout"), (20, "dwQueue"),
                  (24, "dwRequestID"))  # fmt: skip
_SKEW_US: Final = 300_000_000


def action_text(call: Exchange) -> str:
    """The action as the specifications name it."""
    return "no action" if call["action"] is None else name_of(ACTION, call["action"])


def port_of(port_type: int | None, port: int | None) -> bool:
    """Tell whether a port is one that a queue manager answers for a kind of port: the first, or 11, 22, ... more."""
    first = _PORTS.get(port_type if port_type is not None else -1)
    return first is not None and port is not None and port >= first and (port - first) % _PORT_STEP == 0


@each("Q01", *STARTS)
def request_size(call: Exchange) -> str | None:
    """The descriptor of a request has a size."""
    size = call.number("request", _DESC_AT[call.method[1]][call.wide] + 16)
    return f"dwSize {size}" if size else None


@each("Q02", *STARTS)
def request_buffer(call: Exchange) -> str | None:
    """A request is longer than its descriptor without a buffer."""
    most, size = _WITHOUT_BUFFER[call.method[1]][call.wide], call["request_bytes"]
    return f"{size} bytes, {most} without lpBuffer" if size is not None and size > most else None


@each("Q03", *STARTS, needs="headers")
def answer_size(call: Exchange) -> str | None:
    """The answer's packet is larger than may be, or its counts differ."""
    size = call["packet_bytes"] or 0
    if size > _MOST_READ:
        return f"dwSize {size}"
    return "the counts of lpBuffer differ" if call.wrong("response", "lpBuffer.max_count") else None


@each("Q04", *STARTS, needs="ok")
def packet(call: Exchange) -> str | None:
    """MQ_OK without a packet, or with one that is not of the size that it says."""
    if not call["packet_bytes"]:
        return "no packet"
    wrong = [e["field"] for e in call["message_errors"] or () if str(e["field"] or "").startswith("BaseHeader.")]
    return f"{wrong[0]} is wrong" if wrong else None


@each("Q05", (QM, 0), (QM, 9))
def action(call: Exchange) -> str | None:
    """The action is none of the three."""
    return action_text(call) if call["action"] is not None and call["action"] not in READ_ACTIONS else None


@each("Q06", (QM, 10))
def lookup_action(call: Exchange) -> str | None:
    """The action is none of the six."""
    return action_text(call) if call["action"] is not None and call["action"] not in LOOKUP_ACTIONS else None


@each("Q07", (QM, 0), (QM, 9))
def peek_next(call: Exchange) -> Hit | None:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    wrong = call["action"] == PEEK_NEXT and call["cursor_handle"] == 0
    return Hit(call, f"hCursor 0{', answered MQ_OK' if call.ok else ''}", server=call.ok) if wrong else None


@each("Q14", *STARTS, needs="ok")
def handle_given(call: Exchange) -> bool:
    """A receive that got a message was given no handle to end it by."""
    return bool(call.receives and call["remote_read_handle"] is None)


@each("Q15", *STARTS, needs="answer")
def handle_not_given(call: Exchange) -> str | None:
    """A peek, or a read that failed, was given a handle."""
    none = call.refused or (call.ok and call.peeks)
    return f"a handle for {'a failure' if call.refused else 'a peek'}" if none and call["remote_read_handle"] else None


@each("Q17", (QM, 1))
def end_of_nothing(call: Exchange) -> bool:
    """RemoteQMEndReceive with a NULL handle: of a peek, for instance."""
    return not call["remote_read_handle"]


@each("Q19", (QM, 1), needs="ok")
def end_of_nothing_taken(call: Exchange) -> bool:
    """MQ_OK to RemoteQMEndReceive with a NULL handle."""
    return not call["remote_read_handle"]


@each("Q20", (QM, 1))
def ack(call: Exchange) -> str | None:
    """The acknowledgement is neither RR_NACK nor RR_ACK."""
    return f"dwAck {call['ack']}" if call["ack"] not in (1, 2) else None


@each("Q21", (QM, 1), needs="ok")
def end_keeps(call: Exchange) -> bool:
    """The answer gives the handle back."""
    return keeps_handle(call)


def keeps_handle(call: Exchange) -> bool:
    """Tell whether an answer that begins with a context handle gives one that is not NULL."""
    head = call["response_head"]
    return head is not None and len(head) >= 20 and any(head[:20])


@each("Q26", (QM, 2), needs="ok")
def open_by_zero(call: Exchange) -> bool:
    """MQ_OK to a queue without a number or a context."""
    return 0 in (call["queue_descriptor"], call["open_context"])


@each("Q29", (QM, 2), needs="ok")
def open_without_handle(call: Exchange) -> bool:
    """MQ_OK without a context handle."""
    return not call["context_handle"]


@each("Q31", (QM, 2))
def mqs(call: Exchange) -> str | None:
    """The value of dwMQS is neither 0 nor 1."""
    return f"dwMQS {call['mqs']}" if call["mqs"] not in (None, 0, 1) else None


@each("Q32", (QM, 2))
def licence(call: Exchange) -> str | None:
    """The client's identifier is nil."""
    return "a nil GUID" if call["client_id"] == _NO_GUID else None


@each("Q36", (QM, 3), needs="ok")
def close_nothing(call: Exchange) -> bool:
    """MQ_OK to a NULL handle."""
    return not call["context_handle"]


@each("Q37", (QM, 3), needs="ok")
def close_keeps(call: Exchange) -> bool:
    """The answer gives the handle back."""
    return keeps_handle(call)


@each("Q42", (QM, 5), needs="ok")
def cancel_by_zero(call: Exchange) -> bool:
    """MQ_OK to a cancel without a queue."""
    return 0 in (call["queue_descriptor"], call["queue_handle"])


@each("Q50", (QM, 7))
def port_type(call: Exchange) -> Hit | None:
    """The kind of port is none of four, and perhaps a port was answered."""
    if call["port_type"] is None or call["port_type"] <= 3:
        return None
    given = call.answered and bool(call["returned_port"])
    return Hit(
        call, f"dwPortType {call['port_type']}{', port ' + str(call['returned_port']) if given else ''}", server=given
    )


@each("Q52", (QM, 7), needs="answer")
def port(call: Exchange) -> str | None:
    """The port is none that a queue manager listens at."""
    known = call["port_type"] in _PORTS and call["returned_port"]
    return f"port {call['returned_port']}" if known and not port_of(call["port_type"], call["returned_port"]) else None


@each("Q53", (QM, 7), needs="headers")
def port_denied(call: Exchange) -> str | None:
    """Asking for the port was refused for want of rights."""
    return f"fault {name_of(FAULT | HRESULT, call.fault)}" if call.fault in _DENIED and call.fault is not None else None


@each("Q54", (QM, 8), needs="answer")
def version(call: Exchange) -> str | None:
    """The version is none that was released."""
    told = (call["version_major"], call["version_minor"])
    if None in told:
        return None
    least = _VERSIONS.get(told)
    build = call["build_number"]
    return None if least is not None and (build is None or build >= least) else f"version {told[0]}.{told[1]}.{build}"


@each("Q57", (QM, 9), (QM, 10), needs="ok")
def without_descriptor(call: Exchange) -> bool:
    """MQ_OK to a NULL descriptor."""
    return bool(call["request_bytes"] == _WITHOUT_DESC[call.method[1]])


@each("Q58", (QM, 9))
def sequential_in_request(call: Exchange) -> str | None:
    """SequentialId of a request is not 0."""
    number = call.number("request", _SEQUENTIAL_AT[9], 8)
    return f"SequentialId {number}" if number else None


@each("Q59", (QM, 9), (QM, 10), needs="answer")
def sequential(call: Exchange) -> str | None:
    """SequentialId of an answer has a top octet, or is 0 where a message came."""
    number = call["sequence_id"]
    if number is None:
        return None
    if int(number) > LOOKUP_ID:
        return f"SequentialId 0x{int(number):016X}"
    return "SequentialId 0" if call.ok and not number else None


@each("Q60", (QM, 10), needs="ok")
def sequential_is_asked(call: Exchange) -> str | None:
    """Another message came than was asked for by its number."""
    wrong = call["action"] in CURRENT and call.message is not None and call.message != call.lookup & LOOKUP_ID
    return f"SequentialId {call.message}, LookupId {call.lookup}" if wrong else None


@each("Q61", (QM, 10), needs="ok")
def lookup_with_wait(call: Exchange) -> bool:
    """MQ_OK to a lookup without a queue, with a time-out, or with a cursor."""
    return not call["queue_handle"] or bool(call["timeout_ms"]) or bool(call["cursor_handle"])


@each("Q62", (QM, 10))
def lookup_waits(call: Exchange) -> str | None:
    """A lookup has a time-out or a cursor."""
    wrong = bool(call["timeout_ms"]) or bool(call["cursor_handle"])
    return f"ulTimeout {call['timeout_ms']}, hCursor {call['cursor_handle']}" if wrong else None


@each("Q63", (QM, 10))
def lookup_of_nothing(call: Exchange) -> str | None:
    """LookupId is 0 where one is asked for by it."""
    wrong = call["action"] in LOOKUP_ACTIONS and call["action"] not in NEXT and call["lookup_id"] is not None
    return f"{action_text(call)} of LookupId 0" if wrong and not call.lookup else None


@each("Q65", *STARTS, needs="ok")
def arrival(call: Exchange) -> str | None:
    """The message's time of arrival is missing, or in the future."""
    return arrived(call)


def arrived(call: Exchange) -> str | None:
    """Return what is wrong with the time of arrival of a message that came."""
    at = call["arrived_at"]
    if at is None:
        return "no time of arrival" if call["packet_bytes"] else None
    if call.done is not None and at > call.done + _SKEW_US:
        return f"arrives {(at - call.done) / 1e6:.0f} s after it was read"
    sent = call["sent_at"]
    return (
        f"arrived {(sent - at) / 1e6:.0f} s before it was sent" if sent is not None and at < sent - _SKEW_US else None
    )


@each("Q69", *STARTS, needs="answer")
def echo(call: Exchange) -> str | None:
    """The answer's descriptor is another than the request's."""
    opnum, wide = call.method[1], call.wide
    there = 20 + (4 if wide else 0) if opnum == 0 else 40
    asked = _DESC_AT[opnum][wide]
    for place, name in _ECHOED:
        before, after = call.number("request", asked + place), call.number("response", there + place)
        if before is not None and after is not None and before != after:
            return f"{name} {before} came back as {after}"
    return None
