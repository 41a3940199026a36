"""Merge the calls of connections that several captures saw at the same time: one row is left of each call.

The stored calls of a four-tuple and those that merging made of remainders are in one group, in tasks where they are
many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.bronze.across_captures.four_tuples import FOUR_TUPLE, by_four_tuple
from pipeline.bronze.across_captures.merge_changes import (
    CALLS_OF_TAPS,
    COMMON_PACKETS,
    CONNECTIONS_OF_TAPS,
    MERGED_CALLS,
    TAPS,
    MergeChanges,
)
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers, RowsOfDates
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staging_files import StagingWriter
from schemas.bronze import CONNECTIONS, RPC_CALLS
from udfs.capture.call_sightings import merge_sightings, restore_single_capture_row
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.clock_steps import ClockSteps
from udfs.capture.clocks.tap_steps import CommonPackets
from udfs.capture.taps import ConnectionTaps
from udfs.columns.tuples import iter_tuples
from udfs.errors import describe_failure
from udfs.rows import RowDict
from udfs.rpc.call_schema import RPC_CALLS_SCHEMA
from udfs.tcp.time_limits import TimeLimits

_STORED, _REBUILT = "stored", "rebuilt"
_FAILURES: Final = StructType().add("capture_id", "string").add("error", "string")
_CALLS_SQL: Final = f"SELECT {', '.join(RPC_CALLS_SCHEMA.names)} FROM {{rows}} WHERE connection_id IN {{names}}"


def stage_overlapping_calls(lake: Lake, changes: MergeChanges) -> None:
    """Stage the calls of overlapping connections, and these connections with their numbers of calls.

    The rows replace all stored calls of these connections. ``changes`` get the failures.
    """
    if changes.folder is None:
        return
    stored = {"rows": RowsOfDates(RPC_CALLS, changes.dates), "names": changes.overlapping_connections}
    queries = {
        _STORED: by_four_tuple(BoundQuery(_CALLS_SQL, stored)),
        CALLS_OF_TAPS: by_four_tuple(BoundQuery("SELECT * FROM {rows}", {"rows": changes.files(CALLS_OF_TAPS)})),
        CONNECTIONS_OF_TAPS: by_four_tuple(
            BoundQuery("SELECT * FROM {rows}", {"rows": changes.files(CONNECTIONS_OF_TAPS)})
        ),
        TAPS: by_four_tuple(BoundQuery("SELECT * FROM {rows}", {"rows": changes.files(TAPS)}), FOUR_TUPLE),
        _REBUILT: by_four_tuple(BoundQuery("SELECT * FROM {rows}", {"rows": changes.rebuilt_calls}), FOUR_TUPLE),
    }
    stage = _OverlappingCalls(changes.limits, changes.steps).stage
    failures = stage_groups(lake, changes.folder, queries, stage, _FAILURES, label="overlapping")
    changes.failures |= {row["capture_id"]: row["error"] for row in failures.to_pylist()}


@dataclass(frozen=True, slots=True)
class _OverlappingCalls:
    """The function of a group of four-tuples."""

    limits: TimeLimits
    steps: ClockSteps

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage one row for each call, the connections, and the packets in common; return the failures."""
        stored, fresh = (_rows(parts, name, RPC_CALLS.name) for name in (_STORED, CALLS_OF_TAPS))
        rebuilt = {*iter_tuples(parts[_REBUILT], ("capture_id", "call_key"))}
        rebuilt |= {(row["capture_id"], row["call_key"]) for row in fresh}
        kept = []
        for call in stored:
            row = restore_single_capture_row(call, self.steps)
            if row is not None and (call["sightings"] or (row["capture_id"], row["call_key"]) not in rebuilt):
                kept.append(row)
        taps = ConnectionTaps.from_table(parts[TAPS])
        failures: dict[str, str] = {}
        merged = self._merge(kept, fresh, taps, failures)
        common = CommonPackets(self.steps)
        common.add_calls(merged)
        staging.add_table(COMMON_PACKETS, common.table())
        staging.add_table(MERGED_CALLS, pa.Table.from_pylist(merged, RPC_CALLS_SCHEMA))
        counts = Counter(row["connection_id"] for row in merged)
        connections = _rows(parts, CONNECTIONS_OF_TAPS, CONNECTIONS.name)
        counted = [{**row, "calls": counts[row["connection_id"]]} for row in connections]
        staging.add_table(CONNECTIONS.name, pa.Table.from_pylist(counted, BRONZE_SCHEMAS[CONNECTIONS.name]))
        rows = [dict(zip(_FAILURES.names, each, strict=True)) for each in failures.items()]
        return pa.Table.from_pylist(rows, to_arrow_schema(_FAILURES))

    def _merge(
        self, kept: list[RowDict], fresh: list[RowDict], taps: Mapping[str, ConnectionTaps], failures: dict[str, str]
    ) -> list[RowDict]:
        """Merge calls; where that fails, connection by connection: those that fail stay as the captures show them."""
        try:
            return merge_sightings(kept, fresh, taps, self.limits, self.steps)
        except Exception:  # noqa: BLE001 - it is the error of a capture: the others are merged
            merged: list[RowDict] = []
            for name in sorted(taps):
                stored, new = ([row for row in part if row["connection_id"] == name] for part in (kept, fresh))
                try:
                    merged += merge_sightings(stored, new, taps, self.limits, self.steps)
                except Exception as error:  # noqa: BLE001
                    unmerged = [*new, *stored]
                    merged += {row["call_key"]: row for row in unmerged}.values()  # each key once
                    why = f"merging the calls of connection {name}: {describe_failure(error)}"
                    failures |= dict.fromkeys((row["capture_id"] for row in unmerged), why)
            return merged


def _rows(parts: QueryAnswers, name: str, table: str) -> list[RowDict]:
    schema = BRONZE_SCHEMAS[table]
    rows: list[RowDict] = parts[name].select(schema.names).cast(schema).to_pylist()
    return rows
