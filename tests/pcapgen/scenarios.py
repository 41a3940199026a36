"""Dialogues that several tests take through different roads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcapgen import frames, rpc
from pcapgen.containers import CaptureFile, pcap
from pcapgen.conversation import Flow, Linker, Segment, records, segments
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
