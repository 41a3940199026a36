"""Finds what became of each call of one server that opens a queue. Plain rows; no Spark.

A queue is opened by an application at its own queue manager (rpc_QMOpenQueueInternal, [MS-MQMP] 3.1.4.17), by an
application at another one (R_QMOpenRemoteQueue, 3.1.4.2) whose supporting server then opens the number that this
returned (RemoteQMOpenQueue, [MS-MQQP] 3.1.4.3), and by a queue manager (R_OpenQueue and R_OpenQueueForMove,
[MS-MQRR] 3.1.4.2, 3.1.4.11).

* It is open from the answer until the first close with its context handle that was accepted, or the end of its
  association ([C706] 9.3): the server then runs the handle down. What R_QMOpenRemoteQueue opened is open as long as
  the session that RemoteQMOpenQueue made of it (D17).
* An open is refused with MQ_ERROR_SHARING_VIOLATION while an open of the same queue forbids it by its access and share
  mode, or is forbidden by its own ([MS-MQDMPR] 3.1.7.1.5, R08).

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import OPEN_ROLES, CallRole, DecodedCall
from pipeline.attempts.calls.timeline import Timeline
from pipeline.attempts.evidence import CallConclusion, ServerCalls, confidence_level
from udfs.codes import DENY_SHARE, MQ_ERROR_SHARING_VIOLATION, PEEK_ACCESS, RECEIVE_ACCESS
from udfs.columns.absent import AFTER_ALL

_OPENINGS: Final[tuple[CallRole, ...]] = ("name", "open", "target", "proxy")
_CLOSES: Final[tuple[CallRole, ...]] = ("release", "close", "proxy_close")


class OpenStep(NamedTuple):
    """A step of a remote open: whether it was seen, the key of its call, and its time."""

    step: str
    seen: bool
    call_key: str | None = None
    at: int | None = None


@dataclass(slots=True)
class QueueOpen(CallConclusion):
    """One call that opens a queue, and what became of that.

    ``until``: when it had certainly ended, None where that was not seen; ``remote_open``: of RemoteQMOpenQueue the
    R_QMOpenRemoteQueue that returned its number; ``port_call``: the answer that named the port it came to.
    """

    queue: str | None = None
    closed_at: int | None = None
    until: int | None = None
    ended_by: str | None = None
    cursors: int | None = None
    remote_open: DecodedCall | None = None
    port_call: DecodedCall | None = None
    bound_at: int | None = None
    blocked_by: list[QueueOpen] = field(default_factory=list)
    blocks: list[QueueOpen] = field(default_factory=list)

    @property
    def role(self) -> CallRole:
        """What the call does: name, open, target, proxy."""
        return OPEN_ROLES[self.call.protocol, self.call.opnum]

    @property
    def asked(self) -> DecodedCall | None:
        """The call that asked for the queue by name, with access and share mode; None where it was not seen."""
        return self.remote_open if self.call.protocol == "qm2qm" else self.call

    @property
    def outcome(self) -> str:
        """opened, refused, referred, or unknown: the answer was not captured, or cannot be read."""
        if self.call.is_refused:
            return "refused"
        if self.call.responded_at is not None and self.call.context_handle:
            return "opened"
        return "referred" if self.role == "proxy" and self.call.is_accepted and not self.call.errors else "unknown"

    @property
    def is_sharing_violation(self) -> bool:
        """Whether it was refused because of another open of the queue."""
        return self.call.result == MQ_ERROR_SHARING_VIOLATION

    @property
    def holds_queue(self) -> bool:
        """Whether it can block others: what another host's queue is opened through here, or a session, does not."""
        is_stand_in = self.role == "proxy" and bool(self.call.queue_handle)
        return self.outcome == "opened" and self.call.protocol != "qm2qm" and not is_stand_in

    @property
    def steps(self) -> list[OpenStep] | None:
        """The sequence of a remote open ([MS-MQQP] 3.2.4.1), each step seen or not; None for other opens."""
        if self.role != "open":
            return None
        number, port, call = self.remote_open, self.port_call, self.call
        named = OpenStep("number", number is not None, *_place(number))
        opened = (call.call_key, call.captured_response_at) if self.outcome == "opened" else (None, None)
        return [
            *([named] if call.protocol == "qm2qm" else []),
            OpenStep("port", port is not None, *_place(port)),
            OpenStep("binding", self.bound_at is not None, None, self.bound_at),
            OpenStep("open", self.outcome == "opened", *opened),
        ]

    @property
    def confidence(self) -> str:
        """How certain the row is, by what is missing."""
        return confidence_level(self.missing, guessed=False)


def _place(call: DecodedCall | None) -> tuple[str | None, int | None]:
    return (None, None) if call is None else (call.call_key, call.captured_response_at)


SharingMode: TypeAlias = tuple[int | None, int | None]


def sharing_mode(access: int | None, share_mode: int | None) -> SharingMode:
    """Return what of an open's access and share mode forbids other opens, or is forbidden by them: few values."""
    if access is None or share_mode is None:
        return None, None
    return access & _READS, DENY_SHARE if share_mode == DENY_SHARE else 0


