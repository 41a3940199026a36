"""A queue manager whose address changes while it sends (DHCP, failover): its rows stay, and its messages count once."""

import struct
from collections import Counter
from dataclasses import replace

import pytest

from engines import shared_sql
from pcapgen import containers
from pcapgen.exchanges import Damage, recorded, tap
from pipeline.dashboards.transfer_datasets import TRANSFER_DATASETS
from pipeline.reports.trace.transfer_events import transfers_once_per_hop
from reports.questions.in_memory_lake import rows
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers.in_memory import transfers_of
from transfers_peer.reading import DATA
from udfs.keys import key

OLD, NEW, RECEIVER = "10.77.105.1", "10.77.205.1", "10.77.105.2"


def ports_of(record):
    return {*struct.unpack_from(">HH", record.frame, 34)}


def moved(record):
    """The packet with the sender's new address instead of its old one."""
    frame = bytearray(record.frame)
    for place in (26, 30):
        if frame[place : place + 4] == packed(OLD):
            frame[place : place + 4] = packed(NEW)
    return replace(record, frame=bytes(frame))


def packed(address):
    return bytes(map(int, address.split(".")))


def when(record):
    return record.time_ns


@pytest.fixture(scope="module")
def tables():
    """What a recording shows, and what it does where all sessions but the first two come from another address."""
    records = tap(recorded(DATA / "05-resends.pcap"), Damage()).records
    begun = [*dict.fromkeys(port for each in sorted(records, key=when) for port in ports_of(each) - {1801})]
    later = {*begun[2:]}
    captures = records, [moved(each) if ports_of(each) & later else each for each in records]
    return [transfers_of([containers.pcap(each).data]) for each in captures]


def test_rows_stay_by_address_and_take_the_acknowledgement_of_their_hop(tables):
    same, moved_ = (lake.rows(MESSAGE_TRANSFERS).to_pylist() for lake in tables)
    assert len(moved_) == len(same) + 3
    assert {row["hop_key"] for row in (*same, *moved_)} == {
        key(row["sender_queue_manager"], row["receiver_queue_manager"]) for row in same
    }
    outcomes = {row["message_id"]: row["outcome"] for row in same}
    by_key = {row["transfer_key"]: row for row in moved_}
    taken = [row for row in moved_ if row["acknowledged_on"]]
    assert sorted(row["message_id"].split("\\")[1] for row in taken) == ["4100", "4101", "4102"]
    for row in moved_:
        assert row["transfer_key"] == key(
            row["message_key"], row["destination_queue"], row["sender_address"], row["receiver_address"]
        )
        assert row["outcome"] == outcomes[row["message_id"]]
        assert row["confidence"] == "complete"
    for row in taken:
        other = by_key[row["acknowledged_on"]]
        assert (row["sender_address"], other["sender_address"]) == (OLD, NEW)
        assert row["session_acked_at"] == other["session_acked_at"]
    assert {row["hop_key"] for row in tables[1].rows(TRANSFER_SEQUENCES).to_pylist()} == {moved_[0]["hop_key"]}


def counts(lake):
    """What the site counts: messages by outcome, and sendings."""
    dataset = next(each for each in TRANSFER_DATASETS if each.name == "message_transfers")
    tables_ = {"message_transfers": lake.rows(MESSAGE_TRANSFERS), "queue_aliases": rows(QUEUE_ALIASES),
               "transfer_sequences": lake.rows(TRANSFER_SEQUENCES),
               "eod_transfers": rows(EOD_TRANSFERS), "eod_sources": rows(EOD_SOURCES)}  # fmt: skip
    found = shared_sql().answer(dataset.rows_sql, tables_).to_pylist()
    names = ("sendings", "sessions", "resent_bytes", "acknowledged_sendings")
    return {
        "messages": Counter(row["outcome"] for row in found),
        "not delivered": Counter(row["not_delivered"] for row in found),
        **{name: sum(row[name] for row in found) for name in names},
    }


def test_the_site_counts_what_it_counts_without_the_change(tables):
    same, moved_ = map(counts, tables)
    assert moved_ == same
    assert (sum(same["messages"].values()), same["sendings"]) == (13, 24)


def test_a_trace_shows_one_hop_with_both_addresses(tables):
    every = tables[1].rows(MESSAGE_TRANSFERS).to_pylist()
    sent = [{**row, "refused": False} for row in every if row["message_id"].endswith("\\4100")]
    (hop,) = transfers_once_per_hop(sent)
    assert (hop["sendings"], hop["sessions"], hop["outcome"]) == (2, 2, "transferred")
    assert (hop["sender_address"], hop["other_addresses"]) == (OLD, [f"{NEW} -> {RECEIVER}"])
