"""Tests of the rules on reads that look at more than one call: waiting, ending, cancelling. No Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from pipeline.findings.rules.conversations import READS, SLACK_US, Busy, Conversation, Exchange, Life
from pipeline.findings.rules.registry import WHOLE, Hit, over
from udfs.codes import (
    HRESULT,
    MQ_ERROR_IO_TIMEOUT,
    MQ_ERROR_OPERATION_CANCELLED,
    MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT,
    MQ_OK,
    is_lookup,
    name_of,
)
from udfs.dcerpc.interfaces import QM, RR

_QM: Final = ((QM, 0), (QM, 9), (QM, 10))
_RR: Final = ((RR, 7), (RR, 13))
_ENDS: Final = ((RR, 9), (RR, 15))
_FOR_EVER: Final = 0xFFFFFFFF
_CLEANUP_US: Final = 300_000_000
_RPC_US: Final = 300_000_000
_ROUNDED_US: Final = 2_000_000  # what a timer of one second may be early, and the clock of the capture
_TOUCHED: Final = "no packet of the association is missing"


def _given_up(call: Exchange) -> bool:
    return call["cancelled_at"] is not None or call["orphaned_at"] is not None


def _in_flight(
    conv: Conversation, reads: tuple[tuple[str, int], ...], name: Callable[[Exchange], object]
) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield pairs of reads of one name of which the second was asked while the first surely waited."""
    last: dict[Any, Exchange] = {}
    for read in conv.of(*reads):
        key = name(read) if read.asked else None
        if key is None:
            continue
        before = last.get(key)
        if before is not None and before.done is not None and before.at < read.at < before.done:
            yield before, read
        if before is None or (read.done or read.at) >= (before.done or before.at):
            last[key] = read