def share_modes_conflict(held: SharingMode, asked: SharingMode) -> bool:
    """Return whether an open forbids another one of the same queue ([MS-MQDMPR] 3.1.7.1.5, R08).

    Both are pairs of access and share mode; one that is not known, or that reads nothing, forbids nothing.
    """
    (held_access, held_share), (access, share) = held, asked
    if held_access is None or held_share is None or access is None or share is None:
        return False
    if not (held_access & _READS and access & _READS):
        return False
    holder_receives, receives = held_access & RECEIVE_ACCESS, access & RECEIVE_ACCESS
    if held_share == DENY_SHARE:
        return bool(receives or (holder_receives and share == DENY_SHARE))
    return bool(holder_receives and share == DENY_SHARE)


_READS: Final = RECEIVE_ACCESS | PEEK_ACCESS


def find_opens(
    calls: Iterable[DecodedCall],
    connections: Iterable[RpcConnection],
    *,
    ports: Callable[[DecodedCall], int | None] = lambda _call: None,
    canonical: Callable[[str | None], str | None] = lambda queue: queue,
) -> list[QueueOpen]:
    """Return what became of each opening call of one server, in order of (time, call key).

    ``ports`` returns the server's port that a call came to, ``canonical`` the canonical name of a queue.
    """
    server = ServerCalls(calls, connections, OPEN_ROLES)
    opens = _ServerOpens(server, ports)
    _find_blockers(opens.found, canonical)
    server.add_gaps(opens.found)
    return opens.found


class _ServerOpens:
    """The opens of one server: from when to when, and the calls that belong to them."""

    def __init__(self, server: ServerCalls, ports: Callable[[DecodedCall], int | None]) -> None:
        self._server = server
        self._closes = Timeline[DecodedCall]()  # by handle: those that were not refused
        self._given = Timeline[DecodedCall]()  # by handle: the answers that returned it
        self._cursors = Timeline[DecodedCall]()  # by handle, or queue number
        self._ports = Timeline[DecodedCall]()  # by client, protocol and port
        roles = server.by_role
        for call in _in_order(call for role in _CLOSES for call in roles[role]):
            if not call.is_refused and call.context_handle and call.requested_at is not None:
                self._closes.add(self._handle(call), call, call.requested_at)
        for call in roles["cursor"]:
            if call.is_accepted:
                self._cursors.add(self._cursor_owner(call), call, call.at)
        for call in roles["port"]:
            if call.returned_port and call.responded_at is not None:
                self._ports.add((self._client(call), call.protocol, call.returned_port), call, call.at)
        self.found = [QueueOpen(call) for call in _in_order(call for role in _OPENINGS for call in roles[role])]
        opened = [each for each in self.found if each.outcome == "opened"]
        for each in sorted(opened, key=lambda each: (each.call.responded_at or 0, each.call.call_key)):
            self._given.add(self._handle(each.call), each.call, each.call.responded_at or 0)
        for each in opened:
            self._find_end(each)
        self._adopt()
        for each in self.found:
            self._find_queue(each)
            self._find_beginning(each, ports)
            if each.outcome == "opened":
                each.cursors = self._count_cursors(each)

    def _handle(self, call: DecodedCall) -> Hashable:
        return self._server.association_of(call).name, call.protocol, call.context_handle

    def _client(self, call: DecodedCall) -> str | None:
        connection = self._server.connections.get(call.connection_id)
        return None if connection is None else connection.client_address

    def _cursor_owner(self, call: DecodedCall) -> Hashable:
        """Return the handle, or the number at its owner, of the queue that a cursor is created on."""
        if call.protocol == "qmcomm":
            return call.queue_handle
        protocol = "qmcomm" if call.protocol == "qmcomm2" else call.protocol
        return self._server.association_of(call).name, protocol, call.context_handle

    def _find_end(self, opened: QueueOpen) -> None:
        """Set how and when the context handle of an open ended."""
        call, server = opened.call, self._server
        since, handle = call.responded_at or call.at, self._handle(call)
        close, again = self._closes.first_after(handle, since), self._given.first_after(handle, since)
        ended = server.association_of(call).ended_at
        if again is not None:  # given to somebody else: it had been closed
            ended = again.responded_at if ended is None else min(ended, again.responded_at or ended)
        if close is not None and (ended is None or close.at <= ended):
            opened.used_calls.append(close)
            if close.responded_at is not None:
                opened.ended_by, opened.closed_at = "closed", close.captured_response_at
                opened.until = close.responded_at
            else:
                opened.ended_by, opened.until = "unknown", ended
            return
        opened.until = ended
        if again is not None and ended == again.responded_at:
            opened.ended_by = "unknown"
            opened.missing.add("no_close")
        elif server.has_gaps(call) or call.connection_id not in server.connections:
            opened.ended_by = "unknown"
            opened.missing.add("capture_loss")
        elif server.may_share_association(call, since, ended if ended is not None else AFTER_ALL):
            opened.ended_by = "unknown"
            opened.missing.add("capture_begins")
        elif ended is None:
            opened.ended_by = "open"
        else:
            grouped = bool(server.connections[call.connection_id].association_group_id)
            opened.ended_by, opened.closed_at = "rundown" if grouped else "connection_ended", ended

    def _adopt(self) -> None:
        """Let what applications opened by number end with the sessions that were made of it."""
        by_key = {each.call.call_key: each for each in self.found}
        sessions: defaultdict[str, list[QueueOpen]] = defaultdict(list)
        for each in self.found:
            if each.call.protocol != "qm2qm":
                continue
            each.remote_open = self._server.handles.find_remote_open(each.call)
            if each.remote_open is not None and each.outcome == "opened":
                sessions[each.remote_open.call_key].append(each)
        for name, adopting in sessions.items():
            first = min(
                adopting, key=lambda each: (AFTER_ALL if each.until is None else each.until, each.call.call_key)
            )
            number = by_key[name]
            number.ended_by, number.closed_at, number.until = first.ended_by, first.closed_at, first.until
            number.used_calls = [first.call, *first.used_calls]
            number.missing = {*first.missing}

    def _find_queue(self, opened: QueueOpen) -> None:
        asked = opened.asked
        if asked is not None and asked is not opened.call:
            opened.used_calls.append(asked)
        opened.queue = None if asked is None else asked.queue
        if asked is None:
            opened.missing |= {"no_open", "queue_unknown"}
        elif opened.queue is None:
            opened.missing.add("queue_unknown")

    def _find_beginning(self, opened: QueueOpen, ports: Callable[[DecodedCall], int | None]) -> None:
        """Set the port query and the binding that came before a remote open."""
        call = opened.call
        opened.port_call = self._ports.latest((self._client(call), call.protocol, ports(call)), call.at)
        connection = self._server.connections.get(call.connection_id)
        if call.bind_seen and connection is not None:
            opened.bound_at = connection.first_packet_at

    def _count_cursors(self, opened: QueueOpen) -> int:
        until = AFTER_ALL if opened.until is None else opened.until
        owner = opened.call.queue_handle if opened.role == "name" else self._handle(opened.call)
        return len(self._cursors.between(owner, opened.call.responded_at or 0, until))


