"""Rows of one table, and chosen columns of these, from what the reader yields of one capture. No Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import STAGED_ROWS
from pipeline.data_source.options import CaptureOptions
from pipeline.silver.decode import (
    CALL_INPUT_COLUMNS,
    OPTIONAL_INPUT_COLUMNS,
    DecodeFailure,
    decode_calls_safely,
)
from pipeline.silver.decode_packets import NUMBERS, decode_packets, message_packets, set_numbers
from pipeline.transfers.one_capture import SESSION_TABLES, CaptureSessions
from schemas.bronze import RPC_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import RUN_ID, Table

ReaderRows: TypeAlias = Iterable[tuple[str, pa.RecordBatch]]
"""What ``read_capture_batches`` yields of one capture: batches with their kind."""


def capture_rows(read: ReaderRows, options: CaptureOptions) -> Iterator[pa.RecordBatch]:
    """Yield the chosen columns of the chosen rows of one capture."""
    found: Iterator[pa.RecordBatch]
    if options.table is None:
        found = (batch for kind, batch in read if kind == options.rows)
    elif options.table in SESSION_TABLES:
        found = _session_rows(read, options.table)
    else:
        found = _decoded_rows(read, options, options.table)
    return (batch.select(list(options.columns)) for batch in found)


def _session_rows(read: ReaderRows, table: Table) -> Iterator[pa.RecordBatch]:
    sessions = CaptureSessions()
    for kind, batch in read:
        sessions.add(kind, batch)
    for rows in sessions.rows(table):
        yield from rows.combine_chunks().to_batches()


def _decoded_rows(read: ReaderRows, options: CaptureOptions, table: Table) -> Iterator[pa.RecordBatch]:
    """Yield what calls and message packets say.

    A message has its numbers when all packets of its connection are there: those of the binary protocol come last,
    unless no number is asked for.
    """
    if table is MESSAGES and not set(NUMBERS).isdisjoint(options.columns):
        yield from _numbered_messages(read, options)
        return
    for kind, batch in read:
        yield from _decoded(kind, batch, options, table)


def _decoded(kind: str, batch: pa.RecordBatch, options: CaptureOptions, table: Table) -> Iterator[pa.RecordBatch]:
    if kind == RPC_CALLS.name:
        yield from _decoded_calls(batch, options, table)
    elif kind == SESSION_PACKETS.name and table in (MESSAGES, COMQC_CALLS):
        yield _decoded_packets(message_packets(batch), options, table)


def _numbered_messages(read: ReaderRows, options: CaptureOptions) -> Iterator[pa.RecordBatch]:
    """Yield messages with their numbers; those of the binary protocol wait for these in an unnamed file."""
    sessions = CaptureSessions()
    keys: list[pa.Array] = []
    with tempfile.TemporaryFile() as file:
        writer = None
        for kind, batch in read:
            sessions.add(kind, batch)
            if kind != SESSION_PACKETS.name:
                yield from _decoded(kind, batch, options, MESSAGES)
                continue
            packets = message_packets(batch)
            decoded = _decoded_packets(packets, options, MESSAGES).select(list(options.columns))
            writer = writer or pa.ipc.new_stream(file, decoded.schema, options=STAGED_ROWS)
            writer.write_batch(decoded)
            keys.append(packets["packet_key"])
        if writer is None:
            return
        writer.close()
        file.seek(0)
        numbers = sessions.numbers()
        every = pa.chunked_array(keys, pa.string())
        numbers = numbers.take(pc.index_in(every, numbers["packet_key"].combine_chunks())).combine_chunks()
        begin = 0
        for batch in pa.ipc.open_stream(file):
            part = numbers.slice(begin, batch.num_rows)
            begin += batch.num_rows
            yield set_numbers(batch, part)


def _decoded_calls(calls: pa.RecordBatch, options: CaptureOptions, table: Table) -> Iterator[pa.RecordBatch]:
    """Yield the decoded rows of calls; a call at which decoding fails has a row with an error."""
    names = [name for name in (*CALL_INPUT_COLUMNS, *OPTIONAL_INPUT_COLUMNS) if name != RUN_ID]
    calls = calls.select(names).append_column(RUN_ID, pa.nulls(calls.num_rows, pa.string()))
    failures: list[DecodeFailure] = []
    for decoded in decode_calls_safely(calls, failures, options.decode_settings, {str(table): options.columns}):
        if (rows := decoded.get(str(table))) is not None:  # else not even its row could be made
            yield rows


def _decoded_packets(packets: pa.RecordBatch, options: CaptureOptions, table: Table) -> pa.RecordBatch:
    rows, run_ids = pa.Table.from_batches([packets]), pa.nulls(packets.num_rows, pa.string())
    decoded = decode_packets(rows, run_ids, options.decode_settings, {str(table): options.columns})
    return decoded[str(table)]
