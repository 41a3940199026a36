"""The rule on clocks that disagree (O02). No Spark.

A message carries the time it was sent, by the sender's clock, and the time it arrived, by the clock of the queue's
owner, both in whole seconds. It is read at a time of the capture's clock. None of these times may lie before the one
before it; where one does, the difference is the least by which the two clocks disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import READ_METHODS
from pipeline.findings.rules.registry import ViolatingCalls, association_call_rule

_ROUNDING_US: Final = 2_000_000  # both times are rounded to seconds
_SENDER: Final = "queue manager {source_queue_manager}"
_OWNER: Final = "server {server_address}"


@association_call_rule(
    "O02", *sorted(READ_METHODS), needs="ok",
    precondition="the message's times, and the time of the response that returned it, were captured",
)  # fmt: skip
def clock_difference(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """A time of a message lies before the preceding one; once per pair of clocks, with the largest gap."""
    sent, arrived = calls.numbers("sent_at"), calls.numbers("arrived_at")
    timed = calls.has("arrived_at") & calls.answered
    yield from _largest(calls, timed & calls.has("sent_at"), sent - arrived, _SENDER, _OWNER)
    yield from _largest(calls, timed, arrived - calls.responded_at, _OWNER, "the capture")


def _largest(calls: AssociationCalls, seen: Mask, gap: Numbers, first: str, second: str) -> Iterator[ViolatingCalls]:
    """Yield the call with the largest gap between two clocks of each association."""
    clocks = ("source_queue_manager", "server_address") if first == _SENDER else ("server_address",)
    wrong = seen & (gap > _ROUNDING_US)
    yield ViolatingCalls(
        calls.largest_of(wrong, gap, *clocks), f"{first} is ahead of {second} by at least {{:.0f}} s", (gap / 1e6,),
        severity="warning", subject=f"clocks of {first} and {second}",
    )  # fmt: skip
