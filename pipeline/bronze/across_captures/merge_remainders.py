"""Merge the remainders of some four-tuples: what a task does of merging across captures.

``udfs.capture.connection_merge`` decides what the merged rows are. A *remainder* is a row of ``bronze.pending``: what
one capture saw of a connection and could not finish alone.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts, is_in
from pipeline.bronze.across_captures.four_tuples import FOUR_TUPLE
from pipeline.bronze.across_captures.merge_changes import (
    CALLS_OF_TAPS,
    CHANGES_STORED,
    CONNECTIONS_OF_TAPS,
    COVERAGE,
    JOINT_PACKETS,
    LABELS_SCHEMA,
    MEANINGS_SCHEMA,
    MOVES_SCHEMA,
    REBUILT_CALLS_SCHEMA,
    REBUILT_PACKETS_SCHEMA,
    TAPS,
    MergeChanges,
    packet_dates,
)
from pipeline.lake.queries.inputs import QueryAnswers
from pipeline.lake.staging_files import StagingWriter
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.clock_steps import ClockSteps
from udfs.capture.connection_merge import MergeResult, merge_connections
from udfs.capture.merge_candidates import CANDIDATE_COLUMNS, merge_candidates
from udfs.capture.open_connections import four_tuple_key
from udfs.capture.remainders import KnownEnd
from udfs.columns.tuples import tuples_to_table
from udfs.errors import describe_failure
from udfs.rows import RowDict
from udfs.tcp.time_limits import TimeLimits

PICKLED: Final = "pickled"
REMAINDERS, REMOVED, IS_FRESH = "remainders", "removed", "is_fresh"
MERGE_SUMMARY: Final = StructType().add(PICKLED, "binary")
FLOWS_PER_BATCH: Final = 2000  # four-tuples merged at a time, at most: their remainders are in memory
_Remainders = list[tuple[RowDict, bool]]  # with whether they are of this run
_Name = tuple[str, str]  # of a capture and of a connection as it alone saw it
_Failure = tuple[str, str]  # by key of a remainder: its capture, and why it cannot be merged
_SEEN_TWICE: Final = {
    "rpc_calls": (CALLS_OF_TAPS, "taps"),
    "connections": (CONNECTIONS_OF_TAPS, "taps"),
    "session_packets": (JOINT_PACKETS, "shared_sessions"),
}
"""Of tables whose rows of connections that several captures saw take another step: their kind, and which they are."""


@dataclass(frozen=True, slots=True)
class RemainderMerge:
    """The function of a group of four-tuples.

    ``steps``: where the clocks of captures were set back; ``ends``: what remainders of all groups show of them.
    """

    limits: TimeLimits
    steps: ClockSteps
    ends: Sequence[KnownEnd] = ()

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Merge the remainders of each four-tuple; stage the merged rows, and return ``MergeChanges``, pickled."""
        rows, schema = parts[REMAINDERS], BRONZE_SCHEMAS["pending"]
        pending, is_fresh = rows.select(schema.names).cast(schema), rows[IS_FRESH].to_pylist()
        to_merge = self._to_merge(pending, is_fresh, parts.select(REMOVED, CANDIDATE_COLUMNS).to_pylist())
        parts_of_changes, failures = list[MergeChanges](), dict[str, _Failure]()
        for begin in range(0, len(to_merge), FLOWS_PER_BATCH):
            flows = to_merge[begin : begin + FLOWS_PER_BATCH]
            found = iter(pending.take(list(chain.from_iterable(flows))).to_pylist())  # much larger than in Arrow
            batch = [[(next(found), is_fresh[place]) for place in places] for places in flows]
            for groups, merged in self._merged_groups(batch, failures):
                made = _Changes(groups, merged)
                made.stage(staging)
                parts_of_changes.append(made.changes())
        unmergeable = pa.array(failures.keys(), pa.string())
        changes = MergeChanges(unmergeable=unmergeable, failures=dict(failures.values()))
        changes.add(parts_of_changes)
        return pa.table({PICKLED: pa.array([pickle.dumps(changes)], pa.binary())})

    def _to_merge(self, pending: pa.Table, is_fresh: Sequence[bool], removed: Sequence[RowDict]) -> list[list[int]]:
        """Return the indexes of remainders to merge, by four-tuple.

        That is where more than one is left that may be of one connection, one of them of this run, and where any was
        removed.
        """
        removed_flows = set(map(four_tuple_key, removed))
        candidates = merge_candidates(pending.select(CANDIDATE_COLUMNS).to_pylist(), self.limits, removed)
        keys = pending["pending_key"].to_pylist()
        return [
            sorted(found, key=keys.__getitem__)
            for name, found in sorted(candidates.items())
            if found and (name in removed_flows or (len(found) > 1 and any(is_fresh[place] for place in found)))
        ]

    def _merge(self, groups: Sequence[_Remainders]) -> MergeResult:
        rows = [row for group in groups for row, _ in group]
        return merge_connections(rows, self.limits, self.steps, self.ends)

    def _merged_groups(
        self, batch: Sequence[_Remainders], failures: dict[str, _Failure]
    ) -> Iterator[tuple[Sequence[_Remainders], MergeResult]]:
        """Merge the remainders of each four-tuple of a batch; if that fails, find out at which captures."""
        try:
            yield batch, self._merge(batch)
        except Exception:  # noqa: BLE001 - it is the error of a capture: the others are merged
            for group in batch:
                if mergeable := self._mergeable_remainders(group, failures):
                    yield [mergeable], self._merge([mergeable])

    def _mergeable_remainders(self, group: _Remainders, failures: dict[str, _Failure]) -> _Remainders:
        """Return the remainders of a four-tuple that can be merged; note the others as failures."""
        mergeable: _Remainders = []
        for row, is_fresh in sorted(group, key=lambda each: each[1]):  # those of earlier runs could be merged then
            try:
                self._merge([[*mergeable, (row, is_fresh)]])
            except Exception as error:  # noqa: BLE001
                peers = f"{row['client_address']}:{row['client_port']} and {row['server_address']}:{row['server_port']}"
                failures[row["pending_key"]] = row["capture_id"], f"merging {peers}: {describe_failure(error)}"
            else:
                mergeable.append((row, is_fresh))
        return mergeable


