"""Rules on handles, cursors and transactions: who opened them, and whether they are still open. No Spark."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls, Suspects, no_reads
from pipeline.findings.columns.call_columns import Mask
from pipeline.findings.columns.call_history import (
    QM2QM_READS,
    REMOTE_READ_READS,
    AssociationHistory,
    CapturedCall,
    ConcurrentReads,
    HandleLifetime,
    HandleLifetimes,
    ServerHistory,
    all_certainly_after,
    clock_slack_us,
)
from pipeline.findings.columns.cursors import closes_of_sessions_with_cursors
from pipeline.findings.columns.receives import unpaired_handles
from pipeline.findings.columns.waiting_reads import closes_of_contexts_with_reads
from pipeline.findings.rules.qm2qm import client_section
from pipeline.findings.rules.registry import (
    Violation,
    association_rule,
    complete_association_rule,
    server_rule,
    violation_of_either,
)
from udfs.codes import PEEK_ACCESS, RECEIVE_ACCESS
from udfs.columns.absent import AFTER_ALL
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

_METHODS_BY_NUMBER: Final = (*QM2QM_READS, (QM2QM_NAME, 4), (QM2QM_NAME, 5), (QM2QM_NAME, 6))
_METHODS_BY_CONTEXT: Final = tuple((REMOTE_READ_NAME, opnum) for opnum in (4, 5, 6, 7, 8, 9, 10, 13, 14, 15))
_NEWER_METHODS: Final = tuple((REMOTE_READ_NAME, opnum) for opnum in range(10, 16))
_XP, _2003 = (5, 1), (5, 2)  # server versions
_VISTA: Final = 6  # major version
_PRIVACY_LEVEL: Final = 6
_CLOSED_BY_FIN: Final = "the association was captured completely, and every connection of it ended with FIN"
_NOT_OPENED_BY_OTHERS: Final = "no other captured association opened it"
_QUEUE_OPEN_CAPTURED: Final = "R_QMOpenRemoteQueue of its queue was captured"
_OPEN_CAPTURED: Final = "the R_OpenQueue of its context was captured completely"


def _is_on_unopened_queue(calls: AssociationCalls) -> Mask:
    """Tell which qm2qm calls are on a queue number that no session of the association had open."""
    numbered = calls.of(*_METHODS_BY_NUMBER) & calls.request_decoded & calls.has("queue_handle")
    return numbered & calls.complete & ~calls.queue_may_be_open


def _possible_uses_of_closed_cursors(calls: AssociationCalls) -> Suspects:
    return Suspects(calls.of(*QM2QM_READS) & calls.request_decoded & calls.nonzero("cursor_handle"))


def _first_reads_without_version_query(calls: AssociationCalls) -> Suspects:
    """Return the first new reads of associations, where no version query of the client certainly comes before."""
    reads = calls.of((QM2QM_NAME, 9), (QM2QM_NAME, 10)) & calls.request_decoded & calls.complete
    firsts = calls.first_of_association(reads)
    asked_at: dict[int, dict[str | None, int]] = {}
    for history in calls.histories if firsts.any() else ():
        if id(history.server) not in asked_at:
            queries = history.server.calls_of((QM2QM_NAME, 8))
            asked_at[id(history.server)] = {
                each["client_address"]: each.started_at for each in sorted(queries, key=_started_at, reverse=True)
            }
    found = calls.nothing()
    clients, names = calls.texts("client_address")
    for row in np.nonzero(firsts)[0]:
        known = asked_at[id(calls.histories[calls.association[row]].server)]
        name = names[clients[row]] if clients[row] >= 0 else None
        found[row] = known.get(name, AFTER_ALL) > calls.started_at[row]
    return Suspects(found)


def _started_at(call: CapturedCall) -> int:
    return call.started_at


def _reads_by_other_method(calls: AssociationCalls) -> Suspects:
    """Return the reads by another method than the server's version has."""
    since_xp = calls.of_servers(lambda server: 0 if server.version is None else 1 + (server.version >= _XP), "XP")
    old = calls.of((QM2QM_NAME, 0))
    reads = calls.of(*QM2QM_READS) & calls.request_decoded & (since_xp > 0)
    wrong = reads & (old == (since_xp == 1 + 1))
    return Suspects(wrong)


