"""Evaluation of the rules on queues (``queue_rule``) -> rows of gold.findings. No Spark.

The input comes in several parts (``FACT_PARTS``), each with its own columns. Queues have their canonical names, queue
managers their names of gold, and times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.arrow_rows import rows_to_table
from pipeline.findings.evaluate import FINDINGS_SCHEMA, finding_row
from pipeline.findings.rules import duplicate_delivery, queues, transactional_queues
from pipeline.findings.rules.queue_facts import QueueFacts, QueueRead, QueueRuleLimits
from pipeline.findings.rules.registry import ALL_RULES, QUEUE_CHECKS, QueueViolation
from pipeline.queues.growth import CountSample

RULE_MODULES: Final = (queues, duplicate_delivery, transactional_queues)
QUEUE_SCOPE: Final = "queue"
FACT_PARTS: Final = ("counts", "reports", "reads", "calls", "sources", "kinds", "uses")


def evaluate_queues(rows: Mapping[str, Sequence[dict[str, Any]]], limits: QueueRuleLimits) -> pa.Table:
    """Evaluate the rules on queues, and return the findings; ``rows`` has the rows of some of ``FACT_PARTS``."""
    rows = dict.fromkeys(FACT_PARTS, ()) | dict(rows)
    calls = {row["call_key"]: row for row in rows["calls"]}
    every = (row for name in ("counts", "reports", "reads", "sources", "kinds", "uses") for row in rows[name])
    names = dict.fromkeys((row["queue_manager"], row["queue"]) for row in every)
    queues = {name: QueueFacts(*name) for name in names}

    def facts_of(row: Mapping[str, Any]) -> QueueFacts:
        return queues[row["queue_manager"], row["queue"]]

    for row in sorted(rows["counts"], key=lambda row: (row["observed_at"], row["snapshot_id"])):
        facts, count, journal = facts_of(row), row["message_count"], row["journal_message_count"]
        for samples, number in ((facts.message_counts, count), (facts.journal_counts, journal)):
            if number is not None:
                samples.append(CountSample(row["snapshot_id"], row["observed_at"], number))
    for row in sorted(rows["reports"], key=lambda row: (row["observed_at"], row["snapshot_id"])):
        facts_of(row).reports.append(row)
    for row in sorted(rows["reads"], key=lambda row: str(row["attempt_key"])):
        of_read = {each: calls[each] for each in row["evidence"] or () if each in calls}
        facts_of(row).reads.append(QueueRead(row, of_read))
    for row in rows["sources"]:
        facts_of(row).senders_with_other_numbers.append(row)
    for row in sorted(rows["kinds"], key=lambda row: (row["observed_at"], row["snapshot_id"])):
        facts_of(row).transactional_reports.append(row)
    for row in rows["uses"]:
        facts_of(row).transaction_uses.append(row)
    found = [row for facts in queues.values() for row in _queue_findings(facts, limits)]
    return rows_to_table(found, FINDINGS_SCHEMA)


def _queue_findings(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[dict[str, Any]]:
    """Yield one row for each rule, time and subject of a queue; of several violations the most severe."""
    violations = [(check.rule_id, violation) for check in QUEUE_CHECKS for violation in check.check(facts, limits)]
    best: dict[str, dict[str, Any]] = {}
    for rule_id, violation in sorted(violations, key=lambda each: (each[1].severity == "info", each[1].actual)):
        row = _finding_of_violation(rule_id, violation, facts)
        best.setdefault(row["finding_key"], row)
    yield from best.values()


def _finding_of_violation(rule_id: str, violation: QueueViolation, facts: QueueFacts) -> dict[str, Any]:
    rule = ALL_RULES[rule_id]
    return finding_row(
        rule_id, source=rule.source_for(), severity=violation.severity or rule.severity, subject=violation.subject,
        call=violation.call, observed_at=violation.observed_at, expected=rule.requirement, actual=violation.actual,
        evidence=list(violation.evidence), scope=QUEUE_SCOPE, queue=facts.queue,
    )  # fmt: skip
