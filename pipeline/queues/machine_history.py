"""Machine histories: compute the intervals of a queue manager's state from events. No Spark.

The rules, from [MS-MQMR] 2.2.3.1, 3.1.4.1 and 3.1.4.2:

* A snapshot reports values. Each value holds until it is reported again, at most ``max_gap``. A value that the queue
  manager answers as not available (VT_NULL) is unknown from then on; a value that was not requested stays as it was.
* An answered CONNECT or DISCONNECT brings the queue manager online or takes it offline: this is its state until one is
  reported, as long as an observation holds.

Nothing depends on events more than ``max_gap`` back: from the beginning of any interval on, a history follows from the
events since ``max_gap`` before it. Times are microseconds since the epoch (UTC).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from pipeline.attempts.evidence import confidence_level
from pipeline.queues.history import SOURCE_OPERATIONS, STATE_UNKNOWN
from pipeline.queues.valid_values import ValidValue, valid_intervals
from udfs.rows import RowDict

STATE_DISCONNECTED: Final = "DISCONNECTED"
STATE_CONNECTED: Final = "CONNECTED"
STATES_BY_ACTION: Final = {"CONNECT": STATE_CONNECTED, "DISCONNECT": STATE_DISCONNECTED}
MACHINE_REPORTED_COLUMNS: Final = (
    "state",
    "directory_server",
    "bytes_in_all_queues",
    "active_queues",
    "private_queues",
)


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """A snapshot of a queue manager, or an action that brought it online or took it offline.

    ``values`` are the values that it reports, None if not available. ``missing`` says what an action lacks; one that
    was not answered has no values.
    """

    at: int
    key: str
    source: str = SOURCE_OPERATIONS
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()


def compute_history(events: Iterable[MachineEvent], max_gap: int) -> list[RowDict]:
    """Return the intervals of one queue manager, in order of time, from all its events."""
    valid: dict[str, ValidValue[MachineEvent]] = {}

    def apply(event: MachineEvent) -> None:
        for name, value in {"event": None, **event.values}.items():
            valid[name] = ValidValue(value, event.at, event)

    ordered = sorted(events, key=_event_order)
    return [_interval(begin, end, valid) for begin, end in valid_intervals(ordered, valid, apply, max_gap)]


def _event_order(event: MachineEvent) -> tuple[int, bool, str, str]:
    """Order events by time; at the same time actions come before snapshots."""
    return event.at, event.source != SOURCE_OPERATIONS, event.source, event.key


def _interval(begin: int, end: int, valid: Mapping[str, ValidValue[MachineEvent]]) -> RowDict:
    rests_on = {each.event.key: each.event for each in valid.values()}
    missing = {code for event in rests_on.values() for code in event.missing}
    if any(name not in valid for name in ("state", "bytes_in_all_queues")):
        missing.add("no_snapshot")
    errors = [dict(error) for event in rests_on.values() for error in event.errors]
    if errors:
        missing.add("decode_error")
    values = {name: valid[name].value if name in valid else None for name in MACHINE_REPORTED_COLUMNS}
    reports = [valid[name] for name in MACHINE_REPORTED_COLUMNS if name in valid]
    return {
        "valid_from": begin,
        "valid_to": end,
        **values,
        "state": values["state"] or STATE_UNKNOWN,
        "source": max(rests_on.values(), key=_event_order).source if rests_on else None,
        "reported_at": max((each.at for each in reports if each.event.source != SOURCE_OPERATIONS), default=None),
        "evidence": [event.key for event in sorted(rests_on.values(), key=attrgetter("at", "key"))],
        "confidence": confidence_level(missing, guessed=False),
        "missing": sorted(missing),
        "errors": errors,
    }