def _first_unauthenticated_calls(calls: AssociationCalls) -> Suspects:
    """Return the first call of each connection that was answered MQ_OK without authentication."""
    level = np.where(calls.nonzero("auth_level"), calls.numbers("auth_level"), 1)
    evaluated = calls.of_interfaces(QM2QM_NAME) & ~calls.of((QM2QM_NAME, 7), (QM2QM_NAME, 8))
    return Suspects(calls.first_of_connection(evaluated & calls.succeeded & calls.nonzero("bind_seen") & (level <= 1)))


def _calls_on_invalid_contexts(calls: AssociationCalls) -> Suspects:
    """Return calls on a context that R_OpenQueue did not return, or that is closed."""
    by_open = calls.at_open(calls.of((REMOTE_READ_NAME, 2)), default=False)
    ours = calls.of(*_METHODS_BY_CONTEXT) & calls.request_decoded
    return Suspects(ours & (~by_open | calls.context_closed))


def _is_on_peek_context(calls: AssociationCalls) -> Mask:
    result: Mask = calls.request_decoded & (calls.at_open(calls.numbers("access"), 0) == PEEK_ACCESS)
    return result


def _reads_in_unenlisted_transactions(calls: AssociationCalls) -> Suspects:
    """Return transactional reads that were made before the first enlistment in their transaction, at this server."""
    reads = calls.of((REMOTE_READ_NAME, 13)) & calls.request_decoded & calls.has("transaction_id") & calls.complete
    names, texts = calls.texts("transaction_id")
    found = calls.nothing()
    for row in np.nonzero(reads)[0]:
        enlisted = calls.histories[calls.association[row]].server.enlistments.get(texts[names[row]])
        found[row] = not enlisted or enlisted[0].started_at > calls.started_at[row]
    return Suspects(found)


def _calls_on_unopened_queues(history: AssociationHistory) -> Iterator[CapturedCall]:
    """Yield qm2qm calls on a queue number that no session of any captured association had open; 0 is such a number."""
    for call in history.calls_of(*_METHODS_BY_NUMBER):
        number = call["queue_handle"]
        if not call.request_decoded or number is None or history.sessions.may_be_open_during(number, call):
            continue
        if not _opened_by_another_association(history, number):
            yield call


def _opened_by_another_association(history: AssociationHistory, number: int) -> bool:
    """Tell whether another association opened a queue number during this one, or before."""

    def opened() -> bool:
        opens = history.server.session_opens_before(number, history.openings_cutoff)
        return any(call["connection_id"] not in history.connections for call in opens)

    return history.share(("opened by another association", number), opened)


@complete_association_rule(
    "Q11", _NOT_OPENED_BY_OTHERS, suspects=lambda calls: Suspects(_is_on_unopened_queue(calls) & calls.succeeded)
)
def read_accepted_on_unopened_queue(history: AssociationHistory) -> Iterator[Violation]:
    """A read from a queue that is not open was answered MQ_OK."""
    for call in _calls_on_unopened_queues(history):
        if call.succeeded and call.method in QM2QM_READS:
            yield Violation(call, f"hRemoteQueue {call['queue_handle']} is not open")


@complete_association_rule(
    "Q35",
    _NOT_OPENED_BY_OTHERS,
    suspects=lambda calls: Suspects(_is_on_unopened_queue(calls) | calls.of((QM2QM_NAME, 3))),
)
def call_on_unopened_queue(history: AssociationHistory) -> Iterator[Violation]:
    """A call uses a queue number, or closes a session, that is not open, 0 and NULL included."""
    for call in _calls_on_unopened_queues(history):
        yield Violation(call, f"queue {call['queue_handle']} is not open")
    for call, actual, evidence in _closes_of_invalid_contexts(history, (QM2QM_NAME, 3), "session"):
        yield Violation(call, actual, evidence)


@complete_association_rule(
    "Q48", _NOT_OPENED_BY_OTHERS, suspects=lambda calls: Suspects(_is_on_unopened_queue(calls) & calls.succeeded)
)
def purge_accepted_on_unopened_queue(history: AssociationHistory) -> Iterator[Violation]:
    """A purge of a queue that is not open was answered MQ_OK."""
    for call in _calls_on_unopened_queues(history):
        if call.succeeded and call.method == (QM2QM_NAME, 6):
            yield Violation(call, f"hQueue {call['queue_handle']} is not open")


def _ended_at(call: CapturedCall) -> int:
    """Return when a call ended; one without a response ends when it starts."""
    return call.responded_at or call.started_at


