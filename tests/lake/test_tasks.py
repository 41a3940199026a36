"""Things spread over tasks, and made ahead of their use."""

import threading

import pytest

from pipeline.lake.engine.tasks import balance_by_size
from udfs.prefetch import prefetch


def test_what_is_made_ahead_comes_in_its_order_and_one_ahead_at_most():
    made, main = [], threading.get_ident()

    def numbers():
        for number in range(5):
            assert threading.get_ident() != main
            made.append(number)
            yield number

    for used, number in enumerate(prefetch(numbers())):
        assert number == used
        assert used + 1 <= len(made) <= used + 2
    assert made == [0, 1, 2, 3, 4]
    assert [*prefetch([])] == []
    assert [*prefetch([None, None])] == [None, None]


def test_what_fails_fails_at_its_place():
    def failing():
        yield 1
        raise ValueError("the second")

    each = prefetch(failing())
    assert next(each) == 1
    with pytest.raises(ValueError, match="the second"):
        next(each)


def test_who_stops_early_leaves_no_thread():
    before = threading.active_count()
    each = prefetch(range(1000))
    assert [next(each), next(each)] == [0, 1]
    each.close()
    assert threading.active_count() == before


def test_lists_are_alike_in_size():
    assert balance_by_size([5, 1, 1, 1, 2], int, 2) == [[5], [2, 1, 1, 1]]
    assert balance_by_size([], int, 3) == []
