"""Dialogues that several tests use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcapgen import frames, rpc, sessions
from pcapgen.containers import CaptureFile, Record, pcap, pcapng
from pcapgen.conversation import (
    Flow,
    Linker,
    Script,
    Segment,
    drop_segments,
    move_segment,
    records,
    retransmit,
    segments,
)
from pcapgen.model import Dialogue, ExpectedRows, make_stub

NTLM_TOKEN = bytes.fromhex("01000000a1b2c3d4e5f6071800000000")


def remote_read_dialogue(
    flow: Flow | None = None, *, size: int = 3000, cuts: tuple[int, ...] = (1000, 1000)
) -> Dialogue:
    """RemoteRead in NDR: open, a receive with a fragmented response, its end, a refused peek, close."""
    dialogue = Dialogue(flow=flow or Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(2, make_stub(2, 64), make_stub(3, 20))
    dialogue.call(7, make_stub(7, 56), make_stub(8, size), answer_cuts=cuts)
    dialogue.call(9, make_stub(9, 28), make_stub(10, 4))
    dialogue.fail(dialogue.start(7, make_stub(11, 56)), 0x1C00001A)
    dialogue.call(3, make_stub(12, 20), make_stub(13, 24))
    return dialogue


def long_association(calls: int) -> list[Record]:
    """Return the packets of an RPC connection with calls, and its only bind in the beginning."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for number in range(calls):
        dialogue.call(7, make_stub(number, 56), make_stub(number + 100, 40))
    return records(dialogue.flow, segments(dialogue.script))


def long_session(messages: int) -> list[Record]:
    """Return the packets of a session of the binary protocol, with an acknowledgement of each message."""
    script = Script()
    for side, data in sessions.handshake():
        script.send(side, data)
    for number in range(messages):
        script.send(0, sessions.message(bytes([number % 256]) * 700, header=sessions.session_header(number)))
        script.send(1, sessions.order_ack(number + 1, header=sessions.session_header(number + 1)))
    return records(Flow(server_port=sessions.PORT), segments(script, mss=900, acks=True))


def capture_dialogue(
    dialogue: Dialogue, parts: Sequence[Segment] | None = None, link: Linker = frames.ethernet, **options: Any
) -> tuple[CaptureFile, ExpectedRows]:
    """Return a dialogue as a pcap file, and its expected rows."""
    taken = segments(dialogue.script) if parts is None else list(parts)
    file = pcap(records(dialogue.flow, taken, link), **options)
    return file, ExpectedRows(dialogue, taken, file, link=link)


def secured_dialogue() -> Dialogue:
    """Integrity-protected reads, big-endian, with an object UUID and a security trailer."""
    dialogue = Dialogue(order=">")
    dialogue.bind(auth=rpc.Auth(10, 5, b"NTLMSSP\0" + bytes(24)))
    dialogue.auth = rpc.Auth(10, 5, NTLM_TOKEN)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 2000), answer_cuts=(640, 640))
    dialogue.call(3, make_stub(3, 20), make_stub(4, 24), obj="01234567-89ab-cdef-0011-223344556677")
    return dialogue


def interleaved_dialogue() -> Dialogue:
    """NDR64 after negotiation: several calls in flight, cancel, orphaned, interleaved responses, shutdown."""
    dialogue = Dialogue()
    dialogue.bind(
        rpc.Context(0, rpc.REMOTE_READ, (rpc.NDR,)).rejected(),
        rpc.Context(1, rpc.REMOTE_READ, (rpc.NDR64,)),
        rpc.Context(2, rpc.REMOTE_READ, (rpc.FEATURES,), result=3, reason=3),
    )
    first, second = (dialogue.start(7, make_stub(n, 56), context=1) for n in (1, 2))
    one = dialogue.response_pdus(first, make_stub(3, 3000), cuts=(1000, 1000))
    two = dialogue.response_pdus(second, make_stub(4, 2000), cuts=(960,))
    for call, data in ((first, one[0]), (second, two[0]), (first, one[1]), (second, two[1]), (first, one[2])):
        dialogue.piece(call, data)
    waiting = dialogue.start(7, make_stub(5, 56), context=1)
    dialogue.cancel(waiting)
    dialogue.fail(waiting, 0x1C00000D)
    dialogue.orphan(dialogue.start(7, make_stub(6, 56), context=1))
    dialogue.bind(rpc.Context(3, rpc.QM2QM), alter=True, address=b"")
    dialogue.call(7, make_stub(7, 4), make_stub(8, 4), context=3)
    dialogue.raw(1, rpc.pdu(rpc.SHUTDOWN, 0))
    return dialogue


def agreement_captures() -> dict[str, CaptureFile]:
    """Return captures whose PDUs tshark and the reader must list identically."""
    plain, big = remote_read_dialogue(), remote_read_dialogue(size=30_000, cuts=(5816,) * 5)
    parts = segments(plain.script)
    data = [index for index, part in enumerate(parts) if part.payload]
    six = remote_read_dialogue(Flow(client="fe80::9", server="2001:db8::1"))
    lossy = segments(big.script)
    full = [index for index, part in enumerate(lossy) if len(part.payload) == 1460]
    return {
        "reads": capture_dialogue(plain)[0],
        "fragments": capture_dialogue(big)[0],
        "small-segments": capture_dialogue(plain, segments(plain.script, mss=536))[0],
        "retransmission": capture_dialogue(plain, retransmit(parts, data[3], at=data[3] + 2))[0],
        "out-of-order": capture_dialogue(plain, move_segment(parts, data[-4], data[-4] + 1))[0],
        "lost-segment": capture_dialogue(big, drop_segments(lossy, full[4]))[0],
        "mid-stream": capture_dialogue(plain, parts[5:])[0],
        "wrap": capture_dialogue(remote_read_dialogue(Flow(isn=(0xFFFFFF00, 0xFFFFFFF0))))[0],
        "ipv6-vlan": capture_dialogue(six, link=lambda packet: frames.ethernet(packet, vlans=((0x8100, 5),)))[0],
        "pcapng-big": pcapng(records(plain.flow, parts), order=">", tsresol=9),
        "secured-big-endian": capture_dialogue(secured_dialogue())[0],
        "interleaved": capture_dialogue(interleaved_dialogue())[0],
    }
