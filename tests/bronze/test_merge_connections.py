"""Merging remainders of captures: in batches of four-tuples, in tasks, again, and capture by capture."""

from collections import Counter
from dataclasses import fields
from itertools import count

import pyarrow as pa
import pytest

from capture.merge.cutting import cut, evenly, plain
from engines import without_spark
from pcapgen import conversation as tcp
from pcapgen.containers import pcap
from pcapgen.record import sample_captures
from pcapgen.scenarios import remote_read_dialogue
from pipeline.bronze.across_captures import merge_pending, merge_remainders
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture
from udfs.capture.merged_remainders import PACKET_COUNT_COLUMNS
from udfs.capture.open_connections import four_tuple_key


@pytest.fixture(scope="module")
def ring():
    """Remainders of five captures, each of which continues the one before."""
    (many,) = (path for path in sample_captures() if path.name.startswith("10-"))
    capture = plain(many)
    return [read_capture(piece)["pending"] for piece in cut(capture, evenly(capture))]


@pytest.fixture(scope="module")
def remainders(ring):
    """The remainders of all five captures."""
    return pa.concat_tables(ring)


@pytest.fixture
def merge(tmp_path):
    """Return a function that merges remainders; without more given, there are none of earlier runs."""
    lake, numbers = Lake(without_spark(), str(tmp_path / "lake")), count()
    none = BRONZE_SCHEMAS["pending"].empty_table()

    def merged(fresh, stored=none, removed=none):
        return merge_pending.merge_pending(lake, LakePath(str(tmp_path / str(next(numbers)))), fresh, stored, removed)

    return merged


def counts(changes):
    """Return by capture the sums of the corrections of its counts and of its connections at each server."""
    found: dict[str, Counter] = {}
    for capture_id, several in changes.count_corrections().items():
        total = found.setdefault(capture_id, Counter())
        for row in several:
            total.update({name: row[name] for name in PACKET_COUNT_COLUMNS})
            total.update({each["server_address"]: each["connections"] for each in row["server_connections"]})
    return found


def test_four_tuples_merged_one_by_one_give_what_they_give_together(remainders, merge, monkeypatch):
    """Also in tasks."""
    whole = merge(remainders)
    with monkeypatch.context() as patch:
        patch.setattr(merge_remainders, "FLOWS_PER_BATCH", 1)
        one_by_one = merge(remainders)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", 1)
    for parts in (one_by_one, merge(remainders)):
        assert max(map(len, parts.count_corrections().values())) > 1  # several batches have one
        assert counts(parts) == counts(whole)
        for each in fields(whole):
            if each.name not in {"packet_counts", "folder", "limits", "steps"}:
                assert in_any_order(getattr(parts, each.name)) == in_any_order(getattr(whole, each.name)), each.name
        for name in BRONZE_SCHEMAS:
            rows, together = (changes.new_rows(name).to_pylist() for changes in (parts, whole))
            assert in_any_order(rows) == in_any_order(together)


def test_a_port_that_one_four_tuple_shows_to_be_rpc_is_so_for_those_that_are_merged_apart(merge, monkeypatch):
    """Of the second client no packet begins with a PDU."""
    script, joined = remote_read_dialogue(size=9000, cuts=(4000, 4000)).script, tcp.Script()
    for side in (0, 1):
        joined.send(side, script.stream(side))
    first, second = (tcp.segments(each, mss=536, opened=False, closed=False) for each in (script, joined))
    records = tcp.records(tcp.Flow(client_port=50_000, server_port=49_999), first)
    records += tcp.records(tcp.Flow(client_port=50_001, server_port=49_999), [each for each in second if each.offset])
    capture = pcap(sorted(records, key=lambda record: record.time_ns)).data
    remainders = pa.concat_tables(read_capture(piece)["pending"] for piece in cut(capture, [len(records) // 3]))
    whole = merge(remainders)
    assert whole.new_rows("quarantine").num_rows
    monkeypatch.setattr(merge_remainders, "FLOWS_PER_BATCH", 1)
    parts = merge(remainders)
    for name in BRONZE_SCHEMAS:
        rows, together = (changes.new_rows(name).to_pylist() for changes in (parts, whole))
        assert in_any_order(rows) == in_any_order(together), name


def in_any_order(found):
    rows = found.to_pylist() if isinstance(found, pa.Table | pa.Array) else found
    return sorted(rows, key=repr) if isinstance(rows, list) else rows


@pytest.mark.parametrize("capture", sample_captures(), ids=lambda path: path.name[:2])
def test_a_remainder_that_is_read_again_and_joined_with_no_other_is_as_it_was(capture, merge):
    """The lake does not show whether ``--reprocess`` read it, or jobs.forget left it of several."""
    rows = read_capture(capture.read_bytes())["pending"]
    names = Counter(map(four_tuple_key, rows.to_pylist()))
    alone = rows.filter(pa.array([names[four_tuple_key(row)] == 1 for row in rows.to_pylist()], pa.bool_()))
    found = merge(alone, removed=alone)
    assert {row["pending_key"]: row for row in found.new_rows("pending").to_pylist()} == {
        row["pending_key"]: row for row in alone.to_pylist()
    }


def test_calls_that_come_to_the_same_stay_and_all_others_are_made_anew(ring, merge):
    """Captures come one by one. The tables then hold what a single merge of all captures gives."""
    pending: dict[str, dict] = {}
    calls: dict[str, dict] = {}
    unchanged = 0
    for fresh in ring:
        flows = {four_tuple_key(row) for row in fresh.to_pylist()}
        earlier = [row for row in pending.values() if four_tuple_key(row) in flows]
        changes = merge(fresh, pa.Table.from_pylist(earlier, BRONZE_SCHEMAS["pending"]))
        now = {row["call_key"]: row for row in changes.new_rows("rpc_calls").to_pylist()}
        kept, replaced = ({*keys.to_pylist()} for keys in (changes.unchanged_call_keys, changes.replaced_call_keys))
        assert not kept & replaced
        assert kept <= now.keys()
        assert {key: now[key] for key in kept} == {key: calls[key] for key in kept}
        unchanged += len(kept)
        calls = {key: row for key, row in calls.items() if key not in replaced} | now
        pending |= {row["pending_key"]: row for row in (*fresh.to_pylist(), *changes.new_rows("pending").to_pylist())}
    assert unchanged
    whole = merge(pa.concat_tables(ring)).new_rows("rpc_calls").to_pylist()
    assert calls == {row["call_key"]: row for row in whole}
