"""Snapshot files to bronze and silver: each snapshot once, however often, in whatever order and after whatever kill."""

import json
from itertools import permutations

import pytest

from collector.snapshot_files import AT, failed, machine, queue, write
from killing import KilledError, dying
from pipeline.bronze import ingest_snapshots
from pipeline.bronze.input_files import list_files
from pipeline.lake import lake as lake_module
from pipeline.lake.engine import tasks
from pipeline.lake.lake import Lake
from pipeline.silver import collected_snapshots, hosts
from pipeline.silver import update as silver_update
from schemas.bronze import QUARANTINE, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS

pytestmark = pytest.mark.spark

LATER = "2024-05-02T12:00:00.000000Z"
TABLES = (SNAPSHOTS_RAW, SNAPSHOT_FILES, QUARANTINE, *collected_snapshots.SNAPSHOT_TABLES, HOSTS)


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


def ingest(lake, *paths, run_id="r1"):
    return ingest_snapshots.ingest(lake, list_files(map(str, paths)), run_id=run_id, log=lambda _: None)


def rows(lake, table, *without):
    names = [name for name in table.names if name not in {"run_id", "ingested_at", *without}]
    return sorted(lake.select(table, "TRUE", names).to_pylist(), key=str)


def everything(lake):
    return {str(table): rows(lake, table, "modified_at") for table in TABLES}


def update_silver(lake):
    written, provenance = hosts.update_collected_snapshots(lake, {})
    return written if provenance is None else written | {str(HOSTS): hosts.update_hosts(lake, "r1", provenance)}


def test_snapshots_go_through_bronze_to_silver(lake, tmp_path):
    file = write(
        tmp_path / "in" / "a.jsonl", machine(), queue(7), failed(), failed(which="cut", hresult=None, error="cut")
    )
    done = ingest(lake, tmp_path / "in")
    assert (done.rows_written[str(SNAPSHOTS_RAW)], done.unreadable_files) == (4, 0)
    raw = {(row.format_name or "").rpartition("\\")[2]: row for row in lake.read(SNAPSHOTS_RAW).collect()}
    assert {name: (row.hresult, row.error, row.source_line) for name, row in raw.items()} == {
        "": (0, None, 1), "a": (0, None, 2), "gone": (0xC00E0003, None, 3), "cut": (None, "cut", 4),
    }  # fmt: skip
    assert {row.source_path for row in raw.values()} == {str(file)}

    written = update_silver(lake)
    assert written[str(QUEUE_SNAPSHOTS)] == 3
    got = {row.queue.rpartition("\\")[2]: row for row in lake.read(QUEUE_SNAPSHOTS).collect()}
    assert (got["a"].message_count, got["a"].source, got["a"].queue_manager, got["a"].call_key) == (
        7,
        "collector",
        "qm1",
        None,
    )
    # absent, null, zero and error differ
    assert got["a"].property_states == {
        "pathname": "value", "location": "value", "message_count": "value", "journal_message_count": "value",
        "0x7FFF0001": "value",
    }  # fmt: skip
    assert (got["a"].journal_message_count, got["a"].bytes_in_queue) == (0, None)
    assert (got["gone"].hresult_name, got["gone"].property_states) == (
        "MQ_ERROR_QUEUE_NOT_FOUND", {"message_count": "error", "state": "error"},
    )  # fmt: skip
    assert (got["cut"].hresult, got["cut"].message_count, str(got["cut"].observed_at)) == (
        None,
        None,
        "2024-05-01 12:00:00.000005",
    )
    (made,) = lake.read(MACHINE_SNAPSHOTS).collect()
    assert (made.privateq, made.connected, made.property_states["dsserver"]) == (
        ["qm1\\private$\\a", "qm1\\private$\\b"], "CONNECTED", "null",
    )  # fmt: skip
    vendor = lake.read(PROPERTIES).where("property_id = 2147418113").collect()
    assert [(row.property_name, int(row.value_decimal), row.state) for row in vendor] == [("0x7FFF0001", 5, "value")]
    assert {(row.host_name, row.address, row.source, row.sightings) for row in lake.read(HOSTS).collect()} == {
        ("qm1", "10.0.0.1", "snapshot", 2),
    }  # fmt: skip


