"""Halves of calls are waited for until they expire, in the packets' time or until the time that counts as now."""

import pytest

from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, stub_of
from pipeline.lake import Lake
from schemas.bronze import PENDING, RPC_CALLS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def pieces():
    """A call in two captures, the second one with its answer alone."""
    dialogue = Dialogue(flow=t.Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(7, stub_of(7, 56), stub_of(20, 40))
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    asked = next(number for number, record in enumerate(records) if stub_of(7, 56) in record.frame)
    return [c.pcap(records[: asked + 1]).data, c.pcap(records[asked + 1 :]).data]


# The request is of 22:13 on November 14th, 2023, and seven days are waited for its answer.
@pytest.mark.parametrize(
    ("as_of", "waits"), [("2023-11-21T23:00:00Z", 0), pytest.param("2023-11-21T22:00:00Z", 1, marks=pytest.mark.long)]
)
def test_a_half_is_waited_for_until_it_expires(spark, pieces, tmp_path, as_of, waits):
    lake = Lake(spark, str(tmp_path / "lake"))
    paths = [tmp_path / f"{number}.pcap" for number in range(2)]
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    assert ingest_captures.main(["--lake", lake.root, "--captures", str(paths[0]), "--as-of", as_of]) == 0
    assert lake.read(PENDING).count() == waits
    assert ingest_captures.main(["--lake", lake.root, "--captures", str(paths[1])]) == 0
    assert [row.outcome for row in lake.read(RPC_CALLS).collect()] == ["ok" if waits else "no_response"]
