"""Checkpoints of the findings on long sessions: which findings are final, and whether that still holds. No Spark.

Findings on packets up to ``settled_until`` are final while a checkpoint holds. One rule looks ahead, T18: packets up to
``counted_until`` were acknowledged, those behind are evaluated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pipeline.arrow_rows import times_to_us
from pipeline.findings.rules.session_facts import SessionFacts
from pipeline.findings.rules.session_packets import EARLIEST_RESEND_US, time_out_us
from pipeline.transfers.checkpoint_cuts import latest_checkpoints
from pipeline.transfers.checkpoint_use import still_holds
from pipeline.transfers.checkpoints import Checkpoint, FindingFacts
from pipeline.transfers.connection_packets import CLIENT, SERVER
from pipeline.transfers.side_losses import gaps_are_holes

LOOKING_AHEAD = "T18"


def is_evaluated_again(checkpoint: Checkpoint | None, rule_id: str, sent_at: int) -> bool:
    """Whether findings of a rule on a packet are evaluated again, behind the checkpoint of its connection."""
    if checkpoint is None:
        return True
    return sent_at > (checkpoint.counted_until if rule_id == LOOKING_AHEAD else checkpoint.settled_until)


@dataclass(frozen=True, slots=True)
class EvaluatedSpan:
    """Which findings a round evaluates: behind checkpoints; of connections with later packets, up to new ones.

    ``checkpoints`` and ``made``, which are the new ones: by connection_id; ``later``: connections with later packets.
    """

    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    made: Mapping[str, Checkpoint] = field(default_factory=dict)
    later: Collection[str] = ()

    def has(self, connection_id: str, rule_id: str, sent_at: int | None) -> bool:
        """Whether findings of a rule on a packet are evaluated; all that have no time are with the last packets."""
        if connection_id in self.later:
            made = self.made.get(connection_id)
            if made is None or sent_at is None or is_evaluated_again(made, rule_id, sent_at):
                return False
        return sent_at is None or is_evaluated_again(self.checkpoints.get(connection_id), rule_id, sent_at)

    def of(self, findings: pa.Table) -> pa.Table:
        """Return the rows of gold.findings that are evaluated."""
        columns = findings["connection_id"].to_pylist(), findings["rule_id"].to_pylist()
        times = times_to_us(findings["observed_at"]).to_pylist()
        return findings.filter(pa.array([*map(self.has, *columns, times)], pa.bool_()))


def outdated(sessions: Iterable[SessionFacts], stored: Collection[str], packets: Mapping[str, int]) -> set[str]:
    """Return the connections whose checkpoints do not hold; ``packets``: how many each connection has in all.

    ``stored``: those with a checkpoint of the table; those that this run made hold.
    """
    of = {session.connection["connection_id"]: session for session in sessions}
    return {name for name in stored if name in of and not _holds(of[name], packets)}


def _holds(session: SessionFacts, packets: Mapping[str, int]) -> bool:
    found, connection = session.facts.found, session.connection
    checkpoint = found.checkpoint(session.place)
    if checkpoint is None or checkpoint.finding_facts != _evaluated_with(session, checkpoint.settled_until):
        return False
    if "clock_step" in session.session["missing"]:  # it may be known only now that a clock was set before
        return False
    if not still_holds(found, session.place, connection, packets.get(connection["connection_id"], 0)):
        return False
    # T15 is evaluated when the connection has closed: of all packets.
    return connection["closed_at"] is None or not any(
        session.whole[1 - side] and session.before(side).highest_ack > session.sent(1 - side)
        for side in (CLIENT, SERVER)
    )


def _evaluated_with(session: SessionFacts, until: int) -> FindingFacts:
    """Return what findings on a session's packets up to a time rest on beside these packets."""
    known = sum(at <= until for _, at in session.not_packets)
    return FindingFacts(*session.whole, time_out_us(session), known)


def new_checkpoints(sessions: Collection[SessionFacts]) -> list[Checkpoint]:
    """Return the checkpoints that sessions have from now on.

    A connection that has closed has none, but for the rounds of this run: T15 is evaluated of all its packets, and of
    those that are not read yet it is known how many they are.
    """
    if not sessions:
        return []
    found = next(iter(sessions)).facts.found
    of = {session.connection["connection_id"]: session for session in sessions}
    holes = {name: gaps_are_holes(found, each.place, each.connection) for name, each in of.items()}
    return [
        replace(each, finding_facts=_evaluated_with(of[each.connection_id], each.settled_until))
        for each in latest_checkpoints(found, holes, EARLIEST_RESEND_US)
        if of[each.connection_id].connection["closed_at"] is None or each.connection_id in found.later
    ]
