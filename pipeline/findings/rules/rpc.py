"""Tests of the rules on RPC itself: P01 to P15. No Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from pipeline.findings.rules.conversations import OPENS, Conversation, Exchange
from pipeline.findings.rules.registry import Hit, each, over
from udfs.codes import FAULT, HRESULT, MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, name_of
from udfs.dcerpc.interfaces import MG, QC, QC2, QM, RR

_RESERVED: Final = {(RR, 1), *((QC, opnum) for opnum in (0, 5, 13, 21, 24, 25, 29, 30, 32, 33, 34))}
_LAST: Final = {QM: 10, RR: 15, MG: 1, QC: 34, QC2: 3}
_THROWS: Final = {(QM, 6), (RR, 2), (RR, 11)}
_FAILED: Final = 0x80000000
_MSMQ: Final = 0xC00E0000
_MOST_READ: Final = 0x00420000
_MOST_TOKEN: Final = 131_072
_MOST_PROPERTIES: Final = 128
_REFUSED_SYNTAX: Final = 2
_CONTEXT_USERS: Final = (
    *((QM, opnum) for opnum in (1, 3)), *((RR, opnum) for opnum in (3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15)),
)  # fmt: skip
_READABLE_AS_NOTED: Final = ("(padding)", "(one character)", "(one pointer)")  # read with a doubt: D1, D19, D32


def msmq_error(status: int | None) -> bool:
    """Tell whether a fault's status is an HRESULT of Message Queuing."""
    return status is not None and status & 0xFFFF0000 == _MSMQ


@over("P01", "the connection was captured from its SYN without a gap, and all its binds were answered")
def unknown_context(conv: Conversation) -> Iterator[Hit]:
    """The context id of a request is none that a bind before it had accepted."""
    for call, accepted in _on_bound_connections(conv):
        if call["context_id"] is not None and call["request_at"] is not None and call["context_id"] not in accepted:
            yield Hit(call, f"context {call['context_id']}, accepted: {sorted(accepted) or 'none'}")


def _on_bound_connections(conv: Conversation) -> Iterator[tuple[Exchange, set[int]]]:
    """Yield the calls of connections whose binds are known, each with the contexts accepted before it."""
    by_connection: defaultdict[str, list[Any]] = defaultdict(list)
    for bind in conv.binds:
        by_connection[bind["connection_id"]].append(bind)
    for call in conv.calls:
        connection = conv.connections.get(call["connection_id"])
        binds = by_connection.get(call["connection_id"])
        if connection is None or not binds or not connection["syn_seen"] or connection["missing_bytes"]:
            continue
        if all(bind["result"] != "unknown" and bind["bound_at"] is not None for bind in binds):
            before = [bind for bind in binds if bind["bound_at"] <= call.at and bind["result"] == "accepted"]
            yield call, {bind["context_id"] for bind in before}


@over("P02", "the connection was captured from its SYN without a gap")
def call_ids(conv: Conversation) -> Iterator[Hit]:
    """A call id is used again while its call is neither answered nor given up, or an answer has no request."""
    last: dict[tuple[str, int], Exchange] = {}
    for call in conv.calls:
        connection = conv.connections.get(call["connection_id"])
        if connection is None or not connection["syn_seen"] or connection["missing_bytes"]:
            continue
        if call["outcome"] == "no_request":
            yield Hit(call, "an answer to a call that nobody made", server=True)
            continue
        name = (call["connection_id"], call["call_id"])
        before = last.get(name)
        if before is not None and before["request_at"] is not None and call["request_at"] is not None:
            open_still = before.done is None or before.done > call.at
            given_up = before["orphaned_at"] is not None or before["cancelled_at"] is not None
            if open_still and not given_up:
                yield Hit(call, f"call id {call['call_id']} is outstanding", (before, call), server=False)
        last[name] = call


@each("P03", needs="headers")
def reserved(call: Exchange) -> str | None:
    """The opnum is a reserved one."""
    return f"opnum {call.method[1]}" if call.method in _RESERVED and call["request_at"] is not None else None


@each("P04", needs="headers")
def beyond(call: Exchange) -> str | None:
    """An opnum that the interface does not have was answered by a response."""
    interface, opnum = call.method
    last = _LAST.get(interface)
    answered = call["outcome"] == "ok" and call["bind_seen"] is not False
    return f"a response to opnum {opnum}" if last is not None and opnum > last and answered else None


@each("P05", needs="headers")
def malformed(call: Exchange) -> str | None:
    """A request whose stub does not decode was answered, and not by an error."""
    if call["outcome"] != "ok" or call["bind_seen"] is False or call.method[0] not in _LAST:
        return None
    if call["hresult"] is not None and call["hresult"] & _FAILED:  # an error instead of the fault is tolerated (D13)
        return None
    for error in call["errors"] or ():
        name = str(error["field"] or "")
        noted = name.endswith(_READABLE_AS_NOTED) or "pElems" in name  # the latter is P07's
        if name.startswith("request.") and error["code"] in ("truncated", "malformed") and not noted:
            return f"a response to a request with {error['code']} {name[8:]} at {error['offset']}"
    return None


