"""The identity rules are consistent: the result does not depend on the order in which sightings come."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.merge.model import (
    CHAIN_S,
    Half,
    Known,
    Sighting,
    Stretch,
    by_acknowledgement,
    calls,
    connections,
    groups,
    literally,
    merged,
    row,
)
from example_counts import examples

QUICK = settings(max_examples=examples(300), deadline=None)

halves = st.builds(
    Half,
    sequence=st.sampled_from([10, 20, 30]),
    at=st.sampled_from([0, 1, 50, 60, 61, 110, 120, 180, 181, 500]),
    packet=st.integers(1, 3),
    whole=st.booleans(),
    acked=st.sampled_from([5, 15, 25, 35]),
)
sightings = st.builds(
    Sighting,
    capture=st.sampled_from("abcd"),
    call_id=st.sampled_from([1, 2]),
    request=st.none() | halves.map(lambda half: replace(half, acked=0)),
    # Of the server's own numbers: a key does not say which side its sequence number is of.
    response=st.none() | halves.map(lambda half: replace(half, sequence=half.sequence + 1000)),
).filter(lambda each: each.request is not None or each.response is not None)
many = st.lists(sightings, max_size=9)


def kept(found):
    return merged(*(frozenset([Known.of(each)]) for each in found))


@QUICK
@given(many)
def test_what_is_kept_is_the_rule_itself(found):
    """Merging summaries gives the same groups as the rule on all sightings, with the same captures."""
    assert {(known.call_id, known.captures) for known in kept(found)} == {
        (group[0].call_id, frozenset().union(*(Known.of(each).captures for each in group))) for group in groups(found)
    }
    assert len(kept(found)) == len(groups(found))


@QUICK
@given(many, st.randoms(use_true_random=False))
def test_merging_is_commutative_associative_and_idempotent(found, rng):
    whole = kept(found)
    shuffled = rng.sample(found, len(found))
    assert kept(shuffled) == whole
    states = [kept([each]) for each in shuffled]
    while len(states) > 1:  # any tree of merges: runs of any files
        one, two = sorted(rng.sample(range(len(states)), 2))
        states[one] = merged(states[one], states.pop(two))
    assert (states[0] if states else frozenset()) == whole
    assert merged(whole, whole) == whole
    assert merged(whole, kept(found[: len(found) // 2])) == whole


@QUICK
@given(many, st.randoms(use_true_random=False))
def test_rows_do_not_depend_on_order_and_keys_are_unique_in_a_state(found, rng):
    rows = calls(found)
    assert calls(rng.sample(found, len(found))) == rows
    assert len(rows) <= len(kept(found))
    assert len({call.key for call in rows}) == len(rows)


@QUICK
@given(many)
def test_a_row_has_the_best_of_each_half(found):
    for group in groups(found):
        made = row(next(iter(kept(group))))
        for name in ("request", "response"):
            seen = [half for each in group if (half := getattr(each, name)) is not None]
            chosen = getattr(made, name)
            assert (chosen is None) == (not seen)
            if chosen is not None:
                assert chosen in seen
                assert chosen.whole == any(half.whole for half in seen)
        best = min(group, key=lambda each: each.rank)
        for name in ("request", "response"):
            if (half := getattr(best, name)) is not None and half.whole:
                assert getattr(made, name) == half
        counts = [len({each.capture for each in group if getattr(each, name)}) for name in ("request", "response")]
        assert made.observations == max(counts)


def test_a_chain_of_clocks_is_one_call_and_a_gap_is_two():
    near = [Sighting(capture, 1, Half(10, at, 1)) for capture, at in (("a", 0), ("b", CHAIN_S), ("c", 2 * CHAIN_S))]
    assert [call.observations for call in calls(near)] == [3]
    assert sorted(call.observations for call in calls([near[0], near[2]])) == [1, 1]
    far = replace(near[2], request=Half(10, 2 * CHAIN_S + 1, 1))
    assert sorted(call.observations for call in calls([*near[:2], far])) == [1, 2]


def test_a_row_alone_cannot_say_what_a_chain_needs():
    """Why time spans are kept and not only the row's time: both ends of a chain have neighbours."""
    a, b, c = (Sighting(name, 1, Half(10, at, 1)) for name, at in (("a", 0), ("b", 50), ("c", 100)))
    first = kept([a, b])
    assert [made.request.at for made in map(row, first)] == [0]
    assert len(merged(first, kept([c]))) == 1
    assert len(merged(kept([a]), kept([c]))) == 2


