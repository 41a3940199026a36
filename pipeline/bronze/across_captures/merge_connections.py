"""Merge connections across captures in the tables: rows that one capture made alone give way to merged ones.

``udfs.capture.connection_merge`` decides what the merged rows are. This module applies its result to the Delta tables
and to the staging files of a run, for the four-tuples that the run's captures saw. ``udfs.capture.in_memory`` does the
same for rows in memory, in fewer lines.

A *remainder* is a row of ``bronze.pending``: what one capture saw of a connection and could not finish alone.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.arrow_rows import is_in
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery, RowsOfDates
from pipeline.lake.schema_enforcement import changed_keys, select_fields
from pipeline.lake.staging_files import Batches, BatchTransform
from schemas.bronze import PENDING, QUARANTINE, RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table
from udfs.capture import call_relabelling
from udfs.capture.call_sightings import merge_sightings, restore_single_capture_row
from udfs.capture.capture_reader import BRONZE_SCHEMAS, InterfaceEndpoint
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.clocks.tap_steps import CommonPackets
from udfs.capture.connection_merge import MergeResult, merge_connections
from udfs.capture.merge_candidates import CANDIDATE_COLUMNS, ended_reach_ns, merge_candidates
from udfs.capture.merged_remainders import CONNECTION_LABELS_SCHEMA, PRESENTATION_CONTEXTS_SCHEMA
from udfs.capture.open_connections import four_tuple_key
from udfs.capture.taps import ConnectionTaps
from udfs.errors import describe_failure
from udfs.rows import RowDict
from udfs.sessions.packet_sightings import (
    MOVED_COLUMNS,
    PACKET_MOVES_SCHEMA,
    PacketCoverage,
    merge_packet_sightings,
    move_packets,
)
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.times import datetime_to_us

Dates = set[dt.date | None]
_Remainders = list[tuple[RowDict, bool]]  # with whether they are of this run
_FOUR_TUPLE: Final = ["client_address", "client_port", "server_address", "server_port"]
_ONE, _TWO = (f"concat_ws('|', {side}_address, {side}_port)" for side in ("client", "server"))
_FLOW_SQL: Final = f"concat_ws(' ', least({_ONE}, {_TWO}), greatest({_ONE}, {_TWO}))"  # as ``four_tuple_key``
_FLOWS_PER_BATCH: Final = 2000  # four-tuples merged at a time, at most: their remainders are in memory
_DELETED: Final = "_deleted"
_PART: Final = "_part"  # of rows that are updated together: the first digits of their keys
_ROW: Final = "_row"  # number of a row
_CLOCK_COLUMNS: Final = (
    "capture_id", "response_capture_id", "request_packet", "response_packet", "request_at", "response_at", "sightings",
    "clocks",
)  # fmt: skip


@dataclass(slots=True)
class MergeChanges:
    """What merging changes in the tables and in the staging files of a run.

    Rows that leave, from both: those of connections under their ``previous_connection_ids``; calls made of remainders
    (``rebuilt_calls``: capture and key; ``replaced_call_keys``: keys of the stored ones that are not merged as
    overlapping); quarantined bytes made of remainders (``replaced_quarantine_keys``). ``batches`` are the rows in their
    place, by table. In a ring of files every edge cuts the calls of all open connections, and each new file rebuilds
    them: stored calls that come out equal (``unchanged_call_keys``) stay.

    Calls that a capture finished alone stay and are updated by ``connection_labels`` (their connection) and
    ``bind_contexts`` (what their contexts mean); ``relabeled`` are the (capture, previous connection) whose stored
    calls change by that. ``updated_remainders`` are the keys of those that are new or changed. ``count_corrections``,
    by capture, are to be added to its counts. ``overlapping_connections`` were seen by several captures at the same
    time: their calls are merged call by call, with what each tap shows of them. ``affects_stored_rows`` is whether
    the tables hold any of this, ``dates`` on which dates.

    Packets of the binary protocol likewise: ``rebuilt_packets`` (capture and key) were made of remainders,
    ``replaced_packet_keys`` are the keys of the stored ones. Those that a capture cut alone are moved to their
    connection by ``packet_moves``; ``moved`` are the (capture, previous connection) whose stored packets change by
    that. Of ``shared_sessions`` several captures have the same bytes: one row is left of each packet.

    ``steps``: where the clocks of captures were set. ``common`` gets the packets and calls that several captures have.

    ``failures``, by capture, say why merging it failed. Its calls stay as it shows them alone. ``unmergeable`` are the
    keys of the remainders: they leave ``bronze.pending``, so that merging with later captures does not fail again.
    """

    limits: TimeLimits = DEFAULT_TIME_LIMITS
    steps: ClockSteps = NO_STEPS
    batches: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    connection_labels: list[RowDict] = field(default_factory=list)
    bind_contexts: dict[tuple[str, str], list[RowDict]] = field(default_factory=lambda: defaultdict(list))
    relabeled: set[tuple[str, str]] = field(default_factory=set)
    previous_connection_ids: set[str] = field(default_factory=set)
    rebuilt_calls: set[tuple[str, str]] = field(default_factory=set)
    replaced_call_keys: set[str] = field(default_factory=set)
    unchanged_call_keys: set[str] = field(default_factory=set)
    replaced_quarantine_keys: set[str] = field(default_factory=set)
    overlapping_connections: dict[str, ConnectionTaps] = field(default_factory=dict)
    rebuilt_packets: set[tuple[str, str]] = field(default_factory=set)
    replaced_packet_keys: set[str] = field(default_factory=set)
    packet_moves: list[RowDict] = field(default_factory=list)
    moved: set[tuple[str, str]] = field(default_factory=set)
    shared_sessions: dict[str, PacketCoverage] = field(default_factory=dict)
    count_corrections: dict[str, list[RowDict]] = field(default_factory=lambda: defaultdict(list))
    common: CommonPackets = field(init=False)
    updated_remainders: set[str] = field(default_factory=set)
    dates: Dates = field(default_factory=set)
    affects_stored_rows: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    unmergeable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin with nothing in common."""
        self.common = CommonPackets(self.steps)

    def captures_to_reread(self) -> dict[str, set[str]]:
        """Return captures that hold more of MSMQ connections than was kept, with the endpoints of these connections."""
        found: dict[str, set[str]] = defaultdict(set)
        for label in self.connection_labels:
            for interface in label["again"] or ():
                endpoint = InterfaceEndpoint(label["server_address"], label["server_port"], interface)
                found[label["capture_id"]].add(endpoint.text)
        return found

    def __bool__(self) -> bool:
        """Whether any connection was merged."""
        return bool(self.previous_connection_ids)

    def new_rows(self, name: str) -> pa.Table:
        """Return the merged rows of a table."""
        return pa.Table.from_batches(self.batches.get(name, []), BRONZE_SCHEMAS[name])


