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
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, times_to_us
from pipeline.bronze.across_captures.capture_ends import changed_ends, read_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, QueryInput, RowsOfDates
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.staging_files import read_staged, staged_rows
from pipeline.runs.recovery import RunMarkers
from pipeline.transfers.changed_connections import connections_in_captures
from pipeline.transfers.hops.address_queue_managers import changed_handshakes
from pipeline.transfers.hops.hop_keys import read_clones
from pipeline.transfers.hops.hop_state import NO_STATE, HopState
from pipeline.transfers.hops.missing_packets import ChangedHoles
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.sequences.beginnings import find_changed_beginnings
from pipeline.transfers.sequences.sequence_context import SequenceSettings
from pipeline.transfers.sequences.sequence_inputs import ID_SQL, IS_TRANSACTIONAL_SQL, GroupedSequences
from pipeline.transfers.sequences.sequence_rows import SEQUENCES_SCHEMA
from pipeline.transfers.sequences.stage_sequences import stage_sequences
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.transfers import TRANSFER_SEQUENCES
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
_FIRST_SENT: Final = f"""
SELECT min(unix_micros(first_sent_at)) AS `at` FROM {{rows}} WHERE {ID_SQL} IN {{ids}}"""
_UNKNOWN_ENDS: Final = """
SELECT connection_id AS id, unix_micros(first_packet_at) AS since FROM {existing} AS sessions
WHERE (client_address IN {addresses} AND initiator_queue_manager IS NULL)
  OR (server_address IN {addresses} AND acceptor_queue_manager IS NULL)"""


def update(lake: Lake, run_id: str, settings: SequenceSettings | None = None) -> int:
    """Update the sequences that changes affect; return how many rows are written.

    Call it when silver.sessions and the tables beside it are up to date.
    """
    settings = settings or SequenceSettings()
    step = _TRANSFER_SEQUENCES.begin(lake, settings.as_provenance())
    return 0 if step is None else _EodSequencesUpdate(step, settings, run_id).run()


