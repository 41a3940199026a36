"""Any capture, cut anywhere into any number of files, read in any order in any number of runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.merge.comparing import equal, same
from capture.merge.cutting import cut, layout, plain, records
from capture.merge.traffic import captures, plans
from pcapgen.record import sample_captures
from udfs.capture.capture_reader import read_capture
from udfs.capture.in_memory import read_captures

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
MANY = settings(max_examples=3000, deadline=None, suppress_health_check=SLOW)


def cut_anywhere(data: st.DataObject) -> None:
    capture = data.draw(captures()).capture
    assume(records(capture) > 0)
    plan = data.draw(plans(records(capture)))
    pieces = cut(capture, plan.places)
    # Files that begin with the same packet are told apart by the ledger, which is not here.
    assume(len({layout(piece).units[0].data for piece in pieces}) == len(pieces))
    note(f"{records(capture)} records, {plan}")
    found = read_captures([[pieces[index] for index in run] for run in plan.runs])
    same(found, read_capture(capture))
    equal(found, read_captures([pieces]))


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
