"""Update of gold.machine_history from silver: of the queue managers that changed, from the first changed interval on.

The names of queue managers are those of gold.queue_history, which is updated before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import pyarrow as pa

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MAX_ROWS_IN_MEMORY, BoundQuery, GroupedQuery, GroupFunction
from pipeline.queues import machine_rows
from pipeline.queues.named_update import NamedUpdate, begin_named_update
from pipeline.queues.queue_rows import QueueSettings, from_gold_table, to_gold_table
from schemas.queue_history import MACHINE_HISTORY
from udfs.columns.absent import BEFORE_ALL
from udfs.rows import RowDict

CODE_VERSION: Final = "1"  # raised when rows are computed differently: all are recomputed
_MAX_CHANGES: Final = 100_000  # queue managers with changes; with more, all rows are recomputed

# The last interval of each changed queue manager that began before the change, of those that end at a time or later.
_LAST_UNCHANGED: Final = """
SELECT changed.machine, max(unix_micros(valid_from)) AS start
FROM {{changed}} AS changed JOIN (SELECT * FROM {{history}} WHERE {where}) AS history
  ON history.queue_manager = changed.machine AND unix_micros(history.valid_from) < changed.since
GROUP BY changed.machine"""


def update(lake: Lake, settings: QueueSettings, run_id: str) -> int:
    """Update the histories of queue managers; return how many rows are written."""
    provenance = {"max_gap_us": settings.max_gap_us, "machines": CODE_VERSION}
    step = begin_named_update(lake, MACHINE_HISTORY, machine_rows.EVENT_TABLES, provenance)
    if not step.exists(*machine_rows.EVENT_TABLES) or step.is_current():
        return 0
    return _MachinesUpdate(step, settings.max_gap_us, run_id).run()


class _MachinesUpdate(NamedUpdate):
    """One update of the histories of queue managers."""

    def run(self) -> int:
        """Recompute what changes of the inputs affect, or all rows."""
        changed = self._changed_machines()
        if changed is None:
            return self._recompute_all()
        if not changed:
            self.step.note_provenance()
            return 0
        return self._recompute_changed(changed)

    def _changed_machines(self) -> dict[str, int] | None:
        """Return the queue managers with changes, and since when, microseconds; None where all are recomputed."""
        step = self.step
        if not step.has_same_inputs("max_gap_us", "machines"):
            return None
        changed: dict[str, int] = {}
        for table in machine_rows.EVENT_TABLES:
            events = machine_rows.events_sql(table).replace("{rows}", "{feed}")
            sql = f"SELECT machine, min(`at`) AS `at` FROM ({events}) AS every GROUP BY machine"
            rows = step.changes(table, sql, _MAX_CHANGES, names=self.names)
            if rows is None:
                return None
            for row in rows:
                changed[row["machine"]] = min(row["at"], changed.get(row["machine"], row["at"]))
        before, now = step.provenance_before["names"], step.provenance_now["names"]
        for address in before.keys() | now.keys():
            old, new = before.get(address, address), now.get(address, address)
            if old != new:
                changed |= {old: BEFORE_ALL, new: BEFORE_ALL}
        return changed

    def _recompute_changed(self, changed: dict[str, int]) -> int:
        """Recompute the rows from the last interval on that began before what changed, and replace those that differ.

        That interval's beginning stays, for it follows from earlier events; its end may move.
        """
        lake, machines = self.lake, sorted(changed)
        starts = dict.fromkeys(machines, BEFORE_ALL) | self._last_unchanged(changed)
        events = self._read_events(starts)
        if events is None:
            return self._recompute_all()
        rows = machine_rows.machine_history_rows(machine_rows.events_by_machine(events), self.max_gap)
        first = min(starts.values())
        newer = "" if first == BEFORE_ALL else f" AND valid_from >= timestamp_micros({first})"
        there = lake.select(MACHINE_HISTORY, f"queue_manager IN {{machines}}{newer}", machines=machines)
        is_replaced = [row["valid_from"] >= starts[row["queue_manager"]] for row in from_gold_table(there)]
        there = there.filter(pa.array(is_replaced, pa.bool_()))
        replaced = [row for row in rows if row["valid_from"] >= starts[row["queue_manager"]]]
        return self.step.replace_changed(to_gold_table(MACHINE_HISTORY, replaced, self.run_id), there)

    def _last_unchanged(self, changed: dict[str, int]) -> dict[str, int]:
        """Return the beginning of each queue manager's last interval that began before what changed, if there is one.

        Mostly it reaches up to what changed. Only for queue managers that were out of sight the whole table is read.
        """
        found: dict[str, int] = {}
        for where in (f"valid_to >= timestamp_micros({max(min(changed.values()), 0)})", "TRUE"):
            left = sorted(changed.keys() - found.keys())
            if left:
                since = pa.table({"machine": left, "since": pa.array([changed[each] for each in left], pa.int64())})
                sql = _LAST_UNCHANGED.format(where=where)
                rows = self.lake.query(sql, changed=since, history=MACHINE_HISTORY).to_pylist()
                found |= {row["machine"]: row["start"] for row in rows}
        return found

    def _read_events(self, starts: dict[str, int]) -> list[RowDict] | None:
        """Return the events on which the rows of each queue manager rest from a time on; None if they are too many."""
        begins = {machine: start if start == BEFORE_ALL else start - self.max_gap for machine, start in starts.items()}
        first = min(begins.values())
        wanted = pa.table({"machine": list(begins), "begins": pa.array(begins.values(), pa.int64())})
        out: list[RowDict] = []
        for table in machine_rows.EVENT_TABLES:
            events = machine_rows.events_sql(table, None if first == BEFORE_ALL else first)
            sql = f"""
SELECT every.* FROM ({events}) AS every
JOIN {{wanted}} AS wanted ON wanted.machine = every.machine AND every.`at` >= wanted.begins"""
            rows = self.lake.query_at_most(sql, MAX_ROWS_IN_MEMORY, rows=table, names=self.names, wanted=wanted)
            if rows is None:
                return None
            out += rows.to_pylist()
        return out

    def _recompute_all(self) -> int:
        """Recompute all rows."""
        self.step.prepare_full_reads(*machine_rows.EVENT_TABLES)
        events = {
            table.name: BoundQuery(machine_rows.events_sql(table), {"rows": table, "names": self.names})
            for table in machine_rows.EVENT_TABLES
        }
        make_rows = _row_maker(self.max_gap, self.run_id)
        query = GroupedQuery(events, ("machine",), make_rows, MACHINE_HISTORY.struct())
        with self.lake.map_groups(query) as rows:
            return self.step.replace_all(rows)


def _row_maker(max_gap: int, run_id: str) -> GroupFunction:
    """Return the function that makes the rows of the table from all events of some queue managers."""

    def make_rows(events: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        every = chain.from_iterable(rows.to_pylist() for rows in events.values())
        rows = machine_rows.machine_history_rows(machine_rows.events_by_machine(every), max_gap)
        yield to_gold_table(MACHINE_HISTORY, rows, run_id)

    return make_rows
