"""Any capture, cut anywhere into any number of files, read in any order in any number of runs."""

from __future__ import annotations

from itertools import permutations, starmap

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.in_memory import read_captures
from capture.merge.comparing import equal, same
from capture.merge.cutting import cut, layout, plain, records
from capture.merge.traffic import captures, plans
from example_counts import examples
from pcapgen.record import sample_captures
from udfs.capture.capture_reader import read_capture

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
MANY = settings(max_examples=examples(3000), deadline=None, suppress_health_check=SLOW)


def cut_anywhere(data: st.DataObject) -> None:
    capture = data.draw(captures()).capture
    assume(records(capture) > 0)
    plan = data.draw(plans(records(capture)))
    pieces = cut(capture, plan.places)
    # Files that begin with the same packet are told apart by the ledger, which is not here.
    assume(len({layout(piece).units[0].data for piece in pieces}) == len(pieces))
    assume(not any(starmap(_shows_what_is_sent_again, permutations(map(_payloads, pieces), 2))))
    note(f"{records(capture)} records, {plan}")
    found = read_captures([[pieces[index] for index in run] for run in plan.runs])
    same(found, read_capture(capture))
    equal(found, read_captures([pieces]))


Payload = tuple[tuple[bytes, bytes], bytes]


def _payloads(piece: bytes) -> set[Payload]:
    """Return sender, receiver, and payload with its sequence number, of each data packet in a file."""
    found = [unit.data[unit.data.index(b"\x08\x00\x45") + 2 :] for unit in layout(piece).units]
    packets = [packet[: int.from_bytes(packet[2:4])] for packet in found]
    ends = [(packet[12:16] + packet[20:22], packet[16:20] + packet[22:24]) for packet in packets]
    return {(end, packet[24:28] + packet[40:]) for end, packet in zip(ends, packets, strict=True) if len(packet) > 40}


def _shows_what_is_sent_again(one: set[Payload], two: set[Payload]) -> bool:
    """Whether a file has little of a connection that is not also in another file.

    Two machines may as well have captured the packets, with clocks that differ by more than the files last.
    """
    for peers in {frozenset(ends) for ends, _ in one}:
        own = {packet for packet in one if frozenset(packet[0]) == peers}
        common = own & two
        sizes = [sum(len(payload) for _, payload in packets) for packets in (common, own)]
        if len({ends for ends, _ in common}) == 2 and 3 * sizes[0] >= sizes[1]:
            return True
    return False


@FEW
@given(st.data())
def test_any_cut_in_any_order_is_the_uncut_capture(data):
    cut_anywhere(data)


@pytest.mark.long
@MANY
@given(st.data())
def test_many_cuts_in_any_order_are_the_uncut_capture(data):
    cut_anywhere(data)


def test_a_capture_that_begins_between_binds_and_their_answers():
    """The answer to a bind that only the file before has is not that of the next bind: here the server refused one."""
    (path,) = (path for path in sample_captures() if path.name.startswith("07-"))
    capture = plain(path)
    whole = read_capture(capture)
    for place in range(3, 24):  # seven binds and their answers
        same(read_captures([[piece] for piece in cut(capture, [place])]), whole)
        same(read_captures([[piece] for piece in reversed(cut(capture, [place, 87]))]), whole)
