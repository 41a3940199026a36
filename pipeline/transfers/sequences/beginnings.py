"""How sequences began, in rows of gold.transfer_sequences and in those of the sequences that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, is_in, times_to_us
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import RowsOfDates
from pipeline.lake.schema_enforcement import alike
from pipeline.lake.staging_files import Batches
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS
from pipeline.transfers.sequences.predecessors import find_predecessors, how_they_began
from pipeline.transfers.sequences.sequence_inputs import ID_SQL
from pipeline.transfers.sequences.sequence_rows import FLOW_COLUMNS, sequence_ids
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.array_types import Bools
from udfs.columns.absent import AFTER_ALL, NONE
from udfs.columns.arrays import from_ints, one_array
from udfs.columns.codes import row_codes
from udfs.times import timedelta_to_us

_IS_ABANDONED: Final = "(waiting > 0 AND NOT array_contains(missing, 'no_response'))"
_PLACE: Final = (*FLOW_COLUMNS, *HOP_COLUMNS)
_ADDRESS_FLOW_COLUMNS: Final = (*FLOW_COLUMNS[:2], *HOP_COLUMNS[2:])
_OF_FLOWS: Final = """
coalesce(source_queue_manager, '') IN {sources} AND coalesce(destination_queue, '') IN {queues}"""
_FACTS: Final = f"""
SELECT sequence_key, {", ".join(_PLACE)}, {ID_SQL} AS sequence_id, unix_micros(first_sent_at) AS first_sent_at,
  {_IS_ABANDONED} AS abandoned, CAST(previous_sequence_id AS string) AS previous, began
FROM {{rows}} WHERE {_OF_FLOWS} AND sequence_key NOT IN {{recomputed}}
  AND {ID_SQL} IN (SELECT {ID_SQL} FROM {{near}} WHERE {_OF_FLOWS})"""
FACTS_SCHEMA: Final = pa.schema(
    [("sequence_key", pa.string()), *((name, pa.string()) for name in _PLACE), ("sequence_id", pa.string()),
     ("first_sent_at", pa.int64()), ("abandoned", pa.bool_()), ("previous", pa.string()), ("began", pa.string())]
)  # fmt: skip
"""What beginnings are found from, of rows of gold.transfer_sequences (``sequence_facts``)."""
_BEFORE: Final = "ORDER BY first_sent_at RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_BEHIND: Final = "ORDER BY first_sent_at RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"
_ON_HOP, _ON_ADDRESSES = (f"PARTITION BY {', '.join(each)}" for each in (FLOW_COLUMNS, _ADDRESS_FLOW_COLUMNS))
_NEAREST: Final = f"""
WITH whole AS (
  SELECT sequence_key, {", ".join(_PLACE)}, sequence_id, min(first_sent_at) OVER of_hop AS first_sent_at,
    bool_or(abandoned) OVER of_hop AS abandoned, previous, began, is_moved
  FROM (SELECT *, FALSE AS is_moved FROM ({_FACTS}) UNION ALL SELECT * FROM {{now}})
  WINDOW of_hop AS ({_ON_HOP}, sequence_id)
), events AS (
  SELECT *, first_sent_at AS began_at, CAST(NULL AS bigint) AS moved_at FROM whole
  UNION ALL SELECT *, TRUE AS is_moved, CAST(NULL AS bigint) AS began_at, first_sent_at AS moved_at FROM {{moved}}
), placed AS (
  SELECT *, max(began_at) OVER on_hop AS before_on_hop, max(moved_at) OVER on_hop AS moved_on_hop,
    max(began_at) OVER on_addresses AS before_on_addresses, max(moved_at) OVER on_addresses AS moved_on_addresses
  FROM events WINDOW on_hop AS ({_ON_HOP} {_BEFORE}), on_addresses AS ({_ON_ADDRESSES} {_BEFORE})
), judged AS (
  SELECT *, is_moved OR coalesce(
      moved_on_hop >= coalesce(before_on_hop, moved_on_hop) AND began_at - moved_on_hop <= {{wait}}, FALSE
    ) OR coalesce(
      moved_on_addresses >= coalesce(before_on_addresses, moved_on_addresses)
      AND began_at - moved_on_addresses <= {{wait}}, FALSE
    ) AS is_judged
  FROM placed WHERE began_at IS NOT NULL
), compared AS (
  SELECT *, min(CASE WHEN is_judged THEN before_on_hop END) OVER ({_ON_HOP} {_BEHIND}) AS last_on_hop,
    min(CASE WHEN is_judged THEN before_on_addresses END) OVER ({_ON_ADDRESSES} {_BEHIND}) AS last_on_addresses
  FROM judged
)
SELECT {", ".join(FACTS_SCHEMA.names)}, is_judged FROM compared
WHERE is_judged OR last_on_hop = began_at OR last_on_addresses = began_at"""
"""SQL over rows of gold.transfer_sequences and recomputed ones: which began next behind one that moved, on its hop or
between its addresses (``is_judged``), and the last before each of these.

``began_at``: when sequences began, ``moved_at``: when those that moved did; ``before_``: the latest before a sequence.
"""


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
        return self.set(lake.select_by_values(TRANSFER_SEQUENCES, others))


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

    ``now`` and ``before`` are the facts of what was recomputed; those of now say of what was there before how that
    began. How a sequence began depends on itself and on the one before it on its hop, and the one before it between its
    addresses. So where one comes, goes, is of another flow, begins at another time, or is abandoned no more, only the
    next ones behind it can have begun otherwise: they and the ones before them are read.
    """
    now, before = _of_hops(now), _of_hops(before)
    moved = pa.concat_tables([_moved(now, before), _moved(before, now)])
    if not moved.num_rows:
        return find_beginnings(moved, wait)
    facts = _nearest(lake, now, before, moved, timedelta_to_us(wait))
    previous, began = _beginnings(facts, wait)
    chosen = pa.array(np.flatnonzero(np.asarray(facts["is_judged"]) & _differs(facts, previous, began)))
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


def _moved(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """Return the facts of sequences that others do not have, or have with another time, hop, or being abandoned."""
    place = pc.index_in(ours["sequence_key"], one_array(theirs["sequence_key"]))
    unmoved = place.is_valid()
    for name in ("first_sent_at", "abandoned", *HOP_COLUMNS[:2], "hop_key"):
        unmoved = pc.and_(unmoved, alike(ours[name], theirs[name].take(place)))
    return ours.filter(pc.invert(unmoved))


def _nearest(lake: Lake, now: pa.Table, before: pa.Table, moved: pa.Table, wait_us: int) -> pa.Table:
    """Return the facts of sequences that may have begun otherwise (``is_judged``), and of the last ones before them."""
    bounds = pc.min_max(moved["first_sent_at"]).as_py()
    near = DateSpan.of_times(bounds["min"] - wait_us, bounds["max"] + wait_us)
    names = distinct_texts(moved["sequence_key"])
    flows = [distinct_texts(moved[name].fill_null("")) for name in FLOW_COLUMNS[:2]]
    marked = now.append_column("is_moved", is_in(now, "sequence_key", names))
    return lake.query(
        _NEAREST.replace("{wait}", str(wait_us)), rows=TRANSFER_SEQUENCES, near=RowsOfDates(TRANSFER_SEQUENCES, near),
        now=marked, moved=moved, recomputed=distinct_texts(now["sequence_key"], before["sequence_key"]),
        sources=flows[0], queues=flows[1],
    )  # fmt: skip


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
