"""Sets how sequences began in rows of gold.transfer_sequences, and in those of the sequences that follow them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in, times_to_us
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import RowsOfDates
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS
from pipeline.transfers.sequences.predecessors import find_predecessors, how_they_began
from pipeline.transfers.sequences.sequence_inputs import ID_SQL
from pipeline.transfers.sequences.sequence_rows import FLOW_COLUMNS, sequence_ids
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.array_types import Bools
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.arrays import from_ints
from udfs.columns.codes import row_codes
from udfs.times import timedelta_to_us

_IS_ABANDONED: Final = "(waiting > 0 AND NOT array_contains(missing, 'no_response'))"
_PLACE: Final = (*FLOW_COLUMNS, *HOP_COLUMNS)
_FACTS: Final = f"""
SELECT sequence_key, {", ".join(_PLACE)}, CAST(transaction_sequence_id AS string) AS sequence_id,
  unix_micros(first_sent_at) AS first_sent_at, {_IS_ABANDONED} AS abandoned,
  CAST(previous_sequence_id AS string) AS previous, began
FROM {{rows}}"""


def set_beginnings(rows: pa.Table, wait: timedelta) -> pa.Table:
    """Return rows with how each sequence began, where these are all there are. ``wait`` is transfers.wait."""
    return _with_beginnings(rows, *_beginnings(_facts(rows), wait)) if rows.num_rows else rows


def set_changed_beginnings(lake: Lake, new: pa.Table, current: pa.Table, wait: timedelta) -> tuple[pa.Table, pa.Table]:
    """Return recomputed and current rows of some sequences with how each began, and those of others that it changes.

    Sequences of the same flow that begin later are compared with these: where one comes, goes, is of another flow, or
    is abandoned no more, the row of the one behind changes too. ``current`` are the table's rows of what was
    recomputed.
    """
    before, now = _facts(current), _facts(new)
    moved = _moved_times(before, now)
    kept = pc.index_in(new["sequence_key"], current["sequence_key"].combine_chunks())
    new = _with_beginnings(new, current["previous_sequence_id"].take(kept), current["began"].take(kept))
    if not moved:
        return new, current
    first, last = min(moved), max(moved)
    wait_us = timedelta_to_us(wait)
    recomputed = {*new["sequence_key"].to_pylist(), *current["sequence_key"].to_pylist()}
    others = _neighbours(lake, pa.concat_tables([before, now]), first - wait_us, last + wait_us, recomputed)
    facts = pa.concat_tables([now, others])
    previous, began = _beginnings(facts, wait)
    at = np.asarray(facts["first_sent_at"])
    judged = (at >= first) & (at <= last + wait_us)  # of all others the one before is as it was, or was not read
    ours = judged[: now.num_rows]
    new = _with_beginnings(
        new,
        pc.if_else(pa.array(ours), previous.slice(0, now.num_rows), new["previous_sequence_id"].combine_chunks()),
        pc.if_else(pa.array(ours), began.slice(0, now.num_rows), new["began"].combine_chunks()),
    )
    previous, began = previous.slice(now.num_rows), began.slice(now.num_rows)
    differs = judged[now.num_rows :] & _differs(others, previous, began)
    if not differs.any():
        return new, current
    chosen = pa.array(np.flatnonzero(differs))
    keys = others["sequence_key"].take(chosen)
    rows = lake.select_by_values(TRANSFER_SEQUENCES, {*keys.to_pylist()})
    place = pc.index_in(rows["sequence_key"], keys.combine_chunks())
    changed = _with_beginnings(rows, previous.take(chosen).take(place), began.take(chosen).take(place))
    return pa.concat_tables([new, changed]), pa.concat_tables([current, rows])


def _facts(rows: pa.Table) -> pa.Table:
    """Return what beginnings are found from, as ``_FACTS`` reads it."""
    unseen = pa.array(["no_response" in codes for codes in rows["missing"].to_pylist()], pa.bool_())
    columns = {
        "sequence_key": rows["sequence_key"],
        **{name: rows[name] for name in _PLACE},
        "sequence_id": rows["transaction_sequence_id"].cast(pa.string()),
        "first_sent_at": times_to_us(rows["first_sent_at"]),
        "abandoned": pc.and_(pc.greater(rows["waiting"], 0), pc.invert(unseen)),
        "previous": rows["previous_sequence_id"].cast(pa.string()),
        "began": rows["began"],
    }
    return _of_hops(pa.table(columns))


def _of_hops(facts: pa.Table) -> pa.Table:
    """Return facts of all rows of some sequences: those of one hop, of several addresses, began and end together."""
    row = row_codes(facts.select((*FLOW_COLUMNS, "sequence_id")).columns)
    began = np.full(len(row), AFTER_ALL)
    np.minimum.at(began, row, np.asarray(facts["first_sent_at"]))
    abandoned = np.zeros(len(row), np.bool_)
    np.logical_or.at(abandoned, row, np.asarray(facts["abandoned"]))
    for name, values in (("first_sent_at", began), ("abandoned", abandoned)):
        facts = facts.set_column(facts.column_names.index(name), name, pa.array(values[row]))
    return facts


def _moved_times(before: pa.Table, now: pa.Table) -> list[int]:
    """Return when sequences began of which rows came, went, or differ in time or hop, or in being abandoned."""
    sides: list[dict[str, tuple[int, bool, str | None]]] = []
    for facts in (before, now):
        columns = (facts[name].to_pylist() for name in ("sequence_key", "first_sent_at", "abandoned", "hop_key"))
        sides.append({name: (at, *more) for name, at, *more in zip(*columns, strict=True)})
    changed = [name for name in sides[0].keys() | sides[1].keys() if sides[0].get(name) != sides[1].get(name)]
    return [side[name][0] for name in changed for side in sides if name in side]


def _neighbours(lake: Lake, facts: pa.Table, since: int, until: int, without: Collection[str]) -> pa.Table:
    """Return the facts of other sequences on the same hops of which a row began within a time: all their rows."""
    on_hops = f"""
{_FACTS} WHERE (hop_key IN {{hops}} OR (sender_address IN {{senders}} AND receiver_address IN {{receivers}}))"""
    columns = {"hops": "hop_key", "senders": "sender_address", "receivers": "receiver_address"}
    inputs: dict[str, Any] = {name: {*facts[column].to_pylist()} for name, column in columns.items()}
    found = lake.query(on_hops, rows=RowsOfDates(TRANSFER_SEQUENCES, DateSpan.of_times(since, until)), **inputs)
    if ids := {*found["sequence_id"].to_pylist()}:
        found = lake.query(f"{on_hops} AND {ID_SQL} IN {{ids}}", rows=TRANSFER_SEQUENCES, ids=ids, **inputs)
    found = found.cast(facts.schema)
    return _of_hops(found.filter(pc.invert(is_in(found, "sequence_key", without))))


def _beginnings(facts: pa.Table, wait: timedelta) -> tuple[pa.Array, pa.Array]:
    """Return previous_sequence_id and began of sequences, as far as the ones before are among them.

    Where handshakes do not show both ends of a sequence or of another one, they are of one hop if the addresses are.
    """
    ids = sequence_ids(facts["sequence_id"].combine_chunks())
    at, abandoned = np.asarray(facts["first_sent_at"]), np.asarray(facts["abandoned"])
    before, between_addresses = (
        find_predecessors(row_codes(facts.select((*FLOW_COLUMNS[:2], *hop)).columns), at, ids, timedelta_to_us(wait))
        for hop in (FLOW_COLUMNS[2:], HOP_COLUMNS[2:])
    )
    unknown = np.asarray(pc.or_(*(facts[name].is_null() for name in HOP_COLUMNS[:2])).combine_chunks())
    may_be_one = (between_addresses != NONE) & (unknown | unknown[between_addresses])
    later = (at[between_addresses] > at[before]) | (
        (at[between_addresses] == at[before]) & (ids[between_addresses] > ids[before])
    )
    before = np.where(may_be_one & ((before == NONE) | later), between_addresses, before)
    previous = facts["sequence_id"].combine_chunks().take(from_ints(before))
    return previous.cast(pa.decimal128(20, 0)), pa.array(how_they_began(before, ids, abandoned).tolist(), pa.string())


def _differs(facts: pa.Table, previous: pa.Array, began: pa.Array) -> Bools:
    """Return which sequences began otherwise than their rows say."""
    same = pc.equal(pc.fill_null(facts["previous"], ""), pc.fill_null(previous.cast(pa.string()), ""))
    return ~np.asarray(pc.and_(same, pc.equal(facts["began"], began)))


def _with_beginnings(rows: pa.Table, previous: pa.Array, began: pa.Array) -> pa.Table:
    for name, column in (("previous_sequence_id", previous), ("began", began)):
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows
