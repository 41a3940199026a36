"""For each rule on sessions and packets a conversation that breaks it, and a similar one that does not."""

import struct

from messages.building import Packet
from transfers.conversations import (
    ACCEPTOR,
    INITIATOR,
    Conversation,
    establish,
    message,
    parameters,
    session_ack,
)

SEQUENCE = 7 << 32 | 1


def with_bytes(raw, at, new):
    return raw[:at] + new + raw[at + len(new) :]


def handshake(asks=None, answers=None, asked=None, answered=None):
    """A handshake; what is not given is as it must be, an empty packet is left out."""
    talk = Conversation()
    said = (
        ("client", "establish_connection", asks, establish()),
        ("server", "establish_connection", answers, establish()),
        ("client", "connection_parameters", asked, parameters()),
        ("server", "connection_parameters", answered, parameters()),
    )
    for at, (side, kind, given, usual) in enumerate(said):
        if given != b"":
            talk.say(side, kind, usual if given is None else given, at / 100)
    return talk


def saying(*packets, closed=None):
    """A handshake, then packets: side, kind, bytes, seconds."""
    talk = handshake()
    for side, kind, raw, at in packets:
        talk.say(side, kind, raw, at)
    talk.closed = closed
    return talk


def one(kind, raw):
    return saying(("client", kind, raw, 1))


def acknowledged(**said):
    """The server sends an acknowledgement made field by field."""
    body = struct.pack("<QII", SEQUENCE, 3, 2) + INITIATOR.bytes_le + struct.pack("<I", 7)
    fields = {
        "number": 1, "source": ACCEPTOR, "manager": INITIATOR.bytes_le, "label": "QM Ordering Ack", "kind": 0xFF,
        "body": body, "body_type": 0, "flags": 0, "queues": ((3, {"number": 4}), (0, {}), (0, {})),
    }  # fmt: skip
    kind = "order_ack" if said.get("kind", 0xFF) == 0xFF else "final_ack"
    return saying(("server", kind, Packet(**{**fields, **said}).bytes(), 1))


def messages_then(*more, count=3, **said):
    return saying(*(("client", "user_message", message(at), at) for at in range(1, count + 1)), *more, **said)


def stories():
    ack = session_ack()
    yield "T02", one("unknown", with_bytes(ack, 18, b"\7\0")), one("session_ack", ack)
    yield "T03", one("session_ack", with_bytes(ack, 18, b"\x11\0")), one("session_ack", ack)
    yield "T04", one("session_ack", with_bytes(ack, 12, b"\1\0\0\0")), one("user_message", message(reach=1))
    yield "T05", one("session_ack", with_bytes(ack, 8, b"\x25\0\0\0")), one("session_ack", ack)
    yield "T06", handshake(establish(system=0x311)), handshake(establish(system=0x110), establish(system=0x110))
    yield "T07", handshake(answers=establish(uptime=1001)), handshake(answers=establish(system=0x710))
    other = establish(padding=b"\x5a" * 511 + b"\0")
    yield "T08", handshake(answers=other), handshake(asks=other)
    elsewhere = establish(server=INITIATOR)
    yield "T09", handshake(answers=elsewhere), handshake(answers=establish(server=INITIATOR, refuse=1), asked=b"")
    yield "T10", handshake(answered=parameters(ack_ms=30_000)), handshake(answered=parameters(window=5))
    wrong = parameters(recoverable_ms=499)
    yield "T11", handshake(asked=wrong, answered=wrong), handshake(asked=parameters(recoverable_ms=500))
    late = saying(("client", "connection_parameters", parameters(), 1))
    yield "T12", late, saying(("client", "user_message", message(), 1))
    refusal = establish(refuse=1)
    yield "T13", handshake(answers=refusal, answered=b""), handshake(answers=refusal, asked=b"", answered=b"")
    counts = [messages_then(("client", "session_ack", session_ack(user=user), 9)) for user in (4, 3)]
    yield "T14", *counts
    acks = [messages_then(("server", "session_ack", session_ack(ack=n), 9), closed=(10, "fin")) for n in (4, 3)]
    yield "T15", *acks
    falls = [
        messages_then(*(("server", "session_ack", session_ack(ack=n), 9 + at) for at, n in enumerate(each)))
        for each in ((3, 2), (2, 3))
    ]
    yield "T16", *falls
    yield "T17", messages_then(count=65), messages_then(count=64)
    yield "T18", saying(("client", "user_message", message(), 1)), saying(("client", "session_ack", session_ack(), 1))
    yield "T19", acknowledged(body_type=8), acknowledged(flags=3)
    yield "T20", acknowledged(kind=0x4000), acknowledged(kind=0x4000, user=0x20)
    numbers = [one("user_message", message(transaction=(0, SEQUENCE, 4, n), flags=0)) for n in (4, 0)]
    yield "T22", *numbers
    urgent = message(transaction=(0, SEQUENCE, 4, 3), flags=3)
    yield "T24", one("user_message", urgent), one("user_message", message(flags=3))
    hops = [one("user_message", Packet(user=user).bytes()) for user in (0x1E, 0x1D)]
    yield "T25", *hops
    again = [
        saying(
            *(("client", "user_message", message(5, transaction=(0, SEQUENCE, 4, 3), flags=0), at) for at in (1, then))
        )
        for then in (25.9, 26)
    ]
    yield "T29", *again
    limits = [one("user_message", message(kind=2, receive=receive)) for receive in (60, 0xFFFFFFFF)]
    yield "T27", *limits


STORIES = {rule: (violating, innocent) for rule, violating, innocent in stories()}
