"""Two or three taps of one conversation, whose clocks differ, with losses of their own: halves are not mixed."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from capture.merge.comparing import equal
from capture.merge.cutting import cut
from capture.merge.test_sent_again import many
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.model import Dialogue
from pcapgen.scenarios import interleaved_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture
from udfs.capture.in_memory import read_captures
from udfs.rows import RowDict

MICROSECOND = 1000
# The clocks are further apart than the captures last, and the files of one tap show less than 64 KiB of one direction
# alone: as what is sent again.
AMBIGUOUS = {2386}


class Taps:
    """Random taps of a conversation: each with its own clock, losses, beginning, end and files."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = (lambda: many()[0], interleaved_dialogue, partial(remote_read_dialogue, size=9000, cuts=(4000, 4000)))
        self.dialogue: Dialogue = chance.choice(kinds)()
        parts = t.segments(self.dialogue.script, mss=chance.choice([1460, 536]), acks=chance.random() < 0.5)
        self.records = t.records(self.dialogue.flow, parts)
        self.offsets = [0, *(chance.choice([-1, 1]) * chance.randrange(1000, 200_000) * MICROSECOND for _ in range(2))]
        self.offsets = self.offsets[: chance.choice([2, 2, 3])]
        data = set(t.data_indexes(parts))
        self.never_seen = set(data)
        self.files: list[list[bytes]] = []
        for offset in self.offsets:
            begin = chance.randrange(len(parts) // 4) if chance.random() < 0.3 else 0
            end = len(parts) - (chance.randrange(len(parts) // 4) if chance.random() < 0.3 else 0)
            lost = {index for index in data if chance.random() < chance.choice([0, 0.1])}
            edges = chance.sample(range(begin + 1, end - 1), chance.choice([0, 0, 1, 2]))
            # What a tap lost at the edge of a file does not show that the next file is its own.
            lost -= {edge + step for edge in edges for step in range(-4, 5)}
            seen = [
                replace(record, time_ns=record.time_ns + offset)
                for index, record in enumerate(self.records)
                if begin <= index < end and index not in lost
            ]
            self.never_seen -= set(range(begin, end)) - lost
            places = [sum(index not in lost for index in range(begin, edge)) for edge in edges]
            container = c.pcap(seen, magic=c.NANOSECONDS) if chance.random() < 0.5 else c.pcapng(seen, tsresol=9)
            self.files.append(cut(container.data, places))
        order = [file for files in self.files for file in files]
        chance.shuffle(order)
        ends = sorted({*chance.sample(range(1, len(order) + 1), min(2, len(order))), len(order)})
        self.runs = [order[a:b] for a, b in pairwise([0, *ends])]

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
    equal(read_captures([[file for files in taps.files for file in files]]), found)
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
            assert stub == whole[number][f"{half}_stub"] or (stub is None and taps.never_seen)


@pytest.mark.parametrize("seed", range(100))
def test_both_halves_of_a_call_are_of_one_tap_wherever_one_has_both(seed):
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_both_halves_of_many_calls_are_of_one_tap_wherever_one_has_both(part):
    for seed in set(range(1000 + 100 * part, 1100 + 100 * part)) - AMBIGUOUS:
        check(seed)
