"""Runs the harnesses of ``make fuzz`` on their seeds, and on every input that failed earlier."""

from pathlib import Path

import pytest

from fuzz.harnesses import BLOCKS, HARNESSES, blocks_in_order, capture_seeds, demand_alike
from udfs.capture.capture_reader import read_capture

CRASHES = Path(__file__).parent / "crashes"


@pytest.mark.parametrize("name", HARNESSES)
def test_seeds(name):
    seeds = list(HARNESSES[name].seeds())
    assert len({*seeds}) >= 8
    for seed in seeds:
        HARNESSES[name].run(seed)


def test_where_blocks_are_cut_makes_no_difference():
    """Also for out-of-order captures, unless the late packets decide what a connection is.

    In that case ``pending`` may retain more where a block ends in between.
    """
    for seed in capture_seeds():
        late = set() if blocks_in_order(seed) else {"pending"}
        demand_alike(*(read_capture(seed, block_bytes=size) for size in BLOCKS), but=late)


def test_what_failed_once():
    crashes = sorted(CRASHES.glob("*/*"))
    assert {path.parent.name for path in crashes} <= {*HARNESSES}
    for crash in crashes:
        HARNESSES[crash.parent.name].run(crash.read_bytes())
