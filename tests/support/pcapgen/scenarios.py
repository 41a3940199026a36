"""Dialogues that several tests take through different roads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcapgen import frames, rpc
from pcapgen.containers import CaptureFile, pcap, pcapng
from pcapgen.conversation import Flow, Linker, Segment, lost, moved, records, retransmitted, segments
from pcapgen.model import Dialogue, Truth, stub_of

NTLM_TOKEN = bytes.fromhex("01000000a1b2c3d4e5f6071800000000")


def reads(flow: Flow | None = None, *, size: int = 3000, cuts: tuple[int, ...] = (1000, 1000)) -> Dialogue:
    """Open, a receive with a message in fragments, its end, a peek that is refused, close: RemoteRead in NDR."""
    dialogue = Dialogue(flow=flow or Flow())
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(2, stub_of(2, 64), stub_of(3, 20))
    dialogue.call(7, stub_of(7, 56), stub_of(8, size), answer_cuts=cuts)
    dialogue.call(9, stub_of(9, 28), stub_of(10, 4))
    dialogue.fail(dialogue.start(7, stub_of(11, 56)), 0x1C00001A)
    dialogue.call(3, stub_of(12, 20), stub_of(13, 24))
    return dialogue


def captured(
    dialogue: Dialogue, parts: Sequence[Segment] | None = None, link: Linker = frames.ethernet, **options: Any
) -> tuple[CaptureFile, Truth]:
    """The dialogue as a pcap file, and its truth."""
    taken = segments(dialogue.script) if parts is None else list(parts)
    file = pcap(records(dialogue.flow, taken, link), **options)
    return file, Truth(dialogue, taken, file, link=link)


def secured() -> Dialogue:
    """Integrity protected reads in big-endian with an object UUID and a verification trailer."""
    dialogue = Dialogue(order=">")
    dialogue.bind(auth=rpc.Auth(10, 5, b"NTLMSSP\0" + bytes(24)))
    dialogue.auth = rpc.Auth(10, 5, NTLM_TOKEN)
    dialogue.call(7, stub_of(7, 56), stub_of(8, 2000), answer_cuts=(640, 640))
    dialogue.call(3, stub_of(3, 20), stub_of(4, 24), obj="01234567-89ab-cdef-0011-223344556677")
    return dialogue


def interleaved() -> Dialogue:
    """NDR64 after negotiation; outstanding calls, a cancel, an orphan, interleaved answers, a shutdown."""
    dialogue = Dialogue()
    dialogue.bind(
        rpc.Context(0, rpc.REMOTE_READ, (rpc.NDR,)).rejected(),
        rpc.Context(1, rpc.REMOTE_READ, (rpc.NDR64,)),
        rpc.Context(2, rpc.REMOTE_READ, (rpc.FEATURES,), result=3, reason=3),
    )
    first, second = (dialogue.start(7, stub_of(n, 56), context=1) for n in (1, 2))
    one = dialogue.response_pdus(first, stub_of(3, 3000), cuts=(1000, 1000))
    two = dialogue.response_pdus(second, stub_of(4, 2000), cuts=(960,))
    for call, data in ((first, one[0]), (second, two[0]), (first, one[1]), (second, two[1]), (first, one[2])):
        dialogue.piece(call, data)
    waiting = dialogue.start(7, stub_of(5, 56), context=1)
    dialogue.cancel(waiting)
    dialogue.fail(waiting, 0x1C00000D)
    dialogue.orphan(dialogue.start(7, stub_of(6, 56), context=1))
    dialogue.bind(rpc.Context(3, rpc.QM2QM), alter=True, address=b"")
    dialogue.call(7, stub_of(7, 4), stub_of(8, 4), context=3)
    dialogue.raw(1, rpc.pdu(rpc.SHUTDOWN, 0))
    return dialogue


def agreement_captures() -> dict[str, CaptureFile]:
    """Captures whose PDUs tshark and the reader must list alike."""
    plain, big = reads(), reads(size=30_000, cuts=(5816,) * 5)
    parts = segments(plain.script)
    data = [index for index, part in enumerate(parts) if part.payload]
    six = reads(Flow(client="fe80::9", server="2001:db8::1"))
    lossy = segments(big.script)
    full = [index for index, part in enumerate(lossy) if len(part.payload) == 1460]
    return {
        "reads": captured(plain)[0],
        "fragments": captured(big)[0],
        "small-segments": captured(plain, segments(plain.script, mss=536))[0],
        "retransmission": captured(plain, retransmitted(parts, data[3], at=data[3] + 2))[0],
        "out-of-order": captured(plain, moved(parts, data[-4], data[-4] + 1))[0],
        "lost-segment": captured(big, lost(lossy, full[4]))[0],
        "mid-stream": captured(plain, parts[5:])[0],
        "wrap": captured(reads(Flow(isn=(0xFFFFFF00, 0xFFFFFFF0))))[0],
        "ipv6-vlan": captured(six, link=lambda packet: frames.ethernet(packet, vlans=((0x8100, 5),)))[0],
        "pcapng-big": pcapng(records(plain.flow, parts), order=">", tsresol=9),
        "secured-big-endian": captured(secured())[0],
        "interleaved": captured(interleaved())[0],
    }
