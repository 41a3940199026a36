"""Tests of the rules of RemoteRead that look at one call: R01 to R78. No Spark."""

from __future__ import annotations

from typing import Final

from pipeline.findings.rules.conversations import LOOKUP_ID, Exchange
from pipeline.findings.rules.qm2qm import (
    CURRENT,
    LOOKUP_ACTIONS,
    PEEK_NEXT,
    READ_ACTIONS,
    action_text,
    arrived,
    keeps_handle,
    port_of,
)
from pipeline.findings.rules.registry import Hit, each
from udfs.dcerpc.interfaces import RR

STARTS: Final = ((RR, 7), (RR, 13))
OPENS: Final = ((RR, 2), (RR, 11))
RECEIVE_ACCESS, PEEK_ACCESS, MOVE_ACCESS = 0x01, 0x20, 0x04
_OPENABLE: Final = (1, 2, 3, 4, 8)
_DIRECT: Final = (3, 8)
_MOST_TOKEN: Final = 131_072
_SECTIONS: Final = ([0], [1], [1, 2], [3], [3, 4])
_FIRST: Final = (1, 3)
_VERSIONS: Final = {(5, 2), (6, 0), (6, 1)}
_RECEIVE_PREV: Final = 0x40000022
_REJECTED: Final = 0xC004
_EXTENSION_BYTES: Final = 12
_EXTENSION_FLAGS: Final = {"SQ": "SubqueueHeader", "EA": "ExtendedAddressHeader"}
_SYSTEM: Final = 0x80


@each("R01", *OPENS, needs="headers")
def kind_of_name(call: Exchange) -> str | None:
    """The kind of format name is none that can be opened."""
    kind = call["queue_format_type"]
    if call.wrong("request", "m_qft"):
        return "an unknown m_qft" if kind is None else f"m_qft {kind}"
    return f"m_qft {kind}" if call.asked and kind is not None and kind not in _OPENABLE else None


@each("R02", *OPENS)
def direct(call: Exchange) -> str | None:
    """A direct name has another protocol than TCP or OS."""
    name = call["queue_format_name"]
    if call["queue_format_type"] not in _DIRECT or name is None:
        return None
    text = name.partition("=")[2]
    return None if text.upper().startswith(("TCP:", "OS:")) else name


@each("R03", *OPENS)
def suffix(call: Exchange) -> str | None:
    """Suffix, flags and kind of name do not go together."""
    head, kind = call["request_head"], call["queue_format_type"]
    if head is None or len(head) < 2 or kind is None:
        return None
    what, flags = head[1] & 0x0F, head[1] & 0xF0
    good = {
        0: flags == 0 and kind != 4,
        1: flags == _SYSTEM and kind not in (5, 6, 7),
        2: flags == _SYSTEM and kind in (3, 4),
        3: flags == _SYSTEM and kind in (3, 4),
        4: kind == 5,
        5: flags == 0 and kind == 8,
    }.get(what, False)
    return None if good else f"m_SuffixAndFlags 0x{head[1]:02X} with m_qft {kind}"


@each("R04", (RR, 2))
def modes(call: Exchange) -> str | None:
    """Access or share mode is none of two each."""
    wrong = call["access"] not in (RECEIVE_ACCESS, PEEK_ACCESS) or call["share_mode"] not in (0, 1)
    return f"dwAccess {call['access']}, dwShareMode {call['share_mode']}" if wrong else None


@each("R05", *OPENS)
def flags(call: Exchange) -> str | None:
    """A flag is neither 0 nor 1."""
    tail: bytes | None = call["request_tail"]
    if tail is None or len(tail) < 12:
        return None
    order = "big" if call["byte_order"] == "big" else "little"
    non_routing, workgroup = int.from_bytes(tail[:4], order), int.from_bytes(tail[8:], order)  # type: ignore[arg-type]
    return f"fNonRoutingServer {non_routing}, fWorkgroup {workgroup}" if max(non_routing, workgroup) > 1 else None


@each("R06", *OPENS)
def client_version(call: Exchange) -> str | None:
    """The client's version is none that has RemoteRead."""
    told = (call["version_major"], call["version_minor"])
    return None if None in told or told in _VERSIONS else f"version {told[0]}.{told[1]}"


@each("R07", (RR, 2), needs="answer")
def invalid_opened(call: Exchange) -> str | None:
    """An invalid request to open a queue was answered, not refused."""
    wrong = [text for text in (kind_of_name(call), modes(call)) if isinstance(text, str)]
    return f"a response to {wrong[0]}" if wrong else None


@each("R12", (RR, 3), needs="ok")
def close_keeps(call: Exchange) -> bool:
    """The answer gives the handle back."""
    return keeps_handle(call)


