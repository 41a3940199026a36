"""Exactly-once sequences: a story for each rule, and random ones against an independent computation."""

from random import Random

import numpy as np
import pytest

from pipeline.transfers.sequences.predecessors import find_predecessors, how_they_began
from pipeline.transfers.sequences.sequence_events import SequenceOrderAcks, TransactionalSendings, take_in
from pipeline.transfers.sequences.transfer_sequences import describe_sequences
from transfers import reference_sequences as reference
from transfers.reference_sequences import Ack, Sending
from udfs.columns.absent import NO_TIME, NONE

S = 1_000_000
DAY = 86_400 * S
STALL, WAIT = 30 * S, 30 * DAY


def described(sequences, capture_ends, *, stall_after=STALL, wait=WAIT):
    """What the arrays' code says of sequences, each (sendings, acks), in the reference's form."""
    sendings = [
        (number, each) for number, (sent, _) in enumerate(sequences) for each in reference.in_order(sent)
    ]  # fmt: skip
    acks = [(number, each) for number, (_, acked) in enumerate(sequences) for each in acked]
    ends = np.array(capture_ends, np.int64)
    sequence = np.array([number for number, _ in sendings], np.int64)

    def ints(rows, name):
        return np.array([getattr(each, name) for _, each in rows], np.int64)

    def bools(rows, name):
        return np.array([getattr(each, name) for _, each in rows], np.bool_)

    sent = TransactionalSendings(
        sequence, ints(sendings, "at"), ints(sendings, "number"), ints(sendings, "previous"), ints(sendings, "length"),
        bools(sendings, "complete"), bools(sendings, "acknowledged"), bools(sendings, "has_loss"),
        bools(sendings, "one_sided"), bools(sendings, "begun_unseen"), ends[sequence],
    )  # fmt: skip
    acked = SequenceOrderAcks(
        np.array([number for number, _ in acks], np.int64), ints(acks, "at"), ints(acks, "number"),
        bools(acks, "same_hop"),
    )  # fmt: skip
    sent, acked, _, _ = take_in(sent, acked, wait)
    found = describe_sequences(sent, acked, stall_after_us=stall_after, wait_us=wait)
    return [row_of(found, place) for place in range(len(sequences))]


def row_of(found, place):
    absent = {-1: None, NO_TIME: None}
    names = (
        "messages", "sendings", "sent_bytes", "resends", "resent_bytes", "first_number", "last_number",
        "first_sent_at", "last_sent_at", "missing_numbers", "out_of_order", "order_acks", "waiting",
    )  # fmt: skip
    row = {name: int(getattr(found, name)[place]) for name in names}
    for name in ("refusals", "acknowledged_number", "acknowledged_at", "first_waiting_number"):
        value = int(getattr(found, name)[place])
        row[name] = absent.get(value, value)
    gaps, stalls = found.gaps, found.stalls
    row["gaps"] = [
        (int(gaps.first[at]), int(gaps.last[at]), bool(gaps.bridged[at]))
        for at in np.flatnonzero(gaps.sequence == place)
    ]
    row["stalls"] = [
        tuple(absent.get(int(value), int(value)) for value in (
            stalls.began_at[at], stalls.ended_at[at], stalls.first_number[at], stalls.waiting[at], stalls.sendings[at]
        ))
        for at in np.flatnonzero(stalls.sequence == place)
    ]  # fmt: skip
    longest, since = int(stalls.longest_us[place]), int(stalls.since[place])
    row |= {"longest": None if longest < 0 else longest, "stalled_since": absent.get(since, since)}
    row["condition"] = str(found.condition[place])
    row["missing"] = sorted(name for name, flags in found.reasons.items() if flags[place])
    return row


def one(sendings, acks=(), capture_end=0, **said):
    """The row of one sequence; times of sendings and acks are seconds."""

    def scaled(rows):
        return [each._replace(at=round(each.at * S), **({"place": n} if isinstance(each, Sending) else {}))
                for n, each in enumerate(rows)]  # fmt: skip

    return described([(scaled(sendings), scaled(acks))], [round(capture_end * S)], **said)[0]


