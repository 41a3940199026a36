"""Builders of calls and associations for tests of rules. Times are seconds; responses come a millisecond later.

One client on one connection from SYN to FIN, with authentication level PRIVACY, unless a story says otherwise.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from findings.every_call import check_association, check_calls
from pipeline.attempts.calls.associations import RpcConnection, group_into_associations
from pipeline.attempts.server_openings import OPEN_AND_CLOSE_METHODS
from pipeline.findings import evaluate
from pipeline.findings.columns.call_history import AssociationHistory, CapturedCall, ServerHistory
from pipeline.findings.rules.registry import SERVER_CHECKS
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from udfs.dcerpc.interfaces import QMMGMT_NAME

US = 1_000_000
H, H2, READ, READ2 = "aa" * 20, "bb" * 20, "cc" * 20, "dd" * 20
ORDERS = "srv1\\private$\\orders"
ORDERS_NAME = "DIRECT=OS:srv1\\private$\\orders"
UOW = "a3a2a1a0-a5a4-a7a6-a8a9-aaabacadaeaf"
CLIENT, OTHER = "0d4b0d05-4f2a-4d1f-9a3f-2f3d1f0a0b0c", "1d4b0d05-4f2a-4d1f-9a3f-2f3d1f0a0b0c"
SILENT = "no answer"
PEEK, PEEK_NEXT, RECEIVE = 0x80000000, 0x80000001, 0
L_PEEK, L_RECEIVE, L_NEXT, L_PREV = 0x40000010, 0x40000020, 0x40000021, 0x40000022
TIMEOUT, CANCELLED, BY_CLIENT, FAILED = 0xC00E001B, 0xC00E0008, 0x400E03E9, 0xC00E0006
NUMBER = 28
TRAILING = ("ExtensionHeader", "SubqueueHeader", "ExtendedAddressHeader")


def us(seconds):
    return None if seconds is None else round(seconds * US)


def call(interface, opnum, at, hresult=0, *, answer=None, fault=None, **columns):
    """A row of a call; without a response where ``hresult`` is SILENT."""
    done = None if hresult is SILENT else us(at + 0.001 if answer is None else answer)
    row = {
        "call_key": f"{interface} {opnum} at {at}", "interface_name": interface, "opnum": opnum, "connection_id": "c1",
        "call_id": round(at * 1000), "context_id": 0, "transfer_syntax": "NDR", "byte_order": "little", "auth_level": 6,
        "bind_seen": True, "request_at": us(at), "response_at": done, "client_address": "10.0.0.2",
        "server_address": "10.0.0.1", "server_port": 2103, "run_id": "r",
        "outcome": "no_response" if done is None else "fault" if fault is not None else "ok", "fault_status": fault,
    }  # fmt: skip
    if done is not None and fault is None and hresult is not None:
        row["hresult"] = hresult
    row |= columns
    return {name: value for name, value in row.items() if value is not None}


# RemoteRead


def rr_open(at=0, *, opnum=2, handle=H, **more):
    columns = {"queue_format_type": 3, "queue_format_name": ORDERS_NAME, "queue": ORDERS, "access": 1, "share_mode": 0,
               "workgroup": True, "version_major": 6, "version_minor": 1, "client_id": CLIENT, "context_handle": handle,
               "request_head": bytes([3, 0]), "request_tail": struct.pack("<IBBHI", 0, 6, 1, 7601, 1)}  # fmt: skip
    return call("RemoteRead", opnum, at, None, **(columns | more))


def rr_target(at=0.5, *, handle=H2, **more):
    name = ORDERS + ";poison"
    columns = {"access": 4, "share_mode": 0, "move_context": 77, "queue": name, "queue_format_type": 8,
               "queue_format_name": ORDERS_NAME + ";poison", "request_head": bytes([8, 5])}  # fmt: skip
    return rr_open(at, opnum=11, handle=handle, **(columns | more))


def rr(opnum, at, hresult=0, **more):
    """Any other method on the context."""
    return call("RemoteRead", opnum, at, hresult, **({"context_handle": H} | more))


def rr_start(at=1, hresult=0, *, opnum=7, message=5, **more):
    columns = {"action": RECEIVE, "timeout_ms": 30_000, "request_id": 7, "lookup_id": 0, "cursor_handle": 0,
               "max_body_bytes": 1000, "max_compound_message_bytes": 1000}  # fmt: skip
    if hresult == 0:
        columns |= {"sequence_id": message, "arrived_at": us(0.5), "sent_at": us(0.4), "section_types": [0],
                    "section_bytes": [300], "section_allocated_bytes": [300], "packet_bytes": 300, "body_bytes": 100,
                    "time_to_reach_queue_s": 60,
                    "header_sizes": dict.fromkeys(TRAILING, 12)}  # fmt: skip
    return rr(opnum, at, hresult, **(columns | more))


def rr_end(at=2, hresult=0, *, opnum=9, ack=2, **more):
    return rr(opnum, at, hresult, **({"request_id": 7, "ack": ack} | more))


def rr_close(at=9, hresult=0, **more):
    return rr(3, at, hresult, **({"response_head": bytes(24)} | more))


def rr_cancel(at, hresult=0, **more):
    return rr(8, at, hresult, **({"request_id": 7} | more))


def rr_enlist(at=0.6, **more):
    return call("RemoteRead", 12, at, **({"transaction_id": UOW, "propagation_token_bytes": 100} | more))


def rr_tx(at=1, hresult=0, **more):
    return rr_start(at, hresult, opnum=13, **({"transaction_id": UOW} | more))


def rr_class(at, hresult=0, **more):
    return rr(14, at, hresult, **({"lookup_id": 5, "acknowledgement_class": 0xC004} | more))


def rr_move(at=1, hresult=0, **more):
    return rr(10, at, hresult, **({"move_context": 77, "lookup_id": 5} | more))


def remote(*middle, first=None, last=None):
    """An association of RemoteRead: a queue is opened and closed, with other calls in between."""
    return [first if first is not None else rr_open(), *middle, last if last is not None else rr_close()]


def moves(*middle):
    return remote(rr_target(), *middle, rr_close(8.9, context_handle=H2))


# qm2qm and qmcomm


def name(at=-1, *, connection="app", **more):
    """R_QMOpenRemoteQueue: the owner returns the queue's number to the application."""
    columns = {"queue_format_name": ORDERS_NAME, "queue": ORDERS, "access": 1, "share_mode": 0, "context_handle": H2,
               "queue_handle": NUMBER, "queue_descriptor": NUMBER, "open_context": NUMBER, "client_id": CLIENT,
               "mqs": 1, "connection_id": connection, "client_address": "10.0.0.3"}  # fmt: skip
    return call("qmcomm", 2, at, **(columns | more))


