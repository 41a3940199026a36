"""Every script over real sockets on loopback addresses; the account is checked against the rules of the protocol.

The rules are written here once more, over what was sent: numbers, acknowledgements and outcomes do not follow from the
state machines that made them.
"""

import asyncio
from collections import Counter, defaultdict

import pytest

from peer.transfers import layouts as p
from peer.transfers import scripts
from peer.transfers.exchange import Exchange, free_ports


def play(script):
    """Play a script without a recorder; return its account."""

    async def run():
        port, ping_port = free_ports()
        exchange = Exchange(port=port, ping_port=ping_port, begin=1_795_000_000)
        async with exchange:
            await script(exchange, exchange.account.recorder_starts)
            await exchange.clock.settle()
            exchange.account.closed = True
        return exchange.account

    return asyncio.run(run())


@pytest.fixture(scope="module")
def accounts():
    return {script.__name__: play(script) for script in scripts.SCRIPTS}


NAMES = [script.__name__ for script in scripts.SCRIPTS]


def rows(account, record):
    return [line for line in account.lines() if line["record"] == record]


@pytest.mark.parametrize("name", NAMES)
def test_packets_fill_each_stream(accounts, name):
    ends = defaultdict(int)
    for row in rows(accounts[name], "packet"):
        key = row["session"], row["sent_by"]
        assert row["stream_offset"] == ends[key]
        ends[key] += row["length_bytes"]
    assert sum(ends.values()) == sum(len(packet.data) for packet in accounts[name].packets)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_acknowledgements_are_those_of_the_protocol(accounts, name):
    """Numbers count (3.1.1.4); the first SessionHeader that the sender read acknowledges and stores."""
    packets = accounts[name].packets
    counts = Counter()
    for packet in packets:
        if packet.message is None:
            assert packet.session_number is None
            continue
        key = packet.session.number, packet.side
        counts[key] += 1
        counts[(*key, "recoverable")] += packet.message.recoverable
        assert packet.session_number == counts[key]
        expected = counts[(*key, "recoverable")] if packet.message.recoverable else None
        assert packet.recoverable_number == expected
        headers = [
            each
            for each in packets[packet.number :]
            if each.session is packet.session and each.side != packet.side and each.header and each.received
        ]
        acknowledged = [each for each in headers if each.header.ack >= packet.session_number]
        assert packet.acknowledged_by is (acknowledged[0] if acknowledged else None)
        stored = [
            each
            for each in headers
            if expected is not None
            and 0 <= expected - each.header.recoverable_ack < 32
            and each.header.recoverable_ack
            and each.header.recoverable_flags >> expected - each.header.recoverable_ack & 1
        ]
        assert packet.stored_by is (stored[0] if stored else None)


@pytest.mark.parametrize("name", NAMES)
def test_session_headers_say_what_their_side_had_sent(accounts, name):
    """3.1.5.5.5: else the receiver would have closed the session."""
    for packet in accounts[name].packets:
        if packet.header is not None:
            before = [
                each
                for each in packet.session.packets
                if each.side == packet.side and each.number <= packet.number and each.session_number
            ]
            recoverable = sum(each.recoverable_number is not None for each in before)
            assert (packet.header.sent, packet.header.recoverable_sent) == (len(before), recoverable)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_queued_was_received(accounts, name):
    """A message that got into its queue was read there, and none is there that nobody sent."""
    account = accounts[name]
    assert all(each.received for each in account.packets if each.header)  # so acknowledgements are those of the wire
    read = {
        (each.message.message_id, str(each.message.destination))
        for each in account.packets
        if each.message is not None and each.received
    }
    assert account.queued <= read
    for row in rows(account, "message"):
        if row["outcome"] in {"received", "delivered"} and row["destination_queue_manager"] is None:
            assert row["queued"] or row["message_id"].endswith("\\4107")  # bridged: see the test of transactions


def test_a_later_connection_with_the_same_ports_is_another_session():
    ends = ("127.0.0.1", 50_000), ("127.0.0.2", 1801)
    account = Exchange().account
    first = account.connected(*ends)
    assert account.connected(*ends) is first
    first.closed_ns = account.began_ns
    second = account.connected(*ends)
    assert second is not first
    assert account.connected(*ends) is second


def sessions(account):
    return [(row["outcome"], row["ended"], row["by_direct_name"]) for row in rows(account, "session")]


def test_handshakes(accounts):
    assert sessions(accounts["handshakes"]) == [
        ("open", "idle", False),
        ("open", "closed", True),
        ("refused", "refused", False),
        ("open", "closed", False),
        ("refused", "refused", False),
        ("unanswered", "unopened", False),
        ("open", None, False),
        ("not_binary_protocol", "unopened", None),
        ("not_established", "unopened", None),
    ]
    pings = rows(accounts["handshakes"], "ping")
    assert [(row["cookie"], row["refused"]) for row in pings] == [(0, False), (1, True)]


def test_session_acks(accounts):
    account = accounts["session_acks"]
    assert sessions(account) == [("open", None, False), ("open", "ack_timeout", True), ("open", None, True)]
    kinds = Counter((packet.kind, packet.header is not None) for packet in account.packets)
    assert kinds["session_ack", True] >= 10
    assert kinds["user_message", True] == 2  # piggybacked
    by = Counter(packet.acknowledged_by.number for packet in account.packets if packet.acknowledged_by)
    assert max(by.values()) == 32  # by count: half of the window
    late = [each for each in account.packets if each.stored_by and each.stored_by is not each.acknowledged_by]
    assert len(late) == 3  # the slow disk
    assert {each.header.window for each in account.packets if each.header} == {1, 4, 64}
    first, second, third = rows(account, "session")
    assert 9_900 < first["client_window_full_ms"] < 10_100  # one of 1, until its acknowledgement after 10 s
    assert 7_900 < second["client_window_full_ms"] < 8_100  # 4 of 4, for 8 s
    assert third["client_window_full_ms"] == 0


