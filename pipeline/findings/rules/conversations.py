"""Calls and associations as the conformance rules see them: plain rows, and what was alive when. No Spark.

Times are microseconds since the epoch, UTC. What a call says is believed only where it was read whole: a request or an
answer that was cut, sealed, or does not decode shows nothing, and rules that rest on it are not evaluated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pipeline.attempts.associations import Association
from udfs.codes import MQ_OK, is_peek
from udfs.dcerpc.interfaces import QC, QM, RR

READS: Final = {(QM, 0), (QM, 9), (QM, 10), (RR, 7), (RR, 13)}
OPENS: Final = {(QM, 2), (RR, 2), (RR, 11), (QC, 2), (QC, 19)}
CLOSES: Final = {(QM, 3): QM, (RR, 3): RR, (QC, 3): QC, (QC, 20): QC}

LOOKUP_ID: Final = (1 << 56) - 1
SLACK_US: Final = 3_000_000  # timers have a granularity of 1 s, and the way takes its time (rules Q64, R45)
CLOCKS_US: Final = 10_000_000  # clocks of captures that tell of one server are taken to agree so far
UNREAD: Final = {"damaged", "no_request", "unbound", "encrypted"}
_LONG_AGO: Final = -(1 << 62)


class Exchange:
    """One call: a row of bronze.rpc_calls with what silver decoded of it, by column name; nulls may be left out.

    ``asked``: the request was read whole; ``answered``: the answer was too, and is no fault; ``ok``: it is MQ_OK.
    """

    __slots__ = ("answered", "asked", "at", "done", "method", "ok", "row")

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        outcome = row["outcome"]
        opnum = row.get("opnum")
        self.method: tuple[str, int] = (row.get("interface_name") or "", -1 if opnum is None else opnum)
        asked_at, answered_at = row.get("request_at"), row.get("response_at")
        self.at: int = asked_at if asked_at is not None else answered_at or 0
        self.done: int | None = answered_at
        wrong = {str(error["field"] or "").split(".", 1)[0] for error in row.get("errors") or ()}
        closed = bool(row.get("sealed")) and row.get("opened_by") is None
        readable = row.get("bind_seen") is not False and outcome not in UNREAD and not closed
        self.asked = readable and asked_at is not None and "request" not in wrong
        self.answered = self.asked and outcome == "ok" and "response" not in wrong
        self.ok = self.answered and row.get("hresult") == MQ_OK

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever the column holds
        return self.row.get(name)

    @property
    def fault(self) -> int | None:
        """The status of the fault that answered."""
        status: int | None = self.row.get("fault_status")
        return status

    @property
    def refused(self) -> bool:
        """The answer was seen and was a fault, or an HRESULT other than MQ_OK."""
        return self.fault is not None or (self.answered and self.row.get("hresult") not in (None, MQ_OK))

    @property
    def peeks(self) -> bool:
        """A read that leaves the message where it is."""
        return self["action"] is not None and is_peek(self["action"])

    @property
    def receives(self) -> bool:
        """A read that takes a message."""
        return self["action"] is not None and not is_peek(self["action"])

    @property
    def message(self) -> int | None:
        """The number of the message that came back, 56 bits; None without one, or where the method tells none."""
        number = self["sequence_id"]
        return int(number) & LOOKUP_ID or None if self.ok and number is not None else None

    @property
    def lookup(self) -> int:
        """LookupId as it was sent."""
        return int(self["lookup_id"] or 0)

    def wrong(self, side: str, *fields: str) -> bool:
        """Tell whether decoding this side failed at one of these fields, by what it holds and not for want of bytes."""
        errors = (error for error in self["errors"] or () if error["code"] == "malformed")
        found = (str(error["field"] or "") for error in errors)
        return any(name.startswith(f"{side}.") and any(each in name for each in fields) for name in found)

    def number(self, side: str, at: int, size: int = 4) -> int | None:
        """Return a number at an offset of the stub, as far as its first bytes are kept; None where they are not."""
        head: bytes | None = self[f"{side}_head"]
        if head is None or len(head) < at + size:
            return None
        return int.from_bytes(head[at : at + size], "big" if self["byte_order"] == "big" else "little")

    @property
    def wide(self) -> bool:
        """The stub is NDR64."""
        return bool(self["transfer_syntax"] == "NDR64")


@dataclass(slots=True)
class Life:
    """A handle from the answer that gave it to the answer that took it."""

    opened: Exchange
    born: int
    closed: Exchange | None = None

    def died_before(self, at: int) -> bool:
        """Tell whether it was surely gone at a time: its close had been answered."""
        return self.closed is not None and self.closed.done is not None and self.closed.done < at

    def lived_at(self, at: int) -> bool:
        """Tell whether it surely was there at a time: given before, and nobody had asked to close it."""
        return self.born <= at and (self.closed is None or self.closed.at > at)


class Lives:
    """The lives of things that have a name, one after the other where a name is used again."""

    def __init__(self) -> None:
        self._of: defaultdict[Any, list[Life]] = defaultdict(list)

    def open(self, name: object, call: Exchange) -> Life:
        """Begin a life with the answer of a call."""
        life = Life(call, call.done if call.done is not None else call.at)
        self._of[name].append(life)
        return life

    def close(self, name: object, call: Exchange) -> Life | None:
        """End the latest life that began before a call was made and is not over; return it."""
        for life in reversed(self._of.get(name, ())):
            if life.born <= call.at and life.closed is None:
                life.closed = call
                return life
        return None

    def latest(self, name: object, at: int = 1 << 62) -> Life | None:
        """Return the last life that began up to a time."""
        found = [life for life in self._of.get(name, ()) if life.born <= at]
        return max(found, key=lambda life: life.born) if found else None

    def can_live(self, name: object, call: Exchange) -> bool:
        """Tell whether a thing may have been there at some moment between a call's request and its answer."""
        until = call.done if call.done is not None else 1 << 62
        return any(life.opened.at <= until and not life.died_before(call.at) for life in self._of.get(name, ()))

    def __iter__(self) -> Iterator[Life]:
        for lives in self._of.values():
            yield from lives

    def of(self, name: object) -> Sequence[Life]:
        """Return the lives of one name."""
        return self._of.get(name, ())


