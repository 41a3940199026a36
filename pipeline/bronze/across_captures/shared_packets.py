"""Merge the packets of sessions of which several captures have the same bytes: one row is left of each packet.

The stored rows of a four-tuple, those of this run and those that merging cut from the bytes of all captures are in one
group, in tasks where they are many.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.bronze.across_captures.four_tuples import FOUR_TUPLE, by_four_tuple
from pipeline.bronze.across_captures.merge_changes import COMMON_PACKETS, COVERAGE, JOINT_PACKETS, MergeChanges
from pipeline.bronze.across_captures.staged_rows import staged_ids_of_shared
from pipeline.bronze.across_captures.stored_rows import one_batch
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers, RowsOfDates, RowsOfFiles
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staging_files import StagingWriter
from schemas.sessions import SESSION_PACKETS
from udfs.capture.clock_steps import ClockSteps
from udfs.capture.clocks.tap_steps import CommonPackets
from udfs.columns.tuples import iter_tuples
from udfs.rows import RowDict
from udfs.sessions.packet_rows import SESSION_PACKETS_SCHEMA
from udfs.sessions.packet_sightings import PACKET_MOVES_SCHEMA, PacketCoverage, merge_packet_sightings, move_packets

_ROW: Final = "_row"  # number of a row
_REPLACED: Final = StructType().add("packet_key", "string")
_STORED, _STAGED, _MOVES, _REBUILT = "stored", "staged", "moves", "rebuilt"
_PACKETS_SQL: Final = f"SELECT {', '.join(SESSION_PACKETS_SCHEMA.names)} FROM {{rows}} WHERE connection_id IN {{names}}"


def stage_shared_packets(lake: Lake, changes: MergeChanges, staged: RowsOfFiles) -> pa.Array:
    """Add the packets of shared sessions to the merged ones; return the keys of the stored rows that they replace.

    ``staged``: rows of this run's captures.
    """
    if changes.folder is None or not len(changes.shared_sessions):
        return NO_TEXTS
    stored = {"rows": RowsOfDates(SESSION_PACKETS, changes.dates), "names": changes.shared_sessions}
    packets = {
        _STORED: BoundQuery(_PACKETS_SQL, stored),
        _STAGED: BoundQuery(_PACKETS_SQL, {"rows": staged, "names": staged_ids_of_shared(changes)}),
        JOINT_PACKETS: BoundQuery("SELECT * FROM {rows}", {"rows": changes.files(JOINT_PACKETS)}),
        _MOVES: BoundQuery("SELECT * FROM {moves}", {"moves": changes.moves}),
    }
    known = {
        _REBUILT: BoundQuery("SELECT * FROM {rebuilt}", {"rebuilt": changes.rebuilt_packets}),
        COVERAGE: BoundQuery("SELECT * FROM {rows}", {"rows": changes.files(COVERAGE)}),
    }
    queries = {name: by_four_tuple(query) for name, query in packets.items()}
    queries |= {name: by_four_tuple(query, FOUR_TUPLE) for name, query in known.items()}
    found = stage_groups(lake, changes.folder, queries, _SharedPackets(changes.steps).stage, _REPLACED, label="shared")
    return distinct_texts(found["packet_key"])


@dataclass(frozen=True, slots=True)
class _SharedPackets:
    """The function of a group of four-tuples."""

    steps: ClockSteps

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage one row for each packet, and the packets in common; return the keys of the stored rows."""
        schema = SESSION_PACKETS_SCHEMA
        stored, staged, joint = (_cast(parts[name], schema) for name in (_STORED, _STAGED, JOINT_PACKETS))
        moves = one_batch(_cast(parts[_MOVES], PACKET_MOVES_SCHEMA))
        own = pa.Table.from_batches([move_packets(batch, moves) for batch in staged.to_batches()], schema)
        alone = pa.concat_tables([stored, own])
        every = pa.concat_tables([alone, joint])
        # Bytes stay in Arrow: as Python objects rows are much larger.
        numbers = pa.array(range(every.num_rows), pa.int64())
        rows = every.drop_columns(["packet"]).append_column(_ROW, numbers).to_pylist()
        of_captures, of_merge = (_by_connection(some) for some in (rows[: alone.num_rows], rows[alone.num_rows :]))
        rebuilt = {*iter_tuples(parts[_REBUILT], ("capture_id", "packet_key"))}
        merged: list[RowDict] = []
        for name, coverage in sorted(PacketCoverage.from_table(parts[COVERAGE]).items()):
            merged += merge_packet_sightings(of_captures[name], of_merge[name], rebuilt, coverage)
        common = CommonPackets(self.steps)
        common.add_packets(merged)
        staging.add_table(COMMON_PACKETS, common.table())
        packets = every["packet"].take(pa.array([row.pop(_ROW) for row in merged], pa.int64()))
        light = pa.Table.from_pylist(merged, schema.remove(schema.get_field_index("packet")))
        columns = [packets if name == "packet" else light[name] for name in schema.names]
        staging.add_table(SESSION_PACKETS.name, pa.Table.from_arrays(columns, schema=schema))
        return stored.select(["packet_key"])


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows.select(schema.names).cast(schema)


def _by_connection(rows: list[RowDict]) -> dict[str, list[RowDict]]:
    found: dict[str, list[RowDict]] = defaultdict(list)
    for row in rows:
        found[row["connection_id"]].append(row)
    return found
