"""Rules on RPC itself: P01 to P15. No Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask
from pipeline.findings.columns.call_history import OPEN_METHODS, QM2QM_READS, AssociationHistory, CapturedCall
from pipeline.findings.rules.handles import uses_of_invalid_contexts
from pipeline.findings.rules.qmmgmt import MAX_PROPERTIES
from pipeline.findings.rules.registry import (
    ViolatingBind,
    ViolatingCalls,
    association_call_rule,
    bind_rule,
    call_rule,
)
from pipeline.findings.rules.remote_read import MAX_TOKEN_BYTES
from udfs.codes import MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, RR_ACK, RR_NACK, result_name
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NONE
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM2_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

_RESERVED_METHODS: Final = {
    (REMOTE_READ_NAME, 1),
    *((QMCOMM_NAME, opnum) for opnum in (0, 5, 13, 21, 24, 25, 29, 30, 32, 33, 34)),
}
_LAST_OPNUM: Final = {QM2QM_NAME: 10, REMOTE_READ_NAME: 15, QMMGMT_NAME: 1, QMCOMM_NAME: 34, QMCOMM2_NAME: 3}
_METHODS_WITH_EXCEPTIONS: Final = {(QM2QM_NAME, 6), (REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11)}
_ERROR_BIT: Final = 0x80000000
_LAST_MQS: Final = 16
_LAST_PORT_TYPE: Final = 3
_LAST_WIN32_CODE: Final = 0xFFFF  # [MS-ERREF] 2.2
_MSMQ_FACILITY: Final = 0xC00E0000
_FACILITY_MASK: Final = 0xFFFF0000
_TRANSFER_SYNTAX_REFUSED: Final = 2
_METHODS_WITH_CONTEXT: Final = (
    (QM2QM_NAME, 3),
    *((REMOTE_READ_NAME, opnum) for opnum in (3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15)),
)  # fmt: skip
_METHODS_WITH_RANGES: Final = (
    *((QM2QM_NAME, opnum) for opnum in (1, 2, 7)),
    *((REMOTE_READ_NAME, opnum) for opnum in (9, 15, 12)), (QMMGMT_NAME, 0),
)  # fmt: skip
_TOLERATED_FIELDS: Final = ("(padding)", "(one character)", "(one pointer)")  # read with a doubt: D1, D19, D32


@association_call_rule(
    "P01", needs="headers",
    precondition="the connection was captured from its SYN without a gap, and all its binds were answered",
)  # fmt: skip
def context_id_not_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The context id of a request was accepted by no bind before it."""
    accepted = {name: binds for history in calls.histories for name, binds in _accepted_contexts(history).items()}

    def accepted_before(call: CapturedCall) -> set[int]:
        at = AFTER_ALL if call.seen_by_taps else call.started_at
        return {context for bound_at, context in accepted[call["connection_id"]] if bound_at <= at}

    requests = calls.text_in("connection_id", accepted) & calls.has("context_id") & calls.has("request_at")
    names = ("connection_id", "context_id")
    first_at = calls.look_up(requests, names, partial(_first_accepted_at, accepted), default=BEFORE_ALL)
    wrong = first_at > np.where(calls.seen_by_taps, AFTER_ALL, calls.started_at)
    yield ViolatingCalls(
        wrong, lambda call: f"context {call['context_id']}, accepted: {sorted(accepted_before(call)) or 'none'}"
    )


def _first_accepted_at(
    accepted: Mapping[str, Sequence[tuple[int, int]]], _history: AssociationHistory, connection: str, context: int
) -> int:
    """Return when a context id was first accepted; a time after all others if never."""
    return min((at for at, each in accepted[connection] if each == context), default=AFTER_ALL + 1)


def _accepted_contexts(history: AssociationHistory) -> dict[str, list[tuple[int, int]]]:
    """Return when which contexts were accepted, by connection; only of connections all of whose binds are known."""
    by_connection: defaultdict[str, list[Any]] = defaultdict(list)
    for bind in history.binds:
        by_connection[bind["connection_id"]].append(bind)
    accepted_at: dict[str, list[tuple[int, int]]] = {}
    for name, binds in by_connection.items():
        connection = history.connections.get(name)
        if connection is None or not connection["syn_seen"] or connection["missing_bytes"]:
            continue
        if all(bind["result"] != "unknown" and bind["bound_at"] is not None for bind in binds):
            accepted = [bind for bind in binds if bind["result"] == "accepted"]
            accepted_at[name] = [(bind["bound_at"], bind["context_id"]) for bind in accepted]
    return accepted_at


