"""Calls of servers as columns, with their associations, and what is missing of the evidence that they are.

What is missing is collected for all calls that a conclusion rests on: the cause (a capture that began late, lost
segments, a sealed stub) as well as the effect (no open, no response). It is a set of codes: a number of which each bit
is one of ``MISSING_CODES``. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.attempts.calls.associations import (
    ClientAssociation,
    ConnectionsWithoutBind,
    RpcConnection,
    group_into_associations,
)
from pipeline.attempts.calls.decoded_call import CALL_ROLES, CallRole, DecodedCall
from pipeline.attempts.calls.handles import QueueHandles
from pipeline.attempts.columns.call_columns import OrderedCallColumns
from pipeline.attempts.columns.missing_codes import MISSING_CODES, missing_bits
from pipeline.attempts.columns.opened_queues import HANDLE_ROLES, OpenedQueues
from udfs.array_types import Bools, Ints
from udfs.columns.absent import ABSENT, AFTER_ALL, NONE
from udfs.columns.codes import codes_and_values
from udfs.columns.groups import expand_ranges, sorted_distinct

_UNSEEN_BEGINNING: Final = 1 << len(MISSING_CODES)  # of the association of a call
_LOSSY: Final = _UNSEEN_BEGINNING << 1  # of the connection of a call bytes are missing
_ONE_SIDED: Final = _LOSSY << 1  # of the connection of a call one direction was not captured


class EvidenceCalls(NamedTuple):
    """The calls that conclusions rest on, in order of time: those of a conclusion from ``begins`` to the next one's."""

    calls: Ints
    begins: Ints

    @classmethod
    def of(cls, owners: Sequence[Ints], calls: Sequence[Ints], count: int, bound: int) -> EvidenceCalls:
        """Return the evidence of ``count`` conclusions from pairs of conclusion and call, of which -1 is none.

        ``bound`` is the number of all calls.
        """
        owner, call = np.concatenate(owners), np.concatenate(calls)
        there = call != NONE
        pairs = sorted_distinct(owner[there] * max(bound, 1) + call[there])
        return cls(pairs % max(bound, 1), np.searchsorted(pairs, np.arange(count + 1) * max(bound, 1)))

    def take(self, conclusions: Ints) -> EvidenceCalls:
        """Return the evidence of some conclusions."""
        counts = np.diff(self.begins)[conclusions]
        begins = np.concatenate([[0], np.cumsum(counts)])
        return EvidenceCalls(self.calls[expand_ranges(self.begins[conclusions], counts)], begins)


