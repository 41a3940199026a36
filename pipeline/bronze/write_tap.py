"""A tap on rows while they are written: what reads calls on their way into ``bronze.rpc_calls``.

``ingest_captures`` passes each task's batches through a ``WriteTap``. Silver's decoder is one: calls that are in memory
already are decoded there, and need not be read from the table again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Protocol

from pipeline.lake.staging_files import Batches


class WriteTap(Protocol):
    """Reads rows of ``bronze.rpc_calls`` in the tasks that write them; it is pickled, a copy for each task."""

    def passing(self, batches: Batches, task: str) -> Batches:
        """Yield the batches as they are; ``task`` is the number of the task that writes them."""
        ...


@dataclass(frozen=True, slots=True)
class RemovedCalls:
    """Calls that a commit took out of ``bronze.rpc_calls`` or changed, and the dates of silver's rows of them."""

    calls: frozenset[str] = frozenset()
    dates: frozenset[date | None] = frozenset()


@dataclass(frozen=True, slots=True)
class TappedWrite:
    """A commit of ``bronze.rpc_calls`` whose added rows all went through the tap.

    It leads from version ``since`` to ``version`` with no other commit between. ``removed``: what it took out; nothing
    else differs.
    """

    since: int
    version: int
    removed: RemovedCalls = RemovedCalls()
