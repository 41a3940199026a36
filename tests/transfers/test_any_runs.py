"""Captures of sessions, cut anywhere and read in any order and number of runs, give the same tables cell by cell.

Each recording has an RST that ends nothing: behind it both sides go on. In some, sessions move to another address of
the sender, or another tap saw a part. Bronze is made in memory, as the runs would leave it, the tables above in a lake.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from capture.in_memory import merge_runs
from engines import without_spark
from memory_lake import conformed
from pcapgen.containers import NANOSECONDS, pcap
from pcapgen.exchanges import read_frames
from pipeline.findings import update_sessions
from pipeline.findings.hops import update_hops
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.transfers import checkpoint_cuts, connection_rounds
from pipeline.transfers import update as sessions_update
from pipeline.transfers.messages import update_messages
from pipeline.transfers.sequences import update_sequences
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers_peer.reading import DATA
from udfs.capture.capture_reader import read_capture

BRONZE = (CAPTURE_FILES, CONNECTIONS, QUARANTINE, SESSION_PACKETS)
ABOVE = (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES, MESSAGE_TRANSFERS, TRANSFER_SEQUENCES, FINDINGS)
OF_THE_RUN = ("run_id", "ingested_at")
ETHERNET, TCP_FLAGS, RST_ACK = 14, 13, 0x14


def rst_behind(record, ahead):
    """An RST of the sender of a record, some bytes ahead of its stream, that its receiver does not believe."""
    frame = bytearray(record.frame)
    tcp = ETHERNET + 4 * (frame[ETHERNET] & 15)
    begins = tcp + 4 * (frame[tcp + 12] >> 4)
    size = ETHERNET + int.from_bytes(frame[ETHERNET + 2 : ETHERNET + 4], "big") - begins
    sequence = int.from_bytes(frame[tcp + 4 : tcp + 8], "big") + size + ahead
    frame[tcp + 4 : tcp + 8] = (sequence % 2**32).to_bytes(4, "big")
    frame[tcp + 12 : tcp + 14] = bytes([5 << 4, RST_ACK])
    frame[ETHERNET + 2 : ETHERNET + 4] = (tcp + 20 - ETHERNET).to_bytes(2, "big")
    return replace(record, frame=bytes(frame[: tcp + 20]), time_ns=record.time_ns + 1000)


def ports_of(record):
    return {int.from_bytes(record.frame[place : place + 2], "big") for place in (34, 36)}


def moved(records, chance):
    """The same where sessions from one of them on come from, or go to, another address of a queue manager."""
    begun = [*dict.fromkeys(port for each in records for port in ports_of(each) - {1801})]
    later = {*begun[chance.randrange(1, len(begun)) :]}
    old = chance.choice([records[0].frame[26:30], records[0].frame[30:34]])
    new = bytes([*old[:2], old[2] + 100, old[3]])
    return [
        replace(each, frame=_with_address(each.frame, old, new)) if ports_of(each) & later else each for each in records
    ]


def _with_address(frame, old, new):
    for place in (26, 30):
        if frame[place : place + 4] == old:
            frame = frame[:place] + new + frame[place + 4 :]
    return frame


def captures(seed):
    """Two or three captures, as the reader reads them: parts of a recording, in the order of time."""
    chance = Random(seed)
    records = sorted(read_frames(DATA / "05-resends.pcap"), key=lambda each: each.time_ns)
    if chance.random() < 0.5:
        records = moved(records, chance)
    place = chance.randrange(8, len(records) - 8)
    records.insert(place, rst_behind(records[place - 1], chance.choice([1460, 0, -100])))
    cut = place + chance.randrange(12)
    parts = [records[:cut], records[cut:]]
    if chance.random() < 0.4:
        by_us, begin = chance.choice([0, 30, -2_000, 60_000_000]), chance.randrange(cut)
        parts.append([replace(each, time_ns=each.time_ns + by_us * 1000) for each in records[begin : begin + 40]])
    return [read_capture(pcap(part, magic=NANOSECONDS).data) for part in parts if part]


def cells(rows):
    """How often each row occurs."""
    return Counter(repr({k: v for k, v in row.items() if k not in OF_THE_RUN}) for row in rows.to_pylist())


def load(lake, tables):
    """Make bronze what a run left it to be."""
    for table in BRONZE:
        rows = conformed(table, tables[table.name])
        current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
        dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
        lake.replace_changed(table, rows, current, dates=dates)


def update(lake):
    sessions_update.update(lake, "run")
    update_hops.update_clones(lake, "run")
    update_sessions.update(lake, "run")
    update_messages.update(lake, "run")
    update_sequences.update(lake, "run")
    update_hops.update(lake, "run")


def after(path, read, runs):
    """The cells of all tables after runs, each of which reads some of the captures, by their places."""
    lake = Lake(without_spark(), str(path))
    for last in range(1, len(runs) + 1):
        tables = merge_runs([[read[place] for place in run] for run in runs[:last]])
        load(lake, tables)
        update(lake)
    return {str(table): cells(lake.select(table, "TRUE")) for table in (*BRONZE, *ABOVE)}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
def test_any_order_of_runs_gives_the_same_cells(tmp_path, monkeypatch, seed):
    """Also where connections are computed in tasks, some at a time, and read in rounds."""
    read = captures(seed)
    order = [*range(len(read))]
    chance = Random(seed)
    chance.shuffle(order)
    expected = after(tmp_path / "one", read, [[*range(len(read))]])
    assert expected[str(SENDINGS)]
    monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", 3)
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", chance.choice([5, 20, 10**9]))
    if seed % 2:
        for limit in ("MAX_ROWS_IN_MEMORY", "MAX_COLUMN_ROWS_IN_MEMORY"):
            monkeypatch.setattr(lake_module, limit, 1)
    found = after(tmp_path / "several", read, [[place] for place in order])
    assert {name: (expected[name] - rows, rows - expected[name]) for name, rows in found.items()
            if rows != expected[name]} == {}  # fmt: skip