@over("Q09", "both reads were read whole, the first surely waited when the second was asked")
def double_read_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a read with the number of one that still waited on the queue."""
    for before, read in _in_flight(conv, _QM, lambda call: (call["queue_handle"], call["request_id"])):
        if read.ok:
            yield Hit(read, f"dwRequestID {read['request_id']} is waiting", (before, read))


@over("Q10", "both reads were read whole, the first surely waited, or was to be ended still, when the second was asked")
def double_read(conv: Conversation) -> Iterator[Hit]:
    """A read with the number of one of the same client that waits, or (a SHOULD) that is not ended yet."""
    for before, read in _in_flight(conv, _QM, lambda call: call["request_id"]):
        yield Hit(read, f"dwRequestID {read['request_id']} is waiting", (before, read))
    lives = {life.opened["call_key"]: life for life in conv.held}
    held: dict[Any, Life] = {}
    for read in conv.of(*_QM) if conv.whole else ():
        key = (read["queue_handle"], read["request_id"])
        life = held.get(key)
        if life is not None and life.born < read.at and (life.closed is None or life.closed.at > read.at):
            actual = f"dwRequestID {read['request_id']} of a message that is not ended"
            yield Hit(read, actual, (life.opened, read), "warning")
        if read["call_key"] in lives:
            held[key] = lives[read["call_key"]]


@over("R29", "both reads were read whole, the first surely waited when the second was asked")
def double_request(conv: Conversation) -> Iterator[Hit]:
    """A request with the number of one of the same client that waits."""
    for before, read in _in_flight(conv, _RR, lambda call: call["request_id"]):
        yield Hit(read, f"dwRequestId {read['request_id']} is waiting", (before, read))


@over("R28")
def number_again(conv: Conversation) -> Iterator[Hit]:
    """A number is used again on its context before the receive that has it was ended or cancelled."""
    if not conv.whole:
        return
    for entries in conv.entries.values():
        for before, entry in itertools.pairwise(entries):
            start = before.start
            failed = start.refused or (start.done is None and _given_up(start))
            over_by = before.ended.done if before.ended is not None else start.done if failed else None
            if (before.ended is not None and over_by is None) or failed:
                continue
            if over_by is None or over_by > entry.start.at:
                used = tuple(call for call in (start, before.ended, entry.start) if call is not None)
                yield Hit(entry.start, f"dwRequestId {start['request_id']} is not ended", used)


def _timing(conv: Conversation, reads: tuple[tuple[str, int], ...]) -> Iterator[Hit]:
    """Yield reads that were answered after their time-out, or refused before it."""
    if not conv.lossless:
        return
    for read in conv.of(*reads):
        limit = read["timeout_ms"]
        if not read.asked or limit is None or limit == _FOR_EVER or _given_up(read):
            continue
        at_once = limit == 0 or read.method == (QM, 10) or (read["action"] is not None and is_lookup(read["action"]))
        due = read.at + (0 if at_once else limit * 1000) + SLACK_US
        if read.done is None:
            if read["outcome"] == "no_response" and conv.whole and conv.goes_on(due):
                yield Hit(read, f"no answer, time-out {limit} ms")
        elif read.done > due:
            yield Hit(read, f"answered after {(read.done - read.at) / 1e6:.1f} s, time-out {limit} ms")
        elif (
            read["hresult"] == MQ_ERROR_IO_TIMEOUT and read.answered and not at_once
            and read.done - read.at < limit * 1000 - _ROUNDED_US
        ):  # fmt: skip
            yield Hit(read, f"timed out after {(read.done - read.at) / 1e6:.1f} s, time-out {limit} ms")


@over("Q64", _TOUCHED)
def qm2qm_timing(conv: Conversation) -> Iterator[Hit]:
    """A read is answered after its time-out, or times out before it."""
    yield from _timing(conv, _QM)


@over("R45", _TOUCHED)
def remote_read_timing(conv: Conversation) -> Iterator[Hit]:
    """A read is answered after its time-out, or times out before it."""
    yield from _timing(conv, _RR)


def _left(conv: Conversation, close: Exchange, waiting: Busy, name: object) -> Iterator[Exchange]:
    """Yield the reads on a queue that were left pending well after its close was answered."""
    until = close.done or close.at
    for read in waiting.before(name, close.at):
        late = read.done > until + SLACK_US if read.done is not None else conv.goes_on(until) and not _given_up(read)
        if read.asked and late:
            yield read


@over("Q38", WHOLE)
def close_leaves_reads(conv: Conversation) -> Iterator[Hit]:
    """A read is pending well after its queue was closed."""
    waiting = Busy.by(conv.of(*_QM), lambda call: call["queue_handle"]) if conv.whole else None
    for close in conv.of((QM, 3)) if waiting is not None else ():
        life = conv.contexts.latest((QM, close["context_handle"]), close.at)
        if waiting is None or not close.ok or life is None:
            continue
        for number in {life.opened["queue_handle"], life.opened["open_context"]}:
            for read in _left(conv, close, waiting, number):
                yield Hit(close, f"read {read['request_id']} is pending", (read, close))


@over("R13", WHOLE)
def close_leaves_requests(conv: Conversation) -> Iterator[Hit]:
    """A read is pending well after its context was closed."""
    waiting = Busy.by(conv.of(*_RR), lambda call: call["context_handle"]) if conv.whole else None
    for close in conv.of((RR, 3)) if waiting is not None else ():
        if waiting is not None and close.ok:
            for read in _left(conv, close, waiting, close["context_handle"]):
                yield Hit(close, f"read {read['request_id']} is pending", (read, close))


def _cancels(
    conv: Conversation, cancel: tuple[str, int], reads: tuple[tuple[str, int], ...], queue: str
) -> Iterator[tuple[Exchange, list[Exchange], list[Exchange], list[Exchange]]]:
    """Yield each cancel with the reads of its queue and number that it can have met, all such before it, and those.

    of its queue that it can have met.
    """
    if not conv.of(cancel):
        return
    every = conv.of(*reads)
    by_number = Busy.by(every, lambda call: (call[queue], call["request_id"]))
    by_queue = Busy.by(every, lambda call: call[queue])
    for call in conv.of(cancel):
        if not call.asked:
            continue
        until = call.done if call.done is not None else 1 << 62
        name = (call[queue], call["request_id"])
        asked = by_number.before(name, until)
        met = [read for read in asked if read.done is None or read.done >= call.at]
        others = [read for read in by_queue.before(call[queue], until) if read.done is None or read.done >= call.at]
        yield call, met, asked, others


@over("Q43")
def cancel_of_nothing(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a cancel on a queue where nothing waited."""
    for call, _, _, others in _cancels(conv, (QM, 5), _QM, "queue_handle") if conv.whole else ():
        if call.ok and not others:
            yield Hit(call, "no read was waiting")


