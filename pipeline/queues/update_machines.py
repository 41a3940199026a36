"""Update of gold.machine_history from silver: of the queue managers that changed, from the first changed interval on.

The names of queue managers are those of gold.queue_history, which is updated before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import pyarrow as pa

from pipeline.lake.incremental import DerivedTable
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery, GroupFunction
from pipeline.queues import machine_rows
from pipeline.queues.queue_manager_table_update import QueueManagerTableUpdate, begin_update_with_machine_names
from pipeline.queues.queue_rows import QueueSettings, from_gold_table, to_gold_table
from schemas.queue_history import MACHINE_HISTORY
from udfs.columns.absent import BEFORE_ALL

_MACHINES: Final = DerivedTable(MACHINE_HISTORY, machine_rows.EVENT_TABLES, code_version="1")

# The last interval of each changed queue manager that began before the change, of those that end at a time or later.
_LAST_UNCHANGED: Final = """
SELECT changed.machine, max(unix_micros(valid_from)) AS start
FROM {{changed}} AS changed JOIN (SELECT * FROM {{history}} WHERE {where}) AS history
  ON history.queue_manager = changed.machine AND unix_micros(history.valid_from) < changed.since
GROUP BY changed.machine"""


def update(lake: Lake, settings: QueueSettings, run_id: str) -> int:
    """Update the histories of queue managers; return how many rows are written."""
    step = begin_update_with_machine_names(_MACHINES, lake, {"max_gap_us": settings.max_gap_us})
    return 0 if step is None else _MachinesUpdate(step, settings.max_gap_us, run_id).run()


class _MachinesUpdate(QueueManagerTableUpdate):
    """One update of the histories of queue managers."""

    def run(self) -> int:
        """Recompute what changes of the inputs affect, or all rows."""
        return self.step.recompute(self._changed_machines, self._recompute)

    def _changed_machines(self) -> dict[str, int]:
        """Return the queue managers with changes, and since when, microseconds; UnknownChangesError."""
        changed: dict[str, int] = {}
        first = "SELECT machine, min(`at`) AS `at` FROM ({events}) AS every GROUP BY machine"
        events = {
            table: machine_rows.events_sql(table).replace("{rows}", "{feed}") for table in machine_rows.EVENT_TABLES
        }
        queries = [(table, first.replace("{events}", sql)) for table, sql in events.items()]
        if (found := self.step.all_changed_rows(queries, names=self.names)) is not None:
            for row in found.to_pylist():
                changed[row["machine"]] = min(row["at"], changed.get(row["machine"], row["at"]))
        for old, new in self.renamed():
            changed |= {old: BEFORE_ALL, new: BEFORE_ALL}
        return changed

    def _recompute(self, changed: dict[str, int] | None) -> int:
        """Recompute all rows, or those from the last interval on that began before what changed.

        That interval's beginning stays, for it follows from earlier events; its end may move.
        """
        lake = self.lake
        if changed is None:
            with lake.map_groups(self._histories(None)) as rows:
                return self.step.replace_all(rows)
        starts = dict.fromkeys(sorted(changed), BEFORE_ALL) | self._last_unchanged(changed)
        first = min(starts.values())
        newer = "" if first == BEFORE_ALL else f" AND valid_from >= timestamp_micros({first})"
        there = lake.select(MACHINE_HISTORY, f"queue_manager IN {{machines}}{newer}", machines=starts.keys())
        is_replaced = [row["valid_from"] >= starts[row["queue_manager"]] for row in from_gold_table(there)]
        current = there.filter(pa.array(is_replaced, pa.bool_()))
        return self.step.replace_changed(lake.map_few_groups(self._histories(starts)), current)

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

    def _histories(self, starts: dict[str, int] | None) -> GroupedQuery:
        """Return the query for the rows of all queue managers, or of some from a time on.

        Those rest on the events since ``max_gap`` before.
        """
        since, some, inputs = None, "", {"names": self.names}
        if starts is not None:
            begins = [start if start == BEFORE_ALL else start - self.max_gap for start in starts.values()]
            since = None if BEFORE_ALL in begins else min(begins)
            some = "JOIN {wanted} AS wanted ON wanted.machine = every.machine AND every.`at` >= wanted.begins"
            inputs["wanted"] = pa.table({"machine": [*starts], "begins": pa.array(begins, pa.int64())})
        events = {
            table.name: BoundQuery(
                f"SELECT every.* FROM ({machine_rows.events_sql(table, since)}) AS every {some}",
                {"rows": table, **inputs},
            )
            for table in machine_rows.EVENT_TABLES
        }
        make_rows = _row_maker(self.max_gap, starts, self.run_id)
        return GroupedQuery(events, ("machine",), make_rows, MACHINE_HISTORY.struct())


def _row_maker(max_gap: int, starts: Mapping[str, int] | None, run_id: str) -> GroupFunction:
    """Return the function that makes rows of the events of some queue managers: those from ``starts`` on, or all."""

    def make_rows(events: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        every = chain.from_iterable(rows.to_pylist() for rows in events.values())
        rows = machine_rows.machine_history_rows(machine_rows.events_by_machine(every), max_gap)
        if starts is not None:
            rows = [row for row in rows if row["valid_from"] >= starts[row["queue_manager"]]]
        yield to_gold_table(MACHINE_HISTORY, rows, run_id)

    return make_rows
