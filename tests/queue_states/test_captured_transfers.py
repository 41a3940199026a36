"""The spans of time in which a queue manager's transfers were captured."""

from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines import shared_sql
from example_counts import examples
from memory_lake import MemoryLake
from pipeline.queues import captured_transfers
from pipeline.queues.captured_transfers import NOT_CAPTURED, CapturedTransfers, read_captured_transfers
from pipeline.queues.queue_managers import QueueManagerNames
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from udfs.times import us_to_datetime

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
    machines = {names.name_by_address.get(each, each) for each in (SENDER, RECEIVER)}
    return {name: [*map(tuple, each)] for name, each in read_captured_transfers(lake, names, machines).spans.items()}


def join_spans(files, lasting):
    """The spans of the sender, which are those of the receiver too."""
    found = spans_of(files, lasting)
    assert found.keys() == {"sender", RECEIVER}
    assert bool(found["sender"]) == bool(files)
    assert found.get("sender") == found.get(RECEIVER)
    return found["sender"]


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


class Feeds:
    """What changed of tables, as pairs of kind and row."""

    def __init__(self, changes):
        self.changes = changes

    def rows(self, table, sql):
        if table not in self.changes:
            return []
        of_feed = [("_change_type", pa.string()), ("_commit_version", pa.int64())]
        schema = pa.schema([*table.schema(), *of_feed])
        rows = [{"_change_type": kind, "_commit_version": version, **row} for version, kind, row in self.changes[table]]
        return shared_sql().answer(sql, {"feed": pa.Table.from_pylist(rows, schema)}).to_pylist()


ENDS = (SENDER, RECEIVER, OTHER)
MINUTES = st.integers(0, 40)
SESSION = st.fixed_dictionaries(
    {"kind": st.sampled_from(["binary_protocol", "binary_protocol", "rpc"]), "client_address": st.sampled_from(ENDS),
     "server_address": st.sampled_from(ENDS), "first_packet_at": MINUTES, "lasts": st.integers(0, 12),
     "missing_bytes": st.sampled_from([0, 0, 0, 5, None])}
)  # fmt: skip
CAPTURE = st.fixed_dictionaries(
    {
        "servers": st.lists(st.sampled_from(ENDS), min_size=1, unique=True),
        "first_packet_at": MINUTES,
        "lasts": st.integers(0, 6),
    }
)
TABLES = {"connections": CONNECTIONS, "captures": CAPTURE_FILES}
STEP = st.one_of(
    st.tuples(st.just("connections"), st.integers(0, 5), SESSION | st.integers(0, 6) | st.none()),
    st.tuples(st.just("captures"), st.integers(0, 5), CAPTURE | st.integers(0, 6) | st.none()),
)
RUN = st.tuples(st.lists(STEP, max_size=5), st.sets(st.sampled_from(["sender", RECEIVER, OTHER])))


def as_rows(table, rows):
    """Rows whose last packet is so long after the first; times in seconds."""
    whole = [dict.fromkeys(table.names) | {table.key[0]: str(name), **row} for name, row in rows]
    for row in whole:
        first = us_to_datetime(row["first_packet_at"] * 1_000_000)
        row |= {"first_packet_at": first, "last_packet_at": first + timedelta(seconds=row.pop("lasts"))}
    return whole


def session_at(server):
    return {
        "kind": "binary_protocol", "client_address": SENDER, "server_address": server, "first_packet_at": 0,
        "lasts": 0, "missing_bytes": 0,
    }  # fmt: skip


CAME_AND_WENT = [("connections", 0, None), ("connections", 2, session_at(OTHER)), ("connections", 2, None)]


@given(st.lists(RUN, min_size=1, max_size=6))
@example([([], {"sender"}), ([("connections", 0, session_at(OTHER))], set()), (CAME_AND_WENT, set())])
@settings(max_examples=examples(50), deadline=None)
def test_what_is_read_since_a_change_is_what_all_captures_and_connections_show(runs):
    there, known, machines = {table: {} for table in TABLES.values()}, NOT_CAPTURED, set()
    for steps, new in runs:
        changes = {}
        for version, (of, name, change) in enumerate(steps):
            table = TABLES[of]
            before, now = there[table].pop(name, None), change
            if isinstance(change, int):  # it goes on
                now = before and before | {"lasts": before["lasts"] + change}
            for kind, row in (("delete", before), ("insert", now)):
                if row is not None:
                    changes.setdefault(table, []).append((version, kind, *as_rows(table, [(name, row)])))
            if now is not None:
                there[table][name] = now
        machines |= new
        rows = {table: as_rows(table, every.items()) for table, every in there.items()}
        lake = MemoryLake({table: pa.Table.from_pylist(every, table.schema()) for table, every in rows.items()})
        known = known.updated(lake, Feeds(changes), NAMES, machines)
        assert known == read_captured_transfers(lake, NAMES, machines)


def test_of_captures_that_follow_only_the_last_ones_are_read(monkeypatch):
    """Also of a connection that goes on all the time."""

    def captured(until):
        files = [
            (minute, {"servers": [RECEIVER], "first_packet_at": minute, "lasts": 1}) for minute in range(0, until, 2)
        ]
        session = {"kind": "binary_protocol", "client_address": SENDER, "server_address": RECEIVER, "missing_bytes": 0}
        session |= {"first_packet_at": 0, "lasts": until - 1}
        return {CAPTURE_FILES: as_rows(CAPTURE_FILES, files), CONNECTIONS: as_rows(CONNECTIONS, [(1, session)])}

    before, now = captured(100), captured(102)
    lakes = [MemoryLake({table: pa.Table.from_pylist(rows, table.schema()) for table, rows in each.items()})
             for each in (before, now)]  # fmt: skip
    known = read_captured_transfers(lakes[0], NAMES, {"sender"})
    changes = {CAPTURE_FILES: [(1, "insert", now[CAPTURE_FILES][-1])]}
    changes[CONNECTIONS] = [(1, "update_preimage", *before[CONNECTIONS]), (1, "update_postimage", *now[CONNECTIONS])]
    asked = []
    spans = captured_transfers._read_spans
    monkeypatch.setattr(captured_transfers, "_read_spans", lambda *given: asked.append(given[-1]) or spans(*given))
    assert known.updated(lakes[1], Feeds(changes), NAMES, {"sender"}).spans == {"sender": [[0, 101_000_000]]}
    assert asked == [None, 99_000_000]  # the first is of no queue manager
    assert known.updated(lakes[1], Feeds({}), NAMES, {"sender"}) == known
