"""Exactly-once sequences, computed event by event in plain Python: slow, and with nothing of the arrays' code."""

from itertools import pairwise
from typing import NamedTuple


class Sending(NamedTuple):
    """A sending, ``at`` in microseconds; ``place`` orders sendings with equal times."""

    at: int
    number: int
    previous: int
    place: int = 0
    length: int = 100
    complete: bool = True
    acknowledged: bool = True
    has_loss: bool = False
    one_sided: bool = False
    begun_unseen: bool = False
    made: int | None = None  # not before this it was sent first


class Ack(NamedTuple):
    """An order ack that names the sequence."""

    at: int
    number: int
    same_hop: bool = True


def in_order(events):
    """Sendings and order acks by time; at equal times sendings first."""
    return sorted(
        events, key=lambda e: (e.at, 1, e.number, not e.same_hop) if isinstance(e, Ack) else (e.at, 0, e.place)
    )


def chain(events, wait):
    """From the first sending on what follows one another within a time, and order acks as long before it."""
    events = in_order(events)
    first = next(place for place, event in enumerate(events) if isinstance(event, Sending))
    found = [event for event in events[:first] if events[first].at - event.at <= wait]
    last = events[first]
    for event in events[first:]:
        if event.at - last.at > wait:
            break
        found.append(event)
        last = event
    return found


def events_of_row(sendings, acks, wait):
    """The sendings and order acks of a row, in order."""
    ours = chain([*sendings, *(ack for ack in acks if ack.same_hop)], wait)
    ours_acked = [event for event in ours if isinstance(event, Ack)]
    highest = max((ack.number for ack in ours_acked), default=-1)
    others = [ack for ack in acks if not ack.same_hop and ack.number > highest]
    return chain([*sendings, *ours_acked, *others], wait) if others else ours


MESSAGE_BYTES, ACK_BYTES = 128, 128  # powers of two, not above the smallest that there are


def may_be_otherwise(sent, acked, lost, wait):
    """Whether packets may be missing that would say something else of a sequence.

    ``lost(size, since, until, back)``: whether one of so many bytes may be missing, ``back``: of those that
    acknowledge.
    """
    until = sent[-1].at + wait
    highest = max((ack.number for ack in acked), default=-1)
    waits = highest < max(each.number for each in sent)
    last = {each.number: each for each in sent}  # they are in order of time
    forward = until
    if not waits and all(each.acknowledged for each in last.values()):
        forward = max(min(ack.at for ack in acked if ack.number == highest), sent[-1].at)
    since = min(min(each.at if each.made is None else each.made, each.at) for each in sent)
    back = waits and lost(ACK_BYTES, sent[0].at, until, back=True)
    return back or lost(MESSAGE_BYTES, since, forward, back=False)


