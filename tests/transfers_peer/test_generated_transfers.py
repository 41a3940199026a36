"""The benchmark's generator makes packets that the peer reads, with the numbers that the protocol gives them."""

from collections import Counter

import pytest

from bench.transfers import generate_captures, generate_packets
from pcapgen.containers import NANOSECONDS, Record, pcap
from pcapgen.exchanges import recorded
from peer.transfers import layouts as p

PACKETS_TAKEN = 40_000


def packets_of(stream):
    at = 0
    while at < len(stream):
        base = p.BaseHeader.decode(stream[at:])
        length = p.packet_length(base)
        if at + length > len(stream):
            return
        yield at, base, stream[at : at + length]
        at += length


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "one.pcap"
    taken = [
        Record(now * 1000, frame)
        for (now, _, frame), _ in zip(generate_packets(slots=8), range(PACKETS_TAKEN), strict=False)
    ]
    path.write_bytes(pcap(taken, magic=NANOSECONDS).data)
    return recorded(path)


def test_streams_are_packets_with_true_counts(talks):
    """Each SessionHeader has what its side had sent, and no more than the other side had sent (3.1.5.5.5)."""
    kinds = Counter()
    for talk in talks:
        begun = {}
        for side in (0, 1):
            at = 0
            for time_ns, sender, data in talk.sends:
                if sender == side:
                    begun[side, at] = time_ns
                    at += len(data)
        sent = [[], []]
        for side in (0, 1):
            count = recoverable = acknowledged = 0
            for _, base, packet in packets_of(talk.stream(side)):
                header = None
                if base.internal:
                    kinds[packet[18]] += 1
                    header = p.SessionHeader.decode(packet[20:]) if base.session_header else None
                else:
                    message = p.UserMessage.decode(packet)
                    kinds[message.kind] += 1
                    count += 1
                    recoverable += message.recoverable
                    header = message.session_header
                    assert (
                        message.transaction is None
                    ) or message.transaction.previous == message.transaction.number - 1
                if header is not None:
                    assert (header.sent, header.recoverable_sent) == (count, recoverable)
                    assert header.ack >= acknowledged
                    acknowledged = header.ack
            sent[side] = [count, acknowledged]
        assert sent[0][1] <= sent[1][0] + 1  # the capture may end inside a packet that was acknowledged
        assert sent[1][1] <= sent[0][0] + 1
    assert set(kinds) == {1, 2, 3, "user_message", "order_ack", "final_ack"}
    assert kinds["user_message"] > 2000


def test_a_ring_has_its_size_and_is_the_same_each_time(tmp_path):
    one = generate_captures(tmp_path / "one", 2_000_000, ring=4)
    other = generate_captures(tmp_path / "other", 2_000_000, ring=4)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert [490_000 < path.stat().st_size < 600_000 for path in one] == [True] * 4
