"""Message fates: one scenario per fate and loss risk, from calls to whole rows of gold.ack_sequences."""

import datetime as dt
import random

import pytest

from attempts.stories import (
    HANDLE,
    INVALID_HANDLE,
    LOOKUP,
    NOT_FOUND,
    OK,
    ORDERS,
    OTHER_HANDLE,
    PEEK,
    SILENT,
    UOW,
    close,
    connection,
    end,
    name,
    opened,
    qm_close,
    qm_end,
    qm_open,
    qm_start,
    reject,
    start,
    us,
)
from attempts.telling import SERVER, gold_of, sequences_here
from pipeline.attempts.calls.decoded_call import DecodedCall
from pipeline.attempts.capture_gaps import NO_LOSS
from udfs.keys import key

POISON = f"{ORDERS};poison"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def at(seconds):
    return None if seconds is None else EPOCH + dt.timedelta(seconds=seconds)


def purge(second, hresult=OK, *, name="purge", answer=None, **more):
    values = {"requested_at": us(second), "responded_at": None if hresult is SILENT else us(second + 0.001)}
    values |= {"hresult": None if hresult is SILENT else hresult, "context_handle": HANDLE}
    return DecodedCall(name, "RemoteRead", 6, "c1", **(values | more))


def target(second, *, queue=POISON, number=99, name="target", **more):
    values = {"requested_at": us(second), "responded_at": us(second + 0.001), "queue": queue}
    return DecodedCall(
        name, "RemoteRead", 11, "c1", **(values | {"context_handle": "dd" * 20, "move_context": number} | more)
    )


def move(second, hresult=OK, *, message=5, number=99, name="move", **more):
    values = {"requested_at": us(second), "responded_at": us(second + 0.001), "hresult": hresult}
    values |= {"context_handle": HANDLE, "move_context": number, "lookup_id": message}
    return DecodedCall(name, "RemoteRead", 10, "c1", **(values | more))


def fates(*calls, connections=None, until=60.0, lost_after=60, poison_after=3, unseen=NO_LOSS, **options):
    """Return the messages' rows with short keys; the order of the calls must make no difference."""
    connections = [connection()] if connections is None else connections
    settings = {"lost_after": lost_after, "poison_after": poison_after, "unseen": unseen}
    rows = sequences_here(*gold_of(calls, connections, until=us(until), **options), **settings)
    shuffled = list(calls)
    random.Random(len(calls)).shuffle(shuffled)
    backwards = sequences_here(*gold_of(shuffled, connections[::-1], until=us(until), **options), **settings)
    assert sorted(rows, key=str) == sorted(backwards, key=str)
    starts = {key(call.call_key): call.call_key for call in calls}
    for row in rows:
        place = (row["queue"], row["server_address"], row["handle"])
        lookup = None if row["lookup_id"] is None else int(row["lookup_id"])
        assert row.pop("sequence_key") == key(*place, lookup, row["message_key"])
        row["lookup_id"] = lookup
        row["attempt_keys"] = [starts[name] for name in row["attempt_keys"]]
        assert row.pop("event_date") == (row["first_attempt_at"] or row["settled_at"]).date()
        assert row.pop("run_id") == "run"
    return rows


def expected_row(fate, outcomes, *, first=1.0, settled=2.0, evidence="open start end", missing="", **more):
    """Return a whole row of the one message, read by the one reader; complete unless something is missing."""
    outcomes, missing = outcomes.split(), missing.split()
    return {
        "queue": ORDERS, "inferred_queue": None, "server_address": None, "handle": None, "lookup_id": 5,
        "message_key": "message 5", "attempts": len(outcomes), "peeks": 0, "outcomes": outcomes,
        "readers": ["10.0.0.2"], "first_attempt_at": at(first), "settled_at": at(settled), "fate": fate,
        "redelivered": len(outcomes) > 1, "loss_risk": None, "moved_to": None, "removed_at": None,
        "attempt_keys": ["start", "again", "third"][: len(outcomes)], "evidence": evidence.split(),
        "confidence": "partial" if missing else "complete", "missing": missing, "errors": [],
    } | more  # fmt: skip


