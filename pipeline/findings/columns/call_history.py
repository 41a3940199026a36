"""Calls, associations and servers as the conformance rules see them, with the lifetimes of handles. No Spark.

Times are microseconds since the epoch, UTC. Rules trust only what was read completely. A request or response that was
cut, is sealed, or does not decode proves nothing, and rules that depend on it are not evaluated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, ClassVar, Final, TypeVar

from pipeline.attempts.calls.associations import ClientAssociation
from pipeline.attempts.calls.decoded_call import CLOCK_TOLERANCE_US
from udfs.call_results import call_succeeded
from udfs.codes import is_peek_action, result_name
from udfs.columns.absent import AFTER_ALL
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

QM2QM_READS: Final = ((QM2QM_NAME, 0), (QM2QM_NAME, 9), (QM2QM_NAME, 10))
REMOTE_READ_READS: Final = ((REMOTE_READ_NAME, 7), (REMOTE_READ_NAME, 13))
READ_METHODS: Final = {*QM2QM_READS, *REMOTE_READ_READS}
OPEN_METHODS: Final = {
    (QM2QM_NAME, 2),
    (REMOTE_READ_NAME, 2),
    (REMOTE_READ_NAME, 11),
    (QMCOMM_NAME, 2),
    (QMCOMM_NAME, 19),
}
CLOSE_METHODS: Final = {
    (QM2QM_NAME, 3): QM2QM_NAME,
    (REMOTE_READ_NAME, 3): REMOTE_READ_NAME,
    (QMCOMM_NAME, 3): QMCOMM_NAME,
    (QMCOMM_NAME, 20): QMCOMM_NAME,
}
"""Methods by (interface, opnum) that read, open and close; a close with the interface whose handle it closes."""
LOOKUP_ID_NUMBER_MASK: Final = (1 << 56) - 1
TIMER_SLACK_US: Final = 3_000_000  # timers tick once a second, and packets take time (rules Q64, R45)
CLEANUP_TIMEOUT_US: Final = 300_000_000  # after which a server gives up a receive that is not ended (rule R72)
UNREADABLE_OUTCOMES: Final = {"damaged", "no_request", "unbound", "encrypted"}
_OPNUM_OUT_OF_RANGE: Final = 0x1C010002  # the fault status nca_s_op_rng_error


Result = TypeVar("Result")


class CapturedCall(dict[str, Any]):
    """One RPC call: a row of bronze.rpc_calls with the columns that silver decoded. ``call[name]`` is None without one.

    ``request_decoded``: the request was captured and decoded completely. ``response_decoded``: the response was too,
    and is no fault. ``succeeded``: the response's result is that of a success. ``started_at`` is the time of the
    request, or of the response where the request was not captured. ``responded_at`` is the time of the response, or
    None. Both are times of one clock for all calls of a connection (column ``clocks``).
    """

    __slots__ = ("method", "request_decoded", "responded_at", "response_decoded", "started_at", "succeeded")

    # Rules look at columns more often than at anything else: a dictionary gives them fastest.
    __missing__: ClassVar[Callable[..., Any]] = {}.get
    __eq__ = object.__eq__  # a call equals itself alone
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, row: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """``row`` has outcome, and of the other columns at least those that are not null."""
        super().__init__(row)
        outcome, opnum = self["outcome"], self["opnum"]
        self.method: tuple[str, int] = (self["interface_name"] or "", -1 if opnum is None else opnum)
        asked_at, answered_at = self["request_at"], self["response_at"]
        if (clocks := self["clocks"]) is not None:
            request_ahead, response_ahead = clocks["request_ahead_us"] or 0, clocks["response_ahead_us"] or 0
            asked_at = None if asked_at is None else asked_at - request_ahead
            answered_at = None if answered_at is None else answered_at - response_ahead
            given_up = {name: self[name] for name in ("cancelled_at", "orphaned_at") if self[name] is not None}
            self.update({name: at - request_ahead for name, at in given_up.items()})
        self.started_at: int = asked_at if asked_at is not None else answered_at or 0
        self.responded_at: int | None = answered_at
        errors = self["errors"]
        wrong = {str(error["field"] or "").split(".", 1)[0] for error in errors} if errors else ()
        closed = bool(self["sealed"]) and self["opened_by"] is None
        readable = self["bind_seen"] is not False and outcome not in UNREADABLE_OUTCOMES and not closed
        self.request_decoded = readable and asked_at is not None and "request" not in wrong
        self.response_decoded = self.request_decoded and outcome == "ok" and "response" not in wrong
        self.succeeded = self.response_decoded and call_succeeded(self.method[0], self["hresult"]) is True

    @property
    def seen_by_taps(self) -> bool:
        """Several taps saw the connection: times of its other packets are of clocks that differ."""
        return self["clocks"] is not None

    @property
    def fault_status(self) -> int | None:
        """The status of the fault that answered the call; None without a fault."""
        status: int | None = self["fault_status"]
        return status

    @property
    def fault_text(self) -> str:
        """The fault that answered the call, as findings name it."""
        return f"fault {result_name(self.fault_status or 0)}"

    @property
    def failed(self) -> bool:
        """The response was seen, and is a fault, or has the result of a call that did not succeed."""
        unsuccessful = call_succeeded(self.method[0], self["hresult"]) is False
        return self.fault_status is not None or (self.response_decoded and unsuccessful)

    @property
    def is_peek(self) -> bool:
        """The call is a read that leaves the message in the queue."""
        return self["action"] is not None and is_peek_action(self["action"])

    @property
    def is_receive(self) -> bool:
        """The call is a read that takes the message."""
        return self["action"] is not None and not is_peek_action(self["action"])

    @property
    def lookup_id_number(self) -> int | None:
        """The low 56 bits that number the returned message in its queue.

        None where no message was returned, or where the method does not return the number.
        """
        number = self["sequence_id"]
        return int(number) & LOOKUP_ID_NUMBER_MASK or None if self.succeeded and number is not None else None

    @property
    def requested_lookup_id(self) -> int:
        """The LookupId of the request; 0 without one."""
        return int(self["lookup_id"] or 0)


@dataclass(slots=True)
class HandleLifetime:
    """The time in which a handle is valid, from the response that returned it to the call that closed it."""

    open_call: CapturedCall
    opened_at: int
    close_call: CapturedCall | None = None

    @property
    def open_until(self) -> int:
        """The time until which the handle may be open: its close was answered then."""
        answered_at = None if self.close_call is None else self.close_call.responded_at
        return AFTER_ALL if answered_at is None else answered_at

    def closed_before(self, time: int) -> bool:
        """Tell whether the handle was certainly closed before a time."""
        return self.open_until < time


def clock_slack_us(one: CapturedCall, other: CapturedCall) -> int:
    """Return by how much the times of two calls must differ so that their order is certain.

    The clocks of taps are related within a connection only.
    """
    by_taps = one.seen_by_taps or other.seen_by_taps
    return CLOCK_TOLERANCE_US if by_taps and one["connection_id"] != other["connection_id"] else 0


def all_certainly_after(calls: Iterable[CapturedCall], other: CapturedCall, time: int) -> bool:
    """Tell whether calls, given in order of time, were all certainly made after a time of another call."""
    near = takewhile(lambda call: call.started_at <= time + CLOCK_TOLERANCE_US, calls)
    return all(call.started_at > time + clock_slack_us(call, other) for call in near)


class HandleLifetimes:
    """The lifetimes of handles, by handle. A handle that is returned again has several lifetimes."""

    def __init__(self) -> None:
        self._by_handle: defaultdict[Any, list[HandleLifetime]] = defaultdict(list)  # in order of opened_at
        self._unclosed: defaultdict[Any, list[HandleLifetime]] = defaultdict(list)  # likewise

    def record_open(self, handle: object, call: CapturedCall) -> HandleLifetime:
        """Add a lifetime that begins with the response of a call."""
        lifetime = HandleLifetime(call, call.responded_at if call.responded_at is not None else call.started_at)
        for lifetimes in (self._by_handle[handle], self._unclosed[handle]):
            insort(lifetimes, lifetime, key=_opened_at)
        return lifetime

    def record_close(self, handle: object, call: CapturedCall) -> HandleLifetime | None:
        """Close the newest open lifetime that began before the call was made, and return it."""
        lifetimes = self._unclosed.get(handle, [])
        place = bisect_right(lifetimes, call.started_at, key=_opened_at)
        if place == 0:
            return None
        lifetime = lifetimes.pop(place - 1)
        lifetime.close_call = call
        return lifetime

    def latest(self, handle: object, time: int = AFTER_ALL) -> HandleLifetime | None:
        """Return the newest lifetime that began at a time or before."""
        lifetimes = self._by_handle.get(handle, ())
        place = bisect_right(lifetimes, time, key=_opened_at)
        return lifetimes[place - 1] if place else None

    def __iter__(self) -> Iterator[HandleLifetime]:
        for lifetimes in self._by_handle.values():
            yield from lifetimes

    def items(self) -> Iterator[tuple[Any, HandleLifetime]]:
        """Yield each handle with each of its lifetimes."""
        for handle, lifetimes in self._by_handle.items():
            for lifetime in lifetimes:
                yield handle, lifetime


def _opened_at(lifetime: HandleLifetime) -> int:
    return lifetime.opened_at


def has_losses(connections: Iterable[Mapping[str, Any]], association: ClientAssociation) -> bool:
    """Whether packets of an association are missing: on its connections, or on one that may be of it too."""
    return association.may_have_more or any(row["missing_bytes"] for row in connections)


class AssociationHistory:
    """The calls of one association in order of time, and the lifetimes of the handles that they opened and closed.

    ``connections`` are the association's rows of bronze.connections, by connection id. ``binds`` are its rows of
    bronze.rpc_binds. ``has_unreadable_calls``: calls of the association that are not in ``calls`` could not be read.
    ``is_complete``: the association was captured from its beginning without a gap, and all its calls were read.
    ``is_lossless``: no packets are missing.
    """

    def __init__(
        self,
        calls: Iterable[CapturedCall],
        connections: Sequence[Mapping[str, Any]],
        association: ClientAssociation,
        *,
        binds: Sequence[Mapping[str, Any]] = (),
        server: ServerHistory | None = None,
        has_unreadable_calls: bool = False,
        latest_by_taps: int = 0,
    ) -> None:
        """``latest_by_taps``: when the last call of several taps ended, where it is not among ``calls``."""
        self.calls = sorted(calls, key=lambda call: (call.started_at, call["call_key"]))
        self.connections = {row["connection_id"]: row for row in connections}
        self.binds = binds
        self.server = server if server is not None else ServerHistory((), {})
        self.association = association
        # The last call of a connection that several taps saw may be of another clock than its last packet.
        ends = (call.responded_at or call.started_at for call in self.calls if call.seen_by_taps)
        latest: int = max([latest_by_taps, *ends])
        self.ended_at = None if association.ended_at is None else max(association.ended_at, latest)
        self.closed_by_fin = self.ended_at is not None and all(row["closed_by"] == "fin" for row in connections)
        self.last_packet_at: int = max([latest, *(row["last_packet_at"] for row in connections)])
        self.is_lossless = bool(connections) and not has_losses(connections, association)
        all_read = not (has_unreadable_calls or any(call["outcome"] in UNREADABLE_OUTCOMES for call in self.calls))
        all_openings_known = all(
            call.response_decoded or call.failed for call in self.calls if call.method in OPEN_METHODS
        )
        self.is_complete = association.beginning_seen and self.is_lossless and all_read and all_openings_known
        self.context_handles = HandleLifetimes()  # by (interface, handle)
        self.sessions = HandleLifetimes()  # of qm2qm, by number
        self.cursors = HandleLifetimes()  # of RemoteRead, by (handle, number)
        self._calls_by_method: defaultdict[tuple[str, int], list[CapturedCall]] = defaultdict(list)
        self._shared: dict[object, Any] = {}
        for call in self.calls:
            self._calls_by_method[call.method].append(call)
        self._track_handles()

    def share(self, name: object, compute: Callable[[], Result]) -> Result:
        """Return a result that rules and calls share; it is computed once."""
        if name not in self._shared:
            self._shared[name] = compute()
        found: Result = self._shared[name]
        return found

    def calls_of(self, *methods: tuple[str, int]) -> list[CapturedCall]:
        """Return the calls of these methods, in order of time."""
        if len(methods) == 1:
            return self._calls_by_method.get(methods[0], [])
        return [call for call in self.calls if call.method in methods]

    def has_calls_of(self, *methods: tuple[str, int]) -> bool:
        """Whether there is a call of one of these methods."""
        return not self._calls_by_method.keys().isdisjoint(methods)

    def _track_handles(self) -> None:
        """Record all lifetimes: first the openings in order of their responses, then what closes them."""
        for call in sorted(self.calls, key=lambda call: (call.responded_at or call.started_at, call["call_key"])):
            self._record_opening(call)
        for call in self.calls:
            self._record_closing(call)

    def _record_opening(self, call: CapturedCall) -> None:
        if not call.response_decoded:
            return
        if call.method in OPEN_METHODS and call["context_handle"] is not None and not call.failed:
            self.context_handles.record_open((call.method[0], call["context_handle"]), call)
            if call.method == (QM2QM_NAME, 2):
                for number in {call["queue_handle"], call["open_context"]}:
                    self.sessions.record_open(number, call)
        elif call.method == (REMOTE_READ_NAME, 4) and call.succeeded:
            self.cursors.record_open((call["context_handle"], call["cursor_handle"]), call)

    def _record_closing(self, call: CapturedCall) -> None:
        accepted = call.succeeded or (call.method == (QMCOMM_NAME, 3) and call.response_decoded)
        if call.method in CLOSE_METHODS and accepted:
            lifetime = self.context_handles.record_close((CLOSE_METHODS[call.method], call["context_handle"]), call)
            if lifetime is not None and call.method == (QM2QM_NAME, 3):
                for number in {lifetime.open_call["queue_handle"], lifetime.open_call["open_context"]}:
                    self.sessions.record_close(number, call)
        elif call.method == (REMOTE_READ_NAME, 5) and call.succeeded:
            self.cursors.record_close((call["context_handle"], call["cursor_handle"]), call)

    def context_lifetime(self, call: CapturedCall) -> HandleLifetime | None:
        """Return the newest lifetime of the context handle that a call uses, begun before the call."""
        return self.context_handles.latest((call.method[0], call["context_handle"]), call.started_at)

    @property
    def openings_cutoff(self) -> int:
        """The time after which another association's openings cannot explain calls of this one.

        That is the last packet of this association, plus the tolerance for clocks.
        """
        return self.last_packet_at + CLOCK_TOLERANCE_US


class ServerHistory:
    """The opening and closing calls of all associations of one server (the methods in ``OPEN_AND_CLOSE_METHODS``).

    ``associations`` maps a connection id to its association. ``lossless_until`` maps an association's name to the time
    of its last packet, or to 0 where packets are missing.
    """

    def __init__(
        self,
        calls: Iterable[CapturedCall],
        associations: Mapping[str, ClientAssociation],
        lossless_until: Mapping[str, int] | None = None,
    ) -> None:
        self._lossless_until = lossless_until or {}
        found: defaultdict[tuple[str, int], list[CapturedCall]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: (call.started_at, call["call_key"])):
            found[call.method].append(call)
        self._calls_by_method = found
        self.associations = associations
        self.remote_queue_opens: defaultdict[int, list[CapturedCall]] = defaultdict(list)  # by phQueue of the response
        for call in found[QMCOMM_NAME, 2]:
            if call.succeeded and call["queue_handle"]:
                self.remote_queue_opens[call["queue_handle"]].append(call)
        self.session_opens: defaultdict[int, list[CapturedCall]] = defaultdict(list)  # by both numbers of the request
        for call in found[QM2QM_NAME, 2]:
            if call.succeeded or (call.request_decoded and not call.response_decoded and not call.failed):
                for number in {call["queue_handle"], call["open_context"]} - {None}:
                    self.session_opens[number].append(call)
        self._cursor_creations: defaultdict[tuple[int, int], list[CapturedCall]] = defaultdict(list)
        for call in found[QMCOMM_NAME, 4]:
            if call.succeeded:
                self._cursor_creations[call["queue_handle"], call["cursor_handle"]].append(call)
        self._opening_calls: dict[tuple[str, str], CapturedCall] = {}
        for call in (*found[REMOTE_READ_NAME, 2], *found[REMOTE_READ_NAME, 11], *found[QM2QM_NAME, 2]):
            if call.response_decoded and call["context_handle"] is not None:
                self._opening_calls.setdefault((call.method[0], call["context_handle"]), call)
        self.enlistments: defaultdict[str, list[CapturedCall]] = defaultdict(list)  # by transaction id
        for call in found[REMOTE_READ_NAME, 12]:
            if not call.failed and call["transaction_id"] is not None:
                self.enlistments[call["transaction_id"]].append(call)
        self._version_answers = [
            call for call in found[QM2QM_NAME, 8] if call.response_decoded and call["version_major"] is not None
        ]
        self._version_rejections = [call for call in found[QM2QM_NAME, 8] if call.fault_status == _OPNUM_OUT_OF_RANGE]

    def calls_of(self, *methods: tuple[str, int]) -> list[CapturedCall]:
        """Return the calls of these methods: one method after the other, each in order of time."""
        return [call for method in methods for call in self._calls_by_method.get(method, ())]

    def session_opens_before(self, queue_number: int, time: int) -> list[CapturedCall]:
        """Return the RemoteQMOpenQueue calls with a queue number that were made before a time."""
        return _calls_before(self.session_opens.get(queue_number, ()), time)

    def remote_queue_opens_before(self, queue_number: int | None, time: int) -> list[CapturedCall]:
        """Return the R_QMOpenRemoteQueue calls made before a time whose response returned this phQueue."""
        return _calls_before(self.remote_queue_opens.get(queue_number or 0, ()), time)

    def has_remote_queue_opens_before(self, time: int, queue_number: int | None = None) -> bool:
        """Tell whether any R_QMOpenRemoteQueue made before a time returned a queue number, or any of them."""
        given = self.remote_queue_opens
        found = given.values() if queue_number is None else [given[queue_number]] if queue_number in given else []
        return any(calls[0].started_at < time for calls in found)

    def cursor_creations_before(self, queue_number: int, cursor: int, time: int) -> list[CapturedCall]:
        """Return the R_QMCreateRemoteCursor calls made before a time that returned this cursor of this queue."""
        return _calls_before(self._cursor_creations.get((queue_number, cursor), ()), time)

    def opening_call(self, interface: str, handle: str | None) -> CapturedCall | None:
        """Return the first call, of any association, whose response returned a context handle."""
        return None if handle is None else self._opening_calls.get((interface, handle))

    def lossless_until(self, call: CapturedCall) -> int:
        """Return the time of the last packet of a call's association; 0 where packets of it are missing."""
        return self._lossless_until.get(self.association_of(call).name, 0)

    @cached_property
    def version(self) -> tuple[int, int] | None:
        """The (major, minor) version that all answers to RemoteQmGetVersion agree on; None without one."""
        versions = {(call["version_major"], call["version_minor"]) for call in self._version_answers}
        return versions.pop() if len(versions) == 1 else None

    @cached_property
    def version_queries(self) -> Mapping[str, Sequence[CapturedCall]]:
        """The RemoteQmGetVersion calls of each client, by its address, in order of time."""
        found: defaultdict[str, list[CapturedCall]] = defaultdict(list)
        for call in self.calls_of((QM2QM_NAME, 8)):
            found[call["client_address"]].append(call)
        return found

    @cached_property
    def is_windows_2000_or_older(self) -> bool:
        """The server rejects RemoteQmGetVersion: it runs Windows NT or 2000 (fact sheet, 4.6)."""
        return bool(self._version_rejections) and not self._version_answers

    def association_of(self, call: CapturedCall) -> ClientAssociation:
        """Return the association that a call belongs to."""
        found = self.associations.get(call["connection_id"])
        return found if found is not None else ClientAssociation(call["connection_id"], None, beginning_seen=False)


def _calls_before(calls: Sequence[CapturedCall], at: int) -> list[CapturedCall]:
    """Return the calls that were made before a time; ``calls`` are in order of time."""
    return list(calls[: bisect_left(calls, at, key=lambda call: call.started_at)])
