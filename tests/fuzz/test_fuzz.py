"""The harnesses of ``make fuzz`` on what they begin with, and on every input that once failed."""

from pathlib import Path

import pytest

from fuzz.harnesses import BLOCKS, HARNESSES, blocks_in_order, capture_seeds, demand_alike
from udfs.capture.reader import read_capture

CRASHES = Path(__file__).parent / "crashes"


@pytest.mark.parametrize("name", HARNESSES)
def test_seeds(name):
    seeds = list(HARNESSES[name].seeds())
    assert len({*seeds}) >= 8
    for seed in seeds:
        HARNESSES[name].run(seed)


def test_where_blocks_are_cut_makes_no_difference():
    """To captures out of order either, as long as what comes late is none of what tells what a connection is.

    What is pending then may be more, where a block ends between them.
    """
    for seed in capture_seeds():
        late = set() if blocks_in_order(seed) else {"pending"}
        demand_alike(*(read_capture(seed, block_bytes=size) for size in BLOCKS), but=late)


def test_what_failed_once():
    crashes = sorted(CRASHES.glob("*/*"))
    assert {path.parent.name for path in crashes} <= {*HARNESSES}
    for crash in crashes:
        HARNESSES[crash.parent.name].run(crash.read_bytes())
