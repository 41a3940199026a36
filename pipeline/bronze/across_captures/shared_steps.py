"""Where clocks of captures were set, as packets that several captures have show it: found by pairs of captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.bronze.across_captures.merge_changes import COMMON_PACKETS, MergeChanges
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery, QueryAnswers
from udfs.capture.clock_steps import TapStep
from udfs.capture.clocks.tap_steps import CommonPackets

_PAIR: Final = ("capture_id", "other_capture_id")
_STEPS_SCHEMA: Final = pa.schema(
    [
        ("capture_id", pa.string()),
        ("other_capture_id", pa.string()),
        *((name, pa.int64()) for name in ("last_packet", "last_at", "first_packet", "first_at", "by_us")),
    ]
)


def find_shared_steps(lake: Lake, changes: MergeChanges) -> dict[str, list[TapStep]]:
    """Return the places by capture, as ``CommonPackets.steps`` does, when calls and packets are merged."""
    common = changes.files(COMMON_PACKETS)
    if not common.files:
        return {}
    rows = BoundQuery("SELECT * FROM {rows}", {"rows": common})
    steps = lake.map_few_groups(
        GroupedQuery({COMMON_PACKETS: rows}, _PAIR, _steps_of_pairs, from_arrow_schema(_STEPS_SCHEMA))
    )
    found: dict[str, list[TapStep]] = defaultdict(list)
    for row in steps.to_pylist():
        found[row.pop("capture_id")].append(TapStep(**row))
    return dict(found)


def _steps_of_pairs(parts: QueryAnswers) -> Iterator[pa.Table]:
    """Yield the places in both captures of each pair."""
    found = CommonPackets.from_table(parts[COMMON_PACKETS]).steps()
    rows = [{"capture_id": name, **step._asdict()} for name, steps in found.items() for step in steps]
    yield pa.Table.from_pylist(rows, _STEPS_SCHEMA)
