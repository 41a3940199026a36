"""The first SessionHeader that acknowledges a packet, and the first that says it is stored. No Spark.

A SessionHeader has 16 bits of a number ([MS-MQQB] 3.1.1.6.1): it can mean each number that is below it by less than
32768, modulo 65536. Time tells these apart. Headers are looked at in stream order, in runs in which neither times nor
numbers fall: in a run the first header that acknowledges a packet is found by binary search. Captures with one clock of
a peer that keeps to the protocol are one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE

_MODULUS: Final = 1 << 16
_HALF: Final = 1 << 15
_STORED_FLAGS: Final = 32  # bits of RecoverableMsgAckFlags


@dataclass(frozen=True, slots=True)
class SessionHeaders:
    """The SessionHeaders that one side sent, in stream order: arrays of one length. Times are microseconds."""

    sent_at: Ints
    ack: Ints
    recoverable_ack: Ints
    recoverable_ack_flags: Ints

    def __len__(self) -> int:
        return len(self.sent_at)


def ack_steps(acks: Ints) -> Ints:
    """Return by how much each AckSequenceNumber is above the one before, modulo 65536; 0 for the first."""
    steps = np.zeros(len(acks), np.int64)
    steps[1:] = np.diff(acks) % _MODULUS
    return steps


def acknowledged_by(numbers: Ints, sent_at: Ints, headers: SessionHeaders) -> Ints:
    """Return for each packet the index of the first header that acknowledges it, or ``NONE``.

    ``numbers`` and ``sent_at`` are those of the numbered packets of one side, in stream order; ``headers`` are the
    other side's. A header acknowledges packet n if it is not sent before it, (A - n) mod 65536 < 32768, and it is sent
    before the first later packet numbered n + 32768 or more.
    """
    headers, index_of = _with_times(headers)
    steps = np.cumsum(ack_steps(headers.ack))

    def find(first: int, end: int, packets: Ints, low: Ints) -> Ints:
        ahead = (numbers[packets] - headers.ack[low]) % _MODULUS  # of what the header at ``low`` acknowledges
        target = steps[low] + np.where(ahead <= _HALF, ahead, 0)
        return np.maximum(low, first + np.searchsorted(steps[first:end], target))

    return index_of(_first_headers(numbers, sent_at, headers, find))


def stored_by(numbers: Ints, sent_at: Ints, headers: SessionHeaders) -> Ints:
    """Return for each recoverable packet the index of the first header that says it is stored, or ``NONE``.

    ``numbers`` are recoverable numbers; the rest as for ``acknowledged_by``. A header says so of packet m if R > 0, k =
    (m - R) mod 65536 < 32 and bit k of its flags is set, within the same times.
    """
    headers, index_of = _with_times(headers)
    index, bit = np.nonzero(_flag_bits(headers))
    meant = (headers.recoverable_ack[index] + bit) % _MODULUS
    order = np.lexsort((index, meant))
    key = meant[order] * len(headers) + index[order]  # by number, then in stream order

    def find(_first: int, end: int, packets: Ints, low: Ints) -> Ints:
        number = numbers[packets] % _MODULUS
        place = np.searchsorted(key, number * len(headers) + low)
        found = np.append(key, -1)[place]
        return np.where((found >= 0) & (found // len(headers) == number), found % len(headers), end)

    return index_of(_first_headers(numbers, sent_at, headers, find))


def _with_times(headers: SessionHeaders) -> tuple[SessionHeaders, Callable[[Ints], Ints]]:
    """Return the headers whose times are known, the others acknowledge nothing, and what gives their old indices."""
    timed = np.flatnonzero(headers.sent_at != NO_TIME)
    if len(timed) == len(headers):
        return headers, lambda found: found
    chosen = SessionHeaders(
        headers.sent_at[timed], headers.ack[timed], headers.recoverable_ack[timed], headers.recoverable_ack_flags[timed]
    )
    indices = np.append(timed, NONE)  # NONE is the last one
    return chosen, lambda found: indices[found]


def _flag_bits(headers: SessionHeaders) -> Bools:
    """Return the flags of each header as booleans, shape (headers, 32), bit 0 first; none where R is 0."""
    flags = np.where(headers.recoverable_ack > 0, headers.recoverable_ack_flags, 0).astype("<u4")
    bits = np.unpackbits(flags.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return bits.reshape(-1, _STORED_FLAGS).astype(np.bool_)


_Find = Callable[[int, int, Ints, Ints], Ints]


def _first_headers(numbers: Ints, sent_at: Ints, headers: SessionHeaders, find: _Find) -> Ints:
    """Return for each packet the first header, in stream order, that ``find`` finds within the packet's times.

    ``find(first, end, packets, low)`` returns for packets the first of the headers from ``low`` on that means them, or
    one from ``end`` on. Headers ``first`` to ``end`` are a run; those from ``low`` on are not sent before the packets.
    """
    out = np.full(len(numbers), NONE, np.int64)
    if not len(headers) or not len(numbers):
        return out
    until = ambiguous_from(numbers, sent_at)
    falls = (np.diff(headers.sent_at) < 0) | (np.diff(headers.ack) % _MODULUS >= _HALF)
    starts = np.concatenate([[0], np.flatnonzero(falls) + 1])
    ends = np.append(starts[1:], len(headers))
    earliest = np.minimum.accumulate(headers.sent_at[::-1])[::-1]  # of this header and all behind it
    by_time = np.argsort(sent_at, kind="stable")
    by_time = by_time[sent_at[by_time] != NO_TIME]
    arrivals = np.searchsorted(sent_at[by_time], headers.sent_at[ends - 1], side="right")
    waiting, arrived = np.zeros(0, np.int64), 0
    for first, end, sent in zip(starts.tolist(), ends.tolist(), arrivals.tolist(), strict=True):
        if sent > arrived:
            waiting, arrived = np.concatenate([waiting, by_time[arrived:sent]]), sent
        waiting = waiting[until[waiting] > earliest[first]]
        if not len(waiting):
            continue
        low = first + np.searchsorted(headers.sent_at[first:end], sent_at[waiting])
        ours = waiting[low < end]
        found = find(first, end, ours, low[low < end])
        meant = found < end
        meant[meant] = headers.sent_at[found[meant]] < until[ours[meant]]
        out[ours[meant]] = found[meant]
        waiting = waiting[out[waiting] == NONE]
    return out


def ambiguous_from(numbers: Ints, sent_at: Ints) -> Ints:
    """Return the time from which 16 bits could mean a later packet: that of the first one numbered n + 32768 or more.

    ``AFTER_ALL`` where there is none behind the packet. Arrays are of one side's numbered packets, in stream order.
    """
    out = np.full(len(numbers), AFTER_ALL, np.int64)
    if not len(numbers) or numbers.max() - numbers.min() < _HALF:
        return out
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers) != 1) + 1])
    ends = np.append(starts[1:], len(numbers))
    # Runs of consecutive numbers, from the last one on. Of those behind the current one a stack keeps each that
    # reaches higher than all nearer ones: the nearest is on top. Last numbers are negative, so that they ascend.
    stack, top = np.zeros((2, len(starts)), np.int64), 0
    for first, end in zip(starts[::-1].tolist(), ends[::-1].tolist(), strict=True):
        wanted = numbers[first:end] + _HALF
        inside = wanted <= numbers[end - 1]
        place = np.where(inside, first + _HALF, 0)
        place[inside] += np.arange(end - first)[inside]
        near = np.searchsorted(stack[0, :top], -wanted, side="right") - 1
        behind = ~inside & (near >= 0)
        start = stack[1, near[behind]]
        place[behind] = start + np.maximum(wanted[behind] - numbers[start], 0)
        known = inside | behind
        out[first:end][known] = sent_at[place[known]]
        while top and stack[0, top - 1] >= -numbers[end - 1]:
            top -= 1
        stack[:, top] = -numbers[end - 1], first
        top += 1
    return out
