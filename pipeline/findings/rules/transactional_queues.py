"""Rules on transactions, where snapshots tell whether a queue is transactional. No Spark.

A queue is transactional or not from its creation on. A snapshot tells it (PROPID_MGMT_QUEUE_XACT), but another queue
may have had the name before or after. So a snapshot counts for calls within a day, and only where all of that time
agree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from pipeline.findings.rules.queue_facts import QueueFacts, QueueRuleLimits
from pipeline.findings.rules.registry import QueueViolation, queue_rule
from udfs.keys import key
from udfs.rows import RowMapping
from udfs.times import DAY_US

MAX_SNAPSHOT_DISTANCE_US: Final = DAY_US
_PRECONDITION: Final = (
    "snapshots within a day tell whether the queue is transactional (PROPID_MGMT_QUEUE_XACT), and all of them the same"
)


def _uses_with_snapshot(facts: QueueFacts, operation: str) -> Iterator[tuple[RowMapping, RowMapping]]:
    """Yield the uses of a kind, each with the nearest snapshot, where the snapshots around it agree."""
    times = [report["observed_at"] for report in facts.transactional_reports]
    for use in facts.transaction_uses:
        at = use["at"]
        first = bisect_left(times, at - MAX_SNAPSHOT_DISTANCE_US)
        near = facts.transactional_reports[first : bisect_right(times, at + MAX_SNAPSHOT_DISTANCE_US)]
        if use["operation"] == operation and len({report["xact"] for report in near}) == 1:
            yield use, min(near, key=lambda report: (abs(report["observed_at"] - at), report["snapshot_id"]))


def _violation(use: RowMapping, report: RowMapping, actual: str, subject: str) -> QueueViolation:
    """Return the violation by a call; of a receive attempt the call is the one that started it."""
    starts = (each for each in use["evidence"] or () if key(each) == use["attempt_key"])
    call_key = use["call_key"] or next(starts, None)
    call = {name: use[name] for name in ("connection_id", "server_address", "run_id")} | {"call_key": call_key}
    evidence = tuple(each for each in (call_key, report["snapshot_id"]) if each is not None)
    return QueueViolation(use["at"], actual, evidence, subject, call=call)


@queue_rule("R59", f"{_PRECONDITION}; the move was answered MQ_OK")
def move_with_wrong_transaction(facts: QueueFacts, _: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A move in a transaction to a queue that is not transactional succeeded, or a move without one to one that is."""
    for use, report in _uses_with_snapshot(facts, "move"):
        message = f"message {use['lookup_id']} to {facts.queue}"
        if use["transaction_id"] is not None and report["xact"] == "NO":
            actual = f"{message} in a transaction, and the queue is not transactional"
            yield _violation(use, report, actual, f"server {use['server_address']}")
        elif use["transaction_id"] is None and report["xact"] == "YES":
            actual = f"{message} without a transaction, and the queue is transactional"
            yield _violation(use, report, actual, f"client {use['client_address']}")


@queue_rule("R66", _PRECONDITION)
def transactional_receive_accepted(facts: QueueFacts, _: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A receive in a transaction, of a queue that is not transactional, was answered MQ_OK."""
    for use, report in _uses_with_snapshot(facts, "receive"):
        if report["xact"] == "NO":
            actual = f"a receive in a transaction of {facts.queue}, which is not transactional"
            yield _violation(use, report, actual, f"server {use['server_address']}")
