"""Rules on handles, cursors and transactions: who opened them, and whether they are still open. No Spark."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import (
    QM2QM_READS,
    REMOTE_READ_READS,
    AssociationHistory,
    CapturedCall,
    HandleLifetime,
    ServerHistory,
    all_certainly_after,
    clock_slack_us,
)
from pipeline.findings.columns.cursors import open_cursors
from pipeline.findings.columns.exchanges import ended_by, last_before, receive_before
from pipeline.findings.columns.waiting_reads import waiting_at_context_closes
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import (
    ViolatingCalls,
    Violation,
    association_call_rule,
    association_rule,
    server_rule,
    violation_of_either,
)
from udfs.codes import AUTH_LEVEL_NONE, PEEK_ACCESS, RECEIVE_ACCESS
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NONE
from udfs.columns.groups import Groups, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

_METHODS_BY_NUMBER: Final = (*QM2QM_READS, (QM2QM_NAME, 4), (QM2QM_NAME, 5), (QM2QM_NAME, 6))
_METHODS_BY_CONTEXT: Final = tuple((REMOTE_READ_NAME, opnum) for opnum in (4, 5, 6, 7, 8, 9, 10, 13, 14, 15))
_CLOSE_SESSION: Final = (QM2QM_NAME, 3)
_OPEN_CONTEXT: Final = ((REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11))
_NEWER_METHODS: Final = tuple((REMOTE_READ_NAME, opnum) for opnum in range(10, 16))
XP, _2003 = (5, 1), (5, 2)  # server versions
_VISTA: Final = 6  # major version
_PRIVACY_LEVEL: Final = 6
_CLOSED_BY_FIN: Final = "the association was captured completely, and every connection of it ended with FIN"
_NOT_OPENED_BY_OTHERS: Final = "no other captured association opened it"
_QUEUE_OPEN_CAPTURED: Final = "R_QMOpenRemoteQueue of its queue was captured"
_OPEN_CAPTURED: Final = "the R_OpenQueue of its context was captured completely"


def _is_on_unopened_queue(calls: AssociationCalls) -> Mask:
    """Tell which judged calls are on a queue number that no session of any association had open, 0 included."""
    unopened = calls.of(*_METHODS_BY_NUMBER) & calls.has("queue_handle") & ~calls.queue_may_be_open
    return unopened & ~calls.look_up(unopened, ["queue_handle"], _opened_by_another_association, default=False)


def _opened_by_another_association(history: AssociationHistory, number: int) -> bool:
    """Tell whether another association opened a queue number during this one, or before."""
    opens = history.server.session_opens_before(number, history.openings_cutoff)
    return any(call["connection_id"] not in history.connections for call in opens)


@association_call_rule("Q11", *QM2QM_READS, needs="ok", complete=True, precondition=_NOT_OPENED_BY_OTHERS)
def read_accepted_on_unopened_queue(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read from a queue that is not open was answered MQ_OK."""
    yield ViolatingCalls(_is_on_unopened_queue(calls), "hRemoteQueue {queue_handle} is not open")


