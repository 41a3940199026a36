"""Unfinished calls are waited for until they expire, in the packets' time or by ``--as-of``."""

import pytest

from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pipeline.lake.lake import Lake
from schemas.bronze import PENDING, RPC_CALLS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Two captures of a call: the request, and the response."""
    dialogue = Dialogue(flow=t.Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(7, make_stub(7, 56), make_stub(20, 40))
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    request = next(number for number, record in enumerate(records) if make_stub(7, 56) in record.frame)
    found = [tmp_path_factory.mktemp("captures") / f"{number}.pcap" for number in range(2)]
    for path, piece in zip(found, (records[: request + 1], records[request + 1 :]), strict=True):
        path.write_bytes(c.pcap(piece).data)
    return [str(path) for path in found]


# The request is of 2023-11-14 22:13, and its response is waited for seven days.
@pytest.mark.long
def test_a_half_that_has_expired_is_not_waited_for(spark, captures, tmp_path):
    lake = Lake(spark, str(tmp_path / "lake"))
    assert ingest_captures.main(["--lake", lake.root, "--captures", captures[0], "--as-of", "2023-11-21T23:00Z"]) == 0
    assert lake.read(PENDING).count() == 0
    assert [row.outcome for row in lake.read(RPC_CALLS).collect()] == ["no_response"]


@pytest.mark.long
@pytest.mark.parametrize(("as_of", "outcome"), [("2023-11-21T22:00Z", "ok"), ("2023-11-21T23:00Z", "no_response")])
def test_an_answer_is_taken_until_its_half_expires(spark, captures, tmp_path, as_of, outcome):
    lake = Lake(spark, str(tmp_path / "lake"))
    for capture, more in ((captures[0], ["--as-of", as_of]), (captures[1], [])):
        assert ingest_captures.main(["--lake", lake.root, "--captures", capture, *more]) == 0
    assert [row.outcome for row in lake.read(RPC_CALLS).collect()] == [outcome]
