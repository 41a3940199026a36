"""Tests of the rules on what becomes of a message, as one association sees it. No Spark.

A message is known by its number in its queue: what an association learns of it from its own reads and Ends. What
other readers did in between is seen only where they share the association; so a message that comes back to another
reader is not judged here.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipeline.findings.rules.conversations import SLACK_US, Conversation, Exchange
from pipeline.findings.rules.registry import WHOLE, Hit, over
from udfs.codes import NACK_REJECTED, RR_ACK, RR_NACK
from udfs.dcerpc.interfaces import QM, RR

_READS: Final = {QM: ((QM, 0), (QM, 9), (QM, 10)), RR: ((RR, 7), (RR, 13))}
_CLEANUP_US: Final = 300_000_000
_FRONT: Final = 0  # MQ_ACTION_RECEIVE
_SEEN: Final = f"{WHOLE}; the reads return the message's number"


@dataclass(slots=True)
class _Taken:
    """A read that brought a message, and the End that was accepted for it."""

    read: Exchange
    end: Exchange | None = None

    @property
    def acked(self) -> bool:
        return self.end is not None and self.end.ok and self.end["ack"] == RR_ACK

    @property
    def nacked(self) -> bool:
        return self.end is not None and self.end.ok and self.end["ack"] == RR_NACK

    @property
    def transactional(self) -> bool:
        return self.read["transaction_id"] is not None


def _messages(conv: Conversation, protocol: str) -> dict[tuple[object, int], list[_Taken]]:
    """Return what was read, by queue and message, in order of time; nothing where a part may be missing."""
    if protocol not in conv.kept:
        conv.kept[protocol] = _sightings(conv, protocol)
    found: dict[tuple[object, int], list[_Taken]] = conv.kept[protocol]
    return found


def _sightings(conv: Conversation, protocol: str) -> dict[tuple[object, int], list[_Taken]]:
    found: defaultdict[tuple[object, int], list[_Taken]] = defaultdict(list)
    if not conv.whole:
        return found
    ends = {life.opened["call_key"]: life.closed for life in conv.held}
    for entries in conv.entries.values():
        ends |= {entry.start["call_key"]: entry.ended for entry in entries}
    for read in conv.of(*_READS[protocol]):
        queue, message = conv.queue_of(read), read.message
        if message is not None and queue is not None:
            found[queue, message].append(_Taken(read, ends.get(read["call_key"])))
    return found


def _again(conv: Conversation, protocol: str) -> Iterator[tuple[_Taken, _Taken]]:
    """Yield each message that was taken together with each later sighting of it."""
    for sightings in _messages(conv, protocol).values():
        for place, taken in enumerate(sightings):
            if taken.read.receives:
                for later in sightings[place + 1 :]:
                    yield taken, later


def _moved_back(conv: Conversation, message: int | None) -> bool:
    """Tell whether the message's number was moved by this association: it may stand elsewhere, and come back."""
    return any(call.ok and call.lookup == message for call in conv.of((RR, 10)))


def _came_back(conv: Conversation, protocol: str) -> Iterator[Hit]:
    """Yield reads that return a message which was acknowledged before they were asked."""
    for taken, later in _again(conv, protocol):
        end = taken.end
        if end is None or end.done is None or not taken.acked or taken.transactional:
            continue
        if later.read.at > end.done and not _moved_back(conv, taken.read.message):
            yield Hit(later.read, f"message {taken.read.message} was acknowledged", (taken.read, end, later.read))


def _while_held(conv: Conversation, protocol: str, *, transactional: bool) -> Iterator[Hit]:
    """Yield receives that return a message which another read surely holds."""
    for taken, later in _again(conv, protocol):
        read = taken.read
        if (
            not later.read.receives
            or read.done is None
            or later.read.done is None
            or taken.transactional != transactional
        ):
            continue
        context = conv.context(read) if protocol == RR else None
        closed = context.closed if context is not None else None
        gone = [call.at for call in (taken.end, closed) if call is not None]
        if protocol == RR:
            gone.append(read.done + _CLEANUP_US - SLACK_US)
        if read.done < later.read.at and later.read.done < min(gone, default=1 << 62):
            yield Hit(later.read, f"message {read.message} is held", (read, later.read))


@over("Q22", _SEEN)
def qm2qm_came_back(conv: Conversation) -> Iterator[Hit]:
    """A read returns a message that was acknowledged."""
    yield from _came_back(conv, QM)


@over("Q24", _SEEN)
def qm2qm_while_held(conv: Conversation) -> Iterator[Hit]:
    """A receive returns a message that another read holds."""
    yield from _while_held(conv, QM, transactional=False)


@over("R53", _SEEN)
def remote_read_came_back(conv: Conversation) -> Iterator[Hit]:
    """A read returns a message that was acknowledged, or that another read holds."""
    yield from _came_back(conv, RR)
    yield from _while_held(conv, RR, transactional=False)


@over("R54", _SEEN)
def in_transaction(conv: Conversation) -> Iterator[Hit]:
    """A receive returns a message that another read holds in a transaction."""
    yield from _while_held(conv, RR, transactional=True)


