"""Sendings and order acks of exactly-once sequences as arrays, in the order in which rules look at them. No Spark.

Sequences have numbers from 0 on, and each has a sending. Times are microseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.groups import group_bounds, group_starts, largest_so_far

NUMBERS: Final = 1 << 33
"""More than there are numbers of 32 bits."""


@dataclass(frozen=True, slots=True)
class _EventRows:
    """Arrays of one length, a row each, of sequences in ascending order."""

    sequence: Ints
    sent_at: Ints
    number: Ints

    def __len__(self) -> int:
        return len(self.sequence)

    def keep(self, rows: Bools | Ints) -> Self:
        """Return some of the rows."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class TransactionalSendings(_EventRows):
    """Sendings with a TransactionHeader, in order within each sequence.

    ``number`` and ``previous`` are its TxSequenceNumber and TxPreviousSequenceNumber, ``length`` the packet's bytes.
    ``acknowledged``: session-acknowledged, or surely so; ``has_loss``: a packet of its sequence may be missing;
    ``one_sided``: in a direction that was not captured; ``begun_unseen``: it may have been sent before, on a connection
    whose beginning was not captured; ``capture_end``: the capture end of its connection.
    """

    previous: Ints
    length: Ints
    complete: Bools
    acknowledged: Bools
    has_loss: Bools
    one_sided: Bools
    begun_unseen: Bools
    capture_end: Ints


@dataclass(frozen=True, slots=True)
class SequenceOrderAcks(_EventRows):
    """Order acks that name sequences. ``same_hop``: from the sequence's receiver to its sender."""

    same_hop: Bools


@dataclass(frozen=True, slots=True)
class SequenceEvents:
    """Sendings and order acks together, by sequence and time; at equal times sendings come before order acks.

    ``row`` is the row of its sending or order ack. ``sent_before`` and ``acked_before`` are the highest number that was
    sent, or acknowledged, before the event, or ``NONE``. ``starts``: the first event of each sequence, and the
    number of all events.
    """

    sequence: Ints
    at: Ints
    number: Ints
    is_ack: Bools
    row: Ints
    sent_before: Ints
    acked_before: Ints
    starts: Ints

    @property
    def raises(self) -> Bools:
        """Which events are order acks that raise the acknowledged number of their sequence."""
        return self.is_ack & (self.number > self.acked_before)


def arrange_events(sendings: TransactionalSendings, acks: SequenceOrderAcks) -> SequenceEvents:
    """Put sendings and order acks in order; of order acks with equal times the lower number comes first."""
    sequence = np.concatenate([sendings.sequence, acks.sequence])
    is_ack = np.arange(len(sequence)) >= len(sendings)
    row = np.concatenate([np.arange(len(sendings)), np.arange(len(acks))])
    number = np.concatenate([sendings.number, acks.number])
    at = np.concatenate([sendings.sent_at, acks.sent_at])
    order = np.lexsort((np.where(is_ack, number, row), is_ack, at, sequence))
    sequence, at, number, row = (each[order] for each in (sequence, at, number, row))
    is_ack = is_ack[order]
    starts = group_bounds(sequence, int(sequence.max(initial=-1)) + 1)
    sent = _highest_before(sequence, np.where(is_ack, NONE, number), starts)
    acked = _highest_before(sequence, np.where(is_ack, number, NONE), starts)
    return SequenceEvents(sequence, at, number, is_ack, row, sent, acked, starts)


def _highest_before(sequence: Ints, numbers: Ints, starts: Ints) -> Ints:
    """Return the highest number of the same sequence before each element."""
    before = np.full(len(numbers), NONE, np.int64)
    before[1:] = largest_so_far(sequence, numbers)[:-1]
    before[starts[:-1]] = NONE
    return before


def take_in(
    sendings: TransactionalSendings, acks: SequenceOrderAcks, wait_us: int
) -> tuple[TransactionalSendings, SequenceOrderAcks, Ints, Ints]:
    """Return what belongs to the rows of sequences, and which rows of ``sendings`` and ``acks`` that is.

    A row takes in the first sending, and what follows at most ``wait_us`` (transfers.wait) behind the packet before;
    and order acks at most as long before the first sending, which was then not the first one. Order acks of other hops
    count where their number is above that of every one of the same hop: a sequence may go on over another address.
    """
    same_hop = np.flatnonzero(acks.same_hop)
    rows, ack_rows = _follow(sendings, acks, np.arange(len(sendings)), same_hop, wait_us)
    highest = np.full(int(sendings.sequence.max(initial=-1)) + 1, NONE, np.int64)
    np.maximum.at(highest, acks.sequence[ack_rows], acks.number[ack_rows])
    others = np.flatnonzero(~acks.same_hop & (acks.number > highest[acks.sequence]))
    if len(others):
        both = np.sort(np.concatenate([ack_rows, others]))
        rows, ack_rows = _follow(sendings, acks, np.arange(len(sendings)), both, wait_us)
    return sendings.keep(rows), acks.keep(ack_rows), rows, ack_rows


def _follow(
    sendings: TransactionalSendings, acks: SequenceOrderAcks, rows: Ints, ack_rows: Ints, wait_us: int
) -> tuple[Ints, Ints]:
    """Return which of some rows belong to the row of their sequence by their times alone."""
    events = arrange_events(sendings.keep(rows), acks.keep(ack_rows))
    sent = np.flatnonzero(~events.is_ack)
    first = sent[group_starts(events.sequence[sent])]
    behind_first = np.arange(len(events.at)) - first[events.sequence]
    gap = np.zeros(len(events.at), np.bool_)
    gap[1:] = np.diff(events.at) > wait_us
    gap[first] = True
    chain = np.cumsum(gap)
    before = (behind_first < 0) & (events.at[first][events.sequence] - events.at <= wait_us)
    inside = before | (behind_first >= 0) & (chain == chain[first][events.sequence])
    kept, kept_acks = (np.sort(events.row[inside & (events.is_ack == is_ack)]) for is_ack in (False, True))
    return rows[kept], ack_rows[kept_acks]