def again(second, *, ack=2, number=8, name="again", **more):
    """A receive and its End half a second later."""
    return (
        start(second, name=name, request_id=number, **more),
        end(second + 0.5, ack, name=f"{name}-end", request_id=number),
    )


AGAIN = "open start end again again-end"


def test_consumed():
    assert fates(opened(), start(1), end(2), close(50), connections=[connection(closed=55)]) == [
        expected_row("consumed", "acked")
    ]


def test_given_back_and_received_again_by_another():
    two = [connection(), connection("c2", client="10.0.0.3", group=2)]
    other = {"connection_id": "c2", "context_handle": OTHER_HANDLE}
    calls = (opened(name="open2", handle=OTHER_HANDLE, connection_id="c2"), start(3, name="again", **other))
    rows = fates(opened(), start(1), end(2, ack=1), *calls, end(4, name="end2", **other), connections=two)
    assert rows == [
        expected_row("consumed", "nacked acked", settled=4.0, evidence="open start end open2 again end2",
               readers=["10.0.0.2", "10.0.0.3"])
    ]  # fmt: skip


def test_given_back_and_waiting_for_the_next():
    assert fates(opened(), start(1), end(2, ack=1)) == [expected_row("returned", "nacked")]


def test_what_was_lost_may_have_been_the_next_read_the_close_or_another_end():
    lossy = [connection(closed=30, missing_bytes=1460)]
    assert fates(opened(), start(1), end(2, ack=1), connections=lossy) == [
        expected_row("returned", "nacked", missing="capture_loss")
    ]
    assert fates(opened(), start(1), end(2), close(5), connections=lossy) == [
        expected_row("consumed", "acked", missing="capture_loss")
    ]
    assert fates(opened(), start(1), end(2), connections=lossy) == [
        expected_row("consumed", "acked", missing="capture_loss", loss_risk="reader_lost")
    ]
    refused = end(3, hresult=INVALID_HANDLE, name="refused")
    assert fates(opened(), start(1), end(2), refused, close(5), connections=lossy) == [
        expected_row("consumed", "acked", evidence="open start end refused", loss_risk="ack_failed")
    ]


@pytest.mark.parametrize("code", ["capture_loss", "sealed"])
def test_another_reader_may_have_been_missed_until_later(code):
    back = opened(), start(1), end(2, ack=1)
    for until, missing in ((1.9, ""), (2, ""), (2.1, code)):
        assert fates(*back, unseen={code: {SERVER: us(until)}}) == [expected_row("returned", "nacked", missing=missing)]
    later = {code: {SERVER: us(50)}}
    assert fates(*back, unseen={code: {"10.0.0.77": us(50)}}) == [expected_row("returned", "nacked")]
    assert fates(*back, purge(3), unseen=later)[0]["missing"] == [code]
    assert fates(opened(), start(1), end(2), unseen=later) == [expected_row("consumed", "acked")]


def test_rundown_gives_it_back_too():
    assert fates(opened(), start(1), connections=[connection(closed=30)]) == [
        expected_row("returned", "rundown", settled=30.0, evidence="open start")
    ]


def test_what_expired_is_back_and_a_late_end_changes_nothing():
    late = end(302, hresult=INVALID_HANDLE, name="late")
    rows = fates(opened(), start(1), *again(301.2, number=9), late, until=310)
    assert rows == [
        expected_row("consumed", "expired acked", settled=301.7, evidence="open start late again again-end",
               loss_risk="ack_failed")
    ]  # fmt: skip


def test_held():
    assert fates(opened(), start(1)) == [
        expected_row("held", "in_flight", settled=None, evidence="open start", missing="capture_ends")
    ]


def test_held_again_after_it_was_given_back():
    rows = fates(opened(), start(1), end(2, ack=1), start(3, name="again", request_id=8))
    assert rows == [
        expected_row("held", "nacked in_flight", settled=None, evidence="open start end again", missing="capture_ends")
    ]