@dataclass(slots=True)
class Entry:
    """A receive of RemoteRead that is to be ended: by its number in its context."""

    start: Exchange
    ended: Exchange | None = None


class Conversation:
    """The calls of one association, in order of time, and the handles that they gave, used and closed.

    ``connections`` are the rows of bronze.connections of the association, ``binds`` those of bronze.rpc_binds;
    ``unread``: calls of it that are not among these could not be read.
    """

    def __init__(
        self,
        calls: Iterable[Exchange],
        connections: Sequence[Mapping[str, Any]],
        association: Association,
        *,
        binds: Sequence[Mapping[str, Any]] = (),
        ledger: Ledger | None = None,
        unread: bool = False,
    ) -> None:
        self.calls = sorted(calls, key=lambda call: (call.at, call["call_key"]))
        self.connections = {row["connection_id"]: row for row in connections}
        self.binds = binds
        self.ledger = ledger if ledger is not None else Ledger((), {})
        self.association = association
        self.ended_at = association.ended_at
        self.orderly = self.ended_at is not None and all(row["closed_by"] == "fin" for row in connections)
        self.seen_until = max((row["last_packet_at"] for row in connections), default=0)
        self.lossless = bool(connections) and not any(row["missing_bytes"] for row in connections)
        read = not (unread or any(call["outcome"] in UNREAD for call in self.calls))
        given = all(call.answered or call.refused for call in self.calls if call.method in OPENS)
        self.whole = association.beginning_seen and self.lossless and read and given
        self.contexts = Lives()  # by (interface, handle)
        self.sessions = Lives()  # of qm2qm, by number
        self.cursors = Lives()  # of RemoteRead, by (handle, number)
        self.held = Lives()  # messages of qm2qm, by handle
        self.entries: defaultdict[tuple[str, int], list[Entry]] = defaultdict(list)
        self.by_method: defaultdict[tuple[str, int], list[Exchange]] = defaultdict(list)
        self._together: dict[tuple[tuple[str, int], ...], list[Exchange]] = {}
        self.kept: dict[str, Any] = {}  # what several rules rest on, found once
        for call in self.calls:
            self.by_method[call.method].append(call)
        self._settle()

    def of(self, *methods: tuple[str, int]) -> list[Exchange]:
        """Return the calls of some methods, in order of time."""
        if len(methods) == 1:
            return self.by_method.get(methods[0], [])
        found = self._together.get(methods)
        if found is None:
            every = [call for method in methods for call in self.by_method.get(method, ())]
            found = self._together[methods] = sorted(every, key=lambda call: (call.at, call["call_key"]))
        return found

    def _settle(self) -> None:
        """Find when what was given was there: openings by their answers, then what ends them."""
        for call in sorted(self.calls, key=lambda call: (call.done or call.at, call["call_key"])):
            self._open(call)
        for call in self.calls:
            self._close(call)

    def _open(self, call: Exchange) -> None:
        interface, opnum = call.method
        if not call.answered:
            return
        if call.method in OPENS and call["context_handle"] is not None and call["hresult"] in (None, MQ_OK):
            self.contexts.open((interface, call["context_handle"]), call)
            if call.method == (QM, 2):
                for number in {call["queue_handle"], call["open_context"]}:
                    self.sessions.open(number, call)
        elif call.method == (RR, 4) and call.ok:
            self.cursors.open((call["context_handle"], call["cursor_handle"]), call)
        elif interface == QM and opnum in (0, 9, 10) and call.ok and call["remote_read_handle"] is not None:
            self.held.open(call["remote_read_handle"], call)

    def _close(self, call: Exchange) -> None:
        taken = call.ok or (call.method == (QC, 3) and call.answered)
        if call.method in CLOSES and taken:
            life = self.contexts.close((CLOSES[call.method], call["context_handle"]), call)
            if life is not None and call.method == (QM, 3):
                for number in {life.opened["queue_handle"], life.opened["open_context"]}:
                    self.sessions.close(number, call)
        elif call.method == (RR, 5) and call.ok:
            self.cursors.close((call["context_handle"], call["cursor_handle"]), call)
        elif call.method == (QM, 1) and taken:
            self.held.close(call["remote_read_handle"], call)
        elif call.method in ((RR, 7), (RR, 13)) and call.receives:
            self.entries[call["context_handle"], call["request_id"]].append(Entry(call))
        elif call.method in ((RR, 8), (RR, 9), (RR, 15)) and not call.refused:
            entry = self.entry(call)
            if entry is not None:
                entry.ended = call

    def entry(self, call: Exchange) -> Entry | None:
        """Return the latest receive with an End's or a cancel's number that is not ended, and began before it."""
        for entry in reversed(self.entries.get((call["context_handle"], call["request_id"]), ())):
            if entry.start.at <= call.at and (entry.ended is None or entry.ended is call):
                return entry
        return None

    def context(self, call: Exchange) -> Life | None:
        """Return the life of the context handle that a call was given, the latest that began before the call."""
        return self.contexts.latest((call.method[0], call["context_handle"]), call.at)

    def queue_of(self, call: Exchange) -> object:
        """Return what names the queue that a read reads from: its text, or for qm2qm its number."""
        if call.method[0] == QM:
            return call["queue_handle"]
        life = self.context(call)
        return None if life is None else (life.opened["queue"] or call["context_handle"])

    @property
    def before(self) -> int:
        """Until when what others opened can explain a call of this association: until its last packet."""
        return self.seen_until + CLOCKS_US

    def goes_on(self, at: int) -> bool:
        """Tell whether packets of the association were still seen well after a time."""
        return self.seen_until > at + SLACK_US