@association_call_rule("P02", needs="headers", precondition="the connection was captured from its SYN without a gap")
def call_id_reused_or_orphaned(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A call id is reused while its call is neither answered nor given up, or a response has no request."""
    orphans = calls.captured_from_syn & calls.text_in("outcome", {"no_request"})
    yield ViolatingCalls(orphans, "an answer to a call that nobody made", by_server=True)
    keys = calls.keys("connection_id", "call_id")
    rows = calls.in_order(calls.captured_from_syn & ~orphans, keys, calls.started_at)
    before, again = rows[:-1], rows[1:]
    requested = calls.has("request_at")
    overlaps = (keys[before] == keys[again]) & (calls.responded_at[before] > calls.started_at[again])
    overlaps &= requested[before] & requested[again] & ~calls.abandoned[before]
    others = np.full(calls.count, NONE)
    others[again[overlaps]] = before[overlaps]
    yield ViolatingCalls(others >= 0, "call id {call_id} is outstanding", by_server=False, evidence=(others,))


@call_rule("P03", needs="headers")
def reserved_opnum_used(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The opnum is a reserved one."""
    yield ViolatingCalls(calls.of(*_RESERVED_METHODS) & calls.has("request_at"), "opnum {opnum}")


def _answered(calls: AssociationCallColumns) -> Mask:
    """Tell which calls got a response, on a connection whose bind was not found missing."""
    return calls.text_in("outcome", {"ok"}) & ~calls.unbound


@call_rule("P04", needs="headers")
def unknown_opnum_answered(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """An opnum that the interface does not have got a response."""
    for interface, last in _LAST_OPNUM.items():
        unknown = calls.of_interfaces(interface) & (calls.numbers("opnum") > last)
        yield ViolatingCalls(unknown & _answered(calls), "a response to opnum {opnum}")


@call_rule("P05", needs="headers")
def malformed_request_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A request whose stub does not decode got a response that is no error."""
    accepted = (
        _answered(calls) & calls.of_interfaces(*_LAST_OPNUM) & ~calls.result_failed
    )  # D13: no fault, but an error
    wrong, fields = calls.first_of_elements("errors", _undecoded_field)
    yield ViolatingCalls(accepted & wrong, "a response to a request with {}", (fields,))


def _undecoded_field(error: dict[str, Any]) -> str | None:
    """Return which field of a request did not decode, and where."""
    name = str(error["field"] or "")
    noted = name.endswith(_TOLERATED_FIELDS) or "pElems" in name  # the latter is P07's
    if not name.startswith("request.") or error["code"] not in ("truncated", "malformed") or noted:
        return None
    return f"{error['code']} {name.removeprefix('request.')} at {error['offset']}"


@call_rule("P06", *_METHODS_WITH_RANGES, needs="answer")
def out_of_range_parameter_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A parameter outside its range() was accepted."""
    ends = calls.of((QM2QM_NAME, 1), (REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15))
    yield ViolatingCalls(ends & calls.succeeded & ~calls.equals("ack", RR_NACK, RR_ACK), "dwAck {ack} taken")
    opens = calls.of((QM2QM_NAME, 2)) & calls.succeeded
    yield ViolatingCalls(opens & (calls.numbers("mqs") > _LAST_MQS), "dwMQS {mqs} taken")
    other_type = (calls.numbers("port_type") > _LAST_PORT_TYPE) & calls.nonzero("returned_port")
    port_queries = calls.of((QM2QM_NAME, 7))
    yield ViolatingCalls(port_queries & other_type, "dwPortType {port_type} gave port {returned_port}")
    enlists = calls.of((REMOTE_READ_NAME, 12)) & calls.succeeded
    large = calls.numbers("propagation_token_bytes") > MAX_TOKEN_BYTES
    yield ViolatingCalls(enlists & large, "a token of {propagation_token_bytes} bytes taken")
    asked = calls.lengths("property_ids")
    queries = calls.of((QMMGMT_NAME, 0)) & calls.succeeded
    yield ViolatingCalls(queries & (asked > MAX_PROPERTIES), "{} properties answered", (asked,))


@call_rule("P07", needs="headers")
def null_array_with_count_accepted(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A request with a NULL pointer for a non-zero number of elements was answered MQ_OK."""
    succeeded = calls.text_in("outcome", {"ok"}) & calls.result_succeeded
    yield ViolatingCalls(succeeded & calls.has_malformed_field("request", "pElems"))


@bind_rule("P08", "the bind was answered")
def qmmgmt_bound_with_ndr64(binds: Sequence[Mapping[str, Any]]) -> Iterator[ViolatingBind]:
    """A context of qmmgmt was accepted with NDR64."""
    for bind in binds:
        if (bind["interface_name"], bind["transfer_syntax"], bind["result"]) == (QMMGMT_NAME, "NDR64", "accepted"):
            yield ViolatingBind(bind, "NDR64 accepted")


@bind_rule("P09", "the bind was answered")
def ndr_bind_refused(binds: Sequence[Mapping[str, Any]]) -> Iterator[ViolatingBind]:
    """A bind of qm2qm or RemoteRead that offers only NDR was refused for its transfer syntax."""
    together: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for bind in binds:
        if (
            bind["interface_name"] in (QM2QM_NAME, REMOTE_READ_NAME)
            and bind["transfer_syntax"] != "feature_negotiation"
        ):
            together[bind["connection_id"], bind["interface_name"], bind["bound_at"]].append(bind)
    for same in together.values():
        offered = {syntax for bind in same for syntax in bind["transfer_syntaxes_offered"] or ()}
        refused = all(bind["result"] == "rejected" and bind["reason"] == _TRANSFER_SYNTAX_REFUSED for bind in same)
        if offered == {"NDR"} and refused:
            yield ViolatingBind(same[0], "NDR refused: no transfer syntax")


@association_call_rule(
    "P10", *_METHODS_WITH_CONTEXT, needs="ok", precondition="the association's openings were captured completely"
)
def handle_of_other_interface_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A context handle that another interface of the association returned was answered MQ_OK."""
    contexts, handles = calls.contexts, calls.keys("context_handle")
    lost = np.flatnonzero(calls.judged & ~calls.context.is_known)
    for interface in sorted({name for name, _ in OPEN_METHODS}):
        ours = np.flatnonzero(calls.of_interfaces(interface)[contexts.open_rows])
        index = TimeIndex(handles[contexts.open_rows[ours]], contexts.opened_at[ours], contexts.open_rows[ours])
        opens = np.full(calls.count, NONE)
        opens[lost] = index.latest(handles[lost], calls.started_at[lost])
        yield ViolatingCalls(opens != NONE, f"MQ_OK to a handle of {interface}", evidence=(opens,))


@association_call_rule("P11", *_METHODS_WITH_CONTEXT, needs="ok", complete=True)
def invalid_handle_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A context handle that is closed, or was never returned to the association, was answered MQ_OK."""
    for found in uses_of_invalid_contexts(calls, "handle"):
        given = found.calls & calls.has("context_handle")
        yield found._replace(calls=given, actual=f"MQ_OK to {found.actual}")


def _has_msmq_fault(calls: AssociationCallColumns) -> Mask:
    """Tell which calls were answered by a fault that carries an HRESULT of Message Queuing."""
    result: Mask = calls.numbers("fault_status") & _FACILITY_MASK == _MSMQ_FACILITY
    return result


@call_rule("P12", (QMMGMT_NAME, 0), (QMMGMT_NAME, 1), needs="headers")
def qmmgmt_fault_with_hresult(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The fault carries an HRESULT of Message Queuing."""
    yield ViolatingCalls(_has_msmq_fault(calls), lambda call: call.fault_text)


@call_rule("P13", needs="headers")
def read_fault_with_hresult(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A method that throws no exceptions of its own got a fault with an HRESULT of Message Queuing."""
    without_exceptions = calls.of_interfaces(QM2QM_NAME, REMOTE_READ_NAME) & ~calls.of(*_METHODS_WITH_EXCEPTIONS)
    ours = without_exceptions & calls.has("opnum")  # else the request was not captured: the method is unknown
    yield ViolatingCalls(ours & _has_msmq_fault(calls), lambda call: call.fault_text)


@call_rule("P14", (REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11), needs="answer")
def open_returned_null_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A response with a NULL context handle."""
    yield ViolatingCalls(~calls.has("context_handle"), "a NULL context handle")


@call_rule("P15", needs="answer")
def return_value_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The return value is neither MQ_OK nor an error."""
    result = calls.numbers("hresult")
    win32 = calls.of_interfaces(QMMGMT_NAME) & (result <= _LAST_WIN32_CODE)  # [MS-MQMR] 3
    cancelled = calls.of(*QM2QM_READS) & (result == MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT)
    other = calls.of_interfaces(QM2QM_NAME, REMOTE_READ_NAME, QMMGMT_NAME) & ~win32 & ~cancelled
    yield ViolatingCalls(other & (result != 0) & (result & _ERROR_BIT == 0), lambda call: result_name(call["hresult"]))
