"""Sessions, and what is made of their packets: computed connection by connection, in tasks where they are many.

Staged are the changes of silver.sessions, order_acks, sendings and session_checkpoints; of messages what is known when
the packets of their connection are in order (``staged_messages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import StageFunction
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.checkpoint_cuts import latest_checkpoints
from pipeline.transfers.checkpoint_use import outdated_checkpoints
from pipeline.transfers.checkpoints import Checkpoint, checkpoint_rows
from pipeline.transfers.connection_parts import (
    ConnectionParts,
    by_bucket,
    connection_queries,
    rows_of_connections,
    without_connections,
)
from pipeline.transfers.inputs import read_capture_begins
from pipeline.transfers.sending_rows import sending_rows
from pipeline.transfers.session_rows import CONNECTION_COLUMNS, order_ack_rows, session_rows
from pipeline.transfers.side_losses import LOSS_COLUMNS, gaps_are_holes
from pipeline.transfers.stage_connections import SessionContext, left_out, stage_connections
from pipeline.transfers.staged_messages import stage_messages
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSIONS
from udfs.times import timedelta_to_us

CHANGED, DECODED_BEFORE = "changed", "decoded_before"


@dataclass(frozen=True, slots=True)
class SessionStaging:
    """Stages sessions in a folder.

    ``packet_keys``, all with the columns packet_key and connection_id: ``CHANGED`` are those of changed packets, which
    without this entry all are; ``DECODED_BEFORE`` those of messages that were decoded already.
    """

    folder: LakePath
    context: SessionContext
    packet_keys: Mapping[str, pa.Table]

    def stage(self, lake: Lake, names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Stage the sessions of some connections; of those with a checkpoint what is behind it."""

        def plan(names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> tuple[dict[str, BoundQuery], StageFunction]:
            begins = read_capture_begins(lake, names, checkpoints)
            return self._queries(names, checkpoints), _SessionsOfGroup(self.context, begins).stage

        stage_connections(lake, self.folder, names, checkpoints, plan)

    def _queries(self, names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> dict[str, BoundQuery]:
        queries = connection_queries(names, checkpoints, SESSION_CHECKPOINTS, CONNECTION_COLUMNS)
        queries[SESSIONS.name] = rows_of_connections(SESSIONS, names)
        for table in (ORDER_ACKS, SENDINGS):
            queries[table.name] = rows_of_connections(table, names, checkpoints, "sent_at")
        keys = "SELECT packet_key, connection_id FROM {keys} WHERE connection_id IN {names}"
        for name, rows in self.packet_keys.items():
            queries[name] = by_bucket(BoundQuery(keys, {"keys": rows, "names": names}))
        return queries


@dataclass(frozen=True, slots=True)
class _SessionsOfGroup:
    """The function of a group of connections. ``begins``: of captures, microseconds."""

    context: SessionContext
    begins: Mapping[str, int]

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the sessions of a group; return those that are left out: their checkpoints do not hold."""
        given = {name: parts[name] for name in parts}
        known, sessions = self._compute(given)
        outdated = outdated_checkpoints(
            known.found, known.connections, sessions, given[SESSIONS.name], known.packet_counts
        )
        if outdated:
            given = {name: without_connections(rows, outdated) for name, rows in given.items()}
            known, sessions = self._compute(given)
        found, run_id = known.found, self.context.run_id
        rows = {
            SESSIONS: sessions,
            ORDER_ACKS: order_ack_rows(found, sessions, run_id),
            SENDINGS: sending_rows(found, known.connections, sessions, run_id),
        }
        for table, made in rows.items():
            stage_changes(staging, table, made, cast_to(table, given[table.name]))
        stage_changes(staging, SESSION_CHECKPOINTS, self._checkpoints(known), known.stored)
        changed, decoded_before = given.get(CHANGED), given.get(DECODED_BEFORE)
        stage_messages(staging, found, known.decoded, changed, decoded_before)
        return left_out(outdated)

    def _compute(self, given: Mapping[str, pa.Table]) -> tuple[ConnectionParts, pa.Table]:
        """Return what is known of connections, and their sessions."""
        settings = self.context.settings
        known = ConnectionParts.of(given, SESSION_CHECKPOINTS, self.context.steps, timedelta_to_us(settings.expire))
        sessions = session_rows(
            known.connections, known.found, self.context.capture_ends, self.begins, settings, self.context.run_id
        )
        return known, sessions

    def _checkpoints(self, known: ConnectionParts) -> pa.Table:
        losses = {row["connection_id"]: row for row in known.connections.select(LOSS_COLUMNS).to_pylist()}
        found = known.found
        holes = {name: gaps_are_holes(found, place, losses[name]) for place, name in enumerate(found.connection_ids)}
        return checkpoint_rows(SESSION_CHECKPOINTS, latest_checkpoints(found, holes), self.context.run_id)