def _last_end(calls: Iterable[CapturedCall]) -> int | None:
    """Return when the last of some calls ended."""
    return max(map(_ended_at, calls), default=None)


def _uses_of_closed_cursors(history: AssociationHistory) -> Iterator[tuple[CapturedCall, str]]:
    """Yield reads and closes with a cursor that the queue's owner never created, or that is closed.

    Only cursors of queues whose R_QMOpenRemoteQueue was captured count.
    """
    server, cutoff = history.server, history.openings_cutoff
    closed = HandleLifetimes()
    created_at: dict[tuple[int, int], int | None] = {}  # when a cursor was created last
    for call in history.calls_of(*QM2QM_READS, (QM2QM_NAME, 4)):
        cursor, number = call["cursor_handle"], call["queue_handle"]
        if not call.request_decoded or not cursor or not server.has_remote_queue_opens_before(cutoff, number):
            continue
        if (number, cursor) not in created_at:
            created_at[number, cursor] = _last_end(server.cursor_creations_before(number, cursor, cutoff))
        created, gone = created_at[number, cursor], closed.latest((number, cursor), call.started_at)
        if created is None:
            yield call, f"hCursor {cursor} was never given"
        elif gone is not None and gone.opened_at < call.started_at and created <= gone.opened_at:
            yield call, f"hCursor {cursor} is closed"
        if call.method == (QM2QM_NAME, 4) and call.succeeded:
            closed.record_open((number, cursor), call)


@complete_association_rule("Q12", _QUEUE_OPEN_CAPTURED, suspects=_possible_uses_of_closed_cursors)
def read_accepted_with_closed_cursor(history: AssociationHistory) -> Iterator[Violation]:
    """A read with a cursor that is not open was answered MQ_OK."""
    for call, actual in _uses_of_closed_cursors(history):
        if call.succeeded and call.method in QM2QM_READS:
            yield Violation(call, actual)


@complete_association_rule("Q13", _QUEUE_OPEN_CAPTURED, suspects=_possible_uses_of_closed_cursors)
def read_with_closed_cursor(history: AssociationHistory) -> Iterator[Violation]:
    """A read uses a cursor that was never created, or is closed."""
    for call, actual in _uses_of_closed_cursors(history):
        if call.method in QM2QM_READS:
            yield Violation(call, actual)


@complete_association_rule("Q40", f"for the cursor, {_QUEUE_OPEN_CAPTURED}", suspects=no_reads)
def close_of_cursor_that_is_not_open(history: AssociationHistory) -> Iterator[Violation]:
    """The close of a cursor that is not open, or on a queue that is not open."""
    wrong = {call["call_key"]: (call, actual) for call, actual in _uses_of_closed_cursors(history)}
    for call in _calls_on_unopened_queues(history):
        wrong[call["call_key"]] = (call, f"hQueue {call['queue_handle']} is not open")
    for call, actual in wrong.values():
        if call.method == (QM2QM_NAME, 4):
            yield violation_of_either(call, actual)


@complete_association_rule("Q41", suspects=closes_of_sessions_with_cursors)
def cursor_open_at_session_close(history: AssociationHistory) -> Iterator[Violation]:
    """A cursor is still open when its session is closed; Windows leaves them open."""
    used: dict[tuple[int, int], CapturedCall] = {}
    for call in history.calls_of(*QM2QM_READS, (QM2QM_NAME, 3), (QM2QM_NAME, 4)):
        if call.method in QM2QM_READS and call.succeeded and call["cursor_handle"]:
            used[call["queue_handle"], call["cursor_handle"]] = call
        elif call.method == (QM2QM_NAME, 4):
            used.pop((call["queue_handle"], call["cursor_handle"]), None)
        elif call.method == (QM2QM_NAME, 3) and call.succeeded:
            session = history.context_handles.latest((QM2QM_NAME, call["context_handle"]), call.started_at)
            for name in [name for name in used if session is not None and name[0] == session.open_call["queue_handle"]]:
                yield Violation(call, f"hCursor {name[1]} is open", (used.pop(name), call))


def _open_session(history: AssociationHistory, call: CapturedCall) -> HandleLifetime | None:
    """Return the session that a call with a queue number belongs to; None where it is closed."""
    session = history.sessions.latest(call["queue_handle"], call.started_at)
    return session if session is not None and not session.closed_before(call.started_at) else None


