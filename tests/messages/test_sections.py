"""Packets in sections: truncation by the reader's limit is distinguished from damage ([MS-MQRR] 2.2.6, 3.1.4.7)."""

import pytest

from messages.building import Packet, trailing
from messages.reading import column, one
from peer.packets import Message, sid

TAIL = trailing(subqueue="s", aborts=1)


def cut(packet, most, tail=TAIL):
    """Return a packet with its body truncated as a server does: the joined sections, and their lists."""
    raw, at = packet.bytes(), packet.body_at()
    first = raw[: at + most]
    second = raw[at + len(packet.body) + packet.padding() :] + tail
    sections = [(1, len(first), at + len(packet.body))]
    return first + second, sections + [(2, len(second), len(second))] * bool(second)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("more", [{}, {"debug": bytes(16)}, {"soap": ("a", "b")}])
def test_a_body_cut_by_the_readers_limit(most, more):
    values, errors = one(*_remote(cut(Packet(**more), most)))
    assert errors == []
    assert (values["body"], values["body_bytes"], values["body_bytes_seen"]) == (b"hello"[:most], 5, most)
    assert values["body_complete"] is (most == 5)
    assert (values["subqueue"], values["abort_count"]) == ("s", 1)


def _remote(made):
    return made[0], "RemoteRead", made[1]


def test_without_headers_after_the_body_there_is_one_section():
    values, errors = one(*_remote(cut(Packet(), 2, b"")))
    assert (errors, values["body_bytes_seen"], values["body_complete"]) == ([], 2, False)


def test_the_same_bytes_without_sections_are_damage():
    raw, _ = cut(Packet(), 2, b"")
    values, errors = one(raw, "RemoteRead")
    assert errors == [("truncated", "MessagePropertiesHeader.MessageBody", Packet().body_at())]
    assert (values["body_bytes_seen"], values["body_complete"]) == (2, False)


def test_less_allocated_than_the_body_needs_is_damage():
    raw, [(kind, size, most), *rest] = cut(Packet(), 2)
    _, errors = one(raw, "RemoteRead", [(kind, size, most - 1), *rest])
    assert errors == [("truncated", "MessagePropertiesHeader.MessageBody", Packet().body_at())]


def test_a_compound_message_cut_by_the_readers_limit():
    packet = Packet(body=b"", envelope="<e/>", compound=(b"POST\r\nbody", 4, 6), trailing=TAIL)
    whole = packet.bytes()
    at = whole.index(b"POST")
    first, second = whole[: at + 8], TAIL
    values, errors = one(first + second, "RemoteRead", [(3, len(first), at + 10), (4, len(TAIL), len(TAIL))])
    assert errors == []
    assert (values["body"], values["body_bytes"], values["body_complete"]) == (b"bo", 4, False)
    assert values["subqueue"] == "s"


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ([(0, 10, 10), (2, 90, 90)], "SectionBufferType"),
        ([(1, 10, 10), (4, 90, 90)], "SectionBufferType"),
        ([(3, 10, 10), (2, 90, 90)], "SectionBufferType"),
        ([(2, 100, 100)], "SectionBufferType"),
        ([(5, 100, 100)], "SectionBufferType"),
        ([(1, 10, 10), (2, 80, 80), (2, 10, 10)], "ppPacketSections"),
    ],
)
def test_what_must_be_rejected_is(sections, field):
    values, errors = one(Packet(packet_size=100).bytes()[:100], "RemoteRead", sections)
    assert (values, errors) == ({}, [("malformed", field, 0)])


@pytest.mark.parametrize("tail", [b"", TAIL])
@pytest.mark.parametrize("allocated", [0, 9999])
def test_a_whole_packet_is_read_though_its_allocation_differs(tail, allocated):
    """SectionSize counts (doubt D28); SectionSizeAlloc is not needed to read what is there."""
    raw = Packet(trailing=tail).bytes()
    expected, _ = one(raw, "RemoteRead")
    assert one(raw, "RemoteRead", [(0, len(raw), allocated)]) == (expected, [("malformed", "SectionSizeAlloc", 0)])


def test_a_first_section_is_read_though_less_is_allocated():
    raw, [(kind, size, _), *rest] = cut(Packet(), 5)
    expected, _ = one(raw, "RemoteRead", [(kind, size, size), *rest])
    assert one(raw, "RemoteRead", [(kind, size, size - 3), *rest]) == (
        expected, [("malformed", "SectionSizeAlloc", 0)],
    )  # fmt: skip


def test_sections_are_read_though_one_says_more_than_there_is():
    raw, [first, (kind, size, most)] = cut(Packet(), 2)
    values, errors = one(raw, "RemoteRead", [first, (kind, size + 8, most + 8)])
    assert errors == [("malformed", "ppPacketSections", 0)]
    assert (values["body"], values["subqueue"]) == (b"he", "s")


def test_a_section_without_bytes_is_a_packet_that_is_cut_off():
    assert one(b"", "RemoteRead", [(0, 0, 0)]) == ({}, [("truncated", "BaseHeader", 0)])


MESSAGES = [
    Message(b"body", label="An order", number=3, sent=1_700_000_000, time_to_reach=60, priority=5),
    Message(b"x" * 99, extension=b"ext", admin="OS:c\\a", response="OS:c\\r", sent=1_700_000_001, recoverable=True),
    Message(b"y" * 7, transaction=9, sender=sid(21, 1, 2), certificate=b"cert!", sent=1_700_000_002, aborts=4, moves=2),
]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("most", [3, 4096, None])
def test_messages_of_the_peer(message, most):
    """Packets built by the test peer decode to what the sender set, in both protocols, also with truncated bodies."""
    if most is None:
        ((values, errors),) = column([message.packet()], "qm2qm")
    else:
        parts = message.sections(most, "Sub")
        sections = [(kind, len(data), allocated) for kind, allocated, data in parts]
        values, errors = one(b"".join(data for _, _, data in parts), "RemoteRead", sections)
        assert (values["subqueue"], values["abort_count"], values["move_count"]) == (
            "Sub", message.aborts, message.moves,
        )  # fmt: skip
        assert values["sender_address"] == "10.0.0.9"
    assert errors == []
    assert values["body"] == message.body[:most]
    assert values["body_complete"] is (most is None or most >= len(message.body))
    assert values.get("label") == (message.label or None)
    assert values.get("extension") == (message.extension or None)
    assert values["message_id"] == f"{message.source}\\{message.number}"
    assert values["destination_queue"] == "srv1\\private$\\orders"
    assert values.get("admin_queue") == ("c\\a" if message.admin else None)
    assert values.get("time_to_reach_queue_s") == (60 if message.time_to_reach == 60 else None)
    assert values.get("transaction_number") == message.transaction
    assert values.get("sender_id") == ("S-1-5-21-1-2" if message.sender else None)
    assert values["delivery"] == ("recoverable" if message.recoverable or message.transaction else "express")
