"""An exception while one capture is read, merged or decoded is that capture's error; the others are done."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.merge.cutting import cut, evenly, plain
from collector import snapshot_files
from engines import without_spark
from jobs import run_all
from ledgers import ledger_of
from pcapgen import conversation
from pcapgen.containers import pcap
from pcapgen.record import sample_captures
from pcapgen.scenarios import remote_read_dialogue
from pipeline.bronze.across_captures import merge_remainders, overlapping_calls
from pipeline.bronze.across_captures.merge_pending import merge_pending
from pipeline.bronze.capture_tasks import read_options, read_split, whole_file_splits
from pipeline.bronze.ingest_plan import files_on_days, plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.ledger_entries import DateRange
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter
from pipeline.silver import decode, hosts
from schemas.bronze import CAPTURE_FILES, PENDING, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture
from udfs.errors import describe_failure, remove_failure_values
from udfs.files.capture_file import CaptureFileReader
from udfs.rpc.call_rows import CallRowBuilder

AT_ONE = "2024-05-01T13:00:00.000000Z"
BAD = "02-remoteread-ndr64-multiplexed.pcap"


class PlantedError(Exception):
    """Raised by a step on purpose."""


@pytest.fixture
def captures(project, tmp_path):
    """Three captures, one of which a step fails at."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for name in ("01-remoteread-ndr.pcap", BAD, "08-endpoint-mapper.pcap"):
        shutil.copy(project / "data" / "sample" / name, folder / name)
    return folder


@pytest.fixture
def run(captures, tmp_path, capsys):
    """Return a function that runs the pipeline: the exit code, and the ledger by file name."""
    root = str(tmp_path / "lake")

    def once(*arguments):
        code = run_all.main(["--lake", root, "--captures", str(captures), *arguments])
        printed = capsys.readouterr()
        assert json.loads(printed.out.strip().splitlines()[-1])["exit_code"] == code
        lake = Lake(without_spark(), root)
        return (
            code,
            {row["path"].rsplit("/", 1)[1]: row for row in lake.select(CAPTURE_FILES, "TRUE").to_pylist()},
            lake,
            printed.err,
        )

    return once


def check_ledger(ledger, error):
    """Check that one capture is unreadable, with what happened and where, and that the others are complete."""
    assert {name: row["status"] for name, row in ledger.items() if name != BAD} == {
        "01-remoteread-ndr.pcap": "complete", "08-endpoint-mapper.pcap": "complete"
    }  # fmt: skip
    assert (ledger[BAD]["status"], ledger[BAD]["damage"]) == ("unreadable", "failed")
    assert ledger[BAD]["error"].startswith(error)
    assert ": a bug" in ledger[BAD]["error"]


def test_an_exception_while_a_capture_is_read(run, project, monkeypatch):
    build_rows = CallRowBuilder.build_rows
    right = read_capture(project / "data" / "sample" / BAD)
    wrong = right["capture_files"]["capture_id"][0].as_py()

    def failing(builder, calls, connections):
        if builder.capture_id == wrong:
            raise PlantedError("a bug")
        return build_rows(builder, calls, connections)

    with monkeypatch.context() as patch:
        patch.setattr(CallRowBuilder, "build_rows", failing)
        code, ledger, lake, printed = run()
    assert code == 3
    check_ledger(ledger, "PlantedError in ")
    assert "in packets 1 to " in ledger[BAD]["error"]
    assert f"{BAD}: unreadable: PlantedError in " in printed
    assert (ledger[BAD]["capture_id"], ledger[BAD]["packets"]) == (wrong, 0)
    assert lake.select(RPC_CALLS, f"capture_id = '{wrong}'").num_rows == 0
    assert lake.select(REMOTE_READ_CALLS, "TRUE").num_rows > 20
    before = lake.version(CAPTURE_FILES)
    assert run()[0] == 0  # known by path, size and time
    assert lake.version(CAPTURE_FILES) == before
    code, ledger, lake, _ = run("--reprocess", f"capture={ledger[BAD]['path']}")
    assert (code, ledger[BAD]["status"]) == (0, "complete")
    assert lake.select(RPC_CALLS, f"capture_id = '{wrong}'").num_rows == right["rpc_calls"].num_rows


