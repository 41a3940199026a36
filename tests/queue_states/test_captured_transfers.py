"""The spans of time in which a queue manager's transfers were captured."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from memory_lake import MemoryLake
from pipeline.queues.captured_transfers import CapturedTransfers, read_captured_transfers
from pipeline.queues.queue_managers import QueueManagerNames
from schemas.bronze import CAPTURE_FILES, CONNECTIONS

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda each: (each[0], each[0] + each[1])))
SENDER, RECEIVER, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
NAMES = QueueManagerNames({SENDER: "sender"})
TIME = pa.timestamp("us", "UTC")


def times_of(spans):
    """The columns of when files, or connections, begin and end."""
    return {
        name: pa.array([each[place] for each in spans], pa.int64()).cast(TIME)
        for place, name in enumerate(("first_packet_at", "last_packet_at"))
    }


def spans_of(files, lasting, *, names=NAMES):
    """When transfers were captured, by files of one server and its whole connections; one is not whole."""
    every = [*lasting, (0, 100)]
    whole = [0] * len(lasting) + [1]
    sides = {"client_address": [SENDER] * len(every), "server_address": [RECEIVER] * len(every)}
    connections = pa.table(
        {"kind": ["binary_protocol"] * len(every), **sides, "missing_bytes": whole, **times_of(every)}
    )
    servers = pa.array([[RECEIVER, OTHER]] * len(files), pa.list_(pa.string()))
    captures = pa.table({"servers": servers, **times_of(files)})
    lake = MemoryLake({CONNECTIONS: connections, CAPTURE_FILES: captures})
    return read_captured_transfers(lake, names).spans


def join_spans(files, lasting):
    """The spans of the sender, which are those of the receiver too."""
    found = spans_of(files, lasting)
    assert found.keys() == ({"sender", RECEIVER} if files else set())
    assert found.get("sender") == found.get(RECEIVER)
    return found.get("sender", [])


def test_files_are_joined_only_where_a_connection_shows_that_none_is_missing():
    files = [(0, 10), (12, 20), (25, 30), (29, 40)]
    assert join_spans(files, []) == [(0, 10), (12, 20), (25, 40)]
    assert join_spans(files, [(5, 13)]) == [(0, 20), (25, 40)]
    assert join_spans(files, [(11, 26), (5, 11)]) == [*files[:1], (12, 40)]
    assert join_spans(files, [(0, 40)]) == [(0, 40)]


@given(SPANS, SPANS)
def test_a_time_is_captured_if_a_file_has_it_or_a_connection_went_on_over_it(files, lasting):
    joined = join_spans(files, lasting)
    assert joined == join_spans(files[::-1], lasting[::-1])
    assert all(end < begin for (_, end), (begin, _) in pairwise(joined))
    for at in range(55):
        before = max((end for begin, end in files if begin <= at), default=None)
        after = min((begin for begin, _ in files if begin > at), default=None)
        inside = before is not None and before >= at
        bridged = None not in (before, after) and any(one <= before and other >= after for one, other in lasting)
        assert any(begin <= at <= end for begin, end in joined) == (inside or bridged)


APART = st.lists(st.integers(0, 50), unique=True).map(sorted).map(lambda at: [*zip(at[::2], at[1::2], strict=False)])


@given(APART, APART)
def test_what_ends_before_a_change_of_the_spans_is_covered_as_before(before, now):
    old, new = CapturedTransfers({"a": before}), CapturedTransfers({"a": now})
    since = new.changed_since({"a": [[*each] for each in before]}).get("a")
    assert (since is None) == (before == now)
    for begin in range(50):
        for end in range(begin + 1, 51):
            if since is None or end <= since:
                assert old.cover("a", begin, end) == new.cover("a", begin, end)
    assert CapturedTransfers({"a": now}).changed_since({}).keys() == ({"a"} if now else set())
