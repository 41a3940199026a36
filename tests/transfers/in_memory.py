"""Captures down to gold of what is sent between queue managers, in memory: the pipeline's own queries and functions."""

import pyarrow as pa
import pyarrow.compute as pc

from capture.in_memory import read_captures
from memory_lake import MemoryLake
from pipeline.arrow_rows import distinct_texts
from pipeline.bronze.across_captures.capture_ends import read_capture_ends, read_sure_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.findings.hops.hop_findings import HopFacts, hop_finding_rows
from pipeline.findings.rules.registry import HOP_CHECKS
from pipeline.findings.session_checkpoints import EvaluatedSpan
from pipeline.findings.session_findings import (
    EVALUATED_MESSAGES_SQL,
    FINDING_CONNECTION_COLUMNS,
    FINDING_MESSAGE_COLUMNS,
    evaluate_sessions,
    read_facts,
)
from pipeline.settings import TransfersConfig
from pipeline.silver.decode_packets import decode_packets
from pipeline.transfers.connection_parts import ConnectionParts, ConnectionsToRead, connection_queries
from pipeline.transfers.inputs import BINARY_PROTOCOL, read_capture_begins
from pipeline.transfers.messages.message_inputs import GroupedMessages, TransferInputs
from pipeline.transfers.messages.message_rows import message_transfer_rows
from pipeline.transfers.messages.transfer_context import TransferSettings
from pipeline.transfers.sending_rows import sending_rows
from pipeline.transfers.sequences.sequence_context import SequenceSettings
from pipeline.transfers.sequences.sequence_inputs import GroupedSequences
from pipeline.transfers.sequences.sequence_rows import sequence_rows
from pipeline.transfers.session_rows import CONNECTION_COLUMNS as SESSION_CONNECTION_COLUMNS
from pipeline.transfers.session_rows import SessionSettings, order_ack_rows, session_rows
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSION_PACKETS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.times import timedelta_to_us

RUN = "run"
_BRONZE = {"connections": CONNECTIONS, "session_packets": SESSION_PACKETS, "capture_files": CAPTURE_FILES,
           "quarantine": QUARANTINE}  # fmt: skip


def transfers_of(captures):
    """A lake in memory with bronze, silver and gold of the sessions that some captures, bytes, show in one run."""
    return transfers_of_bronze(read_captures([captures]))


def transfers_of_bronze(tables):
    """The same from the tables of bronze, by name."""
    lake = MemoryLake({_BRONZE[name]: rows for name, rows in tables.items() if name in _BRONZE})
    ends = read_capture_ends(lake)
    settings = SessionSettings()
    expire = timedelta_to_us(settings.expire)
    names = lake.query(f"SELECT connection_id FROM {{rows}} WHERE kind = '{BINARY_PROTOCOL}'", rows=CONNECTIONS)
    names = distinct_texts(names["connection_id"])
    read = ConnectionsToRead(names)
    queries = connection_queries(read, SESSION_CHECKPOINTS, SESSION_CONNECTION_COLUMNS)
    parts = {name: lake.query(query.sql, **query.inputs) for name, query in queries.items()}
    known = ConnectionParts.of(parts, SESSION_CHECKPOINTS, read, read_clock_steps(lake), expire)
    found, connections = known.found, known.connections
    begins = read_capture_begins(lake, names)
    sessions = session_rows(connections, found, ends, begins, settings, RUN)
    lake.put(SESSIONS, sessions)
    lake.put(ORDER_ACKS, order_ack_rows(found, sessions, RUN))
    lake.put(SENDINGS, sending_rows(found, connections, sessions, RUN))
    lake.put(MESSAGES, _messages(lake, found))
    lake.put(MESSAGE_TRANSFERS, _transfers(lake))
    lake.put(TRANSFER_SEQUENCES, _sequences(lake, ends))
    lake.put(FINDINGS, _findings(lake, found, ends))
    return lake


def _messages(lake, found):
    chosen = lake.query(
        "SELECT * FROM {rows} WHERE kind = 'user_message' AND packet IS NOT NULL ORDER BY packet_key",
        rows=SESSION_PACKETS,
    )
    place = pc.index_in(chosen["packet_key"], found.table["packet_key"].combine_chunks())
    numbers = found.number_columns(place.combine_chunks().to_numpy())
    batches = decode_packets(chosen, pa.nulls(chosen.num_rows, pa.string()), numbers=numbers)
    return pa.Table.from_batches([batches[str(MESSAGES)]])


def _transfers(lake):
    messages = GroupedMessages.read(lake)
    context = messages.read_context(lake, TransferSettings(), RUN, read_sure_capture_ends(lake))
    queries = messages.queries(replaced=False, captures_of_calls=True)
    inputs = {name: lake.query(query.sql, **query.inputs) for name, query in queries.items()}
    return message_transfer_rows(TransferInputs.of(inputs), context)


def _sequences(lake, ends):
    sequences, settings = GroupedSequences.read(lake), SequenceSettings()
    context = sequences.read_context(lake, settings, RUN, ends)
    queries = sequences.queries(timedelta_to_us(settings.wait))
    inputs = {name: lake.query(query.sql, **query.inputs) for name, query in queries.items()}
    return sequence_rows(inputs["sendings"], inputs["order_acks"], context)


def _findings(lake, found, ends):
    messages = lake.select(MESSAGES, EVALUATED_MESSAGES_SQL, ("connection_id", "seen_at", *FINDING_MESSAGE_COLUMNS))
    stray = lake.select(QUARANTINE, "reason = 'not_a_packet'", ("connection_id", "quarantine_key", "seen_at"))
    names = pa.array(found.connection_ids, pa.string())
    connections = lake.select(CONNECTIONS, "connection_id IN {names}", FINDING_CONNECTION_COLUMNS, names=names)
    facts, sessions = read_facts(found, connections, lake.rows(SESSIONS), messages, ends, stray)
    hops = HopFacts(lake, names, int(TransfersConfig.wait.total_seconds()))
    violations = ((check.rule_id, each) for check in HOP_CHECKS for each in check.check(hops))
    return pa.concat_tables(
        [evaluate_sessions(facts, sessions, EvaluatedSpan(), RUN), hop_finding_rows(violations, RUN)]
    )