def qm(opnum, at, hresult=0, **more):
    return call("qm2qm", opnum, at, hresult, **more)


def qm_version(at=0.1, major=6, minor=1, build=7601, **more):
    return qm(8, at, None, version_major=major, version_minor=minor, build_number=build, **more)


def qm_open(at=0.2, hresult=0, **more):
    columns = dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), NUMBER)
    columns |= {"client_id": CLIENT, "mqs": 1, "context_handle": H if hresult == 0 else None}
    return qm(2, at, hresult, **(columns | more))


def qm_start(at=1, hresult=0, *, opnum=9, message=5, **more):
    columns = {"queue_handle": NUMBER, "queue_descriptor": NUMBER, "action": RECEIVE, "timeout_ms": 30_000,
               "request_id": 7, "cursor_handle": 0, "request_bytes": {0: 44, 9: 60, 10: 68}[opnum]}  # fmt: skip
    if opnum == 10:
        columns |= {"lookup_id": 5, "action": L_RECEIVE, "timeout_ms": 0}
    if hresult == 0:
        columns |= {"packet_bytes": 300, "arrived_at": us(0.5), "sent_at": us(0.4), "body_bytes": 100}
        columns |= {"sequence_id": message} if opnum else {}
        receives = (more.get("action", columns["action"]) or 0) & 0xF0000030 in (0, 0x40000020)
        columns |= {"remote_read_handle": READ} if receives else {}
    elif opnum:
        columns["sequence_id"] = 0
    return qm(opnum, at, hresult, **(columns | more))


def qm_end(at=2, hresult=0, *, ack=2, **more):
    return qm(1, at, hresult, **({"remote_read_handle": READ, "ack": ack, "response_head": bytes(24)} | more))


def qm_close(at=9, hresult=0, **more):
    return qm(3, at, hresult, **({"context_handle": H, "response_head": bytes(24)} | more))


def qm_cancel(at, hresult=0, **more):
    return qm(5, at, hresult, **({"queue_handle": NUMBER, "queue_descriptor": NUMBER, "request_id": 7} | more))


def qm_peek(at=1, hresult=0, **more):
    return qm_start(at, hresult, **({"action": PEEK} | more))


def session(*middle, first=None, last=None):
    """An association of qm2qm: version query, a queue is opened and closed, with other calls in between."""
    first = first if first is not None else qm_open()
    return [qm_version(), first, *middle, last if last is not None else qm_close()]


def qc(opnum, at, hresult=0, **more):
    return call("qmcomm", opnum, at, hresult, **more)


def app(*middle, first=None, closed=True, number=True):
    """An association of qmcomm with the owner."""
    first = first if first is not None else name(0, connection="c1", context_handle=H)
    last = [qc(3, 9, None, context_handle=H)] if closed else []
    return [*([first] if number else []), *middle, *last]


# Evaluation


