"""Tests of the rules on operation that the state of queues shows, alone and beside what was read. No Spark.

A snapshot may differ from the traffic beside it for many good reasons: messages come by ways that are not captured (TCP
1801, local applications) and go by such ways (local readers, expiry), readers hold messages that nobody sees, and the
clocks of collector, capture and queue manager differ. So a contradiction is only what none of these can explain:

* a message that was seen in the queue before the report and is read from it after it was there when the report was
  made. So was one that arrived before: when that was, by the capture's clock, is no later than the time of arrival,
  which is the queue manager's, and the shortest time that any message took from its arrival to a reader. It is the same
  message only where its number, its identifier and its time of arrival are the same.
* a receive that waits through a report takes any message that is free; it does not take those that others hold, seen or
  not, so that this is ``info``.

What happens within ``alerts.clock_difference`` of a report that was not made in the same capture counts neither way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from typing import Final

from pipeline.findings.rules.queue_facts import DAY_US, Limits, Read, Row, Told
from pipeline.findings.rules.registry import Severity, Sign, of_queue
from pipeline.queues.growth import Point, with_least
from pipeline.queues.history import DEAD, JOURNAL
from pipeline.text import clock, counted

_SECOND: Final = 1_000_000  # times of arrival are whole seconds
_STEPS: Final = 2  # a number that rose so often, and never fell, grows
_NONE_FREE: Final = frozenset({"timed_out", "cancelled"})  # outcomes of receives that waited and got nothing
_FRONT: Final = "MQ_ACTION_RECEIVE"
_GIVEN_BACK: Final = "nacked"
_MOST_EVIDENCE: Final = 10


@of_queue("O03", "its number of messages was reported twice or more within alerts.slow_window")
def dead_letters(told: Told, limits: Limits) -> Iterator[Sign]:
    """A dead-letter queue, or a component's dead queue, holds alerts.dead_letters more; once a day."""
    if DEAD.search(told.queue):
        yield from _grown(told.counts, limits, limits.dead_letters, told.subject, "dead letter")


@of_queue("O04", "its number of messages was reported twice or more within alerts.slow_window")
def journals(told: Told, limits: Limits) -> Iterator[Sign]:
    """A journal holds alerts.journal_messages more, or (info) rose twice and never fell; once a day."""
    steady = {"least": limits.journal_messages, "thing": "message", "steady": True}
    if told.queue.endswith(JOURNAL):
        yield from _grown(told.counts, limits, subject=told.subject, **steady)  # type: ignore[arg-type]
    yield from _grown(told.journal, limits, subject=f"journal of {told.subject}", **steady)  # type: ignore[arg-type]


