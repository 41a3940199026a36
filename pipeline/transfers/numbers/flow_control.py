"""How long a side's window was full, and which packets without a number are surely acknowledged. No Spark.

A side sends only while fewer packets than the window wait for a session acknowledgement ([MS-MQQB] 3.1.7.1).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.transfers.numbers.session_acknowledgements import ack_steps
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME
from udfs.columns.groups import sorted_distinct, take_or

DEFAULT_WINDOW: Final = 64  # packets, before a side has said another one
_MOST_STEPS: Final = 32_767  # counted packets of a side behind a packet; headers later than these do not count
_HALF: Final = 1 << 15


def window_full_us(
    sent_at: Ints,
    acknowledged_at: Ints,
    windows: tuple[tuple[Ints, Ints], tuple[Ints, Ints]],
    end: int,
    begin: int | None = None,
) -> int:
    """Return how long the packets in flight of a side were at least the smaller of both windows, microseconds.

    ``sent_at`` of its numbered packets, ``acknowledged_at`` the time of each one's session acknowledgement or
    ``AFTER_ALL``; ``windows``: for each side the times and values of the WindowSizes that it said, in stream order.
    Counted from the first numbered packet, or from ``begin``, to ``end``. At equal times acknowledgements and windows
    come before packets.
    """
    known = sent_at != NO_TIME
    sent_at, acknowledged_at = sent_at[known], acknowledged_at[known]
    if begin is None and not len(sent_at):
        return 0
    first = int(sent_at.min()) if begin is None else begin
    if end <= first:
        return 0
    acked = acknowledged_at[acknowledged_at != AFTER_ALL]
    times = np.concatenate([acked, sent_at])
    change = np.concatenate([np.full(len(acked), -1), np.full(len(sent_at), 1)])
    said = [latest_windows(*each) for each in windows]
    every = sorted_distinct(np.concatenate([times, [first], *(at for at, _ in said)]))
    order = np.argsort(times, kind="stable")
    waiting = np.concatenate([[0], np.cumsum(change[order])])[np.searchsorted(times[order], every, side="right")]
    window = np.minimum(*(values[np.searchsorted(at, every, side="right")] for at, values in said))
    lasted = np.diff(np.append(np.minimum(every, end), end))
    full = (waiting >= window) & (every >= first)
    return int(lasted[full].sum())


def latest_windows(sent_at: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return times, ascending, and the window before the first one, then from each on: the last said at that time.

    ``sent_at`` and ``values`` are of the WindowSizes that a side said, in stream order.
    """
    known = np.flatnonzero(sent_at != NO_TIME)
    order = known[np.argsort(sent_at[known], kind="stable")]
    return sent_at[order], np.concatenate([[DEFAULT_WINDOW], values[order]])


def surely_acknowledged(
    wanted: Bools,
    stretch: Ints,
    sent_at: Ints,
    header_sent_at: Ints,
    header_acks: Ints,
    largest_window: int,
) -> Bools:
    """Return which of the ``wanted`` packets, those without a number, are surely acknowledged.

    ``stretch`` and ``sent_at`` are of all counted packets of a side, in stream order; the headers are the other
    side's. Since S0, the other side's last header before the packet and not before its stretch, more was acknowledged
    than can have been in flight: the window and the counted packets sent since.
    """
    out = np.zeros(len(wanted), np.bool_)
    timed = header_sent_at != NO_TIME
    header_sent_at, header_acks = header_sent_at[timed], header_acks[timed]
    rows = np.flatnonzero(wanted & (sent_at != NO_TIME))
    if not len(rows) or not len(header_sent_at):
        return out
    earliest = np.minimum.accumulate(header_sent_at[::-1])[::-1]
    first = np.searchsorted(stretch, stretch[rows])  # of the packet's stretch
    base = np.searchsorted(earliest, sent_at[rows]) - 1  # S0
    there = (base >= 0) & (header_sent_at[base] >= sent_at[first])
    rows, first, base = rows[there], first[there], base[there]
    steps = ack_steps(header_acks)
    total = np.cumsum(np.where(steps < _HALF, steps, 0))
    limit = np.where(
        rows + _MOST_STEPS < len(sent_at), sent_at[np.minimum(rows + _MOST_STEPS, len(sent_at) - 1)], AFTER_ALL
    )
    last = np.searchsorted(earliest, limit, side="right") - 1  # the last header that is not later
    acknowledged = total[np.maximum(last, base)] - total[base]
    since = _sent_after(sent_at, header_sent_at[base], first, rows)
    out[rows] = acknowledged >= max(largest_window, DEFAULT_WINDOW) + since
    return out


def _sent_after(sent_at: Ints, after: Ints, first: Ints, last: Ints) -> Ints:
    """Return how many of the packets ``first`` to ``last`` were sent after a time, for each of some spans."""
    if (np.diff(sent_at) >= 0).all():
        return last + 1 - np.maximum(first, np.searchsorted(sent_at, after, side="right"))
    spans = zip(after.tolist(), first.tolist(), last.tolist(), strict=True)
    return np.array([int((sent_at[start : end + 1] > at).sum()) for at, start, end in spans], np.int64)


def times_of(headers: Ints, sent_at: Ints) -> Ints:
    """Return the times of headers by their indices; ``AFTER_ALL`` for ``NONE``."""
    return take_or(sent_at, headers, AFTER_ALL)