@each("P06", (QM, 1), (QM, 2), (QM, 7), (RR, 9), (RR, 15), (RR, 12), (MG, 0), needs="answer")
def beyond_range(call: Exchange) -> str | None:
    """A parameter outside its range() was taken."""
    method = call.method
    if method in ((QM, 1), (RR, 9), (RR, 15)):
        return f"dwAck {call['ack']} taken" if call.ok and call["ack"] not in (1, 2) else None
    if method == (QM, 2):
        return f"dwMQS {call['mqs']} taken" if call.ok and (call["mqs"] or 0) > 16 else None
    if method == (QM, 7):
        taken = (call["port_type"] or 0) > 3 and call["returned_port"]
        return f"dwPortType {call['port_type']} gave port {call['returned_port']}" if taken else None
    if method == (RR, 12):
        size = call["propagation_token_bytes"] or 0
        return f"a token of {size} bytes taken" if call.ok and size > _MOST_TOKEN else None
    asked = len(call["property_ids"] or ())
    return f"{asked} properties answered" if call.ok and asked > _MOST_PROPERTIES else None


@each("P07", needs="headers")
def null_with_count(call: Exchange) -> bool:
    """A request with elements behind a NULL pointer was answered MQ_OK."""
    return call["outcome"] == "ok" and call["hresult"] == 0 and call.wrong("request", "pElems")


@over("P08", "the bind was answered")
def management_wide(conv: Conversation) -> Iterator[Hit]:
    """A context of qmmgmt was accepted with NDR64."""
    for bind in conv.binds:
        if (bind["interface_name"], bind["transfer_syntax"], bind["result"]) == (MG, "NDR64", "accepted"):
            yield _of_bind(conv, bind, "NDR64 accepted")


@over("P09", "the bind was answered")
def narrow_refused(conv: Conversation) -> Iterator[Hit]:
    """A bind of qm2qm or RemoteRead that offers NDR alone was refused for its transfer syntax."""
    together: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for bind in conv.binds:
        if bind["interface_name"] in (QM, RR) and bind["transfer_syntax"] != "feature_negotiation":
            together[bind["connection_id"], bind["interface_name"], bind["bound_at"]].append(bind)
    for binds in together.values():
        offered = {syntax for bind in binds for syntax in bind["transfer_syntaxes_offered"] or ()}
        refused = all(bind["result"] == "rejected" and bind["reason"] == _REFUSED_SYNTAX for bind in binds)
        if offered == {"NDR"} and refused:
            yield _of_bind(conv, binds[0], "NDR refused: no transfer syntax")


def _of_bind(conv: Conversation, bind: Any, actual: str) -> Hit:  # noqa: ANN401 - a row
    """Return a hit of a bind: by the connection's first call where there is one."""
    first = next((call for call in conv.calls if call["connection_id"] == bind["connection_id"]), None)
    where = f"{bind['interface_name']} context {bind['context_id']} of connection {bind['connection_id']}"
    return Hit(first, f"{actual} ({where})", server=True)


@over("P10", "the association's openings were read whole")
def other_interface(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a context handle that another interface of the association had given."""
    for call in conv.of(*_CONTEXT_USERS):
        handle = call["context_handle"]
        if not call.ok or handle is None or conv.context(call) is not None:
            continue
        for interface in {name for name, _ in OPENS} - {call.method[0]}:
            life = conv.contexts.latest((interface, handle), call.at)
            if life is not None:
                yield Hit(call, f"MQ_OK to a handle of {interface}", (life.opened, call))


@over("P11")
def stale_handle(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a context handle that was closed, or that the association was never given."""
    if not conv.whole:
        return
    for call in conv.of(*_CONTEXT_USERS):
        if not call.ok or call["context_handle"] is None or (call.method == (QM, 1)):
            continue
        life = conv.context(call)
        if life is None:
            yield Hit(call, "MQ_OK to a handle that was never given")
        elif life.died_before(call.at) and life.closed is not call:
            yield Hit(call, "MQ_OK to a closed handle", tuple(c for c in (life.opened, life.closed, call) if c))


@each("P12", (MG, 0), (MG, 1), needs="headers")
def management_throws(call: Exchange) -> str | None:
    """The fault carries an HRESULT of Message Queuing."""
    return _thrown(call)


@each("P13", needs="headers")
def throws(call: Exchange) -> str | None:
    """A method that throws nothing of its own was answered by a fault with an HRESULT of Message Queuing."""
    if call["opnum"] is None:
        return None  # the request was not seen: which method it is nobody knows
    ours = call.method[0] in (QM, RR) and call.method not in _THROWS
    return _thrown(call) if ours else None


def _thrown(call: Exchange) -> str | None:
    status = call.fault
    return f"fault {name_of(FAULT | HRESULT, status)}" if status is not None and msmq_error(status) else None


@each("P14", (RR, 2), (RR, 11), needs="answer")
def opened_nothing(call: Exchange) -> str | None:
    """A response with a NULL context handle."""
    return "a NULL context handle" if call["context_handle"] is None else None


@each("P15", needs="answer")
def neither(call: Exchange) -> str | None:
    """The result is neither MQ_OK nor an error."""
    result = call["hresult"]
    if call.method[0] not in (QM, RR, MG) or result is None or result == 0 or result & _FAILED:
        return None
    if result == MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT and call.method in ((QM, 0), (QM, 9), (QM, 10)):
        return None
    return name_of(HRESULT, result)
