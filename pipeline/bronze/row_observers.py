"""Interfaces for observers of rows: code that reads them while they are written to a table of bronze.

``ingest_captures`` passes each task's batches through a ``RowObserver``. Silver's decoders are such: they decode calls
and packets that are in memory already, so that they need not be read from the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts
from pipeline.lake.staging_files import Batches

_NO_CALLS: Final = pa.schema([("call_key", pa.string()), ("interface_name", pa.string())])


class RowObserver(Protocol):
    """Reads rows of a table in the tasks that write them. It is pickled: each task has its own copy."""

    def record_and_pass(self, batches: Batches, task: str) -> Batches:
        """Yield the batches unchanged; ``task`` is the number of the task that writes them."""
        ...


@dataclass(frozen=True, slots=True)
class RemovedCalls:
    """Calls that a commit of ``bronze.rpc_calls`` deleted or changed, and the event dates of their rows in silver.

    ``calls`` has call_key and interface_name, as the calls were before.
    """

    calls: pa.Table = field(default_factory=_NO_CALLS.empty_table)
    silver_dates: frozenset[date | None] = frozenset()

    def of_interfaces(self, names: Sequence[str]) -> pa.Array:
        """Return the keys of the calls of some interfaces."""
        return distinct_texts(self.calls["call_key"].filter(pc.is_in(self.calls["interface_name"], pa.array(names))))


@dataclass(frozen=True, slots=True)
class ObservedWrite:
    """The commits of a run to a table, from one version to another, whose added rows an observer all saw.

    ``removed_calls``: of ``bronze.rpc_calls`` those that they deleted or changed; no other row differs.
    """

    from_version: int
    to_version: int
    removed_calls: RemovedCalls = field(default_factory=RemovedCalls)
