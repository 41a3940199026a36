"""Packets of the peer: sizes and places of the specification, and what it reads back of what it wrote."""

import random
import struct
import uuid

import pytest

from peer.transfers import layouts as p

ME, YOU, OTHER = (uuid.UUID(int=0x1111 * n) for n in (1, 2, 3))
NAMES = (
    p.FormatName(direct="OS:hq\\private$\\orders"),
    p.FormatName(direct="TCP:10.0.0.1\\private$\\o"),
    p.FormatName(guid=OTHER),
    p.FormatName(guid=ME, number=9),
    p.FormatName(guid=YOU, number=10),
    p.FormatName(guid=OTHER, number=11),
)


def test_any_message_is_read_back():
    rng = random.Random(3)
    for _ in range(300):
        destination = rng.choice([each for each in NAMES if each.number is None or each.guid == YOU])
        admin, response = (rng.choice([None, *NAMES]) for _ in range(2))
        if response is not None and response == admin:
            response = admin
        message = p.UserMessage(
            ME, rng.getrandbits(32), destination, rng.randbytes(rng.randrange(9)),
            p.NOBODY if destination.direct else YOU, admin, response, rng.getrandbits(31),
            label=rng.choice(["", "Ä label", "x" * 249]), extension=rng.randbytes(rng.randrange(5)),
            recoverable=rng.random() < 0.5, journaling=rng.randrange(4), hops=rng.randrange(30),
            transaction=rng.choice([None, p.Transaction(2**40 + 3, 7, 6), p.Transaction(1, 1, 0, connector=OTHER)]),
            security=rng.choice([None, p.Security(b"sender", b"key", b"sign", b"cert", "Provider")]),
            traced=rng.random() < 0.3, acknowledge=rng.randrange(16),
            session_header=rng.choice([None, p.SessionHeader(1, 2, 3, 4, 5, 64)]),
        )  # fmt: skip
        message.report_queue = OTHER if message.traced else None
        packet = message.encode()
        assert p.packet_length(p.BaseHeader.decode(packet)) == len(packet)
        assert p.UserMessage.decode(packet) == message


@pytest.mark.parametrize(
    ("admin", "response", "kinds", "size"),
    [
        (None, None, (0, 0), 0),
        (NAMES[3], NAMES[3], (2, 1), 4),
        (NAMES[4], NAMES[3], (3, 2), 8),
        (NAMES[5], p.FormatName(guid=OTHER, number=12), (6, 4), 24),
        (NAMES[2], NAMES[5], (5, 6), 36),
        (NAMES[1], NAMES[2], (7, 5), 68),
    ],
)
def test_queues_of_the_user_header(admin, response, kinds, size):
    """Types and sizes by [MS-MQMQ] 2.2.19.2 and sheet 1.4."""
    plain = p.UserMessage(ME, 1, NAMES[4], queue_manager=YOU).encode()
    packet = p.UserMessage(ME, 1, NAMES[4], queue_manager=YOU, admin=admin, response=response).encode()
    (flags,) = struct.unpack_from("<I", packet, 60)
    assert (flags >> 10 & 7, flags >> 13 & 7, flags >> 16 & 7) == (3, *kinds)
    assert len(packet) - len(plain) == size


def test_headers_of_several_queues():
    """Sheet 1.12: four parts, each aligned; identifiers and counts."""
    names = (NAMES[0], NAMES[2], NAMES[4])
    data = p.SeveralQueues(names, (NAMES[3],)).encode()
    at, found = 0, []
    for _ in range(3):
        size, identifier, _, count = struct.unpack_from("<IHHI", data, at)
        found.append((identifier, count))
        at += size + -size % 4
    assert found == [(0x64, 3), (0xC8, 1), (0x12C, 0)]
    assert struct.unpack_from("<HHI", data, at) == (0x15E, 0, 0)
    assert at + 8 == len(data)


def test_order_and_final_acks_have_36_bytes_of_body():
    order = p.OrderBody(5 << 32 | 1, 7, 6).encode()
    assert (len(order), p.OrderBody.decode(order).number) == (36, 7)
    assert p.OrderBody.decode(p.OrderBody(1, 2, 1, ME, 9).encode()).message == 9
