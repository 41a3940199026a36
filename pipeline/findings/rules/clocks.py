"""Tests of the rules on operation that calls show. No Spark.

A message carries when it was sent, by the sender's clock, and when it was put in its queue, by that of the queue's
owner, both in whole seconds; it is read at a time of the capture's clock. None of these may lie before the one before
it, so that by how much one does is the least by which the clocks differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from pipeline.findings.rules.conversations import READS, Conversation, Exchange
from pipeline.findings.rules.registry import Hit, over

_SLACK_US: Final = 2_000_000  # both times are rounded to seconds


@over("O02", "the message's times were read, and the time of the answer that brought it")
def clocks(conv: Conversation) -> Iterator[Hit]:
    """A time of the message lies before the one before it; said once for two clocks, with the largest difference."""
    ahead: defaultdict[tuple[str, str], list[tuple[int, Exchange]]] = defaultdict(list)
    for call in conv.of(*sorted(READS)):
        sent, arrived = call["sent_at"], call["arrived_at"]
        if not call.ok or arrived is None or call.done is None:
            continue
        owner = f"server {call['server_address']}"
        if sent is not None and sent - arrived > _SLACK_US:
            ahead[f"queue manager {call['source_queue_manager']}", owner].append((sent - arrived, call))
        if arrived - call.done > _SLACK_US:
            ahead[owner, "the capture"].append((arrived - call.done, call))
    for (first, second), seen in ahead.items():
        most, call = max(seen, key=lambda each: (each[0], each[1]["call_key"]))
        actual = f"{first} is ahead of {second} by at least {most / 1e6:.0f} s"
        yield Hit(call, actual, severity="warning", subject=f"clocks of {first} and {second}")