def _has_differing_numbers(call: CapturedCall, session: HandleLifetime) -> bool:
    """Tell whether a call names two queue numbers although its session has one, as all but NT and 2000 do (D8)."""
    opened = session.open_call
    single = opened["queue_handle"] == opened["queue_descriptor"] == opened["open_context"]
    return bool(single and call["queue_descriptor"] != call["queue_handle"])


@association_rule(
    "Q08",
    "the session was opened in the same association, and its owner is not NT or 2000 (D8)",
    suspects=lambda calls: Suspects(
        calls.of((QM2QM_NAME, 0), (QM2QM_NAME, 9)) & calls.differs("queue_descriptor", "queue_handle")
    ),
)
def read_with_differing_queue_numbers(history: AssociationHistory) -> Iterator[Violation]:
    """The dwQueue of a read differs from its hRemoteQueue, or is 0."""
    for call in history.calls_of((QM2QM_NAME, 0), (QM2QM_NAME, 9)):
        session = _open_session(history, call) if call.request_decoded else None
        if session is not None and _has_differing_numbers(call, session):
            actual = f"dwQueue {call['queue_descriptor']}, hRemoteQueue {call['queue_handle']}"
            yield violation_of_either(call, actual, (session.open_call, call))


@association_rule(
    "Q42", "the session was opened in the same association, and its owner is not NT or 2000", suspects=no_reads
)
def cancel_with_differing_queue_numbers(history: AssociationHistory) -> Iterator[Violation]:
    """A cancel whose pQueue differs from hQueue."""
    for call in history.calls_of((QM2QM_NAME, 5)):
        session = _open_session(history, call) if call.request_decoded else None
        if session is not None and _has_differing_numbers(call, session):
            actual = f"pQueue {call['queue_descriptor']}, hQueue {call['queue_handle']}"
            yield violation_of_either(call, actual, (session.open_call, call))


@association_rule("Q27", "RemoteQmGetVersion returned that the server is 2003 or later", suspects=no_reads)
def open_accepted_with_differing_numbers(history: AssociationHistory) -> Iterator[Violation]:
    """An open whose pQueue differs from dwpContext was answered MQ_OK."""
    version = history.server.version
    for call in history.calls_of((QM2QM_NAME, 2)) if version is not None and version >= _2003 else ():
        if call.succeeded and call["queue_descriptor"] != call["open_context"]:
            yield Violation(call, f"pQueue {call['queue_descriptor']}, dwpContext {call['open_context']}")


@association_rule(
    "Q28",
    "the server does not know RemoteQmGetVersion: it is NT or 2000; R_QMOpenRemoteQueue was captured",
    suspects=no_reads,
)
def open_accepted_with_unknown_queue_number(history: AssociationHistory) -> Iterator[Violation]:
    """An open of a queue number that was never returned was answered MQ_OK."""
    server, cutoff = history.server, history.openings_cutoff
    if not (server.is_windows_2000_or_older and server.has_remote_queue_opens_before(cutoff)):
        return
    for call in history.calls_of((QM2QM_NAME, 2)):
        if call.succeeded and not server.has_remote_queue_opens_before(cutoff, call["queue_handle"] or 0):
            yield Violation(call, f"hQueue {call['queue_handle']} was never given")


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


@association_rule("Q30", "the R_QMOpenRemoteQueue that returned hQueue was captured", suspects=no_reads)
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


@association_rule("Q32", "both openings were captured completely", suspects=no_reads)
def client_identifier_changed(history: AssociationHistory) -> Iterator[Violation]:
    """The client sends another identifier than before."""
    first: CapturedCall | None = None
    for call in history.calls_of((QM2QM_NAME, 2)):
        if call.request_decoded and call["client_id"] is not None:
            if first is not None and first["client_id"] != call["client_id"]:
                yield Violation(call, f"{call['client_id']}, before {first['client_id']}", (first, call))
            first = first or call


def _handles_returned_while_open(
    lifetimes: HandleLifetimes, column: str, methods: tuple[tuple[str, int], ...]
) -> Iterator[Violation]:
    """Yield calls that returned a handle, by its column, which was certainly open."""
    by_handle: dict[tuple[str, str], list[HandleLifetime]] = {}
    for lifetime in lifetimes:
        opening = lifetime.open_call
        if opening.method in methods:
            by_handle.setdefault((opening.method[0], opening[column]), []).append(lifetime)
    for same in by_handle.values():
        same.sort(key=lambda lifetime: lifetime.opened_at)
        for before, lifetime in itertools.pairwise(same):
            still_open = before.close_call is None or before.close_call.started_at > lifetime.opened_at
            if still_open and before.opened_at < lifetime.open_call.started_at:
                yield Violation(lifetime.open_call, "the handle is in use", (before.open_call, lifetime.open_call))


