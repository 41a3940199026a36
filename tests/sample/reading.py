"""Read the captures of the sample without Spark."""

from pathlib import Path

import pyarrow as pa

from pipeline.silver.decode import CALL_INPUT_COLUMNS, DecodeSettings, decode_calls
from udfs.capture.capture_reader import read_capture

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def silver_of(name, **settings):
    """The tables of silver that a capture gives, each an Arrow batch; ``settings`` are those of ``DecodeSettings``."""
    calls = read_capture(SAMPLE / name)["rpc_calls"].combine_chunks()
    for column in set(CALL_INPUT_COLUMNS) - set(calls.column_names):
        calls = calls.append_column(column, pa.nulls(len(calls), pa.string()))
    (batch,) = calls.select(CALL_INPUT_COLUMNS).to_batches()
    return decode_calls(batch, DecodeSettings(**settings))