@each("R21", *STARTS)
def action(call: Exchange) -> Hit | None:
    """The action is none of nine."""
    wrong = call["action"] is not None and call["action"] not in (*READ_ACTIONS, *LOOKUP_ACTIONS)
    return _both(call, wrong, action_text(call))


def _both(call: Exchange, wrong: bool, actual: str) -> Hit | None:  # noqa: FBT001 - what is judged
    """Return the hit of a rule that binds both: the client's wrong request, and the server's MQ_OK to it."""
    return Hit(call, f"{actual}{', answered MQ_OK' if call.ok else ''}", server=call.ok) if wrong else None


@each("R22", *STARTS)
def by_lookup(call: Exchange) -> Hit | None:
    """LookupId comes with a time-out, a cursor, or an action that takes none."""
    waits = bool(call["timeout_ms"]) or bool(call["cursor_handle"])
    wrong = call.lookup != 0 and (waits or call["action"] not in LOOKUP_ACTIONS)
    actual = f"{action_text(call)}, ulTimeout {call['timeout_ms']}, hCursor {call['cursor_handle']} with a LookupId"
    return _both(call, wrong, actual)


@each("R23", *STARTS)
def without_lookup(call: Exchange) -> Hit | None:
    """A lookup without LookupId; for MQ_LOOKUP_RECEIVE_PREV that is taken (D4)."""
    wrong = call["lookup_id"] is not None and not call.lookup
    return _both(
        call, wrong and call["action"] in LOOKUP_ACTIONS and call["action"] != _RECEIVE_PREV, action_text(call)
    )


@each("R24", *STARTS)
def by_cursor(call: Exchange) -> Hit | None:
    """A cursor comes with LookupId or an action that takes none."""
    wrong = bool(call["cursor_handle"]) and (call.lookup != 0 or call["action"] not in READ_ACTIONS)
    return _both(call, wrong, f"{action_text(call)}, LookupId {call.lookup} with a cursor")


@each("R25", *STARTS)
def peek_next(call: Exchange) -> Hit | None:
    """MQ_ACTION_PEEK_NEXT without a cursor."""
    return _both(call, call["action"] == PEEK_NEXT and call["cursor_handle"] == 0, "hCursor 0")


@each("R26", *STARTS)
def lookup_waits(call: Exchange) -> Hit | None:
    """A lookup has a time-out."""
    return _both(call, call["action"] in LOOKUP_ACTIONS and bool(call["timeout_ms"]), f"ulTimeout {call['timeout_ms']}")


@each("R34", *STARTS, needs="headers")
def sections(call: Exchange) -> str | None:
    """MQ_OK without one or two sections, or with a count that is not theirs."""
    if call.wrong("response", "ppPacketSections.max_count"):
        return "pdwNumberOfSections is not the array's count"
    if not call.ok:
        return None
    count = len(call["section_types"] or ())
    return None if count in (1, 2) else f"{count} sections"


@each("R35", *STARTS, needs="ok")
def section_types(call: Exchange) -> str | None:
    """The sections' types are no sequence that there is."""
    types = call["section_types"]
    return f"section types {list(types)}" if types and list(types) not in _SECTIONS else None


@each("R36", *STARTS, needs="ok")
def section_sizes(call: Exchange) -> str | None:
    """A section that is whole has not its whole size, or a first part has more than there is."""
    parts = (call["section_types"] or (), call["section_allocated_bytes"] or (), call["section_bytes"] or ())
    for kind, allocated, size in zip(*parts, strict=False):
        if allocated < size or (kind not in _FIRST and allocated != size):
            return f"type {kind}: SectionSizeAlloc {allocated}, SectionSize {size}"
    return None


@each("R37", *STARTS, needs="headers")
def section_counts(call: Exchange) -> bool:
    """SectionSize is not the buffer's count."""
    return call.wrong("response", "pSectionBuffer.max_count")


@each("R38", *STARTS, needs="ok")
def split(call: Exchange) -> str | None:
    """A body that is larger than asked for came whole, or one that is not came in parts."""
    body, most, types = call["body_bytes"], call["max_body_bytes"], call["section_types"]
    if body is None or most is None or not types or call["is_srmp"] or call["message_errors"]:
        return None
    if types[0] == 0 and body > most:
        return f"a body of {body} bytes whole, {most} asked for"
    return f"a body of {body} bytes cut, {most} asked for" if types[0] == 1 and body <= most else None


@each("R39", *STARTS, needs="ok")
def cut_off(call: Exchange) -> str | None:
    """What was left out is not what the body has more than was asked for."""
    body, most, types = call["body_bytes"], call["max_body_bytes"], call["section_types"]
    if body is None or most is None or not types or types[0] != 1 or call["is_srmp"] or body <= most:
        return None
    left = call["section_allocated_bytes"][0] - call["section_bytes"][0]
    return f"{left} bytes left out, {body - most} too many" if left != body - most else None


