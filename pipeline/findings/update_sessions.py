"""Update of the findings on packets and sessions of the binary protocol, scopes ``session``, ``hop``.

A change of a session's packets, or of its row, affects all rules on it: its findings are evaluated again and those that
differ replaced; of a long session those behind its checkpoint, while nothing up to it changed. Where transfers turn out
to be of another hop, the rules over several sessions are evaluated again for the sessions that carried them. The
provenance is kept beside that of the other findings, which other commits carry on (``carried_provenance``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import timedelta_to_us
from pipeline.findings.evaluate import FINDINGS_SCHEMA
from pipeline.findings.hop_findings import HOP_SCOPE, HopFacts, cloned_machines, hop_finding_rows
from pipeline.findings.rules.registry import HOP_CHECKS
from pipeline.findings.rules.session_facts import PacketFacts, SessionFacts
from pipeline.findings.session_checkpoints import judged_again, new_checkpoints, outdated
from pipeline.findings.session_findings import (
    CONNECTION_COLUMNS,
    JUDGED_MESSAGES,
    MESSAGE_COLUMNS,
    SESSION_SCOPE,
    evaluate_sessions,
    read_facts,
)
from pipeline.findings.update_reported_sequences import PROVENANCE
from pipeline.lake.incremental import ChangeFeeds, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.versions import versions_by_name
from pipeline.transfers.checkpoint_use import ChangedPackets, changed_packets, usable_checkpoints
from pipeline.transfers.checkpoints import Checkpoint, write_checkpoints
from pipeline.transfers.hops.hop_keys import CLONES_RULE
from pipeline.transfers.inputs import (
    count_packets,
    group_connections,
    read_after_checkpoint,
    read_capture_ends,
    read_decoded_messages,
    read_packets,
)
from pipeline.transfers.session_rows import SessionSettings
from schemas.bronze import QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import FINDING_CHECKPOINTS, ORDER_ACKS, SESSION_PACKETS, SESSIONS
from schemas.table import EVENT_DATE
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

CODE_VERSION: Final = "6"  # raised when rules are added or changed: they are evaluated on everything again
_CLONES_VERSION: Final = "3"  # the same of O07
IS_CLONE: Final = f"rule_id = '{CLONES_RULE}'"
"""The SQL condition of findings on two machines with one identifier."""
_VERSION: Final = "session rules"  # in the provenance
_CLONES: Final = "cloned machines"  # likewise
_INPUTS: Final = (SESSION_PACKETS, SESSIONS, MESSAGE_TRANSFERS, TRANSFER_SEQUENCES)
_MAX_CHANGES: Final = 200_000  # connections; with more, all are evaluated
_CHANGED: Final = "SELECT DISTINCT connection_id FROM {feed}"
_ACKNOWLEDGING: Final = """
SELECT DISTINCT acks.connection_id FROM {messages} AS acks JOIN (
  SELECT message_id FROM {messages} WHERE connection_id IN {names}
) AS sent ON sent.message_id = acks.correlation_id
WHERE acks.packet_key IS NOT NULL AND acks.correlation_id IS NOT NULL"""
_OTHER_HOPS: Final = """
SELECT DISTINCT id FROM (
  SELECT {row}, max({name}) AS id FROM {feed} GROUP BY {row} HAVING count(DISTINCT hop_key) > 1
)"""
_ON_OTHER_HOPS: Final = {
    MESSAGE_TRANSFERS: (
        _OTHER_HOPS.replace("{row}", "transfer_key").replace("{name}", "message_key"),
        MESSAGES,
        "SELECT DISTINCT connection_id FROM {rows} WHERE packet_key IS NOT NULL AND message_key IN {ids}",
    ),
    TRANSFER_SEQUENCES: (
        _OTHER_HOPS.replace("{row}", "sequence_key").replace("{name}", "CAST(transaction_sequence_id AS string)"),
        ORDER_ACKS,
        "SELECT DISTINCT connection_id FROM {rows} WHERE CAST(transaction_sequence_id AS string) IN {ids}",
    ),
}
"""By table of transfers, which of its messages or sequences are of another hop than before, and their connections."""
_INITIATED: Final = "SELECT DISTINCT connection_id FROM {rows} WHERE initiator_queue_manager IS NOT NULL"
_OPEN: Final = "SELECT connection_id FROM {rows} WHERE closed_at IS NULL AND ended IS NULL"  # time alone can break T18


def carried_provenance(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the provenance of gold.findings that other commits of the table must carry on."""
    return {name: before[name] for name in (_VERSION, PROVENANCE, *map(str, _INPUTS)) if name in before}


