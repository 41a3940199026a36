"""Update of gold.transfer_sequences from silver.messages, sendings, order_acks and sessions.

A change affects sequences by their id (TxSequenceID): those of changed messages, sendings and order acks; those between
machines between which other packets may be missing now, or whose ends handshakes show now; those of queue managers
whose identifier was found to be that of two machines, or is not any more; and those that wait for an order ack, at
servers whose captures end at another time, or which may be missing between any machines now. Of an affected sequence
the columns of all sendings are read again, its rows are recomputed, and those of sequences that follow it as far as it
tells how they began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.bronze.across_captures.capture_ends import changed_ends, read_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, RowsOfDates
from pipeline.transfers.changed_connections import connections_in_captures
from pipeline.transfers.hops.address_queue_managers import CHANGED_HANDSHAKES_SQL
from pipeline.transfers.hops.hop_keys import read_clones
from pipeline.transfers.hops.hop_state import NO_STATE, HopState
from pipeline.transfers.hops.missing_packets import (
    CHANGED_ANYWHERE_SQL,
    HOLE_CHANGES,
    PAIRS_SCHEMA,
    changed_anywhere_sql,
)
from pipeline.transfers.sequences.beginnings import set_beginnings, set_changed_beginnings
from pipeline.transfers.sequences.sequence_inputs import (
    ID_SQL,
    IS_TRANSACTIONAL_SQL,
    fill_queue_managers,
    group_sequences,
    read_missing_packets,
    read_order_acks,
    read_sendings,
)
from pipeline.transfers.sequences.sequence_rows import SEQUENCES_SCHEMA, SequenceSettings, sequence_rows
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.columns.absent import BEFORE_ALL
from udfs.times import timedelta_to_us

_TRANSFER_SEQUENCES: Final = DerivedTable(
    TRANSFER_SEQUENCES, (MESSAGES, SENDINGS, ORDER_ACKS, SESSIONS, CAPTURE_FILES), code_version="6", needs=(SENDINGS,)
)
# Rows that differ in these columns, before and after all changes: a row and its copy cancel each other.
_MESSAGE_COLUMNS: Final = (
    "packet_key, source_queue_manager, destination_queue, destination_queue_manager, hop_count,"
    " transaction_sequence_id, transaction_number, previous_transaction_number, seen_at, sent_at"
)
_SENDING_COLUMNS: Final = (
    "packet_key, connection_id, stream_offset, sent_at, server_address, sender_address, receiver_address,"
    " sender_queue_manager, receiver_queue_manager, length_bytes, complete, session_acked_at IS NULL,"
    " surely_acknowledged, handshake_seen"
)
_ACK_COLUMNS: Final = (
    "packet_key, sent_at, sent_by, client_address, server_address, queue_manager, acknowledged_queue_manager,"
    " transaction_sequence_id, transaction_number"
)
_CHANGED_MESSAGES: Final = f"""
SELECT {ID_SQL} AS id, min(unix_micros(seen_at)) AS since FROM (
  SELECT {_MESSAGE_COLUMNS} FROM {{feed}} WHERE {IS_TRANSACTIONAL_SQL}
  GROUP BY {_MESSAGE_COLUMNS} HAVING {MORE_ROWS_SQL} <> 0
) GROUP BY {ID_SQL}"""
_CHANGED_SENDINGS: Final = f"""
SELECT packet_key, sent_at FROM {{feed}} GROUP BY {_SENDING_COLUMNS} HAVING {MORE_ROWS_SQL} <> 0"""
_CHANGED_ACKS: Final = f"""
SELECT DISTINCT {ID_SQL} AS id FROM (
  SELECT {_ACK_COLUMNS} FROM {{feed}} WHERE kind = 'order_ack' AND transaction_sequence_id IS NOT NULL
  GROUP BY {_ACK_COLUMNS} HAVING {MORE_ROWS_SQL} <> 0
)"""
_CHANGED_ENDS: Final = f"""
SELECT DISTINCT connection_id AS id FROM (
  SELECT connection_id FROM {{feed}} WHERE client_order_acks > 0 OR server_order_acks > 0
  GROUP BY connection_id, initiator_queue_manager, acceptor_queue_manager HAVING {MORE_ROWS_SQL} <> 0
)"""
_ACKNOWLEDGED_ON: Final = f"""
SELECT DISTINCT {ID_SQL} AS id FROM {{acks}}
WHERE connection_id IN {{names}} AND kind = 'order_ack' AND transaction_sequence_id IS NOT NULL"""
_UNKNOWN_ENDS: Final = """
SELECT connection_id AS id, unix_micros(first_packet_at) AS since FROM {sessions}
WHERE ((client_address IN {addresses} AND initiator_queue_manager IS NULL)
  OR (server_address IN {addresses} AND acceptor_queue_manager IS NULL))
  AND unix_micros(last_packet_at) >= {since} AND unix_micros(first_packet_at) <= {until}"""


def update(lake: Lake, run_id: str, settings: SequenceSettings | None = None) -> int:
    """Update the sequences that changes affect; return how many rows are written.

    Call it when silver.sessions and the tables beside it are up to date.
    """
    settings = settings or SequenceSettings()
    step = _TRANSFER_SEQUENCES.begin(lake, settings.as_provenance())
    return 0 if step is None else _EodSequencesUpdate(step, settings, run_id).run()


@dataclass(slots=True)
class _EodSequencesUpdate:
    """One update; ``affected``: by sequence id the time of changed sendings.

    A sequence whose own sendings are as they were has no time there: its rows tell when it began. ``steps``: where
    clocks were set.
    """

    step: IncrementalUpdate
    settings: SequenceSettings
    run_id: str
    now: HopState = NO_STATE
    steps: ClockSteps = NO_STEPS
    affected: dict[str, int | None] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    def run(self) -> int:
        """Recompute the affected sequences, or all; return how many rows are written."""
        self.steps = read_clock_steps(self.lake)
        clones = sorted(read_clones(self.lake))
        self.now = HopState(read_capture_ends(self.lake), clones, self.steps.places())
        self.step.keep(self.now)
        return self.step.recompute(self._find_affected, self._recompute)

    def _recompute(self, affected: Mapping[str, int | None] | None) -> int:
        if affected is None:
            return self.step.replace_all(set_beginnings(self._compute(None, 0), self.settings.wait))
        current = self.lake.select(TRANSFER_SEQUENCES, f"{ID_SQL} IN {{ids}}", ids=affected.keys())
        times = [at for at in affected.values() if at is not None]
        times += times_to_us(current["first_sent_at"]).to_pylist()
        new = self._compute(affected.keys(), min(times, default=0))
        return self.step.replace_changed(*set_changed_beginnings(self.lake, new, current, self.settings.wait))

    def _compute(self, ids: Collection[str] | None, since: int) -> pa.Table:
        """Return the rows of some sequences, none of which begins before a time, or of all; not how they began."""
        fill = partial(fill_queue_managers, self.lake, expire_us=timedelta_to_us(self.settings.expire))
        wait_us = timedelta_to_us(self.settings.wait)
        rows = [SEQUENCES_SCHEMA.empty_table()]
        clones = frozenset(self.now.clones)
        holes = read_missing_packets(self.lake, clones)
        for names, first in group_sequences(self.lake, ids, since):
            sendings = read_sendings(self.lake, names, first, self.now.capture_ends)
            acks = read_order_acks(self.lake, names, first - wait_us)
            rows.append(sequence_rows(sendings, acks, holes, self.settings, self.run_id, fill, clones, self.steps))
        return pa.concat_tables(rows)

    # What changed

    def _find_affected(self) -> dict[str, int | None]:
        """Return the sequences that changes affect; UnknownChangesError."""
        step, before = self.step, self.step.kept(HopState)
        messages = step.changes(MESSAGES, _CHANGED_MESSAGES)
        acks = step.changes(ORDER_ACKS, _CHANGED_ACKS)
        holes = [step.changes(SESSIONS, sql) for sql in (*(sql for sql, _ in HOLE_CHANGES), CHANGED_ANYWHERE_SQL)]
        handshakes = step.changes(SESSIONS, CHANGED_HANDSHAKES_SQL)
        ends = step.changes(SESSIONS, _CHANGED_ENDS)
        sendings = self._changed_sendings()
        if sendings is None:
            raise UnknownChangesError
        self.affected = {row["id"]: None for row in acks}
        if names := {row["id"] for row in ends}:
            found = self.lake.query(_ACKNOWLEDGED_ON, acks=ORDER_ACKS, names=names)
            self.affected |= dict.fromkeys(found["id"].to_pylist())
        connections = self._sessions_of_unknown_ends(handshakes)
        self._add_sequences("packet_key", sendings["packet_key"].to_pylist(), _earliest(sendings["sent_at"]))
        since = min((row["since"] or 0 for row in connections), default=0)
        self._add_sequences("connection_id", [row["id"] for row in connections], since)
        for (_, affected), pairs in zip(HOLE_CHANGES, holes, strict=False):
            self._add_by_holes(affected, pairs)
        self._add_waiting(holes[-1])
        if captures := self.now.captures_with_other_places(before):
            self._add_sequences("connection_id", connections_in_captures(self.lake, captures), 0)
        self._add_by_clones({*self.now.clones} ^ {*before.clones})
        self._add_by_capture_end(before.capture_ends)
        self.affected |= {row["id"]: row["since"] for row in messages}
        return self.affected

    def _changed_sendings(self) -> pa.Table | None:
        """Return packet_key and sent_at of changed sendings; None where they are not known."""
        feeds = self.step.feeds
        if feeds.is_unchanged(SENDINGS):
            return pa.table(
                {"packet_key": pa.array([], pa.string()), "sent_at": pa.array([], pa.timestamp("us", "UTC"))}
            )
        return feeds.table(SENDINGS, _CHANGED_SENDINGS)

    def _add_sequences(self, column: str, values: Collection[str], since: int) -> None:
        """Add the sequences of messages that have one of some values, none of which was sent before a time."""
        if values:
            where = f"{IS_TRANSACTIONAL_SQL} AND {column} IN {{values}}"
            sql = f"SELECT DISTINCT {ID_SQL} AS id FROM {{messages}} WHERE {where}"
            found = self.lake.query(sql, messages=RowsOfDates(MESSAGES, DateSpan.of_times(since)), values=values)
            self.affected |= dict.fromkeys(found["id"].to_pylist())

    def _add_by_holes(self, affected: str, pairs: list[dict[str, Any]]) -> None:
        """Add the sequences that changed holes concern, by one of ``HOLE_CHANGES``."""
        if pairs:
            # When the first message was made is not in the row: it may be long before it was sent.
            sql = affected.replace("{column}", "transaction_sequence_id").replace("{since}", str(BEFORE_ALL))
            sql = f"SELECT CAST(id AS string) AS id FROM ({sql})"
            found = self.lake.query(sql, rows=TRANSFER_SEQUENCES, pairs=pa.Table.from_pylist(pairs, PAIRS_SCHEMA))
            self.affected |= dict.fromkeys(found["id"].to_pylist())

    def _add_waiting(self, holes: list[dict[str, Any]]) -> None:
        """Add the sequences that wait for an order ack that changed holes between any machines may hold."""
        if condition := changed_anywhere_sql(holes, timedelta_to_us(self.settings.wait)):
            where = f"waiting > 0 AND {condition.replace('{last}', 'last_sent_at')}"
            sql = f"SELECT DISTINCT {ID_SQL} AS id FROM {{rows}} WHERE {where}"
            found = self.lake.query(sql, rows=TRANSFER_SEQUENCES)
            self.affected |= dict.fromkeys(found["id"].to_pylist())

    def _add_by_clones(self, names: Collection[str]) -> None:
        """Add the sequences of queue managers that are, or were before, two machines with one identifier."""
        if names:
            sql = f"""
