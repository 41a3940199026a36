"""Captures that saw a connection side by side: their clocks may differ, so no time is compared between them. No Spark.

The files of a ring follow one another and have one clock. Two captures are taps of one connection where the spans of
its packets in them overlap.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.transfers.packet_numbers import NO_TIME
from udfs.array_types import Ints


def overlapping_captures(captures: pa.Array, sent_at: Ints) -> list[tuple[str, str]]:
    """Return the pairs of captures whose spans of a connection overlap, the smaller name first, sorted.

    ``captures`` (capture_id) and ``sent_at`` (microseconds or ``NO_TIME``) are of all packets of one connection.
    """
    encoded = captures.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    known = np.asarray(encoded.indices.is_valid()) & (sent_at != NO_TIME)
    if len(names) < 2 or not known.any():
        return []
    at, which = sent_at[known], np.asarray(encoded.indices.fill_null(0))[known]
    first, last = np.full(len(names), at.max() + 1), np.full(len(names), at.min() - 1)
    np.minimum.at(first, which, at)
    np.maximum.at(last, which, at)
    order = np.argsort(first, kind="stable")
    pairs = []
    for place, one in enumerate(order.tolist()):
        behind = order[place + 1 :]
        met = behind[: np.searchsorted(first[behind], last[one], side="right")]
        pairs += [tuple(sorted((names[one], names[other]))) for other in met.tolist()]
    return sorted(pairs)
