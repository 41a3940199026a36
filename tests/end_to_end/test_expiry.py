"""Unfinished calls are waited for until their connection expires, in the packets' time or by ``--as-of``."""

from __future__ import annotations

from collections import Counter

import pytest
from deltalake import DeltaTable

from capture.merge.cutting import cut
from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pcapgen.scenarios import long_association, long_session
from schemas.table import INGESTED_AT, RUN_ID

DAY_NS = 86_400_000_000_000


def read(lake, *captures, settings=()):
    assert ingest_captures.main(["--lake", str(lake), "--captures", *map(str, captures), *settings]) == 0


def rows(lake, table):
    found = DeltaTable(str(lake / "bronze" / table)).to_pyarrow_table()
    return found.drop_columns([RUN_ID, INGESTED_AT]).to_pylist()


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
    return found


# The request is of 2023-11-14 22:13, and its response is waited for seven days.
def test_a_half_that_has_expired_is_not_waited_for(captures, tmp_path):
    read(tmp_path, captures[0], settings=["--as-of", "2023-11-21T23:00Z"])
    assert not rows(tmp_path, "pending")
    assert [row["outcome"] for row in rows(tmp_path, "rpc_calls")] == ["no_response"]


@pytest.mark.parametrize(("as_of", "outcome"), [("2023-11-21T22:00Z", "ok"), ("2023-11-21T23:00Z", "no_response")])
def test_an_answer_is_taken_until_its_half_expires(captures, tmp_path, as_of, outcome):
    for capture, more in ((captures[0], ["--as-of", as_of]), (captures[1], [])):
        read(tmp_path, capture, settings=more)
    assert [row["outcome"] for row in rows(tmp_path, "rpc_calls")] == [outcome]


def over_days(records, count, days_apart):
    """Return files that show a connection one after the other, with the time between two of them, in days."""
    edges = [len(records) * number // count for number in range(1, count)]
    passed = [sum(place >= edge for edge in edges) for place in range(len(records))]
    moved = [
        c.Record(record.time_ns + round(number * days_apart * DAY_NS), record.frame)
        for record, number in zip(records, passed, strict=True)
    ]
    return cut(c.pcap(moved).data, edges)


OF_TABLES = {
    "session": ("connections", "session_packets", "quarantine"),
    "calls": ("connections", "rpc_binds", "rpc_calls", "quarantine"),
}
RECORDS = {"session": long_session, "calls": long_association}


@pytest.fixture(params=[*RECORDS])
def kind(request):
    return request.param


@pytest.fixture
def long_lived(kind, tmp_path):
    """Six files of a connection that stays open for longer than its remainders are waited for, and never is silent."""
    found = []
    for number, piece in enumerate(over_days(RECORDS[kind](30), 6, days_apart=3)):
        found.append(tmp_path / f"{number}.pcap")
        found[-1].write_bytes(piece)
    return found


def tables_of(lake, kind):
    """Return the rows of a lake's tables; the keys of quarantine have the capture."""
    return {name: Counter(repr(sorted(row.items())) for row in rows(lake, name)) for name in OF_TABLES[kind]}


def test_a_connection_that_goes_on_keeps_its_key_its_binds_and_the_places_of_its_bytes(kind, long_lived, tmp_path):
    read(tmp_path / "at_once", *long_lived, settings=["--set", "pending.expire=100d"])
    (connection,) = rows(tmp_path / "at_once", "connections")
    for file in long_lived:
        read(tmp_path / "one_by_one", file)
        kept = rows(tmp_path / "one_by_one", "pending")
        assert {row["connection_id"] for row in kept} == {connection["connection_id"]}
    assert len(kept) == len(long_lived)
    assert tables_of(tmp_path / "one_by_one", kind) == tables_of(tmp_path / "at_once", kind)


def test_a_file_that_comes_late_belongs_to_the_connection_that_goes_on(kind, long_lived, tmp_path):
    read(tmp_path / "at_once", *long_lived)
    late = long_lived.pop(2)  # its packets came nine days before the last ones
    read(tmp_path / "one_by_one", *long_lived)
    read(tmp_path / "one_by_one", late)
    assert tables_of(tmp_path / "one_by_one", kind) == tables_of(tmp_path / "at_once", kind)


def test_a_connection_that_falls_silent_is_not_waited_for(kind, long_lived, tmp_path):
    read(tmp_path, *long_lived)
    (tmp_path / "later.pcap").write_bytes(c.pcap(t.records(t.Flow(client_port=50999), [])).data)
    assert len(rows(tmp_path, "pending")) == len(long_lived)
    read(tmp_path, tmp_path / "later.pcap", settings=["--as-of", "2023-12-20T00:00Z"])
    assert not rows(tmp_path, "pending")