@complete_association_rule("Q14", suspects=unpaired_handles)
def read_handle_returned_while_open(history: AssociationHistory) -> Iterator[Violation]:
    """A read returned the handle of a receive that is not ended."""
    yield from _handles_returned_while_open(history.held_messages, "remote_read_handle", QM2QM_READS)


@complete_association_rule("Q29", suspects=no_reads)
def session_handle_returned_while_open(history: AssociationHistory) -> Iterator[Violation]:
    """An open returned the handle of a session that is open."""
    yield from _handles_returned_while_open(history.context_handles, "context_handle", ((QM2QM_NAME, 2),))


@complete_association_rule("R09", suspects=no_reads)
def context_handle_returned_while_open(history: AssociationHistory) -> Iterator[Violation]:
    """An open returned the handle of a context that is open."""
    opens = ((REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11))
    yield from _handles_returned_while_open(history.context_handles, "context_handle", opens)


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


@association_rule("Q39", _CLOSED_BY_FIN, suspects=no_reads)
def session_never_closed(history: AssociationHistory) -> Iterator[Violation]:
    """A session is never closed."""
    yield from _handles_never_closed(history, ((QM2QM_NAME, 2),), (QM2QM_NAME, 3))


@association_rule("R14", _CLOSED_BY_FIN, suspects=no_reads)
def context_never_closed(history: AssociationHistory) -> Iterator[Violation]:
    """A context is never closed."""
    yield from _handles_never_closed(history, ((REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 11)), (REMOTE_READ_NAME, 3))


@association_rule("C06", _CLOSED_BY_FIN, suspects=no_reads)
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


@association_rule("Q51", "RemoteQmGetVersion returned that the server is XP or later", suspects=no_reads)
def port_returned_for_unsupported_protocol(history: AssociationHistory) -> Iterator[Violation]:
    """A port was returned for a protocol that the server does not support."""
    version = history.server.version
    for call in history.calls_of((QM2QM_NAME, 7)) if version is not None and version >= _XP else ():
        if call.response_decoded and call["port_type"] in (2, 3) and call["returned_port"]:
            yield Violation(call, f"port {call['returned_port']} for dwPortType {call['port_type']}")


@association_rule("R65", "an open of the same association says the client's version", suspects=no_reads)
def port_asked_by_new_client(history: AssociationHistory) -> Iterator[Violation]:
    """A client of Windows Vista or later asks for the port, which it has from the endpoint mapper."""
    asked = next((call for call in history.calls_of((REMOTE_READ_NAME, 0)) if call.request_decoded), None)
    opens = (call for call in history.calls_of((REMOTE_READ_NAME, 2)) if call.request_decoded)
    new = next((call for call in opens if (call["version_major"] or 0) >= _VISTA), None)
    if asked is not None and new is not None:
        actual = f"asked by a client of version {new['version_major']}.{new['version_minor']}"
        yield Violation(asked, actual, (asked, new), severity="info", by_server=False)


def _version_queries(history: AssociationHistory, call: CapturedCall) -> Iterator[CapturedCall]:
    """Yield the RemoteQmGetVersion calls that a call's client made to the server, in any association."""
    client = call["client_address"]
    return (each for each in history.server.calls_of((QM2QM_NAME, 8)) if each["client_address"] == client)


@complete_association_rule(
    "Q55", "the client is not NT or 2000: it uses RemoteQMStartReceive2", suspects=_first_reads_without_version_query
)
def read_before_version_query(history: AssociationHistory) -> Iterator[Violation]:
    """The first read comes before the client queries the server's version."""
    first = next((call for call in history.calls_of((QM2QM_NAME, 9), (QM2QM_NAME, 10)) if call.request_decoded), None)
    if first is not None and all_certainly_after(_version_queries(history, first), first, first.started_at):
        yield Violation(first, "no RemoteQmGetVersion before", source=client_section(first))


