"""Captures of several taps, read in any order and number of runs: tasks merge them as this process does.

Each conversation is one of calls or of packets of the binary protocol. So there are calls and packets that several
captures have, others that only their bytes together show, and stored rows that later captures change.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import OF_FILES, OF_THE_FILE, OF_THE_RUN, differences
from capture.merge.tap_captures import TapCaptures, recorded
from capture.merge.traffic import alone, sealed
from capture.rewritten import second_tap
from engines import without_spark
from example_counts import seeds
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen.scenarios import interleaved_dialogue, remote_read_dialogue
from pipeline.bronze.ingest_captures import BRONZE_TABLES, IngestOptions, ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.ledger_entries import ReprocessSelector
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from sessions.test_lake import session
from transfers import test_steps_between_taps as steps_between_taps


def conversations():
    """The records of several conversations, of clients with ports of their own."""
    dialogues = [interleaved_dialogue(), remote_read_dialogue(size=9000, cuts=(4000, 4000)), sealed(), alone()]
    records = session()
    for number, dialogue in enumerate(dialogues):
        flow = replace(dialogue.flow, client_port=dialogue.flow.client_port + 100 + number)
        records += tcp.records(flow, tcp.segments(dialogue.script, mss=536, acks=True))
    return sorted(records, key=lambda record: record.time_ns)


def read(folder, runs, lake=None):
    """A lake after runs over captures, and the captures."""
    lake, paths = lake or Lake(without_spark(), str(folder / "lake")), []
    for captures in runs:
        for capture in captures:
            paths.append(folder / f"{len(paths)}.pcap")
            paths[-1].write_bytes(capture)
        run(lake, len(paths), paths)
    return lake, paths


def run(lake, name, paths, options=None):
    files = list_files(map(str, paths))
    ingest(lake, files, run_id=f"run-{name}", reader_options={}, log=lambda _: None, options=options)


def tables(lake):
    return {table.name: lake.select(table, "TRUE") for table in BRONZE_TABLES}


@pytest.fixture
def folders(tmp_path):
    """Return two folders."""
    found = [tmp_path / name for name in ("here", "tasks")]
    for folder in found:
        folder.mkdir()
    return found


def taps_of(chance):
    """Captures of several taps."""
    records, data, clients = recorded(containers.pcap(conversations()).data)
    return TapCaptures(records, data, chance, from_client=clients if chance.random() < 0.5 else None)


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_tasks_merge_as_this_process_does(folders, monkeypatch, seed):
    """Also when a capture is read again."""
    chance = Random(seed)
    taps = taps_of(chance)
    again, found = chance.randrange(len(taps.all_files)), []
    for folder, limit in zip(folders, (lake_module.MAX_ROWS_IN_MEMORY, 1), strict=True):
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", limit)
        lake, paths = read(folder, taps.runs)
        found.append(tables(lake))
        run(lake, "again", paths, IngestOptions(reprocess=ReprocessSelector(capture=str(paths[again]))))
        assert differences(tables(lake), found[-1], left_out=OF_THE_RUN) == []
    here, in_tasks = found
    assert any(row["sightings"] for row in here["rpc_calls"].to_pylist())
    assert any(row["sightings"] for row in here["session_packets"].to_pylist())
    assert differences(here, read_captures(taps.runs), left_out=OF_THE_RUN, not_compared=OF_FILES) == []
    assert differences(in_tasks, here, left_out=OF_THE_RUN | OF_THE_FILE) == []


def test_tasks_find_where_clocks_were_set_as_this_process_does(folders, monkeypatch):
    """Each of two taps shows it of the third."""
    one, other, _ = steps_between_taps.taps()
    runs, found = [[one], [other, second_tap(one, -3000)]], []
    for folder, limit in zip(folders, (lake_module.MAX_ROWS_IN_MEMORY, 1), strict=True):
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", limit)
        found.append(tables(read(folder, runs)[0]))
    steps = [each for row in found[0]["capture_files"].to_pylist() for each in row["tap_steps"] or ()]
    assert len({each["other_capture_id"] for each in steps}) == 3
    assert differences(found[1], found[0], left_out=OF_THE_RUN | OF_THE_FILE) == []


@pytest.mark.spark
@pytest.mark.long
def test_spark_merges_rows_that_it_alone_reads(spark, folders, monkeypatch):
    taps = taps_of(Random(1))
    here, _ = read(folders[0], [taps.all_files[:1], taps.all_files[1:]])
    monkeypatch.setattr("pipeline.lake.queries.answer.MAX_HELD_ROWS", 0)
    lake = Lake(spark, str(folders[1] / "lake"), store="spark", read_log="spark")
    read(folders[1], [taps.all_files[:1], taps.all_files[1:]], lake)
    assert differences(tables(lake), tables(here), left_out=OF_THE_RUN | OF_THE_FILE) == []
