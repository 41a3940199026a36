"""Where clocks of captures were set, as the ledger has it, and what that says of servers whose packets they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import FilteredTable
from schemas.bronze import CAPTURE_FILES
from udfs.capture.clock_steps import ClockSteps
from udfs.rows import RowDict

_STEPS: Final = "SELECT capture_id, times_go_back, tap_steps FROM {rows}"
_WITH_STEPS: Final = FilteredTable(
    CAPTURE_FILES, "times_go_back IS NOT NULL OR tap_steps IS NOT NULL", is_shared=True
)  # each step of a run asks for them


def read_clock_steps(
    lake: Lake, fresh: Iterable[RowDict] = (), tap_steps: Mapping[str, list[RowDict] | None] = MappingProxyType({})
) -> ClockSteps:
    """Return where the clocks of captures were set.

    ``fresh`` are rows of the ledger that are not stored yet, ``tap_steps``, by capture, columns of it that are not.
    """
    rows = {row["capture_id"]: row for row in lake.query(_STEPS, rows=_WITH_STEPS).to_pylist()}
    for row in fresh:  # of a capture that was read on, other captures have shown some
        name, known = row["capture_id"], rows.get(row["capture_id"], row)
        rows[name] = {"capture_id": name, "times_go_back": row["times_go_back"], "tap_steps": known["tap_steps"]}
    for name, steps in tap_steps.items():
        rows[name] = {"capture_id": name, "times_go_back": None, **rows.get(name, {}), "tap_steps": steps}
    return ClockSteps(rows.values())


def spans_by_server(lake: Lake, spans: Sequence[tuple[str, int, int]]) -> dict[str, list[tuple[int, int]]]:
    """Return spans of captures (capture_id, beginning, end) by the addresses of servers whose packets they have."""
    captures, found = {name for name, _, _ in spans}, defaultdict[str, list[tuple[int, int]]](list)
    if not captures:
        return {}
    rows = lake.select(CAPTURE_FILES, "capture_id IN {captures}", ("capture_id", "servers"), captures=captures)
    servers = {row["capture_id"]: row["servers"] or () for row in rows.to_pylist()}
    for name, since, until in spans:
        for server in servers.get(name, ()):
            found[server].append((since, until))
    return dict(found)


def earlier_ends(lake: Lake, ends: Mapping[str, int], left_out: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    """Return times by server, us, earlier by spans of captures that have packets of the server."""
    spans = spans_by_server(lake, left_out)
    return {name: end - sum(until - since for since, until in spans.get(name, ())) for name, end in ends.items()}
