"""Which open gave the handle that each call uses, for all calls of some servers at once.

``handles`` says of each open from when to when its handle stood for a queue. A call of RemoteRead uses the latest open
of its association and context handle before it, a call of qm2qm the latest session of its number at its server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.attempts.calls.decoded_call import CallRole, DecodedCall
from pipeline.attempts.calls.handles import HandleSpan, QueueHandles
from pipeline.attempts.columns.call_columns import OrderedCallColumns
from pipeline.attempts.columns.missing_codes import missing_bits
from udfs.array_types import Bools, Ints
from udfs.columns.absent import ABSENT, AFTER_ALL, NONE
from udfs.columns.codes import combine_codes, dictionary_codes, either_code, number_codes
from udfs.columns.groups import take_or
from udfs.columns.time_index import TimeIndex

HANDLE_ROLES: Final[tuple[CallRole, ...]] = ("name", "release", "open", "close", "target")
"""The roles of calls that open queues, number them, and let go: few of all calls."""


class OpenedQueueColumns(NamedTuple):
    """What is known of the queues behind the handles that calls use; -1 stands for no call.

    ``named``: the call that names the queue; ``calls``: those that the answer rests on, several columns; ``missing``:
    what is missing of it, as bits.
    """

    named: Ints
    calls: Sequence[Ints]
    missing: Ints


class OpenedQueues:
    """The opened queues of some servers. ``association`` has the code of each call's association.

    ``handles`` are those of each server, of objects made of ``openings``, the calls whose role is in ``HANDLE_ROLES``.
    """

    def __init__(
        self,
        calls: OrderedCallColumns,
        association: Ints,
        openings: Sequence[DecodedCall],
        places: Ints,
        handles: Sequence[QueueHandles],
    ) -> None:
        self._calls, self._association = calls, association
        numbers = calls.numbers("queue_handle")
        number = number_codes(np.where(numbers == 0, ABSENT, numbers))
        contexts, _ = calls.dictionary_codes("context_handle")
        context = combine_codes(association, calls.protocol, contexts)
        self._number = combine_codes(calls.server + 1, number)  # at its owner
        self._handle = either_code(calls.by_number, self._number, context)
        known = dictionary_codes(pa.array(numbers))  # what was not captured, or is 0, counts as a number here
        self._read_over = either_code(calls.by_number, combine_codes(association, known), context)

        place = {call.call_key: index for call, index in zip(openings, places.tolist(), strict=True)}
        self._add_spans([span for each in handles for span in each.spans()], place)
        self._add_closes([close for each in handles for close in each.closes], place)
        names = _places((call for each in handles for call in each.names), place)
        self._names = TimeIndex(self._number[names], calls.responded_at[names], names)
        opens = calls.of_role("open")
        self._asked = TimeIndex(self._asks(opens), calls.at[opens], opens)

    def _add_spans(self, spans: Sequence[HandleSpan], place: Mapping[str, int]) -> None:
        opened = _places((span.opened for span in spans), place)
        self._opens = TimeIndex(self._handle[opened], self._calls.responded_at[opened], opened)
        self._named, self._doubtful = (np.full(len(self._calls), NONE, np.int64) for _ in range(2))
        self._over_at = np.full(len(self._calls), AFTER_ALL, np.int64)
        self._named[opened] = _places((span.named for span in spans), place)
        self._doubtful[opened] = _places((span.doubtful_close for span in spans), place)
        self._over_at[opened] = [span.over_at for span in spans]

    def _add_closes(self, closes: Sequence[tuple[DecodedCall, DecodedCall | None]], place: Mapping[str, int]) -> None:
        """Add closes of what is read from: of a session's number in its association, and of a context."""
        calls = _places((close for close, _ in closes), place)
        sessions = _places((session for _, session in closes), place)
        times = self._calls.requested_at[calls]
        closed = np.where(self._calls.by_number[calls], sessions, calls)
        self._closes = TimeIndex(take_or(self._read_over, closed, NONE), times, calls)
        unopened_closes = calls[closed == NONE]  # of what was not opened in sight
        self._unopened_closes = TimeIndex(self._association[unopened_closes], times[closed == NONE], unopened_closes)

    def _asks(self, calls: Ints) -> Ints:
        return either_code(self._calls.by_number[calls], self._association[calls], self._association[calls])

    def first_close_after(self, users: Ints, times: Ints) -> Ints:
        """Return the close, not refused, after a time, of the queue that each call reads from; -1 for none."""
        return self._closes.first_after(self._read_over[users], times)

    def is_closed_until(self, users: Ints, times: Ints) -> Bools:
        """Whether a client closed the queue that each call reads from until a time, or may have.

        May have: it closed a queue whose number it was given before the capture began.
        """
        at = self._calls.at[users]
        unopened = self._calls.by_number[users] & (self._opens.latest(self._handle[users], at) == NONE)
        unopened_closes = np.where(unopened, self._unopened_closes.first_after(self._association[users], at), NONE)
        return self._is_until(self.first_close_after(users, at), times) | self._is_until(unopened_closes, times)

    def _is_until(self, calls: Ints, times: Ints) -> Bools:
        return take_or(self._calls.at, calls, AFTER_ALL) <= times

    def find(self, users: Ints) -> OpenedQueueColumns:
        """Return the queues behind the handles that calls use; a handle is valid from open to close."""
        calls, handles = self._calls, self._handle[users]
        at = calls.at[users]
        opened = self._opens.latest(handles, at)
        over = take_or(self._over_at, opened, AFTER_ALL) < at
        opened = np.where(over, NONE, opened)
        # The supporting server's open was not captured, but the application's was.
        alone = np.where(calls.by_number[users] & (opened == NONE) & ~over, self._number[users], NONE)
        named = np.where(opened == NONE, self._names.latest(alone, at), take_or(self._named, opened, NONE))
        opened = np.where(named == NONE, NONE, opened)
        doubtful = take_or(self._doubtful, opened, NONE)
        refusing = (take_or(calls.at, doubtful, AFTER_ALL) < at) & ~calls.succeeded[0][users]
        # Without its handle nothing is known of the open, but whether there was one.
        asked = (handles == NONE) & (self._asked.latest(self._asks(users), at) != NONE)
        names = take_or(calls.is_known("queue"), named, default=False)
        missing = np.where((opened == NONE) & ~asked, missing_bits("no_open"), 0)
        missing |= np.where(names, 0, missing_bits("queue_unknown"))
        return OpenedQueueColumns(
            np.where(names, named, NONE), (named, opened, np.where(refusing, doubtful, NONE)), missing
        )


def _places(calls: Iterable[DecodedCall | None], place: Mapping[str, int]) -> Ints:
    """Return the indexes of calls; -1 for None."""
    return np.array([NONE if call is None else place[call.call_key] for call in calls], np.int64)