@each("R41", *STARTS, needs="ok")
def sequence(call: Exchange) -> str | None:
    """The message's number is 0, has a top octet, or is another than was asked for."""
    number = call["sequence_id"]
    if number is None:
        return None
    if not number or int(number) > LOOKUP_ID:
        return f"SequenceId 0x{int(number):016X}"
    wrong = call["action"] in CURRENT and call.message != call.lookup & LOOKUP_ID
    return f"SequenceId {call.message}, LookupId {call.lookup}" if wrong else None


@each("R42", *STARTS, needs="ok")
def arrival(call: Exchange) -> str | None:
    """The message's time of arrival is missing, or in the future."""
    return arrived(call)


@each("R43", *STARTS, needs="ok")
def reaches(call: Exchange) -> str | None:
    """The time by which the message had to reach its queue is before it was sent."""
    left = call["time_to_reach_queue_s"]
    return f"TimeToReachQueue {left} s after SentTime" if left is not None and left < 0 else None


@each("R44", *STARTS, needs="answer")
def sections_of_failure(call: Exchange) -> str | None:
    """A read that failed was answered with sections."""
    if not call.refused:
        return None
    count, pointer = call.number("response", 16), call.number("response", 24 if call.wide else 20)
    return f"pdwNumberOfSections {count}" if count or pointer else None


@each("R49", (RR, 9), (RR, 15))
def ack(call: Exchange) -> str | None:
    """The acknowledgement is neither RR_NACK nor RR_ACK."""
    return f"dwAck {call['ack']}" if call["ack"] not in (1, 2) else None


@each("R62", (RR, 11))
def move_modes(call: Exchange) -> str | None:
    """A queue is opened for moves with another mode."""
    wrong = call["access"] != MOVE_ACCESS or call["share_mode"] != 0
    return f"dwAccess {call['access']}, dwShareMode {call['share_mode']}" if wrong else None


@each("R63", (RR, 11), needs="answer")
def no_move_context(call: Exchange) -> bool:
    """No context for moves came."""
    return not call["move_context"]


@each("R64", (RR, 12))
def enlistment(call: Exchange) -> str | None:
    """A transaction without identifier, or a token that is empty or too large."""
    size = call["propagation_token_bytes"]
    if call["transaction_id"] is None:
        return "no transaction"
    return f"a token of {size} bytes" if size is not None and not 0 < size <= _MOST_TOKEN else None


@each("R65", (RR, 0), needs="answer")
def port(call: Exchange) -> str | None:
    """The port is none that a queue manager listens at."""
    return None if port_of(0, call["returned_port"]) else f"port {call['returned_port']}"


@each("R66", (RR, 13), needs="ok")
def peek_in_transaction(call: Exchange) -> bool:
    """MQ_OK to a peek in a transaction."""
    return call["transaction_id"] is not None and call.peeks


@each("R67", (RR, 13))
def peek_with_transaction(call: Exchange) -> str | None:
    """A peek names a transaction."""
    return action_text(call) if call["transaction_id"] is not None and call.peeks else None


@each("R68", (RR, 14))
def acknowledgement_class(call: Exchange) -> str | None:
    """The class is neither none nor that of a rejected message."""
    wrong = call["acknowledgement_class"] not in (None, 0, _REJECTED)
    return f"usClass 0x{call['acknowledgement_class']:04X}" if wrong else None


@each("R76", *STARTS, needs="ok")
def extension_header(call: Exchange) -> str | None:
    """The ExtensionHeader is not of 12 bytes, or what is wrong with it was seen when it was decoded."""
    size = (call["header_sizes"] or {}).get("ExtensionHeader")
    wrong = [e["field"] for e in call["message_errors"] or () if str(e["field"] or "").startswith("ExtensionHeader.")]
    if wrong:
        return f"{wrong[0]} is wrong"
    if size is None:
        return None
    lacks = [flag for flag, name in _EXTENSION_FLAGS.items() if name not in call["header_sizes"]]
    return f"HeaderSize {size}" if size != _EXTENSION_BYTES else f"{' and '.join(lacks)} not set" if lacks else None


@each("R77", *STARTS, needs="ok")
def subqueue_header(call: Exchange) -> str | None:
    """What is wrong with the headers of subqueue and address was seen when they were decoded."""
    wrong = [str(e["field"]) for e in call["message_errors"] or ()
             if str(e["field"] or "").startswith(("SubqueueHeader.", "ExtendedAddressHeader."))]  # fmt: skip
    return f"{wrong[0]} is wrong" if wrong else None
