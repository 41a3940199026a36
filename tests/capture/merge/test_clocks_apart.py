"""Two or three taps of one conversation, whose clocks differ, with losses of their own: halves are not mixed."""

from __future__ import annotations

import datetime as dt
import random
from functools import partial

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import equal
from capture.merge.tap_captures import TapCaptures
from capture.merge.test_sent_again import many
from example_counts import seeds
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import interleaved_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture
from udfs.rows import RowDict

# Clocks that are further apart than the captures last, and files of less than 64 KiB of one direction alone: as what is
# sent again, but for the SYN of the later tap.
CLOCKS_FURTHER_APART_THAN_CAPTURES_LAST = (2386, 2592)
# The first file of the tap with the later clock has bytes that come before all others.
BEFORE_BY_BYTES_BEHIND_BY_CLOCKS = 1217


class Taps(TapCaptures):
    """Random taps of a generated conversation."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = (lambda: many()[0], interleaved_dialogue, partial(remote_read_dialogue, size=9000, cuts=(4000, 4000)))
        dialogue = chance.choice(kinds)()
        parts = t.segments(dialogue.script, mss=chance.choice([1460, 536]), acks=chance.random() < 0.5)
        self.records = t.records(dialogue.flow, parts)
        super().__init__(self.records, set(t.data_indexes(parts)), chance)

    def times_by_tap(self) -> list[dict[tuple[int, str], tuple[dt.datetime, dt.datetime]]]:
        """Return for each tap when it saw requests and responses that it has whole, by call id."""
        found = []
        for files in self.files:
            alone = read_captures([files])["rpc_calls"].to_pylist()
            seen = {}
            for row in alone:
                if row["request_stub"] is not None:
                    seen[row["call_id"], "request"] = row["request_at"], row["request_done_at"]
                if row["response_stub"] is not None or row["fault_status"] is not None:
                    seen[row["call_id"], "response"] = row["response_at"], row["response_done_at"]
            found.append(seen)
        return found


def check(seed: int) -> None:
    taps = Taps(seed)
    found = read_captures(taps.runs)
    equal(read_captures([taps.all_files]), found)
    perfect = read_capture(c.pcap(taps.records).data)
    check_connection(taps, found["connections"].to_pylist(), perfect["connections"].to_pylist())
    check_calls(taps, found["rpc_calls"].to_pylist(), perfect["rpc_calls"].to_pylist())


def check_connection(taps: Taps, found: list[RowDict], perfect: list[RowDict]) -> None:
    """Check that each byte is counted once: nothing was sent again."""
    (row,), (expected,) = found, perfect
    assert row["retransmitted_bytes"] == row["conflicting_bytes"] == 0
    counts = ("client_bytes", "server_bytes", "missing_bytes", "calls")
    if not taps.never_seen:
        assert {name: row[name] for name in counts} == {name: expected[name] for name in counts}
    for name in counts[:2]:
        assert row[name] <= expected[name]


def check_calls(taps: Taps, found: list[RowDict], perfect: list[RowDict]) -> None:
    """Check that there is one row for each call, with times of one tap wherever one has both halves whole."""
    times = taps.times_by_tap()
    whole = {row["call_id"]: row for row in perfect}
    ids = [row["call_id"] for row in found]
    differences: set[dt.timedelta] = set()
    assert len(ids) == len(set(ids))
    if not taps.never_seen:
        assert sorted(ids) == sorted(whole)
    for row in found:
        number = row["call_id"]
        at = {half: (row[f"{half}_at"], row[f"{half}_done_at"]) for half in ("request", "response")}
        both = [tap for tap in times if all((number, half) in tap for half in at)]
        if both:
            earliest = min(both, key=lambda tap: tap[number, "request"])
            assert at == {half: earliest[number, half] for half in at}, number
        else:
            for half, shown in at.items():
                if any((number, half) in tap for tap in times):
                    assert shown in [tap.get((number, half)) for tap in times], (number, half)
        for half in at:
            stub = row[f"{half}_stub"]
            if stub is not None:  # by one clock, the calls come in their order and at their distances
                ahead = dt.timedelta(microseconds=row["clocks"][f"{half}_ahead_us"])
                differences.add(at[half][0] - ahead - whole[number][f"{half}_at"])
            assert stub == whole[number][f"{half}_stub"] or (stub is None and taps.never_seen)
    assert len(differences) <= 1


@pytest.mark.parametrize(
    "seed", [*seeds(15, 100), *CLOCKS_FURTHER_APART_THAN_CAPTURES_LAST, BEFORE_BY_BYTES_BEHIND_BY_CLOCKS]
)
def test_both_halves_of_a_call_are_of_one_tap_wherever_one_has_both(seed):
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_both_halves_of_many_calls_are_of_one_tap_wherever_one_has_both(part):
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check(seed)
