"""Times of packets as one clock would have shown them, for their order: corrected where clocks are known to differ.

A capture whose clock was set back shows times again. The times in tables stay those of the captured packets. No Spark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.transfers.packet_numbers import NO_TIME
from udfs.array_types import Ints
from udfs.capture.clock_steps import ClockSteps

SET_BACK: Final = "set_back_us"
"""How far the clock of a packet's capture had been set back before it, in all, microseconds."""


def with_set_back(packets: pa.Table, steps: ClockSteps) -> pa.Table:
    """Return packets with the column ``SET_BACK``; ``packets`` has capture_id and packet_number."""
    if not steps:
        return packets.append_column(SET_BACK, pa.array(np.zeros(packets.num_rows, np.int64)))
    places = zip(packets["capture_id"].to_pylist(), packets["packet_number"].to_pylist(), strict=True)
    return packets.append_column(SET_BACK, pa.array([steps.before(*place).us for place in places], pa.int64()))


def ordered_times(table: pa.Table, side: Ints, sent_at: Ints) -> Ints:  # noqa: ARG001
    """Return the times of packets in microseconds, on one clock for each connection; ``NO_TIME`` stays."""
    if SET_BACK in table.column_names:
        back = np.asarray(table[SET_BACK].combine_chunks(), np.int64)
        sent_at = np.where(sent_at == NO_TIME, NO_TIME, sent_at + back)
    return sent_at
