"""The facts of one queue at one queue manager that the rules on queues check. Plain rows; no Spark.

Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pipeline.queues.growth import CountSample
from pipeline.settings import AlertThresholds, HistoryConfig
from udfs.call_results import call_succeeded
from udfs.dcerpc.interfaces import REMOTE_READ_NAME
from udfs.keys import key
from udfs.rows import RowMapping
from udfs.times import timedelta_to_us


@dataclass(frozen=True, slots=True)
class QueueRuleLimits:
    """The settings of the rules on queues: time spans in microseconds, numbers of messages."""

    growth_window: int
    dead_letters: int
    journal_messages: int
    max_clock_difference: int
    max_gap: int

    @classmethod
    def from_settings(cls, alerts: AlertThresholds, history: HistoryConfig) -> QueueRuleLimits:
        """Return the limits that the settings of alerts and of queue histories give."""
        return cls(
            growth_window=timedelta_to_us(alerts.growth_window),
            dead_letters=alerts.dead_letters,
            journal_messages=alerts.journal_messages,
            max_clock_difference=timedelta_to_us(alerts.max_clock_difference),
            max_gap=timedelta_to_us(history.max_gap),
        )

    def as_provenance(self) -> dict[str, int]:
        """Return the settings as a dictionary, for the provenance in a commit."""
        return {name: getattr(self, name) for name in self.__slots__}


DEFAULT_LIMITS: Final = QueueRuleLimits.from_settings(AlertThresholds(), HistoryConfig())


@dataclass(frozen=True)
class QueueRead:
    """A read: a row of gold.receive_attempts with the calls that it consists of, by call key.

    The row has ``first_packet_at`` and ``association_group_id`` of its connection too. A call has ``capture_id``,
    ``arrived_at`` of the returned message, and ``cursor_handle`` of the request.
    """

    row: RowMapping
    calls: Mapping[str, RowMapping] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - of whichever column
        return self.row[name]

    @cached_property
    def start_call_key(self) -> str:
        """The key of the call that started the read; empty where it is unknown."""
        named = (each for each in self.row["evidence"] or () if key(each) == self.row["attempt_key"])
        return next(named, "")

    @property
    def start_call(self) -> RowMapping:
        """The call that started the read; empty where it is unknown."""
        return self.calls.get(self.start_call_key, {})

    @cached_property
    def message_identity(self) -> tuple[Any, ...] | None:
        """What identifies the returned message among all that its queue ever held; None where a part is unknown.

        A reinstalled queue manager returns the same numbers again, but with other arrival times.
        """
        known = (self["server_address"], self["lookup_id"], self["message_key"], self.start_call.get("arrived_at"))
        return None if None in known else known

    @property
    def capture_ids(self) -> set[str | None]:
        """The captures that contain the read's calls."""
        return {call.get("capture_id") for call in self.calls.values()} or {None}

    def may_hold_message(self, time: int, slack: int = 0) -> bool:
        """Tell whether the reader held the message at a time, or may have held it.

        ``slack`` is by how much the clocks may differ.
        """
        if self["is_receive"] is False or call_succeeded(REMOTE_READ_NAME, self["start_hresult"]) is False:
            return False
        if self["returned_at"] is None or self["returned_at"] > time + slack:
            return False
        return self["ended_at"] is None or self["ended_at"] >= time - slack


@dataclass(frozen=True)
class QueueFacts:
    """The facts of one queue.

    ``message_counts`` are the reported numbers of messages, ``journal_counts`` those of its journal, both in order of
    time and with the id of the snapshot. ``reports`` are rows of silver.queue_snapshots of a local queue, with
    ``capture_id`` and ``asked_at``. ``reads`` are the reads of all its readers. ``senders_with_other_numbers`` are
    rows of gold.eod_sources whose sender and receiver disagree. ``transactional_reports`` are snapshots that tell
    whether the queue is transactional, the first of each hour, in order of time. ``transaction_uses`` are receives in
    a transaction, and moves to the queue or its subqueues, that RemoteRead answered MQ_OK (``queue_queries``).
    """

    queue_manager: str | None
    queue: str
    message_counts: list[CountSample] = field(default_factory=list)
    journal_counts: list[CountSample] = field(default_factory=list)
    reports: list[RowMapping] = field(default_factory=list)
    reads: list[QueueRead] = field(default_factory=list)
    senders_with_other_numbers: list[RowMapping] = field(default_factory=list)
    transactional_reports: list[RowMapping] = field(default_factory=list)
    transaction_uses: list[RowMapping] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """The text that names the queue in findings."""
        return f"queue {self.queue} at {self.queue_manager}"
