"""Rules on qmcomm and qmcomm2, and on queues that several associations have open. No Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from pipeline.attempts.queue_opens import SharingMode, share_modes_conflict, sharing_mode
from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.findings.columns.call_history import AssociationHistory, CapturedCall, ServerHistory, clock_slack_us
from pipeline.findings.rules.handles import XP
from pipeline.findings.rules.qm2qm import ACCESS_DENIED, has_null_handle, is_valid_port
from pipeline.findings.rules.registry import (
    ViolatingCalls,
    Violation,
    association_call_rule,
    association_rule,
    call_rule,
    server_rule,
    violation_of_either,
)
from pipeline.findings.rules.remote_read import has_invalid_open_modes
from udfs.codes import result_name
from udfs.dcerpc.interfaces import QMCOMM_NAME, REMOTE_READ_NAME

_UNOPENABLE_PREFIXES: Final = ("DL=", "MULTICAST=", "DIRECT=HTTP")
_OBJECT_OPNUMS: Final = (7, 8, 9, 10, 11)  # opnums whose request begins with an OBJECT_FORMAT
_RESERVED_CURSOR: Final = 0x0B
_BOTH_OPENINGS: Final = (
    "both openings of the queue by one name were captured completely; the first was certainly still open"
)


@call_rule("C01", (QMCOMM_NAME, 2))
def remote_open_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The queue cannot be opened this way, or the access or share mode is not allowed."""
    named = calls.text_matches("queue_format_name", lambda name: not name.upper().startswith(_UNOPENABLE_PREFIXES))
    yield ViolatingCalls(~named, "format name {queue_format_name}", of_either=True)
    modes = "dwDesiredAccess {access}, dwShareMode {share_mode}"
    yield ViolatingCalls(has_invalid_open_modes(calls), modes, of_either=True)


@call_rule("C03", (QMCOMM_NAME, 2), needs="ok")
def returned_context_differs_from_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The returned pdwContext differs from phQueue."""
    wrong = calls.differs("open_context", "queue_handle")
    yield ViolatingCalls(wrong, "pdwContext {open_context}, phQueue {queue_handle}")


@association_call_rule(
    "C03", (QMCOMM_NAME, 2), needs="ok", precondition="RemoteQmGetVersion returned that the server is XP or later"
)
def returned_descriptor_differs_from_handle(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The returned dwpQueue differs from phQueue."""
    single = calls.of_server_since(XP) & ~calls.differs("open_context", "queue_handle")
    actual = "dwpQueue {queue_descriptor}, phQueue {queue_handle}"
    yield ViolatingCalls(single & calls.differs("queue_handle", "queue_descriptor"), actual)


