"""Sessions, and what is made of their packets: computed connection by connection, in tasks where they are many.

Of a session that is read in rounds, each stages what its new checkpoint counts; the last one also the session's row.

Staged are the changes of silver.sessions, order_acks, sendings and session_checkpoints; of messages what is known when
the packets of their connection are in order (``staged_messages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import StageFunction
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.checkpoint_cuts import checkpoints_of_round, latest_checkpoints
from pipeline.transfers.checkpoint_use import outdated_checkpoints
from pipeline.transfers.checkpoints import Checkpoint, checkpoint_rows
from pipeline.transfers.connection_parts import (
    ConnectionParts,
    ConnectionsToRead,
    by_bucket,
    connection_queries,
    rows_of_connections,
    rows_up_to,
    unread_rows,
    without_connections,
)
from pipeline.transfers.inputs import read_capture_begins
from pipeline.transfers.sending_rows import sending_rows
from pipeline.transfers.session_rows import CONNECTION_COLUMNS, order_ack_rows, session_rows
from pipeline.transfers.side_losses import LOSS_COLUMNS, gaps_are_holes
from pipeline.transfers.stage_connections import SessionContext, stage_connections, stage_summary
from pipeline.transfers.staged_messages import stage_messages
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSIONS
from udfs.times import timedelta_to_us

CHANGED, DECODED_BEFORE = "changed", "decoded_before"
_TIMES_OF_KEYS: Final = {CHANGED: "timestamp_micros(sent_at_us)", DECODED_BEFORE: "seen_at"}


@dataclass(frozen=True, slots=True)
class SessionStaging:
    """Stages sessions in a folder.

    ``packet_keys``, all with the columns packet_key and connection_id: ``CHANGED`` are those of changed packets, with
    sent_at_us; without this entry all are changed. ``DECODED_BEFORE``: of messages that were decoded already, with
    seen_at.
    """

    folder: LakePath
    context: SessionContext
    packet_keys: Mapping[str, pa.Table]

    def stage(self, lake: Lake, names: pa.Array, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Stage the sessions of some connections; of those with a checkpoint what is behind it."""
        begins = read_capture_begins(lake, names, checkpoints)

        def plan(read: ConnectionsToRead) -> tuple[dict[str, BoundQuery], StageFunction]:
            return self._queries(read), _SessionsOfGroup(self.context, begins, read.of_this_run).stage

        read, steps = ConnectionsToRead(names, checkpoints), self.context.steps
        stage_connections(lake, self.folder, read, SESSION_CHECKPOINTS, steps, plan)

    def _queries(self, read: ConnectionsToRead) -> dict[str, BoundQuery]:
        queries = connection_queries(read, SESSION_CHECKPOINTS, CONNECTION_COLUMNS)
        queries[SESSIONS.name] = rows_of_connections(SESSIONS, read.whole)
        for table in (ORDER_ACKS, SENDINGS):
            queries[table.name] = rows_of_connections(table, read, "sent_at")
        keys = "SELECT packet_key, connection_id FROM {rows} WHERE {chosen}"
        for name, rows in self.packet_keys.items():
            queries[name] = by_bucket(unread_rows(keys, rows, read, _TIMES_OF_KEYS[name]))
        return queries


@dataclass(frozen=True, slots=True)
class _SessionsOfGroup:
    """The function of a group of connections.

    ``begins``: of captures, microseconds; ``read``: of what was made in this run, and of what is read later.
    """

    context: SessionContext
    begins: Mapping[str, int]
    read: ConnectionsToRead

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the sessions of a group; return those that are left out: their checkpoints do not hold."""
        given = {name: parts[name] for name in parts}
        known, sessions = self._compute(given)
        outdated = outdated_checkpoints(
            known.found, known.checkpoints, known.connections, sessions, given[SESSIONS.name], known.packet_counts
        )
        if outdated:
            given = {name: without_connections(rows, outdated) for name, rows in given.items()}
            known, sessions = self._compute(given)
        found, run_id, checkpoints = known.found, self.context.run_id, self._checkpoints(known)
        made = checkpoints_of_round(found, checkpoints)
        until = found.end_at(made)
        rows = {
            ORDER_ACKS: order_ack_rows(found, sessions, run_id),
            SENDINGS: sending_rows(found, known.connections, sessions, run_id),
        }
        for table, new in rows.items():
            stage_changes(staging, table, new, rows_up_to(cast_to(table, given[table.name]), "sent_at", until))
        of_all = {
            SESSIONS: (sessions, cast_to(SESSIONS, given[SESSIONS.name])),
            SESSION_CHECKPOINTS: (checkpoint_rows(SESSION_CHECKPOINTS, checkpoints, run_id), known.stored),
        }
        for table, both in of_all.items():
            stage_changes(staging, table, *(without_connections(each, found.later) for each in both))
        changed, decoded_before = given.get(CHANGED), given.get(DECODED_BEFORE)
        stage_messages(staging, found, rows_up_to(known.decoded, "seen_at", until), changed, decoded_before)
        return stage_summary(SESSION_CHECKPOINTS, outdated, made.values(), run_id)

    def _compute(self, given: Mapping[str, pa.Table]) -> tuple[ConnectionParts, pa.Table]:
        """Return what is known of connections, and their sessions."""
        settings = self.context.settings
        expire_us = timedelta_to_us(settings.expire)
        known = ConnectionParts.of(given, SESSION_CHECKPOINTS, self.read, self.context.steps, expire_us)
        sessions = session_rows(
            known.connections, known.found, self.context.capture_ends, self.begins, settings, self.context.run_id
        )
        return known, sessions

    def _checkpoints(self, known: ConnectionParts) -> list[Checkpoint]:
        losses = {row["connection_id"]: row for row in known.connections.select(LOSS_COLUMNS).to_pylist()}
        found = known.found
        holes = {name: gaps_are_holes(found, place, losses[name]) for place, name in enumerate(found.connection_ids)}
        return latest_checkpoints(found, holes)
