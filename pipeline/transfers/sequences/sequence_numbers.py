"""The numbers of exactly-once sequences: how often sent, gaps, and what a receiver has to refuse. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from pipeline.transfers.sequences.sequence_events import NUMBERS, SequenceEvents, TransactionalSendings
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.groups import expand_ranges, group_bounds, group_starts


@dataclass(frozen=True, slots=True)
class SentNumbers:
    """The distinct numbers that were sent, by sequence and number: arrays of one length.

    ``least_previous`` is the lowest TxPreviousSequenceNumber of its sendings; ``first_event`` and ``second_event`` are
    the places of its first two sendings among the events, ``NONE`` without a second one. ``starts``: the first
    number of each sequence, and how many numbers there are.
    """

    sequence: Ints
    number: Ints
    sendings: Ints
    least_previous: Ints
    first_event: Ints
    second_event: Ints
    starts: Ints

    def above(self, highest: Ints) -> Bools:
        """Return which numbers are above one number of their sequence; ``highest`` is by sequence."""
        return self.number > highest[self.sequence]


def sent_numbers(sendings: TransactionalSendings, events: SequenceEvents) -> SentNumbers:
    """Return the distinct numbers that were sent."""
    sent = np.flatnonzero(~events.is_ack)
    order = sent[np.lexsort((events.number[sent], events.sequence[sent]))]  # stable: of one number in order of time
    sequence, number = events.sequence[order], events.number[order]
    first = group_starts(sequence, number)
    count = np.diff(np.append(first, len(order)))
    previous = np.minimum.reduceat(sendings.previous[events.row[order]], first) if len(first) else first
    second = np.where(count > 1, np.append(order, NONE)[first + 1], NONE)
    starts = group_bounds(sequence[first], len(events.starts) - 1)
    return SentNumbers(sequence[first], number[first], count, previous, order[first], second, starts)


@dataclass(frozen=True, slots=True)
class NumberGaps:
    """Ranges of numbers within those of a sequence that its hop did not send: arrays of one length.

    ``bridged``: a sending of the number behind the gap names a previous number below the gap, so that its receiver does
    not wait for what is between ([MS-MQQB] 3.1.5.8.6).
    """

    sequence: Ints
    first: Ints
    last: Ints
    bridged: Bools


def find_gaps(numbers: SentNumbers, hop: Ints) -> NumberGaps:
    """Return the gaps in the numbers of sequences, by sequence and number.

    ``hop``: a number by sequence, equal for those that are one sequence on one hop, by several addresses. What one of
    them sent is no gap in the others.
    """
    place = hop[numbers.sequence] * NUMBERS + numbers.number
    sent, of = np.unique(place, return_inverse=True)
    previous = np.full(len(sent), NUMBERS, np.int64)
    np.minimum.at(previous, of, numbers.least_previous)
    ends = np.flatnonzero((np.diff(sent // NUMBERS) == 0) & (np.diff(sent) > 1))
    first, last = sent[ends] + 1, sent[ends + 1] - 1
    bridged = previous[ends + 1] < first % NUMBERS
    lowest, highest = place[numbers.starts[:-1]], place[numbers.starts[1:] - 1]
    begin, end = np.searchsorted(first, lowest), np.searchsorted(last, highest)
    sequence = np.repeat(np.arange(len(begin)), end - begin)
    found = expand_ranges(begin, end - begin)
    return NumberGaps(sequence, first[found] % NUMBERS, last[found] % NUMBERS, bridged[found])


@dataclass(frozen=True, slots=True)
class SendingsOfHops:
    """Sendings of one sequence on one hop together, by whatever addresses, in order of time: arrays of one length.

    ``sequence`` is the sequence of each, ``starts`` the first of each hop, and the number of all.
    """

    sequence: Ints
    number: Ints
    previous: Ints
    starts: Ints

    @classmethod
    def of(cls, sendings: TransactionalSendings, hop: Ints) -> Self:
        """Return the sendings of sequences by ``hop`` (as in ``find_gaps``)."""
        of_hop = hop[sendings.sequence]
        order = np.lexsort((sendings.sent_at, of_hop))  # stable: at equal times as they are
        starts = np.append(group_starts(of_hop[order]), len(order))
        return cls(sendings.sequence[order], sendings.number[order], sendings.previous[order], starts)

    def count_out_of_order(self, count: int) -> Ints:
        """Return by sequence, of ``count``, how many first sendings are of a number below one that was sent before."""
        place = np.repeat(np.arange(len(self.starts) - 1) * NUMBERS, np.diff(self.starts)) + self.number
        is_first = np.zeros(len(place), np.bool_)
        is_first[np.unique(place, return_index=True)[1]] = True
        below = place < np.maximum.accumulate(place)  # all numbers of a hop are above those of the hop before
        return np.bincount(self.sequence[is_first & below], minlength=count)

    def count_refusals(self, count: int) -> Ints:
        """Return by sequence, of ``count``, how many sendings a receiver has to refuse ([MS-MQQB] 3.1.5.8.6).

        The first sending of a hop is taken. A later one is taken if its number is above that of the last one taken, and
        its previous number is not.
        """
        sequences, numbers, previous = self.sequence.tolist(), self.number.tolist(), self.previous.tolist()
        refused = [0] * count
        for first, end in pairwise(self.starts.tolist()):
            taken = NONE
            for place in range(first, end):
                if taken == NONE or previous[place] <= taken < numbers[place]:
                    taken = numbers[place]
                else:
                    refused[sequences[place]] += 1
        return np.array(refused, np.int64)