def test_once_whatever_is_read_how_often(lake, tmp_path, monkeypatch):
    one = write(tmp_path / "b.jsonl", machine(), queue(7))
    ingest(lake, one)
    update_silver(lake)
    before = everything(lake)
    assert ingest(lake, one).skipped_files == 1
    assert update_silver(lake) == {}
    assert everything(lake) == before
    # a copy with a greater name, one with a smaller name, and more lines
    copy = write(tmp_path / "c.jsonl", machine(), queue(7))
    assert ingest(lake, copy).rows_written[str(SNAPSHOTS_RAW)] == 0
    again = write(tmp_path / "a.jsonl", queue(8, at=LATER), machine(), queue(7), queue(7))
    ingest(lake, again)
    with monkeypatch.context() as patched:
        patched.delattr(hosts, "compute_hosts")  # the table is updated incrementally, not recomputed
        update_silver(lake)
    assert [row.sightings for row in lake.read(HOSTS).collect()] == [
        row["sightings"] for row in hosts.compute_hosts(lake)
    ]
    assert lake.read(HOSTS).first().sightings == 3
    raw = {(row["snapshot_id"], row["source_path"], row["source_line"]) for row in rows(lake, SNAPSHOTS_RAW)}
    assert {(path, number) for _, path, number in raw} == {(str(again), 1), (str(again), 2), (str(again), 3)}
    assert sorted(row["message_count"] for row in rows(lake, QUEUE_SNAPSHOTS)) == [7, 8]
    assert len(rows(lake, MACHINE_SNAPSHOTS)) == 1
    assert len(rows(lake, SNAPSHOT_FILES)) == 3


def test_many_are_read_and_decoded_by_tasks_as_few_are_here(spark, lake, tmp_path, monkeypatch):
    files = [
        write(tmp_path / "b.jsonl", machine(), queue(7), "nonsense"), write(tmp_path / "c.jsonl", queue(7), queue(7)),
        write(tmp_path / "a.jsonl", queue(8, at=LATER), machine()),
    ]  # fmt: skip
    many = Lake(spark, str(tmp_path / "many"))
    for part in (files[:2], files):
        ingest_and_update(lake, *part)
        with monkeypatch.context() as patched:
            patched.setattr(tasks, "MAX_DRIVER_BYTES", -1)
            patched.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
            ingest_and_update(many, *part)
    assert everything(many) == everything(lake)


def test_broken_lines_go_to_quarantine_and_leave_it_when_they_are_whole(lake, tmp_path):
    whole = json.dumps(queue(8, at=LATER))
    ahead = queue(asked_at="9999-12-31T23:59:59.999999Z", collected_at=None)
    path = write(tmp_path / "a.jsonl", machine(), "nonsense", queue(version=9), whole[:100], ahead)
    done = ingest(lake, path)
    assert done.unreadable_files == 0
    found = sorted(rows(lake, QUARANTINE), key=lambda row: row["source_line"])
    assert [(row["source_path"], row["source_line"], row["reason"]) for row in found] == [
        (str(path), 2, "not_json"), (str(path), 3, "unknown_version"), (str(path), 4, "not_json"),
        (str(path), 5, "time_ahead"),
    ]  # fmt: skip
    assert {row["last_asked_at"].year for row in rows(lake, SNAPSHOT_FILES)} == {2024}
    assert {row["capture_id"] for row in found} == {None}
    write(path, machine(), "nonsense", queue(version=9), whole)
    ingest(lake, path)
    assert {row["source_line"] for row in rows(lake, QUARANTINE)} == {2, 3}
    assert len(rows(lake, SNAPSHOTS_RAW)) == 2


