"""The reads of messages -> what became of each message of a queue. Plain rows in, plain rows out; no Spark.

What is believed, with [MS-MQDMPR] 3.1.7.1 (the fact sheet on RPC interfaces, 4.2 to 4.4):

* A message of a queue is known by its lookup identifier; a read without one (qm2qm opnum 0) by its message_key. An
  identifier that brings messages of different keys was used again: these are different messages. Where the queue is not
  known, what was read through one handle of one owner is taken for one queue's.
* A message is handed out when a Start is answered, and one reader holds it at a time: its receives are in the order of
  these answers. A reader that waited for long can have asked before one that got the message earlier.
* The receive that was settled last decides. An End, a cancel or the end of the reader settles it when it happens; what
  expired, failed or is still held says nothing later than when the message was handed out: a late End that was refused
  did nothing to the message.
* Of a move or purge whose answer was not captured nobody knows whether it was done: a message that seems to have stayed
  behind rests on it too.
* A move that was answered MQ_OK shows that the message was there until then, also where it was acknowledged in a
  transaction, which then was aborted; after any other acknowledgement it is of another message. A move back under the
  same identifier leaves the message there. A purge takes what is there, and what is held as soon as it is given back.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pipeline.attempts.calls import Error
from pipeline.attempts.capture_gaps import NOTHING, Unseen, hidden
from pipeline.attempts.evidence import confidence
from pipeline.attempts.timeline import Timeline

_FATE: Final = {
    "acked": "consumed", "nacked": "returned", "rundown": "returned", "expired": "returned", "rejected": "rejected",
    "in_flight": "held",
}  # fmt: skip
_GIVEN_BACK: Final = frozenset({"nacked", "rundown", "expired"})
_SETTLED_AT_ITS_END: Final = frozenset({"acked", "nacked", "rejected", "rundown", "cancelled"})
_NEVER: Final = 1 << 62
_NOT_TAKEN: Final = frozenset({"returned", "held", "purged"})  # by a reader
_THERE: Final = frozenset({"returned", "held"})


class Place(NamedTuple):
    """A queue; where that is not known, the handle that stands for it and the address of its owner."""

    queue: str | None
    server_address: str | None = None
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A row of gold.receive_attempts whose message is known."""

    attempt_key: str
    place: Place
    lookup_id: int | None
    message_key: str | None
    is_receive: bool | None
    outcome: str
    client_address: str | None = None
    server_address: str | None = None
    started_at: int | None = None
    returned_at: int | None = None
    ended_at: int | None = None
    ack_refused: bool = False
    ack_unanswered: bool = False
    reader_gone_at: int | None = None
    inferred_queue: str | None = None
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[Error, ...] = ()
    run_id: str | None = None
    gaps: bool = False

    @property
    def received(self) -> bool:
        """It was a receive: the action says so, or where that was not seen an End does."""
        return self.outcome in ("acked", "nacked", "rejected") if self.is_receive is None else self.is_receive

    @property
    def handed_out_at(self) -> int:
        """When the message was handed out."""
        times = (self.returned_at, self.started_at, self.ended_at)
        return next((time for time in times if time is not None), 0)

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands among the reads of a message."""
        return self.handed_out_at, self.attempt_key

    @property
    def settled(self) -> tuple[int, int, str]:
        """Where it stands among those that were settled."""
        ended = self.ended_at if self.outcome in _SETTLED_AT_ITS_END else None
        return self.handed_out_at if ended is None else ended, *self.order


@dataclass(frozen=True, slots=True)
class Removal:
    """A row of gold.queue_operations that was not refused: a move of one message, or a purge (no ``lookup_id``).

    ``place`` is where it was done, ``target`` the queue that a message was moved to, where that is known. ``done``: it
    was accepted; else its answer is not known.
    """

    call_key: str
    place: Place
    at: int
    lookup_id: int | None = None
    target: str | None = None
    done: bool = True
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """What a row stands for."""

    place: Place
    lookup_id: int | None
    message_key: str | None


@dataclass(slots=True)
class History:
    """What became of a message: its receives in the order in which it was handed out, its peeks, and its removal.

    ``returned``: the move that brought it back after that, which then is its last. ``asked``: moves and purges of it
    since whose answers are not known. ``unseen``: until when other readers can have been missed.
    """

    message: Message
    receives: list[Read]
    peeks: int = 0
    removal: Removal | None = None
    returned: Removal | None = None
    asked: list[Removal] = field(default_factory=list)
    lost_after_us: int = 0
    poison_after: int = 1
    unseen: Unseen = field(default_factory=dict)
    last: Read = field(init=False)

    def __post_init__(self) -> None:
        self.last = max(self.receives, key=lambda read: read.settled)

    @property
    def handed_out_at(self) -> int:
        """When it was handed out for the last time."""
        return max(read.handed_out_at for read in self.receives)

    @property
    def fate(self) -> str:
        """What became of it."""
        if self.removal is not None:
            return "purged" if self.removal.lookup_id is None else "moved"
        if self.returned is not None:
            return "returned"
        return _FATE.get(self.last.outcome, "unknown")

    @property
    def consumed_for_good(self) -> bool:
        """It was acknowledged, and not in a transaction, which may have been aborted."""
        return self.last.outcome == "acked" and "transaction_open" not in self.last.missing

    @property
    def loss_risk(self) -> str | None:
        """The first risk that holds."""
        acked = [read for read in self.receives if read.outcome == "acked"]
        gone = [read.reader_gone_at - read.ended_at for read in acked if read.reader_gone_at and read.ended_at]
        risks = {
            "read_twice": len(acked) > 1,
            "ack_failed": any(read.ack_refused for read in self.receives),
            "ack_unanswered": any(read.ack_unanswered for read in self.receives),
            "reader_lost": any(after <= self.lost_after_us for after in gone),
            "poison": sum(read.outcome in _GIVEN_BACK for read in self.receives) >= self.poison_after,
        }
        return next((risk for risk, holds in risks.items() if holds), None)

    @property
    def readers(self) -> list[str]:
        """Who received it, each once."""
        return list(dict.fromkeys(read.client_address for read in self.receives if read.client_address is not None))

    @property
    def inferred_queue(self) -> str | None:
        """The guess of the first receive that has one, where the queue is not known."""
        return next((read.inferred_queue for read in self.receives if read.inferred_queue is not None), None)

    @property
    def rests_on(self) -> Sequence[Read | Removal]:
        """The receives, and what removed the message, or may have."""
        removals = (each for each in (self.returned, self.removal) if each is not None)
        return (*self.receives, *removals, *(self.asked if self.removal is None else ()))

    @property
    def evidence(self) -> list[str]:
        """Keys of the calls that the answer rests on; what only peeked is counted and not named."""
        return list(dict.fromkeys(call for each in self.rests_on for call in each.evidence))

    @property
    def missing(self) -> list[str]:
        """What is missing of any of them; where nobody is seen to take it, or to let go, what can have hidden that."""
        codes = {code for each in self.rests_on for code in each.missing}
        not_taken = self.fate in _NOT_TAKEN
        if (not_taken or self.loss_risk == "reader_lost") and any(read.gaps for read in self.receives):
            codes.add("capture_loss")
        if not_taken:
            codes |= hidden(self.unseen, {read.server_address for read in self.receives}, self.last.settled[0])
        return sorted(codes)

    @property
    def errors(self) -> list[Error]:
        """What did not decode of any of them."""
        return list(dict.fromkeys(error for each in self.rests_on for error in each.errors))

    @property
    def confidence(self) -> str:
        """How sure the answer is, by what is missing."""
        return confidence(self.missing, guessed=self.inferred_queue is not None)


def ack_sequences(
    reads: Iterable[Read],
    removals: Iterable[Removal],
    *,
    lost_after_us: int,
    poison_after: int,
    unseen: Unseen = NOTHING,
) -> list[History]:
    """Return one history per message that was received at least once. The order of rows does not matter.

    ``reads`` are all reads of the messages that are asked about, and of those that share a message_key with them
    (``messages_of``); ``removals`` all that were or may have been done to their places; ``unseen`` until when other
    readers of their servers can have been missed.
    """
    every = list(removals)
    done, asked = _Removals(each for each in every if each.done), _Removals(each for each in every if not each.done)
    found = []
    again: dict[tuple[Place, int], int] = {}  # when an identifier was first used for the message after
    messages = messages_of(reads)
    for message, theirs in sorted(messages.items(), key=lambda item: item[1][0].order, reverse=True):
        receives = [read for read in theirs if read.received]
        used = None if message.lookup_id is None else (message.place, message.lookup_id)
        if receives:
            peeks = sum(read.is_receive is False for read in theirs)
            history = History(
                message, receives, peeks, lost_after_us=lost_after_us, poison_after=poison_after, unseen=unseen
            )
            until = _NEVER if used is None else again.get(used, _NEVER)
            done.settle(history, until)
            history.asked = asked.after(history, until)
            found.append(history)
        if used is not None:
            again[used] = theirs[0].handed_out_at
    return found[::-1]


class _Removals:
    def __init__(self, removals: Iterable[Removal]) -> None:
        self._purges = Timeline[Removal]()  # by place
        self._moves = Timeline[tuple[bool, Removal]]()  # by place and lookup identifier: out of it (true) or into it
        for each in sorted(removals, key=lambda each: (each.at, each.call_key)):
            if each.lookup_id is None:
                self._purges.add(each.place, each, each.at)
                continue
            self._moves.add((each.place, each.lookup_id), (True, each), each.at)
            if each.target is not None:
                self._moves.add((Place(each.target), each.lookup_id), (False, each), each.at)

    def after(self, history: History, until: int) -> list[Removal]:
        """Return those of the message after it was handed out for the last time, where it was left."""
        place, lookup_id = history.message.place, history.message.lookup_id
        if _FATE.get(history.last.outcome) not in _THERE:
            return []
        purge = self._purges.first_after(place, history.handed_out_at)
        moves = self._moves.between((place, lookup_id), history.handed_out_at, until)
        return [*(() if purge is None else (purge,)), *(move for _, move in moves)]

    def settle(self, history: History, until: int) -> None:
        """Say what took the message away, or brought it back, after it was handed out for the last time."""
        place, lookup_id = history.message.place, history.message.lookup_id
        since = history.handed_out_at
        there = _FATE.get(history.last.outcome) in _THERE
        moves = self._moves.between((place, lookup_id), since, until)
        if moves and not history.consumed_for_good:
            out, move = moves[-1]
            if out:
                history.removal = move
                return
            history.returned, since, there = move, move.at, True
        if there:
            history.removal = self._purges.first_after(place, since)


def messages_of(reads: Iterable[Read]) -> Mapping[Message, list[Read]]:
    """Return the reads of each message, in the order in which it was handed out.

    What a read does not tell, its lookup identifier or its message_key, is that of the read with the other one that is
    the last before, else the first after.
    """
    ordered = sorted(reads, key=lambda read: read.order)
    keys, lookups = Timeline[str](), Timeline[int]()
    for read in ordered:
        if read.lookup_id is not None and read.message_key is not None:
            keys.add((read.place, read.lookup_id), read.message_key, read.handed_out_at)
            lookups.add((read.place, read.message_key), read.lookup_id, read.handed_out_at)
    found: dict[Message, list[Read]] = defaultdict(list)
    for read in ordered:
        lookup_id, message_key = read.lookup_id, read.message_key
        if message_key is None:
            message_key = keys.nearest((read.place, lookup_id), read.handed_out_at)
        elif lookup_id is None:
            lookup_id = lookups.nearest((read.place, message_key), read.handed_out_at)
        found[Message(read.place, lookup_id, message_key)].append(read)
    return found