class Ledger:
    """What one server opened and was asked, over all its associations: the calls of the methods in ``LEDGER``."""

    def __init__(
        self, calls: Iterable[Exchange], associations: Mapping[str, Association], seen: Mapping[str, int] | None = None
    ) -> None:
        """``associations`` by connection; ``seen``: until when packets of each were seen without a gap, by name."""
        self._seen = seen or {}
        found: defaultdict[tuple[str, int], list[Exchange]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: (call.at, call["call_key"])):
            found[call.method].append(call)
        self._found = found
        self.associations = associations
        self.numbers: defaultdict[int, list[Exchange]] = defaultdict(list)  # R_QMOpenRemoteQueue, by phQueue
        for call in found[QC, 2]:
            if call.ok and call["queue_handle"]:
                self.numbers[call["queue_handle"]].append(call)
        self.sessions: defaultdict[int, list[Exchange]] = defaultdict(list)  # RemoteQMOpenQueue, by both its numbers
        for call in found[QM, 2]:
            if call.ok or (call.asked and not call.answered and not call.refused):
                for number in {call["queue_handle"], call["open_context"]} - {None}:
                    self.sessions[number].append(call)
        self._cursors: defaultdict[tuple[int, int], list[Exchange]] = defaultdict(list)
        for call in found[QC, 4]:
            if call.ok:
                self._cursors[call["queue_handle"], call["cursor_handle"]].append(call)
        self._born: dict[tuple[str, str], Exchange] = {}
        for call in (*found[RR, 2], *found[RR, 11], *found[QM, 2]):
            if call.answered and call["context_handle"] is not None:
                self._born.setdefault((call.method[0], call["context_handle"]), call)
        self.transactions: dict[str, int] = {}  # when each was first enlisted
        for call in found[RR, 12]:
            if not call.refused and call["transaction_id"] is not None:
                self.transactions.setdefault(call["transaction_id"], call.at)
        self._versions = [call for call in found[QM, 8] if call.answered and call["version_major"] is not None]
        self._no_version = [call for call in found[QM, 8] if call.fault == 0x1C010002]

    def of(self, *methods: tuple[str, int]) -> list[Exchange]:
        """Return the calls of some methods, in order of time for each."""
        return [call for method in methods for call in self._found.get(method, ())]

    def opened(self, number: int, before: int) -> list[Exchange]:
        """Return the RemoteQMOpenQueue of a number, asked before a time."""
        return _before(self.sessions.get(number, ()), before)

    def numbered(self, number: int | None, before: int) -> list[Exchange]:
        """Return the R_QMOpenRemoteQueue that were given a number as phQueue, asked before a time."""
        return _before(self.numbers.get(number or 0, ()), before)

    def gives_numbers(self, before: int) -> bool:
        """Tell whether some R_QMOpenRemoteQueue was given a number, asked before a time."""
        return any(calls[0].at < before for calls in self.numbers.values())

    def cursors(self, number: int, cursor: int, before: int) -> list[Exchange]:
        """Return the R_QMCreateRemoteCursor that were given a cursor of a queue, asked before a time."""
        return _before(self._cursors.get((number, cursor), ()), before)

    def born(self, interface: str, handle: str | None) -> Exchange | None:
        """Return the first call that was given a context handle, in whatever association."""
        return None if handle is None else self._born.get((interface, handle))

    def seen_until(self, call: Exchange) -> int:
        """Return until when packets of a call's association were seen, without a gap; 0 with one."""
        return self._seen.get(self.association(call).name, 0)

    @cached_property
    def version(self) -> tuple[int, int] | None:
        """The server's version as RemoteQmGetVersion told it, always the same; None where it was not asked."""
        told = {(call["version_major"], call["version_minor"]) for call in self._versions}
        return told.pop() if len(told) == 1 else None

    @cached_property
    def old(self) -> bool:
        """The server is NT or 2000: it does not know RemoteQmGetVersion (fact sheet, 4.6)."""
        return bool(self._no_version) and not self._versions

    def association(self, call: Exchange) -> Association:
        """Return the association of a call."""
        found = self.associations.get(call["connection_id"])
        return found if found is not None else Association(call["connection_id"], None, beginning_seen=False)


def _before(calls: Sequence[Exchange], at: int) -> list[Exchange]:
    """Return those of calls in order of time that were made before a time."""
    return list(calls[: bisect_left(calls, at, key=lambda call: call.at)])


@dataclass(slots=True)
class Busy:
    """Reads in flight by a name: which of them surely overlap a moment."""

    reads: Sequence[Exchange]
    _by: dict[Any, list[Exchange]] = field(default_factory=dict)
    _times: dict[Any, list[int]] = field(default_factory=dict)

    @classmethod
    def by(cls, reads: Iterable[Exchange], name: Any) -> Busy:  # noqa: ANN401 - a function of a read
        """Return reads in order of time, by what ``name`` says of each; None leaves one out."""
        found = cls(list(reads))
        for read in found.reads:
            key = name(read)
            if key is not None:
                found._by.setdefault(key, []).append(read)
                found._times.setdefault(key, []).append(read.at)
        return found

    def before(self, name: object, at: int) -> list[Exchange]:
        """Return the reads of a name that began before a time, the newest first, at most a hundred."""
        times = self._times.get(name, [])
        place = bisect_right(times, at - 1)
        return self._by.get(name, [])[max(0, place - 100) : place][::-1]