@call_rule("C07", (QMCOMM_NAME, 19))
def open_with_incomplete_numbers(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """An open has some of the three numbers of the remote queue, but not all."""
    given = [calls.nonzero(name) for name in ("queue_handle", "queue_descriptor", "open_context")]
    wrong = np.logical_or.reduce(given) & ~np.logical_and.reduce(given)
    numbers = "hRemoteQueue {queue_handle}, dwpQueue {queue_descriptor}, dwpRemoteContext {open_context}"
    yield ViolatingCalls(wrong, numbers)


@call_rule("C08", (QMCOMM_NAME, 19), needs="ok")
def open_returned_name_and_handle(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A queue name was returned, and also a handle or a context."""
    handle = ~has_null_handle(calls, "context_handle") | calls.nonzero("queue_manager_context")
    yield ViolatingCalls(calls.has("remote_queue_name") & handle)


@call_rule("C10", (QMCOMM_NAME, 31), needs="headers")
def port_query_failed(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The query for the port was denied, or answered with a port that is not valid."""
    yield ViolatingCalls(calls.equals("fault_status", *ACCESS_DENIED), lambda call: call.fault_text)
    answered = calls.response_decoded & calls.nonzero("returned_port") & calls.has("port_type")
    yield ViolatingCalls(answered & ~is_valid_port(calls), "port {returned_port} for fIP {port_type}")


@call_rule("C11", (QMCOMM_NAME, 22), needs="answer")
def close_of_reserved_cursor_failed(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """Closing the cursor number that stands for no cursor failed."""
    wrong = calls.equals("cursor_handle", _RESERVED_CURSOR) & ~calls.succeeded & calls.has("hresult")
    yield ViolatingCalls(wrong, lambda call: result_name(call["hresult"]))


@call_rule("C12", *((QMCOMM_NAME, opnum) for opnum in _OBJECT_OPNUMS))
def object_is_not_a_queue(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The object is not a queue."""
    there, (kind,) = calls.stub_integers("request_head", calls.of_interfaces(QMCOMM_NAME), 0)
    yield ViolatingCalls(there & (kind != 1), "ObjType {}", (kind,))


@association_rule("C14", (QMCOMM_NAME, 19), complete=True)
def registry_not_queried_first(history: AssociationHistory) -> Iterator[Violation]:
    """A supporting server is used before R_QMQueryQMRegistryInternal; reported once per association."""
    first = next(iter(history.calls_of((QMCOMM_NAME, 19))), None)
    if first is not None and not any(
        call.started_at <= first.started_at for call in history.calls_of((QMCOMM_NAME, 28))
    ):
        yield Violation(first, "no R_QMQueryQMRegistryInternal before")


@dataclass(frozen=True, slots=True)
class _QueueOpening:
    """An opening of a queue: from its response until the first event that may have closed it."""

    call: CapturedCall
    opened_at: int
    open_until: int

    @property
    def mode(self) -> SharingMode:
        """What of access and share mode counts for other opens."""
        return sharing_mode(self.call["access"], self.call["share_mode"])

    def certainly_overlaps(self, later: _QueueOpening) -> bool:
        """Tell whether the queue was certainly open, by this opening, before and after a later one."""
        slack = clock_slack_us(self.call, later.call)
        return self.open_until > later.opened_at + slack and self.opened_at + slack < later.call.started_at


def _queue_openings(
    server: ServerHistory, opening: tuple[str, int], closing: tuple[str, int]
) -> Iterator[_QueueOpening]:
    """Yield the openings of a server, each with the time until which it was certainly open."""
    closes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for call in server.calls_of(closing):
        if call["context_handle"] is not None:
            closes[server.association_of(call).name, call["context_handle"]].append(call.started_at)
    for call in server.calls_of(opening):
        handle, opened_at = call["context_handle"], call.responded_at
        if not call.response_decoded or call.failed or handle is None or opened_at is None:
            continue
        association = server.association_of(call)
        place = bisect_right(closes[association.name, handle], opened_at)
        ends = closes[association.name, handle][place : place + 1]
        if association.ended_at is not None:
            ends.append(association.ended_at)
        yield _QueueOpening(call, opened_at, min(ends, default=server.lossless_until(call)))


def _in_order(openings: Iterable[_QueueOpening]) -> list[_QueueOpening]:
    """Return openings in order of time."""
    return sorted(openings, key=lambda opening: (opening.opened_at, opening.call["call_key"]))


def _conflicting_openings(openings: Iterable[_QueueOpening]) -> Iterator[Violation]:
    """Yield openings of a queue, by name, that the share mode of an earlier one forbids, or their own."""
    by_queue: defaultdict[str, list[_QueueOpening]] = defaultdict(list)
    for opening in _in_order(openings):
        if opening.call["queue"] is not None:
            by_queue[opening.call["queue"]].append(opening)
    for same_queue in by_queue.values():
        # Heaps, by the ends of openings.
        earlier: defaultdict[SharingMode, list[tuple[int, int, _QueueOpening]]] = defaultdict(list)
        for number, opening in enumerate(same_queue):
            conflicting = [held for mode, held in earlier.items() if share_modes_conflict(mode, opening.mode)]
            for held in conflicting:
                while held and held[0][0] <= opening.call.started_at:
                    heappop(held)
            found = (each for held in conflicting for *_, each in held if each.certainly_overlaps(opening))
            if (holder := next(found, None)) is not None:
                actual = f"the queue is open with dwShareMode {holder.call['share_mode']}"
                yield Violation(opening.call, actual, (holder.call, opening.call))
            heappush(earlier[opening.mode], (opening.open_until, number, opening))


@server_rule("R08", _BOTH_OPENINGS)
def open_accepted_despite_share_mode(server: ServerHistory) -> Iterator[Violation]:
    """A queue was opened although the share mode of an earlier open, or its own, forbids that."""
    yield from _conflicting_openings(_queue_openings(server, (REMOTE_READ_NAME, 2), (REMOTE_READ_NAME, 3)))


@server_rule("C02", _BOTH_OPENINGS)
def open_accepted_despite_exclusive_open(server: ServerHistory) -> Iterator[Violation]:
    """A queue was opened although another open has it for exclusive use."""
    for violation in _conflicting_openings(_queue_openings(server, (QMCOMM_NAME, 2), (QMCOMM_NAME, 3))):
        if violation.evidence[0]["share_mode"] == 1:
            yield violation


@server_rule("C04", "both openings were captured completely; the first was certainly still open")
def queue_number_returned_while_open(server: ServerHistory) -> Iterator[Violation]:
    """An open returned the queue number of a queue that is open."""
    last: dict[int, _QueueOpening] = {}
    for opening in _in_order(_queue_openings(server, (QMCOMM_NAME, 2), (QMCOMM_NAME, 3))):
        call, number = opening.call, opening.call["queue_handle"]
        before = last.get(number)
        if number and before is not None and before.certainly_overlaps(opening):
            yield Violation(call, f"phQueue {number} is open", (before.call, call))
        last[number] = opening


@server_rule(
    "C05", "the association of the call opened queues itself, and was captured from its beginning without a gap"
)
def cursor_on_unknown_queue(server: ServerHistory) -> Iterator[Violation]:
    """A cursor is created on a queue number that was returned to no captured association."""
    opens = server.calls_of((QMCOMM_NAME, 2))
    if any(not call.response_decoded and not call.failed for call in opens):
        return
    openers = {server.association_of(call).name for call in opens}
    for call in server.calls_of((QMCOMM_NAME, 4)):
        association = server.association_of(call)
        complete = association.beginning_seen and server.lossless_until(call) > 0
        known = association.name not in openers or call["queue_handle"] in server.remote_queue_opens
        if complete and call.request_decoded and not known:
            yield violation_of_either(call, f"hQueue {call['queue_handle']} was never given")
