"""What of a site is worth looking at first, a line for each: for the end of a run, where nobody has opened it yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pipeline.dashboards.model import Site, state_now
from pipeline.queues.history import NOT_CONNECTED

Row = dict[str, Any]
_TROUBLE: Final = ("stalled", "reset", "resending")

# Dataset, section, which rows, what they are.
_LOOKED_FOR: Final[tuple[tuple[str, str, Callable[[Row], bool], str], ...]] = (
    ("alerts", "alerts", lambda row: row["until"] is None, "alerts that hold"),
    ("queues", "queues", lambda row: row["state"] in NOT_CONNECTED, "queues not connected"),
    ("transfers", "transfers", lambda row: row["condition"] in _TROUBLE, "transfers in trouble"),
    (
        "sources",
        "transfers",
        lambda row: bool(row["reject_count"] or row["disagrees_with_sender"]),
        "senders turned away",
    ),
    ("sequences", "reads", lambda row: row["loss_risk"] is not None, "messages at risk"),
    ("calls", "calls", lambda row: bool(row["failed"]), "calls that failed"),
    ("findings", "findings", lambda row: row["severity"] == "error", "rules broken"),
    ("quality", "quality", lambda row: row["success"] is False, "quality checks that failed"),
)


def attention(site: Site) -> Iterator[tuple[str, str]]:
    """Yield section and what is there, of what there is; counts are of all rows, not only of those that travel."""
    for name, section, wanted, what in _LOOKED_FOR:
        data = site.data.get(name)
        if data is None or data.rows is None:
            continue
        rows = (data.summed if data.summed is not None else data.rows).to_pylist()
        if name == "queues":
            rows = [row | {"state": state_now(row, site.as_of)} for row in rows]
        if number := sum(row.get("n", 1) for row in rows if wanted(row)):
            yield section, f"{number} {what}"
