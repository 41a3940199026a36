"""Arrow schema of ``bronze.rpc_calls`` as the reader writes it, and helpers that build Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.bronze import RPC_CALLS
from schemas.table import RUN_COLUMNS, TIMESTAMP
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NEVER_NS, NO_TIME

HALVES: Final = ("request", "response")
GIVEN_UP_COLUMNS: Final = ("cancelled_at", "orphaned_at")
"""Columns with the times when the client gave up a call."""
CALL_TIME_COLUMNS: Final = ("request_at", "request_done_at", "response_at", "response_done_at", *GIVEN_UP_COLUMNS)
"""All columns with times. ``event_date`` is the date of the first one that is known."""
NOT_SEEN, IN_PART, WHOLE = 0, 1, 2
"""How much of a half a sighting shows."""
SIGHTING_STRUCT: Final = RPC_CALLS.column("sightings").type.value_type
CLOCKS_STRUCT: Final = RPC_CALLS.column("clocks").type
RPC_CALLS_SCHEMA: Final = RPC_CALLS.schema(without=RUN_COLUMNS)
_ROWS_AT_A_TIME: Final = 4096
CALL_OUTCOMES: Final = ("no_request", "damaged", "no_response", "fault", "encrypted", "unbound", "ok")


def has_whole_half(row: Mapping[str, Any], half: str) -> bool:
    """Whether a row of ``rpc_calls`` has a request or response completely; a fault is a response without a stub."""
    return row[f"{half}_stub"] is not None or (half == "response" and row["fault_status"] is not None)


def rows_to_batch(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to a record batch. Times in the rows are in microseconds, dates in days, both since 1970.

    A few thousand are converted at a time: as Python objects they are much larger.
    """
    plain = {TIMESTAMP: pa.int64(), pa.date32(): pa.int32()}
    every, batches = iter(rows), []
    while some := list(islice(every, _ROWS_AT_A_TIME)):
        columns = [
            pa.array([row[column.name] for row in some], plain.get(column.type, column.type)).cast(column.type)
            for column in schema
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema)


def timestamp_column(values: Ints, valid: Bools) -> pa.Array:
    """Convert times in ns to a timestamp column in microseconds, rounded down; null where not valid or unknown."""
    good = valid & (values != NO_TIME) & (values != NEVER_NS)
    return pa.array(np.where(good, values // 1000, 0), pa.int64(), mask=~good).cast(TIMESTAMP)


def lookup_column(values: Iterable[str], index: npt.NDArray[Any]) -> pa.Array:
    """Return the text column ``values[index]``; null where the index is negative."""
    index = np.asarray(index, np.int64)
    return pa.array(list(values), pa.string()).take(pa.array(np.maximum(index, 0), mask=index < 0))
