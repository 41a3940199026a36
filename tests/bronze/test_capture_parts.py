"""A large capture is read in parts, and the lake has what it would have if it were read as a whole."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.in_memory import merge_runs
from capture.merge.comparing import OF_FILES, OF_THE_RUN, Tables, differences
from capture.merge.cutting import layout, records
from capture.merge.traffic import captures, stories
from example_counts import examples
from jobs import ingest_captures
from ledgers import ledger_of
from pcapgen import containers as c
from pipeline.bronze import capture_parts
from pipeline.bronze.capture_parts import cut_into_parts, join_rows_of_parts
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from udfs.capture.capture_reader import CaptureReadRequest, read_capture

TABLES = ("capture_files", "connections", "rpc_binds", "rpc_calls", "session_packets", "pings", "quarantine")
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=[*HealthCheck])


def offsets(capture: bytes, places: list[int]) -> list[int]:
    """Return the offsets of records in a capture, by their numbers from 0."""
    parts = layout(capture)
    begin = len(capture) - len(parts.rest) - sum(len(unit.data) for unit in parts.units)
    every = [begin, *accumulate((len(unit.data) for unit in parts.units), initial=begin)][1:]
    return [every[place] for place in places]


def read_in_parts(capture: bytes, places: list[int]) -> list[Tables]:
    """Return what is read of the parts of a capture; the later ones begin at some records."""
    name = read_capture(capture)["capture_files"]["capture_id"][0].as_py()
    found, state = [], None
    for end in [*offsets(capture, places), None]:
        found.append(read_capture(capture, request=CaptureReadRequest(name, state, end_offset=end)))
        state = found[-1]["capture_files"]["resume"][0].as_py()
        assert end is None or json.loads(state)["offset"] == end
    return found


def expect_the_same(capture: bytes, places: list[int]) -> None:
    """Expect of the parts, when they are merged, what is read of the whole capture, with all positions in it."""
    parts = merge_runs([read_in_parts(capture, places)])
    found = differences(read_capture(capture), parts, left_out=OF_THE_RUN, not_compared=OF_FILES)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("name", stories())
def test_stories(name):
    story = stories()[name]()
    expect_the_same(story.capture, [*story.places])


@FEW
@given(st.data())
def test_any_parts(data):
    capture = data.draw(captures()).capture
    assume(records(capture) > 1)
    places = sorted({*data.draw(st.lists(st.integers(1, records(capture) - 1), min_size=1, max_size=4))})
    note(f"{records(capture)} records, {places}")
    expect_the_same(capture, places)


@pytest.fixture
def small_parts(monkeypatch):
    """Let captures be read in parts of some packets."""
    monkeypatch.setattr(capture_parts, "_MIN_PART_BYTES", 6_000)
    monkeypatch.setattr(capture_parts, "_MAX_PARTS", 1 << 20)
    monkeypatch.setattr(capture_parts, "_BLOCK_BYTES", 1_500)


def ingest(lake, folder, tables=TABLES):
    """Return the tables of bronze after a run over a folder."""
    assert ingest_captures.main(["--lake", str(lake), "--captures", str(folder)]) == 0
    folders = {name: lake / "bronze" / name for name in tables}
    return {name: DeltaTable(str(path)).to_pyarrow_table() for name, path in folders.items() if path.exists()}


@pytest.mark.parametrize("data", [pytest.param("sample", marks=pytest.mark.long), "transfers"])
def test_a_lake_read_in_parts_is_the_lake_read_as_a_whole(project, tmp_path, request, monkeypatch, data):
    whole = ingest(tmp_path / "whole", project / "data" / data)
    request.getfixturevalue("small_parts")
    monkeypatch.setattr(capture_parts, "_MIN_PART_BYTES", 20_000)
    found = differences(whole, ingest(tmp_path / "parts", project / "data" / data), left_out=OF_THE_RUN)
    assert not found, "\n" + "\n".join(found)


def reads_of(folder: Path, content: bytes):
    """Return the planned read of a file with some content, and its parts."""
    (folder / "capture.pcap").write_bytes(content)
    reads = plan_ingest(list_files([str(folder)]), ledger_of()).reads
    (parts,) = cut_into_parts(reads, IngestClock())
    return reads[0], parts


RECORDS = [c.Record(1_700_000_000_000_000_000 + number * 1_000_000, bytes([number]) * 400) for number in range(100)]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("build", [c.pcap, c.pcapng])
def test_parts_follow_one_another_up_to_the_end(tmp_path, build):
    read, parts = reads_of(tmp_path, build(RECORDS).data)
    assert len(parts) > 4
    assert (parts[0].start_offset, parts[-1].end_offset) == (0, None)
    assert [part.end_offset for part in parts[:-1]] == [part.start_offset for part in parts[1:]]
    assert sum(part.size for part in parts) == read.size
    assert len({part.name for part in parts}) == len(parts)
    assert {replace(part, start_offset=0, resume_state=None, end_offset=None) for part in parts} == {read}


def with_times(*times_us: int) -> bytes:
    """Return a capture whose packets come at these times, over and over."""
    times = [times_us[number % len(times_us)] for number in range(len(RECORDS))]
    return c.pcap([replace(record, time_ns=at * 1000) for record, at in zip(RECORDS, times, strict=True)]).data


NOW_US = 1_700_000_000_000_000
UNCUT = {
    "small": c.pcap(RECORDS[:10]).data,
    "compressed": gzip.compress(c.pcap(RECORDS).data, 0),
    "no capture": bytes(range(256)) * 200,
    "times ahead": with_times(NOW_US, 4_000_000_000_000_000),
    "packets of one time": with_times(NOW_US),
    "damaged at once": c.pcap(RECORDS[:1]).data + b"\xff" * 40_000,
}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", UNCUT)
def test_what_is_not_cut(tmp_path, name):
    read, parts = reads_of(tmp_path, UNCUT[name])
    assert parts == [read]


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_is_gone_is_not_cut(tmp_path):
    read, _ = reads_of(tmp_path, c.pcap(RECORDS).data)
    (tmp_path / "capture.pcap").unlink()
    assert cut_into_parts([read], IngestClock()) == [[read]]


def test_few_large_captures_are_cut_and_many_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_parts, "_MIN_PART_BYTES", 6_000)
    monkeypatch.setattr(capture_parts, "_BLOCK_BYTES", 1_500)
    read, parts = reads_of(tmp_path, c.pcap(RECORDS).data)
    assert len(parts) > 4
    assert cut_into_parts([read] * 40, IngestClock()) == [[read]] * 40


def test_the_ledger_says_of_which_part_something_is_missing():
    capture = c.pcap(RECORDS).data
    rows = [part["capture_files"].to_pylist()[0] for part in read_in_parts(capture, [30, 60])]
    whole = join_rows_of_parts(rows)
    assert whole == read_capture(capture)["capture_files"].to_pylist()[0]
    nothing = {name: 0 for name, value in rows[1].items() if isinstance(value, int)}
    failed = {**rows[1], **nothing, "status": "unreadable", "damage": "failed", "error": "why", "resume": None}
    found = join_rows_of_parts([rows[0], failed, rows[2]])
    assert (found["status"], found["damage"], found["error"]) == ("partial", "failed", "why")
    assert (found["packets"], found["resume"]) == (70, None)
