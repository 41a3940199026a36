"""Joining in the lake: what captures could not finish alone goes in the place of what each made of it.

``udfs.capture.merge`` decides; here its answer is carried out on the Delta tables, for the connections that a run's
captures touch and for nothing else. ``udfs.capture.in_memory`` does the same in memory, and says it in fewer lines.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from pipeline.lake.arrow_rows import one_of
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import differing
from pipeline.lake.staging_files import Batches, Through
from schemas.bronze import PENDING, QUARANTINE, RPC_CALLS
from schemas.table import Table
from udfs.capture import relabel as capture_relabel
from udfs.capture.duplicate_calls import merged, restored
from udfs.capture.merge import LABELS_SCHEMA, MEANINGS_SCHEMA, Joined, join
from udfs.capture.open_connections import flow
from udfs.capture.reader import SCHEMAS, Place

Row = dict[str, Any]
Dates = set[dt.date | None]
_ONE, _TWO = (f"concat_ws('|', {side}_address, {side}_port)" for side in ("client", "server"))
_FLOW: Final = f"concat_ws(' ', least({_ONE}, {_TWO}), greatest({_ONE}, {_TWO}))"  # as ``flow`` names a four-tuple
_AT_ONCE: Final = 2000  # four-tuples joined together: their remainders are in memory
_MOST_HERE: Final = 20_000  # rows that learn something in this process: whole rows of theirs are in memory
_GOES: Final = "_goes"
_MET: Final = "_met_"  # before the columns of what a MERGE meets a table with


@dataclass(slots=True)
class Changes:
    """What joining changes.

    Connections that were joined, by the names they had (``was``): what side files and tables hold of them goes, with
    the rows of ``tables`` in their place; so do calls (``remade``: capture and key; ``call_keys``: of those that the
    tables hold and that are not merged) and stray bytes (``quarantine_keys``) that were made from remainders. In a ring
    of files each edge cuts calls of all connections that are open there, and joining makes them anew with each file
    that comes: those that come to the same (``unchanged``) stay in the tables. ``labels`` and ``meanings`` say what
    finished calls learn: those in the tables only where it is news (``news``: capture and name before). ``pending`` are
    the remainders in their new state, of this run and those that changed. ``packets``: by capture, what is to be added
    to its counts. ``together`` are connections that captures saw at the same time: their calls are merged as a whole.
    ``earlier`` tells whether the tables hold anything of all this, ``dates`` where.
    """

    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    labels: list[Row] = field(default_factory=list)
    meanings: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))
    news: set[tuple[str, str]] = field(default_factory=set)
    was: set[str] = field(default_factory=set)
    remade: set[tuple[str, str]] = field(default_factory=set)
    call_keys: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    quarantine_keys: set[str] = field(default_factory=set)
    together: set[str] = field(default_factory=set)
    packets: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    pending: list[Row] = field(default_factory=list)
    dates: Dates = field(default_factory=set)
    earlier: bool = False

    def again(self) -> dict[str, set[str]]:
        """Return captures that hold more of connections of ours than was kept, with the places of these."""
        found: dict[str, set[str]] = defaultdict(set)
        for label in self.labels:
            for interface in label["again"] or ():
                found[label["capture_id"]].add(Place(label["server_address"], label["server_port"], interface).text)
        return found

    def __bool__(self) -> bool:
        """Whether anything was joined."""
        return bool(self.was)

    def rows(self, name: str) -> pa.Table:
        """Return the new rows of a table."""
        if name == "pending":
            return pending_table(self.pending)
        return pa.Table.from_batches(self.tables.get(name, []), SCHEMAS[name])


def joined(fresh: pa.Table, earlier: pa.Table, out: pa.Table, *, window_s: float) -> Changes:
    """Join the remainders of four-tuples that more than one capture saw.

    ``fresh`` and ``earlier`` are rows of ``bronze.pending``, of this run and of those before, of the same four-tuples;
    ``out`` are those that were taken out: their four-tuples are joined even if one remainder is left.
    """
    groups: dict[str, list[tuple[Row, bool]]] = defaultdict(list)
    for table, is_fresh in ((earlier, False), (fresh, True)):
        for row in table.to_pylist():
            groups[flow(row)].append((row, is_fresh))
    gone = out.to_pylist()
    left = {flow(row) for row in gone}
    changes = Changes()
    several = [rows for name, rows in sorted(groups.items()) if len(rows) > 1 or name in left]
    for begin in range(0, len(several), _AT_ONCE):
        some = several[begin : begin + _AT_ONCE]
        rows = [row for group in some for row in group]
        alone = {group[0][0]["pending_key"] for group in some if len(group) == 1}
        _add(changes, rows, join([row for row, _ in rows], window_s=window_s), alone)
    for row in gone:  # what was made of it went with its capture's rows; not its connection, which names none
        changes.was.add(row["connection_id"])
        changes.dates.update(days(row))
        changes.earlier = True
    return changes


def _add(changes: Changes, rows: list[tuple[Row, bool]], found: Joined, alone: Collection[str]) -> None:
    """Add what joining found of rows; ``alone``: keys of those joined with no other, which are told nothing."""
    labels = {(label["capture_id"], label["was_connection_id"]): label for label in found.labels.to_pylist()}
    after = {row["pending_key"]: row for row in found.pending.to_pylist()}
    changes.labels += labels.values()
    changes.together |= {label["connection_id"] for label in labels.values() if label["together"]}
    for meaning in found.meanings.to_pylist():
        changes.meanings[meaning["capture_id"], meaning["was_connection_id"]].append(meaning)
    for row, is_fresh in rows:
        name = row["capture_id"], row["connection_id"]
        changes.was.add(row["connection_id"])
        changes.remade |= {(row["capture_id"], key) for key in row["call_keys"]}
        changes.quarantine_keys.update(row["quarantine_keys"])
        changes.dates.update(days(row))
        changes.earlier |= not is_fresh
        if not is_fresh and not (name in labels and labels[name]["together"]):
            made = after.get(row["pending_key"], {}).get("calls_made")
            same = made is not None and made == row["calls_made"]
            (changes.unchanged if same else changes.call_keys).update(row["call_keys"])
        if not is_fresh and name in labels and _is_news(row, labels[name], changes.meanings.get(name, ())):
            changes.news.add(name)
        now = {**row, **after.get(row["pending_key"], {})}
        if row["pending_key"] in alone:
            now |= {"told": None, "calls_made": None}
        if row["pending_key"] in after and (is_fresh or now != row):
            changes.pending.append(now)
    for packets in found.packets.to_pylist():
        changes.packets[packets.pop("capture_id")].append(packets)
    for table, batch in found.tables.items():
        changes.tables[table].append(batch)


def _is_news(row: Row, label: Row, contexts: Sequence[Row]) -> bool:
    """Whether finished calls of a remainder learn anything: of a first joining, most learn nothing."""
    if label["connection_id"] != row["connection_id"]:
        return True
    if row["told"] is not None:
        return bool(label["told"] != row["told"])
    return bool(contexts) or (label["handshake"] and "beginning" in row["waits_for"])


def days(row: Row) -> Iterator[dt.date | None]:
    """Yield the dates of a remainder's packets, the first to the last; None, for rows without, where none is known."""
    first, last = row["first_packet_at"], row["since"]
    if first is None or last is None:
        yield None
        return
    for number in range((last.date() - first.date()).days + 1):
        yield first.date() + dt.timedelta(days=number)