def test_rejected_is_provisional():
    rows = fates(opened(), start(1, opnum=13, transaction_id=UOW), end(2, opnum=15), reject(3))
    assert rows == [
        expected_row("rejected", "rejected", evidence="open start end reject", missing="transaction_open",
               confidence="provisional")
    ]  # fmt: skip


TAKEN = (start(1, opnum=13, transaction_id=UOW), end(2, opnum=15))


def test_acknowledged_in_a_transaction_is_provisional():
    assert fates(opened(), *TAKEN) == [
        expected_row("consumed", "acked", missing="transaction_open", confidence="provisional")
    ]


def test_delivered_again_the_transaction_was_aborted():
    assert fates(opened(), *TAKEN, *again(3)) == [
        expected_row("consumed", "aborted acked", settled=3.5, evidence=AGAIN)
    ]
    rejected = (*TAKEN, reject(2.5))
    (row,) = fates(opened(), *rejected, *again(3))
    assert (row["outcomes"], row["fate"], row["confidence"]) == (["aborted", "acked"], "consumed", "complete")


def test_in_a_second_transaction_only_that_one_is_provisional():
    second = (start(3, opnum=13, transaction_id=UOW, name="again"), end(4, opnum=15, name="again-end"))
    assert fates(opened(), *TAKEN, *second) == [
        expected_row("consumed", "aborted acked", settled=4.0, evidence=AGAIN, missing="transaction_open",
               confidence="provisional")
    ]  # fmt: skip
    (row,) = fates(opened(), *TAKEN, *second, poison_after=1)
    assert row["loss_risk"] == "poison"  # it was given back


def test_peeked_afterwards_it_is_back():
    peek = start(3, action=PEEK, name="peek")
    assert fates(opened(), *TAKEN, peek) == [
        expected_row("returned", "aborted", evidence="open start end peek", peeks=1)
    ]
    (row,) = fates(opened(), *TAKEN, peek, purge(4))
    assert (row["fate"], row["confidence"]) == ("purged", "complete")


def peeked_in(queue, second=3.0):
    """Another queue is opened, and the message peeked there."""
    there = opened(second - 0.1, queue=queue, handle=OTHER_HANDLE, name="open2")
    return there, start(second, action=PEEK, name="peek", context_handle=OTHER_HANDLE)


def test_in_a_subqueue_after_more_aborts_it_was_moved_there_by_nobody_who_was_seen():
    counts = {"start": 0, "peek": 1}
    assert fates(opened(), *TAKEN, *peeked_in(POISON), abort_counts=counts) == [
        expected_row("moved", "aborted", evidence="open start end open2 peek", moved_to=POISON)
    ]
    back = start(4, name="again", context_handle=HANDLE, request_id=9), end(5, name="again-end", request_id=9)
    (row,) = fates(opened(), *TAKEN, *peeked_in(POISON), *back, abort_counts=counts)
    assert (row["fate"], row["outcomes"]) == ("consumed", ["aborted", "acked"])
    (row,) = fates(opened(), target(0.5), *TAKEN, move(2.5), *peeked_in(POISON), abort_counts=counts)
    assert (row["fate"], row["removed_at"]) == ("moved", at(2.5))


@pytest.mark.parametrize(
    ("queue", "second", "counts"),
    [
        (POISON, 3.0, {"start": 1, "peek": 1}),  # that it is there may have other reasons
        (POISON, 3.0, {"peek": 1}),
        (POISON, 1.5, {"start": 0, "peek": 1}),  # before it was acknowledged
        (f"{ORDERS};journal", 3.0, {"start": 0, "peek": 1}),  # a copy
        ("srv1\\private$\\audit", 3.0, {"start": 0, "peek": 1}),
    ],
)
def test_elsewhere_it_shows_nothing_of_the_transaction(queue, second, counts):
    (row,) = fates(opened(), *TAKEN, *peeked_in(queue, second), abort_counts=counts)
    assert (row["fate"], row["outcomes"], row["confidence"]) == ("consumed", ["acked"], "provisional")


