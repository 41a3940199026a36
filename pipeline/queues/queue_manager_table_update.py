"""What the updates of tables by queue manager share: their rows have the names that gold.queue_history has.

That is updated before; with other names, rows are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState
from pipeline.lake.lake import Lake
from pipeline.queues.queue_managers import names_table, renamed_queue_managers
from pipeline.silver.machines import names_in_gold


@dataclass(frozen=True, slots=True)
class KeptNames(KeptState):
    """The names of queue managers by address, as the rows have them."""

    names: dict[str, str]


def begin_update_with_machine_names(
    table: DerivedTable, lake: Lake, settings: Mapping[str, Any]
) -> IncrementalUpdate | None:
    """Begin an update of a table, with the names of queue managers in its provenance."""
    return table.begin(lake, settings, KeptNames(names_in_gold(lake)).as_provenance())


@dataclass(slots=True)
class QueueManagerTableUpdate:
    """One update; ``max_gap`` in microseconds."""

    step: IncrementalUpdate
    max_gap: int
    run_id: str

    @property
    def lake(self) -> Lake:
        """The lake of the table."""
        return self.step.lake

    @property
    def names(self) -> pa.Table:
        """The names of queue managers by address (``names_table``)."""
        return names_table(self.step.provenance_now["names"])

    def renamed(self) -> set[tuple[str, str]]:
        """Return the names of queue managers that have another one now, each with that."""
        return renamed_queue_managers(self.step.kept(KeptNames).names, self.step.provenance_now["names"])
