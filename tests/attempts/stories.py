"""Small words to tell what a client and a server did, as the rows that the state machine takes.

Times are seconds of the story; calls are named by what they are ("start", "end") or by ``name``. One client on one
connection unless a story says otherwise, opened with its SYN, everything answered a millisecond later.
"""

from __future__ import annotations

from attempts.telling import attempts_of
from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import DecodedCall

US = 1_000_000
SOON = 0.001  # s, an answer's delay where the story does not say
OK, TIMEOUT, CANCELLED, NOT_FOUND = 0, 0xC00E001B, 0xC00E0008, 0xC00E0088
INVALID_HANDLE, CANCELLED_BY_CLIENT = 0xC00E0007, 0x400E03E9
RECEIVE, PEEK, LOOKUP = 0, 0x80000000, 0x40000020
ORDERS = "srv1\\private$\\orders"
HANDLE, OTHER_HANDLE, READ = "aa" * 20, "bb" * 20, "cc" * 20
UOW = "a3a2a1a0-a5a4-a7a6-a8a9-aaabacadaeaf"
SILENT = "no answer"


def us(seconds):
    return None if seconds is None else round(seconds * US)


def _call(protocol, opnum, name, at, answer, hresult, more):
    answered = None if hresult is SILENT else us(at + SOON if answer is None else answer)
    values = {"call_key": name, "protocol": protocol, "opnum": opnum, "connection_id": "c1", "requested_at": us(at)}
    values |= {"responded_at": answered, "outcome": "ok" if answered else "no_response"}
    if answered and hresult is not None:
        values["hresult"] = hresult
    return DecodedCall(**(values | more))


def opened(at=0.0, queue=ORDERS, handle=HANDLE, *, name="open", answer=None, **more):
    more = {"queue": queue, "context_handle": handle} | more
    return _call("RemoteRead", 2, name, at, answer, None, more)


def close(at, hresult=OK, handle=HANDLE, *, name="close", answer=None, **more):
    return _call("RemoteRead", 3, name, at, answer, hresult, {"context_handle": handle} | more)


def start(at, hresult=OK, *, opnum=7, name="start", answer=None, message=5, **more):
    values = {"context_handle": HANDLE, "action": RECEIVE, "timeout_ms": 30_000, "request_id": 7, "lookup_id": 0}
    if hresult is not SILENT:
        values["sequence_id"] = message if hresult == OK else 0
    return _call("RemoteRead", opnum, name, at, answer, hresult, values | more)


def end(at, ack=2, hresult=OK, *, opnum=9, name="end", answer=None, **more):
    values = {"context_handle": HANDLE, "request_id": 7, "ack": ack}
    return _call("RemoteRead", opnum, name, at, answer, hresult, values | more)


def cancel(at, hresult=OK, *, name="cancel", answer=None, **more):
    values = {"context_handle": HANDLE, "request_id": 7}
    return _call("RemoteRead", 8, name, at, answer, hresult, values | more)


def reject(at, hresult=OK, *, name="reject", answer=None, **more):
    values = {"context_handle": HANDLE, "lookup_id": 5, "acknowledgement_class": 0xC004}
    return _call("RemoteRead", 14, name, at, answer, hresult, values | more)


def name(at=0.0, hresult=OK, *, queue=ORDERS, name="name", **more):
    """The application opens a queue at its owner and is given its number: R_QMOpenRemoteQueue of qmcomm."""
    given = dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), 28) | {"context_handle": HANDLE}
    values = {"connection_id": "app", "queue": queue} | (given if hresult == OK else {})
    return _call("qmcomm", 2, name, at, None, hresult, values | more)


def release(at, *, name="release", **more):
    values = {"connection_id": "app", "context_handle": HANDLE}
    return _call("qmcomm", 3, name, at, None, None, values | more)


def qm_open(at=0.0, hresult=OK, *, name="open", **more):
    values = {"context_handle": HANDLE} | dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), 28)
    return _call("qm2qm", 2, name, at, None, hresult, values | more)


def qm_close(at, hresult=OK, *, name="close", **more):
    return _call("qm2qm", 3, name, at, None, hresult, {"context_handle": HANDLE} | more)


def qm_start(at, hresult=OK, *, opnum=9, name="start", answer=None, message=5, **more):
    values = {"queue_handle": 28, "action": RECEIVE, "timeout_ms": 30_000, "request_id": 7}
    if hresult == OK and not more.get("action"):
        values["remote_read_handle"] = READ
    if opnum and hresult is not SILENT:
        values["sequence_id"] = message if hresult == OK else 0
    return _call("qm2qm", opnum, name, at, answer, hresult, values | more)


def qm_end(at, ack=2, hresult=OK, *, name="end", answer=None, **more):
    return _call("qm2qm", 1, name, at, answer, hresult, {"remote_read_handle": READ, "ack": ack} | more)


def qm_cancel(at, hresult=OK, *, name="cancel", **more):
    return _call("qm2qm", 5, name, at, None, hresult, {"queue_handle": 28, "request_id": 7} | more)


def connection(name="c1", first=0.0, last=None, closed=None, group=1, client="10.0.0.2", **more):
    last = closed if last is None else last
    return RpcConnection(name, client, us(first), us(last or first), us(closed), group, **more)


def told(*calls, connections=None, until=60.0):
    """Return what becomes of each Start: a dictionary per attempt, as short as the story allows."""
    connections = [connection()] if connections is None else connections
    attempts = attempts_of(calls, connections, capture_ends_at=us(until))
    backwards = attempts_of(calls[::-1], connections[::-1], capture_ends_at=us(until))
    assert [facts(attempt) for attempt in attempts] == [facts(attempt) for attempt in backwards]
    return [facts(attempt) for attempt in attempts]


def facts(attempt):
    return {
        "outcome": attempt.outcome,
        "queue": attempt.queue,
        "ended_at": None if attempt.ended_at is None else attempt.ended_at / US,
        "end_hresult": attempt.end_hresult,
        "evidence": attempt.evidence,
        "confidence": attempt.confidence,
        "missing": sorted(attempt.missing),
    }


def became(outcome, ended_at=None, end_hresult=None, *, evidence="open start end", queue=ORDERS, missing="", **more):
    """Return what ``told`` says of one attempt: complete unless something is missing."""
    missing = missing.split()
    confidence = "partial" if missing else "complete"
    return {
        "outcome": outcome, "queue": queue, "ended_at": ended_at, "end_hresult": end_hresult,
        "evidence": evidence.split(), "confidence": confidence, "missing": missing,
    } | more  # fmt: skip
