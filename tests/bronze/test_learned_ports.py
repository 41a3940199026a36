"""Captures that other captures of the same run show a port for are read again before anything of them is written."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import jobs.ingest_captures
from bronze.test_capture_parts import TABLES, ingest
from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, differences
from capture.merge.cutting import cut, evenly, records
from example_counts import seeds
from ledgers import ledger_of
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pipeline.bronze import capture_parts, ingest_captures
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.staged_reads import StagedReads
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter, staging_file_name
from pipeline.runs.recovery import RunMarkers
from udfs.capture.capture_reader import read_capture

EVERY = (*TABLES, "pending")
SECOND_NS = 1_000_000_000
NAMED, NAMED_THERE, UNNAMED = 49777, 49778, 49888


def port_query(dialogue: Dialogue, port: int) -> None:
    """Ask for the port of RemoteRead ([MS-MQRR] 3.1.4.1)."""
    dialogue.call(0, b"", port.to_bytes(4, "little"))


def receives(dialogue: Dialogue, count: int) -> None:
    """Read messages, each longer than a packet."""
    for number in range(count):
        dialogue.call(7, make_stub(7, 56), make_stub(20 + number % 200, 9000), answer_cuts=(4000, 4000))
        dialogue.call(9, make_stub(9, 28), make_stub(10, 4))


def conversation() -> bytes:
    """Return a capture of connections whose ports calls name, one after the other, or nobody.

    A port is named on a well-known one, another one on that port, so that it is known when that is. Of the connection
    to the third one, the part behind its bind is longer than what a capture keeps of calls without one.
    """
    packets: list[c.Record] = []

    def add(number: int, port: int, begin_s: float, *, asks_for: int | None = None, count: int = 0) -> None:
        flow = t.Flow(client=f"10.0.0.{number}", client_port=50000 + number, server_port=port)
        dialogue = Dialogue(flow=flow)
        dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
        receives(dialogue, count)
        if asks_for is not None:
            port_query(dialogue, asks_for)
        begin_ns = t.START_NS + int(begin_s * SECOND_NS)
        packets.extend(t.records(flow, t.segments(dialogue.script, start_ns=begin_ns)))

    add(11, NAMED, 0, count=20, asks_for=NAMED_THERE)
    add(12, NAMED_THERE, 0.01, count=25)
    add(13, UNNAMED, 0.02, count=140)
    add(14, 2103, 1, asks_for=NAMED)
    return c.pcap(sorted(packets, key=lambda record: record.time_ns)).data


@pytest.fixture(scope="module")
def capture():
    """The conversation as one capture."""
    return conversation()


@pytest.fixture(scope="module")
def uncut(capture):
    """The tables of the whole capture."""
    found = read_capture(capture)
    assert found["rpc_calls"].num_rows == 2 * (20 + 25 + 140) + 2
    return {name: rows for name, rows in found.items() if name in TABLES and name not in OF_FILES}


def write(folder: Path, pieces: list[bytes]) -> list[Path]:
    """Write pieces of a capture, in the order of time, to a folder."""
    folder.mkdir()
    paths = [folder / f"{number:03}.pcap" for number in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    return paths


def expect_same(found, expected, **options):
    lines = differences(found, expected, **options)
    assert not lines, "\n" + "\n".join(lines)


def expect_whole(found, uncut):
    """Fail unless tables are those of the uncut capture."""
    some = {name: rows for name, rows in found.items() if name in uncut}
    expect_same(some, {name: uncut[name] for name in some}, left_out=PLACES | OF_THE_RUN)


def reread_for(found) -> list[list[str] | None]:
    """Return for which endpoints each capture was read again, in the order of the files."""
    rows = sorted(found["capture_files"].to_pylist(), key=lambda row: row["path"])
    return [row["reread_endpoints"] for row in rows]


def commits(lake: Path) -> dict[str, int]:
    """Return how many commits the tables of bronze have."""
    return {name: DeltaTable(str(lake / "bronze" / name)).version() + 1 for name in EVERY}


def behind_its_bind(capture: bytes) -> int:
    """Return a place that cuts off the beginning of the connection whose port nobody names."""
    begin = capture.index((50013).to_bytes(2, "big") + UNNAMED.to_bytes(2, "big"))
    return records(capture[:begin]) + 45


@pytest.mark.parametrize(
    ("places", "ports"),
    [
        (lambda capture: evenly(capture, 10), (NAMED, NAMED_THERE)),
        (lambda capture: [behind_its_bind(capture)], (NAMED_THERE, UNNAMED)),
    ],
    ids=["ten files", "two files"],
)
def test_a_first_run_writes_each_table_once(capture, uncut, tmp_path, capfd, places, ports):
    ring = tmp_path / "ring"
    write(ring, cut(capture, places(capture)))
    found = ingest(tmp_path / "lake", ring, EVERY)
    expect_whole(found, uncut)
    assert max(commits(tmp_path / "lake").values()) <= 2  # it is created, and gets its rows
    assert {run for rows in found.values() for run in rows["run_id"].to_pylist()} == {
        found["capture_files"]["run_id"][0].as_py()
    }
    endpoints = {endpoint for each in reread_for(found) for endpoint in each or ()}
    assert endpoints == {f"10.0.0.1|{port}|RemoteRead" for port in ports}
    assert "capture files again" in capfd.readouterr().err
    assert RunMarkers(LakePath(str(tmp_path / "lake" / "_runs"))).captures_to_reread() == {}


@pytest.mark.parametrize("seed", seeds(1, 12))
def test_any_cuts_give_what_runs_of_one_file_each_give(capture, uncut, tmp_path, seed):
    """Of separate runs, each finds the rows of the earlier ones in the tables, and takes out what is read again."""
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, records(capture)), chance.randint(2, 5)))
    paths = write(tmp_path / "ring", cut(capture, places))
    together = ingest(tmp_path / "together", tmp_path / "ring", EVERY)
    expect_whole(together, uncut)
    chance.shuffle(paths)
    for path in paths:
        one_by_one = ingest(tmp_path / "one by one", path, EVERY)
    expect_same(together, one_by_one, left_out=OF_THE_RUN)


@pytest.mark.parametrize("small_parts", [False, True])
def test_where_a_file_is_another_one_meanwhile_the_next_round_reads_it(
    capture, uncut, tmp_path, monkeypatch, small_parts
):
    """A round that reads nothing twice leaves all to the rounds behind it: the tables are the same."""
    if small_parts:
        monkeypatch.setattr(capture_parts, "_MIN_PART_BYTES", 100_000)
        monkeypatch.setattr(capture_parts, "_MAX_PARTS", 1 << 20)
        monkeypatch.setattr(capture_parts, "_BLOCK_BYTES", 20_000)
    ring = tmp_path / "ring"
    write(ring, cut(capture, evenly(capture, 5)))
    at_once = ingest(tmp_path / "at once", ring, EVERY)
    expect_whole(at_once, uncut)
    with monkeypatch.context() as patch:
        patch.setattr(ingest_captures, "find_file", lambda _: None)
        later = ingest(tmp_path / "later", ring, EVERY)
    assert commits(tmp_path / "later")["rpc_calls"] > commits(tmp_path / "at once")["rpc_calls"]
    expect_same(at_once, later, left_out=OF_THE_RUN)


def test_of_a_capture_that_has_grown_all_is_read_again(capture, tmp_path):
    """Its rows are in the tables: they are taken out, and the run has a second round."""
    _, head, asks = cut(capture, [8, records(capture) - 10])  # the first connection without its beginning, the last one
    ring = tmp_path / "ring"
    grows, names = write(ring, [cut(head, [records(head) // 2])[0], asks])
    names.unlink()
    ingest(tmp_path / "lake", ring)
    grows.write_bytes(head)
    names.write_bytes(asks)
    grown = ingest(tmp_path / "lake", ring, EVERY)
    assert f"10.0.0.1|{NAMED}|RemoteRead" in reread_for(grown)[0]
    expect_same(grown, ingest(tmp_path / "anew", ring, EVERY), left_out=OF_THE_RUN)


def test_a_run_that_ends_while_captures_are_read_again_is_undone(capture, tmp_path, monkeypatch):
    ring = tmp_path / "ring"
    write(ring, cut(capture, evenly(capture, 5)))
    right, passes = ingest_captures.read_captures, []

    def failing(*arguments, **named):
        passes.append(None)
        if len(passes) == 2:
            raise OSError("the disk is gone")
        right(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ingest_captures, "read_captures", failing)
        with pytest.raises(AssertionError):
            ingest(tmp_path / "lake", ring)
    assert len(passes) == 2
    assert not (tmp_path / "lake" / "bronze" / "pending").exists()
    expect_same(ingest(tmp_path / "lake", ring, EVERY), ingest(tmp_path / "anew", ring, EVERY), left_out=OF_THE_RUN)


def test_reprocessing_reads_them_for_the_same_endpoints(capture, tmp_path):
    ring, lake = tmp_path / "ring", tmp_path / "lake"
    write(ring, cut(capture, evenly(capture, 5)))
    expected = ingest(lake, ring, EVERY)
    assert jobs.ingest_captures.main(["--lake", str(lake), "--captures", str(ring), "--reprocess", "all"]) == 0
    expect_same(ingest(lake, ring, EVERY), expected, left_out=OF_THE_RUN)


def test_what_a_task_of_an_earlier_pass_writes_late_does_not_count(tmp_path):
    """Nor what it wrote of a kind that the later pass has no rows of, or of parts that the later pass does not have."""
    folder = tmp_path / "captures"
    write(folder, [c.pcap([c.Record(number * SECOND_NS, b"packet")]).data for number in range(2)])
    one, two = plan_ingest(list_files([str(folder)]), ledger_of()).reads
    part = replace(one, start_offset=20)
    staged = StagedReads(LakePath(str(tmp_path / "run")))

    def stage(into, read, *kinds):
        staging = StagingWriter(str(into), read.name)
        for kind in kinds:
            staging.add(kind, pa.record_batch({"rows": [f"{into.name} {read.name}"]}))
        staging.close()

    def names(kind):
        return {(file.folder.folder, file.name) for file in staged.files(kind)}

    assert staged.files("rpc_calls") == {}
    first = staged.begin_pass([[one, part], [two]])
    for read in (one, part, two):
        stage(first, read, "rpc_calls", "rpc_binds")
    own = {read: staging_file_name(read.name) for read in (one, part, two)}
    assert names("rpc_calls") == {(first, name) for name in own.values()}
    second = staged.begin_pass([[one]])
    assert names("rpc_calls") == {(first, own[two])}
    stage(second, one, "rpc_calls")
    stage(first, one, "rpc_calls", "rpc_binds")
    assert names("rpc_calls") == {(first, own[two]), (second, own[one])}
    assert names("rpc_binds") == {(first, own[two])}
