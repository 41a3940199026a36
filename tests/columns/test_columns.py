"""Functions on columns do what a loop over plain values does."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.columns.absent import ABSENT, AFTER_ALL, BEFORE_ALL, NEVER_NS, NO_TIME, NONE
from udfs.columns.arrays import (
    from_groups,
    from_ints,
    from_times,
    is_one_of,
    one_array,
    over_distinct,
    to_flags,
    to_ints,
    to_times,
    utc_dates,
)
from udfs.columns.codes import (
    codes_and_values,
    codes_of_both,
    combine_codes,
    dictionary_codes,
    either_code,
    number_codes,
    row_codes,
    row_codes_of_both,
)
from udfs.columns.groups import (
    Groups,
    expand_ranges,
    first_of,
    group_bounds,
    group_starts,
    is_group_start,
    largest_so_far,
    last_of,
    newest_open,
    order_by,
    sorted_distinct,
    take_or,
)
from udfs.columns.time_index import TimeIndex

SMALL = st.integers(0, 4)
# Few different ones, so that they meet; and those at the ends of what a column can hold.
TIMES = st.sampled_from([BEFORE_ALL, -5, -1, 0, 1, 2, 3, 7, AFTER_ALL])
TEXTS = st.sampled_from([None, "", "a", "b", "a\\b", "\0"])


def ints(values):
    return np.array(values, np.int64)


def chunked(values, kind):
    """The values in several chunks, one of them empty."""
    half = len(values) // 2
    return pa.chunked_array([pa.array(part, kind) for part in (values[:half], [], values[half:])], kind)


def as_partition(codes):
    """Which rows are equal: the rows of each code."""
    found = {}
    for row, code in enumerate(codes.tolist()):
        found.setdefault(code, []).append(row)
    return sorted(found.values())


def equal_rows(rows):
    found = {}
    for place, row in enumerate(rows):
        found.setdefault(row, []).append(place)
    return sorted(found.values())


# What stands for nothing


def test_no_value_is_a_time_of_a_packet_or_lies_between_others():
    microseconds = np.iinfo(np.int64).max // 1000  # of a packet: its time in a capture has nanoseconds
    assert NO_TIME == ABSENT < BEFORE_ALL < -microseconds < NONE < microseconds < AFTER_ALL < NEVER_NS
    a_thousand_years = 1000 * 366 * 86_400_000_000
    assert NO_TIME < BEFORE_ALL - a_thousand_years < AFTER_ALL + a_thousand_years < NEVER_NS


# Arrays


@given(st.lists(st.none() | st.integers(-(1 << 40), 1 << 40)), st.integers(-1, 1))
def test_whole_numbers_become_an_array_and_a_column_again(values, absent):
    for column in (pa.array(values, pa.int64()), chunked(values, pa.int64())):
        assert to_ints(column, absent).tolist() == [absent if value is None else value for value in values]
    found = from_ints(to_ints(pa.array(values, pa.int64()), ABSENT), ABSENT)
    assert (found.type, found.to_pylist()) == (pa.int64(), values)


@given(st.lists(st.none() | st.booleans()), st.booleans())
def test_flags_become_an_array(values, default):
    for column in (pa.array(values, pa.bool_()), chunked(values, pa.bool_()), pa.chunked_array([], pa.bool_())):
        expected = [default if value is None else value for value in values] if len(column) else []
        assert to_flags(column, default=default).tolist() == expected
    assert to_ints(pa.array(values, pa.bool_())).tolist() == [int(value or 0) for value in values]
    assert to_flags(pa.nulls(2), default=default).tolist() == [default, default]


@given(st.lists(st.none() | st.integers(-(1 << 50), 1 << 50)))
def test_times_become_an_array_and_a_column_again(values):
    column = pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    found = to_times(column)
    assert found.tolist() == [NO_TIME if value is None else value for value in values]
    assert from_times(found).equals(column)
    assert to_times(column, AFTER_ALL).tolist() == [AFTER_ALL if value is None else value for value in values]


@given(st.lists(st.none() | st.integers(-(1 << 50), 1 << 50)))
def test_dates_of_times(values):
    found = utc_dates(to_times(pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="UTC"))))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [None if value is None else (epoch + timedelta(microseconds=value)).date() for value in values]
    assert (found.type, found.to_pylist()) == (pa.date32(), expected)


def test_times_are_microseconds_since_the_epoch():
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=7)
    assert to_times(pa.array([at], pa.timestamp("ns", tz="UTC"))).tolist() == [7]
    assert from_times(ints([7])).to_pylist() == [at]


@given(st.lists(TEXTS), st.sets(TEXTS.filter(lambda text: text is not None)))
def test_is_one_of_some_values(texts, wanted):
    for column in (pa.array(texts, pa.string()), chunked(texts, pa.string())):
        assert is_one_of(column, wanted).tolist() == [text in wanted for text in texts]


@given(st.lists(TEXTS))
def test_a_function_is_called_once_for_each_value(texts):
    called = []

    def double(text):
        called.append(text)
        return text * 2

    for column in (pa.array(texts, pa.string()), chunked(texts, pa.string())):
        called.clear()
        found = over_distinct(column, double, pa.string())
        assert found.to_pylist() == [text and text * 2 for text in texts]
        assert sorted(called) == sorted({*texts} - {None})


@given(st.lists(st.lists(SMALL)))
def test_values_become_lists(lists):
    owners = ints([row for row, values in enumerate(lists) for _ in values])
    bounds = group_bounds(owners, len(lists))
    values = pa.array([value for values in lists for value in values], pa.int64())
    assert from_groups(bounds, values).to_pylist() == lists
    assert from_groups(bounds, values, empty=False).to_pylist() == [values or None for values in lists]


def test_one_array_has_all_chunks():
    assert one_array(chunked([1, 2, 3], pa.int8())).equals(pa.array([1, 2, 3], pa.int8()))


# Codes


@given(st.lists(TEXTS))
def test_codes_stand_for_values(texts):
    for column in (pa.array(texts, pa.string()), chunked(texts, pa.string())):
        codes, values = codes_and_values(column)
        assert [None if code == NONE else values[code] for code in codes.tolist()] == texts
        assert len(values) == len({*texts} - {None})
        assert dictionary_codes(column).tolist() == codes.tolist()


@given(st.lists(st.sampled_from([ABSENT, -1, 0, 1 << 40])))
def test_codes_of_numbers(numbers):
    codes = number_codes(ints(numbers))
    assert as_partition(codes) == equal_rows(numbers)
    assert (codes == NONE).tolist() == [number == ABSENT for number in numbers]


@given(st.lists(TEXTS), st.lists(TEXTS))
def test_equal_texts_of_two_columns_have_one_code(one, other):
    codes, others = codes_of_both(chunked(one, pa.string()), pa.array(other, pa.string()))
    assert as_partition(np.concatenate([codes, others])) == equal_rows([*one, *other])
    assert (codes == NONE).tolist() == [text is None for text in one]


@given(st.lists(st.tuples(*[st.sampled_from([NONE, 0, 1, 5])] * 3)))
def test_codes_of_combinations(rows):
    codes = combine_codes(*ints(rows).reshape(-1, 3).T)
    assert (codes == NONE).tolist() == [NONE in row for row in rows]
    known = [row for row in rows if NONE not in row]
    assert as_partition(codes[codes != NONE]) == equal_rows(known)
    assert codes.max(initial=NONE) < len(rows)


@given(st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from([0, -1, 1 << 62]))))
def test_codes_of_rows(rows):
    one, other, numbers = ([row[place] for row in rows] for place in range(3))
    codes = row_codes([pa.array(one, pa.string()), chunked(other, pa.string()), ints(numbers)])
    assert as_partition(codes) == equal_rows(rows)
    assert {*codes.tolist()} == {*range(len({*codes.tolist()}))}  # from 0 on without a gap: others index by them


def test_codes_of_very_many_combinations_stay_small():
    columns = [np.arange(3000) * factor % 3000 for factor in (1, 7, 11, 13, 17, 19)]  # 3000 ** 6 is beyond 64 bits
    assert sorted(row_codes(columns).tolist()) == [*range(3000)]
    assert sorted(combine_codes(*columns).tolist()) == [*range(3000)]


@given(st.lists(st.tuples(TEXTS, TEXTS)), st.lists(st.tuples(TEXTS, TEXTS)))
def test_equal_rows_of_two_tables_have_one_code(rows, others):
    columns = [[pa.array([row[place] for row in some], pa.string()) for place in (0, 1)] for some in (rows, others)]
    assert as_partition(np.concatenate(row_codes_of_both(*columns))) == equal_rows([*rows, *others])


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 3), st.integers(-1, 3))))
def test_codes_of_two_kinds_are_never_equal(rows):
    condition, yes, no = np.array([row[0] for row in rows], np.bool_), *(ints([r[at] for r in rows]) for at in (1, 2))
    expected = [(chosen, one if chosen else other) for chosen, one, other in rows]
    codes = either_code(condition, yes, no)
    assert (codes == NONE).tolist() == [code == NONE for _, code in expected]
    assert as_partition(codes[codes != NONE]) == equal_rows([each for each in expected if each[1] != NONE])


# Groups


@given(st.lists(st.tuples(SMALL, SMALL)))
def test_where_groups_begin(rows):
    one, other = ints(rows).reshape(-1, 2).T
    expected = [place == 0 or rows[place - 1] != row for place, row in enumerate(rows)]
    assert is_group_start(one, other).tolist() == expected
    assert group_starts(one, other).tolist() == [place for place, begins in enumerate(expected) if begins]


@given(st.lists(SMALL))
def test_where_the_rows_of_owners_begin(owners):
    bounds = group_bounds(ints(sorted(owners)), 6)
    assert np.diff(bounds).tolist() == [owners.count(owner) for owner in range(6)]
    assert (bounds[0], bounds[-1]) == (0, len(owners))


@given(st.lists(st.tuples(st.integers(-9, 9), SMALL)))
def test_the_numbers_of_ranges(ranges):
    found = expand_ranges(ints([begin for begin, _ in ranges]), ints([count for _, count in ranges]))
    assert found.tolist() == [number for begin, count in ranges for number in range(begin, begin + count)]


@given(st.lists(TIMES))
def test_sorted_and_each_once(numbers):
    assert sorted_distinct(ints(numbers)).tolist() == sorted({*numbers})


@given(st.lists(st.tuples(SMALL, TIMES)))
def test_first_and_last_of_owners(rows):
    owners, items = ints(rows).reshape(-1, 2).T
    of = [[item for owner, item in rows if owner == wanted] for wanted in range(5)]
    assert first_of(owners, items, 5).tolist() == [items[0] if items else NONE for items in of]
    assert last_of(owners, items, 5).tolist() == [items[-1] if items else NONE for items in of]


@given(st.lists(TIMES), st.data())
def test_values_at_rows_and_a_default_for_none(values, data):
    rows = data.draw(st.lists(st.integers(-1, len(values) - 1)))
    assert take_or(ints(values), ints(rows), 42).tolist() == [42 if row == NONE else values[row] for row in rows]
    assert take_or(np.zeros(len(values), np.bool_), ints(rows), default=True).tolist() == [row == NONE for row in rows]


@given(st.lists(st.tuples(SMALL, SMALL, st.text(max_size=2)), unique_by=lambda row: row[2]))
def test_order_by_numbers_and_then_by_name(rows):
    one, other = ints([row[:2] for row in rows]).reshape(-1, 2).T
    found = order_by([one, other], pa.array([row[2] for row in rows], pa.string()))
    key = [(first, second, name.encode()) for first, second, name in rows]
    assert found.tolist() == sorted(range(len(rows)), key=key.__getitem__)


@given(st.lists(st.tuples(SMALL, TIMES)).map(sorted), st.sampled_from([np.int64, np.uint64]))
def test_the_largest_so_far(rows, kind):
    rows = sorted(rows, key=lambda row: row[0])
    groups, values = ints(rows).reshape(-1, 2).T
    found = largest_so_far(groups, values.astype(kind))
    unsigned = [(group, value % (1 << 64) if kind is np.uint64 else value) for group, value in rows]
    assert found.dtype == kind
    assert found.tolist() == [
        max(value for group, value in unsigned[: place + 1] if group == row[0]) for place, row in enumerate(unsigned)
    ]


@given(st.lists(st.tuples(SMALL, st.booleans())))
def test_the_newest_open_row_is_that_on_top_of_a_stack(rows):
    rows = sorted(rows, key=lambda row: row[0])
    stacks, expected = {}, []
    for place, (key, opens) in enumerate(rows):
        stack = stacks.setdefault(key, [])
        expected.append(NONE if opens or not stack else stack.pop())
        if opens:
            stack.append(place)
    found = newest_open(ints([key for key, _ in rows]), np.array([opens for _, opens in rows], np.bool_))
    assert found.tolist() == expected


@given(st.lists(st.tuples(SMALL, TIMES, st.booleans())))
def test_groups_in_an_order(rows):
    count = len(rows)
    keys, at = ints([row[:2] for row in rows]).reshape(-1, 2).T
    groups = Groups(np.arange(count) * 10, keys, at)
    order = sorted(range(count), key=lambda row: rows[row][:2])
    assert groups.rows.tolist() == [row * 10 for row in order]
    assert groups.keys.tolist() == keys[order].tolist()
    assert groups.ordered(at).tolist() == at[order].tolist()
    values, mask = at[order][::-1], np.array([rows[row][2] for row in order], np.bool_)
    before, after, places = [], [], []
    for place, row in enumerate(order):
        mine = [other for other in range(count) if rows[order[other]][0] == rows[row][0]]
        places.append(mine)
        before.append([other for other in mine if other < place])
        after.append([other for other in mine if other > place])
    assert groups.is_first.tolist() == [not some for some in before]
    assert groups.before(values, 42).tolist() == [values[some[-1]] if some else 42 for some in before]
    assert groups.after(values, 42).tolist() == [values[some[0]] if some else 42 for some in after]
    assert groups.largest_before(values, 42).tolist() == [max(values[some]) if some else 42 for some in before]
    assert groups.largest_so_far(values).tolist() == [max(values[[*some, at]]) for at, some in enumerate(before)]
    largest = [max([*some, at], key=lambda place: (values[place], -place)) for at, some in enumerate(before)]
    assert groups.row_of_largest_so_far(values).tolist() == groups.rows[largest].tolist()
    assert groups.largest(values).tolist() == [max(values[some]) for some in places]
    assert groups.counts(mask).tolist() == [sum(mask[some].tolist()) for some in places]
    assert groups.any(mask).tolist() == [bool(mask[some].any()) for some in places]


# Rows by key and time

KEYS = st.integers(NONE, 3)
ROWS = st.lists(st.tuples(KEYS, TIMES))


@given(ROWS, ROWS, TIMES)
def test_rows_by_key_and_time(rows, asked, until):
    of_rows = ints(rows).reshape(-1, 2).T
    assert TimeIndex(*of_rows, 10 * np.arange(len(rows))).order.tolist() == [
        10 * row for row in TimeIndex(*of_rows).order
    ]
    index = TimeIndex(*of_rows)
    keys, times = ints(asked).reshape(-1, 2).T
    in_order = sorted(range(len(rows)), key=lambda row: rows[row])
    in_order = [row for row in in_order if rows[row][0] != NONE]
    assert index.order.tolist() == in_order

    def of_each(condition):
        """The rows of each key that is asked for whose time meets a condition, in order."""
        return [
            [row for row in in_order if rows[row][0] == key and condition(rows[row][1], time)] for key, time in asked
        ]

    def firsts(found):
        return [rows[0] if rows else NONE for rows in found]

    def lasts(found):
        return [rows[-1] if rows else NONE for rows in found]

    assert index.latest(keys, times).tolist() == lasts(of_each(lambda at, time: at <= time))
    assert index.latest(keys, times, inclusive=False).tolist() == lasts(of_each(lambda at, time: at < time))
    assert index.first_after(keys, times).tolist() == firsts(of_each(lambda at, time: at > time))
    within = of_each(lambda at, time: time <= at <= until)
    assert index.first_within(keys, times, np.full(len(keys), until)).tolist() == firsts(within)
    begin, end = index.span(keys, times, np.full(len(keys), until))
    assert [index.order[one:other].tolist() for one, other in zip(begin, end, strict=True)] == within


@pytest.mark.parametrize("kind", [np.int8, np.int32])
def test_keys_of_few_bits_are_no_less(kind):
    keys = np.arange(100, dtype=kind)
    index = TimeIndex(keys, np.zeros(100, np.int64))
    assert index.latest(keys, np.zeros(100, np.int64)).tolist() == [*range(100)]
