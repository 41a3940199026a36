"""Message fates: what became of each message that was read from a queue. No Spark.

The rules, from [MS-MQDMPR] 3.1.7.1 (the fact sheet on RPC interfaces, 4.2 to 4.4):

* A lookup identifier identifies a message within a queue; for reads without one (qm2qm opnum 0) the message_key does.
  If one identifier returns messages with different keys it was reused, and these are different messages. If the queue
  is unknown, all reads through one handle of one owner count as reads of one queue.
* The server hands out a message when it answers a Start, and one reader holds it at a time. So receives are in the
  order of these answers. A reader that waited long may have asked before one that got the message earlier.
* The receive that was settled last decides. An End, a cancel or the end of the reader settles a receive when it
  happens. An attempt that expired, failed or still holds the message counts at the time when the message was handed
  out: a late End that was refused had no effect on the message.
* The outcome of a transaction is not on the wire, but what was acknowledged or rejected in it is locked until then. If
  the queue hands the message out again, to a receive or a peek, or moves it, the transaction was aborted, and the
  message given back. So it was if a subqueue, or the queue of a subqueue, hands the message out with a higher
  AbortCounter ([MS-MQRR] 2.2.5.3): then a move that was not captured took it there. What nobody saw again stays
  provisional.
* A move or purge without a captured answer may have been done or not. The fate of a message that seems to have stayed
  in the queue depends on it as well.
* A move answered with MQ_OK shows that the message was in the queue until then. After any other acknowledgement than in
  a transaction the move is of another message. A move back under the same identifier leaves the message in the queue. A
  purge deletes the messages in the queue, and those that a reader holds as soon as they are given back.
* A read at an unknown queue may have been at the message's own queue, before or after the others. It is a message of
  its own, and neither fate is certain (``queue_unknown``).

Times are microseconds since the epoch (UTC). Where captures have several clocks, or one that was set, events are in the
order of their times less what these clocks are ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from pipeline.attempts.calls.decoded_call import DecodeErrorFields
from pipeline.attempts.calls.timeline import Timeline
from pipeline.attempts.capture_gaps import NO_LOSS, PossibleLoss, gap_codes_after
from udfs.columns.absent import AFTER_ALL
from udfs.queues.normal_form import split_queue_suffix

_FATE: Final = {
    "acked": "consumed", "nacked": "returned", "rundown": "returned", "expired": "returned", "rejected": "rejected",
    "in_flight": "held", "aborted": "returned",
}  # fmt: skip
_GIVEN_BACK: Final = frozenset({"nacked", "rundown", "expired", "aborted"})
_SETTLED_AT_END: Final = frozenset({"acked", "nacked", "rejected", "rundown", "cancelled", "aborted"})
_SYSTEM_SUFFIXES: Final = frozenset({";journal", ";deadletter", ";deadxact"})
_TAKEN: Final = frozenset({"acked", "rejected"})
_TRANSACTION_OPEN: Final = "transaction_open"  # in ``missing``
_MAX_PROOFS: Final = 100  # reads of other queues that may show that a transaction was aborted, the first of all
_NOT_TAKEN: Final = frozenset({"returned", "held", "purged"})  # fates without a reader that took it
_IN_QUEUE: Final = frozenset({"returned", "held"})
_WORST_RISKS: Final = frozenset({"read_twice", "ack_failed"})  # those that another End of the message would not change


class QueueRef(NamedTuple):
    """A queue; if the queue is unknown, the server's address and the handle that stands for it."""

    queue: str | None
    server_address: str | None = None
    handle: str | None = None