def _grown(
    points: list[Point], limits: Limits, least: int, subject: str, thing: str, *, steady: bool = False
) -> Iterator[Sign]:
    """Yield the growth of each day: from when on it was seen, and how much it came to."""
    times = [point.at for point in points]
    rises = list(accumulate((two.number > one.number for one, two in pairwise(points)), initial=0))
    falls = list(accumulate((two.number < one.number for one, two in pairwise(points)), initial=0))
    seen: defaultdict[int, list[tuple[Severity, Point, Point]]] = defaultdict(list)
    for place, (point, lowest) in enumerate(with_least(points, limits.slow_window)):
        if place == 0 or rises[place] == rises[place - 1]:
            continue
        more = point.number - lowest.number
        begin = bisect_left(times, point.at - limits.slow_window)
        steadily = steady and rises[place] - rises[begin] >= _STEPS and falls[place] == falls[begin]
        if more >= least or steadily:
            severity: Severity = "warning" if more >= least else "info"
            seen[point.at // DAY_US].append((severity, point, lowest))
    for found in seen.values():
        _, point, lowest = max(found, key=lambda each: (each[1].number - each[2].number, each[1].at))
        gravest: Severity = "warning" if any(severity == "warning" for severity, _, _ in found) else "info"
        more = point.number - lowest.number
        actual = f"{point.number} at {clock(point.at)}, {counted(more, thing)} more than at {clock(lowest.at)}"
        yield Sign(found[0][1].at, actual, tuple(dict.fromkeys((lowest.row, point.row))), subject, gravest)


@of_queue("O05", "both ends were observed within history.max_gap of each other")
def ends(told: Told, _: Limits) -> Iterator[Sign]:
    """The receiver of a sequence rejects what its sender goes on with; once a day."""

    def place(row: Row) -> tuple[str, int]:
        return row["sender_queue_manager"] or "", row["observed_at"] // DAY_US

    for (sender, _day), found in groupby(sorted(told.sources, key=lambda row: (*place(row), row["source_key"])), place):
        rows = sorted(found, key=lambda row: (row["observed_at"], row["source_key"]))
        evidence = dict.fromkeys(each for row in (rows[0], rows[-1]) for each in row["evidence"])
        subject = f"sequence of {sender} to {told.queue} at {told.queue_manager}"
        actual = rows[-1]["disagrees_with_sender"]
        yield Sign(rows[0]["observed_at"], actual, tuple(evidence)[:_MOST_EVIDENCE], subject)


@of_queue(
    "O06",
    "reads of the same queue at the same queue manager were captured on both sides of the report, within "
    "history.max_gap, and returned the message's number, header and time of arrival",
)
def fewer_than_were_there(told: Told, limits: Limits) -> Iterator[Sign]:
    """A snapshot reports fewer messages than were surely there."""
    for report in _reports(told):
        near = _near(told.reads, report["observed_at"], limits)
        there = _there(near, report, limits)
        if len(there) > report["message_count"]:
            actual = (
                f"{counted(report['message_count'], 'message')} reported, {len(there)} seen before and read after it"
            )
            yield _contradiction(told, report, actual, [read for pair in there for read in pair])


@of_queue("O06", "the receive asked for any message, and was asked and answered within history.max_gap of the report")
def more_than_could_be(told: Told, limits: Limits) -> Iterator[Sign]:
    """A receive waits through a snapshot that reports messages which no reader that was seen holds (info)."""
    for report in _reports(told):
        at, count = report["observed_at"], report["message_count"]
        near = _near(told.reads, at, limits)
        slack = {read.start: _slack(read, report, limits) for read in near}
        held = sum(read.holds(at, slack[read.start] or limits.clock_difference) for read in near)
        waiting = [
            read
            for read in near
            if read["outcome"] in _NONE_FREE
            and read["action_name"] == _FRONT
            and read.begin.get("cursor_handle") == 0
            and read["started_at"] < report["asked_at"] - slack[read.start]
            and read["returned_at"] is not None
            and read["returned_at"] > at + slack[read.start]
        ]
        if count > held and waiting:
            actual = f"{counted(count, 'message')} reported, {held} in readers' hands, while a receive waits in vain"
            yield _contradiction(told, report, actual, waiting)._replace(severity="info")


def _reports(told: Told) -> Iterator[Row]:
    """Yield what was reported of a local queue; not where it has subqueues, whose messages nobody sees move."""
    return (row for row in told.reports if row["message_count"] is not None and not row["subqueue_count"])


def _near(reads: Iterable[Read], at: int, limits: Limits) -> list[Read]:
    """Return the reads that are told of within ``max_gap`` of a time."""
    found: list[Read] = []
    for read in reads:
        times = [read[name] for name in ("started_at", "returned_at", "ended_at") if read[name] is not None]
        if times and min(times) <= at + limits.max_gap and max(times) >= at - limits.max_gap:
            found.append(read)
    return found


def _slack(read: Read, report: Row, limits: Limits) -> int:
    """Return how far apart the clocks of a read and a report may be: not at all within one capture."""
    same = report["capture_id"] is not None and read.captures == {report["capture_id"]}
    return 0 if same else limits.clock_difference


def _there(near: list[Read], report: Row, limits: Limits) -> list[tuple[Read, Read]]:
    """Return the messages that were there when a report was made, each by a read before it (or the same) and after."""
    asked, at = report["asked_at"], report["observed_at"]
    found: defaultdict[tuple[object, ...], list[Read]] = defaultdict(list)
    for read in near:
        if read.message is not None and read["returned_at"] is not None and "sealed" not in (read["missing"] or ()):
            found[read.message].append(read)
    numbers = Counter(lookup_id for _, lookup_id, *_ in found)
    if any(times > 1 for times in numbers.values()):
        return []  # a number of two messages: the queue manager was set up anew in between
    delays = [each["returned_at"] - each.begin["arrived_at"] for reads in found.values() for each in reads]
    behind = max(min(delays, default=0), 0) + _SECOND
    there = []
    for reads in found.values():
        slack = max(_slack(read, report, limits) for read in reads)
        if any(read.holds(at, slack + at - asked) for read in reads):
            continue
        after = [read for read in reads if read["returned_at"] > at + slack and read["started_at"] is not None]
        before = [read for read in reads if (seen := _free_since(read)) is not None and seen < asked - slack]
        if after and reads[0].begin["arrived_at"] + behind < asked - slack:
            before = before or after[:1]
        if before and after:
            there.append((before[0], after[0]))
    return there


def _free_since(read: Read) -> int | None:
    """Return from when on a read shows that its message is in the queue for all: it was peeked, or given back."""
    time: int | None = None
    if read["outcome"] == "peeked":
        time = read["returned_at"]
    elif read["outcome"] == _GIVEN_BACK and not read["missing"]:
        time = read["ended_at"]
    return time


def _contradiction(told: Told, report: Row, actual: str, reads: Iterable[Read]) -> Sign:
    proof = dict.fromkeys(read.start for read in reads)
    evidence = (report["snapshot_id"], *sorted(each for each in proof if each)[: _MOST_EVIDENCE - 1])
    return Sign(report["observed_at"], actual, evidence, told.subject)
