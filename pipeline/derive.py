"""Silver and gold follow bronze: what the runs so far have not brought to a layer is brought there, once.

Silver takes the runs that it does not hold yet, all in one commit. Gold is recomputed when what it is made of changed;
its commit says of which versions it was made, so that a run killed between the layers leaves nothing behind for good.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import functions as F

from pipeline.gold import receive_attempts
from pipeline.lake import Lake
from pipeline.silver import remote_read_calls
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import RUN_ID


def silver(lake: Lake, *, keep_packets: bool, keep_stubs: bool) -> int:
    """Decode the calls of runs that silver does not hold; returns how many rows were added.

    Without ``keep_stubs`` bronze loses the stubs of these runs then (the setting store.stubs): they hold bodies.
    """
    runs = lake.read(CAPTURE_FILES).select(RUN_ID).distinct()
    if lake.exists(REMOTE_READ_CALLS):
        runs = runs.join(lake.read(REMOTE_READ_CALLS).select(RUN_ID).distinct(), RUN_ID, "left_anti")
    fresh = [row[0] for row in runs.collect()]
    if not fresh:
        return 0
    calls = lake.read(RPC_CALLS).where(F.col(RUN_ID).isin(fresh))
    lake.append(REMOTE_READ_CALLS, remote_read_calls(calls, keep_packets=keep_packets))
    rows = lake.rows_written(REMOTE_READ_CALLS)
    if not keep_stubs:
        lake.empty(RPC_CALLS, ("request_stub", "response_stub"), fresh)
    return rows


def gold(lake: Lake, *, cleanup: timedelta) -> int:
    """Recompute the attempts if what they rest on changed; returns how many rows were written."""
    made_of = lake.versions(REMOTE_READ_CALLS, CONNECTIONS, RPC_CALLS, CAPTURE_FILES) + f" cleanup={cleanup}"
    if lake.made_of(RECEIVE_ATTEMPTS) == made_of:
        return 0
    attempts = receive_attempts(
        lake.read(REMOTE_READ_CALLS),
        lake.read(CONNECTIONS),
        lake.read(RPC_CALLS),
        lake.read(CAPTURE_FILES),
        cleanup_s=cleanup.total_seconds(),
    )
    lake.replace(RECEIVE_ATTEMPTS, attempts, made_of=made_of)
    return lake.rows_written(RECEIVE_ATTEMPTS)
