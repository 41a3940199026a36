"""gold.coverage of sessions: packets, messages on their way, and bytes that are neither."""

from unittest.mock import Mock

import pyarrow as pa
import pytest

from engines import without_spark
from pipeline.lake import date_filters
from pipeline.lake.lake import Lake
from pipeline.quality import coverage
from pipeline.transfers import update as sessions_update
from schemas.bronze import QUARANTINE
from schemas.coverage import COVERAGE
from transfers.conversations import SERVER, START, Conversation, message, session_ack
from transfers.test_update import load

DAY = START.date()


@pytest.fixture
def lake(tmp_path):
    return Lake(without_spark(), str(tmp_path / "lake"))


def measures(lake, layer):
    rows = lake.select(COVERAGE, f"layer = '{layer}'").to_pylist()
    return {(row["server_address"], row["measure"]): row["value"] for row in rows}


def talks():
    """A session from its beginning; and one without, whose messages no SessionHeader numbers."""
    known = Conversation("known", 40_000).handshake()
    known.say("client", "user_message", message(5), 1)
    known.say("server", "session_ack", session_ack(ack=1), 2)
    cut = Conversation("cut", 40_001)
    cut.say("client", "user_message", message(6), 3)
    cut.say("client", "user_message", message(7), 4, seen=60)
    return known, cut


def test_packets_messages_and_stray_bytes(lake):
    known, cut = talks()
    load(lake, [known, cut])
    stray = {"capture_id": "c", "seen_at": START, "event_date": DAY}
    rows = [
        {"quarantine_key": "a", "connection_id": "known", "size_bytes": 30, **stray},
        {"quarantine_key": "b", "connection_id": "of no session", "size_bytes": 500, **stray},
    ]
    lake.append(QUARANTINE, pa.Table.from_pylist(rows, QUARANTINE.schema()))
    sessions_update.update(lake, "run")
    coverage.update(lake, "run")
    found = measures(lake, "session")
    every = [*known.rows, *cut.rows]
    assert {name: value for (server, name), value in found.items() if server == SERVER} == {
        "packets": len(every), "packets_incomplete": 1, "bytes": sum(row["seen_bytes"] for row in every),
        "messages": 3, "messages_unnumbered": 2, "quarantined": 30,
    }  # fmt: skip
    assert {server for server, _ in found} == {SERVER}
    assert measures(lake, "message") == {
        (SERVER, "messages"): 3, (SERVER, "undecoded"): 1, (SERVER, "unidentified"): 1,
        (SERVER, "bodies_incomplete"): 1,
    }  # fmt: skip


@pytest.mark.parametrize("named", [0, 500], ids=["a range of dates", "dates by name"])
def test_what_changed_is_counted_again(lake, tmp_path, monkeypatch, named):
    monkeypatch.setattr(date_filters, "MAX_DATES", named)
    known, cut = talks()
    load(lake, [known])
    sessions_update.update(lake, "run")
    coverage.update(lake, "run")
    load(lake, [known, cut])
    sessions_update.update(lake, "run")
    asked = Mock(side_effect=coverage.counted)
    monkeypatch.setattr(coverage, "counted", asked)
    assert coverage.update(lake, "run")
    assert asked.call_args.args[1] is not None  # dates: not all are counted again
    whole = Lake(lake.session, str(tmp_path / "whole"))
    load(whole, [known, cut])
    sessions_update.update(whole, "run")
    coverage.update(whole, "run")
    assert [measures(lake, layer) for layer in ("session", "message", "transport")] == [
        measures(whole, layer) for layer in ("session", "message", "transport")
    ]