@over("Q23", _SEEN)
def passed_over(conv: Conversation) -> Iterator[Hit]:
    """The next receive passes over a message that was given back, for one behind it."""
    read_of: defaultdict[object, list[Exchange]] = defaultdict(list)
    for call in conv.of(*_READS[QM]):
        if call.ok and call["action"] == _FRONT and call.message is not None:
            read_of[conv.queue_of(call)].append(call)
    for (queue, message), sightings in _messages(conv, QM).items():
        for taken in sightings:
            end = taken.end
            if not taken.nacked or end is None or end.done is None:
                continue
            following = next((call for call in read_of[queue] if call.at > (end.done or 0)), None)
            if following is not None and following.message is not None and following.message > message:
                yield Hit(
                    following, f"message {following.message}, {message} was given back", (taken.read, end, following)
                )


@over("R52", _SEEN)
def ended_twice(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to the acknowledgement of a message that was acknowledged already."""
    for sightings in _messages(conv, RR).values():
        acked = [taken for taken in sightings if taken.acked and not taken.transactional and taken.end is not None]
        for before, taken in itertools.pairwise(acked):
            first, second = before.end, taken.end
            if first is None or second is None or first.done is None or second.at <= first.done:
                continue
            if not _moved_back(conv, taken.read.message):
                yield Hit(second, f"message {taken.read.message} was acknowledged", (before.read, first, second))


@over("Q49", _SEEN)
def outlived_purge(conv: Conversation) -> Iterator[Hit]:
    """A read returns a message that was there before a purge."""
    purges = [call for call in conv.of((QM, 6)) if call.ok and call.done is not None]
    for (queue, message), sightings in _messages(conv, QM).items() if purges else ():
        for purge in purges:
            before = [taken.read for taken in sightings if taken.read.peeks and (taken.read.done or 0) < purge.at]
            after = [taken.read for taken in sightings if taken.read.at > (purge.done or 0)]
            if purge["queue_handle"] == queue and before and after:
                yield Hit(after[0], f"message {message} was purged", (before[0], purge, after[0]))


@over("R60", _SEEN)
def moved_from_nowhere(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a move of a message that was moved away, or acknowledged, before."""
    gone: dict[tuple[object, int], Exchange] = {}
    messages = _messages(conv, RR)
    for name, sightings in messages.items():
        for taken in sightings:
            if taken.acked and not taken.transactional and taken.end is not None:
                gone[name] = taken.end
    targets = {call["move_context"]: call["queue"] for call in conv.of((RR, 11))}
    for call in conv.of((RR, 10)) if conv.whole else ():
        name = (conv.queue_of(call), call.lookup)
        before = gone.get(name)
        if not call.ok:
            continue
        if before is not None and before.done is not None and before.done < call.at:
            yield Hit(call, f"message {call.lookup} was gone", (before, call))
        gone.pop((targets.get(call["move_context"]), call.lookup), None)
        if call["transaction_id"] is None:
            gone[name] = call


def _given_back(conv: Conversation, protocol: str) -> Iterator[Hit]:
    """Yield Ends that give back a message whose packet was read without an error."""
    for sightings in _messages(conv, protocol).values():
        for taken in sightings:
            end, read = taken.end, taken.read
            if taken.nacked and end is not None and read["body_bytes"] is not None and not read["message_errors"]:
                yield Hit(end, "RR_NACK", (read, end))


over("Q68", _SEEN)(partial(_given_back, protocol=QM))
over("R55", _SEEN)(partial(_given_back, protocol=RR))


@over("R69", _SEEN)
def class_too_early(conv: Conversation) -> Iterator[Hit]:
    """R_SetUserAcknowledgementClass before the message's read, or before its End."""
    reads = [call for call in conv.of((RR, 13)) if call.message is not None] if conv.whole else []
    ends = conv.of((RR, 15))
    for call in conv.of((RR, 14)) if conv.whole else ():
        context = call["context_handle"]
        ours = [read for read in reads if read.message == call.lookup and read["context_handle"] == context]
        numbers = {read["request_id"] for read in ours}
        ended = [end for end in ends if end.at < call.at and end["context_handle"] == context]
        if not call.asked:
            continue
        if not any((read.done or read.at) <= call.at for read in ours):
            yield Hit(call, f"no R_StartTransactionalReceive of message {call.lookup}")
        elif not any(end["request_id"] in numbers for end in ended):
            yield Hit(call, f"no R_EndTransactionalReceive of message {call.lookup}", (*ours[:1], call))


@over("R70", _SEEN)
def class_of_unknown(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to R_SetUserAcknowledgementClass of a message that no read in a transaction returned."""
    known = {read.message for read in conv.of((RR, 13)) if read["transaction_id"] is not None}
    unread = any(not read.answered and not read.refused for read in conv.of((RR, 13)))
    for call in conv.of((RR, 14)) if conv.whole and not unread else ():
        if call.ok and call["acknowledgement_class"] in (0, NACK_REJECTED) and call.lookup not in known:
            yield Hit(call, f"message {call.lookup} is in no transaction")
