"""Rules on operation that the reported state of queues shows, alone or beside captured reads. No Spark.

A snapshot may differ from the traffic for many good reasons. Messages come and go by ways that are not captured (TCP
1801, local applications, local readers, expiry), readers hold messages that are not seen, and the clocks of collector,
capture and queue manager differ. So only a contradiction that none of these explains is reported:

* A message that was seen in the queue before the report, and is read from it afterwards, was there at the time of the
  report. So was a message that had arrived before it. When it arrived, by the capture's clock, is at most its arrival
  time (by the queue manager's clock) plus the shortest time that any message took from its arrival to a reader. Two
  reads return the same message only where number, identifier and arrival time are the same.
* A receive that waits during a report takes any message that is free. It does not take those that others hold, seen or
  not, so this is ``info``.

Events within ``alerts.max_clock_difference`` of a report are ignored, unless the report was made in the same capture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from typing import Final

from pipeline.findings.rules.queue_facts import QueueFacts, QueueRead, QueueRuleLimits
from pipeline.findings.rules.registry import QueueViolation, Severity, queue_rule
from pipeline.queues.growth import CountSample, pair_with_window_minimum
from pipeline.queues.history import DEAD_LETTER_QUEUE_PATTERN, JOURNAL_SUFFIX
from pipeline.text import format_count, format_time
from udfs.rows import RowMapping
from udfs.times import DAY_US, SECOND_US

_MIN_RISES: Final = 2  # a count that rose so often within the window, and never fell, grows
_EMPTY_WAIT_OUTCOMES: Final = frozenset({"timed_out", "cancelled"})  # outcomes of receives that waited and got nothing
_RECEIVE_FIRST: Final = "MQ_ACTION_RECEIVE"
_MAX_EVIDENCE: Final = 10


@queue_rule("O03", "its number of messages was reported twice or more within alerts.growth_window")
def dead_letter_growth(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A dead-letter queue, or a component's dead queue, holds alerts.dead_letters more; reported once per day."""
    if DEAD_LETTER_QUEUE_PATTERN.search(facts.queue):
        yield from _growth_violations(facts.message_counts, limits, limits.dead_letters, facts.subject, "dead letter")


