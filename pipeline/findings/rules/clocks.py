"""The rule on clocks that disagree (O02). No Spark.

A message carries the time it was sent, by the sender's clock, and the time it arrived, by the clock of the queue's
owner, both in whole seconds. It is read at a time of the capture's clock. None of these times may lie before the one
before it; where one does, the difference is the least by which the two clocks disagree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls, Suspects
from pipeline.findings.columns.call_history import READ_METHODS, AssociationHistory, CapturedCall
from pipeline.findings.rules.registry import Violation, association_rule
from udfs.columns.groups import Groups

_ROUNDING_US: Final = 2_000_000  # both times are rounded to seconds


def _largest_differences(calls: AssociationCalls) -> Suspects:
    """Return the reads with the largest gap of each pair of clocks, in each association."""
    reads = calls.of(*sorted(READ_METHODS)) & calls.succeeded & calls.has("arrived_at") & calls.answered
    sent, arrived = calls.numbers("sent_at"), calls.numbers("arrived_at")
    found = calls.nothing()
    for gap, columns, seen in (
        (sent - arrived, ("source_queue_manager", "server_address"), reads & calls.has("sent_at")),
        (arrived - calls.responded_at, ("server_address",), reads),
    ):
        rows = np.nonzero(seen & (gap > _ROUNDING_US))[0]
        groups = Groups(rows, calls.keys(*columns)[rows], gap[rows])
        found[groups.rows[gap[groups.rows] == groups.largest(gap[groups.rows])]] = True
    return Suspects(found)


@association_rule(
    "O02",
    "the message's times, and the time of the response that returned it, were captured",
    suspects=_largest_differences,
)
def clock_difference(history: AssociationHistory) -> Iterator[Violation]:
    """A time of a message lies before the preceding one; once per pair of clocks, with the largest gap."""
    ahead: defaultdict[tuple[str, str], list[tuple[int, CapturedCall]]] = defaultdict(list)
    for call in history.calls_of(*sorted(READ_METHODS)):
        sent, arrived = call["sent_at"], call["arrived_at"]
        if not call.succeeded or arrived is None or call.responded_at is None:
            continue
        owner = f"server {call['server_address']}"
        if sent is not None and sent - arrived > _ROUNDING_US:
            ahead[f"queue manager {call['source_queue_manager']}", owner].append((sent - arrived, call))
        if arrived - call.responded_at > _ROUNDING_US:
            ahead[owner, "the capture"].append((arrived - call.responded_at, call))
    for (first, second), seen in ahead.items():
        most, call = max(seen, key=lambda each: (each[0], each[1]["call_key"]))
        actual = f"{first} is ahead of {second} by at least {most / 1e6:.0f} s"
        yield Violation(call, actual, severity="warning", subject=f"clocks of {first} and {second}")