def _in_order(calls: Iterable[DecodedCall]) -> list[DecodedCall]:
    return sorted(calls, key=lambda call: (call.at, call.call_key))


def _find_blockers(opens: Iterable[QueueOpen], canonical: Callable[[str | None], str | None]) -> None:
    """Set which opens blocked which; ``opens`` are in order of time.

    A holder may have been given its handle after the other asked: what counts is when both asked.
    """
    by_queue: defaultdict[str, list[QueueOpen]] = defaultdict(list)
    for each in opens:
        name = canonical(each.queue)
        if name is not None:
            by_queue[name].append(each)
        elif each.is_sharing_violation:
            each.missing.add("no_open")
    for same_queue in by_queue.values():
        if not any(each.is_sharing_violation for each in same_queue):
            continue
        holders = _Holders()
        for each in same_queue:
            holders.forget_ended(each.call.at)
            if each.is_sharing_violation:
                _note_blockers(each, holders)
            elif each.holds_queue:
                holders.add(each)


class _Holders:
    """The opens that hold a queue, in order of time."""

    def __init__(self) -> None:
        self._by_mode: defaultdict[SharingMode, dict[int, QueueOpen]] = defaultdict(dict)
        self._ends: list[tuple[int, int, SharingMode]] = []
        self._added = 0

    def add(self, holder: QueueOpen) -> None:
        self._added += 1
        mode = sharing_mode(holder.call.access, holder.call.share_mode)
        self._by_mode[mode][self._added] = holder
        if holder.until is not None:
            heappush(self._ends, (holder.until, self._added, mode))

    def forget_ended(self, at: int) -> None:
        while self._ends and self._ends[0][0] <= at:
            _, number, mode = heappop(self._ends)
            del self._by_mode[mode][number]

    def blocking(self, asked: DecodedCall) -> list[QueueOpen]:
        """Return those that forbid an open: the first ``_MAX_BLOCKERS``."""
        asking = sharing_mode(asked.access, asked.share_mode)
        conflicting = (held for mode, held in self._by_mode.items() if share_modes_conflict(mode, asking))
        return [holder for _, holder in islice(merge(*(held.items() for held in conflicting)), _MAX_BLOCKERS)]


_MAX_BLOCKERS: Final = 100


def _note_blockers(refused: QueueOpen, holders: _Holders) -> None:
    for holder in holders.blocking(refused.call):
        refused.blocked_by.append(holder)
        refused.used_calls.append(holder.call)
        holder.blocks.append(refused)
    if all(holder.ended_by == "unknown" for holder in refused.blocked_by):  # or there is none
        refused.missing |= {"no_open"}.union(*(holder.missing for holder in refused.blocked_by))
