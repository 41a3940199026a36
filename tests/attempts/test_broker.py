"""Whatever clients do, legal or not: attempts and fates are what the reference queue manager knows of them."""

from collections import Counter
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from attempts.broker import Broker, attempts_truth, captured, place, truth
from attempts.telling import gold_of, sequences_here
from example_counts import examples
from udfs.keys import key


def shown(broker, begin, order):
    """Attempts and messages as gold tells them, in the form of the truth."""
    calls, connections = captured(broker, begin)
    order.shuffle(calls)
    order.shuffle(connections)

    def message_key(call):
        return f"message {broker.brought[call.call_key]}" if call.call_key in broker.brought else None

    attempts, operations = gold_of(calls, connections, until=broker.now, message_key=message_key)
    names = {key(call.call_key): call.call_key for call in calls}
    micros = attempts["ended_at"].cast("int64").to_pylist()
    made = {
        names[row["attempt_key"]]: (row["outcome"], row["queue"], ended)
        for row, ended in zip(attempts.to_pylist(), micros, strict=True)
    }
    told = sequences_here(attempts, operations)
    rows = {
        ((row["queue"], row["handle"]), int(row["message_key"].removeprefix("message "))): (
            row["outcomes"], row["readers"], row["peeks"], row["fate"], row["moved_to"], row["loss_risk"],
        )
        for row in told
    }  # fmt: skip
    assert all(row["message_key"] == f"message {row['lookup_id'] or row['message_key'][8:]}" for row in told)
    return made, rows


def compared(broker, begin, order):
    made, rows = shown(broker, begin, order)
    assert made == attempts_truth(broker, begin)
    assert rows == truth(broker, begin)


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 150))
@example(11424, 126)  # a client goes on by a connection that it has not used
def test_attempts_and_fates_are_what_the_queue_manager_knows(seed, steps):
    compared(Broker(Random(seed)).run(steps), 0, Random(seed))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 120), st.floats(0, 1))
def test_and_of_a_capture_that_begins_late_what_it_can_show(seed, steps, share):
    broker = Broker(Random(seed)).run(steps)
    compared(broker, round(share * steps), Random(seed))


def test_the_reference_does_everything_that_is_told_apart():
    """What never happens to it would be compared by nobody."""
    outcomes, fates, risks, queues = Counter(), Counter(), Counter(), Counter()
    for seed in range(60):
        broker = Broker(Random(seed)).run(150)
        outcomes.update(outcome for outcome, _, _ in attempts_truth(broker).values())
        rows = truth(broker, 40)
        fates.update(row[3] for row in rows.values())
        risks.update(row[5] for row in rows.values())
        queues.update(where[0] is None for where, _ in rows)
        assert all(place(attempt.handle, 0)[0] for attempt in broker.attempts)
    assert set(outcomes) == {
        "acked", "nacked", "rejected", "expired", "rundown", "peeked", "cancelled", "timed_out", "empty", "failed",
        "in_flight", "unknown",
    }  # fmt: skip
    assert set(fates) == {"consumed", "returned", "rejected", "held", "unknown", "moved", "purged"}
    assert set(risks) == {"ack_failed", "ack_unanswered", "reader_lost", "poison", None}  # it lets nobody read twice
    assert set(queues) == {True, False}