# -- halves in different captures --------------------------------------------------------------------------------------


def test_taken_literally_a_reused_call_id_makes_one_call_of_two():
    """Two requests and one response with one call id: taken literally, the rule would lose a request."""
    first, second = Sighting("a", 1, Half(10, 0, 1)), Sighting("a", 1, Half(30, 5, 9))
    answer = Sighting("b", 1, None, Half(900, 6, 1, acked=35))
    assert len(calls([first, second, answer], literally)) == 1
    made = {call.request.sequence: call.response for call in calls([first, second, answer])}
    assert made == {10: None, 30: answer.response}


def test_pairs_are_not_kept_since_a_later_capture_may_part_them():
    """A lone request and a lone response look like a pair until a capture shows another response to the request."""
    request, answer = Sighting("a", 1, Half(10, 0, 1)), Sighting("b", 1, None, Half(900, 9, 1, acked=35))
    both = Sighting("c", 1, Half(10, 1, 1), Half(700, 2, 2, acked=15))
    assert len(calls([request, answer])) == 1
    expected = calls([request, answer, both])
    assert len(expected) == 2
    kept_pair = merged(by_acknowledgement(kept([request, answer])), kept([both]))
    assert frozenset(map(row, by_acknowledgement(kept_pair))) != expected
    kept_apart = merged(kept([request, answer]), kept([both]))
    assert frozenset(map(row, by_acknowledgement(kept_apart))) == expected


def world(rng: random.Random, *, reuse: bool):
    """True calls of one connection: (call id, request byte, time, response byte, time, acked)."""
    out = []
    sequence, answered, now = 1000, 50_000, 0.0
    for number in range(rng.randint(1, 8)):
        size, reply = rng.randint(60, 5000), rng.randint(60, 9000)
        call_id = rng.choice([1, 2]) if reuse else number + 1
        out.append((call_id, sequence, now, answered, now + rng.random(), sequence + size))
        sequence, answered, now = sequence + size, answered + reply, now + 1 + 5 * rng.random()
    return out


def taps(rng: random.Random, truth, *, skew: float):
    """Two machines with their own clocks, whose files are cut between any request and its response."""
    out, seen = [], set()
    for tap, offset in (("left", 0.0), ("right", skew)):
        file = 0
        for number, (call_id, sequence, at, answer, answered_at, acked) in enumerate(truth):
            request = Half(sequence, at + offset, number * 2 + 1, whole=rng.random() < 0.8)
            response = Half(answer, answered_at + offset, number * 2 + 2, whole=rng.random() < 0.8, acked=acked)
            shown = [half if tap == "left" or rng.random() < 0.5 else None for half in (request, response)]
            if tap == "left" and rng.random() < 0.2:
                shown[1] = None
            if shown[1] is not None:
                seen.add(sequence)
            if all(shown) and rng.random() < 0.5:
                out.append(Sighting(f"{tap}{file}", call_id, shown[0], None))
                file += 1
                out.append(Sighting(f"{tap}{file}", call_id, None, shown[1]))
            elif any(shown):
                out.append(Sighting(f"{tap}{file}", call_id, *shown))
    return out, seen