@pytest.mark.parametrize("peeked_at", [0.5, 1.9])
def test_a_peek_before_the_acknowledgement_shows_nothing(peeked_at):
    (row,) = fates(opened(), *TAKEN, start(peeked_at, action=PEEK, name="peek"))
    assert (row["outcomes"], row["confidence"]) == (["acked"], "provisional")


def test_a_reader_that_waited_for_long_comes_after_the_one_that_got_it_first():
    waiting = start(0.5, answer=3.0, name="start", request_id=9)
    first = start(1, name="again", request_id=8)
    rows = fates(opened(), waiting, first, end(2, ack=1, request_id=8, name="back"), end(4, request_id=9))
    assert rows == [
        expected_row("consumed", "nacked acked", settled=4.0, evidence="open again back start end",
               attempt_keys=["again", "start"])
    ]  # fmt: skip


def test_peeks_are_counted_and_a_message_that_was_only_peeked_has_no_row():
    peeks = (start(0.5, action=PEEK, name="peek"), start(1.5, action=0x40000010, name="peek2", lookup_id=5))
    assert fates(opened(), *peeks, start(1), end(2)) == [expected_row("consumed", "acked", peeks=2)]
    assert fates(opened(), *peeks) == []


def test_what_returned_no_message_is_no_part_of_its_story():
    empty = (start(3, NOT_FOUND, action=LOOKUP, name="gone"), start(4, 0xC00E001B, name="nothing", timeout_ms=0))
    assert fates(opened(), start(1), end(2), *empty) == [expected_row("consumed", "acked")]


def test_messages_and_queues_apart():
    audit = "srv1\\private$\\audit"
    calls = (
        opened(name="open2", queue=audit, handle=OTHER_HANDLE),
        start(3, name="start2", context_handle=OTHER_HANDLE),
    )
    rows = fates(opened(), start(1), end(2), *calls, *again(5, message=6))
    assert [(row["queue"], row["lookup_id"], row["fate"]) for row in rows] == [
        (ORDERS, 5, "consumed"), (audit, 5, "held"), (ORDERS, 6, "consumed"),
    ]  # fmt: skip


# Risks


def test_read_twice():
    assert fates(opened(), start(1), end(2), *again(3)) == [
        expected_row("consumed", "acked acked", settled=3.5, evidence=AGAIN, loss_risk="read_twice")
    ]


def test_read_twice_comes_before_all_others():
    rows = fates(opened(), start(1), end(2, hresult=SILENT), *again(3), connections=[connection(closed=4)])
    assert [row["loss_risk"] for row in rows] == ["read_twice"]


def test_the_acknowledgement_was_refused():
    assert fates(opened(), start(1), end(2, hresult=NOT_FOUND)) == [
        expected_row("unknown", "failed", loss_risk="ack_failed")
    ]


def test_the_acknowledgement_was_refused_whatever_came_of_it_then():
    first = end(1.5, hresult=INVALID_HANDLE, name="first")
    rows = fates(opened(), start(1), first, end(2, ack=1))
    assert rows == [expected_row("returned", "nacked", evidence="open start first end", loss_risk="ack_failed")]
    assert fates(opened(), start(1), end(2, ack=1, hresult=INVALID_HANDLE))[0]["loss_risk"] is None


def test_the_acknowledgement_was_never_answered():
    rows = fates(opened(), start(1), end(2, hresult=SILENT))
    assert rows == [expected_row("consumed", "acked", loss_risk="ack_unanswered", missing="capture_ends no_response")]
    assert fates(opened(), start(1), end(2, ack=1, hresult=SILENT))[0]["loss_risk"] is None


@pytest.mark.parametrize(("closed", "risk"), [(2.5, "reader_lost"), (62.0, "reader_lost"), (62.001, None)])
def test_the_reader_was_lost_soon_after_it_took_the_message(closed, risk):
    rows = fates(opened(), start(1), end(2), connections=[connection(closed=closed)], until=100)
    assert rows == [expected_row("consumed", "acked", loss_risk=risk)]