class ReadAttempt(NamedTuple):
    """A row of gold.receive_attempts whose message is known."""

    attempt_key: str
    queue_ref: QueueRef
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
    errors: tuple[DecodeErrorFields, ...] = ()
    run_id: str | None = None
    has_capture_gaps: bool = False
    abort_count: int | None = None
    started_ahead_us: int = 0
    returned_ahead_us: int = 0
    ended_ahead_us: int = 0
    read_at_unknown_queue: bool = False  # its message may be one of which another read is at an unknown queue

    @property
    def counts_as_receive(self) -> bool:
        """Whether it is a receive: by its action, or if that was not captured, by its End."""
        return self.outcome in ("acked", "nacked", "rejected") if self.is_receive is None else self.is_receive

    @property
    def is_provisional(self) -> bool:
        """Whether it took the message in a transaction, whose outcome the wire does not show."""
        return self.outcome in _TAKEN and _TRANSACTION_OPEN in self.missing

    def as_aborted(self) -> ReadAttempt:
        """Return it as an attempt in a transaction that was aborted."""
        missing = tuple(code for code in self.missing if code != _TRANSACTION_OPEN)
        return self._replace(outcome="aborted", missing=missing)

    def proves_abort_of(self, earlier: ReadAttempt) -> bool:
        """Whether the message was handed out to this attempt after an earlier one took it in a transaction."""
        if self.returned_at is None or earlier.over_at is None:
            return False
        return earlier.is_provisional and self.handed_out_at > earlier.over_at

    def proves_abort_elsewhere(self, earlier: ReadAttempt) -> bool:
        """Whether the message came from another queue than before, and more reads or moves of it had failed."""
        if self.abort_count is None or earlier.abort_count is None or self.queue_ref == earlier.queue_ref:
            return False
        return self.proves_abort_of(earlier) and self.abort_count > earlier.abort_count

    @property
    def handed_out_at(self) -> int:
        """The time when the server handed the message out, for the order of events."""
        if self.returned_at is not None:
            return self.returned_at - self.returned_ahead_us
        return self.started_at - self.started_ahead_us if self.started_at is not None else self.over_at or 0

    @property
    def over_at(self) -> int | None:
        """The time when it ended, for the order of events; None where that is not known."""
        return None if self.ended_at is None else self.ended_at - self.ended_ahead_us

    @property
    def handout_order(self) -> tuple[int, str]:
        """Sort key of the reads of a message: the time of the handout."""
        return self.handed_out_at, self.attempt_key

    @property
    def settlement_order(self) -> tuple[int, int, str]:
        """Sort key of the settled reads of a message: the time of the settlement."""
        ended = self.over_at if self.outcome in _SETTLED_AT_END else None
        return self.handed_out_at if ended is None else ended, *self.handout_order


@dataclass(frozen=True, slots=True)
class Removal:
    """A row of gold.queue_operations that was not refused: a move of one message, or a purge (no ``lookup_id``).

    ``target_queue`` is the queue that the message was moved to, if known. ``confirmed``: the server accepted it;
    otherwise its answer is unknown.
    """

    call_key: str
    queue_ref: QueueRef
    removed_at: int
    lookup_id: int | None = None
    target_queue: str | None = None
    confirmed: bool = True
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[DecodeErrorFields, ...] = ()
    ahead_us: int = 0

    @property
    def order_at(self) -> int:
        """Its time for the order of events."""
        return self.removed_at - self.ahead_us


class MessageIdentity(NamedTuple):
    """The identity of a message: its queue and its lookup identifier, its message_key, or both."""

    queue_ref: QueueRef
    lookup_id: int | None
    message_key: str | None


