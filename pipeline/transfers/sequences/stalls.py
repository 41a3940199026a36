"""Waits of exactly-once sequences for an order ack, and stalls: those that last long. No Spark.

A wait begins when a number above all acknowledged so far is sent while nothing waits, or with an order ack that raises
the acknowledged number while a number above it was sent. It ends with the next order ack that raises it. Between two of
these the acknowledged number is the same, so that each such series of events has one wait at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pipeline.transfers.sequences.sequence_events import SequenceEvents
from pipeline.transfers.sequences.sequence_numbers import SentNumbers
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NO_TIME, NONE

MAX_STALLS: Final = 1000  # of a sequence that are described: the last ones


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits by sequence and time: arrays of one length.

    ``acknowledged``: the highest number acknowledged meanwhile, or ``NONE``. ``began`` and ``ended`` are
    places among the events, ``ended`` is ``NONE`` for a wait that goes on.
    """

    sequence: Ints
    acknowledged: Ints
    began: Ints
    ended: Ints


def find_waits(events: SequenceEvents) -> Waits:
    """Return all waits."""
    count = len(events.sequence)
    raises = events.raises
    begins = raises.copy()
    begins[events.starts[:-1]] = True
    first = np.flatnonzero(begins)
    if not count:
        return Waits(first, first, first, first)
    acknowledged = np.where(raises, events.number, events.acked_before)[first]
    above = ~events.is_ack & (events.number > events.acked_before)
    first_above = np.minimum.reduceat(np.where(above, np.arange(count), count), first)
    goes_on = raises[first] & (events.sent_before[first] > acknowledged)
    began = np.where(goes_on, first, first_above)
    following = np.append(first[1:], 0)
    ended = np.where(events.sequence[following] == events.sequence[first], following, NONE)
    ended[-1] = NONE
    found = began < count
    return Waits(*(each[found] for each in (events.sequence[first], acknowledged, began, ended)))


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stalls by sequence and time, the last ``MAX_STALLS`` of each: arrays of one length; times are microseconds.

    ``ended_at`` is ``NO_TIME`` for one that goes on. ``first_number`` and ``waiting`` are of the numbers that wait just
    before its end, ``sendings`` are their sendings meanwhile. By sequence: ``longest_us`` of all stalls, or
    ``NONE``; ``since``, when the one that goes on began, or ``NO_TIME``; ``waits_long``: a wait that goes on lasted
    long enough; ``unclear``: it is not known how long a wait lasted, and so not which is the longest.
    """

    sequence: Ints
    began_at: Ints
    ended_at: Ints
    first_number: Ints
    waiting: Ints
    sendings: Ints
    longest_us: Ints
    since: Ints
    waits_long: Bools
    unclear: Bools


class LeftOut(NamedTuple):
    """A span of time, us, that a clock left out when it was set forward, and the sequences that it timed.

    It is not certain where only another capture shows that this clock, or the other one, was set.
    """

    sequences: Ints
    since: int
    until: int
    is_certain: bool = True


def find_stalls(
    events: SequenceEvents, numbers: SentNumbers, capture_end: Ints, unseen: Bools, stall_after_us: int,
    left_out: Iterable[LeftOut] = (),
) -> Stalls:  # fmt: skip
    """Return the waits that lasted ``stall_after_us`` (transfers.stall_after) or longer; ``left_out`` did not pass.

    By sequence: ``capture_end``, until which a wait that goes on has lasted; ``unseen``: its order acks took a way that
    was not captured, so that it has no stalls.
    """
    waits = find_waits(events)
    goes_on = waits.ended == NONE
    began_at = events.at[waits.began]
    ended_at = np.where(goes_on, capture_end[waits.sequence], events.at[waits.ended])
    count = len(events.starts) - 1
    lasted, unclear = ended_at - began_at, np.zeros(count, np.bool_)
    for span in left_out:
        inside = np.minimum(ended_at, span.until) - np.maximum(began_at, span.since)
        inside = np.where(np.isin(waits.sequence, span.sequences), np.maximum(inside, 0), 0)
        lasted = lasted - inside
        unclear[waits.sequence[inside > 0]] |= not span.is_certain
    long = lasted >= stall_after_us
    stalls = np.flatnonzero(long & ~unseen[waits.sequence])
    longest = np.full(count, NONE, np.int64)
    np.maximum.at(longest, waits.sequence[stalls], lasted[stalls])
    longest[unclear] = NONE
    since = np.full(count, NO_TIME, np.int64)
    open_stalls = stalls[goes_on[stalls]]
    since[waits.sequence[open_stalls]] = began_at[open_stalls]
    waits_long = np.zeros(count, np.bool_)
    waits_long[waits.sequence[goes_on & long]] = True
    shown = stalls[last_rows(waits.sequence[stalls], MAX_STALLS)]
    details = [_waiting_numbers(events, numbers, waits, place) for place in shown.tolist()]
    first, waiting, sendings = np.array(details, np.int64).reshape(-1, 3).T
    ended_at = np.where(goes_on, NO_TIME, ended_at)
    return Stalls(
        waits.sequence[shown], began_at[shown], ended_at[shown], first, waiting, sendings, longest, since, waits_long,
        unclear,
    )  # fmt: skip


def _waiting_numbers(events: SequenceEvents, numbers: SentNumbers, waits: Waits, place: int) -> tuple[int, int, int]:
    """Return of the numbers that wait just before a wait ends the lowest, how many they are, and their sendings."""
    sequence, acknowledged = int(waits.sequence[place]), waits.acknowledged[place]
    began, ended = int(waits.began[place]), int(waits.ended[place])
    end = int(events.starts[sequence + 1]) if ended == NONE else ended
    first, last = numbers.starts[sequence], numbers.starts[sequence + 1]
    low = first + np.searchsorted(numbers.number[first:last], acknowledged, side="right")
    sent = np.flatnonzero(numbers.first_event[low:last] < end)
    meanwhile = slice(began, end)
    sendings = (~events.is_ack[meanwhile] & (events.number[meanwhile] > acknowledged)).sum()
    return int(numbers.number[low + sent[0]]), len(sent), int(sendings)


def last_rows(sequence: Ints, limit: int) -> Bools:
    """Return which rows are among the last ``limit`` of their sequence; ``sequence`` ascends."""
    return np.searchsorted(sequence, sequence, side="right") - np.arange(len(sequence)) <= limit
