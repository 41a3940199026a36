"""The spans of time in which a queue manager's transfers were captured."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.queues.captured_transfers import CapturedTransfers, join_spans

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda each: (each[0], each[0] + each[1])))


def test_files_are_joined_only_where_a_connection_shows_that_none_is_missing():
    files = [(0, 10), (12, 20), (25, 30), (29, 40)]
    assert join_spans(files, []) == [(0, 10), (12, 20), (25, 40)]
    assert join_spans(files, [(5, 13)]) == [(0, 20), (25, 40)]
    assert join_spans(files, [(11, 26), (5, 11)]) == [*files[:1], (12, 40)]
    assert join_spans(files, [(0, 40)]) == [(0, 40)]


@given(SPANS, SPANS)
def test_a_time_is_captured_if_a_file_has_it_or_a_connection_went_on_over_it(files, lasting):
    joined = join_spans(files, lasting)
    assert joined == join_spans(reversed(files), reversed(lasting))
    assert all(end < begin for (_, end), (begin, _) in pairwise(joined))
    for at in range(55):
        before = max((end for begin, end in files if begin <= at), default=None)
        after = min((begin for begin, _ in files if begin > at), default=None)
        inside = before is not None and before >= at
        bridged = None not in (before, after) and any(one <= before and other >= after for one, other in lasting)
        assert any(begin <= at <= end for begin, end in joined) == (inside or bridged)


@given(SPANS.map(lambda files: join_spans(files, [])), SPANS.map(lambda files: join_spans(files, [])))
def test_what_ends_before_a_change_of_the_spans_is_covered_as_before(before, now):
    old, new = CapturedTransfers({"a": before}), CapturedTransfers({"a": now})
    since = new.changed_since({"a": [[*each] for each in before]}).get("a")
    assert (since is None) == (before == now)
    for begin in range(50):
        for end in range(begin + 1, 51):
            if since is None or end <= since:
                assert old.cover("a", begin, end) == new.cover("a", begin, end)
    assert CapturedTransfers({"a": now}).changed_since({}).keys() == ({"a"} if now else set())