@association_rule("Q56", "RemoteQmGetVersion returned the server's version", suspects=_reads_by_other_method)
def read_method_for_other_version(history: AssociationHistory) -> Iterator[Violation]:
    """The old read method is used with a server that has the new one, or the new one with an old server.

    The first is a SHOULD and is reported once per connection.
    """
    version, reported = history.server.version, set()
    first_answers: dict[tuple[str, str | None], CapturedCall] = {}  # by client and connection, and of any connection
    for answer in sorted(history.server.calls_of((QM2QM_NAME, 8)), key=_ended_at):
        for connection in (answer["connection_id"], None) if answer.responded_at is not None else ():
            first_answers.setdefault((answer["client_address"], connection), answer)
    for call in history.calls_of(*QM2QM_READS) if version is not None else ():
        is_old_method = call.method == (QM2QM_NAME, 0)
        if version is None or not call.request_decoded or is_old_method == (version < _XP):
            continue
        if is_old_method:
            answers = (first_answers.get((call["client_address"], name)) for name in (call["connection_id"], None))
            known = any(each and _ended_at(each) + clock_slack_us(each, call) < call.started_at for each in answers)
            if not known or call["connection_id"] in reported:
                continue
            reported.add(call["connection_id"])
        actual = f"opnum {call.method[1]} to a server of version {version[0]}.{version[1]}"
        yield Violation(call, actual, severity="warning" if is_old_method else None, source=client_section(call))


@association_rule("Q66", "the binds of the connection were captured", suspects=_first_unauthenticated_calls)
def unauthenticated_call_accepted(history: AssociationHistory) -> Iterator[Violation]:
    """A call without authentication was answered MQ_OK; reported once per connection."""
    reported = set()
    for call in history.calls:
        if call.method[0] != QM2QM_NAME or call.method[1] in (7, 8) or not call.succeeded or not call["bind_seen"]:
            continue
        if (call["auth_level"] or 1) <= 1 and call["connection_id"] not in reported:
            reported.add(call["connection_id"])
            yield Violation(call, "MQ_OK without authentication")


@association_rule("R74", "the client reports that it is Vista or later, and in no workgroup", suspects=no_reads)
def open_below_privacy_level(history: AssociationHistory) -> Iterator[Violation]:
    """A queue was opened below the level PRIVACY, which the registry may allow; reported once per connection."""
    reported = set()
    for call in history.calls_of((REMOTE_READ_NAME, 2)):
        level, connection = call["auth_level"] or 1, call["connection_id"]
        modern = (call["version_major"] or 0) >= 6 and call["workgroup"] is False
        if modern and call.response_decoded and level < _PRIVACY_LEVEL and connection not in reported:
            reported.add(connection)
            yield Violation(call, f"authentication level {level}")


@association_rule(
    "R78",
    "RemoteQmGetVersion returned that the server is 2003",
    suspects=lambda calls: Suspects(
        calls.of(*_NEWER_METHODS)
        & calls.text_in("outcome", {"ok"})
        & calls.of_servers(lambda server: server.version == _2003, "2003")
    ),
)
def newer_method_answered(history: AssociationHistory) -> Iterator[Violation]:
    """A server of 2003 answered a method that was added later."""
    for call in history.calls_of(*_NEWER_METHODS):
        if history.server.version == _2003 and call["outcome"] == "ok":
            yield Violation(call, f"a response to opnum {call.method[1]}")


@complete_association_rule("R10", suspects=_calls_on_invalid_contexts)
def call_on_invalid_context(history: AssociationHistory) -> Iterator[Violation]:
    """A call uses a context that R_OpenQueue did not return, or that is closed."""
    for call in history.calls_of(*_METHODS_BY_CONTEXT):
        if not call.request_decoded:
            continue
        lifetime = history.context_lifetime(call)
        if lifetime is None:
            yield Violation(call, "a context that was never given")
        elif lifetime.open_call.method != (REMOTE_READ_NAME, 2):
            yield Violation(call, "a context of R_OpenQueueForMove", (lifetime.open_call, call))
        elif lifetime.closed_before(call.started_at):
            yield Violation(call, "a closed context", lifetime.calls_with_handle(call))


@complete_association_rule("R11", suspects=no_reads)
def close_of_invalid_context(history: AssociationHistory) -> Iterator[Violation]:
    """R_CloseQueue of a context that was never returned, or is closed."""
    for call, actual, evidence in _closes_of_invalid_contexts(history, (REMOTE_READ_NAME, 3), "context"):
        yield Violation(call, actual, evidence)