def merge_pending(
    fresh: pa.Table, stored: pa.Table, removed: pa.Table, limits: TimeLimits = DEFAULT_TIME_LIMITS,
    steps: ClockSteps = NO_STEPS,
) -> MergeChanges:  # fmt: skip
    """Merge the remainders of each four-tuple that has more than one, as far as they may be of one connection.

    ``fresh`` and ``stored`` are rows of ``bronze.pending``, of this run and of earlier ones, for the same four-tuples.
    ``removed`` are those of captures that were removed: their four-tuples are merged even if only one remainder is
    left. ``steps``: where the clocks of captures were set back.
    """
    both = pa.concat_tables([stored, fresh])
    removed_flows = {*_four_tuple_keys(removed)}
    changes = MergeChanges(limits, steps)
    light, light_removed = (rows.select(CANDIDATE_COLUMNS).to_pylist() for rows in (both, removed))
    candidates = merge_candidates(light, limits, light_removed)
    to_merge = [
        found
        for name, found in sorted(candidates.items())
        if found and (name in removed_flows or (len(found) > 1 and max(found) >= stored.num_rows))
    ]
    for begin in range(0, len(to_merge), _FLOWS_PER_BATCH):
        flows = to_merge[begin : begin + _FLOWS_PER_BATCH]
        rows = iter(both.take(list(chain.from_iterable(flows))).to_pylist())  # much larger than in Arrow
        _merge_batch(changes, [[(next(rows), place >= stored.num_rows) for place in found] for found in flows])
    if removed.num_rows:  # calls that these captures saw too were taken out, also where merging gives the same again
        changes.replaced_call_keys |= changes.unchanged_call_keys
        changes.unchanged_call_keys.clear()
    for row in removed.to_pylist():  # its capture's rows are gone, but a row of bronze.connections names no capture
        changes.previous_connection_ids.add(row["connection_id"])
        changes.dates.update(packet_dates(row))
        changes.affects_stored_rows = True
    return changes


