"""A run, which makes rows of few calls, finds what is found where every call is a row, cell by cell."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from findings.every_call import evaluate_every_call
from findings.exchanges import Story, call_table, connection, remote, rr_end, rr_start
from findings.facts import facts, plain, read
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.findings import evaluate
from pipeline.findings.columns.call_history import REMOTE_READ_READS
from pipeline.findings.evaluate import BIND_COLUMNS, EvaluationInput, is_open_or_close_call
from pipeline.findings.rules import registry

SAMPLE = ("01-remoteread-ndr.pcap", "02-remoteread-ndr64-multiplexed.pcap", "03-qm2qm-dependent-client.pcap",
          "04-qmmgmt.pcapng", "07-faults-cancels-groups.pcap", "09-transactions-and-moves.pcapng",
          "11-queued-components.pcap", "12-lookups.pcap", "13-kinds-of-messages.pcapng")  # fmt: skip
ROUNDS = 12
_SHARES = (0.01, 0.05, 0.3)
_TIMES = pa.timestamp("us", tz="UTC")


def same(given):
    """The findings of a run, held to those of every call."""
    found, every = plain(evaluate.evaluate_calls(given)), plain(evaluate_every_call(given))
    assert found == every
    return found


@pytest.fixture(scope="module")
def inputs(project):
    return {name: facts(read(project / "data" / "sample" / name)) for name in SAMPLE}


@pytest.mark.parametrize("name", SAMPLE)
def test_of_captures(inputs, name):
    same(inputs[name])


def story_input(story):
    """A story as the input of an evaluation."""
    calls = call_table([*story.calls, *story.others])
    known = [*story.connections, *story.other_connections]
    names = {row["connection_id"] for row in known}
    for row in story.others:
        if row["connection_id"] not in names:
            names.add(row["connection_id"])
            known.append(connection(row["connection_id"], closed=30.0, client_address=row["client_address"]))
    connections = pa.Table.from_pylist(known)
    binds = pa.Table.from_pylist([dict.fromkeys(BIND_COLUMNS) | row for row in story.binds])
    if not story.binds:
        binds = pa.table({name: pa.array([], pa.string()) for name in BIND_COLUMNS})
    return EvaluationInput(
        calls, calls.filter(is_open_or_close_call(calls)), _with_times(connections), _with_times(binds)
    )


def _with_times(table):
    for place, name in enumerate(table.column_names):
        if name.endswith("_at") and pa.types.is_integer(table[name].type):
            table = table.set_column(place, name, table[name].cast(_TIMES))
    return table


@pytest.mark.parametrize("rule", CALLS | MANAGEMENT)
def test_of_the_stories_of_each_rule(rule):
    for number, given in enumerate((CALLS | MANAGEMENT)[rule]):
        story = given if isinstance(given, Story) else Story(given)
        found = same(story_input(story))
        assert (rule in {row["rule_id"] for row in found.values()}) == (number == 0)


@pytest.mark.parametrize("methods", [(), REMOTE_READ_READS, (("qm2qm", 2), ("qm2qm", 1))])
def test_a_rule_on_histories_is_for_what_these_have(methods):
    """It would find nothing in a run, as reads and Ends are no rows there."""
    with pytest.raises(ValueError, match="R30: histories have no reads and no Ends"):
        registry.association_rule("R30", *methods, precondition="always")


CLOSE, END = ("RemoteRead", 3), ("RemoteRead", 9)


@pytest.mark.parametrize(("method", "found_at"), [(CLOSE, [9]), (("RemoteRead", 8), [])])
def test_only_violations_by_calls_of_its_methods_count(monkeypatch, method, found_at):
    monkeypatch.setattr(registry, "ASSOCIATION_CHECKS", checks := [])
    monkeypatch.setattr("pipeline.findings.find_violations.ASSOCIATION_CHECKS", checks)

    @registry.association_rule("R30", method, precondition="always")
    def any_call(history):
        assert history.calls_of(CLOSE, END) == history.calls_of(CLOSE)
        yield from (registry.Violation(call, "a call") for call in history.calls)

    given = story_input(Story(remote(rr_start(1), rr_end(2), rr_start(3))))
    found = [row for row in plain(evaluate.evaluate_calls(given)).values() if row["rule_id"] == "R30"]
    assert [row["call_key"] for row in found] == [f"RemoteRead 3 at {second}" for second in found_at]


VARIED = (
    "request_id", "context_handle", "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "ack",
    "action", "cursor_handle", "timeout_ms", "lookup_id", "sequence_id", "hresult", "transaction_id", "call_id",
    "context_id", "opnum", "access", "share_mode", "outcome", "auth_level", "bind_seen", "request_at", "response_at",
    "cancelled_at", "fault_status", "packet_bytes", "body_bytes", "arrived_at", "sent_at", "class", "move_context",
    "section_types", "section_bytes", "priority", "privacy_level", "errors", "message_errors", "header_sizes",
    "request_head", "response_head", "queue", "time_to_reach_queue_s",
)  # fmt: skip


def varied(given, chance):
    """Calls of which some columns have the values of other calls, some calls are lost, and binds and FINs too."""
    calls = given.calls
    for name in chance.sample(VARIED, chance.randint(1, 6)):
        if name not in calls.column_names:
            continue
        share, places = chance.choice(_SHARES), list(range(len(calls)))
        kinds = [*zip(calls["interface_name"].to_pylist(), calls["opnum"].to_pylist(), strict=True)]
        alike = {kind: [at for at in places if kinds[at] == kind] for kind in kinds}
        other = [chance.choice(alike[kinds[at]]) if chance.random() < share else at for at in places]
        calls = calls.set_column(calls.column_names.index(name), name, calls[name].take(pa.array(other)))
    kept = pa.array([chance.random() > chance.choice((0, 0, 0.02, 0.2)) for _ in range(len(calls))], pa.bool_())
    calls = calls.filter(kept)
    if chance.random() < 0.5:
        taken = pa.array([chance.random() < 0.5 for _ in range(len(calls))], pa.bool_())
        calls = calls.append_column("is_changed", taken)
    opened = calls.filter(is_open_or_close_call(calls))
    binds = given.binds.filter(pa.array([chance.random() < 0.8 for _ in range(len(given.binds))], pa.bool_()))
    connections = given.connections
    if chance.random() < 0.5:
        lost = pa.array([chance.choice((0, 0, 0, 10)) for _ in range(len(connections))], pa.int64())
        at = connections.column_names.index("missing_bytes")
        connections = connections.set_column(at, "missing_bytes", lost.cast(connections["missing_bytes"].type))
    return EvaluationInput(calls, opened, connections, binds)


@pytest.mark.parametrize("name", SAMPLE)
def test_of_calls_that_are_mixed_up(inputs, name):
    found = set()
    for number in range(ROUNDS):
        found |= {row["rule_id"] for row in same(varied(inputs[name], random.Random(f"{name} {number}"))).values()}
    assert found


def test_a_call_that_breaks_no_rule_is_never_a_row(inputs, monkeypatch):
    """Of a capture with correct reads, rows are made of what opens and closes, and of few calls beside these."""
    given = inputs["02-remoteread-ndr64-multiplexed.pcap"]
    made = []
    original = evaluate.captured_calls

    def counted(table):
        made.append(len(table))
        return original(table)

    monkeypatch.setattr("pipeline.findings.columns.association_calls.captured_calls", counted)
    evaluate.evaluate_calls(given)
    reads = pc.sum(pc.is_in(given.calls["opnum"], pa.array([7, 9], pa.int32()))).as_py()
    assert reads > len(given.calls) // 2
    assert sum(made) < len(given.calls) - reads // 2