def carried_clones(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of findings on two machines with one identifier (``update_clones``)."""
    return {name: before[name] for name in (_CLONES,) if name in before}


def update_clones(lake: Lake, run_id: str, wait: timedelta = timedelta(days=30)) -> int:
    """Evaluate O07 on the identifiers of changed sessions; return how many findings are written.

    Before transfers, which are not between queue managers that O07 names. ``wait`` is the setting transfers.wait.
    """
    step = IncrementalUpdate.begin(lake, FINDINGS, (), {}, SESSIONS)
    now = {**versions_by_name(step.snapshots, (SESSIONS,)), "rule": _CLONES_VERSION}
    before = step.provenance_before.get(_CLONES) or {}
    if before == now or not step.exists(SESSIONS):
        return 0
    step.provenance_now = {**step.provenance_before, _CLONES: now}
    current = FINDINGS_SCHEMA.empty_table()
    if step.exists(FINDINGS):
        lake.add_missing_columns(FINDINGS)
        current = lake.select(FINDINGS, IS_CLONE)  # few: they are all evaluated again
    changed = None
    if before.get("rule") == now["rule"]:
        changed = ChangeFeeds(lake, before, now).rows(SESSIONS, _INITIATED.replace("{rows}", "{feed}"), _MAX_CHANGES)
    if changed is None:
        changed = lake.query(_INITIATED, rows=SESSIONS).to_pylist()
    names = {row["connection_id"] for row in changed} | {*current["connection_id"].to_pylist()}
    facts = HopFacts(lake, names, int(wait.total_seconds()))
    found = cloned_machines(facts) if names else iter(())
    rows = hop_finding_rows(((CLONES_RULE, each) for each in found), run_id)
    if not step.exists(FINDINGS):
        return step.replace_all(rows)
    return step.replace_changed(rows, current, {*rows[EVENT_DATE].to_pylist(), *current[EVENT_DATE].to_pylist()})


def update(
    lake: Lake, run_id: str, settings: SessionSettings | None = None, wait: timedelta = timedelta(days=30)
) -> int:
    """Evaluate the rules on sessions that changed; return how many findings are written. After all other findings.

    ``wait`` is the setting transfers.wait: how far back rules over several sessions look.
    """
    settings = settings or SessionSettings()
    version = f"{CODE_VERSION}, {wait.total_seconds():g} s"
    step = IncrementalUpdate.begin(lake, FINDINGS, _INPUTS, {_VERSION: version})
    if not step.exists(SESSIONS) or step.is_current():
        return 0
    packets = changed_packets(step) if step.provenance_before else None
    affected, on_other_hops = _affected(step, packets), _on_other_hops(step)
    if affected is None or on_other_hops is None:
        step.prepare_full_reads(SESSIONS)
        affected = {*lake.query("SELECT connection_id FROM {rows}", rows=SESSIONS)["connection_id"].to_pylist()}
        on_other_hops = set()
        where = f"scope = '{SESSION_SCOPE}'"
    else:
        where = f"scope = '{SESSION_SCOPE}' AND connection_id IN {{names}}"
    changes = None if packets is None or "{names}" not in where else ChangedPackets.of(packets)
    step.provenance_now = {**step.provenance_before, **step.provenance_now}
    lake.add_missing_columns(FINDINGS)
    current = lake.select(FINDINGS, where, names=affected) if "{names}" in where else lake.select(FINDINGS, where)
    evaluation = _Evaluation(lake, read_capture_ends(lake), settings, run_id, changes, count_packets(lake, affected))
    rows = [current.slice(0, 0)]
    rows += [evaluation.evaluate(names) for names in group_connections(evaluation.packets, affected)]
    current = judged_again(current, evaluation.checkpoints)
    hops = lake.select(FINDINGS, f"scope = '{HOP_SCOPE}' AND NOT {IS_CLONE}")  # few: they are all evaluated again
    names = affected | on_other_hops | {*hops["connection_id"].to_pylist()}
    rows.append(_evaluate_hops(lake, names, wait, run_id))
    new, current = pa.concat_tables(rows), pa.concat_tables([current, hops])
    return step.replace_changed(new, current, {*new[EVENT_DATE].to_pylist(), *current[EVENT_DATE].to_pylist()})


def _affected(step: IncrementalUpdate, packets: pa.Table | None) -> set[str] | None:
    """Return the connections to evaluate, ``packets`` have changed; None if all must be."""
    sessions = step.changes(SESSIONS, _CHANGED, _MAX_CHANGES)
    if packets is None or sessions is None or not step.has_same_inputs(_VERSION):
        return None
    found = {row["connection_id"] for row in sessions}
    found |= {*pc.unique(packets["connection_id"]).to_pylist()} if packets.num_rows else set()
    return found | {*step.lake.query(_OPEN, rows=SESSIONS)["connection_id"].to_pylist()}


def _on_other_hops(step: IncrementalUpdate) -> set[str] | None:
    """Return the connections of what is of another hop than before; None where that is not known."""
    found: set[str] = set()
    for transfers, (changed, table, connections) in _ON_OTHER_HOPS.items():
        rows = step.changes(transfers, changed, _MAX_CHANGES)
        if rows is None:
            return None
        if ids := {row["id"] for row in rows}:
            found |= {*step.lake.query(connections, rows=table, ids=ids)["connection_id"].to_pylist()}
    return found


def _evaluate_hops(lake: Lake, names: Collection[str], wait: timedelta, run_id: str) -> pa.Table:
    """Evaluate the rules over several sessions for what these sessions are about."""
    wanted = {*names}
    if names:  # a message that is read later may be one that an acknowledgement was sent for
        wanted |= {*lake.query(_ACKNOWLEDGING, messages=MESSAGES, names=names)["connection_id"].to_pylist()}
    facts = HopFacts(lake, wanted, int(wait.total_seconds()))
    checks = [check for check in HOP_CHECKS if check.rule_id != CLONES_RULE] if wanted else []
    found = ((check.rule_id, each) for check in checks for each in check.check(facts))
    return hop_finding_rows(found, run_id)


@dataclass(slots=True)
class _Evaluation:
    """Evaluates the rules on sessions. ``changes``: where packets changed, None if all are to be evaluated.

    ``packets``: how many each connection has; ``checkpoints``: those behind which packets were evaluated.
    """

    lake: Lake
    capture_ends: Mapping[str, int]
    settings: SessionSettings
    run_id: str
    changes: ChangedPackets | None
    packets: Mapping[str, int]
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)

    def evaluate(self, names: list[str]) -> pa.Table:
        """Evaluate the rules on some sessions, and write their checkpoints."""
        checkpoints = {}
        if self.changes is not None:
            checkpoints = usable_checkpoints(self.lake, FINDING_CHECKPOINTS, names, self.changes)
        facts, sessions = self._read(names, checkpoints)
        gone = outdated(sessions, self.packets)
        if gone:
            checkpoints = {name: each for name, each in checkpoints.items() if name not in gone}
            facts, sessions = self._read(names, checkpoints)
        self.checkpoints |= checkpoints
        write_checkpoints(self.lake, FINDING_CHECKPOINTS, names, new_checkpoints(sessions), self.run_id)
        return evaluate_sessions(facts, sessions, self.run_id)

    def _read(self, names: list[str], checkpoints: Mapping[str, Checkpoint]) -> tuple[PacketFacts, list[SessionFacts]]:
        """Return what the rules look at."""
        lake, expire = self.lake, timedelta_to_us(self.settings.expire)
        decoded = read_decoded_messages(lake, names, checkpoints)
        found, connections = read_packets(lake, names, decoded, CONNECTION_COLUMNS, expire, checkpoints)
        sessions = lake.select(SESSIONS, "connection_id IN {names}", names=names)

        def judged(condition: str, some: list[str]) -> pa.Table:
            where = f"connection_id IN {{names}} AND {JUDGED_MESSAGES} AND {condition}"
            return lake.select(MESSAGES, where, ("connection_id", "seen_at", *MESSAGE_COLUMNS), names=some)

        messages = read_after_checkpoint(judged, names, checkpoints, "seen_at")
        condition = "reason = 'not_a_packet' AND connection_id IN {names}"
        columns = ("connection_id", "quarantine_key", "seen_at")
        stray = lake.select(QUARANTINE, condition, columns, names=names) if lake.exists(QUARANTINE) else None
        return read_facts(found, connections, sessions, messages, self.capture_ends, stray)