class CallEvidence:
    """The calls of servers that have a role, as columns, with their associations and what is missing of each.

    ``rows`` as for ``OrderedCallColumns``; ``connections`` are all that are known of the servers.
    """

    def __init__(
        self,
        rows: pa.Table,
        connections: Iterable[RpcConnection],
        roles: Mapping[tuple[str, int], CallRole] = CALL_ROLES,
    ) -> None:
        self.calls = OrderedCallColumns(rows, roles)
        self._roles = roles
        self.connections = {connection.connection_id: connection for connection in connections}
        self.connection, names = self.calls.dictionary_codes("connection_id")
        self._names = names
        self._widen_lifetimes(names)
        self.association_by_connection = group_into_associations(self.connections.values())
        for name in names:  # a connection that has no row is alone, and without a captured end
            self.association_by_connection.setdefault(name, ClientAssociation(name))
        untimed = (self.calls.requested_at == ABSENT) & ~self.calls.has_outcome("no_request")
        self._with_gaps = {
            self.association_by_connection[name].name
            for name in (
                *(name for name, connection in self.connections.items() if connection.missing_bytes),
                *(names[code] for code in np.unique(self.connection[untimed]) if names[code] in self.connections),
            )
        }
        self._without_bind = ConnectionsWithoutBind(self.connections.values())
        self._add_columns(names)

    def _widen_lifetimes(self, names: Sequence[str]) -> None:
        """Make connections that several taps saw last from their first to their last call: the clocks differ."""
        calls = self.calls
        clocks = [values != ABSENT for values in calls.clocks.values()]
        tapped = np.flatnonzero(np.logical_or.reduce(clocks))
        begins, ends = np.full(len(names), AFTER_ALL, np.int64), np.full(len(names), ABSENT, np.int64)
        answered = np.where(np.isin(calls.responded_at, (ABSENT, 0)), calls.at, calls.responded_at)
        np.minimum.at(begins, self.connection[tapped], calls.at[tapped])
        np.maximum.at(ends, self.connection[tapped], answered[tapped])
        for code in np.unique(self.connection[tapped]).tolist():
            connection = self.connections.get(names[code])
            if connection is not None:
                self.connections[names[code]] = connection.including(int(begins[code]), int(ends[code]))

    def _add_columns(self, names: Sequence[str]) -> None:
        """Make columns of what is known of the connections and associations of calls."""
        each = [self.connections.get(name) for name in names]
        associations = [self.association_by_connection[name] for name in names]
        codes, _ = codes_and_values(pa.array([association.name for association in associations], pa.string()))
        at = self.connection
        self.association: Ints = codes[at]
        self.association_ended_at = _times(association.ended_at for association in associations)[at]
        self.closed_at = _times(None if one is None else one.closed_at for one in each)[at]
        self.is_connected = _flags(one is not None for one in each)[at]
        self.is_answered = _flags(one is None or bool(one.server_bytes) for one in each)[at]  # by anything
        self.has_gaps = _flags(association.name in self._with_gaps for association in associations)[at]
        self._begins_unseen = _flags(not association.beginning_seen for association in associations)[at]
        self._is_lossy = _flags(one is not None and bool(one.missing_bytes) for one in each)[at]
        self._is_one_sided = _flags(one is not None and one.uncaptured_side is not None for one in each)[at]

    @cached_property
    def is_cut_off(self) -> Bools:
        """Whether the capture ended inside the answer: its request is whole, and it is the last of an open connection.

        Where bytes of the connection are missing, the answer may have been damaged by that.
        """
        calls = self.calls
        last = np.zeros(int(self.connection.max(initial=NONE)) + 1, np.int64)
        np.maximum.at(last, self.connection, calls.responded_at)
        no_result = (calls.numbers("hresult") == ABSENT) & (calls.numbers("fault_status") == ABSENT)
        has_request = np.logical_or.reduce([calls.numbers(name) != ABSENT for name in ("action", "ack", "request_id")])
        goes_on = (self.closed_at != ABSENT) | (last[self.connection] > calls.responded_at)
        damaged = calls.has_outcome("damaged") & (calls.responded_at != ABSENT) & no_result & ~calls.has_errors
        found: Bools = damaged & has_request & self.is_connected & ~goes_on & ~self._is_lossy
        return found

    @cached_property
    def queues(self) -> OpenedQueues:
        """The opened queues behind the handles of the calls."""
        places = self.calls.of_role(*HANDLE_ROLES)
        openings = self.calls.objects(places)
        by_server: defaultdict[int, list[DecodedCall]] = defaultdict(list)
        for call, server in zip(openings, self.calls.server[places].tolist(), strict=True):
            by_server[server].append(call)
        handles = [QueueHandles(theirs, self.association_of, self._roles) for theirs in by_server.values()]
        return OpenedQueues(self.calls, self.association, openings, places, handles)

    def association_of(self, call: DecodedCall) -> ClientAssociation:
        """Return a call's association."""
        return self.association_by_connection[call.connection_id]

    def capture_ends_at(self, ends: Mapping[str, int]) -> Ints:
        """Return until when a server's packets were captured, of each call.

        That is what ``ends`` say of the server's address, else the last packet of the connections that are known.
        """
        last: defaultdict[str | None, int] = defaultdict(int)
        for connection in self.connections.values():
            last[connection.server_address] = max(last[connection.server_address], connection.last_packet_at)
        found = [ends.get(server or "", last[server]) for server in (*self.calls.servers, None)]  # none at -1
        return np.array(found, np.int64)[self.calls.server]

    @property
    def has_connections_without_bind(self) -> bool:
        """Whether a connection may belong to any association of its client."""
        return bool(self._without_bind)

    def may_share_association(self, call: int, since: int, until: int) -> bool:
        """Whether a connection without bind that existed between two times may belong to a call's association."""
        own = self.connections.get(self._names[self.connection[call]])
        return own is not None and self._without_bind.existed(own.server_address, own.client_address, since, until)

    # What is missing

    @cached_property
    def _missing_of_calls(self) -> tuple[Ints, Ints]:
        """What is missing of each call, as bits: of one that a conclusion is about, and of one that it uses."""
        calls = self.calls
        damaged = calls.has_outcome("damaged")
        unanswered = (calls.responded_at == ABSENT) & ~damaged
        unanswered &= (
            calls.numbers("orphaned_at") == ABSENT
        )  # abandoned by its client: no answer comes ([C706] 12.6.4.11)
        found = np.zeros(len(calls), np.int64)
        for bits, there in (
            (missing_bits("no_bind"), ~calls.flags("bind_seen")),
            (missing_bits("no_request"), calls.requested_at == ABSENT),
            (missing_bits("sealed"), calls.flags("encrypted")),
            (missing_bits("damaged"), damaged),
            (missing_bits("capture_ends"), self.is_cut_off),
            (missing_bits("decode_error"), calls.has_errors),
            (missing_bits("no_response"), unanswered),
            (_UNSEEN_BEGINNING, self._begins_unseen),
            (_LOSSY, self._is_lossy),
            (_ONE_SIDED, self._is_one_sided),
        ):
            found |= np.where(there, bits, 0)
        open_still = unanswered & self.is_connected & (self.closed_at == ABSENT)
        return found, found | np.where(open_still, missing_bits("capture_ends"), 0)

    def missing_of(self, about: Ints, used: EvidenceCalls, missing: Ints) -> Ints:
        """Return what is missing of conclusions about calls, and why; ``missing`` is what is known to be already."""
        own, others = self._missing_of_calls
        found = missing | own[about]
        if len(about):
            is_own = used.calls == np.repeat(about, np.diff(used.begins))
            of_used = np.where(is_own, 0, others[used.calls])
            found = found | np.bitwise_or.reduceat(of_used, used.begins[:-1])
        late = (found & missing_bits("no_open", "no_bind", "no_request") != 0) & (found & _UNSEEN_BEGINNING != 0)
        found = found | np.where(late, missing_bits("capture_begins"), 0)
        lost = found & missing_bits("no_response", "no_request", "damaged", "no_open", "no_bind") != 0
        found = found | np.where(lost & (found & _LOSSY != 0), missing_bits("capture_loss"), 0)
        one_sided = (found & missing_bits("capture_loss") != 0) & (found & _ONE_SIDED != 0)
        found = found | np.where(one_sided, missing_bits("one_direction"), 0)
        return found & (_UNSEEN_BEGINNING - 1)


def _times(times: Iterable[int | None]) -> Ints:
    return np.array([ABSENT if time is None else time for time in times], np.int64)


def _flags(flags: Iterable[bool]) -> Bools:
    return np.array([*flags], np.bool_)
