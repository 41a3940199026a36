"""What became of a receive: one story per outcome, and what is said when part of the story was not seen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attempts.stories import (
    CANCELLED,
    CANCELLED_BY_CLIENT,
    HANDLE,
    INVALID_HANDLE,
    LOOKUP,
    NOT_FOUND,
    OK,
    ORDERS,
    OTHER_HANDLE,
    PEEK,
    SILENT,
    TIMEOUT,
    UOW,
    became,
    cancel,
    close,
    connection,
    end,
    facts,
    opened,
    qm_cancel,
    qm_close,
    qm_end,
    qm_open,
    qm_start,
    reject,
    start,
    told,
    us,
)
from attempts.telling import attempts_of, gold_of
from example_counts import examples
from pipeline.attempts.calls.associations import group_into_associations
from pipeline.attempts.calls.decoded_call import CALL_ROLES, DecodedCall
from pipeline.reports.summary import ATTEMPT_OUTCOMES

QM = {"queue": None, "missing": "no_open queue_unknown"}


def test_acked_the_client_took_the_message():
    assert told(opened(), start(1), end(2)) == [became("acked", 2.0, OK)]


def test_nacked_the_client_gave_it_back():
    assert told(opened(), start(1), end(2, ack=1)) == [became("nacked", 2.0, OK)]


def test_acked_in_a_transaction_is_provisional():
    assert told(opened(), start(1, opnum=13, transaction_id=UOW), end(2, opnum=15)) == [
        became("acked", 2.0, OK, missing="transaction_open", confidence="provisional")
    ]


def test_nacked_in_a_transaction_needs_no_outcome_of_it():
    assert told(opened(), start(1, opnum=13, transaction_id=UOW), end(2, ack=1, opnum=15)) == [
        became("nacked", 2.0, OK)
    ]


def test_what_was_given_back_was_not_rejected():
    later = start(3, SILENT, opnum=13, transaction_id=UOW, name="later", context_handle=OTHER_HANDLE)
    first, _ = told(opened(), start(1), end(2, ack=1), later, reject(5))
    assert first == became("nacked", 2.0, OK)


def test_an_end_after_the_clean_up_timer_may_be_of_a_read_that_was_lost():
    late = opened(), start(1), end(400)
    assert told(*late, until=500) == [became("acked", 400.0, OK)]  # the timer can be another
    assert told(*late, until=500, connections=[connection(missing_bytes=100)]) == [
        became("acked", 400.0, OK, missing="capture_loss")
    ]


def test_a_fault_in_a_conversation_with_gaps_may_have_its_reason_there():
    asked = start(1, None, fault_status=0x1C00001A, outcome="fault", sequence_id=None)
    assert told(opened(), asked) == [became("failed", evidence="open start")]
    assert told(opened(), asked, connections=[connection(missing_bytes=100)]) == [
        became("failed", evidence="open start", missing="capture_loss")
    ]


def test_its_end_may_have_come_over_a_connection_whose_bind_was_not_seen():
    def beside(first, last, **more):
        return connection("stray", first, last, **({"group": None, "syn_seen": False} | more))

    def missing(*calls, stray, closed=None):
        (row,) = told(*calls, connections=[connection(closed=closed), stray])
        return row["missing"]

    back = opened(), start(1)
    assert missing(*back, stray=beside(0, 3), closed=5) == ["capture_begins"]
    assert missing(*back, stray=beside(0, 0.5), closed=5) == []  # it was gone
    assert missing(*back, stray=beside(6, 7), closed=5) == []  # it came later
    assert missing(*back, stray=beside(0, 3)) == ["capture_begins", "capture_ends"]
    assert missing(*back, stray=beside(0, 3, syn_seen=True), closed=5) == []  # it began, and has no association
    assert missing(*back, stray=beside(0, 3, group=2), closed=5) == []
    assert missing(*back, stray=beside(0, 3, client="10.0.0.3"), closed=5) == []
    assert missing(*back, end(2), stray=beside(0, 3), closed=5) == []
    (row,) = told(*back, connections=[connection(), beside(100, 101)], until=400)
    assert (row["outcome"], row["missing"]) == ("expired", ["capture_begins"])
    (row,) = told(*back, connections=[connection(), beside(350, 351)], until=400)
    assert (row["outcome"], row["missing"]) == ("expired", [])  # it was given back before


@pytest.mark.parametrize("at", [1.5, 3.0])
def test_rejected_before_or_after_the_end(at):
    evidence = "open start reject end" if at < 2 else "open start end reject"
    assert told(opened(), start(1, opnum=13, transaction_id=UOW), end(2, opnum=15), reject(at)) == [
        became("rejected", 2.0, OK, evidence=evidence, missing="transaction_open", confidence="provisional")
    ]


def test_a_rejection_that_was_refused_changes_nothing():
    assert told(opened(), start(1), end(2), reject(3, NOT_FOUND)) == [became("acked", 2.0, OK)]


def test_a_rejection_belongs_to_the_attempt_that_got_the_message_last():
    assert [a["outcome"] for a in told(
        opened(), start(1), end(2, ack=1), start(3, name="again", request_id=8), end(4, name="end2", request_id=8),
        reject(5),
    )] == ["nacked", "rejected"]  # fmt: skip


def test_a_rejection_is_of_a_message_that_came_before_it():
    taken = (start(1, opnum=13, transaction_id=UOW), end(2, opnum=15))
    waiting = start(3, name="again", request_id=8, answer=6)  # the transaction was aborted in between
    assert [a["outcome"] for a in told(opened(), *taken, waiting, reject(5))] == ["rejected", "in_flight"]


def test_expired_the_message_was_held_past_the_clean_up_timer():
    assert told(opened(), start(1), until=400) == [became("expired", evidence="open start")]


def test_expired_an_end_came_too_late_and_was_refused():
    assert told(opened(), start(1), end(302, hresult=INVALID_HANDLE), until=303) == [
        became("expired", 302.0, INVALID_HANDLE)
    ]


def test_a_late_end_that_succeeds_is_an_end():
    assert told(opened(), start(1), end(302), until=303) == [became("acked", 302.0, OK)]


def test_the_timer_counts_from_the_response_not_from_the_wait():
    assert told(opened(), start(1, answer=200.0), until=450) == [
        became("in_flight", evidence="open start", missing="capture_ends")
    ]


def test_expired_before_the_connection_went():
    assert told(opened(), start(1), connections=[connection(closed=400)], until=400) == [
        became("expired", evidence="open start")
    ]


def test_rundown_the_connection_went_while_the_message_was_held():
    assert told(opened(), start(1), connections=[connection(closed=30)]) == [
        became("rundown", 30.0, evidence="open start")
    ]


def test_no_rundown_while_another_connection_of_the_association_lives():
    lives = connection("c2", first=0.5, last=50)
    assert told(opened(), start(1), connections=[connection(closed=30), lives]) == [
        became("in_flight", evidence="open start", missing="capture_ends")
    ]


def test_rundown_when_the_last_connection_of_the_association_goes():
    calls = [opened(), start(1)]
    last = connection("c2", first=0.5, closed=40)
    assert told(*calls, connections=[connection(closed=30), last]) == [became("rundown", 40.0, evidence="open start")]
    stranger = connection("c3", first=0.5, last=50, group=2)
    assert told(*calls, connections=[connection(closed=30), stranger])[0]["ended_at"] == 30.0
    again = connection("c4", first=45, last=50)  # the group's number, used again after it ended
    assert told(*calls, connections=[connection(closed=30), again])[0]["ended_at"] == 30.0


def test_rundown_the_queue_was_closed_over_the_message():
    assert told(opened(), start(1), close(5)) == [became("rundown", 5.0, evidence="open start close")]


def test_an_end_after_the_close_is_refused_and_the_close_stays_the_cause():
    assert told(opened(), start(1), close(5), end(6, hresult=INVALID_HANDLE)) == [
        became("rundown", 5.0, evidence="open start close end")
    ]


def test_failed_the_end_was_refused_before_the_connection_went():
    assert told(opened(), start(1), end(2, hresult=NOT_FOUND), connections=[connection(closed=30)]) == [
        became("failed", 2.0, NOT_FOUND)
    ]


def test_a_second_end_that_succeeds_counts():
    assert told(opened(), start(1), end(2, hresult=INVALID_HANDLE, name="first"), end(3)) == [
        became("acked", 3.0, OK, evidence="open start first end")
    ]


def test_peeked():
    assert told(opened(), start(1, action=PEEK)) == [became("peeked", evidence="open start")]


def test_cancelled_by_a_cancel():
    assert told(opened(), start(1, CANCELLED, answer=3.1), cancel(3)) == [
        became("cancelled", 3.0, evidence="open start cancel")
    ]


def test_a_cancel_that_was_refused_cancels_nothing():
    assert told(opened(), start(1, TIMEOUT, answer=31), cancel(3, INVALID_HANDLE)) == [
        became("timed_out", evidence="open start")
    ]


def test_a_cancel_cancels_the_waiting_read_of_its_number():
    first, second = told(
        opened(), start(1, TIMEOUT, answer=1.5), start(2, CANCELLED, name="second", answer=3.1), cancel(3)
    )
    assert first == became("timed_out", evidence="open start")
    assert second == became("cancelled", 3.0, evidence="open second cancel")


@pytest.mark.parametrize("how", ["cancelled_at", "orphaned_at"])
def test_cancelled_by_its_own_client(how):
    missing = "" if how == "orphaned_at" else "no_response"
    assert told(opened(), start(1, SILENT, **{how: us(9)})) == [
        became("cancelled", 9.0, evidence="open start", missing=missing)
    ]
    faulted = start(1, None, answer=9.2)._replace(outcome="fault", fault_status=0x1C00000D, **{how: us(9)})
    assert told(opened(), faulted) == [became("cancelled", 9.0, evidence="open start")]


def test_a_cancel_pdu_that_came_too_late_changes_nothing():
    assert told(opened(), start(1, TIMEOUT, answer=5, cancelled_at=us(6))) == [
        became("timed_out", evidence="open start")
    ]
    assert told(opened(), start(1, answer=5, cancelled_at=us(4)), end(7))[0]["outcome"] == "acked"


def test_cancelled_its_queue_was_closed_while_it_waited():
    assert told(opened(), start(1, CANCELLED, answer=5.1), close(5)) == [
        became("cancelled", 5.0, evidence="open start close")
    ]


def test_timed_out_and_empty():
    assert told(opened(), start(1, TIMEOUT, answer=31)) == [became("timed_out", evidence="open start")]
    assert told(opened(), start(1, TIMEOUT, timeout_ms=0)) == [became("empty", evidence="open start")]
    assert told(opened(), start(1, NOT_FOUND, action=LOOKUP)) == [became("empty", evidence="open start")]
    assert told(opened(), start(1, NOT_FOUND)) == [became("failed", evidence="open start")]


def test_failed_by_an_error_or_a_fault():
    assert told(opened(), start(1, INVALID_HANDLE)) == [became("failed", evidence="open start")]
    faulted = start(1, None)._replace(outcome="fault", fault_status=0x000006F7)
    assert told(opened(), faulted) == [became("failed", evidence="open start")]


def test_in_flight_the_capture_ends_while_it_waits_or_holds():
    missing = "capture_ends no_response"
    assert told(opened(), start(1, SILENT), until=20) == [became("in_flight", evidence="open start", missing=missing)]
    for_ever = start(1, SILENT, timeout_ms=0xFFFFFFFF)
    assert told(opened(), for_ever, until=9e5) == [became("in_flight", evidence="open start", missing=missing)]
    assert told(opened(), start(1), until=20) == [became("in_flight", evidence="open start", missing="capture_ends")]


def test_unknown_no_answer_was_seen():
    calls = [opened(), start(1, SILENT)]
    unknown = became("unknown", evidence="open start", missing="no_response")
    assert told(*calls, connections=[connection(closed=5)]) == [unknown]  # the connection went before it
    assert told(*calls, until=60) == [unknown]  # its time-out has passed long ago
    assert told(*calls, connections=[connection(server_bytes=0)], until=2) == [unknown]  # nothing of the server's is


def test_loss_is_named_as_the_cause_of_what_it_took():
    lossy = [connection(closed=5, missing_bytes=1460)]
    assert told(opened(), start(1, SILENT), connections=lossy) == [
        became("unknown", evidence="open start", missing="capture_loss no_response")
    ]
    assert told(opened(), start(1), end(2), connections=lossy) == [became("acked", 2.0, OK)]


def test_an_end_that_is_not_there_may_have_been_lost():
    lossy, whole = connection(closed=5, missing_bytes=1460), connection(closed=5)
    evidence = "open start"
    assert told(opened(), start(1), connections=[whole]) == [became("rundown", 5.0, evidence=evidence)]
    rundown = became("rundown", 5.0, evidence=evidence, missing="capture_loss")
    assert told(opened(), start(1), connections=[lossy]) == [rundown]
    (refused,) = told(opened(), start(1), end(2, hresult=INVALID_HANDLE), connections=[lossy])
    assert (refused["outcome"], refused["missing"]) == ("failed", ["capture_loss"])


def test_sealed_calls_say_no_more_than_that():
    sealed = {"encrypted": True, "context_handle": None, "request_id": None, "action": None, "timeout_ms": None}
    blind = start(1, None)._replace(outcome="encrypted", **sealed)
    unread = opened(queue=None, handle=None, encrypted=True, outcome="encrypted")
    assert told(unread, blind) == [became("unknown", queue=None, evidence="start", missing="queue_unknown sealed")]
    (attempt,) = attempts_of([blind], [connection()])
    assert (attempt.is_receive, attempt.action_name) == (None, None)
    assert {*attempt.missing} == {"no_open", "queue_unknown", "sealed"}


def test_an_end_whose_answer_was_not_seen_still_ends():
    assert told(opened(), start(1), end(2, hresult=SILENT)) == [
        became("acked", 2.0, None, missing="capture_ends no_response")
    ]
    assert told(opened(), start(1), end(2, hresult=SILENT), connections=[connection(closed=3)]) == [
        became("acked", 2.0, None, missing="no_response")
    ]


def test_an_end_shows_that_a_start_without_its_answer_got_a_message():
    assert told(opened(), start(1, SILENT), end(2)) == [became("acked", 2.0, OK, missing="no_response")]


def test_a_damaged_answer_leaves_the_outcome_open_unless_an_end_tells():
    damaged = start(1, None)._replace(outcome="damaged")
    closed, lossy = connection(closed=5), connection(missing_bytes=1460)
    assert told(opened(), damaged, connections=[closed]) == [
        became("unknown", evidence="open start", missing="damaged")
    ]
    assert told(opened(), damaged, connections=[lossy]) == [
        became("unknown", evidence="open start", missing="capture_loss damaged")
    ]
    assert told(opened(), damaged, end(2)) == [became("acked", 2.0, OK, missing="damaged")]


def test_in_flight_the_capture_ends_inside_the_answer():
    damaged = start(1, None)._replace(outcome="damaged")
    in_flight = became("in_flight", evidence="open start", missing="capture_ends damaged")
    assert told(opened(), damaged) == [in_flight]
    assert told(opened(), damaged, until=9e5) == [in_flight]  # its time-out has passed, but its answer had begun
    assert told(opened(), damaged._replace(action=None, request_id=None)) != [in_flight]  # the request is damaged
    later = close(3, handle=OTHER_HANDLE)
    assert told(opened(), damaged, later) == [became("unknown", evidence="open start", missing="damaged")]


def test_an_end_whose_answer_the_capture_ends_in_is_not_known_to_have_succeeded():
    cut = end(2, hresult=None)._replace(outcome="damaged")
    assert told(opened(), start(1), cut) == [became("acked", 2.0, None, missing="capture_ends damaged")]
    (attempt,) = attempts_of([opened(), start(1), cut], [connection()])
    assert attempt.ack_unanswered


def test_a_stub_that_does_not_decode_is_named():
    broken = start(1, None)._replace(errors=(("malformed", "response.end of stub", 28),))
    assert told(opened(), broken) == [became("unknown", evidence="open start", missing="decode_error")]
    (attempt,) = attempts_of([opened(), broken], [connection()])
    assert [tuple(each.values()) for each in attempt.errors] == [("malformed", "response.end of stub", 28)]


def test_an_attempt_whose_message_has_errors_is_not_complete():
    calls, error = [opened(), start(1), end(2)], ("malformed", "SectionSizeAlloc", 0)
    for errors, missing in (([], []), ([error], ["decode_error"])):
        made, _ = gold_of(calls, [connection()], until=us(60), message_errors=errors)
        (row,) = made.to_pylist()
        assert (row["outcome"], row["missing"]) == ("acked", missing)
        assert row["confidence"] == ("partial" if errors else "complete")
        assert [tuple(each.values()) for each in row["errors"]] == errors


def test_without_its_bind_an_attempt_is_inferred():
    assert told(opened(), start(1, bind_seen=False), end(2)) == [
        became("acked", 2.0, OK, missing="no_bind", confidence="inferred")
    ]


def test_without_its_open_the_queue_is_unknown():
    unknown = {"queue": None, "evidence": "start end"}
    assert told(start(1), end(2)) == [became("acked", 2.0, OK, missing="no_open queue_unknown", **unknown)]
    begins = [connection(syn_seen=False)]
    assert told(start(1), end(2), connections=begins) == [
        became("acked", 2.0, OK, missing="capture_begins no_open queue_unknown", **unknown)
    ]


def test_a_handle_names_its_queue_from_open_to_close():
    audit = "srv1\\private$\\audit"
    calls = [
        opened(),
        start(1, name="first", action=PEEK),
        close(2),
        start(3, INVALID_HANDLE, name="between"),
        opened(4, audit, name="open2"),
        start(5, name="second", action=PEEK),
        opened(6, "srv1\\other", OTHER_HANDLE, name="open3"),
        start(7, name="third", action=PEEK, context_handle=OTHER_HANDLE),
        start(8, name="fourth", action=PEEK),
    ]
    assert [attempt["queue"] for attempt in told(*calls)] == [ORDERS, None, audit, "srv1\\other", audit]


def test_handles_belong_to_their_association():
    two = [connection(), connection("c2", group=2)]
    calls = [opened(), start(1, name="mine"), start(1.5, name="theirs", connection_id="c2"), end(2, connection_id="c2")]
    mine, theirs = told(*calls, connections=two)
    assert (mine["queue"], mine["outcome"]) == (ORDERS, "in_flight")
    assert (theirs["queue"], theirs["outcome"]) == (None, "acked")
    shared = [connection(), connection("c2")]
    calls = [opened(), start(1), end(2, connection_id="c2")]
    assert told(*calls, connections=shared) == [became("acked", 2.0, OK)]


def test_numbers_are_used_again():
    first, second, third = told(
        opened(),
        start(1, name="a"), end(2, name="end of a"),
        start(3, name="b"), start(4, INVALID_HANDLE, name="c"), end(5, ack=1, name="end of b"),
    )  # fmt: skip
    assert [first["outcome"], second["outcome"], third["outcome"]] == ["acked", "nacked", "failed"]
    assert second["evidence"] == ["open", "b", "end of b"]


def test_qm2qm_acked_by_the_handle_that_start_returned():
    assert told(qm_open(), qm_start(1), qm_end(2)) == [became("acked", 2.0, OK, evidence="start end", **QM)]
    assert told(qm_start(1, opnum=0), qm_end(2, ack=1)) == [became("nacked", 2.0, OK, evidence="start end", **QM)]


def test_qm2qm_handles_are_used_again():
    first, second = told(
        qm_start(1, name="a"), qm_end(2, name="end of a"), qm_start(3, name="b"), qm_end(4, ack=1, name="end of b")
    )
    assert [first["outcome"], second["outcome"]] == ["acked", "nacked"]


def test_qm2qm_is_cancelled_by_queue_and_number_from_any_connection():
    waiting = qm_start(1, CANCELLED_BY_CLIENT, answer=3.1)
    two = [connection(), connection("c2", group=9)]
    assert told(waiting, qm_cancel(3, connection_id="c2"), connections=two) == [
        became("cancelled", 3.0, evidence="start cancel", **QM)
    ]


def test_qm2qm_close_cancels_what_waits_and_leaves_what_is_held():
    waiting = qm_start(1, CANCELLED, answer=5.1)
    assert told(qm_open(), waiting, qm_close(5)) == [became("cancelled", 5.0, evidence="start close", **QM)]
    assert told(qm_open(), qm_start(1), qm_close(5), qm_end(6)) == [
        became("acked", 6.0, OK, evidence="start end", **QM)
    ]


def test_qm2qm_has_no_clean_up_timer_but_runs_down():
    missing = {"queue": None, "missing": "capture_ends no_open queue_unknown"}
    assert told(qm_start(1), until=4000) == [became("in_flight", evidence="start", **missing)]
    assert told(qm_start(1), connections=[connection(closed=4000)], until=4000) == [
        became("rundown", 4000.0, evidence="start", **QM)
    ]


def test_a_cancel_after_the_message_came_ends_the_hold():
    assert told(opened(), start(1), cancel(5), connections=[connection(closed=30)]) == [
        became("cancelled", 5.0, evidence="open start cancel")
    ]


def test_a_connection_without_its_row_is_alone_and_open():
    assert told(opened(), start(1), end(2), connections=[]) == [became("acked", 2.0, OK)]


def test_what_an_attempt_says_of_itself():
    calls = [opened(), start(1, opnum=13, transaction_id=UOW, message=(0x12 << 56) + 9), end(2, opnum=15)]
    (attempt,) = attempts_of(calls, [connection()])
    assert (attempt.is_receive, attempt.transactional, attempt.lookup_id) == (True, True, 9)
    assert attempt.action_name == "MQ_ACTION_RECEIVE"
    (refused,) = attempts_of([start(1, INVALID_HANDLE, action=0x1234)], [])
    assert (refused.lookup_id, refused.action_name, refused.transactional) == (None, "0x00001234", False)


def test_other_calls_are_no_attempts():
    others = [DecodedCall(f"{p}{n}", p, n, "c1", us(1), us(2)) for p in ("qm2qm", "RemoteRead") for n in range(16)
              if (p, n) not in CALL_ROLES]  # fmt: skip
    assert told(*others) == []


def test_connections_without_a_group_are_associations_of_their_own():
    found = group_into_associations([connection(group=0), connection("c2", group=0), connection("c3", group=None)])
    assert {name: association.name for name, association in found.items()} == {"c1": "c1", "c2": "c2", "c3": "c3"}
    assert HANDLE != OTHER_HANDLE


KINDS = [
    opened, close, start, end, cancel, reject, qm_open, qm_close, qm_start, qm_end, qm_cancel,
]  # fmt: skip
RESULTS = st.sampled_from([OK, TIMEOUT, CANCELLED, NOT_FOUND, INVALID_HANDLE, SILENT])


@st.composite
def _happenings(draw):
    calls = []
    for number in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(KINDS))
        more = {"name": f"{kind.__name__} {number}", "connection_id": draw(st.sampled_from(["c1", "c2", "c3"]))}
        if kind in (start, end, cancel, reject, close, qm_start, qm_end, qm_cancel):
            more["hresult"] = draw(RESULTS)
        if kind in (start, end, cancel, qm_start, qm_cancel):
            more["request_id"] = draw(st.integers(7, 8))
        if kind is start:
            more["action"] = draw(st.sampled_from([0, PEEK, LOOKUP, None]))
        calls.append(kind(draw(st.integers(0, 400)), **more))
    closed = st.none() | st.integers(1, 400)
    group = st.integers(0, 1)
    connections = [connection(name, closed=draw(closed), group=draw(group)) for name in ("c1", "c2")]
    return calls, connections, draw(st.permutations(range(len(calls))))


@settings(max_examples=examples(200), deadline=None)
@given(_happenings())
def test_whatever_happened_every_start_is_told_once_and_in_any_order_alike(happened):
    calls, connections, order = happened
    attempts = attempts_of(calls, connections, capture_ends_at=us(400))
    starts = {call.call_key for call in calls if CALL_ROLES[call.protocol, call.opnum] == "start"}
    assert sorted(attempt.call.call_key for attempt in attempts) == sorted(starts)
    shuffled = attempts_of([calls[place] for place in order], connections[::-1], capture_ends_at=us(400))
    assert [facts(attempt) for attempt in shuffled] == [facts(attempt) for attempt in attempts]
    for attempt in attempts:
        assert attempt.outcome in ATTEMPT_OUTCOMES
        assert (attempt.confidence == "complete") == (not attempt.missing)
        assert attempt.call.call_key in attempt.evidence
        assert attempt.outcome != "in_flight" or "capture_ends" in attempt.missing
        assert attempt.ended_at is None or attempt.ended_at >= attempt.call.at
