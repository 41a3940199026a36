"""A capture whose calls name a port is read twice: what it hands on of its other connections is not less by that."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture

NAMED, UNNAMED, QUERIED = 49777, 49888, 2103


def records(port: int, *, begin: int = 0, asks_for: int | None = None, count: int = 8) -> list[c.Record]:
    """Return the packets of a connection to a port, of reads and a query for another port, from some packet on."""
    flow = t.Flow(client_port=port, server_port=port)
    dialogue = Dialogue(flow=flow)
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for number in range(count):
        dialogue.call(7, make_stub(7, 56), make_stub(20 + number, 9000), answer_cuts=(4000, 4000))
        dialogue.call(9, make_stub(9, 28), make_stub(10, 4))
    if asks_for is not None:
        dialogue.call(0, b"", asks_for.to_bytes(4, "little"))
    return t.records(flow, t.segments(dialogue.script))[begin:]


def handed_on(*packets: c.Record) -> list[dict]:
    """Return the pending row of the connection to the port that nobody names."""
    capture = c.pcap(sorted(packets, key=lambda record: record.time_ns)).data
    pending = read_capture(capture)["pending"]
    return to_rows(pending.filter(pc.equal(pending["server_port"], UNNAMED)))


@pytest.mark.parametrize("begin", range(5, 20))
def test_of_a_connection_without_its_bind_all_calls_are_handed_on(begin):
    """The port query does not change that, which is of another connection and behind it."""
    cold, later = records(NAMED, begin=begin), records(QUERIED, asks_for=NAMED, count=0)[-8:]
    later = [c.Record(record.time_ns + 10**9, record.frame) for record in later]
    unnamed = records(UNNAMED, begin=5)
    (with_query,), (without,) = handed_on(*cold, *unnamed, *later), handed_on(*cold, *unnamed)
    assert with_query == without
    assert "bind" in without["waits_for"]