def test_a_reader_that_closed_its_queue_was_not_lost():
    gone = [connection(closed=3)]
    assert fates(opened(), start(1), end(2), close(2.5), connections=gone) == [expected_row("consumed", "acked")]
    other = close(2.5, handle=OTHER_HANDLE)
    assert fates(opened(), start(1), end(2), other, connections=gone)[0]["loss_risk"] == "reader_lost"


def test_a_reader_with_another_connection_was_not_lost():
    both = [connection(closed=3), connection("c2", first=0.5)]
    assert fates(opened(), start(1), end(2), connections=both)[0]["loss_risk"] is None


def test_how_soon_is_a_setting():
    gone = [connection(closed=13)]
    assert fates(opened(), start(1), end(2), connections=gone, lost_after=10)[0]["loss_risk"] is None


def test_a_qm2qm_reader_that_closed_what_it_opened_before_the_capture_was_not_lost():
    gone = [connection(closed=3)]
    calls = (qm_start(1), qm_end(2))
    assert fates(*calls, connections=gone)[0]["loss_risk"] == "reader_lost"
    assert fates(*calls, qm_close(2.5), connections=gone)[0]["loss_risk"] is None
    assert fates(qm_open(), *calls, qm_close(2.5, context_handle=OTHER_HANDLE), connections=gone)[0]["loss_risk"] == (
        "reader_lost"
    )


def test_poison():
    back = [*again(3, ack=1), *again(5, ack=1, number=9, name="third")]
    rows = fates(opened(), start(1), end(2, ack=1), *back)
    assert rows == [
        expected_row("returned", "nacked nacked nacked", settled=5.5, evidence=f"{AGAIN} third third-end",
               loss_risk="poison")
    ]  # fmt: skip
    assert fates(opened(), start(1), end(2, ack=1), *back, poison_after=4)[0]["loss_risk"] is None
    taken = fates(
        opened(), start(1), end(2, ack=1), *again(3, ack=1), *again(5, number=9, name="third"), poison_after=2
    )[0]
    assert (taken["fate"], taken["loss_risk"]) == ("consumed", "poison")


# Moves and purges


def test_moved_to_a_subqueue_after_it_was_given_back():
    rows = fates(opened(), target(0.5), start(1), end(2, ack=1), move(3))
    assert rows == [
        expected_row("moved", "nacked", evidence="open start end target move", moved_to=POISON, removed_at=at(3))
    ]


def test_a_move_that_was_refused_moves_nothing():
    assert fates(opened(), target(0.5), start(1), end(2, ack=1), move(3, NOT_FOUND)) == [
        expected_row("returned", "nacked")
    ]


def test_a_move_of_another_message_or_before_it_was_read_again():
    assert fates(opened(), target(0.5), start(1), end(2, ack=1), move(3, message=6)) == [
        expected_row("returned", "nacked")
    ]
    rows = fates(opened(), target(0.5), start(1), end(2, ack=1), move(2.5), *again(3, ack=1))
    assert [(row["fate"], row["moved_to"]) for row in rows] == [("returned", None)]


def test_moved_in_a_transaction_is_provisional_and_its_target_may_be_unknown():
    rows = fates(opened(), start(1), end(2, ack=1), move(3, transaction_id=UOW))
    assert rows == [
        expected_row("moved", "nacked", evidence="open start end move", removed_at=at(3),
               missing="no_open queue_unknown transaction_open")
    ]  # fmt: skip
    (row,) = fates(opened(), target(0.5), start(1), end(2, ack=1), move(3, transaction_id=UOW))
    assert (row["confidence"], row["missing"]) == ("provisional", ["transaction_open"])


def test_moved_after_the_transaction_that_took_it_was_aborted():
    (row,) = fates(opened(), target(0.5), *TAKEN, move(3))
    assert (row["fate"], row["moved_to"], row["outcomes"]) == ("moved", POISON, ["aborted"])
    assert row["confidence"] == "complete"


def test_an_identifier_of_a_message_that_is_gone_is_another_ones():
    assert fates(opened(), target(0.5), start(1), end(2), move(3)) == [expected_row("consumed", "acked")]


