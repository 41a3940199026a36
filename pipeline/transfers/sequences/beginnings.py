"""Sets how sequences began in rows of gold.transfer_sequences, and in those of the sequences that follow them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in, timedelta_to_us, times_to_us, us_to_datetime
from pipeline.lake.lake import Lake
from pipeline.transfers.sequences.predecessors import NO_PREDECESSOR, find_predecessors, how_they_began
from pipeline.transfers.sequences.sequence_inputs import days_since_sql
from pipeline.transfers.sequences.sequence_rows import FLOW_COLUMNS, sequence_ids
from pipeline.transfers.sequences.text_codes import row_codes
from schemas.table import EVENT_DATE
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.array_types import Bools

_IS_ABANDONED: Final = "(waiting > 0 AND NOT array_contains(missing, 'no_response'))"
_FACTS: Final = f"""
SELECT sequence_key, {", ".join(FLOW_COLUMNS)}, CAST(transaction_sequence_id AS string) AS sequence_id,
  unix_micros(first_sent_at) AS first_sent_at, {_IS_ABANDONED} AS abandoned,
  CAST(previous_sequence_id AS string) AS previous, began
FROM {{rows}}"""


def set_beginnings(rows: pa.Table, wait: timedelta) -> pa.Table:
    """Return rows with how each sequence began, where these are all there are. ``wait`` is transfers.wait."""
    return _with_beginnings(rows, *_beginnings(_facts(rows), wait)) if rows.num_rows else rows


def set_changed_beginnings(lake: Lake, new: pa.Table, current: pa.Table, wait: timedelta) -> tuple[pa.Table, pa.Table]:
    """Return recomputed and current rows of some sequences with how each began, and those of others that it changes.

    Sequences of the same flow that begin later are compared with these: where one comes, goes, or is abandoned no more,
    the row of the one behind changes too. ``current`` are the table's rows of what was recomputed.
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
        **{name: rows[name] for name in FLOW_COLUMNS},
        "sequence_id": rows["transaction_sequence_id"].cast(pa.string()),
        "first_sent_at": times_to_us(rows["first_sent_at"]),
        "abandoned": pc.and_(pc.greater(rows["waiting"], 0), pc.invert(unseen)),
        "previous": rows["previous_sequence_id"].cast(pa.string()),
        "began": rows["began"],
    }
    return pa.table(columns)


def _moved_times(before: pa.Table, now: pa.Table) -> list[int]:
    """Return when sequences began that came, went, begin at another time, or are abandoned otherwise than before."""
    sides: list[dict[str, tuple[int, bool]]] = []
    for facts in (before, now):
        columns = (facts[name].to_pylist() for name in ("sequence_key", "first_sent_at", "abandoned"))
        sides.append({name: (at, abandoned) for name, at, abandoned in zip(*columns, strict=True)})
    changed = [name for name in sides[0].keys() | sides[1].keys() if sides[0].get(name) != sides[1].get(name)]
    return [side[name][0] for name in changed for side in sides if name in side]


def _neighbours(lake: Lake, facts: pa.Table, since: int, until: int, without: Collection[str]) -> pa.Table:
    """Return the facts of other sequences on the same hops that began within a time."""
    ends = {name: {*facts[f"{name}_address"].to_pylist()} for name in ("sender", "receiver")}
    sql = f"""
{_FACTS} WHERE sender_address IN {{senders}} AND receiver_address IN {{receivers}} AND {days_since_sql(since)}
  AND {EVENT_DATE} <= DATE'{us_to_datetime(until).date()}'"""
    inputs: dict[str, Any] = {"senders": ends["sender"], "receivers": ends["receiver"]}
    found = lake.query(sql, rows=TRANSFER_SEQUENCES, **inputs).cast(facts.schema)
    return found.filter(pc.invert(is_in(found, "sequence_key", without)))


def _beginnings(facts: pa.Table, wait: timedelta) -> tuple[pa.Array, pa.Array]:
    """Return previous_sequence_id and began of sequences, as far as the ones before are among them."""
    ids = sequence_ids(facts["sequence_id"].combine_chunks())
    at, abandoned = np.asarray(facts["first_sent_at"]), np.asarray(facts["abandoned"])
    before = find_predecessors(row_codes(facts, FLOW_COLUMNS), at, ids, timedelta_to_us(wait))
    previous = facts["sequence_id"].combine_chunks().take(pa.array(before, mask=before == NO_PREDECESSOR))
    return previous.cast(pa.decimal128(20, 0)), pa.array(how_they_began(before, ids, abandoned).tolist(), pa.string())


def _differs(facts: pa.Table, previous: pa.Array, began: pa.Array) -> Bools:
    """Return which sequences began otherwise than their rows say."""
    same = pc.equal(pc.fill_null(facts["previous"], ""), pc.fill_null(previous.cast(pa.string()), ""))
    return ~np.asarray(pc.and_(same, pc.equal(facts["began"], began)))


def _with_beginnings(rows: pa.Table, previous: pa.Array, began: pa.Array) -> pa.Table:
    for name, column in (("previous_sequence_id", previous), ("began", began)):
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows
