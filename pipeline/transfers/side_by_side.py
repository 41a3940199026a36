"""Captures that saw a connection side by side: their clocks may differ, so no time is compared between them. No Spark.

The files of a ring follow one another and have one clock. Two captures are taps of one connection where the spans of
its packets in them overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.transfers.checkpoints import CaptureSpan
from udfs.array_types import Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE
from udfs.columns.codes import codes_and_values


def capture_spans(captures: pa.Array, sent_at: Ints, before: Sequence[CaptureSpan] = ()) -> list[CaptureSpan]:
    """Return from when to when each capture saw packets of one connection.

    ``captures`` (capture_id) and ``sent_at`` (microseconds or ``NO_TIME``) are of its packets; ``before``: the spans of
    others.
    """
    codes, names = codes_and_values(captures)
    known = (codes != NONE) & (sent_at != NO_TIME)
    at, which = sent_at[known], codes[known]
    first, last = np.full(len(names), AFTER_ALL), np.full(len(names), NO_TIME)
    np.minimum.at(first, which, at)
    np.maximum.at(last, which, at)
    spans = {each.capture_id: each for each in before}
    for name, begin, end in zip(names, first.tolist(), last.tolist(), strict=True):
        if begin <= end:
            known_span = spans.get(name, CaptureSpan(name, begin, end))
            spans[name] = CaptureSpan(name, min(begin, known_span.first_us), max(end, known_span.last_us))
    return [*spans.values()]


def overlapping_captures(
    captures: pa.Array, sent_at: Ints, before: Sequence[CaptureSpan] = ()
) -> list[tuple[str, str]]:
    """Return the pairs of captures whose spans of a connection overlap, the smaller name first, sorted.

    The arguments are those of ``capture_spans``.
    """
    spans = capture_spans(captures, sent_at, before)
    if len(spans) < 2:
        return []
    names = [each.capture_id for each in spans]
    first, last = (np.array([getattr(each, name) for each in spans], np.int64) for name in ("first_us", "last_us"))
    order = np.argsort(first, kind="stable")
    pairs = []
    for place, one in enumerate(order.tolist()):
        behind = order[place + 1 :]
        met = behind[: np.searchsorted(first[behind], last[one], side="right")]
        pairs += [tuple(sorted((names[one], names[other]))) for other in met.tolist()]
    return sorted(pairs)