def test_an_exception_while_a_call_is_decoded(run, monkeypatch):
    decode_calls, counted = decode.decode_calls, []

    def failing(calls, **options):
        wrong = pc.and_(pc.equal(calls["transfer_syntax"], "NDR64"), pc.equal(calls["opnum"], 9))
        wrong = pc.and_(wrong, calls["request_stub"].is_valid())
        if pc.any(wrong, min_count=0).as_py():
            counted.append(calls.num_rows)
            raise PlantedError("a bug")
        return decode_calls(calls, **options)

    monkeypatch.setattr(decode, "decode_calls", failing)
    code, ledger, lake, printed = run()
    assert code == 3
    check_ledger(ledger, "decoding call ")
    assert "PlantedError in tests/bronze/test_failed_inputs.py, line " in ledger[BAD]["error"]
    assert f"capture {ledger[BAD]['capture_id']}: unreadable: decoding call " in printed
    found = lake.select(REMOTE_READ_CALLS, "TRUE").to_pylist()
    flagged = [row for row in found if any(error["field"] == "stub" for error in row["errors"])]
    assert len(flagged) == counted.count(1) == 15
    assert {(row["errors"][0]["code"], row["context_handle"]) for row in flagged} == {("unsupported", None)}
    calls = lake.select(RPC_CALLS, "interface_name IN ('RemoteRead', 'qm2qm')").num_rows
    assert len(found) == calls > len(flagged)


@pytest.fixture
def ring(tmp_path):
    """Three captures, each of which continues the one before."""
    (many,) = (path for path in sample_captures() if path.name.startswith("10-"))
    capture = plain(many)
    return cut(capture, evenly(capture))[:3]


def fail_at(monkeypatch, wrong):
    """Let merging fail whenever remainders of a capture take part."""
    merge = merge_remainders.merge_connections

    def failing(rows, *how):
        if any(row["capture_id"] == wrong for row in rows):
            raise PlantedError("a bug")
        return merge(rows, *how)

    monkeypatch.setattr(merge_remainders, "merge_connections", failing)


def test_an_exception_while_remainders_are_merged_leaves_out_their_capture(ring, tmp_path, monkeypatch):
    none, lake = BRONZE_SCHEMAS["pending"].empty_table(), Lake(without_spark(), str(tmp_path / "lake"))
    parts = [read_capture(piece)["pending"] for piece in ring]
    wrong = parts[1]["capture_id"][0].as_py()
    others = pa.concat_tables([parts[0], parts[2]])
    expected = merge_pending(lake, LakePath(str(tmp_path / "others")), others, none, none)
    fail_at(monkeypatch, wrong)
    found = merge_pending(lake, LakePath(str(tmp_path / "all")), pa.concat_tables(parts), none, none)
    assert found.failures.keys() == {wrong}
    assert "PlantedError in " in found.failures[wrong]
    keys = {row["pending_key"] for row in parts[1].to_pylist()}
    unmergeable = {*found.unmergeable.to_pylist()}
    assert unmergeable
    assert unmergeable <= keys
    merged = {row["call_key"] for row in expected.new_rows("rpc_calls").to_pylist()}
    assert {row["call_key"] for row in found.new_rows("rpc_calls").to_pylist()} >= merged
    assert not {row["pending_key"] for row in found.new_rows("pending").to_pylist()} & unmergeable


def test_an_exception_while_a_capture_is_merged_with_others(ring, tmp_path, monkeypatch, capsys):
    folder, root = tmp_path / "ring", str(tmp_path / "lake")
    folder.mkdir()
    names = [f"{number}.pcap" for number in range(3)]
    for name, piece in zip(names, ring, strict=True):
        (folder / name).write_bytes(piece)
    wrong = read_capture(ring[1])["capture_files"]["capture_id"][0].as_py()
    with monkeypatch.context() as patch:
        fail_at(patch, wrong)
        assert run_all.main(["--lake", root, "--captures", *(str(folder / name) for name in names[:2])]) == 3
    lake = Lake(without_spark(), root)

    def statuses():
        rows = lake.select(CAPTURE_FILES, "TRUE").sort_by("path").to_pylist()
        return [(row["path"].rsplit("/", 1)[1], row["status"]) for row in rows]

    assert statuses() == [("0.pcap", "complete"), ("1.pcap", "unreadable")]
    error = lake.select(CAPTURE_FILES, "damage = 'failed'")["error"][0].as_py()
    assert error.startswith("merging 10.")
    assert "PlantedError in " in error
    assert lake.select(RPC_CALLS, f"capture_id = '{wrong}'").num_rows > 0  # what it shows alone
    keys = lake.select(RPC_CALLS, "TRUE")["call_key"]
    assert len(keys.unique()) == len(keys)
    waiting = lake.select(PENDING, f"capture_id = '{wrong}'").num_rows
    assert waiting < read_capture(ring[1])["pending"].num_rows
    assert run_all.main(["--lake", root, "--captures", str(folder)]) == 0  # with the program mended, the next capture
    assert statuses()[2] == ("2.pcap", "complete")