@over("Q44")
def cancel_of_another(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a cancel of a number that did not wait, where others did."""
    for call, met, _, others in _cancels(conv, (QM, 5), _QM, "queue_handle") if conv.whole else ():
        if call.ok and not met and others:
            yield Hit(call, f"no read {call['request_id']} was waiting", (*others[:3], call))


@over("Q45")
def cancel_of_unknown(conv: Conversation) -> Iterator[Hit]:
    """A cancel of a number that no read on the queue had."""
    for call, _, asked, _ in _cancels(conv, (QM, 5), _QM, "queue_handle") if conv.whole else ():
        if not asked:
            yield Hit(call, f"dwRequestID {call['request_id']}")


@over("R48")
def cancel_of_unknown_request(conv: Conversation) -> Iterator[Hit]:
    """A cancel of a number that no read of the context had."""
    for call, _, asked, _ in _cancels(conv, (RR, 8), _RR, "context_handle") if conv.whole else ():
        if not asked:
            yield Hit(call, f"dwRequestId {call['request_id']}")


@over("R46")
def cancel_of_done(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a cancel of what did not wait."""
    for call, met, _, _ in _cancels(conv, (RR, 8), _RR, "context_handle") if conv.whole else ():
        if call.ok and not met:
            yield Hit(call, f"request {call['request_id']} was not waiting")


def _cancelled(
    conv: Conversation, cancel: tuple[str, int], reads: tuple[tuple[str, int], ...], queue: str, good: set[int]
) -> Iterator[Hit]:
    """Yield reads that were not cancelled though MQ_OK was said to it."""
    for call, met, _, _ in _cancels(conv, cancel, reads, queue) if conv.whole else ():
        if not call.ok or len(met) != 1 or call.done is None:
            continue
        (read,) = met
        if read.done is None:
            if not _given_up(read) and conv.goes_on(call.done) and not read.peeks:
                yield Hit(call, "no answer to the read", (read, call))
        elif read.answered and read["hresult"] == MQ_OK and read.done >= call.done:
            yield Hit(call, "a message came all the same", (read, call))
        elif read.answered and read["hresult"] not in good and read.done >= call.done:
            yield Hit(call, f"the read ended with {name_of(HRESULT, read['hresult'])}", (read, call), "info")


@over("Q46")
def not_cancelled(conv: Conversation) -> Iterator[Hit]:
    """A read whose cancel was answered MQ_OK got its message, or no answer."""
    good = {MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT, MQ_ERROR_OPERATION_CANCELLED}
    yield from _cancelled(conv, (QM, 5), _QM, "queue_handle", good)


@over("R47")
def request_not_cancelled(conv: Conversation) -> Iterator[Hit]:
    """A request whose cancel was answered MQ_OK got its message, or no answer."""
    yield from _cancelled(conv, (RR, 8), _RR, "context_handle", {MQ_ERROR_OPERATION_CANCELLED})


@over("Q47")
def peek_cancelled(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to the cancel of a waiting peek, which goes on waiting."""
    for call, met, _, _ in _cancels(conv, (QM, 5), _QM, "queue_handle") if conv.whole else ():
        if call.ok and len(met) == 1 and met[0].peeks and met[0].done is None and conv.goes_on(call.done or call.at):
            yield Hit(call, "the peek is pending", (met[0], call))


@over("Q16", "the association was captured whole, and every connection of it ended with FIN")
def not_ended(conv: Conversation) -> Iterator[Hit]:
    """A message that was taken is never given back nor acknowledged."""
    if not (conv.whole and conv.orderly):
        return
    ended = {call["remote_read_handle"] for call in conv.of((QM, 1))}
    for life in conv.held:
        if life.opened.receives and life.opened["remote_read_handle"] not in ended:
            yield Hit(life.opened, "no RemoteQMEndReceive")


@over("Q18")
def end_of_unknown(conv: Conversation) -> Iterator[Hit]:
    """RemoteQMEndReceive with a handle that no read gave, a NULL one, or one that is ended."""
    for call in conv.of((QM, 1)) if conv.whole else ():
        handle = call["remote_read_handle"]
        if not call.asked:
            continue
        life = conv.held.latest(handle, call.at) if handle is not None else None
        if life is None:
            yield Hit(call, "a NULL handle" if handle is None else "a handle that no read gave")
        elif life.closed is not None and life.closed is not call and life.died_before(call.at):
            yield Hit(call, "a handle that was ended", (life.opened, life.closed, call))


@over("Q25")
def end_again_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to RemoteQMEndReceive of a message that was given back already."""
    for call in conv.of((QM, 1)) if conv.whole else ():
        life = conv.held.latest(call["remote_read_handle"], call.at) if call.ok else None
        if life is not None and life.closed is not None and life.closed is not call and life.died_before(call.at):
            yield Hit(call, "the message was ended before", (life.opened, life.closed, call))


def _pending(conv: Conversation, name: tuple[str, int], call: Exchange) -> list[Exchange]:
    """Return the receives of a name that may have been there to be ended when a call was served."""
    until = call.done if call.done is not None else 1 << 62
    found = []
    for entry in conv.entries.get(name, ()):
        start, ended = entry.start, entry.ended
        void = start.refused and start.done is not None and start.done < call.at
        over_before = ended is not None and ended is not call and ended.done is not None and ended.done < call.at
        if start.at <= until and not void and not over_before:
            found.append(start)
    return found


def _ends_of_nothing(conv: Conversation) -> Iterator[tuple[Exchange, list[Exchange]]]:
    """Yield Ends answered MQ_OK that had nothing to end, each with what else was surely there on the context."""
    if not conv.whole:
        return
    for call in conv.of(*_ENDS):
        if not call.ok or _pending(conv, (call["context_handle"], call["request_id"]), call):
            continue
        others = [start for name in conv.entries if name[0] == call["context_handle"]
                  for start in _pending(conv, name, call) if start.at < call.at]  # fmt: skip
        yield call, others


@over("R50")
def end_without_any(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to an End on a context where nothing was to be ended."""
    for call, others in _ends_of_nothing(conv):
        if not others:
            yield Hit(call, "nothing to end")


@over("R51")
def end_of_another(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to an End of a number that was not to be ended, where others were."""
    for call, others in _ends_of_nothing(conv):
        if others:
            yield Hit(call, f"no request {call['request_id']} to end", (*others[:3], call))


@over("R32", "the read and its End were read whole")
def crossed(conv: Conversation) -> Iterator[Hit]:
    """R_EndReceive of a transactional read, or R_EndTransactionalReceive of another."""
    for entries in conv.entries.values():
        for entry in entries:
            end = entry.ended
            if end is not None and end.method in _ENDS and end.asked and entry.start.asked:
                good = (RR, 9) if entry.start.method == (RR, 7) else (RR, 15)
                if end.method != good:
                    yield Hit(
                        end, f"opnum {end.method[1]} ends a read of opnum {entry.start.method[1]}", (entry.start, end)
                    )


@over("R33", "the read and its End were read whole")
def end_of_peek(conv: Conversation) -> Iterator[Hit]:
    """An End of a peek."""
    last: dict[tuple[str, int], Exchange] = {}
    for call in conv.of(*_RR, *_ENDS):
        name = (call["context_handle"], call["request_id"])
        if call.method in READS:
            last[name] = call
        elif call.asked and name in last and last[name].peeks and last[name].ok:
            yield Hit(call, "an End of a peek", (last[name], call))


def _unended(conv: Conversation, opnum: int) -> Iterator[Hit]:
    """Yield receives that got a message and were neither ended nor cancelled, when their context went."""
    if not conv.whole:
        return
    tried = {(call["context_handle"], call["request_id"]) for call in conv.of(*_ENDS, (RR, 8))}
    for name, entries in conv.entries.items():
        start = entries[-1].start
        if start.method != (RR, opnum) or not start.ok or entries[-1].ended is not None or name in tried:
            continue
        life = conv.context(start)
        close = life.closed if life is not None else None
        if close is not None and start.done is not None and close.at > start.done:
            yield Hit(start, "no End before the queue was closed", (start, close))
        elif close is None and conv.orderly:
            yield Hit(start, "no End before the connection was closed")


@over("R30", "the association was captured whole; its context was closed, or every connection ended with FIN")
def receive_not_ended(conv: Conversation) -> Iterator[Hit]:
    """A message that R_StartReceive took is neither ended nor cancelled."""
    yield from _unended(conv, 7)


@over("R31", "the association was captured whole; its context was closed, or every connection ended with FIN")
def transactional_not_ended(conv: Conversation) -> Iterator[Hit]:
    """A message that R_StartTransactionalReceive took is neither ended nor cancelled."""
    yield from _unended(conv, 13)


@over("R72", "the read and its End were read whole")
def late_end(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to an End well after the clean-up timer, which another setting of the server explains (D3)."""
    for entries in conv.entries.values():
        for entry in entries:
            end, done = entry.ended, entry.start.done
            if (
                end is not None
                and end.method in _ENDS
                and end.ok
                and done is not None
                and end.at > done + _CLEANUP_US + SLACK_US
            ):
                yield Hit(
                    end, f"MQ_OK {(end.at - done) / 1e6:.0f} s after the message came", (entry.start, end), "info"
                )


def _overdue(conv: Conversation, methods: tuple[tuple[str, int], ...]) -> Iterator[Hit]:
    for call in conv.of(*methods):
        due = call.at + _RPC_US + SLACK_US
        stopped = [at for at in (call["cancelled_at"], call["orphaned_at"]) if at is not None]
        if call["request_at"] is None or (stopped and min(stopped) <= due):
            continue
        if call.done is not None and call.done > due:
            yield Hit(call, f"answered after {(call.done - call.at) / 1e6:.0f} s")
        elif call.done is None and conv.lossless and conv.seen_until > due:
            yield Hit(call, "neither answered nor cancelled")


@over("Q34", _TOUCHED)
def open_overdue(conv: Conversation) -> Iterator[Hit]:
    """RemoteQMOpenQueue was waited for longer than 300 s."""
    yield from _overdue(conv, ((QM, 2),))


@over("R71", _TOUCHED)
def opens_overdue(conv: Conversation) -> Iterator[Hit]:
    """R_OpenQueue, R_OpenQueueForMove or R_QMEnlistRemoteTransaction was waited for longer than 300 s."""
    yield from _overdue(conv, ((RR, 2), (RR, 11), (RR, 12)))