def sent(at, number, previous=None, **said):
    return Sending(at, number, number - 1 if previous is None else previous, **said)


def shows(row, **expected):
    assert {name: row[name] for name in expected} == expected


def test_counts():
    row = one([sent(1, 1, length=10), sent(2, 2, length=20), sent(2.5, 1, length=10), sent(3, 3)], [Ack(4, 3)])
    shows(row, messages=3, sendings=4, sent_bytes=140, resends=1, resent_bytes=10, first_number=1, last_number=3)
    shows(row, first_sent_at=1 * S, last_sent_at=3 * S, acknowledged_number=3, acknowledged_at=4 * S, order_acks=1)
    shows(row, waiting=0, first_waiting_number=None, condition="acknowledged", missing=[], gaps=[], stalls=[])


def test_a_gap_is_bridged_by_any_sending_of_the_number_behind_it():
    row = one([sent(1, 1), sent(2, 4), sent(3, 7, 4), sent(4, 9), sent(5, 9, 7)], [Ack(6, 9)])
    shows(row, gaps=[(2, 3, False), (5, 6, True), (8, 8, True)], missing_numbers=2)


def test_out_of_order_are_first_sendings_below_one_sent_before():
    row = one([sent(1, 1), sent(2, 3), sent(3, 2), sent(4, 2), sent(5, 1), sent(6, 4)])
    shows(row, out_of_order=1, resends=2)


def test_what_a_receiver_refuses():
    """The first is taken; then what is above the last one taken, and names no number above it."""
    shows(one([sent(1, 5), sent(2, 6), sent(3, 6), sent(4, 8), sent(5, 8, 6), sent(6, 9, 3)]), refusals=2)
    shows(one([sent(1, 5), sent(2, 7), sent(3, 8), sent(4, 6), sent(5, 7)]), refusals=2)
    shows(one([sent(1, 1), sent(2, 1, has_loss=True)]), refusals=None, missing=["capture_ends", "capture_loss"])


def test_order_acks_of_other_hops_count_above_those_of_the_same_hop():
    acks = [Ack(2, 1), Ack(3, 1, same_hop=False), Ack(4, 2, same_hop=False), Ack(5, 3, same_hop=False)]
    row = one([sent(1, 1), sent(1, 2), sent(1, 3)], acks)
    shows(row, order_acks=3, acknowledged_number=3, acknowledged_at=5 * S, condition="acknowledged")
    shows(one([sent(1, 1), sent(1, 2)], [Ack(3, 2), Ack(4, 2, same_hop=False)]), order_acks=1)


def test_an_order_ack_before_the_first_sending_seen_counts():
    row = one([sent(10, 6), sent(11, 7)], [Ack(9, 5)], capture_end=100)
    shows(row, order_acks=1, acknowledged_number=5, waiting=2, condition="stalled", stalled_since=10 * S)
    shows(row, missing=["capture_begins", "capture_ends"])


def test_stalls():
    """Number 1 waits 40 s, then 2 and 3 from that order ack on, until the capture ends."""
    sendings = [sent(0, 1), sent(10, 2), sent(30, 1), sent(35, 3), sent(60, 2)]
    row = one(sendings, [Ack(40, 1), Ack(50, 1)], capture_end=75)
    shows(row, stalls=[(0, 40 * S, 1, 3, 4), (40 * S, None, 2, 2, 1)], longest=40 * S, stalled_since=40 * S)
    shows(row, condition="stalled", waiting=2, first_waiting_number=2)
    row = one(sendings, [Ack(40, 1)], capture_end=69)
    shows(row, stalls=[(0, 40 * S, 1, 3, 4)], longest=40 * S, stalled_since=None, condition="waiting")
    shows(one(sendings, [Ack(29.9, 1), Ack(59, 2)], capture_end=60), stalls=[], longest=None)


