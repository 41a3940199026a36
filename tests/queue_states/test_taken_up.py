"""Rows made of queues from a time on are those that would be made of everything: whatever comes, in whatever runs.

The tables are lists here, read as ``states_of_queues.Reader`` reads the lake's.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.queues import queue_rows
from pipeline.queues.queue_managers import Machines
from pipeline.queues.queue_rows import (
    Names,
    Settings,
    history_rows,
    observations,
    source_rows,
    transfer_rows,
    with_senders,
)
from pipeline.queues.recompute_queues import Place, states_since
from queue_states.telling import FAR, FAR_NAME, MINUTE, incoming, outgoing, read, snapshot, told, us
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import QUEUE_HISTORY

TABLES = (QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES)
GUIDS = {"g1": ["relay"], "g2": ["relay2"]}
NAMES = Names(Machines({}, GUIDS), {})
COUNTED_READS = ("received", "peeked", "nacked")
OTHER = "10.0.0.9\\private$\\q"  # what the second sender calls the queue


@dataclass
class Tables:
    """What was told so far, and the tables as they are."""

    names: Names = NAMES
    settings: Settings = field(default_factory=Settings)
    whole: frozenset = frozenset()  # queues that are made again whole whenever they are touched
    everything: list = field(default_factory=list)
    rows: dict = field(default_factory=lambda: {table: [] for table in TABLES})

    def told(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] not in COUNTED_READS]

    def reads(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] in COUNTED_READS]

    def counted(self, queues, since):
        return [row for row in self._all(queues, since) if row["kind"] not in ("snapshot", "pause", "resume")]

    def _all(self, queues, since):
        return [row for row in self.everything if row["queue"] in queues and row["at"] >= since]

    def since(self, table, queues, since, column="queue"):
        at = "valid_to" if table == QUEUE_HISTORY else "observed_at"
        return self._table(table, lambda row: row[column] in queues and row[at] >= since)

    def ended(self, queues):
        ends = defaultdict(int)
        for row in self.rows[QUEUE_HISTORY]:
            if row["queue"] in queues:
                series = (row["queue_manager"], row["queue"], row["queue_format_name"])
                ends[series] = max(ends[series], row["valid_to"])
        return dict(ends)

    def last_transfers(self, queues, before):
        last = {}
        for row in sorted(self.rows[EOD_TRANSFERS], key=lambda row: (row["observed_at"], row["snapshot_id"])):
            if row["queue"] in queues and row["observed_at"] < before:
                last[tuple(row[name] for name in ("queue_manager", "queue", "queue_format_name", "source"))] = row
        return queue_rows.table_of(EOD_TRANSFERS, list(last.values()), "r")

    def _table(self, table, wanted):
        return queue_rows.table_of(table, [row for row in self.rows[table] if wanted(row)], "r")

    def run(self, new, gone=()):
        """Bring to the tables what came and went: of the queues that it is of, from the first time on."""
        self.everything = [row for row in self.everything if row not in gone] + new
        changed = [*new, *gone]
        made = {table: Place() for table in TABLES}
        queues = frozenset(row["queue"] for row in changed)
        whole = frozenset(queue for queue in queues if queue in self.whole)
        if whole:
            states_since(self, whole, 0, made)
        if queues - whole:
            since = min(row["at"] for row in changed if row["queue"] not in whole)
            states_since(self, queues - whole, since, made)
        for table, place in made.items():
            key = table.key[0]
            place.rows = list({row[key]: row for row in place.rows}.values())
            replaced = {row[key] for there in place.there for row in queue_rows.rows_of(there)}
            kept = [row for row in self.rows[table] if row[key] not in replaced]
            self.rows[table] = kept + place.rows
            keys = [row[key] for row in self.rows[table]]
            assert len(set(keys)) == len(keys)

    def anew(self):
        observed = observations(self.everything)
        transfers = transfer_rows(observed, self.settings)
        return {
            QUEUE_HISTORY: history_rows(self.everything, self.settings),
            EOD_TRANSFERS: transfers,
            EOD_SOURCES: source_rows(with_senders(observed, self.names), transfers, self.names, self.settings),
        }


def by_key(table, rows):
    made = queue_rows.table_of(table, rows, "r").to_pylist()
    return {row[table.key[0]]: row for row in made}


# Minutes: observations hold for 15, so that queues are lost from sight and found again.
AT = st.integers(0, 150).map(lambda minute: minute * MINUTE)
STATES = st.sampled_from(["CONNECTED", "ONHOLD"])
KEYS = st.uuids().map(str)
PLAIN = st.builds(
    lambda at, key, values, name: snapshot(at, key, name=name, **values), AT, KEYS,
    st.fixed_dictionaries({}, optional={"state": STATES, "message_count": st.integers(0, 5)}),
    st.sampled_from(["one", "two"]),
)  # fmt: skip
DONE = st.builds(lambda kind, at, key: told(kind, at, key, name="one"),
                 st.sampled_from(["pause", "resume", "purge", "moved_in", "moved_out"]), AT, KEYS)  # fmt: skip
READS = st.builds(read, AT, st.sampled_from(["received", "peeked", "doubt"]), KEYS)
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
    """No two things with one key, and no two snapshots of a series at one moment: they would have no order."""
    return list(
        {(row["kind"], row["at"], row["queue"], row["queue_manager"], row["name"]): row for row in rows}.values()
    )


@given(
    st.lists(PLAIN | DONE | READS | SENDING | RECEIVING, min_size=1, max_size=30).map(unique),
    st.lists(st.integers(0, 4), min_size=30, max_size=30),
    st.booleans(),
    st.sampled_from([(), (FAR,), (OTHER,)]),
)
@settings(max_examples=100, deadline=None)
def test_any_number_of_runs_in_any_order_equals_one_of_everything(rows, run_of, in_order, whole):
    tables = Tables(whole=frozenset(whole))
    runs = defaultdict(list)
    if in_order:  # as a schedule brings it, in one long story
        rows = sorted(rows, key=lambda row: row["at"])
        run_of = sorted(run_of)
    for row, run in zip(rows, run_of, strict=False):
        runs[run].append(row)
    for _, new in sorted(runs.items()):
        tables.run(new)
        anew = tables.anew()
        for table in TABLES:
            assert by_key(table, tables.rows[table]) == by_key(table, anew[table]), table.name


@given(st.lists(PLAIN | DONE | READS | SENDING | RECEIVING, min_size=2, max_size=20).map(unique), st.randoms())
@settings(max_examples=60, deadline=None)
def test_what_goes_again_leaves_nothing_behind(rows, random):
    tables = Tables()
    tables.run(rows)
    gone = random.sample(rows, random.randint(1, len(rows)))
    tables.run([], gone)
    anew = tables.anew()
    for table in TABLES:
        assert by_key(table, tables.rows[table]) == by_key(table, anew[table]), table.name


def test_what_was_done_while_a_queue_was_out_of_sight_is_counted_when_it_is_found_again():
    """Long before the new observation, and only there: nothing of it is asked for with what is told since a little."""
    tables = Tables()
    tables.run([snapshot(0, name="one", state="CONNECTED"), snapshot(1, name="two", state="CONNECTED")])
    hour = 60 * MINUTE
    done = [read(hour), *(told(kind, hour, kind, name="one") for kind in ("moved_in", "moved_out"))]
    tables.run([*done, told("purge", 20 * MINUTE, "purge", name="other")])
    tables.run([snapshot(5 * hour, name="two", state="CONNECTED")])
    assert by_key(QUEUE_HISTORY, tables.rows[QUEUE_HISTORY]) == by_key(QUEUE_HISTORY, tables.anew()[QUEUE_HISTORY])
    gap = [row for row in tables.rows[QUEUE_HISTORY] if row["queue_format_name"] == "two" and row["source"] is None]
    assert [[row[name] for name in ("received", "moved_in", "moved_out", "purged")] for row in gap] == [[1, 1, 1, 1]]


def test_what_is_read_does_not_grow_with_what_was():
    """A run with one more observation reads what little is before it, and writes one row or two of each table."""
    tables = Tables()
    for minute in range(0, 600, 5):
        tables.run([outgoing(minute * MINUTE, minute, 2, key=f"s{minute}", queue=FAR, name=FAR_NAME)])
    seen = []
    reader, tables.told = tables.told, lambda *asked: seen.append(reader(*asked)) or seen[-1]
    before = {table: by_key(table, rows) for table, rows in tables.rows.items()}
    tables.run([outgoing(600 * MINUTE, 600, 2, key="s600")])
    assert [min(row["at"] for row in rows) for rows in seen] == [us((600 - 45) * MINUTE)]
    for table in TABLES:
        after = by_key(table, tables.rows[table])
        assert len({key for key, row in after.items() if before[table].get(key) != row}) <= 2