class _Changes:
    """What the merge of some four-tuples changes."""

    def __init__(self, groups: Sequence[_Remainders], found: MergeResult) -> None:
        self._rows = [row for group in groups for row in group]
        self._single = {group[0][0]["pending_key"] for group in groups if len(group) == 1}
        self._found = found
        self._labels = _by_name(found.connection_labels)
        self._moves = _by_name(found.packet_moves)
        self._after = {row["pending_key"]: row for row in found.pending_changes.to_pylist()}
        self._meanings: dict[_Name, list[RowDict]] = defaultdict(list)
        for meaning in found.context_meanings.to_pylist():
            self._meanings[meaning["capture_id"], meaning["was_connection_id"]].append(meaning)
        self._updated = self._updated_remainders()

    def stage(self, staging: StagingWriter) -> None:
        """Stage the merged rows."""
        found = self._found
        for table, batch in found.tables.items():
            rows = batch
            if table in _SEEN_TWICE:
                kind, attribute = _SEEN_TWICE[table]
                is_apart = is_in(rows, "connection_id", getattr(found, attribute).keys())
                staging.add(kind, rows.filter(is_apart))
                rows = rows.filter(pc.invert(is_apart))
            staging.add(table, rows)
        staging.add_table("pending", pa.Table.from_pylist(self._updated, BRONZE_SCHEMAS["pending"]))
        four_tuples = {label["connection_id"]: four_tuple_key(label) for label in self._labels.values()}
        for kind, several in ((TAPS, found.taps), (COVERAGE, found.shared_sessions)):
            for name, each in several.items():
                rows = each.table(name)
                four_tuple = pa.repeat(pa.scalar(four_tuples[name], pa.string()), rows.num_rows)
                staging.add_table(kind, rows.append_column(FOUR_TUPLE, four_tuple))

    def changes(self) -> MergeChanges:
        """Return what else changes."""
        found, rows = self._found, [row for row, _ in self._rows]
        stored = [row for row, is_fresh in self._rows if not is_fresh]
        changes = MergeChanges(
            rebuilt_calls=_rebuilt(rows, "call_keys", REBUILT_CALLS_SCHEMA),
            rebuilt_packets=_rebuilt(rows, "packet_keys", REBUILT_PACKETS_SCHEMA),
            packet_counts=pa.Table.from_batches([found.packet_counts]),
            previous_connection_ids=_distinct(row["connection_id"] for row in rows),
            replaced_quarantine_keys=_distinct(key for row in rows for key in row["quarantine_keys"]),
            replaced_packet_keys=_distinct(key for row in stored for key in row["packet_keys"]),
            overlapping_connections=_distinct(found.taps),
            shared_sessions=_distinct(found.shared_sessions),
            updated_remainders=_distinct(row["pending_key"] for row in self._updated),
            dates={day for row in rows for day in packet_dates(row)},
            affects_stored_rows=bool(stored),
        )
        relabelled, moved = set[_Name](), set[_Name]()
        replaced_calls, unchanged_calls = list[str](), list[str]()
        for row in stored:
            name = row["capture_id"], row["connection_id"]
            label = self._labels.get(name)
            if label is None or not label["together"]:
                calls_made = self._after.get(row["pending_key"], {}).get("calls_made")
                is_unchanged = calls_made is not None and calls_made == row["calls_made"]
                (unchanged_calls if is_unchanged else replaced_calls).extend(row["call_keys"])
            if label is not None and _changes_finished_calls(row, label, self._meanings.get(name, ())):
                relabelled.add(name)
            if name in self._moves and _changes_packets(row, self._moves[name]):
                moved.add(name)
        changes.replaced_call_keys, changes.unchanged_call_keys = _distinct(replaced_calls), _distinct(unchanged_calls)
        meanings = chain.from_iterable(self._meanings.values())
        changes.labels = _with_flag(self._labels.values(), LABELS_SCHEMA, relabelled)
        changes.meanings = _with_flag([*meanings], MEANINGS_SCHEMA, relabelled)
        changes.moves = _with_flag(self._moves.values(), MOVES_SCHEMA, moved)
        return changes

    def _updated_remainders(self) -> list[RowDict]:
        """Return the remainders that are new or changed, as they are now."""
        updated = []
        for row, is_fresh in self._rows:
            now = {**row, **self._after.get(row["pending_key"], {})}
            if row["pending_key"] in self._single:
                now |= {"merge_digest": None, "calls_made": None}
            if row["pending_key"] in self._after and (is_fresh or now != row):
                updated.append(now)
        return updated