@QUICK
@given(st.integers(0, 10**9), st.booleans(), st.floats(-55, 55))
def test_every_call_of_a_connection_is_one_row_with_its_own_answer(seed, reuse, skew):
    rng = random.Random(seed)
    truth = world(rng, reuse=reuse)
    found, answered = taps(rng, truth, skew=skew)
    rows = calls(found)
    assert sorted(call.request.sequence for call in rows) == [each[1] for each in truth]
    answers = {each[1]: each[3] for each in truth}
    for call in rows:
        assert (call.response is not None) == (call.request.sequence in answered)
        if call.response is not None:
            assert call.response.sequence == answers[call.request.sequence]
        assert 1 <= call.observations <= 2


# -- connections -------------------------------------------------------------------------------------------------------


def lives(rng: random.Random):
    """One four-tuple used repeatedly: packets as (time, client's byte, server's byte, SYN), one list per connection."""
    out, now = [], 0.0
    for number in range(rng.randint(1, 4)):
        client, server = (number * 3 + 1) << 28, (number * 5 + 2) << 27
        life = [(now, client, server, client)] if rng.random() < 0.7 else []
        for _ in range(rng.randint(1, 12)):
            now += rng.random()
            client, server = client + rng.randint(0, 1 << 22), server + rng.randint(0, 1 << 22)
            life.append((now, client, server, None))
        out.append(life)
        now += 3
    return out


def stretch(capture: str, packets) -> Stretch:
    clients, servers = [each[1] for each in packets], [each[2] for each in packets]
    syn = next((each[3] for each in packets if each[3] is not None), None)
    return Stretch(
        packets[0][0], capture, packets[-1][0], (min(clients), max(clients)), (min(servers), max(servers)), syn
    )


@QUICK
@given(st.integers(0, 10**9), st.floats(-1, 1))
def test_cut_anywhere_and_seen_twice_each_life_is_one_connection(seed, skew):
    rng = random.Random(seed)
    stretches, owner = [], {}
    for number, life in enumerate(lives(rng)):
        for tap, offset in (("left", 0.0), ("right", skew)):
            if tap == "right" and rng.random() < 0.5:
                continue
            packets = [(at + offset, *rest) for at, *rest in life]
            cuts = sorted(rng.sample(range(1, len(packets)), min(len(packets) - 1, rng.randint(0, 4))))
            for begin, end in zip([0, *cuts], [*cuts, len(packets)], strict=True):
                piece = stretch(f"{tap}{number}.{begin}", packets[begin:end])
                stretches.append(piece)
                owner[piece] = number
    expected = {frozenset(piece for piece in stretches if owner[piece] == number) for number in set(owner.values())}
    assert set(connections(stretches)) == expected
    assert set(connections(rng.sample(stretches, len(stretches)))) == expected


def test_connections_have_to_be_made_of_stretches_and_not_of_connections():
    """Stretches must be kept: one that comes late may join two connections."""
    step = 12 << 20
    a, b, c = (
        Stretch(float(at), name, at + 0.5, (at * step, at * step), (at * step, at * step))
        for at, name in ((0, "a"), (1, "b"), (2, "c"))
    )
    assert connections([a, c]) == [frozenset([a]), frozenset([c])]
    assert connections([a, b, c]) == [frozenset([a, b, c])]
    for order in permutations([a, b, c]):
        assert connections(order) == [frozenset([a, b, c])]


@pytest.mark.parametrize("late", ["a", "b", "c"])
def test_a_syn_that_comes_late_parts_what_looked_like_one(late):
    """By chance the numbers behind the SYN continue those of the previous connection."""
    a = Stretch(0.0, "a", 1.0, (1000, 2000), (500, 600))
    b = Stretch(2.0, "b", 3.0, (1 << 30, 1 << 30), (1 << 29, 1 << 29), syn=1 << 30)
    c = Stretch(4.0, "c", 5.0, ((1 << 30) + 10, (1 << 30) + 20), ((1 << 29) + 10, (1 << 29) + 20))
    without = [each for each in (a, b, c) if each.capture != late]
    assert len(connections(without)) == (1 if late == "a" else 2)
    assert connections([*without, *(each for each in (a, b, c) if each.capture == late)]) == [
        frozenset([a]),
        frozenset([b, c]),
    ]
