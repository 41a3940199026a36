"""Where clocks of captures are known to have been set, from run to run: gold is as if it was known from the beginning.

Nothing else changes between the runs, and not all rows are computed again.
"""

from random import Random

import pyarrow as pa
import pytest

from example_counts import seeds
from pipeline.transfers.messages import update_messages
from pipeline.transfers.sequences import update_sequences
from schemas.bronze import CAPTURE_FILES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS
from transfers import test_message_transfers as messages
from transfers import test_update_sequences as sequences
from transfers.silver_exchange import random_exchange
from transfers.silver_messages import START, Silver, moment
from udfs.capture.record_order import CLOCK_SET

S = 1_000_000
CAPTURES = ("a", "b", "of other packets")


def load_packets(lake, draw):
    """Say in which captures the sendings and order acks of a lake are, and add the packets that they are made of."""
    packets = []
    for table in (SENDINGS, ORDER_ACKS):
        rows = [
            row | {"capture_id": row["capture_id"] or draw.choice("ab")}
            for row in lake.select(table, "TRUE").to_pylist()
        ]
        lake.replace(table, pa.Table.from_pylist(rows, table.schema()))
        packets += ({name: row.get(name) for name in SESSION_PACKETS.names} for row in rows)
    numbered = [row | {"packet_number": place, "stream_offset": place} for place, row in enumerate(packets)]
    lake.append(SESSION_PACKETS, pa.Table.from_pylist(numbered, SESSION_PACKETS.schema()))


def capture(name, servers, packet, at, back_us):
    """A row of the ledger whose clock was set back once."""
    step = {"packet": packet, "at": moment(at), "back_us": back_us, "cause": CLOCK_SET}
    row = {"capture_id": name, "servers": servers, "times_go_back": [step], "event_date": START.date()}
    return dict.fromkeys(CAPTURE_FILES.names) | row


def set_clocks(lake, draw, span, servers):
    """Note in the ledger that clocks of some captures were set at some times, of others not any more."""
    found = []
    for name in CAPTURES:
        at, back_us = draw.randrange(span), draw.choice([2 * S, 3600 * S, -3600 * S, -100 * S])
        row = capture(name, draw.sample(servers, 2), draw.randrange(40), at, back_us)
        found.append(row | draw.choice([{}, {}, {"times_go_back": None}]))
    rows = pa.Table.from_pylist(found, CAPTURE_FILES.schema())
    lake.delete_and_insert(CAPTURE_FILES, "capture_id", CAPTURES, rows, dates=None)


def check_runs(lake, draw, span, servers, update, rows, table):
    """Run with clocks set here and there, and compare each time with all rows made anew."""
    changed = 0
    for _ in range(4):
        before = rows(lake)
        set_clocks(lake, draw, span, servers)
        update(lake)
        found = rows(lake)
        lake.note_provenance(table, "nothing")
        update(lake)
        assert rows(lake) == found
        changed += found != before
    return changed


@pytest.fixture
def recomputed(monkeypatch):
    """Which tables were computed as a whole."""
    found, everything = [], update_messages._MessagesUpdate._recompute_all
    monkeypatch.setattr(
        update_messages._MessagesUpdate, "_recompute_all", lambda *given: found.append("messages") or everything(*given)
    )
    read = update_sequences.GroupedSequences.read

    def read_some(lake, ids=None, since_us=None):
        found.extend(["sequences"] if ids is None else [])
        return read(lake, ids, since_us)

    monkeypatch.setattr(update_sequences.GroupedSequences, "read", read_some)
    return found


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_messages_follow_the_clocks(tmp_path, recomputed, seed):
    draw, lake = Random(seed), messages.lake_at(tmp_path / "lake")
    silver = messages.random_silver(draw)
    messages.load(lake, silver)
    load_packets(lake, draw)

    def update(lake):
        update_messages.update(lake, "run", messages.SETTINGS)

    update(lake)
    span = max(row["sent_at"] for row in silver.sendings)
    servers = [messages.ONE, messages.TWO, messages.THREE]
    assert check_runs(lake, draw, span, servers, update, messages.rows, messages.MESSAGE_TRANSFERS)
    assert len(recomputed) == 5  # the first run, and what others are compared with


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_sequences_follow_the_clocks(tmp_path, recomputed, seed):
    draw, lake = Random(seed), sequences.lake_at(tmp_path / "lake")
    exchange = random_exchange(draw, days=0.05)
    sequences.load(lake, exchange)
    load_packets(lake, draw)

    def update(lake):
        update_sequences.update(lake, "run", sequences.SETTINGS)

    update(lake)
    span = max(each.at for each in exchange.packets)
    check_runs(lake, draw, span, [*exchange.ends], update, sequences.rows, sequences.TRANSFER_SEQUENCES)
    assert len(recomputed) == 5


def test_whether_what_waits_has_expired_is_less_sure_where_any_clock_of_its_server_was_set(tmp_path, recomputed):
    lake, silver = messages.lake_at(tmp_path / "lake"), Silver(ends={messages.TWO: 20 * S})
    silver.session("first", messages.ONE, messages.TWO)
    silver.send("first", "client", S, time_to_reach_queue_s=30)
    messages.update(lake, silver)
    other = capture("other", [messages.TWO], 1, 1000 * S, 60 * S)
    lake.append(CAPTURE_FILES, pa.Table.from_pylist([other], CAPTURE_FILES.schema()))
    update_messages.update(lake, "run", messages.SETTINGS)
    ((found,), whole) = messages.rows(lake).values(), len(recomputed)
    assert (found["outcome"], found["missing"], whole) == ("in_flight", ["capture_ends", "clock_step"], 1)
