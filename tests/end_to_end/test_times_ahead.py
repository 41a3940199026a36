"""A capture whose clock is eighty years ahead: nothing expires by it, it is read, and it can be forgotten."""

import os

import pytest

from capture.test_times_ahead import SAMPLE, ahead, count
from jobs import forget, ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS

pytestmark = [pytest.mark.spark, pytest.mark.long]
LONG_AGO_S = 1_600_000_000  # 2020-09-13


def test_a_capture_that_is_ahead_ends_nothing_and_goes_with_its_file(spark, tmp_path):
    dialogue = Dialogue(flow=t.Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(7, make_stub(7, 56), make_stub(20, 40))
    records = t.records(dialogue.flow, t.segments(dialogue.script))  # of 2023-11-14
    request = next(number for number, record in enumerate(records) if make_stub(7, 56) in record.frame)
    capture = SAMPLE["03"]
    contents = [
        c.pcap(records[: request + 1]).data, ahead(capture, range(count(capture))), c.pcap(records[request + 1 :]).data
    ]  # fmt: skip
    lake = Lake(spark, str(tmp_path / "lake"))
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.pcap"
        path.write_bytes(content)
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
    calls = lake.read(RPC_CALLS)
    assert [row.outcome for row in calls.where("event_date IS NOT NULL").collect()] == ["ok"]
    assert calls.where("event_date IS NULL AND coalesce(request_at, response_at) IS NULL").count() == 96
    assert {row.packets_ahead for row in lake.read(CAPTURE_FILES).collect()} == {0, count(capture)}
    assert newest_event_time_us(lake) == records[-1].time_ns // 1000

    assert forget.main(["--lake", lake.root, "--before", "2021-01-01"]) == 0
    assert [row.outcome for row in lake.read(RPC_CALLS).collect()] == ["ok"]
    assert lake.read(CONNECTIONS).count() == 1