def _four_tuple_keys(pending: pa.Table) -> Iterator[str]:
    for batch in pending.select(_FOUR_TUPLE).to_batches():
        yield from map(four_tuple_key, batch.to_pylist())


def _merge_batch(changes: MergeChanges, batch: Sequence[_Remainders]) -> None:
    """Merge the remainders of each four-tuple of a batch; if that fails, find out at which captures."""

    def merge(groups: Sequence[_Remainders]) -> MergeResult:
        return merge_connections([row for group in groups for row, _ in group], changes.limits, changes.steps)

    merged: list[tuple[Sequence[_Remainders], MergeResult]]
    try:
        merged = [(batch, merge(batch))]
    except Exception:  # noqa: BLE001 - it is the error of a capture: the others are merged
        mergeable = [_mergeable_remainders(changes, group) for group in batch]
        merged = [([group], merge([group])) for group in mergeable if group]
    for groups, found in merged:
        single = {group[0][0]["pending_key"] for group in groups if len(group) == 1}
        _add_batch(changes, [row for group in groups for row in group], found, single)


def _mergeable_remainders(changes: MergeChanges, group: _Remainders) -> _Remainders:
    """Return the remainders of a four-tuple that can be merged; note the captures of the others as failures."""
    mergeable: _Remainders = []
    for row, is_fresh in sorted(group, key=lambda each: each[1]):  # those of earlier runs could be merged then
        try:
            merge_connections([*(each for each, _ in mergeable), row], changes.limits, changes.steps)
        except Exception as error:  # noqa: BLE001
            peers = f"{row['client_address']}:{row['client_port']} and {row['server_address']}:{row['server_port']}"
            changes.failures[row["capture_id"]] = f"merging {peers}: {describe_failure(error)}"
            changes.unmergeable.add(row["pending_key"])
        else:
            mergeable.append((row, is_fresh))
    return mergeable


def _add_batch(
    changes: MergeChanges, rows: list[tuple[RowDict, bool]], found: MergeResult, single: Collection[str]
) -> None:
    """Add a batch's merge to the changes; ``single`` are the keys of remainders that are alone of their four-tuple."""
    labels = {(label["capture_id"], label["was_connection_id"]): label for label in found.connection_labels.to_pylist()}
    after = {row["pending_key"]: row for row in found.pending_changes.to_pylist()}
    changes.connection_labels += labels.values()
    changes.overlapping_connections |= found.taps
    changes.shared_sessions |= found.shared_sessions
    moves = {(move["capture_id"], move["was_connection_id"]): move for move in found.packet_moves.to_pylist()}
    changes.packet_moves += moves.values()
    remainders: list[RowDict] = []
    for meaning in found.context_meanings.to_pylist():
        changes.bind_contexts[meaning["capture_id"], meaning["was_connection_id"]].append(meaning)
    for row, is_fresh in rows:
        name = row["capture_id"], row["connection_id"]
        changes.previous_connection_ids.add(row["connection_id"])
        changes.rebuilt_calls |= {(row["capture_id"], key) for key in row["call_keys"]}
        changes.rebuilt_packets |= {(row["capture_id"], key) for key in row["packet_keys"]}
        if not is_fresh:
            changes.replaced_packet_keys.update(row["packet_keys"])
            if name in moves and _changes_packets(row, moves[name]):
                changes.moved.add(name)
        changes.replaced_quarantine_keys.update(row["quarantine_keys"])
        changes.dates.update(packet_dates(row))
        changes.affects_stored_rows |= not is_fresh
        if not is_fresh and not (name in labels and labels[name]["together"]):
            calls_made = after.get(row["pending_key"], {}).get("calls_made")
            is_unchanged = calls_made is not None and calls_made == row["calls_made"]
            (changes.unchanged_call_keys if is_unchanged else changes.replaced_call_keys).update(row["call_keys"])
        contexts = changes.bind_contexts.get(name, ())
        if not is_fresh and name in labels and _changes_finished_calls(row, labels[name], contexts):
            changes.relabeled.add(name)
        now = {**row, **after.get(row["pending_key"], {})}
        if row["pending_key"] in single:
            now |= {"merge_digest": None, "calls_made": None}
        if row["pending_key"] in after and (is_fresh or now != row):
            remainders.append(now)
    changes.updated_remainders.update(row["pending_key"] for row in remainders)
    changes.batches["pending"] += pending_table(remainders).to_batches()
    for packets in found.packet_counts.to_pylist():
        changes.count_corrections[packets.pop("capture_id")].append(packets)
    for table, batch in found.tables.items():
        changes.batches[table].append(batch)


