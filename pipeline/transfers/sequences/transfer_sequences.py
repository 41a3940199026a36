"""What became of exactly-once sequences between two addresses: counts, gaps, stalls, and their condition. No Spark.

Where the contract leaves a choice:

* Packets that begin in one captured packet have one time, and are in the order of their stream.
* An order ack at most ``transfers.wait`` before the first sending counts, since that was not the first one.
* The capture end of a sequence is at most ``transfers.wait`` behind its last packet, so that old rows are final.
* A stall is measured in times as they are, also where the ends of the wait were seen by two taps.
* Sendings without a time (Simple Packet Blocks of pcapng) are in no sequence.
* Lists of gaps and stalls are null where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.transfers.sequences.sequence_events import (
    SequenceEvents,
    SequenceOrderAcks,
    TransactionalSendings,
    arrange_events,
)
from pipeline.transfers.sequences.sequence_numbers import (
    NumberGaps,
    SendingsOfHops,
    SentNumbers,
    find_gaps,
    sent_numbers,
)
from pipeline.transfers.sequences.stalls import LeftOut, Stalls, find_stalls
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NO_TIME, NONE
from udfs.columns.groups import first_of, group_bounds, last_of, take_or

_REFUSED_AFTER = 3  # sendings of the first number that waits

Texts = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class TransferSequences:
    """Facts of sequences: arrays with an element for each of them, named as in gold.transfer_sequences.

    ``NONE`` and ``NO_TIME`` stand for what is not there; ``refusals`` is ``NONE`` where bytes were
    lost. ``reasons`` are flags by reason code: what is missing. ``events`` has the row's sendings and order acks.
    """

    messages: Ints
    sendings: Ints
    sent_bytes: Ints
    resends: Ints
    resent_bytes: Ints
    first_number: Ints
    last_number: Ints
    first_sent_at: Ints
    last_sent_at: Ints
    last_packet_at: Ints
    missing_numbers: Ints
    out_of_order: Ints
    refusals: Ints
    order_acks: Ints
    acknowledged_number: Ints
    acknowledged_at: Ints
    waiting: Ints
    first_waiting_number: Ints
    condition: Texts
    reasons: dict[str, Bools]
    gaps: NumberGaps
    stalls: Stalls
    events: SequenceEvents


def describe_sequences(
    sendings: TransactionalSendings,
    acks: SequenceOrderAcks,
    *,
    stall_after_us: int,
    wait_us: int,
    hop: Ints | None = None,
    goes_elsewhere: Bools | None = None,
    left_out: Iterable[LeftOut] = (),
    several_clocks: Bools | None = None,
) -> TransferSequences:
    """Return the facts of sequences, of all that belongs to them (``sequence_events.take_in``).

    The settings are transfers.stall_after and transfers.wait, microseconds. A capture end counts until ``wait_us``
    after the last packet of a sequence: what comes later changes no row. ``hop``: as in ``find_gaps``.
    ``goes_elsewhere``: on another hop may be more of the sequence on this one, where handshakes do not tell.
    ``left_out``: as in ``find_stalls``. ``several_clocks``: packets have times of clocks that differ.
    """
    events = arrange_events(sendings, acks)
    numbers = sent_numbers(sendings, events)
    count = len(events.starts) - 1
    starts = group_bounds(sendings.sequence, count)
    again = ~np.isin(np.arange(len(sendings)), events.row[numbers.first_event])
    hop = np.arange(count) if hop is None else hop
    of_hops = SendingsOfHops.of(sendings, hop)
    gaps = find_gaps(numbers, hop)
    highest = _highest_acknowledged(events)
    waits = numbers.above(highest)
    ack_count = _count(acks.sequence, count)
    messages, sent = _count(numbers.sequence, count), np.diff(starts)
    unacknowledged = _count(sendings.sequence[~sendings.acknowledged], count) > 0
    unseen = (ack_count == 0) & (messages == sent) & ~unacknowledged
    stalls = find_stalls(events, numbers, _capture_end(sendings, events, wait_us), unseen, stall_after_us, left_out)
    waiting = np.flatnonzero(waits)
    first_waiting = first_of(numbers.sequence[waiting], waiting, count)
    reasons = _reasons(sendings, numbers, events) | {"no_response": unseen, "capture_ends": first_waiting != NONE}
    reasons["clock_step"] = stalls.unclear & ~unseen
    reasons["clocks_differ"] = np.zeros(count, np.bool_) if several_clocks is None else several_clocks
    unclear = reasons["capture_loss"] | reasons["clocks_differ"]
    if goes_elsewhere is not None:
        unclear = unclear | goes_elsewhere
        reasons["capture_begins"] |= goes_elsewhere
    of_unclear = np.isin(hop, hop[unclear])  # what one address may have sent the receiver has had from the others too
    refusals = np.where(of_unclear, NONE, of_hops.count_refusals(count))
    raises = np.flatnonzero(events.raises)
    return TransferSequences(
        messages=messages,
        sendings=sent,
        sent_bytes=_sum(sendings.sequence, sendings.length, count),
        resends=sent - messages,
        resent_bytes=_sum(sendings.sequence[again], sendings.length[again], count),
        first_number=numbers.number[numbers.starts[:-1]],
        last_number=numbers.number[numbers.starts[1:] - 1],
        first_sent_at=sendings.sent_at[starts[:-1]],
        last_sent_at=sendings.sent_at[starts[1:] - 1],
        last_packet_at=events.at[events.starts[1:] - 1],
        missing_numbers=_sum(gaps.sequence, np.where(gaps.bridged, 0, gaps.last - gaps.first + 1), count),
        out_of_order=of_hops.count_out_of_order(count),
        refusals=refusals,
        order_acks=ack_count,
        acknowledged_number=highest,
        acknowledged_at=take_or(events.at, last_of(events.sequence[raises], raises, count), NO_TIME),
        waiting=_count(numbers.sequence[waiting], count),
        first_waiting_number=take_or(numbers.number, first_waiting, NONE),
        condition=_condition(events, numbers, first_waiting, stalls, unseen),
        reasons=reasons,
        gaps=gaps,
        stalls=stalls,
        events=events,
    )


def _count(sequence: Ints, count: int) -> Ints:
    return np.bincount(sequence, minlength=count)


def _sum(sequence: Ints, values: Ints, count: int) -> Ints:
    out = np.zeros(count, np.int64)
    np.add.at(out, sequence, values)
    return out


def _highest_acknowledged(events: SequenceEvents) -> Ints:
    last = events.starts[1:] - 1
    return np.maximum(events.acked_before[last], np.where(events.is_ack[last], events.number[last], NONE))


def _capture_end(sendings: TransactionalSendings, events: SequenceEvents, wait_us: int) -> Ints:
    """Return when the captures of each sequence's connections end, not before its last packet."""
    last = events.at[events.starts[1:] - 1]
    end = last.copy()
    np.maximum.at(end, sendings.sequence, sendings.capture_end)
    return np.minimum(end, last + wait_us)


