"""What the updates of tables by queue manager share: their rows have the names that gold.queue_history has.

That is updated before; with other names, rows are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.queues.queue_managers import names_table
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import Table


def begin_named_update(
    lake: Lake, table: Table, inputs: Sequence[Table], provenance: Mapping[str, Any]
) -> IncrementalUpdate:
    """Begin an update of a table, with the names of queue managers in its provenance."""
    step = IncrementalUpdate.begin(lake, table, inputs, dict(provenance), QUEUE_HISTORY)
    step.provenance_now["names"] = step.provenance_of(QUEUE_HISTORY).get("names") or {}
    return step


@dataclass(slots=True)
class NamedUpdate:
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
