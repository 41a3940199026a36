"""Update of the findings on two machines with one identifier (O07), before all that counts hops by queue managers.

A change of a session affects its initiator's identifier. What these findings rest on is kept beside the provenance of
the others, which other commits carry on (``carried_provenance``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pipeline.findings.evaluate import FINDINGS_SCHEMA
from pipeline.findings.hop_findings import HopFacts, cloned_machines, hop_finding_rows
from pipeline.lake.incremental import ChangeFeeds, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.versions import versions_by_name
from pipeline.transfers.hop_keys import CLONES_RULE
from schemas.findings import FINDINGS
from schemas.sessions import SESSIONS
from schemas.table import EVENT_DATE

CODE_VERSION: Final = "1"  # raised when the rule is changed: it is evaluated on everything again
IS_CLONE: Final = f"rule_id = '{CLONES_RULE}'"
"""The SQL condition of these findings."""
_PROVENANCE: Final = "cloned machines"
_MAX_CHANGES: Final = 200_000  # connections; with more, all are evaluated
_CHANGED: Final = "SELECT DISTINCT connection_id FROM {feed} WHERE initiator_queue_manager IS NOT NULL"
_ALL: Final = "SELECT connection_id FROM {rows} WHERE initiator_queue_manager IS NOT NULL"


def carried_provenance(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the provenance of gold.findings that other commits of the table must carry on."""
    return {name: before[name] for name in (_PROVENANCE,) if name in before}


def update(lake: Lake, run_id: str, wait: timedelta = timedelta(days=30)) -> int:
    """Evaluate O07 on the identifiers of changed sessions; return how many findings are written.

    ``wait`` is the setting transfers.wait. Call it when silver.sessions is up to date.
    """
    step = IncrementalUpdate.begin(lake, FINDINGS, (), {}, SESSIONS)
    now = {**versions_by_name(step.snapshots, (SESSIONS,)), "rule": CODE_VERSION}
    before = step.provenance_before.get(_PROVENANCE) or {}
    if before == now or not step.exists(SESSIONS):
        return 0
    step.provenance_now = {**step.provenance_before, _PROVENANCE: now}
    current = FINDINGS_SCHEMA.empty_table()
    if step.exists(FINDINGS):
        lake.add_missing_columns(FINDINGS)
        current = lake.select(FINDINGS, IS_CLONE)  # few: they are all evaluated again
    changed = None
    if before.get("rule") == now["rule"]:
        changed = ChangeFeeds(lake, before, now).rows(SESSIONS, _CHANGED, _MAX_CHANGES)
    if changed is None:
        changed = lake.query(_ALL, rows=SESSIONS).to_pylist()
    names = {row["connection_id"] for row in changed} | {*current["connection_id"].to_pylist()}
    facts = HopFacts(lake, names, int(wait.total_seconds()))
    found = cloned_machines(facts) if names else iter(())
    rows = hop_finding_rows(((CLONES_RULE, each) for each in found), run_id)
    if not step.exists(FINDINGS):
        return step.replace_all(rows)
    return step.replace_changed(rows, current, {*rows[EVENT_DATE].to_pylist(), *current[EVENT_DATE].to_pylist()})
