"""Update of the findings on packets and sessions of the binary protocol, scopes ``session``, ``hop``.

A change of a connection (``changed_connections``), or of its session's row, affects all rules on it: its findings are
evaluated again and those that differ replaced; of a long session those behind its checkpoint, while nothing up to it
changed. Where transfers turn out to be of another hop, the rules over several sessions are evaluated again for the
sessions that carried them. The provenance is a part of that of the findings.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.findings.hop_findings import FALLING_RULES, HOP_SCOPE, HopFacts, cloned_machines, hop_finding_rows
from pipeline.findings.rules.registry import HOP_CHECKS
from pipeline.findings.rules.versions import CLONE_RULES, SESSION_RULES
from pipeline.findings.session_findings import SESSION_SCOPE
from pipeline.findings.stage_session_findings import FindingStaging
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.staged_changes import stage_changes, write_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.runs.recovery import RunMarkers
from pipeline.settings import TransfersConfig
from pipeline.transfers.changed_connections import (
    CONNECTION_INPUTS,
    CaptureState,
    ChangedConnections,
    changed_connections,
)
from pipeline.transfers.checkpoint_use import usable_checkpoints
from pipeline.transfers.checkpoints import Checkpoint
from pipeline.transfers.hops.hop_keys import CLONES_RULE
from pipeline.transfers.session_rows import SessionSettings
from pipeline.transfers.stage_connections import SessionContext
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import FINDING_CHECKPOINTS, ORDER_ACKS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.columns.absent import BEFORE_ALL
from udfs.times import DAY_US, datetime_to_us

_FINDINGS: Final = DerivedTable(
    FINDINGS, (*CONNECTION_INPUTS, SESSIONS, MESSAGE_TRANSFERS, TRANSFER_SEQUENCES), code_version=SESSION_RULES,
    needs=(SESSIONS,), part="session rules",
)  # fmt: skip
CLONES: Final = DerivedTable(FINDINGS, (SESSIONS,), code_version=CLONE_RULES, part="cloned machines")
"""The findings on two machines with one identifier."""
IS_CLONE: Final = f"rule_id = '{CLONES_RULE}'"
"""The SQL condition of findings on two machines with one identifier."""
_CHANGED: Final = "SELECT connection_id, min(first_packet_at) AS first_at FROM {feed} GROUP BY connection_id"
_FIRST_PACKET: Final = "SELECT min(first_packet_at) AS first_at FROM {rows} WHERE connection_id IN {names}"
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
_EVERY: Final = f"""
SELECT connection_id FROM {{sessions}}
UNION SELECT connection_id FROM {{findings}} WHERE scope = '{SESSION_SCOPE}'"""
_INITIATED: Final = "SELECT DISTINCT connection_id FROM {rows} WHERE initiator_queue_manager IS NOT NULL"


def update_clones(lake: Lake, run_id: str, wait: timedelta = TransfersConfig.wait) -> int:
    """Evaluate O07 on the identifiers of changed sessions; return how many findings are written.

    Before transfers, which are not between queue managers that O07 names. ``wait`` is the setting transfers.wait.
    """
    step = CLONES.begin(lake)
    if step is None:
        return 0

    lake.add_missing_columns(FINDINGS)
    current = lake.select(FINDINGS, IS_CLONE)  # few: they are all evaluated again

    def find_affected() -> pa.Array:
        changed = step.changed_rows(SESSIONS, _INITIATED.replace("{rows}", "{feed}"))
        return _connections_of(current, *([] if changed is None else [changed]))

    def evaluate(names: pa.Array | None) -> int:
        if names is None:
            names = _connections_of(lake.query(_INITIATED, rows=SESSIONS))
        facts = HopFacts(lake, names, int(wait.total_seconds()))
        found = cloned_machines(facts) if len(names) else iter(())
        rows = hop_finding_rows(((CLONES_RULE, each) for each in found), run_id)
        return step.replace_changed(rows, current) if step.exists(FINDINGS) else step.replace_all(rows)

    return step.recompute(find_affected, evaluate)


def update(
    lake: Lake, run_id: str, settings: SessionSettings | None = None, wait: timedelta = TransfersConfig.wait
) -> int:
    """Evaluate the rules on sessions that changed; return how many findings are written. After all other findings.

    ``wait`` is the setting transfers.wait: how far back rules over several sessions look.
    """
    settings = settings or SessionSettings()
    step = _FINDINGS.begin(lake, {"wait_s": wait.total_seconds()})
    if step is None:
        return 0
    now = CaptureState.read(lake)
    step.keep(now)
    lake.add_missing_columns(FINDINGS)
    with RunMarkers.of(lake).staging_folder("session-findings") as folder:
        context = SessionContext(now.capture_ends, read_clock_steps(lake), settings, run_id)
        staging = FindingStaging(folder, context)
        return step.recompute(partial(_find_affected, step, now), partial(_evaluate, step, staging, wait))


class _AffectedSessions(NamedTuple):
    """The ``connections`` whose sessions are evaluated, and those of what is ``on_other_hops`` than before.

    ``changed``: what changed of them; None where all are evaluated. ``first_at``: since when what sessions showed has
    changed, microseconds.
    """

    connections: pa.Array
    on_other_hops: pa.Array
    changed: ChangedConnections | None
    first_at: int = BEFORE_ALL


def _find_affected(step: IncrementalUpdate, now: CaptureState) -> _AffectedSessions:
    """Return what to evaluate; UnknownChangesError."""
    changed = changed_connections(step, now)
    sessions = step.changed_rows(SESSIONS, _CHANGED)
    names = changed.names if sessions is None else distinct_texts(changed.names, sessions["connection_id"])
    on_other_hops = _on_other_hops(step)
    stored = step.lake.query(_FIRST_PACKET, rows=SESSIONS, names=distinct_texts(names, on_other_hops))
    times = [*stored["first_at"].to_pylist(), *([] if sessions is None else [pc.min(sessions["first_at"]).as_py()])]
    first_at = min((datetime_to_us(at) for at in times if at is not None), default=BEFORE_ALL)
    return _AffectedSessions(names, on_other_hops, changed, first_at)


def _evaluate(
    step: IncrementalUpdate, staging: FindingStaging, wait: timedelta, affected: _AffectedSessions | None
) -> int:
    """Evaluate the rules on some sessions, or all, and over several; return how many findings are written."""
    lake, checkpoints = step.lake, dict[str, Checkpoint]()
    if affected is None:
        every = _connections_of(lake.query(_EVERY, sessions=SESSIONS, findings=FINDINGS))
        affected = _AffectedSessions(every, NO_TEXTS, None)
    elif affected.changed is not None:
        changed = affected.changed._replace(names=affected.connections)
        checkpoints = usable_checkpoints(lake, FINDING_CHECKPOINTS, changed.going_on, changed.packets)
    staging.stage(lake, affected.connections, checkpoints)
    since = max(affected.first_at - DAY_US, BEFORE_ALL)  # clocks may differ
    lately = f"observed_at IS NULL OR unix_micros(observed_at) >= {since}"
    where = f"scope = '{HOP_SCOPE}' AND NOT {IS_CLONE} AND (rule_id NOT IN {FALLING_RULES} OR {lately})"
    hops = lake.select(FINDINGS, where)  # few: they are all evaluated again
    names = distinct_texts(affected.connections, affected.on_other_hops, hops["connection_id"])
    files = StagingWriter(str(staging.folder), "hops")
    stage_changes(files, FINDINGS, _evaluate_hops(lake, names, wait, staging.context.run_id, since), hops)
    files.close()
    write_changes(lake, staging.folder, FINDING_CHECKPOINTS)
    return step.write_changes(staging.folder)


def _connections_of(*rows: pa.Table) -> pa.Array:
    """Return the connections of rows."""
    return distinct_texts(*(each["connection_id"] for each in rows))


def _on_other_hops(step: IncrementalUpdate) -> pa.Array:
    """Return the connections of what is of another hop than before; UnknownChangesError."""
    found = []
    for transfers, (changed, table, connections) in _ON_OTHER_HOPS.items():
        if (rows := step.changed_rows(transfers, changed)) is not None and rows.num_rows:
            found.append(step.lake.query(connections, rows=table, ids=distinct_texts(rows["id"])))
    return _connections_of(*found)


def _evaluate_hops(lake: Lake, names: pa.Array, wait: timedelta, run_id: str, since_us: int) -> pa.Table:
    """Evaluate the rules over several sessions for what these sessions are about; of numbers that fall since a time."""
    if len(names):  # a message that is read later may be one that an acknowledgement was sent for
        acknowledging = lake.query(_ACKNOWLEDGING, messages=MESSAGES, names=names)
        names = distinct_texts(names, acknowledging["connection_id"])
    facts = HopFacts(lake, names, int(wait.total_seconds()), since_us)
    checks = [check for check in HOP_CHECKS if check.rule_id != CLONES_RULE] if len(names) else []
    found = ((check.rule_id, each) for check in checks for each in check.check(facts))
    return hop_finding_rows(found, run_id)