def _changes_finished_calls(row: RowDict, label: RowDict, contexts: Sequence[RowDict]) -> bool:
    """Whether merging changes calls that the capture finished alone; at a first merge it mostly does not."""
    if label["connection_id"] != row["connection_id"]:
        return True
    if row["merge_digest"] is not None:
        return bool(label["merge_digest"] != row["merge_digest"])
    return bool(contexts) or (label["handshake"] and "beginning" in row["waits_for"])


def _changes_packets(row: RowDict, move: RowDict) -> bool:
    """Whether merging changes packets that the capture cut alone: their connection, client or stream offsets."""
    ends = ("client_address", "client_port", "connection_id")
    return any(row[name] != move[name] for name in ends) or bool(move["client_shift"] or move["server_shift"])


def packet_dates(row: RowDict) -> Iterator[dt.date | None]:
    """Yield each date from a remainder's first packet to its last, and None, for rows of packets without a time."""
    first, last = row["first_packet_at"], row["last_packet_at"]
    yield None
    if first is None or last is None:
        return
    for number in range((last.date() - first.date()).days + 1):
        yield first.date() + dt.timedelta(days=number)


def relabel_stored_rows(lake: Lake, changes: MergeChanges) -> None:
    """Update stored calls, packets and quarantined bytes whose connection, or the meaning of whose context, changed."""
    moves = [move for move in changes.packet_moves if (move["capture_id"], move["was_connection_id"]) in changes.moved]
    if moves:
        batch = pa.RecordBatch.from_pylist(moves, PACKET_MOVES_SCHEMA)
        _update_stored_rows(
            lake, SESSION_PACKETS, changes.dates, {move["was_connection_id"] for move in moves},
            ("capture_id", *MOVED_COLUMNS), MOVED_COLUMNS, lambda rows: move_packets(rows, batch),
        )  # fmt: skip
    changed = [
        label
        for label in changes.connection_labels
        if (label["capture_id"], label["was_connection_id"]) in changes.relabeled
    ]
    if not changed:
        return
    labels = pa.RecordBatch.from_pylist(changed, CONNECTION_LABELS_SCHEMA)
    contexts = chain.from_iterable(changes.bind_contexts.get(name, ()) for name in sorted(changes.relabeled))
    meanings = pa.RecordBatch.from_pylist(list(contexts), PRESENTATION_CONTEXTS_SCHEMA)
    names = {label["was_connection_id"] for label in changed}
    renamed = {label["was_connection_id"] for label in changed if label["was_connection_id"] != label["connection_id"]}
    _update_stored_rows(
        lake, RPC_CALLS, changes.dates, names, call_relabelling.RELABEL_INPUT_COLUMNS,
        call_relabelling.RELABELLED_COLUMNS,
        lambda calls: call_relabelling.relabel_calls(calls, labels, meanings),
    )  # fmt: skip
    _update_stored_rows(
        lake, QUARANTINE, changes.dates, renamed, ("capture_id", "connection_id"), ("connection_id",),
        lambda rows: call_relabelling.relabel_connection_ids(rows, labels),
    )  # fmt: skip


