"""How exactly-once sequences began: compared with the sequence before, of one source and queue on one hop. No Spark."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.groups import is_group_start

_EPOCH_BITS: Final = 32  # the upper half of a sequence id


def find_predecessors(flow: Ints, first_sent_at: Ints, sequence_id: Any, wait_us: int) -> Ints:  # noqa: ANN401
    """Return for each sequence the place of the one before, or ``NONE``.

    That is, of the sequences of the same ``flow`` (source, destination queue and hop, as a number), the one with the
    latest ``first_sent_at`` (microseconds) before its own, by at most ``wait_us`` (transfers.wait); of several the one
    with the highest ``sequence_id`` (uint64).
    """
    count = len(flow)
    if not count:
        return np.zeros(0, np.int64)
    order = np.lexsort((sequence_id, first_sent_at, flow))
    flow, first_sent_at = flow[order], first_sent_at[order]
    new = is_group_start(flow, first_sent_at)
    before = np.maximum.accumulate(np.where(new, np.arange(count), 0)) - 1  # of those with one time none is before
    found = (before >= 0) & (flow[before] == flow) & (first_sent_at - first_sent_at[before] <= wait_us)
    out = np.full(count, NONE, np.int64)
    out[order] = np.where(found, order[before], NONE)
    return out


def how_they_began(predecessor: Ints, sequence_id: Any, abandoned: Bools) -> Any:  # noqa: ANN401 - arrays of NumPy
    """Return ``began`` of each sequence: first, backwards, new_epoch, abandoned or emptied.

    ``predecessor`` is what ``find_predecessors`` returns. ``abandoned``: numbers wait in this sequence, and its order
    acks are not unseen.
    """
    before = sequence_id[predecessor] if len(sequence_id) else sequence_id
    conditions = {
        "first": predecessor == NONE,
        "backwards": sequence_id < before,
        "new_epoch": sequence_id >> _EPOCH_BITS > before >> _EPOCH_BITS,
        "abandoned": abandoned[predecessor] if len(abandoned) else abandoned,
    }
    return np.select([*conditions.values()], [*conditions], "emptied")
