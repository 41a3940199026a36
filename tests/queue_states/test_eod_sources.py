"""Comparison of both ends: a sender's reports of its outgoing queue, and the receiver's record of that sender."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues.eod_sources import describe_disagreement
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import (
    QueueNames,
    QueueSettings,
    eod_source_rows,
    eod_transfer_rows,
    snapshot_observations,
    with_sender_queues,
)
from queue_states.queue_events import FAR, FAR_NAME, GAP, incoming, outgoing, us

RELAY = "00000000-0000-0000-0000-0000000000a1"
NAMES = QueueNames(QueueManagerNames({}, {RELAY: ["relay"]}), {})
STAMP = 7


def sources(*rows, names=NAMES):
    observed = snapshot_observations(rows)
    return eod_source_rows(
        with_sender_queues(observed, names), eod_transfer_rows(observed, QueueSettings()), names, QueueSettings()
    )


def disagreements(*rows, names=NAMES):
    """Return how each receiver's record disagrees, without the explanation."""
    return [
        each["disagrees_with_sender"] and each["disagrees_with_sender"].split(":")[0]
        for each in sources(*rows, names=names)
    ]


def test_both_ends_agree_as_a_whole_row():
    (row,) = sources(outgoing(0, 10, 3, ack_at=0), incoming(5, (RELAY, STAMP, 12)), outgoing(10, 12, 4, ack_at=9))
    assert row.pop("source_key")
    assert row == {
        "queue_manager": "far", "queue": FAR, "queue_format_name": FAR_NAME, "source": "collector", "snapshot_id": "r5",
        "observed_at": us(5), "sender_queue_manager": RELAY, "sender_format_name": FAR_NAME, "sender_queue": FAR,
        "sequence_id": STAMP << 32 | 1, "last_number": 12, "last_access_at": us(5), "reject_count": 0,
        "disagrees_with_sender": None, "evidence": ["r5", "s0", "s10"], "confidence": "complete", "missing": [],
        "errors": [],
    }  # fmt: skip


def test_a_sender_that_resumes_below_what_the_receiver_has_is_rejected_for_good():
    """Its state was restored from a copy: it continues with 31, but the receiver already has 50."""
    rows = sources(
        outgoing(0, 50, 0), incoming(1, (RELAY, STAMP, 50)), outgoing(60, 30, 2), incoming(61, (RELAY, STAMP, 50)),
        outgoing(120, 30, 5),
    )  # fmt: skip
    assert [row["disagrees_with_sender"] for row in rows] == [
        "number_behind: the sender goes on with 33, the receiver has had 50",
        "number_behind: the sender goes on with 36, the receiver has had 50",
    ]


def test_a_sender_with_an_older_sequence_is_rejected_for_good():
    assert disagreements(incoming(1, (RELAY, 9, 50)), outgoing(60, 3, 2, stamp=8)) == ["sequence_behind"]


def test_a_receiver_that_was_restored_misses_what_its_sender_believes_acknowledged():
    rows = sources(outgoing(0, 80, 2), incoming(1, (RELAY, STAMP, 50)))
    assert [row["disagrees_with_sender"] for row in rows] == [
        "gap: the sender's oldest message 81 follows 80, the receiver has had 50 only"
    ]


def test_a_receiver_that_never_saw_the_beginning_of_a_sequence_takes_none_of_it():
    assert disagreements(outgoing(0, 80, 2, stamp=8), incoming(1, (RELAY, STAMP, 50))) == ["sequence_unknown"]
    assert disagreements(outgoing(0, 0, 2, stamp=8), incoming(1, (RELAY, STAMP, 50))) == [
        None
    ]  # the first has none before it


@pytest.mark.parametrize("manager", ["far", "other"])
def test_a_sender_that_was_not_observed_is_not_known_to_agree(manager):
    (row,) = sources(incoming(1, (RELAY, STAMP, 50), manager=manager))
    assert (row["disagrees_with_sender"], row["missing"], row["confidence"]) == (None, ["no_snapshot"], "partial")
    assert disagreements(outgoing(0, 80, 2), incoming(GAP + 1, (RELAY, STAMP, 50))) == [None]  # too long ago


