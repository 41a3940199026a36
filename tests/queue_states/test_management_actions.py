"""Management actions: what was asked, with which result, the states before and after; updates against recomputation."""

from collections import defaultdict
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues import update_actions
from queue_states.in_memory_update import InMemoryUpdate, row
from schemas.bronze import RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MANAGEMENT_ACTIONS
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS

MINUTE = 60_000_000
GAP = 15 * MINUTE
ADDRESS = "10.0.0.1"
FAR, FAR_NAME = "far\\private$\\inbox", "DIRECT=OS:far\\private$\\inbox"
REFUSED = 0xC00E0006


def action(minute, text, *, hresult=0, name=FAR_NAME, answered=True, key=None, **more):
    """A call on the queue of a format name; None: on the machine."""
    at, key = minute * MINUTE, key or f"{text}{minute}"
    times = {"request_at": at, "response_at": at + 1 if answered else None}
    security = {"auth_level": None, "bind_seen": True, "outcome": "ok" if answered else "no_response"}
    pdus = {column: more.pop(column) for column in tuple(more) if column in (*security, "fault_name")}
    call = row(
        MANAGEMENT_CALLS, call_key=key, opnum=1, queue_manager=more.pop("manager", ADDRESS), client_address="10.0.0.9",
        action=text,
        object_type=more.pop("object_type", "queue" if name else "machine"), queue_format_name=name, queue=name and FAR,
        requested_at=times["request_at"], responded_at=times["response_at"], hresult=hresult if answered else None,
        fault_name=pdus.pop("fault_name", None), **more,
    )  # fmt: skip
    return [
        (MANAGEMENT_CALLS, call),
        (RPC_CALLS, row(RPC_CALLS, call_key=key, interface_name="qmmgmt", opnum=1, **times, **security | pdus)),
    ]


def snapshot(minute, state, *, name=FAR_NAME, key=None, source="wire"):
    """A snapshot of the queue of a format name; None: of the machine."""
    manager = ADDRESS if source == "wire" else "srv1"
    known = {"snapshot_id": key or f"s{minute}", "source": source, "queue_manager": manager, "hresult": 0}
    if name is None:
        return [(MACHINE_SNAPSHOTS, row(MACHINE_SNAPSHOTS, **known, observed_at=minute * MINUTE, connected=state))]
    known |= {"queue_format_name": name, "queue": FAR}
    return [(QUEUE_SNAPSHOTS, row(QUEUE_SNAPSHOTS, **known, observed_at=minute * MINUTE, state=state))]


class Runs:
    """Runs of the update over rows in memory."""

    def __init__(self):
        self.tables = InMemoryUpdate(MANAGEMENT_ACTIONS)

    def run(self, *events, gone=(), names=None):
        new = [pair for event in events for pair in event]
        gone = [pair for event in gone for pair in event]
        provenance = {str(QUEUE_ALIASES): 1, "max_gap_us": GAP, "actions": "1", "names": names or {ADDRESS: "srv1"}}
        step = self.tables.begin(new, gone, **provenance)
        return update_actions._ActionsUpdate(step, GAP, "run").run()

    def rows(self, *columns):
        every = sorted(self.tables.rows.to_pylist(), key=lambda row: (row["requested_at"], row["call_key"]))
        return [tuple(each[name] for name in columns) for each in every]


def states(*events):
    runs = Runs()
    runs.run(*events)
    return runs.rows("action", "state_before", "state_after", "missing")


def test_pause_and_resume_change_the_state_that_the_next_snapshot_shows():
    runs = Runs()
    runs.run(
        snapshot(0, "Connected"), action(1, "pause"), snapshot(2, "ONHOLD", source="collector"),
        action(3, "RESUME", auth_level=6), snapshot(4, "CONNECTED"),
    )  # fmt: skip
    columns = ("action", "queue_manager", "queue", "outcome", "auth_level_name", "state_before", "state_after")
    assert runs.rows(*columns) == [
        ("PAUSE", "srv1", FAR, "done", "RPC_C_AUTHN_LEVEL_NONE", "CONNECTED", "ONHOLD"),
        ("RESUME", "srv1", FAR, "done", "RPC_C_AUTHN_LEVEL_PKT_PRIVACY", "ONHOLD", "CONNECTED"),
    ]
    assert runs.rows("evidence", "confidence")[0] == (["s0", "pause1", "s2"], "complete")


@pytest.mark.parametrize(
    "between",
    [
        action(2, "RESUME"),
        action(2, "RESUME", answered=False),
        action(2, "DISCONNECT", name=None),
        action(2, None, object_type=None, hresult=None, outcome="encrypted"),
    ],
)
def test_a_snapshot_beyond_another_change_says_nothing(between):
    found = states(snapshot(0, "CONNECTED"), action(1, "PAUSE"), between, snapshot(3, "CONNECTED"))
    assert found[0] == ("PAUSE", "CONNECTED", None, ["no_snapshot"])
    assert found[1][1] is None


@pytest.mark.parametrize(
    "between",
    [action(2, "RESUME", hresult=REFUSED), action(2, "EOD_RESEND"), action(2, "RESUME", name="DIRECT=OS:other\\q")],
)
def test_what_changes_no_state_of_the_queue_hides_no_snapshot(between):
    found = states(snapshot(0, "CONNECTED"), action(1, "PAUSE"), between, snapshot(3, "ONHOLD"))
    assert found[0] == ("PAUSE", "CONNECTED", "ONHOLD", [])