@dataclass(slots=True)
class MessageHistory:
    """The reads of a message, its removal, and the fate that follows from them.

    ``receives`` are in the order of handouts. ``removal`` is the move or purge that took the message away after the
    last one; ``move_back`` the move that brought it back, if that came last. ``unconfirmed_removals`` are later moves
    and purges without a known answer. ``abort_proofs`` are reads, beside the receives, that show that a transaction was
    aborted. ``seen_in_queue`` is the other queue from which such a read got the message. ``read_at_unknown_queue``:
    another read, at an unknown queue, may be of this message. ``possible_loss`` says until when other readers may have
    been missed.
    """

    message: MessageIdentity
    receives: list[ReadAttempt]
    peeks: int = 0
    removal: Removal | None = None
    move_back: Removal | None = None
    unconfirmed_removals: list[Removal] = field(default_factory=list)
    abort_proofs: Sequence[ReadAttempt] = ()
    seen_in_queue: str | None = None
    read_at_unknown_queue: bool = False
    lost_after_us: int = 0
    poison_after: int = 1
    possible_loss: PossibleLoss = field(default_factory=dict)
    last_settled: ReadAttempt = field(init=False)

    def __post_init__(self) -> None:
        self.last_settled = max(self.receives, key=lambda read: read.settlement_order)

    @property
    def last_handed_out_at(self) -> int:
        """The time when the message was last handed out to a receive."""
        return max(read.handed_out_at for read in self.receives)

    @property
    def fate(self) -> str:
        """The fate of the message, as in gold.ack_sequences."""
        if self.removal is not None:
            return "purged" if self.removal.lookup_id is None else "moved"
        if self.move_back is not None:
            return "returned"
        if self.seen_in_queue is not None:
            return "moved"
        return _FATE.get(self.last_settled.outcome, "unknown")

    @property
    def finally_consumed(self) -> bool:
        """Whether it was acknowledged outside a transaction (a transaction may have been aborted)."""
        return self.last_settled.outcome == "acked" and not self.last_settled.is_provisional

    def abort_last_settled(self, proof: ReadAttempt | None = None) -> None:
        """Note that the transaction was aborted in which the message was taken last; ``proof`` is of another queue."""
        if proof is not None:
            self.abort_proofs, self.seen_in_queue = (*self.abort_proofs, proof), proof.queue_ref.queue
        aborted = self.last_settled.as_aborted()
        self.receives = [aborted if read is self.last_settled else read for read in self.receives]
        self.last_settled = aborted

    @property
    def loss_risk(self) -> str | None:
        """The first loss risk that applies, or None."""
        receives = self.receives
        acked = [read for read in receives if read.outcome == "acked"]
        if len(acked) > 1:
            return "read_twice"
        if any(read.ack_refused for read in receives):
            return "ack_failed"
        if any(read.ack_unanswered for read in receives):
            return "ack_unanswered"
        gone = [read.reader_gone_at - read.ended_at for read in acked if read.reader_gone_at and read.ended_at]
        if gone and min(gone) <= self.lost_after_us:
            return "reader_lost"
        given_back = len([read for read in receives if read.outcome in _GIVEN_BACK])
        return "poison" if given_back >= self.poison_after else None

    @property
    def readers(self) -> list[str]:
        """The addresses of the clients that received it, each once."""
        return list(dict.fromkeys(read.client_address for read in self.receives if read.client_address is not None))

    @property
    def inferred_queue(self) -> str | None:
        """The inferred queue of the first receive that has one."""
        return next((read.inferred_queue for read in self.receives if read.inferred_queue is not None), None)

    @property
    def supporting_rows(self) -> Sequence[ReadAttempt | Removal]:
        """The receives, what shows that they were aborted, and the operations that removed the message or may have."""
        removals = [each for each in (self.move_back, self.removal) if each is not None]
        more = self.unconfirmed_removals if self.removal is None else ()
        return (*self.receives, *self.abort_proofs, *removals, *more)

    @property
    def evidence(self) -> list[str]:
        """Keys of the calls that support the result, without those of peeks."""
        return list(dict.fromkeys(chain.from_iterable([each.evidence for each in self.supporting_rows])))

    @property
    def missing(self) -> list[str]:
        """Codes of what is missing, including what may have hidden a later reader or the close of a handle."""
        codes = set(chain.from_iterable([each.missing for each in self.supporting_rows]))
        if self.read_at_unknown_queue:
            codes.add("queue_unknown")
        not_taken = self.fate in _NOT_TAKEN
        may_be_worse = not_taken or self.loss_risk not in _WORST_RISKS  # by an End that was lost
        if may_be_worse and any(read.has_capture_gaps for read in self.receives):
            codes.add("capture_loss")
        if not_taken:
            servers = {read.server_address for read in self.receives}
            codes |= gap_codes_after(self.possible_loss, servers, self.last_settled.settlement_order[0])
        return sorted(codes)

    @property
    def errors(self) -> list[DecodeErrorFields]:
        """The decode errors of the supporting rows."""
        return list(dict.fromkeys(chain.from_iterable([each.errors for each in self.supporting_rows])))