def relabel(lake: Lake, changes: Changes) -> None:
    """Tell finished calls and stray bytes in the tables what is new of their connections; most often, nothing is."""
    news = [label for label in changes.labels if (label["capture_id"], label["was_connection_id"]) in changes.news]
    if not news:
        return
    labels = pa.RecordBatch.from_pylist(news, LABELS_SCHEMA)
    of_news = chain.from_iterable(changes.meanings.get(name, ()) for name in sorted(changes.news))
    meanings = pa.RecordBatch.from_pylist(list(of_news), MEANINGS_SCHEMA)
    names = {label["was_connection_id"] for label in news}
    renamed = {label["was_connection_id"] for label in news if label["was_connection_id"] != label["connection_id"]}
    _teach(
        lake, RPC_CALLS, changes.dates, names, capture_relabel.LOOKED_AT, capture_relabel.LEARNT,
        lambda calls: capture_relabel.labelled(calls, labels, meanings),
    )  # fmt: skip
    _teach(
        lake, QUARANTINE, changes.dates, renamed, ("capture_id", "connection_id"), ("connection_id",),
        lambda rows: capture_relabel.renamed(rows, labels),
    )  # fmt: skip


def _teach(
    lake: Lake, table: Table, dates: Dates, names: Collection[str], looked_at: Sequence[str], learnt: Sequence[str],
    taught: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:  # fmt: skip
    """Have a table's rows of some connections learn what they are ``taught``, by the columns that are ``looked_at``.

    Of these ``learnt`` may change; rows that taught ones lack go. A few change here, many by a MERGE.
    """
    if not names or not lake.exists(table):
        return
    (key,) = table.key
    columns, where = (key, *looked_at), f"connection_id IN {{names}} AND {on_dates(dates)}"
    if lake.is_here:
        there = lake.select(table, where, columns, names=names)
        if not there.num_rows:
            return
        news = pa.concat_tables([_news(batch, taught(batch), key, learnt) for batch in there.to_batches()])
        if news.num_rows <= _MOST_HERE:
            goes = news[_GOES].combine_chunks()
            lake.remove(table, key, set(news[key].filter(goes).to_pylist()), dates=dates)
            lake.fill(table, news.filter(pc.invert(goes)).drop_columns(_GOES), dates=dates)
            return

    def told(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _news(batch, taught(batch), key, learnt).rename_columns(met.names).to_batches()

    met = StructType([StructField(_MET + name, table.struct()[name].dataType) for name in (key, *learnt)])
    met = met.add(_MET + _GOES, "boolean")
    source = lake.frame(f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {where}", rows=table, names=names)
    lake.merge_into(
        table, source.mapInArrow(told, met), f"{key} = {_MET}{key} AND {on_dates(dates)}",
        update={name: _MET + name for name in learnt}, delete=_MET + _GOES,
    )  # fmt: skip


def _news(there: pa.RecordBatch, now: pa.RecordBatch, key: str, learnt: Sequence[str]) -> pa.Table:
    """Return what rows say now that they did not say, and those that are no more (``_goes``)."""
    before, after = (pa.Table.from_batches([rows]) for rows in (there, now))
    fresh, stale = differing(after, before, key)
    parts = []
    for rows, keys, goes in ((after, fresh, False), (before, stale - fresh, True)):
        found = rows.filter(one_of(rows, key, keys)).select([key, *learnt])
        parts.append(found.append_column(_GOES, pa.repeat(goes, found.num_rows)))
    return pa.concat_tables(parts)


def renaming(changes: Changes) -> Through:
    """Return what gives stray bytes of this run's side files the names that their connections have when joined.

    What was made from remainders is left out: joining made it anew.
    """
    if not changes:
        return iter
    labels = pa.RecordBatch.from_pylist(changes.labels, LABELS_SCHEMA)
    rest = without("quarantine_key", changes.quarantine_keys)

    def renamed(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (capture_relabel.renamed(batch, labels) for batch in rest(batches))

    return renamed


def teaching(changes: Changes) -> Through:
    """Return what tells finished calls of this run's side files what joining found, batch by batch.

    What was made from remainders is left out: joining made it anew.
    """
    if not changes:
        return iter
    labels = pa.RecordBatch.from_pylist(changes.labels, LABELS_SCHEMA)
    meanings = pa.RecordBatch.from_pylist(list(chain.from_iterable(changes.meanings.values())), MEANINGS_SCHEMA)
    captures, keys = _columns(changes.remade)
    remade = pa.record_batch({"capture_id": captures, "call_key": keys})

    def taught(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield capture_relabel.labelled(capture_relabel.without(batch, remade), labels, meanings)

    return taught


def _columns(pairs: Iterable[tuple[str, str]]) -> tuple[pa.Array, pa.Array]:
    ordered = sorted(pairs)
    return pa.array([one for one, _ in ordered], pa.string()), pa.array([two for _, two in ordered], pa.string())


def merge_together(lake: Lake, changes: Changes, rows: pa.Table) -> pa.Table:
    """Return the calls of connections that captures saw at the same time, one row each; take out those there were.

    ``rows`` are their calls as joining gave them.
    """
    where = f"connection_id IN {{names}} AND {on_dates(changes.dates)}"
    names = rows.schema.names
    there = lake.select(RPC_CALLS, where, names, names=changes.together).cast(rows.schema).to_pylist()
    fresh = rows.to_pylist()
    remade = changes.remade | {(row["capture_id"], row["call_key"]) for row in fresh}
    kept = []
    for each in there:
        row = restored(each)
        if row is not None and (each["sightings"] or (row["capture_id"], row["call_key"]) not in remade):
            kept.append(row)
    lake.delete(RPC_CALLS, where, names=changes.together)
    return pa.Table.from_pylist(merged(kept, fresh), rows.schema)


def without(column: str, keys: Collection[str]) -> Through:
    """Return what leaves the rows out whose column has one of these values."""
    if not keys:
        return iter
    gone = pa.array(sorted(keys), pa.string())

    def left(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (batch.filter(pc.invert(pc.is_in(batch[column], gone))) for batch in batches)

    return left


def pending_table(rows: Sequence[Row]) -> pa.Table:
    """Return rows of ``bronze.pending`` as Arrow."""
    return pa.Table.from_pylist(list(rows), SCHEMAS["pending"])


def earlier(lake: Lake, fresh: pa.Table) -> pa.Table:
    """Return the remainders of earlier runs of the four-tuples in ``fresh``."""
    if not lake.exists(PENDING) or not fresh.num_rows:
        return pending_table([])
    flows = {flow(row) for row in _tuples(fresh)}
    found = lake.select(PENDING, f"{_FLOW} IN {{flows}}", SCHEMAS["pending"].names, flows=flows)
    return found.cast(SCHEMAS["pending"])


def _tuples(rows: pa.Table) -> list[Row]:
    found: list[Row] = rows.select(["client_address", "client_port", "server_address", "server_port"]).to_pylist()
    return found