def _reasons(sendings: TransactionalSendings, numbers: SentNumbers, events: SequenceEvents) -> dict[str, Bools]:
    """Return which sequences were not seen whole, by reason code."""
    count = len(events.starts) - 1
    lowest = numbers.starts[:-1]
    previous = sendings.previous[events.row[numbers.first_event[lowest]]]
    return {
        "capture_begins": ((numbers.number[lowest] > 1) & (previous != 0))
        | (_count(sendings.sequence[sendings.begun_unseen], count) > 0),
        "capture_loss": _count(sendings.sequence[sendings.has_loss], count) > 0,
        "one_direction": _count(sendings.sequence[sendings.one_sided], count) > 0,
        "damaged": _count(sendings.sequence[~sendings.complete], count) > 0,
    }


def _condition(events: SequenceEvents, numbers: SentNumbers, first_waiting: Ints, stalls: Stalls, unseen: Bools) -> Any:  # noqa: ANN401 - NumPy does not say that texts come out
    """Return the condition of each sequence: the first that holds."""
    useless = np.flatnonzero(events.is_ack & ~events.raises)
    last_useless_ack = last_of(events.sequence[useless], useless, len(first_waiting))
    often = take_or(numbers.sendings, first_waiting, 0) >= _REFUSED_AFTER
    second = take_or(numbers.second_event, first_waiting, NONE)
    conditions = {
        "acknowledged": first_waiting == NONE,
        "refused": often & (last_useless_ack > second),
        "stalled": stalls.since != NO_TIME,
        "unknown": unseen & stalls.waits_long,
    }
    return np.select([*conditions.values()], [*conditions], "waiting")