def _distinct(names: Iterable[str]) -> pa.Array:
    return distinct_texts(pa.array(names, pa.string()))


def _by_name(rows: pa.RecordBatch) -> dict[_Name, RowDict]:
    return {(row["capture_id"], row["was_connection_id"]): row for row in rows.to_pylist()}


def _rebuilt(rows: Sequence[RowDict], column: str, schema: pa.Schema) -> pa.Table:
    """Return four-tuple, capture and key of what was made of remainders."""
    found = dict.fromkeys((four_tuple_key(row), row["capture_id"], key) for row in rows for key in row[column])
    return tuples_to_table(found, schema)


def _with_flag(rows: Collection[RowDict], schema: pa.Schema, flagged: Collection[_Name]) -> pa.Table:
    """Return rows with the column ``CHANGES_STORED``: whether they are of one of some names."""
    found = [{**row, CHANGES_STORED: (row["capture_id"], row["was_connection_id"]) in flagged} for row in rows]
    return pa.Table.from_pylist(found, schema)


def _changes_finished_calls(row: RowDict, label: RowDict, contexts: Sequence[RowDict]) -> bool:
    """Whether merging changes calls that the capture finished alone; at a first merge it mostly does not."""
    if label["connection_id"] != row["connection_id"]:
        return True
    if row["merge_digest"] is not None:
        return bool(label["merge_digest"] != row["merge_digest"])
    return bool(contexts) or (label["handshake"] and "beginning" in row["waits_for"])


def _changes_packets(row: RowDict, move: Mapping[str, Any]) -> bool:
    """Whether merging changes packets that the capture cut alone: their connection, client or stream offsets."""
    ends = ("client_address", "client_port", "connection_id")
    return any(row[name] != move[name] for name in ends) or bool(move["client_shift"] or move["server_shift"])
