"""Sources that bring no evidence any more: their rhythm, and the rows of the condition ``evidence_stopped``."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from memory_lake import MemoryLake
from pipeline.alerts.silence import find_stopped, longest_wait, read_sources
from pipeline.lake.lake import Lake
from pipeline.silver.machine_names import NameSighting, NameSource
from pipeline.silver.machines import Machines
from schemas.alerts import ALERTS
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOTS_RAW

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
RING = "/data/ring"


def table(of, rows):
    """Rows of a table; columns that are not given are null."""
    whole = [dict.fromkeys(of.names) | {"event_date": BEGIN.date()} | row for row in rows]
    for row in whole:
        for name in ("first_packet_at", "asked_at"):
            row["event_date"] = row[name].date() if row.get(name) else row["event_date"]
    return pa.Table.from_pylist(whole, of.schema())


def captures(folder, *times, read=None):
    """One capture for each time of its last packet; read a minute later, or all at the time ``read``."""
    return [
        {"capture_id": f"{folder}/{at:%d%H%M}", "path": f"{folder}/{at:%d%H%M}.pcap", "first_packet_at": at - MINUTE,
         "last_packet_at": at, "ingested_at": read or at + MINUTE}
        for at in times
    ]  # fmt: skip


def snapshots(name, *times, answered=True):
    return [
        {"snapshot_id": f"{name}{at:%d%H%M}", "queue_manager": name, "asked_at": at,
         "collected_at": at if answered else None, "ingested_at": at + MINUTE}
        for at in times
    ]  # fmt: skip


def every(step, count, begin=BEGIN):
    return [begin + step * number for number in range(count)]


def lake_of(captured=(), collected=()):
    return MemoryLake({CAPTURE_FILES: table(CAPTURE_FILES, captured), SNAPSHOTS_RAW: table(SNAPSHOTS_RAW, collected)})


def stopped(lake, clock, silence_after=None):
    return find_stopped(read_sources(lake, clock), clock, silence_after)


def subjects(lake, clock, silence_after=None):
    return [row["subject"] for row in stopped(lake, clock, silence_after)]


def test_a_folder_that_brought_captures_and_does_not_any_more():
    times = every(HOUR, 6)
    lake, came = lake_of(captures(RING, *times)), times[-1] + MINUTE
    assert stopped(lake, came + 3 * HOUR) == []
    (row,) = stopped(lake, came + 3 * HOUR + MINUTE)
    assert (row["condition"], row["severity"], row["until"]) == ("evidence_stopped", "error", None)
    assert (row["subject"], row["queue"], row["queue_manager"]) == ("captures in /data/ring", None, None)
    assert row["since"] == came + HOUR  # when it should have brought evidence
    assert row["last_seen_at"] == came + 3 * HOUR + MINUTE
    assert row["message"] == (
        "nothing came for 3 h 1 min, before that every 1 h; the newest packet is from 2026-03-02 14:00:00"
    )
    assert "whether the capture or the collector runs" in row["suggestion"]
    assert row["evidence"] == [f"{RING}/021400"]
    assert row.keys() == {*ALERTS.names}


def test_a_queue_manager_whose_snapshots_stop():
    times = every(5 * MINUTE, 12)
    lake = lake_of(collected=snapshots("srv1", *times) + snapshots("srv2", *times, times[-1] + 55 * MINUTE))
    clock = times[-1] + HOUR + 2 * MINUTE
    (row,) = stopped(lake, clock)
    assert (row["subject"], row["queue_manager"]) == ("snapshots of queue manager srv1", "srv1")
    assert "every 5 min" in row["message"]
    assert stopped(lake, clock - 2 * MINUTE) == []  # an hour at least, though three intervals are less


def test_a_queue_manager_is_called_by_its_name_and_a_folder_is_not_a_machine():
    times, address = every(HOUR, 6), "10.0.0.1"
    lake = lake_of(captures(f"/data/{address}", *times), snapshots(address, *times))
    clock, named = times[-1] + DAY, Machines([], {}, [NameSighting(NameSource.DECLARED, address, name="till-7")])
    rows = find_stopped(read_sources(lake, clock), clock, None, named)
    assert [(row["subject"], row["subject_text"]) for row in rows] == [
        ("captures in /data/10.0.0.1", "captures in /data/10.0.0.1"),
        ("snapshots of queue manager 10.0.0.1", "snapshots of queue manager till-7"),
    ]


def test_questions_without_an_answer_are_no_evidence():
    times = every(5 * MINUTE, 12)
    silent = snapshots("srv1", *every(5 * MINUTE, 40, times[-1]), answered=False)
    assert subjects(lake_of(collected=snapshots("srv1", *times) + silent), times[-1] + 2 * HOUR)


@pytest.mark.parametrize(("count", "found"), [(4, []), (5, ["captures in /data/ring"])])
def test_five_times_are_a_rhythm(count, found):
    times = every(HOUR, count)
    assert subjects(lake_of(captures(RING, *times)), times[-1] + DAY) == found


def test_a_source_that_was_filled_once_has_no_rhythm():
    times = every(HOUR, 100)
    read = times[-1] + DAY
    lake = lake_of(captures(RING, *times, read=read))
    assert subjects(lake, read + 5 * DAY) == []
    assert subjects(lake, times[-1] + HOUR * 12) == []  # --as-of before it was read


def test_a_backfill_in_many_runs_has_no_rhythm_and_disturbs_none():
    old = every(HOUR, 100)
    read = [captures(RING, at, read=BEGIN + 60 * DAY + number * MINUTE)[0] for number, at in enumerate(old)]
    assert subjects(lake_of(read), BEGIN + 61 * DAY) == []
    live = every(HOUR, 8, BEGIN + 60 * DAY - 6 * HOUR)  # only two of the last twenty runs
    lake = lake_of(captures(RING, *live) + read)
    assert subjects(lake, live[-1] + 3 * HOUR) == []
    assert subjects(lake, live[-1] + 4 * HOUR) == ["captures in /data/ring"]


def test_older_captures_that_come_later_are_no_sign_of_life():
    live = every(HOUR, 6)
    late = [captures(RING, at - MINUTE, read=live[-1] + 2 * HOUR + MINUTE)[0] for at in live]
    assert subjects(lake_of(captures(RING, *live) + late), live[-1] + 4 * HOUR) == ["captures in /data/ring"]


def test_a_source_that_comes_back_is_silent_no_more():
    times = every(HOUR, 6)
    back = times[-1] + DAY
    lake = lake_of(captures(RING, *times, back))
    assert subjects(lake, back - HOUR) == ["captures in /data/ring"]
    assert subjects(lake, back + 2 * HOUR) == []
    assert subjects(lake, back + 4 * HOUR) == ["captures in /data/ring"]  # the gap does not change the rhythm


def test_runs_that_read_many_files_at_a_time_have_the_rhythm_of_the_runs():
    read = [
        row
        for day in range(6)
        for row in captures(RING, *every(HOUR, 24, BEGIN + day * DAY), read=BEGIN + (day + 1) * DAY)
    ]
    last = BEGIN + 6 * DAY
    assert subjects(lake_of(read), last + 2 * DAY) == []
    assert subjects(lake_of(read), last + 3 * DAY + HOUR) == ["captures in /data/ring"]


def test_folders_of_days_are_one_source():
    times = every(6 * HOUR, 24)
    read = [
        row | {"path": f"/data/{at:%Y-%m-%d}/hour={at:%H}/a.pcap"}
        for at in times
        for row in captures("/data", at)
    ]  # fmt: skip
    lake = lake_of(read)
    assert subjects(lake, times[-1] + 6 * HOUR) == []
    assert subjects(lake, times[-1] + DAY) == ["captures in /data/*/*"]


@pytest.mark.parametrize("ahead", [14 * HOUR, -14 * HOUR])
def test_a_clock_that_is_wrong_by_some_hours_changes_nothing(ahead):
    times = every(HOUR, 8)
    read = [captures(RING, at + ahead, read=at)[0] for at in times]
    assert subjects(lake_of(read), times[-1] + 2 * HOUR) == []
    assert subjects(lake_of(read), times[-1] + 4 * HOUR) == ["captures in /data/ring"]


def test_the_setting_takes_the_place_of_three_intervals():
    times = every(HOUR, 6)
    lake, came = lake_of(captures(RING, *times)), times[-1] + MINUTE
    assert subjects(lake, came + 11 * MINUTE, 10 * MINUTE) == ["captures in /data/ring"]
    assert subjects(lake, came + DAY, DAY) == []


def test_a_source_that_is_gone_for_half_a_year_is_not_expected():
    times = every(HOUR, 6)
    assert subjects(lake_of(captures(RING, *times)), BEGIN + 179 * DAY)
    assert subjects(lake_of(captures(RING, *times)), BEGIN + 182 * DAY) == []


def test_how_old_the_newest_evidence_may_be_while_all_is_as_usual():
    clock = BEGIN + 5 * DAY + MINUTE
    daily, hourly = captures("/a", *every(DAY, 6)), captures("/b", *every(HOUR, 6, BEGIN + 5 * DAY - 5 * HOUR))
    assert longest_wait(read_sources(lake_of(hourly + daily), clock), clock, None) == 3 * DAY + MINUTE
    assert longest_wait([], clock, None) == HOUR
    assert longest_wait([], clock, DAY) == DAY


@pytest.mark.spark
@pytest.mark.parametrize(
    ("store", "read_log"),
    [("delta-rs", "auto"), pytest.param("spark", "auto", marks=pytest.mark.long), ("spark", "spark")],
)
def test_all_stores_say_the_same(spark, tmp_path, store, read_log):
    times = every(HOUR, 30)
    captured, collected = captures(RING, *times), snapshots("srv1", *times)
    lake = Lake(spark, str(tmp_path / "lake"), store=store, read_log=read_log)
    lake.append(CAPTURE_FILES, table(CAPTURE_FILES, captured))
    lake.append(SNAPSHOTS_RAW, table(SNAPSHOTS_RAW, collected))
    clock = times[-1] + DAY
    assert stopped(lake, clock) == stopped(lake_of(captured, collected), clock)
    assert len(stopped(lake, clock)) == 2