def build_message_histories(
    reads: Iterable[ReadAttempt],
    removals: Iterable[Removal],
    *,
    lost_after_us: int,
    poison_after: int,
    possible_loss: PossibleLoss = NO_LOSS,
) -> list[MessageHistory]:
    """Return the history of each message that was received at least once. The order of the arguments does not matter.

    ``reads`` are all reads of the wanted messages and of those that share a message_key with them
    (``group_reads_by_message``). ``removals`` are all moves and purges of their queues, also unconfirmed ones.
    ``possible_loss`` says until when other readers of their servers may have been missed.
    """
    every = list(removals)
    confirmed = _RemovalIndex(each for each in every if each.confirmed)
    unconfirmed = _RemovalIndex(each for each in every if not each.confirmed)
    elsewhere = _ReturnedReads(messages := group_reads_by_message(reads))
    found = []
    reused_at: dict[tuple[QueueRef, int], int] = {}  # when an identifier was first used for the next message
    for message, message_reads in sorted(messages.items(), key=lambda item: item[1][0].handout_order, reverse=True):
        receives, abort_proofs = _receives_with_aborts(message_reads)
        identifier = None if message.lookup_id is None else (message.queue_ref, message.lookup_id)
        if receives:
            peeks = sum(read.is_receive is False for read in message_reads)
            history = MessageHistory(
                message,
                receives,
                peeks,
                abort_proofs=abort_proofs,
                read_at_unknown_queue=any(read.read_at_unknown_queue for read in message_reads),
                lost_after_us=lost_after_us,
                poison_after=poison_after,
                possible_loss=possible_loss,
            )
            until = AFTER_ALL if identifier is None else reused_at.get(identifier, AFTER_ALL)
            confirmed.apply_to(history, until)
            history.unconfirmed_removals = unconfirmed.after_last_handout(history, until)
            last = history.last_settled
            family = elsewhere.returned_after(_queue_family(message.queue_ref, message.message_key), last.over_at)
            proof = next((read for read in family if read.proves_abort_elsewhere(last)), None)
            if proof is not None:
                history.abort_last_settled(proof)
            found.append(history)
        if identifier is not None:
            reused_at[identifier] = message_reads[0].handed_out_at
    return found[::-1]


def _queue_family(queue_ref: QueueRef, message_key: str | None) -> tuple[str, str] | None:
    """Return the queue without its subqueue, and the message_key; None where one is not known.

    Journals and dead-letter queues hold copies of messages: they are no subqueues.
    """
    if queue_ref.queue is None or message_key is None:
        return None
    queue, suffix = split_queue_suffix(queue_ref.queue)
    return None if suffix in _SYSTEM_SUFFIXES else (queue, message_key)


class _ReturnedReads:
    """The reads with an AbortCounter that returned a message, by ``_queue_family``, in the order of handouts."""

    def __init__(self, messages: Mapping[MessageIdentity, Sequence[ReadAttempt]]) -> None:
        found: list[tuple[tuple[str, str], ReadAttempt]] = []
        for message, reads in messages.items():
            family = _queue_family(message.queue_ref, message.message_key)
            if family is not None:
                found += ((family, read) for read in reads if None not in (read.abort_count, read.returned_at))
        self._reads = Timeline[ReadAttempt]()
        for family, read in sorted(found, key=lambda each: each[1].handout_order):
            self._reads.add(family, read, read.handed_out_at)

    def returned_after(self, family: tuple[str, str] | None, at: int | None) -> list[ReadAttempt]:
        """Return the first reads of a family after a time, ``_MAX_PROOFS`` at most."""
        return [] if at is None else self._reads.after(family, at, _MAX_PROOFS)


