"""Forgetting captures that show where a clock was set: what only forgotten packets showed is not known any more."""

import datetime as dt

import pytest

from attempts.test_clocks_of_captures import one_connection_in_two_taps
from capture.merge.comparing import OF_THE_RUN, differences
from capture.rewritten import capture_of, records_of
from end_to_end.lakes import tables
from engines import without_spark
from jobs import forget, ingest_captures, run_all
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.privacy.retention import apply_retention
from pipeline.runs.recovery import RunMarkers
from schemas import bronze, catalog
from schemas.bronze import CAPTURE_FILES, RPC_CALLS

STEP_US, HOUR_US, DAY_US = 120_000_000, 3_600_000_000, 86_400_000_000
PACKETS_BEHIND = 20  # of the second tap, between the step and an hour in which nothing is sent


def two_days(one_stays):
    """Two taps, the step between them, and a day that begins in an hour without packets behind it: contents, the day.

    The first tap goes on with the day or, so that it is older as a whole, ends before.
    """
    one, other, _, _ = one_connection_in_two_taps(STEP_US)
    times = [at for at, _ in records_of(other)]
    behind = next(place for place in range(1, len(times)) if times[place] - times[place - 1] > HOUR_US / 60)
    silence = times[behind + PACKETS_BEHIND] - STEP_US - 1500, times[behind + PACKETS_BEHIND]
    midnight = -(-silence[0] // DAY_US) * DAY_US
    moved = midnight - HOUR_US // 2 - silence[0]
    found = [
        capture_of(like, [(at + moved + HOUR_US * (at >= since), rest) for at, rest in records_of(like)])
        for like, since in zip((one, other), silence, strict=True)
    ]
    if not one_stays:
        found[0] = capture_of(found[0], [each for each in records_of(found[0]) if each[0] < midnight])
    return found, dt.datetime.fromtimestamp(midnight / 10**6, dt.UTC).date()


def lakes(folder, one_stays, run):
    """A lake that has read two days, one whose cutoff was set before it did, and the cutoff."""
    contents, day = two_days(one_stays)
    files = []
    for number, content in enumerate(contents):
        files.append(folder / f"{number}.pcap")
        files[-1].write_bytes(content)
    cutoff = RetentionCutoff(day)
    cutoff.save(RunMarkers(LakePath(str(folder / "never" / "_runs"))))
    for name in ("full", "never"):
        assert run.main(["--lake", str(folder / name), "--captures", *map(str, files)]) == 0
    return *(Lake(without_spark(), str(folder / name)) for name in ("full", "never")), cutoff


def steps_of(lake):
    return [row["tap_steps"] for row in lake.select(CAPTURE_FILES, "TRUE", ("tap_steps",)).to_pylist()]


def clocks_of(lake, where="TRUE"):
    rows = lake.select(RPC_CALLS, where, ("call_key", "clocks")).to_pylist()
    assert rows
    return {row["call_key"]: row["clocks"] for row in rows}


def same(lake, other, of):
    assert not (found := differences(tables(lake, of), tables(other, of), left_out=OF_THE_RUN)), "\n".join(found)


@pytest.mark.parametrize("one_stays", [True, False])
def test_a_step_that_only_forgotten_packets_show_is_forgotten(tmp_path, one_stays):
    full, never, cutoff = lakes(tmp_path, one_stays, ingest_captures)
    kept = f"event_date >= DATE'{cutoff.first_kept_date}'"
    assert None not in steps_of(full)
    assert clocks_of(full, kept) != clocks_of(never, kept)
    apply_retention(full, cutoff)
    assert steps_of(full) == [None, None]
    assert clocks_of(full) == clocks_of(never, kept)
    if one_stays:  # else its connections go on in the other capture, and keep their keys and first times
        same(full, never, bronze.TABLES)


@pytest.mark.long
def test_all_layers_are_as_if_the_step_had_never_been_captured(tmp_path):
    full, never, cutoff = lakes(tmp_path, one_stays=True, run=run_all)
    assert forget.main(["--lake", full.root, "--before", str(cutoff.first_kept_date)]) == 0
    same(Lake(without_spark(), full.root), never, catalog.DATA_TABLES)


def test_a_step_behind_the_date_stays(tmp_path):
    full, _, cutoff = lakes(tmp_path, one_stays=True, run=ingest_captures)
    known = steps_of(full)
    apply_retention(full, RetentionCutoff(cutoff.first_kept_date - dt.timedelta(days=1)))
    assert steps_of(full) == known
