"""Merge connections across captures: the remainders of each four-tuple together, in tasks where they are many."""

from __future__ import annotations

import pickle
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.bronze.across_captures.four_tuples import (
    FOUR_TUPLE,
    FOUR_TUPLE_SQL,
    by_four_tuple,
    four_tuples,
)
from pipeline.bronze.across_captures.merge_changes import MergeChanges, packet_dates
from pipeline.bronze.across_captures.merge_remainders import (
    IS_FRESH,
    MERGE_SUMMARY,
    PICKLED,
    REMAINDERS,
    REMOVED,
    RemainderMerge,
)
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery
from pipeline.lake.stage_groups import stage_groups
from schemas.bronze import PENDING
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.merge_candidates import CANDIDATE_COLUMNS, ended_reach_ns
from udfs.capture.remainders import KnownEnd
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.times import datetime_to_us

_NAMES: Final = ", ".join(BRONZE_SCHEMAS["pending"].names)
_REMAINDERS_SQL: Final = " UNION ALL ".join(
    f"SELECT {_NAMES}, {is_fresh} AS {IS_FRESH} FROM {{{name}}} WHERE {FOUR_TUPLE_SQL} IN {{flows}}"
    for name, is_fresh in (("stored", "FALSE"), ("fresh", "TRUE"))
)
_REMOVED_SQL: Final = f"SELECT {', '.join(CANDIDATE_COLUMNS)} FROM {{removed}} WHERE {FOUR_TUPLE_SQL} IN {{flows}}"
_ENDS: Final = " UNION ALL ".join(
    f"SELECT {side}_address AS address, {side}_port AS port, {columns}, {FOUR_TUPLE_SQL} AS {FOUR_TUPLE} "
    f"FROM {{{name}}} WHERE {FOUR_TUPLE_SQL} IN {{flows}}"
    for name in ("stored", "fresh")
    for side, columns in (
        ("server", "kind, learned_interfaces"),
        ("client", "CASE WHEN kind = 'rpc' THEN kind END, CASE WHEN FALSE THEN learned_interfaces END"),
    )
)
_KNOWN_ENDS_SQL: Final = f"""
WITH ends AS ({_ENDS}),
  of_several AS (SELECT address, port FROM ends GROUP BY address, port HAVING count(DISTINCT {FOUR_TUPLE}) > 1)
SELECT DISTINCT address, port, kind, learned_interfaces AS interfaces FROM ends JOIN of_several USING (address, port)
WHERE kind IN ('rpc', 'binary_protocol') OR size(learned_interfaces) > 0"""


def merge_pending(
    lake: Lake, folder: LakePath, fresh: pa.Table, stored: pa.Table, removed: pa.Table,
    limits: TimeLimits = DEFAULT_TIME_LIMITS, steps: ClockSteps = NO_STEPS,
) -> MergeChanges:  # fmt: skip
    """Merge the remainders of each four-tuple that has more than one, as far as they may be of one connection.

    ``fresh`` and ``stored`` are rows of ``bronze.pending``, of this run and of earlier ones, for the same four-tuples.
    ``removed`` are those of captures that were removed: their four-tuples are merged even if only one remainder is
    left. ``steps``: where the clocks of captures were set back. The merged rows are staged in a new ``folder``.
    """
    flows = _four_tuples_to_merge(fresh, stored, removed)
    changes = MergeChanges(folder if len(flows) else None, limits, steps)
    if len(flows):
        inputs = {"fresh": fresh, "stored": stored, "flows": flows}
        queries = {
            REMAINDERS: BoundQuery(_REMAINDERS_SQL, inputs),
            REMOVED: BoundQuery(_REMOVED_SQL, {"removed": removed, "flows": flows}),
        }
        ends = [KnownEnd(**row) for row in lake.query(_KNOWN_ENDS_SQL, **inputs).to_pylist()]
        by_bucket = {name: by_four_tuple(query) for name, query in queries.items()}
        found = stage_groups(lake, folder, by_bucket, RemainderMerge(limits, steps, ends).stage, MERGE_SUMMARY)
        changes.add(pickle.loads(each) for each in found[PICKLED].to_pylist())  # noqa: S301 - tasks of this run made them
    if removed.num_rows:  # calls that these captures saw too were taken out, also where merging gives the same again
        changes.replaced_call_keys = distinct_texts(changes.replaced_call_keys, changes.unchanged_call_keys)
        changes.unchanged_call_keys = NO_TEXTS
        # Their captures' rows are gone, but a row of bronze.connections names no capture.
        changes.previous_connection_ids = distinct_texts(changes.previous_connection_ids, removed["connection_id"])
        for row in removed.select(["first_packet_at", "last_packet_at"]).to_pylist():
            changes.dates.update(packet_dates(row))
        changes.affects_stored_rows = True
    return changes


def _four_tuples_to_merge(fresh: pa.Table, stored: pa.Table, removed: pa.Table) -> pa.Array:
    """Return the four-tuples that are to be looked at: all others have one remainder, or none of this run."""
    of_fresh, of_removed = four_tuples(fresh), four_tuples(removed)
    counts = pc.value_counts(pa.concat_arrays([of_fresh, four_tuples(stored)]))
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    return distinct_texts(several.filter(pc.is_in(several, of_fresh)), of_removed)


def read_stored_pending(lake: Lake, fresh: pa.Table, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> pa.Table:
    """Return the stored rows of ``bronze.pending`` that may be merged with ``fresh``: of the same four-tuples.

    Of connections that were seen to their end, those that are near in time, with all other rows of these connections.
    """
    schema = BRONZE_SCHEMAS["pending"]
    if not lake.exists(PENDING) or not fresh.num_rows:
        return schema.empty_table()
    flows, columns = distinct_texts(four_tuples(fresh)), schema.names
    times = pc.min(fresh["first_packet_at"]).as_py(), pc.max(fresh["last_packet_at"]).as_py()
    may_match = "true"
    if None not in times and not fresh["first_packet_at"].null_count:
        low, high = (datetime_to_us(time) for time in times)
        reach = ended_reach_ns(limits) // 1000
        may_match = (
            f"size(waits_for) > 0 OR first_packet_at IS NULL OR last_packet_at >= timestamp_micros({low - reach}) "
            f"AND first_packet_at <= timestamp_micros({high + reach})"
        )
    of_flows = f"{FOUR_TUPLE_SQL} IN {{flows}}"
    found = lake.select(PENDING, f"{of_flows} AND ({may_match})", columns, flows=flows)
    names = distinct_texts(found["connection_id"])
    if len(names) and may_match != "true":
        others = f"{of_flows} AND connection_id IN {{names}} AND NOT ({may_match})"
        found = pa.concat_tables([found, lake.select(PENDING, others, columns, flows=flows, names=names)])
    return found.cast(schema)