def test_a_machine_is_taken_off_the_network():
    found = states(
        snapshot(0, "CONNECTED", name=None), action(1, "disconnect", name=None), action(2, "TIDY", name=None),
        snapshot(3, "DISCONNECTED", name=None), snapshot(1.5, "ONHOLD"),
    )  # fmt: skip
    assert found == [("DISCONNECT", "CONNECTED", "DISCONNECTED", []), ("TIDY", None, "DISCONNECTED", ["no_snapshot"])]


def test_snapshots_of_other_format_names_and_old_ones_say_nothing():
    found = states(
        snapshot(0, "CONNECTED"), action(20, "PAUSE"), snapshot(21, "ONHOLD", name="DIRECT=TCP:10.0.0.7\\q"),
        snapshot(36, "ONHOLD"),
    )  # fmt: skip
    assert found == [("PAUSE", None, None, ["no_snapshot"])]


def test_outcomes_and_what_is_not_known_of_them():
    runs = Runs()
    runs.run(
        action(0, "PAUSE", hresult=REFUSED), action(1, "PAUSE", hresult=None, fault_name="rpc_x_bad_stub_data"),
        action(2, "PAUSE", answered=False), action(3, None, hresult=None, outcome="encrypted", auth_level=6),
        action(4, "TIDY", name=None, bind_seen=False),
    )  # fmt: skip
    assert runs.rows("action", "outcome", "auth_level", "missing", "confidence") == [
        ("PAUSE", "failed", 1, [], "complete"),
        ("PAUSE", "failed", 1, [], "complete"),
        ("PAUSE", "unknown", 1, ["no_response", "no_snapshot"], "partial"),
        (None, "unknown", 6, ["no_snapshot", "sealed"], "partial"),
        ("TIDY", "done", None, ["no_bind", "no_snapshot"], "inferred"),
    ]


def test_a_name_that_becomes_known_is_in_all_rows():
    runs = Runs()
    runs.run(action(0, "PAUSE"), names={"10.0.0.2": "srv2"})
    runs.run(action(600, "PAUSE"))
    assert runs.rows("queue_manager") == [("srv1",), ("srv1",)]
    alias = row(QUEUE_ALIASES, queue=FAR, canonical_queue="far\\inbox")
    runs.run([(QUEUE_ALIASES, alias)])
    assert runs.rows("queue") == [("far\\inbox",), ("far\\inbox",)]


def test_with_another_name_of_a_queue_manager_only_its_actions_are_read_again():
    runs = Runs()
    others = [action(minute, "PAUSE", manager="10.0.0.2", key=f"other{minute}") for minute in range(0, 600, 5)]
    runs.run(*others, action(300, "PAUSE"), snapshot(301, "ONHOLD", source="collector"), names={"10.0.0.3": "srv3"})
    assert ("10.0.0.1", None) in runs.rows("queue_manager", "state_after")
    runs.run(action(601, "RESUME", manager="10.0.0.2", key="last"))
    assert ("srv1", "ONHOLD") in runs.rows("queue_manager", "state_after")
    assert max(runs.tables.read) <= 10


NAMES = st.sampled_from([{ADDRESS: "srv1"}, {ADDRESS: "srv2"}, {"10.0.0.2": "srv2"}])
AT = st.integers(0, 60)
KEYS = st.uuids().map(str)
PLACES = st.sampled_from([FAR_NAME, "DIRECT=OS:other\\q", None])
ACTIONS = st.builds(
    lambda at, text, place, answered, key: action(at, text, name=place, answered=answered, key=key), AT,
    st.sampled_from(["PAUSE", "RESUME", "CONNECT", "DISCONNECT", "TIDY"]), PLACES, st.booleans(), KEYS,
)  # fmt: skip
SNAPSHOTS = st.builds(
    lambda at, state, place, key, source: snapshot(at, state, name=place, key=key, source=source), AT,
    st.sampled_from(["CONNECTED", "ONHOLD"]), PLACES, KEYS, st.sampled_from(["wire", "collector"]),
)  # fmt: skip


@given(
    st.lists(ACTIONS | SNAPSHOTS, min_size=1, max_size=20),
    st.lists(st.integers(0, 3), min_size=20, max_size=20),
    st.lists(NAMES, min_size=4, max_size=4),
    st.randoms(),
)
@settings(max_examples=examples(15), deadline=None)
def test_any_number_of_runs_in_any_order_equals_one_of_everything(events, run_of, names, random):
    runs, batches = Runs(), defaultdict(list)
    for event, run in zip(events, run_of, strict=False):
        batches[run].append(event)
    for run, new in sorted(batches.items()):
        runs.run(*new, names=names[run])
    runs.run()
    _check_equals_recomputation(runs, events)
    gone = random.sample(events, random.randint(1, len(events)))
    runs.run(gone=gone)
    _check_equals_recomputation(runs, [event for event in events if event not in gone])


def test_an_action_at_time_zero_stays():
    """Of unanswered requests whose packets have the time 0."""
    runs, events = Runs(), [action(0, "PAUSE", answered=False, key=key) for key in ("one", "two")]
    for event in events:
        runs.run(event)
    _check_equals_recomputation(runs, events)


def _check_equals_recomputation(runs, events):
    whole = Runs()
    whole.run(*events)
    assert runs.tables.by_key() == whole.tables.by_key()


def test_what_is_read_does_not_grow_with_what_was():
    runs = Runs()
    pairs = [(snapshot(minute, "CONNECTED"), action(minute, "PAUSE")) for minute in range(0, 600, 5)]
    runs.run(*chain.from_iterable(pairs))
    runs.run(snapshot(600, "ONHOLD"))
    assert max(runs.tables.read) <= 20
    assert runs.rows("state_after")[-1] == ("ONHOLD",)
