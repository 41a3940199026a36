"""What a side of the binary protocol consists of, by the rules of the tables alone: a plain, slow second opinion.

It sees the whole side at once, as runs of captured octets, and knows no blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Cut:
    """Packets as (offset, length, seen octets), and stray octets as (offset, size, reason)."""

    packets: list[tuple[int, int, int]] = field(default_factory=list)
    strays: list[tuple[int, int, str]] = field(default_factory=list)


class Side:
    """Octets by stream offset; those that no capture has are missing."""

    def __init__(self, octets: dict[int, int]) -> None:
        self.octets = octets

    def run(self, at: int, most: int) -> bytes:
        """The captured octets from an offset on, up to the next hole."""
        found = bytearray()
        while len(found) < most and at + len(found) in self.octets:
            found.append(self.octets[at + len(found)])
        return bytes(found)

    def number(self, at: int, size: int) -> int | None:
        data = self.run(at, size)
        return int.from_bytes(data, "little") if len(data) == size else None


def is_step(side: Side, at: int) -> bool:
    head = side.run(at, 12)
    return (
        len(head) == 12 and head[0] == 0x10 and head[4:8] == b"LIOR"
        and 16 <= int.from_bytes(head[8:12], "little") <= 0x400000
    )  # fmt: skip


def is_valid(side: Side, at: int) -> bool:
    if not is_step(side, at):
        return False
    flags, size = side.number(at + 2, 2), side.number(at + 8, 4)
    whole = side.run(at, 64)

    def field(low: int, high: int) -> int | None:
        return int.from_bytes(whole[low:high], "little") if len(whole) >= high else None

    if flags & 8:
        reach, kind = field(12, 16), field(18, 20)
        if reach not in (None, 0xFFFFFFFF):
            return False
        if kind is None:
            return size in (36, 572, 32)
        return (size, kind & 15) in ((36, 1), (572, 2), (32, 3))
    if size < 120:
        return False
    user = field(60, 64)
    return user is None or bool(
        user >> 21 & 1 and user >> 10 & 7 in (0, 3, 5, 7) and user >> 13 & 7 in (0, 2, 3, 5, 6, 7)
    )


def length(side: Side, at: int) -> int:
    flags, size = side.number(at + 2, 2), side.number(at + 8, 4)
    if flags & 8 or not flags & 16:
        return size
    return size if is_valid(side, at + size) and not is_valid(side, at + size + 16) else size + 16


def cut(octets: dict[int, int], *, syn: bool, begin: int, end: int) -> Cut:
    """Cut a side; ``begin``, ``end``: where its stream begins and ends, as far as known."""
    side, found = Side(octets), Cut()
    in_step, reason = syn and begin in octets, "capture_begins"
    if syn and not in_step:
        reason = "capture_loss"
    at = begin

    def stray(low: int, high: int, why: str) -> None:
        if high > low:
            found.strays.append((low, high - low, why))

    while at < end:
        if at not in octets:  # a hole
            while at < end and at not in octets:
                at += 1
            in_step, reason = False, "capture_loss"
            continue
        stop = at
        while stop in octets:
            stop += 1
        if in_step:
            if stop - at < 12:
                stray(at, stop, "cut_header")
                at, in_step = stop, False
                continue
            if not is_step(side, at):
                in_step, reason = False, "not_a_packet"
                continue
        else:
            start = at
            while start < stop and not (stop - start >= 20 and is_valid(side, start) and _confirmed(side, start, stop)):
                start += 1
            stray(at, start, reason)
            at, in_step = start, start < stop
            continue
        size = length(side, at)
        found.packets.append((at, size, sum(at + index in octets for index in range(size) if at + index < end)))
        at += size
        in_step = at in octets
        if not in_step and at < end:
            reason = "capture_loss"
    if not found.packets:
        found.strays = [(low, size, "not_binary_protocol") for low, size, _ in found.strays]
    return found


def _confirmed(side: Side, at: int, stop: int) -> bool:
    behind = at + length(side, at)
    return stop - behind < 12 or is_valid(side, behind)
