"""Which queue manager an address is at a time: the one that all handshakes seen at about that time show. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, RowsOfDates
from pipeline.transfers.hops.session_spans import TimeSpan
from schemas.sessions import SESSIONS
from udfs.array_types import Ints
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.arrays import one_array, to_ints, to_times
from udfs.columns.codes import dictionary_codes
from udfs.columns.groups import is_group_start
from udfs.columns.time_index import TimeIndex
from udfs.rows import RowDict

HANDSHAKES_SQL: Final = """
SELECT client_address AS address, initiator_queue_manager AS queue_manager,
  coalesce(establish_requested_at, establish_answered_at) AS shown_at FROM {rows}
UNION ALL
SELECT server_address AS address, acceptor_queue_manager AS queue_manager,
  coalesce(establish_answered_at, establish_requested_at) AS shown_at FROM {rows}"""
"""What handshakes show of both ends, from rows of silver.sessions; null where one did not show it."""
SHOWN_SQL: Final = "queue_manager IS NOT NULL AND shown_at IS NOT NULL AND address IS NOT NULL"
"""The condition of what a handshake shows of an end."""
_CHANGED_HANDSHAKES: Final = f"""
SELECT address, queue_manager, shown_at, unix_micros(shown_at) AS `at`, {MORE_ROWS_SQL} AS more
FROM ({HANDSHAKES_SQL.replace(" FROM {rows}", ", _change_type FROM {feed}")}) WHERE {SHOWN_SQL}
GROUP BY address, queue_manager, shown_at HAVING {MORE_ROWS_SQL} <> 0"""
_OF_UNKNOWN_ENDS: Final = f"""
SELECT address, queue_manager, shown_at FROM ({{handshakes}}) WHERE {SHOWN_SQL} AND address IN (
  SELECT sender_address FROM {{sendings}} WHERE sender_queue_manager IS NULL
  UNION SELECT receiver_address FROM {{sendings}} WHERE receiver_queue_manager IS NULL)"""


class AddressSpan(NamedTuple):
    """An address from a time on (microseconds), up to another one that does not belong to it."""

    address: str
    since: int
    until: int


def handshakes_sql(span: TimeSpan) -> str:
    """Return ``HANDSHAKES_SQL`` of the sessions that exist within a span."""
    return HANDSHAKES_SQL.replace("{rows}", span.sessions_sql())


def changed_handshakes(step: IncrementalUpdate) -> list[RowDict]:
    """Return what more, or fewer, handshakes show than before: rows of ``HANDSHAKES_SQL``, ``at`` and how many more.

    UnknownChangesError where that is not known.
    """
    found = step.shared_changed_rows(SESSIONS, _CHANGED_HANDSHAKES)
    return [] if found is None else found.to_pylist()


def read_handshakes(lake: Lake, sendings: RowsOfDates, span: TimeSpan) -> pa.Table:
    """Return what handshakes show of addresses at ends of which no queue manager is known, of some sendings.

    These are the handshakes of sessions that exist within a span.
    """
    sql = _OF_UNKNOWN_ENDS.replace("{handshakes}", handshakes_sql(span))
    return lake.query(sql, rows=SESSIONS, sendings=sendings)


@dataclass(frozen=True, slots=True)
class AddressQueueManagers:
    """Handshakes by address and time; one counts for ``expire_us`` before and after it, both included.

    ``runs`` number the series of handshakes of one address that show the same queue manager.
    """

    addresses: pa.Array
    index: TimeIndex
    runs: Ints
    queue_managers: pa.Array
    expire_us: int

    @staticmethod
    def of(handshakes: pa.Table, expire_us: int) -> AddressQueueManagers:
        """Sort handshakes, rows of ``HANDSHAKES_SQL``; those without a queue manager or a time are left out."""
        known = pc.and_(handshakes["queue_manager"].is_valid(), handshakes["shown_at"].is_valid())
        known = pc.and_(known, handshakes["address"].is_valid())
        handshakes = handshakes.filter(known)
        addresses = pc.unique(handshakes["address"]).cast(pa.string())
        place = to_ints(pc.index_in(handshakes["address"], addresses))
        shown = dictionary_codes(handshakes["queue_manager"])
        by_name = np.argsort(shown, kind="stable")  # of one address and time the equal ones together
        index = TimeIndex(place[by_name], to_times(handshakes["shown_at"])[by_name], by_name)
        runs: Ints = np.cumsum(is_group_start(place[index.order], shown[index.order]))
        names = one_array(handshakes["queue_manager"].take(pa.array(index.order))).cast(pa.string())
        return AddressQueueManagers(addresses, index, runs, names, expire_us)

    def at(self, addresses: pa.ChunkedArray | pa.Array, at: Ints) -> pa.Array:
        """Return for each address the queue manager that it is at a time; null where handshakes show none, or two."""
        place = to_ints(pc.index_in(addresses, self.addresses), NONE)
        low, high = self.index.span(place, at - self.expire_us, at + self.expire_us)
        runs = np.append(self.runs, 0)
        one = (low < high) & (runs[low] == runs[high - 1])
        return self.queue_managers.take(pa.array(np.where(one, low, 0), mask=~one))


def changed_spans(before: pa.Table, now: pa.Table, expire_us: int) -> Iterator[AddressSpan]:
    """Yield when addresses are another queue manager by the handshakes ``now`` than by those ``before``.

    Both have the handshakes of all addresses that are in either, as ``HANDSHAKES_SQL`` returns them.
    """
    both = pa.concat_tables([before, now])
    both = both.filter(pc.and_(both["shown_at"].is_valid(), both["address"].is_valid()))
    addresses, at = one_array(both["address"]).dictionary_encode(), to_times(both["shown_at"])
    place, bounds = np.tile(to_ints(addresses.indices), 2), np.concatenate([at - expire_us, at + expire_us + 1])
    order = np.lexsort((bounds, place))
    order = order[is_group_start(place[order], bounds[order])]
    place, bounds = place[order], bounds[order]  # where an answer can change: each once, those of an address together
    names = addresses.dictionary.take(pa.array(place))
    one, other = (AddressQueueManagers.of(each, expire_us).at(names, bounds) for each in (before, now))
    differs = pc.or_(pc.fill_null(pc.not_equal(one, other), fill_value=False), pc.xor(one.is_null(), other.is_null()))
    is_last = np.append(is_group_start(place)[1:], True)
    ends = np.where(is_last, AFTER_ALL, np.append(bounds[1:], AFTER_ALL))
    for each in np.flatnonzero(differs):
        yield AddressSpan(names[each].as_py(), int(bounds[each]), int(ends[each]))
