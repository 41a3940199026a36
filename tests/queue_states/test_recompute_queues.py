"""Recomputing some queues from a time on equals recomputing everything, for any events in any number of runs.

The tables are lists here, read with the methods of ``recompute_queues.QueueStateReader``.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues import queue_rows
from pipeline.queues.captured_transfers import CapturedTransfers
from pipeline.queues.queue_managers import QueueManagerNames
from pipeline.queues.queue_rows import (
    QueueNames,
    QueueSettings,
    eod_source_rows,
    eod_transfer_rows,
    history_rows,
    snapshot_observations,
    with_sender_queues,
)
from pipeline.queues.recompute_queues import RowDelta, TooManyEventsError, recompute
from queue_states.queue_events import FAR, FAR_NAME, MINUTE, US, event, incoming, outgoing, read, snapshot, us
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY

TABLES = (QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES)
GUIDS = {"g1": ["relay"], "g2": ["relay2"]}
NAMES = QueueNames(QueueManagerNames({}, GUIDS), {})
TRAFFIC = ("received", "peeked", "nacked", "arrived", "departed")
CAPTURED = CapturedTransfers({"srv1": [(20 * MINUTE * US, 100 * MINUTE * US)]})
OTHER = "10.0.0.9\\private$\\q"  # what the second sender calls the queue


@dataclass
class InMemoryTables:
    """The events so far, and the tables that follow from them."""

    names: QueueNames = NAMES
    settings: QueueSettings = field(default_factory=QueueSettings)
    captured: CapturedTransfers = CAPTURED
    fully_recomputed: frozenset = frozenset()  # queues that are always recomputed from the beginning
    events: list = field(default_factory=list)
    rows: dict = field(default_factory=lambda: {table: [] for table in TABLES})
    together: int = 1_000_000  # events that are read at a time
    is_limited: bool = True

    def read_queue_events(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] not in TRAFFIC]

    def read_traffic_events(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] in TRAFFIC]

    def read_counted_events(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] not in ("snapshot", "pause", "resume")]

    def _all(self, queues, since):
        found = [row for row in self.events if row["queue"] in queues and row["at"] >= since]
        if self.is_limited and len(found) > self.together:
            raise TooManyEventsError
        return found

    def read_rows_since(self, table, queues, since, column="queue"):
        at = "valid_to" if table == QUEUE_HISTORY else "observed_at"
        return self._table(table, lambda row: row[column] in queues and row[at] >= since)

    def read_history_ends(self, queues):
        ends = defaultdict(int)
        for row in self.rows[QUEUE_HISTORY]:
            if row["queue"] in queues:
                series = (row["queue_manager"], row["queue"], row["queue_format_name"])
                ends[series] = max(ends[series], row["valid_to"])
        return dict(ends)

    def read_last_transfers(self, queues, before):
        last = {}
        for row in sorted(self.rows[EOD_TRANSFERS], key=lambda row: (row["observed_at"], row["snapshot_id"])):
            if row["queue"] in queues and row["observed_at"] < before:
                last[tuple(row[name] for name in ("queue_manager", "queue", "queue_format_name", "source"))] = row
        return queue_rows.to_gold_table(EOD_TRANSFERS, list(last.values()), "r")

    def _table(self, table, wanted):
        return queue_rows.to_gold_table(table, [row for row in self.rows[table] if wanted(row)], "r")

    def run(self, new, gone=()):
        """Add and remove events, and recompute their queues from the first affected time on."""
        self.events = [row for row in self.events if row not in gone] + new
        changed = [*new, *gone]
        deltas = {table: RowDelta() for table in TABLES}
        queues = frozenset(row["queue"] for row in changed)
        whole = frozenset(queue for queue in queues if queue in self.fully_recomputed)
        if whole:
            recompute(self, whole, 0, deltas)
        if queues - whole:
            since = min(row["at"] for row in changed if row["queue"] not in whole)
            recompute(self, queues - whole, since, deltas)
        for table, delta in deltas.items():
            key = table.key[0]
            delta.rows = list({row[key]: row for row in delta.rows}.values())
            replaced = {row[key] for there in delta.existing for row in queue_rows.from_gold_table(there)}
            kept = [row for row in self.rows[table] if row[key] not in replaced]
            self.rows[table] = kept + delta.rows
            keys = [row[key] for row in self.rows[table]]
            assert len(set(keys)) == len(keys)

    def expected_rows(self):
        observed = snapshot_observations(self.events)
        transfers = eod_transfer_rows(observed, self.settings)
        return {
            QUEUE_HISTORY: history_rows(self.events, self.settings, captured=self.captured),
            EOD_TRANSFERS: transfers,
            EOD_SOURCES: eod_source_rows(
                with_sender_queues(observed, self.names), transfers, self.names, self.settings
            ),
        }


def by_key(table, rows):
    made = queue_rows.to_gold_table(table, rows, "r").to_pylist()
    return {row[table.key[0]]: row for row in made}


# In minutes: observations are valid for 15, so that histories have gaps.
AT = st.integers(0, 150).map(lambda minute: minute * MINUTE)
STATES = st.sampled_from(["CONNECTED", "ONHOLD"])
KEYS = st.uuids().map(str)
SNAPSHOTS = st.builds(
    lambda at, key, values, name: snapshot(at, key, name=name, **values), AT, KEYS,
    st.fixed_dictionaries({}, optional={"state": STATES, "message_count": st.integers(0, 5)}),
    st.sampled_from(["one", "two"]),
)  # fmt: skip
OPERATIONS = st.builds(lambda kind, at, key: event(kind, at, key, name="one"),
                 st.sampled_from(["pause", "resume", "purge", "moved_in", "moved_out"]), AT, KEYS)  # fmt: skip
READS = st.builds(read, AT, st.sampled_from(["received", "peeked", "doubt", "arrived", "departed"]), KEYS)
SENDERS = st.sampled_from([{"manager": "relay"}, {"manager": "relay2", "queue": OTHER, "name": f"DIRECT=TCP:{OTHER}"}])
SENDING = st.builds(
    lambda at, key, acked, waiting, stamp, place: outgoing(at, acked, waiting, key=key, stamp=stamp, **place), AT, KEYS,
    st.integers(0, 6), st.integers(0, 6), st.integers(7, 8), SENDERS,
)  # fmt: skip
RECEIVING = st.builds(
    lambda at, key, last, stamp: incoming(
        at, ("g1", stamp, last), ("g2", 7, last, {"sender_format_name": f"DIRECT=TCP:{OTHER}"}), key=key
    ), AT, KEYS, st.integers(0, 9), st.integers(7, 8),
)  # fmt: skip


def unique(rows):
    """Drop events with the same key and snapshots of a series at the same time, which would have no order."""
    return list(
        {(row["kind"], row["at"], row["queue"], row["queue_manager"], row["name"]): row for row in rows}.values()
    )


@given(
    st.lists(SNAPSHOTS | OPERATIONS | READS | SENDING | RECEIVING, min_size=1, max_size=30).map(unique),
    st.lists(st.integers(0, 4), min_size=30, max_size=30),
    st.booleans(),
    st.sampled_from([(), (FAR,), (OTHER,)]),
    st.sampled_from([1, 5, 1_000_000]),
)
@settings(max_examples=examples(100), deadline=None)
def test_any_number_of_runs_in_any_order_equals_one_of_everything(rows, run_of, in_order, whole, together):
    tables = InMemoryTables(fully_recomputed=frozenset(whole), together=together)
    runs = defaultdict(list)
    if in_order:  # as scheduled runs receive them
        rows = sorted(rows, key=lambda row: row["at"])
        run_of = sorted(run_of)
    for row, run in zip(rows, run_of, strict=False):
        runs[run].append(row)
    for _, new in sorted(runs.items()):
        tables.run(new)
        expected = tables.expected_rows()
        for table in TABLES:
            assert by_key(table, tables.rows[table]) == by_key(table, expected[table]), table.name


@given(
    st.lists(SNAPSHOTS | OPERATIONS | READS | SENDING | RECEIVING, min_size=2, max_size=20).map(unique), st.randoms(),
    st.sampled_from([1, 5, 1_000_000]),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_what_goes_again_leaves_nothing_behind(rows, random, together):
    tables = InMemoryTables(together=together)
    tables.run(rows)
    gone = random.sample(rows, random.randint(1, len(rows)))
    tables.run([], gone)
    expected = tables.expected_rows()
    for table in TABLES:
        assert by_key(table, tables.rows[table]) == by_key(table, expected[table]), table.name


def test_what_was_done_while_a_queue_was_out_of_sight_is_counted_when_it_is_found_again():
    """These events lie long before the new observation, outside the period that is read for it."""
    tables = InMemoryTables()
    tables.run([snapshot(0, name="one", state="CONNECTED"), snapshot(1, name="two", state="CONNECTED")])
    hour = 60 * MINUTE
    done = [read(hour), *(event(kind, hour, kind, name="one") for kind in ("moved_in", "moved_out"))]
    tables.run([*done, event("purge", 20 * MINUTE, "purge", name="other")])
    tables.run([snapshot(5 * hour, name="two", state="CONNECTED")])
    assert by_key(QUEUE_HISTORY, tables.rows[QUEUE_HISTORY]) == by_key(
        QUEUE_HISTORY, tables.expected_rows()[QUEUE_HISTORY]
    )
    gap = [row for row in tables.rows[QUEUE_HISTORY] if row["queue_format_name"] == "two" and row["source"] is None]
    assert [[row[name] for name in ("received", "moved_in", "moved_out", "purged")] for row in gap] == [[1, 1, 1, 1]]


def test_what_is_read_does_not_grow_with_what_was():
    """A run with one more observation reads a short period before it and writes one or two rows of each table."""
    tables = InMemoryTables()
    for minute in range(0, 600, 5):
        tables.run([outgoing(minute * MINUTE, minute, 2, key=f"s{minute}", queue=FAR, name=FAR_NAME)])
    seen = []
    reader, tables.read_queue_events = tables.read_queue_events, lambda *asked: seen.append(reader(*asked)) or seen[-1]
    before = {table: by_key(table, rows) for table, rows in tables.rows.items()}
    tables.run([outgoing(600 * MINUTE, 600, 2, key="s600")])
    assert [min(row["at"] for row in rows) for rows in seen] == [us((600 - 45) * MINUTE)]
    for table in TABLES:
        after = by_key(table, tables.rows[table])
        assert len({key for key, row in after.items() if before[table].get(key) != row}) <= 2