def _receives_with_aborts(reads: Sequence[ReadAttempt]) -> tuple[list[ReadAttempt], list[ReadAttempt]]:
    """Return the receives of a message, those aborted that its later reads show as such, and the peeks that do.

    ``reads`` are in the order of handouts. Of each receive the first later read counts.
    """
    receives, proofs = [], []
    returned = [read for read in reads if read.returned_at is not None]  # in the order of these times
    times = [read.handed_out_at for read in returned]
    place = 0  # in ``returned``: behind the read
    for read in reads:
        place += read.returned_at is not None
        if not read.counts_as_receive:
            continue
        after = len(times) if read.over_at is None else bisect_right(times, read.over_at, lo=place)
        proof = returned[after] if after < len(times) and returned[after].proves_abort_of(read) else None
        receives.append(read if proof is None else read.as_aborted())
        if proof is not None and not proof.counts_as_receive:
            proofs.append(proof)
    return receives, list(dict.fromkeys(proofs))


class _RemovalIndex:
    """Purges by queue, and moves by queue and lookup identifier: out of the queue (true) or into it."""

    def __init__(self, removals: Iterable[Removal]) -> None:
        self._purges = Timeline[Removal]()
        self._moves = Timeline[tuple[bool, Removal]]()
        for each in sorted(removals, key=lambda each: (each.order_at, each.call_key)):
            if each.lookup_id is None:
                self._purges.add(each.queue_ref, each, each.order_at)
                continue
            self._moves.add((each.queue_ref, each.lookup_id), (True, each), each.order_at)
            if each.target_queue is not None:
                self._moves.add((QueueRef(each.target_queue), each.lookup_id), (False, each), each.order_at)

    def after_last_handout(self, history: MessageHistory, until: int) -> list[Removal]:
        """Return the removals after the last handout of a message that then stayed in the queue."""
        queue, lookup_id = history.message.queue_ref, history.message.lookup_id
        if _FATE.get(history.last_settled.outcome) not in _IN_QUEUE:
            return []
        purge = self._purges.first_after(queue, history.last_handed_out_at)
        moves = self._moves.between((queue, lookup_id), history.last_handed_out_at, until)
        return [*(() if purge is None else (purge,)), *(move for _, move in moves)]

    def apply_to(self, history: MessageHistory, until: int) -> None:
        """Set the removal or the return move of a message after its last handout."""
        queue, lookup_id = history.message.queue_ref, history.message.lookup_id
        since = history.last_handed_out_at
        in_queue = _FATE.get(history.last_settled.outcome) in _IN_QUEUE
        moves = self._moves.between((queue, lookup_id), since, until)
        if moves and not history.finally_consumed:
            over_at = history.last_settled.over_at
            if history.last_settled.is_provisional and over_at is not None and moves[0][1].order_at > over_at:
                history.abort_last_settled()
            out, move = moves[-1]
            if out:
                history.removal = move
                return
            history.move_back, since, in_queue = move, move.order_at, True
        if in_queue:
            history.removal = self._purges.first_after(queue, since)


def group_reads_by_message(reads: Iterable[ReadAttempt]) -> Mapping[MessageIdentity, list[ReadAttempt]]:
    """Return the reads of each message, in the order of handouts.

    A read without lookup identifier or without message_key takes it from the nearest read with the same other one: the
    last read before, else the first one after.
    """
    ordered = sorted(reads, key=lambda read: read.handout_order)
    keys, lookup_ids = Timeline[str](), Timeline[int]()
    for read in ordered:
        if read.lookup_id is not None and read.message_key is not None:
            keys.add((read.queue_ref, read.lookup_id), read.message_key, read.handed_out_at)
            lookup_ids.add((read.queue_ref, read.message_key), read.lookup_id, read.handed_out_at)
    found: dict[MessageIdentity, list[ReadAttempt]] = defaultdict(list)
    for read in ordered:
        lookup_id, message_key = read.lookup_id, read.message_key
        if message_key is None:
            message_key = keys.nearest((read.queue_ref, lookup_id), read.handed_out_at)
        elif lookup_id is None:
            lookup_id = lookup_ids.nearest((read.queue_ref, message_key), read.handed_out_at)
        found[MessageIdentity(read.queue_ref, lookup_id, message_key)].append(read)
    return found