@dataclass(slots=True)
class _EodSequencesUpdate:
    """One update; ``affected``: sequence ids, also the same several times; ``since``: of the first changed message.

    A sequence whose own messages are as they were tells by its rows when it began.
    """

    step: IncrementalUpdate
    settings: SequenceSettings
    run_id: str
    now: HopState = NO_STATE
    affected: list[pa.Array] = field(default_factory=list)
    since: int | None = None

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    def run(self) -> int:
        """Recompute the affected sequences, or all; return how many rows are written."""
        places = read_clock_steps(self.lake).places()
        self.now = HopState(read_capture_ends(self.lake), sorted(read_clones(self.lake)), places)
        self.step.keep(self.now)
        return self.step.recompute(self._find_affected, self._recompute)

    def _recompute(self, ids: pa.Array | None) -> int:
        with RunMarkers.of(self.lake).staging_folder("transfer_sequences") as folder:
            sequences = self._sequences(ids)
            context = sequences.read_context(
                self.lake, self.settings, self.run_id, self.now.capture_ends, frozenset(self.now.clones)
            )
            facts = [stage_sequences(self.lake, folder, part, context) for part in sequences.parts()]
            rows = folder / TRANSFER_SEQUENCES.name
            if ids is None:
                return self.step.replace_all(staged_rows(rows, TRANSFER_SEQUENCES))
            now, before = (pa.concat_tables(each) for each in zip(*facts, strict=True))
            begun = find_changed_beginnings(self.lake, now, before, self.settings.wait)
            staged = read_staged(rows, select_fields(SEQUENCES_SCHEMA, ["sequence_key"]))["sequence_key"]
            return self.step.write_changes(folder, begun.set_in, begun.of_other_rows(self.lake, staged))

    def _sequences(self, ids: pa.Array | None) -> GroupedSequences:
        """Return some sequences, or all, by groups."""
        if ids is None:
            return GroupedSequences.read(self.lake)
        found = self.lake.query(_FIRST_SENT, rows=TRANSFER_SEQUENCES, ids=ids)["at"][0].as_py()
        since = min((at for at in (found, self.since) if at is not None), default=0)
        return GroupedSequences.read(self.lake, ids, since)

    # What changed

    def _find_affected(self) -> pa.Array:
        """Return the sequences that changes affect; UnknownChangesError."""
        step, before = self.step, self.step.kept(HopState)
        if (messages := step.changed_rows(MESSAGES, _CHANGED_MESSAGES)) is not None:
            self.affected += messages["id"].chunks
            self.since = pc.min(messages["since"]).as_py()
        if (acks := step.changed_rows(ORDER_ACKS, _CHANGED_ACKS)) is not None:
            self.affected += acks["id"].chunks
        if (ends := step.changed_rows(SESSIONS, _CHANGED_ENDS)) is not None and ends.num_rows:
            self._add(_ACKNOWLEDGED_ON, acks=ORDER_ACKS, names=ends["id"].combine_chunks())
        if (sendings := step.changed_rows(SENDINGS, _CHANGED_SENDINGS)) is not None:
            keys = sendings["packet_key"].combine_chunks()
            self._add_sequences("packet_key", keys, _earliest(sendings["sent_at"]))
        if holes := ChangedHoles.read(step, self.settings.wait):
            self._add_by_holes(holes)
        self._add_by_handshakes(changed_handshakes(step))
        if captures := self.now.captures_with_other_places(before):
            self._add_sequences("connection_id", connections_in_captures(self.lake, captures), 0)
        self._add_by_clones({*self.now.clones} ^ {*before.clones})
        self._add_by_capture_end(before.capture_ends)
        return distinct_texts(*self.affected)

    def _add(self, sql: str, **inputs: QueryInput) -> None:
        """Add the sequences that a query finds."""
        self.affected += self.lake.query(sql, **inputs)["id"].chunks

    def _add_sequences(self, column: str, values: pa.Array, since: int) -> None:
        """Add the sequences of messages that have one of some values; none was sent before a time."""
        if len(values):
            where = f"{IS_TRANSACTIONAL_SQL} AND {column} IN {{values}}"
            sql = f"SELECT DISTINCT {ID_SQL} AS id FROM {{messages}} WHERE {where}"
            self._add(sql, messages=RowsOfDates(MESSAGES, DateSpan.of_times(since)), values=values)

    def _add_by_holes(self, holes: ChangedHoles) -> None:
        """Add the sequences that changed holes concern.

        Those that wait for an order ack are concerned by holes between any machines.
        """
        # When the first message was made is not in the row: it may be long before it was sent.
        for query in holes.affected_rows(
            TRANSFER_SEQUENCES, "transaction_sequence_id", str(BEFORE_ALL), "last_packet_at"
        ):
            self._add(f"SELECT CAST(id AS string) AS id FROM ({query.sql})", **query.inputs)
        where = f"waiting > 0 AND {holes.affects_anywhere_sql('last_sent_at')}"
        self._add(f"SELECT DISTINCT {ID_SQL} AS id FROM {{rows}} WHERE {where}", rows=TRANSFER_SEQUENCES)

    def _add_by_clones(self, names: Collection[str]) -> None:
        """Add the sequences of queue managers that are, or were before, two machines with one identifier."""
        if names:
            sql = f"""
SELECT DISTINCT {ID_SQL} AS id FROM {{rows}}
WHERE sender_queue_manager IN {{names}} OR receiver_queue_manager IN {{names}}"""
            self._add(sql, rows=TRANSFER_SEQUENCES, names=names)

    def _add_by_handshakes(self, handshakes: list[dict[str, Any]]) -> None:
        """Add the sequences on sessions with an end that changed handshakes may show."""
        if handshakes:
            times, expire = [row["at"] for row in handshakes], timedelta_to_us(self.settings.expire)
            near = TimeSpan(min(times), max(times)).widened(expire, expire)
            sql = _UNKNOWN_ENDS.replace("{existing}", near.sessions_sql())
            found = self.lake.query(sql, rows=SESSIONS, addresses={row["address"] for row in handshakes})
            first = pc.min(pc.fill_null(found["since"], 0)).as_py() or 0
            self._add_sequences("connection_id", found["id"].combine_chunks(), first)

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
        self._add(sql, rows=TRANSFER_SEQUENCES, later=later, earlier=earlier)


def _earliest(times: pa.ChunkedArray) -> int:
    """Return the earliest of some times, microseconds; 0 where there is none."""
    first = pc.min(times_to_us(times)).as_py()
    return 0 if first is None else int(first)