def test_two_machines_with_one_identifier_are_told_apart_by_their_sequences():
    clones = QueueNames(QueueManagerNames({}, {RELAY: ["one", "two"]}), {})
    rows = [outgoing(0, 80, 2, manager="one", key="1"), outgoing(0, 10, 2, manager="two", stamp=9, key="2")]
    assert disagreements(*rows, incoming(1, (RELAY, STAMP, 80), (RELAY, 9, 5)), names=clones) == [None, "gap"]


def test_a_sender_whose_identifier_is_not_known_is_found_by_its_sequence_alone():
    nobody = QueueNames(QueueManagerNames(), {})
    rows = [outgoing(0, 80, 2), incoming(1, (RELAY, STAMP, 50), ("another", 3, 1))]
    assert disagreements(*rows, names=nobody) == ["gap", None]


def test_a_sender_that_names_the_queue_otherwise_is_compared():
    other = {"sender_format_name": "DIRECT=TCP:10.0.0.9\\private$\\q"}
    rows = [incoming(1, (RELAY, STAMP, 50, other))]
    assert disagreements(outgoing(0, 80, 2, queue="10.0.0.9\\private$\\q"), *rows) == ["gap"]
    assert disagreements(outgoing(0, 80, 2), *rows) == ["gap"]


class Receiver:
    """A receiver by [MS-MQQB] 3.1.5.8.6: which messages it accepts and rejects."""

    def __init__(self, ident=0, last=0):
        self.ident, self.last = ident, last

    def offer(self, ident, number, previous):
        taken = (ident == self.ident and number > self.last >= previous) or (ident > self.ident and previous == 0)
        if taken:
            self.ident, self.last = ident, number
        return taken


@given(
    st.lists(st.tuples(st.sampled_from(["send", "deliver", "acknowledge", "empty"]), st.integers(1, 5)), max_size=40),
    st.data(),
)
@settings(max_examples=examples(300), deadline=None)
def test_ends_that_go_on_never_disagree_whenever_they_are_asked(steps, data):
    receiver, ident, acked, following = Receiver(), STAMP << 32 | 1, 0, 1
    reports, records = [], []
    for what, count in steps:
        if what == "send":
            following += count
        elif what == "deliver":
            for number in range(receiver.last + 1 if receiver.ident == ident else 1, following)[:count]:
                assert receiver.offer(ident, number, number - 1)
        elif what == "acknowledge" and receiver.ident == ident:
            acked = max(acked, min(receiver.last, acked + count))
        elif what == "empty" and following > 1 and acked == following - 1:
            ident, acked, following = ident + 1, 0, 1
        first = acked + 1 if acked + 1 < following else None
        reports.append({"sequence_id": ident, "next_number": following, "first_unacked_number": first,
                        "first_unacked_previous_number": None if first is None else acked})  # fmt: skip
        records.append((receiver.ident, receiver.last))
    for place, (known, last) in enumerate(records):
        if known:
            earlier = data.draw(st.none() | st.integers(0, place))
            later = data.draw(st.none() | st.integers(place, len(reports) - 1))
            chosen = [None if at is None else reports[at] for at in (earlier, later)]
            assert describe_disagreement(known, last, *chosen) is None


@given(st.integers(1, 3), st.integers(0, 9), st.integers(1, 3), st.integers(1, 9), st.integers(0, 3))
def test_what_disagrees_is_rejected_and_stays_so(known, last, ident, first, waiting):
    """The sender's oldest message is sent again and again; a receiver that disagrees accepts none."""
    report = {"sequence_id": ident, "next_number": first + waiting, "first_unacked_number": first if waiting else None,
              "first_unacked_previous_number": first - 1 if waiting else None}  # fmt: skip
    found = describe_disagreement(known, last, report, report)
    receiver = Receiver(known, last)
    if found is not None:
        offers = [(number, number - 1) for number in range(first, first + waiting + (not found.startswith("number")))]
        assert not any(receiver.offer(ident, *offer) for offer in offers)
    elif waiting and not receiver.offer(ident, first, first - 1):
        assert ident == known
        assert first <= last < first + waiting  # had already: to be acknowledged again, and what follows is taken