@association_call_rule("Q35", *_METHODS_BY_NUMBER, _CLOSE_SESSION, complete=True, precondition=_NOT_OPENED_BY_OTHERS)
def call_on_unopened_queue(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A call uses a queue number, or closes a session, that is not open, 0 and NULL included."""
    yield ViolatingCalls(_is_on_unopened_queue(calls), "queue {queue_handle} is not open")
    for found in _closes_of_invalid_contexts(calls, "session"):
        yield found._replace(calls=found.calls & calls.of(_CLOSE_SESSION))


@association_call_rule("Q48", (QM2QM_NAME, 6), needs="ok", complete=True, precondition=_NOT_OPENED_BY_OTHERS)
def purge_accepted_on_unopened_queue(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A purge of a queue that is not open was answered MQ_OK."""
    yield ViolatingCalls(_is_on_unopened_queue(calls), "hQueue {queue_handle} is not open")


def _ended_at(call: CapturedCall) -> int:
    """Return when a call ended; one without a response ends when it starts."""
    return call.responded_at or call.started_at


def _last_end(calls: Iterable[CapturedCall]) -> int | None:
    """Return when the last of some calls ended."""
    return max(map(_ended_at, calls), default=None)


def _uses_of_closed_cursors(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield calls with a cursor of qm2qm that the queue's owner never created, or that is closed.

    Only cursors of queues whose R_QMOpenRemoteQueue was captured count.
    """
    names, with_cursor = ("queue_handle", "cursor_handle"), calls.nonzero("cursor_handle")
    if not (calls.judged & with_cursor).any():  # keys of all calls take long
        return
    created_at = calls.look_up(with_cursor, names, _cursor_created_at, default=AFTER_ALL)
    yield ViolatingCalls(created_at == BEFORE_ALL, "hCursor {cursor_handle} was never given")
    closes = np.flatnonzero(calls.of((QM2QM_NAME, 4)) & calls.succeeded & with_cursor)
    cursors, closed_at = calls.keys(*names), calls.ended_at[closes]
    gone_at = take_or(closed_at, TimeIndex(cursors[closes], closed_at).latest(cursors, calls.started_at), BEFORE_ALL)
    closed = (created_at <= gone_at) & (gone_at < calls.started_at)
    yield ViolatingCalls(closed, "hCursor {cursor_handle} is closed")


def _cursor_created_at(history: AssociationHistory, number: int, cursor: int) -> int:
    """Return when a cursor was last created; ``BEFORE_ALL`` if never, ``AFTER_ALL`` if that cannot be known."""
    server, cutoff = history.server, history.openings_cutoff
    if not server.has_remote_queue_opens_before(cutoff, number):
        return AFTER_ALL
    created_at = _last_end(server.cursor_creations_before(number, cursor, cutoff))
    return BEFORE_ALL if created_at is None else created_at


@association_call_rule("Q12", *QM2QM_READS, needs="ok", complete=True, precondition=_QUEUE_OPEN_CAPTURED)
def read_accepted_with_closed_cursor(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read with a cursor that is not open was answered MQ_OK."""
    yield from _uses_of_closed_cursors(calls)


@association_call_rule("Q13", *QM2QM_READS, complete=True, precondition=_QUEUE_OPEN_CAPTURED)
def read_with_closed_cursor(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read uses a cursor that was never created, or is closed."""
    yield from _uses_of_closed_cursors(calls)


@association_call_rule("Q40", (QM2QM_NAME, 4), complete=True, precondition=f"for the cursor, {_QUEUE_OPEN_CAPTURED}")
def close_of_cursor_that_is_not_open(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The close of a cursor that is not open, or on a queue that is not open."""
    yield ViolatingCalls(_is_on_unopened_queue(calls), "hQueue {queue_handle} is not open", of_either=True)
    for found in _uses_of_closed_cursors(calls):
        yield found._replace(of_either=True)


@association_call_rule("Q41", _CLOSE_SESSION, needs="ok", complete=True)
def cursor_open_at_session_close(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cursor is still open when its session is closed; Windows leaves them open."""
    reads = open_cursors(calls)
    cursors = take_or(calls.numbers("cursor_handle"), reads, 0)
    yield ViolatingCalls(reads != NONE, "hCursor {} is open", (cursors,), evidence=(reads,))


def _with_differing_numbers(calls: AssociationCalls, actual: str) -> ViolatingCalls:
    """Return the calls that name two queue numbers although their session has one, as all but NT and 2000 do (D8)."""
    differing = [calls.differs("queue_descriptor", name) for name in ("queue_handle", "open_context")]
    single = take_or(~np.logical_or(*differing), calls.session.opens, default=False)
    wrong = single & ~calls.session.is_closed & differing[0]
    return ViolatingCalls(wrong, actual, of_either=True, evidence=(calls.session.opens,))


@association_call_rule(
    "Q08", (QM2QM_NAME, 0), (QM2QM_NAME, 9),
    precondition="the session was opened in the same association, and its owner is not NT or 2000 (D8)",
)  # fmt: skip
def read_with_differing_queue_numbers(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The dwQueue of a read differs from its hRemoteQueue, or is 0."""
    yield _with_differing_numbers(calls, "dwQueue {queue_descriptor}, hRemoteQueue {queue_handle}")


@association_call_rule(
    "Q42", (QM2QM_NAME, 5),
    precondition="the session was opened in the same association, and its owner is not NT or 2000",
)  # fmt: skip
def cancel_with_differing_queue_numbers(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A cancel whose pQueue differs from hQueue."""
    yield _with_differing_numbers(calls, "pQueue {queue_descriptor}, hQueue {queue_handle}")


@association_call_rule(
    "Q27", (QM2QM_NAME, 2), needs="ok",
    precondition="RemoteQmGetVersion returned that the server is 2003 or later",
)  # fmt: skip
def open_accepted_with_differing_numbers(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An open whose pQueue differs from dwpContext was answered MQ_OK."""
    wrong = calls.of_server_since(_2003) & calls.differs("queue_descriptor", "open_context")
    yield ViolatingCalls(wrong, "pQueue {queue_descriptor}, dwpContext {open_context}")


@association_call_rule(
    "Q28", (QM2QM_NAME, 2), needs="ok",
    precondition="the server does not know RemoteQmGetVersion: it is NT or 2000; R_QMOpenRemoteQueue was captured",
)  # fmt: skip
def open_accepted_with_unknown_queue_number(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An open of a queue number that was never returned was answered MQ_OK."""
    old = calls.of_servers(lambda server: server.is_windows_2000_or_older, "2000 or older")
    never_given = calls.look_up(old, ["queue_handle"], _was_never_given, default=False)
    yield ViolatingCalls(never_given, "hQueue {queue_handle} was never given")


def _was_never_given(history: AssociationHistory, number: int | None) -> bool:
    """Tell whether the owner returned numbers of queues, and never this one."""
    server, cutoff = history.server, history.openings_cutoff
    given = (server.has_remote_queue_opens_before(cutoff, each) for each in (None, number or 0))
    return [*given] == [True, False]


def _numbers(call: CapturedCall) -> tuple[int | None, int | None]:
    return call["queue_descriptor"], call["open_context"]


class _AnswersByNumbers:
    """The answers of an owner that returned a queue number, in order of time, with the numbers beside it."""

    def __init__(self, server: ServerHistory, number: int) -> None:
        self._opens = sorted(server.remote_queue_opens.get(number, ()), key=_ended_at)
        self._first: dict[tuple[int | None, int | None], CapturedCall] = {}
        for each in self._opens:
            self._first.setdefault(_numbers(each), each)

    def last_until(self, call: CapturedCall) -> CapturedCall | None:
        """Return the last answer before a call."""
        place = bisect_right(self._opens, call.started_at, key=_ended_at)
        return self._opens[place - 1] if place else None

    def may_have_given(self, numbers: tuple[int | None, int | None], call: CapturedCall) -> bool:
        """Tell whether numbers may have been returned before a call."""
        first = self._first.get(numbers)
        return first is not None and _ended_at(first) <= call.started_at + clock_slack_us(first, call)


@association_rule("Q30", (QM2QM_NAME, 2), precondition="the R_QMOpenRemoteQueue that returned hQueue was captured")
def open_with_numbers_of_different_answers(history: AssociationHistory) -> Iterator[Violation]:
    """hQueue, pQueue and dwpContext are not from one response of the owner."""
    for call in history.calls_of((QM2QM_NAME, 2)):
        number, ours = call["queue_handle"] or 0, (call["queue_descriptor"], call["open_context"])
        answers = history.share(("answers", number), partial(_AnswersByNumbers, history.server, number))
        last = answers.last_until(call) if call.request_decoded and not answers.may_have_given(ours, call) else None
        if last is not None:
            given = _numbers(last)
            actual = f"pQueue {ours[0]}, dwpContext {ours[1]}, given {given[0]}, {given[1]}"
            yield Violation(call, actual, (last, call))


@association_rule("Q32", (QM2QM_NAME, 2), precondition="both openings were captured completely")
def client_identifier_changed(history: AssociationHistory) -> Iterator[Violation]:
    """The client sends another identifier than before."""
    first: CapturedCall | None = None
    for call in history.calls_of((QM2QM_NAME, 2)):
        if call.request_decoded and call["client_id"] is not None:
            if first is not None and first["client_id"] != call["client_id"]:
                yield Violation(call, f"{call['client_id']}, before {first['client_id']}", (first, call))
            first = first or call


def _handle_in_use(calls: AssociationCalls, before: Numbers, closes: Numbers) -> ViolatingCalls:
    """Return the calls that returned a handle which was certainly open.

    ``before`` are the positions of the calls that returned it before, ``closes`` those of what closes it again.
    """
    was_open = take_or(calls.ended_at, before, AFTER_ALL) < calls.started_at
    closed_at = take_or(calls.started_at, closes, AFTER_ALL)
    still_open = take_or(closed_at, before, BEFORE_ALL) > calls.ended_at
    return ViolatingCalls(was_open & still_open, "the handle is in use", evidence=(before,))


def _context_in_use(calls: AssociationCalls) -> ViolatingCalls:
    contexts, closes = calls.contexts, np.full(calls.count, NONE)
    closes[contexts.open_rows] = contexts.close_rows
    groups = Groups(contexts.open_rows, contexts.keys, contexts.opened_at)
    return _handle_in_use(calls, last_before(calls, groups, ~calls.nothing()), closes)


@association_call_rule("Q14", *QM2QM_READS, needs="headers", complete=True)
def read_handle_returned_while_open(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read returned the handle of a receive that is not ended."""
    yield _handle_in_use(calls, receive_before(calls), ended_by(calls))


@association_call_rule("Q29", (QM2QM_NAME, 2), needs="headers", complete=True)
def session_handle_returned_while_open(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An open returned the handle of a session that is open."""
    yield _context_in_use(calls)


@association_call_rule("R09", *_OPEN_CONTEXT, needs="headers", complete=True)
def context_handle_returned_while_open(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An open returned the handle of a context that is open."""
    yield _context_in_use(calls)


def _handles_never_closed(
    history: AssociationHistory, methods: tuple[tuple[str, int], ...], close: tuple[str, int]
) -> Iterator[Violation]:
    """Yield handles that are still open when all connections of the association end with FIN."""
    if not (history.is_complete and history.closed_by_fin):
        return
    closed = {call["context_handle"] for call in history.calls_of(close)}
    for lifetime in history.context_handles:
        opening = lifetime.open_call
        if opening.method in methods and lifetime.close_call is None and opening["context_handle"] not in closed:
            yield Violation(opening, "never closed, before the connection was")


@association_rule("Q39", (QM2QM_NAME, 2), precondition=_CLOSED_BY_FIN)
def session_never_closed(history: AssociationHistory) -> Iterator[Violation]:
    """A session is never closed."""
    yield from _handles_never_closed(history, ((QM2QM_NAME, 2),), _CLOSE_SESSION)


@association_rule("R14", *_OPEN_CONTEXT, precondition=_CLOSED_BY_FIN)
def context_never_closed(history: AssociationHistory) -> Iterator[Violation]:
    """A context is never closed."""
    yield from _handles_never_closed(history, _OPEN_CONTEXT, (REMOTE_READ_NAME, 3))


@association_rule("C06", (QMCOMM_NAME, 2), (QMCOMM_NAME, 3), precondition=_CLOSED_BY_FIN)
def owner_context_closed_early_or_never(history: AssociationHistory) -> Iterator[Violation]:
    """R_QMCloseRemoteQueueContext is missing, or came before the supporting server opened the queue."""
    yield from _handles_never_closed(history, ((QMCOMM_NAME, 2),), (QMCOMM_NAME, 3))
    last_given: dict[int, int | None] = {}
    for lifetime in history.context_handles:
        close, number = lifetime.close_call, lifetime.open_call["queue_handle"]
        if lifetime.open_call.method != (QMCOMM_NAME, 2) or close is None or close.responded_at is None:
            continue
        born = lifetime.opened_at
        if number not in last_given:
            last_given[number] = _last_end(history.server.remote_queue_opens.get(number, ()))
        opens = history.server.session_opens.get(number, [])
        place = bisect_left(opens, born, key=lambda call: call.started_at)
        if place == len(opens) or (last_given.get(number) or 0) > born:
            continue
        if all_certainly_after(itertools.islice(opens, place, None), close, close.responded_at):
            yield Violation(close, "closed before RemoteQMOpenQueue", (lifetime.open_call, close, opens[place]))


@association_call_rule(
    "Q51", (QM2QM_NAME, 7), needs="answer",
    precondition="RemoteQmGetVersion returned that the server is XP or later",
)  # fmt: skip
def port_returned_for_unsupported_protocol(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A port was returned for a protocol that the server does not support."""
    wrong = calls.of_server_since(XP) & calls.equals("port_type", 2, 3) & calls.nonzero("returned_port")
    yield ViolatingCalls(wrong, "port {returned_port} for dwPortType {port_type}")


@association_rule(
    "R65", (REMOTE_READ_NAME, 0), precondition="an open of the same association says the client's version"
)
def port_asked_by_new_client(history: AssociationHistory) -> Iterator[Violation]:
    """A client of Windows Vista or later asks for the port, which it has from the endpoint mapper."""
    asked = next((call for call in history.calls_of((REMOTE_READ_NAME, 0)) if call.request_decoded), None)
    opens = (call for call in history.calls_of((REMOTE_READ_NAME, 2)) if call.request_decoded)
    new = next((call for call in opens if (call["version_major"] or 0) >= _VISTA), None)
    if asked is not None and new is not None:
        actual = f"asked by a client of version {new['version_major']}.{new['version_minor']}"
        yield Violation(asked, actual, (asked, new), severity="info", by_server=False)


@association_call_rule(
    "Q55", (QM2QM_NAME, 9), (QM2QM_NAME, 10), complete=True,
    precondition="the client is not NT or 2000: it uses RemoteQMStartReceive2",
)  # fmt: skip
def read_before_version_query(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The first read comes before the client queries the server's version."""

    def precedes_queries(history: AssociationHistory, read: CapturedCall) -> bool:
        queries = history.server.version_queries.get(read["client_address"], ())
        return all_certainly_after(queries, read, read.started_at)

    early = calls.where(calls.first_of_association(calls.judged), precedes_queries)
    yield ViolatingCalls(early, "no RemoteQmGetVersion before", source=client_section)


@association_call_rule("Q56", *QM2QM_READS, precondition="RemoteQmGetVersion returned the server's version")
def read_method_for_other_version(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The old read method is used with a server that has the new one, or the new one with an old server.

    The first is a SHOULD and is reported once per connection.
    """

    def version_was_known(history: AssociationHistory, read: CapturedCall) -> bool:
        queries = history.server.version_queries.get(read["client_address"], ())
        answers = (each for each in queries if each.responded_at is not None)
        return any(_ended_at(each) + clock_slack_us(each, read) < read.started_at for each in answers)

    old_method, new_server = calls.of((QM2QM_NAME, 0)), calls.of_server_since(XP)
    known = calls.of_servers(lambda server: server.version is not None, "version is known")
    actual = "opnum {opnum} to a server of version {}"
    version = calls.of_servers(lambda server: "{}.{}".format(*(server.version or ("", ""))), "version")
    yield ViolatingCalls(known & ~new_server & ~old_method, actual, (version,), source=client_section)
    firsts = calls.first_of_connection(calls.where(new_server & old_method, version_was_known))
    yield ViolatingCalls(firsts, actual, (version,), severity="warning", source=client_section)


@association_call_rule("Q66", needs="ok", precondition="the binds of the connection were captured")
def unauthenticated_call_accepted(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A call without authentication was answered MQ_OK; reported once per connection."""
    evaluated = calls.of_interfaces(QM2QM_NAME) & ~calls.of((QM2QM_NAME, 7), (QM2QM_NAME, 8))
    wrong = evaluated & calls.nonzero("bind_seen") & (calls.numbers("auth_level") <= AUTH_LEVEL_NONE)
    yield ViolatingCalls(calls.first_of_connection(wrong), "MQ_OK without authentication")


@association_call_rule(
    "R74", (REMOTE_READ_NAME, 2), needs="answer",
    precondition="the client reports that it is Vista or later, and in no workgroup",
)  # fmt: skip
def open_below_privacy_level(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A queue was opened below the level PRIVACY, which the registry may allow; reported once per connection."""
    level = np.maximum(calls.numbers("auth_level"), AUTH_LEVEL_NONE)
    in_domain = calls.has("workgroup") & ~calls.nonzero("workgroup")
    wrong = (calls.numbers("version_major") >= _VISTA) & in_domain & (level < _PRIVACY_LEVEL)
    yield ViolatingCalls(calls.first_of_connection(wrong), "authentication level {}", (level,))


@association_call_rule(
    "R78", *_NEWER_METHODS, needs="headers",
    precondition="RemoteQmGetVersion returned that the server is 2003",
)  # fmt: skip
def newer_method_answered(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A server of 2003 answered a method that was added later."""
    is_2003 = calls.of_servers(lambda server: server.version == _2003, "2003")
    yield ViolatingCalls(is_2003 & calls.text_in("outcome", {"ok"}), "a response to opnum {opnum}")


def uses_of_invalid_contexts(calls: AssociationCalls, thing: str) -> Iterator[ViolatingCalls]:
    """Yield calls with a context handle that was never returned, or is closed, with what is wrong and proof."""
    context = calls.context
    yield ViolatingCalls(~context.is_known, f"a {thing} that was never given")
    yield ViolatingCalls(context.is_closed, f"a closed {thing}", evidence=(context.opens, context.closes))


def _closes_of_invalid_contexts(calls: AssociationCalls, thing: str) -> Iterator[ViolatingCalls]:
    yield ViolatingCalls(~calls.has("context_handle"), f"a NULL {thing}")
    yield from uses_of_invalid_contexts(calls, thing)


@association_call_rule("R10", *_METHODS_BY_CONTEXT, complete=True)
def call_on_invalid_context(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A call uses a context that R_OpenQueue did not return, or that is closed."""
    for_move = calls.at_open(calls.of((REMOTE_READ_NAME, 11)), default=False)
    yield ViolatingCalls(for_move, "a context of R_OpenQueueForMove", evidence=(calls.context.opens,))
    yield from uses_of_invalid_contexts(calls, "context")


@association_call_rule("R11", (REMOTE_READ_NAME, 3), complete=True)
def close_of_invalid_context(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_CloseQueue of a context that was never returned, or is closed."""
    yield from _closes_of_invalid_contexts(calls, "context")


@association_call_rule("R15", (REMOTE_READ_NAME, 3), needs="ok", complete=True)
def context_closed_during_reads(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A context is closed while reads on it wait, as Windows does."""
    count, reads = waiting_at_context_closes(calls)
    yield ViolatingCalls(count > 0, "{} reads wait", (count,), evidence=reads)


@association_rule("R17", (REMOTE_READ_NAME, 3), complete=True)
def cursor_open_at_context_close(history: AssociationHistory) -> Iterator[Violation]:
    """A context is closed while a cursor is open, as Windows does."""
    for cursor in history.cursors:
        context = history.context_lifetime(cursor.open_call)
        close = context.close_call if context is not None else None
        if cursor.close_call is None and close is not None and close.started_at > cursor.opened_at:
            yield Violation(close, f"hCursor {cursor.open_call['cursor_handle']} is open", (cursor.open_call, close))


def _uses_of_invalid_cursors(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """Yield calls with a cursor that is not open on their context."""
    cursor = calls.cursor
    yield ViolatingCalls(~cursor.is_known, "hCursor {cursor_handle} was never given", of_either=True)
    proof = (cursor.opens, cursor.closes)
    yield ViolatingCalls(cursor.is_closed, "hCursor {cursor_handle} is closed", of_either=True, evidence=proof)


@association_call_rule("R16", (REMOTE_READ_NAME, 5), complete=True)
def close_of_invalid_cursor(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_CloseCursor of a cursor that is not open on the context."""
    yield from _uses_of_invalid_cursors(calls)


@association_call_rule("R27", *REMOTE_READ_READS, complete=True)
def read_with_invalid_cursor(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read with a cursor that is not open on the context."""
    with_cursor = calls.nonzero("cursor_handle")
    for found in _uses_of_invalid_cursors(calls) if (calls.judged & with_cursor).any() else ():
        yield found._replace(calls=found.calls & with_cursor)


def _with_peek_access(calls: AssociationCalls) -> ViolatingCalls:
    """Return the calls on a context that was opened with PEEK access only."""
    opens = calls.of((REMOTE_READ_NAME, 2)) & calls.equals("access", PEEK_ACCESS)
    on_peek_context = calls.at_open(opens, default=False)
    return ViolatingCalls(on_peek_context, f"opened with dwAccess {PEEK_ACCESS}", evidence=(calls.context.opens,))


@association_call_rule("R18", (REMOTE_READ_NAME, 6), precondition=_OPEN_CAPTURED)
def purge_with_peek_access(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """R_PurgeQueue on a context that was opened with PEEK access."""
    yield _with_peek_access(calls)._replace(of_either=True)


@association_call_rule("R19", *REMOTE_READ_READS, precondition=_OPEN_CAPTURED)
def receive_with_peek_access(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A receive on a context that was opened with PEEK access."""
    found = _with_peek_access(calls)
    yield found._replace(calls=found.calls & calls.is_receive)


@association_call_rule("R20", (REMOTE_READ_NAME, 13), (REMOTE_READ_NAME, 14), precondition=_OPEN_CAPTURED)
def transactional_call_with_peek_access(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A transactional read, or an acknowledgement class, on a context that was opened with PEEK access."""
    yield _with_peek_access(calls)


@association_call_rule("R56", (REMOTE_READ_NAME, 10), precondition="the opening of its context was captured completely")
def move_without_receive_access(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A message is moved out of a context that was not opened with RECEIVE access."""
    others = ~(calls.of((REMOTE_READ_NAME, 2)) & calls.equals("access", RECEIVE_ACCESS))
    how = calls.at_open(calls.numbers("opnum"), 0), calls.at_open(calls.numbers("access"), 0)
    actual = "opened by opnum {} with dwAccess {}"
    yield ViolatingCalls(calls.at_open(others, default=False), actual, how, evidence=(calls.context.opens,))


def _move_target(history: AssociationHistory, call: CapturedCall) -> HandleLifetime | None:
    """Return the lifetime of the newest R_OpenQueueForMove whose move context a move names."""
    targets = history.share("move targets", lambda: _newest_move_targets(history)).get(call["move_context"], [])
    place = bisect_right(targets, _ended_at(call), key=lambda target: target[0])
    return targets[place - 1][1] if place else None


def _newest_move_targets(history: AssociationHistory) -> dict[int, list[tuple[int, HandleLifetime]]]:
    """Return, by move context, when each of its opens was made, and the newest lifetime until then."""
    found: defaultdict[int, list[tuple[int, HandleLifetime]]] = defaultdict(list)
    opens = (each for each in history.context_handles if each.open_call.method == (REMOTE_READ_NAME, 11))
    for lifetime in sorted(opens, key=lambda each: each.open_call.started_at):
        before = found[lifetime.open_call["move_context"]]
        newest = max([lifetime, *(each for _, each in before[-1:])], key=lambda each: each.opened_at)
        before.append((lifetime.open_call.started_at, newest))
    return found


@association_rule("R57", (REMOTE_READ_NAME, 10), complete=True)
def move_to_invalid_context(history: AssociationHistory) -> Iterator[Violation]:
    """A message is moved to a context that R_OpenQueueForMove did not return, or that is closed."""
    moves = history.calls_of((REMOTE_READ_NAME, 10))
    opened = {call["move_context"] for call in history.server.calls_of((REMOTE_READ_NAME, 11))} if moves else ()
    for call in history.calls_of((REMOTE_READ_NAME, 10)):
        if not call.request_decoded:
            continue
        name, target = call["move_context"], _move_target(history, call)
        closed = target is not None and target.closed_before(call.started_at)
        if closed or (target is None and name not in opened):
            yield violation_of_either(call, f"ullContextTo {name} is {'closed' if closed else 'unknown'}")


@association_rule("R58", (REMOTE_READ_NAME, 10), precondition="the openings of both queues were captured completely")
def move_between_unrelated_queues(history: AssociationHistory) -> Iterator[Violation]:
    """A message is moved between queues that are not subqueues of one queue."""
    for call in history.calls_of((REMOTE_READ_NAME, 10)):
        source, target = history.context_lifetime(call), _move_target(history, call)
        if not call.request_decoded or source is None or target is None or target.closed_before(call.started_at):
            continue
        names = [(lifetime.open_call["queue"] or "").split(";")[0] for lifetime in (source, target)]
        places = [name.partition("\\")[2] or name for name in names]  # one host has a name and addresses
        kinds = ["=" in name for name in names]  # a private format name contains no path
        if all(names) and places[0] != places[1] and kinds[0] == kinds[1]:
            actual = f"from {names[0]} to {names[1]}"
            yield violation_of_either(call, actual, (source.open_call, target.open_call, call))


def _is_in_unenlisted_transaction(calls: AssociationCalls) -> Mask:
    """Tell which calls are part of a transaction that was not enlisted before them."""
    given = calls.has("transaction_id")
    first_at = calls.look_up(given, ["transaction_id"], _first_enlisted_at, default=BEFORE_ALL)
    return calls.where(first_at > calls.started_at, _precedes_enlistments)


def _first_enlisted_at(history: AssociationHistory, transaction: str) -> int:
    enlistments = history.server.enlistments.get(transaction)
    return enlistments[0].started_at if enlistments else AFTER_ALL


def _precedes_enlistments(history: AssociationHistory, call: CapturedCall) -> bool:
    enlistments = history.server.enlistments.get(call["transaction_id"], ())
    return all_certainly_after(enlistments, call, call.started_at)


_NOT_ENLISTED_BY_OTHERS: Final = "no other captured association enlisted it before"


@association_call_rule("R61", (REMOTE_READ_NAME, 10), complete=True, precondition=_NOT_ENLISTED_BY_OTHERS)
def move_in_unenlisted_transaction(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A move is part of a transaction that was not enlisted before."""
    yield ViolatingCalls(_is_in_unenlisted_transaction(calls), "{transaction_id}", of_either=True)


@association_call_rule("R64", (REMOTE_READ_NAME, 13), complete=True, precondition=_NOT_ENLISTED_BY_OTHERS)
def read_in_unenlisted_transaction(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A read is part of a transaction that was not enlisted before."""
    yield ViolatingCalls(_is_in_unenlisted_transaction(calls), "{transaction_id} was not enlisted before")


@association_call_rule(
    "R73", *_METHODS_BY_CONTEXT, needs="ok", complete=True,
    precondition="another captured association, which had ended, was given the handle",
)  # fmt: skip
def context_accepted_after_association_ended(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A context handle of another association, which had ended, was answered MQ_OK."""
    late = calls.where(~calls.context.is_known, _is_context_of_ended_association)
    openings = calls.look_up(late, ["context_handle"], _opening_of_context, default=None)
    yield ViolatingCalls(late, "MQ_OK to a context whose connections are gone", evidence=(openings,))


def _opening_of_context(history: AssociationHistory, handle: str | None) -> CapturedCall | None:
    return history.server.opening_call(REMOTE_READ_NAME, handle)


def _is_context_of_ended_association(history: AssociationHistory, call: CapturedCall) -> bool:
    opening = _opening_of_context(history, call["context_handle"])
    if opening is None or opening["connection_id"] in history.connections:
        return False
    ended_at = history.server.association_of(opening).ended_at
    return ended_at is not None and ended_at + clock_slack_us(opening, call) < call.started_at


@server_rule("Q33", "the client called RemoteQMGetQMQMServerPort on a captured connection to this server")
def open_on_other_port_than_returned(server: ServerHistory) -> Iterator[Violation]:
    """RemoteQMOpenQueue uses another port than the server returned to the client."""
    answers: defaultdict[str, list[CapturedCall]] = defaultdict(list)  # by client
    first: dict[tuple[str, int], CapturedCall] = {}  # by client and port
    for call in sorted(server.calls_of((QM2QM_NAME, 7)), key=_ended_at):
        if call.response_decoded and call["returned_port"] and call.responded_at is not None:
            answers[call["client_address"]].append(call)
            first.setdefault((call["client_address"], call["returned_port"]), call)
    for call in server.calls_of((QM2QM_NAME, 2)):
        ours = answers.get(call["client_address"], [])
        place = bisect_right(ours, call.started_at, key=_ended_at)
        told = first.get((call["client_address"], call["server_port"]))
        may_be_told = told is not None and _ended_at(told) <= call.started_at + clock_slack_us(told, call)
        if call["request_at"] is not None and place and not may_be_told:
            last = ours[place - 1]
            yield Violation(call, f"port {call['server_port']}, told {last['returned_port']}", (last, call))
