"""Entries: active alerts that have one cause, together, under the alert that says most of it. No Spark.

An alert stays one row for each condition and subject. An operator is told of the cause once: connections to a machine
that fail, and not also of every queue and transfer that waits for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.silver.machines import Machines

AlertRow = Mapping[str, Any]
"""A row of gold.alerts."""

_WAITING: Final = ("order_acks_stalled", "transfer_stalled", "messages_unacknowledged")
_SENDING: Final = ("queue_disconnected", *_WAITING, "resend_storm", "transfers_slow")
_IN_SEQUENCE: Final = ("sequence_refused", "sequence_gap")


@dataclass(frozen=True, slots=True)
class Entry:
    """Alerts with one cause: the ``leading`` one, and the others that follow from it."""

    leading: AlertRow
    others: tuple[AlertRow, ...] = ()

    @property
    def alerts(self) -> tuple[AlertRow, ...]:
        """All its alerts, the leading one first."""
        return (self.leading, *self.others)

    @property
    def severity(self) -> str:
        """The worst severity of its alerts."""
        return max((str(row["severity"]) for row in self.alerts), key=SEVERITY_ORDER.index)

    @property
    def since(self) -> datetime:
        """When the first of its alerts began."""
        since: datetime = min(row["since"] for row in self.alerts)
        return since

    @property
    def queues(self) -> list[str]:
        """The queues of its alerts, sorted."""
        return sorted({row["queue"] for row in self.alerts if row["queue"] is not None})


@dataclass(frozen=True, slots=True)
class _Places:
    """Compares where alerts are: their queue, and the machines between which it goes wrong."""

    machines: Machines

    def is_hop(self, cause: AlertRow, alert: AlertRow) -> bool:
        """Whether messages of the alert go from and to the machines of the cause."""
        return self._is_same(cause["from_machine"], alert["from_machine"]) and self._is_same(
            cause["to_machine"], _receiver(alert)
        )

    def is_way_back(self, cause: AlertRow, alert: AlertRow) -> bool:
        """Whether acknowledgements of the alert's messages go from and to the machines of the cause."""
        return self._is_same(cause["from_machine"], _receiver(alert)) and self._is_same(
            cause["to_machine"], alert["from_machine"]
        )

    def is_at(self, cause: AlertRow, alert: AlertRow) -> bool:
        """Whether messages of the alert go from or to the machine of the cause."""
        ends = (alert["from_machine"], _receiver(alert))
        return any(self._is_same(cause["to_machine"], end) for end in ends)

    def is_transfer(self, cause: AlertRow, alert: AlertRow) -> bool:
        """Whether it is the same queue, and the same machine sends to it."""
        return self.is_queue(cause, alert) and self._is_same(cause["from_machine"], alert["from_machine"])

    def is_queue(self, cause: AlertRow, alert: AlertRow) -> bool:
        """Whether it is the same queue."""
        return cause["queue"] is not None and cause["queue"] == alert["queue"]

    def _is_same(self, one: str | None, other: str | None) -> bool:
        return self.machines.is_same(one, other)


_Meets = Callable[[_Places, AlertRow, AlertRow], bool]

# Which condition is the cause, where it meets another alert, and of which conditions it is the cause. The first that
# holds counts. A condition is no cause of one that stands above it.
_CAUSES: Final[tuple[tuple[str, _Meets, tuple[str, ...]], ...]] = (
    ("duplicate_queue_manager", _Places.is_at, ("sessions_refused", *_SENDING, "ends_disagree", *_IN_SEQUENCE)),
    ("machine_disconnected", _Places.is_at, ("sessions_refused", *_SENDING)),
    ("queue_on_hold", _Places.is_transfer, _SENDING),
    ("sessions_refused", _Places.is_hop, _SENDING),
    ("sessions_refused", _Places.is_way_back, _WAITING),
    ("queue_disconnected", _Places.is_transfer, (*_WAITING, "resend_storm", "transfers_slow")),
    ("ends_disagree", _Places.is_queue, (*_IN_SEQUENCE, *_WAITING)),
    ("sequence_refused", _Places.is_transfer, ("sequence_gap", *_WAITING)),
    ("sequence_refused", _Places.is_hop, ("resend_storm",)),
    ("receives_not_ended", _Places.is_queue, ("queue_stuck", "messages_unread", "nearly_full")),
    ("ends_refused", _Places.is_queue, ("queue_stuck", "messages_unread", "nearly_full")),
    ("queue_stuck", _Places.is_queue, ("messages_unread", "nearly_full", *_WAITING)),
    ("nearly_full", _Places.is_queue, _WAITING),
    ("order_acks_stalled", _Places.is_transfer, ("transfer_stalled", "messages_unacknowledged")),
    ("order_acks_stalled", _Places.is_hop, ("resend_storm", "transfers_slow")),
    ("transfer_stalled", _Places.is_transfer, ("messages_unacknowledged",)),
    ("window_full", _Places.is_hop, ("transfers_slow",)),
)


def evidence_keys(alert: AlertRow) -> list[str]:
    """Return the keys of an alert's evidence, without those that are not known."""
    return [key for key in alert["evidence"] or () if key is not None]


def find_entries(alerts: Iterable[AlertRow], machines: Machines) -> list[Entry]:
    """Return the entries of active alerts, rows of gold.alerts: the worst first, of these the oldest first.

    ``machines`` says which of the machines that alerts name are the same.
    """
    ordered = sorted(alerts, key=_order)
    by_condition: defaultdict[str, list[AlertRow]] = defaultdict(list)
    for row in ordered:
        by_condition[row["condition"]].append(row)
    places = _Places(machines)
    above = {row["alert_key"]: _cause(row, by_condition, places) for row in ordered}
    members: defaultdict[str, list[AlertRow]] = defaultdict(list)
    for row in ordered:
        top = row
        while (cause := above[top["alert_key"]]) is not None:
            top = cause
        members[top["alert_key"]].append(row)
    entries = [
        Entry(top, tuple(row for row in members[top["alert_key"]] if row is not top))
        for top in ordered if above[top["alert_key"]] is None
    ]  # fmt: skip
    return sorted(entries, key=lambda entry: (-SEVERITY_ORDER.index(entry.severity), entry.since))


def _cause(alert: AlertRow, by_condition: Mapping[str, list[AlertRow]], places: _Places) -> AlertRow | None:
    """Return the alert that says more of the cause; None where there is none."""
    for condition, meets, conditions in _CAUSES:
        if alert["condition"] in conditions:
            for cause in by_condition.get(condition, ()):
                if meets(places, cause, alert):
                    return cause
    return None


def _receiver(alert: AlertRow) -> str | None:
    """Return the machine to which an alert's messages go: where only their queue is known, the one in its name."""
    if alert["to_machine"] is not None or alert["queue"] is None:
        to_machine: str | None = alert["to_machine"]
        return to_machine
    return str(alert["queue"]).partition("\\")[0]


def _order(alert: AlertRow) -> tuple[int, datetime, str]:
    return -SEVERITY_ORDER.index(alert["severity"]), alert["since"], alert["alert_key"]
