"""Findings on sessions, evaluated connection by connection, in tasks where they are many.

Staged are the changes of gold.findings of the scope ``session``, and of gold.finding_checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.findings.rules.session_facts import PacketFacts, SessionFacts
from pipeline.findings.session_checkpoints import evaluated_again, new_checkpoints, outdated
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
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.checkpoints import Checkpoint, checkpoint_rows
from pipeline.transfers.connection_parts import (
    ConnectionParts,
    connection_queries,
    rows_of_connections,
    without_connections,
)
from pipeline.transfers.session_rows import SessionSettings
from schemas.bronze import QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import FINDING_CHECKPOINTS, SESSIONS
from schemas.table import Table
from udfs.capture.clock_steps import ClockSteps
from udfs.times import timedelta_to_us

_MESSAGE_COLUMNS: Final = ("connection_id", "seen_at", *FINDING_MESSAGE_COLUMNS)
_STRAY_COLUMNS: Final = ("connection_id", "quarantine_key", "seen_at")
_OUTDATED: Final = StructType().add("connection_id", "string")


@dataclass(frozen=True, slots=True)
class FindingStaging:
    """Stages findings on sessions in a folder.

    ``capture_ends``: by server, microseconds; ``steps``: where clocks of captures were set.
    """

    folder: LakePath
    capture_ends: Mapping[str, int]
    steps: ClockSteps
    settings: SessionSettings
    run_id: str

    def stage(self, lake: Lake, names: Collection[str], checkpoints: Mapping[str, Checkpoint]) -> None:
        """Stage the findings on some sessions; of those with a checkpoint on what is behind it.

        ``names``: of their connections, and of those that have findings and no session any more.
        """
        outdated_names = self._stage(lake, names, checkpoints, "")
        if outdated_names:
            self._stage(lake, outdated_names, {}, "anew")

    def _stage(
        self, lake: Lake, names: Collection[str], checkpoints: Mapping[str, Checkpoint], label: str
    ) -> list[str]:
        """Stage findings in files with a label; return the sessions left out: their checkpoints do not hold."""
        queries = self._queries(names, checkpoints)
        found = stage_groups(lake, self.folder, queries, self._stage_group, _OUTDATED, label=label)
        names_left: list[str] = found["connection_id"].to_pylist()
        return names_left

    def _queries(self, names: Collection[str], checkpoints: Mapping[str, Checkpoint]) -> dict[str, BoundQuery]:
        return connection_queries(names, checkpoints, FINDING_CHECKPOINTS, FINDING_CONNECTION_COLUMNS) | {
            "sessions": rows_of_connections(SESSIONS, names),
            "messages": rows_of_connections(
                MESSAGES, names, checkpoints, "seen_at", EVALUATED_MESSAGES_SQL, _MESSAGE_COLUMNS
            ),
            "stray": rows_of_connections(QUARANTINE, names, where="reason = 'not_a_packet'", columns=_STRAY_COLUMNS),
            "findings": rows_of_connections(FINDINGS, names, where=f"scope = '{SESSION_SCOPE}'"),
        }

    def _stage_group(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the findings on a group of sessions; return the sessions that are left out."""
        given = {name: parts[name] for name in parts}
        known, facts, sessions = self._read(given)
        left_out = outdated(sessions, known.packet_counts)
        if left_out:
            given = {name: without_connections(rows, left_out) for name, rows in given.items()}
            known, facts, sessions = self._read(given)
        checkpoints = checkpoint_rows(FINDING_CHECKPOINTS, new_checkpoints(sessions), self.run_id)
        stage_changes(staging, FINDING_CHECKPOINTS, checkpoints, known.stored)
        current = evaluated_again(given["findings"].select(FINDINGS.names).cast(FINDINGS.schema()), known.checkpoints)
        stage_changes(staging, FINDINGS, evaluate_sessions(facts, sessions, self.run_id), current)
        return pa.table({"connection_id": pa.array(sorted(left_out), pa.string())})

    def _read(self, given: Mapping[str, pa.Table]) -> tuple[ConnectionParts, PacketFacts, list[SessionFacts]]:
        """Return what the rules look at."""
        known = ConnectionParts.of(given, FINDING_CHECKPOINTS, self.steps, timedelta_to_us(self.settings.expire))
        sessions = given["sessions"].select(SESSIONS.names).cast(SESSIONS.schema())
        messages = _cast(given["messages"], MESSAGES, _MESSAGE_COLUMNS)
        stray = _cast(given["stray"], QUARANTINE, _STRAY_COLUMNS)
        return known, *read_facts(known.found, known.connections, sessions, messages, self.capture_ends, stray)


def _cast(rows: pa.Table, table: Table, columns: Collection[str]) -> pa.Table:
    """Return columns of rows with the types that a table has."""
    return rows.select([*columns]).cast(select_fields(table.schema(), [*columns]))
