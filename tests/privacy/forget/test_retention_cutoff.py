"""The retention cutoff on rows, remainders, staging files and the ledger. Without Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import forget
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter
from pipeline.privacy.erasure import log_files_before_checkpoint
from pipeline.runs.recovery import RunMarkers
from udfs.capture.capture_reader import read_capture
from udfs.capture.connection_merge import merge_connections

DAY = dt.date(2023, 11, 15)  # the conversations are of the evening before
CUTOFF = RetentionCutoff(DAY)
OLD_STUB, YOUNG_STUB = make_stub(7, 56), make_stub(8, 60)
TWO_HOURS_NS = 2 * 3_600_000_000_000


def conversation():
    """A connection over midnight, as two captures: an unanswered call of the day before, and one of the day."""
    dialogue = Dialogue(flow=t.Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.start(7, OLD_STUB)
    dialogue.call(9, YOUNG_STUB, make_stub(20, 4))
    records = t.records(dialogue.flow, t.segments(dialogue.script, cuts=(80,)))  # the first request's length
    asked = next(n for n, record in enumerate(records) if YOUNG_STUB[:40] in record.frame)
    moved = [replace(record, time_ns=record.time_ns + TWO_HOURS_NS) for record in records[asked:]]
    return [c.pcap(piece).data for piece in ([*records[:asked], *moved[:2]], moved[2:])]


def segment_bytes(rows):
    return b"".join(each["data"] or b"" for row in rows for each in row["segments"])


def test_a_remainder_loses_the_bytes_that_are_older_and_is_joined_all_the_same():
    first, second = (read_capture(piece, path=str(n)) for n, piece in enumerate(conversation()))
    (row,) = first["pending"].to_pylist()
    assert OLD_STUB in segment_bytes([row])
    (kept,) = [CUTOFF.trim_pending_row(row)]
    assert OLD_STUB not in segment_bytes([kept])
    assert YOUNG_STUB in segment_bytes([kept])
    assert kept["bytes"] == len(segment_bytes([kept])) < row["bytes"]
    assert CUTOFF.trim_pending_row(kept) == kept
    whole, left = (merge_connections([each, *second["pending"].to_pylist()]) for each in (row, kept))
    calls = {name: found.tables["rpc_calls"].to_pylist() for name, found in (("whole", whole), ("left", left))}
    assert sorted(call["opnum"] for call in calls["whole"]) == [7, 9]
    (call,) = calls["left"]
    assert (call["opnum"], call["outcome"], call["bind_seen"], call["request_stub"]) == (9, "ok", True, YOUNG_STUB)


def test_nothing_changes_in_a_remainder_that_is_younger():
    first, _ = (read_capture(piece, path=str(n)) for n, piece in enumerate(conversation()))
    (row,) = first["pending"].to_pylist()
    assert RetentionCutoff(dt.date(2023, 11, 14)).trim_pending_row(row) == row


def write_staging_files(folder, capture):
    out = StagingWriter(str(folder), "a capture")
    tables = read_capture(capture, path="a capture")
    for kind, table in tables.items():
        for batch in table.to_batches():
            out.add(kind, batch)
    out.close()
    return tables


def read_staging_file(folder, kind):
    found = list((folder / kind).glob("*.parquet"))
    return pq.read_table(found[0]).to_pylist() if found else []


def test_side_files_lose_what_is_older(tmp_path):
    tables = write_staging_files(tmp_path, conversation()[0])
    (capture,) = tables["capture_files"].to_pylist()
    assert CUTOFF.affects_capture(capture)
    assert not CUTOFF.is_capture_expired(capture)
    assert {row["opnum"] for row in read_staging_file(tmp_path, "rpc_calls")} == {7, 9}
    assert CUTOFF.trim_staging_files(LakePath(str(tmp_path)), [capture]) == {"a capture": set(capture["servers"])}
    assert [row["opnum"] for row in read_staging_file(tmp_path, "rpc_calls")] == [9]
    assert len(read_staging_file(tmp_path, "connections")) == 1  # it goes on
    assert len(read_staging_file(tmp_path, "rpc_binds")) == 1
    assert OLD_STUB not in segment_bytes(read_staging_file(tmp_path, "pending"))


def test_side_files_of_a_capture_that_is_older_are_empty(tmp_path):
    cutoff = RetentionCutoff(dt.date(2023, 11, 16))
    tables = write_staging_files(tmp_path, conversation()[0])
    (capture,) = tables["capture_files"].to_pylist()
    assert cutoff.is_capture_expired(capture)
    assert cutoff.trim_staging_files(LakePath(str(tmp_path)), [capture]) == {"a capture": set()}
    for kind in ("rpc_calls", "connections", "rpc_binds", "quarantine", "pending"):
        assert read_staging_file(tmp_path, kind) == []
    capture["host_names"] = [{"address": "10.0.0.9", "name": "srv9"}]
    kept = cutoff.trim_ledger_row(capture, ())
    assert kept["host_names"] is None
    assert (kept["packets"], kept["servers"], kept["first_packet_at"], kept["resume"]) == (0, None, None, None)
    assert (kept["first_key"], kept["tail_key"], kept["path"]) == tuple(
        capture[name] for name in ("first_key", "tail_key", "path")
    )
    assert cutoff.is_capture_expired(kept)  # also the second time, whatever the file's time is
    assert cutoff.trim_ledger_row(kept, ()) == kept


def test_the_ledger_of_a_capture_that_crosses_names_the_servers_that_stay():
    (row,) = read_capture(conversation()[0])["capture_files"].to_pylist()
    both = [{"server_address": name, "connections": 2} for name in ("10.0.0.8", "10.0.0.9")]
    row |= {"server_connections": both, "learned_endpoints": ["10.0.0.8|2103|RemoteRead", "10.0.0.9|2105|qm2qm"]}
    row["host_names"] = [{"address": f"10.0.0.{number}", "name": f"srv{number}"} for number in (8, 9)]
    kept = CUTOFF.trim_ledger_row(row, {"10.0.0.9"})
    assert kept["host_names"] == [{"address": "10.0.0.9", "name": "srv9"}]
    assert (kept["servers"], kept["learned_endpoints"], kept["reread_endpoints"]) == (
        ["10.0.0.9"],
        ["10.0.0.9|2105|qm2qm"],
        None,
    )
    assert kept["packets"] == row["packets"]


def test_what_has_no_time_is_as_old_as_its_capture():
    none = dict.fromkeys(("event_date", "seen_at", "bound_at", "last_packet_at", "connection_id"))
    for kind in ("rpc_calls", "rpc_binds", "quarantine", "pending"):
        assert CUTOFF.keeps_row(kind, none, (), capture_dropped=False)
        assert not CUTOFF.keeps_row(kind, none, (), capture_dropped=True)


@pytest.mark.parametrize(
    ("modified", "ingested", "expired"), [(2105, 2022, True), (2022, 2105, True), (2105, 2024, False)]
)
def test_a_capture_without_a_time_is_as_old_as_its_file_which_was_not_modified_after_it_was_read(
    modified, ingested, expired
):
    at = {"modified_at": modified, "ingested_at": ingested}
    times = {name: dt.datetime(year, 1, 1, tzinfo=dt.UTC) for name, year in at.items()}
    capture = {"first_key": "a", "packets": 1, "last_packet_at": None, **times}
    assert CUTOFF.is_capture_expired(capture) is expired


def test_the_date_is_noted_in_the_lake(tmp_path):
    runs = RunMarkers(LakePath(str(tmp_path / "_runs")))
    assert RetentionCutoff.load(runs) is None
    CUTOFF.save(runs)
    assert RetentionCutoff.load(runs) == CUTOFF
    assert runs.unfinished() == {}


def test_of_a_log_what_is_before_its_newest_checkpoint_goes():
    name = "{:020d}".format
    files = [f"{name(n)}.json" for n in range(5)] + [f".{name(2)}.json.crc", f"{name(1)}.checkpoint.parquet"]
    files += [f"{name(3)}.checkpoint.0001.parquet", f"{name(2)}.crc", "_last_checkpoint"]
    gone = log_files_before_checkpoint([(each, each) for each in files])
    assert sorted(gone) == sorted(
        [
            *(f"{name(n)}.json" for n in range(3)),
            f".{name(2)}.json.crc",
            f"{name(1)}.checkpoint.parquet",
            f"{name(2)}.crc",
        ]
    )
    assert log_files_before_checkpoint([(f"{name(0)}.json", "there")]) == []


@pytest.mark.parametrize("text", ["tomorrow", "2024-13-01", "9999-01-01", "2024-05-01T00:00"])
def test_a_date_that_is_none_or_to_come_is_refused(text, capsys):
    assert forget.main(["--lake", "there", "--before", text]) == 2
    assert "--before" in capsys.readouterr().err


def test_rows_of_the_reader_are_told_by_the_columns_of_the_tables():
    """The rules for staging files and for tables (``retention``) use the same columns."""
    tables = read_capture(conversation()[0])
    for kind, name in {
        "pending": "last_packet_at",
        "quarantine": "seen_at",
        "rpc_binds": "bound_at",
        "rpc_calls": "event_date",
    }.items():
        assert pa.types.is_temporal(tables[kind].schema.field(name).type)
