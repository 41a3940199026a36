"""The calls of some associations as columns, with the queues that are open when each call is made. No Spark.

Calls that open, close or cancel are rows of the associations' histories already. Of all other calls, which are many,
conditions find those that may break a rule (``Suspects``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Numbers, shared_property
from pipeline.findings.columns.call_history import (
    QM2QM_READS,
    REMOTE_READ_READS,
    AssociationHistory,
    CapturedCall,
    HandleLifetime,
    ServerHistory,
)
from udfs.columns.codes import dictionary_codes, row_codes
from udfs.columns.groups import Groups
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

QM2QM_END: Final = (QM2QM_NAME, 1)
REMOTE_READ_ENDS: Final = ((REMOTE_READ_NAME, 9), (REMOTE_READ_NAME, 15))
_MANY_METHODS: Final = (*QM2QM_READS, QM2QM_END, *REMOTE_READ_READS, *REMOTE_READ_ENDS)
_INTERFACES: Final = (QM2QM_NAME, REMOTE_READ_NAME, QMCOMM_NAME, QMMGMT_NAME)


def is_always_row(calls: AssociationCallColumns) -> Mask:
    """Tell which calls are rows of their history in any case: those of MSMQ that are neither reads nor Ends."""
    return calls.of_interfaces(*_INTERFACES) & ~calls.of(*_MANY_METHODS)


class Suspects(NamedTuple):
    """The calls that may break a rule, and the calls beside them that show whether they do.

    Calls that are rows in any case (``is_always_row``) need not be among ``related``.
    """

    calls: Mask
    related: Mask | None = None


def every_call(calls: AssociationCalls) -> Suspects:
    """Return all calls: of rules that do not say which ones may break them."""
    return Suspects(~calls.nothing())


def no_reads(calls: AssociationCalls) -> Suspects:
    """Return the calls that are rows in any case: of rules that look at neither reads nor Ends."""
    return Suspects(calls.share("no reads", lambda: is_always_row(calls)))


class Lifetimes:
    """Lifetimes of handles, by a number for each handle, and the one that a call finds."""

    def __init__(self, keys: Numbers, lifetimes: Sequence[HandleLifetime], rows: Mapping[CapturedCall, int]) -> None:
        """``rows`` are the positions of the calls that open."""
        self.keys = keys
        self.open_rows = np.array([rows[each.open_call] for each in lifetimes], np.int64)
        self.opened_at = np.array([each.opened_at for each in lifetimes], np.int64)
        self._index = TimeIndex(keys, self.opened_at)
        self.begun_at = np.array([each.open_call.started_at for each in lifetimes], np.int64)
        self.open_until = np.array([each.open_until for each in lifetimes], np.int64)

    def latest(self, keys: Numbers, times: Numbers) -> Numbers:
        """Return the place of the newest lifetime of a handle that began at a time or before; -1 without one."""
        return self._index.latest(keys, times)


class AssociationCalls(AssociationCallColumns):
    """Calls of associations, whose numbers are places in ``histories``.

    ``histories`` have the calls that are rows in any case; ``rows`` are the positions of these.
    """

    def __init__(
        self, columns: AssociationCallColumns, histories: Sequence[AssociationHistory], rows: Mapping[CapturedCall, int]
    ) -> None:
        """``columns`` are those of the calls: what was computed of them is used again."""
        super().__init__(columns.table, columns.association)
        self.__dict__ |= columns.__dict__
        self.histories = histories
        self._rows = rows

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

    def of_connections(self, values: Mapping[str | None, Any], default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return for each call the value of its connection."""
        return self.text_values("connection_id", values, default)

    @shared_property
    def captured_from_syn(self) -> Mask:
        """The connection was captured from its SYN without a gap."""
        found = {
            name: bool(row["syn_seen"]) and not row["missing_bytes"]
            for history in self.histories
            for name, row in history.connections.items()
        }
        return self.of_connections(found, default=False)

    def first_of_connection(self, mask: Mask) -> Mask:
        """Return the first of some calls of each connection; several that were made at one time."""
        return self._first_of(mask, self.dictionary_codes("connection_id"))

    def first_of_association(self, mask: Mask) -> Mask:
        """Return the first of some calls of each association; several that were made at one time."""
        return self._first_of(mask, self.association)

    def _first_of(self, mask: Mask, keys: Numbers) -> Mask:
        rows, found = np.nonzero(mask)[0], self.nothing()
        if rows.size:
            groups = Groups(rows, keys[rows] + 1, self.started_at[rows])
            at = self.started_at[groups.rows]
            found[groups.rows[at == groups.smallest(at)]] = True
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
        found = [each for history in self.histories for each in getattr(history, name)]
        keys = self.keys(*columns)
        return Lifetimes(keys[[self._rows[each.open_call] for each in found]] if found else keys[:0], found, self._rows)

    @shared_property
    def contexts(self) -> Lifetimes:
        """The lifetimes of context handles."""
        return self._lifetimes("context_handles", "interface_name", "context_handle")

    @shared_property
    def context(self) -> Numbers:
        """The place in ``contexts`` of the newest lifetime of the context handle that a call uses; -1 without one."""
        return self.contexts.latest(self.keys("interface_name", "context_handle"), self.started_at)

    @shared_property
    def context_open(self) -> Numbers:
        """The position of the call that opened it; -1 without one."""
        return self._of_context(self.contexts.open_rows, -1)

    @shared_property
    def context_closed(self) -> Mask:
        """It was certainly closed before the call."""
        return (self.context >= 0) & (self._of_context(self.contexts.open_until, 0) < self.started_at)

    def _of_context(self, values: Numbers, default: int) -> Numbers:
        return (
            np.where(self.context >= 0, values[self.context], default) if len(values) else np.full(self.count, default)
        )

    def at_open(self, values: Numbers, default: Any) -> Numbers:  # noqa: ANN401 - as of an array
        """Return what a column has for the call that opened each call's context; ``default`` without one."""
        return np.where(self.context_open >= 0, values[self.context_open], default)

    @shared_property
    def opened_by_other_interface(self) -> Mask:
        """The context handle of a call was given by an open of the association, on any interface, before."""
        keys = self.keys("context_handle")
        opens = self.contexts.open_rows
        return TimeIndex(keys[opens], self.contexts.opened_at).latest(keys, self.started_at) >= 0

    @shared_property
    def queue_may_be_open(self) -> Mask:
        """A session of the association may have a call's queue number open during the call."""
        sessions = [
            (place, number, each)
            for place, history in enumerate(self.histories)
            for number, each in history.sessions.items()
        ]
        known = np.array([-1 if number is None else number for _, number, _ in sessions], np.int64)
        numbers = np.where(self.has("queue_handle"), self.numbers("queue_handle"), -1)
        owners = np.array([place for place, *_ in sessions], np.int64)
        keys = row_codes([np.concatenate([self.association, owners]), np.concatenate([numbers, known])])
        begins = np.array([each.open_call.started_at for *_, each in sessions], np.int64)
        ends = np.array([each.open_until for *_, each in sessions], np.int64)
        spans = Spans(keys[self.count :], begins, ends)
        return spans.any_meets(keys[: self.count], self.started_at, self.responded_at)


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


def newest_before(rows: Numbers, keys: Numbers, times: Numbers, asked: Iterable[tuple[int, int]], most: int) -> Numbers:
    """Return the newest rows with a key before a time, at most so many, and those of the time of the oldest of them.

    ``asked`` are keys and times.
    """
    groups = Groups(rows, keys, times)
    ordered = groups.ordered(times)
    begins = np.nonzero(groups.is_first)[0]
    numbers = groups.keys[begins]
    found = []
    for key, time in asked:
        place = np.searchsorted(numbers, key)
        if place == len(numbers) or numbers[place] != key:
            continue
        begin = begins[place]
        end = begins[place + 1] if place + 1 < len(begins) else len(ordered)
        until = begin + np.searchsorted(ordered[begin:end], time, side="left")
        since = max(begin, until - most)
        if since < until:
            since = begin + np.searchsorted(ordered[begin:end], ordered[since], side="left")
            found.append(groups.rows[since:until])
    return np.concatenate(found) if found else rows[:0]