def test_an_exception_while_calls_that_two_captures_saw_are_merged(tmp_path, monkeypatch, capsys):
    dialogue = remote_read_dialogue(size=9000, cuts=(4000, 4000))
    records = conversation.records(dialogue.flow, conversation.segments(dialogue.script))
    later = [replace(record, time_ns=record.time_ns + 1_000_000) for record in records]
    folder, root = tmp_path / "taps", str(tmp_path / "lake")
    folder.mkdir()
    (folder / "one.pcap").write_bytes(pcap(records).data)
    (folder / "two.pcap").write_bytes(pcap(later).data)
    shutil.copy(next(path for path in sample_captures() if path.name.startswith("08-")), folder / "other.pcap")

    def failing(*_, **__):
        raise PlantedError("a bug")

    monkeypatch.setattr(overlapping_calls, "merge_sightings", failing)
    assert run_all.main(["--lake", root, "--captures", str(folder)]) == 3
    lake = Lake(without_spark(), root)
    ledger = {row["path"].rsplit("/", 1)[1]: row for row in lake.select(CAPTURE_FILES, "TRUE").to_pylist()}
    assert ledger["other.pcap"]["status"] == "complete"
    failed = [row for row in ledger.values() if row["damage"] == "failed"]
    assert failed
    for row in failed:
        assert row["status"] == "unreadable"
        assert row["error"].startswith("merging the calls of connection ")
        assert "PlantedError in tests/bronze/test_failed_inputs.py, line " in row["error"]
    keys = lake.select(RPC_CALLS, "interface_name = 'RemoteRead'")["call_key"]
    assert len(keys.unique()) == len(keys) >= len(dialogue.calls)
    assert lake.select(REMOTE_READ_CALLS, "TRUE").num_rows == len(keys)


def fail_when(monkeypatch, name, when):
    """Let a function, given by its full name, fail where ``when`` is true of its first argument."""
    place, attribute = name.rsplit(".", 1)
    right = getattr(importlib.import_module(place), attribute)

    def failing(first, *others):
        if when(first):
            raise RuntimeError("a bug")
        return right(first, *others)

    monkeypatch.setattr(name, failing)


@pytest.fixture
def snapshot_run(tmp_path, capsys):
    """Return a function that runs the pipeline on two snapshot files: the exit code, their ledger, what was said."""
    folder, root = tmp_path / "in", str(tmp_path / "lake")
    bad = [snapshot_files.queue(number, which=name, at=AT_ONE) for number, name in ((7, "a"), (8, "b"))]
    snapshot_files.write(folder / "bad.jsonl", *bad)
    snapshot_files.write(folder / "good.jsonl", snapshot_files.machine(), snapshot_files.queue(9, which="c"))

    def once(*arguments):
        code = run_all.main(["--lake", root, "--snapshots", str(folder), *arguments])
        lake = Lake(without_spark(), root)
        ledger = {
            Path(row["path"]).name: (row["status"], row["error"])
            for row in lake.select(SNAPSHOT_FILES, "TRUE").to_pylist()
        }
        return code, ledger, lake, capsys.readouterr().err

    return once