def test_transactions(accounts):
    account = accounts["transactions"]
    found = {row["message_id"][-4:]: row for row in rows(account, "message")}
    assert [found[each]["final_class"] for each in ("4097", "4098", "4099")] == [0x4000, 0x4000, 0xC004]
    assert found["4105"]["final_class"] == p.NACK_NOT_TRANSACTIONAL_QUEUE
    assert found["4105"]["order_acked_by"] > found["4105"]["final_acked_by"]
    gone = found["4107"]  # expired after its only sending was lost; the order ack of the next one covers its number
    assert (gone["session_acked_by"], gone["queued"], gone["outcome"]) == (None, False, "delivered")
    last = rows(account, "sequence")[-1]
    assert (last["messages"], last["sendings"], last["resends"]) == (3, 5, 2)
    previous = [packet.transaction[1:] for packet in account.packets if packet.transaction and packet.message]
    assert previous[-2:] == [(1, 0), (3, 1)]
    assert len({row["transaction_sequence_id"] for row in rows(account, "sequence")}) == 6


def test_administration_acks_of_every_class(accounts):
    account = accounts["administration_acks"]
    classes = {packet.message.message_class for packet in account.packets if packet.message is not None}
    sheet = {2, 0x4000, *range(0x8000, 0x800D), 0xC000, 0xC001, 0xC002, 0xC003, 0xC004}  # sheet 3.1
    assert sheet <= classes
    seen = {row["arrival_class"] for row in rows(account, "message")}
    seen |= {row["receive_class"] for row in rows(account, "message")}
    assert sheet <= seen
    for packet in account.packets:  # asked for, each (T28)
        message = packet.message
        if message is None or packet.kind != "user_message" or message.correlation == bytes(20):
            continue
        asked = [
            each.message for each in account.packets if each.message and each.message.identity == message.correlation
        ]
        wanted = 2 if message.message_class == 0x4000 else 1 if message.message_class == 2 else None
        wanted = wanted or (8 if message.message_class & 0x4000 else 4)
        assert asked[0].acknowledge & wanted
        assert (message.acknowledge, message.journaling, message.privacy) == (0, 0, 0)  # T27
        assert message.time_to_reach == message.time_to_receive == p.NEVER


def test_resends(accounts):
    account = accounts["resends"]
    found = {row["message_id"][-4:]: row for row in rows(account, "message")}
    assert [len(row["sendings"]) for row in found.values()] == [2, 2, 2, 2, 2, 2, 1, 1, 2, 2, 2, 2, 2]
    assert found["4103"]["outcome"] == "expired"
    assert found["4104"]["outcome"] == "unacknowledged"  # express, and its queue manager restarted
    assert {row["sessions"] for row in found.values()} == {1, 2}
    assert Counter(row["ended"] for row in rows(account, "session"))["reset"] == 3


def test_two_hops(accounts):
    account = accounts["two_hops"]
    hops = defaultdict(list)
    for row in rows(account, "message"):
        hops[row["message_id"]].append(row)
    first = next(each for each in hops.values() if each[0]["message_kind"] == "application")
    assert [(row["hop_count"], len(row["reports"])) for row in first] == [(0, 4), (1, 2)]
    (late,) = [each for each in rows(account, "message") if each["expires_at"]]
    assert (late["arrival_class"], late["outcome"], late["receiver_address"]) == (0x8002, "rejected", "127.0.0.4")
    routed = [each for each in hops.values() if len(each) == 2 and each[0]["transactional"]]
    assert len(routed) == 4
    for one, other in routed:
        assert one["order_acked_by"] > other["order_acked_by"]
        assert one["outcome"] == other["outcome"]


def test_several_queues(accounts):
    outcomes = defaultdict(list)
    for row in rows(accounts["several_queues"], "message"):
        if row["message_kind"] == "application":
            outcomes[row["message_id"][-4:]].append(row["outcome"])
    assert outcomes == {"4097": ["received", "delivered", "rejected"], "4100": ["received", "rejected"]}


def test_stalls(accounts):
    first, stalled, refused = rows(accounts["stall"], "sequence")
    assert (first["stalls"], first["waiting"]) == ([], 0)
    (one,) = stalled["stalls"]
    assert (one["waiting"], one["ended_by"], stalled["resends"]) == (4, stalled["order_acks"][-1], 15)
    (two,) = refused["stalls"]
    assert (two["ended_by"], refused["waiting"], refused["first_waiting_number"]) == (None, 1, 3)
    assert refused["resends"] == 3
    assert len(refused["order_acks"]) >= 3  # after the second sending, none of which raises the number


def test_large_messages(accounts):
    sizes = [row["body_bytes"] for row in rows(accounts["large_messages"], "message")]
    assert sorted(sizes)[:2] == [0, 0]
    assert max(sizes) == 150_000


def test_mid_stream(accounts):
    account = accounts["mid_stream"]
    assert Counter(row["recorded"] for row in rows(account, "packet"))[False] > 20
    assert [row["outcome"] for row in rows(account, "message")][-2:] == ["in_flight", "in_flight"]
    assert sessions(account) == [("open", None, False), ("open", None, True)]