def describe(sendings, acks, losses=(), *, capture_end, stall_after, wait):
    """The row of one sequence, as far as its own events tell.

    ``losses``: what ``may_be_otherwise`` asks, of all sides and of those that were not captured.
    """
    events = events_of_row(sendings, acks, wait)
    sent = [event for event in events if isinstance(event, Sending)]
    acked = [event for event in events if isinstance(event, Ack)]
    by_number = {}
    for sending in sent:
        by_number.setdefault(sending.number, []).append(sending)
    numbers = sorted(by_number)
    again = [sending for sending in sent if sending is not by_number[sending.number][0]]
    gaps = []
    for before, behind in pairwise(numbers):
        if behind > before + 1:
            bridged = any(each.previous < before + 1 for each in by_number[behind])
            gaps.append((before + 1, behind - 1, bridged))
    out_of_order, highest = 0, -1
    seen = set()
    for sending in sent:
        out_of_order += sending.number not in seen and sending.number < highest
        seen.add(sending.number)
        highest = max(highest, sending.number)
    refusals, taken = 0, None
    for sending in sent:
        if taken is None or (sending.number > taken and not sending.previous > taken):
            taken = sending.number
        else:
            refusals += 1
    loss, one_sided = (
        [may_be_otherwise(sent, acked, lost, wait) for lost in losses]
        or [any(getattr(each, name) for each in sent) for name in ("has_loss", "one_sided")]
    )  # fmt: skip
    unseen = not acked and not again and all(each.acknowledged for each in sent)
    end = min(max(capture_end, events[-1].at), events[-1].at + wait)
    waits, highest, highest_at, useless = follow(events, end)
    waiting = [number for number in numbers if number > highest]
    stalls = [] if unseen else [each for each in waits if each["lasted"] >= stall_after]
    ongoing = [each for each in waits if each["ended_at"] is None]
    since = next((each["began_at"] for each in stalls if each["ended_at"] is None), None)
    missing = {
        "capture_begins": (numbers[0] > 1 and by_number[numbers[0]][0].previous != 0)
        or any(each.begun_unseen for each in sent),
        "capture_loss": loss,
        "one_direction": one_sided,
        "damaged": not all(each.complete for each in sent),
        "no_response": unseen,
        "capture_ends": bool(waiting),
    }
    condition = "waiting"
    if not waiting:
        condition = "acknowledged"
    elif refused(by_number[waiting[0]], events, useless):
        condition = "refused"
    elif since is not None:
        condition = "stalled"
    elif unseen and any(each["lasted"] >= stall_after for each in ongoing):
        condition = "unknown"
    return {
        "messages": len(numbers),
        "sendings": len(sent),
        "sent_bytes": sum(each.length for each in sent),
        "resends": len(again),
        "resent_bytes": sum(each.length for each in again),
        "first_number": numbers[0],
        "last_number": numbers[-1],
        "first_sent_at": sent[0].at,
        "last_sent_at": sent[-1].at,
        "gaps": gaps,
        "missing_numbers": sum(last - first + 1 for first, last, bridged in gaps if not bridged),
        "out_of_order": out_of_order,
        "refusals": None if loss else refusals,
        "order_acks": len(acked),
        "acknowledged_number": None if highest == -1 else highest,
        "acknowledged_at": highest_at,
        "waiting": len(waiting),
        "first_waiting_number": waiting[0] if waiting else None,
        "stalls": [tuple(each[name] for name in STALL) for each in stalls],
        "longest": max((each["lasted"] for each in stalls), default=None),
        "stalled_since": since,
        "condition": condition,
        "missing": sorted(name for name, holds in missing.items() if holds),
    }


STALL = ("began_at", "ended_at", "first_number", "waiting", "sendings")


def follow(events, end):
    """The waits, the highest acknowledged number, its first time, and the places of acks that raised nothing."""
    waits, highest, highest_at, useless = [], -1, None, []
    began = None  # the place of the event
    sent = set()

    def wait_ends(place, at, ended_at):
        waiting = [number for number in sent if number > highest]
        meanwhile = [each for each in events[began:place] if isinstance(each, Sending) and each.number > highest]
        waits.append(
            {
                "began_at": events[began].at,
                "ended_at": ended_at,
                "lasted": at - events[began].at,
                "first_number": min(waiting),
                "waiting": len(waiting),
                "sendings": len(meanwhile),
            }
        )

    for place, event in enumerate(events):
        if isinstance(event, Sending):
            sent.add(event.number)
            if began is None and event.number > highest:
                began = place
        elif event.number > highest:
            if began is not None:
                wait_ends(place, event.at, event.at)
            highest, highest_at = event.number, event.at
            began = place if any(number > highest for number in sent) else None
        else:
            useless.append(place)
    if began is not None:
        wait_ends(len(events), end, None)
    return waits, highest, highest_at, useless


def refused(sendings, events, useless):
    """Whether the sendings of the first number that waits show that its receiver refuses it."""
    if len(sendings) < 3:
        return False
    second = next(place for place, event in enumerate(events) if event is sendings[1])
    return any(place > second for place in useless)


def began(rows, wait):
    """For each sequence of one source, queue and hop (id, first time, abandoned) the id before it, and how it began."""
    out = []
    for identifier, at, _ in rows:
        before = [each for each in rows if at - wait <= each[1] < at]
        if not before:
            out.append((None, "first"))
            continue
        last, _, abandoned = max(before, key=lambda each: (each[1], each[0]))
        how = "abandoned" if abandoned else "emptied"
        if identifier >> 32 > last >> 32:
            how = "new_epoch"
        if identifier < last:
            how = "backwards"
        out.append((last, how))
    return out
