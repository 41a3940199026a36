"""How sequences began, in rows of gold.transfer_sequences and in those of the sequences that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import RowsOfDates
from pipeline.lake.staging_files import Batches
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS
from pipeline.transfers.sequences.predecessors import find_predecessors, how_they_began
from pipeline.transfers.sequences.sequence_inputs import ID_SQL
from pipeline.transfers.sequences.sequence_rows import FLOW_COLUMNS, sequence_ids
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.arrays import from_ints, one_array, to_ints
from udfs.columns.codes import row_codes
from udfs.times import timedelta_to_us

_IS_ABANDONED: Final = "(waiting > 0 AND NOT array_contains(missing, 'no_response'))"
_PLACE: Final = (*FLOW_COLUMNS, *HOP_COLUMNS)
_FACTS: Final = f"""
SELECT sequence_key, {", ".join(_PLACE)}, CAST(transaction_sequence_id AS string) AS sequence_id,
  unix_micros(first_sent_at) AS first_sent_at, {_IS_ABANDONED} AS abandoned,
  CAST(previous_sequence_id AS string) AS previous, began
FROM {{rows}}"""
FACTS_SCHEMA: Final = pa.schema(
    [("sequence_key", pa.string()), *((name, pa.string()) for name in _PLACE), ("sequence_id", pa.string()),
     ("first_sent_at", pa.int64()), ("abandoned", pa.bool_()), ("previous", pa.string()), ("began", pa.string())]
)  # fmt: skip
"""What beginnings are found from, of rows of gold.transfer_sequences (``sequence_facts``)."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How sequences began, by the keys of rows that say otherwise, or do not say it yet."""

    keys: pa.Array
    previous: pa.Array  # sequence ids, as text
    began: pa.Array

    def set(self, rows: pa.Table) -> pa.Table:
        """Return rows of the table, those of these keys with how they began."""
        place = one_array(pc.index_in(rows["sequence_key"], self.keys))
        for name, values in (("previous_sequence_id", self.previous), ("began", self.began)):
            kind = rows.schema.field(name).type
            now = pc.if_else(place.is_valid(), values.take(place).cast(kind), one_array(rows[name]))
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), now)
        return rows

    def set_in(self, batches: Batches) -> Batches:
        """Yield batches of rows likewise."""
        for batch in batches:
            yield from self.set(pa.Table.from_batches([batch])).to_batches()

    def of_other_rows(self, lake: Lake, staged: pa.ChunkedArray) -> pa.Table:
        """Return the table's rows of these keys, but for those that were staged, with how they began."""
        others = self.keys.filter(pc.invert(pc.is_in(self.keys, staged)))
        return self.set(lake.select_by_values(TRANSFER_SEQUENCES, {*others.to_pylist()}))


def sequence_facts(rows: pa.Table) -> pa.Table:
    """Return what beginnings are found from: ``FACTS_SCHEMA``."""
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
    return pa.table(columns).cast(FACTS_SCHEMA)


def find_beginnings(facts: pa.Table, wait: timedelta) -> Beginnings:
    """Return how sequences began, where these are all there are. ``wait`` is transfers.wait."""
    return Beginnings(one_array(facts["sequence_key"]), *_beginnings(_of_hops(facts), wait))


def find_changed_beginnings(lake: Lake, now: pa.Table, before: pa.Table, wait: timedelta) -> Beginnings:
    """Return how sequences began, of recomputed ones and of others, where rows do not say so.

    Sequences of the same flow that begin later are compared with these: where one comes, goes, is of another flow, or
    is abandoned no more, the row of the one behind changes too. ``now`` and ``before`` are the facts of what was
    recomputed; those of now say of what was there before how that began.
    """
    now, before = _of_hops(now), _of_hops(before)
    moved = np.concatenate([_moved_times(now, before), _moved_times(before, now)])
    if not len(moved):
        return find_beginnings(now.slice(0, 0), wait)
    first, last = int(moved.min()), int(moved.max())
    wait_us = timedelta_to_us(wait)
    both = pa.concat_tables([now, before])
    facts = pa.concat_tables([now, _neighbours(lake, both, first - wait_us, last + wait_us)])
    previous, began = _beginnings(facts, wait)
    at = np.asarray(facts["first_sent_at"])
    judged = (at >= first) & (at <= last + wait_us)  # of all others the one before is as it was, or was not read
    chosen = pa.array(np.flatnonzero(judged & _differs(facts, previous, began)))
    return Beginnings(one_array(facts["sequence_key"]).take(chosen), previous.take(chosen), began.take(chosen))


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


def _moved_times(ours: pa.Table, theirs: pa.Table) -> Ints:
    """Return when sequences began that others do not have, or have with another time, hop, or being abandoned."""
    place = pc.index_in(ours["sequence_key"], one_array(theirs["sequence_key"]))
    same = [pc.equal(ours[name], theirs[name].take(place)) for name in ("first_sent_at", "abandoned", "hop_key")]
    unmoved = pc.fill_null(pc.and_(pc.and_(same[0], same[1]), same[2]), fill_value=False)
    return to_ints(ours["first_sent_at"].filter(pc.invert(unmoved)))


def _neighbours(lake: Lake, facts: pa.Table, since: int, until: int) -> pa.Table:
    """Return the facts of other sequences on the same hops of which a row began within a time: all their rows."""
    on_hops = f"""
{_FACTS} WHERE (hop_key IN {{hops}} OR (sender_address IN {{senders}} AND receiver_address IN {{receivers}}))"""
    columns = {"hops": "hop_key", "senders": "sender_address", "receivers": "receiver_address"}
    inputs: dict[str, Any] = {name: {*pc.unique(facts[column]).to_pylist()} for name, column in columns.items()}
    found = lake.query(on_hops, rows=RowsOfDates(TRANSFER_SEQUENCES, DateSpan.of_times(since, until)), **inputs)
    if found.num_rows:
        ids = pc.unique(found["sequence_id"])
        sql = f"{on_hops} AND {ID_SQL} IN {{ids}}"
        found = lake.query(sql, rows=TRANSFER_SEQUENCES, ids=ids, **inputs)
    others = pc.invert(pc.is_in(found["sequence_key"], one_array(facts["sequence_key"])))
    return _of_hops(found.filter(others).cast(FACTS_SCHEMA))


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
    return previous, pa.array(how_they_began(before, ids, abandoned).tolist(), pa.string())


def _differs(facts: pa.Table, previous: pa.Array, began: pa.Array) -> Bools:
    """Return which sequences began otherwise than their rows say."""
    same = pc.equal(pc.fill_null(facts["previous"], ""), pc.fill_null(previous, ""))
    return ~np.asarray(pc.and_(same, pc.equal(pc.fill_null(facts["began"], ""), began)))
