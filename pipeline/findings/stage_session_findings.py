"""Findings on sessions, evaluated connection by connection, in tasks where they are many, of long ones in rounds.

Staged are the changes of gold.findings of the scope ``session``, and of gold.finding_checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.findings.rules.session_facts import PacketFacts, SessionFacts
from pipeline.findings.session_checkpoints import EvaluatedSpan, new_checkpoints, outdated
from pipeline.findings.session_findings import (
    EVALUATED_MESSAGES_SQL,
    FINDING_CONNECTION_COLUMNS,
    FINDING_MESSAGE_COLUMNS,
    SESSION_SCOPE,
    evaluate_sessions,
    read_facts,
)
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import StageFunction
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.checkpoint_cuts import checkpoints_of_round
from pipeline.transfers.checkpoints import Checkpoint, checkpoint_rows
from pipeline.transfers.connection_parts import (
    ConnectionParts,
    ConnectionsToRead,
    connection_queries,
    rows_of_connections,
    without_connections,
)
from pipeline.transfers.stage_connections import SessionContext, stage_connections, stage_summary
from schemas.bronze import QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import FINDING_CHECKPOINTS, SESSIONS
from udfs.times import timedelta_to_us

_MESSAGE_COLUMNS: Final = ("connection_id", "seen_at", *FINDING_MESSAGE_COLUMNS)
_STRAY_COLUMNS: Final = ("connection_id", "quarantine_key", "seen_at")


@dataclass(frozen=True, slots=True)
class FindingStaging:
    """Stages findings on sessions in a folder."""

    folder: LakePath
    context: SessionContext

    def stage(self, lake: Lake, names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Stage the findings on some sessions; of those with a checkpoint on what is behind it.

        ``names``: of their connections, and of those that have findings and no session any more.
        """
        read, steps = ConnectionsToRead(names, checkpoints), self.context.steps
        stage_connections(lake, self.folder, read, FINDING_CHECKPOINTS, steps, self._plan)

    def _plan(self, read: ConnectionsToRead) -> tuple[dict[str, BoundQuery], StageFunction]:
        return self._queries(read), _FindingsOfGroup(self.context, read.of_this_run).stage

    def _queries(self, read: ConnectionsToRead) -> dict[str, BoundQuery]:
        stray = "reason = 'not_a_packet'"
        return connection_queries(read, FINDING_CHECKPOINTS, FINDING_CONNECTION_COLUMNS) | {
            "sessions": rows_of_connections(SESSIONS, read.whole),
            "messages": rows_of_connections(MESSAGES, read, "seen_at", EVALUATED_MESSAGES_SQL, _MESSAGE_COLUMNS),
            "stray": rows_of_connections(QUARANTINE, read.whole, where=stray, columns=_STRAY_COLUMNS),
            "findings": rows_of_connections(FINDINGS, read.whole, where=f"scope = '{SESSION_SCOPE}'"),
        }


@dataclass(frozen=True, slots=True)
class _FindingsOfGroup:
    """The function of a group of sessions; ``read``: of what was made in this run, and of what is read later."""

    context: SessionContext
    read: ConnectionsToRead

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the findings on a group of sessions; return which are left out, and new checkpoints."""
        given = {name: parts[name] for name in parts}
        known, facts, sessions = self._read(given)
        gone = outdated(sessions, known.checkpoints, known.packet_counts)
        if gone:
            given = {name: without_connections(rows, gone) for name, rows in given.items()}
            known, facts, sessions = self._read(given)
        found, run_id, checkpoints = known.found, self.context.run_id, new_checkpoints(sessions)
        made = checkpoints_of_round(found, checkpoints)
        rows = checkpoint_rows(FINDING_CHECKPOINTS, checkpoints, run_id)
        ended = [without_connections(each, found.later) for each in (rows, known.stored)]
        stage_changes(staging, FINDING_CHECKPOINTS, *ended)
        evaluated = EvaluatedSpan(found.checkpoints, made, found.later)
        current = evaluated.of(cast_to(FINDINGS, given["findings"]))
        stage_changes(staging, FINDINGS, evaluate_sessions(facts, sessions, evaluated, run_id), current)
        return stage_summary(FINDING_CHECKPOINTS, gone, made.values(), run_id)

    def _read(self, given: Mapping[str, pa.Table]) -> tuple[ConnectionParts, PacketFacts, list[SessionFacts]]:
        """Return what the rules look at."""
        ends, steps, settings = self.context.capture_ends, self.context.steps, self.context.settings
        known = ConnectionParts.of(given, FINDING_CHECKPOINTS, self.read, steps, timedelta_to_us(settings.expire))
        sessions = cast_to(SESSIONS, given["sessions"])
        messages = cast_to(MESSAGES, given["messages"], _MESSAGE_COLUMNS)
        stray = cast_to(QUARANTINE, given["stray"], _STRAY_COLUMNS)
        return known, *read_facts(known.found, known.connections, sessions, messages, ends, stray)
