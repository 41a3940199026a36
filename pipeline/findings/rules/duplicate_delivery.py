"""Rules on messages that two readers received, over all associations of a queue. No Spark.

``messages`` looks at one association. Here two readers of different associations got the same message. The first reader
holds it from the response that returned it until its End was accepted as an acknowledgement, outside a transaction.
From then on the message is gone, and nobody else can receive it. That is certain where

* the same queue of the same queue manager returned the same number, header and arrival time;
* the first reader's calls were captured completely, and its End came within the five minutes after which the server
  gives up a receive;
* both readers were captured together and within a day, so that they have one clock, and the second one's request came
  after the first one's response;
* the second reader's connection existed before the message was acknowledged, and still does: so the queue manager was
  not restarted in between, which may bring back what was not on its disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pipeline.findings.columns.call_history import CLEANUP_TIMEOUT_US, TIMER_SLACK_US
from pipeline.findings.rules.queue_facts import QueueFacts, QueueRead, QueueRuleLimits
from pipeline.findings.rules.registry import QueueViolation, queue_rule
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME
from udfs.times import DAY_US

_CAPTURED_TOGETHER: Final = (
    "across associations: both readers were captured together, the first one's calls completely, and the second one's "
    "connection existed when the message was acknowledged; both returned its number, header and arrival time"
)


def _consecutive_receives(facts: QueueFacts) -> Iterator[tuple[QueueRead, QueueRead]]:
    """Yield a read that acknowledged a message, with the next read that returned the same message."""
    found: defaultdict[tuple[object, ...], list[QueueRead]] = defaultdict(list)
    for read in facts.reads:
        if (
            read["is_receive"]
            and read.message_identity is not None
            and None not in (read["returned_at"], read["started_at"])
        ):
            found[read.message_identity].append(read)
    for reads in found.values():
        reads.sort(key=lambda read: (read["returned_at"], read["attempt_key"]))
        for first, second in pairwise(reads):
            if (
                _acknowledged_for_certain(first)
                and _of_different_associations(first, second)
                and _captured_together(first, second)
            ):
                yield first, second


def _acknowledged_for_certain(first: QueueRead) -> bool:
    """Tell whether a reader certainly held the message, and acknowledged it."""
    if first["outcome"] != "acked" or first["transactional"] or first["missing"] or first["errors"]:
        return False
    if first["ack_refused"] or first["ack_unanswered"] or first["ended_at"] is None:
        return False
    return bool(first["ended_at"] - first["returned_at"] < CLEANUP_TIMEOUT_US - TIMER_SLACK_US)


def _of_different_associations(first: QueueRead, second: QueueRead) -> bool:
    """Tell whether two reads certainly belong to different associations."""
    if first["connection_id"] == second["connection_id"]:
        return False
    groups = {read["association_group_id"] or None for read in (first, second)}
    return first["client_address"] != second["client_address"] or (len(groups) == 2 and None not in groups)


def _captured_together(first: QueueRead, second: QueueRead) -> bool:
    """Tell whether two reads have one clock, and no restart of the queue manager can lie between them."""
    connected_at = second["first_packet_at"]
    if connected_at is None or second["returned_at"] - first["ended_at"] > DAY_US:
        return False
    same_capture = first.capture_ids == second.capture_ids and len(first.capture_ids) == 1
    if not same_capture or None in first.capture_ids:
        return False
    return bool(second["started_at"] > first["returned_at"] and connected_at < first["ended_at"])


def _duplicate_deliveries(
    facts: QueueFacts, _: QueueRuleLimits, *, protocol: str, held: bool | None
) -> Iterator[QueueViolation]:
    for first, second in _consecutive_receives(facts):
        still = second["returned_at"] < first["ended_at"]
        if second["protocol"] != protocol or (held is not None and held != still):
            continue
        how = "is held by" if still else "was acknowledged by"
        call = {name: second[name] for name in ("connection_id", "server_address", "run_id")}
        yield QueueViolation(
            second["returned_at"],
            f"message {second['lookup_id']} of {facts.queue} {how} {first['client_address']}",
            tuple(dict.fromkeys((*first["evidence"], second.start_call_key))),
            f"server {second['server_address']}",
            call=call | {"call_key": second.start_call_key},
        )


@queue_rule("Q22", _CAPTURED_TOGETHER)
def message_received_after_acknowledgement(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """Another reader received a message that was acknowledged."""
    yield from _duplicate_deliveries(facts, limits, protocol=QM2QM_NAME, held=False)


@queue_rule("Q24", _CAPTURED_TOGETHER)
def message_received_while_held(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """Another reader received a message that a reader holds, and later acknowledges."""
    yield from _duplicate_deliveries(facts, limits, protocol=QM2QM_NAME, held=True)


@queue_rule("R53", _CAPTURED_TOGETHER)
def message_received_again(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """Another reader received a message that was acknowledged, or that a reader holds."""
    yield from _duplicate_deliveries(facts, limits, protocol=REMOTE_READ_NAME, held=None)
