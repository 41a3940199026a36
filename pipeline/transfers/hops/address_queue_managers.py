"""Which queue manager an address is at a time: the one that all handshakes seen at about that time show. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.text_codes import NO_CODE, text_codes
from udfs.array_types import Ints

HANDSHAKES_SQL: Final = """
SELECT client_address AS address, initiator_queue_manager AS queue_manager,
  coalesce(establish_requested_at, establish_answered_at) AS shown_at FROM {rows}
UNION ALL
SELECT server_address AS address, acceptor_queue_manager AS queue_manager,
  coalesce(establish_answered_at, establish_requested_at) AS shown_at FROM {rows}"""
"""What handshakes show of both ends, from rows of silver.sessions; null where one did not show it."""
FAR: Final = 1 << 61
"""A time after all others, microseconds; its negative is before all others."""


class AddressSpan(NamedTuple):
    """An address from a time on (microseconds), up to another one that does not belong to it."""

    address: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class AddressQueueManagers:
    """Handshakes by address and time; one counts for ``expire_us`` before and after it, both included.

    ``keys`` are address and time as one number, ascending; ``runs`` number the series of handshakes of one address
    that show the same queue manager.
    """

    addresses: pa.Array
    times: Ints  # all there are, ascending
    keys: Ints
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
        place = np.asarray(pc.index_in(handshakes["address"], addresses).combine_chunks(), np.int64)
        at = np.asarray(times_to_us(handshakes["shown_at"]).combine_chunks(), np.int64)
        shown = text_codes(handshakes["queue_manager"])
        order = np.lexsort((shown, at, place))
        times, rank = np.unique(at, return_inverse=True)
        changes = np.ones(len(order), np.bool_)
        changes[1:] = (np.diff(place[order]) != 0) | (np.diff(shown[order]) != 0)
        names = handshakes["queue_manager"].take(pa.array(order)).combine_chunks().cast(pa.string())
        keys = place * (len(times) + 1) + rank
        return AddressQueueManagers(addresses, times, keys[order], np.cumsum(changes), names, expire_us)

    def at(self, addresses: pa.ChunkedArray | pa.Array, at: Ints) -> pa.Array:
        """Return for each address the queue manager that it is at a time; null where handshakes show none, or two."""
        place = pc.fill_null(pc.index_in(addresses, self.addresses).cast(pa.int64()), NO_CODE)
        place = np.asarray(place.combine_chunks() if isinstance(place, pa.ChunkedArray) else place, np.int64)
        base = place * (len(self.times) + 1)
        low = np.searchsorted(self.keys, base + np.searchsorted(self.times, at - self.expire_us))
        high = np.searchsorted(self.keys, base + np.searchsorted(self.times, at + self.expire_us, side="right"))
        runs = np.append(self.runs, 0)
        one = (place >= 0) & (low < high) & (runs[np.minimum(low, len(runs) - 1)] == runs[high - 1])
        return self.queue_managers.take(pa.array(np.where(one, low, 0), mask=~one))


def changed_spans(before: pa.Table, now: pa.Table, expire_us: int) -> Iterator[AddressSpan]:
    """Yield when addresses are another queue manager by the handshakes ``now`` than by those ``before``.

    Both have the handshakes of all addresses that are in either, as ``HANDSHAKES_SQL`` returns them.
    """
    found = [AddressQueueManagers.of(each, expire_us) for each in (before, now)]
    both = pa.concat_tables([before, now])
    both = both.filter(both["shown_at"].is_valid())
    for address in pc.unique(both["address"]).to_pylist():
        ours = both.filter(pc.equal(both["address"], address))
        at = np.asarray(times_to_us(ours["shown_at"]).combine_chunks(), np.int64)
        bounds = np.unique(np.concatenate([at - expire_us, at + expire_us + 1]))  # where an answer can change
        names = pa.array([address] * len(bounds), pa.string())
        one, other = (each.at(names, bounds).to_pylist() for each in found)
        ends = np.append(bounds[1:], FAR)
        for place in [place for place in range(len(bounds)) if one[place] != other[place]]:
            yield AddressSpan(address, int(bounds[place]), int(ends[place]))