def test_a_move_back_leaves_it_there():
    back = opened(3.5, queue=POISON, handle=OTHER_HANDLE, name="open2")
    home = target(3.6, queue=ORDERS, number=100, name="home", context_handle="ee" * 20)
    calls = (opened(), target(0.5), start(1), end(2, ack=1), move(3))
    home_again = move(4, number=100, context_handle=OTHER_HANDLE, name="back")
    rows = fates(*calls, back, home, home_again)
    assert rows == [expected_row("returned", "nacked", evidence="open start end open2 home back")]
    rows = fates(*calls, back, home, home_again, purge(5))
    assert [(row["fate"], row["removed_at"]) for row in rows] == [("purged", at(5))]


def test_the_story_goes_on_in_the_subqueue():
    other = opened(3.5, queue=POISON, handle=OTHER_HANDLE, name="open2")
    take = (start(4, name="again", context_handle=OTHER_HANDLE), end(5, name="end2", context_handle=OTHER_HANDLE))
    rows = fates(opened(), target(0.5), start(1), end(2, ack=1), move(3), other, *take)
    assert [(row["queue"], row["fate"], row["outcomes"]) for row in rows] == [
        (ORDERS, "moved", ["nacked"]), (POISON, "consumed", ["acked"]),
    ]  # fmt: skip


def test_purged_after_it_was_given_back():
    assert fates(opened(), start(1), end(2, ack=1), purge(3)) == [
        expected_row("purged", "nacked", evidence="open start end purge", removed_at=at(3))
    ]


def test_purged_while_it_was_held():
    rows = fates(opened(), start(1), purge(1.5), end(2, ack=1))
    assert rows == [expected_row("purged", "nacked", evidence="open start end purge", removed_at=at(1.5))]
    assert fates(opened(), start(1), purge(1.5), end(2)) == [expected_row("consumed", "acked")]


@pytest.mark.parametrize(
    ("operations", "name"), [((purge(3, SILENT),), "purge"), ((target(0.5), move(3, None, responded_at=None)), "move")]
)
def test_a_purge_or_move_without_an_answer_may_have_taken_it(operations, name):
    (row,) = fates(opened(), start(1), end(2, ack=1), *operations)
    assert (row["fate"], row["missing"], row["confidence"]) == ("returned", ["no_response"], "partial")
    assert row["evidence"][-1] == name
    (row,) = fates(opened(), start(1), end(2), *operations)
    assert (row["fate"], row["missing"], row["evidence"]) == ("consumed", [], ["open", "start", "end"])


@pytest.mark.parametrize("done", [purge(0.5), purge(3, NOT_FOUND), purge(0.5, SILENT)])
def test_purges_that_did_not_take_it(done):
    assert fates(opened(), start(1), end(2, ack=1), done) == [expected_row("returned", "nacked")]


def test_a_purge_takes_nothing_that_was_consumed_moved_or_of_another_queue():
    assert fates(opened(), start(1), end(2), purge(3))[0]["fate"] == "consumed"
    assert fates(opened(), target(0.5), start(1), end(2, ack=1), move(3), purge(4))[0]["fate"] == "moved"
    other = (opened(queue="srv1\\other", handle=OTHER_HANDLE, name="other"), purge(3, context_handle=OTHER_HANDLE))
    assert fates(opened(), start(1), end(2, ack=1), *other)[0]["fate"] == "returned"


def test_purged_by_number_over_qm2qm():
    app = connection("app", client="10.0.0.8", group=9)
    by_number = DecodedCall("purge", "qm2qm", 6, "c1", us(3), us(3.1), queue_handle=28, hresult=OK)
    rows = fates(name(), qm_open(0.5), qm_start(1), qm_end(2, ack=1), by_number, connections=[connection(), app])
    assert [(row["queue"], row["fate"], row["removed_at"]) for row in rows] == [(ORDERS, "purged", at(3))]


# What is known of it