def test_an_exception_while_a_collected_snapshot_is_decoded(snapshot_run, monkeypatch):
    def has_values_of_a(batch):
        rows = batch.to_pylist()
        return any((row["format_name"] or "").endswith("$\\a") and row["properties"] for row in rows)

    with monkeypatch.context() as patch:
        fail_when(patch, "pipeline.silver.decode.decode_collected_snapshots", has_values_of_a)
        code, ledger, lake, printed = snapshot_run()
    assert code == 3
    assert ledger["good.jsonl"] == ("complete", None)
    status, error = ledger["bad.jsonl"]
    assert status == "unreadable"
    assert re.match(r"decoding snapshot \w+: RuntimeError in .+\.py, line \d+: a bug", error)
    assert f"bad.jsonl: unreadable: {error}" in printed
    found = {row["queue"]: row for row in lake.select(QUEUE_SNAPSHOTS, "TRUE").to_pylist()}
    assert {name[-1]: row["message_count"] for name, row in found.items()} == {"a": None, "b": 8, "c": 9}
    assert {name[-1]: [each["code"] for each in row["errors"]] for name, row in found.items()} == {
        "a": ["unsupported"], "b": [], "c": []
    }  # fmt: skip
    code, again, _, _ = snapshot_run()  # known by path, size and time
    assert (code, again) == (0, ledger)
    monkeypatch.setattr(hosts, "DECODER_VERSIONS", "with the program mended")
    code, ledger, lake, _ = snapshot_run()
    assert (code, ledger["bad.jsonl"]) == (0, ("complete", None))
    assert lake.select(QUEUE_SNAPSHOTS, "message_count = 7").num_rows == 1


def test_an_exception_while_a_snapshot_file_is_read(snapshot_run, monkeypatch):
    with monkeypatch.context() as patch:
        fail_when(patch, "pipeline.bronze.ingest_snapshots.datetime_to_us", lambda time: time.hour == 13)
        code, ledger, _, printed = snapshot_run()
    assert code == 3
    assert ledger["good.jsonl"] == ("complete", None)
    status, error = ledger["bad.jsonl"]
    assert status == "unreadable"
    assert re.match(r"RuntimeError in .+\.py, line \d+: a bug", error)
    assert "bad.jsonl: unreadable: RuntimeError in " in printed
    code, ledger, lake, _ = snapshot_run()  # unreadable files are read again
    assert (code, set(ledger.values())) == (0, {("complete", None)})
    assert lake.select(QUEUE_SNAPSHOTS, "TRUE").num_rows == 3


def test_redaction_keeps_of_a_failure_what_and_where_alone():
    """Messages of exceptions hold values of the input."""
    try:
        {}["SECRET: (a"]
    except KeyError as error:
        text = f"merging 10.0.0.1:1 and 10.0.0.2:2103: {describe_failure(error)}"
    assert "SECRET" in text
    shown = remove_failure_values(text)
    assert re.fullmatch(r"merging: KeyError in tests/bronze/test_failed_inputs.py, line \d+", shown)
    other = "record at byte 24 claims 2147483647 bytes"
    assert remove_failure_values(other) == other


def test_an_exception_while_the_beginning_of_a_capture_is_read_is_left_to_the_task(captures, monkeypatch):
    """Planning a run reads the beginning of each file; the task that reads the file reports what is wrong."""
    read_blocks, files = CaptureFileReader.read_blocks, list_files([str(captures)])
    wrong = (captures / BAD).stat().st_size

    def failing(reader):
        for records in read_blocks(reader):
            if getattr(reader.stream, "size", lambda: 0)() == wrong:
                raise PlantedError("a bug")
            yield records

    monkeypatch.setattr(CaptureFileReader, "read_blocks", failing)
    reads = plan_ingest(files, ledger_of()).reads
    assert [read.file.path for read in reads] == [file.path for file in files]
    assert [read.first_key is None for read in reads] == [False, True, False]
    nowhere = StagingWriter(None, "")
    batches = [each for split in whole_file_splits(files) for each in read_split(split, read_options({}), nowhere)]
    rows = [row for kind, batch in batches if kind == "capture_files" for row in batch.to_pylist()]
    assert [(row["status"], row["damage"]) for row in rows] == [
        ("complete", None), ("unreadable", "failed"), ("complete", None)
    ]  # fmt: skip
    never = DateRange(date(2001, 1, 1), date(2001, 1, 2))
    assert [file.path.rsplit("/", 1)[1] for file in files_on_days(files, ledger_of(), never)] == [BAD]  # to be reported