def test_a_wait_ends_only_with_an_order_ack_that_raises_the_number():
    row = one([sent(0, 2), sent(0, 3)], [Ack(5, 2), Ack(20, 1), Ack(36, 3)])
    shows(row, stalls=[(5 * S, 36 * S, 3, 1, 0)], condition="acknowledged", acknowledged_number=3)


def test_an_order_ack_for_less_than_what_waits_begins_the_wait_anew():
    shows(one([sent(0, 5)], [Ack(20, 3), Ack(40, 4)], capture_end=60), stalls=[], condition="waiting")
    shows(one([sent(0, 5)], [Ack(20, 3)], capture_end=60), stalls=[(20 * S, None, 5, 1, 0)])


def test_at_equal_times_sendings_come_before_order_acks():
    row = one([sent(0, 1), sent(10, 2)], [Ack(10, 1)], capture_end=40)
    shows(row, stalls=[(10 * S, None, 2, 1, 0)])
    row = one([sent(0, 1), sent(30, 2)], [Ack(30, 2)], capture_end=40)
    shows(row, stalls=[(0, 30 * S, 1, 2, 2)], condition="acknowledged")


def test_a_wait_of_exactly_the_setting_is_a_stall():
    shows(one([sent(0, 1, acknowledged=False)], capture_end=30), condition="stalled", longest=30 * S)
    shows(one([sent(0, 1, acknowledged=False)], capture_end=29.9), condition="waiting", stalls=[])


def test_unseen_order_acks_are_no_stall():
    shows(one([sent(0, 1)], capture_end=29), condition="waiting", missing=["capture_ends", "no_response"])
    row = one([sent(0, 1), sent(1, 2)], capture_end=100)
    shows(row, condition="unknown", stalls=[], longest=None, stalled_since=None)
    shows(row, missing=["capture_ends", "no_response"])
    seen = {
        "sent again": one([sent(0, 1), sent(1, 1)], capture_end=100),
        "not acknowledged": one([sent(0, 1), sent(1, 2, acknowledged=False)], capture_end=100),
        "an order ack": one([sent(0, 1), sent(1, 2)], [Ack(1, 1)], capture_end=100),
    }
    assert {row["condition"] for row in seen.values()} == {"stalled"}


def test_a_receiver_that_refuses():
    """Sent three times, and an order ack that raises nothing came after the second time."""
    sendings = [sent(0, 2), sent(1, 3), sent(2, 3), sent(3, 3)]
    shows(one(sendings, [Ack(0.5, 2), Ack(2.5, 2)], capture_end=100), condition="refused", stalled_since=1 * S)
    shows(one(sendings, [Ack(0.5, 2), Ack(1.5, 2)], capture_end=100), condition="stalled")
    shows(one(sendings[:3], [Ack(0.5, 2), Ack(2.5, 2)], capture_end=100), condition="stalled")
    shows(one(sendings, [Ack(0.5, 2), Ack(2.5, 2), Ack(4, 3)]), condition="acknowledged")


@pytest.mark.parametrize(("number", "previous", "missing"), [(1, 0, []), (2, 1, ["capture_begins"]), (9, 0, [])])
def test_a_sequence_that_began_before_the_capture(number, previous, missing):
    shows(one([sent(0, number, previous)], [Ack(1, number)]), missing=missing)


def test_damaged_packets():
    shows(one([sent(0, 1), sent(1, 2, complete=False)], [Ack(2, 2)]), missing=["damaged"])


def test_a_row_takes_in_what_follows_within_the_setting():
    day = 86_400
    row = one([sent(0, 1), sent(30 * day, 2), sent(60.1 * day, 3)], [Ack(61 * day, 3)], capture_end=90 * day)
    shows(row, sendings=2, last_number=2, order_acks=0, waiting=2)
    row = one([sent(0, 1), sent(30 * day, 2)], [Ack(60 * day, 2)], capture_end=90 * day)
    shows(row, order_acks=1, waiting=0)
    row = one([sent(0, 1, acknowledged=False)], capture_end=90 * day)
    shows(row, condition="stalled", longest=WAIT)


