"""Where captures end, by server: until then packets of the server were captured, and what waits there may wait longer.

Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.across_captures.clock_steps import earlier_ends, read_clock_steps
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from udfs.columns.arrays import one_array

CAPTURE_ENDS: Final = """
SELECT server, max(ends) AS ends, max(CASE WHEN packets_dropped > 0 THEN ends END) AS lossy
FROM (SELECT explode(servers) AS server, unix_micros(last_packet_at) AS ends, packets_dropped FROM {files})
WHERE ends IS NOT NULL GROUP BY server"""
"""SQL over ``bronze.capture_files``: by server the time of the newest packet of captures with packets of it.

``lossy``: of those that dropped packets.
"""


def read_capture_ends(lake: Lake) -> dict[str, int]:
    """Return by server address the time of the newest packet of captures with packets of it.

    That is earlier by what clocks may have left out as other captures show: by other clocks it may be.
    """
    return earlier_ends(lake, _newest_packets(lake, "ends"), read_clock_steps(lake).shown_by_taps())


def read_sure_capture_ends(lake: Lake) -> dict[str, int]:
    """Return the times of ``read_capture_ends``, earlier by what clocks left out: other clocks show at least these."""
    steps = read_clock_steps(lake)
    return earlier_ends(lake, _newest_packets(lake, "ends"), [*steps.skipped_alone(), *steps.shown_by_taps()])


def read_lossy_capture_ends(lake: Lake) -> dict[str, int]:
    """Return by server address the time of the newest packet of captures with packets of it that dropped packets."""
    return _newest_packets(lake, "lossy")


def _newest_packets(lake: Lake, column: str) -> dict[str, int]:
    rows = lake.query_shared(CAPTURE_ENDS, files=CAPTURE_FILES)
    pairs = zip(rows["server"].to_pylist(), rows[column].to_pylist(), strict=True)
    return {server: at for server, at in pairs if at is not None}


class ChangedEnds(NamedTuple):
    """The servers whose captures end ``later`` than before, or are new; and those where they end ``earlier``."""

    later: frozenset[str]
    earlier: frozenset[str]


def changed_ends(before: Mapping[str, int], now: Mapping[str, int]) -> ChangedEnds:
    """Compare the ends of captures by server."""
    later = frozenset(server for server, at in now.items() if at > before.get(server, at - 1))
    earlier = frozenset(server for server, at in before.items() if at > now.get(server, at - 1))
    return ChangedEnds(later, earlier)


def values_of_servers(addresses: pa.ChunkedArray, values: Mapping[str, int]) -> pa.Array:
    """Return what is known of each server address, of values by server; null for other servers."""
    place = pc.index_in(addresses, pa.array(values.keys(), pa.string()))
    return pa.array(values.values(), pa.int64()).take(one_array(place))
