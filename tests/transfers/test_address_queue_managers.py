"""When addresses are another queue manager than before, against an evaluation of each address at each time."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from example_counts import seeds
from pipeline.transfers.hops.address_queue_managers import AddressSpan, changed_spans
from udfs.columns.absent import AFTER_ALL

EXPIRE = 5
SCHEMA = pa.schema({"address": pa.string(), "queue_manager": pa.string(), "shown_at": pa.timestamp("us", "UTC")})


def table_of(handshakes):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in handshakes], SCHEMA)


def shown(handshakes, address, at):
    """The queue manager that all handshakes of an address show at about a time; None without, and for two."""
    found = {
        name
        for of, name, when in handshakes
        if of == address and name and when is not None and abs(when - at) <= EXPIRE
    }
    return found.pop() if len(found) == 1 else None


def expected_spans(before, now):
    for address in {of for of, _, _ in (*before, *now)} - {None}:
        times = {when for of, _, when in (*before, *now) if of == address and when is not None}
        bounds = sorted({*(at - EXPIRE for at in times), *(at + EXPIRE + 1 for at in times)})
        for since, until in pairwise([*bounds, AFTER_ALL]):
            if shown(before, address, since) != shown(now, address, since):
                yield AddressSpan(address, since, until)


@pytest.mark.parametrize("seed", seeds(20, 200))
def test_spans_are_those_of_each_address(seed):
    draw = Random(seed)
    every = [
        (draw.choice(["a", "b", "c", None]), draw.choice(["one", "two", None]), draw.choice([None, *range(40)]))
        for _ in range(draw.randint(0, 15))
    ]
    before, now = ([each for each in every if draw.random() < share] for share in (0.6, 0.9))
    found = [*changed_spans(table_of(before), table_of(now), EXPIRE)]
    assert sorted(found) == sorted(expected_spans(before, now))
    assert len({*found}) == len(found)