def test_number_zero_is_a_number():
    """A number is never 0 (T22); one that is there waits like all others."""
    shows(one([sent(0, 0, 0)], capture_end=1), waiting=1, first_waiting_number=0, acknowledged_number=None)
    shows(one([sent(0, 0, 0)], [Ack(1, 0)]), waiting=0, acknowledged_number=0, condition="acknowledged")


def random_sequence(draw):
    span = draw.choice([5, 200, 100_000]) * S
    top = draw.choice([3, 10, 40])

    def moment():
        return draw.randrange(0, 12) * span // 12 if draw.random() < 0.7 else draw.randrange(span)

    sendings = [
        Sending(
            moment(), number := draw.randint(0, top), draw.choice([max(number - 1, 0), 0, draw.randint(0, top)]), place,
            draw.randint(1, 9), draw.random() < 0.95, draw.random() < 0.9, draw.random() < 0.02,
        )
        for place in range(draw.choice([1, 2, 5, 30]))
    ]  # fmt: skip
    acks = [Ack(moment(), draw.randint(0, top + 1), draw.random() < 0.7) for _ in range(draw.choice([0, 0, 1, 3, 12]))]
    return sendings, acks


@pytest.mark.parametrize("seed", range(60))
def test_random_sequences_are_as_computed_event_by_event(seed):
    draw = Random(seed)
    sequences = [random_sequence(draw) for _ in range(draw.choice([1, 4, 30]))]
    ends = [draw.choice([0, 60, 100_000, 500_000]) * S for _ in sequences]
    stall_after, wait = draw.choice([0, 10, 30, 5000]) * S, draw.choice([1, 60, 10_000, 10**6]) * S
    found = described(sequences, ends, stall_after=stall_after, wait=wait)
    for row, (sendings, acks), end in zip(found, sequences, ends, strict=True):
        expected = reference.describe(sendings, acks, capture_end=end, stall_after=stall_after, wait=wait)
        assert row == expected


@pytest.mark.parametrize(
    ("before", "identifier", "expected"),
    [
        ((7 << 32 | 1, 0, False), 7 << 32 | 2, "emptied"),
        ((7 << 32 | 1, 0, True), 7 << 32 | 2, "abandoned"),
        ((7 << 32 | 1, 0, True), 8 << 32 | 1, "new_epoch"),
        ((7 << 32 | 3, 0, True), 7 << 32 | 2, "backwards"),
        ((7 << 32 | 1, 1, False), 7 << 32 | 2, "first"),
        ((7 << 32 | 1, -5, False), 7 << 32 | 2, "first"),
        ((2**64 - 1, 0, False), 1 << 63, "backwards"),
    ],
)
def test_how_a_sequence_began(before, identifier, expected):
    rows = [before, (identifier, 1, False)]
    found = began(rows, [0, 0], wait=5)
    assert found[1] == (None if expected == "first" else before[0], expected)
    assert began(rows, [0, 1], wait=5)[1] == (None, "first")


def began(rows, flows, wait):
    ids = np.array([row[0] for row in rows], np.uint64)
    before = find_predecessors(np.array(flows), np.array([row[1] for row in rows]), ids, wait)
    how = how_they_began(before, ids, np.array([row[2] for row in rows]))
    named = [None if place == NONE else int(ids[place]) for place in before]
    return list(zip(named, map(str, how), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_random_predecessors(seed):
    draw = Random(seed)
    rows = [(draw.getrandbits(3) << 32 | n, draw.randrange(12), draw.random() < 0.5) for n in range(30)]
    flows = [draw.randrange(3) for _ in rows]
    wait = draw.randrange(8)
    found = began(rows, flows, wait)
    for flow in range(3):
        ours = [place for place, each in enumerate(flows) if each == flow]
        assert [found[place] for place in ours] == reference.began([rows[place] for place in ours], wait)
