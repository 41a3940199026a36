"""Where the difference of two taps' clocks jumps, one of them was set; drift, jitter and late packets are none."""

import random

import pytest

from udfs.capture.tap_clocks import SeenTwice, between_jumps

SECOND = 1_000_000


def seen(times, ahead):
    """What two taps saw at some times, of which the second one's clock is ahead by a function of a time and a place."""
    return [SeenTwice(at, at + ahead(at, place)) for place, at in enumerate(times)]


def places(found):
    """The indexes between which the difference jumps, where nothing is left out."""
    sizes = [len(part) for part in between_jumps(found)]
    assert sum(sizes) == len(found)
    return [sum(sizes[: place + 1]) for place in range(len(sizes) - 1)]


@pytest.mark.parametrize("by_us", [-2 * SECOND, 1_100_000, 5 * SECOND, 3 * 3600 * SECOND])
@pytest.mark.parametrize("place", [3, 4, 20, 36, 37])
def test_a_jump_is_found_at_its_place_in_any_order(by_us, place):
    chance = random.Random(place)
    times = [at * 3 * SECOND for at in range(40)]
    found = seen(times, lambda _, number: 700_000 + chance.randint(0, 5000) + by_us * (number >= place))
    assert places(found) == [place]
    assert places(random.Random(1).sample(found, len(found))) == [place]
    assert places([SeenTwice(other, one) for one, other in (each[:2] for each in found)]) == [place]


def test_two_jumps():
    assert places(
        seen(range(0, 60 * SECOND, SECOND), lambda at, _: 9 * SECOND * (20 * SECOND <= at < 40 * SECOND))
    ) == [
        20,
        40,
    ]


def test_drift_and_jitter_are_no_jump():
    chance = random.Random(3)
    at, times = 0, []
    for _ in range(3000):  # three months, with silences of up to three hours
        at += chance.choice([SECOND, 60 * SECOND, chance.randint(0, 3 * 3600 * SECOND)])
        times.append(at)
    assert places(seen(times, lambda at, _: int(at * 1e-4) + chance.randint(-5000, 5000))) == []


def test_fewer_than_three_on_a_side_show_no_jump():
    times = range(0, 20 * SECOND, SECOND)
    for place in (18, 19):
        assert places(seen(times, lambda _, number, place=place: 5 * SECOND * (number >= place))) == []


def test_packets_that_one_tap_saw_late_are_no_jump():
    times = range(0, 400 * SECOND, SECOND)
    assert places(seen(times, lambda _, number: 3 * SECOND * (number % 5 == 3))) == []


def test_what_fits_to_neither_side_of_a_jump_is_left_out():
    found = seen(
        range(0, 40 * SECOND, SECOND), lambda _, place: 2 * SECOND if place == 20 else 9 * SECOND * (place > 20)
    )
    before, behind = between_jumps(found)
    assert (before, behind) == (found[:20], found[21:])


def test_a_clock_that_was_set_back_between_two_files():
    """The times of the second tap are not in order: those of its two files overlap."""
    assert places(seen(range(0, 40 * SECOND, SECOND), lambda _, place: -8_300_000 * (place >= 20))) == [20]


@pytest.mark.parametrize("place", [1, 2])
def test_a_jump_with_too_few_before_it_is_not_found_behind_its_place(place):
    found = seen(range(0, 20 * SECOND, SECOND), lambda _, number: 5 * SECOND * (number >= place))
    assert places(found) == []
