"""What became of exactly-once sequences between two addresses: counts, gaps, stalls, and their condition. No Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.transfers.packet_numbers import NO_TIME
from pipeline.transfers.sequences.sequence_events import (
    NO_TXN_NUMBER,
    SequenceEvents,
    SequenceOrderAcks,
    TransactionalSendings,
    arrange_events,
)
from pipeline.transfers.sequences.sequence_numbers import (
    NO_EVENT,
    NumberGaps,
    SendingsOfHops,
    SentNumbers,
    find_gaps,
    sent_numbers,
)
from pipeline.transfers.sequences.stalls import LeftOut, Stalls, find_stalls
from udfs.array_types import Bools, Ints

_REFUSED_AFTER = 3  # sendings of the first number that waits

Texts = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class TransferSequences:
    """Facts of sequences: arrays with an element for each of them, named as in gold.transfer_sequences.

    ``NO_TXN_NUMBER`` and ``NO_TIME`` stand for what is not there; ``refusals`` is ``NO_TXN_NUMBER`` where bytes were
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
    starts = np.searchsorted(sendings.sequence, np.arange(count + 1))
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
    first_waiting = _first_of(numbers.sequence, waits, count)
    reasons = _reasons(sendings, numbers, events) | {"no_response": unseen, "capture_ends": first_waiting != NO_EVENT}
    reasons["clock_step"] = stalls.unclear & ~unseen
    reasons["clocks_differ"] = np.zeros(count, np.bool_) if several_clocks is None else several_clocks
    unclear = reasons["capture_loss"] | reasons["clocks_differ"]
    if goes_elsewhere is not None:
        unclear = unclear | goes_elsewhere
        reasons["capture_begins"] |= goes_elsewhere
    of_unclear = np.isin(hop, hop[unclear])  # what one address may have sent the receiver has had from the others too
    refusals = np.where(of_unclear, NO_TXN_NUMBER, of_hops.count_refusals(count))
    raises = np.flatnonzero(events.raises)
    acknowledged_at = np.full(count, NO_TIME, np.int64)
    acknowledged_at[events.sequence[raises]] = events.at[raises]  # the last one stays: they ascend
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
        acknowledged_at=acknowledged_at,
        waiting=_count(numbers.sequence[waits], count),
        first_waiting_number=np.append(numbers.number, NO_TXN_NUMBER)[first_waiting],
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


def _first_of(sequence: Ints, chosen: Bools, count: int) -> Ints:
    """Return the place of the first chosen element of each sequence, or ``NO_EVENT``."""
    out = np.full(count, NO_EVENT, np.int64)
    places = np.flatnonzero(chosen)[::-1]
    out[sequence[places]] = places
    return out


def _highest_acknowledged(events: SequenceEvents) -> Ints:
    last = events.starts[1:] - 1
    return np.maximum(events.acked_before[last], np.where(events.is_ack[last], events.number[last], NO_TXN_NUMBER))


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
    last_useless_ack = np.full(len(first_waiting), NO_EVENT, np.int64)
    useless = np.flatnonzero(events.is_ack & ~events.raises)
    last_useless_ack[events.sequence[useless]] = useless
    often = np.append(numbers.sendings, 0)[first_waiting] >= _REFUSED_AFTER
    second = np.append(numbers.second_event, NO_EVENT)[first_waiting]
    conditions = {
        "acknowledged": first_waiting == NO_EVENT,
        "refused": often & (last_useless_ack > second),
        "stalled": stalls.since != NO_TIME,
        "unknown": unseen & stalls.waits_long,
    }
    return np.select([*conditions.values()], [*conditions], "waiting")