def _closes_of_invalid_contexts(
    history: AssociationHistory, method: tuple[str, int], thing: str
) -> Iterator[tuple[CapturedCall, str, tuple[CapturedCall, ...]]]:
    """Yield closes of a context handle that is NULL, was never returned, or is closed, with what is wrong and proof."""
    for call in history.calls_of(method):
        if not call.request_decoded:
            continue
        lifetime = history.context_lifetime(call) if call["context_handle"] is not None else None
        if call["context_handle"] is None:
            yield call, f"a NULL {thing}", (call,)
        elif lifetime is None:
            yield call, f"a {thing} that was never given", (call,)
        elif lifetime.close_call is not call and lifetime.closed_before(call.started_at):
            yield call, f"a closed {thing}", lifetime.calls_with_handle(call)


@complete_association_rule("R15", suspects=closes_of_contexts_with_reads)
def context_closed_during_reads(history: AssociationHistory) -> Iterator[Violation]:
    """A context is closed while reads on it wait, as Windows does."""
    reads = ConcurrentReads.by_key(history.calls_of(*REMOTE_READ_READS), lambda call: call["context_handle"])
    for call in history.calls_of((REMOTE_READ_NAME, 3)):
        before = reads.started_before(call["context_handle"], call.started_at) if call.succeeded else []
        waiting = [read for read in before if read.responded_at is not None and read.responded_at > call.started_at]
        if waiting:
            yield Violation(call, f"{len(waiting)} reads wait", (*waiting[:3], call))


@complete_association_rule("R17", suspects=no_reads)
def cursor_open_at_context_close(history: AssociationHistory) -> Iterator[Violation]:
    """A context is closed while a cursor is open, as Windows does."""
    for cursor in history.cursors:
        context = history.context_lifetime(cursor.open_call)
        close = context.close_call if context is not None else None
        if cursor.close_call is None and close is not None and close.started_at > cursor.opened_at:
            yield Violation(close, f"hCursor {cursor.open_call['cursor_handle']} is open", (cursor.open_call, close))


def _cursor_problem(history: AssociationHistory, call: CapturedCall) -> tuple[str, tuple[CapturedCall, ...]] | None:
    """Return why the cursor of a call is not open on its context, with the calls that show it; None where it is."""
    name = (call["context_handle"], call["cursor_handle"])
    lifetime = history.cursors.latest(name, call.responded_at if call.responded_at is not None else AFTER_ALL)
    if lifetime is None:
        return f"hCursor {name[1]} was never given", (call,)
    if lifetime.close_call is not call and lifetime.closed_before(call.started_at):
        return f"hCursor {name[1]} is closed", lifetime.calls_with_handle(call)
    return None


@complete_association_rule("R16", suspects=no_reads)
def close_of_invalid_cursor(history: AssociationHistory) -> Iterator[Violation]:
    """R_CloseCursor of a cursor that is not open on the context."""
    for call in history.calls_of((REMOTE_READ_NAME, 5)):
        problem = _cursor_problem(history, call) if call.request_decoded else None
        if problem is not None:
            yield violation_of_either(call, *problem)


@complete_association_rule(
    "R27",
    suspects=lambda calls: Suspects(
        calls.of(*REMOTE_READ_READS) & calls.request_decoded & calls.nonzero("cursor_handle")
    ),
)
def read_with_invalid_cursor(history: AssociationHistory) -> Iterator[Violation]:
    """A read with a cursor that is not open on the context."""
    for call in history.calls_of(*REMOTE_READ_READS):
        problem = _cursor_problem(history, call) if call.request_decoded and call["cursor_handle"] else None
        if problem is not None:
            yield violation_of_either(call, *problem)


def _calls_on_peek_contexts(
    history: AssociationHistory, *methods: tuple[str, int]
) -> Iterator[tuple[CapturedCall, CapturedCall]]:
    """Yield calls on a context that was opened with PEEK access only, each with the open."""
    for call in history.calls_of(*methods):
        lifetime = history.context_lifetime(call) if call.request_decoded else None
        opened = lifetime.open_call if lifetime is not None else None
        if opened is not None and opened.method == (REMOTE_READ_NAME, 2) and opened["access"] == PEEK_ACCESS:
            yield call, opened


@association_rule("R18", _OPEN_CAPTURED, suspects=no_reads)
def purge_with_peek_access(history: AssociationHistory) -> Iterator[Violation]:
    """R_PurgeQueue on a context that was opened with PEEK access."""
    for call, opened in _calls_on_peek_contexts(history, (REMOTE_READ_NAME, 6)):
        yield violation_of_either(call, f"opened with dwAccess {opened['access']}", (opened, call))


