"""Whether a hole of the other side may hold a sending's session acknowledgement."""

import numpy as np
import pytest

from pipeline.transfers.holes import END_OF_SIDE, find_holes, may_hold_acknowledgement
from udfs.columns.absent import NONE


def ints(*values):
    return np.array(values, np.int64)


def test_holes_lie_before_between_inside_and_behind_packets():
    found = find_holes(ints(5, 10, 30), ints(5, 10, 10), ints(5, 6, 10), ints(5, 4, 10), at_end=7)
    assert found.begins.tolist() == [0, 14, 20, END_OF_SIDE]
    assert found.inside.tolist() == [NONE, 1, NONE, NONE]
    assert found.sizes.tolist() == [5, 4, 10, 7]


# The other side: four packets at 10, 20, 30, 40 s; the second and the fourth carry SessionHeaders (indices 0 and 1).
OFFSET, LENGTH, SENT, CARRIERS = ints(0, 100, 300, 500), ints(100, 100, 100, 100), ints(10, 20, 30, 40), ints(1, 3)


@pytest.mark.parametrize(
    ("at", "acknowledged_by", "at_end", "expected"),
    [
        (15, 0, 0, False),  # both holes are behind its acknowledgement
        (15, 1, 0, True),  # between packets 2 and 3, or 3 and 4
        (35, 1, 0, True),
        (45, NONE, 0, False),  # nothing behind the last header
        (45, NONE, 36, True),
        (45, NONE, 35, False),  # less than a packet with a SessionHeader has
        (5, NONE, 0, False),  # acknowledgements never fall: no earlier hole held it
    ],
)
def test_a_hole_may_hold_it(at, acknowledged_by, at_end, expected):
    holes = find_holes(OFFSET, LENGTH, LENGTH, LENGTH, at_end=at_end)
    may_have_header = np.ones(4, np.bool_)
    found = may_hold_acknowledgement(
        ints(at), ints(acknowledged_by), SENT, OFFSET, LENGTH, CARRIERS, may_have_header, holes
    )
    assert found.tolist() == [expected]


@pytest.mark.parametrize("has_header", [False, True])
def test_a_hole_inside_a_packet_without_a_header_holds_none(has_header):
    offset, length = ints(0, 10, 20), ints(10, 10, 10)
    holes = find_holes(offset, length, ints(10, 5, 10), ints(10, 5, 10), at_end=0)
    may_have_header = np.array([False, has_header, True])
    found = may_hold_acknowledgement(
        ints(15), ints(0), ints(10, 20, 30), offset, length, ints(2), may_have_header, holes
    )
    assert found.tolist() == [has_header]
