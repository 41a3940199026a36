"""Histories of queue managers: their intervals, and incremental updates against recomputation."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues import update_machines
from pipeline.queues.machine_history import MachineEvent, compute_history
from queue_states.in_memory_update import InMemoryUpdate, row
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_history import MACHINE_HISTORY
from schemas.queue_snapshots import MACHINE_SNAPSHOTS

US = 1_000_000
MINUTE = 60 * US
GAP = 15 * MINUTE
ADDRESS = "10.0.0.1"
COLUMNS = ("valid_from", "valid_to", "state", "bytes_in_all_queues", "active_queues", "source", "missing")


def snapshot(minute, key=None, source="collector", manager="srv1", **values):
    """A successful snapshot that reports values of columns; None: not available."""
    states = [(name, "null" if value is None else "value") for name, value in values.items()]
    return MACHINE_SNAPSHOTS, row(
        MACHINE_SNAPSHOTS, snapshot_id=key or f"s{minute}", source=source, queue_manager=manager, hresult=0,
        observed_at=minute * MINUTE, property_states=states, **values,
    )  # fmt: skip


def action(minute, text, key=None, hresult=0, **more):
    """An R_QMMgmtAction on the machine at ``ADDRESS``; without ``hresult`` it was not answered."""
    at = minute * MINUTE
    return MANAGEMENT_CALLS, row(
        MANAGEMENT_CALLS, call_key=key or f"{text}{minute}", queue_manager=ADDRESS, object_type="machine", action=text,
        requested_at=at, responded_at=None if hresult is None else at, hresult=hresult, **more,
    )  # fmt: skip


class Runs:
    """Runs of the update over rows in memory."""

    def __init__(self):
        self.tables = InMemoryUpdate(MACHINE_HISTORY)

    def run(self, new=(), gone=(), names=None):
        step = self.tables.begin(new, gone, max_gap_us=GAP, machines="1", names=names or {ADDRESS: "srv1"})
        return update_machines._MachinesUpdate(step, GAP, "run").run()

    def rows(self, *columns):
        every = sorted(self.tables.rows.to_pylist(), key=lambda row: (row["queue_manager"], row["valid_from"]))
        for each in every:
            for name in ("valid_from", "valid_to"):
                each[name] = each[name].timestamp() / 60
        return [tuple(each[name] for name in columns or COLUMNS) for each in every]


def history(*pairs):
    runs = Runs()
    runs.run(pairs)
    return runs.rows()


def test_a_machine_is_watched_taken_off_the_network_and_lost():
    assert history(
        snapshot(0, connected="connected", bytes_in_all_queues=1000, activequeues=["a", "b"]),
        action(5, "disconnect"),
        snapshot(10, connected="DISCONNECTED", bytes_in_all_queues=2000),
        snapshot(60, connected="CONNECTED", bytes_in_all_queues=0, activequeues=[]),
    ) == [
        (0, 5, "CONNECTED", 1000, 2, "collector", []),
        (5, 10, "DISCONNECTED", 1000, 2, "operations", []),
        (10, 15, "DISCONNECTED", 2000, 2, "collector", []),
        (15, 25, "DISCONNECTED", 2000, None, "collector", []),
        (25, 60, "UNKNOWN", None, None, None, ["no_snapshot"]),
        (60, 75, "CONNECTED", 0, 0, "collector", []),
    ]


@pytest.mark.parametrize(
    "doubtful",
    [
        action(5, "DISCONNECT", hresult=None),
        action(5, "DISCONNECT", hresult=None, errors=[{"code": "truncated", "field": None, "offset": 0}]),
    ],
)
def test_an_action_without_a_readable_answer_changes_no_state_and_is_named(doubtful):
    rows = history(snapshot(0, connected="CONNECTED", bytes_in_all_queues=1), doubtful)
    assert [(row[2], bool(row[-1])) for row in rows[:2]] == [("CONNECTED", False), ("CONNECTED", True)]


@pytest.mark.parametrize(
    "without_effect",
    [
        action(5, "DISCONNECT", hresult=0xC00E0006),
        action(5, "DISCONNECT", hresult=None, fault_name="nca_s_fault_ndr"),
        action(5, "TIDY"),
    ],
)
def test_failed_actions_and_others_start_no_interval(without_effect):
    assert history(snapshot(0, connected="CONNECTED", bytes_in_all_queues=1), without_effect) == [
        (0, 15, "CONNECTED", 1, None, "collector", [])
    ]


def test_what_the_queue_manager_does_not_have_is_null_and_a_failed_snapshot_is_no_evidence():
    table, failed = snapshot(5, connected="DISCONNECTED")
    rows = history(snapshot(0, connected="CONNECTED", bytes_in_all_queues=None), (table, failed | {"hresult": 5}))
    assert rows == [(0, 15, "CONNECTED", None, None, "collector", [])]


def test_the_wire_and_the_collector_tell_of_one_machine():
    runs = Runs()
    runs.run([snapshot(0, connected="CONNECTED"), snapshot(5, source="wire", manager=ADDRESS, connected="CONNECTED")])
    assert runs.rows("queue_manager", "valid_from", "source") == [("srv1", 0, "collector"), ("srv1", 5, "wire")]
    runs.run(names={ADDRESS: "other"})
    assert runs.rows("queue_manager", "valid_from") == [("other", 5), ("srv1", 0)]


AT = st.integers(0, 150)
KEYS = st.uuids().map(str)
SNAPSHOTS = st.builds(
    lambda at, key, values, place: snapshot(at, key, *place, **values), AT, KEYS,
    st.fixed_dictionaries({}, optional={
        "connected": st.sampled_from(["CONNECTED", "DISCONNECTED", None]), "bytes_in_all_queues": st.integers(0, 3),
    }),
    st.sampled_from([("collector", "srv1"), ("wire", ADDRESS), ("collector", "srv2")]),
)  # fmt: skip
ACTIONS = st.builds(action, AT, st.sampled_from(["CONNECT", "Disconnect"]), KEYS, st.sampled_from([0, None]))


def _time(pair):
    _, values = pair
    return values["observed_at"] if "observed_at" in values else values["requested_at"]


@given(
    st.lists(SNAPSHOTS | ACTIONS, min_size=1, max_size=20),
    st.lists(st.integers(0, 4), min_size=20, max_size=20),
    st.booleans(),
    st.randoms(),
)
@settings(max_examples=examples(15), deadline=None)
def test_any_number_of_runs_in_any_order_equals_one_of_everything(pairs, run_of, in_order, random):
    if in_order:
        pairs, run_of = (
            sorted(pairs, key=lambda pair: pair[1].get("observed_at") or pair[1].get("requested_at") or 0),
            sorted(run_of),
        )
    runs, batches = Runs(), defaultdict(list)
    for pair, run in zip(pairs, run_of, strict=False):
        batches[run].append(pair)
    for _, new in sorted(batches.items()):
        runs.run(new)
    _check_equals_recomputation(runs, pairs)
    gone = random.sample(pairs, random.randint(1, len(pairs)))
    runs.run(gone=gone)
    _check_equals_recomputation(runs, [pair for pair in pairs if pair not in gone])


def _check_equals_recomputation(runs, pairs):
    whole = Runs()
    whole.run(pairs)
    assert runs.tables.by_key() == whole.tables.by_key()


def test_what_is_read_does_not_grow_with_what_was():
    runs = Runs()
    runs.run([snapshot(minute, connected="CONNECTED", bytes_in_all_queues=minute) for minute in range(0, 600, 5)])
    assert runs.run([snapshot(600, connected="CONNECTED", bytes_in_all_queues=600)]) == 2
    assert max(runs.tables.read) <= 5


def test_events_at_one_time_have_an_order():
    events = [
        MachineEvent(0, "b", "wire", {"state": "CONNECTED"}),
        MachineEvent(0, "a", values={"state": "DISCONNECTED"}),
    ]
    assert compute_history(events, GAP) == compute_history(reversed(events), GAP)
    assert [row["state"] for row in compute_history(events, GAP)] == ["CONNECTED"]
