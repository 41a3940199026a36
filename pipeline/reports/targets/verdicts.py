"""Verdicts: for each queue and target whether it fits, property by property, as far as the wire shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Final

from pipeline.reports.targets.facts import FACTS, FactKind
from pipeline.reports.targets.requirements import REQUIREMENTS, Needed, QueueRow, Requirement, count_of
from pipeline.reports.targets.target_file import DocumentedValue, MoveTarget, TargetFact

_NOT_ENCODED: Final = "Do not encode the body as text, such as base64: encoded it is over the limit."


class Fit(StrEnum):
    """The verdict on a property of a queue, or on a queue; the worst first."""

    DOES_NOT_FIT = "does not fit"
    CHANGE = "fits with a change"
    FITS = "fits as far as the wire shows"
    UNKNOWN = "no verdict"
    NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class PropertyVerdict:
    """Whether a property of a queue fits a target, why, and what to change.

    ``source`` is the address of the page that says what the target offers, and ``as_of`` the date that it bears.
    """

    property: str
    verdict: Fit
    evidence: str
    change: str | None = None
    source: str | None = None
    as_of: date | None = None


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    """Whether a queue fits a target, and the verdict on each requirement, in their order."""

    queue: str
    target: str
    properties: tuple[PropertyVerdict, ...]

    @property
    def verdict(self) -> Fit:
        """The worst verdict of a property."""
        found = {each.verdict for each in self.properties}
        return next(each for each in Fit if each in found)

    def with_verdict(self, verdict: Fit) -> list[PropertyVerdict]:
        """Return the properties that have a verdict."""
        return [each for each in self.properties if each.verdict == verdict]


def judge_queues(queues: Iterable[QueueRow], targets: Sequence[MoveTarget], span: str) -> list[TargetVerdict]:
    """Return a verdict for each queue and target.

    ``queues``: rows of the view ``estate_queues``; ``span``: the time that was asked for, as text: "30 days".
    """
    return [
        TargetVerdict(row["queue"], target.name, tuple(_judge(each, row, target, span) for each in REQUIREMENTS))
        for row in queues
        for target in targets
    ]


def verdict_rows(verdicts: Iterable[TargetVerdict]) -> list[dict[str, Any]]:
    """Return verdicts as rows of plain values, one for a queue, target and property."""
    return [
        {
            "queue": queue.queue,
            "target": queue.target,
            "queue_verdict": str(queue.verdict),
            "property": each.property,
            "verdict": str(each.verdict),
            "evidence": each.evidence,
            "change": each.change,
            "source": each.source,
            "as_of": each.as_of,
        }
        for queue in verdicts
        for each in queue.properties
    ]


def _judge(requirement: Requirement, row: QueueRow, target: MoveTarget, span: str) -> PropertyVerdict:
    needed = requirement.needed(row)
    if needed is None:
        basis = count_of(row, requirement.basis)
        seen = f" in {basis:,} {requirement.noun}" if basis else ""
        return PropertyVerdict(requirement.title, Fit.NOT_SEEN, f"Not seen in {span}{seen}.")
    fact = target.facts.get(requirement.fact)
    if fact is None or fact.limit.value is None:
        evidence = f"{needed.sentence}. What the target offers is not known."
        return PropertyVerdict(requirement.title, Fit.UNKNOWN, evidence)
    verdict, change, stated = _compare(requirement, needed, fact)
    evidence = f"{needed.sentence}{_relation(FACTS[requirement.fact].kind, needed, fact)}"
    address, as_of = (None, None) if stated.source is None else (stated.source.address, stated.source.as_of)
    return PropertyVerdict(requirement.title, verdict, evidence, change, address, as_of)


def _compare(requirement: Requirement, needed: Needed, fact: TargetFact) -> tuple[Fit, str | None, DocumentedValue]:
    """Return the verdict, what to change, and the statement that decides."""
    limit, default = fact.limit, fact.default
    encoded = needed.value if needed.encoded is None else needed.encoded
    if _is_over(needed.value, limit):
        change = limit.change or (requirement.change and requirement.change.format(limit=limit.text))
        return (Fit.CHANGE if change else Fit.DOES_NOT_FIT), change, limit
    if _is_over(encoded, limit):
        return Fit.CHANGE, _NOT_ENCODED, limit
    if default is not None and _is_over(encoded, default):
        return Fit.CHANGE, default.change or f"Raise the limit above its default of {default.text}.", default
    if FACTS[requirement.fact].kind is FactKind.OFFERED and limit.change:
        return Fit.CHANGE, limit.change, limit
    return Fit.FITS, None, limit


def _is_over(value: float, statement: DocumentedValue) -> bool:
    return statement.value is not None and value > statement.value


def _relation(kind: FactKind, needed: Needed, fact: TargetFact) -> str:
    """Return how what was seen relates to what the target offers, to the end of the sentence."""
    limit, default = fact.limit, fact.default
    if kind is FactKind.OFFERED:
        return f". Documentation: {limit.says}" if limit.says else "."
    if limit.value == math.inf:
        relation = "; there is no limit"
    elif needed.value == math.inf:
        return f"; the limit is {limit.text}."
    elif _is_over(needed.value, limit):
        return f", over a limit of {limit.text}."
    elif needed.encoded is not None and _is_over(needed.encoded, limit):
        return f"; only without the encoding within a limit of {limit.text}."
    else:
        relation = f", within a limit of {limit.text}"
    if default is not None and _is_over(needed.value if needed.encoded is None else needed.encoded, default):
        return f"{relation}, over the default of {default.text}."
    return f"{relation}."