@association_rule(
    "R19",
    _OPEN_CAPTURED,
    suspects=lambda calls: Suspects(calls.of(*REMOTE_READ_READS) & calls.is_receive & _is_on_peek_context(calls)),
)
def receive_with_peek_access(history: AssociationHistory) -> Iterator[Violation]:
    """A receive on a context that was opened with PEEK access."""
    for call, opened in _calls_on_peek_contexts(history, *REMOTE_READ_READS):
        if call.is_receive:
            yield Violation(call, f"opened with dwAccess {opened['access']}", (opened, call))


@association_rule(
    "R20",
    _OPEN_CAPTURED,
    suspects=lambda calls: Suspects(
        calls.of((REMOTE_READ_NAME, 13), (REMOTE_READ_NAME, 14)) & _is_on_peek_context(calls)
    ),
)
def transactional_call_with_peek_access(history: AssociationHistory) -> Iterator[Violation]:
    """A transactional read, or an acknowledgement class, on a context that was opened with PEEK access."""
    for call, opened in _calls_on_peek_contexts(history, (REMOTE_READ_NAME, 13), (REMOTE_READ_NAME, 14)):
        yield Violation(call, f"opened with dwAccess {opened['access']}", (opened, call))


@association_rule("R56", "the opening of its context was captured completely", suspects=no_reads)
def move_without_receive_access(history: AssociationHistory) -> Iterator[Violation]:
    """A message is moved out of a context that was not opened with RECEIVE access."""
    for call in history.calls_of((REMOTE_READ_NAME, 10)):
        lifetime = history.context_lifetime(call) if call.request_decoded else None
        opened = lifetime.open_call if lifetime is not None else None
        if opened is not None and (opened.method != (REMOTE_READ_NAME, 2) or opened["access"] != RECEIVE_ACCESS):
            actual = f"opened by opnum {opened.method[1]} with dwAccess {opened['access']}"
            yield Violation(call, actual, (opened, call))


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


@complete_association_rule("R57", suspects=no_reads)
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


@association_rule("R58", "the openings of both queues were captured completely", suspects=no_reads)
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


def _calls_in_unenlisted_transactions(history: AssociationHistory, opnum: int) -> Iterator[CapturedCall]:
    """Yield calls of a method in a transaction that was not enlisted before them."""
    enlistments = history.server.enlistments
    for call in history.calls_of((REMOTE_READ_NAME, opnum)):
        name = call["transaction_id"]
        if not call.request_decoded or name is None:
            continue
        if all_certainly_after(enlistments.get(name, ()), call, call.started_at):
            yield call


_NOT_ENLISTED_BY_OTHERS: Final = "no other captured association enlisted it before"


@complete_association_rule("R61", _NOT_ENLISTED_BY_OTHERS, suspects=no_reads)
def move_in_unenlisted_transaction(history: AssociationHistory) -> Iterator[Violation]:
    """A move is part of a transaction that was not enlisted before."""
    for call in _calls_in_unenlisted_transactions(history, 10):
        yield violation_of_either(call, f"{call['transaction_id']}")


@complete_association_rule("R64", _NOT_ENLISTED_BY_OTHERS, suspects=_reads_in_unenlisted_transactions)
def read_in_unenlisted_transaction(history: AssociationHistory) -> Iterator[Violation]:
    """A read is part of a transaction that was not enlisted before."""
    for call in _calls_in_unenlisted_transactions(history, 13):
        yield Violation(call, f"{call['transaction_id']} was not enlisted before")


@complete_association_rule(
    "R73",
    "another captured association, which had ended, was given the handle",
    suspects=lambda calls: Suspects(calls.of(*_METHODS_BY_CONTEXT) & calls.succeeded & (calls.context < 0)),
)
def context_accepted_after_association_ended(history: AssociationHistory) -> Iterator[Violation]:
    """A context handle of another association, which had ended, was answered MQ_OK."""
    for call in history.calls_of(*_METHODS_BY_CONTEXT):
        if not call.succeeded or history.context_lifetime(call) is not None:
            continue
        opening = history.server.opening_call(REMOTE_READ_NAME, call["context_handle"])
        if opening is None or opening["connection_id"] in history.connections:
            continue
        ended_at = history.server.association_of(opening).ended_at
        if ended_at is not None and ended_at + clock_slack_us(opening, call) < call.started_at:
            yield Violation(call, "MQ_OK to a context whose connections are gone", (opening, call))


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
