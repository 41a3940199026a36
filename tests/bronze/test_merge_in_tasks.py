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


def conversations():
    """The records of several conversations, of clients with ports of their own."""
    dialogues = [interleaved_dialogue(), remote_read_dialogue(size=9000, cuts=(4000, 4000)), sealed(), alone()]
    records = session()
    for number, dialogue in enumerate(dialogues):
        flow = replace(dialogue.flow, client_port=dialogue.flow.client_port + 100 + number)
        records += tcp.records(flow, tcp.segments(dialogue.script, mss=536, acks=True))
    return sorted(records, key=lambda record: record.time_ns)


def read(folder, runs, again):
    """The bronze tables of a lake after runs over captures, the last of which reads one of them again."""
    lake, paths = Lake(without_spark(), str(folder / "lake")), []
    for captures in runs:
        for capture in captures:
            paths.append(folder / f"{len(paths)}.pcap")
            paths[-1].write_bytes(capture)
        run(lake, len(paths), paths)
    before = tables(lake)
    run(lake, "again", paths, IngestOptions(reprocess=ReprocessSelector(capture=str(paths[again]))))
    assert differences(tables(lake), before, left_out=OF_THE_RUN) == []
    return before


def run(lake, name, paths, options=None):
    files = list_files(map(str, paths))
    ingest(lake, files, run_id=f"run-{name}", reader_options={}, log=lambda _: None, options=options)


def tables(lake):
    return {table.name: lake.select(table, "TRUE") for table in BRONZE_TABLES}


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_tasks_merge_as_this_process_does(tmp_path, monkeypatch, seed):
    chance = Random(seed)
    records, data, clients = recorded(containers.pcap(conversations()).data)
    taps = TapCaptures(records, data, chance, from_client=clients if chance.random() < 0.5 else None)
    again = chance.randrange(len(taps.all_files))
    for name in ("here", "tasks"):
        (tmp_path / name).mkdir()
    here = read(tmp_path / "here", taps.runs, again)
    assert any(row["sightings"] for row in here["rpc_calls"].to_pylist())
    assert any(row["sightings"] for row in here["session_packets"].to_pylist())
    assert differences(here, read_captures(taps.runs), left_out=OF_THE_RUN, not_compared=OF_FILES) == []
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", 1)
    found = read(tmp_path / "tasks", taps.runs, again)
    assert differences(found, here, left_out=OF_THE_RUN | OF_THE_FILE) == []