def connection(name="c1", first=-10.0, last=None, closed=None, **more):
    """A row of bronze.connections; open where ``closed`` is None."""
    row = {"connection_id": name, "client_address": "10.0.0.2", "server_address": "10.0.0.1",
           "first_packet_at": us(first), "last_packet_at": us(last if last is not None else closed),
           "closed_at": us(closed), "closed_by": "fin", "association_group_id": None, "syn_seen": True,
           "missing_bytes": 0}  # fmt: skip
    return row | more


STUB_COLUMNS = ("request_bytes", "request_head", "request_tail", "response_head", "request_stub", "response_stub")


def _call_types():
    parts = (
        (RPC_CALLS, evaluate.CALL_COLUMNS), (REMOTE_READ_CALLS, evaluate.REMOTE_READ_COLUMNS),
        (CLIENT_CALLS, evaluate.EVALUATED_CLIENT_CALL_COLUMNS), (MANAGEMENT_CALLS, evaluate.MANAGEMENT_CALL_COLUMNS),
        (MESSAGES, evaluate.EVALUATED_MESSAGE_COLUMNS),
    )  # fmt: skip
    names = {(MANAGEMENT_CALLS, "action"): "action_text", (MESSAGES, "errors"): "message_errors"}
    types = {"request_bytes": pa.int64()} | dict.fromkeys(STUB_COLUMNS[1:], pa.binary())
    for table, columns in parts:
        types |= {names.get((table, name), name): table.schema().field(name).type for name in columns}
    return types


CALL_TYPES = _call_types()


def call_table(rows):
    """Rows of calls as the rules get them: a table of all their columns."""
    rows = [row | {"action": None, "action_text": row["action"]} if isinstance(row.get("action"), str) else row
            for row in rows]  # fmt: skip
    return pa.table({name: _array([row.get(name) for row in rows], kind) for name, kind in CALL_TYPES.items()})


def _array(values, kind):
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_map(kind):
        values = [value and [*value.items()] for value in values]
    return pa.array(values, kind)


class Story:
    """Calls of one association with its connections and binds, and calls of other associations of the same server."""

    def __init__(self, calls, *, connections=None, binds=(), others=(), closed=20.0, last=None):
        self.calls = list(calls)
        default = [connection(closed=closed, last=last, closed_by="fin" if closed else None)]
        self.connections = connections if connections is not None else default
        self.binds = [{"reason": None, **bind} for bind in binds]
        self.others = list(others)
        self.other_connections = []

    def joined(self, *connections):
        """Add connections of the server that belong to other associations."""
        self.other_connections += connections
        return self

    def broken(self, changed=None):
        """The checks that found a violation, each with the violation; rules on servers too.

        ``changed``: keys of the changed calls, or None for all. Of other calls only management calls have stubs, and
        rules on single calls are not checked.
        """
        mine = {row["connection_id"] for row in self.connections}
        every = [*self.connections, *self.other_connections]
        for row in self.others:
            if row["connection_id"] not in {each["connection_id"] for each in every}:
                every.append(connection(row["connection_id"], closed=30.0, client_address=row["client_address"]))
        associations = group_into_associations(
            RpcConnection(row["connection_id"], row["client_address"], row["first_packet_at"], row["last_packet_at"],
                       row["closed_at"], row["association_group_id"], row["syn_seen"],
                       association_joined=row.get("association_joined"))
            for row in every
        )  # fmt: skip
        lossless_until = {
            associations[row["connection_id"]].name: 0 if row["missing_bytes"] else row["last_packet_at"]
            for row in every
        }
        ours = [row for row in self.calls if row["connection_id"] in mine]
        if changed is not None:
            ours = [
                row if row["call_key"] in changed or row["interface_name"] == QMMGMT_NAME
                else row | dict.fromkeys(STUB_COLUMNS)
                for row in ours
            ]  # fmt: skip
        calls = [CapturedCall(row) for row in (*self.calls, *self.others)]
        openings = [call for call in calls if call.method in OPEN_AND_CLOSE_METHODS]
        server = ServerHistory(openings, associations, lossless_until)
        association = associations[self.connections[0]["connection_id"]]
        history = AssociationHistory(
            [CapturedCall(row) for row in ours], self.connections, association, binds=self.binds, server=server
        )
        is_changed = None if changed is None else np.array([row["call_key"] in changed for row in ours], np.bool_)
        table = call_table(ours)
        of_calls = check_calls(table, is_changed)
        return [
            *of_calls,
            *check_association(history, table),
            *((check, violation) for check in SERVER_CHECKS for violation in check.check(server)),
        ]


def broken(story):
    """The ids of the rules that a story breaks; a list of calls is a story."""
    return {check.rule_id for check, _ in (story if isinstance(story, Story) else Story(story)).broken()}


def error(side, field, code="malformed"):
    return [{"code": code, "field": f"{side}.{field}", "offset": 4}]
