"""The calls of some associations as columns, with the queues that are open when each call is made. No Spark.

Calls that open, close or cancel are rows of the associations' histories already. Other calls, which are many, become
rows only where they break a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Numbers, shared_property
from pipeline.findings.columns.call_history import (
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
    AssociationHistory,
    CapturedCall,
    HandleLifetime,
    ServerHistory,
)
from pipeline.findings.columns.captured_rows import captured_calls
from pipeline.findings.columns.stored_calls import StoredCalls
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.codes import dictionary_codes, row_codes
from udfs.columns.groups import Groups, is_group_start, last_of, order_by, take_or
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

QM2QM_END: Final = (QM2QM_NAME, 1)
REMOTE_READ_ENDS: Final = ((REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15))
MANY_METHODS: Final = frozenset({*QM2QM_READS, QM2QM_END, *REMOTE_READ_READS, *REMOTE_READ_ENDS})
_INTERFACES: Final = (QM2QM_NAME, REMOTE_READ_NAME, QMCOMM_NAME, QMMGMT_NAME)


def is_always_row(calls: AssociationCallColumns) -> Mask:
    """Tell which calls are rows of their history in any case: those of MSMQ that are neither reads nor Ends."""
    return calls.of_interfaces(*_INTERFACES) & ~calls.of(*MANY_METHODS)


class CallRows:
    """The calls that have become rows of Python, by their position in the table, and the positions of these."""

    def __init__(self, table: pa.Table | StoredCalls) -> None:
        self._table = table
        self._made = np.zeros(table.num_rows, np.bool_)
        self.calls: dict[int, CapturedCall] = {}
        self.places: dict[CapturedCall, int] = {}

    def add(self, mask: Mask) -> Numbers:
        """Make rows of calls, and return the positions of those that were none."""
        new = np.nonzero(mask & ~self._made)[0]
        if new.size:
            made = captured_calls(self._table.take(pa.array(new)))
            for place, call in zip(new.tolist(), made, strict=True):
                self.calls[place] = call
                self.places[call] = place
            self._made |= mask
        return new


class Lifetimes:
    """Lifetimes of handles, by a number for each handle, and the one that a call finds."""

    def __init__(self, calls: AssociationCallColumns, keys: Numbers, opens: Numbers, closes: Numbers) -> None:
        """``opens`` and ``closes`` are the positions of the calls that open and close, ``NONE`` without a close.

        Lifetimes of one handle that begin at one time are in the order given.
        """
        self.keys, self.open_rows, self.close_rows = keys, opens, closes
        self.opened_at = calls.ended_at[opens]
        self.begun_at = calls.started_at[opens]
        self.open_until = take_or(calls.responded_at, closes, AFTER_ALL)

    def used_by(self, calls: AssociationCallColumns, keys: Numbers, until: Numbers) -> UsedHandles:
        """Return of the handle of each call, a key, the newest lifetime that began up to a time."""
        place = TimeIndex(self.keys, self.opened_at).latest(keys, until)
        return used_handles(calls, *(take_or(rows, place, NONE) for rows in (self.open_rows, self.close_rows)))


class UsedHandles(NamedTuple):
    """The handle that each call uses: the positions of the calls that opened and closed it, ``NONE`` without one.

    ``is_closed``: it was certainly closed before the call, by another one.
    """

    opens: Numbers
    closes: Numbers
    is_closed: Mask

    @property
    def is_known(self) -> Mask:
        """The opening was captured."""
        return np.asarray(self.opens >= 0)


def used_handles(calls: AssociationCallColumns, opens: Numbers, closes: Numbers) -> UsedHandles:
    """Return the handle that each call uses, of the positions of the calls that opened and closed it."""
    closed = take_or(calls.responded_at, closes, AFTER_ALL) < calls.started_at
    return UsedHandles(opens, closes, closed & (closes != np.arange(calls.count)))


class AssociationCalls(AssociationCallColumns):
    """Calls of associations, whose numbers are places in ``histories``.

    ``histories`` have the calls that are rows in any case. ``judged`` are the calls that a check evaluates.
    """

    def __init__(
        self, columns: AssociationCallColumns, histories: Sequence[AssociationHistory], rows: CallRows
    ) -> None:
        """``columns`` are those of the calls: what was computed of them is used again."""
        super().__init__(columns.table, columns.association)
        self.__dict__ |= columns.__dict__
        self.histories = histories
        self.judged = ~self.nothing()
        self._rows = rows

    def judging(self, judged: Mask) -> AssociationCalls:
        """Return the same calls for a check that evaluates some of them."""
        found = copy(self)
        found.judged = judged
        return found

    def look_up(self, mask: Mask, names: Sequence[str], function: Callable[..., Any], default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return what a function of the association's history and some columns gives for some judged calls.

        It is asked once for each different combination. Other calls have the default.
        """
        found, places = np.full(self.count, default), np.flatnonzero(mask & self.judged)
        if not places.size:  # keys of all calls take long
            return found
        codes = dictionary_codes(pa.array(self.keys(*names)[places]))
        firsts = places[np.unique(codes, return_index=True)[1]]  # codes are in the order in which they come
        asked = zip(self.association[firsts].tolist(), self._columns_of(firsts, names), strict=True)
        values = [function(self.histories[place], *map(columns.get, names)) for place, columns in asked]
        found[places] = np.array(values, found.dtype)[codes]
        return found

    def where(self, mask: Mask, predicate: Callable[[AssociationHistory, CapturedCall], bool]) -> Mask:
        """Tell for which of some judged calls, few, a condition holds on the association's history and the row.

        The history has the calls that are rows in any case.
        """
        found = mask & self.judged
        self._rows.add(found)
        for place in np.flatnonzero(found).tolist():
            found[place] = predicate(self.histories[self.association[place]], self._rows.calls[place])
        return found

    # Associations and servers

    def of_associations(self, value_of: Callable[[AssociationHistory], Any], name: str) -> Numbers:
        """Return for each call a value of its association, computed once for each; ``name`` tells such values apart."""
        return self.share(
            ("association", name),
            lambda: np.array([*map(value_of, self.histories)])[self.association] if self.histories else self.nothing(),
        )

    def of_servers(self, value_of: Callable[[ServerHistory], Any], name: str) -> Numbers:
        """Return for each call a value of its server, computed once for each."""
        known: dict[int, Any] = {}

        def of_association(history: AssociationHistory) -> Any:  # noqa: ANN401 - what ``value_of`` returns
            if id(history.server) not in known:
                known[id(history.server)] = value_of(history.server)
            return known[id(history.server)]

        return self.of_associations(of_association, f"of server: {name}")

    @property
    def complete(self) -> Mask:
        """The association was captured completely."""
        return self.of_associations(lambda history: history.is_complete, "complete")

    @property
    def lossless(self) -> Mask:
        """No packet of the association is missing."""
        return self.of_associations(lambda history: history.is_lossless, "lossless")

    @property
    def closed_by_fin(self) -> Mask:
        """Every connection of the association ended with FIN."""
        return self.of_associations(lambda history: history.closed_by_fin, "closed by fin")

    @property
    def last_packet_at(self) -> Numbers:
        """The time of the last packet of the association."""
        return self.of_associations(lambda history: history.last_packet_at, "last packet")

    @property
    def has_packets_after(self) -> Mask:
        """Packets of the association were captured well after the call."""
        return self.last_packet_at > self.ended_at + TIMER_SLACK_US

    def of_server_since(self, version: tuple[int, int]) -> Mask:
        """The server is known to have a version, (major, minor), or a later one."""
        return self.of_servers(
            lambda server: server.version is not None and server.version >= version, f"since {version}"
        )

    @shared_property
    def captured_from_syn(self) -> Mask:
        """The connection was captured from its SYN without a gap."""
        found = {
            name: bool(row["syn_seen"]) and not row["missing_bytes"]
            for history in self.histories
            for name, row in history.connections.items()
        }
        return self.text_values("connection_id", found, default=False)

    def first_of_connection(self, mask: Mask) -> Mask:
        """Return the first of some judged calls of each connection."""
        return self._first_of(mask, self.dictionary_codes("connection_id"))

    def first_of_association(self, mask: Mask) -> Mask:
        """Return the first of some judged calls of each association."""
        return self._first_of(mask, self.association)

    def _first_of(self, mask: Mask, keys: Numbers) -> Mask:
        rows = self.in_order(mask & self.judged, keys, self.started_at)
        return self.at(rows[is_group_start(keys[rows])])

    def largest_of(self, mask: Mask, numbers: Numbers, *names: str) -> Mask:
        """Return of some judged calls the one with the largest number, for each combination of ``keys``."""
        judged = mask & self.judged
        if not judged.any():  # keys of all calls take long
            return judged
        keys = self.keys(*names)
        rows = self.in_order(judged, keys, numbers)
        last = last_of(keys[rows], rows, self.count)
        return self.at(last[last != NONE])

    def in_order(self, mask: Mask, *numbers: Numbers) -> Numbers:
        """Return the positions of some calls in the order of numbers, the most significant first, and of call keys."""
        rows = np.flatnonzero(mask)
        names = self.table.column("call_key").take(pa.array(rows)).combine_chunks()
        return rows[order_by([each[rows] for each in numbers], names)]

    def at(self, rows: Numbers) -> Mask:
        """Tell which calls are at some positions."""
        found = self.nothing()
        found[rows] = True
        return found

    def keys(self, *names: str) -> Numbers:
        """Return a number for each combination of the association and some columns, texts or numbers."""
        return self.share(("keys", names), lambda: row_codes([self.association, *map(self._codes_of, names)]))

    def _codes_of(self, name: str) -> Numbers:
        array = self.array(name)
        if array is not None and (pa.types.is_string(array.type) or pa.types.is_dictionary(array.type)):
            return self.dictionary_codes(name)
        numbers = self.numbers(name)
        if self.has(name).all():
            return numbers
        return dictionary_codes(pa.array(numbers, mask=~self.has(name)))

    # What is open

    def _lifetimes(self, name: str, *columns: str) -> Lifetimes:
        """Return the lifetimes of one kind of the histories; columns of the call that opens make the handle."""
        opens, closes = self._positions([each for history in self.histories for each in getattr(history, name)])
        return Lifetimes(self, self.keys(*columns)[opens], opens, closes)

    def _positions(self, lifetimes: Sequence[HandleLifetime]) -> tuple[Numbers, Numbers]:
        """Return the positions of the calls that open and close; ``NONE`` without a close."""
        rows = self._rows.places
        closes = [NONE if each.close_call is None else rows[each.close_call] for each in lifetimes]
        return np.array([rows[each.open_call] for each in lifetimes], np.int64), np.array(closes, np.int64)

    @shared_property
    def contexts(self) -> Lifetimes:
        """The lifetimes of context handles."""
        return self._lifetimes("context_handles", "interface_name", "context_handle")

    @shared_property
    def context(self) -> UsedHandles:
        """The context handle that each call uses."""
        return self.contexts.used_by(self, self.keys("interface_name", "context_handle"), self.started_at)

    @shared_property
    def cursor(self) -> UsedHandles:
        """The cursor of RemoteRead that each call uses."""
        names = ("context_handle", "cursor_handle")
        return self._lifetimes("cursors", *names).used_by(self, self.keys(*names), self.responded_at)

    def at_open(self, values: Numbers, default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return what a column has for the call that opened each call's context; ``default`` without one."""
        return take_or(values, self.context.opens, default)

    @shared_property
    def _sessions(self) -> tuple[Lifetimes, Numbers]:
        """The lifetimes of sessions of qm2qm by queue number, and the number of each call, as a key."""
        sessions = [
            (place, -1 if number is None else number, each)
            for place, history in enumerate(self.histories)
            for number, each in history.sessions.items()
        ]
        owners, known = (np.array([each[part] for each in sessions], np.int64) for part in (0, 1))
        numbers = np.where(self.has("queue_handle"), self.numbers("queue_handle"), -1)
        keys = row_codes([np.concatenate([self.association, owners]), np.concatenate([numbers, known])])
        lifetimes = Lifetimes(self, keys[self.count :], *self._positions([each for *_, each in sessions]))
        return lifetimes, keys[: self.count]

    @shared_property
    def session(self) -> UsedHandles:
        """The session of qm2qm whose queue number each call uses."""
        sessions, keys = self._sessions
        return sessions.used_by(self, keys, self.started_at)

    @shared_property
    def queue_may_be_open(self) -> Mask:
        """A session of the association may have a call's queue number open during the call."""
        sessions, keys = self._sessions
        return Spans(sessions.keys, sessions.begun_at, sessions.open_until).any_meets(
            keys, self.started_at, self.responded_at
        )


class Spans:
    """Spans of time by key, both ends included, to find out whether any of them meets another span."""

    def __init__(self, keys: Numbers, begins: Numbers, ends: Numbers) -> None:
        self._groups = Groups(np.arange(len(keys)), keys, begins)
        self._index = TimeIndex(self._groups.keys, self._groups.ordered(begins))
        self._latest = self._groups.largest_so_far(self._groups.ordered(ends))

    def any_meets(self, keys: Numbers, begins: Numbers, ends: Numbers) -> Mask:
        """Tell whether any span with a key has a moment in common with another."""
        places = self._index.latest(keys, ends)
        return (places >= 0) & (self._latest[places] >= begins) if len(self._latest) else np.zeros(len(keys), np.bool_)