SELECT DISTINCT {ID_SQL} AS id FROM {{rows}}
WHERE sender_queue_manager IN {{names}} OR receiver_queue_manager IN {{names}}"""
            found = self.lake.query(sql, rows=TRANSFER_SEQUENCES, names=names)
            self.affected |= dict.fromkeys(found["id"].to_pylist())

    def _sessions_of_unknown_ends(self, handshakes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the sessions with an end that changed handshakes may show, and since when they are."""
        if not handshakes:
            return []
        times, expire = [row["at"] for row in handshakes], timedelta_to_us(self.settings.expire)
        sql = _UNKNOWN_ENDS.replace("{since}", str(min(times) - expire)).replace("{until}", str(max(times) + expire))
        addresses = {row["address"] for row in handshakes}
        found: list[dict[str, Any]] = self.lake.query(sql, sessions=SESSIONS, addresses=addresses).to_pylist()
        return found

    def _add_by_capture_end(self, before: Mapping[str, int]) -> None:
        """Add the sequences that wait, at servers whose captures end at another time than before.

        A later end makes waits longer until the sequence takes in nothing more; only an earlier one shortens them.
        """
        later, earlier = changed_ends(before, self.now.capture_ends)
        if not later and not earlier:
            return
        oldest = min((before.get(server, 0) for server in later), default=0) - timedelta_to_us(self.settings.wait)
        sql = f"""
SELECT DISTINCT {ID_SQL} AS id FROM {{rows}} WHERE waiting > 0 AND (
  (condition <> 'unknown' AND unix_micros(last_packet_at) >= {oldest}
    AND (sender_address IN {{later}} OR receiver_address IN {{later}}))
  OR sender_address IN {{earlier}} OR receiver_address IN {{earlier}})"""
        found = self.lake.query(sql, rows=TRANSFER_SEQUENCES, later=later, earlier=earlier)
        self.affected |= dict.fromkeys(found["id"].to_pylist())


def _earliest(times: pa.ChunkedArray) -> int:
    """Return the earliest of some times, microseconds; 0 where there is none."""
    first = pc.min(times_to_us(times)).as_py()
    return 0 if first is None else int(first)
