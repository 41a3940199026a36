"""Benchmark of gold.transfer_sequences: silver tables of a million sendings, then a thousand more.

Run from the project's folder: ``python -m bench.sequences [sendings]``. A lake of its own for a few thousand sequences,
and one for a single sequence with all sendings. Measured is the update, with reading and the commit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.measure import Measure, format_report
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.transfers.sequences import update_sequences
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS
from schemas.table import Table

SENDINGS_COUNT = 1_000_000
MORE = 1_000
SEQUENCES = (3_000, 1)
_BEGIN_US = 1_700_000_000_000_000
_EVERY_US = 1_000
_ACK_EVERY = 7
_TIME = pa.timestamp("us", "UTC")


def fill(lake: Lake, first: int, count: int, sequences: int) -> None:
    """Append sendings, spread over sequences in turns, and an order ack after every seventh."""
    place = np.arange(first, first + count)
    at = _BEGIN_US + place * _EVERY_US
    sequence, number = place % sequences, place // sequences + 1
    keys = [f"{each:032x}" for each in place.tolist()]
    ids = pa.array((7 << 32) + 1 + sequence).cast(pa.decimal128(20, 0))
    texts = [f"{each % 20:032x}" for each in sequence.tolist()]
    common = {"packet_key": keys, "connection_id": texts, "event_at": at}
    message = {
        "sighting_key": keys, "seen_in": "binary_protocol", "seen_at": timestamps(at), "source_queue_manager": "source",
        "destination_queue": r"srv\q", "transaction_sequence_id": ids, "transaction_number": number,
        "previous_transaction_number": number - 1,
    }  # fmt: skip
    sending = {
        "stream_offset": place * 500, "sent_at": timestamps(at), "server_address": "10.0.0.2", "sent_by": "client",
        "sender_address": "10.0.0.1", "receiver_address": "10.0.0.2", "sender_queue_manager": "source",
        "receiver_queue_manager": "target", "length_bytes": np.full(count, 500), "complete": np.ones(count, np.bool_),
        "session_acked_at": timestamps(at + 100), "surely_acknowledged": np.zeros(count, np.bool_),
    }  # fmt: skip
    acked = np.flatnonzero(number % _ACK_EVERY == 0)
    ack = {
        "packet_key": [f"{each:032x}" for each in (place[acked] + (1 << 40)).tolist()], "kind": "order_ack",
        "sent_by": "server", "client_address": "10.0.0.1", "server_address": "10.0.0.2",
        "sent_at": timestamps(at[acked] + 500), "queue_manager": "target", "acknowledged_queue_manager": "source",
        "transaction_sequence_id": ids.take(pa.array(acked)), "transaction_number": number[acked],
        "event_at": at[acked],
    }  # fmt: skip
    capture = {"capture_id": [str(first)], "servers": [["10.0.0.2"]], "last_packet_at": timestamps(at[-1:])}
    for table, columns in (
        (MESSAGES, {**common, **message}), (SENDINGS, {**common, **sending}), (ORDER_ACKS, ack),
        (CAPTURE_FILES, {**capture, "event_at": at[-1:]}),
    ):  # fmt: skip
        lake.append(table, table_of(table, columns))


def timestamps(at: np.ndarray) -> pa.Array:
    """Return microseconds as timestamps."""
    return pa.array(at).cast(pa.timestamp("us")).cast(_TIME)


def table_of(table: Table, columns: dict[str, Any]) -> pa.Table:
    """Return columns as rows of a declared table, its other columns null; a text alone is in all rows."""
    rows = len(columns["event_at"])
    days = pa.array((columns["event_at"] // 86_400_000_000).astype(np.int32)).cast(pa.date32())
    given = {**columns, "event_date": days, "run_id": "run"}
    arrays = []
    for each in table.schema():
        value = given.get(each.name)
        if value is None:
            arrays.append(pa.nulls(rows, each.type))
        else:
            column = pa.repeat(pa.scalar(value), rows) if isinstance(value, str) else value
            arrays.append(column.cast(each.type) if isinstance(column, pa.Array) else pa.array(column, each.type))
    return pa.Table.from_arrays(arrays, schema=table.schema())


def no_spark() -> SparkSession:
    """Stand in for a session: nothing here needs one."""
    raise AssertionError("Spark is not needed")


def _timed_update(lake: Lake) -> float:
    begin = time.perf_counter()
    update_sequences.update(lake, "run")
    return time.perf_counter() - begin


def measure(rows: int = SENDINGS_COUNT) -> Iterator[Measure]:
    """Measure the first update, and one after ``MORE`` more sendings."""
    for sequences in SEQUENCES:
        with tempfile.TemporaryDirectory() as folder:
            lake = Lake(LazySession(no_spark, engine="local"), folder)
            fill(lake, 0, rows, sequences)
            name = f"{rows:,} sendings, {sequences:,} sequences"
            yield Measure(name, _timed_update(lake), "s", 60, 20, higher_is_better=False)
            fill(lake, rows, MORE, sequences)
            yield Measure(f"  {MORE:,} more", _timed_update(lake), "s", 10, 5, higher_is_better=False)


def main(arguments: Sequence[str]) -> None:
    """Print the measures."""
    print(format_report([*measure(int(arguments[0]) if arguments else SENDINGS_COUNT)]))


if __name__ == "__main__":
    main(sys.argv[1:])
