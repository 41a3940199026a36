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


def acknowledged_groups(grouped: str, sequence_id: str) -> tuple[str, str]:
    """Return the SQL of two joins that give an order ack, ``a``, the buckets of the sequences that it may name, ``g``.

    These are sequences of the source that it is for, or of any source where it does not tell. ``grouped``: rows with
    the column ``sequence_id``, source_queue_manager and bucket.
    """
    named = f"ON g.{sequence_id} = CAST(a.transaction_sequence_id AS string)"
    of_source = f"(SELECT DISTINCT {sequence_id}, source_queue_manager, bucket FROM {grouped}) AS g {named}"
    of_any = f"(SELECT DISTINCT {sequence_id}, bucket FROM {grouped}) AS g {named}"
    return (
        f"{of_source} AND g.source_queue_manager = a.acknowledged_queue_manager",
        f"{of_any} AND a.acknowledged_queue_manager IS NULL",
    )


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
    of_sequence, of_ack = _pairs_of_one_source(sequences, acks)

    def pairs(column: str, ack_column: str) -> tuple[Ints, Ints]:
        ours, theirs = codes_of_both(sequences[column], acks[ack_column])
        return ours[of_sequence], theirs[of_ack]

    def goes_back(name: str) -> Bools:
        ends = [pairs(f"{one}_{name}", f"{other}_{name}") for one, other in _WAY_BACK]
        same: Bools = np.logical_and.reduce([(one == other) & (one != NONE) for one, other in ends])
        return same & ~_are_clones(sequences, clones)[of_sequence] if name == QUEUE_MANAGER else same

    destination, by = pairs("destination_queue_manager", "queue_manager")
    receiver, by_receiver = pairs("receiver_queue_manager", "queue_manager")
    same_hop = np.logical_or.reduce([goes_back(name) for name in hop_by])
    is_far_end = same_hop | (receiver == NONE) | (receiver == by_receiver)
    found = np.where(destination == NONE, is_far_end, destination == by)
    return of_sequence[found], of_ack[found], same_hop[found]


def _pairs_of_one_source(sequences: pa.Table, acks: pa.Table) -> tuple[Ints, Ints]:
    """Return which order acks name the id of which sequences, and their source, or nobody; in order.

    Many sources may use one id: acks for others are no pairs that memory would have to hold.
    """
    our_id, their_id = codes_of_both(sequences["sequence_id"], acks["sequence_id"])
    source, acknowledged = codes_of_both(sequences["source_queue_manager"], acks["acknowledged_queue_manager"])
    sources = max(source.max(initial=NONE), acknowledged.max(initial=NONE)) + 2  # with nobody
    named = their_id * sources + acknowledged
    order = np.argsort(named, kind="stable")
    of_sequence, of_ack = [], []
    for ours, name in ((np.flatnonzero(source != NONE), source), (np.arange(len(source)), np.full_like(source, NONE))):
        wanted = our_id[ours] * sources + name[ours]
        low, high = (np.searchsorted(named[order], wanted, side=side) for side in ("left", "right"))
        of_sequence.append(np.repeat(ours, high - low))
        of_ack.append(order[expand_ranges(low, high - low)])
    found = np.concatenate(of_sequence), np.concatenate(of_ack)
    in_order = np.lexsort(found[::-1])
    return found[0][in_order], found[1][in_order]


def _are_clones(sequences: pa.Table, clones: Collection[str]) -> Bools:
    """Return whether a queue manager at an end of each sequence is one of ``clones``."""
    unclear = pa.array(sorted(clones), pa.string())
    flags: Bools = np.logical_or.reduce([np.asarray(pc.is_in(sequences[name], unclear)) for name in HOP_COLUMNS[:2]])
    return flags
