"""Stories of purges and moves: which queue a call was done to, whatever opened it."""

from pipeline.associations import Connection
from pipeline.queue_actions import operations
from states.telling import us

ORDERS, POISON = "srv1\\private$\\orders", "srv1\\private$\\orders;poison"
A, B = "aa" * 20, "bb" * 20
OK = 0


def call(protocol, opnum, at, key, hresult=OK, *, answered=True, connection="c1", **more):
    nothing = dict.fromkeys(
        ("queue", "queue_format_name", "context_handle", "queue_handle", "queue_descriptor", "open_context",
         "lookup_id", "move_context", "transaction_id")
    )  # fmt: skip
    return nothing | {
        "call_key": key, "protocol": protocol, "opnum": opnum, "connection_id": connection, "requested_at": us(at),
        "responded_at": us(at + 0.1) if answered else None, "hresult": hresult if answered else None, "errors": [],
        "client_address": "10.0.0.2", "server_address": "10.0.0.1",
        "outcome": "fault" if answered and hresult is None else "ok" if answered else "no_response", "closed": False,
    } | more  # fmt: skip


def opened(at, queue=ORDERS, handle=A, *, opnum=2, key="open", **more):
    name = f"DIRECT=OS:{queue}"
    given = {"queue": queue, "queue_format_name": name, "context_handle": handle, "outcome": "ok"}
    return call("RemoteRead", opnum, at, key, None, **given | more)


def closed(at, handle=A):
    return call("RemoteRead", 3, at, "close", context_handle=handle)


def purge(at, hresult=OK, handle=A, **more):
    return call("RemoteRead", 6, at, "purge", hresult, context_handle=handle, **more)


def move(at, hresult=OK, handle=A, number=77, **more):
    return call("RemoteRead", 10, at, "move", hresult, context_handle=handle, move_context=number, lookup_id=5, **more)


def done(*calls, syn=True):
    connections = [Connection(name, "10.0.0.2", 0, us(99), syn_seen=syn) for name in ("c1", "c2")]
    rows = operations(calls, connections)
    assert rows == operations(reversed(calls), connections)
    return rows


def facts(*calls, of="operation queue target_queue succeeded missing", syn=True):
    return [[row[name] for name in of.split()] for row in done(*calls, syn=syn)]


def test_a_purge_as_a_whole_row():
    assert done(opened(0), purge(5)) == [{
        "operation": "purge", "queue": ORDERS, "queue_format_name": f"DIRECT=OS:{ORDERS}", "target_queue": None,
        "lookup_id": None, "call_key": "purge", "client_address": "10.0.0.2", "server_address": "10.0.0.1",
        "requested_at": us(5), "done_at": us(5.1), "succeeded": True, "evidence": ["open", "purge"], "missing": [],
        "confidence": "complete", "errors": [],
    }]  # fmt: skip


def test_a_purge_that_was_refused_faulted_or_not_answered():
    assert facts(opened(0), purge(5, 0xC00E0025)) == [["purge", ORDERS, None, False, []]]
    assert facts(opened(0), purge(5, None)) == [["purge", ORDERS, None, False, []]]
    assert facts(opened(0), purge(5, answered=False)) == [["purge", ORDERS, None, None, ["no_response"]]]


def test_a_sealed_purge_is_not_known_to_have_failed():
    sealed = purge(5, None, handle=None, outcome="ok", closed=True)
    assert facts(opened(0), sealed) == [["purge", None, None, None, ["queue_unknown", "sealed"]]]


def test_a_purge_whose_open_was_not_seen_or_whose_handle_was_closed():
    assert facts(purge(5)) == [["purge", None, None, True, ["no_open", "queue_unknown"]]]
    assert facts(purge(5), syn=False) == [["purge", None, None, True, ["capture_begins", "no_open", "queue_unknown"]]]
    assert facts(opened(0), closed(2), purge(5))[0][1] is None
    assert facts(opened(0), opened(3, POISON, key="other", connection="c2"), purge(5))[0][1] == ORDERS


def test_a_purge_by_number_is_of_the_queue_that_the_application_opened():
    numbers = {"queue_handle": 28, "queue_descriptor": 28, "open_context": 28}
    named = call(
        "qmcomm", 2, 0, "name", queue=ORDERS, queue_format_name="N", context_handle=B, connection="c2", **numbers
    )
    session = call("qm2qm", 2, 1, "open", context_handle=A, **numbers)
    purged = call("qm2qm", 6, 5, "purge", queue_handle=28)
    assert facts(named, session, purged, of="queue queue_format_name evidence missing") == [
        [ORDERS, "N", ["name", "open", "purge"], []]
    ]


def test_a_message_is_moved_to_a_subqueue():
    target = opened(1, POISON, B, opnum=11, key="target", move_context=77)
    assert facts(opened(0), target, move(5), of="operation queue target_queue lookup_id evidence missing") == [
        ["move", ORDERS, POISON, 5, ["open", "target", "move"], []]
    ]
    assert facts(opened(0), target, move(5, transaction_id="t"))[0][4] == ["transaction_open"]
    assert facts(opened(0), target, closed(3, B), move(5))[0][2] is None
    assert facts(opened(0), target, move(5, number=78))[0][2:] == [None, True, ["no_open", "queue_unknown"]]


def test_a_handle_given_for_moving_is_a_queue_like_another():
    target = opened(1, POISON, B, opnum=11, key="target", move_context=77)
    assert facts(target, purge(5, handle=B)) == [["purge", POISON, None, True, []]]