def test_a_file_that_cannot_be_read_is_said_and_tried_again(lake, tmp_path):
    good, gone = write(tmp_path / "a.jsonl", queue(7)), write(tmp_path / "b.jsonl", machine())
    listed = list_files([str(good), str(gone)])
    text = gone.read_text()
    gone.unlink()
    done = ingest_snapshots.ingest(lake, listed, run_id="r1", log=lambda _: None)
    assert done.unreadable_files == 1
    assert {row["path"]: row["status"] for row in rows(lake, SNAPSHOT_FILES)} == {
        str(good): "complete",
        str(gone): "unreadable",
    }
    gone.write_text(text)
    assert ingest(lake, tmp_path / "*.jsonl").unreadable_files == 0
    assert len(rows(lake, SNAPSHOTS_RAW)) == 2


@pytest.mark.long
@pytest.mark.parametrize("commits", range(8))
def test_a_run_that_was_killed_is_repeated(spark, lake, tmp_path, commits):
    """Whichever of its commits was the last."""
    first = write(tmp_path / "a.jsonl", machine(), queue(7), "broken")
    then = write(tmp_path / "b.jsonl", machine(at=LATER), queue(8, at=LATER), queue(7), "worse")
    ingest(lake, first)
    update_silver(lake)
    with pytest.raises(KilledError), dying(lake, commits) as killed:
        ingest_and_update(killed, first, then)
    ingest_and_update(lake, first, then)
    other = Lake(spark, str(tmp_path / "other"))
    ingest_and_update(other, first, then)
    assert everything(lake) == everything(other)


def ingest_and_update(lake, *paths):
    ingest(lake, *paths)
    update_silver(lake)


@pytest.mark.long
def test_the_order_of_files_is_nothing(spark, tmp_path):
    files = [
        write(tmp_path / "a.jsonl", queue(7), "x"), write(tmp_path / "b.jsonl", machine(), queue(7)),
        write(tmp_path / "c.jsonl", queue(8, at=LATER), machine()),
    ]  # fmt: skip
    found = []
    for number, order in enumerate(list(permutations(files))[::2]):
        lake = Lake(spark, str(tmp_path / f"lake{number}"))
        for path in order:
            ingest(lake, path)
            update_silver(lake)
        found.append(everything(lake))
    assert found[0] == found[1] == found[2]


@pytest.mark.long
def test_both_roads_stand_side_by_side(lake, tmp_path):
    """Decoding collected snapshots keeps the rows decoded from traffic, and the other way round."""
    ingest(lake, write(tmp_path / "a.jsonl", machine(), queue(7)))
    update_silver(lake)
    wire = lake.read(QUEUE_SNAPSHOTS).selectExpr(
        "* except (snapshot_id, source, call_key)", "'wire' source", "'k' call_key", "'k' snapshot_id"
    )
    lake.append(QUEUE_SNAPSHOTS, wire)
    assert AT.startswith("2024-05-01")
    ingest(lake, write(tmp_path / "b.jsonl", queue(9, at=LATER)))
    update_silver(lake)
    assert sorted((row["source"], row["message_count"]) for row in rows(lake, QUEUE_SNAPSHOTS)) == [
        ("collector", 7), ("collector", 9), ("wire", 7),
    ]  # fmt: skip
    collected_snapshots.decode_new_snapshots(lake, None, {})  # decode all again
    assert sorted((row["source"], row["message_count"]) for row in rows(lake, QUEUE_SNAPSHOTS)) == [
        ("collector", 7), ("collector", 9), ("wire", 7),
    ]  # fmt: skip
    lake.create(RPC_CALLS)
    silver_update.update(lake, keep_stubs=True)  # recompute from traffic: there are no calls
    assert sorted((row["source"], row["message_count"]) for row in rows(lake, QUEUE_SNAPSHOTS)) == [
        ("collector", 7), ("collector", 9),
    ]  # fmt: skip
