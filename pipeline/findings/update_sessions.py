"""Update of the findings on packets and sessions of the binary protocol, scope ``session``.

A change of a connection (``changed_connections``), or of its session's row, affects all rules on it: its findings are
evaluated again and those that differ replaced; of a long session those behind its checkpoint, while nothing up to it
changed.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pipeline.arrow_rows import distinct_texts
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.findings.rules.versions import SESSION_RULES
from pipeline.findings.session_findings import SESSION_SCOPE
from pipeline.findings.stage_session_findings import FindingStaging
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.staged_changes import write_changes
from pipeline.runs.recovery import RunMarkers
from pipeline.transfers.changed_connections import (
    CONNECTION_INPUTS,
    CaptureState,
    ChangedConnections,
    changed_connections,
)
from pipeline.transfers.checkpoint_use import usable_checkpoints
from pipeline.transfers.session_rows import SessionSettings
from pipeline.transfers.stage_connections import SessionContext
from schemas.findings import FINDINGS
from schemas.sessions import FINDING_CHECKPOINTS, SESSIONS

_FINDINGS: Final = DerivedTable(
    FINDINGS, (*CONNECTION_INPUTS, SESSIONS), code_version=SESSION_RULES, needs=(SESSIONS,), part="session rules",
    rows=f"scope = '{SESSION_SCOPE}'",
)  # fmt: skip
_CHANGED: Final = "SELECT DISTINCT connection_id FROM {feed}"
_EVERY: Final = f"""
SELECT connection_id FROM {{sessions}}
UNION SELECT connection_id FROM {{findings}} WHERE scope = '{SESSION_SCOPE}'"""


def update(lake: Lake, run_id: str, settings: SessionSettings | None = None) -> int:
    """Evaluate the rules on sessions that changed; return how many findings are written."""
    settings = settings or SessionSettings()
    step = _FINDINGS.begin(lake)
    if step is None:
        return 0
    now = CaptureState.read(lake)
    step.keep(now)
    lake.add_missing_columns(FINDINGS)
    with RunMarkers.of(lake).staging_folder("session-findings") as folder:
        context = SessionContext(now.capture_ends, read_clock_steps(lake), settings, run_id)
        staging = FindingStaging(folder, context)
        return step.recompute(partial(_find_affected, step, now), partial(_evaluate, step, staging))


def _find_affected(step: IncrementalUpdate, now: CaptureState) -> ChangedConnections:
    """Return what to evaluate; UnknownChangesError."""
    changed = changed_connections(step, now)
    if (sessions := step.changed_rows(SESSIONS, _CHANGED)) is not None:
        changed = changed._replace(names=distinct_texts(changed.names, sessions["connection_id"]))
    return changed


def _evaluate(step: IncrementalUpdate, staging: FindingStaging, changed: ChangedConnections | None) -> int:
    """Evaluate the rules on some sessions, or all; return how many findings are written."""
    lake = step.lake
    if changed is None:
        every = lake.query(_EVERY, sessions=SESSIONS, findings=FINDINGS)
        staging.stage(lake, distinct_texts(every["connection_id"]), {})
    else:
        checkpoints = usable_checkpoints(lake, FINDING_CHECKPOINTS, changed.going_on, changed.packets)
        staging.stage(lake, changed.names, checkpoints)
    write_changes(lake, staging.folder, FINDING_CHECKPOINTS)
    return step.write_changes(staging.folder)