def test_without_its_lookup_identifier_it_is_known_by_its_key():
    """RemoteQMStartReceive (opnum 0) returns none."""
    app = connection("app", client="10.0.0.8", group=9)
    reads = (qm_start(1, opnum=0), qm_end(2, ack=1), qm_start(3, name="again"), qm_end(4, name="end2"))

    def keys(call):
        return "the message" if call.call_key in ("start", "again") else None

    rows = fates(name(), qm_open(0.5), *reads, connections=[connection(), app], message_key=keys)
    assert [(row["lookup_id"], row["message_key"], row["outcomes"]) for row in rows] == [
        (5, "the message", ["nacked", "acked"])
    ]
    rows = fates(name(), qm_open(0.5), *reads[:2], connections=[connection(), app], message_key=keys)
    assert [(row["lookup_id"], row["message_key"], row["fate"]) for row in rows] == [(None, "the message", "returned")]


def test_a_read_whose_header_was_not_whole_is_known_by_its_lookup_identifier():
    def keys(call):
        return "the message" if call.call_key == "again" else None

    rows = fates(opened(), start(1), end(2, ack=1), *again(3), message_key=keys)
    assert [(row["message_key"], row["outcomes"]) for row in rows] == [("the message", ["nacked", "acked"])]


def test_a_lookup_identifier_that_was_used_again_is_another_message():
    rows = fates(
        opened(), start(1), end(2), *again(3), message_key=lambda call: {"start": "a", "again": "b"}.get(call.call_key)
    )
    assert [(row["message_key"], row["outcomes"], row["loss_risk"]) for row in rows] == [
        ("a", ["acked"], None), ("b", ["acked"], None),
    ]  # fmt: skip
    rows = fates(opened(), target(0.5), start(1), end(2, ack=1), *again(3, ack=1), move(4),
                message_key=lambda call: {"start": "a", "again": "b"}.get(call.call_key))  # fmt: skip
    assert [(row["message_key"], row["fate"]) for row in rows] == [("a", "returned"), ("b", "moved")]


def test_of_a_queue_that_is_not_known_the_handle_stands_for_it():
    unknown = {"queue": None, "server_address": "10.0.0.1", "missing": ["no_open", "queue_unknown"]}
    partial = {"evidence": "start end", "confidence": "partial"}
    assert fates(start(1), end(2)) == [expected_row("consumed", "acked", handle=HANDLE, **partial) | unknown]
    assert fates(qm_start(1), qm_end(2)) == [expected_row("consumed", "acked", handle="28", **partial) | unknown]
    guessed = fates(start(1), end(2), destination="srv1\\sent-to")
    assert [(row["queue"], row["inferred_queue"], row["confidence"]) for row in guessed] == [
        (None, "srv1\\sent-to", "inferred")
    ]


def test_the_canonical_name_joins_what_was_opened_by_several():
    address = "10.0.0.1\\private$\\orders"
    other = opened(2.5, queue=address, handle=OTHER_HANDLE, name="open2")
    calls = (start(3, name="again", context_handle=OTHER_HANDLE), end(4, name="end2", context_handle=OTHER_HANDLE))
    rows = fates(opened(), start(1), end(2, ack=1), other, *calls, aliases={address: ORDERS})
    assert [(row["queue"], row["outcomes"]) for row in rows] == [(ORDERS, ["nacked", "acked"])]


def test_without_its_bind_it_is_inferred_and_errors_are_told():
    broken = {"bind_seen": False, "errors": (("malformed", "response.end of stub", 28),)}
    (row,) = fates(opened(), start(1, **broken), end(2))
    assert (row["confidence"], row["missing"]) == ("inferred", ["decode_error", "no_bind"])
    assert row["errors"] == [{"code": "malformed", "field": "response.end of stub", "offset": 28}]


def test_an_end_shows_a_receive_whose_request_was_not_seen():
    unseen = {"requested_at": None, "action": None, "context_handle": None, "request_id": None}
    (row,) = fates(qm_start(1, answer=1.5, **unseen), qm_end(2))
    assert (row["outcomes"], row["first_attempt_at"], row["settled_at"]) == (["acked"], None, at(2))
