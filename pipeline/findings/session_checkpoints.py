"""Checkpoints of the findings on long sessions: which findings are final, and whether that still holds. No Spark.

Findings on packets up to ``settled_until`` are final while a checkpoint holds. One rule looks ahead, T18: packets up to
``counted_until`` were acknowledged, those behind are evaluated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

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


def evaluated_again(findings: pa.Table, checkpoints: Mapping[str, Checkpoint]) -> pa.Table:
    """Return the rows of gold.findings that are evaluated again."""
    columns = findings["connection_id"].to_pylist(), findings["rule_id"].to_pylist()
    times = times_to_us(findings["observed_at"]).to_pylist()
    chosen = [
        at is None or is_evaluated_again(checkpoints.get(name), rule, at)
        for name, rule, at in zip(*columns, times, strict=True)
    ]
    return findings.filter(pa.array(chosen, pa.bool_()))


def outdated(sessions: Iterable[SessionFacts], packets: Mapping[str, int]) -> set[str]:
    """Return the connections whose checkpoints do not hold; ``packets``: how many each connection has in all."""
    return {
        session.connection["connection_id"]
        for session in sessions
        if session.facts.found.checkpoint(session.place) is not None and not _holds(session, packets)
    }


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

    A connection that has closed has none: T15 is evaluated of all its packets.
    """
    if not sessions:
        return []
    found = next(iter(sessions)).facts.found
    of = {session.connection["connection_id"]: session for session in sessions}
    holes = {name: gaps_are_holes(found, each.place, each.connection) for name, each in of.items()}
    return [
        replace(each, finding_facts=_evaluated_with(of[each.connection_id], each.settled_until))
        for each in latest_checkpoints(found, holes, EARLIEST_RESEND_US)
        if of[each.connection_id].connection["closed_at"] is None
    ]