@queue_rule("O04", "its number of messages was reported twice or more within alerts.growth_window")
def journal_growth(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A journal holds alerts.journal_messages more, or (info) rose twice and never fell; reported once per day."""
    steady = {"least": limits.journal_messages, "thing": "message", "steady": True}
    if facts.queue.endswith(JOURNAL_SUFFIX):
        yield from _growth_violations(facts.message_counts, limits, subject=facts.subject, **steady)  # type: ignore[arg-type]
    yield from _growth_violations(facts.journal_counts, limits, subject=f"journal of {facts.subject}", **steady)  # type: ignore[arg-type]


def _growth_violations(
    points: list[CountSample], limits: QueueRuleLimits, least: int, subject: str, thing: str, *, steady: bool = False
) -> Iterator[QueueViolation]:
    """Yield one violation for each day with growth: since when, and how much in total."""
    times = [point.at for point in points]
    rises = list(accumulate((two.message_count > one.message_count for one, two in pairwise(points)), initial=0))
    falls = list(accumulate((two.message_count < one.message_count for one, two in pairwise(points)), initial=0))
    seen: defaultdict[int, list[tuple[Severity, CountSample, CountSample]]] = defaultdict(list)
    for place, (point, lowest) in enumerate(pair_with_window_minimum(points, limits.growth_window)):
        if place == 0 or rises[place] == rises[place - 1]:
            continue
        more = point.message_count - lowest.message_count
        begin = bisect_left(times, point.at - limits.growth_window)
        steadily = steady and rises[place] - rises[begin] >= _MIN_RISES and falls[place] == falls[begin]
        if more >= least or steadily:
            severity: Severity = "warning" if more >= least else "info"
            seen[point.at // DAY_US].append((severity, point, lowest))
    for found in seen.values():
        _, point, lowest = max(found, key=lambda each: (each[1].message_count - each[2].message_count, each[1].at))
        gravest: Severity = "warning" if any(severity == "warning" for severity, _, _ in found) else "info"
        more = point.message_count - lowest.message_count
        growth = f"{format_count(more, thing)} more than at {format_time(lowest.at)}"
        actual = f"{point.message_count} at {format_time(point.at)}, {growth}"
        yield QueueViolation(found[0][1].at, actual, tuple(dict.fromkeys((lowest.row, point.row))), subject, gravest)


@queue_rule("O05", "both ends were observed within history.max_gap of each other")
def sequence_ends_disagree(facts: QueueFacts, _: QueueRuleLimits) -> Iterator[QueueViolation]:
    """The receiver of a sequence rejects the number that its sender continues with; reported once per day."""

    def sender_and_day(row: RowMapping) -> tuple[str, int]:
        return row["sender_queue_manager"] or "", row["observed_at"] // DAY_US

    sources = sorted(facts.senders_with_other_numbers, key=lambda row: (*sender_and_day(row), row["source_key"]))
    for (sender, _day), found in groupby(sources, sender_and_day):
        rows = sorted(found, key=lambda row: (row["observed_at"], row["source_key"]))
        evidence = dict.fromkeys(each for row in (rows[0], rows[-1]) for each in row["evidence"])
        subject = f"sequence of {sender} to {facts.queue} at {facts.queue_manager}"
        actual = rows[-1]["disagrees_with_sender"]
        yield QueueViolation(rows[0]["observed_at"], actual, tuple(evidence)[:_MAX_EVIDENCE], subject)


@queue_rule(
    "O06",
    "reads of the same queue at the same queue manager were captured on both sides of the report, within "
    "history.max_gap, and returned the message's number, header and arrival time",
)
def snapshot_below_known_messages(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A snapshot reports fewer messages than were certainly in the queue."""
    for report in _comparable_reports(facts):
        near = _reads_near(facts.reads, report["observed_at"], limits)
        present = _messages_present(near, report, limits)
        if len(present) > report["message_count"]:
            reported = format_count(report["message_count"], "message")
            actual = f"{reported} reported, {len(present)} seen before and read after it"
            yield _snapshot_violation(facts, report, actual, [read for pair in present for read in pair])


@queue_rule(
    "O06", "the receive requested any message, within history.max_gap of the report, and was answered within it"
)
def snapshot_above_free_messages(facts: QueueFacts, limits: QueueRuleLimits) -> Iterator[QueueViolation]:
    """A receive waits during a snapshot that reports messages which no known reader holds (info)."""
    for report in _comparable_reports(facts):
        at, count = report["observed_at"], report["message_count"]
        near = _reads_near(facts.reads, at, limits)
        slack = {read.start_call_key: _clock_slack(read, report, limits) for read in near}
        held = sum(
            read.may_hold_message(at, slack[read.start_call_key] or limits.max_clock_difference) for read in near
        )
        waiting = [
            read
            for read in near
            if read["outcome"] in _EMPTY_WAIT_OUTCOMES
            and read["action_name"] == _RECEIVE_FIRST
            and read.start_call.get("cursor_handle") == 0
            and read["started_at"] < report["asked_at"] - slack[read.start_call_key]
            and read["returned_at"] is not None
            and read["returned_at"] > at + slack[read.start_call_key]
        ]
        if count > held and waiting:
            reported = format_count(count, "message")
            actual = f"{reported} reported, {held} in readers' hands, while a receive waits in vain"
            yield _snapshot_violation(facts, report, actual, waiting)._replace(severity="info")


def _comparable_reports(facts: QueueFacts) -> Iterator[RowMapping]:
    """Yield the reports of a local queue without subqueues; moves to and from subqueues are not seen."""
    return (row for row in facts.reports if row["message_count"] is not None and not row["subqueue_count"])


def _reads_near(reads: Iterable[QueueRead], at: int, limits: QueueRuleLimits) -> list[QueueRead]:
    """Return the reads that have a time within ``max_gap`` of a time."""
    found: list[QueueRead] = []
    for read in reads:
        times = [read[name] for name in ("started_at", "returned_at", "ended_at") if read[name] is not None]
        if times and min(times) <= at + limits.max_gap and max(times) >= at - limits.max_gap:
            found.append(read)
    return found


def _clock_slack(read: QueueRead, report: RowMapping, limits: QueueRuleLimits) -> int:
    """Return by how much the clocks of a read and a report may differ: 0 within one capture."""
    same = report["capture_id"] is not None and read.capture_ids == {report["capture_id"]}
    return 0 if same else limits.max_clock_difference


def _messages_present(
    near: list[QueueRead], report: RowMapping, limits: QueueRuleLimits
) -> list[tuple[QueueRead, QueueRead]]:
    """Return the messages that were certainly in the queue at a report: for each a read before and after it."""
    asked, at = report["asked_at"], report["observed_at"]
    found: defaultdict[tuple[object, ...], list[QueueRead]] = defaultdict(list)
    for read in near:
        identity = read.message_identity
        if identity is not None and read["returned_at"] is not None and "sealed" not in (read["missing"] or ()):
            found[identity].append(read)
    numbers = Counter(lookup_id for _, lookup_id, *_ in found)
    if any(times > 1 for times in numbers.values()):
        return []  # two messages have one number: the queue manager was reinstalled in between
    delays = [each["returned_at"] - each.start_call["arrived_at"] for reads in found.values() for each in reads]
    behind = max(min(delays, default=0), 0) + SECOND_US
    present = []
    for reads in found.values():
        slack = max(_clock_slack(read, report, limits) for read in reads)
        if any(read.may_hold_message(at, slack + at - asked) for read in reads):
            continue
        after = [read for read in reads if read["returned_at"] > at + slack and read["started_at"] is not None]
        before = [read for read in reads if (seen := _available_since(read)) is not None and seen < asked - slack]
        if after and reads[0].start_call["arrived_at"] + behind < asked - slack:
            before = before or after[:1]
        if before and after:
            present.append((before[0], after[0]))
    return present


def _available_since(read: QueueRead) -> int | None:
    """Return the time from which on a read shows its message available to all: peeked, or rejected."""
    if read["outcome"] == "peeked":
        return read["returned_at"]  # type: ignore[no-any-return]
    rejected = read["outcome"] == "nacked" and not read["missing"]
    return read["ended_at"] if rejected else None


def _snapshot_violation(
    facts: QueueFacts, report: RowMapping, actual: str, reads: Iterable[QueueRead]
) -> QueueViolation:
    proof = dict.fromkeys(read.start_call_key for read in reads)
    evidence = (report["snapshot_id"], *sorted(each for each in proof if each)[: _MAX_EVIDENCE - 1])
    return QueueViolation(report["observed_at"], actual, evidence, facts.subject)