def _update_stored_rows(
    lake: Lake, table: Table, dates: Dates, connections: Collection[str], input_columns: Sequence[str],
    updated_columns: Sequence[str], update: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:  # fmt: skip
    """Apply ``update`` to a table's rows of some connections; rows that it drops are deleted.

    ``update`` takes ``input_columns``, the connection among them, of which it may change ``updated_columns``. It looks
    at each row by itself: those of one connection may be many, and are shared by tasks.
    """
    _update_rows(lake, table, "connection_id IN {names}", connections, dates, input_columns, updated_columns, update)


def renumber_clocks(lake: Lake, captures: Collection[str], steps: ClockSteps) -> None:
    """Update the column ``clocks`` of stored calls of some captures: other places are known where clocks were set."""

    def update(calls: pa.RecordBatch) -> pa.RecordBatch:
        clocks = pa.array([steps.renumbered(row) for row in calls.to_pylist()], calls.schema.field("clocks").type)
        return calls.set_column(calls.schema.get_field_index("clocks"), calls.schema.field("clocks"), clocks)

    where = "capture_id IN {names} OR response_capture_id IN {names}"
    _update_rows(lake, RPC_CALLS, where, captures, None, _CLOCK_COLUMNS, ("clocks",), update)


def _update_rows(
    lake: Lake, table: Table, where: str, names: Collection[str], dates: Dates | None, input_columns: Sequence[str],
    updated_columns: Sequence[str], update: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:  # fmt: skip
    """Apply ``update`` to rows that meet a condition, which has ``names`` in braces; None: on any date."""
    if not names or not lake.exists(table):
        return
    (key,) = table.key
    columns = (key, *input_columns)
    stored = BoundQuery(
        f"SELECT {', '.join(columns)}, left({key}, 2) AS {_PART} FROM {{rows}} WHERE {where}",
        {"rows": RowsOfDates(table, dates), "names": names},
    )
    schema = StructType([table.struct()[name] for name in (key, *updated_columns)]).add(_DELETED, "boolean")

    def changes(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        rows = parts["rows"].select(columns).cast(select_fields(table.schema(), columns))
        found = [_row_changes(batch, update(batch), key, updated_columns) for batch in rows.to_batches()]
        yield from found or [to_arrow_schema(schema).empty_table()]

    with lake.map_groups(GroupedQuery({"rows": stored}, (_PART,), changes, schema)) as rows:
        changed = lake.collect(rows, schema) if isinstance(rows, PartitionedRows) else rows
        if not isinstance(changed, pa.Table) or changed.num_rows:
            lake.update_columns(table, changed, dates=dates, deleted=_DELETED)


def _row_changes(before: pa.RecordBatch, after: pa.RecordBatch, key: str, updated_columns: Sequence[str]) -> pa.Table:
    """Return key and updated columns of the rows that differ, and of those that are gone; ``_DELETED`` marks these."""
    old, new = (pa.Table.from_batches([rows]) for rows in (before, after))
    fresh, stale = changed_keys(new, old, key)
    parts = []
    for rows, keys, deleted in ((new, fresh, False), (old, stale.filter(pc.invert(pc.is_in(stale, fresh))), True)):
        found = rows.filter(is_in(rows, key, keys)).select([key, *updated_columns])
        parts.append(found.append_column(_DELETED, pa.repeat(deleted, found.num_rows)))
    return pa.concat_tables(parts)


def apply_connection_ids(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged rows of ``bronze.quarantine``: they get the ids of their merged connections.

    Rows made of remainders are dropped: merging made them again.
    """
    if not changes:
        return iter
    labels = pa.RecordBatch.from_pylist(changes.connection_labels, CONNECTION_LABELS_SCHEMA)
    exclude = exclude_rows("quarantine_key", changes.replaced_quarantine_keys)

    def with_connection_ids(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (call_relabelling.relabel_connection_ids(batch, labels) for batch in exclude(batches))

    return with_connection_ids


def apply_bind_context(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged calls: they get the ids of their merged connections and what their contexts mean.

    Calls made of remainders are dropped: merging made them again.
    """
    if not changes:
        return iter
    labels = pa.RecordBatch.from_pylist(changes.connection_labels, CONNECTION_LABELS_SCHEMA)
    contexts = chain.from_iterable(changes.bind_contexts.values())
    meanings = pa.RecordBatch.from_pylist(list(contexts), PRESENTATION_CONTEXTS_SCHEMA)
    schema = pa.schema({"capture_id": pa.string(), "call_key": pa.string()})
    rows = [dict(zip(schema.names, names, strict=True)) for names in sorted(changes.rebuilt_calls)]
    rebuilt = pa.RecordBatch.from_pylist(rows, schema)

    def with_bind_context(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield call_relabelling.relabel_calls(call_relabelling.drop_merged_calls(batch, rebuilt), labels, meanings)

    return with_bind_context


def apply_packet_moves(changes: MergeChanges) -> BatchTransform:
    """Return a transform for staged packets: they are moved to their merged connections.

    Packets made of remainders are dropped: merging made them again. So are those of shared sessions, which
    ``merge_shared_packets`` returns.
    """
    if not changes.packet_moves:
        return iter
    moves = pa.RecordBatch.from_pylist(changes.packet_moves, PACKET_MOVES_SCHEMA)
    exclude = exclude_rows("packet_key", {key for _, key in changes.rebuilt_packets})
    exclude_shared = exclude_rows("connection_id", _staged_ids_of_shared(changes))

    def moved(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (move_packets(batch, moves) for batch in exclude(exclude_shared(batches)))

    return moved


def _staged_ids_of_shared(changes: MergeChanges) -> set[str]:
    """Return the connections, as the captures alone saw them, that are parts of shared sessions."""
    return {
        move["was_connection_id"] for move in changes.packet_moves if move["connection_id"] in changes.shared_sessions
    }


def merge_shared_packets(
    lake: Lake, changes: MergeChanges, joint: pa.Table, staged: Batches
) -> tuple[pa.Table, set[str]]:
    """Merge the packets of sessions of which several captures have the same bytes: one row for each packet.

    ``joint``: rows that merging cut from the bytes of all captures; ``staged``: rows of this run's captures. Returns
    the rows, and the keys of the stored ones that they replace.
    """
    schema, moves = joint.schema, pa.RecordBatch.from_pylist(changes.packet_moves, PACKET_MOVES_SCHEMA)
    names, where = changes.shared_sessions, "connection_id IN {names}"
    stored = lake.select(SESSION_PACKETS, where, schema.names, changes.dates, names=names).cast(schema)
    ids = pa.array(sorted(_staged_ids_of_shared(changes)), pa.string())
    own = (batch.filter(pc.is_in(batch["connection_id"], ids)) for batch in staged)
    fresh = pa.Table.from_batches([move_packets(batch, moves) for batch in own], schema)
    every = pa.concat_tables([stored, fresh, joint])
    # Bytes stay in Arrow: as Python objects rows are much larger.
    rows = every.drop_columns(["packet"]).append_column(_ROW, pa.array(range(every.num_rows), pa.int64())).to_pylist()
    alone: dict[str, list[RowDict]] = defaultdict(list)
    together: dict[str, list[RowDict]] = defaultdict(list)
    for row in rows:
        (alone if row[_ROW] < stored.num_rows + fresh.num_rows else together)[row["connection_id"]].append(row)
    merged: list[RowDict] = []
    for name, coverage in sorted(changes.shared_sessions.items()):
        merged += merge_packet_sightings(alone[name], together[name], changes.rebuilt_packets, coverage)
    changes.common.add_packets(merged)
    packets = every["packet"].take(pa.array([row.pop(_ROW) for row in merged], pa.int64()))
    light = pa.Table.from_pylist(merged, schema.remove(schema.get_field_index("packet")))
    columns = [packets if name == "packet" else light[name] for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema), set(stored["packet_key"].to_pylist())


def merge_overlapping_calls(lake: Lake, changes: MergeChanges, rows: pa.Table) -> pa.Table:
    """Merge the calls of connections that several captures saw at the same time, and delete the stored rows.

    ``rows`` are their calls as merging gave them, one for each capture. Returns one row for each call.
    """
    where = f"connection_id IN {{names}} AND {dates_condition(changes.dates)}"
    names = changes.overlapping_connections
    stored = lake.select(RPC_CALLS, "connection_id IN {names}", rows.schema.names, changes.dates, names=names)
    earlier = stored.cast(rows.schema).to_pylist()
    fresh = rows.to_pylist()
    rebuilt = changes.rebuilt_calls | {(row["capture_id"], row["call_key"]) for row in fresh}
    kept = []
    for call in earlier:
        row = restore_single_capture_row(call, changes.steps)
        if row is not None and (call["sightings"] or (row["capture_id"], row["call_key"]) not in rebuilt):
            kept.append(row)
    taps = changes.overlapping_connections
    merge = partial(merge_sightings, taps=taps, limits=changes.limits, steps=changes.steps)
    try:
        merged = merge(kept, fresh)
    except Exception:  # noqa: BLE001 - it is the error of a capture: the others are merged
        merged = []
        for name in sorted(changes.overlapping_connections):
            stored, new = ([row for row in part if row["connection_id"] == name] for part in (kept, fresh))
            try:
                merged += merge(stored, new)
            except Exception as error:  # noqa: BLE001
                unmerged = [*new, *stored]
                merged += {row["call_key"]: row for row in unmerged}.values()  # each key once
                why = f"merging the calls of connection {name}: {describe_failure(error)}"
                changes.failures |= dict.fromkeys((row["capture_id"] for row in unmerged), why)
    changes.common.add_calls(merged)
    lake.delete(RPC_CALLS, where, names=changes.overlapping_connections)
    return pa.Table.from_pylist(merged, rows.schema)


def exclude_rows(column: str, keys: Collection[str]) -> BatchTransform:
    """Return a transform that drops the rows whose ``column`` has one of these values."""
    if not keys:
        return iter
    excluded = pa.array(sorted(keys), pa.string())

    def filtered(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (batch.filter(pc.invert(pc.is_in(batch[column], excluded))) for batch in batches)

    return filtered


def pending_table(rows: Sequence[RowDict]) -> pa.Table:
    """Return rows of ``bronze.pending`` as an Arrow table."""
    return pa.Table.from_pylist(list(rows), BRONZE_SCHEMAS["pending"])


def read_stored_pending(lake: Lake, fresh: pa.Table, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> pa.Table:
    """Return the stored rows of ``bronze.pending`` that may be merged with ``fresh``: of the same four-tuples.

    Of connections that were seen to their end, those that are near in time, with all other rows of these connections.
    """
    if not lake.exists(PENDING) or not fresh.num_rows:
        return pending_table([])
    flows, columns = set(_four_tuple_keys(fresh)), BRONZE_SCHEMAS["pending"].names
    times = pc.min(fresh["first_packet_at"]).as_py(), pc.max(fresh["last_packet_at"]).as_py()
    may_match = "true"
    if None not in times and not fresh["first_packet_at"].null_count:
        low, high = (datetime_to_us(time) for time in times)
        reach = ended_reach_ns(limits) // 1000
        may_match = (
            f"size(waits_for) > 0 OR first_packet_at IS NULL OR last_packet_at >= timestamp_micros({low - reach}) "
            f"AND first_packet_at <= timestamp_micros({high + reach})"
        )
    of_flows = f"{_FLOW_SQL} IN {{flows}}"
    found = lake.select(PENDING, f"{of_flows} AND ({may_match})", columns, flows=flows)
    names = set(found["connection_id"].to_pylist())
    if names and may_match != "true":
        others = f"{of_flows} AND connection_id IN {{names}} AND NOT ({may_match})"
        found = pa.concat_tables([found, lake.select(PENDING, others, columns, flows=flows, names=names)])
    return found.cast(BRONZE_SCHEMAS["pending"])
