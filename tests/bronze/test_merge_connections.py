"""What a run does with remainders: a part of the four-tuples at a time, for they are in memory."""

from collections import Counter

import pyarrow as pa
import pytest

from capture.merge.cutting import cut, evenly, plain
from pcapgen.record import sample_captures
from pipeline.bronze import merge_connections
from udfs.capture.merge import COUNTS
from udfs.capture.open_connections import flow
from udfs.capture.reader import SCHEMAS, read_capture


@pytest.fixture(scope="module")
def ring():
    """Remainders of each of five captures of many clients that read on from one another."""
    (many,) = (path for path in sample_captures() if path.name.startswith("10-"))
    capture = plain(many)
    return [read_capture(piece)["pending"] for piece in cut(capture, evenly(capture))]


@pytest.fixture(scope="module")
def remainders(ring):
    """All of them."""
    return pa.concat_tables(ring)


def counts(changes):
    """By capture, what is to be added to each of its counts and to the connections at each server."""
    found: dict[str, Counter] = {}
    for capture_id, several in changes.packets.items():
        total = found.setdefault(capture_id, Counter())
        for row in several:
            total.update({name: row[name] for name in COUNTS})
            total.update({each["server_address"]: each["connections"] for each in row["server_connections"]})
    return found


def test_the_counts_of_a_capture_are_those_of_all_its_four_tuples(remainders, monkeypatch):
    none = SCHEMAS["pending"].empty_table()
    whole = merge_connections.joined(remainders, none, none, window_s=2.0)
    monkeypatch.setattr(merge_connections, "_AT_ONCE", 1)
    parts = merge_connections.joined(remainders, none, none, window_s=2.0)
    assert max(map(len, parts.packets.values())) > 1  # else one part would do
    assert counts(parts) == counts(whole)


@pytest.mark.parametrize("capture", sample_captures(), ids=lambda path: path.name[:2])
def test_a_remainder_that_is_read_again_and_joined_with_no_other_is_as_it_was(capture):
    """Whether ``--reprocess`` read it, or jobs.forget left it of several, cannot be seen in the lake."""
    rows = read_capture(capture.read_bytes())["pending"]
    names = Counter(map(flow, rows.to_pylist()))
    alone = rows.filter(pa.array([names[flow(row)] == 1 for row in rows.to_pylist()], pa.bool_()))
    found = merge_connections.joined(alone, SCHEMAS["pending"].empty_table(), alone, window_s=2.0)
    assert {row["pending_key"]: row for row in found.pending} == {row["pending_key"]: row for row in alone.to_pylist()}


def test_calls_that_come_to_the_same_stay_and_all_others_are_made_anew(ring):
    """Captures come one by one: what the tables hold then is what one joining of all of them makes."""
    none = SCHEMAS["pending"].empty_table()
    pending: dict[str, dict] = {}
    calls: dict[str, dict] = {}
    stayed = 0
    for fresh in ring:
        flows = {flow(row) for row in fresh.to_pylist()}
        earlier = merge_connections.pending_table([row for row in pending.values() if flow(row) in flows])
        changes = merge_connections.joined(fresh, earlier, none, window_s=2.0)
        now = {row["call_key"]: row for row in changes.rows("rpc_calls").to_pylist()}
        assert not changes.unchanged & changes.call_keys
        assert changes.unchanged <= now.keys()
        assert {key: now[key] for key in changes.unchanged} == {key: calls[key] for key in changes.unchanged}
        stayed += len(changes.unchanged)
        calls = {key: row for key, row in calls.items() if key not in changes.call_keys} | now
        pending |= {row["pending_key"]: row for row in (*fresh.to_pylist(), *changes.pending)}
    assert stayed  # else nothing was shown
    whole = merge_connections.joined(pa.concat_tables(ring), none, none, window_s=2.0).rows("rpc_calls").to_pylist()
    assert calls == {row["call_key"]: row for row in whole}
