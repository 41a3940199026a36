"""Update of the findings over several sessions: scope ``hop``.

Findings on two machines with one identifier (O07) are evaluated first: transfers are not between queue managers that it
names. The others follow transfers. A change of a connection (``changed_connections``), or of its session's row, affects
what its session is about; so does a transfer that turns out to be of another hop, for the sessions that carried it.
What has such a finding is evaluated again with it: numbers that fall since a day before what changed, as clocks may
differ; all of them where captures saw a changed session side by side, which shows more of the clocks of these captures.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts
from pipeline.findings.hops.hop_findings import FALLING_RULES, HOP_SCOPE, HopFacts, cloned_machines, hop_finding_rows
from pipeline.findings.rules.registry import HOP_CHECKS
from pipeline.findings.rules.versions import CLONE_RULES, HOP_RULES
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.settings import TransfersConfig
from pipeline.transfers.changed_connections import CONNECTION_INPUTS, CaptureState, changed_connections
from pipeline.transfers.hops.hop_keys import CLONES_RULE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.columns.absent import BEFORE_ALL
from udfs.times import DAY_US, datetime_to_us

_IS_CLONE: Final = f"rule_id = '{CLONES_RULE}'"
_IS_OF_HOP: Final = f"scope = '{HOP_SCOPE}' AND NOT {_IS_CLONE}"
_CLONES: Final = DerivedTable(FINDINGS, (SESSIONS,), code_version=CLONE_RULES, part="cloned machines", rows=_IS_CLONE)
_FINDINGS: Final = DerivedTable(
    FINDINGS, (*CONNECTION_INPUTS, SESSIONS, MESSAGE_TRANSFERS, TRANSFER_SEQUENCES), code_version=HOP_RULES,
    needs=(SESSIONS,), part="hop rules", rows=_IS_OF_HOP,
)  # fmt: skip
_CHANGED: Final = """
SELECT connection_id, min(first_packet_at) AS first_at, max(overlapping_captures IS NOT NULL) AS by_taps FROM {feed}
GROUP BY connection_id"""
_FIRST_PACKET: Final = "SELECT min(first_packet_at) AS first_at FROM {rows} WHERE connection_id IN {names}"
_EVERY: Final = "SELECT connection_id FROM {sessions}"
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


def update_clones(lake: Lake, run_id: str, wait: timedelta = TransfersConfig.wait) -> int:
    """Evaluate O07 on the identifiers of changed sessions; return how many findings are written.

    Before transfers, which are not between queue managers that O07 names. ``wait`` is the setting transfers.wait.
    """
    step = _CLONES.begin(lake)
    if step is None:
        return 0
    lake.add_missing_columns(FINDINGS)
    current = lake.select(FINDINGS, _IS_CLONE)  # few: they are all evaluated again

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


class _Affected(NamedTuple):
    """The ``connections`` that changes affect, and since when numbers that fall are evaluated again, microseconds."""

    connections: pa.Array
    since_us: int = BEFORE_ALL


def update(lake: Lake, run_id: str, wait: timedelta = TransfersConfig.wait) -> int:
    """Evaluate the other rules over several sessions; return how many findings are written. After transfers.

    ``wait`` is the setting transfers.wait: how far back rules look.
    """
    step = _FINDINGS.begin(lake, {"wait_s": wait.total_seconds()})
    if step is None:
        return 0
    now = CaptureState.read(lake)
    step.keep(now)
    lake.add_missing_columns(FINDINGS)

    def evaluate(affected: _Affected | None) -> int:
        if affected is None:
            affected = _Affected(_connections_of(lake.query(_EVERY, sessions=SESSIONS)))
        lately = f"observed_at IS NULL OR unix_micros(observed_at) >= {affected.since_us}"
        where = f"{_IS_OF_HOP} AND (rule_id NOT IN {FALLING_RULES} OR {lately})"
        current = lake.select(FINDINGS, where)  # few: they are all evaluated again
        names = distinct_texts(affected.connections, current["connection_id"])
        return step.replace_changed(_evaluate(lake, names, wait, run_id, affected.since_us), current)

    return step.recompute(lambda: _find_affected(step, now), evaluate)


def _find_affected(step: IncrementalUpdate, now: CaptureState) -> _Affected:
    """Return what to evaluate; UnknownChangesError."""
    rows, times, by_taps = _on_other_hops(step), [], False
    if (sessions := step.changed_rows(SESSIONS, _CHANGED)) is not None:
        rows.append(sessions)
        times.append(pc.min(sessions["first_at"]).as_py())
        by_taps = bool(pc.any(sessions["by_taps"]).as_py())
    names = distinct_texts(changed_connections(step, now).names, _connections_of(*rows))
    times += step.lake.query(_FIRST_PACKET, rows=SESSIONS, names=names)["first_at"].to_pylist()
    first = min((datetime_to_us(at) for at in times if at is not None), default=BEFORE_ALL)
    return _Affected(names, BEFORE_ALL if by_taps else max(first - DAY_US, BEFORE_ALL))


def _connections_of(*rows: pa.Table) -> pa.Array:
    """Return the connections of rows."""
    return distinct_texts(*(each["connection_id"] for each in rows))


def _on_other_hops(step: IncrementalUpdate) -> list[pa.Table]:
    """Return rows with the connections of what is of another hop than before; UnknownChangesError."""
    found = []
    for transfers, (changed, table, connections) in _ON_OTHER_HOPS.items():
        if (rows := step.changed_rows(transfers, changed)) is not None and rows.num_rows:
            found.append(step.lake.query(connections, rows=table, ids=distinct_texts(rows["id"])))
    return found


def _evaluate(lake: Lake, names: pa.Array, wait: timedelta, run_id: str, since_us: int) -> pa.Table:
    """Evaluate the rules over several sessions for what these sessions are about; of numbers that fall since a time."""
    if len(names):  # a message that is read later may be one that an acknowledgement was sent for
        acknowledging = lake.query(_ACKNOWLEDGING, messages=MESSAGES, names=names)
        names = distinct_texts(names, acknowledging["connection_id"])
    facts = HopFacts(lake, names, int(wait.total_seconds()), since_us)
    checks = [check for check in HOP_CHECKS if check.rule_id != CLONES_RULE] if len(names) else []
    found = ((check.rule_id, each) for check in checks for each in check.check(facts))
    return hop_finding_rows(found, run_id)
