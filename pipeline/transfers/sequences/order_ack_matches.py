"""Which order acks name which sequences: the one rule, for rows of sequences and of messages. No Spark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.transfers.hops.hop_keys import HOP_COLUMNS
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.codes import codes_of_both
from udfs.columns.groups import expand_ranges

ADDRESS: Final = "address"
QUEUE_MANAGER: Final = "queue_manager"
_WAY_BACK: Final = (("sender", "receiver"), ("receiver", "sender"))


def match_order_acks(
    sequences: pa.Table,
    acks: pa.Table,
    clones: Collection[str] = (),
    *,
    hop_by: Sequence[str] = (ADDRESS, QUEUE_MANAGER),
) -> tuple[Ints, Ints, Bools]:
    """Return which order acks name which sequences: rows of ``sequences``, rows of ``acks``, whether on the same hop.

    An order ack names a sequence by its id. It is for its source, or for nobody that was seen; and from its destination
    queue manager, where it has one. Where it has none, order acks of other hops are from the receiver of the hop, if
    that is known. On the same hop is what goes back between the same two addresses, or between the same two queue
    managers, as far as handshakes show these, and none is one of ``clones``: by one of ``hop_by``. Pairs are in order
    of ``sequences``, then of ``acks``.

    ``sequences`` has sequence_id, source_queue_manager, destination_queue_manager, receiver_queue_manager and the
    columns of ``hop_by`` of sender and receiver; ``acks`` has sequence_id, acknowledged_queue_manager, queue_manager
    (which sent it), and the same columns of its own sender and receiver.
    """
    ours, theirs = codes_of_both(sequences["sequence_id"], acks["sequence_id"])
    by_id = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs[by_id], ours, side=side) for side in ("left", "right"))
    count = high - low
    of_sequence = np.repeat(np.arange(len(ours)), count)
    of_ack = by_id[expand_ranges(low, count)]

    def pairs(column: str, ack_column: str) -> tuple[Ints, Ints]:
        ours, theirs = codes_of_both(sequences[column], acks[ack_column])
        return ours[of_sequence], theirs[of_ack]

    def goes_back(name: str) -> Bools:
        ends = [pairs(f"{one}_{name}", f"{other}_{name}") for one, other in _WAY_BACK]
        same: Bools = np.logical_and.reduce([(one == other) & (one != NONE) for one, other in ends])
        return same & ~_are_clones(sequences, clones)[of_sequence] if name == QUEUE_MANAGER else same

    source, acknowledged = pairs("source_queue_manager", "acknowledged_queue_manager")
    destination, by = pairs("destination_queue_manager", "queue_manager")
    receiver, by_receiver = pairs("receiver_queue_manager", "queue_manager")
    same_hop = np.logical_or.reduce([goes_back(name) for name in hop_by])
    is_far_end = same_hop | (receiver == NONE) | (receiver == by_receiver)
    is_destination = np.where(destination == NONE, is_far_end, destination == by)
    found = ((acknowledged == NONE) | (acknowledged == source)) & is_destination
    return of_sequence[found], of_ack[found], same_hop[found]


def _are_clones(sequences: pa.Table, clones: Collection[str]) -> Bools:
    """Return whether a queue manager at an end of each sequence is one of ``clones``."""
    unclear = pa.array(sorted(clones), pa.string())
    flags: Bools = np.logical_or.reduce([np.asarray(pc.is_in(sequences[name], unclear)) for name in HOP_COLUMNS[:2]])
    return flags
