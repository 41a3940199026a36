"""Rule O08: what queue managers report of exactly-once sequences against what was captured on the wire. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.findings.rules.registry import QueueViolation, sequence_rule
from udfs.array_types import Ints
from udfs.rows import RowMapping

MAX_REPORT_CLOCK_DIFFERENCE_US: Final = 300_000_000
"""How long a packet must have been captured before a report, so that no difference of clocks explains it: 5 minutes."""


class NumberedPacket(NamedTuple):
    """A packet that sends, or acknowledges, a number: its time, microseconds."""

    at: int
    number: int
    packet_key: str


class HighestNumbers:
    """The packets of one sequence that raise its number, in order of time."""

    def __init__(self, at: Ints, number: Ints, packet_keys: pa.Array) -> None:
        """Take all packets of the sequence, in any order; ``at`` are microseconds."""
        order = np.lexsort((number, at))
        highest = np.maximum.accumulate(number[order])
        raises = np.diff(highest, prepend=-1) > 0
        self._rows, self._at, self._number = order[raises], at[order][raises], highest[raises]
        self._packet_keys = packet_keys

    def before(self, at: int) -> NumberedPacket | None:
        """Return the packet with the highest number that was captured well before a report; None without one."""
        place = int(np.searchsorted(self._at, at - MAX_REPORT_CLOCK_DIFFERENCE_US, side="right")) - 1
        if place < 0:
            return None
        key = self._packet_keys[int(self._rows[place])].as_py()
        return NumberedPacket(int(self._at[place]), int(self._number[place]), key)


NO_NUMBERS: Final = HighestNumbers(np.zeros(0, np.int64), np.zeros(0, np.int64), pa.array([], pa.string()))


@dataclass(frozen=True, slots=True)
class ReportedSequence:
    """A sequence at one of its ends: reports of its queue manager, rows of gold.eod_transfers or gold.eod_sources.

    ``sent``: what the sender sent; ``acknowledged``: order acks that the receiver sent; ``taken``: those of them that
    the sender took, as it acknowledged all packets of their session.
    """

    subject: str
    sender_reports: tuple[RowMapping, ...] = ()
    receiver_reports: tuple[RowMapping, ...] = ()
    sent: HighestNumbers = NO_NUMBERS
    acknowledged: HighestNumbers = NO_NUMBERS
    taken: HighestNumbers = NO_NUMBERS


def _violation(facts: ReportedSequence, report: RowMapping, actual: str, packet: NumberedPacket) -> QueueViolation:
    evidence = (report["snapshot_id"], packet.packet_key)
    return QueueViolation(report["observed_at"], actual, evidence, facts.subject)


@sequence_rule("O08", "the number was sent 5 minutes or more before the report, by the source of the sequence")
def sent_number_is_next(facts: ReportedSequence) -> Iterator[QueueViolation]:
    """A sender reports as the next number of a sequence one that it had sent."""
    for report in facts.sender_reports:
        packet = facts.sent.before(report["observed_at"])
        following = report["next_number"]
        if packet is not None and following is not None and packet.number >= following:
            yield _violation(facts, report, f"next number {following}, after number {packet.number} was sent", packet)


@sequence_rule("O08", "the order ack came 5 minutes or more before the report, and its session was acknowledged")
def acknowledged_number_is_not(facts: ReportedSequence) -> Iterator[QueueViolation]:
    """A sender reports a number as not acknowledged of which it had taken the order ack."""
    for report in facts.sender_reports:
        packet = facts.taken.before(report["observed_at"])
        first = report["first_unacked_number"]
        if packet is not None and first is not None and packet.number >= first:
            actual = f"number {first} not acknowledged, after an order ack of {packet.number} was taken"
            yield _violation(facts, report, actual, packet)


@sequence_rule("O08", "the receiver's order ack was captured 5 minutes or more before the report")
def acknowledged_number_was_not_taken(facts: ReportedSequence) -> Iterator[QueueViolation]:
    """A receiver reports a lower number as the last one of a sequence than it had acknowledged."""
    for report in facts.receiver_reports:
        packet = facts.acknowledged.before(report["observed_at"])
        last = report["last_number"]
        if packet is not None and last is not None and packet.number > last:
            actual = f"last number {last}, after it acknowledged {packet.number}"
            yield _violation(facts, report, actual, packet)
